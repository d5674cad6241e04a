//! Functions of elements: unary functions, activations, arithmetic, comparisons, selection, limits, conversions
//! (default domain, opset 1 to 28) and the elementwise operators of `ai.onnx.ml` (`Binarizer`, `Scaler`).
//!
//! Functions of two operands that align by attributes (opset 1 to 6) are in `first_versions.rs`. `Sum`, `Mean`, `Min` and `Max` of several operands become chains; `Identity` is its operand. Later versions of most
//! operators only take more element types, so that a row lowers all of its versions alike.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::import::types::element_type;
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::narrow::RoundMode;
use ipuc_formats::ops::scalar::{Scalar, from_scalars};
use ipuc_formats::ops::{
    Activation, ActivationFunction, Binary, BinaryFunction, BitCast, Cast, Clamp, Compare, CompareRelation, Select,
    TypeError, Unary, UnaryFunction,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// `"Name" versions.. => lowering;` a line becomes one row a version.
macro_rules! rows {
    ($($name:literal $($since:literal)+ => $lower:expr;)*) => { &[$($(row($name, $since, $lower),)+)*] };
}

/// Elementwise operators.
pub const ROWS: &[Row] = rows! {
    "Abs" 1 6 13 => |node| unary(node, UnaryFunction::Abs);
    "Acos" 7 22 => |node| unary(node, UnaryFunction::Acos);
    "Acosh" 9 22 => |node| unary(node, UnaryFunction::Acosh);
    "Asin" 7 22 => |node| unary(node, UnaryFunction::Asin);
    "Asinh" 9 22 => |node| unary(node, UnaryFunction::Asinh);
    "Atan" 7 22 => |node| unary(node, UnaryFunction::Atan);
    "Atanh" 9 22 => |node| unary(node, UnaryFunction::Atanh);
    "BitwiseNot" 18 => |node| unary(node, UnaryFunction::BitNot);
    "Ceil" 1 6 13 => |node| unary(node, UnaryFunction::Ceil);
    "Cos" 7 22 => |node| unary(node, UnaryFunction::Cos);
    "Cosh" 9 22 => |node| unary(node, UnaryFunction::Cosh);
    "Erf" 9 13 => |node| unary(node, UnaryFunction::Erf);
    "Exp" 1 6 13 => |node| unary(node, UnaryFunction::Exp);
    "Floor" 1 6 13 => |node| unary(node, UnaryFunction::Floor);
    "IsInf" 10 20 => is_infinite;
    "IsNaN" 9 13 20 => |node| unary(node, UnaryFunction::IsNan);
    "Log" 1 6 13 => |node| unary(node, UnaryFunction::Log);
    "Neg" 1 6 13 => |node| unary(node, UnaryFunction::Neg);
    "Not" 1 => |node| unary(node, UnaryFunction::Not);
    "Reciprocal" 1 6 13 => |node| unary(node, UnaryFunction::Reciprocal);
    "Round" 11 22 => |node| unary(node, UnaryFunction::Round);
    "Sign" 9 13 => |node| unary(node, UnaryFunction::Sign);
    "Sin" 7 22 => |node| unary(node, UnaryFunction::Sin);
    "Sinh" 9 22 => |node| unary(node, UnaryFunction::Sinh);
    "Sqrt" 1 6 13 => |node| unary(node, UnaryFunction::Sqrt);
    "Tan" 7 22 => |node| unary(node, UnaryFunction::Tan);
    "Tanh" 1 6 13 => |node| unary(node, UnaryFunction::Tanh);

    "Celu" 12 28 => |node| activation(node, ActivationFunction::Celu, Some("alpha"), None);
    "Elu" 1 6 22 => |node| activation(node, ActivationFunction::Elu, Some("alpha"), None);
    "Gelu" 20 => gelu;
    "HardSigmoid" 1 6 22 => |node| activation(node, ActivationFunction::HardSigmoid, Some("alpha"), Some("beta"));
    "HardSwish" 14 22 => |node| activation(node, ActivationFunction::HardSwish, None, None);
    "LeakyRelu" 1 6 16 => |node| activation(node, ActivationFunction::LeakyRelu, Some("alpha"), None);
    "Mish" 18 22 => |node| activation(node, ActivationFunction::Mish, None, None);
    "Relu" 1 6 13 14 => |node| activation(node, ActivationFunction::Relu, None, None);
    "Selu" 1 => first_selu;
    "Selu" 6 22 => |node| activation(node, ActivationFunction::Selu, Some("alpha"), Some("gamma"));
    "Shrink" 9 => |node| activation(node, ActivationFunction::Shrink, Some("lambd"), Some("bias"));
    "Sigmoid" 1 6 13 => |node| activation(node, ActivationFunction::Sigmoid, None, None);
    "Softplus" 1 22 => |node| activation(node, ActivationFunction::Softplus, None, None);
    "Softsign" 1 22 => |node| activation(node, ActivationFunction::Softsign, None, None);
    "Swish" 24 => |node| activation(node, ActivationFunction::Swish, Some("alpha"), None);
    "SwiGLU" 28 => swiglu;
    "ThresholdedRelu" 10 22 => |node| activation(node, ActivationFunction::ThresholdedRelu, Some("alpha"), None);

    "Add" 7 13 14 => |node| binary(node, BinaryFunction::Add);
    "And" 7 => |node| binary(node, BinaryFunction::And);
    "BitShift" 11 28 => bit_shift;
    "BitwiseAnd" 18 => |node| binary(node, BinaryFunction::BitAnd);
    "BitwiseOr" 18 => |node| binary(node, BinaryFunction::BitOr);
    "BitwiseXor" 18 => |node| binary(node, BinaryFunction::BitXor);
    "Div" 7 13 14 => |node| binary(node, BinaryFunction::Div);
    "Max" 1 6 8 12 13 => |node| chain(node, BinaryFunction::Max);
    "Mean" 1 6 8 13 => mean;
    "Min" 1 6 8 12 13 => |node| chain(node, BinaryFunction::Min);
    "Mod" 10 13 28 => modulo;
    "Mul" 7 13 14 => |node| binary(node, BinaryFunction::Mul);
    "Or" 7 => |node| binary(node, BinaryFunction::Or);
    "PRelu" 7 9 16 => prelu;
    "Pow" 7 12 13 15 => |node| binary(node, BinaryFunction::Pow);
    "Sub" 7 13 14 => |node| binary(node, BinaryFunction::Sub);
    "Sum" 1 6 8 13 => |node| chain(node, BinaryFunction::Add);
    "Xor" 7 => |node| binary(node, BinaryFunction::Xor);

    "Equal" 7 11 13 19 => |node| compare(node, CompareRelation::Equal);
    "Greater" 7 9 13 => |node| compare(node, CompareRelation::Greater);
    "GreaterOrEqual" 12 16 => |node| compare(node, CompareRelation::GreaterOrEqual);
    "Less" 7 9 13 => |node| compare(node, CompareRelation::Less);
    "LessOrEqual" 12 16 => |node| compare(node, CompareRelation::LessOrEqual);

    "Clip" 1 6 => clip_to_attributes;
    "Clip" 11 12 13 => clip;
    "Where" 9 16 => select;
    "Identity" 1 13 14 16 19 21 23 24 25 => |node| Ok(vec![node.required(0)?]);

    "BitCast" 26 => bit_cast;
    "Cast" 6 9 13 19 21 23 24 25 28 => cast;
    "CastLike" 15 19 21 23 24 25 => cast_like;
};

/// Elementwise operators of `ai.onnx.ml`.
pub const MACHINE_LEARNING_ROWS: &[Row] = &[
    Row { domain: "ai.onnx.ml", name: "Binarizer", since: 1, lower: binarizer },
    Row { domain: "ai.onnx.ml", name: "Scaler", since: 1, lower: scaler },
];

fn unary(node: &mut Lowering<'_, '_>, function: UnaryFunction) -> Lowered {
    let x = node.required(0)?;
    node.emit(Unary { function }, vec![x])
}

pub(super) fn activation(
    node: &mut Lowering<'_, '_>,
    function: ActivationFunction,
    alpha: Option<&str>,
    beta: Option<&str>,
) -> Lowered {
    let mut parameter = |name: Option<&str>| name.map_or(Ok(None), |name| node.float(name));
    let activation = Activation { function, alpha: parameter(alpha)?, beta: parameter(beta)? };
    let x = node.required(0)?;
    node.emit(activation, vec![x])
}

/// The parameters had fewer digits at first.
fn first_selu(node: &mut Lowering<'_, '_>) -> Lowered {
    let alpha = Some(node.float("alpha")?.unwrap_or(1.6732));
    let beta = Some(node.float("gamma")?.unwrap_or(1.0507));
    let x = node.required(0)?;
    node.emit(Activation { function: ActivationFunction::Selu, alpha, beta }, vec![x])
}

fn gelu(node: &mut Lowering<'_, '_>) -> Lowered {
    let function = match node.text("approximate")?.as_deref() {
        None | Some("none") => ActivationFunction::Gelu,
        Some("tanh") => ActivationFunction::GeluTanh,
        Some(other) => return Err(node.refuse(format!("attribute `approximate` = \"{other}\""))),
    };
    activation(node, function, None, None)
}

fn swiglu(node: &mut Lowering<'_, '_>) -> Lowered {
    let gate = activation(node, ActivationFunction::Swish, Some("alpha"), None)?;
    let linear = node.required(1)?;
    node.emit(Binary { function: BinaryFunction::Mul }, [gate, vec![linear]].concat())
}

fn is_infinite(node: &mut Lowering<'_, '_>) -> Lowered {
    let negative = node.flag("detect_negative", true)?;
    let positive = node.flag("detect_positive", true)?;
    let found = unary(
        node,
        match (negative, positive) {
            (true, true) | (false, false) => UnaryFunction::IsInfinite,
            (true, false) => UnaryFunction::IsNegativeInfinity,
            (false, true) => UnaryFunction::IsPositiveInfinity,
        },
    )?;
    if negative || positive {
        return Ok(found);
    }
    // Neither sign is asked for: false everywhere, in the right shape.
    node.emit(Binary { function: BinaryFunction::Xor }, [found.clone(), found].concat())
}

fn binary(node: &mut Lowering<'_, '_>, function: BinaryFunction) -> Lowered {
    let operands = vec![node.required(0)?, node.required(1)?];
    node.emit(Binary { function }, operands)
}

fn bit_shift(node: &mut Lowering<'_, '_>) -> Lowered {
    match node.text("direction")?.as_deref() {
        Some("LEFT") => binary(node, BinaryFunction::ShiftLeft),
        Some("RIGHT") => binary(node, BinaryFunction::ShiftRight),
        Some(other) => Err(node.refuse(format!("attribute `direction` = \"{other}\""))),
        None => Err(LowerError::MissingAttribute("direction".to_string())),
    }
}

fn modulo(node: &mut Lowering<'_, '_>) -> Lowered {
    let truncated = node.flag("fmod", false)?;
    binary(node, if truncated { BinaryFunction::Remainder } else { BinaryFunction::Modulo })
}

/// The slope broadcasts to x only: a slope of more axes would enlarge the result.
fn prelu(node: &mut Lowering<'_, '_>) -> Lowered {
    let rank = |operand: Operand| node.fact(&operand).and_then(|fact| fact.rank());
    if let (Some(x), Some(slope)) = (rank(node.required(0)?), rank(node.required(1)?))
        && slope > x
    {
        return Err(TypeError::Rank { operand: 1, expected: format!("at most {x}"), found: slope }.into());
    }
    binary(node, BinaryFunction::Prelu)
}

/// Left to right over all operands; one operand is the result.
fn chain(node: &mut Lowering<'_, '_>, function: BinaryFunction) -> Lowered {
    let mut result = node.required(0)?;
    for index in 1..node.input_count() {
        let next = node.required(index)?;
        result = node.emit_one(Binary { function }, vec![result, next])?;
    }
    Ok(vec![result])
}

fn mean(node: &mut Lowering<'_, '_>) -> Lowered {
    let sum = chain(node, BinaryFunction::Add)?;
    let dtype = node.dtype(&sum[0])?;
    let count = scalar(node, dtype, Scalar::Float(node.input_count() as f64))?;
    node.emit(Binary { function: BinaryFunction::Div }, vec![sum[0], count])
}

/// A constant of shape `[]`.
fn scalar(node: &mut Lowering<'_, '_>, dtype: DType, value: Scalar) -> Result<Operand, LowerError> {
    let tensor = from_scalars(dtype, &[], &[value]).map_err(|error| node.refuse(error.to_string()))?;
    Ok(node.constant(tensor))
}

fn compare(node: &mut Lowering<'_, '_>, relation: CompareRelation) -> Lowered {
    let operands = vec![node.required(0)?, node.required(1)?];
    node.emit(Compare { relation }, operands)
}

fn select(node: &mut Lowering<'_, '_>) -> Lowered {
    let operands = vec![node.required(0)?, node.required(1)?, node.required(2)?];
    node.emit(Select {}, operands)
}

fn clip(node: &mut Lowering<'_, '_>) -> Lowered {
    let operands = vec![node.required(0)?, node.input(1), node.input(2)];
    node.emit(Clamp {}, operands)
}

fn clip_to_attributes(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let dtype = node.dtype(&x)?;
    let mut operands = vec![x];
    for name in ["min", "max"] {
        operands.push(match node.float(name)? {
            Some(bound) => scalar(node, dtype, Scalar::Float(bound.into()))?,
            None => Operand::Absent,
        });
    }
    node.emit(Clamp {}, operands)
}

fn bit_cast(node: &mut Lowering<'_, '_>) -> Lowered {
    let to = required_type(node, "to")?;
    let x = node.required(0)?;
    let found = node.dtype(&x)?;
    if found.bits() != to.bits() {
        return Err(TypeError::ElementType { operand: 0, expected: format!("as wide as {to}"), found }.into());
    }
    node.emit(BitCast { to }, vec![x])
}

fn cast(node: &mut Lowering<'_, '_>) -> Lowered {
    let to = required_type(node, "to")?;
    cast_to(node, to)
}

fn cast_like(node: &mut Lowering<'_, '_>) -> Lowered {
    let like = node.required(1)?;
    let to = node.dtype(&like)?;
    cast_to(node, to)
}

pub(super) fn cast_to(node: &mut Lowering<'_, '_>, to: DType) -> Lowered {
    let overflow = node.since() >= 19 && !node.flag("saturate", true)?;
    let round = if node.since() >= 24 { node.keyword::<RoundMode>("round_mode")? } else { None };
    let x = node.required(0)?;
    if node.dtype(&x)? == to {
        return Ok(vec![x]);
    }
    // Both attributes speak of narrow floats only.
    let overflow = overflow && to.is_narrow_float();
    let round = round.filter(|&round| to == DType::F8E8M0 && round != RoundMode::default());
    node.emit(Cast { to, overflow, round }, vec![x])
}

/// An attribute that is the number of an element type.
pub(crate) fn type_attribute(node: &mut Lowering<'_, '_>, name: &str) -> Result<Option<DType>, LowerError> {
    match node.int(name)? {
        None => Ok(None),
        Some(number) => element_type(i32::try_from(number).ok()).map(Some),
    }
}

fn required_type(node: &mut Lowering<'_, '_>, name: &str) -> Result<DType, LowerError> {
    type_attribute(node, name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()))
}

fn binarizer(node: &mut Lowering<'_, '_>) -> Lowered {
    let threshold = node.float("threshold")?.unwrap_or(0.0);
    let x = node.required(0)?;
    let dtype = node.dtype(&x)?;
    // Integers are compared as f64, since a threshold may lie between two of them.
    let compared = if dtype.is_float() { dtype } else { DType::F64 };
    let widened = if dtype == compared { x } else { node.emit_one(Cast::to(compared), vec![x])? };
    let threshold = scalar(node, compared, Scalar::Float(threshold.into()))?;
    let above = node.emit_one(Compare { relation: CompareRelation::Greater }, vec![widened, threshold])?;
    node.emit(Cast::to(dtype), vec![above])
}

fn scaler(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let mut result = if node.dtype(&x)? == DType::F32 { x } else { node.emit_one(Cast::to(DType::F32), vec![x])? };
    for (name, function) in [("offset", BinaryFunction::Sub), ("scale", BinaryFunction::Mul)] {
        let values = node.floats(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()))?;
        // One for all features, or one a feature along the last axis.
        let shape: &[usize] = if values.len() == 1 { &[] } else { &[values.len()] };
        let values = node.constant(Tensor::from_elements(shape, &values)?);
        result = node.emit_one(Binary { function }, vec![result, values])?;
    }
    Ok(vec![result])
}
