//! Products, convolutions, pools, images: operands to the slices that [`crate::kernels`] computes on.
//!
//! Floats of 16 bits are widened to f32, computed, and rounded once, as the operators say. What has no fast path here (other
//! arithmetic than ONNX's own, f64 convolutions, regions) runs its reference.

mod convolution;
mod epilogue;
mod floats;
mod general;
mod matmul;
mod panels;
mod pool;
mod resize;
mod transposed;

#[cfg(test)]
mod tests;

use crate::steps::Kernel;
use ipuc_formats::ops::{
    AffineGrid, Col2im, DeformableConvolution, Determinant, Einsum, GridSample, IntegerConvolution, IntegerMatmul,
    MaxRoiPool, MaxUnpool, RoiAlign,
};

impl Kernel for AffineGrid {}
impl Kernel for Col2im {}
impl Kernel for DeformableConvolution {}
impl Kernel for Determinant {}
impl Kernel for Einsum {}
impl Kernel for GridSample {}
impl Kernel for IntegerConvolution {}
impl Kernel for IntegerMatmul {}
impl Kernel for MaxRoiPool {}
impl Kernel for MaxUnpool {}
impl Kernel for RoiAlign {}
