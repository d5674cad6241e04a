//! Rounding of f32 to codes of 8 bits: x over a scale, to the nearest integer with halves to even, plus a zero point.

use super::product::ByteType;
use super::simd::{Divisor, Instructions, LANES, Routine, Simd};
use std::ops::RangeInclusive;

/// Elements that become codes at once.
const BLOCK: usize = 4 * LANES;

/// How elements become codes.
#[derive(Clone, Copy, Debug)]
pub enum QuantizeParameters<'a> {
    /// All by one scale and zero point.
    One(f32, i32),
    /// As `One`, but NaN becomes the least code.
    Dynamic(f32, i32),
    /// Each by its own: scales and as many zero points.
    Each(&'a [f32], &'a [i32]),
}

/// `x / scale + zero`, rounded and limited to codes of this type; NaN becomes the zero point, unless parameters say otherwise.
///
/// # Panics
/// If lengths disagree, or one zero point for all is no code.
pub fn quantize(
    instructions: Instructions,
    x: &[f32],
    parameters: QuantizeParameters<'_>,
    kind: ByteType,
    out: &mut [u8],
) {
    assert_eq!(x.len(), out.len(), "elements and codes");
    match parameters {
        QuantizeParameters::One(_, zero) | QuantizeParameters::Dynamic(_, zero) => {
            assert!(codes_of(kind).contains(&zero), "zero point {zero}");
        }
        QuantizeParameters::Each(scales, zeros) => {
            assert_eq!((scales.len(), zeros.len()), (x.len(), x.len()), "scales and zero points of all elements");
        }
    }
    instructions.run(Quantize { x, parameters, kind, out });
}

/// From the least code to the greatest.
fn codes_of(kind: ByteType) -> RangeInclusive<i32> {
    if kind.signed { -128..=127 } else { 0..=255 }
}

struct Quantize<'a> {
    x: &'a [f32],
    parameters: QuantizeParameters<'a>,
    kind: ByteType,
    out: &'a mut [u8],
}

impl Routine for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Quantize { x, parameters, kind, out } = self;
        match parameters {
            QuantizeParameters::One(scale, zero) => by_one::<S, false>(simd, x, Divisor::new(scale), zero, kind, out),
            QuantizeParameters::Dynamic(scale, zero) => {
                by_one::<S, true>(simd, x, Divisor::new(scale), zero, kind, out)
            }
            QuantizeParameters::Each(scales, zeros) => {
                let parameters = scales.chunks(LANES).zip(zeros.chunks(LANES));
                for ((x, out), (scales, zeros)) in x.chunks(LANES).zip(out.chunks_mut(LANES)).zip(parameters) {
                    let mut all = [0; LANES];
                    all[..zeros.len()].copy_from_slice(zeros);
                    codes(simd, simd.divide(simd.load_partial(x), simd.load_partial(scales)), &all, kind, out);
                }
            }
        }
    }
}

/// Codes by one scale and zero point; `DYNAMIC` where NaN becomes the least code.
#[inline(always)]
fn by_one<S: Simd, const DYNAMIC: bool>(simd: S, x: &[f32], scale: Divisor, zero: i32, kind: ByteType, out: &mut [u8]) {
    let (blocks, rest) = x.as_chunks();
    let (own, last) = out.as_chunks_mut();
    for (block, own) in blocks.iter().zip(own) {
        *own = block_by_one::<S, DYNAMIC>(simd, block, scale, zero, kind);
    }
    let mut block = [0.0; BLOCK];
    block[..rest.len()].copy_from_slice(rest);
    last.copy_from_slice(&block_by_one::<S, DYNAMIC>(simd, &block, scale, zero, kind)[..rest.len()]);
}

/// See [`by_one`].
#[inline(always)]
fn block_by_one<S: Simd, const DYNAMIC: bool>(
    simd: S,
    x: &[f32; BLOCK],
    scale: Divisor,
    zero: i32,
    kind: ByteType,
) -> [u8; BLOCK] {
    // Quotients between these are near integers of 32 bits. A comparison with NaN chooses the least.
    let (least, greatest) = codes_of(kind).into_inner();
    let (least, beyond) = (simd.splat((least - zero) as f32), simd.splat((greatest - zero) as f32 + 1.0));
    let vectors = x.as_chunks::<LANES>().0;
    let mut nearest = [simd.splat_integer(0); BLOCK / LANES];
    for vector in 0..BLOCK / LANES {
        let quotients = scale.quotients(simd, simd.load(&vectors[vector]));
        nearest[vector] = match DYNAMIC {
            true => {
                let above = simd.select_less(least, quotients, quotients, least);
                simd.nearest_of_near(simd.at_most(above, beyond))
            }
            false => simd.nearest_integers(quotients),
        };
    }
    simd.narrow(nearest, zero, kind.signed)
}

/// The codes of a vector of quotients.
#[inline(always)]
fn codes<S: Simd>(simd: S, quotients: S::Vector, zeros: &[i32; LANES], kind: ByteType, out: &mut [u8]) {
    // What is added to integers within these limits stays in the range; f32 holds them exactly.
    let zero = simd.load_integers(zeros);
    let (least, greatest) = codes_of(kind).into_inner();
    let least = simd.convert(simd.subtract_integers(simd.splat_integer(least), zero));
    let greatest = simd.convert(simd.subtract_integers(simd.splat_integer(greatest), zero));
    let limited = simd.minimum(simd.maximum(quotients, least), greatest);
    let mut sums = [0; LANES];
    simd.store_integers(simd.add_integers(simd.nearest_integers(limited), zero), &mut sums);
    if let Some(out) = out.first_chunk_mut::<LANES>() {
        for lane in 0..LANES {
            out[lane] = sums[lane] as u8;
        }
        return;
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = sum as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn codes_are_rounded_sums_within_the_range() {
        for (length, signed) in [(0, true), (1, false), (15, true), (16, false), (17, true), (300, false)] {
            let mut x: Vec<f32> = numbers(3, length).iter().map(|x| (x * 400.0).round() / 2.0).collect();
            let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38, 0.5, 1.5, -0.5];
            x.iter_mut().zip(special).for_each(|(x, special)| *x = special);
            let kind = ByteType { signed };
            let (least, greatest) = codes_of(kind).into_inner();
            let scales: Vec<f32> = numbers(4, length).iter().map(|scale| scale.abs() + 0.1).collect();
            let zeros: Vec<i32> =
                numbers(5, length).iter().map(|zero| (zero * 60.0) as i32 + (least + greatest) / 2).collect();
            let code = |x: f32, scale: f32, zero: i32| {
                let rounded = (x / scale).round_ties_even();
                let rounded = if rounded.is_nan() { 0.0 } else { rounded };
                (rounded + zero as f32).clamp(least as f32, greatest as f32) as i32 as u8
            };
            for instructions in Instructions::available() {
                let mut out = vec![9; length];
                quantize(
                    instructions,
                    &x,
                    QuantizeParameters::One(0.5, zeros.first().copied().unwrap_or(0)),
                    kind,
                    &mut out,
                );
                let expected: Vec<u8> = x.iter().map(|&x| code(x, 0.5, zeros[0])).collect();
                assert_eq!(out, expected, "{length} on {}", instructions.name());
                quantize(instructions, &x, QuantizeParameters::Dynamic(0.5, 7), kind, &mut out);
                let dynamic = |&x: &f32| if x.is_nan() { least as u8 } else { code(x, 0.5, 7) };
                assert_eq!(out, x.iter().map(dynamic).collect::<Vec<u8>>(), "{length}, dynamic");
                quantize(instructions, &x, QuantizeParameters::Each(&scales, &zeros), kind, &mut out);
                let each = x.iter().zip(&scales).zip(&zeros);
                let expected: Vec<u8> = each.map(|((&x, &scale), &zero)| code(x, scale, zero)).collect();
                assert_eq!(out, expected, "{length} on {}, each its own", instructions.name());
            }
        }
    }
}
