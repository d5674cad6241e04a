//! What is done to each output of a product once it is complete.

use crate::kernels::simd::Simd;

/// Operations on complete outputs: first the bias is added, then the value is clamped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to each output: `[n]`.
    pub bias: Option<&'a [f32]>,
    /// Least and greatest value; NaN stays NaN.
    pub clamp: Option<(f32, f32)>,
}

impl<'a> Epilogue<'a> {
    /// An epilogue that adds `bias: [n]`.
    #[must_use]
    pub fn bias(bias: &'a [f32]) -> Self {
        Self { bias: Some(bias), clamp: None }
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bias.is_none() && self.clamp.is_none()
    }

    /// Applies it to outputs that begin at `first` and lie side by side.
    #[inline(always)]
    pub(crate) fn apply<S: Simd>(&self, simd: S, first: usize, outputs: &mut [f32]) {
        if let Some(bias) = self.bias {
            for (output, bias) in outputs.iter_mut().zip(&bias[first..]) {
                *output += bias;
            }
        }
        clamp_all(simd, self.clamp, outputs);
    }
}

/// Clamps each value; NaN stays NaN.
#[inline(always)]
pub(crate) fn clamp_all<S: Simd>(simd: S, clamp: Option<(f32, f32)>, values: &mut [f32]) {
    let Some((least, greatest)) = clamp else {
        return;
    };
    let (least, greatest) = (simd.splat(least), simd.splat(greatest));
    for chunk in values.chunks_mut(crate::kernels::simd::LANES) {
        let value = simd.load_partial(chunk);
        let value = simd.select_less(value, least, least, value);
        simd.store_partial(simd.select_less(greatest, value, greatest, value), chunk);
    }
}
