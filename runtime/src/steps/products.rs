//! Products, convolutions, pools, images.

use crate::steps::Kernel;
use ipuc_formats::ops::{Convolution, Matmul};

impl Kernel for Matmul {}
impl Kernel for Convolution {}
