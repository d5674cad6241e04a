//! What follows a product or a convolution on each element becomes its program: bias, scales, activation, residual.
//!
//! ```text
//! constant @w : f32[4, 3, 1, 1] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! entry "main"("x", "r") -> ("y") = block 0
//! block 0(%x : f32[n, 3, 8, 8], %r : f32[n, 4, 8, 8]) {
//!   %c : f32[n, 4, 8, 8] = convolution groups=1 %x, @w from "conv"
//!   %y : f32[n, 4, 8, 8] = binary function=add %r, %c from "residual"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @w : f32[4, 3, 1, 1] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! entry "main"("x", "r") -> ("y") = block 0
//! block 0(%x : f32[n, 3, 8, 8], %r : f32[n, 4, 8, 8]) {
//!   %y : f32[n, 4, 8, 8] = convolution groups=1 program=["cast x : f32", "add $3 %0 : f32", "return %1"] %x, @w, _, %r from "conv + residual"
//!   return %y
//! }
//! ```
//!
//! The sums are rounded to the type of the product first, as its result was. Products of integers take what follows the program
//! that makes floats of their sums. Where two operands of a step are products, it
//! goes with the later one. Results keep their bits.

use super::elements::{Elements, is_float};
use super::readers::{Steps, join_each};
use crate::ir::{Graph, Operand, Step, program_of_sums};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Argument, Arithmetic, Function, Op, Program};

/// Join elementwise steps of a block to products before them; gives how many are gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    join_each(graph, index, |graph, steps, at| fused(graph, steps, at))
}

/// The last product that only the step at `at` reads, and both as one step.
fn fused(graph: &Graph, steps: &Steps, at: usize) -> Option<(usize, Step)> {
    let step = steps.get(at)?;
    let elements = Elements::of(graph, step)?;
    let dtype = elements.dtype(graph).filter(|&dtype| is_float(dtype))?;
    let candidate = |&operand: &Operand| {
        let Operand::Value(value) = operand else { return None };
        let producer = steps.only_for(at, value)?;
        let producing = steps.get(producer)?;
        let (product, own) =
            product(graph, producing).or_else(|| sums(graph, producing).filter(|_| dtype == DType::F32))?;
        (product.dims == elements.dims).then_some((producer, value, product, own))
    };
    let candidates = elements.operands.iter().filter_map(candidate);
    let (producer, value, product, own) = candidates.max_by_key(|(producer, ..)| *producer)?;
    let joined = elements.after(value, &product, own)?;
    let name = joined.name();
    let mut op = steps.get(producer)?.op.clone();
    match program(&mut op) {
        Some((program, ..)) => *program = joined.program,
        None => *program_of_sums(&mut op)?.0 = joined.program,
    }
    Some((producer, Step { op, operands: joined.operands, results: step.results.clone(), name }))
}

/// Whether a step is a product that elementwise steps can be joined to.
pub(super) fn takes_functions(graph: &Graph, step: &Step) -> bool {
    product(graph, step).or_else(|| sums(graph, step)).is_some()
}

/// The program of a product of floats, how it computes, and how many operands are its own.
fn program(op: &mut Op) -> Option<(&mut Program, Arithmetic, usize)> {
    if let Op::Matmul(product) = op {
        return Some((&mut product.program, product.arithmetic, 2));
    }
    if let Op::Convolution(product) = op {
        return Some((&mut product.program, product.arithmetic, 3));
    }
    if let Op::ConvolutionTranspose(product) = op {
        return Some((&mut product.program, product.arithmetic, 3));
    }
    None
}

/// A product of integers whose program makes a float of each sum, and how many operands are its own.
fn sums(graph: &Graph, step: &Step) -> Option<(Elements, usize)> {
    let mut op = step.op.clone();
    let (program, own) = program_of_sums(&mut op)?;
    let is_float = graph.value(*step.results.first()?).fact.dtype()? == DType::F32;
    let program = std::mem::take(program);
    (is_float && program.results.len() == 1).then_some((elements(graph, step, program, own)?, own))
}

/// A product with what it computes of each sum, and how many operands are its own; `None` for sums that are not in f32.
fn product(graph: &Graph, step: &Step) -> Option<(Elements, usize)> {
    let dtype = graph.fact(*step.operands.first()?)?.dtype().filter(|&dtype| is_float(dtype))?;
    let mut op = step.op.clone();
    let (program, arithmetic, own) = program(&mut op)?;
    let mut program = std::mem::take(program);
    (arithmetic.accumulator_of(dtype) == DType::F32).then_some(())?;
    if program.is_empty() {
        let rounded = program.push(Function::Cast, vec![Argument::Input], dtype);
        program.results.push(rounded);
    }
    Some((elements(graph, step, program, own)?, own))
}

/// The program of a product, behind as many operands as are its own.
fn elements(graph: &Graph, step: &Step, program: Program, own: usize) -> Option<Elements> {
    let &[result] = step.results.as_slice() else { return None };
    let mut operands = step.operands.clone();
    if operands.len() < own {
        operands.resize(own, Operand::Absent);
    }
    Some(Elements::of_product(program, operands, graph.value(result).fact.dims()?.to_vec(), &step.name))
}
