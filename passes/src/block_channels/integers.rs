//! Convolutions of integers of 8 bits, with all channels in one block.

use super::blocks::Blocks;
use super::steps::{FEW_WINDOWS, MOST_COPIED_INPUTS, MOST_INPUTS, has_inputs, positions};
use crate::ir::{Constant, ConstantData, ConstantId, Graph, Operand, Step};
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{IntegerConvolution, Op, Reshape, Transpose};
use ipuc_formats::tensor::Tensor;

/// Operands of a convolution itself; further ones are the program's.
const OWN_OPERANDS: usize = 5;

/// Channels that products take together.
const TOGETHER: i64 = 4;

/// Positions of padding along each side of an image that is copied with it, at most.
const MOST_PADDING: i64 = 32;

/// Whether there are convolutions of integers, all of which are in one group.
pub(super) fn are_of_one_group(steps: &[Step]) -> bool {
    let groups = |step: &Step| match &step.op {
        Op::IntegerConvolution(convolution) => Some(convolution.groups),
        _ => None,
    };
    let mut groups = steps.iter().filter_map(groups).peekable();
    groups.peek().is_some() && groups.all(|groups| groups == 1)
}

impl Blocks<'_> {
    pub(super) fn integer_convolution(&mut self, step: &Step, convolution: &IntegerConvolution) -> Option<()> {
        let (&[x, Operand::Constant(w), ..], &[result]) = (step.operands.as_slice(), step.results.as_slice()) else {
            return None;
        };
        let (dims, filters) = (self.dims(Operand::Value(result))?, self.dims(step.operands[1])?);
        let channels = self.dims(x)?.get(1)?.as_known()?;
        let dtype = |operand: Operand| self.graph.fact(operand)?.dtype();
        let are_bytes = step.operands[..2].iter().all(|&operand| matches!(dtype(operand), Some(DType::I8 | DType::U8)));
        let gives_bytes = dtype(Operand::Value(result)).is_some_and(|dtype| dtype.bits().is_multiple_of(8));
        let reads_own = convolution.program.operands().any(|operand| operand < OWN_OPERANDS);
        let plain = convolution.auto_pad.is_none() && convolution.groups == 1 && !convolution.channels_last;
        if !plain
            || !are_bytes
            || !gives_bytes
            || reads_own
            || positions(&dims) <= FEW_WINDOWS
            || !self.has_blocks(&dims)
        {
            return None;
        }
        let plain_inputs = channels % TOGETHER != 0 || !self.has_blocks(&self.dims(x)?);
        if plain_inputs {
            are_near_and_few(convolution, &dims).then_some(())?;
            (self.windowed.contains(&result) && has_inputs(&filters, MOST_COPIED_INPUTS)).then_some(())?;
        } else {
            // A file does not cut their panels.
            has_inputs(&filters, MOST_INPUTS).then_some(())?;
            (self.is_near(x) || self.is_worth_blocks(&filters, 1)).then_some(())?;
        }
        let mut operands = self.of_convolution(step, OWN_OPERANDS, &dims, plain_inputs)?;
        if !plain_inputs {
            operands[1] = Operand::Constant(filters_in_block(self.graph, w)?);
        }
        let op = IntegerConvolution { channels_last: true, plain_inputs, ..convolution.clone() };
        let value = self.push(op, operands, &step.name)?;
        self.set_blocked(result, value, &step.name);
        Some(())
    }
}

/// Whether windows have at most two axes, little padding, and taps along rows side by side: images are copied with their padding.
fn are_near_and_few(convolution: &IntegerConvolution, result: &[Dim]) -> bool {
    let one_by_one = convolution.dilations.last().is_none_or(|distance| *distance == 1);
    result.len() <= 4 && one_by_one && convolution.pads.iter().all(|pad| *pad <= MOST_PADDING)
}

/// Filters `[m, c, k..]` as `[m, 1, k.., c]`.
fn filters_in_block(graph: &mut Graph, filters: ConstantId) -> Option<ConstantId> {
    let shape = graph.constant(filters).shape.clone();
    let &[outputs, channels, ref kernel @ ..] = shape.as_slice() else { return None };
    let (last, block) = ([&[outputs], kernel, &[channels]].concat(), [&[outputs, 1], kernel, &[channels]].concat());
    let has_one_tap = kernel.iter().all(|&extent| extent == 1);
    let moved = if has_one_tap {
        filters
    } else {
        let permutation = [0].into_iter().chain(2..shape.len() as i64).chain([1]).collect();
        recipe(graph, Transpose { permutation }.into(), vec![filters], last)
    };
    let extents: Vec<i64> = block.iter().map(|&extent| extent as i64).collect();
    let extents = graph.add_constant(Constant::of(Tensor::vector_i64(&extents), None));
    Some(recipe(graph, Reshape { allow_zero: false }.into(), vec![moved, extents], block))
}

/// What an operator gives of constants, with the name and the type of the first.
fn recipe(graph: &mut Graph, op: Op, operands: Vec<ConstantId>, shape: Vec<usize>) -> ConstantId {
    let Constant { name, dtype, .. } = graph.constant(operands[0]).clone();
    let data = ConstantData::Recipe { op, operands: operands.into_iter().map(Some).collect() };
    graph.add_constant(Constant { name, dtype, shape, data, origin: None, encoding: None, zeros: None })
}
