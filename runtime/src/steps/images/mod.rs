//! Images: pooling, resampling, regions.

mod pool;
mod resize;

use crate::steps::Kernel;
use ipuc_formats::ops::{
    AffineGrid, Col2im, CropAndResize, DecodeImage, GridSample, MaxRoiPool, MaxUnpool, NonMaxSuppression, RoiAlign,
};

impl Kernel for AffineGrid {}
impl Kernel for Col2im {}
impl Kernel for CropAndResize {}
impl Kernel for DecodeImage {}
impl Kernel for GridSample {}
impl Kernel for MaxRoiPool {}
impl Kernel for MaxUnpool {}
impl Kernel for NonMaxSuppression {}
impl Kernel for RoiAlign {}
