//! Resampling to other extents: ONNX `Resize` (opsets 10 to 19) and `Upsample` (7, 9).
//!
//! Interpolation is separable: one axis after another. Where scales are given, an extent is the input's times the
//! scale, rounded down: exactly for scales such as 2, 1/4 or 1.5, else in f32 as implementations do. Numbers are
//! computed in f64; integers are truncated towards zero, with `antialias` rounded. Leaves alone: `roi` outside
//! `tf_crop_and_resize`, as the operator page says.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Contents, Fact, Shape};
use crate::ops::images::resize_axis::{
    ResizeAxis, ResizeCoordinates, ResizeMode, ResizeNearest, ResizeRule, ResizeTaps,
};
use crate::ops::scalar::{Scalar, from_scalars, is_number, scalars};
use crate::ops::windows::{listed, value_error, volume};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, normalize_axis, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::tensor::room;
use crate::value::Value;

attributes! {
    /// Resamples `x: [d..]` to `[o..]`, with `roi: [2 * axes]` (starts, then ends), `scales: [axes]` (f32) or
    /// `sizes: [axes]` (i64); of the last two one is given, the other absent or empty.
    pub struct Resize revision 1 {
        /// How elements are combined.
        1 since 1 => mode: ResizeMode,
        /// How positions map.
        2 since 1 => coordinates: ResizeCoordinates,
        /// Which element `nearest` takes.
        3 since 1 => nearest: ResizeNearest,
        /// Coefficient of the cubic kernel.
        4 since 1 => cubic_coefficient: f32,
        /// Positions outside count nothing, and the others share their weight.
        5 since 1 => exclude_outside: bool,
        /// Value of positions outside the operand in `tf_crop_and_resize`.
        6 since 1 => extrapolation: f32,
        /// Filters widen where an axis shrinks.
        7 since 1 => antialias: bool,
        /// Axes that the operands tell about; all where empty.
        8 since 1 => axes: Vec<i64>,
        /// How sizes are read.
        9 since 1 => policy: ResizePolicy,
    }
}

/// How the sizes of [`Resize`] are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ResizePolicy {
    /// As they are.
    Stretch,
    /// As bounds: one scale for all axes, so that none is larger.
    NotLarger,
    /// As bounds: one scale for all axes, so that none is smaller.
    NotSmaller,
}
impl Keyword for ResizePolicy {}

const ROI: usize = 1;
const SCALES: usize = 2;
const SIZES: usize = 3;

/// A scale of up to this many odd units is multiplied exactly; extents up to 2^14 are so in f32 too.
const MAXIMUM_EXACT_UNITS: i64 = 1 << 10;

/// `floor(input * scale)`, where it has an expression.
fn scaled_extent(input: &Dim, scale: f32) -> Option<Dim> {
    let bits = scale.to_bits();
    let exponent = (bits >> 23) as i32 - 127 - 23;
    let units = i64::from(bits & 0x7f_ffff | 0x80_0000);
    let zeros = units.trailing_zeros();
    let (units, exponent) = (units >> zeros, exponent + zeros as i32);
    if units <= MAXIMUM_EXACT_UNITS && (-20..=20).contains(&exponent) {
        let product = input * units;
        return Some(match exponent {
            0.. => product * (1i64 << exponent),
            _ => product.floor_div(&Dim::known(1i64 << -exponent)),
        });
    }
    let product = input.as_known()? as f32 * scale;
    (product < i64::MAX as f32).then(|| Dim::known(product.floor() as i64))
}

fn check_scale(scale: f32) -> Result<(), TypeError> {
    if scale.is_normal() && scale > 0.0 { Ok(()) } else { Err(value_error("a scale", scale, "a number above 0")) }
}

impl Resize {
    pub(crate) fn rule(&self) -> ResizeRule {
        ResizeRule {
            mode: self.mode,
            coordinates: self.coordinates,
            nearest: self.nearest,
            cubic_coefficient: self.cubic_coefficient,
            exclude_outside: self.exclude_outside,
            antialias: self.antialias && self.mode != ResizeMode::Nearest,
        }
    }

    /// What makes an output position of an axis; the axis must not be empty.
    pub fn taps(&self, axis: &ResizeAxis, position: usize) -> ResizeTaps {
        axis.taps(&self.rule(), position)
    }

    /// The input position that mode `nearest` takes for an output position of an axis, 0 outside; the axis must not be empty.
    pub fn chosen(&self, axis: &ResizeAxis, position: usize) -> usize {
        axis.chosen(&self.rule(), position).unwrap_or(0)
    }

    /// Every output position of an axis is the input position of the same number.
    pub fn keeps(&self, axis: &ResizeAxis) -> bool {
        axis.is_identity(&self.rule())
    }

    fn check(&self, dtype: DType) -> Result<(), TypeError> {
        if self.antialias && self.mode == ResizeMode::Nearest {
            return Err(TypeError::Unsupported("antialiasing of mode `nearest`".to_string()));
        }
        let computes = self.mode != ResizeMode::Nearest || self.coordinates == ResizeCoordinates::TfCropAndResize;
        if computes && !is_number(dtype) && dtype != DType::Bool {
            let expected = "a real number or bool for this mode".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found: dtype });
        }
        Ok(())
    }

    /// The axes that the operands tell about, in their order.
    fn resized_axes(&self, rank: usize) -> Result<Vec<usize>, TypeError> {
        if self.axes.is_empty() {
            return Ok((0..rank).collect());
        }
        let axes = self.axes.iter().map(|&axis| normalize_axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
        match (1..axes.len()).find(|&index| axes[..index].contains(&axes[index])) {
            None => Ok(axes),
            Some(index) => Err(value_error("`axes`", format!("{:?}", self.axes), format!("axis {} once", axes[index]))),
        }
    }

    /// Extents of the result from sizes of the resized axes.
    fn sized_extents(&self, dims: &[Dim], axes: &[usize], sizes: &[Dim], context: &InferContext<'_>) -> Vec<Dim> {
        let known = |dims: &mut dyn Iterator<Item = &Dim>| dims.map(Dim::as_known).collect::<Option<Vec<i64>>>();
        let mut result = dims.to_vec();
        if self.policy == ResizePolicy::Stretch {
            for (&axis, size) in axes.iter().zip(sizes) {
                result[axis] = size.clone();
            }
            return result;
        }
        let inputs = known(&mut axes.iter().map(|&axis| &dims[axis]));
        let scale = inputs.as_ref().zip(known(&mut sizes.iter()));
        let scale = scale.and_then(|(inputs, sizes)| common_scale(self.policy, inputs, &sizes));
        for (index, &axis) in axes.iter().enumerate() {
            result[axis] = match (scale, &inputs) {
                (Some(scale), Some(inputs)) => Dim::known((scale * inputs[index] as f32).round() as i64),
                (None, _) | (_, None) => context.fresh(&format!("extent.{axis}")),
            };
        }
        result
    }

    fn shape(&self, inputs: &[Option<Fact>], x: &Shape, context: &InferContext<'_>) -> Result<Shape, TypeError> {
        let (scales, sizes) = (given(inputs, SCALES), given(inputs, SIZES));
        let (list, operand) = match (scales, sizes) {
            (Some(_), Some(_)) if scales.and_then(count).is_some() && sizes.and_then(count).is_some() => {
                return Err(TypeError::Unsupported("scales beside sizes".to_string()));
            }
            (None, None) => return Err(TypeError::MissingOperand { operand: SIZES }),
            (_, Some(sizes)) if scales.is_none() => (sizes, SIZES),
            (Some(scales), None) => (scales, SCALES),
            // Which of the two is empty is not known yet.
            (_, Some(_)) => return Ok(self.fresh_shape(x, &[], context)),
        };
        let Shape::Ranked(dims) = x else {
            let rank = if self.axes.is_empty() { count(list) } else { None };
            return Ok(rank.map_or(Shape::Unranked, |rank| {
                Shape::Ranked((0..rank).map(|axis| context.fresh(&format!("extent.{axis}"))).collect())
            }));
        };
        let axes = self.resized_axes(dims.len())?;
        if let Some(found) = count(list).filter(|&found| found != axes.len()) {
            return Err(value_error(format!("number of elements of operand {operand}"), found, axes.len().to_string()));
        }
        if operand == SIZES {
            let Some(sizes) = list.elements_as_dims() else { return Ok(self.fresh_shape(x, &axes, context)) };
            if let Some(size) = sizes.iter().find(|size| size.as_known().is_some_and(|size| size < 0)) {
                return Err(value_error("a size", size, "at least 0"));
            }
            return Ok(Shape::Ranked(self.sized_extents(dims, &axes, &sizes, context)));
        }
        let scales = list.as_constant().and_then(|tensor| tensor.elements::<f32>().ok());
        let Some(scales) = scales else { return Ok(self.fresh_shape(x, &axes, context)) };
        let mut result = dims.clone();
        for (&axis, &scale) in axes.iter().zip(scales) {
            check_scale(scale)?;
            let extent = scaled_extent(&dims[axis], scale);
            result[axis] = extent.unwrap_or_else(|| context.fresh(&format!("extent.{axis}")));
        }
        Ok(Shape::Ranked(result))
    }

    /// The operand's shape with the extents of these axes (all, where none) unknown.
    fn fresh_shape(&self, x: &Shape, axes: &[usize], context: &InferContext<'_>) -> Shape {
        let Shape::Ranked(dims) = x else { return Shape::Unranked };
        let mut result = dims.clone();
        for (axis, dim) in result.iter_mut().enumerate() {
            if axes.is_empty() || axes.contains(&axis) {
                *dim = context.fresh(&format!("extent.{axis}"));
            }
        }
        Shape::Ranked(result)
    }

    /// Every axis of a run over known operands.
    ///
    /// # Errors
    /// [`ReferenceError`] where the operands do not fit.
    pub fn resolve(&self, x: &[usize], operands: ResizeOperands<'_>) -> Result<Vec<ResizeAxis>, ReferenceError> {
        let axes = self.resized_axes(x.len())?;
        let whole = |&extent: &usize| ResizeAxis {
            input: extent,
            output: extent,
            scale: 1.0,
            output_width: extent as f32,
            region: (0.0, 1.0),
        };
        let mut result: Vec<ResizeAxis> = x.iter().map(whole).collect();
        let counted = |subject: &str, found: usize, expected: usize| {
            if found == expected {
                Ok(())
            } else {
                Err(value_error(format!("number of {subject}"), found, expected.to_string()))
            }
        };
        match (operands.scales, operands.sizes) {
            ([], []) => return Err(TypeError::MissingOperand { operand: SIZES }.into()),
            (scales, []) => {
                counted("scales", scales.len(), axes.len())?;
                for (&axis, &scale) in axes.iter().zip(scales) {
                    result[axis].scale_by(scale)?;
                }
            }
            ([], sizes) => {
                counted("sizes", sizes.len(), axes.len())?;
                let inputs: Vec<i64> = axes.iter().map(|&axis| x[axis] as i64).collect();
                let common = match self.policy {
                    ResizePolicy::Stretch => None,
                    ResizePolicy::NotLarger | ResizePolicy::NotSmaller => common_scale(self.policy, &inputs, sizes),
                };
                for (&axis, &size) in axes.iter().zip(sizes) {
                    result[axis].size_to(size, common)?;
                }
            }
            (_, _) => return Err(TypeError::Unsupported("scales beside sizes".to_string()).into()),
        }
        if self.coordinates == ResizeCoordinates::TfCropAndResize {
            counted("values of the region", operands.roi.len(), 2 * axes.len())?;
            for (index, &axis) in axes.iter().enumerate() {
                result[axis].region = (operands.roi[index], operands.roi[axes.len() + index]);
            }
        }
        if let Some(axis) = result.iter().position(|axis| axis.input == 0 && axis.output != 0) {
            return Err(value_error(format!("extent of axis {axis}"), 0, "at least 1 to resize from").into());
        }
        Ok(result)
    }
}

impl ResizeAxis {
    fn scale_by(&mut self, scale: f32) -> Result<(), TypeError> {
        check_scale(scale)?;
        let extent = scaled_extent(&Dim::from(self.input), scale).and_then(|extent| extent.as_known());
        let extent = extent.and_then(|extent| usize::try_from(extent).ok());
        self.output = extent.ok_or_else(|| value_error("a scale", scale, "one that gives an extent of 63 bits"))?;
        self.scale = scale;
        self.output_width = scale * self.input as f32;
        Ok(())
    }

    fn size_to(&mut self, size: i64, common_scale: Option<f32>) -> Result<(), TypeError> {
        let size = match common_scale {
            None => size,
            Some(scale) => (scale * self.input as f32).round() as i64,
        };
        self.output = usize::try_from(size).map_err(|_| value_error("a size", size, "at least 0"))?;
        self.scale = common_scale.unwrap_or(self.output as f32 / self.input as f32);
        self.output_width = if common_scale.is_some() { self.scale * self.input as f32 } else { self.output as f32 };
        Ok(())
    }
}

/// The one scale that a policy other than stretching gives; `None` where an input extent is 0.
fn common_scale(policy: ResizePolicy, inputs: &[i64], sizes: &[i64]) -> Option<f32> {
    if inputs.contains(&0) {
        return None;
    }
    let scales = inputs.iter().zip(sizes).map(|(&input, &size)| size as f32 / input as f32);
    match policy {
        ResizePolicy::NotSmaller => scales.reduce(f32::max),
        ResizePolicy::NotLarger | ResizePolicy::Stretch => scales.reduce(f32::min),
    }
}

/// The contents of the operands of [`Resize`] but the first; absent ones are empty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResizeOperands<'a> {
    /// Starts, then ends of the region, relative to the extents.
    pub roi: &'a [f32],
    /// Scale of each resized axis.
    pub scales: &'a [f32],
    /// Size of each resized axis.
    pub sizes: &'a [i64],
}

/// The fact of an operand that is there and not known to be empty.
fn given(inputs: &[Option<Fact>], operand: usize) -> Option<&Fact> {
    optional(inputs, operand).filter(|fact| count(fact) != Some(0))
}

/// Number of elements of a fact of one axis, where known.
fn count(fact: &Fact) -> Option<usize> {
    match fact.dims() {
        Some([length]) => length.as_known().and_then(|length| usize::try_from(length).ok()),
        Some(_) | None => None,
    }
}

/// Type of an optional operand of one axis.
fn check_list_operand(inputs: &[Option<Fact>], operand: usize, takes: fn(DType) -> bool) -> Result<(), TypeError> {
    if optional(inputs, operand).is_none() {
        return Ok(());
    }
    let (found, shape) = tensor_operand(inputs, operand)?;
    if !takes(found) {
        let expected = if operand == SIZES { "i64" } else { "a floating-point type" }.to_string();
        return Err(TypeError::ElementType { operand, expected, found });
    }
    match shape.rank() {
        None | Some(1) => Ok(()),
        Some(found) => Err(TypeError::Rank { operand, expected: "1".to_string(), found }),
    }
}

/// An optional operand's elements as f32.
fn floats(inputs: &[Option<Value>], operand: usize) -> Result<Vec<f32>, ReferenceError> {
    match optional_tensor(inputs, operand)? {
        None => Ok(Vec::new()),
        Some(tensor) => Ok(scalars(tensor)?.into_iter().map(|scalar| scalar.to_f64() as f32).collect()),
    }
}

impl Operator for Resize {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        self.check(dtype)?;
        check_list_operand(inputs, ROI, |dtype| matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64))?;
        check_list_operand(inputs, SCALES, |dtype| dtype == DType::F32)?;
        check_list_operand(inputs, SIZES, |dtype| dtype == DType::I64)?;
        Ok(vec![Fact::tensor(dtype, self.shape(inputs, x, context)?)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let x = tensor(inputs, 0)?;
        self.check(x.dtype())?;
        let (roi, scales) = (floats(inputs, ROI)?, floats(inputs, SCALES)?);
        let sizes = match optional_tensor(inputs, SIZES)? {
            None => Vec::new(),
            Some(sizes) => sizes.elements::<i64>()?.to_vec(),
        };
        let axes = self.resolve(x.shape(), ResizeOperands { roi: &roi, scales: &scales, sizes: &sizes })?;
        let outside = self.coordinates == ResizeCoordinates::TfCropAndResize;
        let result = if self.mode == ResizeMode::Nearest && !outside {
            self.move_nearest(x, &axes)?
        } else {
            self.interpolate(x, &axes)?
        };
        Ok(vec![result.into()])
    }
}

impl Computes for Resize {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let same = |axis: usize| {
            facts.dims(0).zip(facts.result(0)).is_some_and(|(own, result)| own.get(axis) == result.get(axis))
        };
        let kept = |axis: usize| same(axis) && !self.moves(axis, facts);
        loops::mapped(facts, |axis| kept(axis).then(|| loops::operand(0, axis)))
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let resized = facts.result(0).map_or(0, <[Dim]>::len);
        let resized = (0..resized).filter(|&axis| self.moves(axis, facts)).count() as u32;
        let taps = match self.mode {
            ResizeMode::Nearest => 1i64,
            ResizeMode::Linear => 2,
            ResizeMode::Cubic => 4,
        };
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, taps.saturating_pow(resized))])
    }
}

impl Resize {
    /// The result of mode `nearest` by moving elements of any type.
    fn move_nearest(&self, x: &Tensor, axes: &[ResizeAxis]) -> Result<Tensor, ReferenceError> {
        let shape: Vec<usize> = axes.iter().map(|axis| axis.output).collect();
        let mut sources: Vec<usize> = vec![0];
        drop(listed::<usize>(x.dtype(), &shape)?);
        if shape.contains(&0) {
            return Ok(x.select(&shape, std::iter::empty())?);
        }
        for axis in axes {
            let chosen: Vec<usize> = (0..axis.output).map(|position| self.chosen(axis, position)).collect();
            sources = sources
                .iter()
                .flat_map(|&start| chosen.iter().map(move |&position| start * axis.input + position))
                .collect();
        }
        Ok(x.select(&shape, sources.into_iter().map(Some))?)
    }

    /// The result by weighted sums, one axis after another.
    fn interpolate(&self, x: &Tensor, axes: &[ResizeAxis]) -> Result<Tensor, ReferenceError> {
        let shape: Vec<usize> = axes.iter().map(|axis| axis.output).collect();
        drop(listed::<f64>(x.dtype(), &shape)?);
        if shape.contains(&0) {
            return Ok(x.select(&shape, std::iter::empty())?);
        }
        let rule = self.rule();
        let mut values: Vec<f64> = scalars(x)?.into_iter().map(Scalar::to_f64).collect();
        let mut extents = x.shape().to_vec();
        for (index, axis) in axes.iter().enumerate() {
            if axis.is_identity(&rule) {
                continue;
            }
            let taps: Vec<ResizeTaps> = (0..axis.output).map(|position| axis.taps(&rule, position)).collect();
            let outer = volume(extents[..index].iter().copied());
            let inner = volume(extents[index + 1..].iter().copied());
            let mut next = room(outer.saturating_mul(axis.output).saturating_mul(inner))?;
            for block in values.chunks(axis.input * inner) {
                for taps in &taps {
                    next.extend((0..inner).map(|offset| self.combined(taps, block, inner, offset)));
                }
            }
            values = next;
            extents[index] = axis.output;
        }
        let narrowed = |value: f64| if self.antialias && x.dtype().is_integer() { value.round() } else { value };
        let values: Vec<Scalar> = values.into_iter().map(|value| Scalar::Float(narrowed(value))).collect();
        from_scalars(x.dtype(), &shape, &values)
    }

    fn combined(&self, taps: &ResizeTaps, block: &[f64], inner: usize, offset: usize) -> f64 {
        match taps {
            ResizeTaps::Outside => self.extrapolation.into(),
            ResizeTaps::Weighted(taps) => {
                let terms = taps.iter().filter(|(_, weight)| *weight != 0.0);
                terms.map(|&(position, weight)| block[position * inner + offset] * weight).sum()
            }
        }
    }
}

impl Resize {
    /// Whether the elements along an axis may move.
    fn moves(&self, axis: usize, facts: &StepFacts<'_>) -> bool {
        let (Some(own), Some(result)) = (facts.dims(0), facts.result(0)) else { return true };
        let Ok(axes) = self.resized_axes(own.len()) else { return true };
        let Some(place) = axes.iter().position(|&resized| resized == axis) else { return false };
        let shifts =
            matches!(self.coordinates, ResizeCoordinates::TfCropAndResize | ResizeCoordinates::TfHalfPixelForNn);
        if shifts || own.get(axis) != result.get(axis) {
            return true;
        }
        // A scale near 1 may leave the extent and move the elements all the same.
        match facts.operand(SCALES).and_then(|scales| scales.contents.as_ref()) {
            Some(Contents::Constant(scales)) if scales.count() > 0 => {
                scales.elements::<f32>().map_or(true, |scales| scales.get(place) != Some(&1.0))
            }
            Some(Contents::Constant(_) | Contents::Dims(_)) | None => {
                let sized = facts.dims(SIZES).is_some_and(|dims| Dim::product(dims).as_known() > Some(0));
                !sized || self.policy != ResizePolicy::Stretch
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::ops::testing::run_optional;

    fn plain(mode: ResizeMode) -> Resize {
        Resize {
            mode,
            coordinates: ResizeCoordinates::HalfPixel,
            nearest: ResizeNearest::RoundPreferFloor,
            cubic_coefficient: -0.75,
            exclude_outside: false,
            extrapolation: 0.0,
            antialias: false,
            axes: vec![],
            policy: ResizePolicy::Stretch,
        }
    }

    fn by_scales(operator: &Resize, x: Tensor, scales: &[f32]) -> Tensor {
        let scales = Tensor::from_elements(&[scales.len()], scales).unwrap();
        run_optional(operator, &[Some(x), None, Some(scales)]).unwrap()
    }

    fn by_sizes(operator: &Resize, x: Tensor, sizes: &[i64]) -> Tensor {
        run_optional(operator, &[Some(x), None, None, Some(Tensor::vector_i64(sizes))]).unwrap()
    }

    fn image() -> Tensor {
        Tensor::from_elements(&[1, 1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap()
    }

    #[test]
    fn examples_of_the_operator_page() {
        let linear = by_scales(&plain(ResizeMode::Linear), image(), &[1.0, 1.0, 2.0, 2.0]);
        assert_eq!(linear.elements::<f32>().unwrap()[..8], [1.0, 1.25, 1.75, 2.0, 1.5, 1.75, 2.25, 2.5]);
        let corners = Resize { coordinates: ResizeCoordinates::AlignCorners, ..plain(ResizeMode::Linear) };
        let linear = by_sizes(&corners, image(), &[1, 1, 3, 3]);
        assert_eq!(linear.elements::<f32>().unwrap(), [1.0, 1.5, 2.0, 2.0, 2.5, 3.0, 3.0, 3.5, 4.0]);
        let nearest = by_scales(&plain(ResizeMode::Nearest), image(), &[1.0, 1.0, 2.0, 3.0]);
        assert_eq!(nearest.elements::<f32>().unwrap()[..6], [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn nearest_moves_strings_and_wide_integers() {
        let strings = Tensor::from_strings(&[2], vec!["a".into(), "b".into()]).unwrap();
        assert_eq!(by_sizes(&plain(ResizeMode::Nearest), strings, &[4]).strings().unwrap(), ["a", "a", "b", "b"]);
        let wide = Tensor::vector_i64(&[i64::MAX, i64::MIN]);
        assert_eq!(by_sizes(&plain(ResizeMode::Nearest), wide, &[1]).elements::<i64>().unwrap(), [i64::MAX]);
    }

    #[test]
    fn policies_keep_the_aspect() {
        let operator = Resize { policy: ResizePolicy::NotLarger, axes: vec![2, 3], ..plain(ResizeMode::Nearest) };
        let x = Tensor::zeros(DType::F32, &[1, 1, 2, 4]).unwrap();
        assert_eq!(by_sizes(&operator, x.clone(), &[7, 8]).shape(), [1, 1, 4, 8]);
        let operator = Resize { policy: ResizePolicy::NotSmaller, ..operator };
        assert_eq!(by_sizes(&operator, x, &[7, 8]).shape(), [1, 1, 7, 14]);
    }

    #[test]
    fn outside_a_region_is_the_extrapolation_value() {
        let crop = Resize {
            coordinates: ResizeCoordinates::TfCropAndResize,
            extrapolation: 9.0,
            axes: vec![-1],
            ..plain(ResizeMode::Linear)
        };
        let roi = Tensor::from_elements(&[2], &[0.0f32, 2.0]).unwrap();
        let sizes = Tensor::vector_i64(&[3]);
        let x = Tensor::from_elements(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let result = run_optional(&crop, &[Some(x), Some(roi), None, Some(sizes)]).unwrap();
        assert_eq!(result.elements::<f32>().unwrap(), [1.0, 2.0, 9.0, 3.0, 4.0, 9.0]);
    }

    #[test]
    fn integers_are_truncated() {
        let x = Tensor::from_elements(&[4], &[0u8, 10, 20, 255]).unwrap();
        let result = by_scales(&plain(ResizeMode::Linear), x, &[2.0]);
        assert_eq!(result.elements::<u8>().unwrap(), [0, 2, 7, 12, 17, 78, 196, 255]);
    }

    #[test]
    fn extents_of_simple_scales_stay_symbolic() {
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("resize", &ranges, &mut blocks);
        let x = Fact::tensor(DType::F32, vec![Dim::symbol("a"), Dim::symbol("b"), Dim::symbol("c"), Dim::known(10)]);
        let scales = Tensor::from_elements(&[4], &[2.0f32, 0.25, 1.3, 1.3]).unwrap();
        let inputs = [Some(x.clone()), None, Some(Fact::constant(scales))];
        let facts = plain(ResizeMode::Linear).infer(&inputs, &mut context).unwrap();
        let dims = facts[0].dims().unwrap();
        assert_eq!(dims[0], Dim::symbol("a") * 2);
        assert_eq!(dims[1], Dim::symbol("b").floor_div(&Dim::known(4)));
        assert_eq!(dims[2], Dim::symbol("resize.extent.2"));
        // 10 * 1.3 is 13 in f32, though the f32 nearest to 1.3 is less.
        assert_eq!(dims[3], Dim::known(13));
        let sizes = Fact::of_dims(DType::I64, Shape::known(&[4]), vec![Dim::symbol("b"), Dim::ONE, Dim::ONE, Dim::ONE]);
        let facts = plain(ResizeMode::Linear).infer(&[Some(x.clone()), None, None, Some(sizes)], &mut context).unwrap();
        assert_eq!(facts[0].dims().unwrap()[0], Dim::symbol("b"));
        assert_eq!(
            plain(ResizeMode::Linear).infer(&[Some(x)], &mut context).unwrap_err().to_string(),
            "operand 3 is missing"
        );
    }

    #[test]
    fn nothing_cannot_be_enlarged() {
        let empty = Tensor::zeros(DType::F32, &[0]).unwrap();
        let sizes = Some(Tensor::vector_i64(&[2]));
        assert_eq!(
            run_optional(&plain(ResizeMode::Linear), &[Some(empty), None, None, sizes]).unwrap_err().to_string(),
            "extent of axis 0 is 0, expected at least 1 to resize from"
        );
        let scales = Some(Tensor::from_elements(&[1], &[-1.0f32]).unwrap());
        assert_eq!(
            run_optional(&plain(ResizeMode::Linear), &[Some(image()), None, scales]).unwrap_err().to_string(),
            "number of scales is 1, expected 4"
        );
    }
}
