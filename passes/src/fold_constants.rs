//! Replace what can be computed now by its value.
//!
//! ```text
//! constant @one : i64[1] = i64[1]:0100000000000000
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[64]) {
//!   %s : i64[1] = shape start=0 %x
//!   %c : i64[1] = binary function=add %s, @one
//!   return %c
//! }
//! ```
//! becomes
//! ```text
//! constant @c : i64[1] = i64[1]:4100000000000000
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[64]) {
//!   return @c
//! }
//! ```
//!
//! Establishes: no pure step with tensor results of up to [`FOLDED_BYTES`] has only constant operands; no value has
//! contents that are all numbers. A larger result becomes a *recipe*: a constant that is computed while its bytes are
//! emitted, so that the weight behind it is stored once; larger text stays a step;
//! dequantized codes of matrices of any size are recipes, those too that an exporter scales by steps of its own
//! (`Mul(Cast(codes), scale)`). Parameters of bodies whose contents are known are constants too.
//! Values are those that [`Graph::evaluator`] gives: where the runtime's kernels are handed in, the bits of a run but
//! for gates of several steps.
//! Leaves alone: products with codes; random steps and steps whose bodies hold such, sequences; it runs no bodies.
//! Cost: one visit a step, plus the work of each folded one.

mod dequantization;

use crate::error::PassError;
use crate::ir::{
    Changes, Constant, ConstantData, ConstantError, ConstantId, Graph, Operand, Step, ValueId, substitute,
};
use crate::options::Options;
use dequantization::{dequantization, is_part};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::is_code;
use ipuc_formats::fact::{Contents, Fact, Shape};
use ipuc_formats::ops::{Class, Effect, Op};
use ipuc_formats::tensor::{Tensor, element_count};
use ipuc_formats::value::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Results up to this size are computed at once.
pub const FOLDED_BYTES: usize = 1 << 20;

/// Transposes of weights above this size stay recipes, so that products may take the weight as it is.
const FOLDED_TRANSPOSE_BYTES: usize = 1 << 10;

/// Compute what is constant; see the module.
///
/// # Errors
/// [`PassError::Constant`] where a weight cannot be read or an operator fails on its constants.
pub fn fold_constants(graph: &mut Graph, _options: &Options) -> Result<Changes, PassError> {
    let mut changes = 0;
    for index in graph.reachable_blocks() {
        let mut folded = known_parameters(graph, index);
        changes += folded.len();
        let steps = std::mem::take(&mut graph.block_mut(index).steps);
        let mut kept = Vec::with_capacity(steps.len());
        for mut step in steps {
            substitute(&mut step.operands, &folded);
            match fold(graph, &step)? {
                Some(constants) => {
                    changes += 1;
                    folded.extend(step.results.iter().copied().zip(constants));
                }
                None => kept.push(step),
            }
        }
        let block = graph.block_mut(index);
        block.steps = kept;
        substitute(&mut block.results, &folded);
    }
    Ok(Changes::of_steps(changes))
}

/// Parameters of a body that are the same known numbers in every run of it, and are used.
fn known_parameters(graph: &mut Graph, index: BlockIndex) -> HashMap<ValueId, Operand> {
    let block = graph.block(index);
    let read = block.steps.iter().flat_map(|step| &step.operands).chain(&block.results);
    let read: HashSet<Operand> = read.copied().collect();
    let used = block.parameters.iter().filter(|&&parameter| read.contains(&Operand::Value(parameter)));
    let known = used.filter_map(|&parameter| {
        let value = graph.value(parameter);
        Some((parameter, Constant::of(contents(&value.fact)?, value.name.as_deref())))
    });
    let known: Vec<(ValueId, Constant)> = known.collect();
    known.into_iter().map(|(value, constant)| (value, Operand::Constant(graph.add_constant(constant)))).collect()
}

/// The constants that a step's results are, or `None` where they are not.
fn fold(graph: &mut Graph, step: &Step) -> Result<Option<Vec<Operand>>, PassError> {
    if graph.effect(step) != Effect::Pure {
        return Ok(None);
    }
    if let Some(tensors) = known_contents(graph, step) {
        return Ok(Some(add_constants(graph, step, tensors)));
    }
    if !step.op.blocks().is_empty() {
        return Ok(None);
    }
    let Some(operands) = constant_operands(step) else { return Ok(None) };
    // A run multiplies codes as they are, and rounds otherwise than a product of floats.
    let of_codes = |id: &ConstantId| graph.quantized(*id).is_some();
    if matches!(step.op.class(), Class::Product(_)) && operands.iter().flatten().any(of_codes) {
        return Ok(None);
    }
    let sizes: Option<Vec<(Vec<usize>, usize)>> = step.results.iter().map(|&result| size(graph, result)).collect();
    let Some(sizes) = sizes else { return Ok(None) };
    if let Some(constant) = dequantization(graph, step, &operands) {
        return Ok(Some(vec![Operand::Constant(graph.add_constant(constant))]));
    }
    let is_text = step.results.iter().any(|&result| graph.value(result).fact.dtype() == Some(DType::String));
    // The length of text is known once it is computed, so that it has no recipe.
    let limit = if is_text { FOLDED_BYTES } else { most_folded_bytes(graph, &step.op, &operands) };
    if sizes.iter().all(|(_, bytes)| *bytes <= limit) {
        let tensors = evaluate(graph, &step.op, &operands, &step.name)?;
        return Ok(tensors.map(|tensors| add_constants(graph, step, tensors)));
    }
    match (step.results.as_slice(), sizes.as_slice()) {
        ([result], [(shape, _)]) if !is_text => {
            let name = graph.value(*result).name.clone().or_else(|| Some(step.name.clone()));
            let Some(dtype) = graph.value(*result).fact.dtype() else { return Ok(None) };
            let data = ConstantData::Recipe { op: step.op.clone(), operands };
            let constant =
                Constant { name, dtype, shape: shape.clone(), data, origin: None, encoding: None, zeros: None };
            Ok(Some(vec![Operand::Constant(graph.add_constant(constant))]))
        }
        _ => Ok(None),
    }
}

/// Results of a step up to this size are computed at once.
fn most_folded_bytes(graph: &Graph, op: &Op, operands: &[Option<ConstantId>]) -> usize {
    let first = operands.first().copied().flatten();
    let of_codes = first.is_some_and(|id| graph.quantized(id).is_some());
    match op {
        // Codes of a matrix are a weight; a vector of them is a bias or a parameter.
        Op::Dequantize(_) => first.map_or(FOLDED_BYTES, |id| {
            let codes = graph.constant(id);
            let is_integer = is_code(codes.dtype) || matches!(codes.dtype, DType::I16 | DType::U16);
            if is_integer && codes.shape.len() >= 2 { 0 } else { FOLDED_BYTES }
        }),
        Op::Transpose(_) if of_codes => 0,
        op if is_part(graph, op, operands) => 0,
        Op::Transpose(_) => FOLDED_TRANSPOSE_BYTES,
        _ => FOLDED_BYTES,
    }
}

/// The results' contents, where facts alone give all of them as numbers.
fn known_contents(graph: &Graph, step: &Step) -> Option<Vec<Tensor>> {
    step.results.iter().map(|&result| contents(&graph.value(result).fact)).collect()
}

fn contents(fact: &Fact) -> Option<Tensor> {
    match fact.contents.as_ref()? {
        Contents::Constant(tensor) => Some(tensor.clone()),
        Contents::Dims(_) => {
            let (dtype, shape) = fact.kind.as_tensor()?;
            ipuc_formats::fact::tensor_of_integers(dtype, &shape.as_known()?, &fact.elements_as_integers()?)
        }
    }
}

fn add_constants(graph: &mut Graph, step: &Step, tensors: Vec<Tensor>) -> Vec<Operand> {
    let named = step.results.iter().zip(tensors).map(|(&result, tensor)| {
        let name: Option<Arc<str>> = graph.value(result).name.clone();
        Operand::Constant(graph.add_constant(Constant::of(tensor, name.as_deref())))
    });
    named.collect()
}

/// The operands, where all of them are constants or absent.
fn constant_operands(step: &Step) -> Option<Vec<Option<ConstantId>>> {
    step.operands
        .iter()
        .map(|operand| match operand {
            Operand::Absent => Some(None),
            Operand::Constant(id) => Some(Some(*id)),
            Operand::Value(_) => None,
        })
        .collect()
}

/// Shape and bytes of a value of known shape (strings count 64 bytes each).
fn size(graph: &Graph, value: ValueId) -> Option<(Vec<usize>, usize)> {
    let (dtype, shape) = graph.value(value).fact.kind.as_tensor()?;
    let shape: &Shape = shape;
    let extents = shape.as_known()?;
    let count = element_count(&extents)?;
    let bytes = dtype.packed_bytes(count).or_else(|| count.checked_mul(64))?;
    Some((extents, bytes))
}

fn evaluate(
    graph: &Graph,
    op: &Op,
    operands: &[Option<ConstantId>],
    step: &str,
) -> Result<Option<Vec<Tensor>>, PassError> {
    let inputs: Vec<Option<Value>> = operands
        .iter()
        .map(|operand| operand.map(|id| graph.load_constant(id).map(Value::Tensor)).transpose())
        .collect::<Result<_, _>>()?;
    let results = graph.evaluator.results(op, &inputs).map_err(|error| ConstantError::Recipe {
        tensor: step.to_string(),
        operator: op.name(),
        error,
    })?;
    let tensors = results.into_iter().map(|value| match value {
        Value::Tensor(tensor) => Some(tensor),
        Value::Sequence { .. } | Value::Optional { .. } | Value::Map { .. } => None,
    });
    Ok(tensors.collect())
}
