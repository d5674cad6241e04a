//! Functions of two operands as they were until opset 6: `Add`, `Sub`, `Mul`, `Div` (1, 6), `Pow`, `And`, `Or`, `Xor`,
//! `Equal`, `Greater`, `Less` (1), whose second operand broadcasts where `broadcast` is 1, from `axis` on; `PRelu` (1, 6), whose
//! slope has one element or one a channel; `Cast` (1), which names its type. And what was experimental before opset 9, which
//! old converters wrote and ONNX Runtime has: `Affine`, `ScaledTanh`, `ThresholdedRelu`, `ImageScaler`, `ParametricSoftplus`,
//! `Scale`.

use super::functions::{activation, cast_to};
use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{ActivationFunction, Binary, BinaryFunction, Compare, CompareRelation, Op, TypeError};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// `"Name" versions.. => lowering;` a line becomes one row a version.
macro_rules! rows {
    ($($name:literal $($since:literal)+ => $lower:expr;)*) => { &[$($(row($name, $since, $lower),)+)*] };
}

/// First versions of elementwise operators.
pub const ROWS: &[Row] = rows! {
    "Add" 1 6 => |node| binary(node, BinaryFunction::Add);
    "And" 1 => |node| binary(node, BinaryFunction::And);
    "Div" 1 6 => |node| binary(node, BinaryFunction::Div);
    "Mul" 1 6 => |node| binary(node, BinaryFunction::Mul);
    "Or" 1 => |node| binary(node, BinaryFunction::Or);
    "Pow" 1 => |node| binary(node, BinaryFunction::Pow);
    "Sub" 1 6 => |node| binary(node, BinaryFunction::Sub);
    "Xor" 1 => |node| binary(node, BinaryFunction::Xor);
    "Equal" 1 => |node| compare(node, CompareRelation::Equal);
    "Greater" 1 => |node| compare(node, CompareRelation::Greater);
    "Less" 1 => |node| compare(node, CompareRelation::Less);
    "PRelu" 1 6 => prelu;
    "Cast" 1 => cast;
    "Affine" 1 => |node| activation(node, ActivationFunction::Affine, Some("alpha"), Some("beta"));
    "ScaledTanh" 1 => |node| activation(node, ActivationFunction::ScaledTanh, Some("alpha"), Some("beta"));
    "ThresholdedRelu" 1 => |node| activation(node, ActivationFunction::ThresholdedRelu, Some("alpha"), None);
    "ImageScaler" 1 => image_scaler;
    "ParametricSoftplus" 1 => parametric_softplus;
    "Scale" 1 => |node| {
        let (x, scale) = (node.required(0)?, node.float("scale")?.unwrap_or(1.0));
        Ok(vec![node.times(x, scale)?])
    };
};

fn binary(node: &mut Lowering<'_, '_>, function: BinaryFunction) -> Lowered {
    aligned(node, Binary { function }.into())
}

fn compare(node: &mut Lowering<'_, '_>, relation: CompareRelation) -> Lowered {
    aligned(node, Compare { relation }.into())
}

/// A function of two operands. With `broadcast` the axes of the second are those of the first from `axis` on, by default the
/// last ones; without it both have one shape.
fn aligned(node: &mut Lowering<'_, '_>, op: Op) -> Lowered {
    let (left, right) = (node.required(0)?, node.required(1)?);
    let (broadcast, axis) = (node.flag("broadcast", false)?, node.int("axis")?);
    if !broadcast {
        if axis.is_some() {
            return Err(node.refuse("attribute `axis` without `broadcast`"));
        }
        require_same_shape(node, &left, &right)?;
        return node.emit(op, vec![left, right]);
    }
    let right = match axis {
        None => right,
        Some(axis) => {
            let (into, from) = (node.rank(&left)? as i64, node.rank(&right)? as i64);
            let first = if axis < 0 { axis + into } else { axis };
            if first < 0 || first + from > into {
                return Err(TypeError::Axis { axis, rank: into as usize }.into());
            }
            let behind: Vec<i64> = (from..into - first).collect();
            if behind.is_empty() { right } else { node.unsqueezed(right, &behind)? }
        }
    };
    node.emit(op, vec![left, right])
}

fn require_same_shape(node: &Lowering<'_, '_>, left: &Operand, right: &Operand) -> Result<(), LowerError> {
    let (Some(left), Some(right)) = (node.dims(left), node.dims(right)) else { return Ok(()) };
    let known = |(left, right): (&Dim, &Dim)| left.is_known() && right.is_known() && left != right;
    if left.len() == right.len() && !left.iter().zip(&right).any(known) {
        return Ok(());
    }
    let shape = |dims: &[Dim]| dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let subject = "the operands without `broadcast`".to_string();
    Err(TypeError::Dimension { subject, left: shape(&left), right: shape(&right) }.into())
}

/// `x * scale + bias`, a bias for each channel of `x: [n, c, h, w]`.
fn image_scaler(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let scale = node.float("scale")?.unwrap_or(1.0);
    let bias = node.floats("bias")?.ok_or_else(|| LowerError::MissingAttribute("bias".to_string()))?;
    let dtype = node.dtype(&x)?;
    let scaled = node.times(x, scale)?;
    let bias = node.constant(Tensor::from_elements(&[bias.len(), 1, 1], &bias)?);
    let bias = node.cast(bias, dtype)?;
    Ok(vec![node.plus(scaled, bias)?])
}

/// `alpha * softplus(beta * x)`.
fn parametric_softplus(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let mut factor = |name: &str| node.float(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()));
    let (alpha, beta) = (factor("alpha")?, factor("beta")?);
    let scaled = node.times(x, beta)?;
    let softplus = node.activated(scaled, ActivationFunction::Softplus)?;
    Ok(vec![node.times(softplus, alpha)?])
}

fn prelu(node: &mut Lowering<'_, '_>) -> Lowered {
    let (x, slope) = (node.required(0)?, node.required(1)?);
    let (rank, own) = (node.rank(&x)? as i64, node.dims(&slope));
    let shared = own.as_ref().is_some_and(|dims| dims.iter().all(|dim| dim.as_known() == Some(1)));
    let slope = match own.map(|dims| dims.len()) {
        Some(1) if !shared && rank > 2 => node.unsqueezed(slope, &(1..rank - 1).collect::<Vec<_>>())?,
        Some(0 | 1) => slope,
        Some(found) => return Err(TypeError::Rank { operand: 1, expected: "0 or 1".to_string(), found }.into()),
        None => return Err(node.refuse("a slope of unknown rank")),
    };
    node.emit(Binary { function: BinaryFunction::Prelu }, vec![x, slope])
}

fn cast(node: &mut Lowering<'_, '_>) -> Lowered {
    let name = node.text("to")?.ok_or_else(|| LowerError::MissingAttribute("to".to_string()))?;
    let to = match name.to_uppercase().as_str() {
        "FLOAT" => DType::F32,
        "UINT8" => DType::U8,
        "INT8" => DType::I8,
        "UINT16" => DType::U16,
        "INT16" => DType::I16,
        "INT32" => DType::I32,
        "INT64" => DType::I64,
        "BOOL" => DType::Bool,
        "FLOAT16" => DType::F16,
        "DOUBLE" => DType::F64,
        "UINT32" => DType::U32,
        "UINT64" => DType::U64,
        _ => return Err(node.refuse(format!("attribute `to` = \"{name}\""))),
    };
    cast_to(node, to)
}
