//! Offsets of regions: the largest first, each in the first gap among those that live at the same time.

use super::regions::Region;

/// What a tile reads or writes in a cycle, to which regions are aligned.
const ALIGNMENT_BYTES: u64 = 16;

/// Give each region an offset from `start` on; gives where the last one ends.
pub(super) fn assign(regions: &mut [Region], start: u64) -> u64 {
    let start = start.next_multiple_of(ALIGNMENT_BYTES);
    let mut order: Vec<usize> = (0..regions.len()).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(regions[index].bytes), regions[index].from, index));
    // Those that have an offset, in its order.
    let mut placed: Vec<usize> = Vec::with_capacity(regions.len());
    let mut end = start;
    for index in order {
        let (from, to, bytes) = (regions[index].from, regions[index].to, regions[index].bytes);
        let mut offset = start;
        for &other in &placed {
            let other = &regions[other];
            if other.from > to || other.to < from {
                continue;
            }
            if other.offset >= offset.saturating_add(bytes) {
                break;
            }
            offset = offset.max(other.offset.saturating_add(other.bytes).next_multiple_of(ALIGNMENT_BYTES));
        }
        regions[index].offset = offset;
        end = end.max(offset.saturating_add(bytes));
        let place = placed.partition_point(|&other| regions[other].offset <= offset);
        placed.insert(place, index);
    }
    end
}

/// The first of the steps at which most bytes live.
pub(super) fn fullest(regions: &[Region], steps: usize) -> usize {
    let mut change = vec![0i128; steps + 1];
    for region in regions {
        change[region.from] += i128::from(region.bytes);
        change[region.to + 1] -= i128::from(region.bytes);
    }
    let (mut living, mut most, mut fullest) = (0, 0, 0);
    for (step, change) in change.into_iter().take(steps).enumerate() {
        living += change;
        if living > most {
            (most, fullest) = (living, step);
        }
    }
    fullest
}

#[cfg(test)]
mod tests {
    use super::super::regions::Holds;
    use super::*;

    fn region(bytes: u64, from: usize, to: usize) -> Region {
        Region { step: from, tensor: 0, holds: Holds::Result, bytes, from, to, offset: 0 }
    }

    #[test]
    fn regions_that_live_together_lie_apart_and_others_share() {
        let mut regions = [region(100, 0, 1), region(64, 1, 2), region(100, 2, 3), region(16, 0, 3)];
        let end = assign(&mut regions, 32);
        // 100 bytes are followed by 12 that keep to the alignment.
        assert_eq!(regions.each_ref().map(|region| region.offset), [32, 144, 32, 208]);
        assert_eq!(end, 224);
        assert_eq!(fullest(&regions, 4), 1);
    }

    #[test]
    fn a_gap_that_is_large_enough_is_used() {
        let mut regions = [region(64, 0, 0), region(48, 0, 2), region(32, 1, 2), region(32, 1, 2)];
        assign(&mut regions, 0);
        assert_eq!(regions.each_ref().map(|region| region.offset), [0, 64, 0, 32]);
    }
}
