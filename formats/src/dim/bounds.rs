//! What follows from the ranges of symbols: bounds of an expression, and whether two are equal.
//!
//! Interval arithmetic in 128 bits. An end beyond ±2^120 stands for infinity in its own direction, and for
//! itself in the other, so that every result contains the exact one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::canonical::{Extremum, extremum};
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

/// The end of what is computed exactly.
const LIMIT: i128 = 1 << 120;

/// Integers from `low` to `high`; `low == -LIMIT` and `high == LIMIT` are infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    low: i128,
    high: i128,
}

impl Interval {
    const EVERYTHING: Interval = Interval { low: -LIMIT, high: LIMIT };

    fn new(low: i128, high: i128) -> Interval {
        Interval { low: low.clamp(-LIMIT, LIMIT), high: high.clamp(-LIMIT, LIMIT) }
    }

    fn constant(value: i64) -> Interval {
        Interval::new(value.into(), value.into())
    }

    fn saturated(self) -> (i64, i64) {
        let clamp = |end: i128| match i64::try_from(end) {
            Ok(end) => end,
            Err(_) if end < 0 => i64::MIN,
            Err(_) => i64::MAX,
        };
        (clamp(self.low), clamp(self.high))
    }

    fn is_infinite_below(self) -> bool {
        self.low <= -LIMIT
    }

    fn is_infinite_above(self) -> bool {
        self.high >= LIMIT
    }

    fn plus(self, other: Interval) -> Interval {
        let low = self.is_infinite_below() || other.is_infinite_below();
        let high = self.is_infinite_above() || other.is_infinite_above();
        Interval::new(
            if low { -LIMIT } else { self.low + other.low },
            if high { LIMIT } else { self.high + other.high },
        )
    }

    fn times(self, other: Interval) -> Interval {
        let corners = [
            self.low.saturating_mul(other.low),
            self.low.saturating_mul(other.high),
            self.high.saturating_mul(other.low),
            self.high.saturating_mul(other.high),
        ];
        Interval::around(&corners)
    }

    fn around(values: &[i128]) -> Interval {
        let low = values.iter().min().copied().unwrap_or(-LIMIT);
        let high = values.iter().max().copied().unwrap_or(LIMIT);
        Interval::new(low, high)
    }

    fn union(self, other: Interval) -> Interval {
        Interval { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    fn negated(self) -> Interval {
        Interval { low: -self.high, high: -self.low }
    }

    /// The quotients of both ends by a positive constant, rounded down; infinite ends stay.
    pub(super) fn floor_divide_by(self, constant: i64) -> (i128, i128) {
        let quotients = self.floor_divide_positive(Interval::constant(constant));
        (quotients.low, quotients.high)
    }

    /// The parts of a divisor: (positive, negated negative).
    fn divisor_parts(self) -> [Option<Interval>; 2] {
        let positive = |interval: Interval| {
            let clipped = Interval { low: interval.low.max(1), high: interval.high };
            (clipped.low <= clipped.high).then_some(clipped)
        };
        [positive(self), positive(self.negated())]
    }

    fn floor_divide(self, divisor: Interval) -> Interval {
        let [positive, negative] = divisor.divisor_parts();
        let positive = positive.map(|divisor| self.floor_divide_positive(divisor));
        let negative = negative.map(|divisor| self.negated().floor_divide_positive(divisor));
        match (positive, negative) {
            (Some(a), Some(b)) => a.union(b),
            (Some(only), None) | (None, Some(only)) => only,
            // Always a division by zero.
            (None, None) => Interval::EVERYTHING,
        }
    }

    fn floor_divide_positive(self, divisor: Interval) -> Interval {
        let mut corners = Vec::with_capacity(6);
        for numerator in [self.low, self.high] {
            corners.extend([divisor.low, divisor.high].map(|d| numerator.div_euclid(d)));
            if divisor.is_infinite_above() {
                corners.push(if numerator < 0 { -1 } else { 0 });
            }
        }
        let mut quotients = Interval::around(&corners);
        if self.is_infinite_below() {
            quotients.low = -LIMIT;
        }
        if self.is_infinite_above() {
            quotients.high = LIMIT;
        }
        quotients
    }

    fn modulo(self, divisor: Interval) -> Interval {
        let [positive, negative] = divisor.divisor_parts();
        let positive = positive.map(|divisor| self.modulo_positive(divisor));
        // mod(n, -d) = -mod(-n, d)
        let negative = negative.map(|d| self.negated().modulo_positive(d).negated());
        match (positive, negative) {
            (Some(a), Some(b)) => a.union(b),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => Interval::EVERYTHING,
        }
    }

    fn modulo_positive(self, divisor: Interval) -> Interval {
        if self.low >= 0 && self.high < divisor.low {
            return self;
        }
        let below_divisor = if divisor.is_infinite_above() { LIMIT } else { divisor.high - 1 };
        let high = if self.low >= 0 { below_divisor.min(self.high) } else { below_divisor };
        Interval::new(0, high)
    }
}

/// The interval of an expression whose symbols may be any 64-bit integers; `None` where that says nothing
/// because it has only symbols.
pub(super) fn interval_of_any(dim: &Dim) -> Option<Interval> {
    let only_symbols = dim.atoms().all(|atom| matches!(atom, Atom::Symbol(_)));
    (!only_symbols).then(|| interval(dim, &|_| (i64::MIN, i64::MAX)))
}

fn interval(dim: &Dim, range: &dyn Fn(&str) -> (i64, i64)) -> Interval {
    let polynomial = match &dim.0 {
        Repr::Known(value) => return Interval::constant(*value),
        Repr::Refused(_) => return Interval::EVERYTHING,
        Repr::Expression(polynomial) => polynomial,
    };
    polynomial.terms.iter().fold(Interval::constant(0), |sum, term| {
        let mut product = Interval::constant(term.coefficient);
        let mut atoms = term.monomial.0.as_slice();
        while let Some(atom) = atoms.first() {
            let power = atoms.iter().take_while(|other| *other == atom).count();
            product = product.times(interval_of_power(interval_of_atom(atom, range), power));
            atoms = &atoms[power..];
        }
        sum.plus(product)
    })
}

/// An even power is not negative, which the product of independent factors would not know.
fn interval_of_power(base: Interval, power: usize) -> Interval {
    let product = (0..power).fold(Interval::constant(1), |product, _| product.times(base));
    if power.is_multiple_of(2) { Interval { low: product.low.max(0), high: product.high } } else { product }
}

fn interval_of_atom(atom: &Atom, range: &dyn Fn(&str) -> (i64, i64)) -> Interval {
    let of_list = |list: &[Dim], choose: fn(i128, i128) -> i128| {
        let intervals = list.iter().map(|operand| interval(operand, range));
        let combined = intervals.reduce(|a, b| Interval { low: choose(a.low, b.low), high: choose(a.high, b.high) });
        combined.unwrap_or(Interval::EVERYTHING)
    };
    match atom {
        Atom::Symbol(name) => {
            let (low, high) = range(name);
            Interval::new(low.into(), high.into())
        }
        Atom::FloorDivide(n, d) => interval(n, range).floor_divide(interval(d, range)),
        Atom::Modulo(n, d) => interval(n, range).modulo(interval(d, range)),
        Atom::Minimum(list) => of_list(list, i128::min),
        Atom::Maximum(list) => of_list(list, i128::max),
    }
}
