//! A matrix of the same elements: ONNX `Flatten` (opsets 1, 9, 11, 13, 21, 23, 24, 25).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::viewed;
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, loops,
    normalize_axis, required, tensor, tensor_operand,
};
use crate::tensor::element_count;
use crate::value::Value;

attributes! {
    /// `x: [..]` as `[product before axis, product from axis on]`.
    pub struct Flatten revision 1 {
        /// First axis of the second extent, -rank to rank.
        1 since 1 => axis: i64,
    }
}

impl Flatten {
    /// The axis counted from the front; it may be the rank.
    ///
    /// # Errors
    /// [`TypeError::Axis`] where it is outside.
    pub fn split(&self, rank: usize) -> Result<usize, TypeError> {
        if usize::try_from(self.axis) == Ok(rank) { Ok(rank) } else { normalize_axis(self.axis, rank) }
    }
}

impl Operator for Flatten {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let dims = match shape.dims() {
            Some(dims) => {
                let (outer, inner) = dims.split_at(self.split(dims.len())?);
                vec![Dim::product(outer), Dim::product(inner)]
            }
            None => vec![context.fresh("outer"), context.fresh("inner")],
        };
        Ok(vec![viewed(required(inputs, 0)?, dtype, Shape::Ranked(dims))])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let (outer, inner) = data.shape().split_at(self.split(data.rank())?);
        // Only beside a 0 may a product overflow.
        let product = |extents| element_count(extents).unwrap_or(usize::MAX);
        Ok(vec![data.reshaped(&[product(outer), product(inner)])?.into()])
    }
}

impl Moves for Flatten {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::view(facts)
    }

    fn moved(&self, _facts: &StepFacts<'_>) -> Dim {
        Dim::ZERO
    }

    fn view_of(&self) -> Option<usize> {
        Some(0)
    }

    fn is_identity(&self, inputs: &[Option<Fact>], result: &Fact) -> bool {
        inputs.first().and_then(Option::as_ref).is_some_and(|data| data.kind == result.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{first, floats, inferred, iota};

    #[test]
    fn extents_are_products() {
        assert_eq!(inferred(&Flatten { axis: 1 }, &[floats("n, 3, 4")]), "f32[n, 12]");
        assert_eq!(inferred(&Flatten { axis: -1 }, &[floats("n, 3, 4")]), "f32[3*n, 4]");
        assert_eq!(inferred(&Flatten { axis: 0 }, &[floats("n, 3")]), "f32[1, 3*n]");
        assert_eq!(inferred(&Flatten { axis: 2 }, &[floats("n, 3")]), "f32[3*n, 1]");
        assert!(inferred(&Flatten { axis: 3 }, &[floats("n, 3")]).contains("axis 3"));
        assert_eq!(first(&Flatten { axis: 0 }, &[&iota(&[])]).shape(), [1, 1]);
        assert_eq!(first(&Flatten { axis: 1 }, &[&iota(&[0, 3, 2])]).shape(), [0, 6]);
    }
}
