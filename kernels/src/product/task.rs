//! A part of a product with outputs of its own: some rows by some panels of outputs, on one thread.

use std::ops::Range;

use half::{bf16, f16};

use super::{
    Epilogue, PANEL_OUTPUTS, PanelElements,
    coded::{CodedFew, CodedPanels},
    few::Few,
    panels::{self, Panels, RUN, Weight},
    plain_matrix::{PlainElements, PlainFew, PlainMatrix},
    tile::{self, AddTile, AddTiles, MOST_VECTORS, RowsLeft},
};
use crate::{
    ahead::CacheLine,
    matrix::Matrix,
    scratch::scratch,
    simd::{LANES, Routine, Simd},
};

/// Up to this many rows a product is bound by reading the weight: it is read once, in order.
pub(super) const FEW_ROWS: usize = 4;

/// Up to this many tiles of rows, a weight in panels is still read in order and converted in registers.
const SEVERAL_TILES: usize = 2;

/// Inputs between those that the first rows multiply and those they ask for.
const AHEAD: usize = 32;

/// Rows between the one that is copied and the one that is asked for.
const ROWS_AHEAD: usize = 8;

/// What the reduction of the first inputs begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Zero: what the output held is overwritten.
    #[default]
    Zero,
    /// What the output holds.
    Output,
}

/// The right side of a product.
#[derive(Clone, Copy)]
pub(super) enum Operand<'a> {
    /// The panels of this part, one behind the other.
    Panels(PanelElements<'a>),
    /// The panels of this part, in codes.
    Coded(CodedPanels<'a>),
    /// A whole matrix that is not in panels.
    Plain(PlainMatrix<'a>),
}

/// Where the products of a run go, and how.
#[derive(Clone, Copy)]
struct Place {
    /// First output.
    output: usize,
    /// How many inputs ahead the first rows ask for.
    ahead: usize,
    /// Whether outputs are overwritten.
    fresh: bool,
}

/// Some panels of outputs of a product.
#[derive(Clone)]
pub(super) struct Part<'a> {
    pub operand: Operand<'a>,
    pub inputs: Range<usize>,
    pub panels: usize,
    pub first_output: usize,
}

/// Some rows of a [`Part`].
pub(super) struct Task<'a, 'o> {
    pub x: Matrix<'a>,
    pub first_row: usize,
    pub part: Part<'a>,
    /// The outputs of these panels, row by row.
    pub out: &'a mut [&'o mut [f32]],
    pub start: Start,
    pub epilogue: Epilogue<'a>,
}

impl Routine for &mut Task<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.part.operand {
            Operand::Panels(elements) => self.multiply_panels(simd, elements),
            Operand::Coded(weight) => self.multiply_coded(simd, weight),
            Operand::Plain(matrix) => self.multiply_plain(simd, matrix),
        }
        if self.part.inputs.end == self.x.columns() && !self.epilogue.is_empty() {
            self.epilogue.apply_to_rows(simd, self.first_row, self.part.first_output, self.out);
        }
    }
}

/// Runs of inputs of panels, as f32.
trait Runs {
    /// Inputs `inputs` of panel `panel` of a task, where they lie or written to `wide`.
    fn run<'w, S: Simd>(
        &'w self,
        simd: S,
        task: &Task<'_, '_>,
        panel: usize,
        inputs: Range<usize>,
        wide: &'w mut [[f32; LANES]],
    ) -> &'w [[f32; LANES]];

    /// Memory that this run is read from, as far as it can be asked for.
    fn lines(&self, panel: usize, inputs: Range<usize>) -> &[CacheLine];
}

impl Runs for Panels<'_> {
    #[inline(always)]
    fn run<'w, S: Simd>(
        &'w self,
        simd: S,
        _task: &Task<'_, '_>,
        panel: usize,
        inputs: Range<usize>,
        wide: &'w mut [[f32; LANES]],
    ) -> &'w [[f32; LANES]] {
        self.in_f32(simd, panel, inputs, wide.as_flattened_mut())
    }

    #[inline(always)]
    fn lines(&self, panel: usize, inputs: Range<usize>) -> &[CacheLine] {
        self.bytes(panel, inputs).as_chunks().0
    }
}

impl Runs for PlainMatrix<'_> {
    #[inline(always)]
    fn run<'w, S: Simd>(
        &'w self,
        simd: S,
        task: &Task<'_, '_>,
        panel: usize,
        inputs: Range<usize>,
        wide: &'w mut [[f32; LANES]],
    ) -> &'w [[f32; LANES]] {
        let first = task.part.first_output + panel * PANEL_OUTPUTS;
        self.fill_panel(simd, first, inputs, wide);
        wide
    }

    /// Rows are far from each other, and each is a line at most.
    #[inline(always)]
    fn lines(&self, _panel: usize, _inputs: Range<usize>) -> &[CacheLine] {
        &[]
    }
}

impl Runs for CodedPanels<'_> {
    #[inline(always)]
    fn run<'w, S: Simd>(
        &'w self,
        simd: S,
        task: &Task<'_, '_>,
        panel: usize,
        inputs: Range<usize>,
        wide: &'w mut [[f32; LANES]],
    ) -> &'w [[f32; LANES]] {
        self.decode(simd, panel, task.part.inputs.start + inputs.start, wide);
        wide
    }

    /// Codes are few, and decoding takes longer than reading them.
    #[inline(always)]
    fn lines(&self, _panel: usize, _inputs: Range<usize>) -> &[CacheLine] {
        &[]
    }
}

impl Task<'_, '_> {
    /// Whether what the outputs hold is overwritten.
    fn is_fresh(&self) -> bool {
        self.start == Start::Zero && self.part.inputs.start == 0
    }

    /// Outputs that are overwritten are what the sums of several runs begin with.
    fn clear(&mut self) {
        if self.is_fresh() {
            self.out.iter_mut().for_each(|outputs| outputs.fill(0.0));
        }
    }

    /// The product with panels of a weight: many rows read them as f32, few as they are.
    #[inline(always)]
    fn multiply_panels<S: Simd>(&mut self, simd: S, elements: PanelElements<'_>) {
        if self.out.len() > SEVERAL_TILES * S::TILE_ROWS {
            return self.many(simd, &Panels::new(elements, self.part.inputs.len()));
        }
        self.clear();
        match elements {
            PanelElements::F32(elements) => self.some_panels::<S, f32>(simd, elements),
            PanelElements::F16(elements) => self.some_panels::<S, f16>(simd, elements),
            PanelElements::Bf16(elements) => self.some_panels::<S, bf16>(simd, elements),
        }
    }

    /// The product of some rows with panels.
    #[inline(always)]
    fn some_panels<S: Simd, W: Weight>(&mut self, simd: S, elements: &[W]) {
        match self.out.len() {
            1 => self.few::<S, W, 1>(simd, elements),
            2 => self.few::<S, W, 2>(simd, elements),
            3 => self.few::<S, W, 3>(simd, elements),
            FEW_ROWS => self.few::<S, W, FEW_ROWS>(simd, elements),
            _ => self.several::<S, W>(simd, elements),
        }
    }

    #[inline(always)]
    fn few<S: Simd, W: Weight, const ROWS: usize>(&mut self, simd: S, elements: &[W]) {
        let x = self.x.part(self.first_row, ROWS, self.part.inputs.clone());
        simd.run(Few::<W, ROWS> { x, panels: self.part.panels, elements, out: self.out });
    }

    /// The product with a matrix that is not in panels: many rows read it as f32, few as it is.
    #[inline(always)]
    fn multiply_plain<S: Simd>(&mut self, simd: S, matrix: PlainMatrix<'_>) {
        if self.x.rows() > FEW_ROWS {
            return self.many(simd, &matrix);
        }
        self.clear();
        match matrix.elements {
            PlainElements::F32(elements) => self.some_plain::<S, f32>(simd, matrix, elements),
            PlainElements::F16(elements) => self.some_plain::<S, f16>(simd, matrix, elements),
            PlainElements::Bf16(elements) => self.some_plain::<S, bf16>(simd, matrix, elements),
        }
    }

    /// The product of few rows with a matrix that is not in panels.
    #[inline(always)]
    fn some_plain<S: Simd, W: Weight>(&mut self, simd: S, matrix: PlainMatrix<'_>, elements: &[W]) {
        match self.x.rows() {
            1 => self.few_plain::<S, W, 1>(simd, matrix, elements),
            2 => self.few_plain::<S, W, 2>(simd, matrix, elements),
            3 => self.few_plain::<S, W, 3>(simd, matrix, elements),
            FEW_ROWS => self.few_plain::<S, W, FEW_ROWS>(simd, matrix, elements),
            _ => {}
        }
    }

    #[inline(always)]
    fn few_plain<S: Simd, W: Weight, const ROWS: usize>(&mut self, simd: S, matrix: PlainMatrix<'_>, elements: &[W]) {
        let Self { x, part, out, .. } = self;
        simd.run(PlainFew::<W, ROWS> { x: *x, matrix, elements, first_output: part.first_output, out });
    }

    /// The product with a weight of codes.
    #[inline(always)]
    fn multiply_coded<S: Simd>(&mut self, simd: S, weight: CodedPanels<'_>) {
        if self.out.len() > FEW_ROWS {
            return self.many(simd, &weight);
        }
        self.clear();
        let mut row = 0;
        while row < self.out.len() {
            let rows = [FEW_ROWS, 2].into_iter().find(|&rows| rows <= self.out.len() - row).unwrap_or(1);
            match rows {
                FEW_ROWS => self.few_coded::<S, FEW_ROWS>(simd, weight, row),
                2 => self.few_coded::<S, 2>(simd, weight, row),
                _ => self.few_coded::<S, 1>(simd, weight, row),
            }
            row += rows;
        }
    }

    #[inline(always)]
    fn few_coded<S: Simd, const ROWS: usize>(&mut self, simd: S, weight: CodedPanels<'_>, row: usize) {
        let x = self.x.part(self.first_row + row, ROWS, self.part.inputs.clone());
        let (panels, first_input) = (self.part.panels, self.part.inputs.start);
        simd.run(CodedFew::<ROWS> { weight, panels, x, first_input, out: &mut self.out[row..row + ROWS] });
    }

    /// More rows, but so few that reading the weight counts: some panels after another, each to its end.
    #[inline(always)]
    fn several<S: Simd, W: Weight>(&mut self, simd: S, elements: &[W]) {
        let mut end = 0;
        while end < self.part.panels {
            let first_panel = end;
            let panels = panels_together::<S>(self.part.panels - first_panel);
            end += panels;
            for first_input in (0..self.part.inputs.len()).step_by(RUN) {
                let length = RUN.min(self.part.inputs.len() - first_input);
                let mut weights = [&[][..]; MOST_VECTORS];
                for (panel, weights) in weights[..panels].iter_mut().enumerate() {
                    let groups = panels::groups(elements, self.part.inputs.len(), first_panel + panel);
                    *weights = &groups[first_input / W::GROUP..];
                }
                let first = self.part.inputs.start + first_input;
                let x = self.x.part(self.first_row, self.out.len(), first..first + length);
                let place = Place { output: first_panel * PANEL_OUTPUTS, ahead: AHEAD, fresh: false };
                self.column_of_tiles::<S, W>(simd, (x, 0), place, &weights[..panels]);
            }
        }
    }

    /// Many rows: a run of inputs of a tile's panels stays in the first-level cache while all rows pass by, and the rows' inputs
    /// stay in the second-level cache for all panels.
    #[inline(always)]
    fn many<S: Simd>(&mut self, simd: S, weights: &impl Runs) {
        let (rows, panels, inputs) = (self.out.len(), self.part.panels, self.part.inputs.len());
        let fresh = self.is_fresh();
        if inputs == 0 {
            self.clear();
        }
        let whole = self.x.part(self.first_row, rows, self.part.inputs.clone());
        let lies_near = inputs <= RUN && whole.as_chunks::<RUN>().is_some();
        let mut copy = scratch(if lies_near { 0 } else { rows * RUN });
        let mut wide = scratch(MOST_VECTORS * RUN * LANES);
        for first_input in (0..inputs).step_by(RUN) {
            let length = RUN.min(inputs - first_input);
            let first = self.part.inputs.start + first_input;
            let far = self.x.part(self.first_row, rows, first..first + length);
            let near = match far.as_chunks::<RUN>() {
                Some(near) if lies_near => near,
                Some(_) | None => copy_rows(simd, far, &mut copy),
            };
            let x = Matrix::with_stride(near.as_flattened(), rows, length, RUN);
            let mut end = 0;
            while end < panels {
                let first_panel = end;
                let panels = panels_together::<S>(panels - first_panel);
                end += panels;
                let mut runs = [&[][..]; MOST_VECTORS];
                for (panel, wide) in wide.chunks_mut(RUN * LANES).take(panels).enumerate() {
                    let wide = &mut wide.as_chunks_mut().0[..length];
                    let run = first_input..first_input + length;
                    runs[panel] = weights.run(simd, self, first_panel + panel, run, wide);
                }
                let place = Place { output: first_panel * PANEL_OUTPUTS, ahead: 0, fresh: fresh && first_input == 0 };
                let next = self.next_lines::<S>(weights, end, first_input..first_input + length);
                let whole = match runs {
                    runs if const { S::TILE_ROWS == 8 && S::TILE_VECTORS == 3 } && panels == 3 => {
                        self.whole_tiles::<S, 8, 3>(simd, near, length, place, runs, next)
                    }
                    [first, second, _] if const { S::TILE_ROWS == 8 && S::TILE_VECTORS == 3 } && panels == 2 => {
                        self.whole_tiles::<S, 8, 2>(simd, near, length, place, [first, second], next)
                    }
                    [first, ..] if const { S::TILE_ROWS == 6 && S::TILE_VECTORS == 1 } => {
                        self.whole_tiles::<S, 6, 1>(simd, near, length, place, [first], next)
                    }
                    _ => 0,
                };
                self.column_of_tiles::<S, f32>(simd, (x, whole), place, &runs[..panels]);
            }
        }
    }

    /// Memory of the runs that are read after these inputs of the panels before `panel`.
    #[inline(always)]
    fn next_lines<'w, S: Simd>(
        &self,
        weights: &'w impl Runs,
        panel: usize,
        inputs: Range<usize>,
    ) -> [&'w [CacheLine]; MOST_VECTORS] {
        let (first, inputs) = if panel < self.part.panels {
            (panel, inputs)
        } else {
            (0, inputs.end..self.part.inputs.len().min(inputs.end + RUN))
        };
        let mut lines = [&[][..]; MOST_VECTORS];
        for (index, lines) in lines.iter_mut().take(panels_together::<S>(self.part.panels - first)).enumerate() {
            *lines = weights.lines(first + index, inputs.clone());
        }
        lines
    }

    /// Adds the product of rows that fill whole tiles, of a run of inputs, and a tile's panels, where all have whole vectors of
    /// outputs; gives how many rows.
    #[inline(always)]
    fn whole_tiles<S: Simd, const ROWS: usize, const PANELS: usize>(
        &mut self,
        simd: S,
        near: &[[f32; RUN]],
        length: usize,
        Place { output, fresh, ahead: _ }: Place,
        panels: [&[[f32; LANES]]; PANELS],
        next: [&[CacheLine]; MOST_VECTORS],
    ) -> usize {
        if self.out.iter().any(|outputs| outputs.len() < output + PANELS * PANEL_OUTPUTS) {
            return 0;
        }
        let mut near = near.as_chunks::<ROWS>().0;
        if tile::ends_with_fours::<S>(self.out.len())
            && let Some((_, before)) = near.split_last()
        {
            near = before;
        }
        simd.run(AddTiles::<ROWS, PANELS> { near, panels, length, out: self.out, first: output, fresh, next });
        near.len() * ROWS
    }

    /// Adds the product of the rows of `x` (one run of inputs) from one on and up to three panels.
    #[inline(always)]
    fn column_of_tiles<S: Simd, W: Weight>(
        &mut self,
        simd: S,
        (x, first): (Matrix<'_>, usize),
        place: Place,
        weights: &[&[W::Group]],
    ) {
        let mut row = first;
        while row < x.rows() {
            let place = Place { ahead: if row == 0 { place.ahead } else { 0 }, ..place };
            let rows = tile::tile_rows::<S>(x.rows() - row);
            match rows {
                8 if const { S::TILE_ROWS == 8 } => self.row_of_tiles::<S, W, 8>(simd, x, row, place, weights),
                6 if const { S::TILE_ROWS == 6 } => self.row_of_tiles::<S, W, 6>(simd, x, row, place, weights),
                4 => self.row_of_tiles::<S, W, 4>(simd, x, row, place, weights),
                2 => self.row_of_tiles::<S, W, 2>(simd, x, row, place, weights),
                _ => self.row_of_tiles::<S, W, 1>(simd, x, row, place, weights),
            }
            row += rows;
        }
    }

    /// A few rows by up to three panels.
    #[inline(always)]
    fn row_of_tiles<S: Simd, W: Weight, const ROWS: usize>(
        &mut self,
        simd: S,
        x: Matrix<'_>,
        row: usize,
        Place { output, ahead, fresh }: Place,
        weights: &[&[W::Group]],
    ) {
        let mut left = [&[][..]; ROWS];
        for (index, left) in left.iter_mut().enumerate() {
            *left = x.row(row + index);
        }
        let (left, length) = (RowsLeft(left), x.columns());
        let out = &mut self.out[row..row + ROWS];
        if const { S::TILE_VECTORS == 3 }
            && let &[first, second, third] = weights
        {
            let panels = [first, second, third];
            simd.run(AddTile::<W, _, ROWS, 3> { left, panels, length, out, first: output, ahead, fresh });
            return;
        }
        if const { S::TILE_VECTORS == 3 }
            && let &[first, second] = weights
        {
            let panels = [first, second];
            simd.run(AddTile::<W, _, ROWS, 2> { left, panels, length, out, first: output, ahead, fresh });
            return;
        }
        for (panel, &weights) in weights.iter().enumerate() {
            let first = output + panel * PANEL_OUTPUTS;
            simd.run(AddTile::<W, _, ROWS, 1> { left, panels: [weights], length, out, first, ahead, fresh });
        }
    }
}

/// The rows of a run of inputs, one behind the other, each with room for a whole run.
#[inline(always)]
fn copy_rows<'c, S: Simd>(simd: S, far: Matrix<'_>, copy: &'c mut [f32]) -> &'c [[f32; RUN]] {
    let (rows, length) = (far.rows(), far.columns());
    let copy = &mut copy.as_chunks_mut().0[..rows];
    for (row, near) in copy.iter_mut().enumerate() {
        // A run of a row is too short for the processor to ask for by itself.
        if row + ROWS_AHEAD < rows {
            let next = far.row(row + ROWS_AHEAD);
            (0..length).step_by(LANES).for_each(|input| simd.prefetch(next, input));
        }
        near[..length].copy_from_slice(far.row(row));
    }
    copy
}

/// Panels of the next tile, if `left` are left: one alone would have half of the sums in flight that two have.
#[inline(always)]
fn panels_together<S: Simd>(left: usize) -> usize {
    if const { S::TILE_VECTORS == 3 } && left == 4 { 2 } else { left.min(S::TILE_VECTORS) }
}
