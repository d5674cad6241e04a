//! Channels of convolutions come in blocks of 8, `[n, c / 8, d.., 8]`, through all steps that can take them so: what a window reads is
//! side by side, vectors hold channels, and nothing is copied to be multiplied.
//!
//! ```text
//! constant @w : f32[64, 8, 1, 1] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @v : f32[8, 64, 1, 1] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 8, 6, 6]) {
//!   %c : f32[n, 64, 6, 6] = convolution groups=1 %x, @w from "first"
//!   %s : f32[n, 64, 6, 6] = unary function=tanh %c from "tanh"
//!   %y : f32[n, 8, 6, 6] = convolution groups=1 %s, @v from "second"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @w : f32[64, 8, 1, 1] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @v : f32[8, 64, 1, 1] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! constant @2 : i64[5] = i64[5]:00000000000000000100000000000000080000000000000006000000000000000600000000000000
//! constant @3 : i64[4] = i64[4]:0000000000000000080000000000000006000000000000000600000000000000
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 8, 6, 6]) {
//!   %4 : f32[n, 1, 8, 6, 6] = reshape allow_zero=0 %x, @2 from "first"
//!   %5 : f32[n, 1, 6, 6, 8] = transpose permutation=[0, 1, 3, 4, 2] %4 from "first"
//!   %6 : f32[n, 8, 6, 6, 8] = blocked_convolution groups=1 %5, @w from "first"
//!   %7 : f32[n, 8, 6, 6, 8] = unary function=tanh %6 from "tanh"
//!   %8 : f32[n, 1, 6, 6, 8] = blocked_convolution groups=1 %7, @v from "second"
//!   %9 : f32[n, 1, 8, 6, 6] = transpose permutation=[0, 1, 4, 2, 3] %8 from "second"
//!   %y : f32[n, 8, 6, 6] = reshape allow_zero=0 %9, @3 from "second"
//!   return %y
//! }
//! ```
//!
//! A convolution of an image, whose few channels are no whole blocks, reads them as they are (`plain_inputs`) where what it gives is
//! convolved or pooled further.
//!
//! Convolutions of integers of 8 bits in one group have all their channels in one block, `[n, 1, d.., c]`, as do the filters of those that
//! read such a block: products take four codes that lie side by side. They do so where a block of steps has no such convolution in
//! several groups.
//!
//! Steps are rewritten in their order. A value of which only the blocks are computed gets its plain form where a step reads it that
//! does not take blocks. Convolutions that multiply each input often enough take them, and all steps behind them that can: convolutions,
//! pools, resampled and joined positions, elementwise steps, normalizations of groups of channels, transpositions, joined and
//! split channels.
//!
//! Establishes: nothing that later passes need. Leaves alone: convolutions of other types, of channels that are no whole
//! blocks, of weights that a file cuts within a block, of few windows, normalizations of groups that are neither whole blocks nor parts of
//! one, and values of unknown extents. Sums are added up in another order.

mod blocks;
mod integers;
mod operands;
mod steps;

use crate::error::PassError;
use crate::ir::{Changes, Graph};
use crate::options::Options;
use blocks::{BlockSize, Blocks};
use ipuc_formats::attribute::BlockIndex;

/// Have channels in blocks; see the module. Not where [`Options::unfused`] or [`Options::plain_channels`].
///
/// # Errors
/// If a value that is computed in blocks has no way to its plain form.
pub fn block_channels(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    let mut changes = 0;
    if options.unfused || options.plain_channels {
        return Ok(Changes::default());
    }
    for index in graph.reachable_blocks() {
        changes += rewrite(graph, BlockSize::Eights, index)?;
        if integers::are_of_one_group(&graph.block(index).steps) {
            changes += rewrite(graph, BlockSize::All, index)?;
        }
    }
    Ok(Changes::of_steps(changes))
}

/// Rewrites the steps of a block; gives how many take blocks.
fn rewrite(graph: &mut Graph, block_size: BlockSize, index: BlockIndex) -> Result<usize, PassError> {
    let steps = std::mem::take(&mut graph.block_mut(index).steps);
    let mut blocks = Blocks::new(graph, block_size, &steps);
    let mut changed = 0;
    for step in steps {
        if blocks.take(&step).is_some() {
            changed += 1;
            continue;
        }
        for &operand in &step.operands {
            blocks.make_plain(operand)?;
        }
        blocks.remember(&step);
        blocks.steps.push(step);
    }
    for result in blocks.graph.block(index).results.clone() {
        blocks.make_plain(result)?;
    }
    let steps = blocks.steps;
    graph.block_mut(index).steps = steps;
    Ok(changed)
}
