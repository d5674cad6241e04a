//! Values of expressions, once the symbols have values.
//!
//! Intermediate results have 128 bits, so that an expression has a value wherever its value fits into 64
//! bits and no part of it is astronomic.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::polynomial::Atom;
use super::{Dim, DimError, Refusal, Repr};

/// Values of symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings(BTreeMap<Arc<str>, i64>);

impl Bindings {
    /// No values.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    /// Gives `symbol` a value; the value it had is returned.
    pub fn insert(&mut self, symbol: impl Into<Arc<str>>, value: i64) -> Option<i64> {
        self.0.insert(symbol.into(), value)
    }

    /// The value of `symbol`.
    pub fn get(&self, symbol: &str) -> Option<i64> {
        self.0.get(symbol).copied()
    }

    /// The values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, i64)> {
        self.0.iter().map(|(symbol, value)| (symbol, *value))
    }

    /// How many symbols have values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no symbol has a value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<S: Into<Arc<str>>> FromIterator<(S, i64)> for Bindings {
    fn from_iter<T: IntoIterator<Item = (S, i64)>>(values: T) -> Bindings {
        Bindings(values.into_iter().map(|(symbol, value)| (symbol.into(), value)).collect())
    }
}

impl Dim {
    /// The value of the expression.
    ///
    /// # Errors
    /// [`DimError::Unbound`] for a symbol without a value, [`DimError::DivisionByZero`],
    /// [`DimError::Overflow`] and, for refused dimensions, [`DimError::TooLarge`].
    pub fn evaluate(&self, bindings: &Bindings) -> Result<i64, DimError> {
        match &self.0 {
            Repr::Known(value) => Ok(*value),
            _ => i64::try_from(evaluate(self, bindings)?).map_err(|_| overflow(self)),
        }
    }
}

fn overflow(dim: &Dim) -> DimError {
    DimError::Overflow { expression: dim.shortened() }
}

fn evaluate(dim: &Dim, bindings: &Bindings) -> Result<i128, DimError> {
    let polynomial = match &dim.0 {
        Repr::Known(value) => return Ok((*value).into()),
        Repr::Refused(Refusal::Overflow) => return Err(overflow(dim)),
        Repr::Refused(Refusal::TooLarge) => return Err(DimError::TooLarge),
        Repr::Expression(polynomial) => polynomial,
    };
    let mut sum = 0_i128;
    for term in &polynomial.terms {
        let mut product = i128::from(term.coefficient);
        for atom in &term.monomial.0 {
            let factor = evaluate_atom(atom, bindings)?;
            product = product.checked_mul(factor).ok_or_else(|| overflow(dim))?;
        }
        sum = sum.checked_add(product).ok_or_else(|| overflow(dim))?;
    }
    Ok(sum)
}

fn evaluate_atom(atom: &Atom, bindings: &Bindings) -> Result<i128, DimError> {
    let by_zero = || DimError::DivisionByZero { expression: Dim::from_atom(atom.clone()).shortened() };
    let too_wide = || overflow(&Dim::from_atom(atom.clone()));
    match atom {
        Atom::Symbol(symbol) => match bindings.get(symbol) {
            Some(value) => Ok(value.into()),
            None => Err(DimError::Unbound { symbol: Arc::clone(symbol) }),
        },
        Atom::FloorDivide(n, d) => {
            let (n, d) = (evaluate(n, bindings)?, evaluate(d, bindings)?);
            if d == 0 {
                return Err(by_zero());
            }
            let quotient = n.checked_div(d).ok_or_else(too_wide)?;
            let inexact = n % d != 0 && (n < 0) != (d < 0);
            Ok(if inexact { quotient - 1 } else { quotient })
        }
        Atom::Modulo(n, d) => {
            let (n, d) = (evaluate(n, bindings)?, evaluate(d, bindings)?);
            if d == 0 {
                return Err(by_zero());
            }
            let remainder = n.wrapping_rem(d);
            let other_sign = remainder != 0 && (remainder < 0) != (d < 0);
            Ok(if other_sign { remainder + d } else { remainder })
        }
        Atom::Minimum(list) => extreme(list, bindings, i128::min),
        Atom::Maximum(list) => extreme(list, bindings, i128::max),
    }
}

fn extreme(list: &[Dim], bindings: &Bindings, choose: fn(i128, i128) -> i128) -> Result<i128, DimError> {
    let mut chosen = None;
    for operand in list {
        let value = evaluate(operand, bindings)?;
        chosen = Some(chosen.map_or(value, |so_far| choose(so_far, value)));
    }
    // A list has at least two operands by construction.
    chosen.ok_or(DimError::TooLarge)
}
