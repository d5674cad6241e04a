//! Dimensions: canonical integer expressions over symbols, from import to the file.
//!
//! A [`Dim`] is a constant, or a polynomial with integer coefficients over *atoms*: symbols, and
//! `floordiv(a, b)`, `mod(a, b)`, `min(…)`, `max(…)` of further dimensions. It is canonical by
//! construction: two polynomials of the same meaning are equal as values, so `past + seq` is `seq + past`
//! and `2*(a + b)` is `2*a + 2*b`. Between atoms the identities of `canonical.rs` hold; whatever they do not
//! decide is for [`equality`] to answer, and it may answer "unknown".
//!
//! **Meaning.** Symbols are integers of any sign ([`Ranges`] says more); arithmetic is exact; division
//! rounds towards minus infinity and `mod` has the sign of its divisor (ONNX `Mod` without `fmod`, Python).
//! Canonicalising *refines*: wherever the expression as written has a value, the canonical one has the same
//! value. It may have one in more places: `floordiv(x, x)` is 1, also where x is 0. A division by a constant
//! zero stays as written, and evaluating it is an error that names it.
//!
//! **Limits.** Nothing here panics or grows without bound. Where a coefficient leaves `i64`, or an expression
//! becomes larger than 512 terms, 4096 nodes, 32 levels or 64 operands of one `min`, the result is a *refused* dimension
//! ([`Dim::refusal`]): every operation on it is refused too, evaluating it is an error, and [`equality`]
//! knows nothing about it. As values two refused dimensions compare equal, hence ask `equality` for meaning.
//!
//! Leaves alone: which symbols exist and where their values come from (import and bind).

mod bounds;
mod canonical;
mod evaluate;
mod fraction;
mod interval;
mod parse;
mod polynomial;
mod print;
mod solve;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::{Add, Mul, Neg, Sub};
use std::sync::Arc;

pub use bounds::{Equality, Ranges, at_least, equality, is_clipped};
pub use evaluate::Bindings;
pub use parse::DimParseError;
pub use solve::{Solution, solve_for};

use polynomial::{Atom, Polynomial};

/// A canonical integer expression over symbols, such as `batch*seq` or `8*floordiv(h + 31, 32)`.
///
/// `Ord` is an order of expressions, for sorted collections; it is not an order of values (see [`at_least`]).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Dim(Repr);

/// Constants inline, since most dimensions are; everything else shared.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Known(i64),
    Expression(Arc<Polynomial>),
    Refused(Refusal),
}

/// Why a dimension has no expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// A constant or a coefficient does not fit into 64 bits.
    Overflow,
    /// The expression has too many terms, atoms or levels.
    TooLarge,
}

/// Why a dimension has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DimError {
    /// The value does not fit into 64 bits.
    #[error("dimension `{expression}` does not fit into 64 bits")]
    Overflow {
        /// The expression, or the part of it that overflows.
        expression: String,
    },
    /// The expression was refused as too large when it was built.
    #[error("dimension expression is too large")]
    TooLarge,
    /// A divisor is zero.
    #[error("division by zero in dimension `{expression}`")]
    DivisionByZero {
        /// The division.
        expression: String,
    },
    /// A symbol has no value.
    #[error("dimension `{symbol}` has no value")]
    Unbound {
        /// The symbol's name.
        symbol: Arc<str>,
    },
    /// A range contains nothing.
    #[error("range of dimension `{symbol}` is empty: {minimum} to {maximum}")]
    EmptyRange {
        /// The symbol's name.
        symbol: Arc<str>,
        /// The least value asked for.
        minimum: i64,
        /// The greatest value asked for.
        maximum: i64,
    },
}

impl From<Refusal> for Dim {
    /// A dimension that was refused for this reason.
    fn from(refusal: Refusal) -> Dim {
        Dim(Repr::Refused(refusal))
    }
}

impl Dim {
    /// The constant one.
    pub const ONE: Dim = Dim(Repr::Known(1));
    /// The constant zero.
    pub const ZERO: Dim = Dim(Repr::Known(0));

    /// A constant; does not allocate.
    pub const fn known(value: i64) -> Dim {
        Dim(Repr::Known(value))
    }

    /// The symbol of that name, which may be any text.
    pub fn symbol(name: &str) -> Dim {
        Dim::from_atom(Atom::Symbol(Arc::from(name)))
    }

    /// The constant, if it is one.
    pub fn as_known(&self) -> Option<i64> {
        match self.0 {
            Repr::Known(value) => Some(value),
            Repr::Expression(_) | Repr::Refused(_) => None,
        }
    }

    /// Whether it is a constant.
    pub fn is_known(&self) -> bool {
        self.as_known().is_some()
    }

    /// The symbol's name, if it is a symbol and nothing more.
    pub fn as_symbol(&self) -> Option<&str> {
        match self.as_atom()? {
            Atom::Symbol(name) => Some(name),
            Atom::FloorDivide(..) | Atom::Modulo(..) | Atom::Minimum(_) | Atom::Maximum(_) => None,
        }
    }

    /// Why there is no expression, if there is none.
    pub fn refusal(&self) -> Option<Refusal> {
        match self.0 {
            Repr::Refused(refusal) => Some(refusal),
            Repr::Known(_) | Repr::Expression(_) => None,
        }
    }

    /// Whether there is no expression (see the module's limits).
    pub fn is_refused(&self) -> bool {
        self.refusal().is_some()
    }

    /// The quotient rounded towards minus infinity.
    pub fn floor_div(&self, divisor: &Dim) -> Dim {
        canonical::floor_divide(self, divisor)
    }

    /// The quotient rounded towards plus infinity.
    pub fn ceil_div(&self, divisor: &Dim) -> Dim {
        canonical::ceil_divide(self, divisor)
    }

    /// `self - divisor*floordiv(self, divisor)`: has the divisor's sign.
    pub fn modulo(&self, divisor: &Dim) -> Dim {
        canonical::modulo(self, divisor)
    }

    /// The smaller of the two; `a.min(b)` of two owned dimensions is the same.
    pub fn min(&self, other: &Dim) -> Dim {
        canonical::extremum(canonical::Extremum::Minimum, &[self, other])
    }

    /// The larger of the two.
    pub fn max(&self, other: &Dim) -> Dim {
        canonical::extremum(canonical::Extremum::Maximum, &[self, other])
    }

    /// The quotient when the division leaves no remainder whatever the symbols are.
    ///
    /// `batch*seq*256 / (seq*64)` is `4*batch`. `None` also for a divisor that is zero.
    pub fn divide_exact(&self, divisor: &Dim) -> Option<Dim> {
        polynomial::divide_exact(self, divisor)
    }

    /// The product of all; 1 of none.
    pub fn product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Dim {
        dims.into_iter().fold(Dim::ONE, |product, dim| product * dim)
    }

    /// The sum of all; 0 of none.
    pub fn sum<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Dim {
        dims.into_iter().fold(Dim::ZERO, |sum, dim| sum + dim)
    }

    /// The symbols that occur, at any level.
    pub fn symbols(&self) -> BTreeSet<Arc<str>> {
        let mut names = BTreeSet::new();
        self.collect_symbols(&mut names);
        names
    }

    fn collect_symbols(&self, names: &mut BTreeSet<Arc<str>>) {
        for atom in self.atoms() {
            if let Atom::Symbol(name) = atom {
                names.insert(Arc::clone(name));
            }
            atom.operands().for_each(|operand| operand.collect_symbols(names));
        }
    }

    /// The expression with every symbol replaced for which `replace` returns something.
    pub fn substitute(&self, replace: &impl Fn(&str) -> Option<Dim>) -> Dim {
        self.rebuild(&|atom| match atom {
            Atom::Symbol(name) => replace(name).unwrap_or_else(|| Dim::from_atom(atom.clone())),
            Atom::FloorDivide(a, b) => a.substitute(replace).floor_div(&b.substitute(replace)),
            Atom::Modulo(a, b) => a.substitute(replace).modulo(&b.substitute(replace)),
            Atom::Minimum(list) => {
                let list: Vec<Dim> = list.iter().map(|dim| dim.substitute(replace)).collect();
                canonical::extremum(canonical::Extremum::Minimum, &list.iter().collect::<Vec<_>>())
            }
            Atom::Maximum(list) => {
                let list: Vec<Dim> = list.iter().map(|dim| dim.substitute(replace)).collect();
                canonical::extremum(canonical::Extremum::Maximum, &list.iter().collect::<Vec<_>>())
            }
        })
    }

    /// The polynomial with every atom of its first level replaced.
    fn rebuild(&self, replace: &dyn Fn(&Atom) -> Dim) -> Dim {
        let Repr::Expression(polynomial) = &self.0 else {
            return self.clone();
        };
        polynomial.terms.iter().fold(Dim::ZERO, |sum, term| {
            let start = Dim::known(term.coefficient);
            sum + term.monomial.0.iter().fold(start, |product, atom| product * replace(atom))
        })
    }

    /// The atoms of the first level.
    fn atoms(&self) -> impl Iterator<Item = &Atom> {
        let terms = match &self.0 {
            Repr::Expression(polynomial) => polynomial.terms.as_slice(),
            Repr::Known(_) | Repr::Refused(_) => &[],
        };
        terms.iter().flat_map(|term| &term.monomial.0)
    }

    /// The atom, if it is one and nothing more.
    fn as_atom(&self) -> Option<&Atom> {
        let Repr::Expression(polynomial) = &self.0 else {
            return None;
        };
        match polynomial.terms.as_slice() {
            [only] if only.coefficient == 1 => match only.monomial.0.as_slice() {
                [atom] => Some(atom),
                _ => None,
            },
            _ => None,
        }
    }

    fn overflow() -> Dim {
        Dim(Repr::Refused(Refusal::Overflow))
    }
}

impl Default for Dim {
    fn default() -> Self {
        Dim::ZERO
    }
}

impl PartialOrd for Dim {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Dim {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }

    // On an owned receiver `a.min(b)` is this function and not `Dim::min`; the provided one would silently
    // return whichever expression sorts first.
    fn min(self, other: Self) -> Self {
        Dim::min(&self, &other)
    }

    fn max(self, other: Self) -> Self {
        Dim::max(&self, &other)
    }
}

impl From<i64> for Dim {
    fn from(value: i64) -> Dim {
        Dim::known(value)
    }
}

impl From<usize> for Dim {
    fn from(value: usize) -> Dim {
        i64::try_from(value).map_or_else(|_| Dim::overflow(), Dim::known)
    }
}

fn add(a: &Dim, b: &Dim) -> Dim {
    match (&a.0, &b.0) {
        (Repr::Known(a), Repr::Known(b)) => a.checked_add(*b).map_or_else(Dim::overflow, Dim::known),
        (Repr::Known(0), _) => b.clone(),
        (_, Repr::Known(0)) => a.clone(),
        _ => polynomial::add_scaled(a, b, 1),
    }
}

fn subtract(a: &Dim, b: &Dim) -> Dim {
    match (&a.0, &b.0) {
        (Repr::Known(a), Repr::Known(b)) => a.checked_sub(*b).map_or_else(Dim::overflow, Dim::known),
        (_, Repr::Known(0)) => a.clone(),
        _ => polynomial::add_scaled(a, b, -1),
    }
}

fn multiply(a: &Dim, b: &Dim) -> Dim {
    match (&a.0, &b.0) {
        (Repr::Known(a), Repr::Known(b)) => a.checked_mul(*b).map_or_else(Dim::overflow, Dim::known),
        (Repr::Known(1), _) => b.clone(),
        (_, Repr::Known(1)) => a.clone(),
        _ => polynomial::multiply(a, b),
    }
}

impl Neg for &Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        subtract(&Dim::ZERO, self)
    }
}

impl Neg for Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        -&self
    }
}

/// `impl Trait<Right> for Left` for every combination of `Dim`, `&Dim` and `i64` with a dimension in it.
macro_rules! operator {
    ($Trait:ident, $method:ident, $function:ident) => {
        operator!(@one $Trait, $method, Dim, Dim, |a, b| $function(&a, &b));
        operator!(@one $Trait, $method, Dim, &Dim, |a, b| $function(&a, b));
        operator!(@one $Trait, $method, &Dim, Dim, |a, b| $function(a, &b));
        operator!(@one $Trait, $method, &Dim, &Dim, |a, b| $function(a, b));
        operator!(@one $Trait, $method, Dim, i64, |a, b| $function(&a, &Dim::known(b)));
        operator!(@one $Trait, $method, &Dim, i64, |a, b| $function(a, &Dim::known(b)));
        operator!(@one $Trait, $method, i64, Dim, |a, b| $function(&Dim::known(a), &b));
        operator!(@one $Trait, $method, i64, &Dim, |a, b| $function(&Dim::known(a), b));
    };
    (@one $Trait:ident, $method:ident, $Left:ty, $Right:ty, |$a:ident, $b:ident| $body:expr) => {
        impl $Trait<$Right> for $Left {
            type Output = Dim;
            fn $method(self, right: $Right) -> Dim {
                let ($a, $b) = (self, right);
                $body
            }
        }
    };
}

operator!(Add, add, add);
operator!(Sub, sub, subtract);
operator!(Mul, mul, multiply);

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
