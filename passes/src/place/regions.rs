//! What lies in the memory of a tile, how much of it, and from which step to which.

use crate::tile::{Layouts, Placed};
use ipuc_formats::machine::units::Bytes;
use ipuc_formats::machine::{
    BoundStep, BoundTensor, Homes, Layout, Place, Points, Program, Source, Target, bytes_of_tile, is_local,
    partial_bytes, rests_in_place,
};
use ipuc_formats::model::{Manifest, OperandRecord};
use std::collections::HashMap;

/// What a region holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr)]
pub enum Holds {
    /// The tile's share of a weight, which stays from run to run.
    #[strum(serialize = "weight")]
    Weight,
    /// The tile's share of a state, which stays from run to run.
    #[strum(serialize = "state")]
    State,
    /// The tile's share of an input of the block.
    #[strum(serialize = "input")]
    Input,
    /// What the tile computes of a result, until its last reader has run.
    #[strum(serialize = "result")]
    Result,
    /// What the step needs at once of something that lies elsewhere: a copy that comes for this step.
    #[strum(serialize = "copy")]
    Copy,
    /// Sums that other tiles add to.
    #[strum(serialize = "partial sums")]
    Partial,
}

/// Bytes of a tile's memory that hold something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Index in the program of the step that it belongs to.
    pub step: usize,
    /// Index of the tensor, over the operands and then the results of that step.
    pub tensor: usize,
    /// What it holds.
    pub holds: Holds,
    /// Length.
    pub bytes: u64,
    /// Index in the program of the first step at which it lives.
    pub from: usize,
    /// Index in the program of the last step at which it lives.
    pub to: usize,
    /// Offset in the memory of the tile.
    pub offset: u64,
}

/// An operand that is read where it lies already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Index in the program of the step that reads it.
    pub step: usize,
    /// Index of the operand.
    pub operand: usize,
    /// Index of the region.
    pub region: usize,
}

/// All regions of a program, without offsets, and what is read in place.
pub(super) fn collect(
    manifest: &Manifest,
    program: &Program,
    target: &Target,
    homes: &Homes,
    placed: &[Placed],
) -> (Vec<Region>, Vec<Reading>) {
    let mut collector = Collector {
        program,
        target,
        homes,
        placed,
        lives: Lives::new(manifest, program),
        known: HashMap::new(),
        regions: Vec::new(),
        readings: Vec::new(),
    };
    let mut layouts = Layouts::default();
    for (index, step) in program.steps.iter().enumerate() {
        if !step.view {
            collector.step(index, step, &layouts.of_operands(step));
        }
        layouts.insert(step, &placed[index].split);
    }
    (collector.regions, collector.readings)
}

/// How long values live: to the last step that reads them, through views too.
struct Lives {
    /// What a view is a view of.
    roots: HashMap<Source, Source>,
    last: HashMap<Source, usize>,
    /// First and last step of the block that each step is in, in one run of it.
    blocks: Vec<(usize, usize)>,
}

impl Lives {
    fn new(manifest: &Manifest, program: &Program) -> Lives {
        let mut lives = Lives { roots: HashMap::new(), last: HashMap::new(), blocks: blocks(program) };
        for (index, step) in program.steps.iter().enumerate() {
            for tensor in step.operands.iter().flatten() {
                let root = lives.root(tensor.source);
                lives.last.insert(root, index);
                if step.view {
                    lives.roots.extend(step.results.first().map(|result| (result.source, root)));
                    break;
                }
            }
        }
        // What a block gives lives until it ends.
        for (index, step) in program.steps.iter().enumerate() {
            let block = &manifest.blocks[step.block as usize];
            let slots = &block.steps[step.step as usize].results;
            for (slot, result) in slots.iter().zip(&step.results) {
                if block.results.contains(&OperandRecord::Value(*slot)) {
                    let root = lives.root(result.source);
                    lives.last.insert(root, lives.blocks[index].1);
                }
            }
        }
        lives
    }

    fn root(&self, source: Source) -> Source {
        self.roots.get(&source).copied().unwrap_or(source)
    }

    /// The last step at which a value lives that is there at `step`.
    fn end(&self, source: Source, step: usize) -> usize {
        self.last.get(&self.root(source)).copied().unwrap_or(step).max(step)
    }
}

/// First and last step of the run of a block that each step is in; steps of a body follow the step that runs it.
pub(super) fn blocks(program: &Program) -> Vec<(usize, usize)> {
    /// A run of a block that may go on.
    struct Run {
        block: u32,
        last: u32,
        members: Vec<usize>,
    }
    let mut found = vec![(0, 0); program.steps.len()];
    let mut close = |run: Run| {
        let range = (run.members.first().copied().unwrap_or(0), run.members.last().copied().unwrap_or(0));
        run.members.iter().for_each(|&member| found[member] = range);
    };
    let mut open: Vec<Run> = Vec::new();
    for (index, step) in program.steps.iter().enumerate() {
        match open.iter().rposition(|run| run.block == step.block && run.last < step.step) {
            Some(place) => open.drain(place + 1..).for_each(&mut close),
            None => {
                // The body of another step, or the same body again.
                if let Some(place) = open.iter().rposition(|run| run.block == step.block) {
                    open.drain(place..).for_each(&mut close);
                }
                open.push(Run { block: step.block, last: 0, members: Vec::new() });
            }
        }
        if let Some(run) = open.last_mut() {
            run.last = step.step;
            run.members.push(index);
        }
    }
    open.into_iter().for_each(&mut close);
    found
}

struct Collector<'a> {
    program: &'a Program,
    target: &'a Target,
    homes: &'a Homes,
    placed: &'a [Placed],
    lives: Lives,
    /// Regions of what lies in the tiles already.
    known: HashMap<Source, usize>,
    regions: Vec<Region>,
    readings: Vec<Reading>,
}

/// A step reads inputs and state where they rest if that puts at most so many times an even share into each of its tiles.
const MOST_SHARES: f64 = 2.0;

impl Collector<'_> {
    fn step(&mut self, index: usize, step: &BoundStep, layouts: &[Layout]) {
        for (operand, tensor) in step.operands.iter().enumerate() {
            let Some(tensor) = tensor else { continue };
            let again = step.operands[..operand].iter().flatten().any(|earlier| earlier.source == tensor.source);
            // Contents that a step appends to stay where they are.
            let appended = step.appends && matches!(tensor.source, Source::State(_));
            if again || appended || step.spaces.is_empty() {
                continue;
            }
            let from = layouts.get(operand).and_then(Option::as_ref);
            match tensor.source {
                Source::Weight(_) => self.weight(index, step, operand, tensor),
                Source::Value(_) | Source::State(_) => self.value(index, step, (operand, tensor), from),
            }
        }
        for (result, tensor) in step.results.iter().enumerate() {
            self.result(index, step, (step.operands.len() + result, tensor));
        }
        if !step.results.is_empty() {
            let sums = partial_bytes(step, &self.placed[index].split);
            self.push(index, step.operands.len(), Holds::Partial, sums, (index, index));
        }
    }

    /// What the points of the busiest tile touch of a tensor.
    fn bytes(&self, index: usize, tensor: usize, points: Points) -> Bytes {
        bytes_of_tile(&self.program.steps[index], &self.placed[index].split, tensor, points)
    }

    fn end(&self) -> usize {
        self.program.steps.len() - 1
    }

    /// Add a region; `None` where it would be empty.
    fn push(
        &mut self,
        step: usize,
        tensor: usize,
        holds: Holds,
        bytes: Bytes,
        (from, to): (usize, usize),
    ) -> Option<usize> {
        if bytes.0 <= 0.0 {
            return None;
        }
        self.regions.push(Region { step, tensor, holds, bytes: bytes.0.ceil() as u64, from, to, offset: 0 });
        Some(self.regions.len() - 1)
    }

    /// A weight that lives in tiles rests there once; where the first step that reads it does not spread it over enough of
    /// them, it is spread evenly over all, and tiles get a copy of what they need for the step. A weight that lives in a
    /// tier comes before the step.
    fn weight(&mut self, index: usize, step: &BoundStep, operand: usize, tensor: &BoundTensor) {
        let copy = self.bytes(index, operand, Points::Staged).min(Bytes(step.weight_bytes));
        if self.homes.weights != Place::Tiles {
            // What of it stays is spread evenly.
            let share = tensor.bytes * step.resident / f64::from(self.target.tiles.count.get());
            let first = !self.known.contains_key(&tensor.source);
            let kept = Bytes(if first { share } else { 0.0 });
            let region = self.push(index, operand, Holds::Weight, kept, (0, self.end()));
            self.known.extend(region.map(|region| (tensor.source, region)));
            let ahead = if self.target.policy.prefetch { index.saturating_sub(1) } else { index };
            self.push(index, operand, Holds::Copy, copy, (ahead, index));
            return;
        }
        let in_place = rests_in_place(self.target, step, &self.placed[index].split, operand);
        self.at_rest(index, (operand, tensor), Holds::Weight, (copy, in_place));
    }

    /// Something that is there before the block runs, and a copy of what a tile needs where that rests elsewhere.
    fn at_rest(
        &mut self,
        index: usize,
        (operand, tensor): (usize, &BoundTensor),
        holds: Holds,
        (copy, in_place): (Bytes, bool),
    ) {
        let whole = self.bytes(index, operand, Points::All);
        let share = Bytes(tensor.bytes / f64::from(self.target.tiles.count.get()));
        let root = self.lives.root(tensor.source);
        let first = !self.known.contains_key(&root);
        if first {
            let own = if in_place { whole } else { share };
            let life = match holds {
                Holds::Input => (self.lives.blocks[index].0, self.lives.end(root, index)),
                Holds::Weight | Holds::State | Holds::Result | Holds::Copy | Holds::Partial => (0, self.end()),
            };
            let region = self.push(index, operand, holds, own, life);
            self.known.extend(region.map(|region| (root, region)));
        }
        if !(first && in_place) {
            self.push(index, operand, Holds::Copy, copy, (index, index));
        }
    }

    fn value(
        &mut self,
        index: usize,
        step: &BoundStep,
        (operand, tensor): (usize, &BoundTensor),
        from: Option<&Vec<u32>>,
    ) {
        let copy = self.bytes(index, operand, Points::Staged);
        let (home, holds) = self.home(tensor.source);
        let root = self.lives.root(tensor.source);
        match self.known.get(&root).copied() {
            _ if home != Place::Tiles => {
                self.push(index, operand, Holds::Copy, copy, (index, index));
            }
            Some(region) if root == tensor.source && is_local(step, &self.placed[index].split, operand, from) => {
                self.readings.push(Reading { step: index, operand, region });
            }
            Some(_) | None => {
                let share = Bytes(tensor.bytes / f64::from(self.target.tiles.count.get()));
                let in_place = self.bytes(index, operand, Points::All) <= share * MOST_SHARES;
                self.at_rest(index, (operand, tensor), holds, (copy, in_place));
            }
        }
    }

    fn result(&mut self, index: usize, step: &BoundStep, (tensor, result): (usize, &BoundTensor)) {
        let (home, holds) = self.home(result.source);
        if home != Place::Tiles {
            // Of contents that a step appends to only what is new goes there, from where it was computed.
            if step.appends {
                return;
            }
            let staged = self.bytes(index, tensor, Points::Staged);
            self.push(index, tensor, Holds::Copy, staged, (index, index));
            return;
        }
        let whole = match step.spaces.is_empty() {
            // What no loops describe is spread over all tiles.
            true => Bytes(result.bytes / f64::from(self.target.tiles.count.get())),
            false => self.bytes(index, tensor, Points::All),
        };
        let region = match holds {
            Holds::State => self.push(index, tensor, Holds::State, whole, (0, self.end())),
            Holds::Weight | Holds::Input | Holds::Result | Holds::Copy | Holds::Partial => {
                let end = self.lives.end(result.source, index);
                self.push(index, tensor, Holds::Result, whole, (index, end))
            }
        };
        self.known.extend(region.map(|region| (result.source, region)));
    }

    /// Where a value lives, and what it is before a step has computed it.
    fn home(&self, source: Source) -> (Place, Holds) {
        match source {
            Source::State(_) => (self.homes.state, Holds::State),
            Source::Value(_) if self.program.inputs.contains(&source) => (self.homes.io, Holds::Input),
            Source::Value(_) | Source::Weight(_) => (self.homes.activations, Holds::Input),
        }
    }
}
