//! Derive the type, symbolic shape and shape-relevant contents of every value.
//!
//! ```text
//! source "model.onnx"
//! constant @w : f32[32, 64] = stored 0 raw_data 1024+8192
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[batch, 32]) {
//!   %y : f32[..] = matmul %x, @w
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! source "model.onnx"
//! constant @w : f32[32, 64] = stored 0 raw_data 1024+8192
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[batch, 32]) {
//!   %y : f32[batch, 64] = matmul %x, @w
//!   return %y
//! }
//! ```
//!
//! Establishes: the fact of each result is what its operator infers from the facts of its operands; equations between
//! dimensions that symbols cannot decide are in [`Graph::obligations`]. Values of bodies hold what is true in every
//! iteration. Leaves alone: parameters of entries, constants, the steps themselves. Cost: one visit a step, a few for
//! bodies of loops.

use crate::error::PassError;
use crate::ir::{BlockTyping, Changes, Graph, ValueId};
use crate::options::Options;
use ipuc_formats::dim::Dim;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{InferContext, Obligation};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Derive facts of all values; see the module.
///
/// # Errors
/// [`PassError::Type`] for the first step whose operands do not fit.
pub fn infer(graph: &mut Graph, _options: &Options) -> Result<Changes, PassError> {
    let mut changes = 0;
    let mut obligations = Vec::new();
    for entry in 0..graph.entries.len() {
        let block = graph.entries[entry].block;
        let bindable = entry_symbols(graph, entry);
        for index in 0..graph.block(block).steps.len() {
            let (facts, found) = infer_step(graph, block, index)?;
            // What depends on data is checked by the kernels, which see the data.
            let decidable = |side: &Dim| side.symbols().iter().all(|symbol| bindable.contains(symbol));
            obligations.extend(found.into_iter().filter(|one| decidable(&one.left) && decidable(&one.right)));
            for (value, fact) in facts {
                let slot = &mut graph.value_mut(value).fact;
                if *slot != fact {
                    *slot = fact;
                    changes += 1;
                }
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    obligations.retain(|one: &Obligation| seen.insert((one.relation, one.left.clone(), one.right.clone())));
    graph.obligations = obligations;
    Ok(Changes::of_annotations(changes))
}

/// Facts of one step's results and of the values of its bodies, with what is left to the bind.
#[expect(clippy::type_complexity, reason = "two lists of one call")]
fn infer_step(
    graph: &Graph,
    block: ipuc_formats::attribute::BlockIndex,
    index: usize,
) -> Result<(Vec<(ValueId, Fact)>, Vec<Obligation>), PassError> {
    let step = &graph.block(block).steps[index];
    let inputs = graph.facts(&step.operands);
    let mut typing = BlockTyping::new(graph);
    let mut context = InferContext::new(&step.name, &graph.ranges, &mut typing);
    let failure = |error| PassError::Type { step: step.name.to_string(), operator: step.op.name(), error };
    let results = step.op.operator().infer(&inputs, &mut context).map_err(failure)?;
    let obligations = std::mem::take(&mut context.obligations);
    let mut facts: Vec<(ValueId, Fact)> = typing.recorded.into_iter().collect();
    facts.extend(step.results.iter().copied().zip(results));
    Ok((facts, obligations))
}

/// Symbols that the inputs of an entry bind.
fn entry_symbols(graph: &Graph, entry: usize) -> BTreeSet<Arc<str>> {
    let block = graph.block(graph.entries[entry].block);
    let parameters = block.parameters.iter().filter_map(|&value| graph.value(value).fact.dims());
    parameters.flatten().flat_map(Dim::symbols).collect()
}
