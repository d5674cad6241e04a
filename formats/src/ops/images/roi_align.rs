//! Interpolated pooling of regions: ONNX `RoiAlign` (opsets 10, 16, 22).
//!
//! Function `max` takes the largest *weighted neighbour*, not the largest interpolated sample: so the reference
//! implementation of ONNX and ONNX Runtime compute it.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::products::accumulate::require_same_type;
use crate::ops::products::convolution::require_float;
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::windows::{for_each_index, listed, value_error};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    integers, loops, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Pools regions: `x: [n, c, h, w]`, `rois: [r, 4]` (x1, y1, x2, y2), `batch_indices: [r]` (i64) to `[r, c, oh, ow]`.
    pub struct RoiAlign revision 1 {
        /// How samples are combined.
        1 since 1 => function: RoiFunction,
        /// Coordinates are shifted by half an element; regions may be smaller than one.
        2 since 1 => half_pixel: bool,
        /// Rows of the result.
        3 since 1 => output_height: i64,
        /// Columns of the result.
        4 since 1 => output_width: i64,
        /// Samples a bin along each axis; as many as the bin is wide where 0.
        5 since 1 => sampling_ratio: i64,
        /// From coordinates of regions to those of the image.
        6 since 1 => spatial_scale: f32,
    }
}

/// How [`RoiAlign`] combines samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum RoiFunction {
    /// Their mean.
    Average,
    /// The largest weighted neighbour.
    Max,
}
impl Keyword for RoiFunction {}

/// Most samples a bin along an axis: a region of a million elements, or one that is broken.
const MAXIMUM_SAMPLES: f64 = (1u32 << 20) as f64;

/// A region along one axis.
pub struct RegionAxis {
    start: f64,
    bin: f64,
    /// Samples of a bin.
    pub samples: usize,
}

impl RegionAxis {
    /// The two neighbours of a sample of a bin along an axis of this extent, and the weight of the upper; `None` for a sample
    /// outside, which is zero.
    pub fn neighbours(&self, bin: usize, sample: usize, extent: usize) -> Option<(usize, usize, f64)> {
        let offset = (sample as f64 + 0.5) * self.bin / self.samples as f64;
        neighbours(self.start + bin as f64 * self.bin + offset, extent)
    }
}

/// The two neighbours of a coordinate along an axis and the weight of the upper.
fn neighbours(coordinate: f64, extent: usize) -> Option<(usize, usize, f64)> {
    if !(-1.0..=extent as f64).contains(&coordinate) || extent == 0 {
        return None;
    }
    let coordinate = coordinate.max(0.0);
    let low = coordinate as usize;
    if low >= extent - 1 {
        return Some((extent - 1, extent - 1, 0.0));
    }
    Some((low, low + 1, coordinate - low as f64))
}

impl RoiAlign {
    fn span(&self, start: f64, end: f64, bins: usize) -> Result<RegionAxis, ReferenceError> {
        let scale = f64::from(self.spatial_scale);
        let offset = if self.half_pixel { 0.5 } else { 0.0 };
        let (start, end) = (start * scale - offset, end * scale - offset);
        let length = if self.half_pixel { end - start } else { (end - start).max(1.0) };
        let bin = length / bins as f64;
        let samples = if self.sampling_ratio > 0 { self.sampling_ratio as f64 } else { bin.ceil().max(0.0) };
        if !(0.0..=MAXIMUM_SAMPLES).contains(&samples) {
            return Err(value_error("samples of a bin", samples, format!("at most {MAXIMUM_SAMPLES}")).into());
        }
        Ok(RegionAxis { start, bin, samples: samples as usize })
    }

    fn check(&self) -> Result<(), TypeError> {
        for (name, value, least) in [
            ("output_height", self.output_height, 1),
            ("output_width", self.output_width, 1),
            ("sampling_ratio", self.sampling_ratio, 0),
        ] {
            if !(least..=i64::from(u32::MAX)).contains(&value) {
                return Err(value_error(format!("`{name}`"), value, format!("at least {least}")));
            }
        }
        Ok(())
    }

    /// Shape of the result for an image, corners of regions and the indices of their images.
    ///
    /// # Errors
    /// [`ReferenceError`] where types, shapes or attributes do not fit.
    pub fn result_shape(&self, x: &Tensor, rois: &Tensor, indices: &[i64]) -> Result<[usize; 4], ReferenceError> {
        require_float(x.dtype(), 0)?;
        self.check()?;
        let ([_, channels, _, _], regions) = region_extents(x.shape(), rois.shape(), 4)?;
        if indices.len() != regions {
            return Err(value_error("number of image indices", indices.len(), regions.to_string()).into());
        }
        Ok([regions, channels, self.output_height as usize, self.output_width as usize])
    }

    /// A region by its corners (x1, y1, x2, y2), along rows and columns.
    ///
    /// # Errors
    /// [`ReferenceError`] where a bin would have too many samples.
    pub fn region(&self, corners: &[f64; 4]) -> Result<[RegionAxis; 2], ReferenceError> {
        let [left, top, right, bottom] = *corners;
        let (height, width) = (self.output_height as usize, self.output_width as usize);
        Ok([self.span(top, bottom, height)?, self.span(left, right, width)?])
    }

    /// One element of the result.
    fn pool(&self, plane: &[f64], extents: [usize; 2], axes: &[RegionAxis; 2], bin: [usize; 2]) -> f64 {
        let (mut sum, mut largest) = (0.0, f64::NEG_INFINITY);
        let samples = axes[0].samples * axes[1].samples;
        for row in 0..axes[0].samples {
            let rows = axes[0].neighbours(bin[0], row, extents[0]);
            for column in 0..axes[1].samples {
                let columns = axes[1].neighbours(bin[1], column, extents[1]);
                let terms = match rows.zip(columns) {
                    None => [0.0; 4],
                    Some(((top, bottom, down), (left, right, across))) => {
                        let element = |row: usize, column: usize| plane[row * extents[1] + column];
                        [
                            element(top, left) * ((1.0 - down) * (1.0 - across)),
                            element(top, right) * ((1.0 - down) * across),
                            element(bottom, left) * (down * (1.0 - across)),
                            element(bottom, right) * (down * across),
                        ]
                    }
                };
                for term in terms {
                    sum += term;
                    largest = if largest < term { term } else { largest };
                }
            }
        }
        match self.function {
            RoiFunction::Average => sum / samples.max(1) as f64,
            RoiFunction::Max if samples == 0 => 0.0,
            RoiFunction::Max => largest,
        }
    }
}

/// Shape of pooled regions: `[regions, channels, height, width]`, from an image and rows of coordinates.
pub(crate) fn region_shape(
    x: &Shape,
    rois: &Shape,
    columns: i64,
    output: [i64; 2],
    context: &mut InferContext<'_>,
) -> Result<Shape, TypeError> {
    let channels = match x.dims() {
        Some([_, channels, _, _]) => channels.clone(),
        Some(dims) => return Err(TypeError::Rank { operand: 0, expected: "4".to_string(), found: dims.len() }),
        None => context.fresh("channels"),
    };
    let regions = match rois.dims() {
        Some([regions, row]) => {
            context.require_equal(row, &Dim::known(columns), "coordinates of a region")?;
            regions.clone()
        }
        Some(dims) => return Err(TypeError::Rank { operand: 1, expected: "2".to_string(), found: dims.len() }),
        None => context.fresh("regions"),
    };
    Ok(Shape::Ranked(vec![regions, channels, Dim::known(output[0]), Dim::known(output[1])]))
}

/// Check known shapes of an image and of rows of coordinates; gives the image's extents and the number of regions.
pub(crate) fn region_extents(x: &[usize], rois: &[usize], columns: usize) -> Result<([usize; 4], usize), TypeError> {
    match (x, rois) {
        (&[batch, channels, height, width], &[regions, row]) if row == columns => {
            Ok(([batch, channels, height, width], regions))
        }
        (_, _) => Err(TypeError::Dimension {
            subject: "regions".to_string(),
            left: format!("{rois:?}"),
            right: format!("image {x:?}"),
        }),
    }
}

/// An index of an image in the batch.
pub(crate) fn batch_index(index: i64, batch: usize) -> Result<usize, ReferenceError> {
    usize::try_from(index).ok().filter(|&index| index < batch).ok_or_else(|| ReferenceError::OutOfRange {
        subject: "index of an image".to_string(),
        found: index,
        range: format!("0..{batch}"),
    })
}

impl Operator for RoiAlign {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        let (found, rois) = tensor_operand(inputs, 1)?;
        let (indices_dtype, indices) = tensor_operand(inputs, 2)?;
        require_float(dtype, 0)?;
        require_same_type(1, found, dtype)?;
        if indices_dtype != DType::I64 {
            return Err(TypeError::ElementType { operand: 2, expected: "i64".to_string(), found: indices_dtype });
        }
        self.check()?;
        let shape = region_shape(x, rois, 4, [self.output_height, self.output_width], context)?;
        match (indices.dims(), rois.dims()) {
            (Some([count]), Some([regions, _])) => {
                context.require_equal(regions, count, "number of image indices")?;
            }
            (Some([_]) | None, _) => {}
            (Some(dims), _) => {
                return Err(TypeError::Rank { operand: 2, expected: "1".to_string(), found: dims.len() });
            }
        }
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (x, rois) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let indices = integers(inputs, 2)?;
        let shape = self.result_shape(x, rois, &indices)?;
        let &[batch, channels, height, width] = x.shape() else { return Ok(Vec::new()) };
        let image: Vec<f64> = scalars(x)?.into_iter().map(Scalar::to_f64).collect();
        let corners: Vec<f64> = scalars(rois)?.into_iter().map(Scalar::to_f64).collect();
        let mut result = listed(x.dtype(), &shape)?;
        for (corners, &index) in corners.as_chunks::<4>().0.iter().zip(&indices) {
            let index = batch_index(index, batch)?;
            let axes = self.region(corners)?;
            for_each_index(&shape[1..], |position| {
                let plane = (index * channels + position[0]) * height * width;
                let plane = &image[plane..plane + height * width];
                let bin = [position[1], position[2]];
                result.push(Scalar::Float(self.pool(plane, [height, width], &axes, bin)));
            });
        }
        Ok(vec![from_scalars(x.dtype(), &shape, &result)?.into()])
    }
}

impl Computes for RoiAlign {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some([regions, channels, height, width]) = facts.result(0) else { return loops::serial(facts) };
        let nest = loops::Loops::new(facts)
            .parallel(regions, [loops::operand(1, 0), loops::operand(2, 0)].into_iter().chain([loops::result(0, 0)]))
            .parallel(channels, [loops::operand(0, 1), loops::result(0, 1)])
            .parallel(height, [loops::result(0, 2)])
            .parallel(width, [loops::result(0, 3)]);
        vec![nest.space()]
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        // Where it is not stated, how many samples a bin has depends on the regions.
        let samples = match self.sampling_ratio {
            1.. => Dim::known(self.sampling_ratio) * self.sampling_ratio,
            _ => facts.fresh("samples"),
        };
        each(&(facts.result_elements(0) * samples), &[(VectorClass::Arithmetic, 8)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;

    fn plain() -> RoiAlign {
        RoiAlign {
            function: RoiFunction::Average,
            half_pixel: false,
            output_height: 1,
            output_width: 2,
            sampling_ratio: 1,
            spatial_scale: 1.0,
        }
    }

    fn pooled(operator: &RoiAlign, region: [f32; 4], index: i64) -> Result<Vec<f32>, ReferenceError> {
        let x = Tensor::from_elements(&[1, 1, 2, 4], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
        let rois = Tensor::from_elements(&[1, 4], &region).unwrap();
        Ok(run(operator, &[x, rois, Tensor::vector_i64(&[index])])?.elements::<f32>().unwrap().to_vec())
    }

    #[test]
    fn samples_lie_in_the_middle_of_bins() {
        assert_eq!(pooled(&plain(), [0.0, 0.0, 2.0, 1.0], 0).unwrap(), [2.5, 3.5]);
        let shifted = RoiAlign { half_pixel: true, ..plain() };
        assert_eq!(pooled(&shifted, [0.5, 0.5, 2.5, 1.5], 0).unwrap(), [2.5, 3.5]);
        let scaled = RoiAlign { spatial_scale: 0.5, ..plain() };
        assert_eq!(pooled(&scaled, [0.0, 0.0, 4.0, 2.0], 0).unwrap(), [2.5, 3.5]);
        let adaptive = RoiAlign { sampling_ratio: 0, ..plain() };
        assert_eq!(pooled(&adaptive, [0.0, 0.0, 2.0, 1.0], 0).unwrap(), [2.5, 3.5]);
    }

    #[test]
    fn the_maximum_is_of_weighted_neighbours() {
        let largest = RoiAlign { function: RoiFunction::Max, ..plain() };
        assert_eq!(pooled(&largest, [0.0, 0.0, 2.0, 1.0], 0).unwrap(), [1.25, 1.5]);
    }

    #[test]
    fn broken_regions_are_refused_or_empty() {
        assert_eq!(
            pooled(&plain(), [0.0, 0.0, 1.0, 1.0], 1).unwrap_err().to_string(),
            "index of an image is 1, outside 0..1"
        );
        assert_eq!(pooled(&plain(), [50.0, 50.0, 60.0, 60.0], 0).unwrap(), [0.0, 0.0]);
        let adaptive = RoiAlign { sampling_ratio: 0, half_pixel: true, ..plain() };
        assert_eq!(
            pooled(&adaptive, [0.0, 0.0, 1e30, 1.0], 0).unwrap_err().to_string(),
            "samples of a bin is 500000007523733100000000000000, expected at most 1048576"
        );
        assert_eq!(pooled(&adaptive, [2.0, 1.0, 1.0, 0.0], 0).unwrap(), [0.0, 0.0]);
    }
}
