//! Products, convolutions, pools, images.

use crate::steps::Kernel;
use ipuc_formats::ops::{
    AffineGrid, Col2im, Convolution, ConvolutionTranspose, DeformableConvolution, Determinant, Einsum, GridSample,
    IntegerConvolution, IntegerMatmul, Matmul, MaxRoiPool, MaxUnpool, Pool, Resize, RoiAlign,
};

impl Kernel for AffineGrid {}
impl Kernel for Col2im {}
impl Kernel for Convolution {}
impl Kernel for ConvolutionTranspose {}
impl Kernel for DeformableConvolution {}
impl Kernel for Determinant {}
impl Kernel for Einsum {}
impl Kernel for GridSample {}
impl Kernel for IntegerConvolution {}
impl Kernel for IntegerMatmul {}
impl Kernel for Matmul {}
impl Kernel for MaxRoiPool {}
impl Kernel for MaxUnpool {}
impl Kernel for Pool {}
impl Kernel for Resize {}
impl Kernel for RoiAlign {}
