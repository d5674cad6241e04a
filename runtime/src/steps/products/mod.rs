//! Products and convolutions: operands to the slices that [`ipuc_kernels`] computes on.
//!
//! Floats of 16 bits are widened to f32, computed, and rounded once, as the operators say. What has no fast path here (other
//! arithmetic than ONNX's own, f64 convolutions) runs its reference.

mod blocked_convolution;
mod channels_last;
pub(super) mod convolution;
mod deformable;
mod einsum;
mod exact;
mod expert_matmul;
pub(super) mod floats;
mod fused;
mod general;
mod integer;
mod integer_convolution;
mod integer_operands;
mod integer_tasks;
mod matmul;
pub(super) mod panels;
mod requantized;
mod transposed;

#[cfg(test)]
pub(super) mod tests;

use crate::steps::Kernel;
use ipuc_formats::ops::{Determinant, Inverse};

impl Kernel for Determinant {}
impl Kernel for Inverse {}
