//! Multidirectional broadcasting (ONNX `Broadcasting.md`), of symbolic and of known shapes.

use crate::dim::{Dim, Equality, equality, is_clipped};
use crate::fact::Shape;
use crate::ops::{InferContext, Relation, TypeError};
use crate::tensor::strides;

/// The shape that several shapes broadcast to; leaves undecided pairs to the bind.
///
/// # Errors
/// [`TypeError::Dimension`] where two extents differ and neither is 1.
pub fn broadcast_shapes(shapes: &[&Shape], context: &mut InferContext<'_>) -> Result<Shape, TypeError> {
    let mut result: Vec<Dim> = Vec::new();
    for shape in shapes {
        let Shape::Ranked(dims) = shape else { return Ok(Shape::Unranked) };
        if dims.len() > result.len() {
            let missing = dims.len() - result.len();
            result.splice(0..0, std::iter::repeat_n(Dim::known(1), missing));
        }
        let offset = result.len() - dims.len();
        for (axis, dim) in dims.iter().enumerate() {
            result[offset + axis] = broadcast_dims(&result[offset + axis], dim, context)?;
        }
    }
    Ok(Shape::Ranked(result))
}

/// The extent that two extents broadcast to.
///
/// # Errors
/// [`TypeError::Dimension`] where they differ and neither is 1.
pub fn broadcast_dims(left: &Dim, right: &Dim, context: &mut InferContext<'_>) -> Result<Dim, TypeError> {
    match (left.as_known(), right.as_known()) {
        (Some(1), _) => return Ok(right.clone()),
        (_, Some(1)) => return Ok(left.clone()),
        _ if equality(left, right, context.ranges) == Equality::Proven => return Ok(left.clone()),
        (Some(_), Some(_)) => {}
        (Some(_), None) => {
            context.oblige(Relation::Broadcastable, left, right, "broadcast");
            return Ok(left.clone());
        }
        (None, Some(_)) => {
            context.oblige(Relation::Broadcastable, left, right, "broadcast");
            return Ok(right.clone());
        }
        (None, None) => {
            context.oblige(Relation::Broadcastable, left, right, "broadcast");
            if is_clipped(right, left, context.ranges) {
                return Ok(left.clone());
            }
            if is_clipped(left, right, context.ranges) {
                return Ok(right.clone());
            }
            // Equal, or one is 1: the larger, but 0 where 0 meets 1.
            return Ok(Dim::max(left, right) * Dim::min(&Dim::ONE, &Dim::min(left, right)));
        }
    }
    Err(TypeError::Dimension { subject: "broadcast".to_string(), left: left.to_string(), right: right.to_string() })
}

/// The known shape that known shapes broadcast to.
///
/// # Errors
/// [`TypeError::Dimension`] where two extents differ and neither is 1.
pub fn broadcast_extents(shapes: &[&[usize]]) -> Result<Vec<usize>, TypeError> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut result = vec![1usize; rank];
    for shape in shapes {
        for (axis, &extent) in shape.iter().enumerate() {
            let target = &mut result[rank - shape.len() + axis];
            if *target == 1 {
                *target = extent;
            } else if extent != 1 && extent != *target {
                return Err(TypeError::Dimension {
                    subject: "broadcast".to_string(),
                    left: target.to_string(),
                    right: extent.to_string(),
                });
            }
        }
    }
    Ok(result)
}

/// Strides (in elements) that read a tensor of `shape` as if it had the broadcast shape `target`: 0 along repeated axes.
pub fn broadcast_strides(shape: &[usize], target: &[usize]) -> Vec<usize> {
    let own = strides(shape);
    let offset = target.len() - shape.len();
    (0..target.len())
        .map(|axis| if axis < offset || shape[axis - offset] == 1 { 0 } else { own[axis - offset] })
        .collect()
}

/// Every flat index into a tensor with these strides, in row-major order of `extents`.
pub fn strided_indices(extents: &[usize], strides: &[usize]) -> impl Iterator<Item = usize> + use<> {
    let extents = extents.to_vec();
    let strides = strides.to_vec();
    let total: usize = extents.iter().product();
    let mut counters = vec![0usize; extents.len()];
    let mut offset = 0usize;
    (0..total).map(move |_| {
        let current = offset;
        for axis in (0..extents.len()).rev() {
            counters[axis] += 1;
            offset += strides[axis];
            if counters[axis] < extents[axis] {
                break;
            }
            offset -= strides[axis] * extents[axis];
            counters[axis] = 0;
        }
        current
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;

    #[test]
    fn symbolic_pairs_become_obligations() {
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("add", &ranges, &mut blocks);
        let left = Shape::Ranked(vec![Dim::symbol("n"), Dim::known(1)]);
        let right = Shape::Ranked(vec![Dim::known(4), Dim::symbol("m")]);
        let shape = broadcast_shapes(&[&left, &right], &mut context).unwrap();
        assert_eq!(shape, Shape::Ranked(vec![Dim::known(4), Dim::symbol("m")]));
        assert_eq!(context.obligations.len(), 1);
        assert_eq!(
            broadcast_shapes(&[&Shape::known(&[2]), &Shape::known(&[3])], &mut context).unwrap_err().to_string(),
            "broadcast: 2 does not fit 3"
        );
    }

    #[test]
    fn a_clipped_extent_broadcasts_only_where_nothing_is_clipped() {
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("add", &ranges, &mut blocks);
        let whole = Dim::symbol("n");
        let clipped = Dim::min(&whole, &Dim::known(256));
        assert_eq!(broadcast_dims(&whole, &clipped, &mut context).unwrap(), whole);
        assert_eq!(broadcast_dims(&clipped, &whole, &mut context).unwrap(), whole);
        // Longer ones do not fit, which is found when the symbol is bound.
        assert_eq!(context.obligations.len(), 2);
        // What is clipped to 1 fits every extent, as what is clipped to any other may be.
        let is_whole = |clipped: &Dim, ranges: &Ranges| {
            let mut blocks = NoBlocks;
            let mut context = InferContext::new("add", ranges, &mut blocks);
            broadcast_dims(&whole, clipped, &mut context).unwrap() == whole
        };
        assert!(!is_whole(&Dim::min(&whole, &Dim::ONE), &ranges));
        let limited = Dim::min(&whole, &Dim::symbol("m"));
        assert!(!is_whole(&limited, &ranges));
        let mut at_least_two = Ranges::default();
        at_least_two.set("m", 2, 100).unwrap();
        assert!(is_whole(&limited, &at_least_two));
        let twice = Dim::min(&(&whole * 2), &Dim::known(256)) + 1;
        let mut context = InferContext::new("add", &ranges, &mut blocks);
        assert_eq!(broadcast_dims(&(&whole * 2 + 1), &twice, &mut context).unwrap(), &whole * 2 + 1);
    }

    #[test]
    fn strides_repeat_along_broadcast_axes() {
        assert_eq!(broadcast_extents(&[&[3, 1], &[2]]).unwrap(), [3, 2]);
        assert_eq!(broadcast_strides(&[3, 1], &[2, 3, 2]), [0, 1, 0]);
        let indices: Vec<usize> = strided_indices(&[2, 3], &[0, 1]).collect();
        assert_eq!(indices, [0, 1, 2, 0, 1, 2]);
        assert_eq!(strided_indices(&[2, 0], &[0, 1]).count(), 0);
        assert_eq!(strided_indices(&[], &[]).collect::<Vec<_>>(), [0]);
    }
}
