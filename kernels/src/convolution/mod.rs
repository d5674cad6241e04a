//! Convolutions of f32, batch × channels × any number of spatial axes, in the sense of ONNX `Conv` (opset 22) and
//! `ConvTranspose` (opset 22).
//!
//! [`convolution`] is a product without a copy of all patches: vectors of 16 positions are read from padded copies of
//! channels, from copies by vectors where windows have one tap, or from the input itself (`direct`, `tiles`) or, where these would be mostly padding, gathered for a run of inputs (channels × taps) (`gather`), and
//! a register tile multiplies them by the weight's panels, output channels by positions, straight into the output's layout.
//! Where there are few positions, vectors hold output channels instead (`few`). [`depthwise`] takes channels of their own without it. [`transposed`] is a product with all taps as outputs, added into place.
//!
//! The order of each sum is that of a product (see `product`), over channels and, within, taps; many windows of 3 × 3 taps are
//! computed with fewer multiplications, from sums of their own (`winograd`).

mod blocked;
mod byte_tiles;
mod completion;
mod depthwise;
mod depthwise_bytes;
mod depthwise_grid;
mod depthwise_lanes;
mod direct;
mod few;
mod filter_tiles;
mod finish;
mod gather;
mod grouped;
mod integer;
mod side_by_side;
mod terms;
mod tiles;
mod transposed;
mod winograd;
mod words;

use super::{
    change::Change,
    product::{PanelPiece, clamped},
    simd::{LANES, Simd},
    window::{self, WindowAxis},
};

pub use blocked::{BlockedPlan, CHANNEL_BLOCK, InputOrder, MOST_DEPTH, blocked_convolution, has_blocks};
pub use depthwise::depthwise;
pub use depthwise_bytes::ByteDepthwise;
pub use filter_tiles::FilterTiles;
pub use grouped::convolution;
pub use integer::{Filters, PositionTiles, Positions, TiledConvolution};
pub use side_by_side::{ByteConvolution, ChannelOrder, OutputRows, SideBySide, SideBySideFilters, SideBySideImage};
pub use transposed::{TransposedShape, add_windows, transposed};

/// The shape of a convolution: `[batch, groups * group_inputs, ..]` to `[batch, groups * group_outputs, ..]`.
#[derive(Clone, Debug)]
pub struct ConvolutionShape {
    /// Images.
    pub batch: usize,
    /// Groups of channels that do not see one another.
    pub groups: usize,
    /// Input channels of a group.
    pub group_inputs: usize,
    /// Output channels of a group.
    pub group_outputs: usize,
    /// Spatial axes, outermost first.
    pub axes: Vec<WindowAxis>,
}

impl ConvolutionShape {
    /// The number of input values.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.batch * self.groups * self.group_inputs * window::inputs(&self.axes)
    }

    /// The number of output values.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.batch * self.groups * self.group_outputs * window::outputs(&self.axes)
    }

    /// Terms of each output value: channels of a group × taps. The inputs of its weight as a product.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.group_inputs * window::taps(&self.axes)
    }
}

/// The weight of a convolution.
#[derive(Clone, Copy, Debug)]
pub enum ConvolutionWeight<'a> {
    /// Panels of each group in turn: panel `group * panels_of_a_group + p`; inputs are channels × taps.
    Panels(&'a [PanelPiece<'a>]),
    /// As ONNX stores it: `[groups * group_outputs, group_inputs, taps..]`. Packed in every call.
    Plain(&'a [f32]),
}

/// What is done to complete outputs: the bias is added, then the addend, then the value is clamped, then comes the caller's
/// change.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvolutionEpilogue<'a> {
    /// Added to all positions of a channel: one value an output channel.
    pub bias: Option<&'a [f32]>,
    /// Added to each output: a value for each.
    pub addend: Option<&'a [f32]>,
    /// Least and greatest value; NaN stays NaN.
    pub clamp: Option<(f32, f32)>,
    /// What the caller does.
    pub change: Option<Change<'a>>,
}

impl ConvolutionEpilogue<'_> {
    /// Panics if lengths disagree.
    fn check(&self, channels: usize, outputs: usize) {
        if let Some(bias) = self.bias {
            assert_eq!(bias.len(), channels, "a bias is one value for each output channel");
        }
        if let Some(addend) = self.addend {
            assert_eq!(addend.len(), outputs, "an addend is one value for each output");
        }
    }

    /// All but the change.
    #[inline(always)]
    fn complete<S: Simd>(&self, simd: S, channel: usize, place: usize, outputs: &mut [f32]) {
        let addend = self.addend.map(|addend| &addend[place..][..outputs.len()]);
        for (index, outputs) in outputs.chunks_mut(LANES).enumerate() {
            let mut value = simd.load_partial(outputs);
            if let Some(bias) = self.bias {
                value = simd.add(value, simd.splat(bias[channel]));
            }
            if let Some(addend) = addend {
                value = simd.add(value, simd.load_partial(&addend[index * LANES..][..outputs.len()]));
            }
            simd.store_partial(clamped(simd, self.clamp, value), outputs);
        }
    }

    /// Applies it to outputs of `channel` (of all groups) that lie side by side, the first at `place` in the whole output.
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, channel: usize, place: usize, outputs: &mut [f32]) {
        if self.bias.is_some() || self.addend.is_some() || self.clamp.is_some() {
            self.complete(simd, channel, place, outputs);
        }
        if let Some(change) = self.change {
            change.apply(place, outputs);
        }
    }
}
