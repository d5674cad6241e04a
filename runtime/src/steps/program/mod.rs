//! Scalar programs over blocks of elements that lie in the first-level cache.
//!
//! What a program reads and computes is a register of a block of elements: f32, i32, or elements of any type for what
//! has no loop of its own. A function that is not known here computes its block as the reference does; the others of the program
//! stay fast; what codes come with is one loop (`joined`), and so are steps of f32 that follow each other (`chains`, `links`, `wide`). Results do not depend on blocks or threads.

mod chains;
mod compiled;
mod feeds;
mod gates;
mod joined;
mod linked;
mod links;
mod operations;
mod quarters;
mod registers;
mod single;
mod wide;
mod within_tasks;

#[cfg(test)]
mod tests;

use compiled::Compiled;
pub(super) use registers::Accumulators;
use registers::BLOCK;
pub(super) use within_tasks::WithinTasks;

use crate::steps::{Context, KernelError};
use ipuc_formats::ops::{Program, ReferenceError};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::threads;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Elements of some results, side by side.
struct Part<'a> {
    range: Range<usize>,
    outputs: Vec<&'a mut [u8]>,
}

/// The results of a program over these accumulators, all of this shape.
///
/// # Errors
/// [`KernelError`] where the program is wrong for its operands, memory is short, or an integer is divided by zero.
pub(super) fn apply(
    program: &Program,
    accumulators: Accumulators<'_>,
    shape: &[usize],
    inputs: &[Option<Value>],
    context: &mut Context<'_>,
) -> Result<Vec<Tensor>, KernelError> {
    let Some(compiled) = Compiled::new(program, accumulators.dtype(), shape, inputs)? else {
        let input = accumulators.scalars();
        return Ok(program.evaluate(input.as_ref().map(|(dtype, input)| (*dtype, &input[..])), shape, inputs)?);
    };
    let allocate = |(result, &dtype)| context.allocate(result, dtype, shape);
    let mut results = compiled.types().iter().enumerate().map(allocate).collect::<Result<Vec<Tensor>, _>>()?;
    let count: usize = shape.iter().product();
    let sizes: Vec<usize> = compiled.types().iter().map(|dtype| dtype.bits() / 8).collect();
    let blocks = count.div_ceil(BLOCK);
    let operations = count.saturating_mul(compiled.cost().max(threads::MOVE_OPERATIONS));
    let size = blocks.div_ceil(threads::parts(operations, blocks.max(1))).max(1) * BLOCK;
    let mut rests: Vec<&mut [u8]> = results.iter_mut().map(Tensor::bytes_mut).collect();
    let mut parts = Vec::new();
    for start in (0..count).step_by(size) {
        let range = start..count.min(start + size);
        let mut outputs = Vec::with_capacity(sizes.len());
        for (rest, size) in rests.iter_mut().zip(&sizes) {
            let (own, others) = std::mem::take(rest).split_at_mut(range.len() * size);
            *rest = others;
            outputs.push(own);
        }
        parts.push(Part { range, outputs });
    }
    let failed: Mutex<Option<ReferenceError>> = Mutex::new(None);
    threads::each_mut(parts, |part| {
        if let Err(error) = run_part(&compiled, accumulators, part, &sizes) {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error.into()),
        None => Ok(results),
    }
}

fn run_part(
    compiled: &Compiled<'_>,
    accumulators: Accumulators<'_>,
    part: &mut Part<'_>,
    sizes: &[usize],
) -> Result<(), ReferenceError> {
    let mut registers = compiled.registers();
    let mut start = part.range.start;
    while start < part.range.end {
        let range = start..compiled.block_end(start, part.range.end);
        start = range.end;
        let places = range.start - part.range.start..range.end - part.range.start;
        let outputs = part.outputs.iter_mut().zip(sizes);
        let mut outputs: Vec<&mut [u8]> =
            outputs.map(|(bytes, size)| &mut bytes[places.start * size..places.end * size]).collect();
        compiled.run(&mut registers, accumulators.at(range.clone()), range, &mut outputs)?;
    }
    Ok(())
}
