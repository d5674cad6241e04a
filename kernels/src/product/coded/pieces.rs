//! The bytes of a weight as they come, piece by piece, and what is kept of panels that come in several.

use std::ops::Range;

use super::{
    layout::{CodedLayout, PanelPart},
    planes::Parameters,
};
use crate::{
    product::{PANEL_OUTPUTS, panels::BLOCK},
    simd::{Instructions, LANES, Routine, Simd},
};

/// Part of a weight of codes in panels.
#[derive(Clone, Debug)]
pub struct CodedPiece<'a> {
    /// Which panels.
    pub panels: Range<usize>,
    /// Which inputs of each; begins at a multiple of 256 and of the layout's `cut`, and ends at one or at k.
    pub inputs: Range<usize>,
    /// The records of these inputs, panel by panel; aligned to 4 bytes.
    pub bytes: &'a [u8],
}

/// What is kept of panels between calls with their pieces: the planes over all inputs, which only the first piece has, and
/// sums that have not ended. One for each product.
#[derive(Debug, Default)]
pub struct OpenPanels {
    panels: Vec<OpenPanel>,
}

/// A panel of which a piece was taken that does not end with it.
#[derive(Debug)]
struct OpenPanel {
    panel: usize,
    /// The input that the next piece begins with.
    next: usize,
    whole: Parameters,
    /// Sums of a block that has not ended, by rows.
    sums: Vec<[i32; LANES]>,
}

/// Panels that one task takes.
#[derive(Clone, Copy)]
pub(in crate::product) struct CodedPanels<'a> {
    layout: &'a CodedLayout,
    start: usize,
    end: usize,
    bytes: &'a [u8],
    /// Bytes of each panel.
    length: usize,
    /// What the first piece of the panel said, if this is a later one.
    whole: Option<&'a Parameters>,
}

/// Some panels of a piece.
pub(super) struct CodedPart<'a> {
    pub first_output: usize,
    pub panels: usize,
    pub weight: CodedPanels<'a>,
    /// Sums that go on, if this is a part of one panel: one for each row.
    pub sums: Option<&'a mut [[i32; LANES]]>,
}

impl<'a> CodedPanels<'a> {
    /// A part of one panel; `whole` is what its first part said, if this is a later one.
    #[inline(always)]
    pub(in crate::product) fn part(
        layout: &'a CodedLayout,
        inputs: Range<usize>,
        bytes: &'a [u8],
        whole: Option<&'a Parameters>,
    ) -> Self {
        Self { layout, start: inputs.start, end: inputs.end, bytes, length: bytes.len(), whole }
    }

    pub(super) fn layout(&self) -> &'a CodedLayout {
        self.layout
    }

    /// The inputs of each panel.
    pub(super) fn inputs(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Panel `panel`, and its parameters over all inputs.
    #[inline(always)]
    pub(in crate::product) fn panel<S: Simd>(&self, simd: S, panel: usize) -> (PanelPart<'a>, Parameters) {
        let bytes = &self.bytes[panel * self.length..][..self.length];
        let part = PanelPart { layout: self.layout, start: self.start, end: self.end, bytes };
        let whole = self.whole.copied().unwrap_or_else(|| Parameters::whole(simd, &part));
        (part, whole)
    }
}

/// Reads the parameters over all inputs of one panel.
struct ReadWhole<'a>(CodedPanels<'a>);

impl Routine for ReadWhole<'_> {
    type Output = Parameters;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Parameters {
        self.0.panel(simd, 0).1
    }
}

impl OpenPanels {
    /// Whether every panel has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.panels.is_empty()
    }

    /// Takes note of pieces that are about to be multiplied with `rows` rows.
    ///
    /// # Panics
    /// If pieces are not as [`CodedPiece`] says, overlap, or are not the next ones of their panels.
    pub(super) fn begin(
        &mut self,
        instructions: Instructions,
        layout: &CodedLayout,
        pieces: &[CodedPiece<'_>],
        outputs: usize,
        rows: usize,
    ) {
        let mut next = 0;
        for piece in pieces {
            assert!(next <= piece.panels.start, "panels {:?} after panel {next}", piece.panels);
            piece.check(layout, outputs.div_ceil(PANEL_OUTPUTS));
            next = piece.panels.end;
            for panel in piece.panels.clone() {
                if piece.inputs.start > 0 {
                    let found = self.find(panel).map(|index| self.panels[index].next);
                    let start = piece.inputs.start;
                    assert_eq!(found, Some(start), "panel {panel} goes on at input {start}");
                    continue;
                }
                assert!(self.find(panel).is_none(), "panel {panel} begins again");
                if piece.inputs.end < layout.inputs() {
                    let whole = instructions.run(ReadWhole(piece.of(layout, panel..panel + 1, None)));
                    self.panels.push(OpenPanel { panel, next: 0, whole, sums: vec![[0; LANES]; rows] });
                }
            }
        }
    }

    /// The pieces cut into at most `most` panels.
    pub(super) fn parts<'a>(
        &'a mut self,
        layout: &'a CodedLayout,
        pieces: &[CodedPiece<'a>],
        most: usize,
    ) -> Vec<CodedPart<'a>> {
        let mut open: Vec<(usize, &Parameters, &mut Vec<[i32; LANES]>)> =
            self.panels.iter_mut().map(|open| (open.panel, &open.whole, &mut open.sums)).collect();
        let mut parts = Vec::new();
        for piece in pieces {
            let most = if piece.inputs == (0..layout.inputs()) { most } else { 1 };
            for first in piece.panels.clone().step_by(most) {
                let range = first..piece.panels.end.min(first + most);
                let place = if most == 1 { open.iter().position(|&(panel, ..)| panel == first) } else { None };
                let (whole, sums) = match place.map(|place| open.swap_remove(place)) {
                    Some((_, whole, sums)) => (Some(whole), Some(sums.as_mut_slice())),
                    None => (None, None),
                };
                parts.push(CodedPart {
                    first_output: first * PANEL_OUTPUTS,
                    panels: range.len(),
                    weight: piece.of(layout, range, whole),
                    sums,
                });
            }
        }
        parts
    }

    /// Takes note that the pieces were multiplied.
    pub(super) fn end(&mut self, layout: &CodedLayout, pieces: &[CodedPiece<'_>]) {
        for piece in pieces {
            for panel in piece.panels.clone() {
                if let Some(index) = self.find(panel) {
                    self.panels[index].next = piece.inputs.end;
                    if piece.inputs.end == layout.inputs() {
                        self.panels.swap_remove(index);
                    }
                }
            }
        }
    }

    fn find(&self, panel: usize) -> Option<usize> {
        self.panels.iter().position(|open| open.panel == panel)
    }
}

impl<'a> CodedPiece<'a> {
    /// Some of its panels.
    fn of(&self, layout: &'a CodedLayout, panels: Range<usize>, whole: Option<&'a Parameters>) -> CodedPanels<'a> {
        let length = layout.panel_bytes(&self.inputs);
        let places = (panels.start - self.panels.start) * length..(panels.end - self.panels.start) * length;
        let (start, end) = (self.inputs.start, self.inputs.end);
        CodedPanels { layout, start, end, bytes: &self.bytes[places], length, whole }
    }

    /// Panics unless it is a piece of a weight of this layout with `panels` panels.
    fn check(&self, layout: &CodedLayout, panels: usize) {
        let (first, end, inputs) = (self.inputs.start, self.inputs.end, layout.inputs());
        let unit = BLOCK.max(layout.cut());
        assert!(
            self.panels.start <= self.panels.end && self.panels.end <= panels,
            "panels {:?} of {panels}",
            self.panels
        );
        assert!(
            first <= end && end <= inputs && first.is_multiple_of(unit) && (end.is_multiple_of(unit) || end == inputs),
            "inputs {first}..{end} of {inputs} are not cut at multiples of {unit}"
        );
        assert_eq!(self.bytes.len(), self.panels.len() * layout.panel_bytes(&self.inputs), "bytes of a piece");
        assert!(self.bytes.as_ptr().addr().is_multiple_of(align_of::<f32>()), "the bytes of a piece are aligned");
    }
}
