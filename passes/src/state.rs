//! Make state of inputs whose next contents are outputs of the same run.
//!
//! ```text
//! // state past.*=present.*
//! entry "main"("x", "past.0") -> ("y", "present.0") = block 0
//! block 0(%x : f32[n], %p : f32[n]) {
//!   return %p, %x
//! }
//! ```
//! becomes
//! ```text
//! entry "main"("x", "past.0") -> ("y", "present.0") = block 0 state 1=1
//! block 0(%x : f32[n], %p : f32[n]) {
//!   return %p, %x
//! }
//! ```
//!
//! A `*` on the left stands for any text, and for the same text on the right. Establishes: every pattern names at least
//! one pair; both sides of a pair have the same element type and rank. Leaves alone: blocks and steps.

use crate::error::PassError;
use crate::ir::{Changes, Entry, Graph, StatePair};
use crate::options::Options;
use ipuc_formats::fact::Type;

/// Apply [`Options::states`]; see the module.
///
/// # Errors
/// [`PassError::State`] where a pattern is malformed, names nothing, or pairs what does not fit.
pub fn mark_states(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    let mut changes = 0;
    for pattern in &options.states {
        let (input, output) = pattern.split_once('=').ok_or_else(|| PassError::State {
            input: pattern.clone(),
            output: String::new(),
            reason: "a state is written IN=OUT".to_string(),
        })?;
        let mut found = 0;
        for index in 0..graph.entries.len() {
            found += mark_entry(graph, index, input, output)?;
        }
        if found == 0 {
            return Err(failure(input, output, "no entry has such an input and output"));
        }
        changes += found;
    }
    Ok(Changes::of_annotations(changes))
}

fn failure(input: &str, output: &str, reason: impl Into<String>) -> PassError {
    PassError::State { input: input.to_string(), output: output.to_string(), reason: reason.into() }
}

fn mark_entry(graph: &mut Graph, index: usize, input: &str, output: &str) -> Result<usize, PassError> {
    let entry = &graph.entries[index];
    let mut pairs = Vec::new();
    for (position, name) in entry.inputs.iter().enumerate() {
        let Some(middle) = matched(input, name) else { continue };
        let wanted = output.replacen('*', middle, 1);
        let Some(result) = entry.outputs.iter().position(|candidate| *candidate == wanted) else {
            // A pattern may match inputs that are no state; a plain name may not.
            if input.contains('*') {
                continue;
            }
            return Err(failure(input, output, format!("entry `{}` has no output `{wanted}`", entry.name)));
        };
        check_pair(graph, entry, position, result)?;
        pairs.push(StatePair { input: position, output: result });
    }
    let found = pairs.len();
    let states = &mut graph.entries[index].states;
    for pair in pairs {
        if states.iter().any(|other| other.input == pair.input || other.output == pair.output) {
            return Err(failure(input, output, "an input or output is state twice"));
        }
        states.push(pair);
    }
    states.sort_by_key(|pair| pair.input);
    Ok(found)
}

/// What the `*` of a pattern stands for in this name; empty text where there is none.
fn matched<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    match pattern.split_once('*') {
        None => (pattern == name).then_some(""),
        Some((before, after)) => name.strip_prefix(before)?.strip_suffix(after),
    }
}

fn check_pair(graph: &Graph, entry: &Entry, input: usize, output: usize) -> Result<(), PassError> {
    let block = graph.block(entry.block);
    let before = graph.value(block.parameters[input]).fact.kind.clone();
    let Some(after) = block.results.get(output).and_then(|&operand| graph.fact(operand)) else { return Ok(()) };
    let fits = match (&before, &after.kind) {
        (Type::Tensor { dtype, shape }, Type::Tensor { dtype: other, shape: other_shape }) => {
            dtype == other && shape.rank().zip(other_shape.rank()).is_none_or(|(one, two)| one == two)
        }
        (one, two) => one == two,
    };
    let (input, output) = (&entry.inputs[input], &entry.outputs[output]);
    if fits { Ok(()) } else { Err(failure(input, output, format!("{before} does not fit {}", after.kind))) }
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
        mark_states(&mut graph, &options)?;
        Ok(graph.entries[0].states.iter().map(|pair| (pair.input, pair.output)).collect())
    }

    #[test]
    fn stars_stand_for_the_same_text() {
        assert_eq!(states("past.*=present.*").unwrap(), [(1, 1), (2, 2)]);
        assert_eq!(states("past.1=present.1").unwrap(), [(2, 2)]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (pattern, expected) in [
            ("past.0", "a state is written IN=OUT"),
            ("past.0=present.1", "f32[p, 4] does not fit i64[p, 4]"),
            ("nothing=present.0", "no entry has such an input and output"),
            ("past.0=nothing", "entry `main` has no output `nothing`"),
            ("q.*=present.*", "no entry has such an input and output"),
        ] {
            let Err(PassError::State { reason, .. }) = states(pattern) else { panic!("{pattern}") };
            assert_eq!(reason, expected, "{pattern}");
        }
    }
}
