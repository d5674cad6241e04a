//! What the tests of several kernels share: a kernel against its reference.

use crate::steps::{Allocate, Context, Kernel, KernelError, Operand, Prepared};
use crate::versions::{PageMemory, VersionError};
use ipuc_codes::aligned::{AlignedBytes, Line};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::scalar::{Scalar, from_scalars, scalars};
use ipuc_formats::ops::{NoBlocks, ReferenceContext};
use ipuc_formats::tensor::{Storage, Tensor};
use ipuc_formats::value::Value;
use ipuc_kernels::testing::{numbers, with_threads};

/// Results on the heap, full of what no kernel would write, of a step that keeps what it has prepared.
#[derive(Default)]
pub struct Heap {
    prepared: Prepared,
}

impl Allocate for Heap {
    fn allocate(&mut self, _result: usize, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError> {
        let mut tensor = Tensor::zeros(dtype, shape)?;
        tensor.bytes_mut().fill(0xa5);
        Ok(tensor)
    }

    fn scratch(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError> {
        self.allocate(0, dtype, shape)
    }

    fn adopt(&mut self, _result: usize, tensor: Tensor) -> Result<Tensor, KernelError> {
        Ok(tensor)
    }

    fn pages(&self) -> &dyn PageMemory {
        self
    }

    fn prepared(&self) -> Option<&Prepared> {
        Some(&self.prepared)
    }
}

impl PageMemory for Heap {
    fn page(&self, bytes: usize) -> Result<Box<dyn Storage>, VersionError> {
        let memory = AlignedBytes::<Line>::copied(&vec![0xa5; bytes]).unwrap();
        Ok(Box::new(memory))
    }
}

/// Numbers from -1 to 1, rounded to `dtype`.
pub fn random(dtype: DType, shape: &[usize], seed: u32) -> Option<Tensor> {
    let count = shape.iter().product();
    let values: Vec<Scalar> = numbers(seed, count).into_iter().map(|value| Scalar::Float(f64::from(value))).collect();
    Some(from_scalars(dtype, shape, &values).expect("a float type"))
}

/// Results of the kernel, on operands that nobody else reads.
pub fn run(kernel: &(dyn Kernel + Sync), inputs: &[Option<Tensor>]) -> Vec<Tensor> {
    let own = |tensor: &Tensor| Tensor::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes()).expect("its bytes");
    let operand =
        |input: &Option<Tensor>| input.as_ref().map_or(Operand::Absent, |input| Operand::Value(own(input).into()));
    run_operands(kernel, inputs.iter().map(operand).collect())
}

/// Results of the kernel.
pub fn run_operands(kernel: &(dyn Kernel + Sync), operands: Vec<Operand>) -> Vec<Tensor> {
    let mut blocks = NoBlocks;
    let mut context =
        Context { blocks: &mut blocks, memory: &mut Heap::default(), random_state: 0, skipped: Default::default() };
    let results = kernel.run(operands, &mut context).expect("operands that fit");
    results.into_iter().map(|result| result.as_tensor().cloned().expect("a tensor")).collect()
}

/// Check a kernel: the same types and shapes as its reference, values within `tolerance` of the largest, the same bits
/// with several threads.
pub fn check(kernel: &(dyn Kernel + Sync), inputs: &[Option<Tensor>], tolerance: f64) {
    let values: Vec<Option<Value>> = inputs.iter().cloned().map(|input| input.map(Value::from)).collect();
    let mut blocks = NoBlocks;
    let mut context = ReferenceContext::new(&mut blocks);
    // As that of `run`.
    context.random_state = 0;
    let expected = kernel.reference(&values, &mut context).expect("operands that fit");
    let found = with_threads(1, || run(kernel, inputs));
    assert_eq!(found, with_threads(3, || run(kernel, inputs)), "{kernel:?} with other threads");
    agree(kernel, &found, &expected, tolerance);
}

/// Asserts that results are those of the reference, within `tolerance` of the largest value.
pub fn agree(kernel: &(dyn Kernel + Sync), found: &[Tensor], expected: &[Value], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{kernel:?}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let expected = expected.as_tensor().expect("a tensor");
        assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "{kernel:?} result {index}");
        let numbers = |tensor| scalars(tensor).expect("numbers").into_iter().map(Scalar::to_f64).collect::<Vec<f64>>();
        let (found, expected) = (numbers(found), numbers(expected));
        let finite = expected.iter().filter(|value| value.is_finite());
        let scale = finite.fold(0f64, |scale, value| scale.max(value.abs()));
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let close = found == expected
                || found.is_nan() && expected.is_nan()
                || (found - expected).abs() <= tolerance * scale;
            assert!(close, "{kernel:?} result {index} element {at}: {found}, expected {expected}");
        }
    }
}
