//! The described layouts, and sizes that follow from them.

use super::{EncodingError, INPUTS_BORDER, PartRange};
use crate::dtype::DType;

/// Outputs side by side in a panel.
pub const PANEL_OUTPUTS: usize = 16;

/// How the elements of a weight are stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Canonical bytes: row-major. Parts are runs of rows along axis 0 (one row for shape `[]`).
    Plain {
        /// Stored element type; differs from the logical one only where widening is exact.
        dtype: DType,
    },
    /// Panels that product kernels consume.
    Panels(PanelLayout),
    /// The lengths of all strings, then their bytes.
    Strings,
}

/// Panels of 16 outputs × all inputs, each stored `[inputs/g][16][g]`; outputs and inputs are padded with zeros.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PanelLayout {
    /// Stored element type.
    pub dtype: DType,
    /// Outputs of one matrix.
    pub outputs: u64,
    /// Inputs of one matrix.
    pub inputs: u64,
    /// Outputs side by side: 16.
    pub outputs_per_panel: u32,
    /// Inputs side by side: g, one of 1, 2, 4, 8, 16.
    pub group: u32,
    /// Axis of a canonical matrix that is its outputs: 0 for `[outputs, inputs]`, 1 for `[inputs, outputs]`.
    /// Axes of the weight's shape that a matrix merges (those of a convolution kernel) are its inputs.
    pub output_axis: u32,
    /// Matrices one after another: groups of a convolution, experts, batches. Panels are counted through all of them.
    pub groups: u64,
    /// Scales and the like of the panels; none in this version.
    pub planes: Vec<PlaneLayout>,
}

/// One further plane `[inputs/block][16]` beside the elements of each panel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlaneLayout {
    /// What it holds.
    pub role: PlaneRole,
    /// Element type.
    pub dtype: DType,
    /// Inputs that share one element.
    pub block: u64,
}

/// What a plane holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::FromRepr)]
#[repr(u8)]
pub enum PlaneRole {
    /// Factors.
    Scale = 1,
    /// Offsets.
    ZeroPoint = 2,
    /// Sums of weights, which correct for offsets of activations.
    Sum = 3,
    /// Which elements are not zero.
    Mask = 4,
}

impl PanelLayout {
    /// One matrix of f32, f16 or bf16 in the groups that its kernels use.
    pub fn matrix(dtype: DType, outputs: u64, inputs: u64, output_axis: u32) -> PanelLayout {
        let group = if dtype == DType::BF16 { 2 } else { 1 };
        let outputs_per_panel = PANEL_OUTPUTS as u32;
        let planes = Vec::new();
        PanelLayout { dtype, outputs, inputs, outputs_per_panel, group, output_axis, groups: 1, planes }
    }

    /// Panels of one matrix.
    pub fn panels_per_group(&self) -> u64 {
        self.outputs.div_ceil(PANEL_OUTPUTS as u64)
    }

    /// Panels of all matrices; `None` on overflow.
    pub fn panel_count(&self) -> Option<u64> {
        self.panels_per_group().checked_mul(self.groups)
    }

    /// Stored bytes of this many inputs of one panel; `None` on overflow.
    pub fn panel_bytes(&self, inputs: u64) -> Option<u64> {
        let padded = inputs.checked_next_multiple_of(u64::from(self.group))?;
        padded.checked_mul((PANEL_OUTPUTS * self.dtype.bits() / 8) as u64)
    }

    fn check(&self, shape: &[u64]) -> Result<(), EncodingError> {
        let unsupported = |what: String| Err(EncodingError::Unsupported(what));
        if self.outputs_per_panel != PANEL_OUTPUTS as u32 {
            return unsupported(format!("a panel of {} outputs", self.outputs_per_panel));
        }
        if !matches!(self.group, 1 | 2 | 4 | 8 | 16) {
            return unsupported(format!("a panel layout with {} inputs side by side", self.group));
        }
        if self.output_axis > 1 {
            return unsupported(format!("a panel layout with outputs on axis {}", self.output_axis));
        }
        if !self.planes.is_empty() {
            return unsupported(format!("a panel layout with {} planes", self.planes.len()));
        }
        if !matches!(self.dtype.bits(), 8 | 16 | 32 | 64) || self.dtype.is_complex() {
            return unsupported(format!("a panel layout of {} elements", self.dtype));
        }
        let overflow = || EncodingError::TooLarge { shape: shape.to_vec() };
        let matrix = u128::from(self.outputs) * u128::from(self.inputs);
        let layout = matrix.checked_mul(u128::from(self.groups)).ok_or_else(overflow)?;
        let weight = element_count(shape).ok_or_else(overflow)?;
        if layout != u128::from(weight) {
            return Err(EncodingError::ElementCount { layout, weight: u128::from(weight), shape: shape.to_vec() });
        }
        Ok(())
    }

    fn part_bytes(&self, part: &PartRange) -> Result<u64, EncodingError> {
        let panels = self.panel_count().unwrap_or(0);
        if part.start >= part.end || part.end > panels {
            return Err(illegal(part, "it is empty or ends after the last panel"));
        }
        if part.inputs_start >= part.inputs_end || part.inputs_end > self.inputs {
            return Err(illegal(part, "its inputs are empty or end after the last input"));
        }
        let whole = part.inputs_start == 0 && part.inputs_end == self.inputs;
        if !whole && part.end - part.start != 1 {
            return Err(illegal(part, "only a single panel is cut between inputs"));
        }
        let on_border = |input: u64| input.is_multiple_of(INPUTS_BORDER) || input == self.inputs;
        if !on_border(part.inputs_start) || !on_border(part.inputs_end) {
            return Err(illegal(part, "inputs are cut at multiples of 256 only"));
        }
        let panel = self.panel_bytes(part.inputs_end - part.inputs_start);
        let bytes = panel.and_then(|panel| panel.checked_mul(part.end - part.start));
        bytes.ok_or_else(|| illegal(part, "its size does not fit into 64 bits"))
    }
}

impl Layout {
    /// Stored element type.
    pub fn dtype(&self) -> DType {
        match self {
            Layout::Plain { dtype } => *dtype,
            Layout::Panels(panels) => panels.dtype,
            Layout::Strings => DType::String,
        }
    }

    /// Check that the layout describes a weight of this logical type and shape.
    ///
    /// # Errors
    /// [`EncodingError`] for layouts that do not fit or are not supported.
    pub fn check(&self, dtype: DType, shape: &[u64]) -> Result<(), EncodingError> {
        let stored = self.dtype();
        let widens = dtype == DType::F32 && matches!(stored, DType::F16 | DType::BF16);
        let is_text = matches!(self, Layout::Strings);
        if (stored != dtype && !widens) || is_text != (stored == DType::String) {
            return Err(EncodingError::Conversion { logical: dtype, stored });
        }
        match self {
            Layout::Panels(panels) => panels.check(shape),
            Layout::Plain { .. } | Layout::Strings => {
                element_count(shape).map(|_| ()).ok_or_else(|| EncodingError::TooLarge { shape: shape.to_vec() })
            }
        }
    }

    /// Stored bytes of a whole weight in one piece.
    ///
    /// # Errors
    /// [`EncodingError::TooLarge`] on overflow, [`EncodingError::Unsupported`] for strings, whose size is in no layout.
    pub fn stored_bytes(&self, shape: &[u64]) -> Result<u64, EncodingError> {
        let overflow = || EncodingError::TooLarge { shape: shape.to_vec() };
        match self {
            Layout::Plain { dtype } => {
                element_count(shape).and_then(|count| packed_bytes(*dtype, count)).ok_or_else(overflow)
            }
            Layout::Panels(panels) => {
                let panel = panels.panel_bytes(panels.inputs).ok_or_else(overflow)?;
                panels.panel_count().and_then(|count| count.checked_mul(panel)).ok_or_else(overflow)
            }
            Layout::Strings => Err(EncodingError::Unsupported("the size of strings before they are packed".into())),
        }
    }

    /// Stored bytes of one part of a weight of this shape; `None` for strings, whose size is in no layout.
    ///
    /// # Errors
    /// [`EncodingError::Part`] where it does not begin and end on borders of the layout.
    pub fn part_bytes(&self, shape: &[u64], part: &PartRange) -> Result<Option<u64>, EncodingError> {
        match self {
            Layout::Panels(panels) => panels.part_bytes(part).map(Some),
            Layout::Plain { .. } | Layout::Strings if (part.inputs_start, part.inputs_end) != (0, 0) => {
                Err(illegal(part, "only panels are cut between inputs"))
            }
            Layout::Plain { dtype } => plain_part_bytes(*dtype, shape, part).map(Some),
            Layout::Strings if (part.start, part.end) == (0, 1) => Ok(None),
            Layout::Strings => Err(illegal(part, "strings are stored in one part")),
        }
    }
}

fn plain_part_bytes(dtype: DType, shape: &[u64], part: &PartRange) -> Result<u64, EncodingError> {
    let (rows, row_elements) = rows_of(shape).ok_or_else(|| EncodingError::TooLarge { shape: shape.to_vec() })?;
    if part.start >= part.end || part.end > rows {
        return Err(illegal(part, "it is empty or ends after the last row"));
    }
    let border = |row: u64| byte_border(dtype, row, row_elements);
    if border(part.start).is_none() || (part.end != rows && border(part.end).is_none()) {
        return Err(illegal(part, "it begins or ends within a byte"));
    }
    let elements = (part.end - part.start).checked_mul(row_elements);
    let bytes = elements.and_then(|elements| packed_bytes(dtype, elements));
    bytes.ok_or_else(|| illegal(part, "its size does not fit into 64 bits"))
}

/// Byte offset of a row among canonical bytes; `None` where it begins within a byte or on overflow.
pub(super) fn byte_border(dtype: DType, row: u64, row_elements: u64) -> Option<u64> {
    let bits = u128::from(row) * u128::from(row_elements) * dtype.bits() as u128;
    if bits.is_multiple_of(8) { u64::try_from(bits / 8).ok() } else { None }
}

/// Rows along axis 0 and elements of each; one row for shape `[]`. `None` where their product overflows.
pub(super) fn rows_of(shape: &[u64]) -> Option<(u64, u64)> {
    let count = element_count(shape)?;
    match shape.first() {
        None => Some((1, 1)),
        Some(0) => Some((0, 0)),
        Some(&rows) => Some((rows, count / rows)),
    }
}

/// Number of elements; `None` on overflow.
pub(super) fn element_count(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent))
}

/// Bytes of packed elements; `None` on overflow and for strings.
pub(super) fn packed_bytes(dtype: DType, count: u64) -> Option<u64> {
    match dtype.bits() as u128 {
        0 => None,
        bits => u64::try_from((u128::from(count) * bits).div_ceil(8)).ok(),
    }
}

pub(super) fn illegal(part: &PartRange, reason: &'static str) -> EncodingError {
    let PartRange { start, end, inputs_start, inputs_end } = *part;
    EncodingError::Part { start, end, inputs_start, inputs_end, reason }
}
