//! Tiles in blocks. A task is a block and some panels; a thread takes those of a block one after another, and transforms its inputs
//! once.

use std::ops::Range;

use super::{ConvolutionEpilogue, ConvolutionShape, OUTPUTS};
use crate::{
    product::{PANEL_OUTPUTS, PanelElements, PanelPiece},
    scratch::{Scratch, scratch},
    threads,
    window::{self, WindowAxis},
};

/// How tiles are cut into blocks.
pub(in crate::convolution) struct Plan<'a> {
    pub shape: &'a ConvolutionShape,
    pub rows: WindowAxis,
    pub columns: WindowAxis,
    /// Tiles of a row of tiles.
    pub tile_columns: usize,
    /// Rows of tiles of a block.
    rows_each: usize,
    /// Channels that lie side by side at each position.
    unit: usize,
    pub epilogue: ConvolutionEpilogue<'a>,
}

/// Some rows of tiles of an image by some panels.
pub(in crate::convolution) struct Block<'a> {
    pub plan: &'a Plan<'a>,
    pub image: usize,
    /// All channels of the image.
    pub x: &'a [f32],
    pub tile_rows: Range<usize>,
    pub first_panel: usize,
    /// The weights of the panels.
    pub elements: PanelElements<'a>,
    /// The outputs of each channel, or of each block of channels: rows of outputs side by side.
    pub out: Vec<&'a mut [f32]>,
}

impl<'a> Plan<'a> {
    /// A plan for windows with two axes; `rows_each` gives about how many rows of tiles a block has, of the channels, the rows of
    /// tiles and the tiles of a row.
    pub(in crate::convolution) fn new(
        shape: &'a ConvolutionShape,
        epilogue: ConvolutionEpilogue<'a>,
        rows_each: fn(usize, usize, usize) -> usize,
        unit: usize,
    ) -> Self {
        let (rows, columns) = (shape.axes[0], shape.axes[1]);
        let (tile_rows, tile_columns) = (rows.output.div_ceil(OUTPUTS), columns.output.div_ceil(OUTPUTS));
        let blocks = tile_rows.div_ceil(rows_each(shape.group_inputs, tile_rows, tile_columns));
        Self { shape, rows, columns, tile_columns, rows_each: tile_rows.div_ceil(blocks), unit, epilogue }
    }

    /// The tasks of a piece of the weight, with outputs of their own: those of a block one after another.
    pub(in crate::convolution) fn blocks<'b>(
        &'b self,
        x: &'b [f32],
        piece: &PanelPiece<'b>,
        out: &'b mut [f32],
    ) -> Vec<Block<'b>> {
        let Plan { shape, rows, columns, rows_each, unit, .. } = *self;
        let (channels, positions) = (shape.group_outputs, window::outputs(&shape.axes));
        let tile_rows = rows.output.div_ceil(OUTPUTS);
        let blocks = tile_rows.div_ceil(rows_each);
        let panels = &piece.panels;
        let (first, end) = (panels.start * PANEL_OUTPUTS, channels.min(panels.end * PANEL_OUTPUTS));
        let panels_each = self.panels_each(panels.len(), blocks, end - first);
        let parts = panels.len().div_ceil(panels_each);
        let image_inputs = shape.group_inputs * window::inputs(&shape.axes);
        let mut tasks = Vec::new();
        for (image, out) in out.chunks_mut(channels * positions).enumerate() {
            let begin = tasks.len();
            for (block, part) in (0..blocks).flat_map(|block| (0..parts).map(move |part| (block, part))) {
                let first_panel = panels.start + part * panels_each;
                let own = first_panel..panels.end.min(first_panel + panels_each);
                tasks.push(Block {
                    plan: self,
                    image,
                    x: &x[image * image_inputs..][..image_inputs],
                    tile_rows: block * rows_each..tile_rows.min((block + 1) * rows_each),
                    first_panel,
                    elements: piece.elements_of(own.clone()),
                    out: Vec::with_capacity(own.len() * PANEL_OUTPUTS / unit),
                });
            }
            let units = panels_each * PANEL_OUTPUTS / unit;
            for (index, channels) in out[first * positions..end * positions].chunks_mut(unit * positions).enumerate() {
                let of_part = tasks[begin + index / units..].iter_mut().step_by(parts);
                let rows = channels.chunks_mut(rows_each * OUTPUTS * columns.output * unit);
                of_part.zip(rows).for_each(|(task, rows)| task.out.push(rows));
            }
        }
        tasks
    }

    /// How many of the panels a task has, of as many blocks of each image: several are multiplied together.
    fn panels_each(&self, panels: usize, blocks: usize, outputs: usize) -> usize {
        let shape = self.shape;
        let windows = shape.batch.saturating_mul(window::outputs(&shape.axes));
        let operations = windows.saturating_mul(shape.depth()).saturating_mul(outputs);
        let parts = threads::parts(operations, usize::MAX).div_ceil(shape.batch * blocks);
        let each = panels.div_ceil(parts).max(1);
        if each > 1 { each.next_multiple_of(2) } else { each }
    }
}

impl Block<'_> {
    /// Tiles of the block.
    pub(in crate::convolution) fn tiles(&self) -> usize {
        self.tile_rows.len() * self.plan.tile_columns
    }

    /// Where the outputs of one of the `unit` channels side by side begin in the whole output.
    pub(in crate::convolution) fn place(&self, index: usize) -> usize {
        let Plan { shape, rows, columns, unit, .. } = self.plan;
        let first_row = self.tile_rows.start * OUTPUTS;
        let unit_index = self.image * (shape.group_outputs / unit) + self.first_panel * (PANEL_OUTPUTS / unit) + index;
        (unit_index * rows.output + first_row) * columns.output * unit
    }
}

/// The transformed inputs of the block that a thread has been at.
#[derive(Default)]
pub(in crate::convolution) struct Transformed {
    /// The image, and the first row of tiles.
    of: Option<(usize, usize)>,
    data: Scratch,
}

impl Transformed {
    /// Room for so many transformed inputs of a block; `None` where they are there, as it is the last one again.
    pub(in crate::convolution) fn room(&mut self, block: &Block<'_>, length: usize) -> Option<&mut [f32]> {
        let of = Some((block.image, block.tile_rows.start));
        if self.of == of {
            return None;
        }
        self.of = of;
        // The thread has it again for what it takes now.
        self.data = Scratch::default();
        self.data = scratch(length);
        Some(&mut self.data)
    }

    pub(in crate::convolution) fn data(&self) -> &[f32] {
        &self.data
    }
}
