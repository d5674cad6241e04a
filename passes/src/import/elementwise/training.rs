//! Of the domain `ai.onnx.preview.training` (1): `Adagrad`, `Adam` and `Momentum`, each the formula of its page, one after another
//! for the tensors of a node. `Gradient` is refused: it differentiates a graph.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BinaryFunction, Compare, CompareRelation, Select, Unary, UnaryFunction};

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "ai.onnx.preview.training", name, since: 1, lower }
}

/// Steps of training.
pub const ROWS: &[Row] =
    &[row("Adagrad", adagrad), row("Adam", adam), row("Momentum", momentum), row("Gradient", gradient)];

fn gradient(node: &mut Lowering<'_, '_>) -> Lowered {
    Err(node.refuse("differentiating a graph, which is for training,"))
}

/// The tensors behind the learning rate and the count: `lists` lists of the same length, one after another.
fn optimized(node: &Lowering<'_, '_>, lists: usize) -> Result<Vec<Vec<Operand>>, LowerError> {
    let operands = node.inputs().get(2..).unwrap_or_default().to_vec();
    let count = operands.len() / lists;
    if count == 0 || !operands.len().is_multiple_of(lists) || operands.contains(&Operand::Absent) {
        return Err(node.refuse(format!("{} tensors, which are not {lists} for each optimized one,", operands.len())));
    }
    Ok(operands.chunks(count).map(<[Operand]>::to_vec).collect())
}

/// Tensors of the results, from those of each optimized tensor: all first ones, then all second ones, ..
fn listed(results: &[Vec<Operand>]) -> Vec<Operand> {
    let width = results.first().map_or(0, Vec::len);
    (0..width).flat_map(|index| results.iter().map(move |result| result[index])).collect()
}

/// `factor * x + g`.
fn regularized(node: &mut Lowering<'_, '_>, factor: f32, x: Operand, g: Operand) -> Result<Operand, LowerError> {
    if factor == 0.0 {
        return Ok(g);
    }
    let part = node.times(x, factor)?;
    node.binary(BinaryFunction::Add, part, g)
}

/// `x - step`.
fn moved(node: &mut Lowering<'_, '_>, x: Operand, step: Operand) -> Result<Operand, LowerError> {
    node.binary(BinaryFunction::Sub, x, step)
}

/// `sqrt(x) + epsilon`.
fn root(node: &mut Lowering<'_, '_>, x: Operand, epsilon: f32) -> Result<Operand, LowerError> {
    let root = node.emit_one(Unary { function: UnaryFunction::Sqrt }, vec![x])?;
    let dtype = node.dtype(&x)?;
    let epsilon = node.scalar(dtype, epsilon.into())?;
    node.plus(root, epsilon)
}

/// Where the count `t` is above 0 `then`, else `otherwise`.
fn after_first(
    node: &mut Lowering<'_, '_>,
    t: Operand,
    then: Operand,
    otherwise: Operand,
) -> Result<Operand, LowerError> {
    let zero = node.scalar(DType::I64, 0.0)?;
    let later = node.emit_one(Compare { relation: CompareRelation::Greater }, vec![t, zero])?;
    node.emit_one(Select {}, vec![later, then, otherwise])
}

fn adagrad(node: &mut Lowering<'_, '_>) -> Lowered {
    let (rate, count) = (node.required(0)?, node.required(1)?);
    let factor = node.float("norm_coefficient")?.unwrap_or(0.0);
    let decay = node.float("decay_factor")?.unwrap_or(0.0);
    let epsilon = node.float("epsilon")?.unwrap_or(1e-6);
    let lists = optimized(node, 3)?;
    let dtype = node.dtype(&rate)?;
    let (count, one) = (node.cast(count, dtype)?, node.scalar(dtype, 1.0)?);
    let slowed = node.times(count, decay)?;
    let divisor = node.plus(slowed, one)?;
    let rate = node.binary(BinaryFunction::Div, rate, divisor)?;
    let mut results = Vec::new();
    for ((&x, &g), &h) in lists[0].iter().zip(&lists[1]).zip(&lists[2]) {
        let g = regularized(node, factor, x, g)?;
        let square = node.binary(BinaryFunction::Mul, g, g)?;
        let h = node.plus(h, square)?;
        let root = root(node, h, epsilon)?;
        let rate = node.cast(rate, node.dtype(&x)?)?;
        let step = node.binary(BinaryFunction::Mul, rate, g)?;
        let step = node.binary(BinaryFunction::Div, step, root)?;
        results.push(vec![moved(node, x, step)?, h]);
    }
    Ok(listed(&results))
}

/// `rate * sqrt(1 - beta^t) / (1 - alpha^t)`, the rate itself where t is 0.
fn adam_rate(node: &mut Lowering<'_, '_>, alpha: f32, beta: f32) -> Result<Operand, LowerError> {
    let (rate, t) = (node.required(0)?, node.required(1)?);
    let dtype = node.dtype(&rate)?;
    let (count, one) = (node.cast(t, dtype)?, node.scalar(dtype, 1.0)?);
    let mut rest = |base: f32| {
        let base = node.scalar(dtype, base.into())?;
        let power = node.binary(BinaryFunction::Pow, base, count)?;
        node.binary(BinaryFunction::Sub, one, power)
    };
    let (of_beta, of_alpha) = (rest(beta)?, rest(alpha)?);
    let root = node.emit_one(Unary { function: UnaryFunction::Sqrt }, vec![of_beta])?;
    let scaled = node.binary(BinaryFunction::Mul, rate, root)?;
    let adjusted = node.binary(BinaryFunction::Div, scaled, of_alpha)?;
    after_first(node, t, adjusted, rate)
}

fn adam(node: &mut Lowering<'_, '_>) -> Lowered {
    let alpha = node.float("alpha")?.unwrap_or(0.9);
    let beta = node.float("beta")?.unwrap_or(0.999);
    let epsilon = node.float("epsilon")?.unwrap_or(1e-6);
    let factor = node.float("norm_coefficient")?.unwrap_or(0.0);
    let factor_after = node.float("norm_coefficient_post")?.unwrap_or(0.0);
    let lists = optimized(node, 4)?;
    let rate = adam_rate(node, alpha, beta)?;
    let mut results = Vec::new();
    for (index, &x) in lists[0].iter().enumerate() {
        let g = regularized(node, factor, x, lists[1][index])?;
        let v = mixed(node, alpha, lists[2][index], g)?;
        let square = node.binary(BinaryFunction::Mul, g, g)?;
        let h = mixed(node, beta, lists[3][index], square)?;
        let root = root(node, h, epsilon)?;
        let rate = node.cast(rate, node.dtype(&x)?)?;
        let step = node.binary(BinaryFunction::Mul, rate, v)?;
        let step = node.binary(BinaryFunction::Div, step, root)?;
        let x = moved(node, x, step)?;
        results.push(vec![node.times(x, 1.0 - factor_after)?, v, h]);
    }
    Ok(listed(&results))
}

/// `share * old + (1 - share) * new`.
fn mixed(node: &mut Lowering<'_, '_>, share: f32, old: Operand, new: Operand) -> Result<Operand, LowerError> {
    let (old, new) = (node.times(old, share)?, node.times(new, 1.0 - share)?);
    node.plus(old, new)
}

fn momentum(node: &mut Lowering<'_, '_>) -> Lowered {
    let mut attribute = |name: &str| node.float(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()));
    let [alpha, beta, factor] = ["alpha", "beta", "norm_coefficient"].map(&mut attribute);
    let (alpha, beta, factor) = (alpha?, beta?, factor?);
    let nesterov = match node.text("mode")?.as_deref() {
        Some("nesterov") => true,
        Some("standard") => false,
        Some(other) => return Err(node.refuse(format!("attribute `mode` = \"{other}\""))),
        None => return Err(LowerError::MissingAttribute("mode".to_string())),
    };
    let (rate, t) = (node.required(0)?, node.required(1)?);
    let lists = optimized(node, 3)?;
    let mut results = Vec::new();
    for ((&x, &g), &v) in lists[0].iter().zip(&lists[1]).zip(&lists[2]) {
        let dtype = node.dtype(&x)?;
        let (later, first) = (node.scalar(dtype, beta.into())?, node.scalar(dtype, 1.0)?);
        let beta = after_first(node, t, later, first)?;
        let g = regularized(node, factor, x, g)?;
        let (old, new) = (node.times(v, alpha)?, node.binary(BinaryFunction::Mul, beta, g)?);
        let v = node.plus(old, new)?;
        let direction = if nesterov {
            let ahead = node.times(v, alpha)?;
            node.plus(g, ahead)?
        } else {
            v
        };
        let rate = node.cast(rate, dtype)?;
        let step = node.binary(BinaryFunction::Mul, rate, direction)?;
        results.push(vec![moved(node, x, step)?, v]);
    }
    Ok(listed(&results))
}
