//! Products with matrices as they come, against naive loops and against panels.

use half::{bf16, f16};
use ipuc_kernels::{
    matrix::{Matrix, MatrixMut},
    product::{
        Batch, Epilogue, PanelElements, PanelPiece, PlainElements, PlainLayout, PlainMatrix, Start, batched_product,
        broadcast_places, pack_panels, panels_of, panels_product, plain_product,
    },
    simd::Instructions,
    testing::{numbers, passes, with_threads},
};
use proptest::prelude::*;

/// Relative to the sum of magnitudes of the terms.
const BOUND: f64 = 1e-5;

#[derive(Clone, Copy, Debug)]
struct Shape {
    m: usize,
    k: usize,
    n: usize,
    /// Values between rows.
    gap: usize,
    layout: PlainLayout,
}

impl Shape {
    fn row(&self) -> usize {
        self.gap + if self.layout == PlainLayout::OutputsInner { self.n } else { self.k }
    }

    fn length(&self) -> usize {
        self.row() * if self.layout == PlainLayout::OutputsInner { self.k } else { self.n }
    }

    fn at(&self, weight: &[f32], input: usize, output: usize) -> f32 {
        match self.layout {
            PlainLayout::OutputsInner => weight[input * self.row() + output],
            PlainLayout::InputsInner => weight[output * self.row() + input],
        }
    }

    fn matrix<'a>(&self, elements: PlainElements<'a>) -> PlainMatrix<'a> {
        PlainMatrix { elements, layout: self.layout, stride: self.row(), inputs: self.k, outputs: self.n }
    }

    fn check(&self, name: &str, x: &[f32], weight: &[f32], out: &[f32]) {
        for row in 0..self.m {
            for output in 0..self.n {
                let terms = (0..self.k)
                    .map(|input| f64::from(x[row * self.k + input]) * f64::from(self.at(weight, input, output)));
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                let value = f64::from(out[row * self.n + output]);
                assert!((value - sum).abs() <= BOUND * size, "{name} {self:?} at {row}, {output}: {value}, not {sum}");
            }
        }
    }
}

fn shapes() -> impl Strategy<Value = Shape> {
    let rows = prop_oneof![2 => 0_usize..6, 1 => 0_usize..40];
    let layout = prop_oneof![Just(PlainLayout::OutputsInner), Just(PlainLayout::InputsInner)];
    (rows, 0_usize..400, 0_usize..80, 0_usize..3, layout).prop_map(|(m, k, n, gap, layout)| Shape {
        m,
        k,
        n,
        gap,
        layout,
    })
}

fn run(instructions: Instructions, shape: Shape, x: &[f32], elements: PlainElements<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; shape.m * shape.n];
    let (x, out_matrix) = (Matrix::new(x, shape.m, shape.k), MatrixMut::new(&mut out, shape.m, shape.n));
    plain_product(instructions, x, shape.matrix(elements), out_matrix, Start::Zero, Epilogue::default());
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn agrees_with_naive_loops(shape in shapes()) {
        let (x, weight) = (numbers(3, shape.m * shape.k), numbers(7, shape.length()));
        for instructions in Instructions::available() {
            let out = run(instructions, shape, &x, PlainElements::F32(&weight));
            shape.check(instructions.name(), &x, &weight, &out);
        }
    }

    #[test]
    fn half_floats_are_widened(shape in shapes()) {
        let (x, weight) = (numbers(3, shape.m * shape.k), numbers(7, shape.length()));
        let halves: Vec<f16> = weight.iter().map(|&value| f16::from_f32(value)).collect();
        let brains: Vec<bf16> = weight.iter().map(|&value| bf16::from_f32(value)).collect();
        let wide_halves: Vec<f32> = halves.iter().map(|value| value.to_f32()).collect();
        let wide_brains: Vec<f32> = brains.iter().map(|value| value.to_f32()).collect();
        for instructions in Instructions::available() {
            for (wide, elements) in
                [(&wide_halves, PlainElements::F16(&halves)), (&wide_brains, PlainElements::Bf16(&brains))]
            {
                let expected = run(instructions, shape, &x, PlainElements::F32(wide));
                prop_assert_eq!(run(instructions, shape, &x, elements), expected);
            }
        }
    }

    #[test]
    fn has_the_bits_of_panels(shape in shapes()) {
        let Shape { m, k, n, .. } = shape;
        let (x, weight) = (numbers(3, m * k), numbers(7, shape.length()));
        let packed: Vec<f32> = pack_panels(k, n, |input, output| shape.at(&weight, input, output));
        for instructions in Instructions::available() {
            prop_assert_eq!(panels_of(instructions, shape.matrix(PlainElements::F32(&weight))), &packed[..]);
            let mut expected = vec![f32::NAN; m * n];
            let pieces = [PanelPiece::whole(n, k, PanelElements::F32(&packed))];
            let (x_matrix, out) = (Matrix::new(&x, m, k), MatrixMut::new(&mut expected, m, n));
            panels_product(instructions, x_matrix, &pieces, out, Start::Zero, Epilogue::default());
            prop_assert_eq!(run(instructions, shape, &x, PlainElements::F32(&weight)), expected);
        }
    }

    #[test]
    fn rows_have_the_bits_of_any_pass(shape in shapes(), m in 1_usize..71, cuts in prop::collection::vec(0_usize..71, 0..4)) {
        let shape = Shape { m, ..shape };
        let Shape { k, n, .. } = shape;
        let (x, weight) = (numbers(3, m * k), numbers(7, shape.length()));
        let halves: Vec<f16> = weight.iter().map(|&value| f16::from_f32(value)).collect();
        let brains: Vec<bf16> = weight.iter().map(|&value| bf16::from_f32(value)).collect();
        let types = [PlainElements::F32(&weight), PlainElements::F16(&halves), PlainElements::Bf16(&brains)];
        for (instructions, elements) in Instructions::available().into_iter().flat_map(|one| types.map(|two| (one, two))) {
            let whole = run(instructions, shape, &x, elements);
            for passes in [passes(m, &cuts), (0..m).map(|row| row..row + 1).collect()] {
                for rows in passes {
                    let part = run(instructions, Shape { m: rows.len(), ..shape }, &x[rows.start * k..rows.end * k], elements);
                    prop_assert_eq!(&part, &whole[rows.start * n..rows.end * n], "{:?} on {}", rows, instructions.name());
                }
            }
        }
    }

    #[test]
    fn batches_are_products_in_turn(shape in shapes(), batch in 0_usize..4, heads in 1_usize..4) {
        let shape = Shape { gap: 0, ..shape };
        let Shape { m, k, n, .. } = shape;
        // The left side has all matrices, the right side one for each of the first axis.
        let (x, weight) = (numbers(3, batch * heads * m * k), numbers(7, batch * shape.length()));
        let left_places = broadcast_places(&[batch, heads], &[batch, heads], m * k);
        let right_places = broadcast_places(&[batch, heads], &[batch, 1], shape.length());
        for instructions in Instructions::available() {
            let mut out = vec![f32::NAN; batch * heads * m * n];
            let right = shape.matrix(PlainElements::F32(&weight));
            let batch = Batch {
                rows: m,
                left: &x,
                left_stride: k,
                left_places: &left_places,
                right,
                right_places: &right_places,
            };
            batched_product(instructions, &batch, &mut out, Epilogue::default());
            for (index, (&left, &right)) in left_places.iter().zip(&right_places).enumerate() {
                let (x, weight) = (&x[left..][..m * k], &weight[right..][..shape.length()]);
                let expected = run(instructions, shape, x, PlainElements::F32(weight));
                prop_assert_eq!(&out[index * m * n..][..m * n], &expected[..]);
            }
        }
    }
}

#[test]
fn threads_do_not_change_bits() {
    for layout in [PlainLayout::OutputsInner, PlainLayout::InputsInner] {
        for (m, k, n) in [(1, 300, 1500), (3, 200, 400), (60, 200, 100), (250, 40, 33)] {
            let shape = Shape { m, k, n, gap: 1, layout };
            let (x, weight) = (numbers(3, m * k), numbers(7, shape.length()));
            for instructions in Instructions::available() {
                let run = || run(instructions, shape, &x, PlainElements::F32(&weight));
                let one = with_threads(1, run);
                shape.check(instructions.name(), &x, &weight, &one);
                assert_eq!(one, with_threads(3, run), "{shape:?} on {}", instructions.name());
            }
        }
    }
}

#[test]
fn places_repeat_axes_of_one() {
    assert_eq!(broadcast_places(&[2, 3], &[3], 10), [0, 10, 20, 0, 10, 20]);
    assert_eq!(broadcast_places(&[2, 3], &[2, 1], 10), [0, 0, 0, 10, 10, 10]);
    assert_eq!(broadcast_places(&[], &[], 10), [0]);
    assert_eq!(broadcast_places(&[0, 2], &[1, 2], 10), [0; 0]);
}

#[test]
fn many_rows_by_one_panel_have_the_bits_of_few() {
    for layout in [PlainLayout::OutputsInner, PlainLayout::InputsInner] {
        for (m, k, n) in [(64, 1, 1), (100, 8, 8), (203, 128, 15), (65, 30, 16), (1000, 9, 5)] {
            let shape = Shape { m, k, n, gap: 1, layout };
            let (x, weight) = (numbers(1, m * k), numbers(2, shape.length()));
            for instructions in Instructions::available() {
                let all = |threads| with_threads(threads, || run(instructions, shape, &x, PlainElements::F32(&weight)));
                let out = all(1);
                assert_eq!(out, all(3), "{shape:?}");
                shape.check("thin", &x, &weight, &out);
                let few = Shape { m: 3, ..shape };
                assert_eq!(run(instructions, few, &x[..3 * k], PlainElements::F32(&weight)), out[..3 * n], "{shape:?}");
            }
        }
    }
}
