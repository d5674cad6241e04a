//! The order in which a run asks for weights, as far as it is known.
//!
//! Straight-line code is known to its end, across the end of a pass into the next one. A step that runs blocks is not:
//! the walk waits there until the run says which block it enters, or that it has left the step.

use ipuc_formats::model::{Manifest, OperandRecord, StepRecord, WeightRecord};
use ipuc_formats::ops::{Op, Read};
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
pub(super) struct Order {
    pub(super) blocks: Vec<Vec<Stop>>,
}

impl Order {
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
        Order { blocks: manifest.blocks.iter().map(stops).collect() }
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
    let blocks: Vec<u32> = step.op.operator().blocks().into_iter().map(|block| block.0).collect();
    let bodies = if blocks.is_empty() {
        Bodies::None
    } else if matches!(step.op, Op::If(_)) {
        Bodies::Branch
    } else {
        Bodies::Loop
    };
    Stop { step: index as u32, accesses: accesses.collect(), bodies, blocks }
}

/// A stop that the run will come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Upcoming {
    /// Different for every stop of every pass.
    pub(super) serial: u64,
    pub(super) pass: u64,
    pub(super) block: u32,
    /// Index among the stops of the block.
    pub(super) stop: usize,
}

/// Walks ahead of the run through the stops of one entry, pass after pass.
#[derive(Debug)]
pub(super) struct Walker {
    entry: u32,
    stack: Vec<Cursor>,
    pass: u64,
    serial: u64,
}

#[derive(Debug)]
struct Cursor {
    block: u32,
    next: usize,
    /// Serial of the stop at `next` whose blocks the run has not left yet.
    waiting: Option<u64>,
}

impl Walker {
    /// At the beginning of pass `pass` of an entry's block; serials begin at `serial`.
    pub(super) fn new(entry: u32, pass: u64, serial: u64) -> Self {
        Walker { entry, stack: vec![Cursor { block: entry, next: 0, waiting: None }], pass, serial }
    }

    /// The entry's block.
    pub(super) fn entry(&self) -> u32 {
        self.entry
    }

    /// The next stop that is known, in passes up to `last_pass`.
    pub(super) fn next(&mut self, order: &Order, last_pass: u64) -> Option<Upcoming> {
        loop {
            let cursor = self.stack.last_mut()?;
            if cursor.waiting.is_some() {
                return None;
            }
            if let Some(stop) = order.block(cursor.block).get(cursor.next) {
                let upcoming =
                    Upcoming { serial: self.serial, pass: self.pass, block: cursor.block, stop: cursor.next };
                match stop.bodies {
                    Bodies::None => cursor.next += 1,
                    Bodies::Branch | Bodies::Loop => cursor.waiting = Some(self.serial),
                }
                self.serial += 1;
                return Some(upcoming);
            }
            if self.stack.len() > 1 {
                self.stack.pop();
                self.leave_body(order);
                continue;
            }
            if self.pass == last_pass || order.block(self.entry).is_empty() {
                return None;
            }
            self.pass += 1;
            self.stack = vec![Cursor { block: self.entry, next: 0, waiting: None }];
        }
    }

    /// After a branch comes what follows its step; a loop may go on.
    fn leave_body(&mut self, order: &Order) {
        let Some(cursor) = self.stack.last_mut() else { return };
        if order.block(cursor.block)[cursor.next].bodies == Bodies::Branch {
            cursor.next += 1;
            cursor.waiting = None;
        }
    }

    /// The run enters a block of the stop `serial`. False where the walk does not wait there.
    pub(super) fn enter(&mut self, serial: u64, block: u32) -> bool {
        if self.stack.last().is_none_or(|cursor| cursor.waiting != Some(serial)) {
            return false;
        }
        self.stack.push(Cursor { block, next: 0, waiting: None });
        true
    }

    /// The run has left the stop `serial`.
    pub(super) fn leave(&mut self, serial: u64) {
        if let Some(cursor) = self.stack.last_mut().filter(|cursor| cursor.waiting == Some(serial)) {
            cursor.next += 1;
            cursor.waiting = None;
        }
    }
}
