use super::*;

fn dim(text: &str) -> Dim {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn bindings(values: &[(&str, i64)]) -> Bindings {
    values.iter().copied().collect()
}

/// The text on the left has the printed form on the right.
fn prints(text: &str, expected: &str) {
    assert_eq!(dim(text).to_string(), expected, "of {text}");
    assert_eq!(dim(expected), dim(text), "parsed again");
}

#[test]
fn polynomials_are_canonical() {
    assert_eq!(dim("past + seq"), dim("seq + past"));
    assert_eq!(dim("2*(a + b)"), dim("2*a + 2*b"));
    assert_eq!(dim("(a + b)*(a - b)"), dim("a*a - b*b"));
    assert_eq!(dim("a - a"), Dim::ZERO);
    assert_ne!(dim("a"), dim("b"));
    prints("3 + b*a*2 - c", "2*a*b - c + 3");
    prints("-x", "-x");
    prints("x*-1 - 1", "-x - 1");
    prints("x**3 - 2*x**2", "x*x*x - 2*x*x");
}

#[test]
fn divisions_fold() {
    prints("floordiv(7, 2)", "3");
    prints("floordiv(-7, 2)", "-4");
    prints("floordiv(7, -2)", "-4");
    prints("mod(-7, 2)", "1");
    prints("mod(7, -2)", "-1");
    prints("floordiv(x, 1)", "x");
    prints("floordiv(x, -1)", "-x");
    prints("floordiv(x, x)", "1");
    prints("floordiv(0, x)", "0");
    prints("floordiv(4*x + 3*y + 9, 4)", "x + floordiv(3*y + 1, 4) + 2");
    prints("floordiv(floordiv(x, 2), 3)", "floordiv(x, 6)");
    prints("floordiv(floordiv(x - 1, 2) + 1 - 1, 2) + 1", "floordiv(x + 3, 4)");
    prints("floordiv(2*x + 1, 2)", "x");
    prints("floordiv(2*x + 1, 4)", "floordiv(x, 2)");
    prints("floordiv(b*s*256, s*64)", "4*b");
    prints("floordiv(s*t + 3, s)", "t + floordiv(3, s)");
    prints("ceildiv(x, 4)", "floordiv(x + 3, 4)");
    prints("-(-x//4)", "floordiv(x + 3, 4)");
    prints("ceildiv(x, y)", "-floordiv(-x, y)");
    prints("8*floordiv(h + 31, 32)", "8*floordiv(h + 31, 32)");
    prints("floordiv(mod(x, 4), 4)", "0");
    assert_eq!(dim("floordiv(h - 1, 2) + 1"), dim("floordiv(h + 1, 2)"));
}

#[test]
fn remainders_fold() {
    prints("mod(4*x, 4)", "0");
    prints("mod(5*x + 9, 4)", "mod(x + 1, 4)");
    prints("mod(6*x + 1, 4)", "2*mod(x, 2) + 1");
    prints("mod(x - y, 4)", "mod(x + 3*y, 4)");
    prints("mod(mod(x, 8), 4)", "mod(x, 4)");
    prints("mod(mod(x, 4), 8)", "mod(x, 4)");
    prints("mod(x, -4)", "-mod(3*x, 4)");
    prints("mod(x*y + 2, y)", "mod(2, y)");
}

#[test]
fn extremes_fold() {
    prints("min(x, x)", "x");
    prints("min(x, x + 3)", "x");
    prints("max(x, x + 3)", "x + 3");
    prints("max(3, a)", "max(a, 3)");
    prints("max(a, max(3, b, 4))", "max(a, b, 4)");
    prints("min(max(a, b), max(b, a))", "max(a, b)");
    prints("max(2*a, 2*b)", "2*max(a, b)");
    prints("max(a + 1, b + 3)", "max(a, b + 2) + 1");
    prints("max(max(a, b) + 1, c)", "max(a, b, c - 1) + 1");
    prints("max(max(a, 1) + 9223372036854775807, 0)", "max(a, 1) + 9223372036854775807");
    prints("max(a*-9223372036854775808, 0)", "max(-9223372036854775808*a, 0)");
    prints("min(3)", "3");
    prints("max(2, 5)", "5");
    assert_eq!(dim("x").min(dim("y")), dim("min(x, y)"));
    assert_eq!(std::cmp::max(dim("x"), dim("y")), dim("max(x, y)"));
}

#[test]
fn constants_do_not_allocate() {
    assert!(matches!(Dim::known(7).0, Repr::Known(7)));
    assert_eq!(Dim::known(6) * 7 + 1 - Dim::known(3), Dim::known(40));
    assert!(size_of::<Dim>() <= 16);
}

#[test]
fn operators_take_every_combination() {
    let x = Dim::symbol("x");
    assert_eq!(&x + 1, 1 + x.clone());
    assert_eq!(x.clone() * 2, &x + &x);
    assert_eq!(3 - &x, -(x.clone() - 3));
    assert_eq!(Dim::from(5_usize), Dim::from(5_i64));
    assert_eq!(Dim::product([&x, &Dim::known(2)]), 2 * &x);
    assert_eq!(Dim::sum([&x, &x]), 2 * x);
    assert_eq!(Dim::product([]), Dim::ONE);
}

#[test]
fn division_by_zero_is_named() {
    let by_zero = dim("floordiv(x, y - 2)").evaluate(&bindings(&[("x", 1), ("y", 2)]));
    let expression = "floordiv(x, y - 2)".to_owned();
    assert_eq!(by_zero, Err(DimError::DivisionByZero { expression }));
    for text in ["floordiv(3, 0)", "mod(x, 0)", "floordiv(x, 0)"] {
        prints(text, text);
        assert!(matches!(dim(text).evaluate(&bindings(&[("x", 1)])), Err(DimError::DivisionByZero { .. })));
    }
}

#[test]
fn overflow_is_refused_and_does_not_panic() {
    let largest = Dim::known(i64::MAX);
    for refused in [
        &largest + 1,
        &largest * &largest,
        -Dim::known(i64::MIN),
        Dim::known(i64::MIN).floor_div(&Dim::known(-1)),
        &largest * Dim::symbol("x") * 2,
        Dim::max(&(&largest + 1), &Dim::ONE),
        Dim::symbol("x").floor_div(&(&largest + 1)),
        Dim::symbol("x").modulo(&(&largest + 1)),
        (&largest + 1) * Dim::ZERO,
        Dim::from(usize::MAX),
    ] {
        assert_eq!(refused.refusal(), Some(Refusal::Overflow));
        assert!(matches!(refused.evaluate(&Bindings::new()), Err(DimError::Overflow { .. })));
        assert_eq!(equality(&refused, &refused, &Ranges::new()), Equality::Unknown);
        assert_eq!(refused.to_string(), "!overflow");
        assert_eq!(dim("!overflow"), refused);
        assert_eq!(refused.bounds(&Ranges::new()), (i64::MIN, i64::MAX));
    }
    let product = dim("x*y").evaluate(&bindings(&[("x", i64::MAX), ("y", 2)]));
    assert!(matches!(product, Err(DimError::Overflow { .. })));
    let back_in_range = dim("x*y - x").evaluate(&bindings(&[("x", i64::MAX), ("y", 2)]));
    assert_eq!(back_in_range, Ok(i64::MAX));
    prints("-9223372036854775808*x - 1", "-9223372036854775808*x - 1");
    prints("y + -9223372036854775808*z", "y + -9223372036854775808*z");
}

#[test]
fn size_is_limited() {
    let factor = |index: usize| Dim::symbol(&format!("a{index}")) + Dim::symbol(&format!("b{index}"));
    let factors: Vec<Dim> = (0..40).map(factor).collect();
    assert_eq!(Dim::product(&factors).refusal(), Some(Refusal::TooLarge));
    let names: Vec<Dim> = (0..600).map(|index| Dim::symbol(&format!("s{index}"))).collect();
    assert_eq!(Dim::sum(&names).refusal(), Some(Refusal::TooLarge));
    assert_eq!(Dim::sum(&names[..512]).refusal(), None);
    let deep = (0..1000).fold(Dim::symbol("x"), |dim, _| dim.floor_div(&Dim::symbol("y")) + 1);
    assert_eq!(deep.refusal(), Some(Refusal::TooLarge));
    assert_eq!(deep.evaluate(&Bindings::new()), Err(DimError::TooLarge));
    assert_eq!(dim("!too_large"), deep);
    let extreme = names[..65].iter().fold(Dim::ONE, |extreme, name| Dim::max(&extreme, name));
    assert_eq!(extreme.refusal(), Some(Refusal::TooLarge));
    // Sharing would make this exponential.
    let wide = (0..1000).fold(Dim::symbol("x"), |dim, _| Dim::max(&dim, &(&dim * &dim)));
    assert_eq!(wide.refusal(), Some(Refusal::TooLarge));
}

#[test]
fn names_round_trip() {
    for name in ["past + seq", "", "a`b\\c", "x\ny", "über", "8", "input.0", "\u{2028}", "-1", "?"] {
        let symbol = Dim::symbol(name);
        assert_eq!(symbol.as_symbol(), Some(name));
        assert_eq!(dim(&symbol.to_string()), symbol);
        assert!(!symbol.to_string().contains('\n'));
        assert_eq!(dim(&(symbol.clone() * 2 + 1).to_string()), symbol * 2 + 1);
    }
    assert_eq!(Dim::symbol("input.0").to_string(), "input.0");
    assert_eq!(Dim::symbol("a b").to_string(), "`a b`");
    assert_eq!(dim("min").as_symbol(), Some("min"));
    assert_eq!(dim("x + 1").as_symbol(), None);
}

#[test]
fn untrusted_text_is_refused() {
    let deep = "(".repeat(60_000);
    assert!(matches!(deep.parse::<Dim>(), Err(DimParseError::TooDeep { offset: 65 })));
    let minus = format!("{}x", "-".repeat(60_000));
    assert_eq!(dim(&minus), dim("x"));
    let calls = "min(".repeat(10_000);
    assert!(matches!(calls.parse::<Dim>(), Err(DimParseError::TooDeep { .. })));
    let long = "x".repeat(70_000);
    assert!(matches!(long.parse::<Dim>(), Err(DimParseError::TooLong { bytes: 70_000 })));
    let terms: Vec<String> = (0..1000).map(|index| format!("s{index}")).collect();
    assert!(matches!(terms.join("+").parse::<Dim>(), Err(DimParseError::Refused { .. })));
    for text in [
        "",
        " ",
        "x +",
        "+x",
        "x y",
        "1x",
        "(x",
        "x)",
        "`x",
        "`\\q`",
        "`\\u{110000}`",
        "min()",
        "mod(x)",
        "sin(x)",
        "99999999999999999999",
        "x**99",
        "x**y",
        "x/2",
        "x,y",
        "ü",
        "`\\",
        "999999999999999999999999999999999999999999999999",
    ] {
        assert!(text.parse::<Dim>().is_err(), "{text}");
    }
}

#[test]
fn onnx_parameters_are_expressions_or_names() {
    let is = |text: &str, expected: &str| assert_eq!(Dim::from_onnx_param(text), dim(expected), "{text}");
    is("past + seq", "seq + past");
    is("past_sequence_length + sequence_length", "sequence_length + past_sequence_length");
    is("8*floordiv(h+31, 32)", "8*floordiv(h + 31, 32)");
    is("(s0//2)", "floordiv(s0, 2)");
    is("-(-s0//2)", "floordiv(s0 + 1, 2)");
    is("Max(1, s0)", "max(s0, 1)");
    is("s0-1", "s0 - 1");
    is("s0 - s1", "s0 - s1");
    is("input.1", "input.1");
    is("floor(h/2 - 1/2) + 1", "floordiv(h + 1, 2)");
    is("ceiling(past/2 + 1/3)", "ceildiv(3*past + 2, 6)");
    is("floor(floor(h/2)/2)/-1", "-floordiv(h, 4)");
    is("(4*a + 2*b)/2", "2*a + b");
    is("batch*(h/8)*16", "2*batch*h");
    is("CeilDiv(h, 2)*Mod(h, 3)", "floordiv(h + 1, 2)*mod(h, 3)");
    for name in [
        "batch-size",
        "sequence length",
        "N/A",
        "?",
        "-1",
        "1",
        "",
        "x - x",
        "`a`",
        "a[0]",
        "ü",
        "h/2",
        "h/w",
        "h/0",
        "max(h/2, 1)",
        "floor(h, 2)",
    ] {
        assert_eq!(Dim::from_onnx_param(name).as_symbol(), Some(name));
    }
}

#[test]
fn exact_division() {
    let divides = |a: &str, b: &str, q: &str| assert_eq!(dim(a).divide_exact(&dim(b)), Some(dim(q)));
    divides("batch*seq*256", "seq*64", "4*batch");
    divides("a*a - b*b", "a + b", "a - b");
    divides("0", "x", "0");
    divides("12", "-4", "-3");
    divides("x*floordiv(y, 2)", "floordiv(y, 2)", "x");
    for (a, b) in [("x", "0"), ("x", "2"), ("x + 1", "x"), ("7", "2"), ("x", "y"), ("x", "!overflow")] {
        assert_eq!(dim(a).divide_exact(&dim(b)), None, "{a} by {b}");
    }
}

#[test]
fn substitution_folds() {
    let with_two = |text: &str| dim(text).substitute(&|name| (name == "x").then(|| Dim::known(2)));
    assert_eq!(with_two("floordiv(x*y + max(x, 1), 2)"), dim("y + 1"));
    assert_eq!(with_two("mod(y, x) + min(x, y)"), dim("mod(y, 2) + min(y, 2)"));
    let names: Vec<Arc<str>> = dim("floordiv(a, max(b, c*a))").symbols().into_iter().collect();
    assert_eq!(names, [Arc::from("a"), Arc::from("b"), Arc::from("c")]);
}

#[test]
fn bounds_of_expressions() {
    let mut ranges = Ranges::new();
    ranges.set("x", 1, 10).unwrap();
    ranges.set("y", -3, 4).unwrap();
    let bounds = |text: &str| dim(text).bounds(&ranges);
    assert_eq!(bounds("2*x + 1"), (3, 21));
    assert_eq!(bounds("x - y"), (-3, 13));
    assert_eq!(bounds("x*y"), (-30, 40));
    assert_eq!(bounds("y*y"), (0, 16));
    assert_eq!(bounds("floordiv(x, 4)"), (0, 2));
    assert_eq!(bounds("floordiv(x, y)"), (-10, 10));
    assert_eq!(bounds("mod(x, 4)"), (0, 3));
    assert_eq!(bounds("mod(x, 40)"), (1, 10));
    assert_eq!(bounds("mod(5, y)"), (-2, 3));
    assert_eq!(bounds("max(x, 3)"), (3, 10));
    assert_eq!(bounds("min(x, y)"), (-3, 4));
    assert_eq!(bounds("batch"), (0, i64::MAX));
    assert_eq!(bounds("batch*seq"), (0, i64::MAX));
    assert_eq!(bounds("-batch*batch*batch*batch*batch"), (i64::MIN, 0));
    assert_eq!(bounds("floordiv(x, 0)"), (i64::MIN, i64::MAX));
    assert_eq!(ranges.set("z", 2, 1).unwrap_err().to_string(), "range of dimension `z` is empty: 2 to 1");
}

#[test]
fn equality_is_three_valued() {
    let mut ranges = Ranges::new();
    ranges.set("x", 1, 10).unwrap();
    ranges.set("one", 1, 1).unwrap();
    let is = |a: &str, b: &str, expected| {
        assert_eq!(equality(&dim(a), &dim(b), &ranges), expected, "{a} = {b}");
    };
    is("a + b", "b + a", Equality::Proven);
    is("a", "b", Equality::Unknown);
    is("a", "a + 1", Equality::Refuted);
    is("x", "11", Equality::Refuted);
    is("2*a", "2*b + 1", Equality::Refuted);
    is("one*a", "a", Equality::Proven);
    is("max(a, 0)", "a", Equality::Proven);
    is("max(x, 1)", "x", Equality::Proven);
    is("floordiv(x, 20)", "0", Equality::Proven);
    is("mod(x, 20)", "x", Equality::Proven);
    is("4*floordiv(a, 4) + mod(a, 4)", "a", Equality::Proven);
    is("mod(a, 4)", "4", Equality::Refuted);
    is("!overflow", "!overflow", Equality::Unknown);
    assert_eq!(at_least(&dim("x"), &dim("1"), &ranges), Some(true));
    assert_eq!(at_least(&dim("x"), &dim("11"), &ranges), Some(false));
    assert_eq!(at_least(&dim("x"), &dim("a"), &ranges), None);
}

#[test]
fn solving_for_a_symbol() {
    let known = bindings(&[("past", 5), ("heads", 4)]);
    let solve = |text: &str, actual| solve_for(&dim(text), actual, &known).unwrap();
    let solved = |symbol: &str, value| Solution::Solved { symbol: Arc::from(symbol), value };
    assert_eq!(solve("past + seq", 17), solved("seq", 12));
    assert_eq!(solve("heads*d + 1", 13), solved("d", 3));
    assert_eq!(solve("7 - n", 9), solved("n", -2));
    assert_eq!(solve("past + 1", 6), Solution::Satisfied);
    assert!(matches!(solve("past + 1", 7), Solution::Contradiction { .. }));
    assert!(matches!(solve("heads*d", 13), Solution::Contradiction { .. }));
    assert!(matches!(solve("a*b", 12), Solution::Undetermined { unknown } if unknown.len() == 2));
    assert!(matches!(solve("floordiv(a, 2)", 12), Solution::Undetermined { .. }));
    assert!(matches!(solve("a*a", 9), Solution::Undetermined { .. }));
    let by_zero = solve_for(&dim("floordiv(7, past - 5)"), 1, &known);
    assert!(matches!(by_zero, Err(DimError::DivisionByZero { .. })));
    assert!(matches!(solve_for(&dim("!overflow"), 1, &known), Err(DimError::Overflow { .. })));
}
