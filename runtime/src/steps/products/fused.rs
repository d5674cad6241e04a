//! What of an operator's program a kernel does while its outputs are still in registers.

use crate::steps::{KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{ActivationFunction, Argument, BinaryFunction, Function, Program, ScalarStep};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;

/// A program that kernels know: an operand is added, then the value is clamped, all in f32.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Fused {
    /// Index of the operand that is added.
    pub(super) added: Option<usize>,
    /// Least and greatest value.
    pub(super) clamp: Option<(f32, f32)>,
}

impl Fused {
    /// The program in these terms; `fits` says whether an operand of a shape can be added by the kernel.
    pub(super) fn new(program: &Program, fits: impl Fn(usize) -> bool) -> Option<Fused> {
        let mut fused = Fused::default();
        let mut value = Argument::Input;
        for (index, step) in program.steps.iter().enumerate() {
            if step.to != DType::F32 {
                return None;
            }
            match Known::of(step, value)? {
                // Sums are f32 already.
                Known::Round if fused == Fused::default() => {}
                Known::Add(operand) if fused == Fused::default() && fits(operand) => fused.added = Some(operand),
                Known::Clamp(least, greatest) if fused.clamp.is_none() && least <= greatest => {
                    fused.clamp = Some((least, greatest));
                }
                Known::Round | Known::Add(_) | Known::Clamp(..) => return None,
            }
            value = Argument::Step(u16::try_from(index).ok()?);
        }
        (program.is_empty() || program.results == [value]).then_some(fused)
    }
}

/// A step that kernels know.
enum Known {
    Round,
    Add(usize),
    Clamp(f32, f32),
}

impl Known {
    /// The step, where it goes on with `value`.
    fn of(step: &ScalarStep, value: Argument) -> Option<Known> {
        match (&step.function, step.arguments.as_slice()) {
            (Function::Binary(BinaryFunction::Add), &[Argument::Operand(operand), other])
            | (Function::Binary(BinaryFunction::Add), &[other, Argument::Operand(operand)])
                if other == value =>
            {
                Some(Known::Add(operand.into()))
            }
            (
                Function::Clamp,
                &[of, Argument::Constant(DType::F32, least), Argument::Constant(DType::F32, greatest)],
            ) if of == value => {
                let bound = |bits: u64| u32::try_from(bits).ok().map(f32::from_bits);
                Some(Known::Clamp(bound(least)?, bound(greatest)?))
            }
            (Function::Activation(activation), &[of])
                if of == value && activation.function == ActivationFunction::Relu =>
            {
                Some(Known::Clamp(0.0, f32::INFINITY))
            }
            (Function::Cast, &[of]) if of == value => Some(Known::Round),
            (
                Function::Binary(_)
                | Function::Clamp
                | Function::Activation(_)
                | Function::Unary(_)
                | Function::Compare(_)
                | Function::Select
                | Function::Cast,
                _,
            ) => None,
        }
    }
}

/// The operands that a program reads (all but the first `own`), loaded; the others are absent.
///
/// # Errors
/// [`KernelError`] where a weight cannot be read.
pub(super) fn operands(operands: &mut [Operand], own: usize) -> Result<Vec<Option<Value>>, KernelError> {
    let load = |(index, operand): (usize, &mut Operand)| {
        if index < own { Ok(None) } else { std::mem::take(operand).into_value() }
    };
    operands.iter_mut().enumerate().map(load).collect()
}

/// An f32 operand of a program whose elements are one a channel: `channels` at axis `axis` from the end, 1 elsewhere.
pub(super) fn is_per_channel(value: Option<&Value>, axis_from_end: usize, channels: usize) -> bool {
    let Some(tensor) = value.and_then(Value::as_tensor) else { return false };
    let shape = tensor.shape();
    let place = shape.len().checked_sub(axis_from_end);
    tensor.dtype() == DType::F32
        && tensor.count() == channels
        && place.is_some_and(|place| shape.get(place) == Some(&channels))
}

/// The tensor of an operand of a program.
pub(super) fn tensor(values: &[Option<Value>], index: Option<usize>) -> Option<&Tensor> {
    values.get(index?)?.as_ref()?.as_tensor()
}
