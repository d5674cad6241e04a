//! Convolutions: geometry and weights for the kernels.

use super::floats::{after_sums, computes_in_f32, produce, widened};
use super::fused::{self, Fused};
use super::panels::PanelWeight;
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Convolution, ConvolutionPlan, TypeError};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::change::Change;
use ipuc_kernels::convolution::{ConvolutionEpilogue, ConvolutionShape, ConvolutionWeight, convolution};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::window::WindowAxis;

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
    pub(super) fn new(operands: &mut [Operand]) -> Result<Weights, KernelError> {
        if let Some(Operand::Weight(weight)) = operands.get(1)
            && let Some(weight) = PanelWeight::of(weight)
        {
            return Ok(Weights::Panels(weight));
        }
        Ok(Weights::Plain(tensor_operand(operands, 1)?))
    }

    pub(super) fn shape(&self) -> Result<Vec<usize>, KernelError> {
        match self {
            Weights::Panels(weight) => weight.weight.shape(),
            Weights::Plain(tensor) => Ok(tensor.shape().to_vec()),
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
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let common = dtype(operands.first()).filter(|&dtype| computes_in_f32(dtype));
        let reads_own = self.program.operands().any(|operand| operand < OWN_OPERANDS);
        if reads_own || !self.arithmetic.is_default() || common.is_none() || common != dtype(operands.get(1)) {
            return run_reference(self, operands, context);
        }
        let further = fused::operands(&mut operands, OWN_OPERANDS)?;
        let x = tensor_operand(&mut operands, 0)?;
        let weights = Weights::new(&mut operands)?;
        let plan = self.resolve(x.shape(), &weights.shape()?)?;
        let bias = bias(&mut operands, plan.shape[1])?;
        let same_shape = |operand: usize| {
            let added = fused::tensor(&further, Some(operand));
            added.is_some_and(|added| added.dtype() == DType::F32 && added.shape() == plan.shape)
        };
        let known = self.program.is_empty() || x.dtype() == DType::F32;
        let fused = if known { Fused::new(&self.program, same_shape) } else { None };
        let addend = fused::tensor(&further, fused.and_then(|fused| fused.added));
        let post = ConvolutionEpilogue {
            bias: bias.as_deref(),
            addend: addend.map(|tensor| tensor.elements::<f32>()).transpose()?,
            clamp: fused.and_then(|fused| fused.clamp),
            change: None,
        };
        let values = widened(&x)?;
        let fill = |out: &mut [f32], change: Option<Change<'_>>| {
            multiply(&plan, &values, &weights, out, ConvolutionEpilogue { change, ..post })
        };
        let result = match fused {
            Some(_) => produce(context, x.dtype(), &plan.shape, |out| fill(out, None))?,
            None => after_sums(&self.program, x.dtype(), &plan.shape, &further, context, fill)?,
        };
        Ok(vec![result.into()])
    }
}

fn multiply(
    plan: &ConvolutionPlan,
    x: &[f32],
    weights: &Weights,
    out: &mut [f32],
    post: ConvolutionEpilogue<'_>,
) -> Result<(), KernelError> {
    let shape = ConvolutionShape {
        batch: plan.shape[0],
        groups: plan.groups,
        group_inputs: plan.group_channels,
        group_outputs: plan.shape[1] / plan.groups,
        axes: plan.axes.iter().map(window).collect(),
    };
    if out.is_empty() {
        return Ok(());
    }
    let instructions = Instructions::best();
    match weights {
        Weights::Plain(tensor) => {
            let weights = widened(tensor)?;
            convolution(instructions, &shape, x, ConvolutionWeight::Plain(&weights), out, post);
            Ok(())
        }
        Weights::Panels(weight) => weight.for_each_values(|pieces| {
            convolution(instructions, &shape, x, ConvolutionWeight::Panels(pieces), out, post);
        }),
    }
}
