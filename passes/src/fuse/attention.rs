//! Attention that is written out, as a product, a softmax and a product, becomes one step: no scores are stored, and keys and values
//! that several query heads share are read as they are.
//!
//! ```text
//! constant @scale : f32[] = f32[]:0000003f
//! entry "main"("q", "k", "v", "mask") -> ("y") = block 0
//! block 0(%q : f32[b, 4, s, 8], %k : f32[b, 4, t, 8], %v : f32[b, 4, t, 8], %mask : f32[b, 1, s, t]) {
//!   %turned : f32[b, 4, 8, t] = transpose permutation=[0, 1, 3, 2] %k from "transpose"
//!   %product : f32[b, 4, s, t] = matmul %q, %turned from "scores"
//!   %scaled : f32[b, 4, s, t] = binary function=mul %product, @scale from "scale"
//!   %masked : f32[b, 4, s, t] = binary function=add %scaled, %mask from "mask"
//!   %weights : f32[b, 4, s, t] = softmax function=softmax axis=-1 %masked from "softmax"
//!   %y : f32[b, 4, s, 8] = matmul %weights, %v from "values"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! entry "main"("q", "k", "v", "mask") -> ("y") = block 0
//! block 0(%q : f32[b, 4, s, 8], %k : f32[b, 4, t, 8], %v : f32[b, 4, t, 8], %mask : f32[b, 1, s, t]) {
//!   %y : f32[b, 4, s, 8] = attention scale=0.5 causal=0 softcap=0 pad_mask=0 present=0 %q, %k, %v, %mask from "transpose + scores + scale + mask + softmax + values"
//!   return %y
//! }
//! ```
//!
//! Keys and values that are repeated for several heads (`unsqueeze`, `expand`, `reshape`) are those of a group. Results differ by
//! the rounding of sums; a row that the mask leaves no key is 0, where the steps give NaN. Leaves alone: other types than f32,
//! other ranks than 4, scores that somebody else reads.

use super::matching::{Match, operands_of};
use super::readers::Steps;
use crate::ir::{Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{Attention, BinaryFunction, Matmul, Op, SoftmaxFunction, Transpose};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Join attentions of a block; gives how many steps are gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    let mut gone = 0;
    for at in 0..steps.len() {
        let Some(written) = written_out(graph, &steps, at) else { continue };
        let keys = written.keys.operand(graph, &mut steps);
        let op: Op = Attention { scale: Some(written.scale), ..Attention::plain() }.into();
        let operands: Vec<Operand> = [written.queries, keys, written.values].into_iter().chain(written.mask).collect();
        let kinds =
            graph.inferred(&op, &operands).map(|facts| facts.into_iter().map(|fact| fact.kind).collect::<Vec<_>>());
        if kinds != Some(vec![graph.value(written.result).fact.kind.clone()]) {
            continue;
        }
        let step = Step { op, operands, results: vec![written.result], name: written.name };
        gone += steps.replace_several(at, step, &written.found);
    }
    steps.give_back(graph.block_mut(index));
    gone
}

/// Attention as several steps.
struct WrittenOut {
    queries: Operand,
    keys: Keys,
    values: Operand,
    mask: Option<Operand>,
    scale: f32,
    result: ValueId,
    name: Arc<str>,
    found: BTreeSet<usize>,
}

/// Keys, `[b, h, t, d]`.
enum Keys {
    Ready(Operand),
    /// Axes of an operand, which a step puts in another order now: `[b, h, d, t]`.
    Turned {
        at: usize,
        data: Operand,
        permutation: [usize; 4],
    },
}

impl Keys {
    /// The keys, for which the step that turned them puts axes in order now.
    fn operand(&self, graph: &mut Graph, steps: &mut Steps) -> Operand {
        let (at, data, permutation) = match self {
            Keys::Ready(operand) => return *operand,
            Keys::Turned { at, data, permutation } => (*at, *data, permutation),
        };
        let dims = graph.fact(data).and_then(|fact| fact.dims().map(<[Dim]>::to_vec)).unwrap_or_default();
        let dims: Vec<Dim> = permutation.iter().filter_map(|&axis| dims.get(axis).cloned()).collect();
        let value = graph.add_value(Fact::tensor(DType::F32, dims), None);
        let permutation = permutation.iter().map(|&axis| axis as i64).collect();
        let name = steps.get(at).map_or_else(|| "".into(), |step| step.name.clone());
        let step = Step { op: Transpose { permutation }.into(), operands: vec![data], results: vec![value], name };
        steps.insert_before(at, step);
        Operand::Value(value)
    }
}

/// The product at `at` with the steps before it, where they are attention.
fn written_out(graph: &Graph, steps: &Steps, at: usize) -> Option<WrittenOut> {
    let step = steps.get(at)?;
    let (&[weights, values], &[result]) = (product(step)?, step.results.as_slice()) else { return None };
    let fact = &graph.value(result).fact;
    (fact.dtype() == Some(DType::F32) && fact.rank() == Some(4)).then_some(())?;
    let mut matched = Match::new(graph, steps, at);
    let softmax = matched.only_producer(step, weights)?;
    let Op::Softmax(function) = &softmax.op else { return None };
    let last = matches!(function.axis, -1 | 3) && !function.trailing;
    (last && function.function == SoftmaxFunction::Softmax).then_some(())?;
    let (scores, mask) = masked(&mut matched, softmax)?;
    let (scores, scale) = scaled(&mut matched, scores)?;
    let &[queries, turned] = product(scores)? else { return None };
    let keys = turned_keys(&mut matched, scores, turned)?;
    let (keys, values) = match keys {
        Keys::Ready(own) => match (repeated(&mut matched, own), repeated(&mut matched, values)) {
            (Some(own), Some(values)) => (Keys::Ready(own), values),
            _ => (keys, values),
        },
        Keys::Turned { .. } => (keys, values),
    };
    let name = matched.name();
    Some(WrittenOut { queries, keys, values, mask, scale, result, name, found: matched.found() })
}

/// The keys whose last two axes are exchanged for the product of queries and keys.
fn turned_keys(matched: &mut Match<'_>, scores: &Step, turned: Operand) -> Option<Keys> {
    let step = matched.only_producer(scores, turned)?;
    let Op::Transpose(transpose) = &step.op else { return None };
    let &[batch, heads, size, keys] = transpose.permutation.as_slice() else { return None };
    let data = *step.operands.first()?;
    if [batch, heads, size, keys] == [0, 1, 3, 2] {
        return Some(Keys::Ready(data));
    }
    let axis = |axis: i64| usize::try_from(axis).ok();
    let permutation = [axis(batch)?, axis(heads)?, axis(keys)?, axis(size)?];
    Some(Keys::Turned { at: matched.place(turned)?, data, permutation })
}

/// The operands of a product without options.
fn product(step: &Step) -> Option<&[Operand]> {
    let Op::Matmul(product) = &step.op else { return None };
    (*product == Matmul::new(false, false)).then_some(&step.operands[..])
}

/// What is exponentiated, less a mask that is added.
fn masked<'a>(matched: &mut Match<'a>, softmax: &Step) -> Option<(&'a Step, Option<Operand>)> {
    let step = matched.only_producer(softmax, softmax.operands[0])?;
    let Some(operands) = operands_of(step, BinaryFunction::Add) else { return Some((step, None)) };
    matched.either(operands, |matched, [scores, mask]| {
        let producer = matched.only_producer(step, scores)?;
        let is_score = matches!(&producer.op, Op::Matmul(_) | Op::Binary(_));
        (is_score && matched.dims(scores) == matched.dims(softmax.operands[0])).then_some((producer, Some(mask)))
    })
}

/// The product of queries and keys, and its factor.
fn scaled<'a>(matched: &mut Match<'a>, step: &'a Step) -> Option<(&'a Step, f32)> {
    let quotient = operands_of(step, BinaryFunction::Div);
    if let Some([product, divisor]) = quotient {
        let divisor = matched.single(divisor)? as f32;
        return Some((matched.only_producer(step, product)?, 1.0 / divisor));
    }
    let Some(operands) = operands_of(step, BinaryFunction::Mul) else { return Some((step, 1.0)) };
    matched.either(operands, |matched, [product, factor]| {
        let factor = matched.single(factor)? as f32;
        Some((matched.only_producer(step, product)?, factor))
    })
}

/// `[b, h, t, d]` of which each head is repeated: `[b, h * n, t, d]`.
fn repeated(matched: &mut Match<'_>, operand: Operand) -> Option<Operand> {
    let reshape = matched.producer(operand).filter(|step| matches!(step.op, Op::Reshape(_)))?;
    let expand = matched.producer(*reshape.operands.first()?).filter(|step| matches!(step.op, Op::Expand(_)))?;
    let unsqueeze = matched.producer(*expand.operands.first()?).filter(|step| matches!(step.op, Op::Unsqueeze(_)))?;
    let own = *unsqueeze.operands.first()?;
    let (heads, one) = (matched.dims(own)?, matched.dims(expand.operands[0])?);
    let (several, all) = (matched.dims(reshape.operands[0])?, matched.dims(operand)?);
    let [b, h, t, d] = heads.as_slice() else { return None };
    let [_, _, copies, ..] = several.as_slice() else { return None };
    let unsqueezed =
        one.len() == 5 && one[2].as_known() == Some(1) && [&one[0], &one[1], &one[3], &one[4]] == [b, h, t, d];
    let expanded = several.len() == 5 && [&several[0], &several[1], &several[3], &several[4]] == [b, h, t, d];
    let joined = all.len() == 4 && all[1] == h * copies && [&all[0], &all[2], &all[3]] == [b, t, d];
    (unsqueezed && expanded && joined).then_some(own)
}
