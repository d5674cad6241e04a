//! A chunk of the inputs of some panels as bytes, with what zero points take from sums of their products.

use std::ops::Range;

use super::{
    digits::Digits,
    exact_rows::{Digit, ExactRows},
    layout::PanelPart,
    pieces::CodedPanels,
    planes::BlockParameters,
};
use crate::{
    product::{
        PANEL_OUTPUTS,
        integer::{ColumnSums, IntegerLine},
        integer_rows::{ByteType, LINE_INPUTS},
        panels::BLOCK,
    },
    simd::{LANES, Routine, Simd},
};

/// Inputs that are widened to bytes at a time: a few panels of them lie in the second-level cache, and sums of their products
/// with bytes are below 2^31.
pub(super) const CHUNK: usize = 2048;

/// Inputs side by side in a line of integers of 16 bits.
const LINE_WORDS: usize = 2;

/// Bytes of so many inputs of a panel of integers of 16 bits.
pub(super) fn words_bytes(inputs: usize) -> usize {
    inputs.div_ceil(LINE_WORDS) * size_of::<IntegerLine>()
}

/// Panels that one task takes.
#[derive(Clone, Copy)]
pub(super) enum Panels<'a> {
    Codes(CodedPanels<'a>),
    Words(WordPanels<'a>),
}

impl Panels<'_> {
    /// The inputs of each panel.
    pub fn inputs(&self) -> Range<usize> {
        match self {
            Self::Codes(panels) => panels.inputs(),
            Self::Words(panels) => panels.start..panels.end,
        }
    }

    /// The bytes of a code.
    fn digits(&self) -> usize {
        match self {
            Self::Codes(_) => 1,
            Self::Words(_) => 2,
        }
    }

    /// Whether blocks of inputs have scales of their own.
    fn in_blocks(&self) -> bool {
        match self {
            Self::Codes(panels) => panels.layout().finest().is_some(),
            Self::Words(_) => false,
        }
    }
}

/// Integers of 16 bits of some panels.
#[derive(Clone, Copy)]
pub(super) struct WordPanels<'a> {
    pub signed: bool,
    /// Of these outputs.
    pub zeros: &'a [i32],
    pub start: usize,
    pub end: usize,
    pub bytes: &'a [u8],
}

/// The inputs of a segment, all of which have one scale, and the sums over them of the digits of activations, digit by digit:
/// `[rows]` each.
pub(super) struct SegmentSums {
    pub inputs: Range<usize>,
    pub digits: Vec<Vec<i32>>,
}

/// Those of the segments of a piece.
pub(super) fn segment_sums(x: &ExactRows<'_>, inputs: &Range<usize>, length: usize) -> Vec<SegmentSums> {
    let digits = |inputs: &Range<usize>| x.digits().iter().map(|digit| digit.rows.sums(inputs)).collect();
    segments(inputs, length).map(|inputs| SegmentSums { digits: digits(&inputs), inputs }).collect()
}

/// The segments that lie within these inputs.
fn within(sums: &[SegmentSums], inputs: &Range<usize>) -> Range<usize> {
    let before = |input: usize| sums.partition_point(|segment| segment.inputs.start < input);
    before(inputs.start)..before(inputs.end)
}

/// Inputs cut into parts of this length, counted from the first.
pub(super) fn segments(inputs: &Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = inputs.end;
    inputs.clone().step_by(length).map(move |start| start..end.min(start + length))
}

/// Memory of a chunk, which those of a task use one after another.
#[derive(Default)]
pub(super) struct Buffers {
    /// `[digits][panels][inputs / 4]`.
    lines: Vec<IntegerLine>,
    /// `[segments][panels]`.
    scales: Vec<[f32; LANES]>,
    /// Zero points, as codes are multiplied: times the sums of rows. `[digits][segments][panels]`.
    zeros: Vec<[i32; LANES]>,
    /// The zero point of a digit of activations times the sum of each output, less its zero point for each input: `[digits of
    /// activations][digits][segments][panels]`.
    columns: Vec<[i32; LANES]>,
}

/// A chunk of the inputs of some panels.
pub(super) struct Chunk<'a, const PANELS: usize> {
    pub inputs: Range<usize>,
    /// Digits of the weight.
    pub digits: usize,
    /// Its segments among those of the piece.
    pub numbers: Range<usize>,
    /// Whether scales are those of blocks.
    pub in_blocks: bool,
    buffers: &'a Buffers,
}

impl<'a, const PANELS: usize> Chunk<'a, PANELS> {
    pub fn new(weight: &Panels<'_>, sums: &[SegmentSums], inputs: Range<usize>, buffers: &'a Buffers) -> Self {
        let numbers = within(sums, &inputs);
        Self { digits: weight.digits(), numbers, in_blocks: weight.in_blocks(), inputs, buffers }
    }

    /// Lines of a digit of a panel.
    #[inline(always)]
    pub fn lines(&self, digit: usize, panel: usize) -> &'a [IntegerLine] {
        let count = self.inputs.len().div_ceil(LINE_INPUTS);
        &self.buffers.lines[(digit * PANELS + panel) * count..][..count]
    }

    /// The scales of a segment, counted from the first of the chunk.
    #[inline(always)]
    pub fn scales(&self, segment: usize) -> &'a [[f32; LANES]] {
        &self.buffers.scales[segment * PANELS..][..PANELS]
    }

    /// Zero points of a digit.
    #[inline(always)]
    pub fn zeros(&self, digit: usize, segment: usize) -> &'a [[i32; LANES]] {
        &self.buffers.zeros[(digit * self.numbers.len() + segment) * PANELS..][..PANELS]
    }

    /// What the zero point of a digit of activations takes from sums with a digit.
    #[inline(always)]
    pub fn columns(&self, of_rows: usize, digit: usize, segment: usize) -> &'a [[i32; LANES]] {
        let place = (of_rows * self.digits + digit) * self.numbers.len() + segment;
        &self.buffers.columns[place * PANELS..][..PANELS]
    }
}

/// Fills the buffers of a chunk.
pub(super) struct MakeChunk<'a, 'b, const PANELS: usize> {
    pub digits: &'a [Digit<'a>],
    pub weight: Panels<'a>,
    pub sums: &'a [SegmentSums],
    pub panel: usize,
    pub inputs: Range<usize>,
    pub buffers: &'b mut Buffers,
}

impl<const PANELS: usize> Routine for MakeChunk<'_, '_, PANELS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let segments = &self.sums[within(self.sums, &self.inputs)];
        let count = self.inputs.len().div_ceil(LINE_INPUTS);
        let digits = self.weight.digits();
        let Buffers { lines, scales, zeros, columns } = &mut *self.buffers;
        lines.resize(digits * PANELS * count, [0; LINE_INPUTS * PANEL_OUTPUTS]);
        scales.resize(segments.len() * PANELS, [0.0; LANES]);
        zeros.resize(digits * segments.len() * PANELS, [0; LANES]);
        columns.resize(self.digits.len() * digits * segments.len() * PANELS, [0; LANES]);
        for index in 0..PANELS {
            match self.weight {
                Panels::Codes(panels) => self.codes(simd, panels, index, segments),
                Panels::Words(panels) => self.words(simd, panels, index, segments.len()),
            }
        }
        self.set_columns(simd, segments);
    }
}

impl<const PANELS: usize> MakeChunk<'_, '_, PANELS> {
    /// Takes panel `index` of codes.
    #[inline(always)]
    fn codes<S: Simd>(&mut self, simd: S, panels: CodedPanels<'_>, index: usize, segments: &[SegmentSums]) {
        let count = self.inputs.len().div_ceil(LINE_INPUTS);
        let (part, whole) = panels.panel(simd, self.panel + index);
        let lines = &mut self.buffers.lines[index * count..][..count];
        simd.run(WidenCodes { part: &part, inputs: self.inputs.clone(), lines });
        let mut parameters = BlockParameters::new(part.layout, &whole);
        let mut read = None;
        for (segment, SegmentSums { inputs, .. }) in segments.iter().enumerate() {
            let block = inputs.start / BLOCK * BLOCK;
            if read.replace(block) != Some(block) {
                parameters.read(simd, &part, &whole, block);
            }
            let own = parameters.at(inputs.start);
            self.buffers.scales[segment * PANELS + index] = own.scale;
            self.buffers.zeros[segment * PANELS + index] = own.shifted;
        }
    }

    /// Takes panel `index` of integers of 16 bits apart.
    #[inline(always)]
    fn words<S: Simd>(&mut self, simd: S, panels: WordPanels<'_>, index: usize, segments: usize) {
        let count = self.inputs.len().div_ceil(LINE_INPUTS);
        let (upper, lower) = self.buffers.lines.split_at_mut(PANELS * count);
        let own = index * count..(index + 1) * count;
        let lines = [&mut upper[own.clone()], &mut lower[own]];
        simd.run(WidenWords { panels, panel: self.panel + index, inputs: self.inputs.clone(), lines });
        let offset = if panels.signed { 1 << 15 } else { 0 };
        let mut bytes = [[0; LANES]; 2];
        for (lane, zero) in panels.zeros[(self.panel + index) * PANEL_OUTPUTS..].iter().take(LANES).enumerate() {
            (bytes[0][lane], bytes[1][lane]) = ((zero + offset) >> 8, (zero + offset) & 0xff);
        }
        for segment in 0..segments {
            self.buffers.zeros[segment * PANELS + index] = bytes[0];
            self.buffers.zeros[(segments + segment) * PANELS + index] = bytes[1];
        }
    }

    /// Sets what zero points of activations take from the sums of each output.
    #[inline(always)]
    fn set_columns<S: Simd>(&mut self, simd: S, segments: &[SegmentSums]) {
        let Self { inputs: chunk, digits: of_rows, weight, buffers, .. } = self;
        let count = chunk.len().div_ceil(LINE_INPUTS);
        if of_rows.iter().all(|digit| digit.zero == 0) {
            return buffers.columns.fill([0; LANES]);
        }
        for (segment, SegmentSums { inputs, .. }) in segments.iter().enumerate() {
            let first = (inputs.start - chunk.start) / LINE_INPUTS;
            for digit in 0..weight.digits() {
                for panel in 0..PANELS {
                    let lines = &buffers.lines[(digit * PANELS + panel) * count + first..];
                    let lines = &lines[..inputs.len().div_ceil(LINE_INPUTS)];
                    let (mut sums, kind) = ([0; LANES], ByteType { signed: false });
                    simd.run(ColumnSums { lines, inputs: inputs.len(), kind, sums: &mut sums });
                    let zeros = &buffers.zeros[(digit * segments.len() + segment) * PANELS + panel];
                    for (place, of_rows) in of_rows.iter().enumerate() {
                        let place = (place * weight.digits() + digit) * segments.len() + segment;
                        let columns = &mut buffers.columns[place * PANELS + panel];
                        for lane in 0..LANES {
                            let centred = sums[lane].wrapping_sub((inputs.len() as i32).wrapping_mul(zeros[lane]));
                            columns[lane] = of_rows.zero.wrapping_mul(centred);
                        }
                    }
                }
            }
        }
    }
}

/// Widens codes to bytes that are not negative.
struct WidenCodes<'a> {
    part: &'a PanelPart<'a>,
    inputs: Range<usize>,
    lines: &'a mut [IntegerLine],
}

impl Routine for WidenCodes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.part.layout.code().bits() {
            8 => self.widen::<S, 1>(simd),
            4 => self.widen::<S, 2>(simd),
            _ => self.widen::<S, 4>(simd),
        }
    }
}

impl WidenCodes<'_> {
    /// A line has `PARTS` times 4 inputs of an output.
    #[inline(always)]
    fn widen<S: Simd, const PARTS: usize>(self, simd: S) {
        let Self { part, inputs, lines } = self;
        let digits = Digits::<S, PARTS>::new(simd, part.layout.code());
        let cut = part.layout.cut();
        let mut input = inputs.start;
        while input < inputs.end {
            let end = inputs.end.min((input & !(cut - 1)) + cut);
            let own = (input - inputs.start) / LINE_INPUTS..(end - inputs.start).div_ceil(LINE_INPUTS);
            for (to, codes) in lines[own].chunks_mut(PARTS).zip(part.lines(input, end)) {
                let codes = simd.load_bytes(codes);
                for (index, to) in to.iter_mut().enumerate() {
                    let words: &mut [i32; LANES] = bytemuck::cast_mut(to);
                    simd.store_integers(digits.of(simd, codes, index), words);
                }
            }
            input = end;
        }
    }
}

/// Takes integers of 16 bits, which are not negative once a sign is flipped, apart.
struct WidenWords<'a> {
    panels: WordPanels<'a>,
    panel: usize,
    inputs: Range<usize>,
    /// Of upper and lower bytes.
    lines: [&'a mut [IntegerLine]; 2],
}

impl Routine for WidenWords<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { panels, panel, inputs, lines: [upper, lower] } = self;
        let length = words_bytes(panels.end - panels.start);
        let bytes = &panels.bytes[panel * length..][..length];
        let own = words_bytes(inputs.start - panels.start)..words_bytes(inputs.end - panels.start);
        let words: &[IntegerLine] = bytes[own].as_chunks().0;
        let flip = simd.splat_integer(if panels.signed { 0x8080_8080_u32 as i32 } else { 0 });
        let [first, third] = [0xff, 0x00ff_0000].map(|mask| simd.splat_integer(mask));
        for (pair, (upper, lower)) in words.chunks(LINE_INPUTS / LINE_WORDS).zip(upper.iter_mut().zip(lower)) {
            let mut halves = [simd.splat_integer(0); 2];
            for (half, words) in halves.iter_mut().zip(pair) {
                *half = simd.load_bytes(words);
            }
            // Inputs 0 and 1 lie in the first half of a lane and in the second, 2 and 3 in those of another.
            let mut bytes = [simd.splat_integer(0); 2];
            for (place, bytes) in bytes.iter_mut().enumerate() {
                let [own, next] =
                    if place == 0 { halves } else { [simd.shift_right(halves[0], 8), simd.shift_right(halves[1], 8)] };
                let one = simd.exclusive_or(simd.and(own, first), simd.shift_right(simd.and(own, third), 8));
                let other = simd.exclusive_or(simd.and(next, first), simd.shift_right(simd.and(next, third), 8));
                *bytes = simd.exclusive_or(one, simd.shift_left(other, 16));
            }
            simd.store_integers(bytes[0], bytemuck::cast_mut(lower));
            simd.store_integers(simd.exclusive_or(bytes[1], flip), bytemuck::cast_mut(upper));
        }
    }
}
