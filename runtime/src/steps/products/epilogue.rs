//! What of an operator's epilogue a kernel does while its outputs are still in registers.

use crate::steps::{KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{ActivationFunction, BinaryFunction, Epilogue, ScalarOperation};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;

/// An epilogue that kernels know: an operand is added, then the value is clamped.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Fused {
    /// Index of the operand that is added.
    pub(super) added: Option<usize>,
    /// Least and greatest value.
    pub(super) clamp: Option<(f32, f32)>,
}

impl Fused {
    /// The epilogue in these terms; `fits` says whether an operand of a shape can be added by the kernel.
    pub(super) fn new(epilogue: &Epilogue, fits: impl Fn(usize) -> bool) -> Option<Fused> {
        let mut fused = Fused::default();
        for operation in &epilogue.0 {
            match operation {
                ScalarOperation::Binary { function: BinaryFunction::Add, operand, .. }
                    if fused == Fused::default() && fits(*operand) =>
                {
                    fused.added = Some(*operand);
                }
                ScalarOperation::Clamp { minimum, maximum } if fused.clamp.is_none() && minimum <= maximum => {
                    fused.clamp = Some((*minimum, *maximum));
                }
                ScalarOperation::Activation(activation)
                    if fused.clamp.is_none() && activation.function == ActivationFunction::Relu =>
                {
                    fused.clamp = Some((0.0, f32::INFINITY));
                }
                ScalarOperation::Binary { .. }
                | ScalarOperation::Clamp { .. }
                | ScalarOperation::Activation(_)
                | ScalarOperation::Unary(_) => return None,
            }
        }
        Some(fused)
    }
}

/// The operands that an epilogue reads (all but the first `own`), loaded; the others are absent.
///
/// # Errors
/// [`KernelError`] where a weight cannot be read.
pub(super) fn operands(operands: &mut [Operand], own: usize) -> Result<Vec<Option<Value>>, KernelError> {
    let load = |(index, operand): (usize, &mut Operand)| {
        if index < own { Ok(None) } else { std::mem::take(operand).into_value() }
    };
    operands.iter_mut().enumerate().map(load).collect()
}

/// An f32 operand of an epilogue whose elements are one a channel: `channels` at axis `axis` from the end, 1 elsewhere.
pub(super) fn is_per_channel(value: Option<&Value>, axis_from_end: usize, channels: usize) -> bool {
    let Some(tensor) = value.and_then(Value::as_tensor) else { return false };
    let shape = tensor.shape();
    let place = shape.len().checked_sub(axis_from_end);
    tensor.dtype() == DType::F32
        && tensor.count() == channels
        && place.is_some_and(|place| shape.get(place) == Some(&channels))
}

/// The tensor of an operand of an epilogue.
pub(super) fn tensor(values: &[Option<Value>], index: Option<usize>) -> Option<&Tensor> {
    values.get(index?)?.as_ref()?.as_tensor()
}
