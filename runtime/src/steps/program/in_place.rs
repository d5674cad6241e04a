//! A program that changes sums in f32 where they lie, while a product computes others.

use super::compiled::Compiled;
use super::registers::{Accumulators, BLOCK, Registers};
use crate::steps::KernelError;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Program, ReferenceError};
use ipuc_formats::value::Value;
use ipuc_kernels::team;
use std::sync::{Mutex, PoisonError};

/// A program over sums in f32 with one result, a float that f32 holds.
pub(in crate::steps) struct InPlace<'a> {
    compiled: Compiled<'a>,
    dtype: DType,
    /// The registers of each thread of the team, so that none waits for another.
    threads: Vec<Mutex<Option<Registers>>>,
    failed: Mutex<Option<ReferenceError>>,
}

impl<'a> InPlace<'a> {
    /// The program over sums of this shape; `None` where its result cannot take their places.
    ///
    /// # Errors
    /// [`KernelError`] where the program is wrong for its operands.
    pub(in crate::steps) fn new(
        program: &'a Program,
        shape: &[usize],
        inputs: &'a [Option<Value>],
    ) -> Result<Option<InPlace<'a>>, KernelError> {
        let Some(compiled) = Compiled::new(program, Some(DType::F32), shape, inputs)? else { return Ok(None) };
        let &[dtype @ (DType::F32 | DType::F16 | DType::BF16)] = compiled.types() else { return Ok(None) };
        let threads = (0..team::count()).map(|_| Mutex::default()).collect();
        Ok(Some(InPlace { compiled, dtype, threads, failed: Mutex::default() }))
    }

    /// The type that results are rounded to.
    pub(in crate::steps) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Changes sums that lie side by side, the first of them at `place` of the whole result.
    pub(in crate::steps) fn run(&self, place: usize, sums: &mut [f32]) {
        let thread = team::index().min(self.threads.len() - 1);
        let mut own = self.threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let registers = own.get_or_insert_with(|| self.compiled.registers());
        for (block, sums) in sums.chunks_mut(BLOCK).enumerate() {
            let first = place + block * BLOCK;
            let range = first..first + sums.len();
            let changed = self.compiled.compute(registers, Accumulators::Float(sums), range);
            match changed {
                Ok(()) => self.compiled.store_float(registers, sums),
                Err(error) => {
                    self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        }
    }

    /// What went wrong in any run.
    ///
    /// # Errors
    /// [`ReferenceError`] for a division of integers by zero.
    pub(in crate::steps) fn finish(self) -> Result<(), ReferenceError> {
        match self.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
