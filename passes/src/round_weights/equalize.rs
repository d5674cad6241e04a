//! Move the sizes of channels from what products read into their weights, where rounded weights then spoil less.
//!
//! What a product reads is divided channel by channel, and the inputs of its weight are multiplied by the same numbers. Channels
//! that are large, or whose weights are small beside those that share their scales, then lose less (as in AWQ, Lin et al.
//! 2023, and between layers, Nagel et al. 2019). The divisions are made in constants that are there already: scales and biases
//! of normalizations, biases, outputs of the weight of a product before. So no step is added, and as the numbers are powers
//! of two, the model computes the same bits before its weights are rounded.
//!
//! Several mixtures of both sizes are tried on a sample of the outputs of all weights that read a value, with what calibration
//! knows of it; the best one is taken where it lowers the error of results.

use super::candidates::{Candidate, copied};
use super::choice::Choice;
use super::error::{decoded, sampled_outputs, share_of_error};
use super::factors::Factors;
use super::neighbours::{Before, Neighbours, neighbours};
use super::scheme::sample;
use crate::error::PassError;
use crate::ir::{Constant, ConstantData, ConstantError, ConstantId, Graph, Operand};
use crate::moments::Moments;
use crate::options::Precision;
use crate::rounding::Factor;
use ipuc_formats::ops::{Binary, BinaryFunction};
use ipuc_formats::tensor::{Tensor, TensorError};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Exponents of the size of a channel, and of that of its weights, in what the channel is divided by.
const TRIED: [(f64, f64); 5] = [(0.25, 0.0), (0.5, 0.0), (0.5, -0.5), (0.0, -0.5), (0.75, -0.25)];

/// Channels are divided by no more than 2 to this, and no less than its inverse.
const MOST_EXPONENT: f64 = 8.0;

/// The error has to fall below this share of what it was.
const GAIN: f64 = 0.98;

/// Why weights were changed before they were rounded, by their constants.
pub(super) type Notes = BTreeMap<ConstantId, String>;

/// A weight of a group, with a sample of it.
struct Sampled<'a> {
    candidate: &'a Candidate,
    precision: Precision,
    values: Vec<f32>,
}

/// Equalize all that gains by it; gives the reasons.
pub(super) fn equalize(
    graph: &mut Graph,
    candidates: &[Candidate],
    choices: &[Choice],
    factors: &mut Factors<'_>,
) -> Result<Notes, PassError> {
    let mut notes = Notes::new();
    if !factors.know_moments() {
        return Ok(notes);
    }
    for group in neighbours(graph, candidates) {
        let Some(weights) = sampled(graph, &group, candidates, choices)? else { continue };
        let first = weights[0].candidate;
        let Some(id) = factors.of(graph, first)? else { continue };
        let factor = graph.load_constant(id)?;
        let factor_elements = factor.elements::<f32>().map_err(failure)?;
        let Some(moments) = factors.moments(first) else { continue };
        let best = best(graph, &weights, &moments, factor_elements)?;
        let Some(Best { divisors, shares: [before, after] }) = best else { continue };
        let repeats = first.matrix.inputs as usize / divisors.len();
        let inputs: Vec<f32> = divisors.iter().flat_map(|&divisor| std::iter::repeat_n(divisor, repeats)).collect();
        drop(moments);
        let divided = Factor { elements: factor_elements }.divided(&inputs);
        let divided = tensor(factor.shape(), &divided)?;
        factors.divide(graph, group.value.0, inputs, divided);
        let note = format!(
            ", inputs scaled by powers of two: results are off by {:.3} % for {:.3} %",
            100.0 * (after / weights.len() as f64).sqrt(),
            100.0 * (before / weights.len() as f64).sqrt()
        );
        apply(graph, &group, candidates, &divisors)?;
        for &reader in &group.readers {
            notes.entry(candidates[reader].id).or_default().push_str(&note);
        }
        for before in &group.before {
            if let Before::Outputs(index) = before {
                let readers: Vec<&str> = group.readers.iter().map(|&reader| candidates[reader].name.as_str()).collect();
                let note = format!(", outputs scaled for {}", readers.join(", "));
                notes.entry(candidates[*index].id).or_default().push_str(&note);
            }
        }
    }
    Ok(notes)
}

/// Samples of all weights of a group; `None` where one of them stays as it is, or cannot be looked at.
fn sampled<'a>(
    graph: &Graph,
    group: &Neighbours,
    candidates: &'a [Candidate],
    choices: &[Choice],
) -> Result<Option<Vec<Sampled<'a>>>, PassError> {
    let precision = |index: usize| match choices[index] {
        Choice::Round(precision, _) => Some(precision),
        Choice::Unasked | Choice::Keep(_) | Choice::Budget => None,
    };
    let is_before_rounded = group.before.iter().all(|before| match before {
        Before::Constant(..) | Before::Value(_) => true,
        Before::Outputs(index) => precision(*index).is_some() && !group.readers.contains(index),
    });
    if !is_before_rounded {
        return Ok(None);
    }
    let mut sampled = Vec::with_capacity(group.readers.len());
    for &reader in &group.readers {
        let candidate = &candidates[reader];
        let (Some(precision), Some(values)) =
            (precision(reader), sample(graph, candidate, &sampled_outputs(candidate.matrix))?)
        else {
            return Ok(None);
        };
        sampled.push(Sampled { candidate, precision, values });
    }
    Ok(Some(sampled))
}

/// What channels are divided by, and the sums of the errors of all weights before and after.
struct Best {
    divisors: Vec<f32>,
    shares: [f64; 2],
}

/// The best of what is tried, where it is better than nothing.
fn best(graph: &Graph, weights: &[Sampled<'_>], moments: &Moments, factor: &[f32]) -> Result<Option<Best>, PassError> {
    let inputs = moments.channels();
    let channels = weights[0].candidate.input_channels();
    let sizes = means_of_groups(&moments.mean_squares(), channels);
    let mut squares = vec![0.0; inputs];
    for row in weights.iter().flat_map(|weight| weight.values.chunks_exact(inputs)) {
        squares.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value) * f64::from(value));
    }
    let weight_sizes = means_of_groups(&squares, channels);
    let error = |divisors: Option<&[f32]>| -> Result<Option<f64>, PassError> {
        let divided = divisors.map(|divisors| Factor { elements: factor }.divided(divisors));
        let mut sum = 0.0;
        for Sampled { candidate, precision, values } in weights {
            let scaled = divisors.map(|divisors| by_input(values, divisors, |value, divisor| value * divisor));
            let (values_now, factor) = (scaled.as_deref().unwrap_or(values), divided.as_deref().unwrap_or(factor));
            let Some(found) = decoded(graph, candidate, *precision, values_now, Some(factor))? else { return Ok(None) };
            let found = match divisors {
                Some(divisors) => by_input(&found, divisors, |value, divisor| value / divisor),
                None => found,
            };
            sum += share_of_error(&found, values, Some(moments));
        }
        Ok(Some(sum))
    };
    let Some(before) = error(None)? else { return Ok(None) };
    let tried = TRIED.par_iter().map(|&exponents| -> Result<Option<Best>, PassError> {
        let divisors = divisors(&sizes, &weight_sizes, exponents);
        let repeated: Vec<f32> =
            divisors.iter().flat_map(|&divisor| std::iter::repeat_n(divisor, inputs / channels)).collect();
        let after = if divisors.iter().all(|&divisor| divisor == 1.0) { None } else { error(Some(&repeated))? };
        Ok(after.map(|after| Best { divisors, shares: [before, after] }))
    });
    let tried: Vec<Option<Best>> = tried.collect::<Result<_, _>>()?;
    let best = tried.into_iter().flatten().min_by(|one, other| one.shares[1].total_cmp(&other.shares[1]));
    Ok(best.filter(|best| best.shares[1] < GAIN * before))
}

/// Means of as many neighbours as a channel has inputs.
fn means_of_groups(squares: &[f64], channels: usize) -> Vec<f64> {
    let each = (squares.len() / channels.max(1)).max(1);
    squares.chunks_exact(each).map(|of_channel| of_channel.iter().sum::<f64>() / each as f64).collect()
}

/// Powers of two near the sizes of channels to these exponents, around 1; 1 for channels that are nothing.
fn divisors(squares: &[f64], weight_squares: &[f64], (own, of_weights): (f64, f64)) -> Vec<f32> {
    let size = |(&square, &of_weight): (&f64, &f64)| {
        let has_size = square > 0.0 && of_weight > 0.0;
        has_size.then(|| 0.5 * (own * square.log2() + of_weights * of_weight.log2()))
    };
    let sizes: Vec<Option<f64>> = squares.iter().zip(weight_squares).map(size).collect();
    let count = sizes.iter().flatten().count().max(1) as f64;
    let middle = sizes.iter().flatten().sum::<f64>() / count;
    let divisor = |size: &Option<f64>| match size {
        Some(size) => (size - middle).round().clamp(-MOST_EXPONENT, MOST_EXPONENT).exp2() as f32,
        None => 1.0,
    };
    sizes.iter().map(divisor).collect()
}

/// Rows with each input changed by its number.
fn by_input(rows: &[f32], numbers: &[f32], change: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    rows.iter().zip(numbers.iter().cycle()).map(|(&value, &number)| change(value, number)).collect()
}

fn failure(error: TensorError) -> ConstantError {
    ConstantError::Recipe { tensor: "scales of channels".to_string(), operator: "rounded", error: error.into() }
}

fn tensor(shape: &[usize], elements: &[f32]) -> Result<Tensor, PassError> {
    Ok(Tensor::from_elements(shape, elements).map_err(failure)?)
}

/// Divide what is before a value, and multiply the inputs of the weights behind it.
fn apply(graph: &mut Graph, group: &Neighbours, candidates: &[Candidate], divisors: &[f32]) -> Result<(), PassError> {
    let inverses: Vec<f32> = divisors.iter().map(|divisor| 1.0 / divisor).collect();
    for before in &group.before {
        match *before {
            Before::Constant(step, operand) => {
                let Operand::Constant(id) = graph.block(group.block).steps[step].operands[operand] else { continue };
                let whole = graph.load_constant(id)?;
                let own = whole.elements::<f32>().map_err(failure)?;
                let divided = tensor(whole.shape(), &by_input(own, &inverses, |value, inverse| value * inverse))?;
                let constant = Constant::of(divided, graph.constant(id).name.clone().as_deref());
                let new = graph.add_constant(constant);
                graph.block_mut(group.block).steps[step].operands[operand] = Operand::Constant(new);
            }
            Before::Value(value) => graph.value_mut(value).name = None,
            Before::Outputs(index) => multiply(graph, &candidates[index], candidates[index].output_axis(), &inverses)?,
        }
    }
    for &reader in &group.readers {
        multiply(graph, &candidates[reader], candidates[reader].input_axis(), divisors)?;
    }
    Ok(())
}

/// Have a weight computed from what it was, times numbers along an axis.
fn multiply(graph: &mut Graph, candidate: &Candidate, axis: usize, numbers: &[f32]) -> Result<(), PassError> {
    let mut shape = vec![1; candidate.shape.len()];
    shape[axis] = numbers.len();
    let numbers = graph.add_constant(Constant::of(tensor(&shape, numbers)?, None));
    let before = copied(graph, candidate.id);
    let op = Binary { function: BinaryFunction::Mul }.into();
    let constant = graph.constant_mut(candidate.id);
    (constant.data, constant.origin) = (ConstantData::Recipe { op, operands: vec![Some(before), Some(numbers)] }, None);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_divided_by_powers_of_two_around_one() {
        let squares = [16.0, 1.0, 1.0 / 16.0, 0.0];
        let of_weights = [1.0, 4.0, 1.0, 1.0];
        assert_eq!(divisors(&squares, &of_weights, (0.5, 0.0)), [2.0, 1.0, 0.5, 1.0]);
        assert_eq!(divisors(&squares, &of_weights, (1.0, 0.0)), [4.0, 1.0, 0.25, 1.0]);
        // (2 - 0, 0 - 1, -2 - 0) about -1/3.
        assert_eq!(divisors(&squares, &of_weights, (1.0, -1.0)), [4.0, 0.5, 0.25, 1.0]);
        assert_eq!(divisors(&[1e30, 1e-30], &[1.0, 1.0], (1.0, 0.0)), [256.0, 1.0 / 256.0]);
        assert_eq!(means_of_groups(&[1.0, 3.0, 5.0, 7.0], 2), [2.0, 6.0]);
    }
}
