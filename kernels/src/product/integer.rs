//! Products of integers of 8 bits: exact sums that wrap around in 32 bits, over panels of 16 outputs.
//!
//! Activations are signed and weights unsigned where they are multiplied, as vector instructions take them: an unsigned
//! activation is 128 less than its code, a signed weight 128 more, and so are their zero points. Since
//! `(x - a) * (w - b)` sums to `x * w - a * (w - b) - b * x`, zero points cost a sum of each row and each column. The sum of a
//! column is needed for the 128 of unsigned activations whatever their zero point is, which is only a factor of it: a
//! constant one that were a part of the bias would save nothing. Everything is exact modulo 2^32, so that instruction sets,
//! threads, pieces and rows change no bits.

use std::ops::Range;

use super::{
    PANEL_OUTPUTS,
    integer_rows::{BLOCK_ROWS, ByteType, IntegerRows, LINE_INPUTS, RowBlock},
    shares::Shares,
};
use crate::{
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// Four inputs of each output of a panel.
pub type IntegerLine = [u8; LINE_INPUTS * PANEL_OUTPUTS];

/// Panels of the widest tile.
pub(super) const TILE_PANELS: usize = 3;

/// Part of a weight `[k, n]` in panels.
#[derive(Clone, Debug)]
pub struct IntegerPiece<'a> {
    /// Which panels.
    pub panels: Range<usize>,
    /// Which inputs of each; begins at a multiple of 4, and ends at one or at k.
    pub inputs: Range<usize>,
    /// Panel by panel: input `i` of output `o` in byte `4 * o + i % 4` of line `i / 4`.
    pub lines: &'a [IntegerLine],
}

/// A weight and what is subtracted from its codes.
#[derive(Clone, Copy, Debug)]
pub struct IntegerWeight<'a> {
    /// The type of the codes.
    pub kind: ByteType,
    /// The zero point of each output: `[n]`.
    pub zeros: &'a [i32],
}

/// Puts a matrix `[k, n]` of codes, whose inputs are `input_stride` and outputs `output_stride` apart, in panels.
///
/// # Panics
/// If the matrix does not lie in `bytes`.
#[must_use]
pub fn pack_integers(
    bytes: &[u8],
    [inputs, outputs]: [usize; 2],
    [input_stride, output_stride]: [usize; 2],
) -> Vec<IntegerLine> {
    let lines = inputs.div_ceil(LINE_INPUTS);
    let mut packed = vec![[0; LINE_INPUTS * PANEL_OUTPUTS]; lines * outputs.div_ceil(PANEL_OUTPUTS)];
    for (panel, packed) in packed.chunks_mut(lines.max(1)).enumerate() {
        let first = panel * PANEL_OUTPUTS;
        for output in first..outputs.min(first + PANEL_OUTPUTS) {
            for input in 0..inputs {
                let place = LINE_INPUTS * (output - first) + input % LINE_INPUTS;
                packed[input / LINE_INPUTS][place] = bytes[input * input_stride + output * output_stride];
            }
        }
    }
    packed
}

/// Where sums are added: `[m, n]` in one of two orders.
pub struct IntegerSums<'a> {
    /// All of them.
    pub sums: &'a mut [i32],
    /// The order.
    pub order: SumOrder,
}

/// How sums lie.
#[derive(Clone, Copy, Debug)]
pub enum SumOrder {
    /// Output `o` of row `r` at `r * n + o`.
    Rows,
    /// Output `o` of row `r` at `o * stride + first + r`.
    Outputs {
        /// Elements of an output.
        stride: usize,
        /// The element of the first row.
        first: usize,
    },
}

/// `sums[m, n] += (x[m, k] - zero) * (w[k, n] - zeros[n])`, as far as `pieces` of `w` reach. All wrap around.
///
/// `pieces` are in order of panels, and none has a panel twice; pieces of the same panel come in separate calls.
///
/// # Panics
/// If shapes disagree.
pub fn integer_product(
    instructions: Instructions,
    x: &IntegerRows<'_>,
    zero: i32,
    weight: IntegerWeight<'_>,
    pieces: &[IntegerPiece<'_>],
    out: IntegerSums<'_>,
) {
    let (rows, outputs) = (x.rows(), weight.zeros.len());
    match out.order {
        SumOrder::Rows => assert_eq!(out.sums.len(), rows * outputs, "sums of {rows} rows of {outputs}"),
        SumOrder::Outputs { stride, first } => {
            assert!(first + rows <= stride, "rows {rows} from {first} of {stride}");
            assert_eq!(out.sums.len(), outputs * stride, "sums of {outputs} outputs");
        }
    }
    if rows == 0 || outputs == 0 {
        return;
    }
    let mut row_sums: Vec<(Range<usize>, Vec<i32>)> = Vec::new();
    let mut panels = 0;
    for piece in pieces {
        assert!(
            piece.inputs.start.is_multiple_of(LINE_INPUTS) && piece.inputs.end <= x.inputs(),
            "inputs {:?} of {}",
            piece.inputs,
            x.inputs()
        );
        let lines = piece.inputs.len().div_ceil(LINE_INPUTS);
        assert_eq!(piece.lines.len(), lines * piece.panels.len(), "lines of a piece");
        assert!(piece.panels.start >= panels, "panels {:?} are not in order", piece.panels);
        assert!(piece.panels.end <= outputs.div_ceil(PANEL_OUTPUTS), "panels {:?} of {outputs}", piece.panels);
        panels = piece.panels.end;
        if !row_sums.iter().any(|(inputs, _)| *inputs == piece.inputs) {
            row_sums.push((piece.inputs.clone(), x.sums(&piece.inputs)));
        }
    }
    let groups = Groups::new(pieces, rows, matches!(out.order, SumOrder::Rows));
    let mut shares;
    let places: Vec<Place<'_, '_>> = match out.order {
        SumOrder::Rows => {
            shares = Shares::new(groups.rows, groups.outputs(outputs), out.sums.chunks_mut(outputs));
            shares.iter_mut().map(Place::Rows).collect()
        }
        SumOrder::Outputs { stride, first } => groups.columns(out.sums, outputs, [stride, first]),
    };
    let zero = zero + x.kind().activation_offset();
    let mut tasks = Vec::with_capacity(places.len());
    for (index, place) in places.into_iter().enumerate() {
        let (block, group) = (index / groups.panels.len(), &groups.panels[index % groups.panels.len()]);
        let (piece, panels) = (&pieces[group.piece], group.panels.clone());
        let lines = piece.inputs.len().div_ceil(LINE_INPUTS);
        let first = panels.start - piece.panels.start;
        let row_sums = row_sums.iter().find(|(inputs, _)| *inputs == piece.inputs).map_or(&[][..], |(_, sums)| sums);
        tasks.push(PanelTask {
            x,
            rows: block * groups.rows..rows.min((block + 1) * groups.rows),
            zero,
            kind: weight.kind,
            zeros: &weight.zeros[panels.start * PANEL_OUTPUTS..outputs.min(panels.end * PANEL_OUTPUTS)],
            inputs: piece.inputs.clone(),
            lines: &piece.lines[first * lines..][..panels.len() * lines],
            row_sums,
            place,
        });
    }
    threads::each_mut(tasks, |task| instructions.run(task));
}

/// Panels of one piece that a task multiplies.
struct PanelGroup {
    piece: usize,
    panels: Range<usize>,
}

/// How a product is cut into tasks: all groups of panels for the first rows, then all for the next.
struct Groups {
    /// Rows of a task, but the last.
    rows: usize,
    panels: Vec<PanelGroup>,
}

impl Groups {
    fn new(pieces: &[IntegerPiece<'_>], rows: usize, cuts_rows: bool) -> Self {
        let operations: usize = pieces.iter().map(|piece| piece.lines.len()).sum::<usize>() * size_of::<IntegerLine>();
        let parts = threads::parts(operations * rows, usize::MAX);
        let panels: usize = pieces.iter().map(|piece| piece.panels.len()).sum();
        // Whole tiles where there are enough of them.
        let panels_each = panels.div_ceil(parts).next_multiple_of(TILE_PANELS);
        let panels_each = if panels_each * 2 > panels && !cuts_rows { panels.div_ceil(parts) } else { panels_each };
        let mut groups = Vec::new();
        for (piece, of) in pieces.iter().enumerate() {
            let starts = of.panels.clone().step_by(panels_each.max(1));
            groups.extend(
                starts.map(|start| PanelGroup { piece, panels: start..of.panels.end.min(start + panels_each) }),
            );
        }
        let row_parts = if cuts_rows { parts.div_ceil(groups.len().max(1)) } else { 1 };
        Groups { rows: rows.div_ceil(row_parts).next_multiple_of(BLOCK_ROWS), panels: groups }
    }

    /// The outputs of each group, of which there are so many.
    fn outputs(&self, count: usize) -> impl ExactSizeIterator<Item = Range<usize>> + Clone {
        let extent =
            move |group: &PanelGroup| group.panels.start * PANEL_OUTPUTS..count.min(group.panels.end * PANEL_OUTPUTS);
        self.panels.iter().map(extent)
    }

    /// The sums of each group, where they lie output by output.
    fn columns<'a>(&self, sums: &'a mut [i32], outputs: usize, [stride, first]: [usize; 2]) -> Vec<Place<'a, 'a>> {
        let (mut rest, mut begun) = (sums, 0);
        let place = |own: Range<usize>| {
            let (_, behind) = std::mem::take(&mut rest).split_at_mut((own.start - begun) * stride);
            let (sums, behind) = behind.split_at_mut(own.len() * stride);
            (rest, begun) = (behind, own.end);
            Place::Outputs { sums, stride, first }
        };
        self.outputs(outputs).map(place).collect()
    }
}

/// The sums of a task.
enum Place<'s, 'a> {
    /// Those of its outputs, row by row.
    Rows(&'s mut [&'a mut [i32]]),
    /// Those of all rows, output by output.
    Outputs { sums: &'a mut [i32], stride: usize, first: usize },
}

/// Some rows by some panels.
struct PanelTask<'s, 'a> {
    x: &'a IntegerRows<'a>,
    rows: Range<usize>,
    /// The zero point of activations, as they are multiplied.
    zero: i32,
    kind: ByteType,
    /// Those of the outputs of these panels, as their codes are.
    zeros: &'a [i32],
    inputs: Range<usize>,
    lines: &'a [IntegerLine],
    row_sums: &'a [i32],
    place: Place<'s, 'a>,
}

impl Routine for &mut PanelTask<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let panels = self.zeros.len().div_ceil(PANEL_OUTPUTS);
        let mut panel = 0;
        while panel < panels {
            if const { S::TILE_VECTORS == 3 } && panel + TILE_PANELS <= panels {
                self.column_of_tiles::<S, TILE_PANELS>(simd, panel);
                panel += TILE_PANELS;
            } else {
                self.column_of_tiles::<S, 1>(simd, panel);
                panel += 1;
            }
        }
    }
}

/// Some panels that are multiplied together.
struct Column<'a, const PANELS: usize> {
    /// The first of them in the task.
    panel: usize,
    lines: [&'a [IntegerLine]; PANELS],
    corrections: Corrections<PANELS>,
}

/// What the zero points of some panels take from sums.
struct Corrections<const PANELS: usize> {
    /// The zero point of each output, as codes are multiplied: times the sum of a row.
    zeros: [[i32; LANES]; PANELS],
    /// The zero point of activations times the sum of each output, less its zero point for each input.
    of_columns: [[i32; LANES]; PANELS],
}

impl<'a> PanelTask<'_, 'a> {
    /// All rows by some panels.
    #[inline(always)]
    fn column_of_tiles<S: Simd, const PANELS: usize>(&mut self, simd: S, panel: usize) {
        let count = self.inputs.len().div_ceil(LINE_INPUTS);
        let lines: [&'a [IntegerLine]; PANELS] =
            std::array::from_fn(|index| &self.lines[(panel + index) * count..][..count]);
        let column = Column { panel, lines, corrections: self.corrections(simd, panel, lines) };
        let later = &self.lines[(panel + PANELS) * count..];
        let later = &later[..later.len().min(PANELS * count)];
        let mut later = later.chunks(later.len().div_ceil(self.rows.len().div_ceil(BLOCK_ROWS)).max(1));
        let mut waiting = Waiting { sums: [[[0; LANES]; LANES]; PANELS], first: self.rows.start, count: 0 };
        let mut row = self.rows.start;
        while row < self.rows.end {
            let block = self.x.block(row);
            // A tile of 8 rows does not fit into the registers of every instruction set.
            let rows = if S::TILE_VECTORS == 3 { block.rows } else { block.rows.min(4) };
            let mut later = later.next().unwrap_or_default();
            for first in (0..block.rows).step_by(rows) {
                let later = std::mem::take(&mut later);
                let block = (block, first);
                match rows {
                    BLOCK_ROWS if const { S::TILE_VECTORS == 3 } => {
                        self.tile::<S, BLOCK_ROWS, PANELS>(simd, block, &column, later, &mut waiting);
                    }
                    4 => self.tile::<S, 4, PANELS>(simd, block, &column, later, &mut waiting),
                    2 => self.tile::<S, 2, PANELS>(simd, block, &column, later, &mut waiting),
                    _ => self.tile::<S, 1, PANELS>(simd, block, &column, later, &mut waiting),
                }
            }
            row += block.rows;
        }
        self.store_waiting(simd, panel, &mut waiting);
    }

    #[inline(always)]
    fn corrections<S: Simd, const PANELS: usize>(
        &self,
        simd: S,
        panel: usize,
        lines: [&[IntegerLine]; PANELS],
    ) -> Corrections<PANELS> {
        let mut made = Corrections { zeros: [[0; LANES]; PANELS], of_columns: [[0; LANES]; PANELS] };
        for index in 0..PANELS {
            let own = self.zeros[(panel + index) * PANEL_OUTPUTS..].iter();
            for (zero, own) in made.zeros[index].iter_mut().zip(own) {
                *zero = own.wrapping_add(self.kind.weight_offset());
            }
            if self.zero == 0 {
                continue;
            }
            let mut sums = [0; LANES];
            simd.run(ColumnSums { lines: lines[index], inputs: self.inputs.len(), kind: self.kind, sums: &mut sums });
            let count = self.inputs.len() as i32;
            for lane in 0..LANES {
                let centred = sums[lane].wrapping_sub(count.wrapping_mul(made.zeros[index][lane]));
                made.of_columns[index][lane] = self.zero.wrapping_mul(centred);
            }
        }
        made
    }

    /// Some rows of a block by some panels.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const PANELS: usize>(
        &mut self,
        simd: S,
        (block, first): (RowBlock<'_>, usize),
        Column { panel, lines, corrections }: &Column<'_, PANELS>,
        later: &[IntegerLine],
        waiting: &mut Waiting<PANELS>,
    ) {
        let mut sums = [[[0; LANES]; PANELS]; ROWS];
        let begin = self.inputs.start / LINE_INPUTS * block.rows + first;
        let left = Left { codes: block.codes.get(begin..).unwrap_or_default(), stride: block.rows };
        simd.run(Tile { left, lines: *lines, signed: self.kind.signed, later, sums: &mut sums });
        let row = block.first_row + first;
        for index in 0..ROWS {
            let of_row = simd.splat_integer(self.row_sums[row + index]);
            for column in 0..PANELS {
                let sum = simd.load_integers(&sums[index][column]);
                let zeros = simd.multiply_integers(simd.load_integers(&corrections.zeros[column]), of_row);
                let of_columns = simd.load_integers(&corrections.of_columns[column]);
                let sum = simd.subtract_integers(simd.subtract_integers(sum, of_columns), zeros);
                simd.store_integers(sum, &mut sums[index][column]);
            }
        }
        match &mut self.place {
            Place::Rows(rows) => {
                let rows = &mut rows[row - self.rows.start..][..ROWS];
                for (outputs, sums) in rows.iter_mut().zip(&sums) {
                    let own = outputs[*panel * PANEL_OUTPUTS..].iter_mut().zip(sums.as_flattened());
                    own.for_each(|(output, sum)| *output = output.wrapping_add(*sum));
                }
            }
            Place::Outputs { .. } => {
                if waiting.count + ROWS > LANES {
                    self.store_waiting(simd, *panel, waiting);
                }
                for (index, row) in sums.iter().enumerate() {
                    for (panel, sums) in row.iter().enumerate() {
                        waiting.sums[panel][waiting.count + index] = *sums;
                    }
                }
                waiting.count += ROWS;
            }
        }
    }

    /// Adds sums that wait to their outputs, where they lie row by row.
    #[inline(always)]
    fn store_waiting<S: Simd, const PANELS: usize>(&mut self, simd: S, panel: usize, waiting: &mut Waiting<PANELS>) {
        let Place::Outputs { sums: out, stride, first } = &mut self.place else { return };
        let place = *first + waiting.first;
        for (sums, outputs) in waiting.sums.iter().zip(out.chunks_mut(*stride * PANEL_OUTPUTS).skip(panel)) {
            if waiting.count == LANES {
                // Transposing moves bits only.
                let rows: &[[f32; LANES]; LANES] = bytemuck::cast_ref(sums);
                let mut vectors = [simd.splat(0.0); LANES];
                for row in 0..LANES {
                    vectors[row] = simd.load(&rows[row]);
                }
                let vectors = simd.transpose(vectors);
                let mut own = [[0.0; LANES]; LANES];
                for output in 0..LANES {
                    simd.store(vectors[output], &mut own[output]);
                }
                let own: [[i32; LANES]; LANES] = bytemuck::cast(own);
                for (output, own) in outputs.chunks_mut(*stride).zip(&own) {
                    if let Some(output) = output[place..].first_chunk_mut::<LANES>() {
                        let sum = simd.add_integers(simd.load_integers(output), simd.load_integers(own));
                        simd.store_integers(sum, output);
                    }
                }
                continue;
            }
            for (place_in_panel, output) in outputs.chunks_mut(*stride).enumerate() {
                let rows = output[place..].iter_mut().zip(&sums[..waiting.count]);
                rows.for_each(|(output, row)| *output = output.wrapping_add(row[place_in_panel]));
            }
        }
        waiting.first += waiting.count;
        waiting.count = 0;
    }
}

/// Sums of consecutive rows until there are as many as a vector has lanes: outputs are then stored as vectors.
struct Waiting<const PANELS: usize> {
    /// `[PANELS][rows][outputs]`.
    sums: [[[i32; LANES]; LANES]; PANELS],
    /// The row of the first.
    first: usize,
    count: usize,
}

/// The sum of the codes of each output of a panel, as they are multiplied.
pub(super) struct ColumnSums<'a> {
    pub lines: &'a [IntegerLine],
    pub inputs: usize,
    pub kind: ByteType,
    pub sums: &'a mut [i32; LANES],
}

impl Routine for ColumnSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let flip = simd.splat_integer(if self.kind.signed { 0x8080_8080_u32 as i32 } else { 0 });
        let ones = simd.splat_integer(0x0101_0101);
        let (full, last) = self.lines.split_at(self.inputs / LINE_INPUTS);
        let mut sum = simd.splat_integer(0);
        for bytes in full {
            sum = simd.dot(sum, simd.exclusive_or(simd.load_bytes(bytes), flip), ones);
        }
        // What pads the last line is no code.
        let ones = simd.splat_integer((1 << (8 * (self.inputs % LINE_INPUTS))) / 255);
        for bytes in last {
            sum = simd.dot(sum, simd.exclusive_or(simd.load_bytes(bytes), flip), ones);
        }
        simd.store_integers(sum, self.sums);
    }
}

/// Rows of a block from one on: row `r` of group `g` of inputs at `g * stride + r`.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub codes: &'a [[i8; LINE_INPUTS]],
    pub stride: usize,
}

/// The products of some rows with all inputs of a part of some panels.
pub(super) struct Tile<'a, const ROWS: usize, const PANELS: usize> {
    pub left: Left<'a>,
    pub lines: [&'a [IntegerLine]; PANELS],
    pub signed: bool,
    /// What is multiplied later, and is asked for a line at a time: a processor has room for few lines that it waits for.
    pub later: &'a [IntegerLine],
    pub sums: &'a mut [[[i32; LANES]; PANELS]; ROWS],
}

impl<const ROWS: usize, const PANELS: usize> Routine for Tile<'_, ROWS, PANELS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { left, lines, signed, later, sums: out } = self;
        let flip = simd.splat_integer(if signed { 0x8080_8080_u32 as i32 } else { 0 });
        let mut sums = [[simd.splat_integer(0); PANELS]; ROWS];
        let count = lines[0].len();
        let mut of_panels: [&[IntegerLine]; PANELS] = [&[]; PANELS];
        for panel in 0..PANELS {
            of_panels[panel] = &lines[panel][..count];
        }
        let (mut asked, mut due) = (0, 0);
        for (line, groups) in left.codes.chunks(left.stride).take(count).enumerate() {
            due += later.len();
            while due >= count {
                simd.prefetch_far(later, asked);
                (asked, due) = (asked + 1, due - count);
            }
            let mut codes = [flip; PANELS];
            for panel in 0..PANELS {
                codes[panel] = simd.exclusive_or(simd.load_bytes(&of_panels[panel][line]), flip);
            }
            for (row, group) in groups[..ROWS].iter().enumerate() {
                let signed = simd.splat_integer(i32::from_le(bytemuck::cast(*group)));
                for panel in 0..PANELS {
                    sums[row][panel] = simd.dot(sums[row][panel], codes[panel], signed);
                }
            }
        }
        for row in 0..ROWS {
            for panel in 0..PANELS {
                simd.store_integers(sums[row][panel], &mut out[row][panel]);
            }
        }
    }
}
