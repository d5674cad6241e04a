//! What follows from the ranges of symbols: bounds of an expression, and whether two are equal.
//!
//! Both follow from the [`Interval`](super::interval::Interval) of the expression.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::canonical::{Extremum, extremum};
use super::interval::interval;
use super::polynomial::{Atom, greatest_common_divisor};
use super::{Dim, DimError, Repr};

/// Inclusive ranges of symbols; a symbol without an entry is a dimension, 0 to `i64::MAX`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<Arc<str>, (i64, i64)>);

impl Ranges {
    /// No entries.
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// States that `symbol` is from `minimum` to `maximum`, both included.
    ///
    /// # Errors
    /// [`DimError::EmptyRange`] when nothing is in that range.
    pub fn set(&mut self, symbol: &str, minimum: i64, maximum: i64) -> Result<(), DimError> {
        if minimum > maximum {
            let symbol = Arc::from(symbol);
            return Err(DimError::EmptyRange { symbol, minimum, maximum });
        }
        self.0.insert(Arc::from(symbol), (minimum, maximum));
        Ok(())
    }

    /// The least and the greatest value of `symbol`.
    pub fn get(&self, symbol: &str) -> (i64, i64) {
        self.0.get(symbol).copied().unwrap_or((0, i64::MAX))
    }

    /// The entries, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, (i64, i64))> {
        self.0.iter().map(|(symbol, range)| (symbol, *range))
    }
}

/// An answer about all values that symbols can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Equality {
    /// Equal for all values at which both are defined.
    Proven,
    /// Different for all values.
    Refuted,
    /// Neither is known; to be checked when the symbols are bound.
    Unknown,
}

impl Dim {
    /// The least and the greatest value within `ranges`, or a wider interval; ends saturate.
    ///
    /// Contains every value that [`Dim::evaluate`] returns for symbols within their ranges.
    pub fn bounds(&self, ranges: &Ranges) -> (i64, i64) {
        interval(self, &|symbol| ranges.get(symbol)).saturated()
    }

    /// The expression after what `ranges` decide: operands of `min` and `max` that never win are dropped,
    /// divisions with one possible quotient are folded.
    pub fn simplify(&self, ranges: &Ranges) -> Dim {
        self.rebuild(&|atom| simplify_atom(atom, ranges))
    }
}

fn simplify_atom(atom: &Atom, ranges: &Ranges) -> Dim {
    match atom {
        Atom::Symbol(symbol) => match ranges.get(symbol) {
            (low, high) if low == high => Dim::known(low),
            _ => Dim::from_atom(atom.clone()),
        },
        Atom::FloorDivide(numerator, divisor) => {
            let (n, d) = (numerator.simplify(ranges), divisor.simplify(ranges));
            let quotient = n.floor_div(&d);
            match quotient.bounds(ranges) {
                // Both ends saturated to one value would be a wrong constant.
                (low, high) if low == high && low != i64::MIN && low != i64::MAX => Dim::known(low),
                _ => quotient,
            }
        }
        Atom::Modulo(numerator, divisor) => {
            let (n, d) = (numerator.simplify(ranges), divisor.simplify(ranges));
            let (low, high) = n.floor_div(&d).bounds(ranges);
            if low == high && low != i64::MIN && low != i64::MAX { n - d * low } else { n.modulo(&d) }
        }
        Atom::Minimum(list) => simplify_list(Extremum::Minimum, list, ranges),
        Atom::Maximum(list) => simplify_list(Extremum::Maximum, list, ranges),
    }
}

fn simplify_list(which: Extremum, list: &[Dim], ranges: &Ranges) -> Dim {
    let mut kept: Vec<Dim> = Vec::with_capacity(list.len());
    for operand in list {
        let operand = operand.simplify(ranges);
        // `loses` also holds between equal operands: hence it is only asked against those that are kept.
        let loses = |loser: &Dim, winner: &Dim| match which {
            Extremum::Minimum => at_least(loser, winner, ranges) == Some(true),
            Extremum::Maximum => at_least(winner, loser, ranges) == Some(true),
        };
        if kept.iter().any(|other| loses(&operand, other)) {
            continue;
        }
        kept.retain(|other| !loses(other, &operand));
        kept.push(operand);
    }
    extremum(which, &kept.iter().collect::<Vec<_>>())
}

/// Whether `a` and `b` are equal whatever the symbols are within `ranges`.
///
/// Nothing is known about refused dimensions.
pub fn equality(a: &Dim, b: &Dim, ranges: &Ranges) -> Equality {
    if a.is_refused() || b.is_refused() {
        return Equality::Unknown;
    }
    if a == b {
        return Equality::Proven;
    }
    let difference = expand_modulo(&(a.simplify(ranges) - b.simplify(ranges)));
    if difference.is_refused() {
        let (a, b) = (interval(a, &|s| ranges.get(s)), interval(b, &|s| ranges.get(s)));
        let disjoint = a.high < b.low || b.high < a.low;
        return if disjoint { Equality::Refuted } else { Equality::Unknown };
    }
    if difference.as_known() == Some(0) {
        return Equality::Proven;
    }
    let interval = interval(&difference, &|symbol| ranges.get(symbol));
    if interval.low > 0 || interval.high < 0 || never_zero(&difference) {
        Equality::Refuted
    } else if (interval.low, interval.high) == (0, 0) {
        Equality::Proven
    } else {
        Equality::Unknown
    }
}

/// Whether `a >= b` whatever the symbols are within `ranges`: `Some(false)` when it holds for none.
pub fn at_least(a: &Dim, b: &Dim, ranges: &Ranges) -> Option<bool> {
    let difference = a - b;
    if difference.is_refused() {
        return None;
    }
    let interval = interval(&difference, &|symbol| ranges.get(symbol));
    if interval.low >= 0 {
        Some(true)
    } else if interval.high < 0 {
        Some(false)
    } else {
        None
    }
}

/// Whether `clipped` is the smaller of `whole` and of limits that are all at least 2: one of the two broadcasts to the other only where
/// they are equal.
pub fn is_clipped(clipped: &Dim, whole: &Dim, ranges: &Ranges) -> bool {
    let Some(operands) = Extremum::Minimum.operands_of(clipped) else { return false };
    operands.contains(whole) && operands.iter().all(|operand| operand == whole || operand.bounds(ranges).0 >= 2)
}

/// `mod(n, d)` as `n - d*floordiv(n, d)` on the first level.
fn expand_modulo(dim: &Dim) -> Dim {
    let expanded = dim.rebuild(&|atom| match atom {
        Atom::Modulo(n, d) => n - d * n.floor_div(d),
        Atom::Symbol(_) | Atom::FloorDivide(..) | Atom::Minimum(_) | Atom::Maximum(_) => Dim::from_atom(atom.clone()),
    });
    // The expansion may make bounds wider, hence it is kept only where it cancels.
    if expanded.is_known() { expanded } else { dim.clone() }
}

/// Whether the common divisor of all coefficients but the constant one does not divide that one.
fn never_zero(dim: &Dim) -> bool {
    let Repr::Expression(polynomial) = &dim.0 else {
        return dim.as_known().is_some_and(|value| value != 0);
    };
    let (mut common, mut constant) = (0, 0);
    for term in &polynomial.terms {
        let magnitude = term.coefficient.unsigned_abs();
        if term.monomial.0.is_empty() {
            constant = magnitude;
        } else {
            common = greatest_common_divisor(common, magnitude);
        }
    }
    constant.checked_rem(common).is_some_and(|remainder| remainder != 0)
}
