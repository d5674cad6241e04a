//! Rounding of weights: floats become codes with scales and zero points ([`Region`]), or narrower floats ([`narrow`]).
//!
//! A code means `(code - zero point) * scale`, with codes that are integers or narrow floats (`grid`). Each block of inputs of
//! an output has a scale of its own, which is chosen so that the sum of the squared errors is small: `block` tries several
//! shares of the largest magnitude, the least-squares scale of the codes that each gives, and keeps the best. Codes are the nearest to the values under the scale as it is
//! stored, so that an element is off by more than half a step only where its code is the least or the greatest. Where it is
//! known what products read beside the weight, errors are weighed with that, and made up for by the inputs that follow
//! ([`Region::compensated`]); then each code and each scale is looked at again (`descend`).
//!
//! Sums have a fixed order and nothing is random: the same weight gives the same bytes on every machine.
//! Knows neither graphs nor files: elements come from a function.

mod block;
mod compensate;
mod descend;
mod factor;
mod grid;
mod narrow;
mod region;
mod values;

pub use factor::Factor;
pub use narrow::narrow;
pub use region::Region;

use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Plane, PlaneRole};
use ipuc_formats::ops::WeightMatrix;
use thiserror::Error;

/// How a weight becomes codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// Type of the codes: `i8` (-127 to 127), `i4`, `i2`, `u4` and `u2` where there are zero points, or floats: `f8e4m3fn`,
    /// `f8e5m2`, `f4e2m1`.
    pub code: DType,
    /// Type of the scales: `f32`, `f16`, `f8e8m0` (powers of two), or `f8e4m3fn`, which are multiplied by a scale of the output.
    pub scale: DType,
    /// Inputs that share a scale (and a zero point); 0 for all inputs of an output.
    pub block: u64,
    /// The weight as matrices.
    pub matrix: WeightMatrix,
}

/// One of the tensors that rounding a weight to codes gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub enum Part {
    /// The codes, in the shape of the weight.
    Codes,
    /// The scales, in the order of [`Plane`]s.
    Scales,
    /// The zero points, in the same order.
    ZeroPoints,
    /// What the scales of each output are multiplied by.
    OutputScales,
}

/// Why a weight cannot be rounded.
#[derive(Debug, Error, Clone, PartialEq)]
pub enum RoundingError {
    /// A NaN or an infinity.
    #[error("element {element} is {value}, which no code stands for")]
    NotFinite {
        /// Row-major index.
        element: u64,
        /// What it is.
        value: f32,
    },
    /// A magnitude beyond the type.
    #[error("element {element} is {value}, and {to} ends at {greatest}")]
    Range {
        /// Row-major index.
        element: u64,
        /// What it is.
        value: f32,
        /// The type.
        to: DType,
        /// Its greatest number.
        greatest: f32,
    },
    /// A block that needs a greater scale than its type has.
    #[error("a block with magnitudes up to {magnitude} needs a scale beyond those of {scale}")]
    Scale {
        /// The largest magnitude of the block.
        magnitude: f32,
        /// The type of the scales.
        scale: DType,
    },
}

impl Scheme {
    /// Whether blocks have a zero point.
    pub fn has_zero_points(&self) -> bool {
        self.code.is_unsigned_integer()
    }

    /// Whether the scales of blocks are multiplied by one of their output: those of f8e4m3fn span too little by themselves.
    pub fn has_output_scales(&self) -> bool {
        self.scale == DType::F8E4M3FN
    }

    /// Blocks of one output.
    pub fn blocks(&self) -> u64 {
        if self.block == 0 { 1 } else { self.matrix.inputs.div_ceil(self.block) }
    }

    /// Inputs of a block, but for the last one.
    fn block_inputs(&self) -> u64 {
        if self.block == 0 { self.matrix.inputs } else { self.block }
    }

    /// The planes of parameters.
    pub fn planes(&self) -> Vec<Plane> {
        let plane = |role, part| Plane { role, dtype: self.dtype(part), block: self.block };
        let mut planes = Vec::new();
        if self.has_output_scales() {
            planes.push(Plane { role: PlaneRole::Scale, dtype: self.dtype(Part::OutputScales), block: 0 });
        }
        planes.push(plane(PlaneRole::Scale, Part::Scales));
        if self.has_zero_points() {
            planes.push(plane(PlaneRole::ZeroPoint, Part::ZeroPoints));
        }
        planes
    }

    /// Element type of a part.
    pub fn dtype(&self, part: Part) -> DType {
        match part {
            Part::Codes | Part::ZeroPoints => self.code,
            Part::Scales => self.scale,
            Part::OutputScales => DType::F32,
        }
    }
}
