//! A few rows of integers of 8 bits by codes: codes are widened in registers, as with rounded activations.
//!
//! Widening them in memory first costs as much as multiplying them with a row or two. `(x - zero) * (code - zero point)` is summed
//! as `x * (code - zero point)` less `zero` times the product of a row of ones.

use super::{
    dynamic_few::{DynamicFew, ExactSums, is_common, shifts},
    exact_rows::ExactRows,
    layout::CodedLayout,
    pieces::{CodedPanels, CodedPiece},
    rows::DynamicRows,
};
use crate::{
    product::PANEL_OUTPUTS,
    scratch::scratch,
    simd::{Instructions, LANES, Simd},
};

/// The most rows, so that they and the row of ones are multiplied together.
const MOST_ROWS: usize = 3;

/// The most inputs of a sum: 255 · 383 · 16,384 is less than 2^31. Zero points may lie beyond the codes, by as much as half of them.
const MOST_INPUTS: usize = 1 << 14;

/// A few rows for the loop that widens codes in registers.
pub(super) struct FewRows {
    /// With a row of ones, if there is a zero point.
    rows: DynamicRows,
    /// [`shifts`] of these rows.
    shifts: Vec<i32>,
    zero: i32,
}

impl FewRows {
    /// Rows to multiply with these pieces; `None` where there are too many, or the loop does not take such codes.
    pub fn new(
        instructions: Instructions,
        x: &ExactRows<'_>,
        layout: &CodedLayout,
        pieces: &[CodedPiece<'_>],
    ) -> Option<Self> {
        let [digit] = x.digits() else { return None };
        let inputs = layout.inputs();
        let sums_end = match layout.finest() {
            None => inputs <= MOST_INPUTS,
            Some(block) => inputs.is_multiple_of(block),
        };
        let fits = (1..=MOST_ROWS).contains(&x.rows())
            && instructions.have_own_loops()
            && sums_end
            && is_common(layout, 0)
            && pieces.iter().all(|piece| piece.inputs == (0..inputs));
        fits.then(|| {
            let rows = DynamicRows::of_integers(&digit.rows, digit.zero != 0);
            Self { shifts: shifts(&rows, layout), rows, zero: digit.zero }
        })
    }

    /// Writes the products with some panels, row by row.
    #[inline(always)]
    pub fn multiply<S: Simd>(&self, simd: S, weight: CodedPanels<'_>, panels: usize, out: &mut [&mut [f64]]) {
        let rows = self.rows.rows();
        let columns = panels * PANEL_OUTPUTS;
        let mut values = scratch(rows * columns);
        let mut outputs: Vec<&mut [f32]> = values.chunks_mut(columns).collect();
        let mut whole = vec![[0; LANES]; rows * panels];
        let exact = Some(ExactSums { zero: self.zero, whole: &mut whole });
        let (x, shifts) = (&self.rows, &self.shifts);
        DynamicFew { x, first_row: 0, weight, panels, shifts, out: &mut outputs, sums: None, exact, ahead: true }
            .run(simd);
        if weight.layout().finest().is_some() {
            for (out, values) in out.iter_mut().zip(values.chunks(columns)) {
                out.iter_mut().zip(values).for_each(|(output, value)| *output = f64::from(*value));
            }
            return;
        }
        for (panel, sums) in whole.chunks(rows).enumerate() {
            let (_, parameters) = weight.panel(simd, panel);
            for (out, sums) in out.iter_mut().zip(sums) {
                let own = out[panel * PANEL_OUTPUTS..].iter_mut().zip(sums).zip(&parameters.scale);
                own.for_each(|((output, sum), scale)| *output = f64::from(*sum) * f64::from(*scale));
            }
        }
    }
}
