//! Convolutions: geometry and weights for the kernels.

use super::floats::{Changes, after_sums, computes_in_f32, produce, widened};
use super::fused::{self, Fused};
use super::panels::PanelWeight;
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Convolution, ConvolutionPlan, Product, Program, ReferenceError, TypeError};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::change::Change;
use ipuc_kernels::convolution::{
    BlockedPlan, ConvolutionEpilogue, ConvolutionShape, ConvolutionWeight, InputOrder, convolution,
};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::window::WindowAxis;
use std::sync::{Arc, OnceLock};

/// Operands of a convolution itself; further ones are the program's.
const OWN_OPERANDS: usize = 3;

/// The windows of an operator as kernels take them.
pub(in crate::steps) fn window(axis: &ipuc_formats::ops::WindowAxis) -> WindowAxis {
    let &ipuc_formats::ops::WindowAxis { input, output, kernel, stride, dilation, pad_begin, pad_end } = axis;
    WindowAxis { input, output, kernel, stride, dilation, pad_begin, pad_end }
}

/// The element type of an operand that is a tensor.
pub(in crate::steps) fn dtype(operand: Option<&Operand>) -> Option<DType> {
    match operand? {
        Operand::Weight(weight) => Some(weight.dtype()),
        Operand::Value(Value::Tensor(tensor)) => Some(tensor.dtype()),
        Operand::Version(version) => Some(version.dtype()),
        Operand::Value(_) | Operand::Absent => None,
    }
}

/// The weights of a convolution: in panels where they are stored so, else whole.
pub(super) enum Weights {
    Panels(PanelWeight),
    Plain(Tensor),
}

impl Weights {
    /// Operand 1. Panels of another matrix than that of the operator, which a file may hold, are decoded.
    pub(super) fn new(operator: &dyn Product, operands: &mut [Operand]) -> Result<Weights, KernelError> {
        if let Some(Operand::Weight(weight)) = operands.get(1)
            && let Some(panels) = PanelWeight::of(weight)
            && panels.is_of(operator, weight.shape()?)
        {
            return Ok(Weights::Panels(panels));
        }
        Ok(Weights::Plain(tensor_operand(operands, 1)?))
    }

    pub(super) fn shape(&self) -> Result<&[usize], KernelError> {
        match self {
            Weights::Panels(weight) => weight.weight.shape(),
            Weights::Plain(tensor) => Ok(tensor.shape()),
        }
    }
}

/// An optional operand of one element a channel, as f32.
pub(super) fn bias(operands: &mut [Operand], channels: usize) -> Result<Option<Vec<f32>>, KernelError> {
    if matches!(operands.get(2), None | Some(Operand::Absent)) {
        return Ok(None);
    }
    let bias = widened(&tensor_operand(operands, 2)?)?.into_owned();
    if bias.len() != channels {
        let (left, right) = (bias.len().to_string(), channels.to_string());
        return Err(TypeError::Dimension { subject: "extent of the bias".to_string(), left, right }.into());
    }
    Ok(Some(bias))
}

impl Kernel for Convolution {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let common = dtype(operands.first()).filter(|&dtype| computes_in_f32(dtype));
        if !self.arithmetic.is_default() || common.is_none() || !has_kernel(&self.program, &operands) {
            return run_reference(self, operands, context);
        }
        let resolve = |x: &[usize], w: &[usize]| {
            let plan = self.resolve(x, w)?;
            let shape = plan.shape.clone();
            Ok((plan, shape))
        };
        let Some(resolved) = Resolved::of(&operands, context, resolve)? else {
            return run_reference(self, operands, context);
        };
        let program = (&self.program, Changes::OfFewOrMany);
        let result = convolve(self, program, operands, context, &resolved, |x, weight, out, post| {
            convolution(Instructions::best(), &resolved.shape, x, weight, out, post);
        })?;
        Ok(vec![result.into()])
    }
}

/// Whether both operands have one type, and the program reads operands of its own only.
pub(super) fn has_kernel(program: &Program, operands: &[Operand]) -> bool {
    let reads_own = program.operands().any(|operand| operand < OWN_OPERANDS);
    !reads_own && dtype(operands.first()) == dtype(operands.get(1))
}

/// The extents of an operand that is a tensor.
fn extents(operand: Option<&Operand>) -> Result<Option<Vec<usize>>, KernelError> {
    Ok(match operand {
        Some(Operand::Weight(weight)) => Some(weight.shape()?.to_vec()),
        Some(Operand::Value(Value::Tensor(tensor))) => Some(tensor.shape().to_vec()),
        Some(Operand::Version(version)) => Some(version.shape().to_vec()),
        Some(Operand::Value(_) | Operand::Absent) | None => None,
    })
}

/// What follows from the shapes of inputs and weights.
pub(super) struct Resolved {
    pub(super) x: Vec<usize>,
    pub(super) w: Vec<usize>,
    pub(super) shape: ConvolutionShape,
    /// The extents of the result.
    pub(super) result: Vec<usize>,
    blocked: OnceLock<BlockedPlan>,
}

impl Resolved {
    /// Of these operands: `resolve` gives the windows over two shapes and the shape of the result. `None` where they are no tensors.
    ///
    /// # Errors
    /// [`KernelError`] where they do not fit, or cannot be read.
    pub(super) fn of(
        operands: &[Operand],
        context: &Context<'_>,
        resolve: impl FnOnce(&[usize], &[usize]) -> Result<(ConvolutionPlan, Vec<usize>), ReferenceError>,
    ) -> Result<Option<Arc<Resolved>>, KernelError> {
        let (Some(x), Some(w)) = (extents(operands.first())?, extents(operands.get(1))?) else { return Ok(None) };
        let make = || {
            let (plan, result) = resolve(&x, &w)?;
            let shape = ConvolutionShape {
                batch: plan.shape[0],
                groups: plan.groups,
                group_inputs: plan.group_channels,
                group_outputs: plan.shape[1] / plan.groups,
                axes: plan.axes.iter().map(window).collect(),
            };
            Ok(Resolved { x: x.clone(), w: w.clone(), shape, result, blocked: OnceLock::new() })
        };
        context.prepared(&[&x, &w], make).map(Some)
    }

    /// The plan of a convolution over blocks of channels; a step has inputs in one order.
    pub(super) fn blocked(&self, order: InputOrder) -> &BlockedPlan {
        self.blocked.get_or_init(|| BlockedPlan::new(self.shape.clone(), order))
    }
}

/// A convolution in f32 of what was resolved from these operands. `kernel` computes; it is called once for each part of a weight in
/// panels.
///
/// # Errors
/// [`KernelError`] where operands do not fit or cannot be read, where memory is short, and of the program.
pub(super) fn convolve(
    operator: &dyn Product,
    (program, changes): (&Program, Changes),
    mut operands: Vec<Operand>,
    context: &mut Context<'_>,
    resolved: &Resolved,
    kernel: impl Fn(&[f32], ConvolutionWeight<'_>, &mut [f32], ConvolutionEpilogue<'_>) + Sync,
) -> Result<Tensor, KernelError> {
    let further = fused::operands(&mut operands, OWN_OPERANDS)?;
    let x = tensor_operand(&mut operands, 0)?;
    let weights = Weights::new(operator, &mut operands)?;
    let result_shape = &resolved.result;
    let bias = bias(&mut operands, resolved.shape.groups * resolved.shape.group_outputs)?;
    let same_shape = |operand: usize| {
        let added = fused::tensor(&further, Some(operand));
        added.is_some_and(|added| added.dtype() == DType::F32 && added.shape() == *result_shape)
    };
    let known = program.is_empty() || x.dtype() == DType::F32;
    let fused = if known { Fused::new(program, same_shape) } else { None };
    let addend = fused::tensor(&further, fused.and_then(|fused| fused.added));
    let post = ConvolutionEpilogue {
        bias: bias.as_deref(),
        addend: addend.map(|tensor| tensor.elements::<f32>()).transpose()?,
        clamp: fused.and_then(|fused| fused.clamp),
        change: None,
    };
    let values = widened(&x)?;
    let fill = |out: &mut [f32], change: Option<Change<'_>>| {
        if out.is_empty() {
            return Ok(());
        }
        let post = ConvolutionEpilogue { change, ..post };
        match &weights {
            Weights::Plain(tensor) => {
                kernel(&values, ConvolutionWeight::Plain(&widened(tensor)?), out, post);
                Ok(())
            }
            Weights::Panels(weight) => weight.for_each_values(|pieces| {
                kernel(&values, ConvolutionWeight::Panels(pieces), out, post);
            }),
        }
    };
    match fused {
        Some(_) => produce(context, x.dtype(), result_shape, |out| fill(out, None)),
        None => after_sums(program, x.dtype(), (result_shape, changes), &further, context, fill),
    }
}
