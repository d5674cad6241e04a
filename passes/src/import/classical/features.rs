//! What prepares features, of the domain `ai.onnx.ml`: `Imputer`, `OneHotEncoder`, `FeatureVectorizer`, `CastMap`,
//! `DictVectorizer` (1).

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Compare, CompareRelation, Concat, LabelEncode, MapValues, OneHot, Pad, PadMode, Select, Unary, UnaryFunction,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "ai.onnx.ml", name, since: 1, lower }
}

/// Features.
pub const ROWS: &[Row] = &[
    row("Imputer", imputer),
    row("OneHotEncoder", one_hot_encoder),
    row("FeatureVectorizer", feature_vectorizer),
    row("CastMap", cast_map),
    row("DictVectorizer", dictionary_vectorizer),
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

/// Most keys of a map that is spread.
const MOST_KEYS: i64 = 1 << 20;

/// Values of a map in the order of its keys, or each at the place that its key says.
fn cast_map(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let form = node.text("map_form")?;
    let length = node.int("max_map")?.unwrap_or(1);
    let integer_keys = match form.as_deref().unwrap_or("DENSE") {
        "DENSE" => Vec::new(),
        "SPARSE" if (1..=MOST_KEYS).contains(&length) => (0..length).collect(),
        "SPARSE" => return Err(node.refuse(format!("attribute `max_map` = {length}"))),
        other => return Err(node.refuse(format!("attribute `map_form` = \"{other}\""))),
    };
    let spread = !integer_keys.is_empty();
    let values = node.emit_one(MapValues { integer_keys, text_keys: Vec::new() }, vec![x])?;
    let found = node.dtype(&values)?;
    let cast_to = node.text("cast_to")?.unwrap_or_else(|| "TO_FLOAT".to_string());
    match (cast_to.as_str(), found) {
        ("TO_FLOAT", DType::F32) => Ok(vec![values]),
        // A text that is missing is no number.
        ("TO_FLOAT", DType::String) if !spread => Ok(vec![node.cast(values, DType::F32)?]),
        ("TO_INT64", DType::String) if !spread => Ok(vec![node.cast(values, DType::I64)?]),
        ("TO_STRING", DType::String) if !spread => Ok(vec![values]),
        _ => Err(node.refuse(format!("attribute `cast_to` = \"{cast_to}\" of {found} with these attributes"))),
    }
}

fn dictionary_vectorizer(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let integer_keys = node.ints("int64_vocabulary")?.unwrap_or_default();
    let text_keys = node.texts("string_vocabulary")?.unwrap_or_default();
    if integer_keys.is_empty() == text_keys.is_empty() {
        return Err(node.refuse("both or none of `int64_vocabulary` and `string_vocabulary`"));
    }
    node.emit(MapValues { integer_keys, text_keys }, vec![x])
}
