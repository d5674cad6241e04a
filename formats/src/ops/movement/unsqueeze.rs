//! Axes of extent 1, inserted: ONNX `Unsqueeze` (opsets 1, 11, 13, 21, 23, 24, 25; the attribute of old ones as operand).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{axis_mask, distinct_axes, integer_vector, unknown_shape, viewed};
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, integers, loops,
    required, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// `data: [..]` with axes of extent 1 where `axes: [n]` (i64) say, counted in the result.
    pub struct Unsqueeze revision 1 {}
}

impl Unsqueeze {
    /// `data` with `one` inserted at the axes.
    ///
    /// # Errors
    /// [`TypeError`] for an axis outside the rank or given twice.
    pub fn extents<T: Clone>(axes: &[i64], data: &[T], one: &T) -> Result<Vec<T>, TypeError> {
        let rank = data.len() + axes.len();
        let inserted = axis_mask(&distinct_axes(axes, rank)?, rank);
        let mut rest = data.iter();
        let at = |&inserted: &bool| if inserted { Some(one) } else { rest.next() };
        Ok(inserted.iter().filter_map(at).cloned().collect())
    }
}

impl Operator for Unsqueeze {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let axes = integer_vector(inputs, 1)?;
        let result = match (shape.dims(), axes.known()) {
            (None, _) => Shape::Unranked,
            (Some(dims), Some(axes)) => Shape::Ranked(Unsqueeze::extents(&axes, dims, &Dim::ONE)?),
            (Some(dims), None) => unknown_shape(context, axes.length.and_then(|length| length.checked_add(dims.len()))),
        };
        Ok(vec![viewed(required(inputs, 0)?, dtype, result)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let extents = Unsqueeze::extents(&integers(inputs, 1)?, data.shape(), &1)?;
        Ok(vec![data.reshaped(&extents)?.into()])
    }
}

impl Moves for Unsqueeze {
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
    use crate::ops::movement::moving::testing::{floats, inferred, vector};

    #[test]
    fn axes_count_in_the_result() {
        assert_eq!(inferred(&Unsqueeze {}, &[floats("n, 3"), vector(&[0, -1])]), "f32[1, n, 3, 1]");
        assert_eq!(inferred(&Unsqueeze {}, &[floats(""), vector(&[0])]), "f32[1]");
        assert!(inferred(&Unsqueeze {}, &[floats("n"), vector(&[0, -3])]).contains("at most once"));
        assert_eq!(Unsqueeze::extents(&[2, 0], &[5, 6], &1).unwrap(), [1, 5, 1, 6]);
        assert_eq!(
            Unsqueeze::extents(&[3], &[5, 6], &1).unwrap_err().to_string(),
            "axis 3 is outside a tensor of rank 3"
        );
    }
}
