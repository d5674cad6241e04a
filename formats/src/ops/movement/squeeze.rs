//! Axes of extent 1, removed: ONNX `Squeeze` (opsets 1, 11, 13, 21, 23, 24, 25; the attribute of old ones as operand).

use crate::attributes;
use crate::dim::{Dim, Equality, equality};
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{axis_mask, distinct_axes, optional_integer_vector, unknown_shape, viewed};
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, integers, loops,
    required, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// `data: [..]` without the axes `axes: [n]` (i64), whose extents are 1; without all such where axes are absent.
    pub struct Squeeze revision 1 {}
}

impl Squeeze {
    /// The extents that stay; `axes` are `None` where the operand is absent.
    ///
    /// # Errors
    /// [`TypeError`] for an axis outside the rank, given twice, or of another extent than 1.
    pub fn extents(axes: Option<&[i64]>, data: &[usize]) -> Result<Vec<usize>, TypeError> {
        let Some(axes) = axes else { return Ok(data.iter().copied().filter(|&extent| extent != 1).collect()) };
        let axes = distinct_axes(axes, data.len())?;
        if let Some(&axis) = axes.iter().find(|&&axis| data[axis] != 1) {
            return Err(not_one(axis, &Dim::from(data[axis])));
        }
        Ok(without(data, &axes))
    }
}

fn without<T: Clone>(extents: &[T], axes: &[usize]) -> Vec<T> {
    let removed = axis_mask(axes, extents.len());
    extents.iter().zip(removed).filter(|(_, removed)| !removed).map(|(extent, _)| extent.clone()).collect()
}

fn not_one(axis: usize, found: &Dim) -> TypeError {
    TypeError::Dimension { subject: format!("squeezed axis {axis}"), left: found.to_string(), right: "1".to_string() }
}

/// The dimensions that are not 1; unknown rank where one may be.
fn without_ones(dims: &[Dim], context: &InferContext<'_>) -> Shape {
    let mut kept = Vec::with_capacity(dims.len());
    for dim in dims {
        match equality(dim, &Dim::ONE, context.ranges) {
            Equality::Proven => {}
            Equality::Refuted => kept.push(dim.clone()),
            Equality::Unknown => return Shape::Unranked,
        }
    }
    Shape::Ranked(kept)
}

impl Operator for Squeeze {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let axes = optional_integer_vector(inputs, 1)?;
        let result = match (shape.dims(), axes) {
            (None, _) => Shape::Unranked,
            (Some(dims), None) => without_ones(dims, context),
            (Some(dims), Some(axes)) => match axes.known() {
                Some(axes) => {
                    let axes = distinct_axes(&axes, dims.len())?;
                    for &axis in &axes {
                        context.require_equal(&dims[axis], &Dim::ONE, &format!("squeezed axis {axis}"))?;
                    }
                    Shape::Ranked(without(dims, &axes))
                }
                None => unknown_shape(context, axes.length.and_then(|length| dims.len().checked_sub(length))),
            },
        };
        Ok(vec![viewed(required(inputs, 0)?, dtype, result)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let axes = match inputs.get(1) {
            Some(Some(_)) => Some(integers(inputs, 1)?),
            Some(None) | None => None,
        };
        Ok(vec![data.reshaped(&Squeeze::extents(axes.as_deref(), data.shape())?)?.into()])
    }
}

impl Moves for Squeeze {
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
    use crate::ops::movement::moving::testing::{contents, floats, infer, inferred, vector};

    #[test]
    fn axes_of_extent_one_go() {
        assert_eq!(inferred(&Squeeze {}, &[floats("1, n, 1"), vector(&[-1])]), "f32[1, n]");
        assert_eq!(inferred(&Squeeze {}, &[floats("1, 3, 1")]), "f32[3]");
        assert_eq!(inferred(&Squeeze {}, &[floats("1, n + 2, 1")]), "f32[n + 2]");
        assert_eq!(inferred(&Squeeze {}, &[floats("1, n, 1")]), "f32[..]");
        assert_eq!(inferred(&Squeeze {}, &[floats("1, n"), vector(&[])]), "f32[1, n]");
        let (facts, obligations) = infer(&Squeeze {}, &[Some(floats("n, 4")), Some(vector(&[0]))]).unwrap();
        assert_eq!((facts[0].kind.to_string(), obligations), ("f32[4]".to_string(), vec!["n equal 1".to_string()]));
        assert_eq!(
            infer(&Squeeze {}, &[Some(floats("2, 4")), Some(vector(&[0]))]).unwrap_err().to_string(),
            "squeezed axis 0: 2 does not fit 1"
        );
        assert_eq!(Squeeze::extents(Some(&[0, -1]), &[1, 5, 1]).unwrap(), [5]);
        assert_eq!(
            Squeeze::extents(Some(&[1]), &[1, 5, 1]).unwrap_err().to_string(),
            "squeezed axis 1: 5 does not fit 1"
        );
    }

    #[test]
    fn contents_stay_known() {
        let (facts, _) = infer(&Squeeze {}, &[Some(contents("n")), Some(vector(&[0]))]).unwrap();
        assert_eq!((facts[0].rank(), facts[0].elements_as_dims()), (Some(0), Some(vec![Dim::symbol("n")])));
    }
}
