//! What is done to each output of a product once it is complete.

use crate::{
    change::RowChange,
    scratch::scratch,
    simd::{LANES, Simd},
};

/// Operations on complete outputs: first the bias is added, then the value is clamped, then comes the caller's change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to each output: `[n]`.
    pub bias: Option<&'a [f32]>,
    /// Least and greatest value; NaN stays NaN.
    pub clamp: Option<(f32, f32)>,
    /// What the caller does.
    pub change: Option<RowChange<'a>>,
}

impl<'a> Epilogue<'a> {
    /// An epilogue that adds `bias: [n]`.
    #[must_use]
    pub fn bias(bias: &'a [f32]) -> Self {
        Self { bias: Some(bias), ..Self::default() }
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bias.is_none() && self.clamp.is_none() && self.change.is_none()
    }

    /// The same for a product whose first row is this many rows further in the whole output.
    #[must_use]
    pub fn rows_further(self, rows: usize) -> Self {
        Self { change: self.change.map(|change| change.rows_further(rows)), ..self }
    }

    /// Applies it to rows from `first_row` on, of which these are the outputs from `first` on.
    #[inline(always)]
    pub(crate) fn apply_to_rows<S: Simd>(&self, simd: S, first_row: usize, first: usize, rows: &mut [&mut [f32]]) {
        for outputs in rows.iter_mut() {
            self.complete(simd, first, outputs);
        }
        let Some(RowChange { change, start, columns }) = self.change else { return };
        let length = rows.first().map_or(0, |outputs| outputs.len());
        // Short rows are changed several at a time, where they lie one behind the other in the whole output.
        let together = if length == columns && length > 0 { (TOGETHER / length).max(1) } else { 1 };
        let mut joined = scratch(if together > 1 { rows.len().min(together) * length } else { 0 });
        for (index, rows) in rows.chunks_mut(together).enumerate() {
            let place = start + (first_row + index * together) * columns + first;
            if let [outputs] = rows {
                change.apply(place, outputs);
                continue;
            }
            let joined = &mut joined[..rows.len() * length];
            for (joined, outputs) in joined.chunks_exact_mut(length).zip(rows.iter()) {
                joined.copy_from_slice(outputs);
            }
            change.apply(place, joined);
            for (joined, outputs) in joined.chunks_exact(length).zip(rows) {
                outputs.copy_from_slice(joined);
            }
        }
    }

    /// Applies all but the change to outputs of a row from `first` on.
    #[inline(always)]
    fn complete<S: Simd>(&self, simd: S, first: usize, outputs: &mut [f32]) {
        if let Some(bias) = self.bias {
            for (output, bias) in outputs.iter_mut().zip(&bias[first..]) {
                *output += bias;
            }
        }
        clamp_all(simd, self.clamp, outputs);
    }
}

/// Outputs that are changed at a time.
const TOGETHER: usize = 1024;

/// Clamps each value; NaN stays NaN.
#[inline(always)]
pub(crate) fn clamp_all<S: Simd>(simd: S, clamp: Option<(f32, f32)>, values: &mut [f32]) {
    if clamp.is_none() {
        return;
    }
    for chunk in values.chunks_mut(LANES) {
        simd.store_partial(clamped(simd, clamp, simd.load_partial(chunk)), chunk);
    }
}

/// The values within the limits; NaN stays NaN.
#[inline(always)]
pub(crate) fn clamped<S: Simd>(simd: S, clamp: Option<(f32, f32)>, value: S::Vector) -> S::Vector {
    let Some((least, greatest)) = clamp else { return value };
    let (least, greatest) = (simd.splat(least), simd.splat(greatest));
    simd.at_most(simd.at_least(value, least), greatest)
}

/// [`clamped`] of each value.
#[inline(always)]
pub(crate) fn all_clamped<S: Simd, const COUNT: usize>(
    simd: S,
    clamp: Option<(f32, f32)>,
    mut values: [S::Vector; COUNT],
) -> [S::Vector; COUNT] {
    let Some((least, greatest)) = clamp else { return values };
    // Most have one limit: nothing is beyond an infinite one.
    if least != f32::NEG_INFINITY {
        let least = simd.splat(least);
        for index in 0..COUNT {
            values[index] = simd.at_least(values[index], least);
        }
    }
    if greatest != f32::INFINITY {
        let greatest = simd.splat(greatest);
        for index in 0..COUNT {
            values[index] = simd.at_most(values[index], greatest);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Instructions, Routine};

    struct Clamped<'a>(Option<(f32, f32)>, &'a [f32; LANES]);

    impl Routine for Clamped<'_> {
        type Output = [[u32; LANES]; 2];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let Self(clamp, values) = self;
            let both = [clamped(simd, clamp, simd.load(values)), all_clamped(simd, clamp, [simd.load(values)])[0]];
            both.map(|vector| {
                let mut lanes = [0.0; LANES];
                simd.store(vector, &mut lanes);
                lanes.map(f32::to_bits)
            })
        }
    }

    #[test]
    fn a_limit_that_is_left_out_changes_no_bit() {
        let mut values = [0.5; LANES];
        let special = [f32::NAN, -0.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, -1.0, 7.0, f32::MIN_POSITIVE / 2.0];
        values[..special.len()].copy_from_slice(&special);
        let limits = [0.0, -0.0, 6.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let pairs = limits.into_iter().flat_map(|least| limits.map(|greatest| Some((least, greatest))));
        for clamp in pairs.chain([None]) {
            for instructions in Instructions::available() {
                let [expected, found] = instructions.run(Clamped(clamp, &values));
                assert_eq!(found, expected, "{} within {clamp:?}", instructions.name());
            }
        }
        let [_, found] = Instructions::best().run(Clamped(Some((0.0, f32::INFINITY)), &values));
        let expected = [f32::NAN, -0.0, 0.0, f32::INFINITY, 0.0, 0.0, 7.0];
        assert_eq!(found[..7], expected.map(f32::to_bits));
    }
}
