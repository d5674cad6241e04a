//! Products of activations rounded to 8 bits with codes, summed as integers.

use super::{
    dynamic_few::{DynamicFew, is_common, shifts},
    dynamic_tile::{DynamicTile, TileState},
    layout::{CodeType, CodedLayout, PanelPart},
    pieces::{CodedPanels, CodedPiece, OpenPanels},
    planes::Parameters,
    rows::DynamicRows,
};
use crate::{
    matrix::MatrixMut,
    product::{
        Epilogue, PANEL_OUTPUTS,
        multiply::Cut,
        shares::{Shares, outputs_of},
        tile,
    },
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// Up to this many rows one panel after another is read from its begin to its end.
pub(in crate::product) const FEW_ROWS: usize = 4;

/// Rows of the largest tile.
const TILE_ROWS: usize = 8;

/// `out[m, n] = x[m, k] · w[k, n]`, as far as `pieces` of `w` reach, of activations rounded to 8 bits.
///
/// In each block of inputs that share all parameters of the weight (at most 65,536) and a scale of activations,
/// `(code - zero point) * activation` is summed exactly. `y = fma(sum, scale, y)` follows block by block from y = 0, where the
/// scale is the weight's, times that of the block of activations if they have blocks. A scale of the row multiplies y at
/// the end. A row with NaN or an infinity gives NaN. Every instruction set gives these bits, whatever the pieces, the rows
/// beside a row, and the threads. Values of the weight are not rounded to its type.
///
/// The last piece of a panel (inputs to k) is followed by the epilogue; between its pieces `out` is kept. `pieces` are in
/// order of panels, and none has a panel twice; pieces of the same panel come in separate calls with the same `open`, in
/// order of inputs.
///
/// # Panics
/// If shapes disagree, pieces are not in order, or codes or zero points are floats ([`CodedLayout::sums_exactly`]).
pub fn dynamic_product(
    instructions: Instructions,
    x: &DynamicRows,
    layout: &CodedLayout,
    pieces: &[CodedPiece<'_>],
    open: &mut OpenPanels,
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
) {
    let rows = x.rows();
    assert!(layout.sums_exactly(), "codes or zero points that are floats have no exact sums");
    assert_eq!(rows, out.rows(), "a product's rows");
    assert_eq!(x.inputs(), layout.inputs(), "a product's inputs");
    if let Some(bias) = epilogue.bias {
        assert_eq!(bias.len(), out.columns(), "a bias is one value for each output");
    }
    open.begin(instructions, layout, pieces, out.columns(), rows);
    let panels = pieces.iter().map(|piece| piece.panels.len()).sum();
    let depth = pieces.iter().map(|piece| piece.inputs.len()).max().unwrap_or(0);
    if rows > 0 && out.columns() > 0 {
        let cut = Cut::new(rows, depth, panels, threads::parts(rows * depth * panels * PANEL_OUTPUTS, usize::MAX));
        let mut parts = open.parts(layout, pieces, cut.panels);
        let mut sums: Vec<_> =
            parts.iter_mut().map(|part| part.sums.take().map(|sums| sums.chunks_mut(cut.rows))).collect();
        let places = parts.iter().map(|part| outputs_of(part.first_output, part.panels));
        let mut shares = Shares::new(cut.rows, places, out.into_rows());
        let shifts = shifts(x, layout);
        let task = |(index, out)| {
            let (rows, part): (usize, usize) = (index / parts.len(), index % parts.len());
            DynamicTask {
                x,
                first_row: rows * cut.rows,
                weight: parts[part].weight,
                panels: parts[part].panels,
                first_output: parts[part].first_output,
                shifts: &shifts,
                out,
                sums: sums[part].as_mut().and_then(Iterator::next),
                epilogue,
            }
        };
        let tasks = shares.iter_mut().enumerate().map(task).collect();
        threads::each_mut(tasks, |task| instructions.run(task));
    }
    open.end(layout, pieces);
}

/// Some rows by some panels.
struct DynamicTask<'a> {
    x: &'a DynamicRows,
    first_row: usize,
    weight: CodedPanels<'a>,
    panels: usize,
    first_output: usize,
    /// Those of all rows for [`DynamicFew`].
    shifts: &'a [i32],
    /// The outputs of these panels, row by row.
    out: &'a mut [&'a mut [f32]],
    /// Sums of these rows that go on, if this is a part of one panel.
    sums: Option<&'a mut [[i32; LANES]]>,
    epilogue: Epilogue<'a>,
}

impl Routine for &mut DynamicTask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let in_registers = self.out.len() <= FEW_ROWS || self.x.block() > 0;
        if const { S::HAS_OWN_LOOPS } && in_registers && is_common(self.weight.layout(), self.x.block()) {
            DynamicFew {
                x: self.x,
                first_row: self.first_row,
                weight: self.weight,
                panels: self.panels,
                shifts: self.shifts,
                out: self.out,
                sums: self.sums.as_deref_mut(),
                exact: None,
                ahead: true,
            }
            .run(simd);
        } else {
            match self.weight.layout().code() {
                CodeType::I8 | CodeType::U8 => self.multiply::<S, 1>(simd),
                CodeType::I4 | CodeType::U4 | CodeType::E2m1 => self.multiply::<S, 2>(simd),
                CodeType::I2 | CodeType::U2 => self.multiply::<S, 4>(simd),
                CodeType::E4m3 | CodeType::E5m2 => unreachable!("sums of floats are not exact"),
            }
        }
        if self.weight.inputs().end == self.x.inputs() {
            complete(simd, self.x, self.first_row, self.first_output, self.out, self.epilogue);
        }
    }
}

/// Multiplies sums over all inputs with the scales of their rows, and applies the epilogue.
#[inline(always)]
pub(in crate::product) fn complete<S: Simd>(
    simd: S,
    x: &DynamicRows,
    first_row: usize,
    first_output: usize,
    out: &mut [&mut [f32]],
    epilogue: Epilogue<'_>,
) {
    if x.block() == 0 {
        for (row, outputs) in out.iter_mut().enumerate() {
            let scale = x.scale(first_row + row);
            for output in outputs.iter_mut() {
                *output *= scale;
            }
        }
    }
    epilogue.apply_to_rows(simd, first_row, first_output, out);
}

impl DynamicTask<'_> {
    /// All rows by all panels; a line has `PARTS` times 4 inputs of an output.
    #[inline(always)]
    fn multiply<S: Simd, const PARTS: usize>(&mut self, simd: S) {
        let several = self.out.len() > FEW_ROWS;
        let mut panel = 0;
        while panel < self.panels {
            if const { S::TILE_VECTORS == 3 } && several && panel + 3 <= self.panels {
                self.column_of_tiles::<S, PARTS, 3>(simd, panel);
                panel += 3;
            } else {
                self.column_of_tiles::<S, PARTS, 1>(simd, panel);
                panel += 1;
            }
        }
    }

    /// All rows by some panels.
    #[inline(always)]
    fn column_of_tiles<S: Simd, const PARTS: usize, const PANELS: usize>(&mut self, simd: S, panel: usize) {
        // A loop, since a closure would not be compiled for the instructions.
        let mut panels = [self.weight.panel(simd, panel); PANELS];
        for (index, own) in panels.iter_mut().enumerate().skip(1) {
            *own = self.weight.panel(simd, panel + index);
        }
        let mut row = 0;
        while row < self.out.len() {
            let left = self.out.len() - row;
            let largest = if S::TILE_VECTORS == 3 { TILE_ROWS } else { 4 };
            let rows = [largest, 4, 2].into_iter().find(|&rows| rows <= left).unwrap_or(1);
            match rows {
                TILE_ROWS if const { S::TILE_VECTORS == 3 } => {
                    self.tile::<S, PARTS, TILE_ROWS, PANELS>(simd, row, panel, &panels)
                }
                4 => self.tile::<S, PARTS, 4, PANELS>(simd, row, panel, &panels),
                2 => self.tile::<S, PARTS, 2, PANELS>(simd, row, panel, &panels),
                _ => self.tile::<S, PARTS, 1, PANELS>(simd, row, panel, &panels),
            }
            row += rows;
        }
    }

    /// A few rows by some panels.
    #[inline(always)]
    fn tile<S: Simd, const PARTS: usize, const ROWS: usize, const PANELS: usize>(
        &mut self,
        simd: S,
        row: usize,
        panel: usize,
        panels: &[(PanelPart<'_>, Parameters); PANELS],
    ) {
        let mut state = TileState { values: [[[0.0; LANES]; PANELS]; ROWS], sums: [[[0; LANES]; PANELS]; ROWS] };
        let goes_on = self.weight.inputs().start > 0;
        for index in 0..ROWS {
            for column in 0..PANELS {
                let outputs = tile::at_most_a_vector(&mut self.out[row + index][(panel + column) * PANEL_OUTPUTS..]);
                if goes_on {
                    state.values[index][column][..outputs.len()].copy_from_slice(outputs);
                }
                if let Some(sums) = &self.sums {
                    state.sums[index][column] = sums[row + index];
                }
            }
        }
        simd.run(DynamicTile::<PARTS, ROWS, PANELS> {
            rows: self.x,
            first_row: self.first_row + row,
            panels,
            state: &mut state,
            ahead: row == 0,
        });
        for index in 0..ROWS {
            for column in 0..PANELS {
                let outputs = tile::at_most_a_vector(&mut self.out[row + index][(panel + column) * PANEL_OUTPUTS..]);
                outputs.copy_from_slice(&state.values[index][column][..outputs.len()]);
                if let Some(sums) = &mut self.sums {
                    sums[row + index] = state.sums[index][column];
                }
            }
        }
    }
}
