//! Products of f32 activations with the values that codes stand for.

use super::{
    layout::CodedLayout,
    pieces::{CodedPanels, CodedPart, CodedPiece, OpenPanels},
};
use crate::{
    matrix::{Matrix, MatrixMut},
    product::{
        Epilogue, PANEL_OUTPUTS, Start,
        multiply::{Cut, run_parts},
        panels::RUN,
        task::{Operand, Part},
    },
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// `out[m, n] (+)= x[m, k] · w[k, n]`, as far as `pieces` of `w` reach, with the bits of the product with decoded values.
///
/// The first piece of a panel (inputs from 0) begins as `start` says, later ones add to the output, the last one
/// (inputs to k) is followed by the epilogue. `pieces` are in order of panels, and none has a panel twice; pieces of the
/// same panel come in separate calls with the same `open`, in order of inputs.
///
/// # Panics
/// If shapes disagree, or pieces are not in order.
#[allow(clippy::too_many_arguments, reason = "a product and what it goes on with")]
pub fn coded_product(
    instructions: Instructions,
    x: Matrix<'_>,
    layout: &CodedLayout,
    pieces: &[CodedPiece<'_>],
    open: &mut OpenPanels,
    out: MatrixMut<'_>,
    start: Start,
    epilogue: Epilogue<'_>,
) {
    let rows = x.rows();
    assert_eq!(rows, out.rows(), "a product's rows");
    assert_eq!(x.columns(), layout.inputs(), "a product's inputs");
    if let Some(bias) = epilogue.bias {
        assert_eq!(bias.len(), out.columns(), "a bias is one value for each output");
    }
    open.begin(instructions, layout, pieces, out.columns(), 0);
    let panels = pieces.iter().map(|piece| piece.panels.len()).sum();
    let depth = pieces.iter().map(|piece| piece.inputs.len()).max().unwrap_or(0);
    if rows > 0 && out.columns() > 0 {
        let cut = Cut::new(rows, depth, panels, threads::parts(rows * depth * panels * PANEL_OUTPUTS, usize::MAX));
        let parts: Vec<_> = open.parts(layout, pieces, cut.panels).into_iter().map(operand).collect();
        run_parts(instructions, &cut, (x, &parts), out, start, epilogue);
    }
    open.end(layout, pieces);
}

/// What a task multiplies with.
fn operand(part: CodedPart<'_>) -> Part<'_> {
    Part {
        operand: Operand::Coded(part.weight),
        inputs: part.weight.inputs(),
        panels: part.panels,
        first_output: part.first_output,
    }
}

/// The values of pieces as panels of f32: for each piece `[panels][inputs][16]`.
///
/// `pieces` are as for [`coded_product`].
///
/// # Panics
/// If pieces are not in order, or of another layout with other than `outputs` outputs.
pub fn decoded_panels(
    instructions: Instructions,
    layout: &CodedLayout,
    outputs: usize,
    pieces: &[CodedPiece<'_>],
    open: &mut OpenPanels,
) -> Vec<Vec<f32>> {
    open.begin(instructions, layout, pieces, outputs, 0);
    let length = |piece: &CodedPiece<'_>| piece.panels.len() * piece.inputs.len() * LANES;
    let mut values: Vec<Vec<f32>> = pieces.iter().map(|piece| vec![0.0; length(piece)]).collect();
    let panels = values
        .iter_mut()
        .zip(pieces)
        .flat_map(|(values, piece)| values.chunks_mut((piece.inputs.len() * LANES).max(1)));
    let parts = open.parts(layout, pieces, 1).into_iter().map(|part| part.weight);
    let tasks: Vec<_> = parts.zip(panels).map(|(weight, wide)| DecodePanel { weight, wide }).collect();
    threads::each(tasks, |task| instructions.run(task));
    open.end(layout, pieces);
    values
}

/// Decodes one panel.
struct DecodePanel<'a> {
    weight: CodedPanels<'a>,
    /// `[inputs][16]`.
    wide: &'a mut [f32],
}

impl Routine for DecodePanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let start = self.weight.inputs().start;
        for (run, wide) in self.wide.as_chunks_mut::<LANES>().0.chunks_mut(RUN).enumerate() {
            self.weight.decode(simd, 0, start + run * RUN, wide);
        }
    }
}
