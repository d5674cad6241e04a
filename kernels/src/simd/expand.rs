//! Spreading values over the places that masks name: what undoes leaving zeros out.

/// Bytes of a line.
pub const LINE: usize = 64;

/// Writes the elements of `WIDTH` bytes (1, 2 or 4) of each line: the next value where a bit of the mask is set, the lowest bit
/// first, else zero. Values that are missing are zero.
///
/// `masks` has a bit for each element of `lines`.
#[inline(always)]
pub(super) fn portably<const WIDTH: usize>(masks: &[u8], values: &[u8], lines: &mut [[u8; LINE]]) {
    let mut values = values.as_chunks::<WIDTH>().0.iter();
    let places = lines.as_flattened_mut().as_chunks_mut::<WIDTH>().0;
    for (mask, places) in masks.iter().zip(places.chunks_mut(8)) {
        places.fill([0; WIDTH]);
        let mut left = *mask;
        // From one set bit to the next: whether a bit is set is not foreseen.
        while left != 0 {
            places[left.trailing_zeros() as usize] = values.next().copied().unwrap_or([0; WIDTH]);
            left &= left - 1;
        }
    }
}

/// The `N` bytes of `values` from `at` on: where they lie, or in `end`, where those that are missing are zero.
#[inline(always)]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn bytes_at<'a, const N: usize>(values: &'a [u8], at: usize, end: &'a mut [u8; N]) -> &'a [u8; N] {
    let rest = values.get(at..).unwrap_or_default();
    if let Some(whole) = rest.first_chunk() {
        return whole;
    }
    *end = [0; N];
    end[..rest.len()].copy_from_slice(rest);
    end
}

/// For each mask of `LANES` elements of `WIDTH` bytes, where each byte of the spread elements comes from; 128 gives zero.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) const fn sources<const MASKS: usize, const BYTES: usize>(width: usize) -> [[u8; BYTES]; MASKS] {
    let mut table = [[128; BYTES]; MASKS];
    let mut mask = 0;
    while mask < MASKS {
        let (mut byte, mut next) = (0, 0);
        while byte < BYTES {
            if mask >> (byte / width) & 1 == 1 {
                table[mask][byte] = next;
                next += 1;
            }
            byte += 1;
        }
        mask += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Instructions, Routine, Simd};

    struct Expand<'a, const WIDTH: usize>(&'a [u8], &'a [u8], &'a mut [[u8; LINE]]);

    impl<const WIDTH: usize> Routine for Expand<'_, WIDTH> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            simd.expand::<WIDTH>(self.0, self.1, self.2);
        }
    }

    fn check<const WIDTH: usize>(lines: usize, share: u32, missing: usize) {
        let mut state = 7u32 + share;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        let bits = lines * LINE / WIDTH;
        let mut masks = vec![0u8; bits / 8];
        let (mut values, mut expected) = (Vec::new(), vec![0u8; lines * LINE]);
        for bit in 0..bits {
            if next() % 16 < share {
                masks[bit / 8] |= 1 << (bit % 8);
                let element: Vec<u8> = (0..WIDTH).map(|_| next() as u8).collect();
                expected[bit * WIDTH..][..WIDTH].copy_from_slice(&element);
                values.extend(element);
            }
        }
        let kept = values.len() / WIDTH - missing.min(values.len() / WIDTH);
        values.truncate(kept * WIDTH);
        let mut left = kept;
        for bit in 0..bits {
            if masks[bit / 8] >> (bit % 8) & 1 == 1 {
                if left == 0 {
                    expected[bit * WIDTH..][..WIDTH].fill(0);
                }
                left = left.saturating_sub(1);
            }
        }
        for instructions in Instructions::available() {
            let mut spread = vec![[0xee; LINE]; lines];
            instructions.run(Expand::<WIDTH>(&masks, &values, &mut spread));
            assert_eq!(spread.as_flattened(), expected, "{} of {WIDTH} bytes", instructions.name());
        }
    }

    #[test]
    fn every_instruction_set_spreads_values_over_the_places_of_masks() {
        for share in [0, 1, 5, 8, 15, 16] {
            for lines in [1, 3, 64] {
                for missing in [0, 1, 100] {
                    check::<1>(lines, share, missing);
                    check::<2>(lines, share, missing);
                    check::<4>(lines, share, missing);
                }
            }
        }
    }
}
