//! Images: pooling, resampling, regions.

mod affine;
mod overlap;
mod pool;
mod resize;
mod sampled;

use crate::steps::Kernel;
use ipuc_formats::ops::{CropAndResize, DecodeImage, MaxRoiPool, MaxUnpool, NonMaxSuppression};

impl Kernel for CropAndResize {}
impl Kernel for DecodeImage {}
impl Kernel for MaxRoiPool {}
impl Kernel for MaxUnpool {}
impl Kernel for NonMaxSuppression {}
