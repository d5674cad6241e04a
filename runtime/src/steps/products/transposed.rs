//! Transposed convolutions: geometry and weights for the kernel, which takes all panels at once.

use super::convolution::{Weights, bias, dtype, window};
use super::floats::{Changes, after_sums, computes_in_f32, widened};
use super::fused;
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use half::slice::HalfFloatSliceExt;
use ipuc_formats::ops::ConvolutionTranspose;
use ipuc_formats::value::Value;
use ipuc_kernels::change::Change;
use ipuc_kernels::convolution::{ConvolutionEpilogue, TransposedShape, transposed};
use ipuc_kernels::product::{PANEL_OUTPUTS, PanelElements, PanelPiece};
use ipuc_kernels::simd::Instructions;

/// Operands of a convolution itself; further ones are the program's.
const OWN_OPERANDS: usize = 3;

impl Kernel for ConvolutionTranspose {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let common = dtype(operands.first()).filter(|&dtype| computes_in_f32(dtype));
        let reads_own = self.program.operands().any(|operand| operand < OWN_OPERANDS);
        if reads_own || !self.arithmetic.is_default() || common.is_none() || common != dtype(operands.get(1)) {
            return run_reference(self, operands, context);
        }
        let further = fused::operands(&mut operands, OWN_OPERANDS)?;
        let x = tensor_operand(&mut operands, 0)?;
        let weights = Weights::new(self, &mut operands)?;
        let weight_shape = weights.shape()?;
        let (result_shape, axes) = self.resolve(x.shape(), weight_shape)?;
        let bias = bias(&mut operands, result_shape[1])?;
        let groups = result_shape[1].checked_div(weight_shape[1]).unwrap_or(1).max(1);
        let shape = TransposedShape {
            batch: result_shape[0],
            groups,
            group_inputs: weight_shape[0] / groups,
            group_outputs: weight_shape[1],
            axes: axes.iter().map(window).collect(),
        };
        let values = widened(&x)?;
        let packed = packed(&shape, &weights)?;
        let fill = |out: &mut [f32], change: Option<Change<'_>>| {
            let post = ConvolutionEpilogue { bias: bias.as_deref(), change, ..ConvolutionEpilogue::default() };
            if !out.is_empty() {
                transposed(Instructions::best(), &shape, &values, PanelElements::F32(&packed), out, post);
            }
            Ok(())
        };
        let result =
            after_sums(&self.program, x.dtype(), (&result_shape, Changes::OfFewOrMany), &further, context, fill)?;
        Ok(vec![result.into()])
    }
}

/// All panels of the weights, as f32.
fn packed(shape: &TransposedShape, weights: &Weights) -> Result<Vec<f32>, KernelError> {
    let weight = match weights {
        Weights::Plain(tensor) => return Ok(shape.pack(&widened(tensor)?)),
        Weights::Panels(weight) => weight,
    };
    let inputs = shape.group_inputs;
    let taps: usize = shape.axes.iter().map(|axis| axis.kernel).product();
    let panels = shape.groups * (shape.group_outputs * taps).div_ceil(PANEL_OUTPUTS);
    let mut packed = vec![0.0; panels * inputs * PANEL_OUTPUTS];
    weight.for_each_values(|pieces| {
        pieces.iter().for_each(|piece| place(piece, inputs, &mut packed));
    })?;
    Ok(packed)
}

/// Copies a piece of a weight of `inputs` inputs into panels of f32.
fn place(piece: &PanelPiece<'_>, inputs: usize, packed: &mut [f32]) {
    let group = piece.elements.group();
    let wide = match piece.elements {
        PanelElements::F32(elements) => elements.to_vec(),
        PanelElements::F16(elements) => elements.to_f32_vec(),
        PanelElements::Bf16(elements) => elements.to_f32_vec(),
    };
    for (panel, elements) in piece.panels.clone().zip(wide.chunks(piece.panel_length())) {
        for (offset, input) in piece.inputs.clone().enumerate() {
            let from = offset / group * PANEL_OUTPUTS * group + offset % group;
            let to = &mut packed[(panel * inputs + input) * PANEL_OUTPUTS..][..PANEL_OUTPUTS];
            to.iter_mut().zip(elements[from..].iter().step_by(group)).for_each(|(to, &from)| *to = from);
        }
    }
}
