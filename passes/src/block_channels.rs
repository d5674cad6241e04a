//! Channels of convolutions come in blocks of 8, `[n, c / 8, d.., 8]`, through all steps that can take them so: what a window reads is
//! side by side, vectors hold channels, and nothing is copied to be multiplied.
//!
//! ```text
//! constant @w : f32[64, 8, 1, 1] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @v : f32[8, 64, 1, 1] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 8, 6, 6]) {
//!   %c : f32[n, 64, 6, 6] = convolution groups=1 %x, @w from "first"
//!   %s : f32[n, 64, 6, 6] = unary function=tanh %c from "tanh"
//!   %y : f32[n, 8, 6, 6] = convolution groups=1 %s, @v from "second"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @w : f32[64, 8, 1, 1] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @v : f32[8, 64, 1, 1] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! constant @2 : i64[5] = i64[5]:00000000000000000100000000000000080000000000000006000000000000000600000000000000
//! constant @3 : i64[4] = i64[4]:0000000000000000080000000000000006000000000000000600000000000000
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 8, 6, 6]) {
//!   %a : f32[n, 1, 8, 6, 6] = reshape allow_zero=0 %x, @2 from "first"
//!   %b : f32[n, 1, 6, 6, 8] = transpose permutation=[0, 1, 3, 4, 2] %a from "first"
//!   %c : f32[n, 8, 6, 6, 8] = blocked_convolution groups=1 %b, @w from "first"
//!   %s : f32[n, 8, 6, 6, 8] = unary function=tanh %c from "tanh"
//!   %t : f32[n, 1, 6, 6, 8] = blocked_convolution groups=1 %s, @v from "second"
//!   %p : f32[n, 1, 8, 6, 6] = transpose permutation=[0, 1, 4, 2, 3] %t from "second"
//!   %y : f32[n, 8, 6, 6] = reshape allow_zero=0 %p, @3 from "second"
//!   return %y
//! }
//! ```
//!
//! Steps are rewritten in their order. A value of which only the blocks are computed gets its plain form where a step reads it that
//! does not take blocks. Convolutions that multiply each input often enough take them, and all steps behind them that can: convolutions,
//! pools, resampled and joined positions, elementwise steps, transpositions, joined and split channels.
//!
//! Establishes: nothing that later passes need. Leaves alone: convolutions of other types than f32, of channels that are no whole
//! blocks, of weights that a file cuts within a block, and values of several unknown extents. Sums are added up in another order.

mod operands;
mod steps;

use crate::error::PassError;
use crate::ir::{Changes, Constant, ConstantId, Graph, Operand, Step, ValueId};
use crate::options::Options;
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::ops::{CHANNEL_BLOCK, Op, Reshape, Transpose};
use ipuc_formats::tensor::Tensor;
use std::collections::HashMap;
use std::sync::Arc;

/// [`CHANNEL_BLOCK`] in extents.
const BLOCK: i64 = CHANNEL_BLOCK as i64;

/// Have channels in blocks; see the module. Not where [`Options::unfused`] or [`Options::plain_channels`].
///
/// # Errors
/// None today; the signature is that of every pass.
pub fn block_channels(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    let mut changes = 0;
    if options.unfused || options.plain_channels {
        return Ok(Changes::default());
    }
    for index in graph.reachable_blocks() {
        changes += rewrite(graph, index);
    }
    Ok(Changes::of_steps(changes))
}

/// Rewrites the steps of a block; gives how many take blocks.
fn rewrite(graph: &mut Graph, index: BlockIndex) -> usize {
    let steps = std::mem::take(&mut graph.block_mut(index).steps);
    let mut blocks = Blocks {
        graph,
        steps: Vec::with_capacity(steps.len()),
        blocked: HashMap::new(),
        waiting: HashMap::new(),
        transposed: HashMap::new(),
        shapes: HashMap::new(),
    };
    let mut changed = 0;
    for step in steps {
        if blocks.take(&step).is_some() {
            changed += 1;
            continue;
        }
        for &operand in &step.operands {
            blocks.make_plain(operand);
        }
        blocks.remember(&step);
        blocks.steps.push(step);
    }
    let results = blocks.graph.block(index).results.clone();
    for result in results {
        blocks.make_plain(result);
    }
    let steps = std::mem::take(&mut blocks.steps);
    graph.block_mut(index).steps = steps;
    changed
}

/// Steps so far, and which values they have in blocks.
struct Blocks<'g> {
    graph: &'g mut Graph,
    steps: Vec<Step>,
    /// Values in blocks.
    blocked: HashMap<ValueId, ValueId>,
    /// Values of which only the blocks are computed, and the names of the steps that do.
    waiting: HashMap<ValueId, Arc<str>>,
    /// Values that have their channels from the last axis of others.
    transposed: HashMap<ValueId, Operand>,
    /// Constants of extents.
    shapes: HashMap<Vec<i64>, ConstantId>,
}

impl Blocks<'_> {
    /// Extents of an operand.
    fn dims(&self, operand: Operand) -> Option<Vec<Dim>> {
        Some(self.graph.fact(operand)?.dims()?.to_vec())
    }

    /// A step with one result of its own; `None` where the operands do not fit.
    fn push(&mut self, op: impl Into<Op>, operands: Vec<Operand>, name: &Arc<str>) -> Option<ValueId> {
        let op = op.into();
        let fact = self.graph.inferred(&op, &operands)?.into_iter().next()?;
        let value = self.graph.add_value(fact, None);
        self.steps.push(Step { op, operands, results: vec![value], name: name.clone() });
        Some(value)
    }

    /// A constant of integers.
    fn integers(&mut self, integers: Vec<i64>) -> Operand {
        let graph = &mut *self.graph;
        let add = |integers: &Vec<i64>| graph.add_constant(Constant::of(Tensor::vector_i64(integers), None));
        Operand::Constant(*self.shapes.entry(integers).or_insert_with_key(add))
    }

    /// The operands of a reshape of `data` to `dims`; `None` where extents are neither known nor those of the same axis, but one.
    fn reshape(&mut self, data: Operand, dims: &[Dim]) -> Option<(Op, Vec<Operand>)> {
        let from = self.dims(data)?;
        let mut is_left = false;
        let extent = |(axis, dim): (usize, &Dim)| match dim.as_known() {
            // 0 would be the extent of the data.
            Some(extent) => (extent != 0).then_some(extent),
            None if from.get(axis) == Some(dim) => Some(0),
            None => (!std::mem::replace(&mut is_left, true)).then_some(-1),
        };
        let extents: Vec<i64> = dims.iter().enumerate().map(extent).collect::<Option<_>>()?;
        let (op, operands) = (Op::from(Reshape { allow_zero: false }), vec![data, self.integers(extents)]);
        let fact = self.graph.inferred(&op, &operands)?.into_iter().next()?;
        (fact.dims() == Some(dims)).then_some((op, operands))
    }

    /// `data` with other extents.
    fn reshaped(&mut self, data: Operand, dims: &[Dim], name: &Arc<str>) -> Option<ValueId> {
        let (op, operands) = self.reshape(data, dims)?;
        self.push(op, operands, name)
    }

    /// A value in blocks, which is made where it is not there; `None` where it cannot be.
    fn in_blocks(&mut self, operand: Operand, name: &Arc<str>) -> Option<ValueId> {
        let Operand::Value(value) = operand else { return None };
        if let Some(&blocked) = self.blocked.get(&value) {
            return Some(blocked);
        }
        let dims = self.dims(operand)?;
        let blocked = blocked_dims(&dims)?;
        let rank = dims.len() as i64;
        let made = if has_one_position(&dims) {
            self.reshaped(operand, &blocked, name)?
        } else if let Some(&origin) = self.transposed.get(&value) {
            let mut apart = self.dims(origin)?;
            apart.splice(dims.len() - 1.., [blocked[1].clone(), Dim::known(BLOCK)]);
            let apart = self.reshaped(origin, &apart, name)?;
            let permutation = [0, rank - 1].into_iter().chain(1..rank - 1).chain([rank]).collect();
            self.push(Transpose { permutation }, vec![Operand::Value(apart)], name)?
        } else {
            let mut apart = blocked.clone();
            apart.pop();
            apart.insert(2, Dim::known(BLOCK));
            let apart = self.reshaped(operand, &apart, name)?;
            let permutation = [0, 1].into_iter().chain(3..rank + 1).chain([2]).collect();
            self.push(Transpose { permutation }, vec![Operand::Value(apart)], name)?
        };
        self.blocked.insert(value, made);
        Some(made)
    }

    /// Has a value computed in blocks, from which its plain form can be made.
    fn set_blocked(&mut self, value: ValueId, blocked: ValueId, name: &Arc<str>) {
        self.blocked.insert(value, blocked);
        self.waiting.insert(value, name.clone());
    }

    /// Computes the plain form of a value, where only its blocks are computed so far.
    fn make_plain(&mut self, operand: Operand) {
        let Operand::Value(value) = operand else { return };
        let Some(name) = self.waiting.remove(&value) else { return };
        let Some(steps) = self.plain(value, &name) else { return };
        self.steps.extend(steps);
    }

    /// The steps from the blocks of a value to its plain form.
    fn plain(&mut self, value: ValueId, name: &Arc<str>) -> Option<Vec<Step>> {
        let dims = self.dims(Operand::Value(value))?;
        let data = Operand::Value(*self.blocked.get(&value)?);
        let step = |op, operands, result| Step { op, operands, results: vec![result], name: name.clone() };
        if has_one_position(&dims) {
            let (op, operands) = self.reshape(data, &dims)?;
            return Some(vec![step(op, operands, value)]);
        }
        let rank = dims.len() as i64;
        let permutation = [0, 1, rank].into_iter().chain(2..rank).collect();
        let (op, operands) = (Op::from(Transpose { permutation }), vec![data]);
        let fact = self.graph.inferred(&op, &operands)?.into_iter().next()?;
        let apart = self.graph.add_value(fact, None);
        let first = step(op, operands, apart);
        let (op, operands) = self.reshape(Operand::Value(apart), &dims)?;
        Some(vec![first, step(op, operands, value)])
    }

    /// Keeps in mind where channels of a value come from.
    fn remember(&mut self, step: &Step) {
        let (Op::Transpose(transpose), &[from], &[result]) =
            (&step.op, step.operands.as_slice(), step.results.as_slice())
        else {
            return;
        };
        let Some(rank) = self.graph.fact(from).and_then(|fact| fact.rank()) else { return };
        let channels_last = [0, rank.wrapping_sub(1)].into_iter().chain(1..rank.saturating_sub(1));
        if rank > 2 && transpose.axes(rank).is_ok_and(|axes| axes.into_iter().eq(channels_last)) {
            self.transposed.insert(result, from);
        }
    }
}

/// `[n, c, d..]` in blocks, where channels are whole ones, and the plain form can be made again.
fn blocked_dims(dims: &[Dim]) -> Option<Vec<Dim>> {
    let [batch, channels, positions @ ..] = dims else { return None };
    let channels = channels.as_known().filter(|channels| *channels > 0 && channels % BLOCK == 0)?;
    let unknown = positions.iter().filter(|dim| dim.as_known().is_none()).count();
    let is_empty = dims.iter().any(|dim| dim.as_known() == Some(0));
    if positions.is_empty() || unknown > 1 || is_empty {
        return None;
    }
    Some([&[batch.clone(), Dim::known(channels / BLOCK)], positions, &[Dim::known(BLOCK)]].concat())
}

/// Whether there is one position, so that elements are in the same order in blocks.
fn has_one_position(dims: &[Dim]) -> bool {
    dims[2..].iter().all(|dim| dim.as_known() == Some(1))
}
