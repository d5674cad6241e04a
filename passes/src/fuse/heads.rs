//! Attention reads rows of all heads as products write them, and writes them as products read them: no step exchanges axes before
//! and after it.
//!
//! ```text
//! constant @heads : i64[4] = i64[4]:00000000000000000000000000000000ffffffffffffffff0800000000000000
//! constant @rows : i64[3] = i64[3]:000000000000000000000000000000002000000000000000
//! entry "main"("q", "k", "v") -> ("y") = block 0
//! block 0(%q : f32[b, s, 32], %k : f32[b, t, 32], %v : f32[b, t, 4, 8]) {
//!   %q4 : f32[b, s, 4, 8] = reshape allow_zero=0 %q, @heads from "q heads"
//!   %qt : f32[b, 4, s, 8] = transpose permutation=[0, 2, 1, 3] %q4 from "q turned"
//!   %k4 : f32[b, t, 4, 8] = reshape allow_zero=0 %k, @heads from "k heads"
//!   %kt : f32[b, 4, t, 8] = transpose permutation=[0, 2, 1, 3] %k4 from "k turned"
//!   %vt : f32[b, 4, t, 8] = transpose permutation=[0, 2, 1, 3] %v from "v turned"
//!   %a : f32[b, 4, s, 8] = attention scale=0.5 causal=0 softcap=0 pad_mask=0 present=0 %qt, %kt, %vt from "attention"
//!   %at : f32[b, s, 4, 8] = transpose permutation=[0, 2, 1, 3] %a from "turned"
//!   %y : f32[b, s, 32] = reshape allow_zero=0 %at, @rows from "joined"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @2 : i64[3] = i64[3]:000000000000000000000000000000002000000000000000
//! entry "main"("q", "k", "v") -> ("y") = block 0
//! block 0(%q : f32[b, s, 32], %k : f32[b, t, 32], %v : f32[b, t, 4, 8]) {
//!   %11 : f32[b, t, 32] = reshape allow_zero=0 %v, @2 from "v turned"
//!   %12 : f32[b, s, 32] = attention scale=0.5 causal=0 softcap=0 query_heads=4 key_heads=4 pad_mask=0 present=0 %q, %k, %11 from "attention"
//!   return %12
//! }
//! ```
//!
//! A view gives the result its heads, where the steps behind it want them. Queries and keys that are rotated by their position are rotated as rows. Results keep their bits. Leaves alone: attention with a
//! past, or that gives more than its result; numbers and sizes of heads that are not known.

use super::readers::Steps;
use crate::ir::{Constant, Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{Attention, Op, Reshape, RotaryEmbedding};
use ipuc_formats::tensor::Tensor;
use std::collections::BTreeSet;

/// `[b, s, h, d]` to `[b, h, s, d]` and back.
const EXCHANGED: [i64; 4] = [0, 2, 1, 3];

/// Have attentions of a block read rows; gives how many steps are replaced or gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    let mut changed = 0;
    for at in 0..steps.len() {
        let Some(found) = by_heads(graph, &steps, at) else { continue };
        changed += rewrite(graph, &mut steps, at, &found);
    }
    steps.give_back(graph.block_mut(index));
    changed
}

/// Attention whose operands and result have their axes exchanged.
struct ByHeads {
    attention: Attention,
    /// Queries, keys and values.
    rows: [Rows; 3],
    further: Vec<Operand>,
    steps: BTreeSet<usize>,
}

/// An operand as it is before axes are exchanged.
struct Rows {
    /// `[b, s, h, d]`.
    exchanged: Operand,
    heads: i64,
    size: i64,
    /// Rotated after the exchange: the operator and its other operands.
    rotated: Option<(RotaryEmbedding, Vec<Operand>)>,
    name: std::sync::Arc<str>,
}

/// The exchange at `at`, of the result of an attention.
fn by_heads(graph: &Graph, steps: &Steps, at: usize) -> Option<ByHeads> {
    let last = steps.get(at)?;
    let producer = steps.only_for(at, exchanged(last)?)?;
    let step = steps.get(producer)?;
    let Op::Attention(attention) = &step.op else { return None };
    let mut found = BTreeSet::from([producer]);
    let has = |operand: usize| step.operands.get(operand).is_some_and(|operand| *operand != Operand::Absent);
    let plain = attention.scores.is_none() && !attention.present && attention.program.is_empty();
    (plain && step.results.len() == 1 && !has(4) && !has(5)).then_some(())?;
    let &[queries, keys, values, ref further @ ..] = step.operands.as_slice() else { return None };
    let mut of = |operand| rows(graph, steps, producer, operand, &mut found);
    let rows = [of(queries)?, of(keys)?, of(values)?];
    Some(ByHeads { attention: attention.clone(), rows, further: further.to_vec(), steps: found })
}

/// What is exchanged by a step, `[b, s, h, d]`.
fn exchanged(step: &Step) -> Option<ValueId> {
    let (Op::Transpose(transpose), &[Operand::Value(value)]) = (&step.op, step.operands.as_slice()) else {
        return None;
    };
    (transpose.permutation == EXCHANGED).then_some(value)
}

fn rows(graph: &Graph, steps: &Steps, reader: usize, operand: Operand, found: &mut BTreeSet<usize>) -> Option<Rows> {
    let Operand::Value(value) = operand else { return None };
    let (at, step) = steps.producer(value)?;
    found.insert(at);
    if let Op::RotaryEmbedding(rotary) = &step.op {
        steps.only_for(reader, value)?;
        let (&inner, further) = step.operands.split_first()?;
        let rows = rows(graph, steps, at, inner, found).filter(|rows| rows.rotated.is_none())?;
        let rotary = RotaryEmbedding { heads: Some(rows.heads), ..rotary.clone() };
        return Some(Rows { rotated: Some((rotary, further.to_vec())), name: step.name.clone(), ..rows });
    }
    let data = Operand::Value(exchanged(step)?);
    let fact = graph.fact(data)?;
    let [_, _, heads, size] = fact.dims()? else { return None };
    let (heads, size) = (heads.as_known()?, size.as_known()?);
    Some(Rows { exchanged: data, heads, size, rotated: None, name: step.name.clone() })
}

/// Puts attention over rows in its place; gives how many steps are replaced or gone, 0 where the operator refuses it.
fn rewrite(graph: &mut Graph, steps: &mut Steps, at: usize, found: &ByHeads) -> usize {
    let [queries, keys, values] = &found.rows;
    if keys.heads != values.heads {
        return 0;
    }
    let (heads, size) = (queries.heads, values.size);
    let Some((last, result)) = steps.get(at).and_then(|step| Some((step.clone(), *step.results.first()?))) else {
        return 0;
    };
    let mut operands = Vec::new();
    let mut before = Vec::new();
    for rows in &found.rows {
        let Some(operand) = joined(graph, steps, rows, &mut before) else { return 0 };
        operands.push(operand);
    }
    operands.extend(&found.further);
    let attention = Attention { query_heads: Some(heads), key_heads: Some(keys.heads), ..found.attention.clone() };
    let op: Op = attention.into();
    let Some(fact) = graph.inferred(&op, &operands).and_then(|facts| facts.into_iter().next()) else { return 0 };
    let name = found.steps.iter().rev().find_map(|&step| steps.get(step).map(|step| step.name.clone()));
    let flat = graph.add_value(fact, None);
    before.push(Step { op, operands, results: vec![flat], name: name.unwrap_or_default() });
    let shape = graph.add_constant(Constant::of(Tensor::vector_i64(&[0, 0, heads, size]), None));
    let split: Op = Reshape { allow_zero: false }.into();
    let operands = vec![Operand::Value(flat), Operand::Constant(shape)];
    let same = graph.inferred(&split, &operands).is_some_and(|facts| facts[0].kind == graph.value(result).fact.kind);
    if !same {
        return 0;
    }
    for step in before {
        steps.insert_before(at, step);
    }
    1 + steps.replace_several(at, Step { op: split, operands, ..last }, &found.steps)
}

/// Rows of all heads, `[b, s, h * d]`; `before` gets what computes them.
fn joined(graph: &mut Graph, steps: &Steps, rows: &Rows, before: &mut Vec<Step>) -> Option<Operand> {
    let fact = graph.fact(rows.exchanged)?;
    let dims = fact.dims()?;
    let width = rows.heads.checked_mul(rows.size)?;
    let flat = vec![dims[0].clone(), dims[1].clone(), Dim::known(width)];
    let mut put = |graph: &mut Graph, op: Op, operands: Vec<Operand>, fact: Fact| {
        let value = graph.add_value(fact, None);
        before.push(Step { op, operands, results: vec![value], name: rows.name.clone() });
        Operand::Value(value)
    };
    let joined = match viewed(steps, rows.exchanged).filter(|data| is_of(graph, *data, &flat)) {
        Some(data) => data,
        None => {
            let shape = graph.add_constant(Constant::of(Tensor::vector_i64(&[0, 0, width]), None));
            let fact = Fact::tensor(fact.dtype()?, flat);
            put(graph, Reshape { allow_zero: false }.into(), vec![rows.exchanged, Operand::Constant(shape)], fact)
        }
    };
    let Some((rotary, further)) = &rows.rotated else { return Some(joined) };
    let op: Op = rotary.clone().into();
    let operands: Vec<Operand> = std::iter::once(joined).chain(further.iter().copied()).collect();
    let fact = graph.inferred(&op, &operands)?.into_iter().next()?;
    Some(put(graph, op, operands, fact))
}

/// What a view shows.
fn viewed(steps: &Steps, operand: Operand) -> Option<Operand> {
    let Operand::Value(value) = operand else { return None };
    let (_, step) = steps.producer(value)?;
    step.operands.get(step.op.view_of()?).copied()
}

fn is_of(graph: &Graph, operand: Operand, dims: &[Dim]) -> bool {
    graph.fact(operand).is_some_and(|fact| fact.dims() == Some(dims))
}
