//! Make one entry of several models, each of which reads what those before it give.
//!
//! ```text
//! // join decode=embed,text,head
//! entry "embed"("tokens") -> ("rows") = block 0
//! entry "text"("rows", "mask") -> ("hidden") = block 1
//! entry "head"("hidden") -> ("logits") = block 2
//! block 0(%tokens : f32[b, n]) {
//!   %rows : f32[b, n] = unary function=exp %tokens
//!   return %rows
//! }
//! block 1(%r : f32[batch, length], %mask : f32[batch, length]) {
//!   %hidden : f32[batch, length] = binary function=mul %r, %mask
//!   return %hidden
//! }
//! block 2(%h : f32[x, y]) {
//!   %logits : f32[x, y] = unary function=neg %h
//!   return %logits
//! }
//! ```
//! becomes
//! ```text
//! entry "decode"("tokens", "mask") -> ("logits") = block 6
//! block 6(%tokens : f32[b, n], %mask : f32[b, n]) {
//!   %rows : f32[b, n] = unary function=exp %tokens
//!   %hidden : f32[b, n] = binary function=mul %rows, %mask
//!   %logits : f32[b, n] = unary function=neg %hidden
//!   return %logits
//! }
//! ```
//!
//! Ports meet by their names. An input that no part gives is one of the entry, once for all parts that read it; an output that no
//! later part reads is one of the entry. Extents of a part's inputs that have names of their own are those of what the input is
//! given.
//!
//! Establishes: the joined entries are there, and the entries that they are made of are not. Leaves alone: other entries, constants,
//! which the parts of several entries share. Cost: one copy of each step.

use crate::error::PassError;
use crate::infer::infer;
use crate::ir::{Changes, Entry, Graph, Operand, Step, ValueId, substitute};
use crate::options::{Joined, Options, Part};
use ipuc_formats::dim::Dim;
use ipuc_formats::fact::{Fact, Shape, Type};
use std::collections::HashMap;

/// Apply [`Options::joined`]; see the module.
///
/// # Errors
/// [`PassError::Join`] where a part is not there, two parts give the same, or what one gives does not fit another.
pub fn join(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    if options.joined.is_empty() {
        return Ok(Changes::default());
    }
    // What parts give is known by its type, and what they are given changes that of what they compute.
    infer(graph, options)?;
    let before = graph.step_count();
    let mut entries = Vec::new();
    for joined in &options.joined {
        entries.push(join_entry(graph, joined)?);
    }
    let is_part =
        |entry: &Entry| options.joined.iter().any(|joined| joined.parts.iter().any(|part| part.entry == entry.name));
    graph.entries.retain(|entry| !is_part(entry));
    graph.entries.extend(entries);
    infer(graph, options)?;
    Ok(Changes::of_steps(before.max(1)))
}

/// What the entry has so far.
#[derive(Default)]
struct Chain {
    inputs: Vec<String>,
    parameters: Vec<ValueId>,
    steps: Vec<Step>,
    /// Name, what it is, and whether a later part has read it.
    outputs: Vec<(String, Operand, bool)>,
}

fn join_entry(graph: &mut Graph, joined: &Joined) -> Result<Entry, PassError> {
    let mut chain = Chain::default();
    for part in &joined.parts {
        let failure =
            |reason: String| PassError::Join { entry: joined.entry.clone(), part: part.entry.clone(), reason };
        let found = graph.entries.iter().find(|entry| entry.name == part.entry).cloned();
        let entry = found.ok_or_else(|| failure("there is no such model".to_string()))?;
        chain.add(graph, &entry, part).map_err(failure)?;
    }
    let block = graph.add_block();
    let (outputs, results) =
        chain.outputs.into_iter().filter(|(_, _, is_read)| !is_read).map(|(name, operand, _)| (name, operand)).unzip();
    let written = graph.block_mut(block);
    (written.parameters, written.steps, written.results) = (chain.parameters, chain.steps, results);
    Ok(Entry { name: joined.entry.clone(), block, inputs: chain.inputs, outputs, states: Vec::new() })
}

impl Chain {
    fn add(&mut self, graph: &mut Graph, entry: &Entry, part: &Part) -> Result<(), String> {
        let copy = graph.copy_block(entry.block).ok_or("a step of it cannot be copied")?;
        let block = std::mem::take(graph.block_mut(copy));
        let mut given: HashMap<ValueId, Operand> = HashMap::new();
        let mut extents: HashMap<String, Dim> = HashMap::new();
        let mut own = Vec::new();
        for (name, parameter) in entry.inputs.iter().zip(block.parameters) {
            let Some(operand) = self.find(name) else {
                own.push((name, parameter));
                continue;
            };
            let fact = graph.fact(operand).ok_or_else(|| format!("`{name}` is given nothing"))?;
            meet(&graph.value(parameter).fact.kind, &fact.kind, &mut extents).ok_or_else(|| {
                format!("its input `{name}` is {}, and is given {}", graph.value(parameter).fact.kind, fact.kind)
            })?;
            given.insert(parameter, operand);
        }
        for (name, parameter) in own {
            let fact = &mut graph.value_mut(parameter).fact;
            *fact = Fact { kind: renamed(&fact.kind, &extents), ..fact.clone() };
            self.inputs.push(name.clone());
            self.parameters.push(parameter);
        }
        for mut step in block.steps {
            substitute(&mut step.operands, &given);
            self.steps.push(step);
        }
        let mut results = block.results;
        substitute(&mut results, &given);
        for (name, operand) in entry.outputs.iter().zip(results) {
            let name = part.renamed.iter().find(|(own, _)| own == name).map_or(name, |(_, other)| other);
            if self.outputs.iter().any(|(other, _, _)| other == name) {
                return Err(format!("its output `{name}` is one of another part"));
            }
            self.outputs.push((name.clone(), operand, false));
        }
        Ok(())
    }

    /// What an input of this name is given: what a part before gives, or an input that is there already.
    fn find(&mut self, name: &str) -> Option<Operand> {
        if let Some((_, operand, is_read)) = self.outputs.iter_mut().find(|(output, _, _)| output == name) {
            *is_read = true;
            return Some(*operand);
        }
        let input = self.inputs.iter().position(|input| input == name)?;
        Some(Operand::Value(self.parameters[input]))
    }
}

/// Whether a value can be given to an input; notes what extents of the input are then that have names alone.
fn meet(input: &Type, given: &Type, extents: &mut HashMap<String, Dim>) -> Option<()> {
    let (Some((dtype, shape)), Some((found, given_shape))) = (input.as_tensor(), given.as_tensor()) else {
        return (input == given).then_some(());
    };
    if dtype != found {
        return None;
    }
    let (Some(dims), Some(given)) = (shape.dims(), given_shape.dims()) else { return Some(()) };
    if dims.len() != given.len() {
        return None;
    }
    for (dim, given) in dims.iter().zip(given) {
        match dim.as_symbol() {
            Some(symbol) => {
                extents.entry(symbol.to_string()).or_insert_with(|| given.clone());
            }
            None if dim.is_known() && given.is_known() && dim != given => return None,
            None => {}
        }
    }
    Some(())
}

/// A type with extents in place of names.
fn renamed(kind: &Type, extents: &HashMap<String, Dim>) -> Type {
    match kind {
        Type::Tensor { dtype, shape: Shape::Ranked(dims) } => {
            let replace = |symbol: &str| extents.get(symbol).cloned();
            Type::tensor(*dtype, dims.iter().map(|dim| dim.substitute(&replace)).collect::<Vec<_>>())
        }
        Type::Tensor { shape: Shape::Unranked, .. } | Type::Sequence(_) | Type::Optional(_) | Type::Map { .. } => {
            kind.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::text::parse;

    const PARTS: &str = r#"entry "one"("x") -> ("y") = block 0
entry "two"("y", "z") -> ("w") = block 1
block 0(%x : f32[n, 4]) {
  return %x
}
block 1(%y : f32[m, 5], %z : f32[m]) {
  return %y
}
"#;

    fn refused(text: &str, parts: &[&str]) -> String {
        let part = |entry: &&str| Part { entry: (*entry).to_string(), renamed: Vec::new() };
        let joined = Joined { entry: "all".to_string(), parts: parts.iter().map(part).collect() };
        let options = Options { joined: vec![joined], ..Options::default() };
        join(&mut parse(text).unwrap(), &options).unwrap_err().to_string()
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let other_extent = refused(PARTS, &["one", "two"]);
        assert_eq!(
            other_extent,
            "`two` cannot be a part of entry `all`: its input `y` is f32[m, 5], and is given f32[n, 4]"
        );
        let other_type = PARTS.replace("%y : f32[m, 5]", "%y : i64[m, 4]");
        assert!(refused(&other_type, &["one", "two"]).ends_with("its input `y` is i64[m, 4], and is given f32[n, 4]"));
        assert!(
            refused(PARTS, &["one", "three"])
                .ends_with("`three` cannot be a part of entry `all`: there is no such model")
        );
        let twice = PARTS.replace(r#"-> ("w")"#, r#"-> ("y")"#).replace("[m, 5]", "[m, 4]");
        assert!(refused(&twice, &["one", "two"]).ends_with("its output `y` is one of another part"));
    }
}
