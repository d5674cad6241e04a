//! Constants that are dequantized codes, and what their bytes are made of.

use crate::ir::{Constant, ConstantData, ConstantId, Graph};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Plane, PlaneRole, is_code};
use ipuc_formats::ops::{Op, WeightMatrix, normalize_axis};
use ipuc_formats::tensor::element_count;

/// A constant that a recipe dequantizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantized {
    /// The codes.
    pub codes: ConstantId,
    /// Their factors.
    pub scale: ConstantId,
    /// What these are multiplied by, for each output or for all; none where they are factors by themselves.
    pub output_scale: Option<OutputScale>,
    /// What is subtracted from them.
    pub zero_point: Option<ConstantId>,
    /// The axis that factors vary along, where they do.
    pub axis: usize,
    /// Elements of the axis that share a factor; 0 where each has its own.
    pub block_size: u64,
}

/// The factors of scales that are codes themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputScale {
    /// One factor, or one for each output.
    pub id: ConstantId,
    /// The axis of the scales that they vary along, and its elements that share one, as in [`Quantized`].
    axis: usize,
    block_size: u64,
}

impl Quantized {
    /// What planes are made of, in their order: scales first, those of all inputs before those of blocks.
    pub fn parameters(&self) -> impl Iterator<Item = (PlaneRole, ConstantId)> {
        let scales = [self.output_scale.map(|scale| scale.id), Some(self.scale)].map(|id| (PlaneRole::Scale, id));
        let all = scales.into_iter().chain([(PlaneRole::ZeroPoint, self.zero_point)]);
        all.filter_map(|(role, id)| Some((role, id?)))
    }
}

impl Graph {
    /// The codes and parameters of a constant, where it is a recipe that dequantizes codes of at most 8 bits.
    pub fn quantized(&self, id: ConstantId) -> Option<Quantized> {
        self.dequantized(id, is_code)
    }

    /// The same of integers of 16 bits.
    pub fn quantized_words(&self, id: ConstantId) -> Option<Quantized> {
        self.dequantized(id, |dtype| matches!(dtype, DType::I16 | DType::U16))
    }

    fn dequantized(&self, id: ConstantId, takes: impl Fn(DType) -> bool) -> Option<Quantized> {
        let constant = self.constant(id);
        let ConstantData::Recipe { op: Op::Dequantize(dequantize), operands } = &constant.data else { return None };
        let &[Some(codes), Some(scale), ref zero_point @ ..] = operands.as_slice() else { return None };
        let code = self.constant(codes).dtype;
        if !takes(code) || !is_value(constant.dtype) {
            return None;
        }
        let zero_point = if code.is_float() {
            // Exporters write the zero that floats have anyway.
            self.is_zero(zero_point).then_some(None)?
        } else {
            zero_point.first().copied().flatten()
        };
        let (scale, output_scale) = match self.output_scale(scale) {
            Some((codes, output_scale)) => (codes, Some(output_scale)),
            None => (scale, None),
        };
        // One factor for all elements has no axis.
        let axis = normalize_axis(dequantize.axis, constant.shape.len()).unwrap_or(0);
        let block_size = u64::try_from(dequantize.block_size).ok()?;
        Some(Quantized { codes, scale, output_scale, zero_point, axis, block_size })
    }

    /// The planes of a quantized constant seen as these matrices: scales first. `None` where its parameters vary in
    /// another way than by outputs and blocks of inputs.
    pub fn planes(&self, quantized: &Quantized, shape: &[usize], matrices: WeightMatrix) -> Option<Vec<Plane>> {
        let mut planes = Vec::new();
        for (role, id) in quantized.parameters() {
            let constant = self.constant(id);
            let block = match quantized.output_scale.filter(|scale| scale.id == id) {
                None => parameter_block((quantized.axis, quantized.block_size), constant, shape, matrices)?,
                // Scales are to their factors what codes are to scales: the blocks of an output are the inputs.
                Some(OutputScale { axis, block_size, .. }) => {
                    let scales = self.constant(quantized.scale);
                    let blocks = matrices.inputs.div_ceil(quantized.block_size.max(1));
                    let matrices = WeightMatrix { inputs: blocks, ..matrices };
                    let block = parameter_block((axis, block_size), constant, &scales.shape, matrices)?;
                    (quantized.block_size > 0 && block == 0).then_some(0)?
                }
            };
            planes.push(Plane { role, dtype: constant.dtype, block });
        }
        Some(planes)
    }

    /// Scales that are codes of 8 bits themselves, and their factors in f32: one, or one for each output. `None` where they are
    /// otherwise.
    fn output_scale(&self, scale: ConstantId) -> Option<(ConstantId, OutputScale)> {
        let constant = self.constant(scale);
        let ConstantData::Recipe { op: Op::Dequantize(dequantize), operands } = &constant.data else { return None };
        let &[Some(codes), Some(factor), ref zero_point @ ..] = operands.as_slice() else { return None };
        let dtypes = [codes, factor].map(|id| self.constant(id).dtype);
        if dtypes != [DType::F8E4M3FN, DType::F32] || constant.dtype != DType::F32 || !self.is_zero(zero_point) {
            return None;
        }
        let axis = normalize_axis(dequantize.axis, constant.shape.len()).unwrap_or(0);
        Some((codes, OutputScale { id: factor, axis, block_size: u64::try_from(dequantize.block_size).ok()? }))
    }

    /// Whether zero points are missing or all zero.
    fn is_zero(&self, zero_point: &[Option<ConstantId>]) -> bool {
        zero_point
            .iter()
            .flatten()
            .all(|&id| self.load_constant(id).is_ok_and(|zeros| zeros.bytes().iter().all(|&byte| byte == 0)))
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
    (axis, block_size): (usize, u64),
    parameter: &Constant,
    shape: &[usize],
    matrices: WeightMatrix,
) -> Option<u64> {
    let count = element_count(&parameter.shape)? as u64;
    if count == 1 {
        return Some(0);
    }
    let rank = shape.len();
    // Matrices that end a shape; a kernel of a convolution merges all axes but the first, or has one tap.
    let is_pointwise = rank >= 3 && shape[1] as u64 == matrices.inputs && shape[2..].iter().all(|&extent| extent == 1);
    let (input_axis, output_axis) = match matrices.output_axis {
        0 if is_pointwise && matrices.inputs > 1 => (Some(1), 0),
        0 if rank >= 2 && shape[rank - 1] as u64 == matrices.inputs => (Some(rank - 1), rank - 2),
        0 => (None, 0),
        _ if rank >= 2 && shape[rank - 2] as u64 == matrices.inputs => (Some(rank - 2), rank - 1),
        _ => return None,
    };
    if block_size == 0 {
        let whole = count == matrices.outputs || count == matrices.groups.checked_mul(matrices.outputs)?;
        return (axis == output_axis && whole).then_some(0);
    }
    if Some(axis) != input_axis {
        return None;
    }
    let blocks = matrices.inputs.div_ceil(block_size);
    let fits = count == blocks * matrices.outputs * matrices.groups;
    // A single block is one of all inputs.
    fits.then_some(if blocks == 1 { 0 } else { block_size })
}
