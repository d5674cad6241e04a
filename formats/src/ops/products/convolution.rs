//! Convolutions: ONNX `Conv` (opsets 1, 11, 22).
//!
//! `x: [batch, channels, spatial..]`, weights `[filters, channels / groups, kernel..]`, with any number of spatial axes
//! from 1. `auto_pad` stays an attribute, since its padding depends on the extents.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::loops::{self, At, Loops};
use crate::ops::products::accumulate::{Accumulator, accumulators, require_same_type};
use crate::ops::windows::{AutoPad, WindowAxis, Windows, for_each_index, for_each_tap, listed, value_error, volume};
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Relation,
    Space, StepFacts, TypeError, VectorClass, WeightMatrix, each, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::{Tensor, TensorError, element_count};
use crate::value::Value;

attributes! {
    /// Convolution: `x: [n, c, d..]`, `w: [m, c / groups, k..]`, optional bias `[m]` to `[n, m, o..]`;
    /// further operands are the program's.
    pub struct Convolution revision 1 {
        /// Padding that follows from the extents; explicit where absent.
        1 since 1 => auto_pad: Option<AutoPad>,
        /// Distance of windows along each spatial axis; 1 where empty.
        2 since 1 => strides: Vec<i64>,
        /// Distance of taps along each spatial axis; 1 where empty.
        3 since 1 => dilations: Vec<i64>,
        /// Zeros before each spatial axis, then after each; 0 where empty.
        4 since 1 => pads: Vec<i64>,
        /// Channels and filters are in this many groups, which do not mix.
        5 since 1 => groups: i64,
        /// How it computes.
        6 since 1 => arithmetic: Arithmetic,
        /// What follows on each element of the result.
        7 since 1 => program: Program,
    }
}

/// Filters of a group that are worth a panel.
pub(crate) const MINIMUM_GROUP_OUTPUTS: u64 = 8;

/// Floating-point types that compute: f16, bf16, f32, f64.
pub(crate) fn require_float(dtype: DType, operand: usize) -> Result<(), TypeError> {
    crate::ops::floats::require_computing_float(dtype, operand)
}

/// What `Conv` and its integer and deformable relatives share: geometry over groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grouped<'a> {
    pub(crate) windows: Windows<'a>,
    pub(crate) groups: i64,
}

impl Grouped<'_> {
    /// The shape of the result.
    pub(crate) fn infer(&self, x: &Shape, w: &Shape, context: &mut InferContext<'_>) -> Result<Shape, TypeError> {
        if self.groups < 1 {
            return Err(value_error("`groups`", self.groups, "at least 1"));
        }
        for (operand, shape) in [x, w].into_iter().enumerate() {
            if let Some(found) = shape.rank().filter(|&rank| rank < 3) {
                return Err(TypeError::Rank { operand, expected: "at least 3".to_string(), found });
            }
        }
        let rank = x.rank().or(w.rank());
        self.windows.check(rank.map(|rank| rank - 2))?;
        let (Shape::Ranked(x), Shape::Ranked(w)) = (x, w) else {
            // The rank follows from either operand, and from that the extents that both do not tell.
            let Some(rank) = rank else { return Ok(Shape::Unranked) };
            let known = |shape: &Shape, axis: usize, label: String| match shape.dims() {
                Some(dims) => dims[axis].clone(),
                None => context.fresh(&label),
            };
            let mut dims = vec![known(x, 0, "batch".to_string()), known(w, 0, "filters".to_string())];
            dims.extend((2..rank).map(|axis| context.fresh(&format!("extent.{}", axis - 2))));
            return Ok(Shape::Ranked(dims));
        };
        if x.len() != w.len() {
            return Err(TypeError::Rank { operand: 1, expected: x.len().to_string(), found: w.len() });
        }
        let groups = Dim::known(self.groups);
        context.require_equal(&x[1], &(&w[1] * &groups), "channels of the convolution")?;
        require_multiple(&w[0], &groups, "filters of the convolution", context)?;
        let mut dims = vec![x[0].clone(), w[0].clone()];
        dims.extend(self.windows.extents(&x[2..], &w[2..])?);
        Ok(Shape::Ranked(dims))
    }

    /// The walk over known shapes.
    pub(crate) fn resolve(&self, x: &[usize], w: &[usize]) -> Result<ConvolutionPlan, ReferenceError> {
        let (&[batch, channels, ref input @ ..], &[filters, group_channels, ref kernel @ ..]) = (x, w) else {
            return Err(TypeError::Rank { operand: 0, expected: "at least 3".to_string(), found: x.len() }.into());
        };
        if input.is_empty() || input.len() != kernel.len() {
            return Err(TypeError::Rank { operand: 1, expected: x.len().to_string(), found: w.len() }.into());
        }
        let groups = usize::try_from(self.groups).ok().filter(|&groups| groups > 0);
        let groups = groups.ok_or_else(|| value_error("`groups`", self.groups, "at least 1"))?;
        if group_channels.checked_mul(groups) != Some(channels) || !filters.is_multiple_of(groups) {
            return Err(TypeError::Dimension {
                subject: "channels of the convolution".to_string(),
                left: format!("{channels} channels and {filters} filters"),
                right: format!("{groups} groups of {group_channels} channels"),
            }
            .into());
        }
        let axes = self.windows.resolve(input, kernel)?;
        let shape: Vec<usize> = [batch, filters].into_iter().chain(axes.iter().map(|axis| axis.output)).collect();
        let too_large = || TensorError::TooLarge { dtype: DType::F32, shape: shape.clone() };
        let count = element_count(&shape).ok_or_else(too_large)?;
        let taps = element_count(kernel).ok_or_else(too_large)?;
        Ok(ConvolutionPlan { axes, shape, count, taps, groups, group_channels, channels })
    }
}

/// Require `dim` to be a multiple of `divisor`.
pub(crate) fn require_multiple(
    dim: &Dim,
    divisor: &Dim,
    subject: &str,
    context: &mut InferContext<'_>,
) -> Result<(), TypeError> {
    if dim.divide_exact(divisor).is_some() {
        return Ok(());
    }
    if dim.is_known() && divisor.is_known() {
        return Err(TypeError::Dimension {
            subject: subject.to_string(),
            left: dim.to_string(),
            right: format!("a multiple of {divisor}"),
        });
    }
    context.oblige(Relation::Multiple, dim, divisor, subject);
    Ok(())
}

/// Require an optional operand of one axis with this extent and type.
pub(crate) fn require_vector(
    inputs: &[Option<Fact>],
    operand: usize,
    dtype: DType,
    extent: Option<&Dim>,
    context: &mut InferContext<'_>,
) -> Result<(), TypeError> {
    if optional(inputs, operand).is_none() {
        return Ok(());
    }
    let (found, shape) = tensor_operand(inputs, operand)?;
    require_same_type(operand, found, dtype)?;
    match (shape.dims(), extent) {
        (Some([own]), Some(extent)) => context.require_equal(extent, own, "extent of the bias").map(|_| ()),
        (Some([_]) | None, _) => Ok(()),
        (Some(dims), _) => Err(TypeError::Rank { operand, expected: "1".to_string(), found: dims.len() }),
    }
}

/// How a convolution of known shapes walks its operands.
#[derive(Debug, Clone)]
pub struct ConvolutionPlan {
    /// Windows along each spatial axis.
    pub axes: Vec<WindowAxis>,
    /// Shape of the result.
    pub shape: Vec<usize>,
    /// Groups of channels and filters.
    pub groups: usize,
    /// Channels of a group.
    pub group_channels: usize,
    count: usize,
    taps: usize,
    channels: usize,
}

impl ConvolutionPlan {
    /// The sums of products, element after element of the result. Taps in the padding count as multiplications.
    pub(crate) fn convolve<T: Accumulator>(
        &self,
        x: &[T],
        w: &[T],
        arithmetic: &Arithmetic,
        macs: &mut u64,
    ) -> Result<Vec<T>, TensorError> {
        let mut result = listed(DType::F64, &self.shape)?;
        if self.count == 0 {
            return Ok(result);
        }
        let volume = volume(self.axes.iter().map(|axis| axis.input));
        let filters = self.shape[1] / self.groups;
        for_each_index(&self.shape, |index| {
            let (batch, filter, output) = (index[0], index[1], &index[2..]);
            let group = filter / filters;
            let mut sum = T::ZERO;
            for channel in 0..self.group_channels {
                let image = (batch * self.channels + group * self.group_channels + channel) * volume;
                let weights = (filter * self.group_channels + channel) * self.taps;
                for_each_tap(&self.axes, output, |tap, position| {
                    sum = sum.plus(x[image + position].times(w[weights + tap]), arithmetic);
                });
                *macs += self.taps as u64;
            }
            result.push(sum);
        });
        Ok(result)
    }
}

impl Convolution {
    /// The walk over operands of these shapes.
    ///
    /// # Errors
    /// [`ReferenceError`] where they do not fit.
    pub fn resolve(&self, x: &[usize], w: &[usize]) -> Result<ConvolutionPlan, ReferenceError> {
        self.grouped().resolve(x, w)
    }

    pub(crate) fn grouped(&self) -> Grouped<'_> {
        let windows = Windows {
            auto_pad: self.auto_pad,
            strides: &self.strides,
            dilations: &self.dilations,
            pads: &self.pads,
            ceil_mode: false,
        };
        Grouped { windows, groups: self.groups }
    }
}

impl Operator for Convolution {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        let (found, w) = tensor_operand(inputs, 1)?;
        require_float(dtype, 0)?;
        require_same_type(1, found, dtype)?;
        let shape = self.grouped().infer(x, w, context)?;
        require_vector(inputs, 2, dtype, shape.dims().map(|dims| &dims[1]), context)?;
        let accumulator = self.arithmetic.accumulator_of(dtype);
        let dtype = self.program.infer(dtype, accumulator, &shape, inputs, context)?;
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (x, w, bias) = (tensor(inputs, 0)?, tensor(inputs, 1)?, optional_tensor(inputs, 2)?);
        require_float(x.dtype(), 0)?;
        require_same_type(1, w.dtype(), x.dtype())?;
        let plan = self.grouped().resolve(x.shape(), w.shape())?;
        let elements = |tensor: &Tensor| accumulators::<f64>(tensor, &self.arithmetic);
        let mut sums = plan.convolve(&elements(x)?, &elements(w)?, &self.arithmetic, &mut context.macs)?;
        add_bias(&mut sums, bias, x.dtype(), &plan.shape, &self.arithmetic)?;
        let scalars: Vec<_> = sums.into_iter().map(Accumulator::scalar).collect();
        let accumulator = self.arithmetic.accumulator_of(x.dtype());
        Ok(vec![self.program.finish(x.dtype(), accumulator, &scalars, &plan.shape, inputs)?.into()])
    }
}

impl Computes for Convolution {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        self.grouped().spaces(facts, 2)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        bias_additions(facts, 2)
    }
}

impl Product for Convolution {
    fn weight(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
        if operand == 1 { filter_matrix(shape, self.groups) } else { None }
    }

    fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    fn picked(&self) -> Option<Picked> {
        None
    }

    fn program(&self) -> Option<&Program> {
        Some(&self.program)
    }

    fn sums(&self, facts: &StepFacts<'_>) -> Option<DType> {
        Some(self.arithmetic.accumulator_of(facts.operand(0)?.dtype()?))
    }
}

/// Filters of this shape as matrices, one a group.
pub(crate) fn filter_matrix(shape: &[u64], groups: i64) -> Option<WeightMatrix> {
    let [filters, window @ ..] = shape else { return None };
    let groups = u64::try_from(groups).ok().filter(|&groups| groups > 0)?;
    let inputs = window.iter().try_fold(1u64, |inputs, extent| inputs.checked_mul(*extent))?;
    let outputs = filters / groups;
    // A group of few filters (depthwise) would leave most of a panel empty.
    let worthwhile = groups == 1 || outputs >= MINIMUM_GROUP_OUTPUTS;
    worthwhile.then_some(WeightMatrix { groups, inputs, outputs, output_axis: 0 })
}

/// Add one element a channel (axis 1) of the result.
pub(crate) fn add_bias<T: Accumulator>(
    sums: &mut [T],
    bias: Option<&Tensor>,
    dtype: DType,
    shape: &[usize],
    arithmetic: &Arithmetic,
) -> Result<(), ReferenceError> {
    let Some(bias) = bias else { return Ok(()) };
    require_same_type(2, bias.dtype(), dtype)?;
    if bias.shape() != [shape[1]] {
        return Err(TypeError::Dimension {
            subject: "extent of the bias".to_string(),
            left: format!("{:?}", bias.shape()),
            right: format!("[{}]", shape[1]),
        }
        .into());
    }
    let bias = accumulators::<T>(bias, &Arithmetic::default())?;
    let volume = volume(shape[2..].iter().copied());
    for (index, sum) in sums.iter_mut().enumerate() {
        *sum = sum.plus(bias[index / volume % shape[1]], arithmetic);
    }
    Ok(())
}

/// Additions of a bias, where there is one.
pub(crate) fn bias_additions(facts: &StepFacts<'_>, bias: usize) -> Vec<(VectorClass, Dim)> {
    let added = if facts.operand(bias).is_some() { facts.result_elements(0) } else { Dim::ZERO };
    each(&added, &[(VectorClass::Arithmetic, 1)])
}

impl Grouped<'_> {
    /// The loops of a convolution: over the batch, groups, their filters and windows, and inside over channels and taps.
    pub(crate) fn spaces(&self, facts: &StepFacts<'_>, bias: usize) -> Vec<Space> {
        let (Some([_, _, image @ ..]), Some([filters, channels, kernel @ ..]), Some([batch, _, output @ ..])) =
            (facts.dims(0), facts.dims(1), facts.result(0))
        else {
            return loops::unknown(facts, 1);
        };
        if image.len() != kernel.len() || output.len() != kernel.len() {
            return loops::unknown(facts, 1);
        }
        let mut nest = Loops::new(facts).parallel(batch, [loops::operand(0, 0), loops::result(0, 0)]);
        nest = self.channel_loops(nest, filters, channels, bias);
        nest = self.window_loops(nest, image, kernel, output);
        let own = self.channel_place(filters, channels);
        nest = nest.reduced(channels, own.into_iter().chain([loops::operand(1, 1)]));
        vec![self.tap_loops(nest, image, kernel, output).products(1)]
    }

    /// Loops over windows, along axes of operand 0 and of the result from axis 2 on.
    pub(crate) fn window_loops(&self, mut nest: Loops, image: &[Dim], kernel: &[Dim], output: &[Dim]) -> Loops {
        for (axis, extent) in output.iter().enumerate() {
            let place = self.windows.place(axis, &image[axis], &kernel[axis], extent);
            let from = place.map(|(stride, _, offset)| loops::operand(0, axis + 2).stride(stride).offset(offset));
            nest = nest.parallel(extent, from.into_iter().chain([loops::result(0, axis + 2)]));
        }
        nest
    }

    /// Loops over the taps of a window, along axes of operands 0 and 1 from axis 2 on.
    pub(crate) fn tap_loops(&self, mut nest: Loops, image: &[Dim], kernel: &[Dim], output: &[Dim]) -> Loops {
        for (axis, extent) in kernel.iter().enumerate() {
            let place = self.windows.place(axis, &image[axis], extent, &output[axis]);
            let from = place.map(|(_, dilation, _)| loops::operand(0, axis + 2).stride(dilation));
            nest = nest.reduced(extent, from.into_iter().chain([loops::operand(1, axis + 2)]));
        }
        nest
    }

    /// Where a channel of a group is in operand 0; none where filters are not walked group by group: one may then need any.
    pub(crate) fn channel_place(&self, filters: &Dim, channels: &Dim) -> Option<At> {
        let by_group = filters.divide_exact(&Dim::known(self.groups)).is_some_and(|own| own.is_known());
        (self.groups == 1 || by_group && channels.is_known()).then(|| loops::operand(0, 1))
    }

    /// Loops over groups and the filters of one; over all filters where the extents of a group are not known.
    pub(crate) fn channel_loops(&self, nest: Loops, filters: &Dim, channels: &Dim, bias: usize) -> Loops {
        let of_filters = |stride: i64| {
            [loops::operand(1, 0), loops::operand(bias, 0), loops::result(0, 1)].map(|place| place.stride(stride))
        };
        if self.groups == 1 {
            return nest.parallel(filters, of_filters(1));
        }
        let groups = Dim::known(self.groups);
        match (filters.divide_exact(&groups).and_then(|own| own.as_known()), channels.as_known()) {
            (Some(own), Some(channels)) => nest
                .parallel(&groups, of_filters(own).into_iter().chain([loops::operand(0, 1).stride(channels)]))
                .parallel(&Dim::known(own), of_filters(1)),
            (Some(_) | None, _) => nest.parallel(filters, of_filters(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::testing::macs;
    use crate::ops::{NoBlocks, Op};

    fn plain(groups: i64) -> Convolution {
        Convolution {
            auto_pad: None,
            strides: vec![],
            dilations: vec![],
            pads: vec![],
            groups,
            arithmetic: Arithmetic::default(),
            program: Program::default(),
        }
    }

    fn sequence(shape: &[usize]) -> Tensor {
        let count: usize = shape.iter().product();
        Tensor::from_elements(shape, &(0..count).map(|index| index as f32).collect::<Vec<_>>()).unwrap()
    }

    fn ones(shape: &[usize]) -> Tensor {
        Tensor::from_elements(shape, &vec![1.0f32; shape.iter().product()]).unwrap()
    }

    fn run(operator: &Convolution, operands: &[&Tensor]) -> Tensor {
        let inputs: Vec<Option<Value>> = operands.iter().map(|&tensor| Some(tensor.clone().into())).collect();
        let mut blocks = NoBlocks;
        let mut context = ReferenceContext::new(&mut blocks);
        let result = operator.reference(&inputs, &mut context).unwrap().remove(0);
        let facts: Vec<Option<Fact>> = inputs.iter().flatten().map(|value| Some(Fact::of(value.kind()))).collect();
        let ranges = Ranges::default();
        let mut no_blocks = NoBlocks;
        let outputs = operator.infer(&facts, &mut InferContext::new("conv", &ranges, &mut no_blocks)).unwrap();
        assert_eq!(outputs[0].kind, result.kind());
        assert_eq!(macs(operator, &facts, &outputs), Dim::known(context.macs as i64));
        result.as_tensor().unwrap().clone()
    }

    #[test]
    fn examples_of_the_operator_page() {
        let (x, w) = (sequence(&[1, 1, 5, 5]), ones(&[1, 1, 3, 3]));
        let padded = run(&Convolution { pads: vec![1; 4], ..plain(1) }, &[&x, &w]);
        assert_eq!(padded.elements::<f32>().unwrap()[..6], [12.0, 21.0, 27.0, 33.0, 24.0, 33.0]);
        let unpadded = run(&plain(1), &[&x, &w]);
        assert_eq!(unpadded.elements::<f32>().unwrap(), [54.0, 63.0, 72.0, 99.0, 108.0, 117.0, 144.0, 153.0, 162.0]);
        let lower = Convolution { auto_pad: Some(AutoPad::SameLower), strides: vec![2, 2], ..plain(1) };
        let lower = run(&lower, &[&x, &w]);
        assert_eq!(lower.elements::<f32>().unwrap(), [12.0, 27.0, 24.0, 63.0, 108.0, 81.0, 72.0, 117.0, 84.0]);
    }

    #[test]
    fn groups_do_not_mix_and_the_bias_is_per_filter() {
        let x = sequence(&[1, 2, 3]);
        let w = Tensor::from_elements(&[4, 1, 2], &[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 0.0]).unwrap();
        let bias = Tensor::from_elements(&[4], &[0.0f32, 10.0, 20.0, 30.0]).unwrap();
        let result = run(&plain(2), &[&x, &w, &bias]);
        assert_eq!(result.shape(), [1, 4, 2]);
        assert_eq!(result.elements::<f32>().unwrap(), [0.0, 1.0, 11.0, 12.0, 27.0, 29.0, 36.0, 38.0]);
    }

    #[test]
    fn three_spatial_axes_and_dilation() {
        let operator = Convolution { dilations: vec![1, 2, 1], ..plain(1) };
        let result = run(&operator, &[&sequence(&[1, 1, 2, 3, 2]), &ones(&[1, 1, 2, 2, 1])]);
        assert_eq!(result.shape(), [1, 1, 1, 1, 2]);
        assert_eq!(result.elements::<f32>().unwrap(), [0.0 + 4.0 + 6.0 + 10.0, 1.0 + 5.0 + 7.0 + 11.0]);
    }

    #[test]
    fn misfits_are_refused() {
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("conv", &ranges, &mut blocks);
        let fact = |extents: &[usize]| Some(Fact::tensor(DType::F32, Shape::known(extents)));
        let mut infer = |operator: Convolution, x: &[usize], w: &[usize]| {
            operator.infer(&[fact(x), fact(w)], &mut context).map(|_| ())
        };
        assert_eq!(
            infer(plain(1), &[1, 2, 5], &[1, 3, 1]).unwrap_err().to_string(),
            "channels of the convolution: 2 does not fit 3"
        );
        assert_eq!(
            infer(plain(2), &[1, 2, 5], &[3, 1, 1]).unwrap_err().to_string(),
            "filters of the convolution: 3 does not fit a multiple of 2"
        );
        assert_eq!(
            infer(plain(0), &[1, 2, 5], &[3, 1, 1]).unwrap_err().to_string(),
            "`groups` is 0, expected at least 1"
        );
        assert_eq!(
            infer(plain(1), &[1, 2], &[3, 2]).unwrap_err().to_string(),
            "operand 0 must have rank at least 3, found 2"
        );
        assert_eq!(
            infer(plain(1), &[1, 2, 5], &[3, 2, 7]).unwrap_err().to_string(),
            "window along spatial axis 0: kernel extent 7 does not fit input extent 5"
        );
        assert!(infer(plain(1), &[1, 2, 5], &[3, 2, 5]).is_ok());
    }

    #[test]
    fn the_same_padding_stays_symbolic() {
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("conv", &ranges, &mut blocks);
        let x = Fact::tensor(DType::F32, vec![Dim::symbol("n"), Dim::known(2), Dim::symbol("t")]);
        let w = Fact::tensor(DType::F32, Shape::known(&[4, 2, 3]));
        let operator = Convolution { auto_pad: Some(AutoPad::SameUpper), strides: vec![2], ..plain(1) };
        let facts = operator.infer(&[Some(x), Some(w)], &mut context).unwrap();
        assert_eq!(facts[0].dims().unwrap()[2], Dim::symbol("t").ceil_div(&Dim::known(2)));
        let op = Op::from(operator);
        let stored: Vec<_> = op.attributes().into_iter().map(|(number, _, value)| (number, value)).collect();
        assert_eq!(Op::decode(op.code(), op.revision(), &stored).unwrap(), op);
    }
}
