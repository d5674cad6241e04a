//! Gated recurrent unit: ONNX `GRU` (opsets 7, 14, 22).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::recurrence::layers::{Layer, Walk, matrices};
use crate::ops::{
    Arithmetic, Computes, Direction, InferContext, Operator, Picked, Product, Program, RecurrentActivation,
    ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, WeightMatrix,
};
use crate::value::Value;

attributes! {
    /// A layer with gates update, reset and hidden, in this order in its weights.
    ///
    /// Operands: `x: [t, n, i]`, `w: [d, 3h, i]`, `r: [d, 3h, h]`, optional `b: [d, 6h]`, `lengths: [n]`,
    /// `initial_h: [d, n, h]`. Results: `y: [t, d, n, h]`, `y_h: [d, n, h]`.
    pub struct Gru revision 1 {
        /// The walks over time.
        1 since 1 => direction: Direction,
        /// For gates and hidden of each direction.
        2 since 1 => activations: Vec<RecurrentActivation>,
        /// Bound of what enters an activation.
        3 since 1 => clip: Option<f32>,
        /// The reset gate multiplies the product with the hidden state, not the state itself.
        4 since 1 => linear_before_reset: bool,
        /// Shapes are `[n, t, i]`, `[n, t, d, h]` and `[n, d, h]`.
        5 since 1 => batch_first: bool,
        /// `h`, where it is stated apart from the weights.
        6 since 1 => hidden_size: Option<i64>,
    }
}

impl Gru {
    /// What it shares with the other recurrent layers.
    pub fn layer(&self) -> Layer<'_> {
        Layer {
            direction: self.direction,
            activations: &self.activations,
            clip: self.clip,
            batch_first: self.batch_first,
            hidden_size: self.hidden_size,
            gates: 3,
            functions: 2,
            states: 1,
        }
    }

    /// The new hidden state.
    fn step(&self, walk: &mut Walk<'_>, x: &[f64], states: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let h = &states[0];
        let mut gate = |gate: usize| -> Vec<f64> {
            (0..walk.hidden)
                .map(|unit| {
                    let sum = walk.input(gate, unit, x) + walk.hidden(gate, unit, h);
                    walk.activate(0, sum)
                })
                .collect()
        };
        let (update, reset) = (gate(0), gate(1));
        let gated: Vec<f64> = reset.iter().zip(h).map(|(reset, h)| reset * h).collect();
        let next = (0..walk.hidden).map(|unit| {
            let recurrent = match self.linear_before_reset {
                true => reset[unit] * walk.hidden(2, unit, h),
                false => walk.hidden(2, unit, &gated),
            };
            let sum = walk.input(2, unit, x) + recurrent;
            (1.0 - update[unit]) * walk.activate(1, sum) + update[unit] * h[unit]
        });
        vec![next.collect()]
    }
}

impl Operator for Gru {
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
        self.layer().reference(inputs, context, |walk, x, states| self.step(walk, x, states))
    }
}

impl Computes for Gru {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        self.layer().spaces(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        self.layer().vector(facts)
    }
}

impl Product for Gru {
    fn weight(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
        // The state is multiplied again once its gates are known: the rows of both gates have to be whole panels of 16.
        matrices(operand, shape).filter(|matrix| (matrix.outputs / 3 * 2).is_multiple_of(16))
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

/// Only LSTM has peepholes.
pub(crate) fn refuse_seventh(found: usize) -> Result<(), TypeError> {
    if found <= 6 { Ok(()) } else { Err(TypeError::OperandCount { expected: "3 to 6".to_string(), found }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::recurrence::layers::test_tensor;
    use crate::ops::{NoBlocks, RecurrentFunction};

    fn run(linear_before_reset: bool) -> (Vec<Vec<f32>>, u64) {
        let affine = RecurrentActivation { function: RecurrentFunction::Affine, alpha: 1.0, beta: 0.0 };
        let operator = Gru {
            direction: Direction::Forward,
            activations: vec![affine; 2],
            clip: None,
            linear_before_reset,
            batch_first: false,
            hidden_size: None,
        };
        // z = 0.5 x, r = 2 x, h = x + ...
        let inputs = [
            test_tensor(&[1, 1, 1], &[1.0]),
            test_tensor(&[1, 3, 1], &[0.5, 2.0, 1.0]),
            test_tensor(&[1, 3, 1], &[0.0, 0.0, 3.0]),
            test_tensor(&[1, 6], &[0.0, 0.0, 10.0, 0.0, 0.0, 7.0]),
            None,
            test_tensor(&[1, 1, 1], &[4.0]),
        ];
        let mut blocks = NoBlocks;
        let mut context = ReferenceContext::new(&mut blocks);
        let results = operator.reference(&inputs, &mut context).unwrap();
        let elements = |value: &Value| value.as_tensor().unwrap().elements::<f32>().unwrap().to_vec();
        (results.iter().map(elements).collect(), context.macs)
    }

    #[test]
    fn equations_by_hand() {
        // h~ = 1 + 10 + (2 * 4) * 3 + 7 = 42; H = 0.5 * 42 + 0.5 * 4.
        assert_eq!(run(false), (vec![vec![23.0], vec![23.0]], 6));
        // h~ = 1 + 10 + 2 * (4 * 3 + 7) = 49; H = 0.5 * 49 + 0.5 * 4.
        assert_eq!(run(true), (vec![vec![26.5], vec![26.5]], 6));
    }
}
