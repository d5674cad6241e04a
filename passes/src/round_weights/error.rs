//! What rounding a weight does to the results of its products, by a sample of its outputs.

use super::candidates::Candidate;
use super::scheme::scheme;
use crate::error::PassError;
use crate::ir::{Graph, widened};
use crate::moments::Moments;
use crate::options::Precision;
use crate::rounding::{Factor, Region, narrow};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::WeightMatrix;
use ipuc_formats::tensor::Tensor;
use std::ops::Range;

/// The sample: so many runs of outputs, spread evenly, of so many outputs each.
const SAMPLED_RUNS: u64 = 4;
const RUN_OUTPUTS: u64 = 16;

/// The outputs of a sample, over all matrices.
pub(super) fn sampled_outputs(matrix: WeightMatrix) -> Vec<Range<u64>> {
    let all = matrix.groups * matrix.outputs;
    if all <= SAMPLED_RUNS * RUN_OUTPUTS {
        return std::iter::once(0..all).collect();
    }
    let first = |run: u64| (all - RUN_OUTPUTS) * run / (SAMPLED_RUNS - 1);
    (0..SAMPLED_RUNS).map(|run| first(run)..first(run) + RUN_OUTPUTS).collect()
}

/// The elements of a factor, where there is one.
pub(super) fn elements(factor: Option<&Tensor>) -> Option<&[f32]> {
    factor.and_then(|factor| factor.elements::<f32>().ok())
}

/// What some outputs of a weight are once they are rounded, with errors made up for where the factor of their inputs is known;
/// `None` where the values cannot be rounded so.
pub(super) fn decoded(
    graph: &Graph,
    candidate: &Candidate,
    precision: Precision,
    values: &[f32],
    factor: Option<&[f32]>,
) -> Result<Option<Vec<f32>>, PassError> {
    match precision {
        Precision::F16 | Precision::Bf16 => {
            let dtype = if precision == Precision::F16 { DType::F16 } else { DType::BF16 };
            let mut bytes = vec![0; values.len() * 2];
            if narrow(values, dtype, 0, &mut bytes).is_err() {
                return Ok(None);
            }
            let mut decoded = vec![0.0; values.len()];
            widened(dtype, &bytes, &mut decoded);
            Ok(Some(decoded))
        }
        Precision::Codes { .. } | Precision::Fp8 { .. } | Precision::Mxfp4 | Precision::Nvfp4 | Precision::I4E4m3 => {
            let Ok(scheme) = scheme(graph, candidate, precision)? else { return Ok(None) };
            let region = match factor {
                None => Region::of(scheme, 0, values),
                Some(elements) => Region::estimated(scheme, values.to_vec(), Factor { elements }),
            };
            Ok(region.ok().map(|region| region.decoded()))
        }
    }
}

/// The share of the squares of results that is wrong with these values for those.
pub(super) fn share_of_error(decoded: &[f32], values: &[f32], moments: Option<&Moments>) -> f64 {
    let differences: Vec<f32> = decoded.iter().zip(values).map(|(decoded, value)| decoded - value).collect();
    let energy = |rows: &[f32]| match moments {
        Some(moments) => moments.energy(rows),
        None => rows.iter().map(|&value| f64::from(value) * f64::from(value)).sum(),
    };
    share(energy(&differences), energy(values))
}

/// A share of something that may be nothing.
pub(super) fn share(wrong: f64, all: f64) -> f64 {
    if wrong > 0.0 { wrong / all.max(f64::MIN_POSITIVE) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_lie_within_the_outputs() {
        let matrix = |groups, outputs| WeightMatrix { groups, inputs: 8, outputs, output_axis: 0 };
        assert_eq!(sampled_outputs(matrix(2, 32)), std::slice::from_ref(&(0..64)));
        assert_eq!(sampled_outputs(matrix(1, 65)), [0..16, 16..32, 32..48, 49..65]);
        assert_eq!(sampled_outputs(matrix(4, 1000)), [0..16, 1328..1344, 2656..2672, 3984..4000]);
    }
}
