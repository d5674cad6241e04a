//! Products with panels against naive loops, on every instruction set, in every cut, with one and two threads.

use half::{bf16, f16};
use ipuc_kernels::{
    matrix::{Matrix, MatrixMut},
    product::{Epilogue, PANEL_OUTPUTS, PanelElements, PanelPiece, Start, pack_panels, panels_product},
    simd::Instructions,
    testing::{numbers, passes, with_threads},
};
use proptest::prelude::*;

/// Relative to the sum of magnitudes of the terms: rounding of runs of 128 and of their sum.
const BOUND: f64 = 1e-5;

#[derive(Clone, Copy, Debug)]
enum Type {
    F32,
    F16,
    Bf16,
}

/// A packed weight and what it holds after rounding.
struct Packed {
    rounded: Vec<f32>,
    f32: Vec<f32>,
    f16: Vec<f16>,
    bf16: Vec<bf16>,
    element: Type,
}

impl Packed {
    fn new(element: Type, k: usize, n: usize) -> Self {
        let weight = numbers(7, k * n);
        let rounded: Vec<f32> = match element {
            Type::F32 => weight.clone(),
            Type::F16 => weight.iter().map(|&value| f16::from_f32(value).to_f32()).collect(),
            Type::Bf16 => weight.iter().map(|&value| bf16::from_f32(value).to_f32()).collect(),
        };
        let at = |input: usize, output: usize| weight[input * n + output];
        Self { rounded, f32: pack_panels(k, n, at), f16: pack_panels(k, n, at), bf16: pack_panels(k, n, at), element }
    }

    fn piece(&self, panels: std::ops::Range<usize>, inputs: std::ops::Range<usize>, k: usize) -> PanelPiece<'_> {
        // Runs of inputs of several panels do not lie side by side, so they are given panel by panel.
        assert!(panels.len() == 1 || inputs == (0..k));
        fn part<'a, T>(
            (all, group): (&'a [T], usize),
            panels: &std::ops::Range<usize>,
            inputs: &std::ops::Range<usize>,
            k: usize,
        ) -> &'a [T] {
            let depth = k.next_multiple_of(group) * PANEL_OUTPUTS;
            let end = inputs.end.next_multiple_of(group) * PANEL_OUTPUTS;
            if panels.is_empty() {
                return &[];
            }
            &all[panels.start * depth + inputs.start * PANEL_OUTPUTS..(panels.end - 1) * depth + end]
        }
        let elements = match self.element {
            Type::F32 => PanelElements::F32(part((&self.f32, 1), &panels, &inputs, k)),
            Type::F16 => PanelElements::F16(part((&self.f16, 1), &panels, &inputs, k)),
            Type::Bf16 => PanelElements::Bf16(part((&self.bf16, 2), &panels, &inputs, k)),
        };
        PanelPiece { panels, inputs, elements }
    }
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    m: usize,
    k: usize,
    n: usize,
}

fn naive(x: &[f32], w: &[f32], Shape { m, k, n }: Shape) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for row in 0..m {
        for output in 0..n {
            let terms = (0..k).map(|input| f64::from(x[row * k + input]) * f64::from(w[input * n + output]));
            out.push(terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs())));
        }
    }
    out
}

fn whole(instructions: Instructions, x: &[f32], weight: &Packed, Shape { m, k, n }: Shape) -> Vec<f32> {
    let mut out = vec![f32::NAN; m * n];
    let piece = weight.piece(0..n.div_ceil(PANEL_OUTPUTS), 0..k, k);
    let (x, out_matrix) = (Matrix::new(x, m, k), MatrixMut::new(&mut out, m, n));
    panels_product(instructions, x, &[piece], out_matrix, Start::Zero, Epilogue::default());
    out
}

fn check(instructions: Instructions, element: Type, shape: Shape) -> Vec<f32> {
    let x = numbers(3, shape.m * shape.k);
    let weight = Packed::new(element, shape.k, shape.n);
    let out = whole(instructions, &x, &weight, shape);
    for (index, (value, (expected, size))) in out.iter().zip(naive(&x, &weight.rounded, shape)).enumerate() {
        let error = (f64::from(*value) - expected).abs();
        assert!(
            error <= BOUND * size,
            "{} {element:?} {shape:?} at {index}: {value}, not {expected}",
            instructions.name()
        );
    }
    out
}

fn shapes() -> impl Strategy<Value = Shape> {
    (0_usize..30, 0_usize..600, 0_usize..60).prop_map(|(m, k, n)| Shape { m, k, n })
}

fn types() -> impl Strategy<Value = Type> {
    prop_oneof![Just(Type::F32), Just(Type::F16), Just(Type::Bf16)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn agrees_with_naive_loops(shape in shapes(), element in types()) {
        for instructions in Instructions::available() {
            check(instructions, element, shape);
        }
    }

    #[test]
    fn rows_have_the_bits_of_any_pass(
        shape in shapes(), m in 1_usize..71, element in types(), cuts in prop::collection::vec(0_usize..71, 0..4),
    ) {
        let shape = Shape { m, ..shape };
        let Shape { k, n, .. } = shape;
        let x = numbers(3, m * k);
        let weight = Packed::new(element, k, n);
        for instructions in Instructions::available() {
            let all = whole(instructions, &x, &weight, shape);
            for passes in [passes(m, &cuts), (0..m).map(|row| row..row + 1).collect()] {
                for rows in passes {
                    let x = &x[rows.start * k..rows.end * k];
                    let part = whole(instructions, x, &weight, Shape { m: rows.len(), ..shape });
                    prop_assert_eq!(&part, &all[rows.start * n..rows.end * n], "{:?} on {}", rows, instructions.name());
                }
            }
        }
    }

    #[test]
    fn cuts_do_not_change_bits(shape in shapes(), element in types(), cut in 0_usize..3, row_gap in 0_usize..3) {
        let Shape { m, k, n } = shape;
        let x = numbers(3, m * k);
        let weight = Packed::new(element, k, n);
        let panels = n.div_ceil(PANEL_OUTPUTS);
        for instructions in Instructions::available() {
            let stride = n + row_gap;
            let mut out = vec![7.0; m * stride];
            let cut = (cut * 256).min(k);
            // The first panel comes in two pieces, the second with the rest in another order than it could be wished for.
            let mut calls = Vec::new();
            for panel in 0..panels.min(2) {
                calls.push(vec![weight.piece(panel..panel + 1, 0..cut, k)]);
            }
            for panel in 0..panels.min(2) {
                calls.push(vec![weight.piece(panel..panel + 1, cut..k, k)]);
            }
            if cut == k {
                calls.truncate(panels.min(2));
            }
            let middle = panels.min(2) + panels.saturating_sub(2) / 2;
            calls.push(vec![weight.piece(panels.min(2)..middle, 0..k, k), weight.piece(middle..panels, 0..k, k)]);
            for pieces in &calls {
                let out = MatrixMut::with_stride(&mut out, m, n, stride);
                panels_product(instructions, Matrix::new(&x, m, k), pieces, out, Start::Zero, Epilogue::default());
            }
            let expected = whole(instructions, &x, &weight, shape);
            for row in 0..m {
                prop_assert_eq!(&out[row * stride..][..n], &expected[row * n..][..n]);
                prop_assert!(out[row * stride + n..(row + 1) * stride].iter().all(|&gap| gap == 7.0));
            }
        }
    }
}

#[test]
fn threads_do_not_change_bits() {
    for element in [Type::F32, Type::F16, Type::Bf16] {
        for shape in [Shape { m: 1, k: 900, n: 1000 }, Shape { m: 3, k: 513, n: 411 }, Shape { m: 70, k: 300, n: 70 }] {
            for instructions in Instructions::available() {
                let one = with_threads(1, || check(instructions, element, shape));
                let three = with_threads(3, || check(instructions, element, shape));
                assert_eq!(one, three, "{element:?} {shape:?}");
            }
        }
    }
}

#[test]
fn epilogue_follows_the_last_inputs_only() {
    let shape = Shape { m: 6, k: 300, n: 37 };
    let Shape { m, k, n } = shape;
    let (x, weight, bias) = (numbers(3, m * k), Packed::new(Type::F32, k, n), numbers(5, n));
    for instructions in Instructions::available() {
        let plain = whole(instructions, &x, &weight, shape);
        let epilogue = Epilogue { bias: Some(&bias), clamp: Some((-1.0, 2.0)), ..Epilogue::default() };
        let mut out = vec![0.0; m * n];
        for inputs in [0..256, 256..300] {
            for panel in 0..3 {
                let pieces = [weight.piece(panel..panel + 1, inputs.clone(), k)];
                let out = MatrixMut::new(&mut out, m, n);
                panels_product(instructions, Matrix::new(&x, m, k), &pieces, out, Start::Zero, epilogue);
            }
        }
        let expected: Vec<f32> =
            plain.iter().enumerate().map(|(index, value)| (value + bias[index % n]).clamp(-1.0, 2.0)).collect();
        assert_eq!(out, expected);
        assert!(out.contains(&-1.0) && out.contains(&2.0));
    }
}

#[test]
fn accumulates_on_what_the_output_holds() {
    let shape = Shape { m: 5, k: 40, n: 20 };
    let (x, weight) = (numbers(3, 200), Packed::new(Type::F32, 40, 20));
    for instructions in Instructions::available() {
        let plain = whole(instructions, &x, &weight, shape);
        let mut out = vec![2.0; 100];
        let piece = weight.piece(0..2, 0..40, 40);
        let (x, out_matrix) = (Matrix::new(&x, 5, 40), MatrixMut::new(&mut out, 5, 20));
        panels_product(instructions, x, &[piece], out_matrix, Start::Output, Epilogue::default());
        for (value, plain) in out.iter().zip(plain) {
            assert_eq!(*value, 2.0 + plain);
        }
    }
}

#[test]
fn no_inputs_give_the_bias() {
    let weight = Packed::new(Type::Bf16, 0, 20);
    for (m, instructions) in [1, 9].into_iter().flat_map(|m| Instructions::available().into_iter().map(move |i| (m, i)))
    {
        let mut out = vec![f32::NAN; m * 20];
        let bias = numbers(1, 20);
        let (x, out_matrix) = (Matrix::new(&[], m, 0), MatrixMut::new(&mut out, m, 20));
        let pieces = [weight.piece(0..2, 0..0, 0)];
        panels_product(instructions, x, &pieces, out_matrix, Start::Zero, Epilogue::bias(&bias));
        assert_eq!(out, bias.repeat(m));
    }
}

#[test]
fn clamp_keeps_nan() {
    for instructions in Instructions::available() {
        let mut out = [0.0; 2];
        let pieces = [PanelPiece::whole(1, 1, PanelElements::F32(&[1.0; 16]))];
        let (x, out_matrix) = (Matrix::new(&[f32::NAN, -3.0], 2, 1), MatrixMut::new(&mut out, 2, 1));
        let epilogue = Epilogue { bias: None, clamp: Some((0.0, 6.0)), ..Epilogue::default() };
        panels_product(instructions, x, &pieces, out_matrix, Start::Zero, epilogue);
        assert!(out[0].is_nan() && out[1] == 0.0);
    }
}
