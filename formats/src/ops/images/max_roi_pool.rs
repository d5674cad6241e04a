//! Maxima over regions: ONNX `MaxRoiPool` (opsets 1, 22).
//!
//! The page does not say how bins are cut; as implementations do (after Fast R-CNN), corners are rounded to elements,
//! both ends belong to the region, bins round outwards, and an empty bin is zero.

use crate::attributes;
use crate::dim::Dim;
use crate::fact::Fact;
use crate::ops::images::roi_align::{batch_index, region_extents, region_shape};
use crate::ops::products::accumulate::require_same_type;
use crate::ops::products::convolution::require_float;
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::windows::{for_each_index, listed, value_error};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, tensor, tensor_operand,
};
use crate::value::Value;
use std::ops::Range;

attributes! {
    /// Largest element of each bin: `x: [n, c, h, w]`, `rois: [r, 5]` (image, x1, y1, x2, y2) to `[r, c, oh, ow]`.
    pub struct MaxRoiPool revision 1 {
        /// Rows of the result.
        1 since 1 => output_height: i64,
        /// Columns of the result.
        2 since 1 => output_width: i64,
        /// From coordinates of regions to those of the image.
        3 since 1 => spatial_scale: f32,
    }
}

impl MaxRoiPool {
    fn check(&self) -> Result<(), TypeError> {
        for (name, value) in [("output_height", self.output_height), ("output_width", self.output_width)] {
            if !(1..=i64::from(u32::MAX)).contains(&value) {
                return Err(value_error(format!("`{name}`"), value, "at least 1"));
            }
        }
        Ok(())
    }

    /// Elements of bin `bin` along an axis.
    fn bin(&self, start: f64, end: f64, bin: usize, bins: usize, extent: usize) -> Range<usize> {
        let scale = f64::from(self.spatial_scale);
        let (start, end) = ((start * scale).round(), (end * scale).round());
        let width = (end - start + 1.0).max(1.0) / bins as f64;
        let clamped = |position: f64| (position + start).clamp(0.0, extent as f64) as usize;
        clamped((bin as f64 * width).floor())..clamped(((bin + 1) as f64 * width).ceil())
    }
}

impl Operator for MaxRoiPool {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        let (found, rois) = tensor_operand(inputs, 1)?;
        require_float(dtype, 0)?;
        require_same_type(1, found, dtype)?;
        self.check()?;
        let shape = region_shape(x, rois, 5, [self.output_height, self.output_width], context)?;
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (x, rois) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        require_float(x.dtype(), 0)?;
        self.check()?;
        let ([batch, channels, height, width], regions) = region_extents(x.shape(), rois.shape(), 5)?;
        let (rows, columns) = (self.output_height as usize, self.output_width as usize);
        let shape = [regions, channels, rows, columns];
        let image: Vec<f64> = scalars(x)?.into_iter().map(Scalar::to_f64).collect();
        let corners: Vec<f64> = scalars(rois)?.into_iter().map(Scalar::to_f64).collect();
        let mut result = listed(x.dtype(), &shape)?;
        for region in corners.chunks(5) {
            let index = batch_index(region[0] as i64, batch)?;
            for_each_index(&shape[1..], |position| {
                let plane = (index * channels + position[0]) * height * width;
                let mut largest: Option<f64> = None;
                for row in self.bin(region[2], region[4], position[1], rows, height) {
                    for column in self.bin(region[1], region[3], position[2], columns, width) {
                        let element = image[plane + row * width + column];
                        largest = Some(largest.map_or(element, |found| found.max(element)));
                    }
                }
                result.push(Scalar::Float(largest.unwrap_or(0.0)));
            });
        }
        Ok(vec![from_scalars(x.dtype(), &shape, &result)?.into()])
    }
}

impl Computes for MaxRoiPool {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some([regions, channels, height, width]) = facts.result(0) else { return loops::serial(facts) };
        let nest = loops::Loops::new(facts)
            .parallel(regions, [loops::operand(1, 0)].into_iter().chain([loops::result(0, 0)]))
            .parallel(channels, [loops::operand(0, 1), loops::result(0, 1)])
            .parallel(height, [loops::result(0, 2)])
            .parallel(width, [loops::result(0, 3)]);
        vec![nest.space()]
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        // How many elements a bin has depends on the regions.
        each(&(facts.result_elements(0) * facts.fresh("samples")), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;
    use crate::tensor::Tensor;

    #[test]
    fn bins_round_outwards_and_empty_ones_are_zero() {
        let x = Tensor::from_elements(&[1, 1, 2, 5], &[-1.0f32, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0, -9.0, -10.0]);
        let x = x.unwrap();
        let pool = MaxRoiPool { output_height: 1, output_width: 2, spatial_scale: 0.5 };
        let rois = Tensor::from_elements(&[2, 5], &[0.0f32, 2.0, 2.0, 6.0, 2.0, 0.0, 20.0, 0.0, 22.0, 0.0]).unwrap();
        // Columns 1 to 3 in bins of 1.5: 1..3 and 2..4, in row 1.
        let result = run(&pool, &[x.clone(), rois]).unwrap();
        assert_eq!(result.elements::<f32>().unwrap(), [-7.0, -8.0, 0.0, 0.0]);
        let wrong = Tensor::from_elements(&[1, 5], &[3.0f32, 0.0, 0.0, 1.0, 1.0]).unwrap();
        assert_eq!(run(&pool, &[x, wrong]).unwrap_err().to_string(), "index of an image is 3, outside 0..1");
    }
}
