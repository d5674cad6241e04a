//! Results of chains in integers, and codes of 8 bits of which a vector has every fourth: that takes no moves between lanes.

use super::feeds::Widened;
use ipuc_kernels::simd::{Divisor, LANES, Simd};

/// Vectors that go through all steps together, on processors whose registers hold them three times.
pub(super) const VECTORS: usize = 4;

/// Elements that are read and written at a time.
pub(super) const TOGETHER: usize = VECTORS * LANES;

/// The nearest integer of `x / scale`, within bounds, plus `zero`.
#[derive(Clone, Copy)]
pub(super) struct Quantized {
    pub(super) scale: Divisor,
    pub(super) zero: i32,
    pub(super) least: i32,
    pub(super) greatest: i32,
}

impl Quantized {
    /// The nearest integers of vectors over the scale.
    #[inline(always)]
    pub(super) fn nearest<S: Simd>(&self, simd: S, vectors: &[S::Vector; VECTORS]) -> [S::Integers; VECTORS] {
        let mut nearest = [simd.splat_integer(0); VECTORS];
        for vector in 0..VECTORS {
            nearest[vector] = simd.nearest_integers(self.scale.quotients(simd, vectors[vector]));
        }
        nearest
    }

    /// Whether codes are signed, where they are limited to the range of their type, by a zero point that vectors narrow with.
    pub(super) fn bytes(&self) -> Option<bool> {
        if !(-255..=255).contains(&self.zero) {
            return None;
        }
        match (self.least + self.zero, self.greatest + self.zero) {
            (-128, 127) => Some(true),
            (0, 255) => Some(false),
            _ => None,
        }
    }
}

/// 64 bytes, every fourth of them from each of the first four on, as f32.
#[inline(always)]
pub(super) fn widened_quarters<S: Simd>(
    simd: S,
    bytes: &[u8; TOGETHER],
    signed: bool,
    widened: Option<Widened>,
) -> [S::Vector; VECTORS] {
    let Widened { zero, scale } = widened.unwrap_or(Widened { zero: 0, scale: None });
    let (words, zero) = (simd.load_bytes(bytes), simd.splat_integer(zero));
    let mut vectors = [simd.splat(0.0); VECTORS];
    for (quarter, vector) in vectors.iter_mut().enumerate() {
        let own = if signed {
            simd.signed_byte(words, quarter as u32)
        } else {
            simd.and(simd.shift_right(words, 8 * quarter as u32), simd.splat_integer(0xff))
        };
        *vector = simd.convert(simd.subtract_integers(own, zero));
        if let Some(scale) = scale {
            *vector = simd.multiply(*vector, simd.splat(scale));
        }
    }
    vectors
}

/// Writes what [`widened_quarters`] reads, quantized.
#[inline(always)]
pub(super) fn store_quarters<S: Simd>(
    simd: S,
    quarters: &[S::Vector; VECTORS],
    quantized: Quantized,
    out: &mut [u8; TOGETHER],
) {
    let Quantized { scale, zero, least, greatest } = quantized;
    if let Some(signed) = quantized.bytes() {
        *out = simd.narrow_quarters(quantized.nearest(simd, quarters), zero, signed);
        return;
    }
    let mut words = [0; LANES];
    for (quarter, &values) in quarters.iter().enumerate() {
        let mut lanes = [0; LANES];
        simd.store_integers(simd.nearest_integers(scale.quotients(simd, values)), &mut lanes);
        for lane in 0..LANES {
            let code = lanes[lane].max(least).min(greatest) + zero;
            words[lane] |= (code & 0xff) << (8 * quarter);
        }
    }
    for (out, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *out = word.to_le_bytes();
    }
}
