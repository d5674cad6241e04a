//! Inputs and outputs that an entry does without.
//!
//! A model with a branch for the first tokens and one for further ones has the ports of both; where one branch is chosen, what
//! only the other reads has no meaning, and outputs that the other makes are placeholders.

use crate::error::PassError;
use crate::ir::{Graph, Operand};

/// Take an input or output away from an entry.
///
/// # Errors
/// [`PassError::LeftOut`] where there is none of this name, or the input is read.
pub(super) fn leave_out(graph: &mut Graph, entry: &str, port: &str) -> Result<(), PassError> {
    let failure = |reason| PassError::LeftOut { entry: entry.to_string(), port: port.to_string(), reason };
    let found = graph.entries.iter().position(|found| found.name == entry);
    let entry = found.ok_or_else(|| failure("there is no such entry"))?;
    let index = graph.entries[entry].block;
    if let Some(output) = graph.entries[entry].outputs.iter().position(|name| name == port) {
        graph.entries[entry].outputs.remove(output);
        graph.block_mut(index).results.remove(output);
        return Ok(());
    }
    let input = graph.entries[entry].inputs.iter().position(|name| name == port);
    let input = input.ok_or_else(|| failure("it has no such input or output"))?;
    let value = Operand::Value(graph.block(index).parameters[input]);
    let is_read = graph.reachable_blocks().into_iter().any(|block| {
        let block = graph.block(block);
        block.results.contains(&value) || block.steps.iter().any(|step| step.operands.contains(&value))
    });
    if is_read {
        return Err(failure("it is read"));
    }
    graph.entries[entry].inputs.remove(input);
    graph.block_mut(index).parameters.remove(input);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::text::parse;

    const ENTRY: &str = r#"entry "main"("x", "past") -> ("y", "present") = block 0
block 0(%x : f32[n], %p : f32[p]) {
  %y : f32[n] = unary function=exp %x
  return %y, %x
}
"#;

    #[test]
    fn unread_inputs_and_any_outputs_go() {
        let mut graph = parse(ENTRY).unwrap();
        leave_out(&mut graph, "main", "past").unwrap();
        leave_out(&mut graph, "main", "present").unwrap();
        let expected = ENTRY.replace(r#", "past""#, "").replace(r#", "present""#, "");
        let expected = expected.replace(", %p : f32[p]", "").replace("return %y, %x", "return %y");
        assert_eq!(graph.difference(&parse(&expected).unwrap()), None);
    }

    #[test]
    fn what_is_read_stays() {
        for (entry, port, expected) in [
            ("main", "x", "it is read"),
            ("main", "z", "it has no such input or output"),
            ("other", "x", "there is no such entry"),
        ] {
            let mut graph = parse(ENTRY).unwrap();
            let Err(PassError::LeftOut { reason, .. }) = leave_out(&mut graph, entry, port) else { panic!("{port}") };
            assert_eq!(reason, expected, "{entry} {port}");
        }
    }
}
