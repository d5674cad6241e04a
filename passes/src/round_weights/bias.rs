//! Take the mean error that rounding a weight makes out of the bias behind its product.
//!
//! What a product reads has a mean, so that an error of a weight shifts results by the same in every row. The codes are those
//! that the weight has without a correction: other inputs may have another mean, and what that meets of an error counts.

use super::candidates::Candidate;
use super::error::{decoded, elements, sampled_outputs, share};
use super::factors::Factors;
use super::scheme::sample;
use crate::error::PassError;
use crate::ir::{Constant, ConstantError, ConstantId, Graph, Operand, Rounded, RoundedTo, Step, ValueId};
use crate::moments::Moments;
use crate::options::Precision;
use crate::rounding::{Part, Scheme};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BinaryFunction, Op};
use ipuc_formats::tensor::Tensor;
use rayon::prelude::*;
use std::ops::Range;

/// The error has to fall below this share of what it was.
const GAIN: f64 = 0.98;

/// Outputs that are looked at together.
const OUTPUTS: u64 = 64;

/// Where the bias of a product is, or could be.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    block: BlockIndex,
    step: usize,
    operand: usize,
}

/// A bias that is to take up an error.
pub(super) struct Correction {
    place: Place,
    /// How errors are made up for.
    factor: ConstantId,
    moments: Moments,
    /// What it gains, in words.
    pub(super) note: String,
}

impl Correction {
    /// The correction of a weight that is rounded to this, where there is a bias and the error of results falls.
    pub(super) fn of(
        graph: &mut Graph,
        candidate: &Candidate,
        precision: Precision,
        factors: &mut Factors<'_>,
    ) -> Result<Option<Correction>, PassError> {
        let Some(place) = place(graph, candidate) else { return Ok(None) };
        let Some(factor) = factors.of(graph, candidate)? else { return Ok(None) };
        let Some(values) = sample(graph, candidate, &sampled_outputs(candidate.matrix))? else { return Ok(None) };
        let Some(moments) = factors.moments(candidate) else { return Ok(None) };
        let known = graph.load_constant(factor)?;
        let Some(decoded) = decoded(graph, candidate, precision, &values, elements(Some(&known)))? else {
            return Ok(None);
        };
        let differences: Vec<f32> = decoded.iter().zip(&values).map(|(new, old)| new - old).collect();
        let all = moments.energy(&values);
        let (before, after) =
            (share(moments.energy(&differences), all), share(moments.centered().energy(&differences), all));
        let note = format!(
            ", mean error taken out of the bias: results are off by {:.3} % for {:.3} %",
            100.0 * after.sqrt(),
            100.0 * before.sqrt()
        );
        let moments = moments.into_owned();
        Ok((after < GAIN * before).then_some(Correction { place, factor, moments, note }))
    }

    /// Change the bias by what the codes of the weight make of the means of the inputs.
    ///
    /// # Errors
    /// [`ConstantError`] where the weight cannot be read.
    pub(super) fn apply(&self, graph: &mut Graph, weight: ConstantId, scheme: Scheme) -> Result<(), ConstantError> {
        let rounded = Rounded { weight, factor: Some(self.factor), to: RoundedTo::Codes(scheme, Part::Codes) };
        let whole = match graph.is_read_in_parts(weight) {
            true => None,
            false => Some(graph.load_constant(weight)?),
        };
        let means = self.moments.means();
        let all = scheme.matrix.outputs;
        let of_outputs = |first: u64| -> Result<Vec<f64>, ConstantError> {
            let outputs: Range<u64> = first..all.min(first + OUTPUTS);
            let values = graph.rounded_values(weight, scheme, &outputs, whole.as_ref())?;
            let decoded = graph.rounded_region(&rounded, scheme, outputs, whole.as_ref())?.decoded();
            let shift = |(new, old): (&[f32], &[f32])| -> f64 {
                let errors = new.iter().zip(old).map(|(new, old)| f64::from(new - old));
                errors.zip(&means).map(|(error, mean)| error * mean).sum()
            };
            let inputs = means.len().max(1);
            Ok(decoded.chunks_exact(inputs).zip(values.chunks_exact(inputs)).map(shift).collect())
        };
        let starts: Vec<u64> = (0..all).step_by(OUTPUTS as usize).collect();
        let shifts: Vec<Vec<f64>> = starts.into_par_iter().map(of_outputs).collect::<Result<_, _>>()?;
        let shifts: Vec<f64> = shifts.into_iter().flatten().collect();
        let Place { block, step, operand } = self.place;
        let own = match graph.block(block).steps[step].operands.get(operand) {
            Some(Operand::Constant(id)) => Some(*id),
            Some(Operand::Value(_) | Operand::Absent) | None => None,
        };
        let failure = |error: ipuc_formats::tensor::TensorError| ConstantError::Recipe {
            tensor: "bias".to_string(),
            operator: "rounded",
            error: error.into(),
        };
        let (tensor, name) = match own {
            Some(id) => (graph.load_constant(id)?, graph.constant(id).name.clone()),
            None => (Tensor::zeros(DType::F32, &[shifts.len()]).map_err(failure)?, None),
        };
        let bias = tensor.elements::<f32>().map_err(failure)?.iter().zip(&shifts);
        let bias: Vec<f32> = bias.map(|(&bias, shift)| (f64::from(bias) - shift) as f32).collect();
        let bias = Tensor::from_elements(tensor.shape(), &bias).map_err(failure)?;
        let new = graph.add_constant(Constant::of(bias, name.as_deref()));
        let operands = &mut graph.block_mut(block).steps[step].operands;
        operands.resize(operands.len().max(operand + 1), Operand::Absent);
        operands[operand] = Operand::Constant(new);
        Ok(())
    }
}

/// Where the bias of the only product with a weight is: its own operand, or that of the sum that alone reads it.
fn place(graph: &Graph, candidate: &Candidate) -> Option<Place> {
    let &[result] = candidate.results.as_slice() else { return None };
    let result = ValueId(result);
    graph.reachable_blocks().into_iter().find_map(|block| {
        let steps = &graph.block(block).steps;
        let at = steps.iter().position(|step| step.results.first() == Some(&result))?;
        if graph.value(result).fact.dtype() != Some(DType::F32) || candidate.matrix.groups != 1 {
            return None;
        }
        let is_bias = |step: &Step, operand: usize| match step.operands.get(operand) {
            Some(Operand::Constant(id)) => {
                let constant = graph.constant(*id);
                let outputs = candidate.matrix.outputs;
                let [before @ .., last] = constant.shape.as_slice() else { return false };
                constant.dtype == DType::F32 && *last as u64 == outputs && before.iter().all(|&extent| extent == 1)
            }
            Some(Operand::Value(_) | Operand::Absent) | None => false,
        };
        match &steps[at].op {
            Op::Convolution(_) => {
                let is_free = matches!(steps[at].operands.get(2), None | Some(Operand::Absent));
                (is_free || is_bias(&steps[at], 2)).then_some(Place { block, step: at, operand: 2 })
            }
            Op::Matmul(_) => {
                let reads = |operands: &[Operand]| operands.contains(&Operand::Value(result));
                let mut readers = steps.iter().enumerate().filter(|(_, step)| reads(&step.operands));
                let ((step, sum), None) = (readers.next()?, readers.next()) else { return None };
                let is_sum = matches!(&sum.op, Op::Binary(binary) if binary.function == BinaryFunction::Add);
                let operand = [0, 1].into_iter().find(|&operand| is_bias(sum, operand))?;
                let is_only = is_sum && !reads(&graph.block(block).results);
                is_only.then_some(Place { block, step, operand })
            }
            _ => None,
        }
    })
}
