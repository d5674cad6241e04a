//! The register tile of products of codes: rows × panels of running integer sums.

use super::{
    digits::{Digits, LINES_IN_HALVES, in_units},
    layout::{LINE, PanelPart},
    pair_of_sums::most_pairs,
    planes::{BlockParameters, Parameters, ask},
    rows::DynamicRows,
};
use crate::{
    product::panels::BLOCK,
    simd::{LANES, Routine, Simd},
};

/// The most inputs of a sum: 255 · 127 · 65,536 is less than 2^31.
pub(super) const LONGEST_SUM: usize = 1 << 16;

/// Inputs whose products are summed exactly before they are scaled: a power of two.
pub(super) fn summed_inputs(part: &PanelPart<'_>, rows: &DynamicRows) -> usize {
    let activations = if rows.block() == 0 { LONGEST_SUM } else { rows.block() };
    part.layout.finest().unwrap_or(LONGEST_SUM).min(activations).min(LONGEST_SUM)
}

/// What a tile goes on with: `[row][panel]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct TileState<const ROWS: usize, const PANELS: usize> {
    /// Sums of whole blocks, scaled by all but the rows' scales.
    pub values: [[[f32; LANES]; PANELS]; ROWS],
    /// Sums of the block that has not ended.
    pub sums: [[[i32; LANES]; PANELS]; ROWS],
}

/// The products of some rows with all inputs of a part of some panels, which have the same layout.
pub(super) struct DynamicTile<'a, const PARTS: usize, const ROWS: usize, const PANELS: usize> {
    pub rows: &'a DynamicRows,
    pub first_row: usize,
    pub panels: &'a [(PanelPart<'a>, Parameters); PANELS],
    pub state: &'a mut TileState<ROWS, PANELS>,
    /// Whether memory is asked for ahead.
    pub ahead: bool,
}

impl<const PARTS: usize, const ROWS: usize, const PANELS: usize> Routine for DynamicTile<'_, PARTS, ROWS, PANELS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { rows, first_row, panels, state, ahead } = self;
        let first = &panels[0].0;
        let summed = summed_inputs(first, rows);
        let segment = summed.min(first.layout.cut()).min(BLOCK);
        let code = first.layout.code();
        let digits = Digits::<S, PARTS>::new(simd, code);
        let mut parameters: [BlockParameters; PANELS] =
            std::array::from_fn(|panel| BlockParameters::new(first.layout, &panels[panel].1));
        let mut codes = [&[][..]; ROWS];
        for row in 0..ROWS {
            codes[row] = rows.codes(first_row + row);
        }
        let mut sums = [[simd.splat_integer(0); PANELS]; ROWS];
        for row in 0..ROWS {
            for panel in 0..PANELS {
                sums[row][panel] = simd.load_integers(&state.sums[row][panel]);
            }
        }
        let mut input = first.start;
        while input < first.end {
            if input.is_multiple_of(BLOCK) {
                for panel in 0..PANELS {
                    parameters[panel].read(simd, &panels[panel].0, &panels[panel].1, input);
                }
            }
            let end = first.end.min(input + segment);
            let mut lines: [&[[u8; LINE]]; PANELS] = [&[]; PANELS];
            for panel in 0..PANELS {
                lines[panel] = panels[panel].0.lines(input, end);
            }
            let mut left: [&[[[i8; 4]; PARTS]]; ROWS] = [&[]; ROWS];
            for row in 0..ROWS {
                left[row] = &codes[row][input..].as_chunks().0.as_chunks().0[..lines[0].len()];
            }
            sums = add_lines::<S, PARTS, ROWS, PANELS>(simd, lines, left, digits, sums, ahead);
            input = end;
            if input & (summed - 1) != 0 && input < rows.inputs() {
                continue;
            }
            let block = (input - 1) & !(summed - 1)..input;
            for row in 0..ROWS {
                let codes = simd.splat_integer(rows.sum(first_row + row, block.clone()));
                for panel in 0..PANELS {
                    let Parameters { scale, shifted, .. } = parameters[panel].at(input - 1);
                    let shift = simd.multiply_integers(simd.load_integers(shifted), codes);
                    let sum = simd.subtract_integers(sums[row][panel], shift);
                    let sum = in_units(simd, code, sum);
                    let mut scale = simd.load(scale);
                    if rows.block() > 0 {
                        scale = simd.multiply(scale, simd.splat(rows.block_scale(first_row + row, input - 1)));
                    }
                    let before = simd.load(&state.values[row][panel]);
                    simd.store(simd.fused_exactly(sum, scale, before), &mut state.values[row][panel]);
                    sums[row][panel] = simd.splat_integer(0);
                }
            }
        }
        for row in 0..ROWS {
            for panel in 0..PANELS {
                simd.store_integers(sums[row][panel], &mut state.sums[row][panel]);
            }
        }
    }
}

/// Adds the products of lines of codes and of the activations of their inputs; a line has `PARTS` times 4 inputs.
#[inline(always)]
fn add_lines<S: Simd, const PARTS: usize, const ROWS: usize, const PANELS: usize>(
    simd: S,
    lines: [&[[u8; LINE]]; PANELS],
    left: [&[[[i8; 4]; PARTS]]; ROWS],
    digits: Digits<S, PARTS>,
    mut sums: [[S::Integers; PANELS]; ROWS],
    ahead: bool,
) -> [[S::Integers; PANELS]; ROWS] {
    if const { S::SUMS_HALVES && PARTS > 1 } && digits.fit_halves() {
        return add_lines_in_halves(simd, lines, left, digits, sums, ahead);
    }
    // A single sum would wait for itself: the parts of a line go to two in turn.
    let two_sums = PARTS > 1 && ROWS * PANELS <= most_pairs::<S>();
    let mut others = [[simd.splat_integer(0); PANELS]; ROWS];
    for line in 0..lines[0].len() {
        let mut codes = [simd.splat_integer(0); PANELS];
        for panel in 0..PANELS {
            codes[panel] = simd.load_bytes(&lines[panel][line]);
            if ahead {
                ask(simd, &lines[panel][line]);
            }
        }
        for part in 0..PARTS {
            let mut unsigned = codes;
            for panel in 0..PANELS {
                unsigned[panel] = digits.of(simd, codes[panel], part);
            }
            for row in 0..ROWS {
                let signed = simd.splat_integer(i32::from_le(bytemuck::cast(left[row][line][part])));
                for panel in 0..PANELS {
                    let sum = if two_sums && part % 2 == 1 { &mut others } else { &mut sums };
                    let sum = &mut sum[row][panel];
                    *sum = if PARTS == 1 {
                        simd.dot(*sum, unsigned[panel], signed)
                    } else {
                        simd.dot_narrow(*sum, unsigned[panel], signed)
                    };
                }
            }
        }
    }
    if two_sums {
        for row in 0..ROWS {
            for panel in 0..PANELS {
                sums[row][panel] = simd.add_integers(sums[row][panel], others[row][panel]);
            }
        }
    }
    sums
}

/// The same by sums of 16 bits of some lines at a time.
#[inline(always)]
fn add_lines_in_halves<S: Simd, const PARTS: usize, const ROWS: usize, const PANELS: usize>(
    simd: S,
    lines: [&[[u8; LINE]]; PANELS],
    left: [&[[[i8; 4]; PARTS]]; ROWS],
    digits: Digits<S, PARTS>,
    mut sums: [[S::Integers; PANELS]; ROWS],
    ahead: bool,
) -> [[S::Integers; PANELS]; ROWS] {
    let (count, ones) = (lines[0].len(), simd.splat_integer(0x0001_0001));
    for first in (0..count).step_by(LINES_IN_HALVES) {
        let mut halves = [[simd.splat_integer(0); PANELS]; ROWS];
        for line in first..count.min(first + LINES_IN_HALVES) {
            let mut codes = [simd.splat_integer(0); PANELS];
            for panel in 0..PANELS {
                codes[panel] = simd.load_bytes(&lines[panel][line]);
                if ahead {
                    ask(simd, &lines[panel][line]);
                }
            }
            for part in 0..PARTS {
                let mut unsigned = codes;
                for panel in 0..PANELS {
                    unsigned[panel] = digits.of(simd, codes[panel], part);
                }
                for row in 0..ROWS {
                    let signed = simd.splat_integer(i32::from_le(bytemuck::cast(left[row][line][part])));
                    for panel in 0..PANELS {
                        halves[row][panel] = simd.add_pairs(halves[row][panel], unsigned[panel], signed);
                    }
                }
            }
        }
        for row in 0..ROWS {
            for panel in 0..PANELS {
                sums[row][panel] = simd.dot_halves(sums[row][panel], halves[row][panel], ones);
            }
        }
    }
    sums
}
