//! The terms of a convolution as matrix tiles take them: so many channels at a tap.
//!
//! Where there are few channels, tiles would be mostly zeros: the taps along the last axis are channels of their own there, each
//! a copy of its channel that is shifted by the distance of the tap.

use super::{
    ConvolutionShape,
    direct::{Block, Grid},
};
use crate::window::{self, WindowAxis};
use std::ops::Range;

/// Channels and taps of a group.
pub(super) struct Terms {
    axes: Vec<WindowAxis>,
    grid: Grid,
    /// Channels of the input.
    sources: usize,
    /// Taps of a channel of the input.
    source_taps: usize,
    /// Copies of each channel of the input.
    copies: usize,
    /// By how many positions of the input one copy is further than the one before.
    distance: usize,
}

impl Terms {
    /// For tiles of so many channels; `None` where padded copies of channels would be mostly waste.
    pub(super) fn new(shape: &ConvolutionShape, tile_channels: usize) -> Option<Terms> {
        let axes = window::joined(&shape.axes);
        let (sources, source_taps) = (shape.group_inputs, window::taps(&axes));
        let last = *axes.last()?;
        let plain = |axes: Vec<WindowAxis>, copies, distance| {
            let grid = Grid::new(&axes)?;
            Some(Terms { axes, grid, sources, source_taps, copies, distance })
        };
        if last.kernel > 1 && sources * last.kernel <= tile_channels {
            let mut axes = axes.clone();
            axes.iter_mut().last().into_iter().for_each(|axis| axis.kernel = 1);
            return plain(axes, last.kernel, last.dilation);
        }
        plain(axes, 1, 0)
    }

    /// Channels of a tap.
    pub(super) fn channels(&self) -> usize {
        self.sources * self.copies
    }

    /// Positions of a channel of the input.
    pub(super) fn plane(&self) -> usize {
        window::inputs(&self.axes)
    }

    /// Inputs of the weight.
    pub(super) fn depth(&self) -> usize {
        self.sources * self.source_taps
    }

    /// Taps of a channel.
    pub(super) fn taps(&self) -> usize {
        self.source_taps / self.copies
    }

    /// The channel of the input that `channel` is a copy of, and by how many of its positions it is shifted.
    pub(super) fn source(&self, channel: usize) -> (usize, usize) {
        (channel / self.copies, channel % self.copies * self.distance)
    }

    /// How far apart the inputs of neighbouring channels lie in the weight, where all of them do.
    #[inline(always)]
    pub(super) fn distance_of_channels(&self) -> Option<usize> {
        (self.copies == 1).then_some(self.source_taps)
    }

    /// Which input of the weight `channel` has at `tap`.
    #[inline(always)]
    pub(super) fn input(&self, channel: usize, tap: usize) -> usize {
        channel / self.copies * self.source_taps + tap * self.copies + channel % self.copies
    }

    /// Positions of a row of outputs along the first axis.
    pub(super) fn row(&self) -> usize {
        window::outputs(&self.axes) / self.axes[0].output.max(1)
    }

    /// The block of some rows of outputs along the first axis.
    pub(super) fn block(&self, rows: Range<usize>) -> Block {
        let mut block = Block::new(&self.axes, &self.grid, rows);
        if self.copies > 1 {
            block.in_place = None;
        }
        block
    }
}
