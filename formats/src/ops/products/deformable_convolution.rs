//! Convolutions whose taps are displaced: ONNX `DeformConv` (opsets 19, 22), with any number of spatial axes.
//!
//! A displaced tap is interpolated linearly between its neighbours; what lies outside the operand is zero.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::loops;
use crate::ops::products::accumulate::{Accumulator, require_same_type};
use crate::ops::products::convolution::{
    ConvolutionPlan, Grouped, add_bias, bias_additions, require_float, require_multiple, require_vector,
};
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::windows::{WindowAxis, Windows, for_each_index, listed, value_error, volume};
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Space,
    StepFacts, TypeError, VectorClass, WeightMatrix, each, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Deformable convolution: `x: [n, c, d..]`, `w: [m, c / groups, k..]`, optional bias `[m]`,
    /// `offset: [n, offset_groups * taps * r, o..]` (r displacements a tap, outermost axis first), optional
    /// `mask: [n, offset_groups * taps, o..]` to `[n, m, o..]`.
    pub struct DeformableConvolution revision 1 {
        /// Distance of windows along each spatial axis; 1 where empty.
        1 since 1 => strides: Vec<i64>,
        /// Distance of taps along each spatial axis; 1 where empty.
        2 since 1 => dilations: Vec<i64>,
        /// Zeros before each spatial axis, then after each; 0 where empty.
        3 since 1 => pads: Vec<i64>,
        /// Channels and filters are in this many groups, which do not mix.
        4 since 1 => groups: i64,
        /// Channels share displacements in this many groups.
        5 since 1 => offset_groups: i64,
    }
}

const BIAS: usize = 2;
const OFFSET: usize = 3;
const MASK: usize = 4;

impl DeformableConvolution {
    fn grouped(&self) -> Grouped<'_> {
        let windows = Windows {
            auto_pad: None,
            strides: &self.strides,
            dilations: &self.dilations,
            pads: &self.pads,
            ceil_mode: false,
        };
        Grouped { windows, groups: self.groups }
    }

    /// Windows and result for these operands, and in how many groups channels share displacements.
    ///
    /// # Errors
    /// [`ReferenceError`] where types or shapes do not fit.
    pub fn plan(
        &self,
        x: &Tensor,
        w: &Tensor,
        offset: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<(ConvolutionPlan, usize), ReferenceError> {
        require_float(x.dtype(), 0)?;
        require_same_type(1, w.dtype(), x.dtype())?;
        let plan = self.grouped().resolve(x.shape(), w.shape())?;
        let kernel = &w.shape()[2..];
        let taps = volume(kernel.iter().copied());
        let channels = x.shape()[1];
        let offset_groups = usize::try_from(self.offset_groups).ok().filter(|&groups| groups > 0);
        let offset_groups = offset_groups
            .filter(|groups| channels.is_multiple_of(*groups))
            .ok_or_else(|| value_error("`offset_groups`", self.offset_groups, format!("a divisor of {channels}")))?;
        let rank = kernel.len();
        for (tensor, per_tap) in [(Some(offset), rank), (mask, 1)] {
            let Some(tensor) = tensor else { continue };
            let mut expected = plan.shape.clone();
            expected[1] = volume([offset_groups, taps, per_tap]);
            if tensor.shape() != expected {
                return Err(TypeError::Dimension {
                    subject: "displacements".to_string(),
                    left: format!("{:?}", tensor.shape()),
                    right: format!("{expected:?}"),
                }
                .into());
            }
        }
        Ok((plan, offset_groups))
    }

    /// The loops of a convolution whose taps may lie anywhere in the image.
    fn displaced_spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let (Some([filters, channels, kernel @ ..]), Some([batch, _, output @ ..])) = (facts.dims(1), facts.result(0))
        else {
            return loops::unknown(facts, 1);
        };
        let everywhere = |axis: usize| [OFFSET, MASK].map(|operand| loops::operand(operand, axis));
        let batched = everywhere(0).into_iter().chain([loops::operand(0, 0), loops::result(0, 0)]);
        let mut nest = loops::Loops::new(facts).parallel(batch, batched);
        nest = self.grouped().channel_loops(nest, filters, channels, BIAS);
        for (axis, extent) in output.iter().enumerate() {
            nest = nest.parallel(extent, everywhere(axis + 2).into_iter().chain([loops::result(0, axis + 2)]));
        }
        let own = self.grouped().channel_place(filters, channels);
        nest = nest.reduced(channels, own.into_iter().chain([loops::operand(1, 1)]));
        for (axis, extent) in kernel.iter().enumerate() {
            nest = nest.reduced(extent, [loops::operand(1, axis + 2)]);
        }
        vec![nest.products(1)]
    }

    /// Require an operand of displacements or factors to have `channels` of each tap.
    fn check_displacement(
        &self,
        inputs: &[Option<Fact>],
        operand: usize,
        dtype: DType,
        result: &Shape,
        per_tap: i64,
        context: &mut InferContext<'_>,
    ) -> Result<(), TypeError> {
        let (found, shape) = tensor_operand(inputs, operand)?;
        require_same_type(operand, found, dtype)?;
        let (Some(dims), Some(result)) = (shape.dims(), result.dims()) else { return Ok(()) };
        if dims.len() != result.len() {
            return Err(TypeError::Rank { operand, expected: result.len().to_string(), found: dims.len() });
        }
        context.require_equal(&result[0], &dims[0], "batch of the displacements")?;
        for (own, expected) in dims[2..].iter().zip(&result[2..]) {
            context.require_equal(expected, own, "extent of the displacements")?;
        }
        if let Some([_, _, kernel @ ..]) = inputs.get(1).and_then(Option::as_ref).and_then(Fact::dims) {
            let expected = Dim::product(kernel) * self.offset_groups * per_tap;
            context.require_equal(&expected, &dims[1], "channels of the displacements")?;
        }
        Ok(())
    }
}

impl Operator for DeformableConvolution {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        let (found, w) = tensor_operand(inputs, 1)?;
        require_float(dtype, 0)?;
        require_same_type(1, found, dtype)?;
        if self.offset_groups < 1 {
            return Err(value_error("`offset_groups`", self.offset_groups, "at least 1"));
        }
        let shape = self.grouped().infer(x, w, context)?;
        require_vector(inputs, BIAS, dtype, shape.dims().map(|dims| &dims[1]), context)?;
        if let Some(dims) = x.dims() {
            require_multiple(&dims[1], &Dim::known(self.offset_groups), "channels of the convolution", context)?;
        }
        let rank = shape.rank().map_or(1, |rank| rank as i64 - 2);
        self.check_displacement(inputs, OFFSET, dtype, &shape, rank, context)?;
        if optional(inputs, MASK).is_some() {
            self.check_displacement(inputs, MASK, dtype, &shape, 1, context)?;
        }
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (x, w, offset) = (tensor(inputs, 0)?, tensor(inputs, 1)?, tensor(inputs, OFFSET)?);
        let (bias, mask) = (optional_tensor(inputs, BIAS)?, optional_tensor(inputs, MASK)?);
        let (plan, offset_groups) = self.plan(x, w, offset, mask)?;
        let kernel = &w.shape()[2..];
        let taps = volume(kernel.iter().copied());
        let channels = x.shape()[1];
        let displaced = Displaced {
            axes: &plan.axes,
            kernel,
            taps,
            offset_groups,
            image: floats(x)?,
            channels,
            offset: floats(offset)?,
            mask: mask.map(floats).transpose()?,
            w: floats(w)?,
            group_channels: w.shape()[1],
            group_filters: plan.shape[1] / usize::try_from(self.groups).unwrap_or(1).max(1),
        };
        let mut sums: Vec<f64> = listed(x.dtype(), &plan.shape)?;
        for_each_index(&plan.shape, |index| sums.push(displaced.sum(index, &mut context.macs)));
        add_bias(&mut sums, bias, x.dtype(), &plan.shape, &Arithmetic::default())?;
        let sums: Vec<Scalar> = sums.into_iter().map(Accumulator::scalar).collect();
        Ok(vec![from_scalars(x.dtype(), &plan.shape, &sums)?.into()])
    }
}

impl Computes for DeformableConvolution {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        self.displaced_spaces(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        // Each tap is interpolated between the neighbours of its place.
        let taps = facts.dims(1).and_then(|w| w.get(1..)).map_or_else(|| facts.fresh("taps"), Dim::product);
        let neighbours = facts.result(0).map_or(1, |dims| 1i64 << dims.len().saturating_sub(2).min(32));
        let places = facts.result_elements(0) * taps * neighbours;
        [bias_additions(facts, BIAS), each(&places, &[(VectorClass::Arithmetic, 2)])].concat()
    }
}

impl Product for DeformableConvolution {
    fn weight(&self, _operand: usize, _shape: &[u64]) -> Option<WeightMatrix> {
        None
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::default()
    }

    fn picked(&self) -> Option<Picked> {
        None
    }

    fn program(&self) -> Option<&Program> {
        None
    }

    fn sums(&self, _facts: &StepFacts<'_>) -> Option<DType> {
        None
    }
}

fn floats(tensor: &Tensor) -> Result<Vec<f64>, ReferenceError> {
    Ok(scalars(tensor)?.into_iter().map(Scalar::to_f64).collect())
}

/// Operands of a deformable convolution of known shapes.
struct Displaced<'a> {
    axes: &'a [WindowAxis],
    kernel: &'a [usize],
    taps: usize,
    offset_groups: usize,
    image: Vec<f64>,
    channels: usize,
    offset: Vec<f64>,
    mask: Option<Vec<f64>>,
    w: Vec<f64>,
    group_channels: usize,
    group_filters: usize,
}

impl Displaced<'_> {
    /// One element of the result.
    fn sum(&self, index: &[usize], macs: &mut u64) -> f64 {
        let (batch, filter, output) = (index[0], index[1], &index[2..]);
        let place = output.iter().zip(self.axes).fold(0, |flat, (&output, axis)| flat * axis.output + output);
        let places = volume(self.axes.iter().map(|axis| axis.output));
        let image = volume(self.axes.iter().map(|axis| axis.input));
        let rank = self.axes.len();
        let mut sum = 0.0;
        for own in 0..self.group_channels {
            let channel = filter / self.group_filters * self.group_channels + own;
            let group = channel / (self.channels / self.offset_groups);
            let plane = (batch * self.channels + channel) * image;
            let mut tap = 0;
            for_each_index(self.kernel, |taps| {
                let displacement = (batch * self.offset_groups + group) * self.taps + tap;
                let coordinates: Vec<f64> = (0..rank)
                    .map(|axis| {
                        let regular =
                            self.axes[axis].start(output[axis]) + (taps[axis] * self.axes[axis].dilation) as i64;
                        regular as f64 + self.offset[(displacement * rank + axis) * places + place]
                    })
                    .collect();
                let factor = self.mask.as_ref().map_or(1.0, |mask| mask[displacement * places + place]);
                let weight = self.w[(filter * self.group_channels + own) * self.taps + tap];
                sum += self.interpolated(plane, &coordinates) * factor * weight;
                tap += 1;
                *macs += 1;
            });
        }
        sum
    }

    /// The operand between elements; zero outside.
    fn interpolated(&self, plane: usize, coordinates: &[f64]) -> f64 {
        let mut terms = vec![(0usize, 1.0f64)];
        for (axis, &coordinate) in self.axes.iter().zip(coordinates) {
            let base = coordinate.floor();
            let fraction = coordinate - base;
            let neighbours: Vec<(usize, f64)> = [(base, 1.0 - fraction), (base + 1.0, fraction)]
                .into_iter()
                .filter(|(position, weight)| *weight != 0.0 && (0.0..axis.input as f64).contains(position))
                .map(|(position, weight)| (position as usize, weight))
                .collect();
            terms = terms
                .iter()
                .flat_map(|&(flat, weight)| {
                    neighbours.iter().map(move |&(position, own)| (flat * axis.input + position, weight * own))
                })
                .collect();
        }
        terms.into_iter().map(|(flat, weight)| self.image[plane + flat] * weight).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run_optional;

    fn plain() -> DeformableConvolution {
        DeformableConvolution { strides: vec![], dilations: vec![], pads: vec![], groups: 1, offset_groups: 1 }
    }

    fn f32s(shape: &[usize], elements: &[f32]) -> Option<Tensor> {
        Some(Tensor::from_elements(shape, elements).unwrap())
    }

    #[test]
    fn taps_move_and_are_interpolated() {
        let x = f32s(&[1, 1, 4], &[1.0, 2.0, 4.0, 8.0]);
        let w = f32s(&[1, 1, 2], &[1.0, 10.0]);
        // First tap of each window moves by 0, 0.5 and 3 (outside), the second by 0, 0 and -1.
        let offset = f32s(&[1, 2, 3], &[0.0, 0.5, 3.0, 0.0, 0.0, -1.0]);
        let result = run_optional(&plain(), &[x.clone(), w.clone(), None, offset.clone()]).unwrap();
        assert_eq!(result.elements::<f32>().unwrap(), [21.0, 43.0, 40.0]);
        let mask = f32s(&[1, 2, 3], &[1.0, 0.0, 1.0, 1.0, 1.0, 0.5]);
        let bias = f32s(&[1], &[100.0]);
        let result = run_optional(&plain(), &[x, w, bias, offset, mask]).unwrap();
        assert_eq!(result.elements::<f32>().unwrap(), [121.0, 140.0, 120.0]);
    }

    #[test]
    fn without_displacements_it_is_a_convolution() {
        let values: Vec<f32> = (0..32).map(|index| (index * 7 % 11) as f32).collect();
        let x = f32s(&[1, 2, 4, 4], &values);
        let w = f32s(&[2, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0, -1.0, 1.0, 0.0, 2.0]);
        let offset = Some(Tensor::zeros(DType::F32, &[1, 16, 2, 2]).unwrap());
        let operator = DeformableConvolution { groups: 2, offset_groups: 2, strides: vec![2, 2], ..plain() };
        let result = run_optional(&operator, &[x.clone(), w.clone(), None, offset]).unwrap();
        let regular = crate::ops::Convolution {
            auto_pad: None,
            strides: vec![2, 2],
            dilations: vec![],
            pads: vec![],
            groups: 2,
            arithmetic: Arithmetic::default(),
            program: crate::ops::Program::default(),
        };
        assert_eq!(result, run_optional(&regular, &[x, w]).unwrap());
    }

    #[test]
    fn displacements_must_fit() {
        let x = f32s(&[1, 1, 4], &[1.0, 2.0, 4.0, 8.0]);
        let w = f32s(&[1, 1, 2], &[1.0, 10.0]);
        assert_eq!(
            run_optional(&plain(), &[x, w, None, f32s(&[1, 1, 3], &[0.0; 3])]).unwrap_err().to_string(),
            "displacements: [1, 1, 3] does not fit [1, 2, 3]"
        );
    }
}
