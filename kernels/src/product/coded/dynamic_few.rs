//! Rows of rounded activations by panels of codes: one panel after another, each read from its begin to its end, by a few rows
//! at a time.
//!
//! A product of few rows waits for memory only if a line of codes takes few instructions and memory is asked for early enough;
//! where activations have blocks, their scales are as much work as the codes if sums leave the registers. So there is a loop of its
//! own for the common layouts: codes without planes between them ([`Run`]), and records that have a plane of scales and may have
//! one of zero points ([`Blocks`]), the blocks of which may be those of activations too. All else goes to the general tile.

use super::{
    digits::{Digits, in_units},
    dynamic_tile::{DynamicTile, LONGEST_SUM, TileState},
    layout::{CodeType, CodedLayout, LINE, PanelPart, Stream},
    pair_of_sums::PairOfSums,
    pieces::CodedPanels,
    planes::Parameters,
    records::{AT_ONCE, Reader, Records},
    rows::DynamicRows,
};
use crate::{
    product::{PANEL_OUTPUTS, panels::BLOCK, tile},
    simd::{LANES, Routine, Simd},
};

/// Lines that are multiplied between two checks of bounds.
const LINES: usize = 4;

/// The same where blocks have no more: 16 codes of 4 bits.
const FEW_LINES: usize = 2;

/// The same with the most rows: what more lines read would not fit into registers.
const LINES_OF_MOST_ROWS: usize = 1;

/// Scales of activations that have no blocks.
const ONES: [f32; AT_ONCE] = [1.0; AT_ONCE];

/// The most rows that a panel is multiplied with at once.
const MOST_ROWS: usize = 8;

/// Some panels, and where their products go.
pub(in crate::product) struct DynamicFew<'t, 'o, 'a> {
    pub x: &'a DynamicRows,
    pub first_row: usize,
    pub weight: CodedPanels<'a>,
    pub panels: usize,
    /// [`shifts`] of all rows.
    pub shifts: &'a [i32],
    /// The outputs of these panels, row by row.
    pub out: &'t mut [&'o mut [f32]],
    /// Sums of these rows that go on, if this is a part of one panel.
    pub sums: Option<&'t mut [[i32; LANES]]>,
    /// What is different where activations are integers.
    pub exact: Option<ExactSums<'t>>,
    /// Whether memory is asked for ahead: not where panels are in a near cache.
    pub ahead: bool,
}

/// Sums of integers less their zero point. Their panels come whole, in whole blocks.
pub(in crate::product) struct ExactSums<'t> {
    /// The zero point of all rows but the last, which is ones; 0 where all rows are activations.
    pub zero: i32,
    /// Where sums over all inputs go, which are not scaled: `[panels][rows]`.
    pub whole: &'t mut [[i32; LANES]],
}

/// What the sums of blocks of a weight begin with for each unit that is subtracted from its codes: the sums of activations, negated;
/// `[m][k / block rounded up]`. None where there are no blocks, or no loop. All tasks of a product read them.
pub(in crate::product) fn shifts(x: &DynamicRows, layout: &CodedLayout) -> Vec<i32> {
    let Some(scale) = layout.stream().filter(|_| is_common(layout, x.block())).and_then(|stream| stream.scale) else {
        return Vec::new();
    };
    let (inputs, block) = (x.inputs(), layout.planes()[scale].block);
    let of_row = |row: usize| {
        let firsts = (0..inputs).step_by(block);
        firsts.map(move |first| x.sum(row, first..inputs.min(first + block)).wrapping_neg())
    };
    (0..x.rows()).flat_map(of_row).collect()
}

/// Whether [`DynamicFew`] has a loop for these, and activations with a scale for each `of_rows` inputs, or for all where that is 0.
pub(in crate::product) fn is_common(layout: &CodedLayout, of_rows: usize) -> bool {
    let Some(stream) = layout.stream() else { return false };
    match stream.scale {
        None => of_rows == 0 && layout.inputs() <= LONGEST_SUM,
        Some(scale) => {
            let block = layout.planes()[scale].block;
            [0, block].contains(&of_rows) && lines_at_once(layout.code(), block).is_some()
        }
    }
}

/// Lines of a block that are multiplied at once; `None` where its size is none for which there is a loop.
fn lines_at_once(code: CodeType, block: usize) -> Option<usize> {
    let fits = |lines: &usize| block.is_multiple_of(lines * code.inputs_of_line());
    let few = if code.bits() == 4 { FEW_LINES } else { LINES };
    [LINES, few].into_iter().find(fits)
}

impl DynamicFew<'_, '_, '_> {
    /// All panels; the layout is common.
    #[inline(always)]
    pub fn run<S: Simd>(self, simd: S) {
        match self.weight.layout().code() {
            CodeType::I8 | CodeType::U8 => self.with_parts::<S, 1>(simd),
            CodeType::I4 | CodeType::U4 | CodeType::E2m1 => self.with_parts::<S, 2>(simd),
            CodeType::I2 | CodeType::U2 => self.with_parts::<S, 4>(simd),
            CodeType::E4m3 | CodeType::E5m2 => unreachable!("sums of floats are not exact"),
        }
    }

    #[inline(always)]
    fn with_parts<S: Simd, const PARTS: usize>(mut self, simd: S) {
        let Some(stream) = self.weight.layout().stream() else { return };
        let inputs = self.weight.inputs();
        let layout = self.weight.layout();
        let places = |inputs: usize, is_first| layout.places(stream, inputs, is_first);
        let whole = layout.cut().min(inputs.len());
        let last = places(inputs.len() % layout.cut(), false);
        let records = Records { first: places(whole, true), further: places(whole, false), last };
        let mut reader = Reader::new(layout, stream, &records);
        for panel in 0..self.panels {
            let (part, whole) = self.weight.panel(simd, panel);
            let mut row = 0;
            while row < self.out.len() {
                let left = self.out.len() - row;
                let panel = Place { panel, part, whole: &whole, stream, row };
                let reader = &mut reader;
                row += match left {
                    1 => self.with_rows::<S, PARTS, 1>(simd, panel, reader),
                    2 => self.with_rows::<S, PARTS, 2>(simd, panel, reader),
                    3 => self.with_rows::<S, PARTS, 3>(simd, panel, reader),
                    8.. if const { S::TILE_VECTORS == 3 } => self.with_rows::<S, PARTS, MOST_ROWS>(simd, panel, reader),
                    _ => self.with_rows::<S, PARTS, 4>(simd, panel, reader),
                };
            }
        }
    }

    /// Some rows by a panel; gives how many.
    #[inline(always)]
    fn with_rows<S: Simd, const PARTS: usize, const ROWS: usize>(
        &mut self,
        simd: S,
        place: Place<'_>,
        reader: &mut Reader<'_>,
    ) -> usize {
        let Place { panel, part, whole, stream, row: first } = place;
        let inputs = self.weight.inputs();
        let mut state = TileState { values: [[[0.0; LANES]; 1]; ROWS], sums: [[[0; LANES]; 1]; ROWS] };
        let mut own_shifts = [&[][..]; ROWS];
        let blocks = self.shifts.len() / self.x.rows();
        for row in 0..ROWS {
            own_shifts[row] = &self.shifts[(self.first_row + first + row) * blocks..][..blocks];
            if inputs.start > 0 {
                let outputs = tile::at_most_a_vector(&mut self.out[first + row][panel * PANEL_OUTPUTS..]);
                simd.store(simd.load_partial(outputs), &mut state.values[row][0]);
            }
            if let Some(sums) = &self.sums {
                state.sums[row][0] = sums[first + row];
            }
        }
        let (rows, first_row, ahead) = (self.x, self.first_row + first, self.ahead && first == 0);
        let ending = match &self.exact {
            None => Ending { zero: 0, is_scaled: true },
            Some(exact) => Ending { zero: exact.zero, is_scaled: stream.scale.is_some() },
        };
        let (own_state, shifts) = (&mut state, own_shifts);
        let panel_of = Panel { rows, first_row, part, whole, stream, shifts, state: own_state, ending, ahead };
        match stream.scale {
            None => simd.run(Run::<PARTS, ROWS>(panel_of)),
            Some(scale) => {
                let block = part.layout.planes()[scale].block;
                if const { ROWS == MOST_ROWS } {
                    panel_of.blocks::<S, PARTS, LINES_OF_MOST_ROWS>(simd, block, reader);
                } else if const { PARTS == 2 } && lines_at_once(part.layout.code(), block) == Some(FEW_LINES) {
                    panel_of.blocks::<S, PARTS, FEW_LINES>(simd, block, reader);
                } else {
                    panel_of.blocks::<S, PARTS, LINES>(simd, block, reader);
                }
            }
        }
        if let Some(exact) = &mut self.exact
            && !ending.is_scaled
        {
            for row in 0..ROWS {
                exact.whole[panel * self.out.len() + first + row] = state.sums[row][0];
            }
            return ROWS;
        }
        for row in 0..ROWS {
            let outputs = tile::at_most_a_vector(&mut self.out[first + row][panel * PANEL_OUTPUTS..]);
            simd.store_partial(simd.load(&state.values[row][0]), outputs);
            if let Some(sums) = &mut self.sums {
                sums[first + row] = state.sums[row][0];
            }
        }
        ROWS
    }
}

/// Rows from `row` on, and a panel.
struct Place<'a> {
    panel: usize,
    part: PanelPart<'a>,
    whole: &'a Parameters,
    stream: Stream,
    row: usize,
}

/// What becomes of sums.
#[derive(Clone, Copy)]
struct Ending {
    /// [`ExactSums::zero`].
    zero: i32,
    /// Whether those over all inputs are scaled and added, else kept.
    is_scaled: bool,
}

impl Ending {
    /// Takes the zero point times the sums of the last row, which is ones, from those of the others.
    #[inline(always)]
    fn centre<S: Simd, const ROWS: usize>(self, simd: S, sums: &mut [S::Integers; ROWS]) {
        if self.zero != 0 {
            let zeros = simd.multiply_integers(simd.splat_integer(self.zero), sums[ROWS - 1]);
            for sum in &mut sums[..ROWS - 1] {
                *sum = simd.subtract_integers(*sum, zeros);
            }
        }
    }
}

/// A part of one panel.
struct Panel<'a, const ROWS: usize> {
    rows: &'a DynamicRows,
    first_row: usize,
    part: PanelPart<'a>,
    whole: &'a Parameters,
    stream: Stream,
    /// [`shifts`] of each row.
    shifts: [&'a [i32]; ROWS],
    state: &'a mut TileState<ROWS, 1>,
    ending: Ending,
    /// Whether memory is asked for ahead.
    ahead: bool,
}

impl<const ROWS: usize> Panel<'_, ROWS> {
    /// The activations of all rows from the first input of the part on, in groups of 4.
    #[inline(always)]
    fn left(&self) -> [&[i32]; ROWS] {
        let mut left = [&[][..]; ROWS];
        for (row, left) in left.iter_mut().enumerate() {
            *left = &self.rows.words(self.first_row + row)[self.part.start / 4..];
        }
        left
    }

    /// Whole records, and a shorter one of whole blocks, by their own loop, the rest by the general tile.
    #[inline(always)]
    fn blocks<S: Simd, const PARTS: usize, const LINES: usize>(self, simd: S, block: usize, reader: &mut Reader<'_>) {
        let (layout, inputs) = (self.part.layout, self.part.end - self.part.start);
        let cut = layout.cut();
        let blocks = if inputs.is_multiple_of(block) {
            inputs / block
        } else {
            // The general tile begins where it reads parameters.
            let unit = cut.max(BLOCK);
            inputs / unit * (unit / block)
        };
        let Panel { rows, first_row, part, whole, ahead, .. } = self;
        let state = &mut *self.state;
        let panel = Panel { state: &mut *state, ..self };
        simd.run(Blocks::<PARTS, LINES, ROWS> { panel, block, blocks, reader });
        let start = part.start + blocks * block;
        if start < part.end {
            let whole_records = part.start..start & !(cut - 1);
            let rest = PanelPart { start, bytes: &part.bytes[layout.panel_bytes(&whole_records)..], ..part };
            let panels = &[(rest, *whole)];
            simd.run(DynamicTile::<PARTS, ROWS, 1> { rows, first_row, panels, state, ahead });
        }
    }
}

/// Codes without planes between them: one sum over all inputs of the part.
struct Run<'a, const PARTS: usize, const ROWS: usize>(Panel<'a, ROWS>);

impl<const PARTS: usize, const ROWS: usize> Routine for Run<'_, PARTS, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let panel = self.0;
        let mut sums = PairOfSums::<S, ROWS>::zero(simd);
        for row in 0..ROWS {
            sums.0[0][row] = simd.load_integers(&panel.state.sums[row][0]);
        }
        let code = panel.part.layout.code();
        let digits = Digits::<S, PARTS>::new(simd, code);
        let left = panel.left();
        // Planes over all inputs are in the first record, which a weight without inputs does not have.
        let part = panel.part;
        let is_first = part.start == 0 && part.end > 0;
        let codes = part.layout.places(panel.stream, part.end - part.start, is_first).codes;
        let (lines, rest) = part.bytes[codes..].as_chunks::<LINE>().0.as_chunks::<LINES>();
        let mut groups: [&[[[i32; PARTS]; LINES]]; ROWS] = [&[]; ROWS];
        for row in 0..ROWS {
            groups[row] = &left[row].as_chunks().0.as_chunks().0[..lines.len()];
        }
        for (index, lines) in lines.iter().enumerate() {
            sums.add_lines(simd, lines, tile::each(&groups, index), digits, panel.ahead);
        }
        for (index, line) in rest.iter().enumerate() {
            let mut inputs = [&[0; PARTS]; ROWS];
            for row in 0..ROWS {
                inputs[row] = &left[row].as_chunks().0[lines.len() * LINES + index];
            }
            sums.add(simd, simd.load_bytes(line), inputs, digits, 0);
        }
        let mut ends = sums.together(simd);
        let is_last = panel.part.end == panel.rows.inputs();
        if is_last {
            subtract_shifts(simd, panel.rows, panel.first_row, panel.whole, &mut ends);
            panel.ending.centre(simd, &mut ends);
        }
        for (row, sum) in ends.into_iter().enumerate() {
            if is_last && panel.ending.is_scaled {
                let sum = in_units(simd, code, sum);
                let values = &mut panel.state.values[row][0];
                simd.store(simd.fused_exactly(sum, simd.load(&panel.whole.scale), simd.load(values)), values);
            } else {
                simd.store_integers(sum, &mut panel.state.sums[row][0]);
            }
        }
    }
}

/// Takes what makes codes not negative from sums over all inputs: a row's sum of activations times each output's.
#[inline(always)]
pub(super) fn subtract_shifts<S: Simd, const ROWS: usize>(
    simd: S,
    x: &DynamicRows,
    first_row: usize,
    whole: &Parameters,
    sums: &mut [S::Integers; ROWS],
) {
    for (row, sum) in sums.iter_mut().enumerate() {
        let codes = simd.splat_integer(x.sum(first_row + row, 0..x.inputs()));
        let shift = simd.multiply_integers(simd.load_integers(&whole.shifted), codes);
        *sum = simd.subtract_integers(*sum, shift);
    }
}

/// Records of planes of blocks and codes: all of `cut` inputs but the last, which may be shorter.
struct Blocks<'a, 'r, const PARTS: usize, const LINES: usize, const ROWS: usize> {
    panel: Panel<'a, ROWS>,
    /// Inputs of a block.
    block: usize,
    /// Blocks of all records.
    blocks: usize,
    reader: &'a mut Reader<'r>,
}

impl<const PARTS: usize, const LINES: usize, const ROWS: usize> Routine for Blocks<'_, '_, PARTS, LINES, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { panel, block, blocks: all, reader } = self;
        let code = panel.part.layout.code();
        let digits = Digits::<S, PARTS>::new(simd, code);
        let groups_of_block = block / (LINES * code.inputs_of_line());
        let left = panel.left();
        let mut groups: [&[[[i32; PARTS]; LINES]]; ROWS] = [&[]; ROWS];
        let mut own_scales = [&[][..]; ROWS];
        for row in 0..ROWS {
            groups[row] = left[row].as_chunks().0.as_chunks().0;
            if panel.rows.block() > 0 {
                own_scales[row] = &panel.rows.block_scales(panel.first_row + row)[panel.part.start / block..];
            }
        }
        let mut values = [simd.splat(0.0); ROWS];
        for row in 0..ROWS {
            values[row] = simd.load(&panel.state.values[row][0]);
        }
        reader.begin(&panel.part, panel.whole, all);
        let mut first = 0;
        while first < all {
            let count = AT_ONCE.min(all - first);
            reader.read(simd, &panel.part, panel.whole, count, panel.ahead);
            let (mut shifts, mut scales) = ([&[][..]; ROWS], [&ONES[..count]; ROWS]);
            for row in 0..ROWS {
                shifts[row] = &panel.shifts[row][panel.part.start / block + first..][..count];
                if panel.rows.block() > 0 {
                    scales[row] = &own_scales[row][first..][..count];
                }
            }
            for index in 0..count {
                let lines: &[[[u8; LINE]; LINES]] = panel.part.bytes[reader.codes[index]..].as_chunks().0.as_chunks().0;
                let lines = &lines[..groups_of_block];
                let shifted = simd.load_integers(&reader.shifted[index]);
                let mut sums = PairOfSums::<S, ROWS>::zero(simd);
                let mut inputs: [&[[[i32; PARTS]; LINES]]; ROWS] = [&[]; ROWS];
                for row in 0..ROWS {
                    sums.0[0][row] = simd.multiply_integers(shifted, simd.splat_integer(shifts[row][index]));
                    let (own, rest) = groups[row].split_at(groups_of_block);
                    (inputs[row], groups[row]) = (own, rest);
                }
                for (group, lines) in lines.iter().enumerate() {
                    sums.add_lines(simd, lines, tile::each(&inputs, group), digits, panel.ahead);
                }
                let scale = simd.load(&reader.scales[index]);
                let mut sums = sums.together(simd);
                panel.ending.centre(simd, &mut sums);
                for row in 0..ROWS {
                    let sum = in_units(simd, code, sums[row]);
                    let scale = simd.multiply(scale, simd.splat(scales[row][index]));
                    values[row] = simd.fused_exactly(sum, scale, values[row]);
                }
            }
            first += count;
        }
        for row in 0..ROWS {
            simd.store(values[row], &mut panel.state.values[row][0]);
        }
    }
}
