//! The identities of `floordiv`, `mod`, `min` and `max`: what is folded before an atom is made.
//!
//! Every function applies one rule at a time and starts again on the result; an atom is made of operands
//! on which no rule applies. Hence building an atom again from its own operands gives the same atom, which
//! is what makes the printed form round-trip.
//!
//! Every rule keeps the value wherever the original has one. With integers n, d ≠ 0, c > 0:
//!
//! ```text
//! floordiv(n, -d) = floordiv(-n, d)               mod(n, -d) = -mod(-n, d)
//! floordiv(g*n, g*d) = floordiv(n, d)             mod(g*n, g*d) = g*mod(n, d)
//! floordiv(q*d + n, d) = q + floordiv(n, d)       mod(q*d + n, d) = mod(n, d)
//! floordiv(floordiv(n, d) + m, c) = floordiv(n + d*m, c*d)
//! floordiv(-n, c) = -floordiv(n + c - 1, c)       (so that the first coefficient is positive)
//! ceildiv(n, d) = -floordiv(-n, d)
//! ```

use super::interval::interval_of_any;
use super::polynomial::{Atom, Monomial, Term, common_factor, divide_exact, greatest_common_divisor};
use super::{Dim, Refusal, Repr};

/// Most operands of one `min` or `max`, which [`Dim::simplify`] compares in pairs.
const MAX_OPERANDS: usize = 64;

/// `floordiv(numerator, divisor)`.
pub(super) fn floor_divide(numerator: &Dim, divisor: &Dim) -> Dim {
    if let (Some(n), Some(d)) = (numerator.as_known(), divisor.as_known())
        && d != 0
    {
        return floor_quotient(n, d).map_or_else(Dim::overflow, Dim::known);
    }
    let prepared = match prepare(numerator, divisor) {
        Prepared::Done(result) => return result,
        Prepared::ByZero => {
            return Dim::from_atom(Atom::FloorDivide(numerator.clone(), divisor.clone()));
        }
        Prepared::Negated(n, d) => return floor_divide(&n, &d),
        Prepared::Factored { numerator, divisor, .. } => return floor_divide(&numerator, &divisor),
        Prepared::Exact(quotient) => return quotient,
        Prepared::Split { quotient, rest } => return quotient + floor_divide(&rest, divisor),
        Prepared::Irreducible => divisor.as_known(),
    };
    match prepared {
        Some(constant) => floor_divide_by_constant(numerator, constant),
        None => Dim::from_atom(Atom::FloorDivide(numerator.clone(), divisor.clone())),
    }
}

/// `ceildiv(numerator, divisor)`, in terms of [`floor_divide`].
pub(super) fn ceil_divide(numerator: &Dim, divisor: &Dim) -> Dim {
    match divisor.as_known() {
        Some(constant) if constant > 0 => floor_divide(&(numerator + (constant - 1)), divisor),
        _ => -floor_divide(&-numerator, divisor),
    }
}

/// `mod(numerator, divisor)`.
pub(super) fn modulo(numerator: &Dim, divisor: &Dim) -> Dim {
    if let (Some(n), Some(d)) = (numerator.as_known(), divisor.as_known())
        && d != 0
    {
        return Dim::known(floor_remainder(n, d));
    }
    match prepare(numerator, divisor) {
        Prepared::Done(refused_or_zero) if refused_or_zero.is_refused() => refused_or_zero,
        Prepared::Done(_) | Prepared::Exact(_) => Dim::ZERO,
        Prepared::ByZero => Dim::from_atom(Atom::Modulo(numerator.clone(), divisor.clone())),
        Prepared::Negated(n, d) => -modulo(&n, &d),
        Prepared::Factored { factor, numerator, divisor } => factor * modulo(&numerator, &divisor),
        Prepared::Split { rest, .. } => modulo(&rest, divisor),
        Prepared::Irreducible => match divisor.as_known() {
            Some(constant) => modulo_constant(numerator, constant),
            None => Dim::from_atom(Atom::Modulo(numerator.clone(), divisor.clone())),
        },
    }
}

/// What the rules that `floordiv` and `mod` share make of a division.
enum Prepared {
    /// The quotient itself: an operand is refused, or the division is trivial.
    Done(Dim),
    /// The divisor is the constant zero.
    ByZero,
    /// Both operands with the other sign, so that the divisor begins with a positive coefficient.
    Negated(Dim, Dim),
    /// Both operands without a common factor.
    Factored { factor: Dim, numerator: Dim, divisor: Dim },
    /// No remainder.
    Exact(Dim),
    /// Some terms divide: `numerator = quotient*divisor + rest`.
    Split { quotient: Dim, rest: Dim },
    /// No shared rule applies; a constant divisor is at least 2.
    Irreducible,
}

fn prepare(numerator: &Dim, divisor: &Dim) -> Prepared {
    let (n, d) = match (numerator.terms(), divisor.terms()) {
        (Ok(n), Ok(d)) => (n, d),
        (Err(refusal), _) | (_, Err(refusal)) => {
            return Prepared::Done(Dim(Repr::Refused(refusal)));
        }
    };
    let Some(leading) = d.first() else {
        return Prepared::ByZero;
    };
    if n.is_empty() {
        return Prepared::Done(Dim::ZERO);
    }
    if leading.coefficient < 0 {
        let (n, d) = (-numerator, -divisor);
        return match (n.is_refused(), d.is_refused()) {
            (true, _) => Prepared::Done(n),
            (_, true) => Prepared::Done(d),
            (false, false) => Prepared::Negated(n, d),
        };
    }
    if divisor.as_known() == Some(1) {
        return Prepared::Exact(numerator.clone());
    }
    let factor = common_factor(&[&n, &d]);
    if factor.coefficient != 1 || !factor.monomial.0.is_empty() {
        let factor = Dim::from_terms(vec![factor]);
        if let (Some(numerator), Some(divisor)) = (divide_exact(numerator, &factor), divide_exact(divisor, &factor)) {
            return Prepared::Factored { factor, numerator, divisor };
        }
    }
    if let Some(quotient) = divide_exact(numerator, divisor) {
        return Prepared::Exact(quotient);
    }
    if d.len() > 1 {
        return Prepared::Irreducible;
    }
    let (quotient, rest) = split(&n, leading);
    match quotient.as_known() {
        Some(0) => Prepared::Irreducible,
        _ => Prepared::Split { quotient, rest },
    }
}

/// The terms that `divisor` divides, and the rest, which keeps the remainders.
///
/// Quotients of coefficients are truncated, so that a remainder has its term's sign and the bounds of the
/// parts stay those of the whole; the constant by a constant is floored, so that `floordiv(h - 1, 2) + 1`
/// and `floordiv(h + 1, 2)` are one.
fn split(numerator: &[Term], divisor: &Term) -> (Dim, Dim) {
    let (mut quotient, mut rest) = (Vec::new(), Vec::new());
    for term in numerator {
        let by_constant = divisor.monomial.0.is_empty();
        let Some(monomial) = term.monomial.without(&divisor.monomial) else {
            rest.push(term.clone());
            continue;
        };
        let (n, d) = (term.coefficient, divisor.coefficient);
        // The divisor's coefficient is positive, hence no overflow.
        let (q, r) =
            if by_constant && monomial.0.is_empty() { (n.div_euclid(d), n.rem_euclid(d)) } else { (n / d, n % d) };
        if q != 0 {
            quotient.push(Term { monomial, coefficient: q });
        }
        if r != 0 {
            rest.push(Term { monomial: term.monomial.clone(), coefficient: r });
        }
    }
    (Dim::from_terms(quotient), Dim::from_terms(rest))
}

/// Rules for a constant divisor of at least 2 when no shared rule applies.
fn floor_divide_by_constant(numerator: &Dim, constant: i64) -> Dim {
    let Repr::Expression(polynomial) = &numerator.0 else {
        return Dim::from_atom(Atom::FloorDivide(numerator.clone(), Dim::known(constant)));
    };
    let common = common_with_constant(&polynomial.terms, constant);
    if common > 1 {
        // The constant's remainder by the common factor cannot reach the next multiple.
        let reduced = scale_down(&polynomial.terms, common);
        return floor_divide(&reduced, &Dim::known(constant / common));
    }
    if let Some(flattened) = flatten_quotient(&polynomial.terms, numerator, constant) {
        return flattened;
    }
    if polynomial.terms.first().is_some_and(|term| term.coefficient < 0) {
        let opposite = (constant - 1) - numerator;
        return -floor_divide(&opposite, &Dim::known(constant));
    }
    if let Some(interval) = interval_of_any(numerator) {
        let (low, high) = interval.floor_divide_by(constant);
        if low == high
            && let Ok(value) = i64::try_from(low)
        {
            return Dim::known(value);
        }
    }
    Dim::from_atom(Atom::FloorDivide(numerator.clone(), Dim::known(constant)))
}

/// `floordiv(floordiv(n, d) + m, c)` as `floordiv(n + d*m, c*d)` when there is one such inner division.
fn flatten_quotient(terms: &[Term], numerator: &Dim, constant: i64) -> Option<Dim> {
    let mut inner = terms.iter().filter_map(|term| match term.monomial.0.as_slice() {
        [atom @ Atom::FloorDivide(n, d)] if term.coefficient == 1 && d.as_known() != Some(0) => Some((atom, n, d)),
        _ => None,
    });
    let (atom, n, d) = inner.next()?;
    if inner.next().is_some() || d.terms().ok()?.len() > 1 {
        return None;
    }
    let others = numerator - Dim::from_atom(atom.clone());
    let flattened = floor_divide(&(n + d * others), &(d * constant));
    (!flattened.is_refused()).then_some(flattened)
}

/// Rules for a constant divisor of at least 2 when no shared rule applies.
fn modulo_constant(numerator: &Dim, constant: i64) -> Dim {
    let divisor = Dim::known(constant);
    let Repr::Expression(polynomial) = &numerator.0 else {
        return Dim::from_atom(Atom::Modulo(numerator.clone(), divisor));
    };
    let terms = &polynomial.terms;
    if terms.iter().any(|term| term.coefficient < 0) {
        let positive = terms
            .iter()
            .map(|term| Term { monomial: term.monomial.clone(), coefficient: term.coefficient.rem_euclid(constant) });
        return modulo(&Dim::from_terms(positive.collect()), &divisor);
    }
    for term in terms {
        if let [atom @ Atom::Modulo(n, d)] = term.monomial.0.as_slice()
            && d.as_known().is_some_and(|d| d != 0 && d % constant == 0)
        {
            let difference = n - Dim::from_atom(atom.clone());
            let unwrapped = modulo(&(numerator + difference * term.coefficient), &divisor);
            if !unwrapped.is_refused() {
                return unwrapped;
            }
        }
    }
    let common = common_with_constant(terms, constant);
    if common > 1 {
        let reduced = scale_down(terms, common);
        let remainder = constant_of(terms).rem_euclid(common);
        return common * modulo(&reduced, &Dim::known(constant / common)) + remainder;
    }
    if let Some(interval) = interval_of_any(numerator) {
        let (low, high) = interval.floor_divide_by(constant);
        if low == high
            && let Ok(quotient) = i64::try_from(low)
        {
            return numerator - Dim::known(quotient) * constant;
        }
    }
    Dim::from_atom(Atom::Modulo(numerator.clone(), divisor))
}

/// The greatest common divisor of a positive constant and all coefficients but the constant term.
fn common_with_constant(terms: &[Term], constant: i64) -> i64 {
    let symbolic = terms.iter().filter(|term| !term.monomial.0.is_empty());
    let common = symbolic
        .fold(constant.unsigned_abs(), |common, term| greatest_common_divisor(common, term.coefficient.unsigned_abs()));
    i64::try_from(common).unwrap_or(1)
}

/// Every coefficient divided by `factor`, the constant floored.
fn scale_down(terms: &[Term], factor: i64) -> Dim {
    let scaled = terms
        .iter()
        .map(|term| Term { monomial: term.monomial.clone(), coefficient: term.coefficient.div_euclid(factor) });
    Dim::from_terms(scaled.filter(|term| term.coefficient != 0).collect())
}

fn constant_of(terms: &[Term]) -> i64 {
    match terms.last() {
        Some(last) if last.monomial.0.is_empty() => last.coefficient,
        _ => 0,
    }
}

fn floor_quotient(n: i64, d: i64) -> Option<i64> {
    let quotient = n.checked_div(d)?;
    let inexact = n % d != 0 && (n < 0) != (d < 0);
    Some(if inexact { quotient - 1 } else { quotient })
}

fn floor_remainder(n: i64, d: i64) -> i64 {
    let remainder = n.wrapping_rem(d);
    if remainder != 0 && (remainder < 0) != (d < 0) { remainder + d } else { remainder }
}

/// Which end of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extremum {
    Minimum,
    Maximum,
}

impl Extremum {
    fn choose(self, a: i64, b: i64) -> i64 {
        match self {
            Extremum::Minimum => a.min(b),
            Extremum::Maximum => a.max(b),
        }
    }

    fn atom(self, operands: Vec<Dim>) -> Dim {
        Dim::from_atom(match self {
            Extremum::Minimum => Atom::Minimum(operands),
            Extremum::Maximum => Atom::Maximum(operands),
        })
    }

    /// The operands when `dim` is this extremum times a positive factor plus a constant.
    pub(super) fn operands_of(self, dim: &Dim) -> Option<Vec<Dim>> {
        let terms = dim.terms().ok()?;
        let first = terms.first()?;
        if first.coefficient < 0 || terms[1..].iter().any(|term| !term.monomial.0.is_empty()) {
            return None;
        }
        let operands = match (self, first.monomial.0.as_slice()) {
            (Extremum::Minimum, [Atom::Minimum(list)]) => list,
            (Extremum::Maximum, [Atom::Maximum(list)]) => list,
            _ => return None,
        };
        let shift = constant_of(&terms);
        let scaled = operands.iter().map(|operand| operand * first.coefficient + shift);
        let scaled: Vec<Dim> = scaled.collect();
        (!scaled.iter().any(Dim::is_refused)).then_some(scaled)
    }
}

/// `min(…)` or `max(…)` of at least one operand.
///
/// Flattened; operands that differ by a constant are one; a common constant and a common factor move out.
pub(super) fn extremum(which: Extremum, operands: &[&Dim]) -> Dim {
    let mut flat: Vec<(Dim, i64)> = Vec::new();
    for &operand in operands {
        if operand.is_refused() {
            return operand.clone();
        }
        match which.operands_of(operand) {
            Some(inner) => flat.extend(inner.iter().map(without_constant)),
            None => flat.push(without_constant(operand)),
        }
    }
    // Constants last, as in `max(a, 3)`.
    flat.sort_by(|a, b| (a.0.is_known(), a).cmp(&(b.0.is_known(), b)));
    flat.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 = which.choose(kept.1, next.1);
        }
        same
    });
    if flat.len() > MAX_OPERANDS {
        return Dim(Repr::Refused(Refusal::TooLarge));
    }
    let shift = flat.first().map_or(0, |first| first.1);
    if let [(symbolic, constant)] = flat.as_slice() {
        return symbolic + *constant;
    }
    let with_constant = |shift: i64| -> Option<Vec<Dim>> {
        flat.iter().map(|(symbolic, constant)| Some(symbolic + constant.checked_sub(shift)?)).collect()
    };
    // Smaller numbers may let an operand be flattened that would have overflowed: hence from the start again.
    match with_constant(shift) {
        Some(shifted) if shift != 0 => extremum(which, &shifted.iter().collect::<Vec<_>>()) + shift,
        Some(shifted) => factor_out(which, shifted),
        None => with_constant(0).map_or_else(Dim::overflow, |operands| which.atom(operands)),
    }
}

/// The symbolic part and the constant.
fn without_constant(dim: &Dim) -> (Dim, i64) {
    let Repr::Expression(polynomial) = &dim.0 else {
        return (Dim::ZERO, dim.as_known().unwrap_or(0));
    };
    match constant_of(&polynomial.terms) {
        0 => (dim.clone(), 0),
        constant => {
            let symbolic = &polynomial.terms[..polynomial.terms.len() - 1];
            (Dim::from_terms(symbolic.to_vec()), constant)
        }
    }
}

/// Moves a positive common factor of all coefficients out.
fn factor_out(which: Extremum, operands: Vec<Dim>) -> Dim {
    let all: Option<Vec<_>> = operands.iter().map(|operand| operand.terms().ok()).collect();
    let factor = all.map_or(1, |all| {
        let lists: Vec<&[Term]> = all.iter().map(|terms| terms.as_ref()).collect();
        common_factor(&lists).coefficient
    });
    if factor == 1 {
        return which.atom(operands);
    }
    let factor = Term { monomial: Monomial::default(), coefficient: factor };
    let factor = Dim::from_terms(vec![factor]);
    let reduced: Option<Vec<Dim>> = operands.iter().map(|operand| divide_exact(operand, &factor)).collect();
    match reduced {
        Some(reduced) => factor * extremum(which, &reduced.iter().collect::<Vec<_>>()),
        None => which.atom(operands),
    }
}
