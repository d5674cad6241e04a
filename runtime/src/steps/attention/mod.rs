//! Attention and its relatives.
//!
//! Attention of f32 in ONNX's own arithmetic runs in blocks of rows; everything else by its reference. `extents.rs` says which
//! operands the kernel takes, `keys.rs` where it reads keys and values, `seen.rs`
//! which keys a query sees, `cache.rs` has the operators that keep them.

mod cache;
mod extents;
mod keys;
mod linear;
mod rotary;
mod seen;
#[cfg(test)]
mod tests;

use crate::steps::floats::computed;
use crate::steps::normalization::reduction::{loaded, reference};
use crate::steps::{Contents, Context, Kernel, KernelError, Operand, run_over_copies};
use crate::versions::Version;
use extents::Extents;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Attention, ScoreStage, optional_tensor, tensor};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::attention::{self as kernel, RowLayout, Stage};
use ipuc_kernels::product::Skipped;
use ipuc_kernels::simd::Instructions;
use keys::{Cached, Joined};
use seen::{Positions, ScoreMask};

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
        match paged(self, &operands, context)? {
            Some(results) => Ok(results.into_iter().map(Contents::Value).collect()),
            None => run_over_copies(self, operands, context),
        }
    }

    fn reads_pages(&self) -> bool {
        true
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
    if let Some(positions) = Positions::of(extents, &inputs)? {
        let first = positions.first_seen(operator);
        keys.require(first)?;
        values.require(first)?;
    }
    let held = [keys.held(context.memory.pages())?, values.held(context.memory.pages())?];
    let pages = [Cached::of(keys, &held[0])?, Cached::of(values, &held[1])?];
    attend(operator, &inputs, extents, Some(&pages), context)
}

fn stage(stage: ScoreStage) -> Stage {
    match stage {
        ScoreStage::Product => Stage::Product,
        ScoreStage::Softcap => Stage::Softcap,
        ScoreStage::Bias => Stage::Bias,
        ScoreStage::Softmax => Stage::Softmax,
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
    let Extents { batch, query_heads, key_heads, queries, size, value_size, .. } = extents;
    let total = extents.total();
    let sink = optional_tensor(inputs, 8)?.map(|sink| sink.elements::<f32>()).transpose()?;
    let (mask, positions) = (ScoreMask::of(operator, extents, inputs)?, Positions::of(extents, inputs)?);
    let (Some(mask), Some(positions)) = (mask, positions) else { return Ok(None) };
    if sink.is_some_and(|sink| sink.len() != query_heads) {
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
    let kernel = kernel::Attention {
        batch,
        key_heads,
        group: query_heads / key_heads,
        queries,
        keys: total,
        query: tensor(inputs, 0)?.elements::<f32>()?,
        layout: if extents.flat { RowLayout::ByQuery } else { RowLayout::ByHead },
        scale: operator.scale.unwrap_or_else(|| (1.0 / (size as f64).sqrt()) as f32),
        key: key.heads(extents, size)?,
        value: value.heads(extents, value_size)?,
        softcap: operator.softcap,
        mask: mask.as_ref().map(ScoreMask::as_mask),
        frontier: positions.frontier(operator),
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
    let (by_query, by_head) = ([batch, queries, query_heads * value_size], [batch, query_heads, queries, value_size]);
    let shape: &[usize] = if flat { &by_query } else { &by_head };
    let mut multiplications = 0;
    let result = computed(context, 0, DType::F32, shape, |out| {
        multiplications = kernel::attention(Instructions::best(), kernel, out, shown);
        Ok(())
    });
    context.skipped += Skipped { multiplications, bytes: 0 };
    result
}
