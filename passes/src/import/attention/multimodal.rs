//! Rotations of `com.microsoft` beside its `RotaryEmbedding`: `MRotaryEmbedding`, whose positions are three for each token (time,
//! row and column, of models that see images), and `GemmaRotaryEmbedding`, whose angles are an operand.

use crate::import::attention::microsoft::{cache_columns, heads_and_steps};
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::ops::{BinaryFunction, Gather, RotaryEmbedding, Select, Unary, UnaryFunction};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Further rotations.
pub const ROWS: &[Row] = &[row("GemmaRotaryEmbedding", given_angles), row("MRotaryEmbedding", three_positions)];

/// Which of the three positions each column of the caches is read at.
fn streams(node: &mut Lowering<'_, '_>, columns: usize) -> Result<Vec<usize>, LowerError> {
    let sections =
        node.ints("mrope_section")?.ok_or_else(|| LowerError::MissingAttribute("mrope_section".to_string()))?;
    let counts: Option<Vec<usize>> = sections.iter().map(|&count| usize::try_from(count).ok()).collect();
    let counts = counts.and_then(|counts| <[usize; 3]>::try_from(counts).ok());
    let refused = || node.refuse(format!("attribute `mrope_section` = {sections:?} for {columns} columns"));
    let [time, rows, places] = counts.ok_or_else(refused)?;
    if time.checked_add(rows).and_then(|sum| sum.checked_add(places)) != Some(columns) {
        return Err(refused());
    }
    let mut streams = vec![0; columns];
    let interleaved = match node.int("mrope_layout")?.unwrap_or(0) {
        0 => false,
        1 => true,
        other => return Err(node.refuse(format!("attribute `mrope_layout` = {other}"))),
    };
    for (stream, count, before) in [(1, rows, time), (2, places, time + rows)] {
        for index in 0..count {
            let column = if interleaved { stream + 3 * index } else { before + index };
            *streams.get_mut(column).ok_or_else(|| {
                node.refuse(format!("attribute `mrope_section` = {sections:?} for {columns} interleaved columns"))
            })? = stream;
        }
    }
    Ok(streams)
}

fn three_positions(node: &mut Lowering<'_, '_>) -> Lowered {
    let interleaved = node.flag("interleaved", false)?;
    let heads = node.int("num_heads")?.filter(|heads| *heads != 0);
    let rotated = node.int("rotary_embedding_dim")?.filter(|rotated| *rotated != 0);
    if rotated.is_some() && heads.is_none() {
        return Err(node.refuse("attribute `rotary_embedding_dim` without `num_heads`"));
    }
    node.only_int("is_packed_batching", 0)?;
    let scale = node.float("scale")?.unwrap_or(1.0);
    let [data, positions, cos, sin] = [node.required(0)?, node.required(1)?, node.required(2)?, node.required(3)?];
    let (heads, _) = heads_and_steps(node, data, cos, heads)?;
    let columns = cache_columns(node, cos)?;
    let streams = streams(node, usize::try_from(columns).unwrap_or(0))?;
    let mut caches = [cos, sin];
    for cache in &mut caches {
        let gathered = node.emit_one(Gather { axis: 0 }, vec![*cache, positions])?;
        let mut chosen = node.taken(gathered, 0, 0)?;
        for stream in [1, 2] {
            let other = node.taken(gathered, 0, stream)?;
            let is_other: Vec<bool> = streams.iter().map(|&own| own as i64 == stream).collect();
            let is_other = node.constant(Tensor::from_bools(&[streams.len()], &is_other)?);
            chosen = node.emit_one(Select {}, vec![is_other, other, chosen])?;
        }
        // What is rotated is multiplied; other channels are not.
        *cache = node.times(chosen, scale)?;
    }
    node.emit(RotaryEmbedding { interleaved, rotated, heads }, vec![data, caches[0], caches[1]])
}

/// `q * cos(angles) + rotated q * sin(angles)`, and the same of k; sine and cosine are rounded to the type of q.
fn given_angles(node: &mut Lowering<'_, '_>) -> Lowered {
    let angles = node.required(0)?;
    let [q, q_rotated, k, k_rotated] = [node.required(1)?, node.required(2)?, node.required(3)?, node.required(4)?];
    let dtype = node.dtype(&q)?;
    let mut factors = [Operand::Absent; 2];
    for (factor, function) in factors.iter_mut().zip([UnaryFunction::Cos, UnaryFunction::Sin]) {
        let values = node.emit_one(Unary { function }, vec![angles])?;
        let values = node.cast(values, dtype)?;
        *factor = node.unsqueezed(values, &[1])?;
    }
    let mut results = Vec::with_capacity(2);
    for (own, rotated) in [(q, q_rotated), (k, k_rotated)] {
        let own = node.binary(BinaryFunction::Mul, own, factors[0])?;
        let rotated = node.binary(BinaryFunction::Mul, rotated, factors[1])?;
        results.push(node.plus(own, rotated)?);
    }
    Ok(results)
}
