//! What a machine reads of a stream beyond what it needs, where the stream has the order that another machine needs.
//!
//! The stream has one order: that of the steps, and within a weight that of its units (panels, rows). What a chunk holds of a
//! weight is read whole. A machine whose tiles are too small for all of a step computes it in parts one after another, each of
//! which needs some of the positions of every tile: what a later part needs again stays in the tiles as far as there is room,
//! what is needed soonest first, and is read again else. Weights of inputs that are zero are left out only where they are
//! stored input by input.

use ipuc_formats::encodings::{PartRecord, Units, WeightRecord};
use ipuc_formats::machine::units::Bytes;
use ipuc_formats::machine::{BoundStep, BoundTensor, Program, Source, Split};
use ipuc_formats::model::Manifest;
use std::collections::BTreeSet;
use std::ops::Range;

/// Uses of parts of a weight that are followed one by one: a machine whose tiles are so small that there are more keeps nothing.
const MOST_USES: u64 = 1 << 22;

/// Bytes that each step reads of its weights beyond those that it needs, in one run of it, where its tiles have so much room
/// for what they read ahead. Weights that stay in the tiles are not read.
pub fn beyond(manifest: &Manifest, program: &Program, splits: &[&Split], room: Bytes) -> Vec<Bytes> {
    let of_step = |(step, split): (&BoundStep, &&Split)| {
        let record = &manifest.blocks[step.block as usize].steps[step.step as usize];
        let mut bytes = 0.0;
        for (operand, tensor) in step.operands.iter().enumerate() {
            let Some(tensor) = tensor else { continue };
            let Source::Weight(weight) = tensor.source else { continue };
            let weight = &manifest.weights[weight as usize];
            if record.picks(operand, weight) {
                continue;
            }
            bytes += read_again(manifest, (step, *split, operand), (weight, tensor), room);
            bytes += not_left_out(step, operand);
        }
        Bytes(bytes * (1.0 - step.resident))
    };
    program.steps.iter().zip(splits).map(of_step).collect()
}

/// Bytes of elements of a weight that are read though the machine leaves them out: they lie among others. Zeros are those of what
/// the first product with a weight multiplies.
fn not_left_out(step: &BoundStep, operand: usize) -> f64 {
    let is_weight = |operand: usize| {
        let tensor = step.operands.get(operand).and_then(Option::as_ref);
        tensor.is_some_and(|tensor| matches!(tensor.source, Source::Weight(_)))
    };
    let first = step.products.iter().map(|product| product.stationary).find(|&operand| is_weight(operand));
    let zeros = step.zeros.as_ref().filter(|_| first == Some(operand));
    zeros.map_or(0.0, |zeros| step.element_bytes * (1.0 - zeros.read))
}

/// Bytes of a weight that are read more than once, as the machine holds them.
fn read_again(
    manifest: &Manifest,
    (step, split, operand): (&BoundStep, &Split, usize),
    (weight, tensor): (&WeightRecord, &BoundTensor),
    room: Bytes,
) -> f64 {
    let Ok(units) = weight.encoding.units(weight.logical()) else { return 0.0 };
    let lengths: Vec<u64> = weight.parts.iter().map(|part| manifest.extents[part.extent as usize].length).collect();
    let stored = lengths.iter().sum::<u64>();
    if stored == 0 {
        return 0.0;
    }
    // The machine may hold them in a narrower type than the file does.
    let scale = tensor.bytes / stored as f64;
    let held: Vec<[Range<u64>; 3]> = weight.parts.iter().map(|part| held(weight, &units, part)).collect();
    let stages = Stages::new((step, split, operand), axes(weight));
    if stages.count().saturating_mul(held.len() as u64) > MOST_USES {
        return stored as f64 * scale * (stages.count() - 1) as f64;
    }
    let mut reads = Vec::new();
    for stage in 0..stages.count() {
        reads.extend((0..held.len()).filter(|&part| stages.needs(stage, &held[part])));
    }
    let read = read_bytes(&reads, &lengths, (room.0 / scale) as u64);
    read.saturating_sub(stored) as f64 * scale
}

/// Which axis of a weight counts its matrices, the outputs of one and the inputs of these, where one axis does alone.
fn axes(weight: &WeightRecord) -> [Option<usize>; 3] {
    let panels = weight.encoding.dense_panels().or_else(|| weight.encoding.as_input_major().map(|runs| runs.dense()));
    let Some(panels) = panels else { return [None, Some(0), None] };
    let shape = weight.shape.as_slice();
    let is = |axis: usize, extent: u64| shape.get(axis) == Some(&extent);
    let first = usize::from(panels.groups > 1);
    let (outputs, inputs) = if panels.output_axis == 1 { (first + 1, first) } else { (first, first + 1) };
    let alone = shape.len() == first + 2;
    [
        (first == 1 && is(0, panels.groups)).then_some(0),
        is(outputs, panels.outputs).then_some(outputs),
        (alone && is(inputs, panels.inputs)).then_some(inputs),
    ]
}

/// The matrices, outputs and inputs that a part of a weight holds.
fn held(weight: &WeightRecord, units: &Units, part: &PartRecord) -> [Range<u64>; 3] {
    let groups = part.start / units.per_group..part.end.div_ceil(units.per_group);
    let run = weight.encoding.unit_outputs().unwrap_or(1);
    let outputs = match groups.end - groups.start {
        1 => (part.start - groups.start * units.per_group) * run..(part.end - groups.start * units.per_group) * run,
        _ => 0..units.per_group * run,
    };
    [groups, outputs, part.inputs_start..part.inputs_end]
}

/// The parts of a step that are computed one after another, as far as they need different positions of an operand.
struct Stages {
    /// The loops over them, outermost first: how many parts, and along which kind of position where that is known.
    loops: Vec<(u64, Option<(usize, Cut)>)>,
}

/// An axis in parts on tiles, each of which is computed in parts in time.
#[derive(Clone, Copy)]
struct Cut {
    /// Positions of a tile.
    tile: u64,
    /// Positions of a part in time.
    part: u64,
}

impl Stages {
    fn new((step, split, operand): (&BoundStep, &Split, usize), of_weight: [Option<usize>; 3]) -> Stages {
        let touches = |space: &usize| {
            step.spaces[*space].axes.iter().any(|axis| axis.at.get(operand).is_some_and(Option::is_some))
        };
        let product = step.products.iter().find(|product| product.stationary == operand).map(|product| product.space);
        let Some(space) = product.or_else(|| (0..step.spaces.len()).find(touches)) else {
            return Stages { loops: Vec::new() };
        };
        let index = |axis: usize| step.spaces[space].axes[axis].at.get(operand).copied().flatten();
        let cut = |axis: usize| {
            let index = index(axis)?;
            let times = u64::from(split.time[space][axis]).max(1);
            let alone = (0..step.spaces[space].axes.len())
                .all(|other| other == axis || self::is_elsewhere(step, (space, other), operand, index.axis));
            let known = of_weight.iter().position(|own| *own == Some(index.axis as usize));
            let known = known.filter(|_| alone && (index.stride, index.offset) == (1, 0));
            let tile = (step.extents[space][axis].max(1) as u64).div_ceil(u64::from(split.tiles[space][axis]).max(1));
            (times > 1).then(|| (times, known.map(|kind| (kind, Cut { tile, part: tile.div_ceil(times) }))))
        };
        Stages { loops: (0..step.spaces[space].axes.len()).filter_map(cut).collect() }
    }

    fn count(&self) -> u64 {
        self.loops.iter().fold(1, |count: u64, (times, _)| count.saturating_mul(*times))
    }

    /// Whether a part in time needs some of these positions on some tile.
    fn needs(&self, stage: u64, held: &[Range<u64>; 3]) -> bool {
        let mut left = stage;
        self.loops.iter().rev().all(|(times, cut)| {
            let time = left % times;
            left /= times;
            cut.as_ref().is_none_or(|(kind, cut)| cut.needs(time, &held[*kind]))
        })
    }
}

/// Whether another axis of a space is not along this axis of an operand.
fn is_elsewhere(step: &BoundStep, (space, axis): (usize, usize), operand: usize, along: u32) -> bool {
    let index = step.spaces[space].axes[axis].at.get(operand).copied().flatten();
    index.is_none_or(|index| index.axis != along)
}

impl Cut {
    fn needs(&self, time: u64, positions: &Range<u64>) -> bool {
        let (from, to) = (time * self.part, ((time + 1) * self.part).min(self.tile));
        (positions.start / self.tile..positions.end.div_ceil(self.tile)).any(|tile| {
            let own = tile * self.tile;
            positions.start.max(own + from) < positions.end.min(own + to)
        })
    }
}

/// Bytes that are read for these uses of parts, one after another, where so many bytes of what was read stay: what is needed
/// again soonest.
fn read_bytes(uses: &[usize], lengths: &[u64], room: u64) -> u64 {
    let mut next = vec![None; uses.len()];
    let mut later: Vec<Option<usize>> = vec![None; lengths.len()];
    for (at, &part) in uses.iter().enumerate().rev() {
        next[at] = later[part].replace(at);
    }
    let (mut stays, mut staying, mut read) = (BTreeSet::new(), 0, 0);
    for (at, &part) in uses.iter().enumerate() {
        if stays.remove(&(at, part)) {
            staying -= lengths[part];
        } else {
            read += lengths[part];
        }
        if let Some(next) = next[at] {
            stays.insert((next, part));
            staying += lengths[part];
        }
        while staying > room {
            let Some((_, part)) = stays.pop_last() else { break };
            staying -= lengths[part];
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_again_soonest_stays() {
        let read = |uses: &[usize], room: u64| read_bytes(uses, &[10, 10, 10], room);
        let twice = [0, 1, 2, 0, 1, 2];
        assert_eq!([0, 9, 10, 20, 30].map(|room| read(&twice, room)), [60, 60, 50, 40, 30]);
        // The second use of 1 comes before that of 0, for which there is no room beside it.
        assert_eq!(read(&[0, 1, 1, 0], 10), 30);
    }

    #[test]
    fn parts_in_time_are_within_those_of_tiles() {
        // Ten positions on two tiles, in two parts: 0..3 and 5..8, then 3..5 and 8..10.
        let cut = Cut { tile: 5, part: 3 };
        let needs = |time: u64| (0..10).filter(|&at| cut.needs(time, &(at..at + 1))).collect::<Vec<u64>>();
        assert_eq!([needs(0), needs(1)], [vec![0, 1, 2, 5, 6, 7], vec![3, 4, 8, 9]]);
        assert!(cut.needs(0, &(3..6)) && !cut.needs(0, &(3..5)));
    }
}
