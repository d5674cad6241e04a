//! Weights of recurrent layers in panels, as the file has them.

use crate::steps::products::panels::PanelWeight;
use crate::steps::{KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::Panels;
use ipuc_kernels::product::{PANEL_OUTPUTS, PanelElements, PanelPiece};
use std::ops::Range;

/// The weights of the input and of the hidden state.
pub(super) struct Stored {
    input: PanelWeight,
    hidden: PanelWeight,
}

/// Panels of values that are kept.
struct Kept {
    panels: Range<usize>,
    inputs: Range<usize>,
    values: Values,
}

enum Values {
    F32(Vec<f32>),
    F16(Vec<half::f16>),
    Bf16(Vec<half::bf16>),
}

impl Stored {
    /// Takes operands 1 and 2, where both are stored in panels of the matrices of their directions, of which all inputs of a panel
    /// come together, and the first `rows(h)` rows are panels of their own.
    pub(super) fn take(operands: &mut [Operand], rows: impl Fn(usize) -> usize) -> Result<Option<Stored>, KernelError> {
        let weight = |operand: usize| operands.get(operand).and_then(Operand::as_weight).and_then(PanelWeight::of);
        let (Some(input), Some(hidden)) = (weight(1), weight(2)) else { return Ok(None) };
        for weight in [&input, &hidden] {
            let Panels { groups, outputs, inputs, output_axis, .. } = weight.panels;
            let shape = weight.weight.shape()?;
            let own = [groups, outputs, inputs].map(|extent| usize::try_from(extent).unwrap_or(usize::MAX));
            let fits = shape == own && output_axis == 0 && !own.contains(&0) && weight.comes_whole(own[2]);
            if !fits || weight.weight.dtype() != DType::F32 {
                return Ok(None);
            }
        }
        let size = usize::try_from(hidden.panels.inputs).unwrap_or(usize::MAX);
        if !rows(size).is_multiple_of(PANEL_OUTPUTS) {
            return Ok(None);
        }
        (operands[1], operands[2]) = (Operand::Absent, Operand::Absent);
        Ok(Some(Stored { input, hidden }))
    }

    /// The shape of operand 1 or 2.
    pub(super) fn shape(&self, operand: usize) -> Result<&[usize], KernelError> {
        if operand == 1 { self.input.weight.shape() } else { self.hidden.weight.shape() }
    }

    /// Calls `multiply` with a direction and panels of its weight of the input, until all have been there.
    pub(super) fn for_each_input(
        &self,
        mut multiply: impl FnMut(usize, &[PanelPiece<'_>]) + Send,
    ) -> Result<(), KernelError> {
        let per_direction = per_direction(&self.input);
        self.input.for_each_values(|pieces| {
            for direction in 0..self.input.panels.groups as usize {
                let own = within(pieces, direction * per_direction..(direction + 1) * per_direction);
                if !own.is_empty() {
                    multiply(direction, &own);
                }
            }
        })
    }

    /// Calls `walk` once with the panels of the weight of the hidden state, each direction's behind those of the one before it.
    pub(super) fn with_hidden<T: Send>(
        &self,
        walk: impl FnOnce(&[PanelPiece<'_>]) -> Result<T, KernelError> + Send,
    ) -> Result<T, KernelError> {
        let all = per_direction(&self.hidden) * self.hidden.panels.groups as usize;
        let (mut walk, mut walked) = (Some(walk), None);
        let mut kept: Vec<Kept> = Vec::new();
        self.hidden.for_each_values(|pieces| {
            // Mostly all are there at once.
            let count: usize = pieces.iter().map(|piece| piece.panels.len()).sum();
            if count == all
                && let Some(walk) = walk.take()
            {
                walked = Some(walk(pieces));
                return;
            }
            kept.extend(pieces.iter().map(Kept::of));
        })?;
        if let Some(walk) = walk {
            walked = Some(walk(&kept.iter().map(Kept::piece).collect::<Vec<_>>()));
        }
        walked.unwrap_or_else(|| {
            let (weight, reason) = ("of a recurrent layer".to_string(), "has panels twice".to_string());
            Err(KernelError::Weight { weight, reason })
        })
    }

    /// The panels of rows `rows` of a direction, counted from the first of them.
    pub(super) fn hidden_rows<'a>(
        &self,
        pieces: &[PanelPiece<'a>],
        direction: usize,
        rows: Range<usize>,
    ) -> Vec<PanelPiece<'a>> {
        let first = direction * per_direction(&self.hidden);
        within(pieces, first + rows.start / PANEL_OUTPUTS..first + rows.end.div_ceil(PANEL_OUTPUTS))
    }
}

fn per_direction(weight: &PanelWeight) -> usize {
    usize::try_from(weight.panels.panels_per_group()).unwrap_or(usize::MAX)
}

/// Pieces as far as they lie in panels `range`, counted from its start.
fn within<'a>(pieces: &[PanelPiece<'a>], range: Range<usize>) -> Vec<PanelPiece<'a>> {
    let cut = |piece: &PanelPiece<'a>| {
        let panels = piece.panels.start.max(range.start)..piece.panels.end.min(range.end);
        if panels.is_empty() {
            return None;
        }
        let own = panels.start - piece.panels.start..panels.end - piece.panels.start;
        let all = piece.panels.len();
        let elements = match piece.elements {
            PanelElements::F32(values) => PanelElements::F32(part(values, all, own)),
            PanelElements::F16(values) => PanelElements::F16(part(values, all, own)),
            PanelElements::Bf16(values) => PanelElements::Bf16(part(values, all, own)),
        };
        let panels = panels.start - range.start..panels.end - range.start;
        Some(PanelPiece { panels, inputs: piece.inputs.clone(), elements })
    };
    pieces.iter().filter_map(cut).collect()
}

/// Some of `all` panels.
fn part<T>(values: &[T], all: usize, own: Range<usize>) -> &[T] {
    let length = values.len() / all;
    &values[own.start * length..own.end * length]
}

impl Kept {
    fn of(piece: &PanelPiece<'_>) -> Kept {
        let values = match piece.elements {
            PanelElements::F32(values) => Values::F32(values.to_vec()),
            PanelElements::F16(values) => Values::F16(values.to_vec()),
            PanelElements::Bf16(values) => Values::Bf16(values.to_vec()),
        };
        Kept { panels: piece.panels.clone(), inputs: piece.inputs.clone(), values }
    }

    fn piece(&self) -> PanelPiece<'_> {
        let elements = match &self.values {
            Values::F32(values) => PanelElements::F32(values),
            Values::F16(values) => PanelElements::F16(values),
            Values::Bf16(values) => PanelElements::Bf16(values),
        };
        PanelPiece { panels: self.panels.clone(), inputs: self.inputs.clone(), elements }
    }
}
