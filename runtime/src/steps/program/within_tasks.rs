//! A program over sums where they lie, while the tasks of a product compute others.

use super::compiled::Compiled;
use super::registers::{Accumulators, BLOCK, Registers};
use crate::steps::KernelError;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Program, ReferenceError};
use ipuc_formats::value::Value;
use ipuc_kernels::team;
use std::sync::{Mutex, PoisonError};

/// A program with one result over sums that tasks complete block by block.
pub(in crate::steps) struct WithinTasks<'a> {
    compiled: Compiled<'a>,
    /// The register of the sums where one chain is all.
    single: Option<usize>,
    dtype: DType,
    /// The registers of each thread of the team, so that none waits for another.
    threads: Vec<Mutex<Option<Registers>>>,
    failed: Mutex<Option<ReferenceError>>,
}

impl<'a> WithinTasks<'a> {
    /// The program over sums of this type and shape; `None` where it has no single result of whole bytes.
    ///
    /// # Errors
    /// [`KernelError`] where the program is wrong for its operands.
    pub(in crate::steps) fn new(
        program: &'a Program,
        sums: DType,
        shape: &[usize],
        inputs: &'a [Option<Value>],
    ) -> Result<Option<WithinTasks<'a>>, KernelError> {
        let Some(compiled) = Compiled::new(program, Some(sums), shape, inputs)? else { return Ok(None) };
        let &[dtype] = compiled.types() else { return Ok(None) };
        let threads = (0..team::count()).map(|_| Mutex::default()).collect();
        let single = compiled.single_chain();
        Ok(Some(WithinTasks { compiled, single, dtype, threads, failed: Mutex::default() }))
    }

    /// The type of results.
    pub(in crate::steps) fn dtype(&self) -> DType {
        self.dtype
    }

    /// About how many operations an element costs.
    pub(in crate::steps) fn cost(&self) -> usize {
        self.compiled.cost()
    }

    /// Changes sums in f32 that lie side by side, the first of them at `place` of the whole result, to results of a program
    /// whose type f32 holds.
    pub(in crate::steps) fn change(&self, place: usize, sums: &mut [f32]) {
        self.with_registers(|registers| {
            if let Some(register) = self.single {
                let (mut first, end, mut rest) = (place, place + sums.len(), sums);
                while !rest.is_empty() {
                    let next = self.compiled.block_end(first, end);
                    let (own, behind) = rest.split_at_mut(next - first);
                    self.compiled.change_block(register, registers, own, first..next);
                    (first, rest) = (next, behind);
                }
                return Ok(());
            }
            for (block, sums) in sums.chunks_mut(BLOCK).enumerate() {
                let first = place + block * BLOCK;
                let range = first..first + sums.len();
                self.compiled.compute(registers, Accumulators::Float(sums), range)?;
                self.compiled.store_float(registers, sums);
            }
            Ok(())
        });
    }

    /// Writes the results of sums that lie side by side, the first of them at `place` of the whole result.
    pub(in crate::steps) fn write(&self, place: usize, sums: &[i32], results: &mut [u8]) {
        let size = self.dtype.bits() / 8;
        self.with_registers(|registers| {
            let blocks = sums.chunks(BLOCK).zip(results.chunks_mut(BLOCK * size.max(1)));
            for (block, (sums, results)) in blocks.enumerate() {
                let first = place + block * BLOCK;
                let range = first..first + sums.len();
                self.compiled.run(registers, Accumulators::Integer(sums), range, &mut [results])?;
            }
            Ok(())
        });
    }

    fn with_registers(&self, run: impl FnOnce(&mut Registers) -> Result<(), ReferenceError>) {
        let thread = team::index().min(self.threads.len() - 1);
        let mut own = self.threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = run(own.get_or_insert_with(|| self.compiled.registers())) {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    /// What went wrong in any task.
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
