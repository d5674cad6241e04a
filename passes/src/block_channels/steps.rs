//! Each kind of step over blocks.

use super::blocks::{BlockSize, Blocks, as_value, fits_blocks, has_one_position};
use crate::ir::{Constant, Operand, Step};
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Argument, BlockedConvolution, CHANNEL_BLOCK, Class, Concat, Convolution, Function, GroupNormalization, Map, Op,
    Pool, PoolFunction, Program, Reduce, ReduceFunction, Resize, ResizeCoordinates, ResizePolicy, Split, Transpose,
};
use ipuc_formats::tensor::Tensor;

/// [`CHANNEL_BLOCK`] in extents.
const BLOCK: i64 = CHANNEL_BLOCK as i64;

/// Known positions of `[n, c, d..]`.
pub(super) fn positions(dims: &[Dim]) -> i64 {
    dims.iter().skip(2).filter_map(Dim::as_known).fold(1, i64::saturating_mul)
}

/// Operands of a convolution itself; further ones are the program's.
const OWN_OPERANDS: usize = 3;

/// Products with an input for which it is put into blocks: what vectors gain then is more than that takes.
const FEWEST_PRODUCTS: i64 = 64;

/// Windows up to which channels stay in their own order.
pub(super) const FEW_WINDOWS: i64 = 8;

/// Inputs of a filter up to which those of windows over plain channels are copied side by side.
pub(super) const MOST_COPIED_INPUTS: i64 = 256;

/// Inputs of a filter of several taps that a file does not cut: a panel of 16 filters is a quarter of a chunk.
pub(super) const MOST_INPUTS: i64 = 1 << 13;

/// Whether filters `[m, c, k..]` have at most so many inputs.
pub(super) fn has_inputs(filters: &[Dim], most: i64) -> bool {
    let inputs = filters.iter().skip(1).map(Dim::as_known).try_fold(1i64, |inputs, dim| inputs.checked_mul(dim?));
    inputs.is_some_and(|inputs| (1..=most).contains(&inputs))
}

impl Blocks<'_> {
    /// Adds a step over blocks in place of one; `None` where there is none, and nothing is added that others need not.
    pub(super) fn take(&mut self, step: &Step) -> Option<()> {
        if let (Op::Convolution(convolution), BlockSize::Eights) = (&step.op, self.block_size) {
            return self.convolution(step, convolution);
        }
        if let (Op::IntegerConvolution(convolution), BlockSize::All) = (&step.op, self.block_size) {
            return self.integer_convolution(step, convolution);
        }
        if let Op::Concat(concat) = &step.op {
            return self.concat(step, concat);
        }
        if matches!(step.op.class(), Class::Elementwise(_)) {
            return self.elementwise(step);
        }
        let first = *step.operands.first()?;
        if !self.is_waiting(first) {
            return None;
        }
        if let Op::Split(split) = &step.op {
            return self.split(step, split);
        }
        if let Op::Pool(pool) = &step.op {
            return self.pool(step, pool);
        }
        if let Op::Reduce(reduce) = &step.op {
            return self.reduce(step, reduce);
        }
        if let (Op::GroupNormalization(normalization), BlockSize::Eights) = (&step.op, self.block_size) {
            return self.group_normalization(step, normalization);
        }
        if let Op::Resize(resize) = &step.op {
            return self.resample(step, resize);
        }
        if let Op::Transpose(transpose) = &step.op {
            return self.transpose(step, transpose);
        }
        if step.op.view_of() == Some(0) {
            return self.view(step);
        }
        None
    }

    fn convolution(&mut self, step: &Step, convolution: &Convolution) -> Option<()> {
        let (&[x, w, ..], &[result]) = (step.operands.as_slice(), step.results.as_slice()) else { return None };
        let dims = self.dims(Operand::Value(result))?;
        let plain = convolution.auto_pad.is_none() && convolution.arithmetic.is_default();
        let own = step.operands.iter().take(OWN_OPERANDS).filter(|operand| **operand != Operand::Absent);
        let is_f32 = own
            .chain([&Operand::Value(result)])
            .all(|&operand| self.graph.fact(operand).is_some_and(|fact| fact.dtype() == Some(DType::F32)));
        let reads_own = convolution.program.operands().any(|operand| operand < OWN_OPERANDS);
        // Few windows are products of few rows.
        if !plain || !is_f32 || reads_own || positions(&dims) <= FEW_WINDOWS || !self.has_blocks(&dims) {
            return None;
        }
        let filters = self.dims(w)?;
        let plain_inputs = !self.has_blocks(&self.dims(x)?);
        if plain_inputs {
            (convolution.groups == 1 && self.windowed.contains(&result) && has_inputs(&filters, MOST_COPIED_INPUTS))
                .then_some(())?;
        } else {
            self.filters_fit(&filters, convolution.groups)?;
            (self.is_near(x) || self.is_worth_blocks(&filters, convolution.groups)).then_some(())?;
        }
        let operands = self.of_convolution(step, OWN_OPERANDS, &dims, plain_inputs)?;
        let Convolution { strides, dilations, pads, groups, arithmetic, program, .. } = convolution.clone();
        let blocked = BlockedConvolution { strides, dilations, pads, groups, arithmetic, program, plain_inputs };
        let value = self.push(blocked, operands, &step.name)?;
        self.set_blocked(result, value, &step.name);
        Some(())
    }

    /// Filters `[m, c / groups, k..]` of whole blocks, or of single channels, that no file cuts within a block.
    fn filters_fit(&self, filters: &[Dim], groups: i64) -> Option<()> {
        let known = filters.iter().map(Dim::as_known).collect::<Option<Vec<i64>>>()?;
        let &[filters, channels, ref kernel @ ..] = known.as_slice() else { return None };
        let taps = kernel.iter().try_fold(1i64, |taps, extent| taps.checked_mul(*extent)).filter(|taps| *taps > 0)?;
        let is_depthwise = channels == 1 && filters == groups;
        let are_blocks = groups > 0 && channels % BLOCK == 0 && filters % groups == 0 && filters / groups % BLOCK == 0;
        let is_whole = taps == 1 || channels.checked_mul(taps)? <= MOST_INPUTS;
        ((is_depthwise && groups > 1 || are_blocks) && is_whole).then_some(())
    }

    /// Whether a convolution multiplies each input often enough to have inputs put into blocks for it.
    pub(super) fn is_worth_blocks(&self, filters: &[Dim], groups: i64) -> bool {
        let [outputs, _, kernel @ ..] = filters else { return false };
        let taps = kernel.iter().filter_map(Dim::as_known).product::<i64>();
        let products = outputs.as_known().unwrap_or(0) / groups.max(1) * taps;
        products > taps && products >= FEWEST_PRODUCTS
    }

    /// Steps over elements, where an operand of all of them is in blocks only.
    fn elementwise(&mut self, step: &Step) -> Option<()> {
        let first = *step.results.first()?;
        let dims = self.dims(Operand::Value(first))?;
        let whole = |blocks: &Self, operand: Operand| blocks.dims(operand).is_some_and(|own| own == dims);
        let waits = step.operands.iter().any(|&operand| self.is_waiting(operand) && whole(self, operand));
        // Where all come from blocks or from the last axis, and windows read what becomes of them, their plain forms may not be needed.
        let mut wholes = step.operands.iter().filter(|operand| whole(self, **operand)).peekable();
        let are_near = wholes.peek().is_some() && wholes.all(|&operand| self.is_near(operand));
        let are_near = are_near && self.windowed.contains(&first);
        if !(waits || are_near) || !self.has_blocks(&dims) || has_one_position(&dims) {
            return None;
        }
        let mut operands = step.operands.clone();
        for operand in &mut operands {
            *operand = self.broadcast(*operand, &dims, &step.name)?;
        }
        let op = self.over_lines(step, &operands).unwrap_or_else(|| step.op.clone());
        let facts = self.graph.inferred(&op, &operands)?;
        let values: Vec<_> = facts.into_iter().map(|fact| self.graph.add_value(fact, None)).collect();
        for (&result, &value) in step.results.iter().zip(&values) {
            self.set_blocked(result, value, &step.name);
        }
        self.steps.push(Step { op, operands, results: values, name: step.name.clone() });
        Some(())
    }

    /// A function of two operands as a program, where one of them has an element for each channel: programs repeat these.
    fn over_lines(&self, step: &Step, operands: &[Operand]) -> Option<Op> {
        let Op::Binary(binary) = &step.op else { return None };
        let &[left, right] = operands else { return None };
        let dtype = self.graph.fact(left)?.dtype().filter(|dtype| *dtype == DType::F32)?;
        (self.dims(left)? != self.dims(right)?).then_some(())?;
        let mut program = Program::default();
        let function = Function::Binary(binary.function);
        let computed = program.push(function, vec![Argument::Operand(0), Argument::Operand(1)], dtype);
        program.results.push(computed);
        Some(Map { program }.into())
    }

    /// Channels of several values one behind the other.
    fn concat(&mut self, step: &Step, concat: &Concat) -> Option<()> {
        let &[result] = step.results.as_slice() else { return None };
        let dims = self.dims(Operand::Value(result))?;
        let along_channels = concat.axis == 1 || concat.axis + dims.len() as i64 == 1;
        let waits = step.operands.iter().any(|&operand| self.is_waiting(operand));
        let mut each = step.operands.iter().map(|&operand| self.dims(operand).is_some_and(|own| self.has_blocks(&own)));
        if !along_channels || !waits || !each.all(|has_blocks| has_blocks) || has_one_position(&dims) {
            return None;
        }
        let mut operands = step.operands.clone();
        for operand in &mut operands {
            *operand = Operand::Value(self.in_blocks(*operand, &step.name)?);
        }
        let value = self.push(Concat { axis: self.block_size.channel_axis(dims.len()) }, operands, &step.name)?;
        self.set_blocked(result, value, &step.name);
        Some(())
    }

    /// Equal parts of channels.
    fn split(&mut self, step: &Step, split: &Split) -> Option<()> {
        let &[x, ref sizes @ ..] = step.operands.as_slice() else { return None };
        let dims = self.dims(x)?;
        let along_channels = split.axis == 1 || split.axis + dims.len() as i64 == 1;
        let mut results = Vec::new();
        for &result in &step.results {
            results.push(self.dims(Operand::Value(result))?);
        }
        let are_equal = results.windows(2).all(|pair| pair[0] == pair[1]);
        let is_even = sizes.iter().all(|size| *size == Operand::Absent);
        if !along_channels || !are_equal || !is_even || !self.has_blocks(results.first()?) {
            return None;
        }
        let operands = vec![Operand::Value(*self.blocked.get(&as_value(x)?)?), Operand::Absent];
        let op = Op::from(Split { axis: self.block_size.channel_axis(dims.len()), ..split.clone() });
        let facts = self.graph.inferred(&op, &operands)?;
        let values: Vec<_> = facts.into_iter().map(|fact| self.graph.add_value(fact, None)).collect();
        for (&result, &value) in step.results.iter().zip(&values) {
            self.set_blocked(result, value, &step.name);
        }
        self.steps.push(Step { op, operands, results: values, name: step.name.clone() });
        Some(())
    }

    /// Windows over positions, of which a block is one more axis.
    fn pool(&mut self, step: &Step, pool: &Pool) -> Option<()> {
        let &[result] = step.results.as_slice() else { return None };
        let &Operand::Value(x) = step.operands.first()? else { return None };
        if pool.indices {
            return None;
        }
        if pool.kernel.is_empty() {
            let function = match pool.function {
                PoolFunction::Average => ReduceFunction::Mean,
                PoolFunction::Max => ReduceFunction::Max,
                PoolFunction::Norm => return None,
            };
            return self.reduce_positions(step, function, true);
        }
        if pool.auto_pad.is_some() || pool.function == PoolFunction::Norm {
            return None;
        }
        let with_one = |list: &[i64], one: i64| if list.is_empty() { vec![] } else { [list, &[one]].concat() };
        let pads = match pool.pads.split_at(pool.pads.len() / 2) {
            ([], []) => vec![],
            (before, after) => [before, &[0], after, &[0]].concat(),
        };
        let (kernel, strides) = (with_one(&pool.kernel, 1), with_one(&pool.strides, 1));
        let blocked = Pool { kernel, strides, dilations: with_one(&pool.dilations, 1), pads, ..pool.clone() };
        let data = Operand::Value(*self.blocked.get(&x)?);
        let value = self.push(blocked, vec![data], &step.name)?;
        self.set_blocked(result, value, &step.name);
        Some(())
    }

    /// Positions resampled: the channels of a block are an axis that stays as it is.
    fn resample(&mut self, step: &Step, resize: &Resize) -> Option<()> {
        let &[result] = step.results.as_slice() else { return None };
        let (from, to) = (self.dims(*step.operands.first()?)?, self.dims(Operand::Value(result))?);
        // All axes are told of, without regions.
        let given = |operand: usize| step.operands.get(operand).copied().filter(|given| *given != Operand::Absent);
        let is_plain = resize.axes.is_empty() && given(1).is_none() && from[..2] == to[..2] && self.has_blocks(&to);
        // Other policies have one scale for all axes that are told of.
        let stretches = resize.policy == ResizePolicy::Stretch;
        if !is_plain || !stretches || resize.coordinates == ResizeCoordinates::TfCropAndResize {
            return None;
        }
        let mut operands = step.operands.clone();
        operands[0] = Operand::Value(*self.blocked.get(&as_value(step.operands[0])?)?);
        match (given(2), given(3)) {
            (Some(Operand::Constant(scales)), None) => {
                let scales = self.graph.load_constant(scales).ok()?;
                let scales = [scales.elements::<f32>().ok()?, &[1.0]].concat();
                let tensor = Tensor::from_elements(&[scales.len()], &scales).ok()?;
                operands[2] = Operand::Constant(self.graph.add_constant(Constant::of(tensor, None)));
            }
            (None, Some(Operand::Constant(sizes))) => {
                let sizes = self.graph.load_constant(sizes).ok()?;
                let mut sizes = sizes.elements::<i64>().ok()?.to_vec();
                let block = self.block_size.block(*sizes.get(1)?)?;
                *sizes.get_mut(1)? /= block;
                sizes.push(block);
                operands[3] = self.integers(sizes);
            }
            _ => return None,
        }
        let value = self.push(resize.clone(), operands, &step.name)?;
        self.set_blocked(result, value, &step.name);
        Some(())
    }

    /// All positions of each channel together.
    fn reduce(&mut self, step: &Step, reduce: &Reduce) -> Option<()> {
        let &[data, axes] = step.operands.as_slice() else { return None };
        let rank = self.dims(data)?.len();
        let given = self.graph.fact(axes)?.elements_as_integers()?;
        let axes = reduce.axes(Some(&given), rank).ok()?;
        axes.into_iter().eq(2..rank).then_some(())?;
        self.reduce_positions(step, reduce.function, reduce.keep_axes)
    }

    fn reduce_positions(&mut self, step: &Step, function: ReduceFunction, keep_axes: bool) -> Option<()> {
        let &[result] = step.results.as_slice() else { return None };
        let &Operand::Value(x) = step.operands.first()? else { return None };
        let rank = self.dims(Operand::Value(x))?.len() as i64;
        let data = Operand::Value(*self.blocked.get(&x)?);
        let reduce = Reduce { function, keep_axes: true, keep_without_axes: false };
        let operands = vec![data, self.integers((2..rank).collect())];
        let value = self.push(reduce, operands, &step.name)?;
        if keep_axes {
            self.set_blocked(result, value, &step.name);
            return Some(());
        }
        let dims = self.dims(Operand::Value(result))?;
        let (op, operands) = self.reshape(Operand::Value(value), &dims)?;
        self.steps.push(Step { op, operands, results: vec![result], name: step.name.clone() });
        Some(())
    }

    /// Groups of channels that fit blocks.
    fn group_normalization(&mut self, step: &Step, normalization: &GroupNormalization) -> Option<()> {
        let &[result] = step.results.as_slice() else { return None };
        fits_blocks(self.graph, result, normalization).then_some(())?;
        let mut operands = step.operands.clone();
        operands[0] = Operand::Value(*self.blocked.get(&as_value(operands[0])?)?);
        let value = self.push(GroupNormalization { in_blocks: true, ..normalization.clone() }, operands, &step.name)?;
        self.set_blocked(result, value, &step.name);
        Some(())
    }

    /// Other orders of axes: the channels of a block go with the blocks.
    fn transpose(&mut self, step: &Step, transpose: &Transpose) -> Option<()> {
        let &[result] = step.results.as_slice() else { return None };
        let &Operand::Value(x) = step.operands.first()? else { return None };
        let rank = self.dims(Operand::Value(x))?.len();
        let axes = transpose.axes(rank).ok()?;
        let permutation: Vec<i64> =
            axes.iter().flat_map(|&axis| if axis == 1 { vec![1, rank as i64] } else { vec![axis as i64] }).collect();
        let data = Operand::Value(*self.blocked.get(&x)?);
        let apart = self.push(Transpose { permutation }, vec![data], &step.name)?;
        let dims = self.dims(Operand::Value(result))?;
        let (op, operands) = self.reshape(Operand::Value(apart), &dims)?;
        self.steps.push(Step { op, operands, results: vec![result], name: step.name.clone() });
        Some(())
    }

    /// Views that join or drop positions.
    fn view(&mut self, step: &Step) -> Option<()> {
        let &[result] = step.results.as_slice() else { return None };
        let &Operand::Value(x) = step.operands.first()? else { return None };
        let (from, to) = (self.dims(Operand::Value(x))?, self.dims(Operand::Value(result))?);
        let data = Operand::Value(*self.blocked.get(&x)?);
        if has_one_position(&from) {
            let (op, operands) = self.reshape(data, &to)?;
            self.steps.push(Step { op, operands, results: vec![result], name: step.name.clone() });
            return Some(());
        }
        let keeps_channels = to.len() > 2 && from[..2] == to[..2];
        let blocked = self.blocked_dims(&to).filter(|_| keeps_channels)?;
        let value = self.reshaped(data, &blocked, &step.name)?;
        self.set_blocked(result, value, &step.name);
        Some(())
    }
}
