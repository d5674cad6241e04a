//! Images: pooling, resampling, regions.

pub(crate) mod affine_grid;
pub(crate) mod col2im;
pub(crate) mod crop_and_resize;
pub(crate) mod decode_image;
pub(crate) mod grid_sample;
pub(crate) mod max_roi_pool;
pub(crate) mod max_unpool;
pub(crate) mod non_max_suppression;
pub(crate) mod pool;
pub(crate) mod resize;
pub(crate) mod resize_axis;
pub(crate) mod roi_align;

pub use affine_grid::AffineGrid;
pub use col2im::{Col2im, Col2imPlan};
pub use crop_and_resize::{CropAndResize, CropMode};
pub use decode_image::{DecodeImage, Pixels};
pub use grid_sample::{GridPadding, GridSample, GridTap};
pub use max_roi_pool::MaxRoiPool;
pub use max_unpool::MaxUnpool;
pub use non_max_suppression::NonMaxSuppression;
pub use pool::{Pool, PoolFunction};
pub use resize::{Resize, ResizeOperands, ResizePolicy};
pub use resize_axis::{ResizeAxis, ResizeCoordinates, ResizeMode, ResizeNearest, ResizeTaps};
pub use roi_align::{RegionAxis, RoiAlign, RoiFunction};
