//! Constants that are dequantized codes, and what their bytes are made of.

use crate::ir::{Constant, ConstantData, ConstantId, Graph};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Plane, PlaneRole};
use ipuc_formats::ops::{Op, WeightMatrix, normalize_axis};
use ipuc_formats::tensor::element_count;

/// A constant that a recipe dequantizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantized {
    /// The codes.
    pub codes: ConstantId,
    /// Their factors.
    pub scale: ConstantId,
    /// What is subtracted from them.
    pub zero_point: Option<ConstantId>,
    /// The axis that factors vary along, where they do.
    pub axis: usize,
    /// Elements of the axis that share a factor; 0 where each has its own.
    pub block_size: u64,
}

impl Quantized {
    /// The constant that a plane of this role is made of.
    pub fn of_role(&self, role: PlaneRole) -> Option<ConstantId> {
        match role {
            PlaneRole::Scale => Some(self.scale),
            PlaneRole::ZeroPoint => self.zero_point,
            PlaneRole::Sum => None,
        }
    }
}

impl Graph {
    /// The codes and parameters of a constant, where it is a recipe that dequantizes codes of at most 8 bits.
    pub fn quantized(&self, id: ConstantId) -> Option<Quantized> {
        let constant = self.constant(id);
        let ConstantData::Recipe { op: Op::Dequantize(dequantize), operands } = &constant.data else { return None };
        let &[Some(codes), Some(scale), ref zero_point @ ..] = operands.as_slice() else { return None };
        let code = self.constant(codes).dtype;
        if !code.is_integer() || code.bits() > 8 || !is_value(constant.dtype) {
            return None;
        }
        let zero_point = zero_point.first().copied().flatten();
        // One factor for all elements has no axis.
        let axis = normalize_axis(dequantize.axis, constant.shape.len()).unwrap_or(0);
        let block_size = u64::try_from(dequantize.block_size).ok()?;
        Some(Quantized { codes, scale, zero_point, axis, block_size })
    }

    /// The planes of a quantized constant seen as these matrices: scales first. `None` where its parameters vary in
    /// another way than by outputs and blocks of inputs.
    pub fn planes(&self, quantized: &Quantized, shape: &[usize], matrices: WeightMatrix) -> Option<Vec<Plane>> {
        let mut planes = Vec::new();
        for role in [PlaneRole::Scale, PlaneRole::ZeroPoint] {
            let Some(id) = quantized.of_role(role) else { continue };
            let constant = self.constant(id);
            let block = parameter_block(quantized, constant, shape, matrices)?;
            planes.push(Plane { role, dtype: constant.dtype, block });
        }
        Some(planes)
    }

    /// The constant with the same canonical bytes that no recipe reinterprets: a view of a tensor is that tensor.
    pub fn bytes_of(&self, id: ConstantId) -> ConstantId {
        let ConstantData::Recipe { op, operands } = &self.constant(id).data else { return id };
        let viewed = match op {
            Op::BitCast(_) => Some(0),
            other => other.view_of(),
        };
        match viewed.and_then(|operand| operands.get(operand).copied().flatten()) {
            Some(inner) if self.constant(inner).byte_count() == self.constant(id).byte_count() => self.bytes_of(inner),
            Some(_) | None => id,
        }
    }
}

/// Types that codes stand for.
fn is_value(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Inputs that share an element of a parameter, 0 for all; `None` where it is no plane of the matrices.
fn parameter_block(
    quantized: &Quantized,
    parameter: &Constant,
    shape: &[usize],
    matrices: WeightMatrix,
) -> Option<u64> {
    let count = element_count(&parameter.shape)? as u64;
    if count == 1 {
        return Some(0);
    }
    let rank = shape.len();
    // Matrices that end a shape; a kernel of a convolution merges all axes but the first.
    let (input_axis, output_axis) = match matrices.output_axis {
        0 if rank >= 2 && shape[rank - 1] as u64 == matrices.inputs => (Some(rank - 1), rank - 2),
        0 => (None, 0),
        _ if rank >= 2 && shape[rank - 2] as u64 == matrices.inputs => (Some(rank - 2), rank - 1),
        _ => return None,
    };
    if quantized.block_size == 0 {
        let whole = count == matrices.outputs || count == matrices.groups.checked_mul(matrices.outputs)?;
        return (quantized.axis == output_axis && whole).then_some(0);
    }
    if Some(quantized.axis) != input_axis {
        return None;
    }
    let blocks = matrices.inputs.div_ceil(quantized.block_size);
    let fits = count == blocks * matrices.outputs * matrices.groups;
    // A single block is one of all inputs.
    fits.then_some(if blocks == 1 { 0 } else { quantized.block_size })
}
