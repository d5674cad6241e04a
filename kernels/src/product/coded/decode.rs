//! Codes as the values they stand for: `(code - zero point) * scale`, rounded once.

use super::{
    code_types::{Code, Float4, Float8, Narrow, Signed8, Unsigned8, table, with_code},
    layout::{CodeType, LINE, PanelPart, Rounded},
    pieces::CodedPanels,
    planes::{BlockParameters, Parameters, ask},
};
use crate::{
    matrix::Matrix,
    product::{
        PANEL_OUTPUTS,
        panels::{BLOCK, RUN},
        tile::{self, RowsLeft},
    },
    simd::{LANES, Routine, Simd},
};

/// Inputs of a line that are added without a loop where registers are few.
const INPUTS_AT_ONCE: usize = 4;

/// `(code - zero_point) * scale`; nothing is subtracted unless `ZERO`.
#[inline(always)]
fn value<S: Simd, const ZERO: bool>(simd: S, code: S::Vector, zero_point: S::Vector, scale: S::Vector) -> S::Vector {
    let difference = if ZERO { simd.subtract(code, zero_point) } else { code };
    simd.multiply(difference, scale)
}

impl CodedPanels<'_> {
    /// Writes the values of inputs `first` (a multiple of 128) and on, as many as `wide` has (at most 128), of one panel.
    #[inline(always)]
    pub fn decode<S: Simd>(&self, simd: S, panel: usize, first: usize, wide: &mut [[f32; LANES]]) {
        let (part, whole) = self.panel(simd, panel);
        let mut parameters = BlockParameters::new(part.layout, &whole);
        parameters.read(simd, &part, &whole, first & !(BLOCK - 1));
        decode(simd, part, &parameters, first, wide);
    }
}

/// Writes the values of inputs `first` and on, which are all in the block of `parameters`.
#[inline(always)]
fn decode<S: Simd>(
    simd: S,
    part: PanelPart<'_>,
    parameters: &BlockParameters,
    first: usize,
    wide: &mut [[f32; LANES]],
) {
    with_code!(part.layout.code(), C => simd.run(Decode::<C> { part, parameters, first, wide, code: std::marker::PhantomData }));
}

struct Decode<'a, C> {
    part: PanelPart<'a>,
    parameters: &'a BlockParameters,
    first: usize,
    wide: &'a mut [[f32; LANES]],
    code: std::marker::PhantomData<C>,
}

impl<C: Code> Routine for Decode<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let segment = segment(&self.part);
        let table = C::table(simd, &table(self.part.layout.code()));
        let rounded = self.part.layout.rounded();
        for (index, wide) in self.wide.chunks_mut(segment).enumerate() {
            let input = self.first + index * segment;
            let Parameters { scale, zero_point, .. } = self.parameters.at(input);
            let (scale, zero_point) = (simd.load(scale), simd.load(zero_point));
            let lines = self.part.lines(input, input + wide.len());
            for (line, wide) in lines.iter().zip(wide.chunks_mut(C::INPUTS)) {
                let line = C::line(simd, line);
                for (input, wide) in wide.iter_mut().enumerate() {
                    let code = C::code(simd, table, line, input);
                    let value = value::<S, true>(simd, code, zero_point, scale);
                    let value = match rounded {
                        Rounded::F32 => value,
                        Rounded::F16 => simd.round_to_f16(value),
                        Rounded::Bf16 => simd.round_to_bf16(value),
                    };
                    simd.store(value, wide);
                }
            }
        }
    }
}

/// Inputs of a run that lie in one record and share their parameters.
#[inline(always)]
fn segment(part: &PanelPart<'_>) -> usize {
    part.layout.finest().unwrap_or(RUN).min(part.layout.cut()).min(RUN)
}

/// Few rows by panels of codes: one panel after another, each read once from its begin to its end.
pub(in crate::product) struct CodedFew<'t, 'o, 'a, const ROWS: usize> {
    pub weight: CodedPanels<'t>,
    pub panels: usize,
    /// `ROWS` rows of the inputs of the weight.
    pub x: Matrix<'a>,
    /// First input of the weight.
    pub first_input: usize,
    /// The rows' outputs, to which the products are added.
    pub out: &'t mut [&'o mut [f32]],
}

impl<const ROWS: usize> Routine for CodedFew<'_, '_, '_, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut rows = [&[][..]; ROWS];
        for (row, values) in rows.iter_mut().enumerate() {
            *values = self.x.row(row);
        }
        let mut wide = [[0.0; LANES]; RUN];
        let layout = self.weight.layout();
        let neutral = Parameters::neutral(layout);
        let mut parameters = [BlockParameters::new(layout, &neutral), BlockParameters::new(layout, &neutral)];
        for panel in 0..self.panels {
            let (part, whole) = self.weight.panel(simd, panel);
            for parameters in &mut parameters {
                parameters.begin(layout, &whole);
            }
            let first = panel * PANEL_OUTPUTS;
            let mut totals = [[0.0; LANES]; ROWS];
            for row in 0..ROWS {
                simd.store(simd.load_partial(&self.out[row][first..]), &mut totals[row]);
            }
            let (mut rest, mut input) = (rows, self.first_input);
            if const { S::HAS_OWN_LOOPS } && has_own_loop(part) {
                // All inputs, or whole blocks where the last line is not full: what is left of a block has sums of its own.
                let has_full_lines = rest[0].len().is_multiple_of(layout.code().inputs_of_line());
                let length = if has_full_lines { rest[0].len() } else { rest[0].len() & !(BLOCK - 1) };
                add_lines(
                    simd,
                    LinesOf {
                        part,
                        parameters: &mut parameters,
                        whole: &whole,
                        first: input,
                        rows: tile::stretch(rest, 0..length),
                        totals: &mut totals,
                    },
                );
                rest = tile::stretch(rest, length..rest[0].len());
                input += length;
            }
            while !rest[0].is_empty() {
                let parameters = &mut parameters[0];
                parameters.read(simd, &part, &whole, input);
                let length = rest[0].len().min(BLOCK);
                let block = tile::stretch(rest, 0..length);
                for run in (0..length).step_by(RUN) {
                    let left = RowsLeft(tile::stretch(block, run..length.min(run + RUN)));
                    let wide = &mut wide[..left.0[0].len()];
                    decode(simd, part, parameters, input + run, wide);
                    let sums = tile::run::<S, f32, _, ROWS, 1>(simd, left, [wide], wide.len(), 0);
                    for row in 0..ROWS {
                        let total = simd.add(simd.load(&totals[row]), simd.load(&sums[row][0]));
                        simd.store(total, &mut totals[row]);
                    }
                }
                input += length;
                rest = tile::stretch(rest, length..rest[0].len());
            }
            for row in 0..ROWS {
                simd.store_partial(simd.load(&totals[row]), tile::at_most_a_vector(&mut self.out[row][first..]));
            }
        }
    }
}

/// Whole lines of inputs of one panel, and the totals that their products are added to.
struct LinesOf<'a, const ROWS: usize> {
    part: PanelPart<'a>,
    /// Of two blocks that are computed side by side.
    parameters: &'a mut [BlockParameters; 2],
    whole: &'a Parameters,
    /// The first input of the weight, which begins a block.
    first: usize,
    rows: [&'a [f32]; ROWS],
    totals: &'a mut [[f32; LANES]; ROWS],
}

/// Whether [`add_lines`] has a loop for a panel.
fn has_own_loop(part: PanelPart<'_>) -> bool {
    let has_zero_points = with_code!(part.layout.code(), C => C::HAS_ZERO_POINTS);
    part.layout.rounded() == Rounded::F32 && (has_zero_points || part.layout.zero_point().is_none())
}

/// Adds the products of whole lines without writing down values.
#[inline(always)]
fn add_lines<S: Simd, const ROWS: usize>(simd: S, lines: LinesOf<'_, ROWS>) {
    with_code!(lines.part.layout.code(), C => {
        if const { C::HAS_ZERO_POINTS } && lines.part.layout.zero_point().is_some() {
            simd.run(AddLines::<C, ROWS, true>(lines, std::marker::PhantomData));
        } else {
            simd.run(AddLines::<C, ROWS, false>(lines, std::marker::PhantomData));
        }
    });
}

struct AddLines<'a, C, const ROWS: usize, const ZERO: bool>(LinesOf<'a, ROWS>, std::marker::PhantomData<C>);

impl<C: Code, const ROWS: usize, const ZERO: bool> Routine for AddLines<'_, C, ROWS, ZERO> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let LinesOf { part, parameters, whole, first, rows, totals: stored } = self.0;
        let mut totals = [simd.splat(0.0); ROWS];
        for row in 0..ROWS {
            totals[row] = simd.load(&stored[row]);
        }
        let mut begin = 0;
        // One row alone is too few sums to keep the units busy while each waits for the one before: four runs then.
        let [parameters, next] = parameters;
        if const { ROWS == 1 } {
            while rows[0].len() - begin >= 2 * BLOCK {
                parameters.read(simd, &part, whole, first + begin);
                next.read(simd, &part, whole, first + begin + BLOCK);
                let rows = tile::stretch(rows, begin..begin + 2 * BLOCK);
                let blocks = [&*parameters, &*next];
                add_runs(simd, &mut totals, runs::<S, C, ROWS, 4, ZERO>(simd, part, &blocks, first + begin, rows, RUN));
                begin += 2 * BLOCK;
            }
        }
        while begin < rows[0].len() {
            parameters.read(simd, &part, whole, first + begin);
            let left = rows[0].len() - begin;
            if left >= BLOCK {
                let (first, rows) = (first + begin, tile::stretch(rows, begin..begin + BLOCK));
                add_runs(simd, &mut totals, runs::<S, C, ROWS, 2, ZERO>(simd, part, &[parameters], first, rows, RUN));
                begin += BLOCK;
                continue;
            }
            for begin in (begin..begin + left).step_by(RUN) {
                let length = RUN.min(rows[0].len() - begin);
                let (first, rows) = (first + begin, tile::stretch(rows, begin..begin + length));
                add_runs(
                    simd,
                    &mut totals,
                    runs::<S, C, ROWS, 1, ZERO>(simd, part, &[parameters], first, rows, length),
                );
            }
            break;
        }
        for row in 0..ROWS {
            simd.store(totals[row], &mut stored[row]);
        }
    }
}

/// Adds the sums of runs in their order.
#[inline(always)]
fn add_runs<S: Simd, const ROWS: usize, const RUNS: usize>(
    simd: S,
    totals: &mut [S::Vector; ROWS],
    runs: [[S::Vector; ROWS]; RUNS],
) {
    for sums in runs {
        for row in 0..ROWS {
            totals[row] = simd.add(totals[row], sums[row]);
        }
    }
}

/// The sums of the runs of some blocks, two of each, which are computed side by side; of one run, of `length` inputs of it.
#[inline(always)]
fn runs<S: Simd, C: Code, const ROWS: usize, const RUNS: usize, const ZERO: bool>(
    simd: S,
    part: PanelPart<'_>,
    blocks: &[&BlockParameters],
    first: usize,
    rows: [&[f32]; ROWS],
    length: usize,
) -> [[S::Vector; ROWS]; RUNS] {
    let segment = segment(&part);
    // Inputs of a run that lie in one record.
    let stretch = part.layout.cut().min(RUN);
    let table = C::table(simd, &table(part.layout.code()));
    let mut sums = [[simd.splat(0.0); ROWS]; RUNS];
    for begin in (0..length).step_by(stretch) {
        let stretch = stretch.min(length - begin);
        let mut lines: [&[[u8; LINE]]; RUNS] = [&[]; RUNS];
        for (run, lines) in lines.iter_mut().enumerate() {
            let input = first + run * RUN + begin;
            *lines = part.lines(input, input + stretch);
        }
        for part_begin in (0..stretch).step_by(segment) {
            let mut scales = [simd.splat(0.0); RUNS];
            let mut zero_points = scales;
            for run in 0..RUNS {
                let input = first + run * RUN + begin + part_begin;
                let Parameters { scale, zero_point, .. } = blocks[run * RUN / BLOCK].at(input);
                (scales[run], zero_points[run]) = (simd.load(scale), simd.load(zero_point));
            }
            for input in (part_begin..stretch.min(part_begin + segment)).step_by(C::INPUTS) {
                let line = input / C::INPUTS;
                let mut codes = [C::line(simd, &lines[0][line]); RUNS];
                // Cut here once, so that no place is checked for each input.
                let mut factors = [[&[][..]; RUNS]; ROWS];
                for run in 0..RUNS {
                    codes[run] = C::line(simd, &lines[run][line]);
                    ask(simd, &lines[run][line]);
                    for row in 0..ROWS {
                        factors[row][run] = &rows[row][run * RUN + begin + input..][..C::INPUTS];
                    }
                }
                add_line::<S, C, ROWS, RUNS, ZERO>(simd, table, &codes, [&zero_points, &scales], &factors, &mut sums);
            }
        }
    }
    sums
}

/// Adds what a line of each run gives.
#[inline(always)]
fn add_line<S: Simd, C: Code, const ROWS: usize, const RUNS: usize, const ZERO: bool>(
    simd: S,
    table: S::Vector,
    lines: &[C::Line<S>; RUNS],
    [zero_points, scales]: [&[S::Vector; RUNS]; 2],
    factors: &[[&[f32]; RUNS]; ROWS],
    sums: &mut [[S::Vector; ROWS]; RUNS],
) {
    if const { S::TILE_VECTORS == 3 } {
        for input in 0..C::INPUTS {
            for run in 0..RUNS {
                let code = C::code(simd, table, lines[run], input);
                let weights = value::<S, ZERO>(simd, code, zero_points[run], scales[run]);
                add_input(simd, weights, factors, (run, input), &mut sums[run]);
            }
        }
        return;
    }
    // Few registers do not hold what all runs need: each line to its end, whose sums would go through memory for each input otherwise.
    // Lines do not wait for each other.
    for run in 0..RUNS {
        for first in (0..C::INPUTS).step_by(INPUTS_AT_ONCE) {
            for input in first..first + INPUTS_AT_ONCE {
                let code = C::code(simd, table, lines[run], input);
                let weights = value::<S, ZERO>(simd, code, zero_points[run], scales[run]);
                add_input(simd, weights, factors, (run, input), &mut sums[run]);
            }
        }
    }
}

/// Adds what the weights of an input of a run give.
#[inline(always)]
fn add_input<S: Simd, const ROWS: usize, const RUNS: usize>(
    simd: S,
    weights: S::Vector,
    factors: &[[&[f32]; RUNS]; ROWS],
    (run, input): (usize, usize),
    sums: &mut [S::Vector; ROWS],
) {
    for row in 0..ROWS {
        sums[row] = simd.fused(simd.splat(factors[row][run][input]), weights, sums[row]);
    }
}
