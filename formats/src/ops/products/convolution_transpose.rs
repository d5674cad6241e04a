//! Transposed convolutions: ONNX `ConvTranspose` (opsets 1, 11, 22).
//!
//! Each input element scatters a scaled kernel. Padding cuts the result's borders; where an output shape is asked for
//! (or `SAME`, which asks for `input * stride`), padding follows from it, and what the kernels do not reach is zero.
//! The page of opset 1 exchanges where an odd rest goes; as in implementations, the rule of opset 11 holds for all.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::loops::{self, Loops};
use crate::ops::products::accumulate::{Accumulator, accumulators, require_same_type};
use crate::ops::products::convolution::{
    MINIMUM_GROUP_OUTPUTS, add_bias, bias_additions, require_float, require_multiple, require_vector,
};
use crate::ops::windows::{AutoPad, WindowAxis, at, check_list, for_each_index, listed, value_error, volume};
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Space,
    StepFacts, TypeError, VectorClass, WeightMatrix, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::{TensorError, element_count};
use crate::value::Value;

attributes! {
    /// Transposed convolution: `x: [n, c, d..]`, `w: [c, m / groups, k..]`, optional bias `[m]` to `[n, m, o..]`;
    /// further operands are the program's.
    pub struct ConvolutionTranspose revision 1 {
        /// Padding that follows from the extents; explicit where absent.
        1 since 1 => auto_pad: Option<AutoPad>,
        /// Distance of kernels along each spatial axis of the result; 1 where empty.
        2 since 1 => strides: Vec<i64>,
        /// Distance of taps along each spatial axis; 1 where empty.
        3 since 1 => dilations: Vec<i64>,
        /// Elements cut off before each spatial axis of the result, then after each; 0 where empty.
        4 since 1 => pads: Vec<i64>,
        /// Elements added after each spatial axis of the result; 0 where empty.
        5 since 1 => output_padding: Vec<i64>,
        /// Spatial extents of the result, from which the padding follows; none where empty.
        6 since 1 => output_shape: Vec<i64>,
        /// Channels and filters are in this many groups, which do not mix.
        7 since 1 => groups: i64,
        /// How it computes.
        8 since 1 => arithmetic: Arithmetic,
        /// What follows on each element of the result.
        9 since 1 => program: Program,
    }
}

/// One spatial axis of a transposed convolution of known extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScatterAxis {
    input: usize,
    kernel: usize,
    output: usize,
    stride: i64,
    dilation: i64,
    /// Elements cut off before the axis.
    cut: i64,
}

impl ScatterAxis {
    /// Where input `position` puts tap `tap`, if the result has it.
    fn target(&self, position: usize, tap: usize) -> Option<usize> {
        let target = position as i64 * self.stride + tap as i64 * self.dilation - self.cut;
        usize::try_from(target).ok().filter(|&target| target < self.output)
    }
}

impl ConvolutionTranspose {
    fn check(&self, rank: Option<usize>) -> Result<(), TypeError> {
        check_list("strides", &self.strides, rank, 1)?;
        check_list("dilations", &self.dilations, rank, 1)?;
        check_list("pads", &self.pads, rank.map(|rank| 2 * rank), 0)?;
        check_list("output_padding", &self.output_padding, rank, 0)?;
        check_list("output_shape", &self.output_shape, rank, 0)?;
        if self.groups < 1 {
            return Err(value_error("`groups`", self.groups, "at least 1"));
        }
        if self.auto_pad.is_some() && self.pads.iter().any(|&pad| pad != 0) {
            return Err(value_error("`pads`", format!("{:?}", self.pads), "none beside `auto_pad`"));
        }
        Ok(())
    }

    /// Extent of what all kernels together cover along an axis.
    fn covered(&self, axis: usize, input: &Dim, kernel: &Dim) -> Dim {
        let spread = (input - 1) * at(&self.strides, axis, 1) + at(&self.output_padding, axis, 0);
        spread + (kernel - 1) * at(&self.dilations, axis, 1) + 1
    }

    /// The output extents of all spatial axes.
    fn extents(&self, input: &[Dim], kernel: &[Dim]) -> Result<Vec<Dim>, TypeError> {
        let rank = input.len();
        let extent = |axis: usize| {
            if let Some(&extent) = self.output_shape.get(axis) {
                return Ok(Dim::known(extent));
            }
            let covered = self.covered(axis, &input[axis], &kernel[axis]);
            let extent = match self.auto_pad {
                Some(AutoPad::SameUpper | AutoPad::SameLower) => &input[axis] * at(&self.strides, axis, 1),
                Some(AutoPad::Valid) => covered,
                None => covered - at(&self.pads, axis, 0) - at(&self.pads, rank + axis, 0),
            };
            if extent.as_known().is_some_and(|extent| extent < 0) || extent.is_refused() {
                return Err(value_error(format!("extent of spatial axis {axis}"), extent, "at least 0"));
            }
            Ok(extent)
        };
        (0..rank).map(extent).collect()
    }

    /// Elements cut off before an axis.
    fn cut(&self, axis: usize, input: usize, kernel: usize, output: i64) -> Option<i64> {
        let from_output = !self.output_shape.is_empty();
        match self.auto_pad {
            None | Some(AutoPad::Valid) if !from_output => return Some(at(&self.pads, axis, 0)),
            None | Some(AutoPad::Valid | AutoPad::SameUpper | AutoPad::SameLower) => {}
        }
        let covered = self.covered(axis, &Dim::from(input), &Dim::from(kernel)).as_known()?;
        let total = covered.checked_sub(output)?.max(0);
        Some(if self.auto_pad == Some(AutoPad::SameUpper) { total / 2 } else { total - total / 2 })
    }

    fn shape(&self, x: &Shape, w: &Shape, context: &mut InferContext<'_>) -> Result<Shape, TypeError> {
        for (operand, shape) in [x, w].into_iter().enumerate() {
            if let Some(found) = shape.rank().filter(|&rank| rank < 3) {
                return Err(TypeError::Rank { operand, expected: "at least 3".to_string(), found });
            }
        }
        let rank = x.rank().or(w.rank());
        self.check(rank.map(|rank| rank - 2))?;
        let (Shape::Ranked(x), Shape::Ranked(w)) = (x, w) else {
            let Some(rank) = rank else { return Ok(Shape::Unranked) };
            let mut dims = vec![x.dims().map_or_else(|| context.fresh("batch"), |dims| dims[0].clone())];
            dims.push(w.dims().map_or_else(|| context.fresh("filters"), |dims| &dims[1] * self.groups));
            dims.extend((2..rank).map(|axis| match self.output_shape.get(axis - 2) {
                Some(&extent) => Dim::known(extent),
                None => context.fresh(&format!("extent.{}", axis - 2)),
            }));
            return Ok(Shape::Ranked(dims));
        };
        if x.len() != w.len() {
            return Err(TypeError::Rank { operand: 1, expected: x.len().to_string(), found: w.len() });
        }
        context.require_equal(&x[1], &w[0], "channels of the convolution")?;
        require_multiple(&x[1], &Dim::known(self.groups), "channels of the convolution", context)?;
        let mut dims = vec![x[0].clone(), &w[1] * self.groups];
        dims.extend(self.extents(&x[2..], &w[2..])?);
        Ok(Shape::Ranked(dims))
    }

    /// The convolution of known shapes that this one is the transpose of: the shape of the result here, and windows
    /// whose outputs are elements of `x` and whose inputs are elements of the result.
    ///
    /// # Errors
    /// [`ReferenceError`] where the shapes do not fit.
    pub fn resolve(&self, x: &[usize], w: &[usize]) -> Result<(Vec<usize>, Vec<WindowAxis>), ReferenceError> {
        let plan = ScatterPlan::new(self, x, w)?;
        let window = |axis: &ScatterAxis| WindowAxis {
            input: axis.output,
            output: axis.input,
            kernel: axis.kernel,
            stride: axis.stride as usize,
            dilation: axis.dilation as usize,
            pad_begin: axis.cut as usize,
            pad_end: 0,
        };
        Ok((plan.shape, plan.axes.iter().map(window).collect()))
    }

    /// The loops of scattered kernels: over the batch, groups and their filters, and inside over what adds to the same
    /// elements of the result: channels, positions and taps.
    fn scatter_spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let (Some([batch, channels, image @ ..]), Some([_, filters, kernel @ ..]), Some([_, _, output @ ..])) =
            (facts.dims(0), facts.dims(1), facts.result(0))
        else {
            return loops::unknown(facts, 1);
        };
        if image.len() != kernel.len() || output.len() != kernel.len() {
            return loops::unknown(facts, 1);
        }
        let groups = Dim::known(self.groups);
        let group_channels = channels.divide_exact(&groups).unwrap_or_else(|| channels.floor_div(&groups));
        let mut nest = Loops::new(facts).parallel(batch, [loops::operand(0, 0), loops::result(0, 0)]);
        let strides = group_channels.as_known().zip(filters.as_known());
        let of_filters = [loops::operand(2, 0), loops::result(0, 1)];
        let of_channels = [loops::operand(0, 1), loops::operand(1, 0)];
        if let (2.., Some((channels, filters))) = (self.groups, strides) {
            let places = of_filters.map(|place| place.stride(filters)).into_iter();
            nest = nest.parallel(&groups, places.chain(of_channels.map(|place| place.stride(channels))));
        } else if self.groups > 1 {
            nest = nest.serial(&groups);
        }
        nest = match self.groups == 1 || strides.is_some() {
            true => nest
                .parallel(filters, of_filters.into_iter().chain([loops::operand(1, 1)]))
                .reduced(&group_channels, of_channels),
            false => nest.serial(filters).serial(&group_channels),
        };
        let cut = |axis: usize| {
            let known = |dim: &Dim| usize::try_from(dim.as_known()?).ok();
            self.cut(axis, known(&image[axis])?, known(&kernel[axis])?, output[axis].as_known()?)
        };
        for (axis, extent) in image.iter().enumerate() {
            let to = cut(axis).map(|cut| loops::result(0, axis + 2).stride(at(&self.strides, axis, 1)).offset(-cut));
            nest = nest.reduced(extent, to.into_iter().chain([loops::operand(0, axis + 2)]));
        }
        for (axis, extent) in kernel.iter().enumerate() {
            let to = cut(axis).map(|_| loops::result(0, axis + 2).stride(at(&self.dilations, axis, 1)));
            nest = nest.reduced(extent, to.into_iter().chain([loops::operand(1, axis + 2)]));
        }
        vec![nest.products(1)]
    }

    fn scatter_axes(&self, input: &[usize], kernel: &[usize]) -> Result<Vec<ScatterAxis>, TypeError> {
        let dims = |extents: &[usize]| -> Vec<Dim> { extents.iter().map(|&extent| Dim::from(extent)).collect() };
        let outputs = self.extents(&dims(input), &dims(kernel))?;
        (0..input.len())
            .map(|axis| {
                let too_large = || value_error("window", format!("{kernel:?} over {input:?}"), "one of 63-bit sizes");
                let output = outputs[axis].as_known().ok_or_else(too_large)?;
                // Every target position is below the covered extent, so that none overflows.
                self.covered(axis, &Dim::from(input[axis]), &Dim::from(kernel[axis]))
                    .as_known()
                    .ok_or_else(too_large)?;
                Ok(ScatterAxis {
                    input: input[axis],
                    kernel: kernel[axis],
                    output: usize::try_from(output).map_err(|_| too_large())?,
                    stride: at(&self.strides, axis, 1),
                    dilation: at(&self.dilations, axis, 1),
                    cut: self.cut(axis, input[axis], kernel[axis], output).ok_or_else(too_large)?,
                })
            })
            .collect()
    }
}

impl Operator for ConvolutionTranspose {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        let (found, w) = tensor_operand(inputs, 1)?;
        require_float(dtype, 0)?;
        require_same_type(1, found, dtype)?;
        let shape = self.shape(x, w, context)?;
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
        let plan = ScatterPlan::new(self, x.shape(), w.shape())?;
        let elements = |tensor| accumulators::<f64>(tensor, &self.arithmetic);
        let mut sums = plan.scatter(&elements(x)?, &elements(w)?, &self.arithmetic, &mut context.macs)?;
        add_bias(&mut sums, bias, x.dtype(), &plan.shape, &self.arithmetic)?;
        let scalars: Vec<_> = sums.into_iter().map(Accumulator::scalar).collect();
        let accumulator = self.arithmetic.accumulator_of(x.dtype());
        Ok(vec![self.program.finish(x.dtype(), accumulator, &scalars, &plan.shape, inputs)?.into()])
    }
}

impl Computes for ConvolutionTranspose {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        self.scatter_spaces(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        bias_additions(facts, 2)
    }
}

impl Product for ConvolutionTranspose {
    fn weight(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
        let (1, [channels, kernels @ ..]) = (operand, shape) else { return None };
        let groups = u64::try_from(self.groups).ok().filter(|&groups| groups > 0)?;
        let outputs = kernels.iter().try_fold(1u64, |outputs, extent| outputs.checked_mul(*extent))?;
        let inputs = channels / groups;
        (groups == 1 || outputs >= MINIMUM_GROUP_OUTPUTS).then_some(WeightMatrix {
            groups,
            inputs,
            outputs,
            output_axis: 1,
        })
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

/// How a transposed convolution of known shapes walks its operands.
struct ScatterPlan {
    axes: Vec<ScatterAxis>,
    /// Shape of the result.
    shape: Vec<usize>,
    x_shape: Vec<usize>,
    group_channels: usize,
    group_filters: usize,
    /// Extents of one kernel.
    kernel: Vec<usize>,
}

impl ScatterPlan {
    fn new(operator: &ConvolutionTranspose, x: &[usize], w: &[usize]) -> Result<ScatterPlan, ReferenceError> {
        let (&[batch, channels, ref input @ ..], &[weight_channels, group_filters, ref kernel @ ..]) = (x, w) else {
            return Err(TypeError::Rank { operand: 0, expected: "at least 3".to_string(), found: x.len() }.into());
        };
        if input.is_empty() || input.len() != kernel.len() {
            return Err(TypeError::Rank { operand: 1, expected: x.len().to_string(), found: w.len() }.into());
        }
        operator.check(Some(input.len()))?;
        let groups = usize::try_from(operator.groups).unwrap_or(1).max(1);
        if channels != weight_channels || !channels.is_multiple_of(groups) {
            return Err(TypeError::Dimension {
                subject: "channels of the convolution".to_string(),
                left: format!("{channels} channels"),
                right: format!("weights of {weight_channels} channels in {groups} groups"),
            }
            .into());
        }
        let axes = operator.scatter_axes(input, kernel)?;
        let too_large = || TensorError::TooLarge { dtype: DType::F64, shape: w.to_vec() };
        let filters = group_filters.checked_mul(groups).ok_or_else(too_large)?;
        let shape: Vec<usize> = [batch, filters].into_iter().chain(axes.iter().map(|axis| axis.output)).collect();
        Ok(ScatterPlan {
            axes,
            shape,
            x_shape: x.to_vec(),
            group_channels: channels / groups,
            group_filters,
            kernel: kernel.to_vec(),
        })
    }

    fn scatter(&self, x: &[f64], w: &[f64], arithmetic: &Arithmetic, macs: &mut u64) -> Result<Vec<f64>, TensorError> {
        let count = element_count(&self.shape).unwrap_or(0);
        let mut sums = listed(DType::F64, &self.shape)?;
        sums.resize(count, 0.0);
        let taps = volume(self.kernel.iter().copied());
        if count == 0 {
            *macs += volume([x.len(), self.group_filters, taps]) as u64;
            return Ok(sums);
        }
        let volume = volume(self.shape[2..].iter().copied());
        let mut flat = 0;
        for_each_index(&self.x_shape, |index| {
            let (batch, channel) = (index[0], index[1]);
            let element = x[flat];
            flat += 1;
            let group = channel / self.group_channels;
            for filter in 0..self.group_filters {
                let plane = (batch * self.shape[1] + group * self.group_filters + filter) * volume;
                let weights = (channel * self.group_filters + filter) * taps;
                let mut tap = 0;
                for_each_index(&self.kernel, |offsets| {
                    if let Some(target) = self.target(&index[2..], offsets) {
                        let sum = &mut sums[plane + target];
                        *sum = sum.plus(element * w[weights + tap], arithmetic);
                    }
                    tap += 1;
                    *macs += 1;
                });
            }
        });
        Ok(sums)
    }

    /// Flat spatial position in the result of a tap of an input position.
    fn target(&self, position: &[usize], tap: &[usize]) -> Option<usize> {
        self.axes.iter().enumerate().try_fold(0, |flat, (axis, scatter)| {
            Some(flat * scatter.output + scatter.target(position[axis], tap[axis])?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::ops::testing::macs;
    use crate::tensor::Tensor;

    fn plain() -> ConvolutionTranspose {
        ConvolutionTranspose {
            auto_pad: None,
            strides: vec![],
            dilations: vec![],
            pads: vec![],
            output_padding: vec![],
            output_shape: vec![],
            groups: 1,
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

    fn run(operator: &ConvolutionTranspose, x: Tensor, w: Tensor) -> Tensor {
        let inputs = [Some(Value::from(x)), Some(Value::from(w))];
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
        let result = run(&plain(), sequence(&[1, 1, 3]), ones(&[1, 2, 3]));
        assert_eq!(result.elements::<f32>().unwrap(), [0.0, 1.0, 3.0, 3.0, 2.0, 0.0, 1.0, 3.0, 3.0, 2.0]);
        let padded = ConvolutionTranspose { strides: vec![3, 2], pads: vec![1, 2, 1, 2], ..plain() };
        let result = run(&padded, sequence(&[1, 1, 3, 3]), ones(&[1, 1, 3, 3]));
        assert_eq!(result.shape(), [1, 1, 7, 3]);
        let rows: Vec<f32> = result.elements::<f32>().unwrap().chunks(3).map(|row| row[0]).collect();
        assert_eq!(rows, [1.0, 1.0, 7.0, 7.0, 7.0, 13.0, 13.0]);
    }

    #[test]
    fn an_output_shape_decides_the_padding() {
        let asked = ConvolutionTranspose { strides: vec![2], output_shape: vec![4], ..plain() };
        // Kernels cover 5 elements: [0, 0, 1, 1, 3 - 2]..; one is cut off in front.
        let result = run(&asked, sequence(&[1, 1, 2]), ones(&[1, 1, 3]));
        assert_eq!(result.elements::<f32>().unwrap(), [0.0, 1.0, 1.0, 1.0]);
        let upper = ConvolutionTranspose { auto_pad: Some(AutoPad::SameUpper), ..asked };
        let result = run(&upper, sequence(&[1, 1, 2]), ones(&[1, 1, 3]));
        assert_eq!(result.elements::<f32>().unwrap(), [0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn groups_and_output_padding() {
        let operator = ConvolutionTranspose { groups: 2, strides: vec![2], output_padding: vec![1], ..plain() };
        let w = Tensor::from_elements(&[2, 1, 2], &[1.0f32, 10.0, 100.0, 1000.0]).unwrap();
        let result = run(&operator, ones(&[1, 2, 2]), w);
        assert_eq!(result.shape(), [1, 2, 5]);
        let expected = [1.0, 10.0, 1.0, 10.0, 0.0, 100.0, 1000.0, 100.0, 1000.0, 0.0];
        assert_eq!(result.elements::<f32>().unwrap(), expected);
    }

    #[test]
    fn symbolic_extents() {
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("conv", &ranges, &mut blocks);
        let x = Fact::tensor(DType::F32, vec![Dim::known(1), Dim::known(3), Dim::symbol("t")]);
        let w = Fact::tensor(DType::F32, Shape::known(&[3, 4, 4]));
        let operator = ConvolutionTranspose { strides: vec![2], pads: vec![1, 1], ..plain() };
        let facts = operator.infer(&[Some(x.clone()), Some(w.clone())], &mut context).unwrap();
        assert_eq!(facts[0].dims().unwrap()[2], Dim::symbol("t") * 2);
        let bad = ConvolutionTranspose { output_padding: vec![-1], ..operator };
        assert_eq!(
            bad.infer(&[Some(x), Some(w)], &mut context).unwrap_err().to_string(),
            "a value of `output_padding` is -1, expected 0 to 2147483647"
        );
    }
}
