//! Make state of what sessions keep from run to run, and append to it where it grows.
//!
//! ```text
//! // state past.*=present.*
//! entry "main"("x", "past.0") -> ("y", "present.0") = block 0
//! block 0(%x : f32[2, n], %p : f32[2, m]) {
//!   %c : f32[2, m + n] = concat axis=1 %p, %x
//!   %y : f32[2, m + n] = unary function=exp %c
//!   return %y, %c
//! }
//! ```
//! becomes
//! ```text
//! state "past.0" grows 1 page 128
//! entry "main"("x", "past.0") -> ("y", "present.0") = block 0 state 0 1=1
//! block 0(%x : f32[2, n], %p : f32[2, m]) {
//!   %c : f32[2, m + n] = append axis=1 %p, %x
//!   %y : f32[2, m + n] = unary function=exp %c
//!   return %y, %c
//! }
//! ```
//!
//! A `*` on the left of a pattern stands for any text, and for the same text on the right. Inputs and outputs of all
//! entries that a pattern gives the same name are one state; an entry may have only the input or only the output. The
//! pattern `auto` stands for the names that exporters give to caches.
//!
//! [`Options::left_out`] names inputs and outputs that an entry does without: of a model whose branch was chosen, the caches
//! that only the other branch reads or makes (`left_out`).
//!
//! [`Options::cache`] says how rows of f32 of state that grows are rounded: `append axis=2 rows=i8`.
//!
//! Establishes: inputs and outputs of a state have the same element type and rank; a state grows only where every entry
//! that reads and writes it joins it with new elements along one axis; a cache of a capacity, of which every such entry writes
//! positions of one axis (`tensor_scatter`, or `scatter_nd` at consecutive positions), is overwritten in its pages. Leaves alone: what is replaced from run to run.

mod left_out;
mod positions;

use crate::error::PassError;
use crate::ir::{Block, Changes, Graph, Operand, State, StateUse, Step, ValueId};
use crate::options::Options;
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Fact, Type};
use ipuc_formats::model::Growth;
use ipuc_formats::ops::{Append, Attention, CacheScatter, Concat, Expand, Op, RowScheme, ShapeOf, normalize_axis};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Positions of a page: as many as attention takes at a time.
const PAGE_POSITIONS: u32 = 128;

/// The pattern that stands for [`EXPORTED`].
const AUTO: &str = "auto";

/// Inputs and outputs that are caches, as transformers, Optimum and onnxruntime-genai name them.
const EXPORTED: &[(&str, &str)] = &[
    ("past_key_values.*", "present.*"),
    ("past_key_values_*", "present_key_values_*"),
    ("past_key_values.*", "present_key_values.*"),
    ("past_key_*", "present_key_*"),
    ("past_value_*", "present_value_*"),
    ("past_*", "present_*"),
    ("past.*", "present.*"),
];

/// Apply [`Options::states`]; see the module.
///
/// # Errors
/// [`PassError::State`] where a pattern is malformed, names nothing, or pairs what does not fit, [`PassError::LeftOut`] where an
/// entry cannot do without an input or output.
pub fn states(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    for (entry, port) in &options.left_out {
        left_out::leave_out(graph, entry, port)?;
    }
    let before = graph.states.len();
    for pattern in &options.states {
        if pattern == AUTO {
            let found = graph.states.len();
            for (input, output) in EXPORTED {
                mark(graph, input, output, true)?;
            }
            if graph.states.len() == found {
                return Err(failure(AUTO, "", "no entry has inputs and outputs with the names of caches"));
            }
            continue;
        }
        let (input, output) =
            pattern.split_once('=').ok_or_else(|| failure(pattern, "", "a state is written IN=OUT"))?;
        if !mark(graph, input, output, false)? {
            return Err(failure(input, output, "no entry has such an input and output"));
        }
    }
    for entry in 0..graph.entries.len() {
        separate_caches(graph, entry);
        positions::write_along_axes(graph, entry)?;
    }
    let grown = (before..graph.states.len()).map(|state| grow(graph, state, options.cache)).sum();
    if options.cache.is_some() && graph.states.iter().all(|state| state.growth.and_then(|growth| growth.rows).is_none())
    {
        return Err(PassError::Cache);
    }
    Ok(Changes { steps: grown, annotations: graph.states.len() - before })
}

fn failure(input: &str, output: &str, reason: impl Into<String>) -> PassError {
    PassError::State { input: input.to_string(), output: output.to_string(), reason: reason.into() }
}

/// Where a state is an input and where it is an output: entry and position.
#[derive(Default)]
struct Ports {
    inputs: Vec<(usize, usize)>,
    outputs: Vec<(usize, usize)>,
}

/// Make states of all pairs that a pattern names; where it is only tried, what is state already or does not fit is left out.
fn mark(graph: &mut Graph, input: &str, output: &str, tried: bool) -> Result<bool, PassError> {
    let mut found: BTreeMap<String, Ports> = BTreeMap::new();
    let mut names: Vec<String> = Vec::new();
    for (at, entry) in graph.entries.iter().enumerate() {
        for (position, name) in entry.inputs.iter().enumerate() {
            if matched(input, name).is_some() {
                found.entry(name.clone()).or_default().inputs.push((at, position));
                names.push(name.clone());
            }
        }
    }
    for (at, entry) in graph.entries.iter().enumerate() {
        for (position, name) in entry.outputs.iter().enumerate() {
            let Some(middle) = matched(output, name) else { continue };
            if let Some(ports) = found.get_mut(&input.replacen('*', middle, 1)) {
                ports.outputs.push((at, position));
            }
        }
    }
    let mut marked = false;
    for name in names {
        let Some(ports) = found.remove(&name) else { continue };
        // A pattern may match inputs that are no state; a plain name may not.
        if ports.outputs.is_empty() && !input.contains('*') {
            return Err(failure(input, output, format!("no entry has an output `{output}`")));
        }
        if ports.outputs.is_empty() {
            continue;
        }
        match add_state(graph, &name, &ports) {
            Ok(()) => marked = true,
            Err(_) if tried => {}
            Err(reason) => return Err(failure(input, output, reason)),
        }
    }
    Ok(marked)
}

/// What the `*` of a pattern stands for in this name; empty text where there is none.
fn matched<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    match pattern.split_once('*') {
        None => (pattern == name).then_some(""),
        Some((before, after)) => name.strip_prefix(before)?.strip_suffix(after),
    }
}

/// Add a state with these ports, or tell why it cannot be.
fn add_state(graph: &mut Graph, name: &str, ports: &Ports) -> Result<(), String> {
    let mut first: Option<Type> = None;
    let mut uses: BTreeMap<usize, StateUse> = BTreeMap::new();
    let inputs = ports.inputs.iter().map(|&(entry, port)| (entry, port, true));
    for (entry, port, is_input) in inputs.chain(ports.outputs.iter().map(|&(entry, port)| (entry, port, false))) {
        let used = |used: &StateUse| if is_input { used.input == Some(port) } else { used.output == Some(port) };
        if graph.entries[entry].states.iter().any(used) {
            return Err("an input or output is state twice".to_string());
        }
        let block = graph.block(graph.entries[entry].block);
        let operand = if is_input { Operand::Value(block.parameters[port]) } else { block.results[port] };
        let kind = match (operand, graph.fact(operand)) {
            (Operand::Value(_), Some(fact)) => fact.kind,
            (Operand::Value(_) | Operand::Absent | Operand::Constant(_), _) => {
                return Err(format!("output {port} of entry `{}` is not computed", graph.entries[entry].name));
            }
        };
        match &first {
            Some(first) if !fits(first, &kind) => return Err(format!("{first} does not fit {kind}")),
            Some(_) => {}
            None => first = Some(kind),
        }
        let slot = uses.entry(entry).or_insert(StateUse { state: graph.states.len(), input: None, output: None });
        if is_input {
            slot.input = Some(port);
        } else {
            slot.output = Some(port);
        }
    }
    for (entry, used) in uses {
        graph.entries[entry].states.push(used);
    }
    graph.states.push(State { name: name.to_string(), growth: None });
    Ok(())
}

/// Tensors of one element type and rank, as far as it is known; or equal types.
fn fits(one: &Type, other: &Type) -> bool {
    match (one.as_tensor(), other.as_tensor()) {
        (Some((dtype, shape)), Some((other_dtype, other_shape))) => {
            dtype == other_dtype && shape.rank().zip(other_shape.rank()).is_none_or(|(one, other)| one == other)
        }
        (Some(_), None) | (None, _) => one == other,
    }
}

/// A step that joins a state with what is new: where it stands, the axis, and whether the extent stays.
struct Join {
    block: BlockIndex,
    step: usize,
    axis: usize,
    overwritten: bool,
}

/// Append to a state where every entry that reads and writes it joins it along one axis, or overwrites positions of one; gives
/// the changed steps.
fn grow(graph: &mut Graph, state: usize, rows: Option<RowScheme>) -> usize {
    let mut joins = Vec::new();
    for entry in &graph.entries {
        let both = entry.states.iter().find(|used| used.state == state).and_then(|used| used.input.zip(used.output));
        let Some((input, output)) = both else { continue };
        let block = graph.block(entry.block);
        let join = join(graph, block, Operand::Value(block.parameters[input]), block.results[output]);
        let Some((step, axis)) = join else { return 0 };
        let overwritten = matches!(block.steps[step].op, Op::TensorScatter(_));
        joins.push(Join { block: entry.block, step, axis, overwritten });
    }
    let Some(&Join { axis, overwritten, .. }) = joins.first() else { return 0 };
    if joins.iter().any(|join| (join.axis, join.overwritten) != (axis, overwritten)) {
        return 0;
    }
    let first = &graph.block(joins[0].block).steps[joins[0].step];
    let is_f32 = graph.value(first.results[0]).fact.kind.as_tensor().is_some_and(|(dtype, _)| dtype == DType::F32);
    let rows = rows.filter(|_| is_f32 && !overwritten);
    graph.states[state].growth = Some(Growth { axis: axis as u32, page: PAGE_POSITIONS, rows, overwritten });
    if overwritten {
        return 0;
    }
    for join in &joins {
        graph.block_mut(join.block).steps[join.step].op = Append { axis: axis as i64, rows }.into();
    }
    joins.len()
}

/// The step that joins `past` with something new to `next`, and along which axis.
fn join(graph: &Graph, block: &Block, past: Operand, next: Operand) -> Option<(usize, usize)> {
    let Operand::Value(next) = next else { return None };
    let at = block.steps.iter().position(|step| step.results == [next])?;
    let step = &block.steps[at];
    let (dtype, shape) = graph.value(next).fact.kind.as_tensor()?;
    if dtype == DType::String || dtype.bits() < 8 || step.operands.first() != Some(&past) {
        return None;
    }
    if let Op::Concat(Concat { axis }) = &step.op
        && step.operands.len() == 2
        && step.operands[1] != past
    {
        return Some((at, normalize_axis(*axis, shape.rank()?).ok()?));
    }
    if let Op::TensorScatter(scatter) = &step.op {
        return Some((at, scatter.cache_axis(shape.rank()?).ok()?));
    }
    matches!(step.op, Op::CacheScatter(CacheScatter {})).then_some((at, 2))
}

/// In the block of an entry, give an attention whose past is state joined keys and values, so that the state can grow.
fn separate_caches(graph: &mut Graph, entry: usize) {
    let index = graph.entries[entry].block;
    let inputs: Vec<Operand> = graph.entries[entry]
        .states
        .iter()
        .filter_map(|used| used.input)
        .collect::<Vec<_>>()
        .iter()
        .map(|&input| Operand::Value(graph.block(index).parameters[input]))
        .collect();
    let mut steps = Vec::new();
    for step in std::mem::take(&mut graph.block_mut(index).steps) {
        let Op::Attention(attention) = &step.op else {
            steps.push(step);
            continue;
        };
        let operand = |at: usize| step.operands.get(at).copied().unwrap_or(Operand::Absent);
        let rank = |at: usize| graph.fact(operand(at)).and_then(|fact| Some(fact.dims()?.len()));
        let is_state = [4, 5].iter().all(|&past| inputs.contains(&operand(past)));
        if !attention.present || !is_state || [1, 2].iter().any(|&at| rank(at) != Some(4)) {
            steps.push(step);
            continue;
        }
        let operator = Attention { present: false, ..attention.clone() };
        separate(graph, step, operator, &mut steps);
    }
    graph.block_mut(index).steps = steps;
}

/// One attention with a past as two joins and an attention over what they give.
fn separate(graph: &mut Graph, step: Step, operator: Attention, steps: &mut Vec<Step>) {
    let Step { mut operands, mut results, name, op: _ } = step;
    operands.resize(operands.len().max(8), Operand::Absent);
    if operands[6] == Operand::Absent && operands[7] == Operand::Absent {
        operands[7] = first_positions(graph, operands[4], operands[1], &name, steps);
    }
    let joined: Vec<ValueId> = results.drain(1..3).collect();
    for (at, joined) in [(1, joined[0]), (2, joined[1])] {
        let past = std::mem::replace(&mut operands[at + 3], Operand::Absent);
        let new = std::mem::replace(&mut operands[at], Operand::Value(joined));
        steps.push(Step {
            op: Concat { axis: 2 }.into(),
            operands: vec![past, new],
            results: vec![joined],
            name: name.clone(),
        });
    }
    steps.push(Step { op: operator.into(), operands, results, name });
}

/// The position of the first query, which is the length of the past, for each of the batch.
fn first_positions(graph: &mut Graph, past: Operand, new: Operand, name: &Arc<str>, steps: &mut Vec<Step>) -> Operand {
    let mut add = |graph: &mut Graph, op: Op, operands: Vec<Operand>, extent: Dim| {
        let value = graph.add_value(Fact::tensor(DType::I64, vec![extent]), None);
        steps.push(Step { op, operands, results: vec![value], name: name.clone() });
        Operand::Value(value)
    };
    let batch = graph.fact(new).and_then(|fact| fact.dims()?.first().cloned()).unwrap_or(Dim::ONE);
    let length = add(graph, ShapeOf { start: 2, end: Some(3) }.into(), vec![past], Dim::ONE);
    let shape = add(graph, ShapeOf { start: 0, end: Some(1) }.into(), vec![new], Dim::ONE);
    add(graph, Expand {}.into(), vec![length, shape], batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::text::parse;

    const ENTRY: &str = r#"entry "main"("x", "past.0", "past.1") -> ("y", "present.0", "present.1") = block 0
block 0(%x : f32[n], %p0 : f32[p, 4], %p1 : i64[p, 4]) {
  return %x, %p0, %p1
}
"#;

    fn states(pattern: &str) -> Result<Vec<(usize, usize)>, PassError> {
        let mut graph = parse(ENTRY).unwrap();
        let options = Options { states: vec![pattern.to_string()], ..Options::default() };
        super::states(&mut graph, &options)?;
        Ok(graph.entries[0].states.iter().map(|pair| (pair.input.unwrap(), pair.output.unwrap())).collect())
    }

    #[test]
    fn stars_stand_for_the_same_text() {
        assert_eq!(states("past.*=present.*").unwrap(), [(1, 1), (2, 2)]);
        assert_eq!(states("past.1=present.1").unwrap(), [(2, 2)]);
    }

    #[test]
    fn a_cache_that_is_rounded_grows() {
        let mut graph = parse(ENTRY).unwrap();
        let cache = Some(RowScheme::I8);
        let options = Options { states: vec!["past.*=present.*".to_string()], cache, ..Options::default() };
        assert!(matches!(super::states(&mut graph, &options), Err(PassError::Cache)));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (pattern, expected) in [
            ("past.0", "a state is written IN=OUT"),
            ("past.0=present.1", "f32[p, 4] does not fit i64[p, 4]"),
            ("nothing=present.0", "no entry has such an input and output"),
            ("past.0=nothing", "no entry has an output `nothing`"),
            ("q.*=present.*", "no entry has such an input and output"),
        ] {
            let Err(PassError::State { reason, .. }) = states(pattern) else { panic!("{pattern}") };
            assert_eq!(reason, expected, "{pattern}");
        }
    }
}
