//! Rows of rounded activations by panels of codes without zeros.
//!
//! A few rows wait for memory: lines are spread out in registers, or where records have planes, records in the first-level cache,
//! and multiplied there while those behind them are on their way. More rows take what [`sparse_product`] spreads out.

use super::{
    CodedPiece, DynamicRows, Epilogue, OpenPanels, PANEL_OUTPUTS, SparseLayout,
    coded::{CodedPanels, DynamicFew, FEW_ROWS, Parameters, SparseCodes, SparseSums, complete, is_common, shifts},
    dynamic_product,
    sparse::{Near, RECORD_INPUTS, Share, Spread, sparse_product},
    tile,
};
use crate::{
    matrix::MatrixMut,
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// As [`dynamic_product`], with pieces without zeros that have all inputs of their panels.
///
/// # Panics
/// If shapes disagree, or the layout is not one of codes with exact sums.
pub fn sparse_dynamic_product(
    instructions: Instructions,
    x: &DynamicRows,
    layout: &SparseLayout,
    pieces: &[CodedPiece<'_>],
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
) {
    let codes = layout.of_codes();
    assert!(codes.sums_exactly(), "codes or zero points that are floats have no exact sums");
    let is_few = (1..=FEW_ROWS).contains(&x.rows()) && x.inputs() > 0 && out.columns() > 0;
    if !is_few || !instructions.have_own_loops() || !is_common(codes, x.block()) {
        let multiply = |piece: &CodedPiece<'_>, out: MatrixMut<'_>, epilogue: Epilogue<'_>| {
            let (pieces, mut open) = (std::slice::from_ref(piece), OpenPanels::default());
            dynamic_product(instructions, x, codes, pieces, &mut open, out, epilogue);
            Ok(())
        };
        let Ok(()) = sparse_product::<std::convert::Infallible>(instructions, layout, pieces, out, epilogue, &multiply);
        return;
    }
    assert_eq!((x.rows(), x.inputs()), (out.rows(), layout.inputs()), "a product's rows and inputs");
    let shifts = shifts(x, codes);
    let (shares, mut outputs) = layout.shares(pieces, out);
    let task = |(share, out)| Few { x, share, shifts: &shifts, out, epilogue };
    let tasks = shares.into_iter().zip(outputs.iter_mut()).map(task).collect();
    threads::each(tasks, |task: Few<'_, '_, '_>| instructions.run(task));
}

/// All rows by some panels.
struct Few<'t, 'o, 'a> {
    x: &'a DynamicRows,
    share: Share<'a>,
    shifts: &'a [i32],
    /// The outputs of these panels, row by row.
    out: &'t mut [&'o mut [f32]],
    epilogue: Epilogue<'a>,
}

impl Routine for Few<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        if simd.expander().is_some() && self.share.layout.of_codes().is_run() {
            match self.x.rows() {
                1 => self.in_registers::<S, 1>(simd),
                2 => self.in_registers::<S, 2>(simd),
                3 => self.in_registers::<S, 3>(simd),
                _ => self.in_registers::<S, FEW_ROWS>(simd),
            }
        } else {
            self.in_near_cache(simd);
        }
        complete(simd, self.x, 0, self.share.first * PANEL_OUTPUTS, self.out, self.epilogue);
    }
}

impl Few<'_, '_, '_> {
    /// Spreads codes out line by line where there are no planes between them.
    #[inline(always)]
    fn in_registers<S: Simd, const ROWS: usize>(&mut self, simd: S) {
        let Share { layout, count, mut stored, .. } = self.share;
        let bytes = layout.stored_bytes(&(0..self.x.inputs()));
        for panel in 0..count {
            let (own, rest) = stored.split_at(bytes);
            stored = rest;
            let mut products = [[0.0; LANES]; ROWS];
            let out = &mut products;
            if layout.has_bits_of_lines() {
                simd.run(InRegisters::<true, ROWS> { x: self.x, layout, stored: own, out });
            } else {
                simd.run(InRegisters::<false, ROWS> { x: self.x, layout, stored: own, out });
            }
            for (outputs, products) in self.out.iter_mut().zip(&products) {
                let outputs = tile::at_most_a_vector(&mut outputs[panel * PANEL_OUTPUTS..]);
                outputs.copy_from_slice(&products[..outputs.len()]);
            }
        }
    }

    /// Spreads a record out in the first-level cache and multiplies it there, then the next.
    #[inline(always)]
    fn in_near_cache<S: Simd>(&mut self, simd: S) {
        let Self { x, share, shifts, out, .. } = self;
        let Share { layout, count, mut stored, .. } = *share;
        let codes = layout.of_codes();
        let mut near = Near::new(layout.dense_bytes(&(0..RECORD_INPUTS.min(x.inputs()))));
        for panel in 0..count {
            let mut own: [&mut [f32]; FEW_ROWS] = Default::default();
            for (own, outputs) in own.iter_mut().zip(out.iter_mut()) {
                *own = tile::at_most_a_vector(&mut outputs[panel * PANEL_OUTPUTS..]);
            }
            let own = &mut own[..x.rows()];
            let mut sums = [[0; LANES]; FEW_ROWS];
            let whole = whole(simd, layout, stored);
            for first in (0..x.inputs()).step_by(RECORD_INPUTS) {
                let inputs = first..x.inputs().min(first + RECORD_INPUTS);
                let dense = near.bytes(layout.dense_bytes(&inputs));
                simd.run(Spread { layout, inputs: inputs.clone(), stored, dense: &mut *dense });
                stored = &stored[layout.stored_bytes(&inputs)..];
                let weight = CodedPanels::part(codes, inputs, dense, Some(&whole));
                let sums = Some(&mut sums[..own.len()]);
                let out = &mut *own;
                let (exact, ahead) = (None, false);
                DynamicFew { x, first_row: 0, weight, panels: 1, shifts, out, sums, exact, ahead }.run(simd);
            }
        }
    }
}

/// The parameters over all inputs of the panel that `stored` begins with.
#[inline(always)]
fn whole<S: Simd>(simd: S, layout: &SparseLayout, stored: &[u8]) -> Parameters {
    let inputs = 0..RECORD_INPUTS.min(layout.inputs());
    let (first, _) = layout.stored(&inputs, stored);
    CodedPanels::part(layout.of_codes(), inputs, first.planes, None).panel(simd, 0).1
}

/// All rows by one panel, whose lines are spread out in registers.
struct InRegisters<'a, const OF_LINES: bool, const ROWS: usize> {
    x: &'a DynamicRows,
    layout: &'a SparseLayout,
    /// The panel.
    stored: &'a [u8],
    out: &'a mut [[f32; LANES]; ROWS],
}

impl<const OF_LINES: bool, const ROWS: usize> Routine for InRegisters<'_, OF_LINES, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, layout, mut stored, out } = self;
        let Some(expander) = simd.expander() else { unreachable!("lines are spread out in registers") };
        let whole = whole(simd, layout, stored);
        let mut sums = SparseSums::<S, ROWS>::new(simd, x, layout.of_codes(), expander);
        let mut first = 0;
        while first < x.inputs() {
            let inputs = first..x.inputs().min(first + RECORD_INPUTS);
            let (record, rest) = layout.stored(&inputs, stored);
            stored = rest;
            let codes = SparseCodes { mask: record.mask, values: record.values, first, inputs: inputs.len() };
            sums.add::<OF_LINES>(simd, codes);
            first = inputs.end;
        }
        for (products, out) in sums.products(simd, &whole).into_iter().zip(out) {
            simd.store(products, out);
        }
    }
}
