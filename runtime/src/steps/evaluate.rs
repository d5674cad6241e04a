//! One step by itself, over operands that are there: what the compiler folds is what a run computes.

use crate::steps::{Allocate, Context, KernelError, Operand, Prepared, kernel};
use crate::versions::{PageMemory, VersionError};
use ipuc_codes::aligned::{AlignedBytes, Line};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{NoBlocks, Op, ReferenceError};
use ipuc_formats::tensor::{Storage, Tensor};
use ipuc_formats::value::Value;

/// The results of an operator without bodies, by its kernel and with the instructions that a run uses.
///
/// # Errors
/// [`ReferenceError`] where operands do not fit, their contents are out of range, or memory is short.
pub fn evaluate(op: &Op, operands: &[Option<Value>]) -> Result<Vec<Value>, ReferenceError> {
    let operands = operands.iter().map(|operand| operand.clone().map_or(Operand::Absent, Operand::Value)).collect();
    let (mut blocks, mut memory) = (NoBlocks, Heap);
    let mut context =
        Context { blocks: &mut blocks, memory: &mut memory, random_state: 0, skipped: Default::default() };
    kernel(op).run(operands, &mut context).map_err(|error| match error {
        KernelError::Reference(error) => error,
        error @ (KernelError::Weight { .. }
        | KernelError::Memory { .. }
        | KernelError::Version(_)
        | KernelError::Cancelled) => ReferenceError::Kernel(Box::new(error)),
    })
}

/// Results on the heap, as much as the system gives.
struct Heap;

impl Allocate for Heap {
    fn allocate(&mut self, _result: usize, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError> {
        Ok(Tensor::zeros(dtype, shape)?)
    }

    fn scratch(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError> {
        Ok(Tensor::zeros(dtype, shape)?)
    }

    fn adopt(&mut self, _result: usize, tensor: Tensor) -> Result<Tensor, KernelError> {
        Ok(tensor)
    }

    fn pages(&self) -> &dyn PageMemory {
        self
    }

    fn prepared(&self) -> Option<&Prepared> {
        None
    }
}

impl PageMemory for Heap {
    fn page(&self, bytes: usize) -> Result<Box<dyn Storage>, VersionError> {
        let memory = AlignedBytes::<Line>::zeroed(bytes);
        Ok(Box::new(memory.map_err(|_| VersionError::Memory { bytes })?))
    }
}
