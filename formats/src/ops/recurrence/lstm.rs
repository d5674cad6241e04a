//! Long short-term memory: ONNX `LSTM` (opsets 7, 14, 22).

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
    /// A layer with gates input, output, forget and cell, in this order in its weights.
    ///
    /// Operands: `x: [t, n, i]`, `w: [d, 4h, i]`, `r: [d, 4h, h]`, optional `b: [d, 8h]`, `lengths: [n]`,
    /// `initial_h: [d, n, h]`, `initial_c: [d, n, h]`, `peepholes: [d, 3h]` (input, output, forget).
    /// Results: `y: [t, d, n, h]`, `y_h: [d, n, h]`, `y_c: [d, n, h]`.
    pub struct Lstm revision 1 {
        /// The walks over time.
        1 since 1 => direction: Direction,
        /// For gates, cell input and cell output of each direction.
        2 since 1 => activations: Vec<RecurrentActivation>,
        /// Bound of what enters the activation of a gate or of the cell input.
        3 since 1 => clip: Option<f32>,
        /// The forget gate is 1 minus the input gate.
        4 since 1 => input_forget: bool,
        /// Shapes are `[n, t, i]`, `[n, t, d, h]` and `[n, d, h]`.
        5 since 1 => batch_first: bool,
        /// `h`, where it is stated apart from the weights.
        6 since 1 => hidden_size: Option<i64>,
    }
}

impl Lstm {
    /// What it shares with the other recurrent layers.
    pub fn layer(&self) -> Layer<'_> {
        Layer {
            direction: self.direction,
            activations: &self.activations,
            clip: self.clip,
            batch_first: self.batch_first,
            hidden_size: self.hidden_size,
            gates: 4,
            functions: 3,
            states: 2,
        }
    }

    /// New hidden and cell states.
    fn step(&self, walk: &mut Walk<'_>, x: &[f64], states: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (h, c) = (&states[0], &states[1]);
        let (mut new_h, mut new_c) = (h.clone(), c.clone());
        for unit in 0..walk.hidden {
            let [input, output, forget, cell] =
                [0, 1, 2, 3].map(|gate| walk.input(gate, unit, x) + walk.hidden(gate, unit, h));
            let input = walk.activate(0, input + walk.peephole(0, unit, c[unit]));
            let forget = match self.input_forget {
                true => 1.0 - input,
                false => walk.activate(0, forget + walk.peephole(2, unit, c[unit])),
            };
            new_c[unit] = forget * c[unit] + input * walk.activate(1, cell);
            let output = walk.activate(0, output + walk.peephole(1, unit, new_c[unit]));
            // The cell output is not clipped, as in ONNX Runtime.
            new_h[unit] = output * walk.activate_unclipped(2, new_c[unit]);
        }
        vec![new_h, new_c]
    }
}

impl Operator for Lstm {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        self.layer().infer(inputs, context)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        self.layer().reference(inputs, context, |walk, x, states| self.step(walk, x, states))
    }
}

impl Computes for Lstm {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        self.layer().spaces(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        self.layer().vector(facts)
    }
}

impl Product for Lstm {
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
    use crate::dim::Ranges;
    use crate::dtype::DType;
    use crate::fact::Shape;
    use crate::ops::recurrence::layers::test_tensor;
    use crate::ops::testing::macs;
    use crate::ops::{NoBlocks, RecurrentFunction};
    use crate::tensor::Tensor;

    fn lstm(direction: Direction) -> Lstm {
        let affine = RecurrentActivation { function: RecurrentFunction::Affine, alpha: 1.0, beta: 0.0 };
        Lstm {
            direction,
            activations: vec![affine; 3 * direction.count()],
            clip: None,
            input_forget: false,
            batch_first: false,
            hidden_size: Some(1),
        }
    }

    fn run(operator: &Lstm, inputs: &[Option<Value>]) -> (Vec<Vec<f32>>, u64) {
        let mut blocks = NoBlocks;
        let mut context = ReferenceContext::new(&mut blocks);
        let results = operator.reference(inputs, &mut context).unwrap();
        let elements = |value: &Value| value.as_tensor().unwrap().elements::<f32>().unwrap().to_vec();
        (results.iter().map(elements).collect(), context.macs)
    }

    /// Gates i, o, f, c are x times 1, 2, 3, 4 plus h times 0; all activations are the identity.
    fn inputs(steps: &[f32]) -> Vec<Option<Value>> {
        vec![
            test_tensor(&[steps.len(), 1, 1], steps),
            test_tensor(&[1, 4, 1], &[1.0, 2.0, 3.0, 4.0]),
            test_tensor(&[1, 4, 1], &[0.0, 0.0, 0.0, 0.5]),
        ]
    }

    #[test]
    fn equations_by_hand() {
        // Step 1 (x = 1): c = 1 * 4 = 4, h = 2 * 4 = 8. Step 2 (x = 2): c = 6*4 + 2*(8 + 4) = 48, h = 4 * 48 = 192.
        let (results, macs) = run(&lstm(Direction::Forward), &inputs(&[1.0, 2.0]));
        assert_eq!(results, [vec![8.0, 192.0], vec![192.0], vec![48.0]]);
        assert_eq!(macs, 2 * 4 * 2);
        let (reversed, _) = run(&lstm(Direction::Reverse), &inputs(&[2.0, 1.0]));
        assert_eq!(reversed, [vec![192.0, 8.0], vec![192.0], vec![48.0]]);
    }

    #[test]
    fn peepholes_coupling_and_clip() {
        let mut operands = inputs(&[1.0]);
        operands.extend([None, None, None, test_tensor(&[1, 1, 1], &[10.0])]);
        operands.push(test_tensor(&[1, 3], &[0.1, 0.2, 0.3]));
        // i = 1 + 1 = 2, f = 3 + 3 = 6, c = 6 * 10 + 2 * 4 = 68, o = 2 + 0.2 * 68 = 15.6, h = 15.6 * 68.
        let (results, _) = run(&lstm(Direction::Forward), &operands);
        assert!((results[1][0] - 1060.8).abs() < 1e-3 && results[2] == [68.0], "{results:?}");
        // i = 2, f = -1, c = -10 + 8.
        let coupled = Lstm { input_forget: true, ..lstm(Direction::Forward) };
        assert_eq!(run(&coupled, &operands).0[2], [-2.0]);
        // i = f = c = 1.5, C = 15 + 2.25, o = 1.5, h = 1.5 * 17.25.
        let clipped = Lstm { clip: Some(1.5), ..lstm(Direction::Forward) };
        assert_eq!(run(&clipped, &operands).0, [vec![25.875], vec![25.875], vec![17.25]]);
    }

    #[test]
    fn lengths_cut_each_sequence() {
        let operator = Lstm { batch_first: true, ..lstm(Direction::Reverse) };
        let mut operands = inputs(&[]);
        operands[0] = test_tensor(&[3, 2, 1], &[1.0, 9.0, 2.0, 1.0, 5.0, 5.0]);
        operands.extend([None, Some(Tensor::from_elements(&[3], &[1i32, 2, 0]).unwrap().into())]);
        let (results, _) = run(&operator, &operands);
        assert_eq!(results[0], [8.0, 0.0, 192.0, 8.0, 0.0, 0.0]);
        assert_eq!(results[1..], [[8.0, 192.0, 0.0], [4.0, 48.0, 0.0]]);
        operands[4] = Some(Tensor::from_elements(&[3], &[1i32, 3, 0]).unwrap().into());
        let mut blocks = NoBlocks;
        let failed = operator.reference(&operands, &mut ReferenceContext::new(&mut blocks));
        assert!(matches!(failed, Err(ReferenceError::OutOfRange { found: 3, .. })));
    }

    #[test]
    fn shapes_follow_from_weights() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("l", &ranges, &mut blocks);
        let operator = Lstm { hidden_size: None, ..lstm(Direction::Bidirectional) };
        let fact = |dims: &[usize]| Some(Fact::tensor(DType::F32, Shape::known(dims)));
        let data = Some(Fact::tensor(DType::F32, vec![Dim::symbol("t"), Dim::known(3), Dim::known(5)]));
        let good = [data.clone(), fact(&[2, 16, 5]), fact(&[2, 16, 4])];
        let facts = operator.infer(&good, &mut context).unwrap();
        let printed: Vec<String> = facts.iter().map(|fact| fact.kind.to_string()).collect();
        assert_eq!(printed, ["f32[t, 2, 3, 4]", "f32[2, 3, 4]", "f32[2, 3, 4]"]);
        assert_eq!(macs(&operator, &good, &facts), Dim::symbol("t") * (2 * 3 * 16 * 9));
        assert_eq!(
            operator
                .infer(&[data.clone(), fact(&[2, 16, 6]), fact(&[2, 16, 4])], &mut context)
                .unwrap_err()
                .to_string(),
            "extent of operand 1 of a recurrent layer: 6 does not fit 5"
        );
        assert_eq!(
            operator
                .infer(&[data.clone(), fact(&[1, 16, 5]), fact(&[1, 16, 4])], &mut context)
                .unwrap_err()
                .to_string(),
            "extent of operand 1 of a recurrent layer: 1 does not fit 2"
        );
        let few = Lstm { activations: vec![], ..operator };
        assert_eq!(few.infer(&good, &mut context).unwrap_err().to_string(), "number of activations is 0, expected 6");
    }
}
