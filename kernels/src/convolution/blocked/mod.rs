//! Convolutions over channels in blocks of 8: `[batch, channels / 8, .., 8]`.
//!
//! What a window reads is 8 channels side by side at each of its taps, wherever it lies: nothing is copied, and positions need not
//! fill vectors. A register tile multiplies some windows, whose inputs are broadcast, by a panel of 16 output channels (`tile`, `dense`);
//! channels of their own are multiplied 8 at a time (`depthwise`, `depthwise_down`), and many windows of 3 × 3 taps with fewer multiplications
//! (`winograd`). Of inputs that come in the order of ONNX, such as the three channels of an image, windows read positions side by
//! side, in copies of rows where there is padding (`planes`).
//!
//! The order of each sum is over runs of blocks, and within over taps, blocks and the channels of a block; where a weight with several
//! taps is cut within a block, over the inputs of that block in the order of the weight. Channels in the order of ONNX are blocks of one
//! channel in a single run; within it the order is over rows of taps, channels and the taps of a row, or over taps and channels where
//! taps are read one by one.

mod copied;
mod dense;
mod depthwise;
mod depthwise_down;
mod panel_tiles;
mod plan;
mod planes;
mod tile;
mod winograd;

pub use plan::BlockedPlan;

use super::{ConvolutionEpilogue, ConvolutionShape, ConvolutionWeight, grouped::pack};
use crate::{
    product::{PANEL_OUTPUTS, PanelElements, PanelPiece},
    simd::{HALF, Instructions, OUTSIDE},
    window,
};

/// Inputs of windows over channels one after another are fewer: each task has a list of where its windows read each tap.
pub const MOST_DEPTH: usize = 1 << 16;

/// Channels of a block.
pub const CHANNEL_BLOCK: usize = HALF;

/// How channels of inputs lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputOrder {
    /// In blocks: `[batch, channels / 8, .., 8]`.
    Blocks,
    /// One after another, as in ONNX: `[batch, channels, ..]`.
    Planes,
}

/// Whether channels of all groups are whole blocks, but those of inputs that lie one after another.
#[must_use]
pub fn has_blocks(shape: &ConvolutionShape, order: InputOrder) -> bool {
    let ConvolutionShape { groups, group_inputs, group_outputs, .. } = *shape;
    let are_blocks = |channels: usize| channels.is_multiple_of(CHANNEL_BLOCK);
    match order {
        InputOrder::Blocks if is_depthwise(shape) => are_blocks(groups),
        InputOrder::Blocks => are_blocks(group_inputs) && are_blocks(group_outputs),
        InputOrder::Planes => are_blocks(group_outputs),
    }
}

/// Whether groups are single channels.
fn is_depthwise(shape: &ConvolutionShape) -> bool {
    shape.group_inputs == 1 && shape.group_outputs == 1
}

/// `out = x * weight`, then the epilogue: outputs, the addend and what is changed are `[batch, channels / 8, .., 8]`, inputs too
/// where their order says so.
///
/// Weights are those of a convolution of channels one after another (see [`super::convolution`]), and may come in pieces as there.
///
/// # Panics
/// If lengths disagree with the shape, or channels are no whole blocks ([`has_blocks`]).
pub fn blocked_convolution(
    instructions: Instructions,
    plan: &BlockedPlan,
    x: &[f32],
    weight: ConvolutionWeight<'_>,
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let (shape, order) = (plan.shape(), plan.order());
    assert!(has_blocks(shape, order), "blocks of channels of {shape:?}");
    assert!(plane(shape).saturating_mul(CHANNEL_BLOCK) < OUTSIDE as usize, "positions of {shape:?}");
    assert!(shape.depth() < MOST_DEPTH || order == InputOrder::Blocks, "inputs of windows of {shape:?}");
    assert_eq!(x.len(), shape.inputs(), "inputs of {shape:?}");
    assert_eq!(out.len(), shape.outputs(), "outputs of {shape:?}");
    epilogue.check(shape.groups * shape.group_outputs, out.len());
    if out.is_empty() {
        return;
    }
    match weight {
        ConvolutionWeight::Plain(weight) if is_depthwise(shape) && order == InputOrder::Blocks => {
            depthwise::depthwise(instructions, plan, x, weight, out, epilogue);
        }
        ConvolutionWeight::Plain(weight) => {
            let packed = pack(instructions, shape, weight);
            let panels = shape.groups * shape.group_outputs.div_ceil(PANEL_OUTPUTS);
            let inputs = 0..shape.depth();
            let piece = PanelPiece { panels: 0..panels, inputs, elements: PanelElements::F32(&packed) };
            dense::convolution(instructions, plan, x, &[piece], out, epilogue);
        }
        ConvolutionWeight::Panels(pieces) => {
            assert!(!is_depthwise(shape), "weights of single channels are no panels");
            dense::convolution(instructions, plan, x, pieces, out, epilogue);
        }
    }
}

/// Positions of a channel of inputs.
fn plane(shape: &ConvolutionShape) -> usize {
    window::inputs(&shape.axes)
}
