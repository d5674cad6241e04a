//! Convolution by gathered blocks of positions, for any number of groups, axes, strides and dilations.

use std::ops::Range;

use super::{
    ConvolutionEpilogue, ConvolutionShape, ConvolutionWeight, depthwise,
    direct::{Block, Grid},
    few,
    finish::Finish,
    gather::Gather,
    winograd,
};
use crate::{
    product::{
        PANEL_OUTPUTS, PanelElements, PanelPiece, Panels, PlainElements, PlainLayout, PlainMatrix, RUN, panels_of, tile,
    },
    scratch::scratch,
    simd::{Instructions, LANES, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// Positions of a task: their run of inputs and the outputs of some hundred channels stay in the second-level cache.
const MOST_POSITIONS: usize = 24 * LANES;

/// Fewest positions that a task is cut down to for the sake of threads: a row of three vectors.
const FEWEST_POSITIONS: usize = 3 * LANES;

/// Inputs of a panel of gathered positions in memory: one more than a run, so that panels do not fall on the same cache sets.
pub(super) const PANEL_INPUTS: usize = RUN + 1;

/// `out = x * weight`, then the epilogue.
///
/// A weight in panels may come in pieces as in a product: the first piece of a panel (inputs from 0) overwrites the
/// output, later ones add to it, the last one is followed by the epilogue.
///
/// # Panics
/// If lengths disagree with the shape.
pub fn convolution(
    instructions: Instructions,
    shape: &ConvolutionShape,
    x: &[f32],
    weight: ConvolutionWeight<'_>,
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    assert_eq!(x.len(), shape.inputs(), "inputs of {shape:?}");
    assert_eq!(out.len(), shape.outputs(), "outputs of {shape:?}");
    epilogue.check(shape.groups * shape.group_outputs, out.len());
    if out.is_empty() {
        return;
    }
    match weight {
        ConvolutionWeight::Panels(pieces) => by_panels(instructions, shape, x, pieces, out, epilogue),
        ConvolutionWeight::Plain(weight) if shape.group_inputs == 1 => {
            depthwise(instructions, shape, x, weight, out, epilogue);
        }
        ConvolutionWeight::Plain(weight) => {
            let packed = pack(instructions, shape, weight);
            let panels = 0..packed.len() / (shape.depth() * PANEL_OUTPUTS).max(1);
            // Without terms there is nothing to pack, but still outputs to complete.
            let panels = if shape.depth() == 0 { 0..shape.groups * group_panels(shape) } else { panels };
            let piece = PanelPiece { panels, inputs: 0..shape.depth(), elements: PanelElements::F32(&packed) };
            by_panels(instructions, shape, x, &[piece], out, epilogue);
        }
    }
}

/// Panels of one group.
fn group_panels(shape: &ConvolutionShape) -> usize {
    shape.group_outputs.div_ceil(PANEL_OUTPUTS)
}

/// The panels of all groups of a plain weight.
pub(super) fn pack(instructions: Instructions, shape: &ConvolutionShape, weight: &[f32]) -> Vec<f32> {
    let (outputs, depth) = (shape.group_outputs, shape.depth());
    assert_eq!(weight.len(), shape.groups * outputs * depth, "weights of {shape:?}");
    let mut groups = vec![Vec::new(); shape.groups];
    threads::chunks(&mut groups, 1, |group, packed| {
        let weight = &weight[group * outputs * depth..];
        let weight = PlainElements::F32(&weight[..outputs * depth]);
        packed[0] = panels_of(instructions, PlainMatrix::new(weight, PlainLayout::InputsInner, depth, outputs));
    });
    groups.concat()
}

/// Everything that tasks have in common.
struct Common<'a> {
    shape: &'a ConvolutionShape,
    axes: Vec<WindowAxis>,
    /// Where positions are read from padded copies of channels.
    grid: Option<Grid>,
    x: &'a [f32],
    epilogue: ConvolutionEpilogue<'a>,
}

/// A part of a convolution: some positions of one image by some panels of one group.
struct Task<'a> {
    common: &'a Common<'a>,
    image: usize,
    group: usize,
    positions: Range<usize>,
    /// Within the group.
    panels: Range<usize>,
    inputs: Range<usize>,
    elements: PanelElements<'a>,
    /// The outputs of these channels at these positions, channel by channel.
    out: Vec<&'a mut [f32]>,
}

/// The convolution with pieces of a weight in panels.
fn by_panels(
    instructions: Instructions,
    shape: &ConvolutionShape,
    x: &[f32],
    pieces: &[PanelPiece<'_>],
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let mut next = 0;
    for piece in pieces {
        assert!(next <= piece.panels.start, "panels {:?} after panel {next}", piece.panels);
        piece.check(shape.depth(), shape.groups * group_panels(shape));
        next = piece.panels.end;
    }
    if few::fits(shape, pieces) {
        return few::convolution(instructions, shape, x, pieces, out, epilogue);
    }
    // Pieces of some inputs of their panels are sums of their own, which the transformed ones cannot take up.
    let (whole, rest): (Vec<_>, Vec<_>) = pieces.iter().partition(|piece| piece.inputs.len() == shape.depth());
    if !whole.is_empty() && winograd::planes::fits(shape) && winograd::are_small(instructions, x) {
        winograd::planes::convolution(instructions, shape, x, &whole, out, epilogue);
        let rest: Vec<PanelPiece<'_>> = rest.into_iter().cloned().collect();
        return in_blocks(instructions, shape, x, &rest, out, epilogue);
    }
    in_blocks(instructions, shape, x, pieces, out, epilogue);
}

/// The convolution, block of positions by block of positions.
fn in_blocks(
    instructions: Instructions,
    shape: &ConvolutionShape,
    x: &[f32],
    pieces: &[PanelPiece<'_>],
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let axes = window::joined(&shape.axes);
    let common = Common { shape, grid: Grid::new(&axes), axes, x, epilogue };
    let tasks = split(&common, pieces, out);
    threads::each_mut(tasks, |task| instructions.run(task));
}

/// Cuts a convolution into tasks with outputs of their own.
fn split<'a>(common: &'a Common<'a>, pieces: &'a [PanelPiece<'a>], out: &'a mut [f32]) -> Vec<Task<'a>> {
    let shape = common.shape;
    let positions = window::outputs(&shape.axes);
    let panels: usize = pieces.iter().map(|piece| piece.panels.len()).sum();
    let depth = pieces.iter().map(|piece| piece.inputs.len()).max().unwrap_or(0);
    let operations = shape.batch * positions * panels * PANEL_OUTPUTS * depth;
    // Images and groups are tasks of their own; positions are shared out next, as panels of one task share what is gathered.
    // Each task copies what it reads: few large ones copy less.
    let parts = threads::parts(operations, usize::MAX).div_ceil(2 * shape.batch * shape.groups);
    let positions_each = match &common.grid {
        Some(grid) => {
            let rows = common.axes[0].output;
            grid.rows_each(rows, shape.group_inputs, parts) * (positions / rows)
        }
        None => positions.div_ceil(parts).next_multiple_of(FEWEST_POSITIONS).clamp(FEWEST_POSITIONS, MOST_POSITIONS),
    };
    let panels_each = panels.div_ceil(shape.groups).div_ceil(parts.div_ceil(positions.div_ceil(positions_each))).max(1);

    let runs: Vec<(usize, Range<usize>, &PanelPiece<'_>)> =
        pieces.iter().flat_map(|piece| group_runs(piece, group_panels(shape), panels_each)).collect();
    let mut tasks = Vec::new();
    for (image, out) in out.chunks_mut(shape.groups * shape.group_outputs * positions).enumerate() {
        let mut rest = out;
        let mut channel = 0;
        for (group, panels, piece) in &runs {
            let first = group * shape.group_outputs + panels.start * PANEL_OUTPUTS;
            let end = group * shape.group_outputs + (panels.end * PANEL_OUTPUTS).min(shape.group_outputs);
            let (own, after) = rest.split_at_mut((end - channel) * positions);
            let (_, own) = own.split_at_mut((first - channel) * positions);
            (rest, channel) = (after, end);
            let begin = tasks.len();
            for first in (0..positions).step_by(positions_each) {
                let place = group * group_panels(shape) + panels.start..group * group_panels(shape) + panels.end;
                tasks.push(Task {
                    common,
                    image,
                    group: *group,
                    positions: first..positions.min(first + positions_each),
                    panels: panels.clone(),
                    inputs: piece.inputs.clone(),
                    elements: piece.elements_of(place),
                    out: Vec::new(),
                });
            }
            for row in own.chunks_mut(positions) {
                for (task, part) in tasks[begin..].iter_mut().zip(row.chunks_mut(positions_each)) {
                    task.out.push(part);
                }
            }
        }
    }
    tasks
}

/// Cuts a piece at the borders of groups, and into at most `panels_each` panels: (group, panels within it, piece).
fn group_runs<'p, 'a>(
    piece: &'p PanelPiece<'a>,
    group_panels: usize,
    panels_each: usize,
) -> Vec<(usize, Range<usize>, &'p PanelPiece<'a>)> {
    let mut runs = Vec::new();
    let mut panel = piece.panels.start;
    while panel < piece.panels.end {
        let (group, first) = (panel / group_panels, panel % group_panels);
        let end = (first + panels_each).min(group_panels).min(first + piece.panels.end - panel);
        runs.push((group, first..end, piece));
        panel += end - first;
    }
    runs
}

impl Routine for &mut Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if self.inputs.start == 0 && self.common.grid.is_none() {
            self.out.iter_mut().for_each(|outputs| outputs.fill(0.0));
        }
        self.multiply(simd);
        if self.is_last() && self.common.grid.is_none() {
            for row in 0..self.out.len() {
                let (channel, place) = (self.channel(row), self.place(row));
                self.common.epilogue.apply(simd, channel, place, self.out[row]);
            }
        }
    }
}

impl<'a> Task<'a> {
    /// Whether the outputs are complete afterwards.
    fn is_last(&self) -> bool {
        self.inputs.end == self.common.shape.depth()
    }

    /// The output channel, of all groups, of a row of outputs.
    fn channel(&self, row: usize) -> usize {
        self.group * self.common.shape.group_outputs + self.panels.start * PANEL_OUTPUTS + row
    }

    /// Where a row of outputs begins in the whole output.
    fn place(&self, row: usize) -> usize {
        let shape = self.common.shape;
        let channel = self.image * shape.groups * shape.group_outputs + self.channel(row);
        channel * window::outputs(&shape.axes) + self.positions.start
    }

    /// What follows for a row of complete outputs.
    fn finish(&self, row: usize) -> Finish<'a> {
        if !self.is_last() {
            return Finish::default();
        }
        Finish::of(self.common.epilogue, self.channel(row), self.place(row))
    }

    /// Adds the product of gathered positions and panels, run by run of the inputs.
    #[inline(always)]
    fn multiply<S: Simd>(&mut self, simd: S) {
        let panels = Panels::new(self.elements, self.inputs.len());
        let common = self.common;
        let channels = common.shape.groups * common.shape.group_inputs;
        let plane = window::inputs(&common.axes);
        let first_channel = self.image * channels + self.group * common.shape.group_inputs;
        let image = &common.x[first_channel * plane..][..common.shape.group_inputs * plane];

        if let Some(grid) = &common.grid {
            let row = window::outputs(&common.axes) / common.axes[0].output;
            let rows = self.positions.start / row..self.positions.end / row;
            let block = Block::new(&common.axes, grid, rows);
            let mut out = std::mem::take(&mut self.out);
            let finish = |row: usize| self.finish(row);
            block.multiply(simd, (image, plane), self.inputs.clone(), panels, &mut out, finish);
            self.out = out;
            return;
        }
        let mut gather = Gather::new(&common.axes, self.positions.clone());
        let mut packed = vec![[0.0; LANES]; gather.vectors() * PANEL_INPUTS];
        let mut wide = scratch(if panels.are_f32() { 0 } else { RUN * LANES });
        for first_input in (0..self.inputs.len()).step_by(RUN) {
            let length = RUN.min(self.inputs.len() - first_input);
            let first = self.inputs.start + first_input;
            gather.gather(simd, image, first..first + length, &mut packed, PANEL_INPUTS);
            for (panel, out) in self.out.chunks_mut(PANEL_OUTPUTS).enumerate() {
                let weights = panels.in_f32(simd, panel, first_input..first_input + length, &mut wide);
                multiply_panel(simd, weights.as_flattened(), &packed, length, out);
            }
        }
    }
}

/// Adds one panel of channels by all gathered positions over one run of inputs.
#[inline(always)]
pub(super) fn multiply_panel<S: Simd>(
    simd: S,
    weight: &[f32],
    packed: &[[f32; LANES]],
    length: usize,
    out: &mut [&mut [f32]],
) {
    let mut vectors = packed.chunks(PANEL_INPUTS);
    let mut first = 0;
    while let Some(vector) = vectors.next() {
        if const { S::TILE_VECTORS == 3 }
            && let Some([second, third]) = next_two(&mut vectors)
        {
            column_of_tiles::<S, 3>(simd, weight, [vector, second, third], length, out, first);
            first += 3 * LANES;
            continue;
        }
        column_of_tiles::<S, 1>(simd, weight, [vector], length, out, first);
        first += LANES;
    }
}

/// The next two, if there are two.
#[inline(always)]
fn next_two<'a>(vectors: &mut std::slice::Chunks<'a, [f32; LANES]>) -> Option<[&'a [[f32; LANES]]; 2]> {
    let mut after = vectors.clone();
    let two = [after.next()?, after.next()?];
    *vectors = after;
    Some(two)
}

/// All channels of a panel by up to three vectors of positions, of which the first begins at position `first`.
#[inline(always)]
fn column_of_tiles<S: Simd, const VECTORS: usize>(
    simd: S,
    weight: &[f32],
    vectors: [&[[f32; LANES]]; VECTORS],
    length: usize,
    out: &mut [&mut [f32]],
    first: usize,
) {
    let mut row = 0;
    while row < out.len() {
        let rows = tile::tile_rows::<S>(out.len() - row);
        let (weight, out) = (&weight[row..], &mut out[row..row + rows]);
        match rows {
            8 if const { S::TILE_ROWS == 8 } => one_tile::<S, 8, VECTORS>(simd, weight, vectors, length, out, first),
            6 if const { S::TILE_ROWS == 6 } => one_tile::<S, 6, VECTORS>(simd, weight, vectors, length, out, first),
            4 => one_tile::<S, 4, VECTORS>(simd, weight, vectors, length, out, first),
            2 => one_tile::<S, 2, VECTORS>(simd, weight, vectors, length, out, first),
            _ => one_tile::<S, 1, VECTORS>(simd, weight, vectors, length, out, first),
        }
        row += rows;
    }
}

/// Some channels by up to three vectors of positions.
#[inline(always)]
fn one_tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    weight: &[f32],
    panels: [&[[f32; LANES]]; VECTORS],
    length: usize,
    out: &mut [&mut [f32]],
    first: usize,
) {
    let left = tile::PanelLeft(weight);
    simd.run(tile::AddTile::<f32, _, ROWS, VECTORS> { left, panels, length, out, first, ahead: 0, fresh: false });
}
