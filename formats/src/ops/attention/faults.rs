//! Faults of the operands of attention, which type rules and references report alike.

use crate::ops::TypeError;

/// Three axes hold all heads side by side, and nothing says how many there are.
pub(crate) fn heads_needed(operand: usize) -> TypeError {
    let name = if operand == 0 { "query" } else { "key" };
    TypeError::Unsupported(format!("attention over three axes without a number of {name} heads"))
}

/// What cannot be divided into `parts` equal parts.
pub(crate) fn uneven(subject: &str, found: &str, parts: &str) -> TypeError {
    TypeError::Value {
        subject: subject.to_string(),
        found: found.to_string(),
        expected: format!("a multiple of {parts}"),
    }
}

/// An operand of another rank.
pub(crate) fn rank(operand: usize, expected: usize, found: usize) -> TypeError {
    TypeError::Rank { operand, expected: expected.to_string(), found }
}
