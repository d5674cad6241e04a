//! How far the outputs of a model follow errors of what its steps with weights compute, and the error of outputs itself.

use crate::accuracy::Deviation;
use crate::compare::floats;
use ipuc_formats::dtype::DType;
use ipuc_formats::element::{bf16, f16};
use ipuc_formats::model::{BlockRecord, Manifest, OperandRecord};
use ipuc_formats::ops::Op;
use ipuc_formats::tensor::{Tensor, filled};
use ipuc_formats::value::Value;
use ipuc_runtime::{Model, Observer, RunError, Session, SessionOptions};
use std::collections::BTreeMap;

/// The error that is tried, as a share: small, so that twice of it does twice as much, and far above roundings of f16.
const TRIED_ERROR: f64 = 1.0 / 64.0;

/// An example with what the model in floats makes of it.
pub(super) struct Example {
    pub(super) entry: String,
    pub(super) inputs: Vec<(String, Value)>,
    pub(super) outputs: Vec<(String, Value)>,
}

impl Example {
    /// The outputs of a model that may keep as state what the example gives it and has as outputs: those that are state are what
    /// the run leaves behind.
    pub(super) fn run(&self, model: &Model, options: &SessionOptions) -> Result<Vec<(String, Value)>, RunError> {
        let entry = model.entry(Some(&self.entry))?;
        let name_of = |state: u32| model.manifest().states[state as usize].name.as_str();
        let mut session = Session::new(model, options)?;
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (name, value) in &self.inputs {
            let index = entry.inputs.iter().position(|input| input == name);
            match index.and_then(|index| entry.state_of_input(index)) {
                Some(state) => session.set_state(name_of(state), value.clone())?,
                None => inputs.push((name.clone(), value.clone())),
            }
        }
        let mut outputs = session.run(Some(&self.entry), inputs)?;
        for (index, name) in entry.outputs.iter().enumerate() {
            if let Some(state) = entry.state_of_output(index)
                && let Some(value) = session.state(name_of(state))?
            {
                outputs.push((name.clone(), value));
            }
        }
        Ok(outputs)
    }
}

/// Values that steps compute with a weight, by their number, and the axis of their channels.
pub(super) fn results(manifest: &Manifest) -> BTreeMap<u32, usize> {
    let of_block = |block: &BlockRecord| -> Vec<(u32, usize)> {
        let result = |step: &ipuc_formats::model::StepRecord| {
            let weight = step.operands.iter().enumerate().find_map(|(position, operand)| match *operand {
                OperandRecord::Weight(weight) => {
                    let shape = &manifest.weights[weight as usize].shape;
                    let multiplies = step.op.weight_matrix(position, shape).is_some() && !step.op.is_recurrent();
                    (multiplies || matches!(step.op, Op::Gather(_))).then_some(weight)
                }
                OperandRecord::Value(_) | OperandRecord::Absent => None,
            });
            weight?;
            let value = &block.values[*step.results.first()? as usize];
            let (_, shape) = value.kind.as_tensor()?;
            let rank = shape.dims()?.len();
            let is_image = matches!(step.op, Op::Convolution(_) | Op::ConvolutionTranspose(_));
            let channels = if is_image { 1 } else { rank.checked_sub(1)? };
            Some((value.id, channels))
        };
        block.steps.iter().filter_map(result).collect()
    };
    manifest.blocks.iter().flat_map(of_block).collect()
}

/// Gives one value errors.
struct Disturbed {
    number: u32,
    channels: usize,
    /// Whether the value was computed.
    was_seen: bool,
}

impl Observer for Disturbed {
    fn begin(&mut self) {}

    fn restart(&mut self) {}

    fn block(&mut self, _block: u32) {}

    fn value(&mut self, _number: u32, _value: &Value) {}

    fn replaced(&mut self, number: u32, value: &Value) -> Option<Value> {
        if number != self.number {
            return None;
        }
        let changed = disturbed(value.as_tensor()?, self.channels)?;
        self.was_seen = true;
        Some(changed.into())
    }
}

/// A tensor of floats with errors of [`TRIED_ERROR`] of the root mean square of each channel.
fn disturbed(tensor: &Tensor, channels: usize) -> Option<Tensor> {
    let shape = tensor.shape();
    let count = *shape.get(channels)?;
    let stride: usize = shape[channels + 1..].iter().product();
    let values = match tensor.dtype() {
        DType::F32 | DType::F16 | DType::BF16 => floats(tensor)?,
        _ => return None,
    };
    let channel = |index: usize| index / stride.max(1) % count.max(1);
    let mut squares = filled(0.0f64, count).ok()?;
    values.iter().enumerate().for_each(|(index, value)| squares[channel(index)] += value * value);
    let rows = (values.len() / count.max(1)).max(1) as f64;
    let sizes: Vec<f64> = squares.iter().map(|square| TRIED_ERROR * (square / rows).sqrt()).collect();
    let mut state = 1u32;
    // Uniform, with a mean square of 1.
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f64::from(state >> 8) / f64::from(1 << 23) - 1.0) * 3f64.sqrt()
    };
    let changed: Vec<f32> =
        values.iter().enumerate().map(|(index, value)| (value + sizes[channel(index)] * noise()) as f32).collect();
    match tensor.dtype() {
        DType::F16 => {
            let changed: Vec<f16> = changed.into_iter().map(f16::from_f32).collect();
            Tensor::from_elements(shape, &changed).ok()
        }
        DType::BF16 => {
            let changed: Vec<bf16> = changed.into_iter().map(bf16::from_f32).collect();
            Tensor::from_elements(shape, &changed).ok()
        }
        _ => Tensor::from_elements(shape, &changed).ok(),
    }
}

/// What an error of a value does to outputs, for one of the same share of its squares; `None` where no example computes it, or
/// no output can be compared.
pub(super) fn effect(
    model: &Model,
    options: &SessionOptions,
    examples: &[&Example],
    number: u32,
    channels: usize,
) -> Result<Option<f64>, RunError> {
    let mut observer = Disturbed { number, channels, was_seen: false };
    let error = output_error(examples.iter().copied(), |example| {
        let mut session = Session::new(model, options)?;
        session.run_observed(Some(&example.entry), example.inputs.clone(), &mut observer)
    })?;
    Ok(error.filter(|_| observer.was_seen).map(|error| (error / TRIED_ERROR).powi(2)))
}

/// The root mean square of the differences of outputs from those of the model in floats over that of the outputs, over all
/// examples; of the output where it is greatest, and 1 where an output has another shape. `None` where no output is of floats.
pub(super) fn output_error<'a>(
    examples: impl IntoIterator<Item = &'a Example>,
    mut run: impl FnMut(&Example) -> Result<Vec<(String, Value)>, RunError>,
) -> Result<Option<f64>, RunError> {
    let mut deviations: BTreeMap<(&str, &str), Deviation> = BTreeMap::new();
    let mut has_other_shape = false;
    for example in examples {
        let found = run(example)?;
        for (name, expected) in &example.outputs {
            let own = found.iter().find(|(found, _)| found == name).and_then(|(_, value)| value.as_tensor());
            let (Some(own), Some(expected)) = (own, expected.as_tensor()) else { continue };
            let (Some(found), Some(reference)) = (floats(own), floats(expected)) else { continue };
            has_other_shape |= own.shape() != expected.shape();
            deviations.entry((&example.entry, name)).or_default().add(&found, &reference);
        }
    }
    if deviations.is_empty() {
        return Ok(None);
    }
    // An output that is zero cannot be off by a share.
    let largest = deviations.values().filter_map(Deviation::relative).fold(0.0, f64::max);
    Ok(Some(if has_other_shape { largest.max(1.0) } else { largest }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_follow_the_sizes_of_channels() {
        let values: Vec<f32> = (0..4000).map(|index| if index % 2 == 0 { 100.0 } else { -1.0 }).collect();
        let tensor = Tensor::from_elements(&[2000, 2], &values).unwrap();
        let changed = disturbed(&tensor, 1).unwrap();
        for (channel, size) in [(0, 100.0), (1, 1.0)] {
            let of = |elements: &[f32]| elements.iter().skip(channel).step_by(2).copied().collect::<Vec<f32>>();
            let (own, new) = (of(&values), of(changed.elements::<f32>().unwrap()));
            let square: f64 = own.iter().zip(&new).map(|(own, new)| f64::from(own - new).powi(2)).sum::<f64>() / 2000.0;
            let error = square.sqrt() / (size * TRIED_ERROR);
            assert!((0.95..1.05).contains(&error), "channel {channel}: {error}");
        }
        assert!(disturbed(&Tensor::vector_i64(&[1, 2]), 0).is_none());
        assert_eq!(disturbed(&tensor, 2), None);
    }
}
