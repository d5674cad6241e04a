//! Keep quantized weights as codes: choose the encoding in which the steps that read them take them.
//!
//! ```text
//! constant @codes : i8[64, 128] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @scale : f32[128] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! constant @w : f32[64, 128] = dequantize axis=1 block_size=0 @codes, @scale
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 64]) {
//!   %y : f32[n, 128] = matmul %x, @w
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @codes : i8[64, 128] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @scale : f32[128] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! constant @w : f32[64, 128] = dequantize axis=1 block_size=0 @codes, @scale as panels dtype=i8 groups=1 outputs=128 inputs=64 output_axis=1 interleave=4 cut=256 planes=["scale f32 0"] because "the model has i8 codes, and products read it"
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 64]) {
//!   %y : f32[n, 128] = matmul %x, @w
//!   return %y
//! }
//! ```
//!
//! Nothing is rounded: codes and parameters are stored as they are, and mean `(code - zero) * scale` as before. Constants that
//! dequantize the same codes in the same way become one, wherever the same bytes lie.
//! Establishes: every constant that dequantizes codes and that only products read as one matrix is stored in panels of
//! codes, one of which rows are read in panels or rows of codes; where no encoding can hold it (blocks along outputs, blocks
//! of other sizes, other readers), its codes are stored plainly and a `dequantize` step stands before its first reader.
//! Leaves alone: constants of other kinds, and small ones ([`SMALL_BYTES`]) without an encoding: those are stored as
//! values. Cost: one visit a step.

mod same;

use crate::error::PassError;
use crate::ir::{Changes, ChosenEncoding, ConstantData, ConstantId, Graph, Operand, Quantized, Step, Uses, ValueId};
use crate::options::Options;
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::encodings::{Coded, Logical, Panels, Planes, Rows};
use ipuc_formats::fact::{Fact, Shape};
use ipuc_formats::ops::WeightMatrix;
use std::collections::HashMap;

/// Constants up to this size are stored as values where no encoding takes their codes.
pub const SMALL_BYTES: u64 = 1 << 10;

/// Choose encodings of quantized constants; see the module.
///
/// # Errors
/// [`PassError::Constant`] where a tensor that may be the same as another cannot be read.
pub fn quantize(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    let mut changes = Changes::of_steps(same::merge(graph, options.sizes_only)?);
    let mut plain = Vec::new();
    for (id, uses) in graph.uses() {
        if graph.constant(id).encoding.is_some() {
            continue;
        }
        let Some(quantized) = graph.quantized(id) else { continue };
        match choose(graph, id, &quantized, &uses) {
            Some(chosen) => {
                graph.constant_mut(id).encoding = Some(chosen);
                changes.annotations += 1;
            }
            None if graph.constant(id).byte_count() > SMALL_BYTES => plain.push(id),
            None => {}
        }
    }
    for index in graph.reachable_blocks() {
        changes.steps += materialize(graph, index, &plain);
    }
    Ok(changes)
}

/// The encoding that takes the codes of a constant as they are; `None` where there is none.
fn choose(graph: &Graph, id: ConstantId, quantized: &Quantized, uses: &Uses) -> Option<ChosenEncoding> {
    let constant = graph.constant(id);
    let code = graph.constant(quantized.codes).dtype;
    let [rows, inputs] = constant.shape.as_slice() else {
        return panels(graph, id, quantized, *uses.matrices.first()?, uses);
    };
    if let Some(&matrix) = uses.matrices.first() {
        return panels(graph, id, quantized, matrix, uses);
    }
    if uses.others > 0 || uses.rows == 0 {
        return None;
    }
    let matrix = WeightMatrix { groups: 1, inputs: *inputs as u64, outputs: *rows as u64, output_axis: 0 };
    let planes = Planes(graph.planes(quantized, &constant.shape, matrix)?);
    let reason = format!("the model has {code} codes, and only single rows are read");
    checked(graph, id, Rows { dtype: code, planes }.into(), reason)
}

/// Panels, where all products see the constant as the same matrix; rows may be read of them too.
fn panels(
    graph: &Graph,
    id: ConstantId,
    quantized: &Quantized,
    matrix: WeightMatrix,
    uses: &Uses,
) -> Option<ChosenEncoding> {
    let constant = graph.constant(id);
    let code = graph.constant(quantized.codes).dtype;
    uses.matrix_in_panels(&constant.shape)?;
    let planes = graph.planes(quantized, &constant.shape, matrix)?;
    let readers = if uses.rows > 0 { "products read all of it, others single rows" } else { "products read it" };
    let reason = format!("the model has {code} codes, and {readers}");
    checked(graph, id, Panels::codes(code, matrix, planes).into(), reason)
}

fn checked(graph: &Graph, id: ConstantId, encoding: Coded, reason: String) -> Option<ChosenEncoding> {
    let constant = graph.constant(id);
    let shape: Vec<u64> = constant.shape.iter().map(|&extent| extent as u64).collect();
    encoding.check(Logical { dtype: constant.dtype, shape: &shape }).ok()?;
    Some(ChosenEncoding { encoding, by_budget: false, reason })
}

/// Put a step before the first reader of each of these constants, in its place.
fn materialize(graph: &mut Graph, index: BlockIndex, plain: &[ConstantId]) -> usize {
    let mut computed: HashMap<ConstantId, ValueId> = HashMap::new();
    let steps = std::mem::take(&mut graph.block_mut(index).steps);
    let mut kept = Vec::with_capacity(steps.len());
    for mut step in steps {
        for operand in &mut step.operands {
            replace(graph, operand, plain, &mut computed, &mut kept);
        }
        kept.push(step);
    }
    let mut results = std::mem::take(&mut graph.block_mut(index).results);
    for operand in &mut results {
        replace(graph, operand, plain, &mut computed, &mut kept);
    }
    let block = graph.block_mut(index);
    (block.steps, block.results) = (kept, results);
    computed.len()
}

fn replace(
    graph: &mut Graph,
    operand: &mut Operand,
    plain: &[ConstantId],
    computed: &mut HashMap<ConstantId, ValueId>,
    steps: &mut Vec<Step>,
) {
    let Operand::Constant(id) = *operand else { return };
    if plain.binary_search(&id).is_err() {
        return;
    }
    let value = match computed.get(&id) {
        Some(&value) => value,
        None => {
            let constant = graph.constant(id).clone();
            let ConstantData::Recipe { op, operands } = constant.data else { return };
            let operands = operands.iter().map(|operand| operand.map_or(Operand::Absent, Operand::Constant)).collect();
            let name = constant.name.as_deref();
            let value = graph.add_value(Fact::tensor(constant.dtype, Shape::known(&constant.shape)), name);
            steps.push(Step { op, operands, results: vec![value], name: name.unwrap_or_default().into() });
            computed.insert(id, value);
            value
        }
    };
    *operand = Operand::Value(value);
}
