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
//! Factors of queries and of keys are factors of the scores. Masks that are added one after the other are added to each other first;
//! scores that a condition replaces by a number that is as good as minus infinity have a mask of that number there. Keys and
//! values that are repeated for several heads (`unsqueeze`, `expand`, `reshape`) are those of a group. Results differ by
//! the rounding of sums; a row that the mask leaves no key is 0, where the steps give NaN (or 0 where they replace NaN by it).
//! Leaves alone: other types than f32, other ranks than 4, scores that somebody else reads.

use super::matching::{Match, operands_of};
use super::readers::Steps;
use crate::ir::{Constant, Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{
    Attention, Binary, BinaryFunction, Matmul, Op, Select, SoftmaxFunction, Transpose, UnaryFunction,
};
use ipuc_formats::tensor::Tensor;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Join attentions of a block; gives how many steps are gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    let mut sums = MaskSums::default();
    let mut gone = 0;
    for at in 0..steps.len() {
        let Some(written) = written_out(graph, &steps, at) else { continue };
        let keys = written.keys.operand(graph, &mut steps);
        let Some(mask) = sums.of(graph, &mut steps, at, &written) else { continue };
        let op: Op = Attention { scale: Some(written.scale), ..Attention::plain() }.into();
        let operands: Vec<Operand> = [written.queries, keys, written.values].into_iter().chain(mask).collect();
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
    masks: Vec<Mask>,
    scale: f32,
    result: ValueId,
    name: Arc<str>,
    found: BTreeSet<usize>,
}

/// What changes scores before the softmax.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Mask {
    /// It is added.
    Added(Operand),
    /// Where the condition is (or is not) true, scores are this number.
    Replaced { condition: Operand, number: Operand, when: bool },
}

/// The sum of masks, which layers share.
#[derive(Default)]
struct MaskSums(HashMap<Vec<Mask>, Operand>);

impl MaskSums {
    /// One operand that is added to the scores in place of all masks, and none where there are none; what computes it comes
    /// before the step at `at`. `None` where a step of the sum has other types than the graph could check.
    fn of(&mut self, graph: &mut Graph, steps: &mut Steps, at: usize, written: &WrittenOut) -> Option<Option<Operand>> {
        let masks = written.masks.as_slice();
        match masks {
            [] => return Some(None),
            [Mask::Added(operand)] => return Some(Some(*operand)),
            _ => {}
        }
        if let Some(sum) = self.0.get(masks) {
            return Some(Some(*sum));
        }
        let mut put = |graph: &mut Graph, op: Op, operands: Vec<Operand>| {
            let fact = graph.inferred(&op, &operands)?.into_iter().next()?;
            let value = graph.add_value(fact, None);
            steps.insert_before(at, Step { op, operands, results: vec![value], name: written.name.clone() });
            Some(Operand::Value(value))
        };
        let mut sum = None;
        for &mask in masks {
            sum = Some(match (mask, sum) {
                (Mask::Added(operand), None) => operand,
                (Mask::Added(operand), Some(sum)) => {
                    put(graph, Binary { function: BinaryFunction::Add }.into(), vec![sum, operand])?
                }
                // The number takes the place of what was added before, as it does in scores.
                (Mask::Replaced { condition, number, when }, before) => {
                    let before = match before {
                        Some(sum) => sum,
                        None => {
                            let zero = Tensor::from_elements(&[], &[0.0f32]).ok()?;
                            Operand::Constant(graph.add_constant(Constant::of(zero, None)))
                        }
                    };
                    let [yes, no] = if when { [number, before] } else { [before, number] };
                    put(graph, Select {}.into(), vec![condition, yes, no])?
                }
            });
        }
        self.0.insert(masks.to_vec(), sum?);
        Some(sum)
    }
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
    let softmax = softmax_of(&mut matched, step, weights)?;
    let Op::Softmax(function) = &softmax.op else { return None };
    let last = matches!(function.axis, -1 | 3) && !function.trailing;
    (last && function.function == SoftmaxFunction::Softmax).then_some(())?;
    let scores = scores(&mut matched, softmax, softmax.operands[0], MOST_MASKS)?;
    let (queries, by_queries) = without_factor(&mut matched, scores.queries);
    let (turned, by_keys) = without_factor(&mut matched, scores.keys);
    let keys = turned_keys(&mut matched, turned)?;
    let (keys, values) = match keys {
        Keys::Ready(own) => match (repeated(&mut matched, own), repeated(&mut matched, values)) {
            (Some(own), Some(values)) => (Keys::Ready(own), values),
            _ => (keys, values),
        },
        Keys::Turned { .. } => (keys, values),
    };
    let scale = scores.scale * by_queries * by_keys;
    let name = matched.name();
    Some(WrittenOut { queries, keys, values, masks: scores.masks, scale, result, name, found: matched.found() })
}

/// The softmax whose weights a product reads: as they are, or with 0 in place of NaN.
fn softmax_of<'a>(matched: &mut Match<'a>, product: &Step, weights: Operand) -> Option<&'a Step> {
    let step = matched.only_producer(product, weights)?;
    let Op::Select(_) = &step.op else { return Some(step) };
    let &[is_nan, zero, softmax] = step.operands.as_slice() else { return None };
    let guarded = matched.unary(is_nan, UnaryFunction::IsNan)? == softmax && matched.single(zero) == Some(0.0);
    let step = matched.producer(softmax)?;
    (guarded && matched.is_read_within(softmax)).then_some(step)
}

/// What the softmax is taken of.
struct Scores {
    queries: Operand,
    keys: Operand,
    scale: f32,
    /// In the order in which they are applied.
    masks: Vec<Mask>,
}

/// Masks, and factors, that one attention may have.
const MOST_MASKS: usize = 6;

/// The product of queries and keys that `operand` is, times factors, with masks; nobody else reads what lies between.
fn scores(matched: &mut Match<'_>, reader: &Step, operand: Operand, most: usize) -> Option<Scores> {
    let most = most.checked_sub(1)?;
    let step = matched.only_producer(reader, operand)?;
    if let Some(&[queries, keys]) = product(step) {
        return Some(Scores { queries, keys, scale: 1.0, masks: Vec::new() });
    }
    let dims = matched.dims(operand);
    if let Some(terms) = operands_of(step, BinaryFunction::Add) {
        return matched.either(terms, |matched, [score, mask]| {
            let mut scores = scores(matched, step, score, most).filter(|_| matched.dims(score) == dims)?;
            if !is_zero(matched.graph, mask) {
                scores.masks.push(Mask::Added(mask));
            }
            Some(scores)
        });
    }
    if let (Op::Select(_), &[condition, yes, no]) = (&step.op, step.operands.as_slice()) {
        return matched.either([yes, no], |matched, [score, number]| {
            // Added to any score, it is the sum: a score is lost below its last bit.
            (matched.single(number)? <= -1e30).then_some(())?;
            let mut scores = scores(matched, step, score, most).filter(|_| matched.dims(score) == dims)?;
            scores.masks.push(Mask::Replaced { condition, number, when: number == yes });
            Some(scores)
        });
    }
    let unmasked = |scores: &Scores| scores.masks.is_empty();
    if let Some([product, divisor]) = operands_of(step, BinaryFunction::Div) {
        let divisor = matched.single(divisor)? as f32;
        let scores = scores(matched, step, product, most).filter(unmasked)?;
        return Some(Scores { scale: scores.scale / divisor, ..scores });
    }
    matched.either(operands_of(step, BinaryFunction::Mul)?, |matched, [product, factor]| {
        let factor = matched.single(factor)? as f32;
        let scores = scores(matched, step, product, most).filter(unmasked)?;
        Some(Scores { scale: scores.scale * factor, ..scores })
    })
}

/// Whether a constant is 0 throughout.
fn is_zero(graph: &Graph, operand: Operand) -> bool {
    let Operand::Constant(id) = operand else { return false };
    let tensor = graph.constant(id).tensor();
    tensor.is_some_and(|tensor| tensor.elements::<f32>().is_ok_and(|elements| elements.iter().all(|&bias| bias == 0.0)))
}

/// What a single number multiplies, and the number; 1 where none does.
fn without_factor(matched: &mut Match<'_>, operand: Operand) -> (Operand, f32) {
    let product = matched.attempt(|matched| {
        let operands = matched.binary(operand, BinaryFunction::Mul)?;
        matched.either(operands, |matched, [value, factor]| Some((value, matched.single(factor)? as f32)))
    });
    product.filter(|(value, _)| matched.dims(*value) == matched.dims(operand)).unwrap_or((operand, 1.0))
}

/// The keys whose last two axes are exchanged for the product of queries and keys.
fn turned_keys(matched: &mut Match<'_>, turned: Operand) -> Option<Keys> {
    let step = matched.producer(turned)?;
    let data = *step.operands.first()?;
    if let Op::Reshape(_) = &step.op {
        return flat_keys(matched, turned, data);
    }
    let Op::Transpose(transpose) = &step.op else { return None };
    let &[batch, heads, size, keys] = transpose.permutation.as_slice() else { return None };
    if [batch, heads, size, keys] == [0, 1, 3, 2] {
        return Some(Keys::Ready(data));
    }
    let axis = |axis: i64| usize::try_from(axis).ok();
    let permutation = [axis(batch)?, axis(heads)?, axis(keys)?, axis(size)?];
    Some(Keys::Turned { at: matched.place(turned)?, data, permutation })
}

/// The keys whose last two axes are exchanged while batch and heads are one axis.
fn flat_keys(matched: &mut Match<'_>, turned: Operand, exchanged: Operand) -> Option<Keys> {
    let step = matched.producer(exchanged)?;
    let (Op::Transpose(transpose), &[flat]) = (&step.op, step.operands.as_slice()) else { return None };
    let view = matched.producer(flat).filter(|step| matches!(step.op, Op::Reshape(_)))?;
    let viewed = *view.operands.first()?;
    let all = matched.dims(turned)?;
    let [batch, heads, size, keys] = all.as_slice() else { return None };
    let is_flat = matched.dims(flat)? == [batch * heads, keys.clone(), size.clone()];
    (is_flat && transpose.permutation == [0, 2, 1]).then_some(())?;
    let is_ready = matched.dims(viewed)? == [batch, heads, keys, size].map(Clone::clone);
    Some(Keys::Ready(if is_ready { viewed } else { flat }))
}

/// The operands of a product without options.
fn product(step: &Step) -> Option<&[Operand]> {
    let Op::Matmul(product) = &step.op else { return None };
    (*product == Matmul::new(false, false)).then_some(&step.operands[..])
}

/// `[b, h, t, d]` of which each head is repeated: `[b, h * n, t, d]`, or `[b * h * n, t, d]`.
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
    let copied = h * copies;
    let joined = all == [b, &copied, t, d].map(Clone::clone) || all == [b * &copied, t.clone(), d.clone()];
    (unsqueezed && expanded && joined).then_some(own)
}
