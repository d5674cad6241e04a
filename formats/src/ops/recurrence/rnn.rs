//! Plain recurrent layer: ONNX `RNN` (opsets 7, 14, 22).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::recurrence::gru::refuse_seventh;
use crate::ops::recurrence::layers::{Layer, Walk, matrices};
use crate::ops::{
    Arithmetic, Computes, Direction, InferContext, Operator, Picked, Product, Program, RecurrentActivation,
    ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, WeightMatrix,
};
use crate::value::Value;

attributes! {
    /// `h = f(x * w^T + h * r^T + b)`.
    ///
    /// Operands: `x: [t, n, i]`, `w: [d, h, i]`, `r: [d, h, h]`, optional `b: [d, 2h]`, `lengths: [n]`,
    /// `initial_h: [d, n, h]`. Results: `y: [t, d, n, h]`, `y_h: [d, n, h]`.
    pub struct Rnn revision 1 {
        /// The walks over time.
        1 since 1 => direction: Direction,
        /// One for each direction.
        2 since 1 => activations: Vec<RecurrentActivation>,
        /// Bound of what enters an activation.
        3 since 1 => clip: Option<f32>,
        /// Shapes are `[n, t, i]`, `[n, t, d, h]` and `[n, d, h]`.
        4 since 1 => batch_first: bool,
        /// `h`, where it is stated apart from the weights.
        5 since 1 => hidden_size: Option<i64>,
    }
}

impl Rnn {
    /// What it shares with the other recurrent layers.
    pub fn layer(&self) -> Layer<'_> {
        Layer {
            direction: self.direction,
            activations: &self.activations,
            clip: self.clip,
            batch_first: self.batch_first,
            hidden_size: self.hidden_size,
            gates: 1,
            functions: 1,
            states: 1,
        }
    }
}

/// The new hidden state.
fn step(walk: &mut Walk<'_>, x: &[f64], states: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let next = (0..walk.hidden).map(|unit| {
        let sum = walk.input(0, unit, x) + walk.hidden(0, unit, &states[0]);
        walk.activate(0, sum)
    });
    vec![next.collect()]
}

impl Operator for Rnn {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        refuse_seventh(inputs.len())?;
        self.layer().infer(inputs, context)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        refuse_seventh(inputs.len())?;
        self.layer().reference(inputs, context, step)
    }
}

impl Computes for Rnn {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        self.layer().spaces(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        self.layer().vector(facts)
    }
}

impl Product for Rnn {
    fn weight(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
        matrices(operand, shape)
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::default()
    }

    fn picked(&self) -> Option<Picked> {
        None
    }

    fn program(&self) -> Option<&Program> {
        None
    }

    fn sums(&self, _facts: &StepFacts<'_>) -> Option<DType> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::Attribute;
    use crate::ops::recurrence::layers::test_tensor;
    use crate::ops::{NoBlocks, RecurrentFunction};

    #[test]
    fn both_directions_side_by_side() {
        let relu = RecurrentActivation::plain(RecurrentFunction::Relu);
        let operator = Rnn {
            direction: Direction::Bidirectional,
            activations: vec![relu; 2],
            clip: Some(3.0),
            batch_first: true,
            hidden_size: Some(1),
        };
        let inputs = [
            test_tensor(&[1, 3, 1], &[1.0, -1.0, 2.0]),
            test_tensor(&[2, 1, 1], &[1.0, 1.0]),
            test_tensor(&[2, 1, 1], &[1.0, 2.0]),
        ];
        let mut blocks = NoBlocks;
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks)).unwrap();
        let elements = |index: usize| results[index].as_tensor().unwrap().elements::<f32>().unwrap().to_vec();
        // Forward: 1, 0, 2. Backward from the end: 2, 3, 7 clipped to 3.
        assert_eq!(elements(0), [1.0, 3.0, 0.0, 3.0, 2.0, 2.0]);
        assert_eq!(elements(1), [2.0, 3.0]);
        assert_eq!(results[0].as_tensor().unwrap().shape(), [1, 3, 2, 1]);
    }

    #[test]
    fn activations_round_trip() {
        let activations = vec![
            RecurrentActivation { function: RecurrentFunction::ScaledTanh, alpha: 1.7159, beta: -1e-9 },
            RecurrentActivation::plain(RecurrentFunction::Tanh),
        ];
        let value = activations.to_value().unwrap();
        assert_eq!(Vec::<RecurrentActivation>::from_value(&value), Some(activations));
    }

    #[test]
    fn activation_functions() {
        let apply = |function: RecurrentFunction, x| function.apply(x, 0.5, 0.25);
        assert_eq!(apply(RecurrentFunction::Affine, 2.0), 1.25);
        assert_eq!(apply(RecurrentFunction::LeakyRelu, -2.0), -1.0);
        assert_eq!(apply(RecurrentFunction::ThresholdedRelu, 0.4), 0.0);
        assert_eq!(apply(RecurrentFunction::ThresholdedRelu, 0.5), 0.5);
        assert_eq!(apply(RecurrentFunction::ScaledTanh, 4.0), 0.5 * 1f64.tanh());
        assert_eq!(apply(RecurrentFunction::HardSigmoid, 9.0), 1.0);
        assert_eq!(apply(RecurrentFunction::Elu, -1.0), 0.5 * (-1f64).exp_m1());
        assert_eq!(apply(RecurrentFunction::Softsign, -1.0), -0.5);
        assert_eq!(apply(RecurrentFunction::Softplus, 1000.0), 1000.0);
        assert!((apply(RecurrentFunction::Softplus, 0.0) - 2f64.ln()).abs() < 1e-15);
        assert!(apply(RecurrentFunction::Relu, f64::NAN).is_nan());
    }
}
