//! Laws that hold for every expression, against a tree that is evaluated as it is written.

use super::*;
use proptest::prelude::*;

/// An expression as written, evaluated without any of the code under test.
#[derive(Clone, Debug)]
enum Tree {
    Constant(i64),
    Symbol(usize),
    Node(Operation, Box<Tree>, Box<Tree>),
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Add,
    Subtract,
    Multiply,
    FloorDivide,
    CeilDivide,
    Modulo,
    Minimum,
    Maximum,
}

const NAMES: [&str; 4] = ["a", "b", "c d", "input.0"];

impl Tree {
    fn dim(&self) -> Dim {
        match self {
            Tree::Constant(value) => Dim::known(*value),
            Tree::Symbol(index) => Dim::symbol(NAMES[*index]),
            Tree::Node(operation, a, b) => {
                let (a, b) = (a.dim(), b.dim());
                match operation {
                    Operation::Add => a + b,
                    Operation::Subtract => a - b,
                    Operation::Multiply => a * b,
                    Operation::FloorDivide => a.floor_div(&b),
                    Operation::CeilDivide => a.ceil_div(&b),
                    Operation::Modulo => a.modulo(&b),
                    Operation::Minimum => Dim::min(&a, &b),
                    Operation::Maximum => Dim::max(&a, &b),
                }
            }
        }
    }

    fn value(&self, values: &[i64; 4]) -> Option<i128> {
        Some(match self {
            Tree::Constant(value) => (*value).into(),
            Tree::Symbol(index) => values[*index].into(),
            Tree::Node(operation, a, b) => {
                let (a, b) = (a.value(values)?, b.value(values)?);
                let floor = |a: i128, b: i128| {
                    let quotient = a.checked_div(b)?;
                    Some(if quotient * b != a && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
                };
                match operation {
                    Operation::Add => a.checked_add(b)?,
                    Operation::Subtract => a.checked_sub(b)?,
                    Operation::Multiply => a.checked_mul(b)?,
                    Operation::FloorDivide => floor(a, b)?,
                    Operation::CeilDivide => floor(a.checked_neg()?, b)?.checked_neg()?,
                    Operation::Modulo => a.checked_sub(b.checked_mul(floor(a, b)?)?)?,
                    Operation::Minimum => a.min(b),
                    Operation::Maximum => a.max(b),
                }
            }
        })
    }
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        Just(Operation::Add),
        Just(Operation::Subtract),
        Just(Operation::Multiply),
        Just(Operation::FloorDivide),
        Just(Operation::CeilDivide),
        Just(Operation::Modulo),
        Just(Operation::Minimum),
        Just(Operation::Maximum),
    ]
}

fn tree() -> impl Strategy<Value = Tree> {
    let constant = prop_oneof![
        12 => -12_i64..=12,
        1 => prop::sample::select(vec![i64::MIN, i64::MAX, 1 << 62, -(1 << 62)]),
    ]
    .prop_map(Tree::Constant);
    let leaf = prop_oneof![constant, (0..NAMES.len()).prop_map(Tree::Symbol)];
    leaf.prop_recursive(6, 48, 2, |inner| {
        (operation(), inner.clone(), inner)
            .prop_map(|(operation, a, b)| Tree::Node(operation, Box::new(a), Box::new(b)))
    })
}

fn values() -> impl Strategy<Value = [i64; 4]> {
    prop::array::uniform4(prop_oneof![8 => -9_i64..=30, 1 => any::<i64>()])
}

fn bound(values: &[i64; 4]) -> Bindings {
    NAMES.iter().copied().zip(values.iter().copied()).collect()
}

/// Ranges that contain `values`.
fn around(values: &[i64; 4], below: i64, above: i64) -> Ranges {
    let mut ranges = Ranges::new();
    for (name, value) in NAMES.iter().zip(values) {
        ranges.set(name, value.saturating_sub(below), value.saturating_add(above)).unwrap();
    }
    ranges
}

/// The least i128 has no opposite, and its quotient by -1 no place: found by a rare case of the properties below.
#[test]
fn intermediate_results_at_the_end_of_their_range_do_not_panic() {
    let node = |operation, a, b| Tree::Node(operation, Box::new(a), Box::new(b));
    let times = |a, b| node(Operation::Multiply, a, b);
    let agrees = |operation, factor, divisor| {
        let values = [1 << 62, 1 << 62, factor, divisor];
        let numerator = times(times(Tree::Symbol(0), Tree::Symbol(1)), Tree::Symbol(2));
        let tree = node(operation, numerator, Tree::Symbol(3));
        let (expected, actual) = (tree.value(&values), tree.dim().evaluate(&bound(&values)));
        match expected.map(i64::try_from) {
            Some(Ok(expected)) => assert_eq!(actual, Ok(expected), "{tree:?}"),
            Some(Err(_)) => assert!(actual.is_err(), "{tree:?} is {actual:?}"),
            // The tree went through wider results than the expression: nothing to compare.
            None => {}
        }
    };
    for operation in [Operation::FloorDivide, Operation::CeilDivide, Operation::Modulo] {
        for divisor in [i64::MIN, -3, -1, 0, 1, 3, i64::MAX] {
            agrees(operation, -8, divisor);
            agrees(operation, 7, divisor);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn canonical_has_the_value_of_the_tree(tree in tree(), values in values()) {
        let dim = tree.dim();
        if let Some(expected) = tree.value(&values)
            && let Ok(expected) = i64::try_from(expected)
            && !dim.is_refused()
            && let Ok(actual) = dim.evaluate(&bound(&values)).map_err(|error| {
                // Wider intermediate results than those of the tree are the only excuse.
                assert!(matches!(error, DimError::Overflow { .. }), "{error}");
            })
        {
            prop_assert_eq!(actual, expected, "{}", dim);
        }
    }

    #[test]
    fn printed_form_parses_to_the_same(tree in tree()) {
        let dim = tree.dim();
        let parsed: Dim = dim.to_string().parse().unwrap();
        prop_assert_eq!(&parsed, &dim);
        prop_assert_eq!(dim.substitute(&|_| None), dim);
    }

    #[test]
    fn bounds_contain_values(
        tree in tree(), values in values(), below in 0_i64..20, above in 0_i64..20,
    ) {
        let (dim, ranges) = (tree.dim(), around(&values, below, above));
        if let Ok(value) = dim.evaluate(&bound(&values)) {
            let (low, high) = dim.bounds(&ranges);
            prop_assert!(low <= value && value <= high, "{dim}: {value} in {low}..={high}");
            let simplified = dim.simplify(&ranges);
            if let Ok(other) = simplified.evaluate(&bound(&values)) {
                prop_assert_eq!(other, value, "{} became {}", dim, simplified);
            }
        }
    }

    #[test]
    fn equality_has_no_counterexample(
        a in tree(), b in tree(), values in values(), below in 0_i64..20, above in 0_i64..20,
    ) {
        let (a, b, ranges) = (a.dim(), b.dim(), around(&values, below, above));
        if let (Ok(left), Ok(right)) = (a.evaluate(&bound(&values)), b.evaluate(&bound(&values))) {
            match equality(&a, &b, &ranges) {
                Equality::Proven => prop_assert_eq!(left, right, "{} = {}", a, b),
                Equality::Refuted => prop_assert_ne!(left, right, "{} = {}", a, b),
                Equality::Unknown => {}
            }
            if let Some(answer) = at_least(&a, &b, &ranges) {
                prop_assert_eq!(answer, left >= right, "{} >= {}", a, b);
            }
        }
    }

    #[test]
    fn polynomials_obey_the_laws_of_a_ring(
        a in polynomial_tree(), b in polynomial_tree(), c in polynomial_tree(),
    ) {
        let (a, b, c) = (a.dim(), b.dim(), c.dim());
        prop_assert_eq!(&a + &b, &b + &a);
        prop_assert_eq!(&a * &b, &b * &a);
        prop_assert_eq!((&a + &b) + &c, &a + (&b + &c));
        prop_assert_eq!((&a * &b) * &c, &a * (&b * &c));
        prop_assert_eq!(&a * (&b + &c), &a * &b + &a * &c);
        if b != Dim::ZERO && !(&a * &b).is_refused() {
            prop_assert_eq!((&a * &b).divide_exact(&b), Some(a.clone()));
            prop_assert_eq!((&a * &b).floor_div(&b), a.clone());
            prop_assert_eq!((&a * &b).modulo(&b), Dim::ZERO);
        }
    }

    #[test]
    fn solving_inverts_evaluation(
        tree in tree(), factor in -9_i64..=9, values in values(),
    ) {
        let unknown = Dim::symbol("unknown");
        let dim = tree.dim() + factor * unknown;
        let mut all = bound(&values);
        all.insert("unknown", 7);
        if let Ok(actual) = dim.evaluate(&all)
            && let Ok(solution) = solve_for(&dim, actual, &bound(&values))
        {
            match solution {
                Solution::Solved { symbol, value } => {
                    prop_assert_eq!((symbol.as_ref(), value), ("unknown", 7));
                }
                Solution::Satisfied => prop_assert_eq!(factor, 0),
                other => prop_assert!(false, "{dim}: {other:?}"),
            }
        }
    }

    #[test]
    fn any_text_parses_or_is_refused(text in "\\PC{0,40}|[-a-c0-9+*/%(),` ]{0,40}") {
        if let Ok(dim) = text.parse::<Dim>() {
            prop_assert_eq!(dim.to_string().parse::<Dim>(), Ok(dim));
        }
        let dim = Dim::from_onnx_param(&text);
        prop_assert_eq!(dim.to_string().parse::<Dim>(), Ok(dim));
    }

    #[test]
    fn any_name_round_trips(name in any::<String>()) {
        let symbol = Dim::symbol(&name);
        prop_assert_eq!(symbol.to_string().parse::<Dim>(), Ok(symbol));
    }
}

/// Sums, differences and products only, with small coefficients.
fn polynomial_tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![(-5_i64..=5).prop_map(Tree::Constant), (0..NAMES.len()).prop_map(Tree::Symbol)];
    let operation = || prop_oneof![Just(Operation::Add), Just(Operation::Subtract), Just(Operation::Multiply)];
    leaf.prop_recursive(4, 10, 2, move |inner| {
        (operation(), inner.clone(), inner)
            .prop_map(|(operation, a, b)| Tree::Node(operation, Box::new(a), Box::new(b)))
    })
}
