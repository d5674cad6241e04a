//! Each kernel against its reference: the same bits for every type and any number of threads, whether operands may be
//! overwritten or not.

use crate::steps::testing::Heap;
use crate::steps::{Context, Kernel, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::*;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::testing::with_threads;
use strum::VariantArray;

/// One type of each width, text, and elements that share bytes.
const TYPES: [DType; 8] =
    [DType::F32, DType::U8, DType::F16, DType::I64, DType::C128, DType::String, DType::U4, DType::I32];

/// Elements of a type that look random; numbers are small, so that many are equal.
fn data(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as u8
    };
    let count: usize = shape.iter().product();
    let numbers: Vec<u8> = (0..count).map(|_| next() % 23).collect();
    match dtype {
        DType::String => Tensor::from_strings(shape, numbers.iter().map(u8::to_string).collect()),
        DType::F32 => {
            let special = |number: u8| if number == 7 { f32::NAN } else { f32::from(number) - 9.0 };
            Tensor::from_elements(shape, &numbers.into_iter().map(special).collect::<Vec<_>>())
        }
        DType::I64 => Tensor::from_elements(shape, &numbers.iter().map(|&at| i64::from(at) - 9).collect::<Vec<_>>()),
        dtype if dtype.is_sub_byte() => Tensor::from_codes(dtype, shape, &numbers),
        dtype => {
            let bytes: Vec<u8> = (0..count * dtype.bits() / 8).map(|_| next() % 23).collect();
            Tensor::from_bytes(dtype, shape, &bytes)
        }
    }
    .expect("elements that fill the shape")
}

fn vector(elements: &[i64]) -> Option<Tensor> {
    Some(Tensor::vector_i64(elements))
}

fn indices(shape: &[usize], extent: usize) -> Option<Tensor> {
    let count: usize = shape.iter().product();
    let extent = extent as i64;
    let elements: Vec<i64> = (0..count as i64).map(|at| (at * 7919 + 3) % (2 * extent) - extent).collect();
    Some(Tensor::from_elements(shape, &elements).expect("elements that fill the shape"))
}

/// The same elements in storage of its own, which may be overwritten.
fn owned(tensor: &Tensor) -> Tensor {
    match tensor.dtype() {
        DType::String => Tensor::from_strings(tensor.shape(), tensor.strings().expect("text").to_vec()),
        dtype => Tensor::from_bytes(dtype, tensor.shape(), tensor.bytes()),
    }
    .expect("the same elements")
}

fn run(kernel: &dyn Kernel, inputs: impl Iterator<Item = Option<Tensor>>) -> Result<Vec<Value>, String> {
    let mut blocks = NoBlocks;
    let mut context =
        Context { blocks: &mut blocks, memory: &mut Heap::default(), random_state: 0, skipped: Default::default() };
    let operands = inputs.map(|input| input.map_or(Operand::Absent, |input| Operand::Value(input.into())));
    kernel.run(operands.collect(), &mut context).map_err(|error| error.to_string())
}

/// The kernel gives what the reference gives, refusals included.
fn check<K: Kernel + Sync>(kernel: &K, inputs: &[Option<Tensor>]) {
    let values: Vec<Option<Value>> = inputs.iter().cloned().map(|input| input.map(Value::from)).collect();
    let mut blocks = NoBlocks;
    let expected = kernel.reference(&values, &mut ReferenceContext::new(&mut blocks));
    let expected = expected.map_err(|error| error.to_string());
    let shared = run(kernel, inputs.iter().cloned());
    assert_eq!(shared, expected, "{kernel:?} of {inputs:?}");
    for threads in [1, 3] {
        let exclusive = with_threads(threads, || run(kernel, inputs.iter().map(|input| input.as_ref().map(owned))));
        assert_eq!(exclusive, expected, "{kernel:?} of {inputs:?}, {threads} threads");
    }
}

/// Shapes of one to four axes, one of them large enough for several threads.
const SHAPES: [&[usize]; 5] = [&[7], &[3, 4], &[2, 3, 1, 5], &[4, 0, 3], &[30, 41, 50]];

#[test]
fn arrangements() {
    for dtype in TYPES {
        for shape in SHAPES {
            let data = Some(data(dtype, shape, 1));
            let rank = shape.len();
            check(&Transpose { permutation: vec![] }, std::slice::from_ref(&data));
            let rotated = (0..rank as i64).map(|axis| (axis + 1) % rank as i64).collect();
            check(&Transpose { permutation: rotated }, std::slice::from_ref(&data));
            check(&Expand {}, &[data.clone(), vector(&[vec![2], vec![1; rank]].concat())]);
            check(&Tile {}, &[data.clone(), vector(&(0..rank as i64).map(|axis| 2 - axis % 2).collect::<Vec<_>>())]);
            for (start, end, step) in [(0, i64::MAX, 1), (1, -1, 1), (-1, i64::MIN, -2), (2, 1, 1), (0, 9, i64::MAX)] {
                let (starts, ends) = (vector(&vec![start; rank]), vector(&vec![end; rank]));
                check(&Slice {}, &[data.clone(), starts, ends, None, vector(&vec![step; rank])]);
            }
            check(&Split { axis: -1, parts: 2, even: false }, std::slice::from_ref(&data));
            check(&Split { axis: 0, parts: 2, even: true }, &[data.clone(), vector(&[1, shape[0] as i64 - 1])]);
            for axis in [0, -1, 5] {
                check(&Concat { axis }, &[data.clone(), data.clone(), data.clone()]);
            }
        }
        check(&Expand {}, &[Some(data(dtype, &[40, 1, 50], 1)), vector(&[30, 1])]);
        check(&Expand {}, &[Some(data(dtype, &[3], 1)), vector(&[2])]);
        check(&Transpose { permutation: vec![0, 2, 1, 3] }, &[Some(data(dtype, &[2, 20, 3, 8], 1))]);
        check(&Concat { axis: 0 }, &[Some(data(dtype, &[2, 3], 1)), Some(data(dtype, &[2, 4], 1))]);
        for &order in ChannelOrder::VARIANTS {
            check(&DepthToSpace { block: 2, order }, &[Some(data(dtype, &[2, 12, 3, 5], 1))]);
            check(&SpaceToDepth { block: 3, order }, &[Some(data(dtype, &[2, 2, 6, 9], 1))]);
            check(&SpaceToDepth { block: 4, order }, &[Some(data(dtype, &[2, 2, 6, 9], 1))]);
        }
    }
}

#[test]
fn pads() {
    for dtype in TYPES {
        for shape in SHAPES {
            let rank = shape.len();
            for &mode in PadMode::VARIANTS {
                for (begin, end) in [(1, 2), (0, 0), (-1, 3), (4, -2), (-9, 9)] {
                    let pads: Vec<i64> = [vec![begin; rank], vec![end; rank]].concat();
                    let value = Some(data(dtype, &[], 5));
                    check(&Pad { mode }, &[Some(data(dtype, shape, 1)), vector(&pads), value]);
                    check(&Pad { mode }, &[Some(data(dtype, shape, 1)), vector(&[begin, end]), None, vector(&[0])]);
                }
            }
        }
    }
}

#[test]
fn gathers() {
    for dtype in TYPES {
        for shape in SHAPES {
            for axis in [0, -1] {
                let extent = if axis == 0 { shape[0] } else { shape[shape.len() - 1] };
                let data = Some(data(dtype, shape, 1));
                check(&Gather { axis }, &[data.clone(), indices(&[2, 3], extent)]);
                check(&Gather { axis }, &[data.clone(), indices(&[], extent + 1)]);
                check(&GatherElements { axis }, &[data.clone(), indices(shape, extent)]);
                let larger: Vec<usize> = shape.iter().map(|extent| extent + 1).collect();
                check(&GatherElements { axis }, &[data.clone(), indices(&larger, extent)]);
                let condition = Tensor::from_bools(&[3], &[true, false, true]).expect("three");
                check(&Compress { axis: Some(axis) }, &[data.clone(), Some(condition.clone())]);
                check(&Compress { axis: None }, &[data.clone(), Some(condition)]);
            }
            check(&GatherNd { batch_dims: 0 }, &[Some(data(dtype, shape, 1)), indices(&[5, 1], shape[0])]);
        }
        check(&GatherNd { batch_dims: 1 }, &[Some(data(dtype, &[2, 3, 4], 1)), indices(&[2, 5, 1], 3)]);
        check(&GatherNd { batch_dims: 0 }, &[Some(data(dtype, &[3, 3, 4], 1)), indices(&[5, 2], 3)]);
        check(&GatherNd { batch_dims: 1 }, &[Some(data(dtype, &[2, 3, 4], 1)), indices(&[3, 5, 1], 3)]);
    }
}

#[test]
fn scatters() {
    for dtype in TYPES {
        for &reduction in ScatterReduction::VARIANTS {
            let operands = |shape: &[usize], indices: Option<Tensor>, updates: &[usize]| {
                [Some(data(dtype, shape, 1)), indices, Some(data(dtype, updates, 2))]
            };
            for axis in [0, 1] {
                let elements = ScatterElements { axis, reduction };
                check(&elements, &operands(&[5, 5], indices(&[4, 5], 5), &[4, 5]));
                check(&elements, &operands(&[5, 5], indices(&[4, 5], 6), &[4, 5]));
                check(&elements, &operands(&[5, 5], indices(&[4, 5], 5), &[5, 5]));
            }
            let slices = ScatterNd { reduction };
            check(&slices, &operands(&[5, 3], indices(&[7, 1], 5), &[7, 3]));
            check(&slices, &operands(&[3, 3], indices(&[7, 2], 3), &[7]));
            check(&slices, &operands(&[3, 3], indices(&[7, 2], 4), &[7]));
        }
        for &mode in CacheMode::VARIANTS {
            let scatter = TensorScatter { axis: -2, mode };
            let cache = || [Some(data(dtype, &[2, 3, 6, 4], 1)), Some(data(dtype, &[2, 3, 2, 4], 2))];
            check(&scatter, &cache());
            check(&scatter, &[&cache()[..], &[vector(&[4, 1])]].concat());
            check(&scatter, &[&cache()[..], &[vector(&[5, 9])]].concat());
        }
    }
}

#[test]
fn selections() {
    for dtype in TYPES {
        for shape in SHAPES {
            let data = Some(data(dtype, shape, 1));
            check(&NonZero {}, std::slice::from_ref(&data));
            for (upper, k) in [(true, 0), (false, 0), (true, -2), (false, 1), (true, i64::MAX), (false, i64::MIN)] {
                check(&Trilu { upper }, &[data.clone(), Some(Tensor::scalar::<i64>(k))]);
            }
            check(&Trilu { upper: true }, &[data]);
        }
    }
    for dtype in [DType::F32, DType::F16, DType::I64, DType::U8] {
        for (axis, largest, sorted, k) in
            [(0, true, true, 3), (-1, false, true, 2), (1, true, false, 4), (1, false, true, 41), (2, true, true, 60)]
        {
            check(&TopK { axis, largest, sorted }, &[Some(data(dtype, &[30, 41, 50], 1)), vector(&[k])]);
        }
        // More elements than candidates, with k below, at and above half of them.
        for (k, largest) in [(1, true), (7, false), (1500, true), (2999, false), (3000, true)] {
            let line = Some(data(dtype, &[3000], 2));
            check(&TopK { axis: 0, largest, sorted: k != 1500 }, &[line, vector(&[k])]);
        }
        check(&TopK { axis: 0, largest: true, sorted: true }, &[Some(data(dtype, &[5], 1)), vector(&[0])]);
    }
}
