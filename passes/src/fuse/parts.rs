//! Queries, keys and values that one product computes are taken apart where they lie side by side in its rows, before their axes
//! are exchanged rather than after: attention then reads them as rows.
//!
//! ```text
//! constant @shape : i64[5] = i64[5]:00000000000000000000000000000000030000000000000004000000000000000800000000000000
//! constant @first : i64[] = i64[]:0000000000000000
//! constant @second : i64[] = i64[]:0100000000000000
//! constant @third : i64[] = i64[]:ffffffffffffffff
//! entry "main"("x") -> ("q", "k", "v") = block 0
//! block 0(%x : f32[b, s, 96]) {
//!   %five : f32[b, s, 3, 4, 8] = reshape allow_zero=0 %x, @shape from "five"
//!   %turned : f32[3, b, 4, s, 8] = transpose permutation=[2, 0, 3, 1, 4] %five from "turned"
//!   %q : f32[b, 4, s, 8] = gather axis=0 %turned, @first from "q"
//!   %k : f32[b, 4, s, 8] = gather axis=0 %turned, @second from "k"
//!   %v : f32[b, 4, s, 8] = gather axis=0 %turned, @third from "v"
//!   return %q, %k, %v
//! }
//! ```
//! becomes
//! ```text
//! constant @4 : i64[4] = i64[4]:0000000000000000000000000000000004000000000000000800000000000000
//! entry "main"("x") -> ("q", "k", "v") = block 0
//! block 0(%x : f32[b, s, 96]) {
//!   %6 : f32[b, s, 32], %7 : f32[b, s, 32], %8 : f32[b, s, 32] = split axis=2 parts=3 even=1 %x from "turned"
//!   %9 : f32[b, s, 4, 8] = reshape allow_zero=0 %6, @4 from "q"
//!   %q : f32[b, 4, s, 8] = transpose permutation=[0, 2, 1, 3] %9 from "q"
//!   %10 : f32[b, s, 4, 8] = reshape allow_zero=0 %7, @4 from "k"
//!   %k : f32[b, 4, s, 8] = transpose permutation=[0, 2, 1, 3] %10 from "k"
//!   %11 : f32[b, s, 4, 8] = reshape allow_zero=0 %8, @4 from "v"
//!   %v : f32[b, 4, s, 8] = transpose permutation=[0, 2, 1, 3] %11 from "v"
//!   return %q, %k, %v
//! }
//! ```
//!
//! Parts are gathered by a number, sliced, or split, and their first axis may be removed by a further step. Results keep
//! their bits. Leaves alone: parts that are not all of the first axis, one after another; extents that are not known.

use super::readers::Steps;
use crate::ir::{Constant, Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{Op, Reshape, Split, Transpose};
use ipuc_formats::tensor::Tensor;
use std::collections::BTreeSet;

/// Parts of one product.
const MOST_PARTS: usize = 8;

/// Take parts of rows apart before their axes are exchanged; gives how many steps are replaced.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    let mut changed = 0;
    for at in 0..steps.len() {
        let Some(apart) = apart(graph, &steps, at) else { continue };
        changed += rewrite(graph, &mut steps, at, &apart);
    }
    steps.give_back(graph.block_mut(index));
    changed
}

/// Rows of several parts, side by side.
struct Apart {
    /// `[b, s, n * h * d]`.
    rows: Operand,
    dims: [Dim; 2],
    count: usize,
    heads: i64,
    size: i64,
    /// Where the axes of a part come from: of `[b, s, h, d]`.
    permutation: Vec<i64>,
    /// The steps that give each part: the last of each, and those before it.
    parts: Vec<Part>,
}

struct Part {
    /// Which one.
    index: usize,
    /// The step that gives it without its first axis.
    at: usize,
    /// Those before that one.
    others: BTreeSet<usize>,
}

/// The exchange of axes at `at`, whose result is taken apart.
fn apart(graph: &Graph, steps: &Steps, at: usize) -> Option<Apart> {
    let step = steps.get(at)?;
    let (Op::Transpose(transpose), &[five]) = (&step.op, step.operands.as_slice()) else { return None };
    let &[2, ref inner @ ..] = transpose.permutation.as_slice() else { return None };
    let fact = graph.fact(five)?;
    let [batch, length, count, heads, size] = fact.dims()? else { return None };
    let (count, heads, size) = (count.as_known()?, heads.as_known()?, size.as_known()?);
    let count = usize::try_from(count).ok().filter(|count| (2..=MOST_PARTS).contains(count))?;
    // Axes behind the parts are one less.
    let permutation: Vec<i64> = inner.iter().map(|&axis| if axis > 2 { axis - 1 } else { axis }).collect();
    let Operand::Value(viewed) = five else { return None };
    let (view_at, view) = steps.producer(viewed)?;
    let rows = *view.operands.get(view.op.view_of()?)?;
    let width = Dim::known((count as i64).checked_mul(heads)?.checked_mul(size)?);
    let dims = [batch.clone(), length.clone()];
    let is_rows = graph.fact(rows)?.dims()? == [batch.clone(), length.clone(), width];
    let result = *step.results.first()?;
    let mut parts = if is_rows { parts(graph, steps, result, count)? } else { return None };
    parts.iter_mut().for_each(|part| part.others.extend([view_at, at]));
    Some(Apart { rows, dims, count, heads, size, permutation, parts })
}

/// The steps that take a value apart along its first axis.
fn parts(graph: &Graph, steps: &Steps, value: ValueId, count: usize) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    for reader in steps.readers(value)? {
        let step = steps.get(reader)?;
        if let Op::Gather(gather) = &step.op {
            let (0, &[_, index]) = (gather.axis, step.operands.as_slice()) else { return None };
            let fact = graph.fact(index).filter(|fact| fact.rank() == Some(0))?;
            let &[index] = fact.elements_as_integers()?.as_slice() else { return None };
            let from_front = if index < 0 { index.checked_add(count as i64)? } else { index };
            let index = usize::try_from(from_front).ok().filter(|&index| index < count)?;
            parts.push(Part { index, at: reader, others: BTreeSet::new() });
            continue;
        }
        let firsts: Vec<usize> = match &step.op {
            Op::Split(split) if split.axis == 0 && split.parts == count as i64 => (0..count.min(MOST_PARTS)).collect(),
            Op::Slice(_) => vec![sliced(graph, step, count)?],
            _ => return None,
        };
        for (index, &part) in firsts.into_iter().zip(&step.results) {
            let one = graph.value(part).fact.dims()?.first()?.as_known() == Some(1);
            let squeeze = steps.only_reader(part).filter(|_| one)?;
            let is_squeezed = steps.get(squeeze).is_some_and(|step| step.op.view_of() == Some(0));
            is_squeezed.then(|| parts.push(Part { index, at: squeeze, others: BTreeSet::from([reader]) }))?;
        }
    }
    Some(parts)
}

/// Which part of the first axis a slice of one is.
fn sliced(graph: &Graph, step: &Step, count: usize) -> Option<usize> {
    let elements = |operand: usize| graph.fact(*step.operands.get(operand)?)?.elements_as_integers();
    let (starts, axes) = (elements(1)?, elements(3)?);
    let (&[start], &[0]) = (starts.as_slice(), axes.as_slice()) else { return None };
    let start = if start < 0 { start.checked_add(count as i64)? } else { start };
    usize::try_from(start).ok().filter(|&start| start < count)
}

/// Puts the rows of each part in its place; gives how many steps are replaced or gone.
fn rewrite(graph: &mut Graph, steps: &mut Steps, at: usize, apart: &Apart) -> usize {
    let Some(dtype) = graph.fact(apart.rows).and_then(|fact| fact.dtype()) else { return 0 };
    let [batch, length] = &apart.dims;
    let width = Dim::known(apart.heads * apart.size);
    let four = [batch.clone(), length.clone(), Dim::known(apart.heads), Dim::known(apart.size)];
    let turned: Vec<Dim> = apart.permutation.iter().filter_map(|&axis| four.get(axis as usize).cloned()).collect();
    let fits = |part: &Part| {
        let result = steps.get(part.at).and_then(|step| step.results.first().copied());
        result.is_some_and(|result| graph.value(result).fact.kind == Fact::tensor(dtype, turned.clone()).kind)
    };
    if !apart.parts.iter().all(fits) {
        return 0;
    }
    let split = Split { axis: 2, parts: apart.count as i64, even: true };
    let tensor = |graph: &mut Graph, dtype: DType, dims: Vec<Dim>| graph.add_value(Fact::tensor(dtype, dims), None);
    let rows: Vec<ValueId> = (0..apart.count.min(MOST_PARTS))
        .map(|_| tensor(graph, dtype, vec![batch.clone(), length.clone(), width.clone()]))
        .collect();
    let name = steps.get(at).map(|step| step.name.clone()).unwrap_or_default();
    steps.insert_before(at, Step { op: split.into(), operands: vec![apart.rows], results: rows.clone(), name });
    let shape = graph.add_constant(Constant::of(Tensor::vector_i64(&[0, 0, apart.heads, apart.size]), None));
    let mut changed = 0;
    for part in &apart.parts {
        let Some(step) = steps.get(part.at).cloned() else { continue };
        let heads = tensor(graph, dtype, four.to_vec());
        let operands = vec![Operand::Value(rows[part.index]), Operand::Constant(shape)];
        let reshape = Reshape { allow_zero: false }.into();
        steps.insert_before(part.at, Step { op: reshape, operands, results: vec![heads], name: step.name.clone() });
        let op = Transpose { permutation: apart.permutation.clone() }.into();
        let step = Step { op, operands: vec![Operand::Value(heads)], ..step };
        changed += 1 + steps.replace_several(part.at, step, &part.others);
    }
    changed
}
