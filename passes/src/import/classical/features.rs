//! What prepares features, of the domain `ai.onnx.ml`: `Imputer`, `OneHotEncoder`, `FeatureVectorizer` (1); and
//! `SVMRegressor` (1), which is a product with support vectors.

use crate::import::classical::traditional::PostTransform;
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::attribute::Keyword;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Binary, BinaryFunction, Compare, CompareRelation, Concat, LabelEncode, OneHot, Pad, PadMode, Reduce,
    ReduceFunction, Select, Unary, UnaryFunction,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "ai.onnx.ml", name, since: 1, lower }
}

/// Features, support vectors.
pub const ROWS: &[Row] = &[
    row("Imputer", imputer),
    row("OneHotEncoder", one_hot_encoder),
    row("FeatureVectorizer", feature_vectorizer),
    row("SVMRegressor", support_vector_regressor),
];

/// One value for all features, or one a feature along the last axis.
fn per_feature<T: ipuc_formats::element::Element>(
    node: &mut Lowering<'_, '_>,
    values: &[T],
) -> Result<Operand, LowerError> {
    let shape: &[usize] = if values.len() == 1 { &[] } else { &[values.len()] };
    Ok(node.constant(Tensor::from_elements(shape, values)?))
}

/// Elements that are the replaced value, or NaN where that is NaN, become the value of their feature.
fn imputer(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let (floats, integers) = (node.floats("imputed_value_floats")?, node.ints("imputed_value_int64s")?);
    let (float, integer) = (node.float("replaced_value_float")?, node.int("replaced_value_int64")?);
    let (values, replaced) = match (node.dtype(&x)?, floats, integers) {
        (DType::F32, Some(values), _) => {
            let replaced = float.unwrap_or(0.0);
            (per_feature(node, &values)?, (!replaced.is_nan()).then(|| Tensor::scalar(replaced)))
        }
        (DType::I64, _, Some(values)) => (per_feature(node, &values)?, Some(Tensor::scalar(integer.unwrap_or(0)))),
        (dtype, _, _) => return Err(node.refuse(format!("elements of {dtype} without imputed values of that type"))),
    };
    let is_replaced = match replaced {
        Some(replaced) => {
            let replaced = node.constant(replaced);
            node.emit_one(Compare { relation: CompareRelation::Equal }, vec![x, replaced])?
        }
        None => node.emit_one(Unary { function: UnaryFunction::IsNan }, vec![x])?,
    };
    node.emit(Select {}, vec![is_replaced, values, x])
}

/// `x: [..]` to f32 `[.., categories]`: 1 at the category of the element. Categories that are not listed have zeros, which
/// `zeros` must allow.
fn one_hot_encoder(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let (integers, texts) = (node.ints("cats_int64s")?, node.texts("cats_strings")?);
    if !node.flag("zeros", true)? {
        return Err(node.refuse("attribute `zeros` = 0, with which an unknown category is an error,"));
    }
    let (keys, x) = match (node.dtype(&x)?, integers, texts) {
        (DType::String, _, Some(texts)) => (Tensor::from_strings(&[texts.len()], texts)?, x),
        (DType::String, _, None) => return Err(LowerError::MissingAttribute("cats_strings".to_string())),
        (_, Some(integers), _) => (Tensor::vector_i64(&integers), node.cast(x, DType::I64)?),
        (_, None, _) => return Err(LowerError::MissingAttribute("cats_int64s".to_string())),
    };
    let count = keys.count() as i64;
    // One class behind the last is that of all others, and is cut off.
    let numbers: Vec<i64> = (0..count).collect();
    let operands = vec![x, node.constant(keys), node.integers(&numbers), node.constant(Tensor::scalar(count))];
    let index = node.emit_one(LabelEncode {}, operands)?;
    let (depth, values) = (node.constant(Tensor::scalar(count + 1)), Tensor::from_elements(&[2], &[0f32, 1.0])?);
    let values = node.constant(values);
    let encoded = node.emit_one(OneHot { axis: -1 }, vec![index, depth, values])?;
    Ok(vec![node.sliced(encoded, -1, [0, count, 1])?])
}

/// The columns of all inputs beside one another, each cut or filled with zeros to its stated number.
fn feature_vectorizer(node: &mut Lowering<'_, '_>) -> Lowered {
    let widths = node.ints("inputdimensions")?.ok_or_else(|| LowerError::MissingAttribute("inputdimensions".into()))?;
    if widths.len() != node.input_count() {
        return Err(node.refuse(format!("{} widths for {} inputs", widths.len(), node.input_count())));
    }
    let mut columns = Vec::with_capacity(widths.len());
    for (index, &width) in widths.iter().enumerate() {
        let x = node.required(index)?;
        let x = node.cast(x, DType::F32)?;
        let x = if node.rank(&x)? == 1 { node.reshaped(x, &[-1, 1])? } else { x };
        let own = node.extent(&x, 1, "features")?;
        columns.push(if own >= width {
            node.sliced(x, 1, [0, width, 1])?
        } else {
            let pads = node.integers(&[0, 0, 0, width - own]);
            let zero = node.scalar(DType::F32, 0.0)?;
            node.emit_one(Pad { mode: PadMode::Constant }, vec![x, pads, zero])?
        });
    }
    node.emit(Concat { axis: 1 }, columns)
}

/// Spellings of `kernel_type`.
#[derive(Debug, Clone, Copy, PartialEq, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "UPPERCASE")]
enum KernelType {
    Linear,
    Poly,
    Rbf,
    Sigmoid,
}
impl Keyword for KernelType {}

/// `sum_j coefficients[j] * kernel(x, support vector j) + rho`, the sign of it for one class.
fn support_vector_regressor(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let x = node.cast(x, DType::F32)?;
    let coefficients = required_floats(node, "coefficients")?;
    let rho = required_floats(node, "rho")?;
    let &[rho] = &rho[..] else { return Err(node.refuse(format!("{} values of `rho`", rho.len()))) };
    let supports = node.int("n_supports")?.unwrap_or(0);
    let kernel = node.keyword("kernel_type")?.unwrap_or(KernelType::Linear);
    let parameters = node.floats("kernel_params")?.unwrap_or_default();
    let vectors = node.floats("support_vectors")?.unwrap_or_default();
    let one_class = node.flag("one_class", false)?;
    // "The total number of regression targets, 1 if not defined": one score comes out.
    if node.int("n_targets")?.unwrap_or(1) != 1 {
        return Err(node.refuse("more than one target"));
    }
    if node.keyword("post_transform")?.unwrap_or(PostTransform::None) != PostTransform::None {
        return Err(node.refuse("attribute `post_transform` of support vectors"));
    }
    let kernels = if supports > 0 {
        let count = usize::try_from(supports).ok().filter(|count| vectors.len().is_multiple_of(*count));
        let count = count.filter(|&count| count == coefficients.len());
        let count = count.ok_or_else(|| node.refuse("support vectors whose lists have other lengths"))?;
        let vectors = Tensor::from_elements(&[count, vectors.len() / count], &vectors)?;
        kernels(node, x, vectors, kernel, &parameters)?
    } else {
        x
    };
    let weights = node.constant(Tensor::from_elements(&[coefficients.len(), 1], &coefficients)?);
    let sums = node.product(kernels, weights, false)?;
    let rho = node.scalar(DType::F32, rho.into())?;
    let scores = node.plus(sums, rho)?;
    if !one_class {
        return Ok(vec![scores]);
    }
    let [zero, one, minus] = [0.0, 1.0, -1.0].map(|value| node.scalar(DType::F32, value));
    let positive = node.emit_one(Compare { relation: CompareRelation::Greater }, vec![scores, zero?])?;
    node.emit(Select {}, vec![positive, one?, minus?])
}

fn required_floats(node: &mut Lowering<'_, '_>, name: &str) -> Result<Vec<f32>, LowerError> {
    node.floats(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()))
}

/// The kernel of each row of `x: [n, f]` and each of `vectors: [s, f]`: `[n, s]`. The parameters are gamma, coef0, degree.
fn kernels(
    node: &mut Lowering<'_, '_>,
    x: Operand,
    vectors: Tensor,
    kernel: KernelType,
    parameters: &[f32],
) -> Result<Operand, LowerError> {
    let [gamma, offset, degree] = match *parameters {
        [gamma, offset, degree] => [gamma, offset, degree],
        [] if kernel == KernelType::Linear => [0.0; 3],
        _ => return Err(node.refuse(format!("{} values of `kernel_params`", parameters.len()))),
    };
    let vectors = node.constant(vectors);
    if kernel == KernelType::Rbf {
        let (rows, others) = (node.unsqueezed(x, &[1])?, node.unsqueezed(vectors, &[0])?);
        let difference = node.binary(BinaryFunction::Sub, rows, others)?;
        let axis = node.integers(&[2]);
        let squares = Reduce { function: ReduceFunction::SumSquare, keep_axes: false, keep_without_axes: false };
        let distance = node.emit_one(squares, vec![difference, axis])?;
        let exponent = node.times(distance, -gamma)?;
        return node.emit_one(Unary { function: UnaryFunction::Exp }, vec![exponent]);
    }
    let products = node.product(x, vectors, true)?;
    if kernel == KernelType::Linear {
        return Ok(products);
    }
    let scaled = node.times(products, gamma)?;
    let offset = node.scalar(DType::F32, offset.into())?;
    let shifted = node.plus(scaled, offset)?;
    if kernel == KernelType::Sigmoid {
        return node.emit_one(Unary { function: UnaryFunction::Tanh }, vec![shifted]);
    }
    let degree = node.scalar(DType::F32, degree.trunc().into())?;
    node.emit_one(Binary { function: BinaryFunction::Pow }, vec![shifted, degree])
}
