//! Of the domain `ai.onnx.ml`: `LabelEncoder` (1, 2, 4), `CategoryMapper`, `ArrayFeatureExtractor`, `Normalizer`,
//! `LinearClassifier`, `LinearRegressor`, `ZipMap` (1). Trees are in `trees.rs`, what prepares
//! features in `features.rs`.
//!
//! Where the page of ONNX says little, ONNX Runtime and the reference evaluator of ONNX decide; where these two do not
//! agree, the node is refused.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::attribute::Keyword;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    ArgReduce, Binary, BinaryFunction, Cast, Compare, CompareRelation, Gather, LabelEncode, Matmul, Reduce,
    ReduceFunction, Reshape, ScoreFunction, ScoreTransform, Select, ZipMap,
};
use ipuc_formats::tensor::Tensor;

const fn row(name: &'static str, since: i64, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "ai.onnx.ml", name, since, lower }
}

type Lowered = Result<Vec<Operand>, LowerError>;

/// Labels, linear models, maps of scores.
pub const ROWS: &[Row] = &[
    row("LabelEncoder", 1, label_encoder_of_classes),
    row("LabelEncoder", 2, label_encoder),
    row("CategoryMapper", 1, category_mapper),
    row("ArrayFeatureExtractor", 1, array_feature_extractor),
    row("Normalizer", 1, normalizer),
    row("LinearClassifier", 1, linear_classifier),
    row("LinearRegressor", 1, linear_regressor),
    row("ZipMap", 1, zip_map),
];

fn missing(name: &str) -> LowerError {
    LowerError::MissingAttribute(name.to_string())
}

fn integers(list: &[i64]) -> Tensor {
    Tensor::vector_i64(list)
}

fn texts(list: Vec<String>) -> Result<Tensor, LowerError> {
    Ok(Tensor::from_strings(&[list.len()], list)?)
}

/// The input as f32.
fn as_f32(node: &mut Lowering<'_, '_>) -> Result<Operand, LowerError> {
    let x = node.required(0)?;
    if node.dtype(&x)? == DType::F32 { Ok(x) } else { node.emit_one(Cast::to(DType::F32), vec![x]) }
}

/// Look the input up: one value a key, and a default.
fn encode(node: &mut Lowering<'_, '_>, keys: Tensor, values: Tensor, default: Tensor) -> Lowered {
    let x = node.required(0)?;
    let operands = vec![x, node.constant(keys), node.constant(values), node.constant(default)];
    node.emit(LabelEncode {}, operands)
}

fn default_integer(node: &mut Lowering<'_, '_>) -> Result<Tensor, LowerError> {
    Ok(Tensor::scalar(node.int("default_int64")?.unwrap_or(-1)))
}

fn default_text(node: &mut Lowering<'_, '_>) -> Result<Tensor, LowerError> {
    Ok(Tensor::from_strings(&[], vec![node.text("default_string")?.unwrap_or_else(|| "_Unused".to_string())])?)
}

/// Texts to integers or back, by the type of the input.
fn encode_either(node: &mut Lowering<'_, '_>, integer_list: Tensor, text_list: Tensor) -> Lowered {
    let (integer, text) = (default_integer(node)?, default_text(node)?);
    let x = node.required(0)?;
    match node.dtype(&x)? {
        DType::String => encode(node, text_list, integer_list, integer),
        _ => encode(node, integer_list, text_list, text),
    }
}

fn label_encoder_of_classes(node: &mut Lowering<'_, '_>) -> Lowered {
    let classes = node.texts("classes_strings")?.ok_or_else(|| missing("classes_strings"))?;
    let indices: Vec<i64> = (0..classes.len() as i64).collect();
    encode_either(node, integers(&indices), texts(classes)?)
}

fn category_mapper(node: &mut Lowering<'_, '_>) -> Lowered {
    let integer_list = node.ints("cats_int64s")?.ok_or_else(|| missing("cats_int64s"))?;
    let text_list = node.texts("cats_strings")?.ok_or_else(|| missing("cats_strings"))?;
    encode_either(node, integers(&integer_list), texts(text_list)?)
}

/// The one list among `prefix_int64s`, `prefix_strings`, `prefix_floats`, `prefix_tensor`.
fn one_list(node: &mut Lowering<'_, '_>, prefix: &str) -> Result<Tensor, LowerError> {
    let mut lists = Vec::new();
    lists.extend(node.ints(&format!("{prefix}_int64s"))?.map(|list| integers(&list)));
    lists.extend(node.texts(&format!("{prefix}_strings"))?.map(texts).transpose()?);
    if let Some(list) = node.floats(&format!("{prefix}_floats"))? {
        lists.push(Tensor::from_elements(&[list.len()], &list)?);
    }
    lists.extend(node.tensor(&format!("{prefix}_tensor"))?);
    match (lists.len(), lists.pop()) {
        (1, Some(list)) => Ok(list),
        (count, _) => Err(node.refuse(format!("{count} lists among the attributes `{prefix}_..`"))),
    }
}

fn label_encoder(node: &mut Lowering<'_, '_>) -> Lowered {
    let (keys, values) = (one_list(node, "keys")?, one_list(node, "values")?);
    let (integer, text) = (default_integer(node)?, default_text(node)?);
    let float = node.float("default_float")?.unwrap_or(-0.0);
    let default = match (node.tensor("default_tensor")?, values.dtype()) {
        (Some(default), _) => default,
        (None, DType::String) => text,
        (None, DType::I64) => integer,
        (None, DType::F32) => Tensor::scalar(float),
        (None, DType::F64) => Tensor::scalar(-0.0f64),
        (None, DType::I32) => Tensor::scalar(-1i32),
        (None, DType::I16) => Tensor::scalar(-1i16),
        (None, other) => return Err(node.refuse(format!("attribute `values_tensor` of {other}"))),
    };
    encode(node, keys, values, default)
}

fn array_feature_extractor(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let Some(rank) = node.fact(&x).and_then(|fact| fact.rank()) else {
        return Err(node.refuse("an input of unknown rank"));
    };
    let whole = node.constant(Tensor::vector_i64(&[-1]));
    let indices = node.emit_one(Reshape { allow_zero: false }, vec![node.required(1)?, whole])?;
    let features = node.emit_one(Gather { axis: -1 }, vec![x, indices])?;
    // A vector gives a matrix of one row.
    if rank == 1 {
        let one_row = node.constant(Tensor::vector_i64(&[1, -1]));
        return node.emit(Reshape { allow_zero: false }, vec![features, one_row]);
    }
    Ok(vec![features])
}

/// Spellings of `norm`.
#[derive(Debug, Clone, Copy, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "UPPERCASE")]
enum Norm {
    Max,
    L1,
    L2,
}
impl Keyword for Norm {}

fn normalizer(node: &mut Lowering<'_, '_>) -> Lowered {
    let function = match node.keyword("norm")?.unwrap_or(Norm::Max) {
        Norm::Max => ReduceFunction::Max,
        Norm::L1 => ReduceFunction::L1,
        Norm::L2 => ReduceFunction::L2,
    };
    let x = as_f32(node)?;
    let axis = node.constant(Tensor::vector_i64(&[-1]));
    let norm = node.emit_one(Reduce { function, keep_axes: true, keep_without_axes: false }, vec![x, axis])?;
    // Rows whose norm is 0 stay as they are.
    let (zero, one) = (node.constant(Tensor::scalar(0f32)), node.constant(Tensor::scalar(1f32)));
    let is_zero = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![norm, zero])?;
    let divisor = node.emit_one(Select {}, vec![is_zero, one, norm])?;
    node.emit(Binary { function: BinaryFunction::Div }, vec![x, divisor])
}

/// Spellings of `post_transform`.
#[derive(Debug, Clone, Copy, PartialEq, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum PostTransform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}
impl Keyword for PostTransform {}

impl PostTransform {
    /// Emit the transform of scores.
    pub(super) fn emit(self, node: &mut Lowering<'_, '_>, scores: Operand) -> Result<Operand, LowerError> {
        let function = match self {
            PostTransform::None => return Ok(scores),
            PostTransform::Softmax => ScoreFunction::Softmax,
            PostTransform::Logistic => ScoreFunction::Logistic,
            PostTransform::SoftmaxZero => ScoreFunction::SoftmaxZero,
            PostTransform::Probit => ScoreFunction::Probit,
        };
        node.emit_one(ScoreTransform { function }, vec![scores])
    }
}

/// Scores `[n, rows]` of the input `[n, features]` for `rows` lists of coefficients one after another. Coefficients
/// beyond those are not used, as in ONNX Runtime (its own example model has twice as many).
fn linear(
    node: &mut Lowering<'_, '_>,
    mut coefficients: &[f32],
    rows: usize,
    intercepts: Option<&[f32]>,
) -> Result<Operand, LowerError> {
    let x = as_f32(node)?;
    let fact = node.fact(&x);
    let Some([_, features]) = fact.as_ref().and_then(|fact| fact.dims()) else {
        return Err(node.refuse("an input of a rank other than 2"));
    };
    let features = features.as_known().and_then(|features| usize::try_from(features).ok());
    if let Some(used) = features.and_then(|features| features.checked_mul(rows)) {
        coefficients = coefficients.get(..used).unwrap_or(coefficients);
    }
    if rows == 0 || !coefficients.len().is_multiple_of(rows) || intercepts.is_some_and(|list| list.len() != rows) {
        let found = intercepts.map_or(0, <[f32]>::len);
        return Err(
            node.refuse(format!("{} coefficients and {found} intercepts for {rows} scores", coefficients.len()))
        );
    }
    let weight = node.constant(Tensor::from_elements(&[rows, coefficients.len() / rows], coefficients)?);
    let scores = node.emit_one(Matmul::new(false, true), vec![x, weight])?;
    let Some(intercepts) = intercepts else { return Ok(scores) };
    let intercepts = node.constant(Tensor::from_elements(&[rows], intercepts)?);
    node.emit_one(Binary { function: BinaryFunction::Add }, vec![scores, intercepts])
}

fn linear_regressor(node: &mut Lowering<'_, '_>) -> Lowered {
    let coefficients = node.floats("coefficients")?.ok_or_else(|| missing("coefficients"))?;
    let intercepts = node.floats("intercepts")?;
    let targets = usize::try_from(node.int("targets")?.unwrap_or(1)).unwrap_or(0);
    let transform = node.keyword("post_transform")?.unwrap_or(PostTransform::None);
    let scores = linear(node, &coefficients, targets, intercepts.as_deref())?;
    Ok(vec![transform.emit(node, scores)?])
}

/// The class labels, in `classlabels_strings` or the attribute `integer_name`.
pub(super) fn class_labels(node: &mut Lowering<'_, '_>, integer_name: &str) -> Result<Tensor, LowerError> {
    match (node.ints(integer_name)?, node.texts("classlabels_strings")?) {
        (Some(labels), None) => Ok(integers(&labels)),
        (None, Some(labels)) => texts(labels),
        (Some(_), Some(_)) => Err(node.refuse("class labels of integers and of texts")),
        (None, None) => Err(missing("classlabels_strings")),
    }
}

/// The label of the highest score of each row.
pub(super) fn top_label(node: &mut Lowering<'_, '_>, scores: Operand, labels: Tensor) -> Result<Operand, LowerError> {
    let axis = ArgReduce { smallest: false, axis: 1, keep_axis: false, last: false };
    let index = node.emit_one(axis, vec![scores])?;
    let labels = node.constant(labels);
    node.emit_one(Gather { axis: 0 }, vec![labels, index])
}

fn linear_classifier(node: &mut Lowering<'_, '_>) -> Lowered {
    let labels = class_labels(node, "classlabels_ints")?;
    let mut coefficients = node.floats("coefficients")?.ok_or_else(|| missing("coefficients"))?;
    let mut intercepts = node.floats("intercepts")?;
    let transform = node.keyword("post_transform")?.unwrap_or(PostTransform::None);
    // Neither ONNX Runtime nor the reference evaluator of ONNX uses it.
    node.ignore("multi_class");
    let classes = labels.count();
    if classes == 2 && intercepts.as_ref().is_some_and(|list| list.len() == 1) {
        // One score for two classes: that of the other class is its opposite.
        if transform != PostTransform::Logistic {
            return Err(node.refuse("one score for two classes without `post_transform` = \"LOGISTIC\""));
        }
        for list in [Some(&mut coefficients), intercepts.as_mut()].into_iter().flatten() {
            let opposite: Vec<f32> = list.iter().map(|value| -value).collect();
            list.splice(0..0, opposite);
        }
    }
    if classes < 2 {
        return Err(node.refuse(format!("a classifier of {classes} classes")));
    }
    let scores = linear(node, &coefficients, classes, intercepts.as_deref())?;
    let scores = transform.emit(node, scores)?;
    Ok(vec![top_label(node, scores, labels)?, scores])
}

fn zip_map(node: &mut Lowering<'_, '_>) -> Lowered {
    let integer_keys = node.ints("classlabels_int64s")?.unwrap_or_default();
    let text_keys = node.texts("classlabels_strings")?.unwrap_or_default();
    node.emit(ZipMap { integer_keys, text_keys }, node.inputs())
}
