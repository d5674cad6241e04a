//! The steps of a block as they are rewritten: which values they have in blocks of channels, and the ways from one order to the other.

use crate::error::PassError;
use crate::ir::{ExtentConstants, Graph, Operand, Step, ValueId, reshape_extents};
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{CHANNEL_BLOCK, Class, GroupNormalization, Op, Reshape, Transpose};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// How many channels a block has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockSize {
    /// [`CHANNEL_BLOCK`]: convolutions of f32.
    Eights,
    /// All of them: convolutions of integers of 8 bits, whose products take four channels at a time.
    All,
}

impl BlockSize {
    /// Channels of a block of so many; `None` where these are no whole blocks, or one channel, which lies as in planes.
    pub(super) fn block(self, channels: i64) -> Option<i64> {
        match self {
            BlockSize::Eights => (channels > 0 && channels % CHANNEL_BLOCK as i64 == 0).then_some(CHANNEL_BLOCK as i64),
            BlockSize::All => (channels > 1).then_some(channels),
        }
    }

    /// The axis along which blocks of values of so many axes follow each other, or lie.
    pub(super) fn channel_axis(self, rank: usize) -> i64 {
        match self {
            BlockSize::Eights => 1,
            BlockSize::All => rank as i64,
        }
    }
}

/// Steps so far, and which values they have in blocks.
pub(super) struct Blocks<'g> {
    pub(super) graph: &'g mut Graph,
    pub(super) block_size: BlockSize,
    pub(super) steps: Vec<Step>,
    /// Values in blocks.
    pub(super) blocked: HashMap<ValueId, ValueId>,
    /// Values of which only the blocks are computed, and the names of the steps that do.
    pub(super) waiting: HashMap<ValueId, Arc<str>>,
    /// Values that have their channels from the last axis of others, behind the same positions in the same order.
    pub(super) transposed: HashMap<ValueId, Operand>,
    /// Values that convolutions and pools read, also through elementwise steps and normalizations over blocks.
    pub(super) windowed: HashSet<ValueId>,
    /// Constants of extents.
    pub(super) shapes: ExtentConstants,
}

impl<'g> Blocks<'g> {
    /// Of a graph, before the first of these steps.
    pub(super) fn new(graph: &'g mut Graph, block_size: BlockSize, steps: &[Step]) -> Blocks<'g> {
        let windowed = windowed(graph, block_size, steps);
        Blocks {
            graph,
            block_size,
            windowed,
            steps: Vec::new(),
            blocked: HashMap::new(),
            waiting: HashMap::new(),
            transposed: HashMap::new(),
            shapes: ExtentConstants::default(),
        }
    }

    /// Extents of an operand.
    pub(super) fn dims(&self, operand: Operand) -> Option<Vec<Dim>> {
        Some(self.graph.fact(operand)?.dims()?.to_vec())
    }

    /// A step with one result of its own; `None` where the operands do not fit.
    pub(super) fn push(&mut self, op: impl Into<Op>, operands: Vec<Operand>, name: &Arc<str>) -> Option<ValueId> {
        let op = op.into();
        let fact = self.graph.inferred(&op, &operands)?.into_iter().next()?;
        let value = self.graph.add_value(fact, None);
        self.steps.push(Step { op, operands, results: vec![value], name: name.clone() });
        Some(value)
    }

    /// A constant of integers.
    pub(super) fn integers(&mut self, integers: Vec<i64>) -> Operand {
        self.shapes.constant(self.graph, integers)
    }

    /// The operands of a reshape of `data` to `dims`; `None` where extents are neither known nor those of the same axis, but one.
    pub(super) fn reshape(&mut self, data: Operand, dims: &[Dim]) -> Option<(Op, Vec<Operand>)> {
        let from = self.dims(data)?;
        let extents = reshape_extents(&from, dims, &self.graph.ranges)?;
        let (op, operands) = (Op::from(Reshape { allow_zero: false }), vec![data, self.integers(extents)]);
        let fact = self.graph.inferred(&op, &operands)?.into_iter().next()?;
        (fact.dims() == Some(dims)).then_some((op, operands))
    }

    /// `data` with other extents.
    pub(super) fn reshaped(&mut self, data: Operand, dims: &[Dim], name: &Arc<str>) -> Option<ValueId> {
        let (op, operands) = self.reshape(data, dims)?;
        self.push(op, operands, name)
    }

    /// `[n, c, d..]` in blocks, where channels are whole ones and positions known.
    pub(super) fn blocked_dims(&self, dims: &[Dim]) -> Option<Vec<Dim>> {
        let [batch, channels, positions @ ..] = dims else { return None };
        let channels = channels.as_known()?;
        let block = self.block_size.block(channels)?;
        let are_known = positions.iter().all(|dim| dim.as_known().is_some_and(|extent| extent > 0));
        if positions.is_empty() || !are_known {
            return None;
        }
        Some([&[batch.clone(), Dim::known(channels / block)], positions, &[Dim::known(block)]].concat())
    }

    /// Whether extents have blocks.
    pub(super) fn has_blocks(&self, dims: &[Dim]) -> bool {
        self.blocked_dims(dims).is_some()
    }

    /// A value in blocks, which is made where it is not there; `None` where it cannot be.
    pub(super) fn in_blocks(&mut self, operand: Operand, name: &Arc<str>) -> Option<ValueId> {
        let Operand::Value(value) = operand else { return None };
        if let Some(&blocked) = self.blocked.get(&value) {
            return Some(blocked);
        }
        let dims = self.dims(operand)?;
        let blocked = self.blocked_dims(&dims)?;
        let rank = dims.len() as i64;
        let made = if has_one_position(&dims) {
            self.reshaped(operand, &blocked, name)?
        } else if let Some(&origin) = self.transposed.get(&value) {
            let mut apart = blocked.clone();
            let count = apart.remove(1);
            apart.insert(dims.len() - 1, count);
            let apart = self.reshaped(origin, &apart, name)?;
            let permutation = [0, rank - 1].into_iter().chain(1..rank - 1).chain([rank]).collect();
            self.push(Transpose { permutation }, vec![Operand::Value(apart)], name)?
        } else {
            let mut apart = blocked.clone();
            let block = apart.pop()?;
            apart.insert(2, block);
            let apart = self.reshaped(operand, &apart, name)?;
            let permutation = [0, 1].into_iter().chain(3..rank + 1).chain([2]).collect();
            self.push(Transpose { permutation }, vec![Operand::Value(apart)], name)?
        };
        self.blocked.insert(value, made);
        Some(made)
    }

    /// Has a value computed in blocks, from which its plain form can be made.
    pub(super) fn set_blocked(&mut self, value: ValueId, blocked: ValueId, name: &Arc<str>) {
        self.blocked.insert(value, blocked);
        self.waiting.insert(value, name.clone());
    }

    /// Computes the plain form of a value, where only its blocks are computed so far.
    ///
    /// # Errors
    /// If there is no way to it.
    pub(super) fn make_plain(&mut self, operand: Operand) -> Result<(), PassError> {
        let Operand::Value(value) = operand else { return Ok(()) };
        let Some(name) = self.waiting.get(&value).cloned() else { return Ok(()) };
        let steps = self.plain(value, &name).ok_or_else(|| PassError::PlainChannels { step: name.to_string() })?;
        self.waiting.remove(&value);
        self.steps.extend(steps);
        Ok(())
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
    pub(super) fn remember(&mut self, step: &Step) {
        let &[result] = step.results.as_slice() else { return };
        let origin = match &step.op {
            Op::Transpose(transpose) => self.channels_last(transpose, &step.operands),
            op => op.view_of().and_then(|viewed| self.same_channels(*step.operands.get(viewed)?, result)),
        };
        if let Some(origin) = origin {
            self.transposed.insert(result, origin);
        }
    }

    /// What an exchange of axes reads that takes channels from the last axis.
    fn channels_last(&self, transpose: &Transpose, operands: &[Operand]) -> Option<Operand> {
        let &[from] = operands else { return None };
        let rank = self.graph.fact(from)?.rank().filter(|&rank| rank > 2)?;
        let channels_last = [0, rank - 1].into_iter().chain(1..rank - 1);
        transpose.axes(rank).ok()?.into_iter().eq(channels_last).then_some(from)
    }

    /// What has the channels of `viewed` on its last axis, where `result` shows the same channels, with their positions in the same order.
    fn same_channels(&self, viewed: Operand, result: ValueId) -> Option<Operand> {
        let origin = *self.transposed.get(&as_value(viewed)?)?;
        let (from, to) = (self.dims(viewed)?, self.dims(Operand::Value(result))?);
        (to.len() > 2 && from[..2] == to[..2]).then_some(origin)
    }
}

/// Values that convolutions and pools read, also through elementwise steps and normalizations over blocks.
fn windowed(graph: &Graph, block_size: BlockSize, steps: &[Step]) -> HashSet<ValueId> {
    let mut windowed = HashSet::new();
    for step in steps.iter().rev() {
        let is_windowed = step.results.iter().any(|result| windowed.contains(result));
        let read = match (&step.op, step.results.as_slice()) {
            (Op::Convolution(_) | Op::IntegerConvolution(_) | Op::Pool(_), _) => 1,
            (Op::GroupNormalization(own), &[result]) if is_windowed && block_size == BlockSize::Eights => {
                usize::from(fits_blocks(graph, result, own))
            }
            (op, _) if is_windowed && matches!(op.class(), Class::Elementwise(_)) => step.operands.len(),
            _ => 0,
        };
        windowed.extend(step.operands.iter().take(read).filter_map(|operand| as_value(*operand)));
    }
    windowed
}

/// Whether the groups of a normalization that gives a value of f32 are whole blocks, or its blocks whole groups.
pub(super) fn fits_blocks(graph: &Graph, result: ValueId, normalization: &GroupNormalization) -> bool {
    let fact = &graph.value(result).fact;
    let channels = fact.dims().and_then(|dims| usize::try_from(dims.get(1)?.as_known()?).ok());
    let group = channels.and_then(|channels| normalization.group_in_blocks(channels));
    fact.dtype() == Some(DType::F32) && group.is_some()
}

/// The value of an operand.
pub(super) fn as_value(operand: Operand) -> Option<ValueId> {
    match operand {
        Operand::Value(value) => Some(value),
        Operand::Absent | Operand::Constant(_) => None,
    }
}

/// Whether there is one position, so that elements are in the same order in blocks.
pub(super) fn has_one_position(dims: &[Dim]) -> bool {
    dims[2..].iter().all(|dim| dim.as_known() == Some(1))
}
