//! What a kernel may ask for while it runs.

use crate::steps::KernelError;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::BlockRunner;
use ipuc_formats::tensor::Tensor;

/// Where results live: planned places first, the heap within the budget else.
pub trait Allocate {
    /// A tensor for result `result` of the running step; its bytes are unspecified and exclusively owned.
    ///
    /// # Errors
    /// [`KernelError::Memory`] where the budget has no room.
    fn allocate(&mut self, result: usize, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError>;
}

/// What a kernel may use besides its operands.
pub struct Context<'a> {
    /// Bodies of control flow.
    pub blocks: &'a mut dyn BlockRunner,
    /// Memory for results.
    pub memory: &'a mut dyn Allocate,
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
}
