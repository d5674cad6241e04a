//! Normalization of groups of channels of each instance: ONNX `GroupNormalization` (opsets 18, 21) and
//! `InstanceNormalization` (opsets 1, 6, 22: every channel is a group).
//!
//! Computed as layer normalization is: stage one at least in f32, rounded to the type of the data, then scale and
//! bias. A pass has channels in blocks of [`CHANNEL_BLOCK`] where the steps around it do.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::floats::{narrowed, require_computing_float, rounded_step, widened};
use crate::ops::loops::Loops;
use crate::ops::normalization::layer_normalization::{Moments, require_stash};
use crate::ops::normalization::reduce::volume;
use crate::ops::{
    AxisKind, CHANNEL_BLOCK, Computes, InferContext, Operator, ReferenceContext, ReferenceError, Relation, Space,
    StepFacts, TypeError, VectorClass, each, loops, required, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Standardizes groups of channels: `x: [n, c, ..]`, `scale: [c]`, `bias: [c]` to `[n, c, ..]`; in blocks `x` and the result are
    /// `[n, c / 8, .., 8]`.
    pub struct GroupNormalization revision 2 {
        /// Number of groups, a divisor of `c`; absent: every channel is a group of its own.
        1 since 1 => groups: Option<i64>,
        /// Added to the variance.
        2 since 1 => epsilon: f32,
        /// `scale` and `bias` have one element a group (opset 18).
        3 since 1 => scale_per_group: bool,
        /// Least precision of the statistics.
        4 since 1 => stash: DType,
        /// Channel `c` is at `[n, c / 8, .., c % 8]`.
        5 since 2 => in_blocks: bool,
    }
}

/// [`CHANNEL_BLOCK`] in extents.
const BLOCK: i64 = CHANNEL_BLOCK as i64;

impl GroupNormalization {
    fn check_types(&self, inputs: &[Option<Fact>]) -> Result<DType, TypeError> {
        let (dtype, _) = tensor_operand(inputs, 0)?;
        require_computing_float(dtype, 0)?;
        for operand in [1, 2] {
            let (found, _) = tensor_operand(inputs, operand)?;
            if found != dtype {
                return Err(TypeError::ElementType { operand, expected: dtype.to_string(), found });
            }
        }
        require_stash(self.stash)?;
        match self.groups {
            Some(groups) if groups < 1 => Err(TypeError::Value {
                subject: "number of groups".to_string(),
                found: groups.to_string(),
                expected: "at least 1".to_string(),
            }),
            Some(_) | None => Ok(dtype),
        }
    }

    /// The number of channels of data with these extents.
    fn channels(&self, dims: &[Dim], context: &mut InferContext<'_>) -> Result<Dim, TypeError> {
        match dims {
            [_, blocks, .., last] if self.in_blocks => {
                context.require_equal(last, &Dim::known(BLOCK), "channels of a block")?;
                Ok(blocks * BLOCK)
            }
            [_, channels, ..] if !self.in_blocks => Ok(channels.clone()),
            _ => Err(self.rank_error(dims.len())),
        }
    }

    fn rank_error(&self, found: usize) -> TypeError {
        let expected = if self.in_blocks { "at least 3" } else { "at least 2" };
        TypeError::Rank { operand: 0, expected: expected.to_string(), found }
    }

    /// How many of all channels a group has, where groups are whole blocks or blocks whole groups.
    #[must_use]
    pub fn group_in_blocks(&self, channels: usize) -> Option<usize> {
        let groups = self.groups.map_or(Some(channels), |groups| usize::try_from(groups).ok())?;
        let size = channels.checked_div(groups).filter(|size| size * groups == channels && *size > 0)?;
        (size.is_multiple_of(CHANNEL_BLOCK) || CHANNEL_BLOCK.is_multiple_of(size)).then_some(size)
    }

    /// Channels, and elements of each, of data of this shape.
    ///
    /// # Errors
    /// [`TypeError::Rank`] where it has too few axes, [`TypeError::Dimension`] where blocks have other than 8 channels.
    pub fn extents(&self, shape: &[usize]) -> Result<(usize, usize), TypeError> {
        match shape {
            [_, blocks, inner @ .., CHANNEL_BLOCK] if self.in_blocks => {
                Ok((blocks.saturating_mul(CHANNEL_BLOCK), volume(inner)))
            }
            [_, _, .., last] if self.in_blocks => Err(TypeError::Dimension {
                subject: "channels of a block".to_string(),
                left: last.to_string(),
                right: CHANNEL_BLOCK.to_string(),
            }),
            [_, channels, inner @ ..] if !self.in_blocks => Ok((*channels, volume(inner))),
            _ => Err(self.rank_error(shape.len())),
        }
    }
}

impl Operator for GroupNormalization {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let dtype = self.check_types(inputs)?;
        let (_, shape) = tensor_operand(inputs, 0)?;
        if let Shape::Ranked(dims) = shape {
            let channels = self.channels(dims, context)?;
            let mut wanted = channels.clone();
            if let Some(groups) = self.groups {
                let groups = Dim::known(groups);
                match channels.modulo(&groups).as_known() {
                    Some(0) => {}
                    Some(_) => return Err(not_divisible(&channels.to_string(), &groups.to_string())),
                    None => context.oblige(Relation::Multiple, &channels, &groups, "channels in groups"),
                }
                wanted = if self.scale_per_group { groups } else { wanted };
            }
            for operand in [1, 2] {
                match required(inputs, operand)?.dims() {
                    None => {}
                    Some([found]) => drop(context.require_equal(found, &wanted, "channels of the normalization")?),
                    Some(dims) => {
                        return Err(TypeError::Rank { operand, expected: "1".to_string(), found: dims.len() });
                    }
                }
            }
        }
        Ok(vec![Fact::tensor(dtype, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let facts: Vec<Option<Fact>> = inputs.iter().map(|value| Some(Fact::of(value.as_ref()?.kind()))).collect();
        let dtype = self.check_types(&facts)?;
        let (channels, inner) = self.extents(data.shape())?;
        let groups = self.groups.map_or(channels, |groups| usize::try_from(groups).unwrap_or(usize::MAX));
        if groups == 0 || channels % groups != 0 {
            // Only without channels are there no groups.
            return if channels == 0 { Ok(vec![data.clone().into()]) } else { Err(not_divisible_by(channels, groups)) };
        }
        let per_group = self.scale_per_group && self.groups.is_some();
        let parameters = if per_group { groups } else { channels };
        let scale = vector(inputs, 1, parameters)?;
        let bias = vector(inputs, 2, parameters)?;
        let group = channels / groups * inner;
        let mut values = widened(data)?;
        if self.in_blocks {
            values = (0..values.len()).map(|index| values[in_blocks(index, inner)]).collect();
        }
        // Without elements there may be more sets than can be counted.
        for set in 0..if values.is_empty() { 0 } else { data.shape()[0] * groups } {
            let range = set * group..(set + 1) * group;
            let moments = Moments::of(&values[range.clone()], true);
            let inverse = moments.inverse_deviation(self.epsilon);
            for index in range {
                let parameter = if per_group { set % groups } else { index / inner % channels };
                let normalized = rounded_step(dtype, (values[index] - moments.mean) * inverse);
                values[index] = rounded_step(dtype, normalized * scale[parameter]) + bias[parameter];
            }
        }
        if self.in_blocks {
            let mut blocks = values.clone();
            values.iter().enumerate().for_each(|(index, value)| blocks[in_blocks(index, inner)] = *value);
            values = blocks;
        }
        Ok(vec![narrowed(dtype, data.shape(), &values)?.into()])
    }
}

impl Computes for GroupNormalization {
    /// Sums of groups first, then each element.
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let rest = || facts.dims(0).map_or(Dim::ZERO, |dims| Dim::product(dims.get(1..).unwrap_or(&[])));
        let spaces = if self.in_blocks { self.block_spaces(facts) } else { self.group_spaces(facts) };
        spaces.unwrap_or_else(|| loops::leading(facts, 1, &rest()))
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 6)])
    }
}

impl GroupNormalization {
    /// Where the numbers of channels and groups are known.
    fn group_spaces(&self, facts: &StepFacts<'_>) -> Option<Vec<Space>> {
        let [batch, channels, inner @ ..] = facts.dims(0)? else { return None };
        let channels = channels.as_known()?;
        let groups = self.groups.unwrap_or(channels);
        let of_group = channels.checked_div(groups).filter(|size| size * groups == channels)?;
        let per_group = self.scale_per_group && self.groups.is_some();
        let nest = |kind: AxisKind, writes: bool| {
            let parameters = || [1, 2].into_iter().filter(|_| writes);
            let at = |axis: usize, stride: i64| {
                let result = writes.then(|| loops::result(0, axis).stride(stride));
                result.into_iter().chain([loops::operand(0, axis).stride(stride)])
            };
            let stride = if per_group { 1 } else { of_group };
            let of_groups = parameters().map(|operand| loops::operand(operand, 0).stride(stride));
            let of_channels = parameters().filter(|_| !per_group).map(|operand| loops::operand(operand, 0));
            let nest = Loops::new(facts)
                .parallel(batch, at(0, 1))
                .parallel(&Dim::known(groups), at(1, of_group).chain(of_groups))
                .axis(kind, &Dim::known(of_group), at(1, 1).chain(of_channels));
            let inner = inner.iter().enumerate();
            // A mean and a variance.
            let numbers = if writes { 1 } else { 2 };
            inner.fold(nest, |nest, (axis, extent)| nest.axis(kind, extent, at(axis + 2, 1))).numbers(numbers)
        };
        Some(vec![nest(AxisKind::Reduced, false), nest(AxisKind::Parallel, true)])
    }

    /// Where the numbers of blocks and groups are known, and groups are of whole blocks or blocks of whole groups.
    fn block_spaces(&self, facts: &StepFacts<'_>) -> Option<Vec<Space>> {
        let [batch, blocks, inner @ .., _] = facts.dims(0)? else { return None };
        let channels = blocks.as_known()?.checked_mul(BLOCK)?;
        let of_group = self.group_in_blocks(usize::try_from(channels).ok()?)? as i64;
        let groups = channels / of_group;
        // Groups follow each other as sets of blocks, then within a block.
        let (blocks_of_group, of_block) = ((of_group / BLOCK).max(1), of_group.min(BLOCK));
        let per_group = self.scale_per_group && self.groups.is_some();
        let last = inner.len() + 2;
        let nest = |kind: AxisKind, writes: bool| {
            let at = |axis: usize, stride: i64, channels: i64| {
                let result = writes.then(|| loops::result(0, axis).stride(stride));
                let channels = if per_group { channels / of_group } else { channels };
                let parameters = [1, 2].into_iter().filter(move |_| writes && channels > 0);
                let parameters = parameters.map(move |operand| loops::operand(operand, 0).stride(channels));
                result.into_iter().chain([loops::operand(0, axis).stride(stride)]).chain(parameters)
            };
            let nest = Loops::new(facts)
                .parallel(batch, at(0, 1, 0))
                .parallel(&Dim::known(groups / (BLOCK / of_block)), at(1, blocks_of_group, blocks_of_group * BLOCK))
                .parallel(&Dim::known(BLOCK / of_block), at(last, of_block, of_block))
                .axis(kind, &Dim::known(blocks_of_group), at(1, 1, if blocks_of_group > 1 { BLOCK } else { 0 }))
                .axis(kind, &Dim::known(of_block), at(last, 1, 1));
            // A mean and a variance.
            let numbers = if writes { 1 } else { 2 };
            let inner = inner.iter().enumerate();
            inner.fold(nest, |nest, (axis, extent)| nest.axis(kind, extent, at(axis + 2, 1, 0))).numbers(numbers)
        };
        Some(vec![nest(AxisKind::Reduced, false), nest(AxisKind::Parallel, true)])
    }
}

/// Where an element of planes of `inner` elements lies in blocks.
fn in_blocks(index: usize, inner: usize) -> usize {
    let (channel, position) = (index / inner, index % inner);
    (channel / CHANNEL_BLOCK * inner + position) * CHANNEL_BLOCK + channel % CHANNEL_BLOCK
}

fn vector(inputs: &[Option<Value>], operand: usize, length: usize) -> Result<Vec<f64>, ReferenceError> {
    let found: &Tensor = tensor(inputs, operand)?;
    if found.shape() != [length] {
        return Err(TypeError::Dimension {
            subject: format!("length of operand {operand}"),
            left: format!("{:?}", found.shape()),
            right: format!("[{length}]"),
        }
        .into());
    }
    widened(found)
}

fn not_divisible(channels: &str, groups: &str) -> TypeError {
    TypeError::Value {
        subject: "number of channels".to_string(),
        found: channels.to_string(),
        expected: format!("a multiple of {groups} groups"),
    }
}

fn not_divisible_by(channels: usize, groups: usize) -> ReferenceError {
    not_divisible(&channels.to_string(), &groups.to_string()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;

    fn operator(groups: Option<i64>, scale_per_group: bool) -> GroupNormalization {
        GroupNormalization { groups, epsilon: 0.0, scale_per_group, stash: DType::F32, in_blocks: false }
    }

    fn run(operator: &GroupNormalization, scale: &[f32], bias: &[f32]) -> Result<Vec<f32>, ReferenceError> {
        let mut blocks = NoBlocks;
        let data = Tensor::from_elements(&[1, 2, 2], &[1.0f32, 3.0, 10.0, 30.0]).unwrap();
        let inputs = [
            Some(data.into()),
            Some(Tensor::from_elements(&[scale.len()], scale).unwrap().into()),
            Some(Tensor::from_elements(&[bias.len()], bias).unwrap().into()),
        ];
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks))?;
        Ok(results[0].as_tensor().unwrap().elements::<f32>().unwrap().to_vec())
    }

    #[test]
    fn every_channel_alone() {
        assert_eq!(run(&operator(None, false), &[1.0, 2.0], &[0.0, 1.0]).unwrap(), [-1.0, 1.0, -1.0, 3.0]);
        assert_eq!(run(&operator(Some(2), true), &[1.0, 2.0], &[0.0, 1.0]).unwrap(), [-1.0, 1.0, -1.0, 3.0]);
    }

    #[test]
    fn blocks_have_the_results_of_planes() {
        let values: Vec<f32> = (0..2 * 16 * 3).map(|index| (index * index % 37) as f32).collect();
        let parameter = |step: f32| (0..16).map(|index| index as f32 * step + 1.0).collect::<Vec<f32>>();
        let at = |index: usize| (index / 24 * 8 + index % 8) * 3 + index / 8 % 3;
        let compute = |in_blocks: bool, groups: Option<i64>, shape: &[usize], values: &[f32]| -> Vec<f32> {
            let mut blocks = NoBlocks;
            let inputs = [(shape, values.to_vec()), (&[16], parameter(0.5)), (&[16], parameter(2.0))];
            let inputs = inputs.map(|(shape, values)| Some(Tensor::from_elements(shape, &values).unwrap().into()));
            let operator = GroupNormalization { in_blocks, ..operator(groups, false) };
            let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks)).unwrap();
            results[0].as_tensor().unwrap().elements::<f32>().unwrap().to_vec()
        };
        for groups in [None, Some(8), Some(2), Some(1)] {
            let expected = compute(false, groups, &[2, 16, 3], &values);
            let in_blocks: Vec<f32> = (0..values.len()).map(|index| values[at(index)]).collect();
            let found = compute(true, groups, &[2, 2, 3, 8], &in_blocks);
            let expected: Vec<f32> = (0..values.len()).map(|index| expected[at(index)]).collect();
            assert_eq!(found, expected, "{groups:?}");
        }
    }

    #[test]
    fn blocks_are_of_eight_channels() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("g", &ranges, &mut blocks);
        let operator = GroupNormalization { in_blocks: true, ..operator(Some(4), false) };
        let mut infer = |dims: Vec<Dim>| {
            let parameter = || Some(Fact::tensor(DType::F32, vec![Dim::known(16)]));
            let data = Some(Fact::tensor(DType::F32, dims));
            operator.infer(&[data, parameter(), parameter()], &mut context).map_err(|error| error.to_string())
        };
        let [two, three, seven] = [2, 3, 7].map(Dim::known);
        assert_eq!(infer(vec![two.clone(), two.clone()]).unwrap_err(), "operand 0 must have rank at least 3, found 2");
        assert_eq!(
            infer(vec![Dim::ONE, two.clone(), three.clone(), seven]).unwrap_err(),
            "channels of a block: 7 does not fit 8"
        );
        assert_eq!(
            infer(vec![Dim::ONE, three, two.clone(), Dim::known(8)]).unwrap_err(),
            "channels of the normalization: 16 does not fit 24"
        );
        let shape = vec![Dim::ONE, two.clone(), two, Dim::symbol("b")];
        assert_eq!(infer(shape.clone()).unwrap()[0], Fact::tensor(DType::F32, shape));
        assert_eq!(context.obligations.len(), 1);
        // Extents of an empty tensor may be anything.
        assert_eq!(operator.extents(&[0, usize::MAX / 2, 8]).unwrap(), (usize::MAX, 1));
        let error = operator.extents(&[1, 2, 7]).unwrap_err();
        assert_eq!(error.to_string(), "channels of a block: 7 does not fit 8");
    }

    #[test]
    fn groups_share_statistics() {
        let results = run(&operator(Some(1), false), &[1.0, 10.0], &[0.0, 0.0]).unwrap();
        let deviation = 131.5f64.sqrt();
        for (result, expected) in results.iter().zip([-10.0, -8.0, -10.0, 190.0]) {
            assert!((f64::from(*result) - expected / deviation).abs() < 1e-5, "{results:?}");
        }
        assert_eq!(
            run(&operator(Some(1), true), &[1.0, 10.0], &[0.0, 0.0]).unwrap_err().to_string(),
            "length of operand 1: [2] does not fit [1]"
        );
        assert_eq!(
            run(&operator(Some(3), false), &[1.0, 10.0], &[0.0, 0.0]).unwrap_err().to_string(),
            "number of channels is 2, expected a multiple of 3 groups"
        );
    }

    #[test]
    fn symbolic_channels_leave_an_obligation() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("g", &ranges, &mut blocks);
        let data = Some(Fact::tensor(DType::F32, vec![Dim::ONE, Dim::symbol("c"), Dim::known(4)]));
        let parameter = || Some(Fact::tensor(DType::F32, vec![Dim::symbol("c")]));
        operator(Some(4), false).infer(&[data, parameter(), parameter()], &mut context).unwrap();
        assert_eq!(context.obligations.len(), 1);
        assert_eq!(
            operator(Some(0), false)
                .infer(&[parameter(), parameter(), parameter()], &mut context)
                .unwrap_err()
                .to_string(),
            "number of groups is 0, expected at least 1"
        );
    }
}
