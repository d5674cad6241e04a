//! Which codes and scales a weight gets.

use super::Candidate;
use crate::error::PassError;
use crate::ir::{ConstantError, Graph};
use crate::options::{Fp8, Precision};
use crate::rounding::{Region, Scheme};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Coded, Logical, Panels, Planes, Rows};
use std::ops::Range;

/// Outputs of the sample.
const SAMPLED_OUTPUTS: u64 = 16;

/// Codes of 8 bits with a scale for each output get scales for blocks of so many inputs, where single weights that are far
/// larger than the others of their output cost more than half the precision: where blocks divide the squared error by more than this.
const OUTLIER_BLOCK: u64 = 32;
const OUTLIER_GAIN: f64 = 8.0;

/// Scales within which f16 keeps its precision.
const F16_SCALES: Range<f32> = 6.2e-5..3.2e4;

/// The scheme of a weight; the reason where it cannot have one.
pub(super) fn scheme(
    graph: &Graph,
    candidate: &Candidate,
    precision: Precision,
) -> Result<Result<Scheme, String>, PassError> {
    let matrix = candidate.matrix;
    // A single block is one of all inputs.
    let block = if precision.block() >= matrix.inputs { 0 } else { precision.block() };
    let usual = if block == 0 { DType::F32 } else { DType::F16 };
    let with = |code, scale| Scheme { code, scale, block, matrix };
    let plain = match precision {
        Precision::Codes { bits: 8, .. } => with(DType::I8, usual),
        Precision::Codes { bits: 4, .. } => with(DType::I4, usual),
        Precision::Codes { .. } => with(DType::I2, usual),
        Precision::Fp8 { code: Fp8::E4m3, .. } => with(DType::F8E4M3FN, usual),
        Precision::Fp8 { code: Fp8::E5m2, .. } => with(DType::F8E5M2, usual),
        Precision::Mxfp4 => return Ok(Ok(with(DType::F4E2M1, DType::F8E8M0))),
        // A single block of an output has its scale.
        Precision::Nvfp4 if block == 0 => return Ok(Ok(with(DType::F4E2M1, DType::F32))),
        Precision::Nvfp4 => return Ok(Ok(with(DType::F4E2M1, DType::F8E4M3FN))),
        Precision::I4E4m3 if block == 0 => return Ok(Ok(with(DType::I4, DType::F32))),
        Precision::I4E4m3 => return Ok(Ok(with(DType::I4, DType::F8E4M3FN))),
        Precision::F16 | Precision::Bf16 => return Ok(Err("floats of 16 bits have no scales".to_string())),
    };
    let bits = plain.code.bits() as u32;
    let may_have_blocks =
        plain.code == DType::I8 && !candidate.has_merged_inputs() && matrix.inputs >= 2 * OUTLIER_BLOCK;
    if bits == 8 && block == 0 && !may_have_blocks {
        return Ok(Ok(plain));
    }
    let all = matrix.groups * matrix.outputs;
    let first = all.saturating_sub(SAMPLED_OUTPUTS) / 2;
    let middle = first..all.min(first + SAMPLED_OUTPUTS);
    let Some(values) = sample(graph, candidate, &[middle])? else { return Ok(Ok(plain)) };
    let exact = Scheme { scale: DType::F32, ..plain };
    let symmetric = match Region::of(exact, 0, &values) {
        Ok(region) => region,
        Err(error) => return Ok(Err(error.to_string())),
    };
    if bits == 8 && block == 0 {
        let blocks = Scheme { block: OUTLIER_BLOCK, ..exact };
        return Ok(match Region::of(blocks, 0, &values) {
            Ok(region) if region.squared_error(&values) * OUTLIER_GAIN < symmetric.squared_error(&values) => {
                Ok(Scheme { scale: scale_of_blocks(&region), ..blocks })
            }
            Ok(_) | Err(_) => Ok(plain),
        });
    }
    let scale = if plain.scale == DType::F16 { scale_of_blocks(&symmetric) } else { plain.scale };
    let plain = Scheme { scale, ..plain };
    if bits == 8 {
        return Ok(Ok(plain));
    }
    let shifted = Scheme { code: if bits == 4 { DType::U4 } else { DType::U2 }, ..plain };
    let with_zero_points = match Region::of(Scheme { scale: DType::F32, ..shifted }, 0, &values) {
        Ok(region) => region,
        Err(error) => return Ok(Err(error.to_string())),
    };
    // Each further bit of all codes would divide the squared error by four.
    let inputs = if block == 0 { matrix.inputs } else { block };
    let worth = 0.25f64.powf(f64::from(bits) / inputs as f64);
    let gains = with_zero_points.squared_error(&values) < worth * symmetric.squared_error(&values);
    Ok(Ok(if gains { shifted } else { plain }))
}

/// f16 where it holds all of these scales.
fn scale_of_blocks(region: &Region) -> DType {
    let is_f16 = region.scales().iter().all(|scale| *scale == 0.0 || F16_SCALES.contains(&scale.abs()));
    if is_f16 { DType::F16 } else { DType::F32 }
}

/// How codes of a candidate are stored.
pub(super) fn encoding(candidate: &Candidate, scheme: &Scheme) -> Result<Coded, String> {
    let planes = scheme.planes();
    let encoding: Coded = if candidate.uses.matrices.is_empty() {
        Rows { dtype: scheme.code, planes: Planes(planes) }.into()
    } else {
        Panels::codes(scheme.code, scheme.matrix, planes).into()
    };
    let logical = Logical { dtype: candidate.dtype, shape: &candidate.extents() };
    encoding.check(logical).map_err(|error| error.to_string())?;
    Ok(encoding)
}

/// The elements of some outputs, one behind the other; none of a weight whose bytes are not at hand.
pub(super) fn sample(
    graph: &Graph,
    candidate: &Candidate,
    outputs: &[Range<u64>],
) -> Result<Option<Vec<f32>>, PassError> {
    let id = graph.stored_elements(candidate.id);
    let whole = match graph.is_read_in_parts(id) {
        true => None,
        false => match graph.load_constant(id) {
            Err(ConstantError::Hashed { .. }) => return Ok(None),
            loaded => Some(loaded?),
        },
    };
    // How elements are read does not depend on codes.
    let scheme = Scheme { code: DType::I8, scale: DType::F32, block: 0, matrix: candidate.matrix };
    let mut values = Vec::new();
    for outputs in outputs {
        values.extend(graph.rounded_values(id, scheme, outputs, whole.as_ref())?);
    }
    Ok(Some(values))
}
