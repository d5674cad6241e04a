//! The panel layout of a weight `[k inputs, n outputs]`.
//!
//! A panel is 16 outputs × all inputs, stored `[K/g][16][g]`: `g` inputs of an output side by side (1 for f32 and f16, 2
//! for bf16), K = k rounded up to `g`. The last panel is padded with zeros to 16 outputs. A piece is part of that: whole
//! panels, or a run of inputs of them.

use std::ops::Range;

use half::{bf16, f16};

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
        panel_length(self.inputs.len(), self.elements.group())
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

/// Panels of so many inputs each, which are read as f32: what multiplies them is compiled for one type of elements.
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

    /// How many there are; 0 of panels without inputs.
    pub(crate) fn count(&self) -> usize {
        self.elements.len().checked_div(panel_length(self.inputs, self.elements.group())).unwrap_or(0)
    }

    /// Whether they are read where they lie.
    pub(crate) fn are_f32(&self) -> bool {
        matches!(self.elements, PanelElements::F32(_))
    }

    /// The bytes of inputs of a panel, in whole groups.
    pub(crate) fn bytes(&self, panel: usize, inputs: Range<usize>) -> &'a [u8] {
        match self.elements {
            PanelElements::F32(elements) => bytemuck::cast_slice(groups_of(elements, self.inputs, panel, inputs)),
            PanelElements::F16(elements) => bytemuck::cast_slice(groups_of(elements, self.inputs, panel, inputs)),
            PanelElements::Bf16(elements) => bytemuck::cast_slice(groups_of(elements, self.inputs, panel, inputs)),
        }
    }

    /// Inputs of a panel as f32: where they lie, or else in `wide`, which has room for them.
    ///
    /// # Panics
    /// If the first is no multiple of `g`, or the panel does not have them.
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
        if let PanelElements::F32(elements) = self.elements {
            return groups_of(elements, self.inputs, panel, inputs);
        }
        let wide = &mut wide.as_chunks_mut().0[..inputs.len()];
        self.fill(simd, panel, inputs, wide);
        wide
    }

    /// Writes inputs of a panel as f32 to `wide`, which is as long.
    ///
    /// # Panics
    /// As [`Panels::in_f32`].
    #[inline(always)]
    pub(crate) fn fill<S: Simd>(&self, simd: S, panel: usize, inputs: Range<usize>, wide: &mut [[f32; LANES]]) {
        let group = self.elements.group();
        assert!(inputs.start.is_multiple_of(group), "inputs {inputs:?} begin within a group of {group}");
        match self.elements {
            PanelElements::F32(elements) => {
                wide.copy_from_slice(groups_of(elements, self.inputs, panel, inputs));
            }
            PanelElements::F16(elements) => {
                simd.run(Widen::<f16> { groups: groups_of(elements, self.inputs, panel, inputs), wide });
            }
            PanelElements::Bf16(elements) => {
                simd.run(Widen::<bf16> { groups: groups_of(elements, self.inputs, panel, inputs), wide });
            }
        }
    }
}

/// Groups as f32.
struct Widen<'a, W: Weight> {
    groups: &'a [W::Group],
    wide: &'a mut [[f32; LANES]],
}

impl<W: Weight> Routine for Widen<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (group, wide) in self.groups.iter().zip(self.wide.chunks_mut(W::GROUP)) {
            for (step, wide) in wide.iter_mut().enumerate() {
                simd.store(W::load(simd, group, step), wide);
            }
        }
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
    let length = panel_length(inputs, W::GROUP);
    W::groups(&elements[panel * length..][..length])
}

/// The groups that some inputs of a panel lie in.
#[inline(always)]
fn groups_of<W: Weight>(elements: &[W], inputs: usize, panel: usize, part: Range<usize>) -> &[W::Group] {
    &groups(elements, inputs, panel)[part.start / W::GROUP..part.end.div_ceil(W::GROUP)]
}

/// Elements of a panel of so many inputs, of which `group` lie side by side.
fn panel_length(inputs: usize, group: usize) -> usize {
    inputs.next_multiple_of(group) * PANEL_OUTPUTS
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Instructions, Portable};

    /// Two panels of 5 inputs, whose weights tell input and output.
    fn weight(input: usize, output: usize) -> f32 {
        (32 * input + output) as f32
    }

    struct InF32<'a>(Panels<'a>, usize, Range<usize>);

    impl Routine for InF32<'_> {
        type Output = Vec<[f32; LANES]>;

        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let mut wide = vec![f32::NAN; if self.0.are_f32() { 0 } else { self.2.len() * LANES }];
            self.0.in_f32(simd, self.1, self.2, &mut wide).to_vec()
        }
    }

    #[test]
    fn inputs_of_panels_are_the_same_of_each_type() {
        let (floats, halves, brains) =
            (pack_panels(5, 32, weight), pack_panels(5, 32, weight), pack_panels(5, 32, weight));
        for (elements, bytes_of_an_input) in
            [(PanelElements::F32(&floats), 64), (PanelElements::F16(&halves), 32), (PanelElements::Bf16(&brains), 32)]
        {
            let panels = Panels::new(elements, 5);
            assert_eq!(panels.count(), 2);
            assert_eq!(panels.bytes(1, 2..4).len(), 2 * bytes_of_an_input);
            let last = 5_usize.next_multiple_of(elements.group()) - 4;
            assert_eq!(panels.bytes(1, 4..5).len(), last * bytes_of_an_input, "whole groups");
            for instructions in Instructions::available() {
                for inputs in [0..5, 2..5, 2..3, 4..4] {
                    let expected: Vec<[f32; LANES]> =
                        inputs.clone().map(|input| std::array::from_fn(|lane| weight(input, 16 + lane))).collect();
                    let found = instructions.run(InF32(panels, 1, inputs.clone()));
                    assert_eq!(found, expected, "{elements:?} {inputs:?} {}", instructions.name());
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "inputs 1..3 begin within a group of 2")]
    fn inputs_within_a_group_are_refused() {
        let brains: Vec<bf16> = pack_panels(5, 32, weight);
        Instructions::Portable(Portable).run(InF32(Panels::new(PanelElements::Bf16(&brains), 5), 0, 1..3));
    }
}
