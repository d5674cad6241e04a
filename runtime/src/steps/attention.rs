//! Attention and its relatives.
//!
//! Attention of f32 in ONNX's own arithmetic runs in blocks of rows; everything else by its reference.

use super::floats::computed;
use super::normalization::reduction::{loaded, reference};
use crate::kernels::attention::{self as kernel, Frontier, HeadElements, Heads, Mask, Stage};
use crate::kernels::simd::Instructions;
use crate::steps::{Contents, Context, Kernel, KernelError, Operand, without_versions};
use crate::versions::{HeldVersion, Version};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Fact, Type};
use ipuc_formats::ops::broadcast::broadcast_strides;
use ipuc_formats::ops::{
    Append, Attention, CacheScatter, LinearAttention, RotaryEmbedding, ScoreStage, integers, optional_tensor, tensor,
};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use std::borrow::Cow;

impl Kernel for RotaryEmbedding {}
impl Kernel for LinearAttention {}

impl Kernel for CacheScatter {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let plan = self.plan(&inputs)?;
        let new = tensor(&inputs, 1)?;
        let past = optional_tensor(&inputs, 0)?.map_or(&[][..], Tensor::bytes);
        let [_, heads, length, size] = plan.shape;
        let row = size * new.dtype().bits() / 8;
        let mut result = context.allocate(0, new.dtype(), &plan.shape)?;
        if length * row > 0 {
            for (index, out) in result.bytes_mut().chunks_mut(length * row).enumerate() {
                let stays = plan.first[index / heads] * row;
                let (before, behind) = out.split_at_mut(stays);
                let (own, rest) = behind.split_at_mut(plan.new * row);
                before.copy_from_slice(&past[index * plan.past * row..][..stays]);
                own.copy_from_slice(&new.bytes()[index * own.len()..][..own.len()]);
                rest.fill(0);
            }
        }
        Ok(vec![result.into()])
    }
}

impl Kernel for Append {
    fn compute(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Contents>, KernelError> {
        let past = match operands.first() {
            Some(Operand::Version(past)) if i64::try_from(past.axis()) == Ok(self.axis) => past.clone(),
            // What is no state of this axis is joined as `Concat` does it.
            Some(_) | None => {
                let operands = without_versions(operands, context)?;
                return Ok(self.run(operands, context)?.into_iter().map(Contents::Value).collect());
            }
        };
        operands[0] = Operand::Absent;
        let inputs = loaded(without_versions(operands, context)?)?;
        let new = tensor(&inputs, 1)?;
        let count = new.shape().get(past.axis()).copied().unwrap_or(0);
        self.check_places(&inputs, past.length(), count)?;
        Ok(vec![Contents::Version(past.append(new, context.memory.pages())?)])
    }
}

impl Kernel for Attention {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let kinds = operands.iter().map(Operand::kind).collect::<Result<Vec<_>, _>>()?;
        let inputs = loaded(operands)?;
        if let Some(extents) = Extents::of(self, &kinds)?
            && let Some(results) = attend(self, &inputs, extents, None, context)?
        {
            return Ok(results);
        }
        reference(self, inputs, context)
    }

    fn compute(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Contents>, KernelError> {
        let results = match paged(self, &operands, context)? {
            Some(results) => results,
            None => self.run(without_versions(operands, context)?, context)?,
        };
        Ok(results.into_iter().map(Contents::Value).collect())
    }
}

/// Attention over the pages of keys and values that are state; `None` where they are not, or the kernel does not read them.
fn paged(
    operator: &Attention,
    operands: &[Operand],
    context: &mut Context<'_>,
) -> Result<Option<Vec<Value>>, KernelError> {
    let (Some(Operand::Version(keys)), Some(Operand::Version(values))) = (operands.get(1), operands.get(2)) else {
        return Ok(None);
    };
    let fits = |version: &Version| version.axis() == 2 && version.page_positions().is_multiple_of(kernel::BLOCK);
    let kinds = operands.iter().map(Operand::kind).collect::<Result<Vec<_>, _>>()?;
    let Some(extents) = Extents::of(operator, &kinds)?.filter(|_| fits(keys) && fits(values)) else { return Ok(None) };
    let mut inputs = Vec::with_capacity(operands.len());
    for (at, operand) in operands.iter().enumerate() {
        inputs.push(match operand {
            Operand::Absent => None,
            Operand::Version(_) if at == 1 || at == 2 => None,
            Operand::Version(version) => Some(context.whole(version)?.into()),
            Operand::Value(value) => Some(value.clone()),
            Operand::Weight(weight) => Some(weight.tensor()?.into()),
        });
    }
    let held = [keys.held(context.memory.pages())?, values.held(context.memory.pages())?];
    let pages = [Cached::of(keys, &held[0])?, Cached::of(values, &held[1])?];
    attend(operator, &inputs, extents, Some(&pages), context)
}

/// Keys or values in pages.
struct Cached<'a> {
    pages: Vec<Vec<&'a [f32]>>,
    positions: usize,
}

impl<'a> Cached<'a> {
    fn of(version: &Version, held: &'a HeldVersion) -> Result<Cached<'a>, KernelError> {
        Ok(Cached { pages: held.rows()?, positions: version.page_positions() })
    }
}

/// Known extents of an attention that runs here.
#[derive(Clone, Copy)]
struct Extents {
    batch: usize,
    query_heads: usize,
    key_heads: usize,
    queries: usize,
    past: usize,
    /// Keys of this run, behind those of the past.
    keys: usize,
    size: usize,
    value_size: usize,
    /// Operands have three axes.
    flat: bool,
}

impl Extents {
    /// Of operands of these types; `None` where the reference has to run (or to refuse).
    fn of(operator: &Attention, kinds: &[Option<Type>]) -> Result<Option<Extents>, KernelError> {
        let facts: Vec<Option<Fact>> = kinds.iter().cloned().map(|kind| kind.map(Fact::of)).collect();
        let (dtype, value_type) = operator.check_types(&facts)?;
        let precise = !matches!(operator.softmax_precision, Some(DType::F16 | DType::BF16));
        if dtype != DType::F32 || value_type != DType::F32 || !precise || !operator.arithmetic.is_default() {
            return Ok(None);
        }
        let shape = |operand: usize| {
            let (_, shape) = kinds.get(operand)?.as_ref()?.as_tensor()?;
            shape.as_known()
        };
        let heads = |operand: usize, stated: Option<i64>| {
            let stated = stated.and_then(|heads| usize::try_from(heads).ok());
            match (shape(operand)?.as_slice(), stated) {
                (&[batch, heads, length, size], stated) if stated.is_none_or(|stated| stated == heads) => {
                    Some([batch, heads, length, size])
                }
                (&[batch, length, hidden], Some(heads)) if heads > 0 && hidden % heads == 0 => {
                    Some([batch, heads, length, hidden / heads])
                }
                _ => None,
            }
        };
        let (q, k, v) = (heads(0, operator.query_heads), heads(1, operator.key_heads), heads(2, operator.key_heads));
        let (Some(q), Some(k), Some(v)) = (q, k, v) else { return Ok(None) };
        let ranks = [0, 1, 2].map(|operand| shape(operand).map_or(0, |shape| shape.len()));
        let [batch, query_heads, queries, size] = q;
        let [_, key_heads, keys, value_size] = v;
        let past = shape(4).map_or(0, |past| past.get(2).copied().unwrap_or(0));
        let extents =
            Extents { batch, query_heads, key_heads, queries, past, keys, size, value_size, flat: ranks[0] == 3 };
        let fits_past =
            |operand: usize, size: usize| shape(operand).is_none_or(|found| found == [batch, key_heads, past, size]);
        let fits = k == [batch, key_heads, keys, size]
            && v[0] == batch
            && ranks.iter().all(|rank| *rank == ranks[0])
            && [batch, key_heads, queries, past + keys, size, value_size, query_heads].iter().all(|extent| *extent > 0)
            && query_heads.is_multiple_of(key_heads)
            && fits_past(4, size)
            && fits_past(5, value_size);
        Ok(fits.then_some(extents))
    }

    fn total(&self) -> usize {
        self.past + self.keys
    }

    /// Distances between batches, heads and keys of an operand of this run.
    fn strides(&self, size: usize) -> [usize; 3] {
        match self.flat {
            true => [self.keys * self.key_heads * size, size, self.key_heads * size],
            false => [self.key_heads * self.keys * size, self.keys * size, size],
        }
    }
}

/// Queries times scale, head by head.
fn scaled_queries(operator: &Attention, extents: Extents, values: &[f32]) -> Vec<f32> {
    let Extents { query_heads, queries, size, .. } = extents;
    let scale = operator.scale.unwrap_or_else(|| (1.0 / (size as f64).sqrt()) as f32);
    if !extents.flat {
        return values.iter().map(|value| value * scale).collect();
    }
    let mut moved = Vec::with_capacity(values.len());
    for batch in values.chunks(queries * query_heads * size) {
        for head in 0..query_heads {
            for row in batch.chunks(query_heads * size) {
                moved.extend(row[head * size..(head + 1) * size].iter().map(|value| value * scale));
            }
        }
    }
    moved
}

/// Keys or values behind those of the past: `[batch, heads, past + keys, size]`.
fn joined(extents: Extents, past: Option<&[f32]>, now: &[f32], size: usize, out: &mut [f32]) {
    let [by_batch, by_head, by_key] = extents.strides(size);
    for (index, out) in out.chunks_mut(extents.total() * size).enumerate() {
        let (batch, head) = (index / extents.key_heads, index % extents.key_heads);
        let (before, behind) = out.split_at_mut(extents.past * size);
        if let Some(past) = past {
            before.copy_from_slice(&past[index * before.len()..(index + 1) * before.len()]);
        }
        for (key, row) in behind.chunks_mut(size).enumerate() {
            let first = batch * by_batch + head * by_head + key * by_key;
            row.copy_from_slice(&now[first..first + size]);
        }
    }
}

/// A mask as f32: 0 and minus infinity for bools.
fn mask_values(mask: &Tensor) -> Result<Option<Cow<'_, [f32]>>, KernelError> {
    Ok(match mask.dtype() {
        DType::Bool => {
            let value = |&seen: &u8| if seen != 0 { 0.0 } else { f32::NEG_INFINITY };
            Some(mask.bytes().iter().map(value).collect())
        }
        DType::F32 => Some(Cow::Borrowed(mask.elements::<f32>()?)),
        _ => None,
    })
}

fn stage(stage: ScoreStage) -> Stage {
    match stage {
        ScoreStage::Product => Stage::Product,
        ScoreStage::Softcap => Stage::Softcap,
        ScoreStage::Bias => Stage::Bias,
        ScoreStage::Softmax => Stage::Softmax,
    }
}

/// Keys (or values) of past and present, as a result where they are one.
enum Joined<'a> {
    Borrowed(&'a [f32]),
    Scratch(Vec<f32>),
    Result(Tensor),
    Pages(&'a Cached<'a>),
}

impl<'a> Joined<'a> {
    /// Of operand `operand` and the past in `operand + 3`; result `operand` where `present`.
    fn of(
        extents: Extents,
        operand: usize,
        size: usize,
        present: bool,
        inputs: &'a [Option<Value>],
        context: &mut Context<'_>,
    ) -> Result<Self, KernelError> {
        let now = tensor(inputs, operand)?.elements::<f32>()?;
        let past = optional_tensor(inputs, operand + 3)?.map(|past| past.elements::<f32>()).transpose()?;
        let shape = [extents.batch, extents.key_heads, extents.total(), size];
        if present {
            return Ok(Joined::Result(computed(context, operand, DType::F32, &shape, |out| {
                joined(extents, past, now, size, out);
                Ok(())
            })?));
        }
        if past.is_none() {
            return Ok(Joined::Borrowed(now));
        }
        let mut out = vec![0.0; shape.iter().product()];
        joined(extents, past, now, size, &mut out);
        Ok(Joined::Scratch(out))
    }

    fn heads(&self, extents: Extents, size: usize) -> Result<Heads<'_>, KernelError> {
        let total = extents.total();
        let whole = [extents.key_heads * total * size, total * size, size];
        let elements = match self {
            Joined::Borrowed(values) => HeadElements::Whole { values, strides: extents.strides(size) },
            Joined::Scratch(values) => HeadElements::Whole { values, strides: whole },
            Joined::Result(tensor) => HeadElements::Whole { values: tensor.elements::<f32>()?, strides: whole },
            Joined::Pages(cached) => HeadElements::Pages { pages: &cached.pages, positions: cached.positions },
        };
        Ok(Heads { elements, size })
    }
}

/// Run the kernel; `None` where the reference has to run.
fn attend(
    operator: &Attention,
    inputs: &[Option<Value>],
    extents: Extents,
    cached: Option<&[Cached<'_>; 2]>,
    context: &mut Context<'_>,
) -> Result<Option<Vec<Value>>, KernelError> {
    let Extents { batch, query_heads, key_heads, queries, past, size, value_size, .. } = extents;
    let total = extents.total();
    let counted = |operand: usize| optional_tensor(inputs, operand)?.map(|_| integers(inputs, operand)).transpose();
    let (valid, first) = (counted(6)?, counted(7)?);
    let sink = optional_tensor(inputs, 8)?.map(|sink| sink.elements::<f32>()).transpose()?;
    let mask = optional_tensor(inputs, 3)?;
    let mask_elements = mask.map(mask_values).transpose()?;
    let mask_keys = mask.and_then(|mask| mask.shape().last().copied());
    let mask_keys = if operator.pad_mask { mask_keys.filter(|keys| *keys <= total).unwrap_or(total) } else { total };
    let target = [batch, query_heads, queries, mask_keys];
    let fits = |mask: &Tensor| {
        mask.rank() <= 4
            && mask.shape().iter().rev().zip(target.iter().rev()).all(|(own, wanted)| own == wanted || *own == 1)
    };
    if matches!(mask_elements, Some(None))
        || mask.is_some_and(|mask| !fits(mask))
        || [&valid, &first].into_iter().flatten().any(|given| given.len() != batch)
        || sink.is_some_and(|sink| sink.len() != query_heads)
    {
        return Ok(None);
    }
    let [key, value] = match cached {
        Some([keys, values]) if !operator.present && extents.past == 0 => [Joined::Pages(keys), Joined::Pages(values)],
        Some(_) => return Ok(None),
        None => [
            Joined::of(extents, 1, size, operator.present, inputs, context)?,
            Joined::of(extents, 2, value_size, operator.present, inputs, context)?,
        ],
    };
    let offset = |valid: &i64| valid.saturating_sub(queries as i64);
    let offsets = match (first, &valid) {
        (Some(first), _) => first,
        (None, Some(valid)) => valid.iter().map(offset).collect(),
        (None, None) => vec![past as i64; batch],
    };
    let mask = mask.zip(mask_elements.as_ref().and_then(Option::as_deref)).map(|(mask, values)| {
        let strides = broadcast_strides(mask.shape(), &target);
        Mask { values, strides: [strides[0], strides[1], strides[2], strides[3]], keys: mask_keys }
    });
    let kernel = kernel::Attention {
        batch,
        key_heads,
        group: query_heads / key_heads,
        queries,
        keys: total,
        query: &scaled_queries(operator, extents, tensor(inputs, 0)?.elements::<f32>()?),
        key: key.heads(extents, size)?,
        value: value.heads(extents, value_size)?,
        softcap: operator.softcap,
        mask,
        frontier: Frontier {
            offsets: &offsets,
            valid: valid.as_deref(),
            causal: operator.causal,
            left: operator.left_window,
            right: operator.right_window,
        },
        sink,
    };
    let mut scores = operator
        .scores
        .map(|_| {
            let result = if operator.present { 3 } else { 1 };
            context.allocate(result, DType::F32, &[batch, query_heads, queries, total])
        })
        .transpose()?;
    let shown = match (operator.scores, &mut scores) {
        (Some(shown), Some(scores)) => Some((stage(shown), scores.elements_mut::<f32>()?)),
        _ => None,
    };
    let output = output(&kernel, extents, shown, context)?;
    let mut results = vec![operator.program.apply_to(output, inputs)?];
    for joined in [key, value] {
        if let Joined::Result(tensor) = joined {
            results.push(tensor);
        }
    }
    results.extend(scores);
    Ok(Some(results.into_iter().map(Value::from).collect()))
}

/// Run the kernel; the result has the axes of the operands.
fn output(
    kernel: &kernel::Attention<'_>,
    extents: Extents,
    shown: Option<(Stage, &mut [f32])>,
    context: &mut Context<'_>,
) -> Result<Tensor, KernelError> {
    let Extents { batch, query_heads, queries, value_size, flat, .. } = extents;
    let instructions = Instructions::best();
    if !flat {
        return computed(context, 0, DType::F32, &[batch, query_heads, queries, value_size], |out| {
            kernel::attention(instructions, kernel, out, shown);
            Ok(())
        });
    }
    let mut by_head = vec![0.0; batch * query_heads * queries * value_size];
    kernel::attention(instructions, kernel, &mut by_head, shown);
    computed(context, 0, DType::F32, &[batch, queries, query_heads * value_size], |out| {
        for (index, row) in by_head.chunks(value_size).enumerate() {
            let (batch, head, query) = (index / queries / query_heads, index / queries % query_heads, index % queries);
            let first = ((batch * queries + query) * query_heads + head) * value_size;
            out[first..first + value_size].copy_from_slice(row);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random, run};
    use ipuc_formats::ops::{Argument, Arithmetic, Function, Program, ScalarStep, UnaryFunction};
    use std::ops::Range;
    use strum::VariantArray;

    fn plain() -> Attention {
        Attention {
            scale: None,
            causal: false,
            softcap: 0.0,
            softmax_precision: None,
            query_heads: None,
            key_heads: None,
            left_window: None,
            right_window: None,
            pad_mask: false,
            present: false,
            scores: None,
            arithmetic: Arithmetic::default(),
            program: Program::default(),
        }
    }

    /// Queries of 4 heads over keys of 2, `queries` and `keys` long.
    fn operands(queries: usize, keys: usize) -> Vec<Option<Tensor>> {
        vec![
            random(DType::F32, &[2, 4, queries, 8], 1),
            random(DType::F32, &[2, 2, keys, 8], 2),
            random(DType::F32, &[2, 2, keys, 6], 3),
        ]
    }

    fn bools(shape: &[usize], seed: u32) -> Option<Tensor> {
        let numbers = random(DType::F32, shape, seed)?;
        let seen: Vec<bool> = numbers.elements::<f32>().ok()?.iter().map(|value| *value > 0.0).collect();
        Tensor::from_bools(shape, &seen).ok()
    }

    #[test]
    fn frontiers_and_windows_agree_with_the_reference() {
        for (queries, keys) in [(1, 1), (1, 70), (70, 70), (40, 9), (3, 20)] {
            for causal in [false, true] {
                for (left, right) in [(None, None), (Some(2), None), (Some(0), Some(1)), (None, Some(3))] {
                    let operator = Attention { causal, left_window: left, right_window: right, ..plain() };
                    check(&operator, &operands(queries, keys), 1e-5);
                    let mut with_valid = operands(queries, keys);
                    let valid = [keys as i64, (keys / 2) as i64];
                    with_valid.extend([None, None, None, Some(Tensor::vector_i64(&valid))]);
                    check(&operator, &with_valid, 1e-5);
                }
            }
        }
    }

    #[test]
    fn first_positions_and_sinks_agree_with_the_reference() {
        for (queries, keys) in [(1, 1), (1, 70), (70, 170), (40, 9)] {
            for causal in [false, true] {
                for stage in [None, Some(ScoreStage::Softmax)] {
                    let operator = Attention { causal, scores: stage, left_window: Some(20), ..plain() };
                    for (valid, first) in [([keys as i64, 5], [0, 3]), ([1, 0], [keys as i64 - 1, 0])] {
                        let mut inputs = operands(queries, keys);
                        let counts = [valid, first].map(|counts| Some(Tensor::vector_i64(&counts)));
                        inputs.extend([None, None, None]);
                        inputs.extend(counts);
                        inputs.push(random(DType::F32, &[4], 9));
                        check(&operator, &inputs, 1e-5);
                    }
                }
            }
        }
    }

    #[test]
    fn caches_agree_with_the_reference() {
        for dtype in [DType::F32, DType::F16] {
            for (past, new, first, length) in [
                (None, 3, [0, 0], 3),
                (Some(4), 1, [4, 2], 5),
                (Some(6), 2, [4, 0], 6),
                (Some(6), 2, [1, 0], 2),
                (Some(2), 0, [1, 2], 2),
            ] {
                let rows = |count: usize, seed| random(dtype, &[2, 3, count, 5], seed);
                let counts = [Tensor::vector_i64(&first), Tensor::vector_i64(&[length])].map(Some);
                let inputs = [vec![past.and_then(|past| rows(past, 1)), rows(new, 2)], counts.to_vec()].concat();
                check(&CacheScatter {}, &inputs, 0.0);
            }
        }
    }

    #[test]
    fn masks_and_stages_agree_with_the_reference() {
        let masks = [
            random(DType::F32, &[5, 9], 4),
            random(DType::F32, &[1, 4, 1, 9], 5),
            bools(&[2, 1, 5, 9], 6),
            bools(&[5, 1], 7),
            Tensor::from_bools(&[1, 1], &[false]).ok(),
        ];
        for mask in masks {
            for stage in [None].into_iter().chain(ScoreStage::VARIANTS.iter().copied().map(Some)) {
                for pad_mask in [false, true] {
                    let operator = Attention { scores: stage, softcap: 2.0, causal: pad_mask, pad_mask, ..plain() };
                    let mut inputs = operands(5, 9);
                    inputs.push(mask.clone());
                    check(&operator, &inputs, 1e-5);
                }
            }
        }
    }

    #[test]
    fn flat_heads_past_and_program_agree_with_the_reference() {
        let negated = ScalarStep {
            function: Function::Unary(UnaryFunction::Neg),
            arguments: vec![Argument::Input],
            to: DType::F32,
        };
        let program = Program::of_steps(vec![negated]).unwrap();
        for (present, flat) in [(false, false), (true, false), (false, true), (true, true)] {
            let heads = |count| flat.then_some(count);
            let operator = Attention {
                present,
                causal: true,
                scale: Some(0.3),
                query_heads: heads(4),
                key_heads: heads(2),
                program: program.clone(),
                ..plain()
            };
            let mut inputs = match flat {
                false => operands(5, 7),
                true => vec![
                    random(DType::F32, &[2, 5, 32], 1),
                    random(DType::F32, &[2, 7, 16], 2),
                    random(DType::F32, &[2, 7, 12], 3),
                ],
            };
            check(&operator, &inputs, 1e-5);
            inputs.extend([None, random(DType::F32, &[2, 2, 3, 8], 4), random(DType::F32, &[2, 2, 3, 6], 5)]);
            check(&operator, &inputs, 1e-5);
        }
    }

    /// Places `range` of an axis.
    fn part(tensor: &Tensor, axis: usize, range: Range<usize>) -> Tensor {
        let shape = tensor.shape();
        let row = shape[axis + 1..].iter().product::<usize>() * tensor.dtype().bits() / 8;
        let cut = |whole: &[u8]| whole[range.start * row..range.end * row].to_vec();
        let bytes: Vec<u8> = tensor.bytes().chunks(shape[axis] * row).flat_map(cut).collect();
        let mut shape = shape.to_vec();
        shape[axis] = range.len();
        Tensor::from_bytes(tensor.dtype(), &shape, &bytes).unwrap()
    }

    fn next_to(parts: &[Tensor], axis: usize) -> Tensor {
        let outer: usize = parts[0].shape()[..axis].iter().product();
        let row = |part: &Tensor, index: usize| {
            let length = part.bytes().len() / outer;
            part.bytes()[index * length..(index + 1) * length].to_vec()
        };
        let bytes: Vec<u8> = (0..outer).flat_map(|index| parts.iter().flat_map(move |part| row(part, index))).collect();
        let mut shape = parts[0].shape().to_vec();
        shape[axis] = parts.iter().map(|part| part.shape()[axis]).sum();
        Tensor::from_bytes(parts[0].dtype(), &shape, &bytes).unwrap()
    }

    /// One run over all rows, and runs one behind the other of which each has the keys and values of those before.
    fn check_passes(operator: &Attention, [q, k, v]: [Tensor; 3], mask: Option<Tensor>, passes: &[usize]) {
        let (batch, axis) = (q.shape()[0], q.rank() - 2);
        let heads = if q.rank() == 3 { operator.key_heads.unwrap() as usize } else { k.shape()[1] };
        let whole = run(operator, &[Some(q.clone()), Some(k.clone()), Some(v.clone()), mask.clone()]);
        let size = |tensor: &Tensor| tensor.shape()[tensor.rank() - 1] / if q.rank() == 3 { heads } else { 1 };
        let empty = |tensor: &Tensor| Tensor::zeros(tensor.dtype(), &[batch, heads, 0, size(tensor)]).unwrap();
        let (mut past, mut rows, mut first) = ([empty(&k), empty(&v)], Vec::new(), 0);
        for &count in passes {
            let range = first..first + count;
            first = range.end;
            let mask = mask.as_ref().map(|mask| {
                let rows = part(mask, mask.rank() - 2, range.clone());
                part(&rows, rows.rank() - 1, 0..range.end)
            });
            let mut inputs: Vec<Option<Tensor>> =
                [&q, &k, &v].map(|tensor| Some(part(tensor, axis, range.clone()))).into();
            inputs.extend([mask, Some(past[0].clone()), Some(past[1].clone())]);
            let [y, keys, values] = run(operator, &inputs).try_into().unwrap();
            rows.push(y);
            past = [keys, values];
        }
        assert_eq!([next_to(&rows, axis), past[0].clone(), past[1].clone()], whole[..], "{operator:?} in {passes:?}");
    }

    #[test]
    fn passes_have_the_bits_of_one() {
        let passes: [&[usize]; 4] = [&[1; 41], &[40, 1], &[3, 4, 5, 29], &[17, 1, 1, 22]];
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for (case, passes) in passes.into_iter().enumerate() {
                for flat in [false, true] {
                    let heads = |count| flat.then_some(count);
                    let operator = Attention {
                        causal: true,
                        present: true,
                        softcap: [0.0, 3.0][case % 2],
                        left_window: [None, Some(9)][case / 2],
                        pad_mask: true,
                        query_heads: heads(4),
                        key_heads: heads(2),
                        ..plain()
                    };
                    let operands = |shapes: [&[usize]; 3]| {
                        [0, 1, 2].map(|seed| random(dtype, shapes[seed], 1 + seed as u32).unwrap())
                    };
                    let operands = match flat {
                        true => operands([&[2, 41, 32], &[2, 41, 16], &[2, 41, 12]]),
                        false => operands([&[2, 4, 41, 8], &[2, 2, 41, 8], &[2, 2, 41, 6]]),
                    };
                    for mask in [None, random(dtype, &[1, 4, 41, 41], 7), bools(&[41, 41], 8)] {
                        check_passes(&operator, operands.clone(), mask, passes);
                    }
                }
            }
        }
    }
}
