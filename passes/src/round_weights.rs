//! Round weights to fewer bits, where the options ask for that.
//!
//! ```text
//! // weights i8
//! constant @w : f32[64, 64] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[2, 64]) {
//!   %y : f32[2, 64] = matmul %x, @w
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @0 "w" : f32[64, 64] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @2 : i8[64, 64] = rounded codes i8 f32 0 matrix 1 64 64 1 @0
//! constant @3 : f32[64] = rounded scales i8 f32 0 matrix 1 64 64 1 @0
//! constant @1 "w" : f32[64, 64] = dequantize to=f32 axis=1 block_size=0 @2, @3 as panels dtype=i8 groups=1 outputs=64 inputs=64 output_axis=1 interleave=4 cut=256 planes=["scale f32 0"] because "rounded: --weights i8:channel"
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[2, 64]) {
//!   %y : f32[2, 64] = matmul %x, @1
//!   return %y
//! }
//! ```
//!
//! Candidates are weights of floats that products read as one matrix, or gathers by rows. The policy:
//!
//! - Weights of fewer than [`LEAST_ELEMENTS`] elements stay, as do those that would take no fewer bytes, and those that are
//!   codes already. Norms, biases and all else that steps read as whole tensors are no candidates.
//! - With 4 bits and 2, weights of which rows are read (embeddings) and those of the last products before an output get 8
//!   bits, with a scale for each row or output. So do filters of convolutions, whose inputs lie along several axes.
//! - Filters of which 8 bits lose too much, since an output has weights far larger than its others, become f16 (`outliers`).
//! - A budget in place of a precision measures several of them for each weight, and chooses (`budget`).
//! - Patterns are for those who know better: what they name has the precision that they say, or stays.
//!
//! Codes of 4 bits and 2 have zero points where these lower the squared error of a sample of 16 outputs by more than their
//! bits would. Scales of blocks are f16, unless those of the sample lie outside of its normal numbers, others f32.
//! Where the options have moments of what products read, errors are weighed with them and made up for, sizes of channels are
//! moved from what products read into weights (`equalize`), and mean errors out of biases (`bias`), where that lowers the error
//! of results.
//! Establishes: each candidate has an encoding with the reason for it. Leaves alone: what is not asked for.
//! Cost: a visit a step, and the sample of each weight.

mod bias;
mod budget;
mod candidates;
mod choice;
mod equalize;
mod error;
mod factors;
mod neighbours;
mod outliers;
mod pattern;
mod scheme;

use crate::error::PassError;
use crate::ir::{Changes, ChosenEncoding, Constant, ConstantData, ConstantId, Graph, Rounded, RoundedTo};
use crate::options::{Activations, Budget, Options, Precision, WeightOptions};
use crate::rounding::{Part, Scheme};
use bias::Correction;
use candidates::{Candidate, candidates, copied};
use choice::Choice;
use equalize::{Notes, equalize};
use factors::Factors;
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Coded, Logical};
use ipuc_formats::ops::{Cast, Dequantize, Op};
pub use pattern::matches;
use rayon::prelude::*;
use scheme::{encoding, scheme};

/// Weights of fewer elements stay as they are, unless a pattern names them.
pub const LEAST_ELEMENTS: u64 = 4096;

/// Round weights; see the module.
///
/// # Errors
/// [`PassError::NoWeight`] and [`PassError::KeptWeight`] for patterns that change nothing, [`PassError::Budget`] and
/// [`PassError::Size`] for budgets that cannot be kept, [`PassError::Constant`] where a
/// weight cannot be read.
pub fn round_weights(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    let mut changes = Changes::default();
    if !options.weights.is_rounding() {
        return Ok(changes);
    }
    if let Some(budget) = options.weights.budget {
        budget::check(budget, options)?;
    }
    let candidates = candidates(graph);
    let mut factors = Factors::new(&options.calibration);
    let mut asked = Asked::new(&options.weights, &candidates)?;
    let mut choices: Vec<Choice> = candidates.iter().map(|candidate| asked.precision(candidate)).collect();
    let by_budget: Vec<bool> = choices.iter().map(|choice| matches!(choice, Choice::Budget)).collect();
    if let Some(budget) = options.weights.budget {
        budget::choose(graph, (budget, options.reserved_bytes), &candidates, &mut choices, &mut factors)?;
    }
    // A size leaves no bytes for biases, or for another encoding than the one that was chosen.
    let is_sized = matches!(options.weights.budget, Some(Budget::Size(_)));
    // What is known of the sizes of all elements of a value is not known of its channels.
    let are_whole = options.activations == Activations::I8Static || options.sparse_threshold.is_some();
    let notes = match is_sized || are_whole {
        true => Notes::new(),
        false => equalize(graph, &candidates, &choices, &mut factors)?,
    };
    let unnamed = candidates.par_iter().zip(&mut choices).filter(|(candidate, _)| asked.pattern(candidate).is_none());
    outliers::spare(graph, unnamed)?;
    factors.may_correct = !is_sized;
    for ((candidate, choice), by_budget) in candidates.iter().zip(choices).zip(by_budget) {
        let (precision, why) = match choice {
            Choice::Unasked | Choice::Budget => continue,
            Choice::Keep(reason) => {
                keep(graph, candidate, by_budget, reason);
                changes.annotations += 1;
                continue;
            }
            Choice::Round(precision, why) => (precision, why),
        };
        match round(graph, candidate, precision, why, &mut factors)? {
            Ok(()) => {
                if let Some(chosen) = &mut graph.constant_mut(candidate.id).encoding {
                    chosen.by_budget = by_budget;
                    chosen.reason.push_str(notes.get(&candidate.id).map_or("", String::as_str));
                }
                asked.settle(candidate, None);
                changes.annotations += 1;
            }
            Err(reason) => {
                asked.settle(candidate, Some(&reason));
                keep(graph, candidate, by_budget, reason);
            }
        }
    }
    asked.finish()?;
    Ok(changes)
}

/// Bytes that the constants take which steps read, with the encodings that are chosen so far.
pub fn stored_bytes(graph: &Graph) -> u64 {
    budget::bytes_of_others(graph, &[])
}

/// What the options ask for, and which patterns came to nothing.
struct Asked<'a> {
    options: &'a WeightOptions,
    /// Of each pattern with a precision.
    outcomes: Vec<Outcome>,
}

/// What came of a pattern with a precision.
#[derive(Clone, Default)]
struct Outcome {
    /// Whether a weight got it.
    got: bool,
    /// The first weight that could not have it, and why.
    refused: Option<(String, String)>,
}

impl<'a> Asked<'a> {
    fn new(options: &'a WeightOptions, candidates: &[Candidate]) -> Result<Self, PassError> {
        let patterns = options.keep.iter().chain(options.each.iter().map(|(pattern, _)| pattern));
        for pattern in patterns {
            if !candidates.iter().any(|candidate| candidate.is_named(pattern)) {
                return Err(PassError::NoWeight { pattern: pattern.clone() });
            }
        }
        Ok(Asked { options, outcomes: vec![Outcome::default(); options.each.len()] })
    }

    /// The last pattern with a precision that names a weight.
    fn pattern(&self, candidate: &Candidate) -> Option<usize> {
        self.options.each.iter().rposition(|(pattern, _)| candidate.is_named(pattern))
    }

    fn precision(&self, candidate: &Candidate) -> Choice {
        if let Some(pattern) = self.options.keep.iter().find(|pattern| candidate.is_named(pattern)) {
            return Choice::Keep(format!("--keep '{pattern}'"));
        }
        if let Some(index) = self.pattern(candidate) {
            let (pattern, precision) = &self.options.each[index];
            return Choice::Round(*precision, format!("--weights-for '{pattern}={precision}'"));
        }
        if self.options.precision.is_none() && self.options.budget.is_none() {
            return Choice::Unasked;
        }
        if candidate.elements < LEAST_ELEMENTS {
            return Choice::Keep(format!("it has fewer than {LEAST_ELEMENTS} elements"));
        }
        let Some(precision) = self.options.precision else { return Choice::Budget };
        let channel = Precision::Codes { bits: 8, block: 0 };
        let few_bits = |precision| match precision {
            Precision::Codes { bits, .. } => bits < 8,
            Precision::Mxfp4 | Precision::Nvfp4 | Precision::I4E4m3 => true,
            Precision::F16 | Precision::Bf16 | Precision::Fp8 { .. } => false,
        };
        let asked = format!("--weights {precision}");
        match candidate.role().filter(|_| few_bits(precision)) {
            Some(role) => Choice::Round(channel, format!("{asked}, and {role} with 8 bits")),
            None => Choice::Round(precision, asked),
        }
    }

    /// A weight has what was asked for, or has not for this reason.
    fn settle(&mut self, candidate: &Candidate, refused: Option<&str>) {
        let Some(index) = self.pattern(candidate) else { return };
        let outcome = &mut self.outcomes[index];
        match refused {
            None => outcome.got = true,
            Some(reason) => {
                outcome.refused.get_or_insert_with(|| (candidate.name.clone(), reason.to_string()));
            }
        }
    }

    fn finish(self) -> Result<(), PassError> {
        for ((pattern, precision), Outcome { got, refused }) in self.options.each.iter().zip(self.outcomes) {
            if let (false, Some((weight, reason))) = (got, refused) {
                return Err(PassError::KeptWeight { pattern: pattern.clone(), precision: *precision, weight, reason });
            }
        }
        Ok(())
    }
}

/// Store a weight as without this pass, and say why.
fn keep(graph: &mut Graph, candidate: &Candidate, by_budget: bool, reason: String) {
    let ChosenEncoding { encoding, .. } = graph.default_encoding(candidate.id, &candidate.uses);
    graph.constant_mut(candidate.id).encoding =
        Some(ChosenEncoding { encoding, by_budget, reason: format!("kept: {reason}") });
}

/// Why a weight stays.
type Kept = Result<(), String>;

fn round(
    graph: &mut Graph,
    candidate: &Candidate,
    precision: Precision,
    why: String,
    factors: &mut Factors<'_>,
) -> Result<Kept, PassError> {
    match precision {
        Precision::F16 => Ok(to_floats(graph, candidate, DType::F16, why)),
        Precision::Bf16 => Ok(to_floats(graph, candidate, DType::BF16, why)),
        Precision::Codes { .. } | Precision::Fp8 { .. } | Precision::Mxfp4 | Precision::Nvfp4 | Precision::I4E4m3 => {
            to_codes(graph, candidate, precision, why, factors)
        }
    }
}

/// The weight before it is rounded, as a constant that is read as it is stored.
fn source(graph: &mut Graph, candidate: &Candidate) -> ConstantId {
    let copy = copied(graph, candidate.id);
    graph.stored_elements(copy)
}

fn add(graph: &mut Graph, dtype: DType, shape: Vec<usize>, data: ConstantData) -> ConstantId {
    graph.add_constant(Constant { name: None, dtype, shape, data, origin: None, encoding: None, zeros: None })
}

fn to_floats(graph: &mut Graph, candidate: &Candidate, to: DType, why: String) -> Kept {
    let stored = graph.constant(graph.stored_elements(candidate.id)).dtype;
    if stored.bits() <= to.bits() {
        return Err(format!("it is stored as {stored}"));
    }
    let constant = graph.constant(candidate.id);
    let (dtype, shape) = (constant.dtype, constant.shape.clone());
    let weight = source(graph, candidate);
    let narrow = add(graph, to, shape, ConstantData::Rounded(Rounded { weight, factor: None, to: RoundedTo::Narrow }));
    let op = Cast::to(dtype).into();
    let constant = graph.constant_mut(candidate.id);
    (constant.data, constant.origin) = (ConstantData::Recipe { op, operands: vec![Some(narrow)] }, None);
    let ChosenEncoding { encoding, .. } = graph.default_encoding(candidate.id, &candidate.uses);
    graph.constant_mut(candidate.id).encoding =
        Some(ChosenEncoding { encoding, by_budget: false, reason: format!("rounded: {why}") });
    Ok(())
}

fn to_codes(
    graph: &mut Graph,
    candidate: &Candidate,
    precision: Precision,
    why: String,
    factors: &mut Factors<'_>,
) -> Result<Kept, PassError> {
    if precision.block() > 0 && candidate.has_merged_inputs() {
        return Ok(Err("blocks of inputs lie along one axis, and those of a convolution along several".to_string()));
    }
    let scheme = match scheme(graph, candidate, precision)? {
        Ok(scheme) => scheme,
        Err(reason) => return Ok(Err(reason)),
    };
    let encoding = match encoding(candidate, &scheme) {
        Ok(encoding) => encoding,
        Err(reason) => return Ok(Err(reason)),
    };
    let logical = Logical { dtype: candidate.dtype, shape: &candidate.extents() };
    let bytes = |encoding: &Coded| encoding.stored_bytes(logical).ok().flatten();
    let ChosenEncoding { encoding: unrounded, .. } = graph.default_encoding(candidate.id, &candidate.uses);
    match (bytes(&encoding), bytes(&unrounded)) {
        (Some(rounded), Some(now)) if rounded < now => {}
        (Some(rounded), Some(now)) => return Ok(Err(format!("codes would take {rounded} bytes, and it takes {now}"))),
        (_, _) => return Ok(Err("no encoding takes its codes".to_string())),
    }
    let correction = if factors.may_correct { Correction::of(graph, candidate, precision, factors)? } else { None };
    let factor = factors.of(graph, candidate)?;
    let calibrated = if factor.is_some() { ", calibrated" } else { "" };
    let weight = dequantize(graph, candidate, scheme, factor);
    if let Some(correction) = &correction {
        correction.apply(graph, weight, scheme)?;
    }
    let corrected = correction.map_or(String::new(), |correction| correction.note);
    let reason = format!("rounded: {why}{calibrated}{corrected}");
    graph.constant_mut(candidate.id).encoding = Some(ChosenEncoding { encoding, by_budget: false, reason });
    Ok(Ok(()))
}

/// Make the constant one that dequantizes its own codes; gives the weight that they are made of.
fn dequantize(graph: &mut Graph, candidate: &Candidate, scheme: Scheme, factor: Option<ConstantId>) -> ConstantId {
    let weight = source(graph, candidate);
    let shape = candidate.shape.clone();
    let rounded = |part| ConstantData::Rounded(Rounded { weight, factor, to: RoundedTo::Codes(scheme, part) });
    let (parameters, axis, block_size) = candidate.parameters(&scheme);
    let codes = add(graph, scheme.code, shape, rounded(Part::Codes));
    let mut scales = add(graph, scheme.scale, parameters.clone(), rounded(Part::Scales));
    if scheme.has_output_scales() {
        let inputs = axis as usize;
        let mut outputs = parameters.clone();
        outputs[inputs] = 1;
        let output_scales = add(graph, DType::F32, outputs, rounded(Part::OutputScales));
        let op = Dequantize { to: Some(DType::F32), axis, block_size: parameters[inputs] as i64 }.into();
        let operands = vec![Some(scales), Some(output_scales)];
        scales = add(graph, DType::F32, parameters.clone(), ConstantData::Recipe { op, operands });
    }
    let mut operands = vec![Some(codes), Some(scales)];
    if scheme.has_zero_points() {
        operands.push(Some(add(graph, scheme.code, parameters, rounded(Part::ZeroPoints))));
    }
    let op: Op = Dequantize { to: Some(candidate.dtype), axis, block_size }.into();
    let constant = graph.constant_mut(candidate.id);
    (constant.data, constant.origin) = (ConstantData::Recipe { op, operands }, None);
    weight
}
