//! Products of integers of 8 bits: exact sums that wrap around in 32 bits, over panels of 16 outputs.
//!
//! Activations are signed and weights unsigned where they are multiplied, as vector instructions take them: an unsigned
//! activation is 128 less than its code, a signed weight 128 more, and so are their zero points. Since
//! `(x - a) * (w - b)` sums to `x * w - a * (w - b) - b * x`, zero points cost a sum of each row and each column. Everything is
//! exact modulo 2^32, so that instruction sets, threads, pieces and rows change no bits.

use std::ops::Range;

use super::PANEL_OUTPUTS;
use crate::kernels::{
    simd::{Instructions, LANES, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// Inputs of an output that lie side by side in a line.
const LINE_INPUTS: usize = 4;

/// Four inputs of each output of a panel.
pub type IntegerLine = [u8; LINE_INPUTS * PANEL_OUTPUTS];

/// Rows of the largest tile.
const TILE_ROWS: usize = 8;

/// What turns the codes of an integer type of 8 bits into those that are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteType {
    /// Whether codes are from -128 to 127, else from 0 to 255.
    pub signed: bool,
}

impl ByteType {
    /// What is added to the number of a code where it is multiplied as an activation, which is signed.
    fn activation_offset(self) -> i32 {
        if self.signed { 0 } else { -128 }
    }

    /// What is added to the number of a code where it is multiplied as a weight, which is unsigned.
    fn weight_offset(self) -> i32 {
        if self.signed { 128 } else { 0 }
    }

    /// The bits of a code that differ where it is multiplied as an activation.
    fn activation_flip(self) -> u8 {
        if self.signed { 0 } else { 0x80 }
    }
}

/// Rows `[m, k]` of activations.
#[derive(Debug)]
pub struct IntegerRows {
    rows: usize,
    inputs: usize,
    kind: ByteType,
    /// `[m][k rounded up to 4]`; those that are missing are 0.
    codes: Vec<i8>,
}

impl IntegerRows {
    fn empty(rows: usize, inputs: usize, kind: ByteType) -> Self {
        Self { rows, inputs, kind, codes: vec![0; rows * inputs.next_multiple_of(LINE_INPUTS)] }
    }

    /// Rows one behind the other.
    ///
    /// # Panics
    /// If there are not `rows` times `inputs` codes.
    #[must_use]
    pub fn new(bytes: &[u8], rows: usize, inputs: usize, kind: ByteType) -> Self {
        assert_eq!(bytes.len(), rows * inputs, "codes of {rows} rows of {inputs}");
        let mut made = Self::empty(rows, inputs, kind);
        let stride = inputs.next_multiple_of(LINE_INPUTS).max(1);
        for (to, from) in made.codes.chunks_mut(stride).zip(bytes.chunks(inputs.max(1))) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = (from ^ kind.activation_flip()) as i8);
        }
        made
    }

    /// The windows `positions` of an image `[channels, positions..]`, a row each, with inputs in order of channels and then
    /// taps; padding is `zero`.
    ///
    /// # Panics
    /// If the image is too short.
    #[must_use]
    pub fn windows(axes: &[WindowAxis], image: &[u8], channels: usize, positions: Range<usize>, zero: Zero) -> Self {
        let (plane, taps) = (window::inputs(axes), window::taps(axes));
        let flip = zero.kind.activation_flip();
        let padding = (zero.code ^ flip) as i8;
        let mut made = Self::empty(positions.len(), channels * taps, zero.kind);
        let stride = (channels * taps).next_multiple_of(LINE_INPUTS).max(1);
        let parts = threads::parts(made.codes.len() * 2, positions.len().max(1));
        let rows_each = positions.len().div_ceil(parts).max(1);
        threads::chunks(&mut made.codes, rows_each * stride, |part, codes| {
            let mut places = Vec::with_capacity(taps);
            for (row, codes) in codes.chunks_mut(stride).enumerate() {
                tap_places(axes, positions.start + part * rows_each + row, &mut places);
                let channels = codes.chunks_mut(taps.max(1)).zip(image.chunks(plane.max(1)).take(channels));
                if places.iter().all(Option::is_some) {
                    for (codes, values) in channels {
                        for (code, place) in codes.iter_mut().zip(places.iter().flatten()) {
                            *code = (values[*place] ^ flip) as i8;
                        }
                    }
                } else {
                    for (codes, values) in channels {
                        for (code, place) in codes.iter_mut().zip(&places) {
                            *code = place.map_or(padding, |place| (values[place] ^ flip) as i8);
                        }
                    }
                }
            }
        });
        made
    }

    /// The number of rows: m.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    #[inline(always)]
    fn codes(&self, row: usize) -> &[i8] {
        let length = self.inputs.next_multiple_of(LINE_INPUTS);
        &self.codes[row * length..][..length]
    }

    /// The sum of the codes of each row, as they are multiplied.
    fn sums(&self, inputs: &Range<usize>) -> Vec<i32> {
        let sum = |row| self.codes(row)[inputs.clone()].iter().map(|&code| i32::from(code)).sum();
        (0..self.rows).map(sum).collect()
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

/// Where each tap of window `position` lies in a plane, in order of taps; none in the padding.
fn tap_places(axes: &[WindowAxis], position: usize, places: &mut Vec<Option<usize>>) {
    places.clear();
    places.push(Some(0));
    let mut after: usize = axes.iter().map(|axis| axis.output).product();
    let mut rest = position;
    for axis in axes {
        after /= axis.output.max(1);
        let output = rest / after.max(1);
        rest %= after.max(1);
        let before = std::mem::take(places);
        for place in before {
            for tap in 0..axis.kernel {
                let own = axis.position(output, tap);
                places.push(place.zip(own).map(|(place, own)| place * axis.input + own));
            }
        }
    }
}

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

/// Where sums are added: output `o` of row `r` at `o * stride + first + r`.
pub struct IntegerSums<'a> {
    /// `[n][stride]`.
    pub sums: &'a mut [i32],
    /// Elements of an output.
    pub stride: usize,
    /// The element of the first row.
    pub first: usize,
}

/// `sums[n, m] += (x[m, k] - zero) * (w[k, n] - zeros[n])`, as far as `pieces` of `w` reach. All wrap around.
///
/// `pieces` are in order of panels, and none has a panel twice; pieces of the same panel come in separate calls.
///
/// # Panics
/// If shapes disagree.
pub fn integer_product(
    instructions: Instructions,
    x: &IntegerRows,
    zero: i32,
    weight: IntegerWeight<'_>,
    pieces: &[IntegerPiece<'_>],
    out: IntegerSums<'_>,
) {
    let outputs = weight.zeros.len();
    assert!(out.first + x.rows <= out.stride, "rows {} from {} of {}", x.rows, out.first, out.stride);
    assert_eq!(out.sums.len(), outputs * out.stride, "sums of {outputs} outputs");
    if x.rows == 0 || outputs == 0 {
        return;
    }
    let zero = zero + x.kind.activation_offset();
    let mut rests = out.sums.chunks_mut(PANEL_OUTPUTS * out.stride).enumerate();
    let mut tasks = Vec::new();
    let mut row_sums: Vec<(Range<usize>, Vec<i32>)> = Vec::new();
    for piece in pieces {
        assert!(
            piece.inputs.start.is_multiple_of(LINE_INPUTS) && piece.inputs.end <= x.inputs,
            "inputs {:?} of {}",
            piece.inputs,
            x.inputs
        );
        if !row_sums.iter().any(|(inputs, _)| *inputs == piece.inputs) {
            row_sums.push((piece.inputs.clone(), x.sums(&piece.inputs)));
        }
    }
    for piece in pieces {
        let lines = piece.inputs.len().div_ceil(LINE_INPUTS);
        assert_eq!(piece.lines.len(), lines * piece.panels.len(), "lines of a piece");
        let row_sums = row_sums.iter().find(|(inputs, _)| *inputs == piece.inputs).map_or(&[][..], |(_, sums)| sums);
        for (index, panel) in piece.panels.clone().enumerate() {
            let sums = rests.find(|(rest, _)| *rest == panel).map(|(_, sums)| sums);
            assert!(sums.is_some(), "panel {panel} is not in order, or of {outputs} outputs");
            tasks.push(PanelTask {
                x,
                zero,
                kind: weight.kind,
                zeros: &weight.zeros[panel * PANEL_OUTPUTS..outputs.min((panel + 1) * PANEL_OUTPUTS)],
                inputs: piece.inputs.clone(),
                lines: &piece.lines[index * lines..][..lines],
                row_sums,
                stride: out.stride,
                first: out.first,
                sums: sums.unwrap_or_default(),
            });
        }
    }
    let operations = x.rows * tasks.iter().map(|task| task.inputs.len() * PANEL_OUTPUTS).sum::<usize>();
    if threads::parts(operations, tasks.len()) > 1 {
        threads::each(tasks, |task| instructions.run(task));
    } else {
        tasks.into_iter().for_each(|task| instructions.run(task));
    }
}

/// All rows by one panel.
struct PanelTask<'a> {
    x: &'a IntegerRows,
    /// The zero point of activations, as they are multiplied.
    zero: i32,
    kind: ByteType,
    /// Those of the outputs of this panel, as their codes are.
    zeros: &'a [i32],
    inputs: Range<usize>,
    lines: &'a [IntegerLine],
    row_sums: &'a [i32],
    stride: usize,
    first: usize,
    sums: &'a mut [i32],
}

impl Routine for PanelTask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let flip = simd.splat_integer(if self.kind.signed { 0x8080_8080_u32 as i32 } else { 0 });
        let mut zeros = [0; LANES];
        for (zero, own) in zeros.iter_mut().zip(self.zeros) {
            *zero = own.wrapping_add(self.kind.weight_offset());
        }
        let column_sums = self.column_sums(simd, flip);
        let count = self.inputs.len() as i32;
        let mut of_columns = [0; LANES];
        for lane in 0..LANES {
            let centred = column_sums[lane].wrapping_sub(count.wrapping_mul(zeros[lane]));
            of_columns[lane] = self.zero.wrapping_mul(centred);
        }
        let rows = self.x.rows;
        let mut row = 0;
        while row < rows {
            let largest = if S::TILE_VECTORS == 3 { TILE_ROWS } else { 4 };
            match [largest, 4, 2].into_iter().find(|&size| size <= rows - row).unwrap_or(1) {
                TILE_ROWS => row += self.tile::<S, TILE_ROWS>(simd, row, flip, &zeros, &of_columns),
                4 => row += self.tile::<S, 4>(simd, row, flip, &zeros, &of_columns),
                2 => row += self.tile::<S, 2>(simd, row, flip, &zeros, &of_columns),
                _ => row += self.tile::<S, 1>(simd, row, flip, &zeros, &of_columns),
            }
        }
    }
}

impl PanelTask<'_> {
    /// The sum of the codes of each output, as they are multiplied.
    #[inline(always)]
    fn column_sums<S: Simd>(&self, simd: S, flip: S::Integers) -> [i32; LANES] {
        let mut sum = simd.splat_integer(0);
        for (line, bytes) in self.lines.iter().enumerate() {
            // What pads the last line is no code.
            let inputs = (self.inputs.len() - line * LINE_INPUTS).min(LINE_INPUTS);
            let ones = if inputs == LINE_INPUTS { 0x0101_0101 } else { 0x0001_0101 >> (8 * (3 - inputs)) };
            sum = simd.dot(sum, simd.exclusive_or(simd.load_bytes(bytes), flip), simd.splat_integer(ones));
        }
        let mut sums = [0; LANES];
        simd.store_integers(sum, &mut sums);
        sums
    }

    /// Some rows by the panel; gives their number.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize>(
        &mut self,
        simd: S,
        row: usize,
        flip: S::Integers,
        zeros: &[i32; LANES],
        of_columns: &[i32; LANES],
    ) -> usize {
        let mut left: [&[[i8; LINE_INPUTS]]; ROWS] = [&[]; ROWS];
        for index in 0..ROWS {
            left[index] = &self.x.codes(row + index)[self.inputs.start..].as_chunks().0[..self.lines.len()];
        }
        let mut sums = [simd.splat_integer(0); ROWS];
        for (line, bytes) in self.lines.iter().enumerate() {
            let codes = simd.exclusive_or(simd.load_bytes(bytes), flip);
            for index in 0..ROWS {
                let signed = i32::from_le_bytes(left[index][line].map(|code| code as u8));
                sums[index] = simd.dot(sums[index], codes, simd.splat_integer(signed));
            }
        }
        let mut stored = [[0; LANES]; ROWS];
        let (zeros, of_columns) = (simd.load_integers(zeros), simd.load_integers(of_columns));
        for index in 0..ROWS {
            let of_row = simd.multiply_integers(zeros, simd.splat_integer(self.row_sums[row + index]));
            let sum = simd.subtract_integers(simd.subtract_integers(sums[index], of_columns), of_row);
            simd.store_integers(sum, &mut stored[index]);
        }
        for (lane, outputs) in self.sums.chunks_mut(self.stride).enumerate() {
            for (output, sums) in outputs[self.first + row..][..ROWS].iter_mut().zip(&stored) {
                *output = output.wrapping_add(sums[lane]);
            }
        }
        ROWS
    }
}
