//! Precisions that are chosen by what they cost and what they spoil, within a budget.
//!
//! For each weight several precisions are tried on a sample of its outputs. The error of one is that of the results of the
//! product: the share of their squares that is wrong, with the second moments of what the product reads where calibration
//! has them (and errors made up for, as they are when the weight is rounded), else with inputs that are alike and
//! independent, where it is the share of the squares of the weight.
//!
//! Where runs on examples have shown how far the outputs of the model follow an error of each product, errors are those of
//! outputs, and those of all weights add up, since they are independent: an error of outputs is kept by the sum. Else it is
//! kept by each product for itself.
//!
//! Bytes are spent where a byte lowers the sum of these shares most: all weights begin with the fewest bytes, and steps to
//! more bytes are taken in the order of what a byte of them gains, as long as they fit into a size, or until the sum of the
//! errors is small enough.

use super::candidates::Candidate;
use super::choice::Choice;
use super::error::{decoded, elements, sampled_outputs, share_of_error};
use super::factors::Factors;
use super::scheme::{encoding, sample, scheme};
use crate::error::PassError;
use crate::ir::{ChosenEncoding, ConstantData, ConstantId, Graph};
use crate::options::{Budget, Fp8, Options, Precision};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Coded, Logical, Panels};
use rayon::prelude::*;
use std::ops::Range;

/// What is tried, besides leaving the weight as it is.
const TRIED: [Precision; 10] = [
    Precision::Codes { bits: 2, block: 32 },
    Precision::Codes { bits: 4, block: 64 },
    Precision::Codes { bits: 4, block: 32 },
    Precision::Codes { bits: 4, block: 16 },
    Precision::I4E4m3,
    Precision::Nvfp4,
    Precision::Codes { bits: 8, block: 0 },
    Precision::Fp8 { code: Fp8::E4m3, block: 0 },
    Precision::Codes { bits: 8, block: 32 },
    Precision::F16,
];

/// A precision of a weight; `None` leaves it as it is.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Level {
    precision: Option<Precision>,
    bytes: u64,
    /// The share of the squares that is wrong: of the model's outputs where that is known, else of the weight's results.
    error: f64,
}

impl Level {
    fn name(&self) -> String {
        self.precision.map_or_else(|| "as it is".to_string(), |precision| precision.to_string())
    }

    /// The root mean square of the error beside that of the results, in percent.
    fn percent(&self) -> String {
        format!("{:.3} %", 100.0 * self.error.sqrt())
    }
}

/// Refuse budgets that cannot decide.
pub(super) fn check(budget: Budget, options: &Options) -> Result<(), PassError> {
    let refused = |reason| Err(PassError::Budget { budget, reason });
    if options.weights.precision.is_some() {
        return refused("one precision is asked for already");
    }
    if options.sizes_only {
        return refused("weights have to be looked at, and only sizes are known");
    }
    match budget {
        Budget::Error(most) if !(most > 0.0 && most < 1.0) => refused("the error lies between 0 and 1"),
        Budget::Error(_) | Budget::Size(_) => Ok(()),
    }
}

/// Choose for every weight that nothing else decides.
pub(super) fn choose(
    graph: &mut Graph,
    (budget, reserved_bytes): (Budget, u64),
    candidates: &[Candidate],
    choices: &mut [Choice],
    factors: &mut Factors<'_>,
) -> Result<(), PassError> {
    let mut free: Vec<(usize, Vec<Level>)> = Vec::new();
    let mut taken_bytes = reserved_bytes + bytes_of_others(graph, candidates);
    for (index, (candidate, choice)) in candidates.iter().zip(choices.iter()).enumerate() {
        match choice {
            Choice::Budget => free.push((index, measure(graph, candidate, factors)?)),
            Choice::Unasked | Choice::Keep(_) => taken_bytes += unrounded(graph, candidate),
            Choice::Round(precision, _) => {
                let bytes = rounded_bytes(graph, candidate, *precision)?;
                taken_bytes += bytes.unwrap_or_else(|| unrounded(graph, candidate));
            }
        }
    }
    let levels: Vec<&[Level]> = free.iter().map(|(_, levels)| levels.as_slice()).collect();
    let of_outputs = factors.know_effects();
    let chosen = match budget {
        Budget::Error(most) if of_outputs => within_sum(&levels, (most * factors.error_part()).powi(2)),
        Budget::Error(most) => levels.iter().map(|levels| within_error(levels, most)).collect(),
        Budget::Size(bytes) => within_bytes(&levels, bytes.saturating_sub(taken_bytes)).map_err(|least_bytes| {
            PassError::Size { size_bytes: bytes, least_bytes: taken_bytes.saturating_add(least_bytes) }
        })?,
    };
    let words = if of_outputs { ["changes outputs by", "by"] } else { ["has an error of", "has"] };
    for ((index, levels), level) in free.iter().zip(chosen) {
        choices[*index] = choice(budget, words, levels, level);
    }
    Ok(())
}

/// A choice with its reason.
fn choice(budget: Budget, [own, its]: [&str; 2], levels: &[Level], level: usize) -> Choice {
    let chosen = levels[level];
    let beside = |other: Option<&Level>| match other {
        Some(other) => format!("; {} with {} bytes {its} {}", other.name(), other.bytes, other.percent()),
        None => String::new(),
    };
    let less = level.checked_sub(1).and_then(|less| levels.get(less));
    let reason = |others: String| {
        format!("{budget}, {} with {} bytes {own} {}{others}", chosen.name(), chosen.bytes, chosen.percent())
    };
    match chosen.precision {
        Some(precision) => Choice::Round(precision, reason(beside(less) + &beside(levels.get(level + 1)))),
        None => Choice::Keep(reason(beside(less))),
    }
}

/// The fewest bytes whose results are off by no more than this share of their root mean square.
fn within_error(levels: &[Level], most: f64) -> usize {
    // The last level has no error.
    levels.iter().position(|level| level.error <= most * most).unwrap_or(levels.len() - 1)
}

/// The level of each weight so that all take no more than `bytes`; the fewest bytes possible where that is more.
fn within_bytes(weights: &[&[Level]], bytes: u64) -> Result<Vec<usize>, u64> {
    let least: u64 = weights.iter().map(|levels| levels[0].bytes).sum();
    let mut left = bytes.checked_sub(least).ok_or(least)?;
    let mut chosen = vec![0; weights.len()];
    for (weight, step) in steps(weights) {
        let more = weights[weight][step.end].bytes - weights[weight][step.start].bytes;
        // A weight whose step did not fit stays there.
        if chosen[weight] == step.start && more <= left {
            left -= more;
            chosen[weight] = step.end;
        }
    }
    Ok(chosen)
}

/// The level of each weight so that the sum of the errors is at most this, with few bytes.
fn within_sum(weights: &[&[Level]], most: f64) -> Vec<usize> {
    let mut chosen = vec![0; weights.len()];
    let sum =
        |chosen: &[usize]| -> f64 { weights.iter().zip(chosen).map(|(levels, &level)| levels[level].error).sum() };
    for (weight, step) in steps(weights) {
        if sum(&chosen) <= most {
            break;
        }
        chosen[weight] = step.end;
    }
    chosen
}

/// Steps of weights from level to level, those first of which a byte gains most.
fn steps(weights: &[&[Level]]) -> Vec<(usize, Range<usize>)> {
    let mut steps: Vec<(f64, usize, Range<usize>)> = Vec::new();
    for (weight, levels) in weights.iter().enumerate() {
        let hull = hull(levels);
        let pairs = hull.windows(2).map(|pair| (gain(&levels[pair[0]], &levels[pair[1]]), weight, pair[0]..pair[1]));
        steps.extend(pairs);
    }
    // Stable: the same gain is spent in the order of the weights. Steps of one weight gain less and less.
    steps.sort_by(|one, other| other.0.total_cmp(&one.0));
    steps.into_iter().map(|(_, weight, step)| (weight, step)).collect()
}

/// How far a byte of this step lowers the error.
fn gain(less: &Level, more: &Level) -> f64 {
    (less.error - more.error) / (more.bytes - less.bytes) as f64
}

/// Indices of the levels of which none lies above the line between two others, from the fewest bytes on.
fn hull(levels: &[Level]) -> Vec<usize> {
    let mut hull: Vec<usize> = Vec::new();
    for index in 0..levels.len() {
        while let [.., before, last] = hull[..]
            && gain(&levels[before], &levels[last]) <= gain(&levels[last], &levels[index])
        {
            hull.pop();
        }
        hull.push(index);
    }
    hull
}

/// Levels that no other beats in both bytes and error, from the fewest bytes to the weight as it is.
fn frontier(mut levels: Vec<Level>) -> Vec<Level> {
    levels.sort_by(|one, other| one.bytes.cmp(&other.bytes).then(one.error.total_cmp(&other.error)));
    let mut best: Vec<Level> = Vec::new();
    for level in levels {
        if best.last().is_none_or(|last| level.error < last.error && level.bytes > last.bytes) {
            best.push(level);
        }
    }
    best
}

/// What each precision costs and spoils.
fn measure(graph: &mut Graph, candidate: &Candidate, factors: &mut Factors<'_>) -> Result<Vec<Level>, PassError> {
    let factor = factors.of(graph, candidate)?;
    let moments = factors.moments(candidate);
    let factor = factor.map(|id| graph.load_constant(id)).transpose()?;
    // What no run has shown is taken to reach outputs as it is.
    let effect = factors.effect(candidate).unwrap_or(1.0);
    let graph = &*graph;
    let kept = Level { precision: None, bytes: unrounded(graph, candidate), error: 0.0 };
    let values = sample(graph, candidate, &sampled_outputs(candidate.matrix))?;
    let level = |precision: &Precision| -> Result<Option<Level>, PassError> {
        let Some(bytes) = rounded_bytes(graph, candidate, *precision)? else { return Ok(None) };
        let error = match &values {
            Some(values) => {
                let decoded = decoded(graph, candidate, *precision, values, elements(factor.as_ref()))?;
                decoded.map(|decoded| share_of_error(&decoded, values, moments.as_deref()))
            }
            // Nobody can look at it: each further bit halves the error.
            None => Some(0.25f64.powf(bytes as f64 * 8.0 / candidate.elements as f64)),
        };
        Ok(error.map(|error| Level { precision: Some(*precision), bytes, error: effect * error }))
    };
    let tried: Vec<Option<Level>> = TRIED.par_iter().map(level).collect::<Result<_, _>>()?;
    let smaller = tried.into_iter().flatten().filter(|level| level.bytes < kept.bytes);
    Ok(frontier(smaller.chain([kept]).collect()))
}

fn logical_bytes(candidate: &Candidate, encoding: &Coded) -> Option<u64> {
    encoding.stored_bytes(Logical { dtype: candidate.dtype, shape: &candidate.extents() }).ok().flatten()
}

/// Bytes of a weight as it is stored without being rounded.
fn unrounded(graph: &Graph, candidate: &Candidate) -> u64 {
    let ChosenEncoding { encoding, .. } = graph.default_encoding(candidate.id, &candidate.uses);
    logical_bytes(candidate, &encoding).unwrap_or(0)
}

/// Bytes of a weight with this precision; `None` where it cannot have it.
fn rounded_bytes(graph: &Graph, candidate: &Candidate, precision: Precision) -> Result<Option<u64>, PassError> {
    let encoding: Coded = match precision {
        Precision::F16 | Precision::Bf16 => {
            let stored = graph.constant(graph.stored_elements(candidate.id)).dtype;
            let dtype = if precision == Precision::F16 { DType::F16 } else { DType::BF16 };
            if stored.bits() <= dtype.bits() {
                return Ok(None);
            }
            match candidate.uses.matrix_in_panels(&graph.constant(candidate.id).shape) {
                Some(matrix) => Panels::values(dtype, matrix).into(),
                None => Coded::plain(dtype),
            }
        }
        Precision::Codes { .. } | Precision::Fp8 { .. } | Precision::Mxfp4 | Precision::Nvfp4 | Precision::I4E4m3 => {
            if precision.block() > 0 && candidate.has_merged_inputs() {
                return Ok(None);
            }
            let Ok(scheme) = scheme(graph, candidate, precision)? else { return Ok(None) };
            let Ok(encoding) = encoding(candidate, &scheme) else { return Ok(None) };
            encoding
        }
    };
    Ok(logical_bytes(candidate, &encoding))
}

/// Bytes of what is no candidate, as it will be stored.
pub(super) fn bytes_of_others(graph: &Graph, candidates: &[Candidate]) -> u64 {
    let uses = graph.uses();
    let bytes_of = |id: ConstantId| {
        let constant = graph.constant(id);
        let shape: Vec<u64> = constant.shape.iter().map(|&extent| extent as u64).collect();
        let stored = |chosen: &ChosenEncoding| {
            let bytes = chosen.encoding.stored_bytes(Logical { dtype: constant.dtype, shape: &shape });
            bytes.ok().flatten().unwrap_or(0)
        };
        match (&constant.data, &constant.encoding) {
            (_, Some(chosen)) => stored(chosen),
            // Codes that the model has are stored with their parameters.
            (ConstantData::Recipe { operands, .. }, None) if graph.quantized(id).is_some() => {
                operands.iter().flatten().map(|operand| graph.constant(*operand).byte_count()).sum()
            }
            (_, None) => stored(&graph.default_encoding(id, &uses[&id])),
        }
    };
    let others = uses.keys().filter(|id| candidates.binary_search_by_key(*id, |candidate| candidate.id).is_err());
    others.map(|id| bytes_of(*id)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(bytes: u64, error: f64) -> Level {
        Level { precision: (error > 0.0).then_some(Precision::F16), bytes, error }
    }

    #[test]
    fn what_others_beat_is_left_out() {
        let found = frontier(vec![level(8, 0.25), level(4, 0.5), level(4, 0.75), level(6, 0.5), level(32, 0.0)]);
        assert_eq!(found, [level(4, 0.5), level(8, 0.25), level(32, 0.0)]);
        // The middle one gains less a byte than going past it.
        assert_eq!(hull(&[level(2, 1.0), level(4, 0.9), level(8, 0.1), level(32, 0.0)]), [0, 2, 3]);
        assert_eq!(hull(&[level(2, 0.0)]), [0]);
    }

    #[test]
    fn bytes_are_spent_where_they_gain_most() {
        let soft = [level(4, 0.1), level(8, 0.01), level(32, 0.0)];
        let hard = [level(4, 0.9), level(8, 0.5), level(32, 0.0)];
        let weights: [&[Level]; 3] = [&soft, &hard, &soft];
        let chosen = |bytes| within_bytes(&weights, bytes);
        assert_eq!(chosen(11), Err(12));
        assert_eq!(chosen(12), Ok(vec![0, 0, 0]));
        assert_eq!(chosen(16), Ok(vec![0, 1, 0]));
        // The first of two that gain the same.
        assert_eq!(chosen(20), Ok(vec![1, 1, 0]));
        assert_eq!(chosen(24), Ok(vec![1, 1, 1]));
        assert_eq!(chosen(47), Ok(vec![1, 1, 1]));
        assert_eq!(chosen(48), Ok(vec![1, 2, 1]));
        assert_eq!(chosen(96), Ok(vec![2, 2, 2]));
    }

    #[test]
    fn an_error_bounds_each_weight() {
        let levels = [level(4, 0.01), level(8, 0.0001), level(32, 0.0)];
        assert_eq!([0.5, 0.1, 0.05, 0.01, 0.001].map(|most| within_error(&levels, most)), [0, 0, 1, 1, 2]);
    }

    #[test]
    fn an_error_of_outputs_bounds_the_sum() {
        let soft = [level(4, 0.1), level(8, 0.01), level(32, 0.0)];
        let hard = [level(4, 0.9), level(8, 0.5), level(32, 0.0)];
        let weights: [&[Level]; 3] = [&soft, &hard, &soft];
        let chosen = |most| within_sum(&weights, most);
        assert_eq!(chosen(1.2), [0, 0, 0]);
        assert_eq!(chosen(0.75), [0, 1, 0]);
        assert_eq!(chosen(0.65), [1, 1, 0]);
        assert_eq!(chosen(0.53), [1, 1, 1]);
        assert_eq!(chosen(0.1), [1, 2, 1]);
        assert_eq!(chosen(0.0), [2, 2, 2]);
    }
}
