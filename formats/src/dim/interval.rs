//! Interval arithmetic in 128 bits: what an expression can be for what its symbols can be.
//!
//! An end beyond ±2^120 stands for infinity in its own direction, and for itself in the other, so that every result
//! contains the exact one.

use super::polynomial::Atom;
use super::{Dim, Repr};

/// The end of what is computed exactly.
const LIMIT: i128 = 1 << 120;

/// Integers from `low` to `high`; `low == -LIMIT` and `high == LIMIT` are infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) low: i128,
    pub(super) high: i128,
}

impl Interval {
    const EVERYTHING: Interval = Interval { low: -LIMIT, high: LIMIT };

    fn new(low: i128, high: i128) -> Interval {
        Interval { low: low.clamp(-LIMIT, LIMIT), high: high.clamp(-LIMIT, LIMIT) }
    }

    fn constant(value: i64) -> Interval {
        Interval::new(value.into(), value.into())
    }

    pub(super) fn saturated(self) -> (i64, i64) {
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

/// The interval of an expression whose symbols are in these ranges.
pub(super) fn interval(dim: &Dim, range: &dyn Fn(&str) -> (i64, i64)) -> Interval {
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
