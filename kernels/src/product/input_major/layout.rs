//! How a weight lies input by input.

use std::ops::Range;

use half::bf16;

use super::super::{CodeType, CodedLayout, CodedPlane, PANEL_OUTPUTS, Weight};
use crate::simd::LANES;

/// Bytes of a cache line: planes, and the outputs of an input, begin and end on one.
pub(super) const LINE: usize = 4 * LANES;

/// Inputs of a record without planes.
const RECORD_INPUTS: usize = 256;

/// What the elements are.
#[derive(Clone, Debug)]
pub enum RunElements {
    /// Values.
    F32,
    /// Values.
    F16,
    /// Values.
    Bf16,
    /// Codes with planes, which lie in panels in this way.
    Codes(CodedLayout),
}

/// How a weight `[k inputs, n outputs]` lies input by input, as `FORMAT.md` specifies it: in runs of outputs.
#[derive(Clone, Debug)]
pub struct InputMajorLayout {
    inputs: usize,
    run: usize,
    elements: RunElements,
}

/// Some inputs of some runs of outputs.
#[derive(Clone, Debug)]
pub struct RunPiece<'a> {
    /// Which runs.
    pub runs: Range<usize>,
    /// Which inputs of each; begins with a record, and ends with one or with k.
    pub inputs: Range<usize>,
    /// Run by run.
    pub bytes: &'a [u8],
}

impl InputMajorLayout {
    /// A weight of `inputs` inputs in runs of `run` outputs.
    ///
    /// # Panics
    /// If a run does not fill whole lines, or elements have fewer than 4 bits.
    #[must_use]
    pub fn new(inputs: usize, run: usize, elements: RunElements) -> Self {
        let layout = Self { inputs, run, elements };
        assert!(layout.bits() >= 4 && run > 0, "a run of {run} elements of {} bits", layout.bits());
        assert!((run * layout.bits()).is_multiple_of(8 * LINE), "a run of {run} elements of {} bits", layout.bits());
        layout
    }

    /// Inputs of the weight: k.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Outputs of a run.
    #[must_use]
    pub fn run(&self) -> usize {
        self.run
    }

    /// Bytes of the elements of an input of a run.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.run * self.bits() / 8
    }

    pub(super) fn elements(&self) -> &RunElements {
        &self.elements
    }

    /// The codes, where elements are codes.
    pub(super) fn codes(&self) -> Option<&CodedLayout> {
        match &self.elements {
            RunElements::Codes(codes) => Some(codes),
            RunElements::F32 | RunElements::F16 | RunElements::Bf16 => None,
        }
    }

    fn bits(&self) -> usize {
        match &self.elements {
            RunElements::F32 => 32,
            RunElements::F16 | RunElements::Bf16 => 16,
            RunElements::Codes(codes) => codes.code().bits(),
        }
    }

    /// Outputs of a line.
    pub(super) fn line_outputs(&self) -> usize {
        LINE * 8 / self.bits()
    }

    /// Lines of an input of a run.
    pub(super) fn lines(&self) -> usize {
        self.run / self.line_outputs()
    }

    /// Panels of a run.
    pub(super) fn run_panels(&self) -> usize {
        self.run / PANEL_OUTPUTS
    }

    fn cut(&self) -> usize {
        self.codes().map_or(RECORD_INPUTS, CodedLayout::cut)
    }

    /// Bytes of a row of a plane.
    fn plane_row_bytes(&self, codes: &CodedLayout, plane: usize) -> usize {
        codes.planes()[plane].element.row_bytes() * self.run_panels()
    }

    /// Bytes of a plane in a record of `inputs` inputs that begins at input `first`.
    fn plane_bytes(&self, codes: &CodedLayout, plane: usize, first: usize, inputs: usize) -> usize {
        let rows = plane_rows(&codes.planes()[plane], &(first..first + inputs));
        (rows * self.plane_row_bytes(codes, plane)).next_multiple_of(LINE)
    }

    /// Bytes of the planes of a record.
    fn planes_bytes(&self, first: usize, inputs: usize) -> usize {
        let Some(codes) = self.codes() else { return 0 };
        (0..codes.planes().len()).map(|plane| self.plane_bytes(codes, plane, first, inputs)).sum()
    }

    /// Bytes of a run of outputs, of these inputs.
    #[must_use]
    pub fn run_bytes(&self, inputs: &Range<usize>) -> usize {
        Places::new(self, inputs).bytes
    }

    /// Whole panels of all inputs, one behind the other, as runs of outputs.
    ///
    /// The compiler writes these itself; this is for weights that exist only while running, and for tests.
    ///
    /// # Panics
    /// If the bytes are not whole panels.
    #[must_use]
    pub fn pack(&self, panels: &[u8]) -> Vec<u8> {
        let inputs = 0..self.inputs;
        let length = self.panel_bytes(&inputs);
        assert!(length > 0 && panels.len().is_multiple_of(length), "{} bytes of panels", panels.len());
        let places = Places::new(self, &inputs);
        let run_bytes = places.bytes;
        let mut runs = vec![0; (panels.len() / length).div_ceil(self.run_panels()) * run_bytes];
        for (panel, from) in panels.chunks_exact(length).enumerate() {
            let to = &mut runs[panel / self.run_panels() * run_bytes..][..run_bytes];
            let panel = panel % self.run_panels();
            let mut rest = from;
            for record in self.records(&inputs) {
                for (index, plane) in self.planes().iter().enumerate() {
                    let (rows, row) = (plane_rows(plane, &record), plane.element.row_bytes());
                    let (own, after) = rest.split_at((rows * row).next_multiple_of(LINE));
                    rest = after;
                    for (block, from) in own.chunks_exact(row).take(rows).enumerate() {
                        let at = places.plane(self, index, record.start + block * plane.block).unwrap_or(0);
                        to[at + panel * row..][..row].copy_from_slice(from);
                    }
                }
                let group = match &self.elements {
                    RunElements::F32 | RunElements::F16 => 1,
                    RunElements::Bf16 => <bf16 as Weight>::GROUP,
                    RunElements::Codes(codes) => codes.code().inputs_of_line(),
                };
                let line = group * PANEL_OUTPUTS * self.bits() / 8;
                let (own, after) = rest.split_at(record.len().div_ceil(group) * line);
                rest = after;
                for (within, input) in record.clone().enumerate() {
                    let from = &own[within / group * line..][..line];
                    let to = &mut to[places.row(input)..][..self.row_bytes()];
                    for output in 0..PANEL_OUTPUTS {
                        let column = panel * PANEL_OUTPUTS + output;
                        if self.bits() == 4 {
                            let code = from[output * 4 + within % 4] >> (within % group / 4 * 4) & 15;
                            to[column / 128 * LINE + column % LINE] |= code << (column % 128 / LINE * 4);
                        } else {
                            let width = self.bits() / 8;
                            let place = (output * group + within % group) * width;
                            to[column * width..][..width].copy_from_slice(&from[place..][..width]);
                        }
                    }
                }
            }
        }
        runs
    }

    /// Bytes of a panel of these inputs.
    fn panel_bytes(&self, inputs: &Range<usize>) -> usize {
        match &self.elements {
            RunElements::F32 => inputs.len() * PANEL_OUTPUTS * 4,
            RunElements::F16 => inputs.len() * PANEL_OUTPUTS * 2,
            RunElements::Bf16 => inputs.len().next_multiple_of(<bf16 as Weight>::GROUP) * PANEL_OUTPUTS * 2,
            RunElements::Codes(codes) => codes.panel_bytes(inputs),
        }
    }

    fn planes(&self) -> &[CodedPlane] {
        self.codes().map_or(&[], CodedLayout::planes)
    }

    /// The records of a run of inputs.
    fn records(&self, inputs: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let (cut, end) = (self.cut(), inputs.end);
        inputs.clone().step_by(cut).map(move |first| first..end.min(first + cut))
    }

    /// Panics unless the bytes of a piece are those of its runs.
    pub(super) fn check(&self, piece: &RunPiece<'_>) {
        let Range { start, end } = piece.inputs;
        let cut = self.cut();
        assert!(
            start <= end
                && end <= self.inputs
                && start.is_multiple_of(cut)
                && (end.is_multiple_of(cut) || end == self.inputs),
            "inputs {start}..{end} of {}",
            self.inputs
        );
        assert_eq!(piece.bytes.len(), piece.runs.len() * self.run_bytes(&piece.inputs), "bytes of a piece");
    }
}

/// Where planes and elements of some inputs lie in a run of outputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    start: usize,
    /// Inputs of a record as a power of two.
    shift: u32,
    /// Bytes of a whole record that is not the first.
    record: usize,
    /// Bytes of planes over all inputs, in the first record.
    whole: usize,
    /// Bytes of the planes of a whole record that is not the first.
    planes: usize,
    /// The record that is shorter, and the bytes of its planes.
    last: (usize, usize),
    row: usize,
    /// Of all.
    bytes: usize,
}

impl Places {
    pub(super) fn new(layout: &InputMajorLayout, inputs: &Range<usize>) -> Self {
        let (cut, row) = (layout.cut(), layout.row_bytes());
        let (records, rest) = (inputs.len() / cut, inputs.len() % cut);
        let planes = layout.planes_bytes(cut, cut);
        let whole = if inputs.start == 0 && !inputs.is_empty() { layout.planes_bytes(0, 0) } else { 0 };
        let last = (records, if rest == 0 { 0 } else { layout.planes_bytes(cut, rest) });
        let record = planes + cut * row;
        let bytes = whole + records * record + if rest == 0 { 0 } else { last.1 + rest * row };
        Self { start: inputs.start, shift: cut.trailing_zeros(), record, whole, planes, last, row, bytes }
    }

    /// Where the elements of an input begin.
    #[inline(always)]
    pub(super) fn row(&self, input: usize) -> usize {
        let within = input - self.start;
        let record = within >> self.shift;
        let planes = if record == self.last.0 { self.last.1 } else { self.planes };
        self.whole + record * self.record + planes + (within - (record << self.shift)) * self.row
    }

    /// Where the row of a plane that belongs to an input begins; `None` for one over all inputs in a record without it.
    pub(super) fn plane(&self, layout: &InputMajorLayout, plane: usize, input: usize) -> Option<usize> {
        let codes = layout.codes()?;
        let within = input - self.start;
        let record = within >> self.shift;
        let first = self.start + (record << self.shift);
        let begin = record * self.record + if record > 0 { self.whole } else { 0 };
        let end = self.row(first);
        let block = codes.planes()[plane].block;
        let index = match block {
            0 if first > 0 => return None,
            0 => 0,
            block => (input - first) / block,
        };
        // Planes before this one: the inputs of a shorter record follow from where its elements begin.
        let inputs = if record == self.last.0 { (self.bytes - end) / self.row } else { 1 << self.shift };
        let before: usize = (0..plane).map(|before| layout.plane_bytes(codes, before, first, inputs)).sum();
        Some(begin + before + index * layout.plane_row_bytes(codes, plane))
    }
}

/// Copies panels out of a run of outputs: what a kernel for panels takes.
pub(super) struct ToPanels<'a> {
    pub layout: &'a InputMajorLayout,
    pub inputs: Range<usize>,
    /// Of the run.
    pub bytes: &'a [u8],
}

impl ToPanels<'_> {
    /// Bytes of a panel.
    pub(super) fn panel_bytes(&self) -> usize {
        self.layout.panel_bytes(&self.inputs)
    }

    /// Panel `panel` of the run.
    pub(super) fn panel(&self, panel: usize, to: &mut [u8]) {
        let places = Places::new(self.layout, &self.inputs);
        let mut rest = to;
        for inputs in self.layout.records(&self.inputs) {
            for (index, plane) in self.layout.planes().iter().enumerate() {
                let (rows, row) = (plane_rows(plane, &inputs), plane.element.row_bytes());
                let (own, after) = rest.split_at_mut((rows * row).next_multiple_of(LINE));
                rest = after;
                own.fill(0);
                for (block, to) in own.chunks_exact_mut(row).enumerate().take(rows) {
                    let from = places.plane(self.layout, index, inputs.start + block * plane.block).unwrap_or(0);
                    to.copy_from_slice(&self.bytes[from + panel * row..][..row]);
                }
            }
            let row = |input: usize| &self.bytes[places.row(input)..][..self.layout.row_bytes()];
            let taken = match self.layout.elements() {
                RunElements::F32 => side_by_side::<4, 1>(&inputs, panel, row, rest),
                RunElements::F16 => side_by_side::<2, 1>(&inputs, panel, row, rest),
                RunElements::Bf16 => side_by_side::<2, 2>(&inputs, panel, row, rest),
                RunElements::Codes(codes) if codes.code().bits() == 8 => {
                    side_by_side::<1, 4>(&inputs, panel, row, rest)
                }
                RunElements::Codes(_) => nibbles(&inputs, panel, row, rest),
            };
            rest = &mut rest[taken..];
        }
    }
}

/// Rows of a plane in a record.
fn plane_rows(plane: &CodedPlane, inputs: &Range<usize>) -> usize {
    match plane.block {
        0 => usize::from(inputs.start == 0),
        block => inputs.len().div_ceil(block),
    }
}

/// Elements of `WIDTH` bytes of a panel, `GROUP` inputs side by side; gives the bytes that are written.
fn side_by_side<'a, const WIDTH: usize, const GROUP: usize>(
    inputs: &Range<usize>,
    panel: usize,
    row: impl Fn(usize) -> &'a [u8],
    to: &mut [u8],
) -> usize {
    let length = PANEL_OUTPUTS * GROUP * WIDTH;
    let groups = inputs.len().div_ceil(GROUP);
    for (first, to) in inputs.clone().step_by(GROUP).zip(to.chunks_exact_mut(length)) {
        let mut rows = [[[0u8; WIDTH]; PANEL_OUTPUTS]; GROUP];
        for (own, input) in rows.iter_mut().zip(first..inputs.end) {
            let from = &row(input)[panel * PANEL_OUTPUTS * WIDTH..][..PANEL_OUTPUTS * WIDTH];
            for (element, bytes) in own.iter_mut().zip(from.as_chunks::<WIDTH>().0) {
                *element = *bytes;
            }
        }
        let places = to.as_chunks_mut::<WIDTH>().0;
        for output in 0..PANEL_OUTPUTS {
            for (input, row) in rows.iter().enumerate() {
                places[output * GROUP + input] = row[output];
            }
        }
    }
    groups * length
}

/// Codes of 4 bits of a panel; gives the bytes that are written.
fn nibbles<'a>(inputs: &Range<usize>, panel: usize, row: impl Fn(usize) -> &'a [u8], to: &mut [u8]) -> usize {
    let output = panel * PANEL_OUTPUTS;
    let (place, shift) = (output / (2 * LINE) * LINE + output % LINE, output % (2 * LINE) / LINE * 4);
    let group = CodeType::I4.inputs_of_line();
    for (first, to) in inputs.clone().step_by(group).zip(to.chunks_exact_mut(LINE)) {
        to.fill(0);
        for (input, within) in (first..inputs.end).zip(0..group) {
            let from = &row(input)[place..][..PANEL_OUTPUTS];
            for (byte, to) in from.iter().zip(to.iter_mut().skip(within % 4).step_by(4)) {
                *to |= (byte >> shift & 15) << (within / 4 * 4);
            }
        }
    }
    inputs.len().div_ceil(group) * LINE
}
