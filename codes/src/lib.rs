//! The formulas of quantized values, written once: operators, the encodings of weights and the kernels use them.
//!
//! [`dynamic_row`] rounds activations to codes, [`dequantized`] gives the value of a code; [`store_row`] and [`load_row`] keep
//! a row of a growing state as a scale and codes. [`aligned`] has the memory that values lie in,
//! [`size`] says how much it is.

pub mod aligned;
pub mod size;

/// The value of a code: `(code - zero) * scale`, one rounding, as ONNX `DequantizeLinear` has it.
///
/// `difference` is `code - zero`, exact for integers, as f32. With several scales see [`scale_product`].
#[inline(always)]
pub fn dequantized(difference: f32, scale: f32) -> f32 {
    difference * scale
}

/// The difference of a code and a zero point of any real type, exact before it is taken as f32.
#[inline(always)]
pub fn code_difference(code: f64, zero: f64) -> f32 {
    (code - zero) as f32
}

/// The factor of a code that several planes scale, which are multiplied in f32 from the coarsest to the finest.
#[inline(always)]
pub fn scale_product(coarsest_first: impl IntoIterator<Item = f32>) -> f32 {
    coarsest_first.into_iter().reduce(|product, scale| product * scale).unwrap_or(1.0)
}

/// The codes of activations `x`, -127 to 127, and their scale.
///
/// With m the largest magnitude, codes are `round(x * (127 / m))`, halves to even, and the scale is `m / 127`, each
/// step in f32. Where `127 / m` is not finite, codes and scale are 0; where an element is not, codes are 0 and the scale is NaN.
///
/// # Panics
/// If there are fewer codes than elements.
#[inline(always)]
pub fn dynamic_row(x: &[f32], codes: &mut [i8]) -> f32 {
    /// The last place of f32 between this and twice it is 1, so that adding it rounds to integers, halves to even.
    const ROUNDS: f32 = 12_582_912.0;
    let codes = &mut codes[..x.len()];
    // Magnitudes are in the order of their bits; infinities and NaN come last.
    let largest = x.iter().fold(0, |largest: u32, value| largest.max(value.abs().to_bits()));
    let largest = f32::from_bits(largest);
    let factor = 127.0 / largest;
    if !largest.is_finite() || !factor.is_finite() {
        codes.fill(0);
        return if largest.is_finite() { 0.0 } else { f32::NAN };
    }
    for (code, value) in codes.iter_mut().zip(x) {
        *code = (value * factor + ROUNDS).to_bits() as i8;
    }
    largest / 127.0
}

/// Bytes of a row of so many elements that [`store_row`] writes: a scale in f32, and a code of 8 bits an element. `None` where that
/// is beyond what memory can address.
pub fn row_bytes(elements: usize) -> Option<usize> {
    elements.checked_add(size_of::<f32>())
}

/// Stores a row as a scale, little-endian, and behind it codes, both as [`dynamic_row`] gives them.
///
/// # Panics
/// If `to` has not the length that [`row_bytes`] gives.
pub fn store_row(row: &[f32], to: &mut [u8]) {
    let (scale, codes) = to.split_at_mut(size_of::<f32>());
    scale.copy_from_slice(&dynamic_row(row, bytemuck::cast_slice_mut(codes)).to_le_bytes());
}

/// The elements of a row that [`store_row`] wrote.
///
/// # Panics
/// If the row is shorter than its scale.
#[inline(always)]
pub fn load_row(row: &[u8], to: &mut [f32]) {
    let (scale, codes) = row.split_at(size_of::<f32>());
    let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
    for (&code, to) in codes.iter().zip(to) {
        *to = dequantized(f32::from(code as i8), scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_rounded_to_even() {
        let x = [127.0, 0.5, 1.5, -2.5, -126.6, 0.0, -127.0, 63.499];
        let mut codes = [9; 8];
        assert_eq!(dynamic_row(&x, &mut codes), 1.0);
        assert_eq!(codes, [127, 0, 2, -2, -127, 0, -127, 63]);
        let mut state = 1_u32;
        for scale in [1.0, 1e-30, 3e38, 7e-37] {
            let x: [f32; 64] = std::array::from_fn(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state as i32 as f32 / 2.0_f32.powi(31)) * scale
            });
            let largest = x.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let mut codes = [0; 64];
            assert_eq!(dynamic_row(&x, &mut codes), largest / 127.0);
            let expected = x.map(|value| (value * (127.0 / largest)).round_ties_even() as i8);
            assert_eq!(codes, expected);
            assert!(codes.iter().any(|code| code.unsigned_abs() == 127), "{codes:?}");
        }
    }

    #[test]
    fn rows_without_a_scale() {
        for x in [[0.0, -0.0], [1e-40, 0.0]] {
            let mut codes = [5; 2];
            assert_eq!(dynamic_row(&x, &mut codes), 0.0);
            assert_eq!(codes, [0, 0]);
        }
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut codes = [5; 2];
            assert!(dynamic_row(&[1.0, wrong], &mut codes).is_nan());
            assert_eq!(codes, [0, 0]);
        }
        assert_eq!(dynamic_row(&[], &mut []), 0.0);
    }

    #[test]
    fn rows_are_stored_and_loaded() {
        let mut stored = [0; 7];
        assert_eq!(row_bytes(3), Some(stored.len()));
        store_row(&[127.0, -2.5, 0.0], &mut stored);
        assert_eq!(stored, [0, 0, 128, 63, 127, 254, 0]);
        let mut loaded = [9.0; 3];
        load_row(&stored, &mut loaded);
        assert_eq!(loaded, [127.0, -2.0, 0.0]);
        assert_eq!(row_bytes(usize::MAX), None);
    }

    #[test]
    fn values_of_codes() {
        assert_eq!(dequantized(code_difference(0.0, 255.0), 2.0), -510.0);
        assert_eq!(dequantized(code_difference(7.0, 7.5), 3.0), -1.5);
        assert_eq!(dequantized(code_difference(-3.0, 0.0), scale_product([0.25, 2.0])), -1.5);
        assert_eq!(scale_product([]), 1.0);
    }
}
