//! The extents of a tensor as a tensor: ONNX `Shape` (opsets 1, 13, 15, 19, 21, 23, 24, 25) and `Size` (opsets 1, 13,
//! 19, 21, 23, 24, 25).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, loops, tensor,
    tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// The extents of `x: [..]` from axis `start` up to axis `end`, as i64: `[end - start]`.
    pub struct ShapeOf revision 1 {
        /// First axis; counted from the back where negative, cut to the rank.
        1 since 1 => start: i64,
        /// Axis after the last; absent for the rank.
        2 since 1 => end: Option<i64>,
    }
}

attributes! {
    /// The number of elements of `x: [..]`, as i64: `[]`.
    pub struct SizeOf revision 1 {}
}

impl ShapeOf {
    /// Those of the extents that it gives.
    pub fn chosen<'a, T>(&self, extents: &'a [T]) -> &'a [T] {
        let rank = extents.len();
        let cut = |axis: i64| {
            let from_front = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
            usize::try_from(from_front).map_or(0, |axis| axis.min(rank))
        };
        let (start, end) = (cut(self.start), self.end.map_or(rank, cut));
        &extents[start.min(end)..end]
    }
}

impl Operator for ShapeOf {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (_, shape) = tensor_operand(inputs, 0)?;
        Ok(vec![match shape.dims() {
            Some(dims) => {
                let chosen = self.chosen(dims).to_vec();
                Fact::of_dims(DType::I64, vec![Dim::from(chosen.len())], chosen)
            }
            None => Fact::tensor(DType::I64, vec![context.fresh("rank")]),
        }])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let extents = self.chosen(tensor(inputs, 0)?.shape());
        let elements: Vec<i64> = extents.iter().map(|&extent| extent as i64).collect();
        Ok(vec![Tensor::vector_i64(&elements).into()])
    }
}

impl Moves for ShapeOf {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |_| None)
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.result_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, _inputs: &[Option<Fact>], _result: &Fact) -> bool {
        false
    }
}

impl Operator for SizeOf {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (_, shape) = tensor_operand(inputs, 0)?;
        Ok(vec![match shape.dims() {
            Some(dims) => Fact::of_dims(DType::I64, Vec::new(), vec![Dim::product(dims)]),
            None => Fact::tensor(DType::I64, Vec::new()),
        }])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let count = tensor(inputs, 0)?.count() as i64;
        Ok(vec![Tensor::from_elements(&[], &[count])?.into()])
    }
}

impl Moves for SizeOf {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |_| None)
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.result_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, _inputs: &[Option<Fact>], _result: &Fact) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::Shape;
    use crate::ops::movement::moving::testing::{dims, first, floats, infer, inferred, iota};

    #[test]
    fn extents_become_contents() {
        let shape = |start, end| ShapeOf { start, end };
        let elements =
            |operator: &ShapeOf| infer(operator, &[Some(floats("a, b, 3"))]).unwrap().0[0].elements_as_dims();
        assert_eq!(elements(&shape(0, None)), Some(dims("a, b, 3")));
        assert_eq!(elements(&shape(1, Some(-1))), Some(dims("b")));
        assert_eq!(elements(&shape(-9, Some(9))), Some(dims("a, b, 3")));
        assert_eq!(elements(&shape(2, Some(1))), Some(Vec::new()));
        assert_eq!(elements(&shape(i64::MIN, Some(i64::MAX))), Some(dims("a, b, 3")));
        let unranked = Fact::tensor(DType::F32, Shape::Unranked);
        assert_eq!(inferred(&shape(0, None), &[unranked]), "i64[step.rank]");
        let result = first(&shape(-1, None), &[&iota(&[2, 3])]);
        assert_eq!(result.elements::<i64>().unwrap(), [3]);
    }

    #[test]
    fn sizes_are_products() {
        let (facts, _) = infer(&SizeOf {}, &[Some(floats("n, 3"))]).unwrap();
        assert_eq!((facts[0].rank(), facts[0].elements_as_dims()), (Some(0), Some(dims("3*n"))));
        assert_eq!(first(&SizeOf {}, &[&iota(&[2, 3])]).elements::<i64>().unwrap(), [6]);
    }
}
