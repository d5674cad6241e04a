//! A graph that was fused has the bits of the graph that was not, for random graphs of products, convolutions and elementwise
//! steps, of f32 and of f16, for any number of threads.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use ipuc::{Session, SessionOptions, Tensor, open_bytes};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::Op;
use ipuc_formats::ops::scalar::{Scalar, from_scalars, scalars};
use ipuc_passes::emit::{EmitOptions, NoProgress, Output, emit};
use ipuc_passes::ir::Graph;
use ipuc_passes::ir::text::parse;
use ipuc_passes::options::Options;
use ipuc_passes::pipeline;
use std::fmt::Write as _;
use std::io;
use std::sync::Mutex;

/// Numbers that look random, the same for each seed.
struct Numbers(u64);

impl Numbers {
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
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        numbers.next();
    }
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
            1 => format!("activation function={} {x}", numbers.one_of(&["relu", "sigmoid", "gelu", "hard_swish"])),
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

/// The graph after passes.
fn after(text: &str, passes: &[&str]) -> Graph {
    let mut graph = parse(text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
    for name in passes {
        let options = Options { verify: true, ..Options::default() };
        let result = pipeline::run_one(pipeline::find(name).unwrap(), &mut graph, &options);
        result.unwrap_or_else(|error| panic!("{error} in\n{text}"));
    }
    graph
}

#[derive(Default)]
struct Memory(Mutex<Vec<u8>>);

impl Output for Memory {
    fn write_at(&self, offset: u64, written: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap();
        let (start, end) = (offset as usize, offset as usize + written.len());
        let length = bytes.len().max(end);
        bytes.resize(length, 0);
        bytes[start..end].copy_from_slice(written);
        Ok(())
    }
}

/// The results as numbers that compare: one kind of NaN.
fn run(graph: &Graph, inputs: &[(String, Tensor)], threads: usize) -> Vec<Vec<Option<u64>>> {
    let file = Memory::default();
    emit(graph, &EmitOptions::default(), &file, &NoProgress).unwrap();
    let model = open_bytes(&file.0.into_inner().unwrap()).unwrap();
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
