//! Symbols from actual sizes: an input declared `[batch, past + seq]` arrives as `[2, 17]`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::polynomial::Atom;
use super::{Bindings, Dim, DimError, Repr};

/// What an actual value says about an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Solution {
    /// The expression already has this value.
    Satisfied,
    /// One symbol was unknown, and only this value of it gives the actual value.
    Solved {
        /// The symbol's name.
        symbol: Arc<str>,
        /// Its value, which may lie outside its range.
        value: i64,
    },
    /// No value of the unknown symbol gives the actual value, or the expression has another value already.
    Contradiction {
        /// The expression with the known symbols replaced.
        expression: Dim,
    },
    /// Several symbols are unknown, or the expression is not linear in the only one: try again when more is
    /// known, else check it at the end.
    Undetermined {
        /// The symbols that are unknown.
        unknown: BTreeSet<Arc<str>>,
    },
}

/// Solves `expression = actual` for the only symbol without a value in `known`.
///
/// The expression must be `a*symbol + b` once the known symbols are replaced.
///
/// # Errors
/// [`DimError::Overflow`], [`DimError::TooLarge`] and [`DimError::DivisionByZero`] where the expression has no value.
pub fn solve_for(expression: &Dim, actual: i64, known: &Bindings) -> Result<Solution, DimError> {
    let remaining = expression.substitute(&|symbol| known.get(symbol).map(Dim::known));
    let unknown = remaining.symbols();
    let mut names = unknown.iter();
    let (Some(symbol), None) = (names.next(), names.next()) else {
        if !unknown.is_empty() {
            return Ok(Solution::Undetermined { unknown });
        }
        // Errors of the original name more than those of what remains.
        let value = match remaining.as_known() {
            Some(value) => value,
            None => expression.evaluate(known)?,
        };
        return Ok(if value == actual {
            Solution::Satisfied
        } else {
            Solution::Contradiction { expression: remaining }
        });
    };
    let Some((factor, offset)) = linear(&remaining, symbol) else {
        return Ok(Solution::Undetermined { unknown });
    };
    let (factor, rest) = (i128::from(factor), i128::from(actual) - i128::from(offset));
    match i64::try_from(rest / factor) {
        Ok(value) if rest % factor == 0 => Ok(Solution::Solved { symbol: Arc::clone(symbol), value }),
        _ => Ok(Solution::Contradiction { expression: remaining }),
    }
}

/// (a, b) when the expression is `a*symbol + b`; a is not zero.
fn linear(expression: &Dim, symbol: &str) -> Option<(i64, i64)> {
    let Repr::Expression(polynomial) = &expression.0 else {
        return None;
    };
    let (first, offset) = match polynomial.terms.as_slice() {
        [first] => (first, 0),
        [first, last] if last.monomial.0.is_empty() => (first, last.coefficient),
        _ => return None,
    };
    match first.monomial.0.as_slice() {
        [Atom::Symbol(name)] if name.as_ref() == symbol => Some((first.coefficient, offset)),
        _ => None,
    }
}
