//! A program over several machines: which of its steps each of them runs.
//!
//! Steps stay in their order; each machine has the weights and the state of its own. A program is cut only between steps
//! of the entry, and where no state is in use on both sides. Of all ways to cut it in so many parts the one is taken whose
//! largest part is smallest.

use ipuc_formats::machine::units::Bytes;
use ipuc_formats::machine::{BoundStep, Program, Source};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What a program holds, step by step, and where it may be cut.
pub(super) struct Cuts<'a> {
    program: &'a Program,
    /// Indices of steps before which it may be cut, with 0 and the number of steps.
    places: Vec<usize>,
    /// For each step before which it is cut, the bytes that the steps from there on need of those before.
    crossing: Vec<f64>,
}

impl<'a> Cuts<'a> {
    pub(super) fn new(program: &'a Program) -> Cuts<'a> {
        let count = program.steps.len();
        let uses = Uses::of(program);
        let mut crossing = vec![0.0; program.steps.len() + 1];
        let mut held = vec![false; program.steps.len() + 1];
        for (source, &(made, last, bytes)) in &uses.0 {
            for cut in made + 1..=last {
                match source {
                    Source::Value(_) => crossing[cut] += bytes,
                    Source::State(_) => held[cut] = true,
                    Source::Weight(_) => {}
                }
            }
        }
        let entry = program.steps.first().map(|step| step.block);
        let between = (1..count).filter(|&cut| Some(program.steps[cut].block) == entry && !held[cut]);
        let places = std::iter::once(0).chain(between).chain([count]).collect();
        Cuts { program, places, crossing }
    }

    /// Bytes that the steps from here on need of those before.
    pub(super) fn crossing(&self, step: usize) -> Bytes {
        Bytes(self.crossing.get(step).copied().unwrap_or(0.0))
    }

    /// Parts of the program, at most `most` of them, so that the largest holds as little as it can.
    pub(super) fn parts(&self, most: usize) -> Vec<Range<usize>> {
        let pieces: Vec<Range<usize>> = self.places.windows(2).map(|pair| pair[0]..pair[1]).collect();
        let sizes: Vec<f64> = pieces.iter().map(|piece| self.held(piece.clone())).collect();
        let largest = sizes.iter().copied().fold(0.0, f64::max);
        let (mut low, mut high) = (largest, sizes.iter().sum::<f64>().max(largest));
        // Halve the interval until bytes do not matter.
        for _ in 0..64 {
            let middle = (low + high) / 2.0;
            if self.packed(&pieces, middle).len() <= most { high = middle } else { low = middle }
        }
        self.packed(&pieces, high)
    }

    /// As few parts as hold no more than this each, from the first step on; a piece that holds more is a part of its own.
    fn packed(&self, pieces: &[Range<usize>], most: f64) -> Vec<Range<usize>> {
        let mut parts: Vec<Range<usize>> = Vec::new();
        let (mut held, mut seen) = (0.0, HashSet::new());
        for piece in pieces {
            let own = rests(&self.program.steps[piece.clone()]);
            let new: f64 = own.iter().filter(|(source, _)| !seen.contains(*source)).map(|(_, bytes)| bytes).sum();
            match parts.last_mut() {
                Some(part) if held + new <= most => {
                    part.end = piece.end;
                    held += new;
                }
                Some(_) | None => {
                    parts.push(piece.clone());
                    seen.clear();
                    held = own.values().sum();
                }
            }
            seen.extend(own.into_keys());
        }
        parts
    }

    /// Bytes of weights and state that steps hold.
    fn held(&self, steps: Range<usize>) -> f64 {
        rests(&self.program.steps[steps]).values().sum()
    }

    /// The program of some of the steps alone.
    pub(super) fn part(&self, steps: Range<usize>) -> Program {
        let last = steps.end == self.program.steps.len();
        let steps = self.program.steps[steps].to_vec();
        let held = rests(&steps);
        let sum = |weights: bool| {
            let own = held.iter().filter(|(source, _)| matches!(source, Source::Weight(_)) == weights);
            own.map(|(_, bytes)| bytes).fold(0.0, |sum, bytes| sum + bytes)
        };
        Program {
            weight_bytes: sum(true),
            resident_bytes: 0.0,
            state_bytes: sum(false),
            result_bytes: if last { self.program.result_bytes } else { 0.0 },
            steps,
            inputs: self.program.inputs.clone(),
            outputs: self.program.outputs.clone(),
            assumed: Vec::new(),
        }
    }
}

/// Weights and state that steps find, with their bytes.
fn rests(steps: &[BoundStep]) -> HashMap<Source, f64> {
    let mut found = HashMap::new();
    let mut made = HashSet::new();
    for step in steps {
        for tensor in step.operands.iter().flatten() {
            let rests = match tensor.source {
                Source::Weight(_) => true,
                Source::State(_) => !made.contains(&tensor.source),
                Source::Value(_) => false,
            };
            if rests {
                found.insert(tensor.source, tensor.bytes);
            }
        }
        made.extend(step.results.iter().map(|result| result.source));
    }
    found
}

/// For each result of a step the step, the last one that needs it, through views too, and its bytes.
struct Uses(HashMap<Source, (usize, usize, f64)>);

impl Uses {
    fn of(program: &Program) -> Uses {
        let mut roots: HashMap<Source, Source> = HashMap::new();
        let mut uses: HashMap<Source, (usize, usize, f64)> = HashMap::new();
        for (index, step) in program.steps.iter().enumerate() {
            for tensor in step.operands.iter().flatten() {
                let root = roots.get(&tensor.source).copied().unwrap_or(tensor.source);
                match (uses.get_mut(&root), tensor.source) {
                    (Some(known), _) => known.1 = index,
                    // State is there from the beginning on; what is between its first and its last use holds on to it.
                    (None, Source::State(_)) => {
                        uses.insert(root, (index, index, tensor.bytes));
                    }
                    (None, Source::Value(_) | Source::Weight(_)) => {}
                }
            }
            let viewed = step.operands.first().and_then(Option::as_ref).filter(|_| step.view);
            for result in &step.results {
                match viewed {
                    Some(of) => {
                        let root = roots.get(&of.source).copied().unwrap_or(of.source);
                        roots.insert(result.source, root);
                    }
                    None => {
                        uses.insert(result.source, (index, index, result.bytes));
                    }
                }
            }
        }
        Uses(uses)
    }
}
