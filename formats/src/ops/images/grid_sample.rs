//! Sampling at computed positions: ONNX `GridSample` (opsets 16, 20, 22), with any number of spatial axes.
//!
//! Positions are rounded to f32 before neighbours are chosen (unless the grid is f64), ties of `nearest` go to the even
//! index. Interpolated integers are truncated towards zero. Beyond a border, cubic samples move their neighbours to it, not
//! themselves, as PyTorch and ONNX Runtime do.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::images::resize_axis::{ResizeMode, cubic};
use crate::ops::products::convolution::require_float;
use crate::ops::scalar::{Scalar, from_scalars, is_number, scalars};
use crate::ops::windows::{listed, value_error, volume};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, tensor, tensor_operand,
};
use crate::tensor::{Tensor, TensorError, element_count, filled};
use crate::value::Value;

attributes! {
    /// Samples `x: [n, c, d..]` at `grid: [n, o.., r]` (r spatial positions, innermost axis first, in -1..1) to
    /// `[n, c, o..]`.
    pub struct GridSample revision 1 {
        /// How neighbours are combined.
        1 since 1 => mode: ResizeMode,
        /// What lies outside.
        2 since 1 => padding: GridPadding,
        /// -1 and 1 are the centres of the outer elements, not their edges.
        3 since 1 => align_corners: bool,
    }
}

/// What [`GridSample`] finds outside its operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum GridPadding {
    /// Zeros.
    Zeros,
    /// The nearest border element.
    Border,
    /// The operand, mirrored at its borders as often as needed.
    Reflection,
}
impl Keyword for GridPadding {}

/// Coefficient of the cubic kernel.
const CUBIC_COEFFICIENT: f64 = -0.75;

/// Largest coordinate that is looked at; wide enough for every extent.
const COORDINATE_LIMIT: f64 = 1e15;

/// One spatial axis of the operand.
struct GridAxis {
    extent: usize,
    /// Where reflection turns.
    least: f64,
    greatest: f64,
}

impl GridAxis {
    fn new(extent: usize, align_corners: bool) -> GridAxis {
        let last = extent as f64 - 1.0;
        let (least, greatest) = if align_corners { (0.0, last) } else { (-0.5, last + 0.5) };
        GridAxis { extent, least, greatest }
    }

    fn reflect(&self, x: f64) -> f64 {
        let range = self.greatest - self.least;
        let (distance, near, inward) = if x < self.least {
            (self.least - x, self.least, 1.0)
        } else if x > self.greatest {
            (x - self.greatest, self.greatest, -1.0)
        } else {
            return x;
        };
        if range <= 0.0 {
            return self.least;
        }
        let turns = (distance / range).trunc();
        let rest = distance - turns * range;
        if turns % 2.0 == 0.0 { near + inward * rest } else { near + inward * (range - rest) }
    }

    /// The operand's element for any index, if there is one.
    fn element(&self, index: i64, padding: GridPadding) -> Option<usize> {
        let last = self.extent as i64 - 1;
        let index = match padding {
            GridPadding::Zeros => index,
            GridPadding::Border => index.clamp(0, last),
            GridPadding::Reflection => (self.reflect(index as f64) as i64).clamp(0, last),
        };
        usize::try_from(index).ok().filter(|&index| index < self.extent)
    }

    /// The coordinate of a normalized position.
    fn coordinate(&self, position: f64, operator: &GridSample, wide: bool) -> f64 {
        let extent = self.extent as f64;
        let x = if operator.align_corners {
            (position + 1.0) / 2.0 * (extent - 1.0)
        } else {
            ((position + 1.0) * extent - 1.0) / 2.0
        };
        let x = if wide { x } else { f64::from(x as f32) };
        let x = if operator.mode == ResizeMode::Nearest { x.round_ties_even() } else { x };
        let moves = operator.mode != ResizeMode::Cubic && (x < self.least || x > self.greatest);
        let x = match operator.padding {
            GridPadding::Border if moves => x.clamp(0.0, (extent - 1.0).max(0.0)),
            GridPadding::Reflection => self.reflect(x),
            GridPadding::Border | GridPadding::Zeros => x,
        };
        x.clamp(-COORDINATE_LIMIT, COORDINATE_LIMIT)
    }

    /// Elements and their weights at a coordinate, and how many; no element is a zero.
    fn taps(&self, x: f64, operator: &GridSample) -> ([(Option<usize>, f64); 4], usize) {
        let base = x.floor();
        let fraction = x - base;
        let base = base as i64;
        let tap = |offset: i64, weight: f64| (self.element(base + offset, operator.padding), weight);
        let none = (None, 0.0);
        match operator.mode {
            ResizeMode::Nearest => ([(self.element(x as i64, operator.padding), 1.0), none, none, none], 1),
            ResizeMode::Linear => ([tap(0, 1.0 - fraction), tap(1, fraction), none, none], 2),
            ResizeMode::Cubic => {
                let weighted = |offset| tap(offset, cubic(offset as f64 - fraction, CUBIC_COEFFICIENT));
                ([weighted(-1), weighted(0), weighted(1), weighted(2)], 4)
            }
        }
    }
}

impl GridSample {
    fn check(&self, x: DType, grid: DType) -> Result<(), TypeError> {
        require_float(grid, 1)?;
        if self.mode != ResizeMode::Nearest && !is_number(x) && x != DType::Bool {
            let expected = "a real number or bool for this mode".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found: x });
        }
        Ok(())
    }

    fn shape(&self, x: &Shape, grid: &Shape, context: &mut InferContext<'_>) -> Result<Shape, TypeError> {
        for (operand, shape) in [x, grid].into_iter().enumerate() {
            if let Some(found) = shape.rank().filter(|&rank| rank < 3) {
                return Err(TypeError::Rank { operand, expected: "at least 3".to_string(), found });
            }
        }
        match (x, grid) {
            (Shape::Unranked, Shape::Unranked) => Ok(Shape::Unranked),
            (Shape::Ranked(x), Shape::Unranked) => {
                let mut dims = x[..2].to_vec();
                dims.extend((2..x.len()).map(|axis| context.fresh(&format!("extent.{}", axis - 2))));
                Ok(Shape::Ranked(dims))
            }
            (Shape::Unranked, Shape::Ranked(grid)) => {
                let mut dims = vec![grid[0].clone(), context.fresh("channels")];
                dims.extend_from_slice(&grid[1..grid.len() - 1]);
                Ok(Shape::Ranked(dims))
            }
            (Shape::Ranked(x), Shape::Ranked(grid)) => {
                if x.len() != grid.len() {
                    return Err(TypeError::Rank { operand: 1, expected: x.len().to_string(), found: grid.len() });
                }
                let batch = context.require_equal(&x[0], &grid[0], "batch of the grid")?;
                let positions = &grid[grid.len() - 1];
                context.require_equal(positions, &Dim::from(x.len() - 2), "positions in the grid")?;
                let mut dims = vec![batch, x[1].clone()];
                dims.extend_from_slice(&grid[1..grid.len() - 1]);
                Ok(Shape::Ranked(dims))
            }
        }
    }

    /// Shape of the result for operands of these shapes.
    ///
    /// # Errors
    /// [`ReferenceError`] where types or shapes do not fit, or elements would have to come from an image without any.
    pub fn result_shape(&self, x: &Tensor, grid: &Tensor) -> Result<Vec<usize>, ReferenceError> {
        self.check(x.dtype(), grid.dtype())?;
        let (&[batch, channels, ref image @ ..], &[grid_batch, ref outputs @ .., positions]) =
            (x.shape(), grid.shape())
        else {
            return Err(TypeError::Rank { operand: 0, expected: "at least 3".to_string(), found: x.rank() }.into());
        };
        if image.is_empty() || image.len() != outputs.len() || positions != image.len() || batch != grid_batch {
            return Err(TypeError::Dimension {
                subject: "grid".to_string(),
                left: format!("{:?}", grid.shape()),
                right: format!("{:?}", x.shape()),
            }
            .into());
        }
        let shape: Vec<usize> = [batch, channels].into_iter().chain(outputs.iter().copied()).collect();
        let count =
            element_count(&shape).ok_or_else(|| TensorError::TooLarge { dtype: x.dtype(), shape: shape.clone() })?;
        if count > 0 && image.contains(&0) {
            return Err(value_error("extents of the image", format!("{image:?}"), "at least 1 each").into());
        }
        Ok(shape)
    }

    /// Elements that a sample is made of.
    pub fn taps_per_sample(&self, axes: usize) -> Option<usize> {
        let along: usize = match self.mode {
            ResizeMode::Nearest => 1,
            ResizeMode::Linear => 2,
            ResizeMode::Cubic => 4,
        };
        along.checked_pow(u32::try_from(axes).ok()?)
    }

    /// Writes what the sample at `position` of a grid is made of into `taps`, of which there are
    /// [`GridSample::taps_per_sample`]: flat places in an image of these extents (none is a zero) and their weights. `wide` grids
    /// are of f64.
    pub fn taps(&self, image: &[usize], position: &[f64], wide: bool, taps: &mut [GridTap]) {
        taps[0] = (Some(0), 1.0);
        let mut outer = 1;
        for (&extent, &position) in image.iter().zip(position.iter().rev()) {
            let axis = GridAxis::new(extent, self.align_corners);
            let (own, count) = axis.taps(axis.coordinate(position, self, wide), self);
            // Each becomes `count`; from the back, so that none is overwritten before it is read.
            for at in (0..outer).rev() {
                let (flat, weight) = taps[at];
                for (inner, &(element, own)) in own[..count].iter().enumerate() {
                    let flat = flat.zip(element).map(|(flat, element)| flat * extent + element);
                    taps[at * count + inner] = (flat, weight * own);
                }
            }
            outer *= count;
        }
    }
}

impl Operator for GridSample {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        let (grid_dtype, grid) = tensor_operand(inputs, 1)?;
        self.check(dtype, grid_dtype)?;
        Ok(vec![Fact::tensor(dtype, self.shape(x, grid, context)?)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (x, grid) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let shape = self.result_shape(x, grid)?;
        if shape.contains(&0) {
            return Ok(vec![x.select(&shape, std::iter::empty())?.into()]);
        }
        let image = &x.shape()[2..];
        let points: Vec<f64> = scalars(grid)?.into_iter().map(Scalar::to_f64).collect();
        let wide = grid.dtype() == DType::F64;
        let too_large = || TensorError::TooLarge { dtype: x.dtype(), shape: shape.clone() };
        let per_sample = self.taps_per_sample(image.len()).ok_or_else(too_large)?;
        let point = |position: &[f64]| {
            let mut taps = filled((None, 0.0), per_sample)?;
            self.taps(image, position, wide, &mut taps);
            Ok(taps)
        };
        let taps: Vec<Vec<GridTap>> = points.chunks(image.len()).map(point).collect::<Result<_, TensorError>>()?;
        Ok(vec![self.sample(x, &shape, &taps)?.into()])
    }
}

impl Computes for GridSample {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let (Some([batch, channels, ..]), Some([_, _, output @ ..])) = (facts.dims(0), facts.result(0)) else {
            return loops::serial(facts);
        };
        let nest = loops::Loops::new(facts)
            .parallel(batch, [loops::operand(0, 0), loops::operand(1, 0), loops::result(0, 0)])
            .parallel(channels, [loops::operand(0, 1), loops::result(0, 1)]);
        let nest = output.iter().enumerate().fold(nest, |nest, (axis, extent)| {
            nest.parallel(extent, [loops::operand(1, axis + 1), loops::result(0, axis + 2)])
        });
        vec![nest.space()]
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let axes = facts.result(0).map_or(0, |dims| dims.len().saturating_sub(2)) as u32;
        let taps = match self.mode {
            ResizeMode::Nearest => 1i64,
            ResizeMode::Linear => 2,
            ResizeMode::Cubic => 4,
        };
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, taps.saturating_pow(axes))])
    }
}

/// A flat place in an image (none is a zero) and its weight.
pub type GridTap = (Option<usize>, f64);

impl GridSample {
    /// The result from the taps of every sample of every image.
    fn sample(&self, x: &Tensor, shape: &[usize], taps: &[Vec<GridTap>]) -> Result<Tensor, ReferenceError> {
        let (volume, samples) = (volume(x.shape()[2..].iter().copied()), volume(shape[2..].iter().copied()));
        let planes = (0..shape[0] * shape[1]).flat_map(|plane| {
            let image = plane / shape[1];
            taps[image * samples..(image + 1) * samples].iter().map(move |taps| (plane * volume, taps))
        });
        if self.mode == ResizeMode::Nearest {
            return Ok(x.select(shape, planes.map(|(start, taps)| Some(start + taps.first()?.0?)))?);
        }
        let elements: Vec<f64> = scalars(x)?.into_iter().map(Scalar::to_f64).collect();
        let sum = |(start, taps): (usize, &Vec<GridTap>)| {
            let terms = taps.iter().map(|&(flat, weight)| flat.map_or(0.0, |flat| elements[start + flat]) * weight);
            Scalar::Float(terms.sum())
        };
        let mut sums = listed(x.dtype(), shape)?;
        sums.extend(planes.map(sum));
        from_scalars(x.dtype(), shape, &sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;

    fn sampled(mode: ResizeMode, padding: GridPadding, align_corners: bool, positions: &[f32]) -> Vec<f32> {
        let x = Tensor::from_elements(&[1, 1, 4], &[10.0f32, 20.0, 30.0, 40.0]).unwrap();
        let grid = Tensor::from_elements(&[1, positions.len(), 1], positions).unwrap();
        let result = run(&GridSample { mode, padding, align_corners }, &[x, grid]).unwrap();
        result.elements::<f32>().unwrap().to_vec()
    }

    #[test]
    fn linear_between_centres() {
        let linear = |padding, positions: &[f32]| sampled(ResizeMode::Linear, padding, false, positions);
        assert_eq!(linear(GridPadding::Zeros, &[0.0, -0.75, -1.0, 1.0]), [25.0, 10.0, 5.0, 20.0]);
        assert_eq!(linear(GridPadding::Border, &[-1.0, -5.0, 1.0]), [10.0, 10.0, 40.0]);
        assert_eq!(linear(GridPadding::Reflection, &[-1.25, 1.5, 5.0]), [10.0, 35.0, 40.0]);
        assert_eq!(sampled(ResizeMode::Linear, GridPadding::Zeros, true, &[-1.0, 1.0, 0.0]), [10.0, 40.0, 25.0]);
    }

    #[test]
    fn nearest_rounds_halves_to_even_and_moves_any_type() {
        assert_eq!(sampled(ResizeMode::Nearest, GridPadding::Zeros, true, &[-2.0 / 3.0, 0.0, 2.0]), [10.0, 30.0, 0.0]);
        let strings = Tensor::from_strings(&[1, 1, 2], vec!["a".into(), "b".into()]).unwrap();
        let grid = Tensor::from_elements(&[1, 3, 1], &[-0.5f32, 0.5, 9.0]).unwrap();
        let nearest = GridSample { mode: ResizeMode::Nearest, padding: GridPadding::Zeros, align_corners: false };
        assert_eq!(run(&nearest, &[strings, grid]).unwrap().strings().unwrap(), ["a", "b", ""]);
    }

    #[test]
    fn the_first_position_is_the_innermost_axis() {
        let x = Tensor::from_elements(&[1, 1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let grid = Tensor::from_elements(&[1, 1, 1, 2], &[1.0f32, -1.0]).unwrap();
        let corner = GridSample { mode: ResizeMode::Linear, padding: GridPadding::Zeros, align_corners: true };
        assert_eq!(run(&corner, &[x.clone(), grid.clone()]).unwrap().elements::<f32>().unwrap(), [2.0]);
        let cubic = GridSample { mode: ResizeMode::Cubic, ..corner };
        assert_eq!(run(&cubic, &[x, grid]).unwrap().elements::<f32>().unwrap(), [2.0]);
    }

    #[test]
    fn strange_positions_do_no_harm() {
        let strange = [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::NAN];
        for padding in [GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection] {
            for mode in [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic] {
                assert_eq!(sampled(mode, padding, false, &strange).len(), 4);
            }
        }
    }
}
