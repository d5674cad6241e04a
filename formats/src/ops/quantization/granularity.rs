//! Which elements of a quantized tensor share a scale: all, those at one index of an axis, or those of a block.

use crate::dim::Dim;
use crate::fact::Shape;
use crate::ops::loops::{self, Loops};
use crate::ops::{InferContext, Relation, Space, StepFacts, TypeError, normalize_axis};
use crate::tensor::strides;

/// How parameters (scales, zero points) belong to the elements of a tensor of a known shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Granularity {
    /// One parameter for all.
    Tensor,
    /// One an index of an axis, whose stride and extent these are.
    Axis { stride: usize, extent: usize },
    /// One a block along an axis.
    Blocked { stride: usize, extent: usize, block: usize, blocks: usize },
}

impl Granularity {
    /// Check symbolic shapes; what only a bind can decide becomes an obligation.
    ///
    /// # Errors
    /// [`TypeError`] where the parameter's shape cannot belong to the input's.
    pub(crate) fn infer(
        input: &Shape,
        parameter: &Shape,
        axis: i64,
        block_size: i64,
        context: &mut InferContext<'_>,
    ) -> Result<(), TypeError> {
        check_block_size(block_size)?;
        let (Shape::Ranked(input), Shape::Ranked(parameter)) = (input, parameter) else { return Ok(()) };
        let single = parameter.len() <= 1 && parameter.iter().all(|dim| dim.as_known() == Some(1));
        // A parameter without axes is for all elements, whatever the blocks of others.
        if single && (block_size == 0 || parameter.is_empty()) {
            return Ok(());
        }
        if block_size == 0 {
            let [count] = parameter.as_slice() else { return Err(rank_error("at most 1", parameter.len())) };
            // A single scale for a whole axis is allowed, so that an undecided count may also be 1.
            match (count.is_known(), normalize_axis(axis, input.len())) {
                (true, axis) => drop(context.require_equal(&input[axis?], count, "scales of an axis")?),
                (false, Ok(axis)) => {
                    context.oblige(Relation::Broadcastable, &input[axis], count, "scales of an axis");
                }
                (false, Err(_)) => drop(context.require_equal(count, &Dim::ONE, "scales of a tensor")?),
            }
            return Ok(());
        }
        if parameter.len() != input.len() {
            return Err(rank_error(&input.len().to_string(), parameter.len()));
        }
        let axis = normalize_axis(axis, input.len())?;
        for (index, (dim, found)) in input.iter().zip(parameter).enumerate() {
            let expected = if index == axis { dim.ceil_div(&Dim::known(block_size)) } else { dim.clone() };
            context.require_equal(&expected, found, "blocks of scales")?;
        }
        Ok(())
    }

    /// The granularity for known shapes.
    ///
    /// # Errors
    /// [`TypeError`] where the parameter's shape does not belong to the input's.
    pub(crate) fn of(
        input: &[usize],
        parameter: &[usize],
        axis: i64,
        block_size: i64,
    ) -> Result<Granularity, TypeError> {
        let block = check_block_size(block_size)?;
        if parameter.is_empty() || (block == 0 && parameter == [1]) {
            return Ok(Granularity::Tensor);
        }
        let axis = normalize_axis(axis, input.len())?;
        let (stride, extent) = (strides(input)[axis], input[axis]);
        if block == 0 {
            return match parameter {
                &[count] if count == extent => Ok(Granularity::Axis { stride, extent }),
                &[count] => Err(dimension_error(&[extent], &[count])),
                other => Err(rank_error("at most 1", other.len())),
            };
        }
        let mut expected = input.to_vec();
        expected[axis] = extent.div_ceil(block);
        if parameter != expected {
            return Err(dimension_error(&expected, parameter));
        }
        Ok(Granularity::Blocked { stride, extent, block, blocks: expected[axis] })
    }

    /// The flat index of the parameter for the element at this flat index.
    pub(crate) fn index(&self, element: usize) -> usize {
        match *self {
            Granularity::Tensor => 0,
            Granularity::Axis { stride, extent } => element / stride % extent,
            Granularity::Blocked { stride, extent, block, blocks } => {
                let (inner, outer) = (element % stride, element / stride / extent);
                (outer * blocks + element / stride % extent / block) * stride + inner
            }
        }
    }
}

fn check_block_size(block_size: i64) -> Result<usize, TypeError> {
    usize::try_from(block_size).map_err(|_| TypeError::Value {
        subject: "block_size".to_string(),
        found: block_size.to_string(),
        expected: "0 or more".to_string(),
    })
}

fn rank_error(expected: &str, found: usize) -> TypeError {
    TypeError::Rank { operand: 1, expected: expected.to_string(), found }
}

fn dimension_error(expected: &[usize], found: &[usize]) -> TypeError {
    TypeError::Dimension { subject: "scales".to_string(), left: format!("{expected:?}"), right: format!("{found:?}") }
}

/// The loops of a step over operand 0 whose scale and zero point, operands 1 and 2, belong to elements like this.
pub(crate) fn spaces(facts: &StepFacts<'_>, axis: i64, block_size: i64) -> Vec<Space> {
    let Some(dims) = facts.dims(0) else { return loops::serial(facts) };
    let axis = normalize_axis(axis, dims.len()).ok();
    let vector = facts.dims(1).is_some_and(|scales| scales.len() == 1 && scales[0].as_known() != Some(1));
    let mut nest = Loops::new(facts);
    for (own, extent) in dims.iter().enumerate() {
        let places = [loops::operand(0, own), loops::result(0, own)];
        let scales = |place: usize| [loops::operand(1, place), loops::operand(2, place)];
        nest = match (block_size, Some(own) == axis) {
            (0, true) if vector => nest.parallel(extent, places.into_iter().chain(scales(0))),
            (0, _) => nest.parallel(extent, places),
            (_, false) => nest.parallel(extent, places.into_iter().chain(scales(own))),
            // A part of the axis may need any of its scales, unless it is cut between blocks.
            (_, true) => match extent.divide_exact(&Dim::known(block_size)) {
                Some(blocks) => nest
                    .parallel(&blocks, places.map(|place| place.stride(block_size)).into_iter().chain(scales(own)))
                    .parallel(&Dim::known(block_size), places),
                None => nest.parallel(extent, places),
            },
        };
    }
    vec![nest.space()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;

    #[test]
    fn blocks_are_counted_along_their_axis() {
        let granularity = Granularity::of(&[2, 5, 2], &[2, 3, 2], 1, 2).unwrap();
        let indices: Vec<usize> = (0..20).map(|element| granularity.index(element)).collect();
        assert_eq!(indices, [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9, 8, 9, 10, 11]);
        assert_eq!(
            Granularity::of(&[2, 5], &[2, 2], 1, 2).unwrap_err().to_string(),
            "scales: [2, 3] does not fit [2, 2]"
        );
        assert_eq!(Granularity::of(&[2, 5], &[5], 0, 0).unwrap_err().to_string(), "scales: [2] does not fit [5]");
        assert_eq!(
            Granularity::of(&[2, 5], &[5], 2, 0).unwrap_err().to_string(),
            "axis 2 is outside a tensor of rank 2"
        );
        assert!(Granularity::of(&[], &[], 5, 0).is_ok());
        assert_eq!(Granularity::of(&[2], &[2], 0, -1).unwrap_err().to_string(), "block_size is -1, expected 0 or more");
    }

    #[test]
    fn symbolic_shapes_are_checked() {
        let ranges = Ranges::new();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("quantize", &ranges, &mut blocks);
        let n = Dim::symbol("n");
        let input = Shape::from(vec![n.clone(), Dim::known(64)]);
        let blocked = Shape::from(vec![n.clone(), Dim::known(2)]);
        assert!(Granularity::infer(&input, &blocked, 1, 32, &mut context).is_ok());
        assert_eq!(
            Granularity::infer(&input, &blocked, 1, 16, &mut context).unwrap_err().to_string(),
            "blocks of scales: 4 does not fit 2"
        );
        assert!(Granularity::infer(&input, &Shape::known(&[64]), 1, 0, &mut context).is_ok());
        assert_eq!(
            Granularity::infer(&input, &Shape::known(&[63]), 1, 0, &mut context).unwrap_err().to_string(),
            "scales of an axis: 64 does not fit 63"
        );
        assert!(context.obligations.is_empty());
        assert!(Granularity::infer(&input, &Shape::from(vec![n]), 1, 0, &mut context).is_ok());
        assert_eq!(context.obligations.len(), 1);
    }
}
