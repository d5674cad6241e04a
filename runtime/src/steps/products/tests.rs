//! Each kernel against its reference: types, ranks, batches, groups, programs, weights in panels and in parts.

mod blocked;

use super::fused::Fused;
use crate::steps::testing::Heap;
use crate::steps::{Context, KernelError, Operand, PartBytes, PartSource, StoredWeight, Weight, kernel};
use ipuc_codes::aligned::{AlignedBytes, Line};
use ipuc_formats::attribute::{Attribute, AttributeValue};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{
    Coded, Elements, EncodingError, Logical, Panels, PartBytesRange, PartRange, Pick, Plane, PlaneRole, WeightRecord,
};
use ipuc_formats::ops::scalar::{Scalar, from_scalars, scalars};
use ipuc_formats::ops::{
    Activations, Argument, Arithmetic, AutoPad, Convolution, ConvolutionTranspose, ExpertMatmul, IntegerConvolution,
    IntegerMatmul, Map, Matmul, NoBlocks, Op, Pool, PoolFunction, Program, ReferenceContext, ReferenceError, Resize,
    ResizeCoordinates, ResizeMode, ResizeNearest, ResizePolicy,
};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::testing::{numbers, with_threads};
use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};

/// The parts of one weight.
struct Parts(Vec<AlignedBytes>, WeightRecord);

impl PartSource for Parts {
    fn part(&self, _weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        Ok(PartBytes::new(Arc::new(self.0[part].clone())))
    }
    fn tensor(&self, _weight: u32) -> Result<Option<Tensor>, KernelError> {
        Ok(None)
    }
    fn rows(&self, _weight: u32, _rows: &[u64], _target: &mut [u8]) -> Result<(), KernelError> {
        Err(KernelError::Cancelled)
    }
    fn matrices(&self, _weight: u32, matrices: &[u64]) -> Result<Vec<Vec<PartBytes>>, KernelError> {
        let piece = |piece: PartBytesRange| {
            let bytes = &self.0[piece.part][piece.bytes.start as usize..piece.bytes.end as usize];
            PartBytes::new(Arc::new(AlignedBytes::<Line>::copied(bytes).unwrap()))
        };
        let pieces = |&matrix: &u64| self.1.locate(Pick::Group(matrix)).unwrap().bytes.into_iter().map(piece).collect();
        Ok(matrices.iter().map(pieces).collect())
    }
}

/// A weight of this record as an operand.
fn weight_of(record: WeightRecord, source: Arc<dyn PartSource>) -> Operand {
    Operand::Weight(Weight::new(0, Arc::new(StoredWeight::new(record)), source))
}

/// A tensor as the weight that the compiler would store for operand `operand`, in parts of at most `budget` bytes.
pub(in crate::steps) fn weight(op: &Op, operand: usize, tensor: &Tensor, stored: DType, budget: u64) -> Operand {
    let (record, parts) = parts_of(op, operand, tensor, stored, budget);
    weight_of(record, Arc::new(parts))
}

/// A tensor as a weight of this encoding, in one part.
pub(in crate::steps) fn encoded_weight(encoding: Coded, tensor: &Tensor) -> Operand {
    let shape: Vec<u64> = tensor.shape().iter().map(|&extent| extent as u64).collect();
    let elements = Elements { stored: tensor.clone(), planes: Vec::new() };
    let (record, parts) = packed(encoding, tensor.dtype(), shape, &elements, 1 << 20);
    weight_of(record, Arc::new(parts))
}

/// The same, of which no part is there before it is asked for.
pub(in crate::steps) fn late_weight(op: &Op, operand: usize, tensor: &Tensor, budget: u64) -> Operand {
    let (record, parts) = parts_of(op, operand, tensor, tensor.dtype(), budget);
    weight_of(record, Arc::new(Late { parts, given: Mutex::default() }))
}

fn parts_of(op: &Op, operand: usize, tensor: &Tensor, stored: DType, budget: u64) -> (WeightRecord, Parts) {
    let shape: Vec<u64> = tensor.shape().iter().map(|&extent| extent as u64).collect();
    let encoding = match op.weight_matrix(operand, &shape) {
        Some(matrix) => Panels::values(stored, matrix).into(),
        None => Coded::plain(stored),
    };
    packed(encoding, tensor.dtype(), shape, &Elements { stored: tensor.clone(), planes: Vec::new() }, budget)
}

fn packed(encoding: Coded, dtype: DType, shape: Vec<u64>, elements: &Elements, budget: u64) -> (WeightRecord, Parts) {
    let logical = Logical { dtype, shape: &shape };
    let ranges = encoding.split(logical, budget).unwrap();
    let pack_one = |&range: &PartRange| {
        let length = encoding.part_bytes(logical, range).unwrap().unwrap() as usize;
        let mut bytes = AlignedBytes::zeroed(length).unwrap();
        encoding.pack(logical, range, &mut &*elements, &mut bytes).unwrap();
        bytes
    };
    let bytes = ranges.iter().map(pack_one).collect();
    let parts = ranges.iter().map(|range| range.in_extent(0)).collect();
    let (reason, sources) = (String::new(), Vec::new());
    let record = WeightRecord { name: None, dtype, shape, encoding, reason, parts, sources, zeros: None, id: 0 };
    (record.clone(), Parts(bytes, record))
}

/// Parts of which none is there before it is asked for.
struct Late {
    parts: Parts,
    given: Mutex<Vec<Weak<AlignedBytes>>>,
}

/// Bytes that show whether somebody holds them.
struct Shown(Arc<AlignedBytes>);

impl Deref for Shown {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl PartSource for Late {
    fn part(&self, _weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        let mut given = self.given.lock().unwrap();
        assert!(given.iter().all(|earlier| earlier.strong_count() == 0), "parts are held while one is waited for");
        let bytes = Arc::new(self.parts.0[part].clone());
        given.push(Arc::downgrade(&bytes));
        Ok(PartBytes::new(Arc::new(Shown(bytes))))
    }
    fn tensor(&self, _weight: u32) -> Result<Option<Tensor>, KernelError> {
        Ok(None)
    }
    fn rows(&self, _weight: u32, _rows: &[u64], _target: &mut [u8]) -> Result<(), KernelError> {
        Err(KernelError::Cancelled)
    }
    fn matrices(&self, _weight: u32, _matrices: &[u64]) -> Result<Vec<Vec<PartBytes>>, KernelError> {
        Err(KernelError::Cancelled)
    }
    fn is_ready(&self, _weight: u32, _part: usize) -> bool {
        false
    }
}

/// Multiples of 1/8 from -2 to 2: exact in bf16 too.
fn tensor(dtype: DType, shape: &[usize], seed: u32) -> Tensor {
    let values = numbers(seed, shape.iter().product());
    let coarse = values.iter().map(|value| (value * 16.0).round() / 8.0);
    let scalar = |value: f32| {
        if dtype.is_integer() { Scalar::Integer((value * 8.0) as i128) } else { Scalar::Float(value.into()) }
    };
    from_scalars(dtype, shape, &coarse.map(scalar).collect::<Vec<_>>()).unwrap()
}

fn run(op: &Op, operands: Vec<Operand>) -> Tensor {
    attempt(op, operands).unwrap()
}

fn attempt(op: &Op, operands: Vec<Operand>) -> Result<Tensor, KernelError> {
    let mut blocks = NoBlocks;
    let mut context =
        Context { blocks: &mut blocks, memory: &mut Heap::default(), random_state: 0, skipped: Default::default() };
    let results = kernel(op).run(operands, &mut context)?;
    Ok(results[0].as_tensor().cloned().unwrap())
}

fn reference(op: &Op, inputs: &[Option<Tensor>]) -> Tensor {
    let inputs: Vec<Option<Value>> = inputs.iter().cloned().map(|input| input.map(Value::from)).collect();
    let mut blocks = NoBlocks;
    let results = op.operator().reference(&inputs, &mut ReferenceContext::new(&mut blocks)).unwrap();
    results[0].as_tensor().cloned().unwrap()
}

fn values(inputs: &[Option<Tensor>]) -> Vec<Operand> {
    let operand =
        |input: &Option<Tensor>| input.clone().map_or(Operand::Absent, |tensor| Operand::Value(tensor.into()));
    inputs.iter().map(operand).collect()
}

fn assert_close(found: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "{what}");
    // One unit in the last place of the type, of values around 10.
    let bound = match found.dtype() {
        DType::F16 => 1e-2,
        DType::BF16 => 8e-2,
        DType::F32 => 1e-4,
        _ => 0.0,
    };
    for (index, (found, expected)) in scalars(found).unwrap().into_iter().zip(scalars(expected).unwrap()).enumerate() {
        let (found, expected) = (found.to_f64(), expected.to_f64());
        let near = (found - expected).abs() <= bound * (1.0 + expected.abs() / 8.0);
        assert!(near || found == expected, "{what}: element {index} is {found}, expected {expected}");
    }
}

/// Run with plain operands, and with operand 1 as a weight in parts of several sizes; all must agree with the reference.
fn check(op: impl Into<Op>, inputs: Vec<Option<Tensor>>, what: &str) {
    let op = op.into();
    let expected = reference(&op, &inputs);
    assert_close(&run(&op, values(&inputs)), &expected, what);
    let right = inputs[1].as_ref().unwrap();
    if !right.dtype().is_float() || right.count() == 0 {
        return;
    }
    let mut stored = vec![right.dtype()];
    if right.dtype() == DType::F32 {
        stored.extend([DType::F16, DType::BF16]);
    }
    for stored in stored {
        for budget in [1 << 8, 1 << 13, 1 << 24] {
            let mut operands = values(&inputs);
            operands[1] = weight(&op, 1, right, stored, budget);
            assert_close(&run(&op, operands), &expected, &format!("{what}, stored as {stored} in parts of {budget}"));
        }
    }
}

#[test]
fn rows_by_matrices_that_an_index_chooses() {
    let op = ExpertMatmul { arithmetic: Arithmetic::default() };
    let experts = 5;
    for (dtype, inputs, outputs) in
        [(DType::F32, 300, 40), (DType::F16, 33, 16), (DType::BF16, 64, 1), (DType::F64, 5, 3), (DType::F32, 0, 4)]
    {
        for (tokens, chosen, rows) in [(1, 1, 1), (1, 4, 1), (7, 2, 1), (3, 4, 4), (0, 2, 1)] {
            let a = tensor(dtype, &[tokens, rows, inputs], 1);
            let b = tensor(dtype, &[experts, outputs, inputs], 2);
            let index: Vec<i64> =
                (0..tokens * chosen).map(|choice| ((choice * 7 + choice / 3) % experts) as i64).collect();
            let index = Tensor::from_elements(&[tokens, chosen], &index).unwrap();
            let what = format!("{dtype} [{tokens}, {rows} of {chosen}, {inputs}] by [{experts}, {outputs}]");
            check(op.clone(), vec![Some(a), Some(b), Some(index)], &what);
        }
    }
}

/// However many tokens choose an expert, and in how many parts it comes.
#[test]
fn a_token_has_the_bits_that_it_has_among_others() {
    let op: Op = ExpertMatmul { arithmetic: Arithmetic::default() }.into();
    let (a, b) = (tensor(DType::F32, &[9, 1, 300], 1), tensor(DType::F32, &[3, 40, 300], 2));
    let run_with = |a: Tensor, index: &[i64], budget: u64| {
        let index = Tensor::from_elements(&[index.len(), 1], index).unwrap();
        let mut operands = values(&[Some(a), None, Some(index)]);
        operands[1] = weight(&op, 1, &b, DType::F32, budget);
        run(&op, operands)
    };
    let index = [0, 2, 2, 1, 2, 2, 2, 0, 2];
    let all = run_with(a.clone(), &index, 1 << 24);
    assert_eq!(run_with(a.clone(), &index, 1 << 10), all);
    // As many tokens for each expert are multiplied side by side, others one expert after the other.
    for index in [index, [0, 1, 2, 0, 1, 2, 0, 1, 2]] {
        let of = |threads| with_threads(threads, || run_with(a.clone(), &index, 1 << 24));
        assert_eq!(of(3), of(1), "{index:?}");
    }
    for (token, &expert) in index.iter().enumerate() {
        let row = Tensor::from_elements(&[1, 1, 300], &a.elements::<f32>().unwrap()[token * 300..][..300]).unwrap();
        let alone = run_with(row, &[expert], 1 << 24);
        assert_eq!(alone.elements::<f32>().unwrap(), &all.elements::<f32>().unwrap()[token * 40..][..40], "{token}");
    }
}

/// Experts of codes, whose parts begin and end within the records of an expert, and rows of which some choose the same one.
#[test]
fn rows_by_matrices_of_codes() {
    let scale = |dtype, block| Plane { role: PlaneRole::Scale, dtype, block };
    let f16_blocks = vec![scale(DType::F16, 32)];
    let two_scales = vec![scale(DType::F32, 0), scale(DType::F8E4M3FN, 16)];
    let rounded = Activations::Dynamic { dtype: DType::I8, block: 0 };
    for (code, planes) in [(DType::I4, f16_blocks), (DType::F4E2M1, two_scales)] {
        for inputs in [7usize, 40, 300] {
            let (experts, outputs) = (3, 20);
            let count = |plane: &Plane| if plane.block == 0 { 1 } else { inputs.div_ceil(plane.block as usize) };
            // All bits of codes, and scales about 1.
            let codes: Vec<u8> = (0..experts * outputs * inputs).map(|at| ((at * 7 + at / 13) % 16) as u8).collect();
            let plane = |plane: &Plane| {
                let shape = [experts, outputs, count(plane)];
                let scales: Vec<f32> = (0..shape.iter().product()).map(|at| [1.0, 0.5, 1.5, 0.75][at % 4]).collect();
                match plane.dtype {
                    DType::F8E4M3FN => {
                        let bytes: Vec<u8> = (0..scales.len()).map(|at| [0x38, 0x30, 0x3c, 0x34][at % 4]).collect();
                        Tensor::from_codes(DType::F8E4M3FN, &shape, &bytes).unwrap()
                    }
                    DType::F16 => {
                        let scales: Vec<_> = scales.into_iter().map(half::f16::from_f32).collect();
                        Tensor::from_elements(&shape, &scales).unwrap()
                    }
                    _ => Tensor::from_elements(&shape, &scales).unwrap(),
                }
            };
            let stored = Tensor::from_codes(code, &[experts, outputs, inputs], &codes).unwrap();
            let elements = Elements { stored, planes: planes.iter().map(plane).collect() };
            let shape = vec![experts as u64, outputs as u64, inputs as u64];
            let index = Tensor::from_elements(&[5, 2], &[2i64, 0, 2, 1, 0, 2, 2, 2, 1, 0]).unwrap();
            let a = tensor(DType::F32, &[5, 1, inputs], 1);
            for activation in [Arithmetic::default().activation, rounded] {
                let op: Op = ExpertMatmul { arithmetic: Arithmetic { activation, ..Arithmetic::default() } }.into();
                let matrix = op.weight_matrix(1, &shape).unwrap();
                let mut expected: Option<Tensor> = None;
                for budget in [1 << 24, 1 << 13, 1 << 9] {
                    let encoding: Coded = Panels::codes(code, matrix, planes.clone()).into();
                    let (record, parts) = packed(encoding, DType::F32, shape.clone(), &elements, budget);
                    let decoded = record.decode(|part| Ok::<_, EncodingError>(&parts.0[part][..])).unwrap();
                    let mut operands = values(&[Some(a.clone()), None, Some(index.clone())]);
                    operands[1] = weight_of(record, Arc::new(parts));
                    let found = run(&op, operands);
                    let what = format!("{code} {planes:?}, {inputs} inputs, {activation:?}, parts of {budget}");
                    let near = reference(&op, &[Some(a.clone()), Some(decoded), Some(index.clone())]);
                    assert_close(&found, &near, &what);
                    assert_eq!(&found, expected.get_or_insert_with(|| found.clone()), "{what}");
                }
            }
        }
    }
}

/// Notes which matrices are asked for at once.
struct Picked {
    parts: Parts,
    asked: Mutex<Vec<Vec<u64>>>,
    most_bytes: u64,
}

impl PartSource for Picked {
    fn part(&self, weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        self.parts.part(weight, part)
    }
    fn tensor(&self, weight: u32) -> Result<Option<Tensor>, KernelError> {
        self.parts.tensor(weight)
    }
    fn rows(&self, weight: u32, rows: &[u64], target: &mut [u8]) -> Result<(), KernelError> {
        self.parts.rows(weight, rows, target)
    }
    fn matrices(&self, weight: u32, matrices: &[u64]) -> Result<Vec<Vec<PartBytes>>, KernelError> {
        self.asked.lock().unwrap().push(matrices.to_vec());
        self.parts.matrices(weight, matrices)
    }
    fn most_picked_bytes(&self) -> u64 {
        self.most_bytes
    }
}

#[test]
fn as_many_matrices_are_picked_at_once_as_may_be_held() {
    let op: Op = ExpertMatmul { arithmetic: Arithmetic::default() }.into();
    let (a, b) = (tensor(DType::F32, &[5, 1, 32], 1), tensor(DType::F32, &[8, 16, 32], 2));
    let index = Tensor::from_elements(&[5, 1], &[7i64, 4, 6, 3, 5]).unwrap();
    let with_weight = |weight: Operand| {
        let mut operands = values(&[Some(a.clone()), None, Some(index.clone())]);
        operands[1] = weight;
        run(&op, operands)
    };
    let expected = with_weight(weight(&op, 1, &b, DType::F32, 1 << 24));
    let matrix_bytes = 16 * 32 * 4;
    for (most_bytes, asked) in
        [(2 * matrix_bytes + 1, vec![vec![3u64, 4], vec![5, 6], vec![7]]), (1, (3..8).map(|one| vec![one]).collect())]
    {
        for budget in [1 << 10, 1 << 24] {
            let (record, parts) = parts_of(&op, 1, &b, DType::F32, budget);
            let source = Arc::new(Picked { parts, asked: Mutex::default(), most_bytes });
            let found = with_weight(weight_of(record, source.clone()));
            assert_eq!(found, expected, "parts of {budget} bytes");
            assert_eq!(*source.asked.lock().unwrap(), asked, "parts of {budget} bytes");
        }
    }
}

/// What is there is computed, and its place given back, before anything is waited for.
#[test]
fn no_part_is_held_while_another_is_waited_for() {
    let op = Op::from(Matmul::new(false, false));
    let inputs = [Some(tensor(DType::F32, &[3, 40], 1)), Some(tensor(DType::F32, &[40, 100], 2))];
    let (record, parts) = parts_of(&op, 1, inputs[1].as_ref().unwrap(), DType::F32, 1 << 8);
    let count = parts.0.len();
    let late = Arc::new(Late { parts, given: Mutex::default() });
    let mut operands = values(&inputs);
    operands[1] = weight_of(record, late.clone());
    assert_close(&run(&op, operands), &reference(&op, &inputs), "late parts");
    assert!(count > 1);
    assert_eq!(late.given.lock().unwrap().len(), count);
}

#[test]
fn a_column_has_the_bits_that_it_has_among_others() {
    let left = tensor(DType::F32, &[2, 40, 300], 1);
    let columns = tensor(DType::F32, &[2, 300, 5], 2);
    let first: Vec<f32> = columns.elements::<f32>().unwrap().iter().step_by(5).copied().collect();
    let first = Tensor::from_elements(&[2, 300, 1], &first).unwrap();
    let op: Op = Matmul::new(false, false).into();
    let product = |right: &Tensor| run(&op, values(&[Some(left.clone()), Some(right.clone())]));
    let (all, one) = (product(&columns), product(&first));
    let all: Vec<f32> = all.elements::<f32>().unwrap().iter().step_by(5).copied().collect();
    assert_eq!(one.elements::<f32>().unwrap(), all);
}

#[test]
fn products_of_all_ranks_and_types() {
    let shapes: [(&[usize], &[usize]); 9] = [
        (&[1, 300], &[300, 40]),
        (&[7, 33], &[33, 17]),
        (&[2, 3, 5, 8], &[8, 9]),
        (&[2, 3, 5, 8], &[2, 3, 8, 9]),
        (&[2, 1, 5, 8], &[3, 8, 9]),
        (&[8], &[8, 3]),
        (&[2, 5, 8], &[8]),
        (&[8], &[8]),
        (&[2, 0], &[0, 3]),
    ];
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::U32, DType::I64, DType::U64] {
        for (seed, (a, b)) in shapes.iter().enumerate() {
            let inputs = vec![Some(tensor(dtype, a, seed as u32)), Some(tensor(dtype, b, 100 + seed as u32))];
            check(Matmul::new(false, false), inputs, &format!("{dtype} {a:?} times {b:?}"));
        }
        let across = vec![Some(tensor(dtype, &[2, 8, 5], 1)), Some(tensor(dtype, &[2, 9, 8], 2))];
        check(Matmul::new(true, true), across, &format!("{dtype} transposed"));
        let right = vec![Some(tensor(dtype, &[70, 300], 3)), Some(tensor(dtype, &[50, 300], 4))];
        check(Matmul::new(false, true), right, &format!("{dtype} transposed right"));
    }
}

/// A program of one step after another; `@` stands for the step before.
fn program(lines: &[&str]) -> Program {
    let mut before = "x".to_string();
    let mut texts = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        texts.push(line.replace('@', &before));
        before = format!("%{index}");
    }
    texts.push(format!("return {before}"));
    Program::from_value(&AttributeValue::Texts(texts)).unwrap()
}

#[test]
fn programs_in_and_after_the_kernel() {
    for dtype in [DType::F32, DType::F16] {
        let (add, relu, tanh) =
            (format!("add @ $2 : {dtype}"), format!("relu @ : {dtype}"), format!("tanh @ : {dtype}"));
        let (cast, half) = (format!("cast @ : {dtype}"), "mul @ f32(0.5) : f32");
        let programs = [
            vec![&*cast, &add, &relu],
            vec![&cast, &relu, &add],
            vec![&cast, &add, &tanh],
            vec![half, &cast, &add, "cast @ : f32", half, "clamp @ f32(-1.0) f32(2.0) : f16"],
            vec![half, "sin @ : f32", "round @ : i8", "cast @ : i64", "add @ i64(3) : u8"],
        ];
        for lines in programs {
            for added in [&[6][..], &[1, 6], &[4, 1], &[4, 6], &[]] {
                let op = Matmul { program: program(&lines), ..Matmul::new(false, false) };
                let inputs = [&[4, 5][..], &[5, 6], added].into_iter().enumerate();
                let inputs = inputs.map(|(seed, shape)| Some(tensor(dtype, shape, seed as u32))).collect();
                check(op, inputs, &format!("{lines:?} with {added:?}"));
            }
        }
    }
    // Matrices by columns: outputs lie as if the matrix were the right side.
    for lines in [vec!["tanh @ : f32"], vec!["mul @ $2 : f32", "relu @ : f32"], vec!["add @ $2 : f32"]] {
        for added in [&[3, 40, 1][..], &[40, 1], &[1]] {
            let op = Matmul { program: program(&lines), ..Matmul::new(false, false) };
            let inputs = [&[3, 40, 7][..], &[3, 7, 1], added].into_iter().enumerate();
            let inputs = inputs.map(|(seed, shape)| Some(tensor(DType::F32, shape, seed as u32))).collect();
            check(op, inputs, &format!("{lines:?} of a column with {added:?}"));
        }
    }
    let fused = |lines: &[&str]| Fused::new(&program(lines), |_| true);
    let bounds = Some((0.0, 6.0));
    assert_eq!(
        fused(&["add $2 @ : f32", "clamp @ f32(0.0) f32(6.0) : f32"]),
        Some(Fused { added: Some(2), clamp: bounds })
    );
    assert_eq!(fused(&["relu @ : f32"]), Some(Fused { added: None, clamp: Some((0.0, f32::INFINITY)) }));
    for other in [&["relu @ : f32", "add @ $2 : f32"][..], &["add x $2 : f16"], &["add @ $2 : f32", "relu x : f32"]] {
        assert_eq!(fused(other), None, "{other:?}");
    }
    let narrow = Arithmetic { accumulator: DType::BF16, ..Arithmetic::default() };
    let inputs = vec![Some(tensor(DType::F32, &[4, 50], 1)), Some(tensor(DType::F32, &[50, 6], 2))];
    let op: Op = Matmul { arithmetic: narrow, ..Matmul::new(false, false) }.into();
    assert_eq!(run(&op, values(&inputs)), reference(&op, &inputs));
}

fn convolution(groups: i64) -> Convolution {
    Convolution {
        auto_pad: None,
        strides: vec![],
        dilations: vec![],
        pads: vec![],
        groups,
        arithmetic: Arithmetic::default(),
        program: Program::default(),
    }
}

#[test]
fn convolutions_of_all_shapes() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let case = |op: Convolution, x: &[usize], w: &[usize], what: &str| {
            let inputs = vec![Some(tensor(dtype, x, 1)), Some(tensor(dtype, w, 2)), Some(tensor(dtype, &w[..1], 3))];
            check(op, inputs, &format!("{dtype} {what}"));
        };
        case(Convolution { pads: vec![1; 4], ..convolution(1) }, &[2, 3, 9, 8], &[20, 3, 3, 3], "plain");
        let strided =
            Convolution { strides: vec![2, 1], dilations: vec![1, 2], pads: vec![0, 2, 1, 0], ..convolution(2) };
        case(strided, &[1, 6, 9, 11], &[18, 3, 3, 2], "groups");
        let same = Convolution { auto_pad: Some(AutoPad::SameLower), strides: vec![2], ..convolution(5) };
        case(same, &[2, 5, 13], &[5, 1, 4], "depthwise");
        case(convolution(1), &[1, 2, 4, 5, 6], &[3, 2, 2, 2, 2], "three axes");
        case(convolution(1), &[1, 300, 3, 3], &[17, 300, 1, 1], "points");
    }
    let program = program(&["add $3 @ : f32", "clamp @ f32(-1.0) f32(3.0) : f32"]);
    let fused = Convolution { program, ..convolution(1) };
    for addend in [&[2, 5, 4, 3][..], &[5, 1, 1]] {
        let shapes = [&[2, 3, 5, 4][..], &[5, 3, 2, 2], &[5], addend].into_iter().enumerate();
        let inputs = shapes.map(|(seed, shape)| Some(tensor(DType::F32, shape, seed as u32))).collect();
        check(fused.clone(), inputs, &format!("with {addend:?} added"));
    }
}

#[test]
fn transposed_convolutions_of_all_shapes() {
    let plain = ConvolutionTranspose {
        auto_pad: None,
        strides: vec![2, 1],
        dilations: vec![],
        pads: vec![],
        output_padding: vec![],
        output_shape: vec![],
        groups: 1,
        arithmetic: Arithmetic::default(),
        program: Program::default(),
    };
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        let case = |op: ConvolutionTranspose, x: &[usize], w: &[usize], what: &str| {
            let filters = w[1] * op.groups as usize;
            let inputs = vec![Some(tensor(dtype, x, 1)), Some(tensor(dtype, w, 2)), Some(tensor(dtype, &[filters], 3))];
            check(op, inputs, &format!("{dtype} {what}"));
        };
        case(plain.clone(), &[2, 3, 4, 5], &[3, 7, 3, 3], "plain");
        let padded = ConvolutionTranspose { pads: vec![1, 0, 1, 2], output_padding: vec![1, 0], ..plain.clone() };
        case(padded, &[1, 4, 4, 5], &[4, 2, 3, 3], "padded");
        let grouped = ConvolutionTranspose { groups: 2, dilations: vec![2, 1], ..plain.clone() };
        case(grouped, &[1, 4, 3, 3], &[4, 5, 2, 2], "groups");
        let asked =
            ConvolutionTranspose { output_shape: vec![12, 6], auto_pad: Some(AutoPad::SameUpper), ..plain.clone() };
        case(asked, &[1, 2, 4, 5], &[2, 3, 3, 3], "an output shape beyond the kernels");
    }
}

#[test]
fn pools_of_all_kinds() {
    for function in [PoolFunction::Average, PoolFunction::Max, PoolFunction::Norm] {
        for dtype in [DType::F32, DType::F16, DType::F64] {
            let base =
                Pool { kernel: vec![3, 2], strides: vec![2, 1], pads: vec![1, 0, 2, 1], ..Pool::global(function) };
            let counting = Pool { count_include_pad: true, ceil_mode: true, ..base.clone() };
            let spread = Pool { dilations: vec![2, 3], ..base.clone() };
            for pool in [base, counting, spread, Pool::global(function)] {
                let x = Some(tensor(dtype, &[2, 3, 9, 10], 1));
                let op: Op = pool.into();
                assert_close(&run(&op, values(std::slice::from_ref(&x))), &reference(&op, &[x]), &op.to_string());
            }
        }
    }
}

#[test]
fn resampling_in_all_modes() {
    for mode in [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic] {
        for coordinates in
            [ResizeCoordinates::HalfPixel, ResizeCoordinates::AlignCorners, ResizeCoordinates::Asymmetric]
        {
            for antialias in [false, mode != ResizeMode::Nearest] {
                let op: Op = Resize {
                    mode,
                    coordinates,
                    nearest: ResizeNearest::RoundPreferFloor,
                    cubic_coefficient: -0.75,
                    exclude_outside: antialias,
                    extrapolation: 0.0,
                    antialias,
                    axes: vec![1, 2],
                    policy: ResizePolicy::Stretch,
                }
                .into();
                for sizes in [[8, 14], [3, 5], [4, 3], [4, 7]] {
                    for dtype in [DType::F32, DType::F16, DType::I64, DType::U8] {
                        let x = Some(tensor(dtype, &[3, 4, 7], 1));
                        let inputs = [x, None, None, Some(Tensor::vector_i64(&sizes))];
                        let what = format!("{dtype} to {sizes:?} by {op}");
                        assert_close(&run(&op, values(&inputs)), &reference(&op, &inputs), &what);
                    }
                }
            }
        }
    }
}

#[test]
fn threads_and_parts_do_not_change_bits() {
    let op: Op = Matmul::new(false, false).into();
    let (a, b) = (tensor(DType::F32, &[3, 64, 700], 1), tensor(DType::F32, &[700, 130], 2));
    let product = |threads, budget| {
        with_threads(threads, || {
            run(&op, vec![Operand::Value(a.clone().into()), weight(&op, 1, &b, DType::F32, budget)])
        })
    };
    let expected = product(1, 1 << 24);
    for threads in [1, 2, 5] {
        for budget in [1 << 10, 1 << 16, 1 << 24] {
            assert_eq!(product(threads, budget), expected, "{threads} threads, parts of {budget}");
        }
    }
}

#[test]
fn rows_have_the_bits_of_any_pass() {
    let rows_of = |whole: &Tensor, shape: &[usize], first: usize| {
        let row = whole.bytes().len() / 70;
        Tensor::from_bytes(whole.dtype(), shape, &whole.bytes()[first * row..][..shape[shape.len() - 2] * row]).unwrap()
    };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for transposed in [false, true] {
            let op: Op = Matmul::new(false, transposed).into();
            let right = tensor(dtype, if transposed { &[40, 300] } else { &[300, 40] }, 2);
            let left = tensor(dtype, &[70, 300], 1);
            let stored = if dtype == DType::F32 { vec![DType::F32, DType::F16, DType::BF16] } else { vec![dtype] };
            let parts = stored.into_iter().flat_map(|stored| [1 << 10, 1 << 24].map(|budget| (stored, budget)));
            for part in std::iter::once(None).chain(parts.map(Some)) {
                let product = |left: Tensor| {
                    let right = match part {
                        None => Operand::Value(right.clone().into()),
                        Some((stored, budget)) => weight(&op, 1, &right, stored, budget),
                    };
                    run(&op, vec![Operand::Value(left.into()), right])
                };
                let whole = product(left.clone());
                for rows in 1..70 {
                    for first in [0, 70 - rows] {
                        let found = product(rows_of(&left, &[rows, 300], first));
                        let what = format!("{rows} rows from {first} of {dtype} by {part:?}, transposed: {transposed}");
                        assert_eq!(found, rows_of(&whole, &[rows, 40], first), "{what}");
                    }
                }
            }
        }
    }
}

/// Integers of 8 bits among which the extreme ones are frequent.
fn bytes(dtype: DType, shape: &[usize], seed: u32) -> Option<Tensor> {
    let mut state = seed.wrapping_mul(2_654_435_761);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let code = match state >> 29 {
            0 => 0,
            1 => 255,
            2 => 128,
            _ => (state >> 16) & 255,
        };
        let number = if dtype == DType::I8 { i128::from(code as u8 as i8) } else { i128::from(code) };
        Scalar::Integer(number)
    };
    let elements: Vec<Scalar> = std::iter::repeat_with(next).take(shape.iter().product()).collect();
    Some(from_scalars(dtype, shape, &elements).unwrap())
}

/// Sums times operand `scale`, rounded, behind the zero point in the operand after it.
fn requantized(scale: usize) -> Vec<String> {
    let zero = scale + 1;
    vec![
        "cast @ : f32".to_string(),
        format!("mul @ ${scale} : f32"),
        "round @ : i32".to_string(),
        format!("add @ ${zero} : u8"),
    ]
}

/// Bits equal to those of the reference, and to those of the sums and then a map, with weights of any kind and threads.
fn check_integers(op: Op, plain: Op, program: &Program, inputs: &[Option<Tensor>], what: &str) {
    let expected = reference(&op, inputs);
    let read = program.steps.iter().flat_map(|step| &step.arguments);
    let read =
        read.filter_map(|argument| if let Argument::Operand(operand) = argument { Some(*operand) } else { None });
    let own = usize::from(read.min().unwrap());
    let sums = run(&plain, values(&inputs[..own]));
    let mut mapped = program.clone();
    let arguments = mapped.steps.iter_mut().flat_map(|step| &mut step.arguments);
    for argument in arguments.chain(&mut mapped.results) {
        *argument = match *argument {
            Argument::Input => Argument::Operand(0),
            Argument::Operand(operand) => Argument::Operand(operand - own as u16 + 1),
            Argument::Step(_) | Argument::Constant(..) => *argument,
        };
    }
    let mut operands = values(&inputs[own..]);
    operands.insert(0, Operand::Value(sums.into()));
    assert_eq!(run(&Map { program: mapped }.into(), operands), expected, "{what}, sums and a map");
    for threads in [1, 2, 3] {
        assert_eq!(with_threads(threads, || run(&op, values(inputs))), expected, "{what}");
        let right = inputs[1].as_ref().unwrap();
        for budget in [1 << 8, 1 << 13, 1 << 24] {
            let mut operands = values(inputs);
            operands[1] = weight(&op, 1, right, right.dtype(), budget);
            assert_eq!(with_threads(threads, || run(&op, operands)), expected, "{what}, in parts of {budget}");
        }
    }
}

#[test]
fn products_of_integers_have_the_bits_of_the_reference() {
    let lines = requantized(4);
    let program = program(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    // The scale of a run times that of each output, and more than a scale and an offset.
    let scaled = written(&[
        "cast x : f32",
        "mul $4 $5 : f32",
        "mul %1 %0 : f32",
        "relu %2 : f32",
        "add %3 $6 : f32",
        "return %4",
    ]);
    let to_floats = IntegerMatmul { program: scaled.clone() };
    let (op, plain) = (IntegerMatmul { program: program.clone() }, IntegerMatmul { program: Program::default() });
    let types = [(DType::U8, DType::I8), (DType::I8, DType::U8), (DType::U8, DType::U8), (DType::I8, DType::I8)];
    for (seed, (left, right)) in types.into_iter().enumerate() {
        for (a, b) in [(&[3, 700][..], &[700, 37][..]), (&[2, 5, 9], &[9, 16]), (&[2, 1, 6], &[2, 6, 3])] {
            for (a_zero, b_zero) in [(&[][..], &b[b.len() - 1..]), (&[1], &[]), (&a[a.len() - 2..a.len() - 1], &[])] {
                let seed = seed as u32 * 7;
                let scale = Tensor::from_elements(&b[b.len() - 1..], &vec![0.003f32; b[b.len() - 1]]).unwrap();
                let inputs = [
                    bytes(left, a, seed + 1),
                    bytes(right, b, seed + 2),
                    bytes(left, a_zero, seed + 3),
                    bytes(right, b_zero, seed + 4),
                    Some(scale),
                    Some(Tensor::scalar(131i32)),
                ];
                let what = format!("{left} {a:?} {a_zero:?} by {right} {b:?} {b_zero:?}");
                check_integers(op.clone().into(), plain.clone().into(), &program, &inputs, &what);
                let mut inputs = inputs.to_vec();
                let result = [&a[..a.len() - 1], &b[b.len() - 1..]].concat();
                inputs.truncate(5);
                inputs.insert(4, Some(Tensor::scalar(0.7f32)));
                inputs.push(Some(tensor(DType::F32, &result, seed)));
                check_integers(to_floats.clone().into(), plain.clone().into(), &scaled, &inputs, &what);
            }
        }
    }
}

/// A program as it is written.
fn written(lines: &[&str]) -> Program {
    Program::from_value(&AttributeValue::Texts(lines.iter().map(ToString::to_string).collect())).unwrap()
}

#[test]
fn rows_of_several_tasks_have_the_bits_of_the_reference() {
    for (rows, inputs, outputs) in [(72, 130, 300), (100, 64, 40), (64, 64, 16)] {
        let scale = Tensor::from_elements(&[outputs], &vec![0.003f32; outputs]).unwrap();
        let (all, one) = (tensor(DType::F32, &[rows, outputs], 5), tensor(DType::F32, &[outputs], 6));
        let inputs = [
            bytes(DType::U8, &[rows, inputs], 1),
            bytes(DType::I8, &[inputs, outputs], 2),
            bytes(DType::U8, &[], 3),
            bytes(DType::I8, &[outputs], 4),
            Some(scale),
            Some(all),
            Some(one),
        ];
        let (start, scaled) = ("cast x : f32", "mul %0 $4 : f32");
        let programs = [
            vec![start, scaled, "add $6 %1 : f32", "relu %2 : f32", "add %3 $5 : f32", "return %4"],
            // What is added to each sum alone is no offset.
            vec![start, scaled, "add %1 $5 : f32", "max %2 $6 : f32", "return %3"],
            vec![start, scaled, "add %1 $6 : f32", "tanh %2 : f32", "round %3 : i8", "add $5 $6 : f32", "return %4"],
            vec![start, scaled, "mul $5 $6 : f32", "return %2"],
            vec![start, scaled, "mul $5 $6 : f32", "return $5"],
        ];
        for lines in programs {
            let program = written(&lines);
            let op = IntegerMatmul { program: program.clone() };
            let plain = IntegerMatmul { program: Program::default() };
            check_integers(op.into(), plain.into(), &program, &inputs, &format!("{rows} rows, {lines:?}"));
        }
    }
}

#[test]
fn a_division_by_zero_in_a_task_is_an_error() {
    let none = Some(Tensor::zeros(DType::I32, &[40]).unwrap());
    let scale = Some(Tensor::scalar(0.5f32));
    let is_refused = |op: Op, inputs: &[Option<Tensor>], what: &str| {
        let found = with_threads(2, || attempt(&op, values(inputs))).unwrap_err();
        assert!(matches!(found, KernelError::Reference(ReferenceError::OutOfRange { .. })), "{what}: {found:?}");
    };
    let (x, w) = (bytes(DType::U8, &[72, 64], 1), bytes(DType::I8, &[64, 40], 2));
    let inputs = [x, w, None, None, scale, none.clone()];
    let lines = ["cast x : f32", "mul %0 $4 : f32", "cast %1 : i32", "div %2 $5 : i32", "cast %3 : f32", "return %4"];
    is_refused(IntegerMatmul { program: written(&lines) }.into(), &inputs, "floats of sums");
    let lines = ["cast x : i32", "div %0 $5 : i32", "return %1"];
    is_refused(IntegerMatmul { program: written(&lines) }.into(), &inputs, "sums");
    let inputs = [Some(tensor(DType::F32, &[8, 64], 1)), Some(tensor(DType::F32, &[64, 40], 2)), none];
    let lines = ["cast x : i32", "div %0 $2 : i32", "cast %1 : f32", "return %2"];
    is_refused(Matmul { program: written(&lines), ..Matmul::new(false, false) }.into(), &inputs, "floats");
}

#[test]
fn convolutions_of_integers_have_the_bits_of_the_reference() {
    let lines = requantized(5);
    let program = program(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let case = |groups: i64, x: &[usize], w: &[usize], [left, right]: [DType; 2], padded: bool| {
        let op = |program: Program| IntegerConvolution {
            auto_pad: None,
            strides: if padded { vec![2, 1] } else { vec![] },
            dilations: if padded { vec![1, 2] } else { vec![] },
            pads: if padded { vec![1, 2, 0, 1] } else { vec![] },
            groups,
            program,
            channels_last: false,
            plain_inputs: false,
        };
        let scale = Tensor::from_elements(&[w[0], 1, 1], &vec![0.004f32; w[0]]).unwrap();
        let bias: Vec<i32> = (0..w[0] as i32).map(|filter| (filter - 3) << 12).collect();
        let inputs = [
            bytes(left, x, 1),
            bytes(right, w, 2),
            bytes(left, &[], 3),
            bytes(right, if padded { &w[..1] } else { &[] }, 4),
            Some(Tensor::from_elements(&[w[0]], &bias).unwrap()),
            Some(scale),
            Some(Tensor::scalar(7i32)),
        ];
        let what = format!("{groups} groups of {left} {x:?} by {right} {w:?}");
        check_integers(op(program.clone()).into(), op(Program::default()).into(), &program, &inputs, &what);
    };
    case(1, &[2, 3, 7, 9], &[20, 3, 3, 3], [DType::U8, DType::I8], true);
    case(1, &[1, 70, 5, 4], &[33, 70, 2, 2], [DType::I8, DType::I8], false);
    case(2, &[1, 6, 6, 7], &[18, 3, 3, 2], [DType::U8, DType::U8], true);
    case(4, &[1, 4, 6, 7], &[4, 1, 3, 3], [DType::I8, DType::U8], true);
}

#[test]
fn convolutions_of_channels_side_by_side_have_the_bits_of_the_reference() {
    let lines = requantized(5);
    let codes = program(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let bent = program(&["cast @ : f32", "mul @ $5 : f32", "tanh @ : f32", "add @ $6 : f32"]);
    let added = program(&["cast @ : f32", "mul @ $5 : f32", "relu @ : f32", "add @ $6 : f32"]);
    let (zero, half) = (Tensor::scalar(7i32), Tensor::scalar(0.5f32));
    for (program, added) in [(codes, Some(zero)), (bent, Some(half)), (added, None)] {
        let case = |x: &[usize], w: &[usize], [left, right]: [DType; 2], padded: bool| {
            let plain_inputs = x[1] != 1;
            let op = |program: Program| IntegerConvolution {
                auto_pad: None,
                strides: if padded { vec![2, 1] } else { vec![] },
                dilations: if padded { vec![1, 2] } else { vec![] },
                pads: if padded { vec![1, 2, 0, 1] } else { vec![] },
                groups: 1,
                program,
                channels_last: true,
                plain_inputs,
            };
            let scale = Tensor::from_elements(&[w[0]], &vec![0.004f32; w[0]]).unwrap();
            let bias: Vec<i32> = (0..w[0] as i32).map(|filter| (filter - 3) << 12).collect();
            let inputs = [
                bytes(left, x, 1),
                bytes(right, w, 2),
                bytes(left, &[], 3),
                bytes(right, if padded { &w[..1] } else { &[] }, 4),
                Some(Tensor::from_elements(&[w[0]], &bias).unwrap()),
                Some(scale),
                None,
            ];
            let what = format!("{left} {x:?} by {right} {w:?}");
            let plain = op(Program::default()).into();
            // A value for each sum, where there is none for all.
            let all = || tensor(DType::F32, reference(&plain, &inputs[..5]).shape(), 7);
            let mut inputs = inputs.clone();
            inputs[6] = Some(added.clone().unwrap_or_else(all));
            check_integers(op(program.clone()).into(), plain, &program, &inputs, &what);
        };
        case(&[2, 3, 7, 9], &[20, 3, 3, 3], [DType::U8, DType::I8], true);
        case(&[2, 1, 7, 9, 8], &[20, 1, 3, 3, 8], [DType::U8, DType::I8], true);
        case(&[1, 1, 5, 4, 72], &[83, 1, 2, 2, 72], [DType::I8, DType::I8], false);
        case(&[1, 1, 14, 14, 64], &[130, 1, 1, 1, 64], [DType::I8, DType::U8], false);
        case(&[1, 1, 6, 7, 4], &[4, 1, 3, 3, 4], [DType::U8, DType::U8], true);
        // More images than are multiplied together.
        case(&[20, 1, 3, 3, 4], &[18, 1, 2, 2, 4], [DType::I8, DType::I8], true);
        case(&[20, 3, 3, 3], &[18, 3, 3, 2], [DType::I8, DType::U8], true);
        // Windows without taps or of padding alone.
        case(&[1, 1, 5, 5, 4], &[16, 1, 0, 1, 4], [DType::U8, DType::I8], true);
        case(&[1, 3, 5, 5], &[16, 3, 0, 3], [DType::U8, DType::I8], true);
        case(&[1, 1, 0, 5, 4], &[16, 1, 1, 1, 4], [DType::U8, DType::I8], true);
        case(&[0, 1, 5, 5, 4], &[16, 1, 1, 1, 4], [DType::U8, DType::I8], true);
        // No whole words of channels: by the reference.
        case(&[1, 1, 6, 7, 6], &[9, 1, 3, 3, 6], [DType::U8, DType::U8], true);
    }
}
