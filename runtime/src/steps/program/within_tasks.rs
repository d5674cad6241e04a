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
    threads: Vec<ThreadRegisters>,
    failed: Mutex<Option<ReferenceError>>,
}

/// The registers of a thread, in cache lines that no other thread writes.
#[derive(Default)]
#[repr(align(128))]
struct ThreadRegisters(Mutex<Option<Registers>>);

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
        WithinTasks::after(program, 0, sums, shape, inputs)
    }

    /// The same over results of step `first - 1`, where that is not 0; see [`Compiled::after`].
    ///
    /// # Errors
    /// As [`WithinTasks::new`].
    pub(in crate::steps) fn after(
        program: &'a Program,
        first: usize,
        sums: DType,
        shape: &[usize],
        inputs: &'a [Option<Value>],
    ) -> Result<Option<WithinTasks<'a>>, KernelError> {
        let Some(compiled) = Compiled::after(program, first, Some(sums), shape, inputs)? else { return Ok(None) };
        let &[dtype] = compiled.types() else { return Ok(None) };
        let threads = (0..team::count()).map(|_| ThreadRegisters::default()).collect();
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
        self.on_this_thread(|own| own.change(place, sums));
    }

    /// Runs `run` with the registers of this thread, which it is to use for all that a task has.
    pub(in crate::steps) fn on_this_thread(&self, run: impl FnOnce(&mut OnThread<'_>)) {
        let thread = team::index().min(self.threads.len() - 1);
        let mut own = self.threads[thread].0.lock().unwrap_or_else(PoisonError::into_inner);
        let registers = own.get_or_insert_with(|| self.compiled.registers());
        run(&mut OnThread { within: self, registers });
    }

    fn note(&self, error: ReferenceError) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
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

/// A program on one thread.
pub(in crate::steps) struct OnThread<'t> {
    within: &'t WithinTasks<'t>,
    registers: &'t mut Registers,
}

impl OnThread<'_> {
    /// See [`WithinTasks::change`].
    pub(in crate::steps) fn change(&mut self, place: usize, sums: &mut [f32]) {
        let (compiled, registers) = (&self.within.compiled, &mut *self.registers);
        if let Some(register) = self.within.single {
            let (mut first, end, mut rest) = (place, place + sums.len(), sums);
            while !rest.is_empty() {
                let next = compiled.block_end(first, end);
                let (own, behind) = rest.split_at_mut(next - first);
                compiled.change_block(register, registers, own, first..next);
                (first, rest) = (next, behind);
            }
            return;
        }
        for (block, sums) in sums.chunks_mut(BLOCK).enumerate() {
            let first = place + block * BLOCK;
            let range = first..first + sums.len();
            match compiled.compute(registers, Accumulators::Float(sums), range) {
                Ok(()) => compiled.store_float(registers, sums),
                Err(error) => self.within.note(error),
            }
        }
    }

    /// Writes the results of sums that lie side by side, the first of them at `place` of the whole result.
    pub(in crate::steps) fn write(&mut self, place: usize, sums: &[i32], results: &mut [u8]) {
        let size = self.within.dtype.bits() / 8;
        let blocks = sums.chunks(BLOCK).zip(results.chunks_mut(BLOCK * size.max(1)));
        for (block, (sums, results)) in blocks.enumerate() {
            let first = place + block * BLOCK;
            let range = first..first + sums.len();
            let accumulators = Accumulators::Integer(sums);
            if let Err(error) = self.within.compiled.run(self.registers, accumulators, range, &mut [results]) {
                self.within.note(error);
            }
        }
    }
}
