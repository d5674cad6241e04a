//! Convolutions over blocks of channels against their reference.

use super::{check, program, run, tensor, values};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Arithmetic, BlockedConvolution, Op, Program};

fn blocked(groups: i64) -> BlockedConvolution {
    BlockedConvolution {
        strides: vec![],
        dilations: vec![],
        pads: vec![],
        groups,
        plain_inputs: false,
        arithmetic: Arithmetic::default(),
        program: Program::default(),
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
    case(padded.clone(), &[2, 2, 9, 7, 8], &[24, 16, 3, 3], "plain");
    let strided =
        BlockedConvolution { strides: vec![2, 1], dilations: vec![1, 2], pads: vec![0, 2, 1, 0], ..blocked(1) };
    case(strided.clone(), &[1, 1, 9, 11, 8], &[8, 8, 3, 2], "strides");
    case(BlockedConvolution { groups: 2, ..strided.clone() }, &[1, 4, 9, 11, 8], &[16, 16, 3, 2], "groups");
    case(BlockedConvolution { groups: 24, ..padded.clone() }, &[2, 3, 9, 7, 8], &[24, 1, 3, 3], "depthwise");
    case(BlockedConvolution { groups: 16, ..strided.clone() }, &[1, 2, 9, 11, 8], &[16, 1, 3, 2], "depthwise, strides");
    case(BlockedConvolution { plain_inputs: true, ..padded }, &[2, 3, 9, 7], &[32, 3, 3, 3], "plain inputs");
    case(BlockedConvolution { plain_inputs: true, ..strided }, &[1, 4, 9, 11], &[16, 4, 3, 2], "plain inputs, strides");
    case(BlockedConvolution { pads: vec![2, 1], ..blocked(1) }, &[2, 1, 13, 8], &[16, 8, 4], "one axis");
    case(blocked(1), &[1, 1, 4, 5, 6, 8], &[8, 8, 2, 2, 2], "three axes");
    case(blocked(1), &[1, 40, 3, 3, 8], &[16, 320, 1, 1], "points");
    case(blocked(1), &[0, 1, 3, 8], &[8, 8, 2], "nothing");
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
