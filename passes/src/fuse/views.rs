//! Rows keep their axes through products, elementwise steps and normalizations: a view that gives them other ones comes after the
//! step rather than before it, and meets the view that takes them back.
//!
//! ```text
//! constant @w : f32[8, 16] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @b : f32[16] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! constant @flat : i64[2] = i64[2]:ffffffffffffffff0800000000000000
//! constant @back : i64[3] = i64[3]:ffffffffffffffff05000000000000001000000000000000
//! entry "main"("x", "r") -> ("y") = block 0
//! block 0(%x : f32[n, 5, 8], %r : f32[n, 5, 16]) {
//!   %f : f32[5*n, 8] = reshape allow_zero=0 %x, @flat from "flat"
//!   %p : f32[5*n, 16] = matmul %f, @w from "product"
//!   %q : f32[5*n, 16] = binary function=add %p, @b from "bias"
//!   %s : f32[n, 5, 16] = reshape allow_zero=0 %q, @back from "back"
//!   %y : f32[n, 5, 16] = binary function=add %s, %r from "residual"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @w : f32[8, 16] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @b : f32[16] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! entry "main"("x", "r") -> ("y") = block 0
//! block 0(%x : f32[n, 5, 8], %r : f32[n, 5, 16]) {
//!   %y : f32[n, 5, 16] = matmul program=["cast x : f32", "add %0 $2 : f32", "add %1 $3 : f32", "return %2"] %x, @w, @b, %r from "product + bias + residual"
//!   return %y
//! }
//! ```
//!
//! A view of a view shows what that one shows, and is gone where it has the same extents. Results keep their bits. Leaves
//! alone: views that change the last axis, extents that no constant can say.

use super::elements::Elements;
use crate::ir::{ExtentConstants, Graph, Operand, Step, ValueId, reshape_extents, substitute};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::fact::{Fact, Type};
use ipuc_formats::ops::{Matmul, Op, Reshape};
use std::collections::{HashMap, HashSet};

/// Have views of a block come later; gives how many steps are replaced or gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let steps = std::mem::take(&mut graph.block_mut(index).steps);
    let mut views = Views {
        shown: HashMap::new(),
        replaced: HashMap::new(),
        shapes: ExtentConstants::default(),
        steps: Vec::new(),
    };
    let mut changed = 0;
    for mut step in steps {
        substitute(&mut step.operands, &views.replaced);
        changed += usize::from(views.take(graph, step));
    }
    let Views { replaced, steps, .. } = views;
    substitute(&mut graph.block_mut(index).results, &replaced);
    graph.block_mut(index).steps = steps;
    if changed > 0 {
        remove_unread(graph, index);
    }
    changed
}

/// Steps so far, and what is known of their views.
struct Views {
    /// What a view shows.
    shown: HashMap<ValueId, Operand>,
    /// Views that are gone.
    replaced: HashMap<ValueId, Operand>,
    /// Constants of extents.
    shapes: ExtentConstants,
    steps: Vec<Step>,
}

impl Views {
    /// Adds a step, or what comes in its place; gives whether that is something else.
    fn take(&mut self, graph: &mut Graph, step: Step) -> bool {
        let shown = step.op.view_of().and_then(|viewed| step.operands.get(viewed).copied());
        let Some(shown) = shown else {
            let later = self.later(graph, &step);
            let is_other = later.is_some();
            self.steps.extend(later.unwrap_or_else(|| vec![step]));
            return is_other;
        };
        let &[result] = step.results.as_slice() else {
            self.steps.push(step);
            return false;
        };
        let origin = match shown {
            Operand::Value(value) => self.shown.get(&value).copied().unwrap_or(shown),
            Operand::Constant(_) | Operand::Absent => shown,
        };
        if graph.fact(origin).is_some_and(|fact| is_same(&fact, &graph.value(result).fact)) {
            self.replaced.insert(result, origin);
            return true;
        }
        let reshape = (origin != shown).then(|| self.reshape(graph, origin, &step)).flatten();
        let is_other = reshape.is_some();
        let step = reshape.unwrap_or(step);
        if let Some(&data) = step.op.view_of().and_then(|viewed| step.operands.get(viewed)) {
            self.shown.insert(result, data);
        }
        self.steps.push(step);
        is_other
    }

    /// A view of `data` with the result, and the name, of another.
    fn reshape(&mut self, graph: &mut Graph, data: Operand, like: &Step) -> Option<Step> {
        let result = *like.results.first()?;
        let shape = {
            let (data, result) = (graph.fact(data)?, &graph.value(result).fact);
            reshape_extents(data.dims()?, result.dims()?, &graph.ranges)?
        };
        let shape = self.shapes.constant(graph, shape);
        let (op, operands) = (Reshape { allow_zero: false }.into(), vec![data, shape]);
        let kind = graph.inferred(&op, &operands)?.into_iter().next()?.kind;
        (kind == graph.value(result).fact.kind).then_some(())?;
        Some(Step { op, operands, results: vec![result], name: like.name.clone() })
    }

    /// The step over what a view among its operands shows, and the view after it.
    fn later(&mut self, graph: &mut Graph, step: &Step) -> Option<Vec<Step>> {
        let &[result] = step.results.as_slice() else { return None };
        let at = row_operand(graph, step).filter(|&at| self.origin(step.operands[at]).is_some());
        let at = at.or_else(|| elementwise_operand(graph, self, step))?;
        let (viewed, origin) = (graph.fact(step.operands[at])?, self.origin(step.operands[at])?);
        let rows = graph.fact(origin)?.dims()?.to_vec();
        // Rows of many more axes come from elsewhere, and go elsewhere.
        let is_near = rows.len() > 1 && rows.len() <= viewed.dims()?.len() + 1;
        (is_near && rows.last() == viewed.dims()?.last()).then_some(())?;
        let mut operands = step.operands.clone();
        let mut added = Vec::new();
        for (other, operand) in operands.iter_mut().enumerate() {
            if other == at {
                *operand = origin;
                continue;
            }
            if is_for_each_row(graph, step, *operand, rows.len()) {
                continue;
            }
            *operand = self.with_rows(graph, *operand, viewed.dims()?, &rows, &step.name, &mut added)?;
        }
        let fact = graph.inferred(&step.op, &operands)?.into_iter().next()?;
        let is_rows = fact.dims().is_some_and(|dims| dims[..dims.len() - 1] == rows[..rows.len() - 1]);
        is_rows.then_some(())?;
        let value = graph.add_value(fact, None);
        let view = self.reshape(graph, Operand::Value(value), step)?;
        self.shown.insert(result, Operand::Value(value));
        added.push(Step { operands, results: vec![value], ..step.clone() });
        added.push(view);
        Some(added)
    }

    /// What a view shows.
    fn origin(&self, operand: Operand) -> Option<Operand> {
        let Operand::Value(value) = operand else { return None };
        self.shown.get(&value).copied()
    }

    /// Another operand of the extents `viewed`, as rows; `added` gets the view where it is none already.
    fn with_rows(
        &mut self,
        graph: &mut Graph,
        operand: Operand,
        viewed: &[Dim],
        rows: &[Dim],
        name: &std::sync::Arc<str>,
        added: &mut Vec<Step>,
    ) -> Option<Operand> {
        let fact = graph.fact(operand)?;
        (matches!(operand, Operand::Value(_)) && fact.dims()? == viewed).then_some(())?;
        let origin =
            self.origin(operand).filter(|origin| graph.fact(*origin).is_some_and(|fact| fact.dims() == Some(rows)));
        if let Some(origin) = origin {
            return Some(origin);
        }
        let value = graph.add_value(Fact::tensor(fact.dtype()?, rows.to_vec()), None);
        let like = Step {
            op: Reshape { allow_zero: false }.into(),
            operands: Vec::new(),
            results: vec![value],
            name: name.clone(),
        };
        let view = self.reshape(graph, operand, &like)?;
        self.shown.insert(value, operand);
        added.push(view);
        Some(Operand::Value(value))
    }
}

/// The operand whose rows a step takes one by one, where it gives a row for each: the left side of a product with a matrix.
fn row_operand(graph: &Graph, step: &Step) -> Option<usize> {
    let (Op::Matmul(product), &[_, matrix]) = (&step.op, step.operands.as_slice()) else { return None };
    let plain = Matmul { transpose_b: product.transpose_b, ..Matmul::new(false, false) };
    (*product == plain && matches!(matrix, Operand::Constant(_)) && graph.fact(matrix)?.rank() == Some(2)).then_some(0)
}

/// The first operand of an elementwise step that is a view with the extents of the result.
fn elementwise_operand(graph: &Graph, views: &Views, step: &Step) -> Option<usize> {
    let elements = Elements::of(graph, step)?;
    step.operands.iter().position(|&operand| {
        let whole = graph.fact(operand).is_some_and(|fact| fact.dims() == Some(&elements.dims[..]));
        whole && views.origin(operand).is_some()
    })
}

/// Whether an operand is the same for all rows, and of no more axes than those have.
fn is_for_each_row(graph: &Graph, step: &Step, operand: Operand, rank: usize) -> bool {
    if operand == Operand::Absent || matches!(step.op, Op::Matmul(_)) {
        return true;
    }
    let Some(fact) = graph.fact(operand) else { return false };
    let one_row = |dims: &[Dim]| dims.len() <= rank && dims.iter().rev().skip(1).all(|dim| dim.as_known() == Some(1));
    fact.dims().is_some_and(one_row)
}

/// Whether a view has the type and the extents of what it shows.
fn is_same(shown: &Fact, view: &Fact) -> bool {
    let known = |kind: &Type| kind.as_tensor().is_some_and(|(_, shape)| shape.rank().is_some());
    known(&view.kind) && shown.kind == view.kind
}

/// Takes views out of a block that nobody reads.
fn remove_unread(graph: &mut Graph, index: BlockIndex) {
    let block = graph.block_mut(index);
    let values = |operands: &[Operand]| -> Vec<ValueId> {
        let value = |operand: &Operand| if let Operand::Value(value) = operand { Some(*value) } else { None };
        operands.iter().filter_map(value).collect()
    };
    let mut read: HashSet<ValueId> = values(&block.results).into_iter().collect();
    let mut kept = Vec::with_capacity(block.steps.len());
    for step in std::mem::take(&mut block.steps).into_iter().rev() {
        if step.op.view_of().is_none() || step.results.iter().any(|result| read.contains(result)) {
            read.extend(values(&step.operands));
            kept.push(step);
        }
    }
    kept.reverse();
    block.steps = kept;
}
