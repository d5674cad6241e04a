//! A place in the arena for every result of a block whose size follows from bound dimensions.

use ipuc_formats::dim::{Bindings, Dim};
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{BlockRecord, OperandRecord};
use std::collections::BTreeMap;

/// Places begin at cache lines.
const ALIGNMENT: usize = 64;

/// Where the results of one block live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BlockMemory {
    /// Bytes of the arena.
    pub(crate) bytes: usize,
    /// Offset and length of each value's place; `None` for those without.
    pub(crate) places: Vec<Option<(usize, usize)>>,
}

/// Plan a block at these dimensions. Results of the block leave it and have no place.
pub(crate) fn plan_block(block: &BlockRecord, bindings: &Bindings) -> BlockMemory {
    let ends = ends(block);
    let mut memory = BlockMemory { bytes: 0, places: vec![None; block.values.len()] };
    let mut free = FreeRanges::default();
    let mut expiring: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for (at, step) in block.steps.iter().enumerate() {
        while let Some(entry) = expiring.first_entry().filter(|entry| *entry.key() < at) {
            for (offset, bytes) in entry.remove() {
                free.insert(offset, bytes);
            }
        }
        if step.op.view_of().is_some() {
            continue;
        }
        for &slot in &step.results {
            let End::Step(end) = ends[slot as usize] else { continue };
            let Some(bytes) = value_bytes(&block.values[slot as usize].kind, bindings) else { continue };
            let reserved = bytes.next_multiple_of(ALIGNMENT);
            let offset = free.take(reserved, &mut memory.bytes);
            memory.places[slot as usize] = Some((offset, bytes));
            expiring.entry(end.max(at)).or_default().push((offset, reserved));
        }
    }
    memory
}

/// When a value is read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nobody reads it.
    Unread,
    /// By this step, itself or through a view.
    Step(usize),
    /// By the caller of the block.
    Result,
}

fn ends(block: &BlockRecord) -> Vec<End> {
    let mut ends = vec![End::Unread; block.values.len()];
    for operand in &block.results {
        if let OperandRecord::Value(slot) = operand {
            ends[*slot as usize] = End::Result;
        }
    }
    // Backwards, so that a view's end is known when what it views is met.
    for (at, step) in block.steps.iter().enumerate().rev() {
        let viewed = step.op.view_of();
        let view_end = step.results.first().map_or(End::Unread, |&slot| ends[slot as usize]);
        for (index, operand) in step.operands.iter().enumerate() {
            let OperandRecord::Value(slot) = operand else { continue };
            let end = &mut ends[*slot as usize];
            *end = later(*end, End::Step(at));
            if viewed == Some(index) {
                *end = later(*end, view_end);
            }
        }
    }
    ends
}

fn later(one: End, two: End) -> End {
    match (one, two) {
        (End::Result, _) | (_, End::Result) => End::Result,
        (End::Unread, other) | (other, End::Unread) => other,
        (End::Step(first), End::Step(second)) => End::Step(first.max(second)),
    }
}

/// Bytes of a tensor at bound dimensions; `None` where they do not follow.
pub(crate) fn value_bytes(kind: &Type, bindings: &Bindings) -> Option<usize> {
    let Type::Tensor { dtype, shape: Shape::Ranked(dims) } = kind else { return None };
    let extent = |dim: &Dim| usize::try_from(dim.evaluate(bindings).ok()?).ok();
    let count = dims.iter().map(extent).try_fold(1usize, |count, extent| count.checked_mul(extent?))?;
    dtype.packed_bytes(count).filter(|&bytes| bytes > 0)
}

/// Ranges that nobody holds, by offset.
#[derive(Default)]
struct FreeRanges {
    ranges: BTreeMap<usize, usize>,
}

impl FreeRanges {
    /// The smallest range that is large enough, else new memory at the end of the arena.
    fn take(&mut self, bytes: usize, arena_bytes: &mut usize) -> usize {
        let best = self.ranges.iter().filter(|(_, length)| **length >= bytes).min_by_key(|(_, length)| **length);
        if let Some((&offset, &length)) = best {
            self.ranges.remove(&offset);
            if length > bytes {
                self.ranges.insert(offset + bytes, length - bytes);
            }
            return offset;
        }
        // A free range at the very end is extended rather than left behind.
        let last = self.ranges.last_key_value().map(|(&offset, &length)| (offset, length));
        let offset = match last {
            Some((offset, length)) if offset + length == *arena_bytes => {
                self.ranges.remove(&offset);
                offset
            }
            _ => *arena_bytes,
        };
        *arena_bytes = offset.saturating_add(bytes);
        offset
    }

    fn insert(&mut self, mut offset: usize, mut length: usize) {
        if let Some((&before, &before_length)) = self.ranges.range(..offset).next_back()
            && before + before_length == offset
        {
            self.ranges.remove(&before);
            offset = before;
            length += before_length;
        }
        if let Some(&after_length) = self.ranges.get(&(offset + length)) {
            self.ranges.remove(&(offset + length));
            length += after_length;
        }
        self.ranges.insert(offset, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_neighbours_join_and_are_reused() {
        let mut free = FreeRanges::default();
        let mut bytes = 0;
        let places: Vec<usize> = (0..3).map(|_| free.take(64, &mut bytes)).collect();
        assert_eq!((places.as_slice(), bytes), ([0, 64, 128].as_slice(), 192));
        free.insert(0, 64);
        free.insert(64, 64);
        assert_eq!(free.take(128, &mut bytes), 0);
        free.insert(128, 64);
        assert_eq!(free.take(256, &mut bytes), 128);
        assert_eq!(bytes, 384);
    }
}
