//! Products of rounded activations against plain loops: the same bits on every instruction set, in every cut, for every
//! number of rows.

use ipuc_kernels::{
    matrix::{Matrix, MatrixMut},
    product::{
        CodeType, CodedRole, DynamicRows, Epilogue, OpenPanels, PANEL_OUTPUTS, PlaneType, Rounded, dynamic_product,
    },
    simd::Instructions,
    testing::{numbers, with_threads},
};
use std::sync::Arc;

use half::f16;
use proptest::prelude::*;

use super::coded::{Aligned, CODES, Call, Coded, bits, calls, exact_planes, meaning, pieces, plane};

/// Codes and scale of activations that share one.
fn rounded(x: &[f32]) -> (Vec<i64>, f32) {
    let largest = x.iter().filter(|value| value.is_finite()).fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let factor = 127.0 / largest;
    if x.iter().any(|value| !value.is_finite()) {
        (vec![0; x.len()], f32::NAN)
    } else if factor.is_finite() {
        (x.iter().map(|value| (value * factor).round_ties_even() as i64).collect(), largest / 127.0)
    } else {
        (vec![0; x.len()], 0.0)
    }
}

/// One row of the product, in plain loops.
fn reference(weight: &Coded, x: &[f32], block: usize, bias: &[f32]) -> Vec<f32> {
    let k = x.len();
    let rounded: Vec<(Vec<i64>, f32)> = x.chunks(if block == 0 { k.max(1) } else { block }).map(rounded).collect();
    let codes: Vec<i64> = rounded.iter().flat_map(|(codes, _)| codes.clone()).collect();
    let parameters = weight.layout.planes().iter().filter(|plane| plane.role != CodedRole::Sum);
    let blocks = parameters.map(|plane| plane.block).chain([block]);
    let summed = blocks.filter(|&block| block > 0).min().unwrap_or(65_536).min(65_536);
    let output = |output: usize| {
        let mut y = 0.0_f32;
        for first in (0..k).step_by(summed) {
            let (scale, zero_point) = weight.parameters(first, output);
            let zero_point = zero_point.unwrap_or(0.0) as i64;
            // Doubled, floats of 4 bits are integers.
            let (times, unit) = if weight.layout.code() == CodeType::E2m1 { (2.0, 0.5) } else { (1.0, 1.0) };
            let number =
                |input: usize| (meaning(weight.layout.code(), weight.codes[input * weight.n + output]) * times) as i64;
            let products = (first..k.min(first + summed)).map(|input| (number(input) - zero_point) * codes[input]);
            let sum = i32::try_from(products.sum::<i64>()).expect("a sum of 32 bits");
            let scale = first.checked_div(block).map_or(scale, |block| scale * rounded[block].1);
            y = (sum as f32 * unit).mul_add(scale, y);
        }
        (if block == 0 { y * rounded.first().map_or(0.0, |&(_, scale)| scale) } else { y }) + bias[output]
    };
    (0..weight.n).map(output).collect()
}

/// The product of `m` rows, given in these pieces.
fn multiply(
    instructions: Instructions,
    weight: &Coded,
    x: Matrix<'_>,
    block: usize,
    calls: &[Call],
    bias: &[f32],
) -> Vec<f32> {
    let m = x.rows();
    let mut out = vec![f32::NAN; m * weight.n];
    let mut open = OpenPanels::default();
    let rows = DynamicRows::new(instructions, x, block);
    for call in calls {
        let packed: Vec<Arc<Aligned>> =
            call.iter().map(|(panels, inputs)| weight.pack(panels.clone(), inputs.clone())).collect();
        let pieces = pieces(call, &packed);
        let out = MatrixMut::new(&mut out, m, weight.n);
        dynamic_product(instructions, &rows, &weight.layout, &pieces, &mut open, out, Epilogue::bias(bias));
    }
    assert!(open.is_empty(), "panels that did not end");
    out
}

/// Every NaN as one: which one comes out is not defined.
fn one_nan(values: &[f32]) -> Vec<u32> {
    bits(&values.iter().map(|value| if value.is_nan() { f32::NAN } else { *value }).collect::<Vec<f32>>())
}

/// Asserts that the product of rows `x` has the bits of the plain loops.
fn check(weight: &Coded, x: &[f32], m: usize, block: usize) {
    let k = weight.layout.inputs();
    let bias = numbers(6, weight.n);
    let expected: Vec<f32> = (0..m).flat_map(|row| reference(weight, &x[row * k..][..k], block, &bias)).collect();
    let expected = one_nan(&expected);
    let unit = weight.layout.cut().max(256);
    for instructions in Instructions::available() {
        for (index, calls) in calls(weight.n.div_ceil(PANEL_OUTPUTS), k, unit).iter().enumerate() {
            let found = one_nan(&multiply(instructions, weight, Matrix::new(x, m, k), block, calls, &bias));
            let name = instructions.name();
            assert!(
                found == expected,
                "{name}, m = {m}, n = {}, calls {index}, {block}, {:?}",
                weight.n,
                weight.layout
            );
        }
    }
}

#[test]
fn sums_are_those_of_plain_loops() {
    for code in CODES {
        for planes in exact_planes(code) {
            for block in [0, 16, 32, 128, 512] {
                let weight = Coded::new(code, 1301, 37, &planes, Rounded::F32);
                check(&weight, &numbers(5, 3 * 1301), 3, block);
            }
        }
    }
}

#[test]
fn less_than_a_record() {
    for code in CODES {
        for planes in exact_planes(code) {
            for k in [1, 15, 17, 255] {
                check(&Coded::new(code, k, 3, &planes, Rounded::F32), &numbers(5, 2 * k), 2, 0);
            }
        }
    }
}

/// Inputs of small decoders are whole blocks, but no whole records.
#[test]
fn a_last_record_that_is_shorter() {
    for code in CODES {
        for element in [PlaneType::F32, PlaneType::F16, PlaneType::E4m3] {
            let planes = [plane(CodedRole::Scale, element, 32)];
            for k in [32, 288, 576, 1056] {
                for (m, block) in [(1, 32), (2, 0), (5, 32), (9, 32)] {
                    check(&Coded::new(code, k, 20, &planes, Rounded::F32), &numbers(5, m * k), m, block);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn any_shape(
        code in prop::sample::select(&CODES[..]),
        planes in 0_usize..12,
        k in prop_oneof![0_usize..300, 500_usize..1100],
        n in 1_usize..70,
        m in prop_oneof![Just(1_usize), 0_usize..6, 6_usize..71],
        block in prop::sample::select(&[0_usize, 32, 256][..]),
    ) {
        let weight = Coded::new(code, k, n, &exact_planes(code)[planes], Rounded::F16);
        check(&weight, &numbers(5, m * k), m, block);
    }
}

#[test]
fn threads_do_not_change_bits_of_dynamic_products() {
    for (m, k, n) in [(1, 1500, 500), (3, 700, 300), (50, 600, 200)] {
        let planes = [plane(CodedRole::Scale, PlaneType::F16, 32)];
        let weight = Coded::new(CodeType::I4, k, n, &planes, Rounded::F32);
        let x = numbers(5, m * k);
        with_threads(1, || check(&weight, &x, m, 0));
        with_threads(2, || check(&weight, &x, m, 0));
        with_threads(2, || check(&weight, &x, m, 32));
    }
}

#[test]
fn rows_that_are_zero_or_not_finite() {
    let (k, n) = (600, 20);
    for block in [0, 64] {
        for code in CODES {
            let weight = Coded::new(code, k, n, &[plane(CodedRole::Scale, PlaneType::F32, 0)], Rounded::F32);
            let mut x = numbers(5, 6 * k);
            x[k..2 * k].fill(0.0);
            x[2 * k + 300] = f32::NAN;
            x[3 * k] = f32::INFINITY;
            x[5 * k - 1] = f32::NEG_INFINITY;
            x[5 * k..].fill(1e-38);
            check(&weight, &x, 6, block);
            let whole: [Call; 1] = [vec![(0..2, 0..k)]];
            let bias = numbers(6, n);
            let found = multiply(Instructions::best(), &weight, Matrix::new(&x, 6, k), block, &whole, &bias);
            assert_eq!(bits(&found[n..2 * n]), bits(&bias));
            assert!(found[2 * n..5 * n].iter().all(|value| value.is_nan()), "{found:?}");
            assert_eq!(bits(&found[5 * n..]), bits(&bias));
        }
    }
}

/// Runs as long as a sum, with the largest products of either sign.
#[test]
fn sums_of_more_than_65536_inputs() {
    let (k, n) = (66_000, 17);
    for (code, ends) in
        [(CodeType::U8, [255, 0]), (CodeType::I8, [-128, 127]), (CodeType::I4, [-8, 7]), (CodeType::E2m1, [15, 7])]
    {
        for planes in [vec![plane(CodedRole::Scale, PlaneType::F16, 0)], exact_planes(code)[5].clone()] {
            let mut weight = Coded::new(code, k, n, &planes, Rounded::F32);
            for (index, value) in weight.codes.iter_mut().enumerate() {
                *value = ends[usize::from(index % n > 8)];
            }
            let mut x = vec![f16::MAX.to_f32(); 2 * k];
            x[k..].fill(-1.0);
            check(&weight, &x, 2, 0);
        }
    }
}

/// Of few rows, with blocks and without: the largest products of either sign in every line.
#[test]
fn the_largest_products_of_few_bits() {
    let (k, n) = (1032, 17);
    let ends = [[-8, 7], [0, 15], [-2, 1], [0, 3], [15, 7]];
    for (code, ends) in [CodeType::I4, CodeType::U4, CodeType::I2, CodeType::U2, CodeType::E2m1].into_iter().zip(ends) {
        for block in [0, 16, 32] {
            let mut weight = Coded::new(code, k, n, &[plane(CodedRole::Scale, PlaneType::F32, block)], Rounded::F32);
            for (index, value) in weight.codes.iter_mut().enumerate() {
                *value = ends[usize::from(index % n > 8)];
            }
            for m in [1, 2, 3, 5] {
                let x: Vec<f32> = (0..m * k).map(|index| if index / k % 2 == 0 { 1.0 } else { -1.0 }).collect();
                check(&weight, &x, m, 0);
            }
        }
    }
}

#[test]
#[should_panic(expected = "codes or zero points that are floats have no exact sums")]
fn float_zero_points_are_refused() {
    let planes = [plane(CodedRole::ZeroPoint, PlaneType::F32, 0)];
    let weight = Coded::new(CodeType::U4, 32, 16, &planes, Rounded::F32);
    multiply(Instructions::best(), &weight, Matrix::new(&[0.0; 32], 1, 32), 0, &[vec![(0..1, 0..32)]], &[0.0; 16]);
}
