//! Moving elements, indexing.

use crate::steps::Kernel;
use ipuc_formats::ops::{
    CenterCropPad, Compress, Concat, DepthToSpace, Expand, EyeLike, Flatten, Gather, GatherElements, GatherNd, NonZero,
    OneHot, Pad, Range, Reshape, ReverseSequence, ScatterElements, ScatterNd, ShapeOf, SizeOf, Slice, SpaceToDepth,
    Split, Squeeze, TensorScatter, Tile, TopK, Transpose, Trilu, Unique, Unsqueeze,
};

impl Kernel for Reshape {}
impl Kernel for Flatten {}
impl Kernel for Squeeze {}
impl Kernel for Unsqueeze {}
impl Kernel for Transpose {}
impl Kernel for Expand {}
impl Kernel for Concat {}
impl Kernel for Split {}
impl Kernel for Slice {}
impl Kernel for Pad {}
impl Kernel for Tile {}
impl Kernel for ShapeOf {}
impl Kernel for SizeOf {}
impl Kernel for Range {}
impl Kernel for DepthToSpace {}
impl Kernel for SpaceToDepth {}
impl Kernel for Gather {}
impl Kernel for GatherElements {}
impl Kernel for GatherNd {}
impl Kernel for ScatterElements {}
impl Kernel for ScatterNd {}
impl Kernel for TensorScatter {}
impl Kernel for OneHot {}
impl Kernel for Trilu {}
impl Kernel for EyeLike {}
impl Kernel for ReverseSequence {}
impl Kernel for CenterCropPad {}
impl Kernel for NonZero {}
impl Kernel for Unique {}
impl Kernel for Compress {}
impl Kernel for TopK {}
