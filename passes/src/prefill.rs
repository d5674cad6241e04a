//! Give each entry of a language model a second one that computes the scores of the last position only.
//!
//! ```text
//! // prefill logits
//! source "model.onnx"
//! constant @w : f32[4, 9] = stored 0 raw_data 1024+144
//! entry "decode"("x") -> ("logits") = block 0
//! block 0(%x : f32[b, n, 4]) {
//!   %y : f32[b, n, 4] = unary function=exp %x
//!   %l : f32[b, n, 9] = matmul %y, @w
//!   return %l
//! }
//! ```
//! becomes
//! ```text
//! source "model.onnx"
//! constant @w : f32[4, 9] = stored 0 raw_data 1024+144
//! constant @1 : i64[1] = i64[1]:ffffffffffffffff
//! entry "decode"("x") -> ("logits") = block 0
//! entry "prefill"("x") -> ("logits") = block 1
//! block 0(%x : f32[b, n, 4]) {
//!   %y : f32[b, n, 4] = unary function=exp %x
//!   %l : f32[b, n, 9] = matmul %y, @w
//!   return %l
//! }
//! block 1(%3 "x" : f32[b, n, 4]) {
//!   %4 "y" : f32[b, n, 4] = unary function=exp %3
//!   %6 : f32[b, 1, 4] = gather axis=1 %4, @1
//!   %5 "l" : f32[b, 1, 9] = matmul %6, @w
//!   return %5
//! }
//! ```
//!
//! A prompt is read for what it leaves in the cache and for the token that follows it: the scores of its other positions, a
//! row of the vocabulary each, are not wanted. Both entries have the same constants and states. Runs after the passes that
//! choose how constants are stored, so that there is one of each weight.
//!
//! Establishes: the output has the extent 1 along axis 1 in the new entry, and its bits are those of the last position.
//! Leaves alone: the entry that is there. Cost: one copy of each step.

use crate::error::PassError;
use crate::ir::{BlockTyping, Changes, Constant, ConstantData, Entry, Graph, Operand, Step, ValueId};
use crate::options::Options;
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{BlockInference, Gather, Op};
use ipuc_formats::tensor::Tensor;

/// Name of the entry that this pass adds.
pub const PREFILL: &str = "prefill";

/// The axis of positions.
const POSITIONS: usize = 1;

/// Apply [`Options::prefill`]; see the module.
///
/// # Errors
/// [`PassError::Prefill`] where there is not one entry with such an output of rank 3.
pub fn prefill(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    let Some(output) = &options.prefill else { return Ok(Changes::default()) };
    let failure = |reason: &str| PassError::Prefill { output: output.clone(), reason: reason.to_string() };
    let [entry] = graph.entries.as_slice() else { return Err(failure("the model has not one entry, but several")) };
    let entry = entry.clone();
    let Some(port) = entry.outputs.iter().position(|name| name == output) else {
        return Err(failure("the model has no such output"));
    };
    let block = graph.copy_block(entry.block).ok_or_else(|| failure("a step of the model cannot be copied"))?;
    let result = graph.block(block).results[port];
    let Operand::Value(scores) = result else { return Err(failure("it is not computed")) };
    if rank(graph, result) != Some(3) {
        return Err(failure("its shape is not [batch, positions, vocabulary]"));
    }
    take_last(graph, block, port, scores)?;
    retype(graph, block)?;
    let steps = graph.block(block).steps.len();
    graph.entries.push(Entry { name: PREFILL.to_string(), block, ..entry });
    Ok(Changes::of_steps(steps))
}

fn rank(graph: &Graph, operand: Operand) -> Option<usize> {
    graph.fact(operand).and_then(|fact| Some(fact.dims()?.len()))
}

/// Have a result computed from the last position: of what the product with the vocabulary takes, else of the result.
fn take_last(graph: &mut Graph, index: BlockIndex, port: usize, scores: ValueId) -> Result<(), PassError> {
    let last = Tensor::from_elements(&[1], &[-1i64]).map_err(|error| PassError::Prefill {
        output: graph.value(scores).name.as_deref().unwrap_or_default().to_string(),
        reason: error.to_string(),
    })?;
    let last = graph.add_constant(Constant {
        name: None,
        dtype: DType::I64,
        shape: vec![1],
        data: ConstantData::Tensor(last),
        origin: None,
        encoding: None,
        zeros: None,
    });
    let producer = graph.block(index).steps.iter().position(|step| step.results == [scores]);
    let product = producer.filter(|&at| is_product_of_rows(graph, &graph.block(index).steps[at]));
    let taken = match product {
        Some(at) => graph.block(index).steps[at].operands[0],
        None => Operand::Value(scores),
    };
    let fact = graph.fact(taken).unwrap_or_else(|| graph.value(scores).fact.clone());
    let result = graph.add_value(fact, None);
    let name = producer.map_or_else(|| "".into(), |at| graph.block(index).steps[at].name.clone());
    let gather = Gather { axis: POSITIONS as i64 }.into();
    let step = Step { op: gather, operands: vec![taken, Operand::Constant(last)], results: vec![result], name };
    let block = graph.block_mut(index);
    match product {
        Some(at) => {
            block.steps[at].operands[0] = Operand::Value(result);
            block.steps.insert(at, step);
        }
        None => {
            block.steps.push(step);
            block.results[port] = Operand::Value(result);
        }
    }
    Ok(())
}

/// A product whose row of results depends on the same row of its first operand, and on constants that all rows share.
fn is_product_of_rows(graph: &Graph, step: &Step) -> bool {
    let Op::Matmul(product) = &step.op else { return false };
    let (Some(&rows), Some(&weight)) = (step.operands.first(), step.operands.get(1)) else { return false };
    let shared = |&operand: &Operand| match operand {
        Operand::Absent => true,
        Operand::Constant(_) => rank(graph, operand).is_some_and(|rank| rank <= 1),
        Operand::Value(_) => false,
    };
    let plain = !product.transpose_a && rank(graph, rows) == Some(3);
    let weight = matches!(weight, Operand::Constant(_)) && rank(graph, weight) == Some(2);
    plain && weight && step.operands[2..].iter().all(shared)
}

/// Derive the types of all values of a block anew.
fn retype(graph: &mut Graph, index: BlockIndex) -> Result<(), PassError> {
    let parameters = &graph.block(index).parameters;
    let parameters: Vec<Fact> = parameters.iter().map(|&value| graph.value(value).fact.clone()).collect();
    let mut typing = BlockTyping::new(graph);
    let typed = typing.infer_block(index, &parameters);
    let recorded = typing.recorded;
    typed.map_err(|error| PassError::Type { step: PREFILL.to_string(), operator: "entry", error })?;
    for (value, fact) in recorded {
        graph.value_mut(value).fact = fact;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::text::parse;

    #[test]
    fn what_has_no_scores_of_positions_is_refused() {
        const ENTRY: &str = "entry \"main\"(\"x\") -> (\"y\") = block 0\nblock 0(%x : f32[n, 4]) {\n  return %x\n}\n";
        for (text, output, expected) in [
            (ENTRY.to_string(), "logits", "the model has no such output"),
            (ENTRY.to_string(), "y", "its shape is not [batch, positions, vocabulary]"),
            (
                format!(
                    "entry \"other\"(\"x\") -> (\"y\") = block 1\n{ENTRY}block 1(%z : f32[n]) {{\n  return %z\n}}\n"
                ),
                "y",
                "the model has not one entry, but several",
            ),
        ] {
            let mut graph = parse(&text).unwrap();
            let options = Options { prefill: Some(output.to_string()), ..Options::default() };
            let Err(PassError::Prefill { reason, .. }) = prefill(&mut graph, &options) else { panic!("{text}") };
            assert_eq!(reason, expected, "{text}");
        }
    }
}
