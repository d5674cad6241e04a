//! Each kernel against its reference: types, broadcasts, special values, operands that may be overwritten.

use crate::steps::testing::Heap;
use crate::steps::{Context, Kernel, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::scalar::{Scalar, from_scalars, scalars};
use ipuc_formats::ops::{
    Activation, ActivationFunction, Binary, BinaryFunction, Cast, Clamp, Compare, CompareRelation, Dequantize,
    DynamicQuantize, NoBlocks, Operator, Quantize, ReferenceContext, Select, Unary, UnaryFunction,
};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::testing::with_threads;
use strum::VariantArray;

const NUMBERS: [DType; 13] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool,
];

/// Values of a type that look random, with special ones among floats.
fn tensor(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0, 1e30, -1e-30];
    let values: Vec<Scalar> = (0..shape.iter().product::<usize>())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            match (dtype.is_float(), state % 11) {
                (true, 0) => Scalar::Float(special[(state >> 20) as usize % special.len()]),
                (true, _) => Scalar::Float(((state >> 40) as f64 / (1u64 << 24) as f64 - 0.5) * 16.0),
                (false, 0) => Scalar::Integer(state.into()),
                (false, _) => Scalar::Integer(((state >> 40) % 17) as i128 - 8),
            }
        })
        .collect();
    from_scalars(dtype, shape, &values).expect("a number type")
}

fn reference(operator: &dyn Operator, inputs: &[Option<Tensor>]) -> Option<Vec<Tensor>> {
    let inputs: Vec<Option<Value>> = inputs.iter().cloned().map(|input| input.map(Value::from)).collect();
    let mut blocks = NoBlocks;
    let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks)).ok()?;
    Some(results.into_iter().map(|result| result.as_tensor().cloned().expect("a tensor")).collect())
}

fn run(kernel: &dyn Kernel, inputs: Vec<Option<Tensor>>) -> Option<Vec<Tensor>> {
    let mut blocks = NoBlocks;
    let mut context =
        Context { blocks: &mut blocks, memory: &mut Heap::default(), random_state: 0, skipped: Default::default() };
    let operands = inputs.into_iter().map(|input| input.map_or(Operand::Absent, |input| Operand::Value(input.into())));
    let results = kernel.run(operands.collect(), &mut context).ok()?;
    Some(results.into_iter().map(|result| result.as_tensor().cloned().expect("a tensor")).collect())
}

/// The bytes of a tensor in a tensor of their own, which may be overwritten.
fn owned(tensor: &Tensor) -> Tensor {
    Tensor::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes()).expect("the same bytes")
}

/// Each element within `bound` of the expected one, relative to it or to the element of `floors` where that is larger.
fn assert_close(found: &Tensor, expected: &Tensor, bound: f64, floors: &[f64], what: &str) {
    assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "{what}");
    let (found, expected) = (scalars(found).expect("numbers"), scalars(expected).expect("numbers"));
    let floors = floors.iter().copied().chain(std::iter::repeat(1e-30));
    for ((found, expected), floor) in found.into_iter().zip(expected).zip(floors) {
        match (found, expected) {
            (Scalar::Float(found), Scalar::Float(expected)) => assert!(
                found == expected
                    || (found.is_nan() && expected.is_nan())
                    || (found - expected).abs() <= bound * expected.abs().max(floor),
                "{what}: {found:e} for {expected:e}"
            ),
            (found, expected) => assert_eq!(found, expected, "{what}"),
        }
    }
}

/// The kernel agrees with the reference, whether operands are shared or its own.
fn check<K: Kernel>(kernel: &K, inputs: &[Option<Tensor>], bound: f64) {
    check_above(kernel, inputs, bound, &[]);
}

/// As [`check`], for results that cancel: element i is bound relative to `floors[i]` where its result is smaller.
fn check_above<K: Kernel>(kernel: &K, inputs: &[Option<Tensor>], bound: f64, floors: &[f64]) {
    let what =
        format!("{kernel:?} of {:?}", inputs.iter().flatten().map(|x| (x.dtype(), x.shape())).collect::<Vec<_>>());
    let expected = reference(kernel, inputs);
    let shared = run(kernel, inputs.to_vec());
    let own = run(kernel, inputs.iter().map(|input| input.as_ref().map(owned)).collect());
    for found in [shared, own] {
        match (&found, &expected) {
            (Some(found), Some(expected)) => {
                assert_eq!(found.len(), expected.len(), "{what}");
                found
                    .iter()
                    .zip(expected)
                    .for_each(|(found, expected)| assert_close(found, expected, bound, floors, &what));
            }
            (found, expected) => assert_eq!(found.is_some(), expected.is_some(), "{what}"),
        }
    }
}

/// Relative error that a kernel may have beside the reference, which rounds once.
fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-14,
        DType::F32 => 4e-6,
        DType::F16 => 1e-3,
        _ => 8e-3,
    }
}

#[test]
fn unary_functions() {
    for &function in UnaryFunction::VARIANTS {
        for dtype in NUMBERS {
            check(&Unary { function }, &[Some(tensor(dtype, &[3, 37], 1))], bound(dtype));
        }
    }
}

#[test]
fn activations() {
    for &function in ActivationFunction::VARIANTS {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32] {
            let x = tensor(dtype, &[113], 2);
            // Gates such as 1 + erf(x) cancel where x is far below zero: their error is one of x.
            let magnitude = |x| if let Scalar::Float(x) = x { f64::abs(x) } else { 1e-30 };
            let floors: Vec<f64> = scalars(&x).expect("numbers").into_iter().map(magnitude).collect();
            let check = |alpha, beta| {
                let x = [Some(x.clone())];
                check_above(&Activation { function, alpha, beta }, &x, bound(dtype), &floors);
            };
            check(None, None);
            check(Some(0.75), None);
            check(Some(0.75), Some(1.25));
            if dtype.is_float() {
                let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0].map(Scalar::Float);
                let x = [Some(from_scalars(dtype, &[4], &special).expect("floats"))];
                check_above(&Activation::new(function), &x, bound(dtype), &[1e-30; 4]);
            }
        }
    }
}

#[test]
fn binary_functions() {
    let shapes: [(&[usize], &[usize]); 6] =
        [(&[7, 5], &[7, 5]), (&[7, 5], &[5]), (&[1, 5], &[7, 1]), (&[], &[7, 5]), (&[7, 5], &[1]), (&[0, 5], &[5])];
    for &function in BinaryFunction::VARIANTS {
        for dtype in NUMBERS {
            for (left, right) in shapes {
                let operands = [Some(tensor(dtype, left, 3)), Some(tensor(dtype, right, 4))];
                check(&Binary { function }, &operands, bound(dtype));
            }
        }
        check(&Binary { function }, &[Some(tensor(DType::F32, &[2], 5)), Some(tensor(DType::I64, &[2], 5))], 1e-6);
        check(&Binary { function }, &[Some(tensor(DType::F32, &[2], 5)), Some(tensor(DType::F32, &[3], 5))], 1e-6);
    }
    for exponent in [2.0f32, 3.0, 0.5, -1.0, 0.0, f32::NAN] {
        let operands = [Some(tensor(DType::F32, &[211], 6)), Some(Tensor::scalar(exponent))];
        check(&Binary { function: BinaryFunction::Pow }, &operands, bound(DType::F32));
    }
}

#[test]
fn comparisons_and_selections() {
    for dtype in NUMBERS {
        let operands = [Some(tensor(dtype, &[6, 9], 7)), Some(tensor(dtype, &[6, 1], 8))];
        for &relation in CompareRelation::VARIANTS {
            check(&Compare { relation }, &operands, 0.0);
        }
        let condition = Some(tensor(DType::Bool, &[9], 9));
        check(&Select {}, &[condition, operands[0].clone(), operands[1].clone()], 0.0);
        check(&Select {}, &[operands[0].clone(), operands[0].clone(), operands[1].clone()], 0.0);
    }
}

#[test]
fn limits() {
    for dtype in NUMBERS {
        let x = || Some(tensor(dtype, &[57], 10));
        let one = |value: f64| Some(from_scalars(dtype, &[], &[Scalar::Float(value)]).expect("a number type"));
        check(&Clamp {}, &[x(), one(1.0), one(3.0)], 0.0);
        check(&Clamp {}, &[x(), one(3.0), one(1.0)], 0.0);
        check(&Clamp {}, &[x(), None, one(3.0)], 0.0);
        check(&Clamp {}, &[x(), one(2.0)], 0.0);
        check(&Clamp {}, &[x()], 0.0);
        check(&Clamp {}, &[x(), Some(Tensor::scalar(f32::NAN))], 0.0);
        check(&Clamp {}, &[x(), x()], 0.0);
    }
}

#[test]
fn casts() {
    for from in NUMBERS {
        for to in NUMBERS {
            check(&Cast::to(to), &[Some(tensor(from, &[4, 61], 11))], 0.0);
        }
    }
}

#[test]
fn quantization() {
    let x = || Some(tensor(DType::F32, &[5, 6, 7], 12));
    let types = [DType::U8, DType::I8, DType::I16, DType::I4, DType::U4, DType::I2, DType::U2, DType::F8E4M3FN];
    for to in types {
        let operator = |axis, block_size| Quantize { to, axis, block_size, overflow: false, precision: None };
        let scale = |shape: &[usize]| {
            let count = shape.iter().product::<usize>();
            let scales: Vec<f32> = (0..count).map(|index| 0.02 + index as f32 * 0.01).collect();
            Some(Tensor::from_elements(shape, &scales).expect("as many scales"))
        };
        let zero = |shape: &[usize]| Some(tensor(to, shape, 13));
        check(&operator(1, 0), &[x(), scale(&[]), zero(&[])], 0.0);
        check(&operator(1, 0), &[x(), scale(&[])], 0.0);
        check(&operator(1, 0), &[x(), scale(&[6]), zero(&[6])], 0.0);
        check(&operator(-1, 0), &[x(), scale(&[7]), None], 0.0);
        check(&operator(0, 0), &[x(), scale(&[6]), None], 0.0);
        check(&operator(1, 4), &[x(), scale(&[5, 2, 7]), zero(&[5, 2, 7])], 0.0);
        check(&operator(1, 3), &[x(), scale(&[5, 2, 7]), zero(&[5, 2, 7])], 0.0);
        let codes = Some(tensor(to, &[5, 6, 7], 14));
        let back = |axis, block_size| Dequantize { to: None, axis, block_size };
        check(&back(1, 0), &[codes.clone(), scale(&[]), zero(&[])], 0.0);
        check(&back(2, 0), &[codes.clone(), scale(&[7]), zero(&[7])], 0.0);
        check(&back(2, 0), &[codes.clone(), scale(&[6]), zero(&[6])], 0.0);
        check(&back(1, 4), &[codes.clone(), scale(&[5, 2, 7]), None], 0.0);
        check(&back(1, 3), &[codes.clone(), scale(&[5, 2, 7]), zero(&[5, 2, 7])], 0.0);
        check(&back(1, 3), &[codes.clone(), scale(&[5, 2, 7]), zero(&[])], 0.0);
        check(&back(-1, 7), &[codes, scale(&[5, 6, 1]), zero(&[5, 6, 1])], 0.0);
    }
    check(&DynamicQuantize {}, &[Some(Tensor::from_elements(&[3], &[-1.0f32, 0.3, 2.0]).expect("three"))], 0.0);
    check(&DynamicQuantize {}, &[Some(Tensor::from_elements(&[0], &[0f32; 0]).expect("none"))], 0.0);
}

#[test]
fn operands_of_their_own_are_overwritten() {
    let x = tensor(DType::F32, &[100], 15);
    let operand = owned(&x);
    let place = operand.bytes().as_ptr();
    let added = run(&Binary { function: BinaryFunction::Add }, vec![Some(operand), Some(Tensor::scalar(1f32))]);
    assert_eq!(added.expect("a sum")[0].bytes().as_ptr(), place);
    let kept = run(&Unary { function: UnaryFunction::Neg }, vec![Some(x.clone())]);
    assert_ne!(kept.expect("a negation")[0].bytes().as_ptr(), x.bytes().as_ptr());
}

#[test]
fn threads_change_no_bits() {
    let x = tensor(DType::F32, &[300, 301], 16);
    let gelu = Activation::new(ActivationFunction::Gelu);
    let of = |threads| with_threads(threads, || run(&gelu, vec![Some(x.clone())]).expect("an activation").remove(0));
    assert_eq!(of(1), of(3));
}
