//! A weight in panels, part by part, as the pieces that kernels take.

use crate::kernels::product::{PANEL_OUTPUTS, PanelElements, PanelPiece};
use crate::kernels::threads::alone;
use crate::steps::{Crew, KernelError, PartBytes, Weight};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Layout, PanelLayout};
use ipuc_formats::model::PartRecord;
use std::ops::Range;

/// The layout of a weight in panels that kernels take.
pub(super) fn layout(weight: &Weight) -> Option<&PanelLayout> {
    match weight.layout() {
        Layout::Panels(layout) if layout.outputs_per_panel as usize == PANEL_OUTPUTS && layout.planes.is_empty() => {
            let known = matches!((layout.dtype, layout.group), (DType::F32 | DType::F16, 1) | (DType::BF16, 2));
            known.then_some(layout)
        }
        Layout::Panels(_) | Layout::Plain { .. } | Layout::Strings => None,
    }
}

/// Bytes as panel elements.
fn elements<'a>(dtype: DType, bytes: &'a [u8]) -> Result<PanelElements<'a>, KernelError> {
    let cast = match dtype {
        DType::F16 => bytemuck::try_cast_slice(bytes).map(PanelElements::F16),
        DType::BF16 => bytemuck::try_cast_slice(bytes).map(PanelElements::Bf16),
        _ => bytemuck::try_cast_slice(bytes).map(PanelElements::F32),
    };
    cast.map_err(|error| KernelError::Weight { weight: "in panels".to_string(), reason: error.to_string() })
}

/// Calls `multiply` with pieces in order: pieces of one call have disjoint panels, pieces of the same panel come in later
/// calls, in order of inputs. Each element of the weight is multiplied `rows` times.
///
/// # Errors
/// [`KernelError`] where a part cannot be read.
pub(super) fn for_each_run(
    weight: &Weight,
    layout: &PanelLayout,
    rows: usize,
    mut multiply: impl FnMut(&[PanelPiece<'_>]),
) -> Result<(), KernelError> {
    let mut work = |pieces: &[PanelPiece<'_>]| {
        let elements: usize = pieces.iter().map(|piece| piece.elements.len()).sum();
        match weight.begin_work(elements.saturating_mul(rows)) {
            Crew::Alone => alone(|| multiply(pieces)),
            Crew::All => multiply(pieces),
        }
    };
    let mut run: Vec<(PartBytes, &PartRecord)> = Vec::new();
    let mut bytes = 0;
    for (index, part) in weight.parts().iter().enumerate() {
        // What is there is taken at once: it is in a cache still, and its place is wanted for what comes.
        if !run.is_empty() && !weight.is_ready(index) {
            flush(layout, &mut run, &mut work)?;
            bytes = 0;
        }
        let loaded = weight.part(index)?;
        let follows = run.last().is_none_or(|(_, last)| last.end <= part.start);
        if !follows || bytes + loaded.len() > weight.most_held_bytes() {
            flush(layout, &mut run, &mut work)?;
            bytes = 0;
        }
        bytes += loaded.len();
        run.push((loaded, part));
    }
    flush(layout, &mut run, &mut work)
}

fn flush(
    layout: &PanelLayout,
    run: &mut Vec<(PartBytes, &PartRecord)>,
    multiply: &mut impl FnMut(&[PanelPiece<'_>]),
) -> Result<(), KernelError> {
    if run.is_empty() {
        return Ok(());
    }
    let piece = |(bytes, part): &'_ (PartBytes, &PartRecord)| -> Result<(Range<usize>, Range<usize>), KernelError> {
        let size = |value: u64| {
            usize::try_from(value).map_err(|_| KernelError::Weight {
                weight: "in panels".to_string(),
                reason: format!("a part of {} bytes has panels to {value}", bytes.len()),
            })
        };
        Ok((size(part.start)?..size(part.end)?, size(part.inputs_start)?..size(part.inputs_end)?))
    };
    let ranges = run.iter().map(piece).collect::<Result<Vec<_>, _>>()?;
    let mut pieces = Vec::with_capacity(run.len());
    for ((bytes, _), (panels, inputs)) in run.iter().zip(ranges) {
        pieces.push(PanelPiece { panels, inputs, elements: elements(layout.dtype, bytes)? });
    }
    multiply(&pieces);
    run.clear();
    Ok(())
}

/// The pieces as far as they lie in panels `range`, counted from its start.
pub(super) fn within<'a>(pieces: &[PanelPiece<'a>], range: &Range<usize>) -> Vec<PanelPiece<'a>> {
    let cut = |piece: &PanelPiece<'a>| {
        let panels = piece.panels.start.max(range.start)..piece.panels.end.min(range.end);
        if panels.is_empty() {
            return None;
        }
        let length = piece.panel_length();
        let first = (panels.start - piece.panels.start) * length;
        let places = first..first + panels.len() * length;
        let elements = match piece.elements {
            PanelElements::F32(elements) => PanelElements::F32(&elements[places]),
            PanelElements::F16(elements) => PanelElements::F16(&elements[places]),
            PanelElements::Bf16(elements) => PanelElements::Bf16(&elements[places]),
        };
        let panels = panels.start - range.start..panels.end - range.start;
        Some(PanelPiece { panels, inputs: piece.inputs.clone(), elements })
    };
    pieces.iter().filter_map(cut).collect()
}
