//! Hidden values in several branches, of `com.microsoft`: `BranchwiseRMSNorm`, `HyperConnectionPreMix`,
//! `HyperConnectionPostMix`, as ONNX Runtime 1.32 defines them.
//!
//! Branches are an axis of their own, or parts of the last axis where `num_branches` counts them. All is computed in f32.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BinaryFunction, Expand, LayerNormalization, Reduce, ReduceFunction, TypeError};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Branches of ONNX Runtime.
pub const ROWS: &[Row] = &[
    row("BranchwiseRMSNorm", normalized),
    row("HyperConnectionPostMix", mixed_after),
    row("HyperConnectionPreMix", mixed_before),
];

/// Input 0 as `[.., branches, h]` in f32, and its own type.
fn branches(node: &mut Lowering<'_, '_>) -> Result<(Operand, DType), LowerError> {
    let data = node.required(0)?;
    let dtype = node.dtype(&data)?;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        let expected = "f16, bf16 or f32".to_string();
        return Err(TypeError::ElementType { operand: 0, expected, found: dtype }.into());
    }
    let count = node.int("num_branches")?.unwrap_or(0);
    let data = node.cast(data, DType::F32)?;
    match count {
        0 if node.rank(&data)? >= 2 => Ok((data, dtype)),
        1.. if node.rank(&data)? >= 1 => Ok((split_last(node, data, count)?, dtype)),
        other => Err(node.refuse(format!("attribute `num_branches` = {other} with this rank"))),
    }
}

/// `[.., count * h]` as `[.., count, h]`.
fn split_last(node: &mut Lowering<'_, '_>, operand: Operand, count: i64) -> Result<Operand, LowerError> {
    let mut shape = vec![0; node.rank(&operand)? - 1];
    shape.extend([count, -1]);
    node.reshaped(operand, &shape)
}

fn normalized(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(2)?;
    let epsilon = node.float("epsilon")?.unwrap_or(1e-5);
    let (data, dtype) = branches(node)?;
    let hidden = node.extent(&data, -1, "a branch")?;
    let count = node.extent(&data, -2, "branches")?;
    let one = node.constant(Tensor::scalar(1f32));
    let shape = node.integers(&[hidden]);
    let ones = node.emit_one(Expand {}, vec![one, shape])?;
    let operator = LayerNormalization { axis: -1, epsilon, center: false, stash: DType::F32 };
    let mut result = node.emit_one(operator, vec![data, ones])?;
    let scale = node.cast(node.input(1), DType::F32)?;
    if scale != Operand::Absent {
        let whole = node.rank(&scale)? == 1 && node.extent(&scale, 0, "input `scale`")? != hidden;
        let scale = if whole { node.reshaped(scale, &[count, hidden])? } else { scale };
        result = node.binary(BinaryFunction::Mul, result, scale)?;
    }
    let result = node.cast(result, dtype)?;
    let like = node.required(0)?;
    Ok(vec![node.reshaped_like(result, like)?])
}

/// Factors of branches, `[.., c]` or `[.., c, 1 or h]`, or with `flat` `[.., c * h]`, for `[.., c, h]`, in f32.
fn factors(
    node: &mut Lowering<'_, '_>,
    (input, name): (usize, &str),
    branches: Operand,
    flat: bool,
) -> Result<Operand, LowerError> {
    let given = node.required(input)?;
    let given = node.cast(given, DType::F32)?;
    let rank = node.rank(&branches)?;
    if node.rank(&given)? == rank {
        return Ok(given);
    }
    if node.rank(&given)? + 1 != rank {
        return Err(node.refuse(format!("input `{name}` of this rank")));
    }
    let count = node.extent(&branches, -2, "branches")?;
    match node.extent(&given, -1, name)? {
        found if found == count => node.unsqueezed(given, &[-1]),
        _ if flat => split_last(node, given, count),
        found => Err(node.refuse(format!("input `{name}` for {found} branches of {count}"))),
    }
}

/// The sum of all branches, each multiplied by its factors.
fn mixed_before(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(2)?;
    let scale = node.float("reduction_scale")?.unwrap_or(1.0);
    let (data, dtype) = branches(node)?;
    let flat = node.int("num_branches")?.unwrap_or(0) > 0;
    let factors = factors(node, (1, "pre_mix"), data, flat)?;
    let weighted = node.binary(BinaryFunction::Mul, data, factors)?;
    let axis = node.integers(&[-2]);
    let sum = Reduce { function: ReduceFunction::Sum, keep_axes: false, keep_without_axes: false };
    let sum = node.emit_one(sum, vec![weighted, axis])?;
    let sum = node.times(sum, scale)?;
    Ok(vec![node.cast(sum, dtype)?])
}

/// Branches mixed by a matrix, plus the output of a block multiplied by the factors of each.
fn mixed_after(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(4)?;
    let (data, dtype) = branches(node)?;
    let factors = factors(node, (2, "post_mix"), data, false)?;
    let mut mixed = data;
    let matrix = node.cast(node.input(3), DType::F32)?;
    if matrix != Operand::Absent {
        let rank = node.rank(&matrix)? as i64;
        if rank < 2 {
            return Err(node.refuse("input `stream_mix` of this rank"));
        }
        let mut permutation: Vec<i64> = (0..rank).collect();
        permutation.swap(rank as usize - 2, rank as usize - 1);
        let matrix = node.transposed(matrix, permutation)?;
        mixed = node.product(matrix, data, false)?;
    }
    let block = node.required(1)?;
    let block = node.cast(block, DType::F32)?;
    let block = node.unsqueezed(block, &[-2])?;
    let added = node.binary(BinaryFunction::Mul, factors, block)?;
    let result = node.plus(mixed, added)?;
    let result = node.cast(result, dtype)?;
    let like = node.required(0)?;
    Ok(vec![node.reshaped_like(result, like)?])
}
