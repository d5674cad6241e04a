//! Fractions, which only a parser meets: `h/2 - 1/2` inside a `floor`.
//!
//! Operations are `None` where a denominator overflows or something would have to be an integer and is not.

use super::Dim;

/// An expression divided by a positive constant, which is 1 but between a `/` and the `floor` around it.
pub(super) struct Fraction {
    pub(super) numerator: Dim,
    pub(super) denominator: i64,
}

impl From<Dim> for Fraction {
    fn from(numerator: Dim) -> Fraction {
        Fraction { numerator, denominator: 1 }
    }
}

impl Fraction {
    /// The expression, where the division is exact.
    pub(super) fn integer(self) -> Option<Dim> {
        match self.denominator {
            1 => Some(self.numerator),
            denominator => self.numerator.divide_exact(&Dim::known(denominator)),
        }
    }

    /// Both under one denominator; `None` on overflow.
    fn aligned(self, other: Fraction) -> Option<(Dim, Dim, i64)> {
        if self.denominator == other.denominator {
            return Some((self.numerator, other.numerator, self.denominator));
        }
        let denominator = self.denominator.checked_mul(other.denominator)?;
        Some((self.numerator * other.denominator, other.numerator * self.denominator, denominator))
    }

    pub(super) fn plus(self, other: Fraction) -> Option<Fraction> {
        let (a, b, denominator) = self.aligned(other)?;
        Some(Fraction { numerator: a + b, denominator })
    }

    pub(super) fn minus(self, other: Fraction) -> Option<Fraction> {
        let (a, b, denominator) = self.aligned(other)?;
        Some(Fraction { numerator: a - b, denominator })
    }

    pub(super) fn times(self, other: Fraction) -> Option<Fraction> {
        let denominator = self.denominator.checked_mul(other.denominator)?;
        Some(Fraction { numerator: self.numerator * other.numerator, denominator })
    }

    pub(super) fn floor_div(self, other: Fraction) -> Option<Fraction> {
        let (a, b, _) = self.aligned(other)?;
        Some(a.floor_div(&b).into())
    }

    pub(super) fn modulo(self, other: Fraction) -> Option<Fraction> {
        Some(self.integer()?.modulo(&other.integer()?).into())
    }

    pub(super) fn floor(self) -> Dim {
        self.numerator.floor_div(&Dim::known(self.denominator))
    }

    pub(super) fn ceiling(self) -> Dim {
        self.numerator.ceil_div(&Dim::known(self.denominator))
    }

    /// By a constant other than zero.
    pub(super) fn over(self, other: Fraction) -> Option<Fraction> {
        let divisor = other.integer()?.as_known().filter(|&divisor| divisor != 0)?;
        let denominator = self.denominator.checked_mul(divisor.checked_abs()?)?;
        let numerator = if divisor < 0 { -self.numerator } else { self.numerator };
        Some(Fraction { numerator, denominator })
    }
}
