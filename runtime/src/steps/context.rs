//! What a kernel may ask for while it runs.

use crate::steps::{KernelError, Prepared};
use crate::versions::{PageMemory, Version};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::BlockRunner;
use ipuc_formats::tensor::Tensor;
use ipuc_kernels::product::Skipped;
use std::any::Any;
use std::sync::Arc;

/// Where results live: planned places first, the heap within the budget else.
pub trait Allocate {
    /// A tensor for result `result` of the running step; its bytes are unspecified and exclusively owned.
    ///
    /// # Errors
    /// [`KernelError::Memory`] where the budget has no room.
    fn allocate(&mut self, result: usize, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError>;

    /// A tensor that is no result and is dropped with the step; its bytes are unspecified and exclusively owned.
    ///
    /// # Errors
    /// [`KernelError::Memory`] where the budget has no room.
    fn scratch(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError>;

    /// The tensor with its bytes counted against the budget, where they are not yet.
    ///
    /// # Errors
    /// [`KernelError::Memory`] where the budget has no room.
    fn adopt(&mut self, result: usize, tensor: Tensor) -> Result<Tensor, KernelError>;

    /// Where pages of state come from.
    fn pages(&self) -> &dyn PageMemory;

    /// What this step has prepared in an earlier run; `None` for one that runs once.
    fn prepared(&self) -> Option<&Prepared>;
}

/// What a kernel may use besides its operands.
pub struct Context<'a> {
    /// Bodies of control flow.
    pub blocks: &'a mut dyn BlockRunner,
    /// Memory for results.
    pub memory: &'a mut dyn Allocate,
    /// What products have left out.
    pub skipped: Skipped,
    /// Seed for random operators without one; changes with each draw.
    pub random_state: u64,
}

impl Context<'_> {
    /// A tensor for result `result`; every element is to be written by the kernel.
    ///
    /// # Errors
    /// [`KernelError::Memory`] where the budget has no room.
    pub fn allocate(&mut self, result: usize, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError> {
        self.memory.allocate(result, dtype, shape)
    }

    /// What `make` works out from these shapes of operands and from nothing else but the operator; an earlier run of the step may have
    /// left it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn prepared<T: Any + Send + Sync, E>(
        &self,
        shapes: &[&[usize]],
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        match self.memory.prepared() {
            Some(prepared) => prepared.get(shapes, make),
            None => make().map(Arc::new),
        }
    }

    /// The contents of a version as one tensor, for kernels that do not read pages.
    ///
    /// # Errors
    /// [`KernelError`] where the budget has no room, or pages cannot be read.
    pub fn whole(&mut self, version: &Version) -> Result<Tensor, KernelError> {
        let copy = self.memory.scratch(version.dtype(), version.shape())?;
        Ok(version.copied_into(copy, self.memory.pages())?)
    }
}
