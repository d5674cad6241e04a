//! The schedule of a file: which parts of weights each step of each block takes, in the order of the steps.

use ipuc_formats::model::{Manifest, OperandRecord, StepRecord, WeightRecord};
use ipuc_formats::ops::{Read, Runs};
use std::sync::Arc;

/// One part of a weight that a step takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) weight: u32,
    pub(super) part: u32,
    pub(super) chunk: u32,
}

/// Whether a step runs blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bodies {
    None,
    /// At most one block, once.
    Branch,
    /// Any number of times.
    Loop,
}

/// A step that takes weights or runs blocks; the results of a block come as one step after its last.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) step: u32,
    pub(super) accesses: Vec<Access>,
    pub(super) bodies: Bodies,
    pub(super) blocks: Vec<u32>,
}

/// The stops of every block.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) blocks: Vec<Vec<Stop>>,
}

impl Schedule {
    pub(super) fn new(manifest: &Manifest, weights: &[Arc<WeightRecord>]) -> Self {
        let stops = |block: &ipuc_formats::model::BlockRecord| {
            let steps = block.steps.iter().enumerate().map(|(index, step)| stop(manifest, weights, index, step));
            let results = block.results.iter().filter_map(weight).flat_map(|weight| parts(manifest, weights, weight));
            let last = Stop {
                step: block.steps.len() as u32,
                accesses: results.collect(),
                bodies: Bodies::None,
                blocks: Vec::new(),
            };
            let told = |stop: &Stop| !stop.accesses.is_empty() || stop.bodies != Bodies::None;
            steps.chain(std::iter::once(last)).filter(told).collect()
        };
        Schedule { blocks: manifest.blocks.iter().map(stops).collect() }
    }

    /// The stops of a block, in order.
    pub(super) fn block(&self, block: u32) -> &[Stop] {
        &self.blocks[block as usize]
    }

    /// By chunk, whether any stop takes a part of it.
    pub(super) fn awaited(&self, chunks: usize) -> Vec<bool> {
        let mut awaited = vec![false; chunks];
        let accesses = self.blocks.iter().flatten().flat_map(|stop| &stop.accesses);
        accesses.for_each(|access| awaited[access.chunk as usize] = true);
        awaited
    }

    /// The step takes weights or runs blocks.
    pub(super) fn stops_at(&self, block: u32, step: u32) -> bool {
        self.block(block).binary_search_by_key(&step, |stop| stop.step).is_ok()
    }
}

fn weight(operand: &OperandRecord) -> Option<u32> {
    match *operand {
        OperandRecord::Weight(weight) => Some(weight),
        OperandRecord::Absent | OperandRecord::Value(_) => None,
    }
}

fn parts(manifest: &Manifest, weights: &[Arc<WeightRecord>], weight: u32) -> impl Iterator<Item = Access> {
    let parts = weights[weight as usize].parts.iter().enumerate();
    parts.map(move |(part, record)| {
        let chunk = manifest.extents[record.extent as usize].chunk;
        Access { weight, part: part as u32, chunk }
    })
}

/// Weights that a step takes other than by rows.
pub(super) fn streamed_weights(step: &StepRecord) -> impl Iterator<Item = u32> {
    let by_rows =
        |operand: usize| step.reads.iter().any(|read| read.operand as usize == operand && read.read == Read::Rows);
    let streamed = step.operands.iter().enumerate().filter(move |(position, _)| !by_rows(*position));
    streamed.filter_map(|(_, operand)| weight(operand))
}

fn stop(manifest: &Manifest, weights: &[Arc<WeightRecord>], index: usize, step: &StepRecord) -> Stop {
    let accesses = streamed_weights(step).flat_map(|weight| parts(manifest, weights, weight));
    let run = step.op.bodies();
    let bodies = match run.first().map(|body| body.runs) {
        None => Bodies::None,
        Some(Runs::AtMostOnce) => Bodies::Branch,
        Some(Runs::Repeated) => Bodies::Loop,
    };
    let blocks = run.into_iter().map(|body| body.block.0).collect();
    Stop { step: index as u32, accesses: accesses.collect(), bodies, blocks }
}
