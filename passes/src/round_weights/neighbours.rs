//! What has to be changed before a value so that its channels are divided, and nothing else is.

use super::candidates::Candidate;
use crate::ir::{Constant, ConstantId, Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{ActivationFunction, BinaryFunction, Op, PoolFunction};
use std::collections::{BTreeMap, HashMap};

/// Steps that are followed back from a value.
const MOST_STEPS: usize = 16;

/// Products that read one value, and what is before it.
pub(super) struct Neighbours {
    pub(super) block: BlockIndex,
    pub(super) value: ValueId,
    /// Indices of the candidates that are multiplied with it; nothing else reads it.
    pub(super) readers: Vec<usize>,
    pub(super) before: Vec<Before>,
}

/// What is divided so that the channels of a value are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// A constant with an element for each channel: an operand of a step.
    Constant(usize, usize),
    /// The outputs of a candidate.
    Outputs(usize),
    /// A value that follows: it is no longer the one of its name.
    Value(ValueId),
}

/// The steps of a block: who defines a value, and who reads it.
struct Walk<'a> {
    graph: &'a Graph,
    steps: &'a [Step],
    producers: HashMap<ValueId, usize>,
    /// Steps with the operand; no step for the results of the block.
    readers: HashMap<ValueId, Vec<(Option<usize>, usize)>>,
    weights: &'a BTreeMap<ConstantId, usize>,
    candidates: &'a [Candidate],
}

/// Where the channels of a value lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Channels {
    /// Along the last axis, as products of matrices have them.
    Last(usize),
    /// Along axis 1, as images have them.
    First(usize),
}

/// All values that only products with candidates read, whose channels can be divided by changing constants before them.
pub(super) fn neighbours(graph: &Graph, candidates: &[Candidate]) -> Vec<Neighbours> {
    let weights: BTreeMap<ConstantId, usize> = candidates.iter().zip(0..).map(|(one, at)| (one.id, at)).collect();
    let mut found = Vec::new();
    for block in graph.reachable_blocks() {
        let walk = Walk::new(graph, block, &weights, candidates);
        for value in walk.steps.iter().flat_map(|step| &step.results).copied() {
            let Some((channels, readers)) = walk.products(value) else { continue };
            let mut before = Vec::new();
            if walk.divide(value, channels, MOST_STEPS, &mut before).is_some() {
                found.push(Neighbours { block, value, readers, before });
            }
        }
    }
    found
}

impl<'a> Walk<'a> {
    fn new(
        graph: &'a Graph,
        block: BlockIndex,
        weights: &'a BTreeMap<ConstantId, usize>,
        candidates: &'a [Candidate],
    ) -> Walk<'a> {
        let block = graph.block(block);
        let (mut producers, mut readers) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
        let mut read = |operand: &Operand, place| {
            if let Operand::Value(value) = operand {
                readers.entry(*value).or_default().push(place);
            }
        };
        for (at, step) in block.steps.iter().enumerate() {
            producers.extend(step.results.iter().map(|&result| (result, at)));
            step.operands.iter().enumerate().for_each(|(operand, value)| read(value, (Some(at), operand)));
        }
        block.results.iter().enumerate().for_each(|(operand, value)| read(value, (None, operand)));
        Walk { graph, steps: &block.steps, producers, readers, weights, candidates }
    }

    /// The candidates of the products that read a value, where nothing else does and it is the only one that they read.
    fn products(&self, value: ValueId) -> Option<(Channels, Vec<usize>)> {
        let mut all: Option<(Channels, Vec<usize>)> = None;
        for &(step, operand) in self.readers.get(&value)? {
            let step = &self.steps[step?];
            let Operand::Constant(weight) = step.operands.get(1)? else { return None };
            let index = *self.weights.get(weight)?;
            let candidate = &self.candidates[index];
            let is_own = candidate.inputs.as_deref() == Some(&[value.0]) && candidate.results.len() == 1;
            let plain = candidate.dtype == DType::F32 && candidate.matrix.groups == 1 && candidate.uses.rows == 0;
            let inputs = usize::try_from(candidate.matrix.inputs).ok()?;
            let channels = match &step.op {
                Op::Matmul(_) => Channels::Last(inputs),
                Op::Convolution(_) => Channels::First(*candidate.shape.get(1)?),
                _ => return None,
            };
            let (known, readers) = all.get_or_insert_with(|| (channels, Vec::new()));
            (operand == 0 && is_own && plain && *known == channels).then(|| readers.push(index))?;
        }
        all
    }

    /// Add what has to be divided for the channels of a value; `None` where they cannot be.
    fn divide(&self, value: ValueId, channels: Channels, left: usize, before: &mut Vec<Before>) -> Option<()> {
        let left = left.checked_sub(1)?;
        let at = *self.producers.get(&value)?;
        let step = &self.steps[at];
        let fact = &self.graph.value(value).fact;
        let is_first = step.results.first() == Some(&value) && fact.dtype() == Some(DType::F32);
        let rank = fact.dims().filter(|_| is_first)?.len();
        before.push(Before::Value(value));
        let only = |operand: usize| match step.operands.get(operand)? {
            Operand::Value(input) => (self.readers.get(input)?.len() == 1).then_some(*input),
            Operand::Constant(_) | Operand::Absent => None,
        };
        if let Op::Binary(binary) = &step.op {
            return self.divide_binary(at, binary.function, (rank, channels), left, before);
        }
        if let Op::LayerNormalization(normalization) = &step.op {
            let Channels::Last(count) = channels else { return None };
            let is_last = normalization.axis == -1 || normalization.axis == rank as i64 - 1;
            (is_last && self.is_vector(step, 1, count)).then(|| before.push(Before::Constant(at, 1)))?;
            return match step.operands.get(2) {
                None | Some(Operand::Absent) => Some(()),
                Some(_) => self.is_vector(step, 2, count).then(|| before.push(Before::Constant(at, 2))),
            };
        }
        if let Op::BatchNormalization(normalization) = &step.op {
            let Channels::First(count) = channels else { return None };
            let is_plain = !normalization.training && !normalization.per_element;
            let fits = is_plain && self.is_vector(step, 1, count) && self.is_vector(step, 2, count);
            return fits.then(|| before.extend([Before::Constant(at, 1), Before::Constant(at, 2)]));
        }
        let passes_on = match &step.op {
            Op::Activation(activation) => {
                matches!(activation.function, ActivationFunction::Relu | ActivationFunction::LeakyRelu)
            }
            Op::Pool(pool) => {
                let is_mean = matches!(pool.function, PoolFunction::Average | PoolFunction::Max);
                is_mean && !pool.indices && matches!(channels, Channels::First(_))
            }
            // Rows with other axes before them.
            Op::Reshape(_) => {
                let before = step.operands.first().and_then(|&operand| self.graph.fact(operand));
                let own = fact.dims().and_then(|dims| dims.last()?.as_known());
                let is_row = before.and_then(|before| before.dims()?.last()?.as_known()) == own && own.is_some();
                is_row && matches!(channels, Channels::Last(_))
            }
            _ => false,
        };
        if passes_on {
            return self.divide(only(0)?, channels, left, before);
        }
        self.divide_outputs(at, channels, before)
    }

    /// Sums, products and quotients with constants and other values.
    fn divide_binary(
        &self,
        at: usize,
        function: BinaryFunction,
        (rank, channels): (usize, Channels),
        left: usize,
        before: &mut Vec<Before>,
    ) -> Option<()> {
        let step = &self.steps[at];
        let &[one, other] = step.operands.as_slice() else { return None };
        let divided = |operand: Operand, before: &mut Vec<Before>| match operand {
            Operand::Value(value) if self.readers.get(&value)?.len() == 1 => self.divide(value, channels, left, before),
            Operand::Value(_) | Operand::Constant(_) | Operand::Absent => None,
        };
        let constant = |operand: usize| self.is_along(step, operand, rank, channels);
        let is_scalar = |operand: Operand| match operand {
            Operand::Constant(id) => self.graph.constant(id).shape.iter().all(|&extent| extent == 1),
            Operand::Value(_) | Operand::Absent => false,
        };
        match function {
            BinaryFunction::Mul => {
                if let Some(operand) = [0, 1].into_iter().find(|&operand| constant(operand)) {
                    before.push(Before::Constant(at, operand));
                    return Some(());
                }
                // Either factor, whichever can be divided.
                let mut tried = before.clone();
                if divided(one, &mut tried).is_some() {
                    *before = tried;
                    return Some(());
                }
                divided(other, before)
            }
            BinaryFunction::Div if is_scalar(other) => divided(one, before),
            BinaryFunction::Add => {
                let operand = [0, 1].into_iter().find(|&operand| constant(operand))?;
                before.push(Before::Constant(at, operand));
                divided(if operand == 0 { other } else { one }, before)
            }
            _ => None,
        }
    }

    /// The outputs of a product with a candidate that only this step reads, and its bias.
    fn divide_outputs(&self, at: usize, channels: Channels, before: &mut Vec<Before>) -> Option<()> {
        let step = &self.steps[at];
        let Some(Operand::Constant(weight)) = step.operands.get(1) else { return None };
        let index = *self.weights.get(weight)?;
        let candidate = &self.candidates[index];
        let plain = candidate.dtype == DType::F32 && candidate.matrix.groups == 1 && candidate.uses.rows == 0;
        let count = match (&step.op, channels) {
            (Op::Matmul(_), Channels::Last(count)) => count,
            (Op::Convolution(convolution), Channels::First(count)) if convolution.groups == 1 => {
                match step.operands.get(2) {
                    None | Some(Operand::Absent) => {}
                    Some(_) => {
                        self.is_vector(step, 2, count).then(|| before.push(Before::Constant(at, 2)))?;
                    }
                }
                count
            }
            (_, _) => return None,
        };
        let fits = plain && candidate.results.len() == 1 && candidate.matrix.outputs == count as u64;
        fits.then(|| before.push(Before::Outputs(index)))
    }

    fn constant(&self, step: &Step, operand: usize) -> Option<&Constant> {
        match step.operands.get(operand)? {
            Operand::Constant(id) => Some(self.graph.constant(*id)).filter(|constant| constant.dtype == DType::F32),
            Operand::Value(_) | Operand::Absent => None,
        }
    }

    /// Whether an operand is a vector with an element for each channel.
    fn is_vector(&self, step: &Step, operand: usize, count: usize) -> bool {
        self.constant(step, operand).is_some_and(|constant| constant.shape == [count])
    }

    /// Whether an operand that broadcasts to a value of this rank has an element for each channel.
    fn is_along(&self, step: &Step, operand: usize, rank: usize, channels: Channels) -> bool {
        let Some(constant) = self.constant(step, operand) else { return false };
        let (behind, count) = match channels {
            Channels::Last(count) => (0, count),
            Channels::First(count) if rank >= 2 => (rank - 2, count),
            Channels::First(_) => return false,
        };
        let own = constant.shape.len().checked_sub(behind + 1);
        own.is_some_and(|own| {
            let others = constant.shape.iter().enumerate().all(|(axis, &extent)| axis == own || extent == 1);
            count > 1 && constant.shape[own] == count && others
        })
    }
}
