//! The schedule of a file: which parts of weights each step of each block takes, in the order of the steps.

use ipuc_formats::model::{BlockRecord, Manifest, OperandRecord, StepRecord, WeightRecord};
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
pub(super) struct ScheduledStep {
    pub(super) step: u32,
    pub(super) accesses: Vec<Access>,
    pub(super) bodies: Bodies,
    pub(super) blocks: Vec<u32>,
}

/// The scheduled steps of every block.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) blocks: Vec<Vec<ScheduledStep>>,
}

impl Schedule {
    pub(super) fn new(manifest: &Manifest, weights: &[Arc<WeightRecord>]) -> Self {
        let accesses = |taken: &mut dyn Iterator<Item = u32>| -> Vec<Access> {
            taken.flat_map(|weight| parts(manifest, weights, weight)).collect()
        };
        let scheduled = |(index, step): (usize, &StepRecord)| {
            let run = step.op.bodies();
            let bodies = match run.first().map(|body| body.runs) {
                None => Bodies::None,
                Some(Runs::AtMostOnce) => Bodies::Branch,
                Some(Runs::Repeated) => Bodies::Loop,
            };
            let blocks = run.into_iter().map(|body| body.block.0).collect();
            ScheduledStep {
                step: index as u32,
                accesses: accesses(&mut streamed_weights(step, weights)),
                bodies,
                blocks,
            }
        };
        let steps = |block: &BlockRecord| {
            let results = ScheduledStep {
                step: block.steps.len() as u32,
                accesses: accesses(&mut block.results.iter().filter_map(weight)),
                bodies: Bodies::None,
                blocks: Vec::new(),
            };
            let all = block.steps.iter().enumerate().map(scheduled).chain(std::iter::once(results));
            all.filter(|step| !step.accesses.is_empty() || step.bodies != Bodies::None).collect()
        };
        Schedule { blocks: manifest.blocks.iter().map(steps).collect() }
    }

    /// The scheduled steps of a block, in order.
    pub(super) fn block(&self, block: u32) -> &[ScheduledStep] {
        &self.blocks[block as usize]
    }

    /// The step takes weights or runs blocks.
    pub(super) fn has(&self, block: u32, step: u32) -> bool {
        self.block(block).binary_search_by_key(&step, |scheduled| scheduled.step).is_ok()
    }
}

fn weight(operand: &OperandRecord) -> Option<u32> {
    match *operand {
        OperandRecord::Weight(weight) => Some(weight),
        OperandRecord::Absent | OperandRecord::Value(_) => None,
    }
}

fn parts(manifest: &Manifest, weights: &[Arc<WeightRecord>], weight: u32) -> impl Iterator<Item = Access> {
    let parts = (0..).zip(&weights[weight as usize].parts);
    parts.map(move |(part, record)| Access { weight, part, chunk: manifest.extents[record.extent as usize].chunk })
}

/// Weights that a step takes other than by rows or matrices that it picks.
pub(super) fn streamed_weights(step: &StepRecord, weights: &[Arc<WeightRecord>]) -> impl Iterator<Item = u32> {
    let taken = step.operands.iter().enumerate().filter_map(|(at, operand)| Some((at, weight(operand)?)));
    taken.filter(|&(at, weight)| !step.picks(at, &weights[weight as usize])).map(|(_, weight)| weight)
}

/// Weights of a step whose reads the file records, and how each is read.
pub(super) fn recorded_reads(step: &StepRecord) -> impl Iterator<Item = (u32, Read)> {
    step.reads.iter().filter_map(|read| Some((weight(step.operands.get(read.operand as usize)?)?, read.read)))
}
