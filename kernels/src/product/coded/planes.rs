//! Scales and zero points of codes, as vectors.

use std::ops::Range;

use half::{bf16, f16};

use super::layout::{CodedLayout, CodedPlane, FINEST_BLOCK, PanelPart, PlaneType, Stream};
use crate::{
    product::panels::BLOCK,
    simd::{LANES, Routine, Simd},
};

/// The most blocks of [`BLOCK`] inputs.
const MOST_BLOCKS: usize = BLOCK / FINEST_BLOCK;

/// Bytes ahead of what is read that the first-level cache is asked for, which takes few requests at a time.
const NEAR_BYTES: usize = 1024;

/// Bytes ahead of what is read that the second-level cache is asked for, which takes more of them.
const FAR_BYTES: usize = 8192;

/// Asks for the bytes ahead of these.
#[inline(always)]
pub(in crate::product) fn ask<S: Simd, E>(simd: S, values: &[E]) {
    simd.prefetch(values, NEAR_BYTES / size_of::<E>());
    simd.prefetch_far(values, FAR_BYTES / size_of::<E>());
}

/// The parameters of inputs that share all of them: `[16]` each, in cache lines of their own, since a vector that was just written over
/// the end of a line is read late.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(in crate::product) struct Parameters {
    /// The product of the scales.
    pub scale: [f32; LANES],
    /// The zero points, 0 where there are none.
    pub zero_point: [f32; LANES],
    /// Integer zero points as they are subtracted from codes that are not negative.
    pub shifted: [i32; LANES],
}

impl Parameters {
    /// Without any plane.
    pub fn neutral(layout: &CodedLayout) -> Self {
        Self { scale: [1.0; LANES], zero_point: [0.0; LANES], shifted: [layout.code().offset(); LANES] }
    }

    /// Of the planes over all inputs, which are in the part that holds input 0.
    #[inline(always)]
    pub fn whole<S: Simd>(simd: S, part: &PanelPart<'_>) -> Self {
        let mut parameters = Self::neutral(part.layout);
        if part.start == 0 && part.end > 0 {
            let rows = std::slice::from_mut(&mut parameters);
            multiply_scales(simd, part, 0, 0, &[1.0; LANES], rows);
            set_zero_points(simd, part, 0, 0, rows);
        }
        parameters
    }
}

/// The parameters of the inputs of one [`BLOCK`], finest block by finest block.
pub(super) struct BlockParameters {
    rows: [Parameters; MOST_BLOCKS],
    /// Inputs of a row as a power of two.
    shift: u32,
}

impl BlockParameters {
    /// For a panel with these parameters over all inputs.
    #[inline(always)]
    pub fn new(layout: &CodedLayout, whole: &Parameters) -> Self {
        let shift = layout.finest().unwrap_or(BLOCK).trailing_zeros();
        Self { rows: [*whole; MOST_BLOCKS], shift }
    }

    /// Goes on to another panel of the layout, with these parameters over all inputs: those of blocks are written by
    /// [`BlockParameters::read`] alone.
    #[inline(always)]
    pub fn begin(&mut self, layout: &CodedLayout, whole: &Parameters) {
        let planes = layout.planes();
        let of_blocks = |plane: &usize| planes[*plane].block > 0;
        let has_scale = !layout.scales().is_empty() && !layout.scales().iter().any(of_blocks);
        let has_zero_point = layout.zero_point().is_some_and(|plane| !of_blocks(&plane));
        if !has_scale && !has_zero_point {
            return;
        }
        for row in &mut self.rows[..BLOCK >> self.shift] {
            if has_scale {
                row.scale = whole.scale;
            }
            if has_zero_point {
                (row.zero_point, row.shifted) = (whole.zero_point, whole.shifted);
            }
        }
    }

    /// Reads those of the inputs from `input` (a multiple of 256) on.
    #[inline(always)]
    pub fn read<S: Simd>(&mut self, simd: S, part: &PanelPart<'_>, whole: &Parameters, input: usize) {
        if part.layout.finest().is_none() {
            return;
        }
        simd.run(ReadBlock { parameters: self, part, whole, input });
    }

    /// Those of the input `input % 256`.
    #[inline(always)]
    pub fn at(&self, input: usize) -> &Parameters {
        &self.rows[(input % BLOCK) >> self.shift]
    }
}

/// Reads the parameters of a block: a routine of its own, since it is long and each kind of product has it.
struct ReadBlock<'a> {
    parameters: &'a mut BlockParameters,
    part: &'a PanelPart<'a>,
    whole: &'a Parameters,
    /// The first input of the block.
    input: usize,
}

impl Routine for ReadBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { parameters, part, whole, input } = self;
        let shift = parameters.shift;
        let end = part.end.min(input + BLOCK);
        if let Some(Stream { scale: Some(scale), zero_point }) = part.layout.stream() {
            let own = BlockRows { part, inputs: input..end, shift };
            own.read_scales(simd, scale, &whole.scale, &mut parameters.rows);
            if let Some(zero_point) = zero_point {
                own.read_zero_points(simd, zero_point, &mut parameters.rows);
            }
            return;
        }
        let mut first = input;
        while first < end {
            let next = end.min((first & !(part.layout.cut() - 1)) + part.layout.cut());
            let rows = (first - input) >> shift..((next - 1 - input) >> shift) + 1;
            let rows = &mut parameters.rows[rows];
            multiply_scales(simd, part, first, shift, &whole.scale, rows);
            set_zero_points(simd, part, first, shift, rows);
            first = next;
        }
    }
}

/// Runs `$body` with `$load` bound to what reads row `row` of a plane of these floats.
macro_rules! with_floats {
    ($element:expr, $load:ident => $body:expr) => {
        match $element {
            PlaneType::F16 => {
                let $load = |simd: S, bytes: &[u8], row: usize| simd.load_f16(row_of::<f16>(bytes, row));
                $body
            }
            PlaneType::Bf16 => {
                let $load = |simd: S, bytes: &[u8], row: usize| simd.load_bf16(row_of::<bf16>(bytes, row));
                $body
            }
            PlaneType::F32 => {
                let $load = |simd: S, bytes: &[u8], row: usize| simd.load(row_of::<f32>(bytes, row));
                $body
            }
            PlaneType::E4m3 => {
                let $load = |simd: S, bytes: &[u8], row: usize| load_e4m3(simd, row_of::<u8>(bytes, row));
                $body
            }
            PlaneType::E8m0 => {
                let $load = |simd: S, bytes: &[u8], row: usize| load_e8m0(simd, row_of::<u8>(bytes, row));
                $body
            }
            PlaneType::I32
            | PlaneType::I8
            | PlaneType::U8
            | PlaneType::I4
            | PlaneType::U4
            | PlaneType::I2
            | PlaneType::U2 => unreachable!("a layout has floats here"),
        }
    };
}

/// The inputs of a block whose parameters are a row of one plane for each finest block, and a row of another: most layouts have no more.
struct BlockRows<'a> {
    part: &'a PanelPart<'a>,
    inputs: Range<usize>,
    /// Inputs of a row as a power of two.
    shift: u32,
}

impl BlockRows<'_> {
    /// The rows of the record with an input that lie in it from there on: which they are in it, and the input behind them.
    #[inline(always)]
    fn of_record(&self, input: usize) -> (Range<usize>, usize) {
        let within = input & (self.part.layout.cut() - 1);
        let next = self.inputs.end.min(input - within + self.part.layout.cut());
        let first = within >> self.shift;
        (first..first + ((next - 1 - input) >> self.shift) + 1, next)
    }

    /// Sets the scales of rows to `whole` times those of the plane.
    #[inline(always)]
    fn read_scales<S: Simd>(&self, simd: S, plane: usize, whole: &[f32; LANES], rows: &mut [Parameters]) {
        let whole = simd.load(whole);
        with_floats!(self.part.layout.planes()[plane].element, load => {
            let (mut input, mut at) = (self.inputs.start, 0);
            while input < self.inputs.end {
                let bytes = self.part.plane(plane, input);
                ask(simd, bytes);
                let (own, next) = self.of_record(input);
                for (row, parameters) in own.zip(&mut rows[at..]) {
                    simd.store(simd.multiply(whole, load(simd, bytes, row)), &mut parameters.scale);
                    at += 1;
                }
                input = next;
            }
        });
    }

    #[inline(always)]
    fn read_zero_points<S: Simd>(&self, simd: S, plane: usize, rows: &mut [Parameters]) {
        let element = self.part.layout.planes()[plane].element;
        let (mut input, mut at) = (self.inputs.start, 0);
        while input < self.inputs.end {
            let bytes = self.part.plane(plane, input);
            ask(simd, bytes);
            let (own, next) = self.of_record(input);
            for (row, parameters) in own.zip(&mut rows[at..]) {
                set_zero_point(simd, self.part.layout, element, (bytes, row), parameters);
                at += 1;
            }
            input = next;
        }
    }
}

/// Row `row` of a plane of floats.
#[inline(always)]
pub(in crate::product) fn load_floats<S: Simd>(simd: S, element: PlaneType, bytes: &[u8], row: usize) -> S::Vector {
    with_floats!(element, load => load(simd, bytes, row))
}

/// Row `row` of elements that lie in memory as they are.
#[inline(always)]
fn row_of<T: bytemuck::Pod>(bytes: &[u8], row: usize) -> &[T; LANES] {
    bytemuck::from_bytes(&bytes[row * size_of::<[T; LANES]>()..][..size_of::<[T; LANES]>()])
}

/// Sets the scales of `rows`, whose first begins at `input`, to `begin` times those over all inputs if `shift` is 0, else
/// times those of blocks, coarsest first. Without such planes they stay as they are.
#[inline(always)]
fn multiply_scales<S: Simd>(
    simd: S,
    part: &PanelPart<'_>,
    input: usize,
    shift: u32,
    begin: &[f32; LANES],
    rows: &mut [Parameters],
) {
    let mut begin = Some(begin);
    for &index in part.layout.scales() {
        let plane = part.layout.planes()[index];
        if (plane.block == 0) != (shift == 0) {
            continue;
        }
        let bytes = part.plane(index, input);
        ask(simd, bytes);
        let place = |row| place(part.layout, input, row, shift, plane);
        with_floats!(plane.element, load => for (row, parameters) in rows.iter_mut().enumerate() {
            let scale = load(simd, bytes, place(row));
            let before = simd.load(begin.unwrap_or(&parameters.scale));
            simd.store(simd.multiply(before, scale), &mut parameters.scale);
        });
        begin = None;
    }
}

/// Sets the zero points of `rows`, whose first begins at `input`: those over all inputs if `shift` is 0.
#[inline(always)]
fn set_zero_points<S: Simd>(simd: S, part: &PanelPart<'_>, input: usize, shift: u32, rows: &mut [Parameters]) {
    let Some(index) = part.layout.zero_point() else { return };
    let plane = part.layout.planes()[index];
    if (plane.block == 0) != (shift == 0) {
        return;
    }
    let bytes = part.plane(index, input);
    ask(simd, bytes);
    for (row, parameters) in rows.iter_mut().enumerate() {
        let place = place(part.layout, input, row, shift, plane);
        set_zero_point(simd, part.layout, plane.element, (bytes, place), parameters);
    }
}

/// Sets a zero point to row `row` of a plane.
#[inline(always)]
fn set_zero_point<S: Simd>(
    simd: S,
    layout: &CodedLayout,
    element: PlaneType,
    (bytes, row): (&[u8], usize),
    parameters: &mut Parameters,
) {
    if element.is_float() {
        return simd.store(load_floats(simd, element, bytes, row), &mut parameters.zero_point);
    }
    let values = simd.load_integers(&integers(element, bytes, row));
    let offset = simd.splat_integer(layout.code().offset());
    simd.store(simd.convert(values), &mut parameters.zero_point);
    simd.store_integers(simd.add_integers(values, offset), &mut parameters.shifted);
}

/// The row of `plane`, in the record with `input`, that holds row `row` of those that begin at `input`.
#[inline(always)]
fn place(layout: &CodedLayout, input: usize, row: usize, shift: u32, plane: CodedPlane) -> usize {
    if shift == 0 { 0 } else { ((input & (layout.cut() - 1)) + (row << shift)) >> plane.block.trailing_zeros() }
}

/// Bytes as f8e4m3fn: moved down by one bit they are f16 of a 256th of their value, but for NaN.
#[inline(always)]
fn load_e4m3<S: Simd>(simd: S, bytes: &[u8; LANES]) -> S::Vector {
    let mut halves = [f16::ZERO; LANES];
    for (half, &byte) in halves.iter_mut().zip(bytes) {
        let byte = u16::from(byte);
        let nan = if byte & 0x7f == 0x7f { 0x7e00 } else { 0 };
        *half = f16::from_bits((byte & 0x80) << 8 | (byte & 0x7f) << 7 | nan);
    }
    simd.multiply(simd.load_f16(&halves), simd.splat(256.0))
}

/// Bytes as f8e8m0: the exponents of f32, but for the least, which is subnormal there, and the greatest, which is NaN.
#[inline(always)]
fn load_e8m0<S: Simd>(simd: S, bytes: &[u8; LANES]) -> S::Vector {
    let mut values = [0.0; LANES];
    for (value, &byte) in values.iter_mut().zip(bytes) {
        let is_end = byte.wrapping_add(1) < 2;
        *value = f32::from_bits(u32::from(byte) << 23 | if is_end { 1 << 22 } else { 0 });
    }
    simd.load(&values)
}

/// Row `row` of a plane of integers.
#[inline(always)]
pub(in crate::product) fn integers(element: PlaneType, bytes: &[u8], row: usize) -> [i32; LANES] {
    let bytes = &bytes[row * element.row_bytes()..][..element.row_bytes()];
    match element {
        PlaneType::I8 => unpacked::<8, true>(bytes),
        PlaneType::U8 => unpacked::<8, false>(bytes),
        PlaneType::I4 => unpacked::<4, true>(bytes),
        PlaneType::U4 => unpacked::<4, false>(bytes),
        PlaneType::I2 => unpacked::<2, true>(bytes),
        PlaneType::U2 => unpacked::<2, false>(bytes),
        PlaneType::I32 => *bytemuck::from_bytes(bytes),
        PlaneType::F32 | PlaneType::F16 | PlaneType::Bf16 | PlaneType::E4m3 | PlaneType::E8m0 => {
            unreachable!("these are read as floats")
        }
    }
}

/// Integers of `BITS` bits, the first the lowest.
#[inline(always)]
fn unpacked<const BITS: usize, const SIGNED: bool>(bytes: &[u8]) -> [i32; LANES] {
    let empty = 32 - BITS as u32;
    let extended = |code: u32| if SIGNED { ((code << empty) as i32) >> empty } else { (code << empty >> empty) as i32 };
    let mut values = [0; LANES];
    if BITS == 8 {
        for lane in 0..LANES {
            values[lane] = extended(bytes[lane].into());
        }
        return values;
    }
    // All of them are in one word.
    let mut word = [0; size_of::<u64>()];
    word[..LANES * BITS / 8].copy_from_slice(&bytes[..LANES * BITS / 8]);
    let word = u64::from_le_bytes(word);
    for lane in 0..LANES {
        values[lane] = extended((word >> (lane * BITS)) as u32);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        product::PANEL_OUTPUTS,
        simd::{Instructions, Routine},
        testing::float_of_8_bits as float,
    };

    /// Bytes as scales: f8e4m3fn, then f8e8m0.
    struct ByteScales([u8; PANEL_OUTPUTS]);

    impl Routine for ByteScales {
        type Output = [[f32; PANEL_OUTPUTS]; 2];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let mut results = [[0.0; PANEL_OUTPUTS]; 2];
            simd.store(load_e4m3(simd, &self.0), &mut results[0]);
            simd.store(load_e8m0(simd, &self.0), &mut results[1]);
            results
        }
    }

    #[test]
    fn every_scale_of_8_bits_is_its_value() {
        for instructions in Instructions::available() {
            for first in (0..=u8::MAX).step_by(PANEL_OUTPUTS) {
                let bytes: [u8; PANEL_OUTPUTS] = std::array::from_fn(|at| first + at as u8);
                let [e4m3, e8m0] = instructions.run(ByteScales(bytes));
                for (at, &byte) in bytes.iter().enumerate() {
                    let power = if byte == 255 { f32::NAN } else { 2.0_f64.powi(i32::from(byte) - 127) as f32 };
                    for (found, expected) in [(e4m3[at], float(byte, 3, 7)), (e8m0[at], power)] {
                        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                        assert!(same, "{}: {byte:#x} is {found}, not {expected}", instructions.name());
                    }
                }
            }
        }
    }
}
