//! Random numbers: `RandomUniform`, `RandomNormal` and their `Like` forms (opset 1, 22), `Bernoulli` (15, 22),
//! `Multinomial` (7, 22), `Dropout` (1 to 22).
//!
//! `Dropout` at inference is its operand, unless its mask is used or training depends on data.

use crate::import::elementwise::type_attribute;
use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Cast, Compare, CompareRelation, Distribution, Dropout, Multinomial, Random};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Random numbers.
pub const ROWS: &[Row] = &[
    row("Bernoulli", 15, bernoulli),
    row("Bernoulli", 22, bernoulli),
    row("Dropout", 1, first_dropout),
    row("Dropout", 6, first_dropout),
    row("Dropout", 7, dropout_of_attribute),
    row("Dropout", 10, dropout_of_attribute),
    row("Dropout", 12, dropout),
    row("Dropout", 13, dropout),
    row("Dropout", 22, dropout),
    row("Multinomial", 7, multinomial),
    row("Multinomial", 22, multinomial),
    row("RandomNormal", 1, |node| random(node, Distribution::Normal)),
    row("RandomNormal", 22, |node| random(node, Distribution::Normal)),
    row("RandomNormalLike", 1, |node| random_like(node, Distribution::Normal)),
    row("RandomNormalLike", 22, |node| random_like(node, Distribution::Normal)),
    row("RandomUniform", 1, |node| random(node, Distribution::Uniform)),
    row("RandomUniform", 22, |node| random(node, Distribution::Uniform)),
    row("RandomUniformLike", 1, |node| random_like(node, Distribution::Uniform)),
    row("RandomUniformLike", 22, |node| random_like(node, Distribution::Uniform)),
];

/// A draw of this distribution with the attributes that all forms share.
fn draw(
    node: &mut Lowering<'_, '_>,
    distribution: Distribution,
    to: DType,
    shape: Vec<i64>,
) -> Result<Random, LowerError> {
    let (low, high) = match distribution {
        Distribution::Uniform => (node.float("low")?.unwrap_or(0.0), node.float("high")?.unwrap_or(1.0)),
        Distribution::Normal => (node.float("mean")?.unwrap_or(0.0), node.float("scale")?.unwrap_or(1.0)),
    };
    Ok(Random { distribution, to, low, high, shape, seed: node.float("seed")? })
}

fn random(node: &mut Lowering<'_, '_>, distribution: Distribution) -> Lowered {
    let to = type_attribute(node, "dtype")?.unwrap_or(DType::F32);
    let shape = node.ints("shape")?.ok_or_else(|| LowerError::MissingAttribute("shape".to_string()))?;
    let random = draw(node, distribution, to, shape)?;
    node.emit(random, Vec::new())
}

fn random_like(node: &mut Lowering<'_, '_>, distribution: Distribution) -> Lowered {
    let like = node.required(0)?;
    let to = match type_attribute(node, "dtype")? {
        Some(to) => to,
        None => node.dtype(&like)?,
    };
    let random = draw(node, distribution, to, Vec::new())?;
    node.emit(random, vec![like])
}

/// 1 where a uniform draw is below the probability.
fn bernoulli(node: &mut Lowering<'_, '_>) -> Lowered {
    let probability = node.required(0)?;
    let from = node.dtype(&probability)?;
    let to = type_attribute(node, "dtype")?.unwrap_or(from);
    let seed = node.float("seed")?;
    // A draw below 1 may round to 1 in 16 bits, and then a probability of 1 would not be certain.
    let compared = if from == DType::F64 { DType::F64 } else { DType::F32 };
    let probability =
        if from == compared { probability } else { node.emit_one(Cast::to(compared), vec![probability])? };
    let uniform =
        Random { distribution: Distribution::Uniform, to: compared, low: 0.0, high: 1.0, shape: Vec::new(), seed };
    let drawn = node.emit_one(uniform, vec![probability])?;
    let below = node.emit_one(Compare { relation: CompareRelation::Less }, vec![drawn, probability])?;
    if to == DType::Bool { Ok(vec![below]) } else { node.emit(Cast::to(to), vec![below]) }
}

fn multinomial(node: &mut Lowering<'_, '_>) -> Lowered {
    let sample_size = node.int("sample_size")?.unwrap_or(1);
    let to = type_attribute(node, "dtype")?.unwrap_or(DType::I32);
    let seed = node.float("seed")?;
    let logits = node.required(0)?;
    node.emit(Multinomial { sample_size, to, seed }, vec![logits])
}

/// Training unless `is_test` is set.
fn first_dropout(node: &mut Lowering<'_, '_>) -> Lowered {
    if node.flag("is_test", false)? {
        return dropout_of_attribute(node);
    }
    let ratio = node.float("ratio")?.unwrap_or(0.5);
    let data = node.required(0)?;
    let (ratio, training) = (node.constant(Tensor::scalar(ratio)), node.constant(Tensor::scalar_bool(true)));
    let results = node.emit(Dropout { seed: None }, vec![data, ratio, training])?;
    let dtype = node.dtype(&data)?;
    let mask = node.cast(results[1], dtype)?;
    Ok(vec![results[0], mask])
}

/// Versions without a training mode: always inference.
fn dropout_of_attribute(node: &mut Lowering<'_, '_>) -> Lowered {
    // It matters while training only.
    node.ignore("ratio");
    let data = node.required(0)?;
    if !node.output_used(1) {
        return Ok(vec![data]);
    }
    let mask = node.emit(Dropout { seed: None }, vec![data])?[1];
    if node.since() >= 10 {
        return Ok(vec![data, mask]);
    }
    // Until opset 10 the mask has the type of the data.
    let dtype = node.dtype(&data)?;
    let mask = node.emit_one(Cast::to(dtype), vec![mask])?;
    Ok(vec![data, mask])
}

fn dropout(node: &mut Lowering<'_, '_>) -> Lowered {
    let seed = node.int("seed")?;
    let (data, ratio, training) = (node.required(0)?, node.input(1), node.input(2));
    let trains = match training {
        Operand::Absent => false,
        given => {
            let fact = node.fact(&given);
            fact.and_then(|fact| fact.elements_as_integers()).is_none_or(|elements| elements != [0])
        }
    };
    if trains || node.output_used(1) {
        return node.emit(Dropout { seed }, vec![data, ratio, training]);
    }
    Ok(vec![data])
}
