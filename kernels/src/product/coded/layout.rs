//! What the codes of a weight are, which planes of parameters they have, and where both lie in its panels.

use std::ops::Range;

use crate::{
    product::{PANEL_OUTPUTS, panels::BLOCK},
    simd::LANES,
};

/// Bytes of a line: 4 for each output of a panel. Planes and codes begin and end with lines.
pub(super) const LINE: usize = 4 * LANES;

/// Inputs of the finest block of a plane; a line of 2-bit codes has as many.
pub(super) const FINEST_BLOCK: usize = 16;

/// The most inputs of a record.
const LONGEST_RECORD: usize = 1024;

/// The type of the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeType {
    /// -128 to 127.
    I8,
    /// 0 to 255.
    U8,
    /// -8 to 7, stored 8 higher.
    I4,
    /// 0 to 15.
    U4,
    /// -2 to 1, stored 2 higher.
    I2,
    /// 0 to 3.
    U2,
    /// Floats of 8 bits with 4 bits of exponent: f8e4m3fn.
    E4m3,
    /// Floats of 8 bits with 5 bits of exponent: f8e5m2.
    E5m2,
    /// Floats of 4 bits: f4e2m1.
    E2m1,
}

impl CodeType {
    /// Bits of a code.
    #[must_use]
    pub fn bits(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::E4m3 | Self::E5m2 => 8,
            Self::I4 | Self::U4 | Self::E2m1 => 4,
            Self::I2 | Self::U2 => 2,
        }
    }

    /// Whether sums of codes are integers, or halves of integers.
    pub(super) fn sums_exactly(self) -> bool {
        match self {
            Self::I8 | Self::U8 | Self::I4 | Self::U4 | Self::I2 | Self::U2 | Self::E2m1 => true,
            Self::E4m3 | Self::E5m2 => false,
        }
    }

    /// Inputs of an output in a line.
    #[must_use]
    pub fn inputs_of_line(self) -> usize {
        32 / self.bits()
    }

    /// Lines of this many inputs.
    #[inline(always)]
    pub(super) fn lines(self, inputs: usize) -> usize {
        let inputs_of_line = self.inputs_of_line();
        (inputs + inputs_of_line - 1) >> inputs_of_line.trailing_zeros()
    }

    /// What integer sums count codes in: the values of f4e2m1, 0, 0.5, 1, 1.5, 2, 3, 4 and 6, are integers when doubled.
    pub(super) fn unit(self) -> f32 {
        match self {
            Self::E2m1 => 0.5,
            Self::I8 | Self::U8 | Self::I4 | Self::U4 | Self::I2 | Self::U2 | Self::E4m3 | Self::E5m2 => 1.0,
        }
    }

    /// What is added to a code, in its unit, so that it is not negative.
    pub(in crate::product) fn offset(self) -> i32 {
        match self {
            Self::E2m1 => 12,
            Self::I8 => 128,
            Self::I4 => 8,
            Self::I2 => 2,
            Self::U8 | Self::U4 | Self::U2 | Self::E4m3 | Self::E5m2 => 0,
        }
    }
}

/// The element type of a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum PlaneType {
    F32,
    F16,
    Bf16,
    I32,
    I8,
    U8,
    I4,
    U4,
    I2,
    U2,
    /// f8e4m3fn.
    E4m3,
    /// f8e8m0.
    E8m0,
}

impl PlaneType {
    /// Bytes of the elements of the outputs of a panel; below 8 bits the lower bits come first.
    #[must_use]
    pub fn row_bytes(self) -> usize {
        PANEL_OUTPUTS
            * match self {
                Self::F32 | Self::I32 => 32,
                Self::F16 | Self::Bf16 => 16,
                Self::I8 | Self::U8 | Self::E4m3 | Self::E8m0 => 8,
                Self::I4 | Self::U4 => 4,
                Self::I2 | Self::U2 => 2,
            }
            / 8
    }

    /// Whether it is a floating-point type.
    #[must_use]
    pub fn is_float(self) -> bool {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 | Self::E4m3 | Self::E8m0 => true,
            Self::I32 | Self::I8 | Self::U8 | Self::I4 | Self::U4 | Self::I2 | Self::U2 => false,
        }
    }
}

/// What a plane is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodedRole {
    /// A factor, of a floating-point type.
    Scale,
    /// Subtracted from the codes before they are scaled.
    ZeroPoint,
    /// The sum of the codes; no kernel needs it.
    Sum,
}

/// Parameters of the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodedPlane {
    /// What for.
    pub role: CodedRole,
    /// Stored as.
    pub element: PlaneType,
    /// Inputs that share an element: a power of two from 16 to 256, or 0 for all.
    pub block: usize,
}

/// The type that decoded values are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Rounded {
    F32,
    F16,
    Bf16,
}

/// How a weight `[k inputs, n outputs]` of codes lies in panels of 16 outputs.
///
/// A panel is a sequence of records of `cut` inputs (the last has the rest). A record of i inputs is its planes in order,
/// then its codes. A plane is `[i / block rounded up][16]`, or `[16]` and in the first record only where its block is 0; it
/// is padded to whole lines of 64 bytes. Codes are `[i / g rounded up][16][4 bytes]`, g = 32 / bits: input j of a line
/// is in byte `j % 4` from bit `j / 4 * bits` on. Signed codes of 4 and 2 bits have their sign bit flipped.
#[derive(Clone, Debug)]
pub struct CodedLayout {
    code: CodeType,
    inputs: usize,
    cut: usize,
    planes: Vec<CodedPlane>,
    rounded: Rounded,
    /// Scale planes, those of the largest blocks first.
    scales: Vec<usize>,
    /// The plane of zero points.
    zero_point: Option<usize>,
    /// Inputs of the finest block.
    finest: Option<usize>,
    /// Inputs of the last record, where it has less than `cut`.
    rest: usize,
    /// Whether [`CodedLayout::stream`] gives planes.
    is_stream: bool,
    /// Where the planes of a record begin, and behind them its codes, in bytes: of records of `cut` inputs, of those that are a weight's
    /// first, of the last record, and of a last one that is the first. Products look them up for each block.
    places: Vec<[usize; 4]>,
    /// Bytes of the planes over all inputs.
    whole_bytes: usize,
    /// Bytes of a record of `cut` inputs that is not the first.
    record_bytes: usize,
}

impl CodedLayout {
    /// A layout of a weight with `inputs` inputs, in records of `cut`.
    ///
    /// # Panics
    /// If there are several planes of zero points, or one for floats, a scale is an integer, or blocks or `cut` are not as
    /// [`CodedPlane`] and [`CodedLayout`] say.
    #[must_use]
    pub fn new(code: CodeType, inputs: usize, cut: usize, planes: &[CodedPlane], rounded: Rounded) -> Self {
        assert!(cut.is_power_of_two() && (FINEST_BLOCK..=LONGEST_RECORD).contains(&cut), "records of {cut} inputs");
        for plane in planes {
            let block = plane.block;
            assert!(
                block == 0 || block.is_power_of_two() && (FINEST_BLOCK..=BLOCK.min(cut)).contains(&block),
                "a block of {block} inputs in records of {cut}"
            );
            assert!(plane.role != CodedRole::Scale || plane.element.is_float(), "a scale of type {:?}", plane.element);
        }
        let with_role = |role| planes.iter().enumerate().filter(move |(_, plane)| plane.role == role);
        assert!(with_role(CodedRole::ZeroPoint).count() <= 1, "several planes of zero points");
        let floats = matches!(code, CodeType::E4m3 | CodeType::E5m2 | CodeType::E2m1);
        assert!(!floats || with_role(CodedRole::ZeroPoint).count() == 0, "floats have no zero points");
        let mut scales: Vec<usize> = with_role(CodedRole::Scale).map(|(index, _)| index).collect();
        // The sort is stable: planes of equal blocks stay in order. Block 0 is all inputs.
        scales.sort_by_key(|&index| std::cmp::Reverse(planes[index].block.wrapping_sub(1)));
        let blocks = planes.iter().filter(|plane| plane.role != CodedRole::Sum && plane.block > 0);
        let mut layout = Self {
            code,
            inputs,
            cut,
            planes: planes.to_vec(),
            rounded,
            scales,
            zero_point: with_role(CodedRole::ZeroPoint).map(|(index, _)| index).next(),
            finest: blocks.map(|plane| plane.block).min(),
            rest: inputs % cut,
            is_stream: false,
            places: Vec::new(),
            whole_bytes: 0,
            record_bytes: 0,
        };
        let kinds = [(cut, false), (cut, true), (layout.rest, false), (layout.rest, true)];
        let of_plane = |plane| kinds.map(|(inputs, is_first)| layout.planes_bytes_before(plane, inputs, is_first));
        layout.places = (0..=planes.len()).map(of_plane).collect();
        let [further, first, ..] = layout.places[planes.len()];
        layout.is_stream = layout.has_stream();
        layout.whole_bytes = first - further;
        layout.record_bytes = further + code.lines(cut) * LINE;
        layout
    }

    /// The type of the codes.
    #[must_use]
    pub fn code(&self) -> CodeType {
        self.code
    }

    /// Inputs of the weight: k.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Inputs of a record.
    #[must_use]
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// The planes in the order in which they are stored.
    #[must_use]
    pub fn planes(&self) -> &[CodedPlane] {
        &self.planes
    }

    /// Whether products of codes can be summed as integers: codes, and zero points if there are any, are integers.
    #[must_use]
    pub fn sums_exactly(&self) -> bool {
        self.code.sums_exactly() && self.zero_point.is_none_or(|plane| !self.planes[plane].element.is_float())
    }

    /// Bytes of a part of a panel, which begins at a record.
    #[must_use]
    pub fn panel_bytes(&self, inputs: &Range<usize>) -> usize {
        if inputs.is_empty() {
            return 0;
        }
        let (whole, rest) = (inputs.len() / self.cut, inputs.len() % self.cut);
        let first = if inputs.start == 0 { self.whole_bytes } else { 0 };
        let last = self.place(self.planes.len(), rest, false) + self.code.lines(rest) * LINE;
        first + whole * self.record_bytes + last
    }

    /// What values are rounded to before they are multiplied.
    #[must_use]
    pub fn rounded(&self) -> Rounded {
        self.rounded
    }

    pub(in crate::product) fn scales(&self) -> &[usize] {
        &self.scales
    }

    pub(in crate::product) fn zero_point(&self) -> Option<usize> {
        self.zero_point
    }

    /// Inputs that share all parameters, where not all do.
    pub(in crate::product) fn finest(&self) -> Option<usize> {
        self.finest
    }

    /// Whether codes have no planes between them.
    pub(in crate::product) fn is_run(&self) -> bool {
        self.stream().is_some_and(|stream| stream.scale.is_none())
    }

    /// The planes of blocks, if records can be read one after another: one of scales, and one of zero points of the same blocks.
    #[inline(always)]
    pub(super) fn stream(&self) -> Option<Stream> {
        if !self.is_stream {
            return None;
        }
        let mut stream = Stream::default();
        // The scales of the smallest blocks come last.
        if let Some(&plane) = self.scales.last()
            && self.planes[plane].block > 0
        {
            stream.scale = Some(plane);
        }
        if let Some(plane) = self.zero_point
            && self.planes[plane].block > 0
        {
            stream.zero_point = Some(plane);
        }
        Some(stream)
    }

    fn has_stream(&self) -> bool {
        let mut of_blocks = self.planes.iter().filter(|plane| plane.block > 0);
        let scales = self.scales.iter().filter(|&&plane| self.planes[plane].block > 0);
        let (block, count) = (scales.clone().next().map(|&plane| self.planes[plane].block), scales.count());
        count <= 1 && of_blocks.all(|plane| plane.role != CodedRole::Sum && Some(plane.block) == block)
    }

    /// Where in a record of `inputs` inputs the parts that a stream reads are.
    pub(super) fn places(&self, stream: Stream, inputs: usize, is_first: bool) -> Places {
        let place = |plane| self.place(plane, inputs, is_first);
        let codes = place(self.planes.len());
        let end = codes + self.code.lines(inputs) * LINE;
        Places { scale: stream.scale.map_or(0, place), zero_point: stream.zero_point.map_or(0, place), codes, end }
    }

    /// Where in a record of `inputs` inputs a plane is; where its codes are behind the last one.
    #[inline(always)]
    fn place(&self, plane: usize, inputs: usize, is_first: bool) -> usize {
        let is_rest = inputs != self.cut;
        if is_rest && inputs != self.rest {
            return self.planes_bytes_before(plane, inputs, is_first);
        }
        self.places[plane][usize::from(is_rest) * 2 + usize::from(is_first)]
    }

    /// Bytes of the planes before one in a record of `inputs` inputs.
    #[inline(never)]
    fn planes_bytes_before(&self, plane: usize, inputs: usize, is_first: bool) -> usize {
        let stored = (0..plane).filter(|&plane| self.planes[plane].block > 0 || is_first);
        stored.map(|plane| self.rows_bytes(plane, inputs)).sum()
    }

    /// Bytes of a plane in a record of `inputs` inputs that has it.
    fn rows_bytes(&self, plane: usize, inputs: usize) -> usize {
        let plane = self.planes[plane];
        let rows = if plane.block == 0 { 1 } else { (inputs + plane.block - 1) >> plane.block.trailing_zeros() };
        (rows * plane.element.row_bytes()).next_multiple_of(LINE)
    }

    /// Bytes of the planes of a record of `inputs` inputs that begins at input `first`.
    #[inline(always)]
    pub(in crate::product) fn planes_bytes(&self, first: usize, inputs: usize) -> usize {
        self.place(self.planes.len(), inputs, first == 0)
    }
}

/// The planes that differ from block to block, by their indices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream {
    /// Scales; without them codes are all there is.
    pub scale: Option<usize>,
    /// Zero points.
    pub zero_point: Option<usize>,
}

/// Offsets in a record, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Places {
    /// Scales of its blocks.
    pub scale: usize,
    /// Zero points of its blocks.
    pub zero_point: usize,
    /// Its codes.
    pub codes: usize,
    /// The next record.
    pub end: usize,
}

/// A run of inputs of one panel.
#[derive(Clone, Copy)]
pub(in crate::product) struct PanelPart<'a> {
    pub layout: &'a CodedLayout,
    /// First input, a multiple of the layout's `cut`.
    pub start: usize,
    /// The input after the last.
    pub end: usize,
    /// Its records.
    pub bytes: &'a [u8],
}

impl<'a> PanelPart<'a> {
    /// Where the record with `input` begins, and its first input.
    #[inline(always)]
    fn record(&self, input: usize) -> (usize, usize) {
        let first = input & !(self.layout.cut - 1);
        let index = (first - self.start) >> self.layout.cut.trailing_zeros();
        let whole = if self.start == 0 && index > 0 { self.layout.whole_bytes } else { 0 };
        (index * self.layout.record_bytes + whole, first)
    }

    /// The lines of codes from `input` (a multiple of 16) to at most `end`, of the record that `input` is in.
    #[inline(always)]
    pub fn lines(&self, input: usize, end: usize) -> &'a [[u8; LINE]] {
        let (record, first) = self.record(input);
        let record_end = self.end.min(first + self.layout.cut);
        let place = record + self.layout.planes_bytes(first, record_end - first);
        let code = self.layout.code;
        let lines = code.lines(input - first)..code.lines(end.min(record_end) - first);
        &self.bytes[place..].as_chunks().0[lines]
    }

    /// The elements of `plane` in the record with `input`; empty for a plane over all inputs in a record without it.
    #[inline(always)]
    pub fn plane(&self, plane: usize, input: usize) -> &'a [u8] {
        let (record, first) = self.record(input);
        let inputs = self.layout.cut.min(self.end - first);
        // Without a closure, which would not be compiled for the instructions.
        let place = self.layout.place(plane, inputs, first == 0);
        let end = self.layout.place(plane + 1, inputs, first == 0);
        &self.bytes[record + place..record + end]
    }
}
