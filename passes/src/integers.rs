//! Compute quantized graphs in integers.
//!
//! ```text
//! constant @xs : f32[] = f32[]:0000003f
//! constant @codes : i8[64, 8] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @ws : f32[] = f32[]:0000803e
//! constant @w : f32[64, 8] = dequantize axis=1 block_size=0 @codes, @ws
//! constant @ys : f32[] = f32[]:0000803f
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : i8[2, 64]) {
//!   %a : f32[2, 64] = dequantize axis=1 block_size=0 %x, @xs
//!   %b : f32[2, 8] = matmul %a, @w
//!   %c : f32[2, 8] = activation function=relu %b
//!   %y : i8[2, 8] = quantize to=i8 axis=1 block_size=0 %c, @ys
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @xs : f32[] = f32[]:0000003f
//! constant @codes : i8[64, 8] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @ws : f32[] = f32[]:0000803e
//! constant @w : f32[64, 8] = dequantize axis=1 block_size=0 @codes, @ws
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : i8[2, 64]) {
//!   %a : f32[2, 64] = dequantize axis=1 block_size=0 %x, @xs
//!   %b : f32[2, 8] = matmul %a, @w
//!   %c : f32[2, 8] = activation function=relu %b
//!   %y : i8[2, 8] = integer_matmul program=["cast x : f32", "mul %0 f32(0.125) : f32", "clamp %1 f32(0.0) f32(0x7f800000) : f32", "round %2 : i8", "return %3"] %x, @codes, _, _
//!   return %y
//! }
//! ```
//!
//! and nothing reads the steps in floats any more.
//!
//! Where both operands of a product are dequantized codes, the sum of the products of codes is exact, and a program
//! scales it: once, by the product of the scales over that of the result, where the result is quantized; to f32 where
//! something else reads it. What lies between sums of integers and their scaling (a bias, bounds) becomes a part of
//! the program too. Functions of dequantized codes whose result is quantized again become one `map` with the same
//! roundings; what only moves codes, or takes the largest, moves the codes themselves.
//!
//! Codes have 8 or 16 bits, those of weights 2 or 4 as well. Weights of 8 bits with activations of 8 bits, and those of 16,
//! are read as codes, and the program has their scales. Others of at most 8 bits are read as what decodes them: they are
//! stored with their scales, and each block of inputs that shares one is summed exactly, scaled, and added. The scale of
//! activations comes last. It may be a value, and their zero point too: the program reads it.
//!
//! Where activations are to be codes of 8 bits whose scale is the same in every run ([`Activations::I8Static`]), what products
//! with weights of 8 bits read is quantized first, with the scale and zero point that lose least of what calibration has seen.
//!
//! Products and their programs round once where floats round each partial sum, so that a result differs from theirs by
//! at most one code, where they lie within a few float roundings of the middle between two. (Codes of 16 bits are finer than
//! what floats themselves know.) `map` and moves have the bits of the floats. A scale that a run computes may be as large or as
//! small that decoded codes are infinite or zero where the scaled sum of codes is not.
//! Establishes: no product of an entry or body has codes, dequantized with scales of tensors, outputs and blocks of inputs, on
//! both sides, unless activations are kept as floats ([`Activations`]). Leaves alone: convolutions in groups of several
//! channels and less than 8 outputs, those with scales of blocks, and those of channels with filters of their own unless all
//! codes have 8 bits; scales of activations that are no single element; weights that something beside products reads, or whose blocks no
//! panel holds; results whose scale is a value, which are quantized by a step of their own.
//! Cost: one visit a step, and the parameters of those that change.

mod moves;
mod parameters;
mod pointwise;
mod products;
mod readers;
mod static_codes;
mod sums;

use crate::error::PassError;
use crate::ir::{Changes, Graph, Operand};
use crate::options::{Activations, Options};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::sums_exactly;
use ipuc_formats::ops::{self, Arithmetic, Op};
use readers::Readers;

/// Compute quantized graphs in integers; see the module.
///
/// # Errors
/// [`PassError::Constant`] where scales or zero points cannot be read.
pub fn integers(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    let mut changes = 0;
    if options.activations == Activations::I8Static && options.calibration.spreads.is_empty() && !options.sizes_only {
        return Err(PassError::Uncalibrated { option: "activations of 8 bits with one scale" });
    }
    for index in graph.reachable_blocks() {
        if options.activations == Activations::I8Static {
            changes += static_codes::round(graph, index, &options.calibration)?;
        }
        if options.activations != Activations::Keep {
            changes += replaced(graph, index)?;
        }
        changes += sums::absorbed(graph, index)?;
        changes += arithmetic(graph, index, options.activations);
    }
    Ok(Changes::of_steps(changes))
}

/// Replace steps over dequantized codes.
fn replaced(graph: &mut Graph, index: BlockIndex) -> Result<usize, PassError> {
    let readers = Readers::new(graph, index);
    let mut steps = std::mem::take(&mut graph.block_mut(index).steps);
    let mut changes = 0;
    // From the back: a product whose result is quantized becomes one step with it.
    for place in (0..steps.len()).rev() {
        let made = match products::quantized(graph, &readers, &steps, place)? {
            Some(step) => Some(step),
            None => match moves::moved(graph, &readers, &steps, place)? {
                Some(step) => Some(step),
                None => pointwise::mapped(graph, &readers, &steps, place)?,
            },
        };
        if let Some(step) = made {
            steps[place] = step;
            changes += 1;
        }
    }
    // Those that are left give floats.
    let mut readers = {
        graph.block_mut(index).steps = steps;
        Readers::new(graph, index)
    };
    let mut steps = std::mem::take(&mut graph.block_mut(index).steps);
    for place in (0..steps.len()).rev() {
        if !readers.reads_any(&steps[place].results) {
            readers.forget(&steps[place]);
            continue;
        }
        if let Some(step) = products::float(graph, &readers, &steps, place)? {
            readers.forget(&steps[place]);
            readers.remember(&step);
            steps[place] = step;
            changes += 1;
        }
    }
    graph.block_mut(index).steps = steps;
    Ok(changes)
}

fn is_dynamic(activation: ops::Activations) -> bool {
    match activation {
        ops::Activations::Rounded(_) => false,
        ops::Activations::Dynamic { .. } => true,
    }
}

/// Round the activations of products with codes as the options say.
fn arithmetic(graph: &mut Graph, index: BlockIndex, activations: Activations) -> usize {
    let activation = match activations {
        Activations::Model => return 0,
        Activations::Keep => Arithmetic::default().activation,
        Activations::I8 | Activations::I8Static => ops::Activations::Dynamic { dtype: DType::I8, block: 0 },
    };
    let mut steps = std::mem::take(&mut graph.block_mut(index).steps);
    let mut changes = 0;
    for step in &mut steps {
        let weight = match step.operands.get(1) {
            Some(&Operand::Constant(id)) => graph.quantized(id),
            Some(Operand::Value(_) | Operand::Absent) | None => None,
        };
        let whole_codes = weight.is_some_and(|weight| {
            sums_exactly(graph.constant(weight.codes).dtype)
                && weight.zero_point.is_none_or(|zero_point| graph.constant(zero_point).dtype.is_integer())
        });
        let own = match &mut step.op {
            Op::Matmul(product) if !product.transpose_a => &mut product.arithmetic,
            Op::ExpertMatmul(product) => &mut product.arithmetic,
            _ => continue,
        };
        if whole_codes && is_dynamic(own.activation) != is_dynamic(activation) {
            own.activation = activation;
            changes += 1;
        }
    }
    graph.block_mut(index).steps = steps;
    changes
}
