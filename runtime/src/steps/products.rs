//! Products, convolutions, pools, images.

use crate::steps::Kernel;
use ipuc_formats::ops::{Convolution, ConvolutionTranspose, Matmul, Pool};

impl Kernel for Matmul {}
impl Kernel for Convolution {}
impl Kernel for ConvolutionTranspose {}
impl Kernel for Pool {}
