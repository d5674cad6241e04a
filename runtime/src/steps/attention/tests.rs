use super::*;
use crate::steps::testing::{check, random, run};
use ipuc_formats::ops::{Argument, CacheScatter, Function, Program, ScalarStep, UnaryFunction};
use std::ops::Range;
use strum::VariantArray;

/// Queries of 4 heads over keys of 2, `queries` and `keys` long.
fn operands(queries: usize, keys: usize) -> Vec<Option<Tensor>> {
    vec![
        random(DType::F32, &[2, 4, queries, 8], 1),
        random(DType::F32, &[2, 2, keys, 8], 2),
        random(DType::F32, &[2, 2, keys, 6], 3),
    ]
}

fn bools(shape: &[usize], seed: u32) -> Option<Tensor> {
    let numbers = random(DType::F32, shape, seed)?;
    let seen: Vec<bool> = numbers.elements::<f32>().ok()?.iter().map(|value| *value > 0.0).collect();
    Tensor::from_bools(shape, &seen).ok()
}

#[test]
fn frontiers_and_windows_agree_with_the_reference() {
    for (queries, keys) in [(1, 1), (1, 70), (70, 70), (40, 9), (3, 20)] {
        for causal in [false, true] {
            for (left, right) in [(None, None), (Some(2), None), (Some(0), Some(1)), (None, Some(3))] {
                let operator = Attention { causal, left_window: left, right_window: right, ..Attention::plain() };
                check(&operator, &operands(queries, keys), 1e-5);
                let mut with_valid = operands(queries, keys);
                let valid = [keys as i64, (keys / 2) as i64];
                with_valid.extend([None, None, None, Some(Tensor::vector_i64(&valid))]);
                check(&operator, &with_valid, 1e-5);
            }
        }
    }
}

#[test]
fn first_positions_and_sinks_agree_with_the_reference() {
    for (queries, keys) in [(1, 1), (1, 70), (70, 170), (40, 9)] {
        for causal in [false, true] {
            for stage in [None, Some(ScoreStage::Softmax)] {
                let operator = Attention { causal, scores: stage, left_window: Some(20), ..Attention::plain() };
                for (valid, first) in [([keys as i64, 5], [0, 3]), ([1, 0], [keys as i64 - 1, 0])] {
                    let mut inputs = operands(queries, keys);
                    let counts = [valid, first].map(|counts| Some(Tensor::vector_i64(&counts)));
                    inputs.extend([None, None, None]);
                    inputs.extend(counts);
                    inputs.push(random(DType::F32, &[4], 9));
                    check(&operator, &inputs, 1e-5);
                }
            }
        }
    }
}

#[test]
fn caches_agree_with_the_reference() {
    for dtype in [DType::F32, DType::F16] {
        for (past, new, first, length) in [
            (None, 3, [0, 0], 3),
            (Some(4), 1, [4, 2], 5),
            (Some(6), 2, [4, 0], 6),
            (Some(6), 2, [1, 0], 2),
            (Some(2), 0, [1, 2], 2),
        ] {
            let rows = |count: usize, seed| random(dtype, &[2, 3, count, 5], seed);
            let counts = [Tensor::vector_i64(&first), Tensor::vector_i64(&[length])].map(Some);
            let inputs = [vec![past.and_then(|past| rows(past, 1)), rows(new, 2)], counts.to_vec()].concat();
            check(&CacheScatter {}, &inputs, 0.0);
        }
    }
}

#[test]
fn masks_and_stages_agree_with_the_reference() {
    let masks = [
        random(DType::F32, &[5, 9], 4),
        random(DType::F32, &[1, 4, 1, 9], 5),
        bools(&[2, 1, 5, 9], 6),
        bools(&[5, 1], 7),
        Tensor::from_bools(&[1, 1], &[false]).ok(),
    ];
    for mask in masks {
        for stage in [None].into_iter().chain(ScoreStage::VARIANTS.iter().copied().map(Some)) {
            for pad_mask in [false, true] {
                let operator =
                    Attention { scores: stage, softcap: 2.0, causal: pad_mask, pad_mask, ..Attention::plain() };
                let mut inputs = operands(5, 9);
                inputs.push(mask.clone());
                check(&operator, &inputs, 1e-5);
            }
        }
    }
}

#[test]
fn flat_heads_past_and_program_agree_with_the_reference() {
    let negated =
        ScalarStep { function: Function::Unary(UnaryFunction::Neg), arguments: vec![Argument::Input], to: DType::F32 };
    let program = Program::of_steps(vec![negated]).unwrap();
    for (present, flat) in [(false, false), (true, false), (false, true), (true, true)] {
        let heads = |count| flat.then_some(count);
        let operator = Attention {
            present,
            causal: true,
            scale: Some(0.3),
            query_heads: heads(4),
            key_heads: heads(2),
            program: program.clone(),
            ..Attention::plain()
        };
        let mut inputs = match flat {
            false => operands(5, 7),
            true => vec![
                random(DType::F32, &[2, 5, 32], 1),
                random(DType::F32, &[2, 7, 16], 2),
                random(DType::F32, &[2, 7, 12], 3),
            ],
        };
        check(&operator, &inputs, 1e-5);
        inputs.extend([None, random(DType::F32, &[2, 2, 3, 8], 4), random(DType::F32, &[2, 2, 3, 6], 5)]);
        check(&operator, &inputs, 1e-5);
    }
}

/// Places `range` of an axis.
fn part(tensor: &Tensor, axis: usize, range: Range<usize>) -> Tensor {
    let shape = tensor.shape();
    let row = shape[axis + 1..].iter().product::<usize>() * tensor.dtype().bits() / 8;
    let cut = |whole: &[u8]| whole[range.start * row..range.end * row].to_vec();
    let bytes: Vec<u8> = tensor.bytes().chunks(shape[axis] * row).flat_map(cut).collect();
    let mut shape = shape.to_vec();
    shape[axis] = range.len();
    Tensor::from_bytes(tensor.dtype(), &shape, &bytes).unwrap()
}

fn next_to(parts: &[Tensor], axis: usize) -> Tensor {
    let outer: usize = parts[0].shape()[..axis].iter().product();
    let row = |part: &Tensor, index: usize| {
        let length = part.bytes().len() / outer;
        part.bytes()[index * length..(index + 1) * length].to_vec()
    };
    let bytes: Vec<u8> = (0..outer).flat_map(|index| parts.iter().flat_map(move |part| row(part, index))).collect();
    let mut shape = parts[0].shape().to_vec();
    shape[axis] = parts.iter().map(|part| part.shape()[axis]).sum();
    Tensor::from_bytes(parts[0].dtype(), &shape, &bytes).unwrap()
}

/// One run over all rows, and runs one behind the other of which each has the keys and values of those before.
fn check_passes(operator: &Attention, [q, k, v]: [Tensor; 3], mask: Option<Tensor>, passes: &[usize]) {
    let (batch, axis) = (q.shape()[0], q.rank() - 2);
    let heads = if q.rank() == 3 { operator.key_heads.unwrap() as usize } else { k.shape()[1] };
    let whole = run(operator, &[Some(q.clone()), Some(k.clone()), Some(v.clone()), mask.clone()]);
    let size = |tensor: &Tensor| tensor.shape()[tensor.rank() - 1] / if q.rank() == 3 { heads } else { 1 };
    let empty = |tensor: &Tensor| Tensor::zeros(tensor.dtype(), &[batch, heads, 0, size(tensor)]).unwrap();
    let (mut past, mut rows, mut first) = ([empty(&k), empty(&v)], Vec::new(), 0);
    for &count in passes {
        let range = first..first + count;
        first = range.end;
        let mask = mask.as_ref().map(|mask| {
            let rows = part(mask, mask.rank() - 2, range.clone());
            part(&rows, rows.rank() - 1, 0..range.end)
        });
        let mut inputs: Vec<Option<Tensor>> = [&q, &k, &v].map(|tensor| Some(part(tensor, axis, range.clone()))).into();
        inputs.extend([mask, Some(past[0].clone()), Some(past[1].clone())]);
        let [y, keys, values] = run(operator, &inputs).try_into().unwrap();
        rows.push(y);
        past = [keys, values];
    }
    assert_eq!([next_to(&rows, axis), past[0].clone(), past[1].clone()], whole[..], "{operator:?} in {passes:?}");
}

#[test]
fn passes_have_the_bits_of_one() {
    let passes: [&[usize]; 4] = [&[1; 41], &[40, 1], &[3, 4, 5, 29], &[17, 1, 1, 22]];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (case, passes) in passes.into_iter().enumerate() {
            for flat in [false, true] {
                let heads = |count| flat.then_some(count);
                let operator = Attention {
                    causal: true,
                    present: true,
                    softcap: [0.0, 3.0][case % 2],
                    left_window: [None, Some(9)][case / 2],
                    pad_mask: true,
                    query_heads: heads(4),
                    key_heads: heads(2),
                    ..Attention::plain()
                };
                let operands =
                    |shapes: [&[usize]; 3]| [0, 1, 2].map(|seed| random(dtype, shapes[seed], 1 + seed as u32).unwrap());
                let operands = match flat {
                    true => operands([&[2, 41, 32], &[2, 41, 16], &[2, 41, 12]]),
                    false => operands([&[2, 4, 41, 8], &[2, 2, 41, 8], &[2, 2, 41, 6]]),
                };
                for mask in [None, random(dtype, &[1, 4, 41, 41], 7), bools(&[41, 41], 8)] {
                    check_passes(&operator, operands.clone(), mask, passes);
                }
            }
        }
    }
}
