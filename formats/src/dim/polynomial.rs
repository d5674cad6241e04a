//! Polynomials with integer coefficients over atoms: the body of every dimension that is not a constant.
//!
//! Terms are sorted by degree (highest first, the constant last), then by their atoms; this order is
//! compatible with multiplication, so the first term of a product is the product of the first terms,
//! and division by leading terms is exact division. Leaves alone: what is inside an atom.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Dim, Refusal, Repr};

/// Most terms that a polynomial may have.
pub(super) const MAX_TERMS: usize = 512;
/// Most atoms, counted with repetition through all levels, that a dimension may have.
pub(super) const MAX_NODES: usize = 4096;
/// Most levels of atoms within atoms.
pub(super) const MAX_DEPTH: u32 = 32;
/// Most pairs of terms that one product multiplies out.
const MAX_PRODUCT_PAIRS: usize = 16 * MAX_TERMS;

/// What a polynomial treats as a variable.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Atom {
    Symbol(Arc<str>),
    FloorDivide(Dim, Dim),
    Modulo(Dim, Dim),
    Minimum(Vec<Dim>),
    Maximum(Vec<Dim>),
}

impl Atom {
    /// The dimensions inside.
    pub(super) fn operands(&self) -> impl Iterator<Item = &Dim> {
        let (pair, list): ([Option<&Dim>; 2], &[Dim]) = match self {
            Atom::Symbol(_) => ([None, None], &[]),
            Atom::FloorDivide(a, b) | Atom::Modulo(a, b) => ([Some(a), Some(b)], &[]),
            Atom::Minimum(list) | Atom::Maximum(list) => ([None, None], list),
        };
        pair.into_iter().flatten().chain(list)
    }
}

/// A product of atoms, sorted, repeated for powers; empty for the constant.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Monomial(pub(super) Vec<Atom>);

impl Monomial {
    fn times(&self, other: &Monomial) -> Monomial {
        let mut atoms = Vec::with_capacity(self.0.len() + other.0.len());
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            let next = if a <= b { left.next() } else { right.next() };
            atoms.extend(next.cloned());
        }
        atoms.extend(left.cloned());
        atoms.extend(right.cloned());
        Monomial(atoms)
    }

    /// `self / other` when `other` divides it.
    pub(super) fn without(&self, other: &Monomial) -> Option<Monomial> {
        let mut rest = other.0.iter().peekable();
        let mut atoms = Vec::with_capacity(self.0.len());
        for atom in &self.0 {
            if rest.peek() == Some(&atom) {
                rest.next();
            } else {
                atoms.push(atom.clone());
            }
        }
        rest.peek().is_none().then_some(Monomial(atoms))
    }

    /// The largest monomial that divides both.
    fn common(&self, other: &Monomial) -> Monomial {
        let (mut i, mut j) = (0, 0);
        let mut atoms = Vec::new();
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            match a.cmp(b) {
                Ordering::Less => i += 1,
                Ordering::Greater => j += 1,
                Ordering::Equal => {
                    atoms.push(a.clone());
                    i += 1;
                    j += 1;
                }
            }
        }
        Monomial(atoms)
    }
}

impl Ord for Monomial {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_degree = other.0.len().cmp(&self.0.len());
        by_degree.then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Monomial {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Term {
    pub(super) monomial: Monomial,
    pub(super) coefficient: i64,
}

/// A sum of terms: sorted, no zero coefficient, at least one atom somewhere.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Polynomial {
    pub(super) terms: Vec<Term>,
    nodes: usize,
    depth: u32,
}

/// A polynomial while it is being summed: wide coefficients, so that only the result can overflow.
type Accumulator = BTreeMap<Monomial, i128>;

impl Dim {
    /// The polynomial's terms; `None` when the value was refused.
    pub(super) fn terms(&self) -> Result<Cow<'_, [Term]>, Refusal> {
        match &self.0 {
            Repr::Known(0) => Ok(Cow::Borrowed(&[])),
            Repr::Known(value) => Ok(Cow::Owned(vec![Term { monomial: Monomial::default(), coefficient: *value }])),
            Repr::Expression(polynomial) => Ok(Cow::Borrowed(&polynomial.terms)),
            Repr::Refused(refusal) => Err(*refusal),
        }
    }

    /// A dimension from sorted terms with distinct monomials and no zero coefficient.
    pub(super) fn from_terms(terms: Vec<Term>) -> Dim {
        match terms.as_slice() {
            [] => return Dim::known(0),
            [only] if only.monomial.0.is_empty() => return Dim::known(only.coefficient),
            _ => {}
        }
        let (mut nodes, mut depth) = (0, 0);
        for atom in terms.iter().flat_map(|term| &term.monomial.0) {
            nodes += 1;
            for operand in atom.operands() {
                let (inner_nodes, inner_depth) = operand.extent();
                nodes += inner_nodes;
                depth = depth.max(inner_depth);
            }
        }
        depth += 1;
        if terms.len() > MAX_TERMS || nodes > MAX_NODES || depth > MAX_DEPTH {
            return Dim(Repr::Refused(Refusal::TooLarge));
        }
        Dim(Repr::Expression(Arc::new(Polynomial { terms, nodes, depth })))
    }

    /// (nodes, depth) of the expression.
    fn extent(&self) -> (usize, u32) {
        match &self.0 {
            Repr::Known(_) | Repr::Refused(_) => (1, 0),
            Repr::Expression(polynomial) => (polynomial.nodes, polynomial.depth),
        }
    }

    pub(super) fn from_atom(atom: Atom) -> Dim {
        Dim::from_terms(vec![Term { monomial: Monomial(vec![atom]), coefficient: 1 }])
    }

    fn from_accumulator(sum: Accumulator) -> Dim {
        let mut terms = Vec::with_capacity(sum.len());
        for (monomial, coefficient) in sum {
            if coefficient == 0 {
                continue;
            }
            match i64::try_from(coefficient) {
                Ok(coefficient) => terms.push(Term { monomial, coefficient }),
                Err(_) => return Dim(Repr::Refused(Refusal::Overflow)),
            }
        }
        Dim::from_terms(terms)
    }
}

/// `a + factor * b`, as one merge of two sorted lists.
pub(super) fn add_scaled(a: &Dim, b: &Dim, factor: i64) -> Dim {
    match (a.terms(), b.terms()) {
        (Ok(a), Ok(b)) => merge(&a, &b, factor),
        (Err(refusal), _) | (_, Err(refusal)) => Dim(Repr::Refused(refusal)),
    }
}

fn merge(a: &[Term], b: &[Term], factor: i64) -> Dim {
    let mut terms = Vec::with_capacity(a.len() + b.len());
    let (mut i, mut j) = (0, 0);
    loop {
        let order = match (a.get(i), b.get(j)) {
            (None, None) => return Dim::from_terms(terms),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.monomial.cmp(&right.monomial),
        };
        let mut coefficient = 0_i128;
        let mut monomial = &Monomial::default();
        if order != Ordering::Less {
            coefficient += i128::from(b[j].coefficient) * i128::from(factor);
            monomial = &b[j].monomial;
            j += 1;
        }
        if order != Ordering::Greater {
            coefficient += i128::from(a[i].coefficient);
            monomial = &a[i].monomial;
            i += 1;
        }
        match i64::try_from(coefficient) {
            Ok(0) => {}
            Ok(coefficient) => terms.push(Term { monomial: monomial.clone(), coefficient }),
            Err(_) => return Dim(Repr::Refused(Refusal::Overflow)),
        }
    }
}

/// The product, multiplied out.
pub(super) fn multiply(a: &Dim, b: &Dim) -> Dim {
    let (a, b) = match (a.terms(), b.terms()) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(refusal), _) | (_, Err(refusal)) => return Dim(Repr::Refused(refusal)),
    };
    if a.len() * b.len() > MAX_PRODUCT_PAIRS {
        return Dim(Repr::Refused(Refusal::TooLarge));
    }
    let mut sum = Accumulator::new();
    for left in a.iter() {
        for right in b.iter() {
            let product = i128::from(left.coefficient) * i128::from(right.coefficient);
            *sum.entry(left.monomial.times(&right.monomial)).or_default() += product;
        }
    }
    Dim::from_accumulator(sum)
}

/// `a / b` when `b` times some polynomial with integer coefficients is `a`.
///
/// `None` for a zero divisor, for a remainder, and for refused operands.
pub(super) fn divide_exact(a: &Dim, b: &Dim) -> Option<Dim> {
    // Most are constants, and runs divide those of each step.
    if let (Some(a), Some(b)) = (a.as_known(), b.as_known()) {
        return (a.checked_rem(b)? == 0).then(|| Dim::known(a / b));
    }
    let divisor = b.terms().ok()?;
    let leading = divisor.first()?;
    let mut rest: Accumulator =
        a.terms().ok()?.iter().map(|term| (term.monomial.clone(), i128::from(term.coefficient))).collect();
    let mut quotient = Accumulator::new();
    while let Some((monomial, coefficient)) = rest.pop_first() {
        if coefficient == 0 {
            continue;
        }
        let factor_monomial = monomial.without(&leading.monomial)?;
        let leading_coefficient = i128::from(leading.coefficient);
        if coefficient % leading_coefficient != 0 || quotient.len() >= MAX_TERMS {
            return None;
        }
        let factor = coefficient / leading_coefficient;
        for term in &divisor[1..] {
            let product = factor.checked_mul(i128::from(term.coefficient))?;
            let entry = rest.entry(term.monomial.times(&factor_monomial)).or_default();
            *entry = entry.checked_sub(product)?;
        }
        quotient.insert(factor_monomial, factor);
    }
    let quotient = Dim::from_accumulator(quotient);
    (!quotient.is_refused()).then_some(quotient)
}

/// The largest integer times monomial that divides every term of all the lists; the integer is positive.
pub(super) fn common_factor(lists: &[&[Term]]) -> Term {
    let mut monomial: Option<Monomial> = None;
    let mut content = 0;
    for term in lists.iter().copied().flatten() {
        content = greatest_common_divisor(content, term.coefficient.unsigned_abs());
        monomial = Some(match monomial {
            None => term.monomial.clone(),
            Some(so_far) => so_far.common(&term.monomial),
        });
    }
    Term {
        monomial: monomial.unwrap_or_default(),
        // 2^63 does not fit and stays inside: 2^62 would leave a factor of 2 that cannot come out.
        coefficient: i64::try_from(content).unwrap_or(1).max(1),
    }
}

/// Euclid's algorithm; 0 is the neutral element.
pub(super) fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
