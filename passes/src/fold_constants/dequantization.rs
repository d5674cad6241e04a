//! Codes that exporters decode with steps of their own: `Mul(Cast(codes), scale)`, `Mul(Sub(Cast(codes), zero point), scale)`.

use crate::ir::{Constant, ConstantData, ConstantId, Graph, Step};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::is_code;
use ipuc_formats::ops::{Binary, BinaryFunction, Dequantize, Op};
use ipuc_formats::tensor::Tensor;

/// Codes with fewer elements are decoded at once.
const LEAST_CODES: usize = 4096;

/// Whether a step over constants is a part of such a chain, which is looked at as a whole: its result stays a recipe.
pub(super) fn is_part(graph: &Graph, op: &Op, operands: &[Option<ConstantId>]) -> bool {
    let Some(&Some(first)) = operands.first() else { return false };
    match op {
        Op::Cast(cast) => is_codes(graph, first) && is_value(cast.to),
        Op::Binary(Binary { function: BinaryFunction::Sub }) => {
            codes_of_cast(graph, first).is_some() && graph.constant(first).dtype == DType::F32
        }
        _ => false,
    }
}

/// The constant that a product of decoded codes and scales is: one that dequantizes them. It has the bits of the product.
pub(super) fn dequantization(graph: &mut Graph, step: &Step, operands: &[Option<ConstantId>]) -> Option<Constant> {
    let (Op::Binary(Binary { function: BinaryFunction::Mul }), &[Some(left), Some(right)], [result]) =
        (&step.op, operands, step.results.as_slice())
    else {
        return None;
    };
    let (decoded, scale) = if decoded(graph, left).is_some() { (left, right) } else { (right, left) };
    let (codes, zero_point) = self::decoded(graph, decoded)?;
    let (dtype, shape) = (graph.constant(decoded).dtype, graph.constant(codes).shape.clone());
    let result = graph.value(*result);
    let same_shape = result.fact.kind.as_tensor().is_some_and(|(_, found)| found.as_known().as_ref() == Some(&shape));
    if !same_shape || graph.constant(scale).dtype != dtype {
        return None;
    }
    let name = result.name.clone().or_else(|| Some(step.name.clone()));
    let (scale, axis) = along_axis(graph, scale, &shape)?;
    let zero_point = match zero_point {
        None => None,
        Some(id) => {
            let (zero_point, own) = along_axis(graph, id, &shape)?;
            // One for all goes with any axis.
            (own.is_none() || own == axis).then_some(())?;
            Some(zero_point)
        }
    };
    let operands = [Some(scale), zero_point].into_iter().flatten().map(|tensor| Some(Constant::of(tensor, None)));
    let operands: Vec<Option<Constant>> = operands.collect();
    let mut ids = vec![Some(codes)];
    ids.extend(operands.into_iter().flatten().map(|constant| Some(graph.add_constant(constant))));
    let op = Dequantize { to: Some(dtype), axis: axis.unwrap_or(0) as i64, block_size: 0 }.into();
    let data = ConstantData::Recipe { op, operands: ids };
    Some(Constant { name, dtype, shape, data, origin: None, encoding: None, zeros: None })
}

fn is_value(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Whether a constant is a matrix of codes.
fn is_codes(graph: &Graph, id: ConstantId) -> bool {
    let constant = graph.constant(id);
    let count: usize = constant.shape.iter().product();
    is_code(constant.dtype) && constant.shape.len() >= 2 && count >= LEAST_CODES
}

/// The codes that a recipe converts to floats.
fn codes_of_cast(graph: &Graph, id: ConstantId) -> Option<ConstantId> {
    let constant = graph.constant(id);
    let ConstantData::Recipe { op: Op::Cast(_), operands } = &constant.data else { return None };
    let &[Some(codes)] = operands.as_slice() else { return None };
    (is_codes(graph, codes) && is_value(constant.dtype)).then_some(codes)
}

/// The codes of a recipe that decodes them but for the scale, and what it subtracts.
fn decoded(graph: &Graph, id: ConstantId) -> Option<(ConstantId, Option<ConstantId>)> {
    if let Some(codes) = codes_of_cast(graph, id) {
        return Some((codes, None));
    }
    let ConstantData::Recipe { op: Op::Binary(binary), operands } = &graph.constant(id).data else { return None };
    let (BinaryFunction::Sub, &[Some(cast), Some(zero_point)]) = (binary.function, operands.as_slice()) else {
        return None;
    };
    Some((codes_of_cast(graph, cast)?, Some(zero_point)))
}

/// A parameter without axes, or along the one axis of the codes that it varies with.
fn along_axis(graph: &Graph, id: ConstantId, codes: &[usize]) -> Option<(Tensor, Option<usize>)> {
    let shape = &graph.constant(id).shape;
    let added = codes.len().checked_sub(shape.len())?;
    let mut varying = shape.iter().enumerate().filter(|&(_, &extent)| extent != 1);
    let axis = match (varying.next(), varying.next()) {
        (None, _) => None,
        (Some((axis, &extent)), None) if codes[added + axis] == extent => Some(added + axis),
        (Some(_), _) => return None,
    };
    let tensor = graph.load_constant(id).ok()?;
    let shape: Vec<usize> = axis.map(|axis| codes[axis]).into_iter().collect();
    Some((tensor.reshaped(&shape).ok()?, axis))
}
