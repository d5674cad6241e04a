//! Convolutions over blocks of 8 channels.

use super::{ConvolutionEpilogue, ConvolutionShape, ConvolutionWeight};
use crate::simd::Instructions;

/// Channels of a block.
pub const CHANNEL_BLOCK: usize = 8;

/// The shape of a convolution whose channels are in blocks: `[batch, channels / 8, .., 8]`.
#[derive(Clone, Debug)]
pub struct BlockedShape {
    /// Groups, channels and windows.
    pub convolution: ConvolutionShape,
    /// Whether inputs are not in blocks: `[batch, channels, ..]`.
    pub plain_inputs: bool,
}

/// `out = x * weight`, then the epilogue, over blocks of channels.
///
/// # Panics
/// If lengths disagree with the shape.
pub fn blocked_convolution(
    _instructions: Instructions,
    _shape: &BlockedShape,
    _x: &[f32],
    _weight: ConvolutionWeight<'_>,
    _out: &mut [f32],
    _epilogue: ConvolutionEpilogue<'_>,
) {
}
