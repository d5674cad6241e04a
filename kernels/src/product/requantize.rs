//! Sums of integer products as codes of 8 bits.

use super::integer_rows::ByteType;
use crate::simd::{Instructions, LANES, Routine, Simd};

/// What makes codes of sums: `clamp(round(sum * scale + offset) + zero)` with halves to even, each step in f32 before it is
/// rounded; NaN counts as 0.
#[derive(Clone, Copy, Debug)]
pub struct Requantize {
    /// The factor of the sum.
    pub scale: f32,
    /// What is added to the product, where something is.
    pub offset: Option<f32>,
    /// The zero point of the codes, which has their type.
    pub zero: i32,
    /// The type of the codes, to which they are limited.
    pub kind: ByteType,
}

/// Codes of sums.
///
/// # Panics
/// If there are not as many codes as sums.
pub fn requantize(instructions: Instructions, sums: &[i32], by: Requantize, codes: &mut [u8]) {
    assert_eq!(sums.len(), codes.len(), "codes of sums");
    instructions.run(Requantizing { sums, by, codes });
}

struct Requantizing<'a> {
    sums: &'a [i32],
    by: Requantize,
    codes: &'a mut [u8],
}

impl Routine for Requantizing<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { sums, by, codes } = self;
        let (vectors, rest) = sums.as_chunks::<LANES>();
        let (blocks, last) = codes.as_chunks_mut::<LANES>();
        for (block, sums) in blocks.iter_mut().zip(vectors) {
            by.write(simd, sums, block);
        }
        let (mut lanes, mut block) = ([0; LANES], [0; LANES]);
        lanes[..rest.len()].copy_from_slice(rest);
        by.write(simd, &lanes, &mut block);
        last.copy_from_slice(&block[..rest.len()]);
    }
}

impl Requantize {
    /// A method, since a closure would not be compiled for the instructions.
    #[inline(always)]
    fn write<S: Simd>(&self, simd: S, sums: &[i32; LANES], codes: &mut [u8; LANES]) {
        let Self { scale, offset, zero, kind } = *self;
        let (least, greatest) = if kind.signed { (-128 - zero, 127 - zero) } else { (-zero, 255 - zero) };
        let mut value = simd.multiply(simd.convert(simd.load_integers(sums)), simd.splat(scale));
        if let Some(offset) = offset {
            value = simd.add(value, simd.splat(offset));
        }
        let mut nearest = [0; LANES];
        simd.store_integers(simd.nearest_integers(value), &mut nearest);
        for lane in 0..LANES {
            codes[lane] = (nearest[lane].clamp(least, greatest) + zero) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_formula_on_every_instruction_set() {
        let sums: Vec<i32> =
            [i32::MIN, -1, 0, 1, 2, 3, i32::MAX].into_iter().chain((-40..40).map(|x| x * 57)).collect();
        let kinds = [ByteType { signed: true }, ByteType { signed: false }];
        for instructions in Instructions::available() {
            for (kind, zero) in [(kinds[0], -128), (kinds[0], 127), (kinds[1], 0), (kinds[1], 255), (kinds[1], 3)] {
                for (scale, offset) in [(0.5, None), (0.25, Some(0.5)), (f32::NAN, None), (1e30, Some(-1.0))] {
                    for count in [0, 1, 15, 16, 17, sums.len()] {
                        let mut codes = vec![0; count];
                        requantize(instructions, &sums[..count], Requantize { scale, offset, zero, kind }, &mut codes);
                        let expected = sums[..count].iter().map(|&sum| {
                            let value = (sum as f32 * scale) + offset.unwrap_or(0.0);
                            let code = i64::from(value.round_ties_even() as i32) + i64::from(zero);
                            if kind.signed { code.clamp(-128, 127) as u8 } else { code.clamp(0, 255) as u8 }
                        });
                        assert_eq!(codes, expected.collect::<Vec<u8>>(), "{scale} {offset:?} {zero} {kind:?}");
                    }
                }
            }
        }
    }
}
