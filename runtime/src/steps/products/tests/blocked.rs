//! Convolutions over blocks of channels against their reference.

use super::{assert_close, check, packed, program, reference, run, tensor, values, weight_of};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Elements, Panels};
use ipuc_formats::ops::{Arithmetic, BlockedConvolution, Convolution, Op, Program, WeightMatrix};
use ipuc_formats::tensor::Tensor;
use std::sync::Arc;

fn blocked(groups: i64) -> BlockedConvolution {
    BlockedConvolution {
        strides: vec![],
        dilations: vec![],
        pads: vec![],
        groups,
        arithmetic: Arithmetic::default(),
        program: Program::default(),
        plain_inputs: false,
    }
}

/// Check it with operands of these shapes, the third one of which is the bias.
fn check_shapes(op: &BlockedConvolution, shapes: &[&[usize]], what: &str) {
    let inputs = shapes.iter().enumerate().map(|(seed, shape)| Some(tensor(DType::F32, shape, seed as u32 + 1)));
    check(op.clone(), inputs.collect(), what);
}

#[test]
fn blocks_of_all_shapes() {
    let case = |op: BlockedConvolution, x: &[usize], w: &[usize], what: &str| {
        check_shapes(&op, &[x, w], what);
        check_shapes(&op, &[x, w, &w[..1]], &format!("{what}, with a bias"));
    };
    let padded = BlockedConvolution { pads: vec![1; 4], ..blocked(1) };
    case(padded.clone(), &[2, 2, 9, 7, 8], &[24, 16, 3, 3], "padding");
    let strided =
        BlockedConvolution { strides: vec![2, 1], dilations: vec![1, 2], pads: vec![0, 2, 1, 0], ..blocked(1) };
    case(strided.clone(), &[1, 1, 9, 11, 8], &[8, 8, 3, 2], "strides");
    case(BlockedConvolution { groups: 2, ..strided.clone() }, &[1, 4, 9, 11, 8], &[16, 16, 3, 2], "groups");
    case(BlockedConvolution { groups: 24, ..padded.clone() }, &[2, 3, 9, 7, 8], &[24, 1, 3, 3], "depthwise");
    case(BlockedConvolution { groups: 16, ..strided }, &[1, 2, 9, 11, 8], &[16, 1, 3, 2], "depthwise, strides");
    case(BlockedConvolution { pads: vec![2, 1], ..blocked(1) }, &[2, 1, 13, 8], &[16, 8, 4], "one axis");
    case(blocked(1), &[1, 1, 4, 5, 6, 8], &[8, 8, 2, 2, 2], "three axes");
    case(blocked(1), &[1, 40, 3, 3, 8], &[16, 320, 1, 1], "points");
    case(blocked(1), &[0, 1, 3, 8], &[8, 8, 2], "nothing");
    let plain = BlockedConvolution { plain_inputs: true, ..padded };
    case(plain.clone(), &[2, 3, 19, 23], &[24, 3, 3, 3], "an image");
    case(
        BlockedConvolution { strides: vec![4, 4], pads: vec![], ..plain.clone() },
        &[1, 3, 16, 20],
        &[8, 3, 4, 4],
        "patches",
    );
    case(BlockedConvolution { groups: 2, ..plain }, &[1, 6, 9, 11], &[32, 3, 7, 5], "groups of an image");
}

#[test]
fn programs_over_blocks() {
    let lines = ["add $3 @ : f32", "clamp @ f32(-1.0) f32(3.0) : f32"];
    let op = BlockedConvolution { program: program(&lines), ..blocked(1) };
    // One element each, one a channel, and what kernels do not know.
    for addend in [&[2, 2, 4, 3, 8][..], &[2, 1, 1, 8], &[3, 8]] {
        let shapes = [&[2, 1, 5, 4, 8][..], &[16, 8, 2, 2], &[16], addend];
        check_shapes(&op, &shapes, &format!("with {addend:?} added"));
    }
    let sigmoid = BlockedConvolution { program: program(&["sigmoid @ : f32"]), ..blocked(16) };
    check_shapes(&sigmoid, &[&[1, 2, 5, 4, 8], &[16, 1, 2, 2], &[16]], "sigmoid");
}

#[test]
fn other_arithmetic_has_the_bits_of_the_reference() {
    let arithmetic = Arithmetic { accumulator: DType::BF16, ..Arithmetic::default() };
    let op: Op = BlockedConvolution { arithmetic, ..blocked(1) }.into();
    let inputs = [&[1, 1, 5, 8][..], &[8, 8, 3]].map(|shape| Some(tensor(DType::F32, shape, 1)));
    assert_eq!(run(&op, values(&inputs)), super::reference(&op, &inputs));
}

/// What a file may hold, though no compiler makes it.
#[test]
fn tensors_without_elements_may_have_any_extents() {
    let (long, far) = (1 << 36, i64::from(i32::MAX));
    let padded = BlockedConvolution { pads: vec![1; 4], ..blocked(1) };
    check_shapes(&padded, &[&[1, 0, 5, 4, 8], &[8, 0, 2, 2], &[8]], "no channels");
    check_shapes(&padded, &[&[0, 1, 5, 4, 8], &[8, 8, 2, 2], &[8]], "no images");
    check_shapes(&padded, &[&[1, 1, 5, 4, 8], &[0, 8, 2, 2], &[0]], "no filters");
    check_shapes(&padded, &[&[1, 1, 5, 4, 8], &[8, 8, 0, 2], &[8]], "no taps");
    check_shapes(&padded, &[&[1, 1, 0, 3, 8], &[8, 8, 2, 2], &[8]], "padding alone");
    check_shapes(&padded, &[&[1, 1, 2, 2, 8], &[8, 8, 5, 5], &[8]], "no windows");
    let depthwise = BlockedConvolution { groups: 8, ..padded.clone() };
    check_shapes(&depthwise, &[&[1, 1, 5, 4, 8], &[8, 1, 0, 2], &[8]], "no taps of single channels");
    check_shapes(&depthwise, &[&[1, 1, 0, 3, 8], &[8, 1, 2, 2], &[8]], "padding alone of single channels");
    let strided = BlockedConvolution { strides: vec![far; 2], ..blocked(1) };
    check_shapes(&strided, &[&[1, 0, long, long, 8], &[8, 0, 1, 1], &[8]], "no channels of many positions");
    let padded = BlockedConvolution { pads: vec![0, far, 0, far], ..blocked(1) };
    check_shapes(&padded, &[&[1, 0, 3, 3, 8], &[8, 0, 3, 1 << 32], &[8]], "no channels of many taps");
}

#[test]
fn windows_may_reach_far() {
    let far = i64::from(i32::MAX);
    let strided = |groups| BlockedConvolution { strides: vec![1, far], ..blocked(groups) };
    let apart = |groups| BlockedConvolution { dilations: vec![1, far], pads: vec![0, far, 0, 0], ..blocked(groups) };
    for (groups, channels) in [(1, 8), (8, 1)] {
        let what = format!("{groups} groups");
        check_shapes(&strided(groups), &[&[1, 1, 4, 3, 8], &[8, channels, 2, 3]], &what);
        check_shapes(&apart(groups), &[&[1, 1, 4, 3, 8], &[8, channels, 2, 2]], &what);
    }
    for op in [strided(1), apart(1)] {
        let op = BlockedConvolution { plain_inputs: true, ..op };
        check_shapes(&op, &[&[1, 3, 4, 3], &[8, 3, 2, 2]], "plain inputs");
    }
}

/// Weights in panels of any matrix with as many elements: their values are those of the weight all the same.
#[test]
fn panels_of_another_matrix_are_decoded() {
    let matrix = |groups, outputs, inputs, output_axis| WeightMatrix { groups, inputs, outputs, output_axis };
    let convolution: Op = Convolution {
        auto_pad: None,
        strides: vec![],
        dilations: vec![],
        pads: vec![],
        groups: 2,
        arithmetic: Arithmetic::default(),
        program: Program::default(),
    }
    .into();
    let depthwise: Op = blocked(16).into();
    let grouped: Op = blocked(2).into();
    type Stored<'a> = (&'a Op, &'a [usize], &'a [usize], &'a [WeightMatrix]);
    let cases: [Stored<'_>; 3] = [
        (
            &depthwise,
            &[1, 2, 4, 3, 8],
            &[16, 1, 2, 2],
            &[matrix(16, 1, 4, 0), matrix(1, 16, 4, 0), matrix(1, 4, 16, 1)],
        ),
        (
            &grouped,
            &[1, 2, 4, 3, 8],
            &[16, 8, 2, 2],
            &[matrix(1, 16, 32, 0), matrix(16, 1, 32, 0), matrix(2, 8, 32, 0)],
        ),
        (
            &convolution,
            &[1, 16, 4, 3],
            &[16, 8, 2, 2],
            &[matrix(1, 16, 32, 0), matrix(1, 32, 16, 1), matrix(2, 8, 32, 0)],
        ),
    ];
    for (op, x, w, matrices) in cases {
        let inputs: Vec<Option<Tensor>> = vec![Some(tensor(DType::F32, x, 1)), Some(tensor(DType::F32, w, 2))];
        let expected = reference(op, &inputs);
        let elements = Elements { stored: tensor(DType::F32, w, 2), planes: Vec::new() };
        let shape: Vec<u64> = w.iter().map(|&extent| extent as u64).collect();
        for &matrix in matrices {
            let encoding = Panels::values(DType::F32, matrix).into();
            let (record, parts) = packed(encoding, DType::F32, shape.clone(), &elements, 1 << 10);
            let mut operands = values(&inputs);
            operands[1] = weight_of(record, Arc::new(parts));
            assert_close(&run(op, operands), &expected, &format!("{op:?} with panels of {matrix:?}"));
        }
    }
}
