//! Activations of products of integers of 8 bits, in the order in which register tiles read them.

use std::{borrow::Cow, ops::Range};

use crate::{
    simd::{Instructions, LANES, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// Inputs that lie side by side.
pub(in crate::product) const LINE_INPUTS: usize = 4;

/// Rows of the largest block.
pub(in crate::product) const BLOCK_ROWS: usize = 8;

/// What turns the codes of an integer type of 8 bits into those that are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteType {
    /// Whether codes are from -128 to 127, else from 0 to 255.
    pub signed: bool,
}

impl ByteType {
    /// What is added to the number of a code where it is multiplied as an activation, which is signed.
    pub(in crate::product) fn activation_offset(self) -> i32 {
        if self.signed { 0 } else { -128 }
    }

    /// What is added to the number of a code where it is multiplied as a weight, which is unsigned.
    pub(super) fn weight_offset(self) -> i32 {
        if self.signed { 128 } else { 0 }
    }

    /// The bits of a code that differ where it is multiplied as an activation.
    fn activation_flip(self) -> u8 {
        if self.signed { 0 } else { 0x80 }
    }
}

/// The code of the zero point of activations.
#[derive(Clone, Copy, Debug)]
pub struct Zero {
    /// The code.
    pub code: u8,
    /// Its type.
    pub kind: ByteType,
}

/// Rows `[m, k]` of activations, as they are multiplied.
///
/// Rows are in blocks of 8, then of 4, 2 and 1 for those that are left. A block is `[k / 4][rows of the block][4]`; inputs that
/// are missing in the last group of 4 are 0.
#[derive(Debug)]
pub struct IntegerRows<'a> {
    rows: usize,
    inputs: usize,
    kind: ByteType,
    codes: Cow<'a, [[i8; LINE_INPUTS]]>,
}

/// One block of [`IntegerRows`].
#[derive(Clone, Copy)]
pub(in crate::product) struct RowBlock<'a> {
    pub first_row: usize,
    pub rows: usize,
    /// `[k / 4][rows]`.
    pub codes: &'a [[i8; LINE_INPUTS]],
}

/// The rows of the block that begins where `left` rows are left.
fn block_rows(left: usize) -> usize {
    [BLOCK_ROWS, 4, 2].into_iter().find(|&rows| rows <= left).unwrap_or(1)
}

/// Rows that are filled by one task, at least: whole blocks.
const TASK_ROWS: usize = 8 * BLOCK_ROWS;

impl IntegerRows<'_> {
    /// Rows one behind the other.
    ///
    /// # Panics
    /// If there are not `rows` times `inputs` codes.
    #[must_use]
    pub fn new(bytes: &[u8], rows: usize, inputs: usize, kind: ByteType) -> Self {
        assert_eq!(bytes.len(), rows * inputs, "codes of {rows} rows of {inputs}");
        let flip = kind.activation_flip();
        Self::filled(rows, inputs, kind, |first_row, codes| {
            each_block(codes, inputs, |row, rows, block| {
                let from = &bytes[(first_row + row) * inputs..][..rows * inputs];
                Instructions::best().run(FillBlock { from, inputs, rows, flip, block });
            });
        })
    }

    /// The windows `positions` of an image `[channels, positions..]`, a row each, with inputs in order of channels and then
    /// taps; padding is `zero`.
    ///
    /// # Panics
    /// If the image is too short.
    #[must_use]
    pub fn windows(axes: &[WindowAxis], image: &[u8], channels: usize, positions: Range<usize>, zero: Zero) -> Self {
        let axes = window::joined(axes);
        let (plane, taps) = (window::inputs(&axes), window::taps(&axes));
        let inputs = channels * taps;
        let is_plane = axes.iter().all(WindowAxis::is_identity);
        Self::filled(positions.len(), inputs, zero.kind, |first_row, codes| {
            let lines = inputs.div_ceil(LINE_INPUTS).max(1);
            let rows = codes.len() / lines;
            let first = positions.start + first_row;
            let sources: Vec<Vec<Source>> = match is_plane {
                true => Vec::new(),
                false => (0..taps).map(|tap| sources(&axes, tap, first..first + rows)).collect(),
            };
            let stride = axes.last().map_or(1, |axis| axis.stride);
            let padding = vec![zero.kind.activation_flip(); rows];
            let mut own = vec![0; LINE_INPUTS * rows];
            for line in 0..inputs.div_ceil(LINE_INPUTS) {
                let mut runs = [&padding[..]; LINE_INPUTS];
                let owns = own.chunks_mut(rows.max(1));
                for ((input, run), own) in (line * LINE_INPUTS..inputs).zip(&mut runs).zip(owns) {
                    let plane = &image[input / taps * plane..][..plane];
                    *run = if is_plane {
                        &plane[first..first + rows]
                    } else {
                        fill_tap(&sources[input % taps], stride, plane, zero.code, own);
                        own
                    };
                }
                Instructions::best().run(FillLine { runs, line, lines, kind: zero.kind, codes });
            }
        })
    }

    /// Rows whose codes `fill` writes: those from a row on, whole blocks.
    fn filled(
        rows: usize,
        inputs: usize,
        kind: ByteType,
        fill: impl Fn(usize, &mut [[i8; LINE_INPUTS]]) + Sync,
    ) -> Self {
        let lines = inputs.div_ceil(LINE_INPUTS);
        let mut codes = vec![[0; LINE_INPUTS]; rows * lines];
        if !codes.is_empty() {
            let parts = threads::parts(codes.len() * LINE_INPUTS, rows.div_ceil(TASK_ROWS));
            let rows_each = rows.div_ceil(parts).next_multiple_of(BLOCK_ROWS);
            threads::chunks(&mut codes, rows_each * lines, |part, codes| fill(part * rows_each, codes));
        }
        Self { rows, inputs, kind, codes: codes.into() }
    }

    /// Some of the rows, which begin at a multiple of 8 and end at one or with the last row.
    ///
    /// # Panics
    /// If there are not so many, or they begin or end elsewhere.
    #[must_use]
    pub fn part(&self, rows: Range<usize>) -> IntegerRows<'_> {
        assert!(rows.start.is_multiple_of(BLOCK_ROWS), "rows {rows:?} begin within a block");
        assert!(rows.end.is_multiple_of(BLOCK_ROWS) || rows.end == self.rows, "rows {rows:?} of {}", self.rows);
        let lines = self.inputs.div_ceil(LINE_INPUTS);
        let codes = &self.codes[rows.start * lines..rows.end * lines];
        IntegerRows { rows: rows.len(), inputs: self.inputs, kind: self.kind, codes: codes.into() }
    }

    /// The number of rows: m.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of inputs: k.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub(in crate::product) fn kind(&self) -> ByteType {
        self.kind
    }

    /// The block that begins at this row.
    #[inline(always)]
    pub(in crate::product) fn block(&self, first_row: usize) -> RowBlock<'_> {
        let lines = self.inputs.div_ceil(LINE_INPUTS);
        let rows = block_rows(self.rows - first_row);
        RowBlock { first_row, rows, codes: &self.codes[first_row * lines..][..rows * lines] }
    }

    /// The sum of the codes of each row over some inputs, which begin at a multiple of 4, as they are multiplied.
    pub(in crate::product) fn sums(&self, inputs: &Range<usize>) -> Vec<i32> {
        let lines = inputs.start / LINE_INPUTS..inputs.end.div_ceil(LINE_INPUTS);
        let mut sums = vec![0; self.rows];
        let mut row = 0;
        while row < self.rows {
            let block = self.block(row);
            let codes = &block.codes[lines.start * block.rows..lines.end * block.rows];
            Instructions::best().run(SumBlock { codes, sums: &mut sums[row..row + block.rows] });
            row += block.rows;
        }
        sums
    }
}

/// Calls `visit` with the first row, the number of rows, and the codes of each block of some whole blocks.
fn each_block(
    mut codes: &mut [[i8; LINE_INPUTS]],
    inputs: usize,
    mut visit: impl FnMut(usize, usize, &mut [[i8; LINE_INPUTS]]),
) {
    let lines = inputs.div_ceil(LINE_INPUTS).max(1);
    let mut row = 0;
    while !codes.is_empty() {
        let rows = block_rows(codes.len() / lines);
        let (block, rest) = codes.split_at_mut(rows * lines);
        visit(row, rows, block);
        row += rows;
        codes = rest;
    }
}

/// Writes a block from its rows one behind the other.
struct FillBlock<'a> {
    from: &'a [u8],
    inputs: usize,
    rows: usize,
    flip: u8,
    block: &'a mut [[i8; LINE_INPUTS]],
}

impl Routine for FillBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { from, inputs, rows, flip, block } = self;
        let vectors = if rows == BLOCK_ROWS { inputs / (LINE_INPUTS * LANES) } else { 0 };
        for (vector, groups) in block.chunks_exact_mut(LANES * BLOCK_ROWS).take(vectors).enumerate() {
            // Groups of four are lanes; those of 8 rows are half of a transposed matrix.
            let mut groups_of_rows = [simd.splat(0.0); LANES];
            for row in 0..BLOCK_ROWS {
                let own = from[row * inputs..].as_chunks::<{ LINE_INPUTS * LANES }>().0;
                let lanes: &[[u8; LINE_INPUTS]; LANES] = bytemuck::cast_ref(&own[vector]);
                let mut bits = [0.0; LANES];
                for lane in 0..LANES {
                    bits[lane] =
                        f32::from_bits(u32::from_ne_bytes(lanes[lane]) ^ u32::from_ne_bytes([flip; LINE_INPUTS]));
                }
                groups_of_rows[row] = simd.load(&bits);
            }
            let transposed = simd.transpose(groups_of_rows);
            for group in 0..LANES {
                let mut lanes = [0.0; LANES];
                simd.store(transposed[group], &mut lanes);
                let lanes: &[[i8; LINE_INPUTS]; LANES] = bytemuck::cast_ref(&lanes);
                groups[group * BLOCK_ROWS..][..BLOCK_ROWS].copy_from_slice(&lanes[..BLOCK_ROWS]);
            }
        }
        let block = &mut block[vectors * LANES * rows..];
        for row in 0..rows {
            let left = &from[row * inputs..][..inputs][vectors * LANES * LINE_INPUTS..];
            let (groups, rest) = left.as_chunks::<LINE_INPUTS>();
            for (to, group) in block.iter_mut().skip(row).step_by(rows).zip(groups) {
                *to = group.map(|code| (code ^ flip) as i8);
            }
            if !rest.is_empty() {
                let last = &mut block[groups.len() * rows + row];
                last.iter_mut().zip(rest).for_each(|(to, code)| *to = (code ^ flip) as i8);
            }
        }
    }
}

/// Writes one group of four inputs of all rows of some blocks.
struct FillLine<'a> {
    /// The codes of each input.
    runs: [&'a [u8]; LINE_INPUTS],
    line: usize,
    lines: usize,
    kind: ByteType,
    codes: &'a mut [[i8; LINE_INPUTS]],
}

impl Routine for FillLine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { runs, line, lines, kind, codes } = self;
        let [a, b, c, d] = runs;
        let rows = a.len();
        let flip = kind.activation_flip();
        let whole = rows / BLOCK_ROWS;
        let blocks = codes.chunks_exact_mut(BLOCK_ROWS * lines);
        let sources = a.as_chunks::<BLOCK_ROWS>().0.iter().zip(b.as_chunks::<BLOCK_ROWS>().0);
        let others = c.as_chunks::<BLOCK_ROWS>().0.iter().zip(d.as_chunks::<BLOCK_ROWS>().0);
        for (block, ((a, b), (c, d))) in blocks.zip(sources.zip(others)) {
            if let Some(to) = block[line * BLOCK_ROWS..].first_chunk_mut::<BLOCK_ROWS>() {
                *to = std::array::from_fn(|row| [a[row], b[row], c[row], d[row]].map(|code| (code ^ flip) as i8));
            }
        }
        let mut row = whole * BLOCK_ROWS;
        while row < rows {
            let count = block_rows(rows - row);
            for index in row..row + count {
                let four = [a[index], b[index], c[index], d[index]];
                codes[row * lines + line * count + index - row] = four.map(|code| (code ^ flip) as i8);
            }
            row += count;
        }
    }
}

/// Adds the codes of each row of a block.
struct SumBlock<'a> {
    codes: &'a [[i8; LINE_INPUTS]],
    sums: &'a mut [i32],
}

impl Routine for SumBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.sums.len();
        // 16 groups are 2, 4, 8 or 16 times the rows of the block.
        let (vectors, rest) = self.codes.as_chunks::<LANES>();
        let ones = simd.splat_integer(0x0101_0101);
        let mut sum = simd.splat_integer(0);
        for groups in vectors {
            let mut bytes = [0; LINE_INPUTS * LANES];
            bytes.copy_from_slice(bytemuck::cast_slice(groups));
            sum = simd.dot(sum, ones, simd.load_bytes(&bytes));
        }
        let mut lanes = [0; LANES];
        simd.store_integers(sum, &mut lanes);
        for (lane, sum) in lanes.into_iter().enumerate() {
            self.sums[lane % rows] += sum;
        }
        for (index, group) in rest.iter().enumerate() {
            self.sums[index % rows] += group.iter().map(|&code| i32::from(code)).sum::<i32>();
        }
    }
}

/// Where codes of consecutive windows come from.
struct Source {
    /// The windows, counted from the first.
    windows: Range<usize>,
    /// The place in the plane of what the first of them reads; none in the padding. The others read what lies a stride further
    /// each.
    from: Option<usize>,
}

/// What tap `tap` of some windows reads, in order: the same for each channel.
fn sources(axes: &[WindowAxis], tap: usize, windows: Range<usize>) -> Vec<Source> {
    let mut sources = Vec::new();
    let Some((inner, outer)) = axes.split_last() else { return sources };
    let shift = tap % inner.kernel.max(1) * inner.dilation;
    // The first window at or behind a position of the row.
    let reaching = |place: usize| (place + inner.pad_begin).saturating_sub(shift).div_ceil(inner.stride);
    let mut window = windows.start;
    while window < windows.end {
        let start = window % inner.output;
        let end = inner.output.min(start + windows.end - window);
        let row = outer_place(outer, window / inner.output, tap / inner.kernel.max(1)).map(|place| place * inner.input);
        let inside = match row {
            Some(_) => reaching(0).clamp(start, end)..reaching(inner.input).clamp(start, end),
            None => start..start,
        };
        for range in [start..inside.start, inside.clone(), inside.end.max(inside.start)..end] {
            if range.is_empty() {
                continue;
            }
            // What is inside lies behind the padding.
            let from =
                row.filter(|_| range == inside).map(|row| row + range.start * inner.stride + shift - inner.pad_begin);
            // Indices count from the first window of the row, places from the first that is asked for.
            let place = |index: usize| window + index - start - windows.start;
            sources.push(Source { windows: place(range.start)..place(range.end), from });
        }
        window += end - start;
    }
    sources
}

/// Writes what a tap reads of a plane, or `padding`.
fn fill_tap(sources: &[Source], stride: usize, plane: &[u8], padding: u8, run: &mut [u8]) {
    for Source { windows, from } in sources {
        let Some(from) = *from else {
            run[windows.clone()].fill(padding);
            continue;
        };
        let (to, from) = (&mut run[windows.start..], &plane[from..]);
        let count = windows.len();
        match stride {
            1 if count <= 16 && copy_block::<16>(from, to) => {}
            1 if count <= 32 && copy_block::<32>(from, to) => {}
            1 => to[..count].copy_from_slice(&from[..count]),
            2 => to[..count].iter_mut().zip(from.iter().step_by(2)).for_each(|(to, code)| *to = *code),
            stride => to[..count].iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, code)| *to = *code),
        }
    }
}

/// Copies a block where both have one: what a short row does not fill is written again by what follows it.
#[inline(always)]
fn copy_block<const SIZE: usize>(from: &[u8], to: &mut [u8]) -> bool {
    match (to.first_chunk_mut::<SIZE>(), from.first_chunk::<SIZE>()) {
        (Some(to), Some(from)) => {
            *to = *from;
            true
        }
        _ => false,
    }
}

/// The index of the row of the innermost axis that a tap of the outer axes reads; none in the padding.
fn outer_place(outer: &[WindowAxis], mut position: usize, mut tap: usize) -> Option<usize> {
    let (mut place, mut stride) = (0, 1);
    for axis in outer.iter().rev() {
        place += axis.position(position % axis.output, tap % axis.kernel)? * stride;
        position /= axis.output;
        tap /= axis.kernel;
        stride *= axis.input;
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a kernel that is wider than its row, some taps read nothing but padding.
    #[test]
    fn sources_are_what_each_window_reads() {
        for (input, kernel, stride, dilation, pads) in [
            (5, 3, 1, 1, [1, 1]),
            (4, 9, 1, 1, [6, 2]),
            (2, 5, 3, 2, [7, 4]),
            (7, 2, 2, 3, [0, 3]),
            (3, 4, 1, 1, [0, 9]),
        ] {
            let [pad_begin, pad_end] = pads;
            let output = (input + pad_begin + pad_end - (kernel - 1) * dilation - 1) / stride + 1;
            let axis = WindowAxis { input, output, kernel, stride, dilation, pad_begin, pad_end };
            for tap in 0..kernel {
                let mut places = vec![None; output];
                for Source { windows, from } in sources(&[axis], tap, 0..output) {
                    let Some(from) = from else { continue };
                    for (step, window) in windows.enumerate() {
                        places[window] = Some(from + step * stride);
                    }
                }
                let expected: Vec<_> = (0..output).map(|window| axis.position(window, tap)).collect();
                assert_eq!(places, expected, "tap {tap} of {axis:?}");
            }
        }
    }
}
