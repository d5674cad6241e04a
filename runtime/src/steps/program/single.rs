//! Chains of a single step from bytes to bytes: values stay in registers.

use super::feeds::{Feed, Input, Widened, widened};
use super::links::{Link, linked};
use super::quarters::{Quantized, TOGETHER, VECTORS, store_quarters, widened_quarters};
use ipuc_kernels::simd::{LANES, Simd};

/// A step over what is read, quantized.
pub(super) struct Single<'a> {
    pub(super) link: Link,
    pub(super) feeds: &'a [Feed],
    pub(super) inputs: &'a [Input<'a>],
    pub(super) quantized: Quantized,
}

impl Single<'_> {
    /// Writes results as far as they are whole; gives how many.
    #[inline(always)]
    pub(super) fn run<S: Simd>(&self, simd: S, out: &mut [u8]) -> usize {
        let (x, y) = self.link.slots();
        if x >= self.feeds.len() || y.is_some_and(|y| y >= self.feeds.len()) {
            return 0;
        }
        let out = out.as_chunks_mut::<TOGETHER>().0;
        match (self.link, self.codes(x), y.and_then(|y| self.codes(y)), self.quantized.bytes()) {
            (Link::Add(..), Some(x), Some(y), Some(signed))
                if self.quantized.scale.is_near(x.largest() + y.largest()) =>
            {
                sums(simd, [x, y], (self.quantized, signed), out);
            }
            (link, _, _, _) => {
                let [x, y] = [x, y.unwrap_or(x)].map(|slot| (self.inputs[slot], self.feeds[slot].widened));
                for (index, out) in out.iter_mut().enumerate() {
                    let [x, y] = [quarters(simd, x, index * TOGETHER), quarters(simd, y, index * TOGETHER)];
                    store_quarters(simd, &linked(simd, link, x, y), self.quantized, out);
                }
            }
        }
        out.len() * TOGETHER
    }

    /// A slot of bytes.
    fn codes(&self, slot: usize) -> Option<Codes<'_>> {
        let (bytes, signed) = match self.inputs[slot] {
            Input::Unsigned(values) => (values, false),
            Input::Signed(values) => (bytemuck::cast_slice::<i8, u8>(values), true),
            Input::Own
            | Input::One(_)
            | Input::OneInteger(_)
            | Input::Line(_)
            | Input::Floats(_)
            | Input::Integers(_) => return None,
        };
        let Widened { zero, scale } = self.feeds[slot].widened?;
        // Codes of i8 with their highest bit flipped are those of u8, 128 above.
        let (flip, zero) = if signed { (0x80, zero + 128) } else { (0, zero) };
        Some(Codes { bytes, flip: i32::from_ne_bytes([flip; 4]), zero, scale: scale.unwrap_or(1.0) })
    }
}

/// `((byte ^ flip) - zero) * scale`.
struct Codes<'a> {
    bytes: &'a [u8],
    /// For each byte of a word.
    flip: i32,
    zero: i32,
    scale: f32,
}

impl Codes<'_> {
    /// No value has a larger magnitude.
    fn largest(&self) -> f32 {
        (self.zero.unsigned_abs() + 255) as f32 * self.scale.abs()
    }

    /// 64 values from one on, every fourth of them from each of the first four on.
    #[inline(always)]
    fn quarters<S: Simd>(&self, simd: S, bytes: &[u8; TOGETHER]) -> [S::Vector; VECTORS] {
        let words = simd.exclusive_or(simd.load_bytes(bytes), simd.splat_integer(self.flip));
        let (zero, scale, low) = (simd.splat_integer(self.zero), simd.splat(self.scale), simd.splat_integer(0xff));
        let codes = [
            simd.and(words, low),
            simd.and(simd.shift_right(words, 8), low),
            simd.and(simd.shift_right(words, 16), low),
            simd.shift_right(words, 24),
        ];
        // A loop, since a closure would not be compiled for the instructions.
        let mut values = [simd.splat(0.0); VECTORS];
        for vector in 0..VECTORS {
            values[vector] = simd.multiply(simd.convert(simd.subtract_integers(codes[vector], zero)), scale);
        }
        values
    }
}

/// Sums of codes, whose quotients are near.
#[inline(always)]
fn sums<S: Simd>(simd: S, [x, y]: [Codes<'_>; 2], (quantized, signed): (Quantized, bool), out: &mut [[u8; TOGETHER]]) {
    let terms = x.bytes.as_chunks::<TOGETHER>().0.iter().zip(y.bytes.as_chunks::<TOGETHER>().0);
    for (out, (left, right)) in out.iter_mut().zip(terms) {
        let (left, right) = (x.quarters(simd, left), y.quarters(simd, right));
        let mut nearest = [simd.splat_integer(0); VECTORS];
        for vector in 0..VECTORS {
            let sum = simd.add(left[vector], right[vector]);
            nearest[vector] = simd.nearest_of_near(quantized.scale.near_quotients(simd, sum));
        }
        *out = simd.narrow_quarters(nearest, quantized.zero, signed);
    }
}

/// 64 elements from one on, every fourth of them in each vector, of bytes or of what is the same for all.
#[inline(always)]
fn quarters<S: Simd>(simd: S, (input, by): (Input<'_>, Option<Widened>), start: usize) -> [S::Vector; VECTORS] {
    match input.bytes(start) {
        Some((bytes, signed)) => widened_quarters(simd, bytes, signed, by),
        None => [widened(simd, input, 0..LANES, by); VECTORS],
    }
}
