//! Make one step of several: what a step computes is changed while it lies in a near cache, and not written and read again.
//!
//! ```text
//! constant @w : f32[8, 16] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @b : f32[16] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! entry "main"("x", "z") -> ("y") = block 0
//! block 0(%x : f32[n, 8], %z : f32[n, 16]) {
//!   %p : f32[n, 16] = matmul %x, @w from "product"
//!   %q : f32[n, 16] = binary function=add %p, @b from "bias"
//!   %r : f32[n, 16] = activation function=relu %q from "relu"
//!   %s : f32[n, 16] = unary function=tanh %z from "tanh"
//!   %y : f32[n, 16] = binary function=mul %r, %s from "gate"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @w : f32[8, 16] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @b : f32[16] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! entry "main"("x", "z") -> ("y") = block 0
//! block 0(%x : f32[n, 8], %z : f32[n, 16]) {
//!   %y : f32[n, 16] = matmul program=["cast x : f32", "tanh $2 : f32", "add %0 $3 : f32", "relu %2 : f32", "mul %3 %1 : f32", "return %4"] %x, @w, %z, @b from "product + tanh + bias + relu + gate"
//!   return %y
//! }
//! ```
//!
//! [`PATTERNS`] is the table; each pattern is a file with an example of its own. Every result is rounded to the type that it had
//! as a step, so that results keep their bits unless the pattern says otherwise (the runtime computes a GELU or SiLU of several steps of
//! one program as a function of its own, to 4e-7 of x). A fused step has the names of all nodes that
//! it came from, joined by ` + `.
//!
//! Establishes: nothing that later passes need. Leaves alone: values that several steps read or that are results of the block,
//! and element types that programs have no loops for. Cost: a few visits a step.

mod attention;
mod batch_normalization;
mod chains;
mod elements;
mod group_normalization;
mod heads;
mod matching;
mod moves;
mod normalization;
mod parts;
mod patches;
mod products;
mod readers;
mod repeated;
mod rotary;
mod scaled_filters;
mod shuffles;
mod views;

use crate::error::PassError;
use crate::ir::{Changes, Graph};
use crate::options::Options;
use ipuc_formats::attribute::BlockIndex;

/// One way to make one step of several.
#[derive(Debug)]
pub struct Pattern {
    /// Its name: that of its file.
    pub name: &'static str,
    /// Applies it wherever it fits in a block; gives the number of steps that are gone or replaced.
    apply: fn(&mut Graph, BlockIndex) -> usize,
}

/// The patterns, in the order in which they are applied: what is computed again goes first, what is written out in small steps
/// is found before they are joined, what makes elementwise steps comes before what joins them, and products take what was joined.
pub const PATTERNS: &[Pattern] = &[
    Pattern { name: "repeated", apply: repeated::apply },
    Pattern { name: "rotary", apply: rotary::apply },
    Pattern { name: "attention", apply: attention::apply },
    Pattern { name: "parts", apply: parts::apply },
    Pattern { name: "heads", apply: heads::apply },
    Pattern { name: "normalization", apply: normalization::apply },
    Pattern { name: "group_normalization", apply: group_normalization::apply },
    Pattern { name: "scaled_filters", apply: scaled_filters::apply },
    Pattern { name: "batch_normalization", apply: batch_normalization::apply },
    Pattern { name: "shuffles", apply: shuffles::apply },
    Pattern { name: "patches", apply: patches::apply },
    Pattern { name: "views", apply: views::apply },
    Pattern { name: "chains", apply: chains::apply },
    Pattern { name: "moves", apply: moves::apply },
    Pattern { name: "products", apply: products::apply },
];

/// Apply all patterns, unless [`Options::unfused`]; see the module.
///
/// # Errors
/// None today; the signature is that of every pass.
pub fn fuse(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    let mut changes = 0;
    if options.unfused {
        return Ok(Changes::default());
    }
    for index in graph.reachable_blocks() {
        for pattern in PATTERNS {
            changes += (pattern.apply)(graph, index);
        }
    }
    Ok(Changes::of_steps(changes))
}
