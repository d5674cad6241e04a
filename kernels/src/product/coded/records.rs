//! Parameters of blocks that come before their codes in records.

use std::ops::Range;

use super::{
    layout::{CodedLayout, CodedPlane, CodedRole, LINE, PanelPart, Places, PlaneType, Stream},
    planes::{Parameters, ask, integers, load_floats},
};
use crate::simd::{LANES, Simd};

/// Blocks whose parameters are read at once.
pub(super) const AT_ONCE: usize = 8;

/// Where the parts of records of a panel are.
pub(super) struct Records {
    /// The first one, which may have less inputs than others.
    pub first: Places,
    /// One with as many inputs as most.
    pub further: Places,
    /// The last one, where it has less.
    pub last: Places,
}

/// Reads the parameters of some blocks before their codes are multiplied, so that the loop over codes has no branch for the
/// types of planes. One reads all panels of a task, one after another.
#[repr(C, align(64))]
pub(super) struct Reader<'r> {
    /// The scales of blocks, times those over all inputs. Vectors that are written and read lie in whole cache lines.
    pub scales: [[f32; LANES]; AT_ONCE],
    /// Zero points as they are subtracted from codes that are not negative.
    pub shifted: [[i32; LANES]; AT_ONCE],
    /// Where the codes of blocks begin in the part, in bytes.
    pub codes: [usize; AT_ONCE],
    records: &'r Records,
    /// The plane of scales.
    scale: CodedPlane,
    /// That of zero points, where there is one.
    zero_point: Option<CodedPlane>,
    /// Bytes of the codes of a block.
    block_bytes: usize,
    /// Blocks of a record that is not the last.
    of_whole: usize,
    /// Where the record that is read begins, in bytes.
    record: usize,
    /// How many bytes it has.
    record_bytes: usize,
    /// Where its parts are. Not a copy: what was just written as a whole would be read in parts, for which processors wait until it is in
    /// the cache.
    places: &'r Places,
    /// Blocks of the record that have been read, and all of them.
    of_record: Range<usize>,
    /// Blocks of all records that have not been read.
    left: usize,
    /// Whether the next record is the first of the panel.
    is_first: bool,
}

impl<'r> Reader<'r> {
    /// For panels of this layout. Without a plane of scales there is nothing to read.
    pub fn new(layout: &CodedLayout, stream: Stream, records: &'r Records) -> Self {
        let plane = |plane: usize| layout.planes()[plane];
        let none = CodedPlane { role: CodedRole::Scale, element: PlaneType::F32, block: layout.cut() };
        let scale = stream.scale.map_or(none, plane);
        Self {
            records,
            scale,
            zero_point: stream.zero_point.map(plane),
            block_bytes: layout.code().lines(scale.block) * LINE,
            of_whole: layout.cut() / scale.block,
            scales: [[0.0; LANES]; AT_ONCE],
            shifted: [[0; LANES]; AT_ONCE],
            codes: [0; AT_ONCE],
            record: 0,
            record_bytes: 0,
            places: &records.first,
            of_record: 0..0,
            left: 0,
            is_first: true,
        }
    }

    /// Goes to the first of the `blocks` of a panel.
    #[inline(always)]
    pub fn begin(&mut self, part: &PanelPart<'_>, whole: &Parameters, blocks: usize) {
        if self.zero_point.is_none() {
            self.shifted = [whole.shifted; AT_ONCE];
        }
        (self.record, self.record_bytes, self.of_record) = (0, 0, 0..0);
        (self.left, self.is_first) = (blocks, part.start == 0);
    }

    /// Those of the next `count` blocks; memory is asked for `ahead`.
    #[inline(always)]
    pub fn read<S: Simd>(&mut self, simd: S, part: &PanelPart<'_>, whole: &Parameters, count: usize, ahead: bool) {
        let bytes = part.bytes;
        let whole_scale = simd.load(&whole.scale);
        let offset = simd.splat_integer(part.layout.code().offset());
        for index in 0..count {
            if self.of_record.is_empty() {
                self.next_record();
            }
            let row = self.of_record.start;
            let scales = &bytes[self.record + self.places.scale..];
            if ahead {
                ask(simd, &scales[row * self.scale.element.row_bytes()..]);
            }
            let scale = load_floats(simd, self.scale.element, scales, row);
            simd.store(simd.multiply(whole_scale, scale), &mut self.scales[index]);
            if let Some(plane) = self.zero_point {
                let zero_points = &bytes[self.record + self.places.zero_point..];
                let zero_point = simd.load_integers(&integers(plane.element, zero_points, row));
                simd.store_integers(simd.add_integers(zero_point, offset), &mut self.shifted[index]);
            }
            self.codes[index] = self.record + self.places.codes + row * self.block_bytes;
            self.of_record.start += 1;
        }
    }

    #[inline(always)]
    fn next_record(&mut self) {
        let own = self.of_whole.min(self.left);
        self.record += self.record_bytes;
        self.places = match (self.is_first, own < self.of_whole) {
            (true, _) => &self.records.first,
            (false, true) => &self.records.last,
            (false, false) => &self.records.further,
        };
        self.record_bytes = self.places.end;
        self.is_first = false;
        self.left -= own;
        self.of_record = 0..own;
    }
}
