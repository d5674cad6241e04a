//! What a convolution does to complete outputs of a channel.

use super::ConvolutionEpilogue;
use crate::{
    change::Change,
    product::clamped,
    simd::{LANES, Simd},
};

/// What becomes of the complete outputs of a channel: the bias is added, then the addend, then the value is clamped, then comes
/// the caller's change.
#[derive(Clone, Copy, Default)]
pub(super) struct Finish<'a> {
    pub bias: Option<f32>,
    /// A value for each output of the block.
    pub addend: Option<&'a [f32]>,
    pub clamp: Option<(f32, f32)>,
    /// The change, and where the outputs begin in the whole output.
    pub change: Option<(Change<'a>, usize)>,
}

impl<'a> Finish<'a> {
    /// What an epilogue does to outputs of a channel (of all groups) that lie side by side, the first at `place` in the whole
    /// output.
    pub(super) fn of(epilogue: ConvolutionEpilogue<'a>, channel: usize, place: usize) -> Finish<'a> {
        Finish {
            bias: epilogue.bias.map(|bias| bias[channel]),
            addend: epilogue.addend.map(|addend| &addend[place..]),
            clamp: epilogue.clamp,
            change: epilogue.change.map(|change| (change, place)),
        }
    }

    /// Sums become outputs, all but the change.
    #[inline(always)]
    pub(super) fn row<S: Simd>(&self, simd: S, sums: &[f32], addend: Option<&[f32]>, out: &mut [f32]) {
        let (vectors, rest) = out.as_chunks_mut::<LANES>();
        let (sums, last_sums) = sums.as_chunks::<LANES>();
        let (addends, last_addend) = addend.map(<[f32]>::as_chunks::<LANES>).unzip();
        for (index, (out, sums)) in vectors.iter_mut().zip(sums).enumerate() {
            let mut value = self.biased(simd, simd.load(sums));
            if let Some(addends) = addends {
                value = simd.add(value, simd.load(&addends[index]));
            }
            simd.store(clamped(simd, self.clamp, value), out);
        }
        if !rest.is_empty() {
            let mut value = self.biased(simd, simd.load_partial(last_sums));
            if let Some(addend) = last_addend {
                value = simd.add(value, simd.load_partial(addend));
            }
            simd.store_partial(clamped(simd, self.clamp, value), rest);
        }
    }

    /// Sums become outputs, all but addend and change.
    #[inline(always)]
    pub(super) fn clamped<S: Simd>(&self, simd: S, sums: S::Vector) -> S::Vector {
        clamped(simd, self.clamp, self.biased(simd, sums))
    }

    // A method, since closures would not be compiled for the instructions.

    #[inline(always)]
    fn biased<S: Simd>(&self, simd: S, value: S::Vector) -> S::Vector {
        match self.bias {
            Some(bias) => simd.add(value, simd.splat(bias)),
            None => value,
        }
    }
}
