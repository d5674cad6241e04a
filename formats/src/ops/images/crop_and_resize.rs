//! Crops of images in one size: `CropAndResize` of `com.microsoft`, which is TensorFlow's.
//!
//! A crop's corners lie on elements: its first and last rows and columns are read where the region says, the others
//! evenly between. Positions outside of the image have a value of their own.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::images::roi_align::{batch_index, region_extents, region_shape};
use crate::ops::products::accumulate::require_same_type;
use crate::ops::products::convolution::require_float;
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::windows::{for_each_index, listed, value_error};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    integers, loops, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// Crops in one size: `x: [n, c, h, w]`, `regions: [r, 4]` (y1, x1, y2, x2 as shares of the last row and column),
    /// `images: [r]` (i32 or i64) to `[r, c, height, width]`.
    pub struct CropAndResize revision 1 {
        /// How elements are read between others.
        1 since 1 => mode: CropMode,
        /// Value outside of the image.
        2 since 1 => outside: f32,
        /// Rows of the result.
        3 since 1 => height: i64,
        /// Columns of the result.
        4 since 1 => width: i64,
    }
}

/// How [`CropAndResize`] reads between elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum CropMode {
    /// Weighted by the distances of the four around.
    Bilinear,
    /// The nearest, halves away from zero.
    Nearest,
}
impl Keyword for CropMode {}

/// Where place `place` of `count` reads along an axis of `extent` elements; `None` outside.
fn position([start, end]: [f64; 2], place: usize, count: usize, extent: usize) -> Option<f64> {
    // ONNX Runtime rounds each of these to f32.
    let last = extent as f32 - 1.0;
    let (start, end) = (start as f32, end as f32);
    let found = if count > 1 {
        let step = (end - start) * last / (count as f32 - 1.0);
        start * last + place as f32 * step
    } else {
        0.5 * (start + end) * last
    };
    (0.0..=last).contains(&found).then_some(f64::from(found))
}

impl CropAndResize {
    fn check(&self) -> Result<(), TypeError> {
        for (name, value) in [("height", self.height), ("width", self.width)] {
            if !(1..=i64::from(u32::MAX)).contains(&value) {
                return Err(value_error(format!("`{name}`"), value, "at least 1"));
            }
        }
        Ok(())
    }

    /// The element at a position of a plane.
    fn sample(&self, plane: &[f64], width: usize, [y, x]: [f64; 2]) -> f64 {
        let at = |y: f64, x: f64| plane[y as usize * width + x as usize];
        match self.mode {
            CropMode::Nearest => at(y.round(), x.round()),
            CropMode::Bilinear => {
                let between = |from: f64, to: f64, share: f64| from + (to - from) * share;
                let row = |y: f64| between(at(y, x.floor()), at(y, x.ceil()), x - x.floor());
                between(row(y.floor()), row(y.ceil()), y - y.floor())
            }
        }
    }
}

impl Operator for CropAndResize {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        let (found, regions) = tensor_operand(inputs, 1)?;
        let (index_type, images) = tensor_operand(inputs, 2)?;
        require_float(dtype, 0)?;
        require_same_type(1, found, dtype)?;
        if !matches!(index_type, DType::I32 | DType::I64) {
            let expected = "i32 or i64".to_string();
            return Err(TypeError::ElementType { operand: 2, expected, found: index_type });
        }
        self.check()?;
        if let (Some([regions, _]), Some([images])) = (regions.dims(), images.dims()) {
            context.require_equal(regions, images, "numbers of regions and of their images")?;
        }
        let shape = region_shape(x, regions, 4, [self.height, self.width], context)?;
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (x, regions) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let images = integers(inputs, 2)?;
        require_float(x.dtype(), 0)?;
        self.check()?;
        let ([batch, channels, height, width], count) = region_extents(x.shape(), regions.shape(), 4)?;
        if images.len() != count {
            let (left, right) = (count.to_string(), images.len().to_string());
            let subject = "numbers of regions and of their images".to_string();
            return Err(TypeError::Dimension { subject, left, right }.into());
        }
        let (rows, columns) = (self.height as usize, self.width as usize);
        let shape = [count, channels, rows, columns];
        let image: Vec<f64> = scalars(x)?.into_iter().map(Scalar::to_f64).collect();
        let corners: Vec<f64> = scalars(regions)?.into_iter().map(Scalar::to_f64).collect();
        let mut result = listed(x.dtype(), &shape)?;
        for (region, index) in corners.chunks(4).zip(images) {
            let index = batch_index(index, batch)?;
            for_each_index(&shape[1..], |place| {
                let y = position([region[0], region[2]], place[1], rows, height);
                let x = position([region[1], region[3]], place[2], columns, width);
                let plane = (index * channels + place[0]) * height * width;
                let sampled = y.zip(x).map(|(y, x)| self.sample(&image[plane..][..height * width], width, [y, x]));
                result.push(Scalar::Float(sampled.unwrap_or(self.outside.into())));
            });
        }
        Ok(vec![from_scalars(x.dtype(), &shape, &result)?.into()])
    }
}

impl Computes for CropAndResize {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some([regions, channels, height, width]) = facts.result(0) else { return loops::serial(facts) };
        let nest = loops::Loops::new(facts)
            .parallel(regions, [loops::operand(1, 0), loops::operand(2, 0), loops::result(0, 0)])
            .parallel(channels, [loops::operand(0, 1), loops::result(0, 1)])
            .parallel(height, [loops::result(0, 2)])
            .parallel(width, [loops::result(0, 3)]);
        vec![nest.space()]
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, 8)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;
    use crate::tensor::Tensor;

    fn cropped(mode: CropMode, [height, width]: [i64; 2], region: &[f32]) -> Vec<f32> {
        let x = Tensor::from_elements(&[1, 1, 3, 2], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let region = Tensor::from_elements(&[1, 4], region).unwrap();
        let operator = CropAndResize { mode, outside: -1.0, height, width };
        let result = run(&operator, &[x, region, Tensor::from_elements(&[1], &[0i32]).unwrap()]).unwrap();
        result.elements::<f32>().unwrap().to_vec()
    }

    #[test]
    fn corners_lie_on_elements() {
        assert_eq!(cropped(CropMode::Bilinear, [2, 3], &[0.0, 0.0, 1.0, 1.0]), [0.0, 0.5, 1.0, 4.0, 4.5, 5.0]);
        assert_eq!(cropped(CropMode::Bilinear, [1, 1], &[0.0, 0.0, 1.0, 1.0]), [2.5]);
        assert_eq!(cropped(CropMode::Nearest, [1, 1], &[0.0, 0.0, 0.5, 1.0]), [3.0]);
        assert_eq!(cropped(CropMode::Bilinear, [2, 2], &[0.5, 0.0, 1.5, 1.0]), [2.0, 3.0, -1.0, -1.0]);
        // Flipped.
        assert_eq!(cropped(CropMode::Bilinear, [2, 2], &[1.0, 1.0, 0.0, 0.0]), [5.0, 4.0, 1.0, 0.0]);
    }
}
