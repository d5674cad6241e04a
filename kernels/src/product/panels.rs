//! The panel layout of a weight `[k inputs, n outputs]`.
//!
//! A panel is 16 outputs × all inputs, stored `[K/g][16][g]`: `g` inputs of an output side by side (1 for f32 and f16, 2
//! for bf16), K = k rounded up to `g`. The last panel is padded with zeros to 16 outputs. A piece is part of that: whole
//! panels, or a run of inputs of them.

use std::ops::Range;

use half::{bf16, f16};

use super::tile;
use crate::simd::{LANES, Routine, Simd};

/// Inputs that are summed in one chain, beginning at 0. Two chains at a time cover the latency of an addition in a
/// product of a matrix and a vector, and a chain is long enough that adding it to the output costs little.
pub(crate) const RUN: usize = 128;

/// Inputs at whose multiples a piece of a weight may end: two runs.
pub(crate) const BLOCK: usize = 2 * RUN;

/// Outputs side by side in a panel.
pub const PANEL_OUTPUTS: usize = LANES;

/// The elements of a piece, panel by panel.
#[derive(Clone, Copy, Debug)]
pub enum PanelElements<'a> {
    /// `g` = 1.
    F32(&'a [f32]),
    /// `g` = 1.
    F16(&'a [f16]),
    /// `g` = 2.
    Bf16(&'a [bf16]),
}

impl PanelElements<'_> {
    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(elements) => elements.len(),
            Self::F16(elements) => elements.len(),
            Self::Bf16(elements) => elements.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Inputs side by side: `g`.
    #[must_use]
    pub fn group(&self) -> usize {
        match self {
            Self::F32(_) => <f32 as Weight>::GROUP,
            Self::F16(_) => <f16 as Weight>::GROUP,
            Self::Bf16(_) => <bf16 as Weight>::GROUP,
        }
    }
}

/// Part of a weight in panel layout.
#[derive(Clone, Debug)]
pub struct PanelPiece<'a> {
    /// Which panels.
    pub panels: Range<usize>,
    /// Which inputs of each; begins at a multiple of 256, and ends at one or at k.
    pub inputs: Range<usize>,
    /// `[panels][inputs/g rounded up][16][g]`.
    pub elements: PanelElements<'a>,
}

impl<'a> PanelPiece<'a> {
    /// A whole weight of `inputs` inputs.
    #[must_use]
    pub fn whole(outputs: usize, inputs: usize, elements: PanelElements<'a>) -> Self {
        Self { panels: 0..outputs.div_ceil(PANEL_OUTPUTS), inputs: 0..inputs, elements }
    }

    /// Elements of one panel of this piece.
    #[must_use]
    pub fn panel_length(&self) -> usize {
        self.inputs.len().next_multiple_of(self.elements.group()) * PANEL_OUTPUTS
    }

    /// The elements of some of its panels.
    pub(crate) fn elements_of(&self, panels: Range<usize>) -> PanelElements<'a> {
        let length = self.panel_length();
        let range = (panels.start - self.panels.start) * length..(panels.end - self.panels.start) * length;
        match self.elements {
            PanelElements::F32(elements) => PanelElements::F32(&elements[range]),
            PanelElements::F16(elements) => PanelElements::F16(&elements[range]),
            PanelElements::Bf16(elements) => PanelElements::Bf16(&elements[range]),
        }
    }

    /// Panics unless it is a piece of a weight of `inputs` inputs and `panels` panels.
    pub(crate) fn check(&self, inputs: usize, panels: usize) {
        let (first, end) = (self.inputs.start, self.inputs.end);
        assert!(
            self.panels.start <= self.panels.end && self.panels.end <= panels,
            "panels {:?} of {panels}",
            self.panels
        );
        assert!(
            first <= end
                && end <= inputs
                && first.is_multiple_of(BLOCK)
                && (end.is_multiple_of(BLOCK) || end == inputs),
            "inputs {first}..{end} of {inputs} are not cut at multiples of {BLOCK}"
        );
        assert_eq!(self.elements.len(), self.panels.len() * self.panel_length(), "elements of a piece");
    }
}

/// Panels of so many inputs each. What multiplies them reads f32, so that there is code of it for one type of elements.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    elements: PanelElements<'a>,
    inputs: usize,
}

impl<'a> Panels<'a> {
    pub(crate) fn new(elements: PanelElements<'a>, inputs: usize) -> Self {
        Self { elements, inputs }
    }

    /// The inputs of each.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Elements of one of them.
    fn length(&self) -> usize {
        self.inputs.next_multiple_of(self.elements.group()) * PANEL_OUTPUTS
    }

    pub(crate) fn count(&self) -> usize {
        self.elements.len().checked_div(self.length()).unwrap_or(0)
    }

    /// Whether they are read where they lie.
    pub(crate) fn are_f32(&self) -> bool {
        matches!(self.elements, PanelElements::F32(_))
    }

    /// The bytes of inputs of a panel, in whole groups.
    pub(crate) fn bytes(&self, panel: usize, inputs: Range<usize>) -> &'a [u8] {
        let group = self.elements.group();
        let first = panel * self.length();
        let place = |input: usize| first + input * PANEL_OUTPUTS;
        let elements = place(inputs.start / group * group)..place(inputs.end.next_multiple_of(group));
        match self.elements {
            PanelElements::F32(all) => bytemuck::cast_slice(&all[elements]),
            PanelElements::F16(all) => bytemuck::cast_slice(&all[elements]),
            PanelElements::Bf16(all) => bytemuck::cast_slice(&all[elements]),
        }
    }

    /// Inputs of a panel, of which the first is a multiple of `g`, as f32: where they lie, or else in `wide`, which has room for them.
    #[inline(always)]
    pub(crate) fn in_f32<'w, S: Simd>(
        &self,
        simd: S,
        panel: usize,
        inputs: Range<usize>,
        wide: &'w mut [f32],
    ) -> &'w [[f32; LANES]]
    where
        'a: 'w,
    {
        let Range { start: first, end } = inputs;
        let wide = wide.as_chunks_mut().0;
        match self.elements {
            PanelElements::F32(elements) => return &groups(elements, self.inputs, panel)[first..end],
            PanelElements::F16(elements) => {
                let groups = &groups(elements, self.inputs, panel)[first..];
                simd.run(Widen::<f16> { groups, wide: &mut wide[..end - first] });
            }
            PanelElements::Bf16(elements) => {
                let groups = &groups(elements, self.inputs, panel)[first / bf16::GROUP..];
                simd.run(Widen::<bf16> { groups, wide: &mut wide[..end - first] });
            }
        }
        &wide[..end - first]
    }
}

/// The first inputs of a panel as f32.
struct Widen<'a, W: Weight> {
    groups: &'a [W::Group],
    wide: &'a mut [[f32; LANES]],
}

impl<W: Weight> Routine for Widen<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        tile::widen_panel::<S, W>(simd, self.groups, self.wide);
    }
}

/// A stored element type of panels.
pub(crate) trait Weight: Copy + Send + Sync + Default + 'static {
    /// Inputs side by side.
    const GROUP: usize;

    /// `[16][GROUP]`.
    type Group: Copy + Send + Sync + bytemuck::NoUninit;

    /// Panel elements as groups.
    fn groups(elements: &[Self]) -> &[Self::Group];

    /// Input `step` (below `GROUP`) of 16 outputs.
    fn load<S: Simd>(simd: S, group: &Self::Group, step: usize) -> S::Vector;

    /// Up to 16 values side by side, those that are missing 0.
    fn load_plain<S: Simd>(simd: S, values: &[Self]) -> S::Vector;

    /// Rounds.
    fn from_f32(value: f32) -> Self;
}

/// The elements of one of some panels, of so many inputs each, in groups.
#[inline(always)]
pub(super) fn groups<W: Weight>(elements: &[W], inputs: usize, panel: usize) -> &[W::Group] {
    let length = inputs.next_multiple_of(W::GROUP) * PANEL_OUTPUTS;
    W::groups(&elements[panel * length..][..length])
}

impl Weight for f32 {
    const GROUP: usize = 1;
    type Group = [f32; LANES];

    #[inline(always)]
    fn groups(elements: &[Self]) -> &[Self::Group] {
        elements.as_chunks().0
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, group: &Self::Group, _step: usize) -> S::Vector {
        simd.load(group)
    }

    #[inline(always)]
    fn load_plain<S: Simd>(simd: S, values: &[Self]) -> S::Vector {
        simd.load_partial(values)
    }

    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Weight for f16 {
    const GROUP: usize = 1;
    type Group = [f16; LANES];

    #[inline(always)]
    fn groups(elements: &[Self]) -> &[Self::Group] {
        elements.as_chunks().0
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, group: &Self::Group, _step: usize) -> S::Vector {
        simd.load_f16(group)
    }

    #[inline(always)]
    fn load_plain<S: Simd>(simd: S, values: &[Self]) -> S::Vector {
        simd.load_f16(&first_16(values))
    }

    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
}

impl Weight for bf16 {
    const GROUP: usize = 2;
    type Group = [bf16; 2 * LANES];

    #[inline(always)]
    fn groups(elements: &[Self]) -> &[Self::Group] {
        elements.as_chunks().0
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, group: &Self::Group, step: usize) -> S::Vector {
        if step == 0 { simd.load_bf16_even(group) } else { simd.load_bf16_odd(group) }
    }

    #[inline(always)]
    fn load_plain<S: Simd>(simd: S, values: &[Self]) -> S::Vector {
        simd.load_bf16(&first_16(values))
    }

    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

/// The first 16 values, those that are missing 0.
#[inline(always)]
fn first_16<T: Weight>(values: &[T]) -> [T; LANES] {
    if let Some(full) = values.first_chunk() {
        return *full;
    }
    let mut lanes = [T::default(); LANES];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}

/// Packs `weight: [k, n]`, given by `element(input, output)`, into panels of `T` (f32, f16 or bf16).
///
/// The compiler writes panels itself; this is for weights that exist only while running, and for tests.
#[must_use]
#[allow(private_bounds, reason = "the element types are a closed set")]
pub fn pack_panels<T: Weight>(inputs: usize, outputs: usize, element: impl Fn(usize, usize) -> f32) -> Vec<T> {
    let depth = inputs.next_multiple_of(T::GROUP);
    let mut packed = vec![T::default(); outputs.div_ceil(PANEL_OUTPUTS) * PANEL_OUTPUTS * depth];
    for output in 0..outputs {
        let panel = &mut packed[output / PANEL_OUTPUTS * PANEL_OUTPUTS * depth..][..PANEL_OUTPUTS * depth];
        for input in 0..inputs {
            let group = input / T::GROUP * PANEL_OUTPUTS * T::GROUP;
            panel[group + output % PANEL_OUTPUTS * T::GROUP + input % T::GROUP] = T::from_f32(element(input, output));
        }
    }
    packed
}
