//! A weight in panels, part by part, as the pieces that kernels take.

use crate::steps::{KernelError, PartBytes, Weight};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{InputMajor, Panels, Plane, PlaneRole};
use ipuc_formats::model::PartRecord;
use ipuc_formats::ops::Product;
use ipuc_kernels::product::{
    CodeType, CodedLayout, CodedPiece, CodedPlane, CodedRole, InputMajorLayout, OpenPanels, PANEL_OUTPUTS,
    PanelElements, PanelPiece, PlaneType, Rounded, RunElements, RunPiece, SparseLayout, decoded_panels, panels_of_runs,
    spread_panels,
};
use ipuc_kernels::simd::Instructions;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Inputs of a part, which are read one by one, that are held at least: those of a record.
const INPUTS_AT_ONCE: usize = 256;

/// Bytes of panels that are copied out of runs of outputs at a time.
const SPREAD_BYTES: usize = 4 << 20;

/// A weight in panels that kernels take.
pub(in crate::steps) struct PanelWeight {
    pub(in crate::steps) weight: Weight,
    layout: Arc<PanelLayout>,
}

/// How a weight in panels lies: what its record says, as kernels take it.
pub(in crate::steps) struct PanelLayout {
    pub(in crate::steps) panels: Panels,
    elements: PanelKind,
    /// How codes lie, where the elements are codes.
    pub(super) codes: Option<CodedLayout>,
    /// How they lie in the file, where their zeros are left out.
    pub(super) sparse: Option<Box<SparseLayout>>,
    /// How they lie in the file, where they lie input by input: panels of [`Run`]s are runs of outputs then.
    pub(super) by_input: Option<Box<InputMajorLayout>>,
}

/// What kernels take the elements of panels as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PanelKind {
    /// Floats, or codes of floats.
    Floats,
    /// Integers of 8 bits.
    Bytes,
    /// Integers of 16 bits.
    Words,
}

/// Consecutive panels, or some inputs of one.
pub(super) type Run<'a> = CodedPiece<'a>;

/// Some inputs of a run of outputs, and their bytes; those of planes have no inputs.
pub(super) type InputBytes = (Range<usize>, PartBytes);

impl Deref for PanelWeight {
    type Target = PanelLayout;
    fn deref(&self) -> &PanelLayout {
        &self.layout
    }
}

impl PanelLayout {
    /// How a weight lies, where it is stored in panels of a kind that kernels take, or input by input.
    fn of(weight: &Weight) -> Option<PanelLayout> {
        if let Some(runs) = weight.encoding().as_input_major() {
            return PanelLayout::of_runs(weight, runs);
        }
        let panels = weight.encoding().dense_panels()?;
        let codes = if panels.is_coded() { Some(coded_layout(&panels, weight.dtype())?) } else { None };
        let is_of_weight = panels.dtype == weight.dtype();
        let elements = match (&codes, panels.dtype, panels.interleave) {
            (Some(_), ..) | (None, DType::F32 | DType::F16, 1) | (None, DType::BF16, 2) => PanelKind::Floats,
            (None, DType::I8 | DType::U8, 4) if is_of_weight => PanelKind::Bytes,
            (None, DType::I16 | DType::U16, 2) if is_of_weight => PanelKind::Words,
            _ => return None,
        };
        let sparse = sparse_layout(weight, &panels, codes.as_ref());
        Some(PanelLayout { panels, elements, codes, sparse, by_input: None })
    }

    fn of_runs(weight: &Weight, runs: &InputMajor) -> Option<PanelLayout> {
        let panels = runs.dense();
        let codes = if panels.is_coded() { Some(coded_layout(&panels, weight.dtype())?) } else { None };
        let elements = match (&codes, panels.dtype) {
            (Some(codes), _) => RunElements::Codes(codes.clone()),
            (None, DType::F32) => RunElements::F32,
            (None, DType::F16) => RunElements::F16,
            (None, DType::BF16) => RunElements::Bf16,
            _ => return None,
        };
        let (inputs, run) = (usize::try_from(panels.inputs).ok()?, usize::try_from(runs.run).ok()?);
        let by_input = Some(Box::new(InputMajorLayout::new(inputs, run, elements)));
        Some(PanelLayout { panels, elements: PanelKind::Floats, codes, sparse: None, by_input })
    }
}

impl PanelWeight {
    /// A weight of elements that are taken as `elements`. How it lies is worked out once.
    fn new(weight: &Weight, elements: PanelKind) -> Option<PanelWeight> {
        let layout = weight.prepared(|| PanelLayout::of(weight).map(Arc::new));
        let layout = layout.as_ref().as_ref().filter(|layout| layout.elements == elements)?.clone();
        Some(PanelWeight { weight: weight.clone(), layout })
    }

    /// A weight of floats as panels, where it is stored in panels of a kind that kernels take.
    pub(in crate::steps) fn of(weight: &Weight) -> Option<PanelWeight> {
        PanelWeight::of_product(weight).filter(|panels| panels.by_input.is_none())
    }

    /// As [`PanelWeight::of`] for a product that also takes weights that lie input by input.
    pub(super) fn of_product(weight: &Weight) -> Option<PanelWeight> {
        PanelWeight::new(weight, PanelKind::Floats)
    }

    /// A weight of integers of 8 bits as panels, where it is stored in panels of them.
    pub(super) fn of_integers(weight: &Weight) -> Option<PanelWeight> {
        PanelWeight::new(weight, PanelKind::Bytes)
    }

    /// A weight of integers of 16 bits as panels, where it is stored in panels of them.
    pub(super) fn of_words(weight: &Weight) -> Option<PanelWeight> {
        PanelWeight::new(weight, PanelKind::Words)
    }

    /// Whether they are of the matrices that an operator multiplies as operand 1 of this shape.
    pub(super) fn is_of(&self, operator: &dyn Product, shape: &[usize]) -> bool {
        let shape: Vec<u64> = shape.iter().map(|&extent| extent as u64).collect();
        let Panels { groups, outputs, inputs, output_axis, .. } = self.panels;
        operator.weight(1, &shape).is_some_and(|own| {
            (own.groups, own.outputs, own.inputs) == (groups, outputs, inputs)
                && u64::from(own.output_axis) == output_axis
        })
    }

    /// What parts of one matrix count: panels, or runs of outputs.
    pub(super) fn units(&self) -> usize {
        let outputs = usize::try_from(self.panels.outputs).unwrap_or(usize::MAX);
        outputs.div_ceil(self.by_input.as_ref().map_or(PANEL_OUTPUTS, |layout| layout.run()))
    }

    /// Whether inputs are read one by one, where they have to be read at all.
    pub(super) fn is_read_apart(&self) -> bool {
        self.panels.groups == 1 && self.weight.encoding().as_input_major().is_some_and(InputMajor::is_read_apart)
    }

    /// Inputs of a run of outputs that may be held at a time, where inputs are read one by one.
    pub(super) fn inputs_at_once(&self) -> usize {
        let unit = INPUTS_AT_ONCE as u64;
        let inputs = self.weight.most_picked_bytes() / InputMajor::MOST_RUN_BYTES / unit * unit;
        usize::try_from(inputs).unwrap_or(usize::MAX).max(INPUTS_AT_ONCE)
    }

    /// Inputs of run `run` of outputs in pieces, each with the inputs that it has, before them its planes, if they are `with_planes` and
    /// there are any, with none; `None` where all parts are in memory.
    ///
    /// # Errors
    /// [`KernelError`] where they cannot be read.
    pub(super) fn inputs_of(
        &self,
        run: usize,
        with_planes: bool,
        inputs: &[Range<u64>],
    ) -> Result<Option<Vec<InputBytes>>, KernelError> {
        let mut places = self.weight.place_of_inputs(run as u64, inputs)?;
        places.retain(|(range, _)| with_planes || !range.is_empty());
        let (ranges, places): (Vec<_>, Vec<_>) = places.into_iter().unzip();
        let Some(pieces) = self.weight.pieces(&places)? else { return Ok(None) };
        let range = |range: Range<u64>| range.start as usize..range.end as usize;
        Ok(Some(ranges.into_iter().map(range).zip(pieces).collect()))
    }

    /// As [`PanelWeight::for_each_stored_run`], with the zeros of panels, spread out in memory where they are not stored.
    ///
    /// # Errors
    /// [`KernelError`] where a part cannot be read, and of `multiply`.
    pub(super) fn for_each_run(
        &self,
        mut multiply: impl FnMut(&[Run<'_>]) -> Result<(), KernelError> + Send,
    ) -> Result<(), KernelError> {
        self.for_each_stored_run(|runs| match &self.sparse {
            None => multiply(runs),
            Some(layout) => with_zeros(layout, runs, &mut multiply),
        })
    }

    /// Whether each part holds all `inputs` of its panels.
    pub(in crate::steps) fn comes_whole(&self, inputs: usize) -> bool {
        let inputs = inputs as u64;
        self.weight.parts().iter().all(|part| (part.inputs_start, part.inputs_end) == (0, inputs))
    }

    /// Calls `multiply` with runs in order: runs of one call have disjoint panels, runs of the same panel come in later
    /// calls, in order of inputs.
    ///
    /// # Errors
    /// [`KernelError`] where a part cannot be read, and of `multiply`.
    pub(super) fn for_each_stored_run(
        &self,
        mut multiply: impl FnMut(&[Run<'_>]) -> Result<(), KernelError> + Send,
    ) -> Result<(), KernelError> {
        let mut held: Vec<(PartBytes, &PartRecord)> = Vec::new();
        let mut bytes = 0;
        for (index, part) in self.weight.parts().iter().enumerate() {
            // What is there is taken at once: it is in a cache still, and its place is wanted for what comes.
            if !held.is_empty() && !self.weight.is_ready(index) {
                flush(&mut held, &mut multiply)?;
                bytes = 0;
            }
            let loaded = self.weight.part(index)?;
            let follows = held.last().is_none_or(|(_, last)| last.end <= part.start);
            if !follows || bytes + loaded.len() > self.weight.most_held_bytes() {
                flush(&mut held, &mut multiply)?;
                bytes = 0;
            }
            bytes += loaded.len();
            held.push((loaded, part));
        }
        flush(&mut held, &mut multiply)
    }

    /// As [`PanelWeight::for_each_run`], with pieces of values: codes are decoded, a run at a time.
    ///
    /// # Errors
    /// [`KernelError`] where a part cannot be read.
    pub(in crate::steps) fn for_each_values(
        &self,
        mut multiply: impl FnMut(&[PanelPiece<'_>]) + Send,
    ) -> Result<(), KernelError> {
        let mut open = OpenPanels::default();
        self.for_each_run(|runs| {
            let Some(layout) = &self.codes else {
                multiply(&self.values(runs)?);
                return Ok(());
            };
            let outputs = usize::try_from(self.panels.panels_per_group() * self.panels.groups).unwrap_or(usize::MAX);
            let outputs = outputs.saturating_mul(PANEL_OUTPUTS);
            let decoded = decoded_panels(Instructions::best(), layout, outputs, runs, &mut open);
            let pieces: Vec<PanelPiece<'_>> = runs
                .iter()
                .zip(&decoded)
                .map(|(run, values)| PanelPiece {
                    panels: run.panels.clone(),
                    inputs: run.inputs.clone(),
                    elements: PanelElements::F32(values),
                })
                .collect();
            multiply(&pieces);
            Ok(())
        })
    }

    /// Calls `multiply` with some of these matrices after the other, as many as are read at once: of each its number, and its runs,
    /// which come in order of panels and of inputs. Panels are counted from the matrix' first.
    ///
    /// # Errors
    /// [`KernelError`] where one cannot be read, and of `multiply`.
    pub(super) fn for_matrices(
        &self,
        matrices: &[u64],
        mut multiply: impl FnMut(&[(u64, Vec<Run<'_>>)]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let size = |value: u64| {
            usize::try_from(value).map_err(|_| KernelError::Weight {
                weight: "of matrices".to_string(),
                reason: format!("a part has panels or inputs to {value}"),
            })
        };
        let mut rest = matrices;
        while let Some(&first) = rest.first() {
            let place = self.weight.place_of_matrix(first)?;
            let bytes: u64 = place.bytes.iter().map(|piece| piece.bytes.end - piece.bytes.start).sum();
            let count = (self.weight.most_picked_bytes() / bytes.max(1)).max(1);
            let (now, later) = rest.split_at(rest.len().min(usize::try_from(count).unwrap_or(usize::MAX)));
            rest = later;
            let read = self.weight.matrices(now)?;
            let mut together = Vec::with_capacity(now.len());
            for (&matrix, pieces) in now.iter().zip(&read) {
                let place = self.weight.place_of_matrix(matrix)?;
                let mut runs = Vec::with_capacity(pieces.len());
                for (piece, bytes) in place.bytes.iter().zip(pieces) {
                    let part = &self.weight.parts()[piece.part];
                    let start = part.start.max(place.units.start) - place.units.start;
                    let end = part.end.min(place.units.end) - place.units.start;
                    let inputs = size(part.inputs_start)?..size(part.inputs_end)?;
                    runs.push(Run { panels: size(start)?..size(end)?, inputs, bytes });
                }
                together.push((matrix, runs));
            }
            multiply(&together)?;
        }
        Ok(())
    }

    /// Runs of values as kernels take them.
    ///
    /// # Errors
    /// [`KernelError`] where bytes are not aligned as their elements are.
    pub(super) fn values<'a>(&self, runs: &[Run<'a>]) -> Result<Vec<PanelPiece<'a>>, KernelError> {
        let piece = |run: &Run<'a>| {
            let elements = elements(self.panels.dtype, run.bytes)?;
            Ok(PanelPiece { panels: run.panels.clone(), inputs: run.inputs.clone(), elements })
        };
        runs.iter().map(piece).collect()
    }
}

/// Calls `multiply` with the same runs with their zeros.
///
/// # Errors
/// Those of `multiply`.
pub(super) fn with_zeros(
    layout: &SparseLayout,
    runs: &[Run<'_>],
    multiply: &mut dyn FnMut(&[Run<'_>]) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let panels = spread_panels(Instructions::best(), layout, runs);
    let mut dense = Vec::with_capacity(runs.len());
    for (run, (values, bytes)) in runs.iter().zip(&panels) {
        let bytes = &bytemuck::cast_slice(values)[..*bytes];
        dense.push(Run { panels: run.panels.clone(), inputs: run.inputs.clone(), bytes });
    }
    multiply(&dense)
}

/// Calls `multiply` with the same runs as panels, some at a time, spread out in memory; the matrix has `panels` of them.
///
/// # Errors
/// Those of `multiply`.
pub(super) fn with_panels(
    layout: &InputMajorLayout,
    panels: usize,
    runs: &[Run<'_>],
    multiply: &mut dyn FnMut(&[Run<'_>]) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let per_run = layout.run() / PANEL_OUTPUTS;
    for run in runs {
        let length = run.bytes.len() / run.panels.len().max(1);
        for (index, number) in run.panels.clone().enumerate() {
            let bytes = &run.bytes[index * length..][..length];
            let piece = RunPiece { runs: number..number + 1, inputs: run.inputs.clone(), bytes };
            let at_once = (SPREAD_BYTES / (length / per_run).max(1)).clamp(1, per_run);
            // The last run is filled up with outputs that there are none of.
            let own = per_run.min(panels.saturating_sub(number * per_run));
            for first in (0..own).step_by(at_once) {
                let last = own.min(first + at_once);
                let (values, bytes) = panels_of_runs(layout, &piece, first..last);
                let panels = number * per_run + first..number * per_run + last;
                let bytes = &bytemuck::cast_slice(&values)[..bytes];
                multiply(&[Run { panels, inputs: run.inputs.clone(), bytes }])?;
            }
        }
    }
    Ok(())
}

/// Runs of outputs as kernels take them.
pub(super) fn run_pieces<'a>(runs: &[Run<'a>]) -> Vec<RunPiece<'a>> {
    let piece = |run: &Run<'a>| RunPiece { runs: run.panels.clone(), inputs: run.inputs.clone(), bytes: run.bytes };
    runs.iter().map(piece).collect()
}

/// How panels lie whose zeros are not stored; `None` where all are stored.
fn sparse_layout(weight: &Weight, panels: &Panels, codes: Option<&CodedLayout>) -> Option<Box<SparseLayout>> {
    let sparse = weight.encoding().as_sparse_panels()?;
    let capacity = usize::try_from(sparse.capacity).ok()?;
    let with_bits = |layout: SparseLayout| Some(Box::new(if sparse.in_lines { layout.in_lines() } else { layout }));
    if let Some(codes) = codes {
        return with_bits(SparseLayout::codes(codes.clone(), capacity));
    }
    let (inputs, group) = (usize::try_from(panels.inputs).ok()?, usize::try_from(panels.interleave).ok()?);
    with_bits(SparseLayout::values(inputs, panels.dtype.bits() / 8, group, capacity))
}

/// Where the codes and planes of a panel lie; `None` for types that no kernel takes.
fn coded_layout(panels: &Panels, logical: DType) -> Option<CodedLayout> {
    let code = match panels.dtype {
        DType::I8 => CodeType::I8,
        DType::U8 => CodeType::U8,
        DType::I4 => CodeType::I4,
        DType::U4 => CodeType::U4,
        DType::I2 => CodeType::I2,
        DType::U2 => CodeType::U2,
        DType::F8E4M3FN => CodeType::E4m3,
        DType::F8E5M2 => CodeType::E5m2,
        DType::F4E2M1 => CodeType::E2m1,
        _ => return None,
    };
    let rounded = match logical {
        DType::F32 => Rounded::F32,
        DType::F16 => Rounded::F16,
        DType::BF16 => Rounded::Bf16,
        _ => return None,
    };
    let plane = |plane: &Plane| {
        let role = match plane.role {
            PlaneRole::Scale => CodedRole::Scale,
            PlaneRole::ZeroPoint => CodedRole::ZeroPoint,
            PlaneRole::Sum => CodedRole::Sum,
        };
        Some(CodedPlane { role, element: plane_type(plane.dtype)?, block: usize::try_from(plane.block).ok()? })
    };
    let planes: Option<Vec<CodedPlane>> = panels.planes.0.iter().map(plane).collect();
    let size = |value: u64| usize::try_from(value).ok();
    Some(CodedLayout::new(code, size(panels.inputs)?, size(panels.cut)?, &planes?, rounded))
}

fn plane_type(dtype: DType) -> Option<PlaneType> {
    Some(match dtype {
        DType::F32 => PlaneType::F32,
        DType::F16 => PlaneType::F16,
        DType::BF16 => PlaneType::Bf16,
        DType::I32 => PlaneType::I32,
        DType::I8 => PlaneType::I8,
        DType::U8 => PlaneType::U8,
        DType::I4 => PlaneType::I4,
        DType::U4 => PlaneType::U4,
        DType::I2 => PlaneType::I2,
        DType::U2 => PlaneType::U2,
        DType::F8E4M3FN => PlaneType::E4m3,
        DType::F8E8M0 => PlaneType::E8m0,
        _ => return None,
    })
}

/// Bytes as panel elements.
fn elements(dtype: DType, bytes: &[u8]) -> Result<PanelElements<'_>, KernelError> {
    let cast = match dtype {
        DType::F16 => bytemuck::try_cast_slice(bytes).map(PanelElements::F16),
        DType::BF16 => bytemuck::try_cast_slice(bytes).map(PanelElements::Bf16),
        _ => bytemuck::try_cast_slice(bytes).map(PanelElements::F32),
    };
    cast.map_err(|error| KernelError::Weight { weight: "in panels".to_string(), reason: error.to_string() })
}

fn flush(
    held: &mut Vec<(PartBytes, &PartRecord)>,
    multiply: &mut impl FnMut(&[Run<'_>]) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    if held.is_empty() {
        return Ok(());
    }
    let runs = held.iter().map(|(bytes, part)| run(bytes, part)).collect::<Result<Vec<_>, _>>()?;
    multiply(&runs)?;
    drop(runs);
    held.clear();
    Ok(())
}

/// The bytes of a part as kernels take them.
fn run<'a>(bytes: &'a PartBytes, part: &PartRecord) -> Result<Run<'a>, KernelError> {
    let size = |value: u64| {
        usize::try_from(value).map_err(|_| KernelError::Weight {
            weight: "in panels".to_string(),
            reason: format!("a part of {} bytes has panels to {value}", bytes.len()),
        })
    };
    let (panels, inputs) = (size(part.start)?..size(part.end)?, size(part.inputs_start)?..size(part.inputs_end)?);
    Ok(Run { panels, inputs, bytes })
}

/// The runs as far as they lie in panels `range`, counted from its start.
pub(super) fn within<'a>(runs: &[Run<'a>], range: &Range<usize>) -> Vec<Run<'a>> {
    let cut = |run: &Run<'a>| {
        let panels = run.panels.start.max(range.start)..run.panels.end.min(range.end);
        if panels.is_empty() {
            return None;
        }
        let length = run.bytes.len() / run.panels.len();
        let first = (panels.start - run.panels.start) * length;
        let bytes = &run.bytes[first..first + panels.len() * length];
        let panels = panels.start - range.start..panels.end - range.start;
        Some(Run { panels, inputs: run.inputs.clone(), bytes })
    };
    runs.iter().filter_map(cut).collect()
}
