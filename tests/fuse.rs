//! A graph that was fused has the bits of the graph that was not, for random graphs of products, convolutions and elementwise
//! steps, of f32 and of f16, for any number of threads. It has no sigmoids: a product of one with what it reads is a gate, which has a
//! function of its own.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::memory::{after, emitted};
use ipuc::{Session, SessionOptions, Tensor};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::Op;
use ipuc_formats::ops::scalar::{Scalar, from_scalars, scalars};
use ipuc_passes::ir::Graph;
use std::fmt::Write as _;

/// Numbers that look random, the same for each seed.
struct Numbers(u64);

impl Numbers {
    fn of(seed: u64) -> Numbers {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            numbers.next();
        }
        numbers
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_of<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.below(texts.len())]
    }

    /// Mostly small numbers, some zeros of either sign, and rarely no number.
    fn number(&mut self) -> f64 {
        match self.below(200) {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 | 3 => -0.0,
            4 | 5 => 0.0,
            _ => (self.next() % 4096) as f64 / 512.0 - 4.0,
        }
    }

    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let elements: Vec<Scalar> = (0..shape.iter().product()).map(|_| Scalar::Float(self.number())).collect();
        from_scalars(dtype, shape, &elements).unwrap()
    }
}

/// The text of a graph, and its inputs.
struct Case {
    text: String,
    inputs: Vec<(String, Tensor)>,
}

/// What comes first: the shape of its results, inputs, and the steps.
struct Product {
    shape: Vec<usize>,
    inputs: Vec<(&'static str, Vec<usize>)>,
    steps: String,
}

fn shape_text(shape: &[usize]) -> String {
    format!("[{}]", shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

/// A constant of integers, along one axis.
fn integers(name: &str, values: &[i64]) -> String {
    let hex: String = values.iter().flat_map(|value| value.to_le_bytes()).map(|byte| format!("{byte:02x}")).collect();
    format!("constant @{name} : i64[{}] = i64[{0}]:{hex}\n", values.len())
}

/// A constant of f32.
fn floats(name: &str, shape: &[usize], values: &[f32]) -> String {
    let hex: String = values.iter().flat_map(|value| value.to_le_bytes()).map(|byte| format!("{byte:02x}")).collect();
    let shape = shape_text(shape);
    format!("constant @{name} : f32{shape} = f32{shape}:{hex}\n")
}

fn product(numbers: &mut Numbers, dtype: &str) -> Product {
    let (a, b) = (1 + numbers.below(40), 1 + numbers.below(70));
    match numbers.below(4) {
        0 => Product {
            shape: vec![2, a, b],
            inputs: vec![("l", vec![2, a, 5]), ("w", vec![5, b])],
            steps: format!("  %v0 : {dtype}[2, {a}, {b}] = matmul %l, %w from \"product\"\n"),
        },
        1 => Product {
            shape: vec![3, a, b],
            inputs: vec![("l", vec![3, a, 7]), ("w", vec![3, b, 7])],
            steps: format!("  %v0 : {dtype}[3, {a}, {b}] = matmul transpose_b=1 %l, %w from \"product\"\n"),
        },
        2 => Product {
            shape: vec![2, 20, a, 9],
            inputs: vec![("l", vec![2, 3, a, 9]), ("w", vec![20, 3, 3, 3]), ("o", vec![20])],
            steps: format!(
                "  %v0 : {dtype}[2, 20, {a}, 9] = convolution groups=1 pads=[1, 1, 1, 1] %l, %w, %o from \"conv\"\n"
            ),
        },
        _ => Product {
            shape: vec![1, 6, b],
            inputs: vec![("l", vec![1, 6, b]), ("w", vec![6, 1, 1])],
            steps: format!("  %v0 : {dtype}[1, 6, {b}] = convolution groups=6 %l, %w from \"conv\"\n"),
        },
    }
}

/// A random graph: a product, then steps over what is there, some of which are results.
fn case(seed: u64, dtype: &str) -> Case {
    let mut numbers = Numbers::of(seed);
    let Product { shape, mut inputs, mut steps } = product(&mut numbers, dtype);
    let kind = format!("{dtype}{}", shape_text(&shape));
    let broadcast: Vec<usize> = shape.iter().map(|&extent| if numbers.below(2) == 0 { 1 } else { extent }).collect();
    inputs.extend([("r", shape.clone()), ("c", broadcast)]);
    let mut known = vec!["%v0".to_string(), "%r".to_string()];
    let count = 1 + numbers.below(9);
    for at in 1..=count {
        // What was computed last is read more often, so that chains grow long.
        let operand = |numbers: &mut Numbers| match numbers.below(3) {
            0 => known[numbers.below(known.len())].clone(),
            _ => known[known.len() - 1].clone(),
        };
        let (x, y) = (operand(&mut numbers), operand(&mut numbers));
        let step = match numbers.below(9) {
            0 => format!("unary function={} {x}", numbers.one_of(&["exp", "tanh", "abs", "erf", "neg", "sqrt"])),
            1 => format!("activation function={} {x}", numbers.one_of(&["relu", "hard_sigmoid", "gelu", "hard_swish"])),
            2 | 3 => {
                format!(
                    "binary function={} {x}, {y}",
                    numbers.one_of(&["add", "sub", "mul", "div", "min", "max", "prelu"])
                )
            }
            4 => format!("binary function={} {x}, %c", numbers.one_of(&["add", "mul", "sub"])),
            5 => format!("binary function=pow {x}, @{}", numbers.one_of(&["two", "half", "three", "odd"])),
            6 => format!("clamp {x}, @half, @three"),
            7 => {
                let relation = numbers.one_of(&["less", "greater", "equal", "less_or_equal"]);
                let _ = writeln!(steps, "  %b{at} : bool{} = compare relation={relation} {x}, {y}", shape_text(&shape));
                format!("select %b{at}, {y}, {x}")
            }
            _ => format!("binary function=add {x}, @odd"),
        };
        let _ = writeln!(steps, "  %v{at} : {kind} = {step} from \"{at}\"");
        known.push(format!("%v{at}"));
    }
    let middle = format!("%v{}", numbers.below(count + 1));
    let constant = |name: &str, value: f64| {
        let tensor = from_scalars(ipuc_formats::dtype::parse(dtype).unwrap(), &[], &[Scalar::Float(value)]).unwrap();
        let hex: String = tensor.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("constant @{name} : {dtype}[] = {dtype}[]:{hex}\n")
    };
    let constants =
        [("two", 2.0), ("half", 0.5), ("three", 3.0), ("odd", -1.75)].map(|(name, value)| constant(name, value));
    let names: Vec<String> = inputs.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let parameters: Vec<String> =
        inputs.iter().map(|(name, shape)| format!("%{name} : {dtype}{}", shape_text(shape))).collect();
    let text = format!(
        "{}entry \"main\"({}) -> (\"y\", \"m\") = block 0\nblock 0({}) {{\n{steps}  return %v{count}, {middle}\n}}\n",
        constants.concat(),
        names.join(", "),
        parameters.join(", "),
    );
    let dtype = ipuc_formats::dtype::parse(dtype).unwrap();
    let inputs = inputs.into_iter().map(|(name, shape)| (name.to_string(), numbers.tensor(dtype, &shape))).collect();
    Case { text, inputs }
}

/// The results as numbers that compare: one kind of NaN.
fn run(graph: &Graph, inputs: &[(String, Tensor)], threads: usize) -> Vec<Vec<Option<u64>>> {
    let model = emitted(graph).unwrap();
    let options = SessionOptions { threads, ..SessionOptions::default() };
    let mut session = Session::new(&model, &options).unwrap();
    let given = inputs.iter().map(|(name, tensor)| (name.clone(), tensor.clone().into())).collect();
    let outputs = session.run(None, given).unwrap();
    let bits = |scalar: Scalar| match scalar {
        Scalar::Float(value) if value.is_nan() => None,
        value => Some(value.to_f64().to_bits()),
    };
    outputs
        .iter()
        .map(|(_, value)| scalars(value.as_tensor().unwrap()).unwrap().into_iter().map(bits).collect())
        .collect()
}

#[test]
fn fused_graphs_have_the_bits_of_their_steps() {
    let (mut before, mut gone) = (0, 0);
    for seed in 0..160 {
        for dtype in ["f32", "f16"] {
            let Case { text, inputs } = case(seed, dtype);
            let plain = after(&text, &["infer", "remove_dead_code", "order"]);
            let fused = after(&text, &["infer", "remove_dead_code", "fuse", "order"]);
            before += plain.step_count();
            gone += plain.step_count() - fused.step_count();
            let expected = run(&plain, &inputs, 1);
            for threads in [1, 3] {
                let found = run(&fused, &inputs, threads);
                assert_eq!(found, expected, "seed {seed}, {dtype}, {threads} threads:\n{text}");
            }
        }
    }
    assert!(gone * 3 > before, "only {gone} of {before} steps were joined");
}

/// A convolution of constant filters whose result becomes rows, by which functions go; its windows lie side by side, or overlap.
fn rows_of_windows(seed: u64) -> (Case, bool) {
    let mut numbers = Numbers::of(seed);
    let [batch, channels, filters] = [1 + numbers.below(3), 1 + numbers.below(4), 1 + numbers.below(20)];
    let rank = 1 + numbers.below(3);
    let are_patches = numbers.below(3) > 0;
    let taps: Vec<usize> = (0..rank).map(|axis| if axis == 0 { 2 } else { 1 } + numbers.below(3)).collect();
    let counts: Vec<usize> = (0..rank).map(|_| 1 + numbers.below(6)).collect();
    let along = |axis: usize| if are_patches { counts[axis] * taps[axis] } else { counts[axis] + taps[axis] - 1 };
    let image = [vec![batch, channels], (0..rank).map(along).collect()].concat();
    let all: usize = counts.iter().product();
    let sums = [vec![batch, filters], counts.clone()].concat();
    let is_flat = numbers.below(2) == 0;
    let rows = if is_flat { vec![batch, all, filters] } else { [vec![batch], counts.clone(), vec![filters]].concat() };
    let kind = |shape: &[usize]| format!("f32{}", shape_text(shape));
    let strides = if are_patches { taps.clone() } else { vec![1; rank] };
    let bias = if numbers.below(2) == 0 { ", @b" } else { "" };
    let mut steps = format!(
        "  %c : {} = convolution strides={} groups=1 %x, @w{bias} from \"windows\"\n",
        kind(&sums),
        shape_text(&strides)
    );
    let mut moved = "%c";
    if is_flat {
        let _ =
            writeln!(steps, "  %f : {} = reshape allow_zero=0 %c, @flat from \"flat\"", kind(&[batch, filters, all]));
        moved = "%f";
    }
    let last = if is_flat { 2 } else { rank + 1 };
    let permutation: Vec<usize> = [0].into_iter().chain(2..=last).chain([1]).collect();
    let permutation = shape_text(&permutation);
    let _ = writeln!(steps, "  %r : {} = transpose permutation={permutation} {moved} from \"rows\"", kind(&rows));
    let function = numbers.one_of(&["exp", "tanh", "neg"]);
    let _ = writeln!(steps, "  %u : {} = unary function={function} %r from \"function\"", kind(&rows));
    let _ = writeln!(steps, "  %y : {} = binary function=mul %u, @half from \"half\"", kind(&rows));
    let weight = [vec![filters, channels], taps].concat();
    let mut values = |shape: &[usize]| -> Vec<f32> {
        (0..shape.iter().product()).map(|_| (numbers.next() % 4096) as f32 / 512.0 - 4.0).collect()
    };
    let constants = [
        floats("w", &weight, &values(&weight)),
        floats("b", &[filters], &values(&[filters])),
        floats("half", &[], &[0.5]),
        integers("flat", &[0, 0, -1]),
    ];
    let text = format!(
        "{}entry \"main\"(\"x\") -> (\"y\") = block 0\nblock 0(%x : {}) {{\n{steps}  return %y\n}}\n",
        constants.concat(),
        kind(&image),
    );
    let inputs = vec![("x".to_string(), numbers.tensor(DType::F32, &image))];
    (Case { text, inputs }, are_patches)
}

#[test]
fn rows_of_windows_have_the_bits_of_their_steps() {
    for seed in 0..120 {
        let (Case { text, inputs }, are_patches) = rows_of_windows(seed);
        let plain = after(&text, &["infer", "remove_dead_code", "order"]);
        let fused = after(&text, &["infer", "remove_dead_code", "fuse", "remove_dead_code", "order"]);
        let names: Vec<&str> = fused.blocks[0].steps.iter().map(|step| step.op.name()).collect();
        let product = if are_patches { "matmul" } else { "convolution" };
        assert_eq!(names.iter().filter(|name| **name == product).count(), 1, "seed {seed}: {names:?}\n{text}");
        let are_moves = |name: &&str| [product, "reshape", "transpose"].contains(name);
        assert!(names.iter().all(are_moves), "seed {seed}: {names:?}\n{text}");
        let expected = run(&plain, &inputs, 1);
        for threads in [1, 3] {
            assert_eq!(run(&fused, &inputs, threads), expected, "seed {seed}, {threads} threads:\n{text}");
        }
    }
}

#[test]
fn a_fused_step_names_its_nodes() {
    let text = r#"entry "main"("x", "w", "b") -> ("y") = block 0
block 0(%x : f32[4, 3], %w : f32[3, 5], %b : f32[5]) {
  %p : f32[4, 5] = matmul %x, %w from "product"
  %q : f32[4, 5] = binary function=add %p, %b from "bias"
  %y : f32[4, 5] = activation function=gelu %q from "gelu"
  return %y
}
"#;
    let fused = after(text, &["infer", "fuse"]);
    let [step] = fused.blocks[0].steps.as_slice() else { panic!("{} steps", fused.step_count()) };
    assert!(matches!(step.op, Op::Matmul(_)));
    assert_eq!(&*step.name, "product + bias + gelu");
}

/// Attention as exporters write it out, over rows of products; its inputs are `q`, `k`, `v`, and a mask and a condition.
fn attention_case(seed: u64) -> Case {
    let mut numbers = Numbers::of(seed);
    let [batch, groups, copies] = [1 + numbers.below(2), 1 + numbers.below(3), 1 + numbers.below(3)];
    let (heads, size) = (groups * copies, 2 * (1 + numbers.below(9)));
    let queries = 1 + numbers.below(20);
    let keys = queries + numbers.below(140);
    let at = |shape: &[usize]| format!("f32{}", shape_text(shape));
    let mut steps = String::new();
    let mut put = |name: &str, shape: &[usize], step: &str| {
        let _ = writeln!(steps, "  %{name} : {} = {step} from \"{name}\"", at(shape));
    };
    let rotated = numbers.below(2) == 0;
    for (name, own, length) in [("q", heads, queries), ("k", groups, keys), ("v", groups, keys)] {
        put(&format!("{name}4"), &[batch, length, own, size], &format!("reshape allow_zero=0 %{name}, @{name}_shape"));
        let turned = if rotated && name != "v" { format!("{name}x") } else { format!("{name}t") };
        let exchange = format!("transpose permutation=[0, 2, 1, 3] %{name}4");
        put(&turned, &[batch, own, length, size], &exchange);
        if rotated && name != "v" {
            let half = [batch, own, length, size / 2];
            put(&format!("{name}f"), &half, &format!("slice %{turned}, @zero, @half, @three"));
            put(&format!("{name}s"), &half, &format!("slice %{turned}, @half, @end, @three"));
            put(&format!("{name}n"), &half, &format!("unary function=neg %{name}s"));
            put(&format!("{name}r"), &[batch, own, length, size], &format!("concat axis=-1 %{name}n, %{name}f"));
            put(
                &format!("{name}c"),
                &[batch, own, length, size],
                &format!("binary function=mul %{turned}, %{name}_cos"),
            );
            put(
                &format!("{name}i"),
                &[batch, own, length, size],
                &format!("binary function=mul %{name}r, %{name}_sin"),
            );
            put(&format!("{name}t"), &[batch, own, length, size], &format!("binary function=add %{name}i, %{name}c"));
        }
    }
    for name in ["k", "v"].into_iter().filter(|_| copies > 1) {
        put(&format!("{name}u"), &[batch, groups, 1, keys, size], &format!("unsqueeze %{name}t, @two_axis"));
        put(&format!("{name}e"), &[batch, groups, copies, keys, size], &format!("expand %{name}u, @copied"));
        put(&format!("{name}a"), &[batch, heads, keys, size], &format!("reshape allow_zero=0 %{name}e, @all"));
    }
    let (key, value) = if copies > 1 { ("ka", "va") } else { ("kt", "vt") };
    let turned = [batch, heads, size, keys];
    if numbers.below(2) == 0 {
        put("kd", &turned, &format!("transpose permutation=[0, 1, 3, 2] %{key}"));
    } else {
        put("kl", &[batch * heads, keys, size], &format!("reshape allow_zero=0 %{key}, @flat"));
        put("km", &[batch * heads, size, keys], "transpose permutation=[0, 2, 1] %kl");
        put("kd", &turned, "reshape allow_zero=0 %km, @unflat");
    }
    let scores = [batch, heads, queries, keys];
    let by_factor = numbers.below(2) == 0;
    if by_factor {
        put("qm", &[batch, heads, queries, size], "binary function=mul %qt, @factor");
        put("kz", &turned, "binary function=mul %kd, @factor");
        put("p", &scores, "matmul %qm, %kz");
    } else {
        put("p", &scores, "matmul %qt, %kd");
    }
    let mut last = "p";
    if !by_factor {
        put("scaled", &scores, "binary function=div %p, @factor");
        last = "scaled";
    }
    if numbers.below(2) == 0 {
        put("replaced", &scores, &format!("select %condition, %{last}, @lowest"));
        last = "replaced";
    }
    if numbers.below(2) == 0 {
        put("masked", &scores, &format!("binary function=add %mask, %{last}"));
        last = "masked";
    }
    put("softmax", &scores, &format!("softmax function=softmax axis=-1 %{last}"));
    let mut weights = "softmax";
    if numbers.below(2) == 0 {
        weights = "guarded";
        let _ = writeln!(steps, "  %nan : bool{} = unary function=is_nan %softmax from \"nan\"", shape_text(&scores));
        let _ = writeln!(steps, "  %guarded : {} = select %nan, @nothing, %softmax from \"guarded\"", at(&scores));
    }
    let mut put = |name: &str, shape: &[usize], step: &str| {
        let _ = writeln!(steps, "  %{name} : {} = {step} from \"{name}\"", at(shape));
    };
    put("o", &[batch, heads, queries, size], &format!("matmul %{weights}, %{value}"));
    put("ot", &[batch, queries, heads, size], "transpose permutation=[0, 2, 1, 3] %o");
    put("y", &[batch, queries, heads * size], "reshape allow_zero=0 %ot, @rows");
    let of = |values: &[usize]| values.iter().map(|&value| value as i64).collect::<Vec<_>>();
    let constants = [
        integers("q_shape", &[0, 0, heads as i64, size as i64]),
        integers("k_shape", &[0, 0, groups as i64, size as i64]),
        integers("v_shape", &[0, 0, groups as i64, size as i64]),
        integers("two_axis", &[2]),
        integers("copied", &of(&[batch, groups, copies, keys, size])),
        integers("all", &of(&[batch, heads, keys, size])),
        integers("flat", &of(&[batch * heads, keys, size])),
        integers("unflat", &of(&turned)),
        integers("rows", &[0, 0, -1]),
        integers("zero", &[0]),
        integers("half", &[size as i64 / 2]),
        integers("end", &[i64::MAX]),
        integers("three", &[3]),
        floats("factor", &[], &[if by_factor { 0.5 } else { 2.5 }]),
        floats("lowest", &[], &[f32::MIN]),
        floats("nothing", &[], &[0.0]),
    ];
    let mut floats = vec![
        ("q", vec![batch, queries, heads * size]),
        ("k", vec![batch, keys, groups * size]),
        ("v", vec![batch, keys, groups * size]),
        ("mask", vec![1, 1, queries, keys]),
    ];
    let mut parameters: Vec<String> = floats.iter().map(|(name, shape)| format!("%{name} : {}", at(shape))).collect();
    let mut inputs = Vec::new();
    let mut tensor = |shape: &[usize], scale: f64| {
        let elements: Vec<f32> = (0..shape.iter().product())
            .map(|_| (numbers.below(2001) as f64 / 1000.0 - 1.0) as f32 * scale as f32)
            .collect();
        Tensor::from_elements(shape, &elements).unwrap()
    };
    for (name, shape) in &floats {
        inputs.push((name.to_string(), tensor(shape, if *name == "mask" { 3.0 } else { 1.0 })));
    }
    floats.clear();
    // Both halves of cosines and sines are the same.
    let mut angles = String::new();
    for (name, length) in [("q", queries), ("k", keys)] {
        for (function, wave) in [("cos", f64::cos as fn(f64) -> f64), ("sin", f64::sin)] {
            let row =
                |place: usize| (0..size).map(move |index| wave(place as f64 / (1 + index % (size / 2)) as f64) as f32);
            let hex: String =
                (0..length).flat_map(row).flat_map(f32::to_le_bytes).map(|byte| format!("{byte:02x}")).collect();
            let shape = shape_text(&[1, 1, length, size]);
            let _ = writeln!(angles, "constant @{name}_{function} : f32{shape} = f32{shape}:{hex}");
        }
    }
    let steps = ["q_cos", "q_sin", "k_cos", "k_sin"]
        .iter()
        .fold(steps, |steps, name| steps.replace(&format!("%{name}"), &format!("@{name}")));
    parameters.push(format!("%condition : bool{}", shape_text(&[1, 1, queries, keys])));
    // Of each row some keys are seen.
    let seen: Vec<bool> = (0..queries * keys).map(|index| index % keys == 0 || index * 7 % 5 < 3).collect();
    inputs.push(("condition".to_string(), Tensor::from_bools(&[1, 1, queries, keys], &seen).unwrap()));
    let names: Vec<String> = inputs.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let text = format!(
        "{}{angles}entry \"main\"({}) -> (\"y\") = block 0\nblock 0({}) {{\n{steps}  return %y\n}}\n",
        constants.concat(),
        names.join(", "),
        parameters.join(", "),
    );
    Case { text, inputs }
}

#[test]
fn attention_that_is_written_out_is_one_step_within_its_rounding() {
    for seed in 0..120 {
        let Case { text, inputs } = attention_case(seed);
        let plain = after(&text, &["infer", "fold_constants", "infer", "remove_dead_code", "order"]);
        let fused = after(
            &text,
            &["infer", "fold_constants", "infer", "remove_dead_code", "fuse", "remove_dead_code", "order"],
        );
        let names: Vec<&str> = fused.blocks[0].steps.iter().map(|step| step.op.name()).collect();
        assert_eq!(names.iter().filter(|name| **name == "attention").count(), 1, "seed {seed}: {names:?}\n{text}");
        assert!(
            !names.iter().any(|name| ["softmax", "matmul", "expand", "concat"].contains(name)),
            "seed {seed}: {names:?}\n{text}"
        );
        // Rotation with a batch of one only: cosines are those of one.
        assert!(names.len() <= 9 || text.contains("concat"), "seed {seed}: {names:?}\n{text}");
        let expected = run(&plain, &inputs, 1);
        let found = run(&fused, &inputs, 2);
        let value = |bits: &Option<u64>| bits.map_or(f64::NAN, f64::from_bits);
        for (index, (expected, found)) in expected[0].iter().zip(&found[0]).enumerate() {
            let (expected, found) = (value(expected), value(found));
            // Weights are at most 1 and values at most 1: what is rounded is a few parts of 10^7 of either.
            assert!((expected - found).abs() <= 2e-6, "seed {seed}, element {index}: {expected} {found}\n{text}");
        }
    }
}

/// A convolution of plain filters, and a batch normalization of its sums.
fn normalized_convolution(seed: u64) -> Case {
    let mut numbers = Numbers::of(seed);
    let (groups, own, filters) = (1 + numbers.below(2), 1 + numbers.below(5), 1 + numbers.below(20));
    let (channels, outputs, length) = (groups * own, groups * filters, 1 + numbers.below(40));
    let mut constants = String::new();
    let mut constant = |name: &str, shape: &[usize], least: f64, greatest: f64| {
        let mut element = || least + (greatest - least) * numbers.below(1001) as f64 / 1000.0;
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| element() as f32).collect();
        constants += &floats(name, shape, &values);
    };
    constant("w", &[outputs, own, 3], -1.0, 1.0);
    constant("o", &[outputs], -2.0, 2.0);
    constant("scale", &[outputs], -1.5, 1.5);
    constant("bias", &[outputs], -1.0, 1.0);
    constant("mean", &[outputs], -1.0, 1.0);
    constant("variance", &[outputs], 0.25, 4.0);
    let bias = if seed.is_multiple_of(2) { ", @o" } else { "" };
    let (x, y) = (shape_text(&[2, channels, length]), shape_text(&[2, outputs, length]));
    let text = format!(
        r#"{constants}entry "main"("x") -> ("y") = block 0
block 0(%x : f32{x}) {{
  %c : f32{y} = convolution groups={groups} pads=[1, 1] %x, @w{bias} from "conv"
  %n : f32{y} = batch_normalization epsilon=0.001 momentum=0.9 %c, @scale, @bias, @mean, @variance from "normalize"
  %y : f32{y} = activation function=relu %n from "relu"
  return %y
}}
"#
    );
    let elements = 2 * channels * length;
    let x: Vec<f32> = (0..elements).map(|_| numbers.below(2001) as f32 / 1000.0 - 1.0).collect();
    Case { text, inputs: vec![("x".to_string(), Tensor::from_elements(&[2, channels, length], &x).unwrap())] }
}

#[test]
fn a_normalization_goes_into_filters_within_its_rounding() {
    for seed in 0..60 {
        let Case { text, inputs } = normalized_convolution(seed);
        let plain = after(&text, &["infer", "remove_dead_code", "order"]);
        let fused = after(&text, &["infer", "fuse", "remove_dead_code", "order"]);
        let [step] = fused.blocks[0].steps.as_slice() else { panic!("{} steps of\n{text}", fused.step_count()) };
        assert_eq!((step.op.name(), &*step.name), ("convolution", "conv + normalize + relu"));
        let (expected, found) = (run(&plain, &inputs, 1), run(&fused, &inputs, 2));
        let value = |bits: &Option<u64>| bits.map_or(f64::NAN, f64::from_bits);
        for (index, (expected, found)) in expected[0].iter().zip(&found[0]).enumerate() {
            let (expected, found) = (value(expected), value(found));
            // Sums of up to 15 products and a bias are below 18, factors below 3, and each of about 20 roundings is half a part of 2^23.
            assert!(
                (expected - found).abs() <= 18.0 * 3.0 * 20.0 * 2f64.powi(-24),
                "seed {seed}, {index}: {expected} {found}"
            );
        }
    }
}

/// Groups of channels that are normalized as channels of another shape, then scaled; the groups, and inputs whose first extent
/// no shape tells.
fn normalized_groups(seed: u64) -> (Case, usize) {
    let mut numbers = Numbers::of(seed);
    let (batch, groups, own, length) =
        (1 + numbers.below(3), 1 + numbers.below(6), 1 + numbers.below(6), 2 + numbers.below(30));
    let channels = groups * own;
    let mut parameter = || (0..channels).map(|_| numbers.below(2001) as f32 / 1000.0 - 1.0).collect::<Vec<f32>>();
    let constants = [
        integers("apart", &[0, groups as i64, -1]),
        integers("back", &[0, channels as i64, length as i64, 2]),
        floats("one", &[groups], &vec![1.0; groups]),
        floats("zero", &[groups], &vec![0.0; groups]),
        floats("scale", &[channels, 1, 1], &parameter()),
        floats("bias", &[1, channels, 1, 1], &parameter()),
    ]
    .concat();
    let (scaled, biased) =
        if seed.is_multiple_of(2) { ("@scale, %b", "%s, @bias") } else { ("%b, @scale", "@bias, %s") };
    let (x, a) = (format!("[n, {channels}, {length}, 2]"), format!("[n, {groups}, {}]", own * length * 2));
    let text = format!(
        r#"{constants}entry "main"("x") -> ("y") = block 0
block 0(%x : f32{x}) {{
  %a : f32{a} = reshape allow_zero=0 %x, @apart from "apart"
  %g : f32{a} = group_normalization epsilon=0.01 scale_per_group=0 stash=f32 in_blocks=0 %a, @one, @zero from "normalize"
  %b : f32{x} = reshape allow_zero=0 %g, @back from "back"
  %s : f32{x} = binary function=mul {scaled} from "scale"
  %y : f32{x} = binary function=add {biased} from "bias"
  return %y
}}
"#
    );
    let shape = [batch, channels, length, 2];
    let x: Vec<f32> = (0..shape.iter().product()).map(|_| numbers.below(2001) as f32 / 1000.0 - 1.0).collect();
    (Case { text, inputs: vec![("x".to_string(), Tensor::from_elements(&shape, &x).unwrap())] }, groups)
}

#[test]
fn groups_that_are_normalized_apart_are_one_step_within_its_rounding() {
    for seed in 0..60 {
        let (Case { text, inputs }, groups) = normalized_groups(seed);
        let plain = after(&text, &["infer", "remove_dead_code", "order"]);
        let fused = after(&text, &["infer", "fuse", "remove_dead_code", "order"]);
        let [step] = fused.blocks[0].steps.as_slice() else { panic!("{} steps of\n{text}", fused.step_count()) };
        let Op::GroupNormalization(own) = &step.op else { panic!("{} of\n{text}", step.op.name()) };
        assert_eq!((own.groups, &*step.name), (Some(groups as i64), "apart + normalize + back + scale + bias"));
        let (expected, found) = (run(&plain, &inputs, 1), run(&fused, &inputs, 2));
        let value = |bits: &Option<u64>| bits.map_or(f64::NAN, f64::from_bits);
        for (index, (expected, found)) in expected[0].iter().zip(&found[0]).enumerate() {
            let (expected, found) = (value(expected), value(found));
            // Numbers of up to 1 over deviations of .1 or more, times scales of up to 1: each of three roundings is half a part of 2^23.
            assert!(
                (expected - found).abs() <= 20.0 * 3.0 * 2f64.powi(-24),
                "seed {seed}, {index}: {expected} {found}"
            );
        }
    }
}
