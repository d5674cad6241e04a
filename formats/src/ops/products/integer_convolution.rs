//! Convolutions of quantized integers: ONNX `ConvInteger` (opset 10) and the sums of `QLinearConv` (10).
//!
//! Zero points are subtracted first, so that padding is the zero point. Sums of integers of 8 bits wrap in 32 bits, as the
//! operator page allows; the program begins with them. Sums of wider ones, and of decoded codes, are as those of
//! `integer_matmul`.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::loops::{self, Loops};
use crate::ops::products::accumulate::{Accumulator, accumulators, require_same_type};
use crate::ops::products::blocked_convolution::transposed;
use crate::ops::products::convolution::{
    ConvolutionPlan, Grouped, add_bias, bias_additions, filter_matrix, require_vector,
};
use crate::ops::products::integer_matmul::{centring, rounded_sums, sums_of, sums_type};
use crate::ops::windows::{AutoPad, Windows, volume};
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Space,
    StepFacts, TypeError, VectorClass, WeightMatrix, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::{Tensor, TensorError};
use crate::value::Value;
use std::ops::SubAssign;

attributes! {
    /// `(x - x_zero_point) * (w - w_zero_point) + bias`: `x: [n, c, d..]`, `w: [m, c / groups, k..]` (i8, u8, i16 or u16 each;
    /// `w` may be f32, decoded codes without a zero point), optional zero points `[]` and `[]` or `[m]`, optional bias `[m]`
    /// (i32; of products of 8 bits only), to `[n, m, o..]` of i32 or what the program gives, which all but products of 8 bits
    /// have; further operands are the program's.
    pub struct IntegerConvolution revision 1 {
        /// Padding that follows from the extents; explicit where absent.
        1 since 1 => auto_pad: Option<AutoPad>,
        /// Distance of windows along each spatial axis; 1 where empty.
        2 since 1 => strides: Vec<i64>,
        /// Distance of taps along each spatial axis; 1 where empty.
        3 since 1 => dilations: Vec<i64>,
        /// Zero points before each spatial axis, then after each; 0 where empty.
        4 since 1 => pads: Vec<i64>,
        /// Channels and filters are in this many groups, which do not mix.
        5 since 1 => groups: i64,
        /// What follows on each element of the result.
        6 since 1 => program: Program,
        /// Channels lie side by side: the result is `[n, 1, o.., m]`, `x: [n, 1, d.., c]` and `w: [m, 1, k.., c]`. There is one
        /// group then, and no `auto_pad`.
        7 since 1 => channels_last: bool,
        /// With channels side by side: `x` is `[n, c, d..]` and `w` is `[m, c, k..]` all the same.
        8 since 1 => plain_inputs: bool,
    }
}

const BIAS: usize = 4;

impl IntegerConvolution {
    /// The walk over operands of these shapes.
    ///
    /// # Errors
    /// [`ReferenceError`] where they do not fit.
    pub fn resolve(&self, x: &[usize], w: &[usize]) -> Result<ConvolutionPlan, ReferenceError> {
        self.check()?;
        if !self.takes_channels_last() {
            return self.grouped().resolve(x, w);
        }
        let plain = |operand: usize, shape: &[usize]| match *shape {
            [first, 1, ref places @ .., channels] => Ok([&[first, channels], places].concat()),
            _ => Err(rank_error(operand, shape.len())),
        };
        self.grouped().resolve(&plain(0, x)?, &plain(1, w)?)
    }

    /// Require attributes that go together.
    fn check(&self) -> Result<(), TypeError> {
        if self.channels_last && (self.groups != 1 || self.auto_pad.is_some()) {
            return Err(TypeError::Unsupported("channels side by side in groups or with `auto_pad`".to_string()));
        }
        if self.plain_inputs && !self.channels_last {
            return Err(TypeError::Unsupported("`plain_inputs` without `channels_last`".to_string()));
        }
        Ok(())
    }

    /// The shape of the result whose walk this is.
    pub fn result_shape(&self, plan: &ConvolutionPlan) -> Vec<usize> {
        match (&plan.shape[..], self.channels_last) {
            (&[batch, filters, ref places @ ..], true) => [&[batch, 1], places, &[filters]].concat(),
            (shape, _) => shape.to_vec(),
        }
    }

    /// Whether channels of the operands lie side by side.
    fn takes_channels_last(&self) -> bool {
        self.channels_last && !self.plain_inputs
    }

    /// The shape of the result, and how many filters there are.
    fn infer_shape(
        &self,
        x: &Shape,
        w: &Shape,
        context: &mut InferContext<'_>,
    ) -> Result<(Shape, Option<Dim>), TypeError> {
        self.check()?;
        let shape = if self.takes_channels_last() {
            let (x, w) = (plain_shape(0, x, context)?, plain_shape(1, w, context)?);
            self.grouped().infer(&x, &w, context)?
        } else {
            self.grouped().infer(x, w, context)?
        };
        let filters = shape.dims().map(|dims| dims[1].clone());
        let shape = match shape {
            Shape::Ranked(dims) if self.channels_last => {
                Shape::Ranked([&[dims[0].clone(), Dim::ONE], &dims[2..], &[dims[1].clone()]].concat())
            }
            shape => shape,
        };
        Ok((shape, filters))
    }

    /// The elements of an operand less its zero point, with channels in plain order.
    fn plain<T: Accumulator + SubAssign>(
        &self,
        inputs: &[Option<Value>],
        operand: usize,
    ) -> Result<Vec<T>, ReferenceError> {
        let elements = centred::<T>(inputs, operand)?;
        if !self.takes_channels_last() {
            return Ok(elements);
        }
        Ok(plain_order(elements, tensor(inputs, operand)?.shape())?)
    }

    fn grouped(&self) -> Grouped<'_> {
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

/// An operand of channels side by side has too few axes.
fn rank_error(operand: usize, found: usize) -> TypeError {
    TypeError::Rank { operand, expected: "at least 4, the second of extent 1".to_string(), found }
}

/// The shape of an operand `[n, 1, d.., c]` with its channels in plain order: `[n, c, d..]`.
fn plain_shape(operand: usize, shape: &Shape, context: &mut InferContext<'_>) -> Result<Shape, TypeError> {
    let Some(dims) = shape.dims() else { return Ok(shape.clone()) };
    let [first, one, places @ .., channels] = dims else { return Err(rank_error(operand, dims.len())) };
    if places.is_empty() {
        return Err(rank_error(operand, dims.len()));
    }
    context.require_equal(one, &Dim::ONE, "blocks of channels")?;
    Ok(Shape::Ranked([&[first.clone(), channels.clone()], places].concat()))
}

/// Elements `[n, 1, d.., c]` with channels in plain order.
fn plain_order<T: Copy>(elements: Vec<T>, shape: &[usize]) -> Result<Vec<T>, TensorError> {
    let (&channels, places) = shape.split_last().unwrap_or((&1, &[]));
    let places = volume(places.iter().skip(2).copied());
    transposed(&elements, places, channels, shape)
}

/// A zero point has one element, or (where `filters` are given) one a filter.
fn check_zero_point(
    inputs: &[Option<Fact>],
    operand: usize,
    filters: Option<&Dim>,
    context: &mut InferContext<'_>,
) -> Result<(), TypeError> {
    if optional(inputs, operand + 2).is_none() {
        return Ok(());
    }
    let (dtype, _) = tensor_operand(inputs, operand)?;
    let (found, shape) = tensor_operand(inputs, operand + 2)?;
    require_same_type(operand + 2, found, dtype)?;
    match shape.dims() {
        None | Some([]) => Ok(()),
        Some([length]) if length.as_known() == Some(1) => Ok(()),
        Some([length]) if operand == 1 => match filters {
            Some(filters) => context.require_equal(filters, length, "number of zero points").map(|_| ()),
            None => Ok(()),
        },
        Some([length]) => context.require_equal(&Dim::ONE, length, "number of zero points").map(|_| ()),
        Some(dims) => Err(TypeError::Rank { operand: operand + 2, expected: "0 or 1".to_string(), found: dims.len() }),
    }
}

/// The elements of an operand less its zero point, of which there may be one an element of the first axis.
fn centred<T: Accumulator + SubAssign>(inputs: &[Option<Value>], operand: usize) -> Result<Vec<T>, ReferenceError> {
    let values: &Tensor = tensor(inputs, operand)?;
    let arithmetic = Arithmetic::default();
    let mut elements = accumulators::<T>(values, &arithmetic)?;
    let Some(zero_point) = optional_tensor(inputs, operand + 2)? else { return Ok(elements) };
    require_same_type(operand + 2, zero_point.dtype(), values.dtype())?;
    let offsets = accumulators::<T>(zero_point, &arithmetic)?;
    let per_filter = operand == 1 && zero_point.shape() == [values.shape()[0]];
    if offsets.len() != 1 && !per_filter {
        return Err(TypeError::Dimension {
            subject: format!("zero point of operand {operand}"),
            left: format!("{:?}", zero_point.shape()),
            right: format!("{:?}", values.shape()),
        }
        .into());
    }
    let each = elements.len() / offsets.len().max(1);
    for (index, element) in elements.iter_mut().enumerate() {
        *element -= offsets[index / each];
    }
    Ok(elements)
}

impl Operator for IntegerConvolution {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let ((_, x), (_, w)) = (tensor_operand(inputs, 0)?, tensor_operand(inputs, 1)?);
        let sums = sums_type(inputs, &self.program)?;
        if sums != DType::I32 && optional(inputs, BIAS).is_some() {
            return Err(TypeError::Unsupported(format!("a bias before sums are {sums}")));
        }
        let (shape, filters) = self.infer_shape(x, w, context)?;
        let filters = filters.as_ref();
        check_zero_point(inputs, 0, None, context)?;
        check_zero_point(inputs, 1, filters, context)?;
        require_vector(inputs, BIAS, DType::I32, filters, context)?;
        let dtype = self.program.infer(sums, sums, &shape, inputs, context)?;
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (x, w, bias) = (tensor(inputs, 0)?, tensor(inputs, 1)?, optional_tensor(inputs, BIAS)?);
        let dtype = sums_of(x.dtype(), w.dtype())?;
        let arithmetic = Arithmetic::default();
        let plan = self.resolve(x.shape(), w.shape())?;
        let shape = self.result_shape(&plan);
        let mut sums = if w.dtype().is_float() {
            let (x, w) = (self.plain::<f64>(inputs, 0)?, self.plain::<f64>(inputs, 1)?);
            rounded_sums(plan.convolve(&x, &w, &arithmetic, &mut context.macs)?, dtype)
        } else {
            let (x, w) = (self.plain::<i128>(inputs, 0)?, self.plain::<i128>(inputs, 1)?);
            let mut sums = plan.convolve(&x, &w, &arithmetic, &mut context.macs)?;
            add_bias(&mut sums, bias, DType::I32, &plan.shape, &arithmetic)?;
            rounded_sums(sums, dtype)
        };
        if self.channels_last {
            sums = transposed(&sums, plan.shape[1], volume(plan.shape[2..].iter().copied()), &shape)?;
        }
        Ok(vec![self.program.finish(dtype, dtype, &sums, &shape, inputs)?.into()])
    }
}

impl IntegerConvolution {
    /// Loops over a result `[n, 1, o.., m]`.
    fn spaces_of_last(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let (Some([_, channels, image @ ..]), Some([filters, _, kernel @ ..]), Some([batch, _, output @ .., _])) =
            (facts.dims(0), facts.dims(1), facts.result(0))
        else {
            return loops::unknown(facts, 1);
        };
        let last = output.len() + 2;
        let (channels, image, kernel, at) = match (image, kernel, self.plain_inputs) {
            (image, kernel, true) => (channels, image, kernel, 1),
            ([image @ .., channels], [kernel @ .., _], false) => (channels, image, kernel, last),
            (_, _, false) => return loops::unknown(facts, 1),
        };
        if image.len() != output.len() || kernel.len() != output.len() {
            return loops::unknown(facts, 1);
        }
        let mut nest = Loops::new(facts).parallel(batch, [loops::operand(0, 0), loops::result(0, 0)]);
        nest = nest.parallel(filters, [loops::operand(1, 0), loops::operand(BIAS, 0), loops::result(0, last)]);
        nest = self.grouped().window_loops(nest, image, kernel, output);
        nest = nest.reduced(channels, [loops::operand(0, at), loops::operand(1, at)]);
        vec![self.grouped().tap_loops(nest, image, kernel, output).products(1)]
    }
}

impl Computes for IntegerConvolution {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        if self.channels_last { self.spaces_of_last(facts) } else { self.grouped().spaces(facts, BIAS) }
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        [bias_additions(facts, BIAS), centring(facts)].concat()
    }
}

impl Product for IntegerConvolution {
    fn weight(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
        if operand == 1 { filter_matrix(shape, self.groups) } else { None }
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::default()
    }

    fn picked(&self) -> Option<Picked> {
        None
    }

    fn program(&self) -> Option<&Program> {
        Some(&self.program)
    }

    fn sums(&self, facts: &StepFacts<'_>) -> Option<DType> {
        sums_type(facts.inputs, &self.program).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run_optional;
    use crate::ops::{Argument, Function};

    fn plain() -> IntegerConvolution {
        let program = Program::default();
        IntegerConvolution {
            auto_pad: None,
            strides: vec![],
            dilations: vec![],
            pads: vec![],
            groups: 1,
            program,
            channels_last: false,
            plain_inputs: false,
        }
    }

    #[test]
    fn padding_is_the_zero_point() {
        let x = Some(Tensor::from_elements(&[1, 1, 3, 3], &[2u8, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap());
        let w = Some(Tensor::from_elements(&[1, 1, 2, 2], &[1u8, 1, 1, 1]).unwrap());
        let zero = Some(Tensor::scalar(1u8));
        let result = run_optional(&plain(), &[x.clone(), w.clone(), zero.clone()]).unwrap();
        assert_eq!(result.elements::<i32>().unwrap(), [12, 16, 24, 28]);
        let padded = IntegerConvolution { pads: vec![1; 4], ..plain() };
        let result = run_optional(&padded, &[x, w, zero]).unwrap();
        assert_eq!(result.elements::<i32>().unwrap(), [1, 3, 5, 3, 5, 12, 16, 9, 11, 24, 28, 15, 7, 15, 17, 9]);
    }

    #[test]
    fn wider_sums_begin_as_floats() {
        let mut program = Program::default();
        let value = program.push(Function::Cast, vec![Argument::Input], DType::F32);
        program.results.push(value);
        let op = IntegerConvolution { program, ..plain() };
        let x = Some(Tensor::from_elements(&[1, 1, 3], &[1i16, 1002, 3]).unwrap());
        let w = Some(Tensor::from_elements(&[1, 1, 2], &[0.5f32, 2.0]).unwrap());
        let zero = Some(Tensor::scalar(2i16));
        let result = run_optional(&op, &[x, w, zero]).unwrap();
        assert_eq!(result.elements::<f32>().unwrap(), [1999.5, 502.0]);
    }

    #[test]
    fn channels_side_by_side_are_those_of_planes() {
        let codes = |count: usize, seed: usize| (0..count).map(|at| (at * 37 + seed) as u8 ^ 0x5a).collect::<Vec<u8>>();
        // `[2, 3, 2, 3]` by `[5, 3, 2, 2]`, whose bias is that of the filters.
        let (x, w) = (codes(36, 1), codes(60, 2));
        let last = |elements: &[u8], shape: [usize; 4]| {
            let [first, channels, rows, columns] = shape;
            let elements = plain_order(elements.to_vec(), &[first, 1, channels, rows * columns]).unwrap();
            Some(Tensor::from_elements(&[first, 1, rows, columns, channels], &elements).unwrap())
        };
        let planes = |elements: &[u8], shape: [usize; 4]| Some(Tensor::from_elements(&shape, elements).unwrap());
        let bias = Some(Tensor::from_elements(&[5], &[10i32, 200, 3000, 0, -7]).unwrap());
        let padded = IntegerConvolution { pads: vec![1, 0, 0, 1], ..plain() };
        let ([x_shape, w_shape], zero) = ([[2, 3, 2, 3], [5, 3, 2, 2]], Some(Tensor::scalar(9u8)));
        let (plain_x, plain_w) = (planes(&x, x_shape), planes(&w, w_shape));
        let inputs = [plain_x.clone(), plain_w.clone(), zero.clone(), None, bias.clone()];
        let expected = run_optional(&padded, &inputs).unwrap();
        assert_eq!(expected.shape(), [2, 5, 2, 3]);
        let side_by_side = IntegerConvolution { channels_last: true, ..padded.clone() };
        let inputs = [last(&x, x_shape), last(&w, w_shape), zero.clone(), None, bias.clone()];
        let found = run_optional(&side_by_side, &inputs).unwrap();
        assert_eq!(found.shape(), [2, 1, 2, 3, 5]);
        let in_planes = plain_order(found.elements::<i32>().unwrap().to_vec(), found.shape()).unwrap();
        assert_eq!(in_planes, expected.elements::<i32>().unwrap());
        let of_planes = IntegerConvolution { plain_inputs: true, ..side_by_side.clone() };
        let inputs = [plain_x, plain_w, zero, None, bias];
        assert_eq!(
            run_optional(&of_planes, &inputs).unwrap().elements::<i32>().unwrap(),
            found.elements::<i32>().unwrap()
        );
        let refused = |op: IntegerConvolution| run_optional(&op, &inputs).unwrap_err().to_string();
        assert!(
            refused(IntegerConvolution { groups: 3, ..of_planes.clone() }).contains("channels side by side in groups")
        );
        assert!(refused(IntegerConvolution { channels_last: false, ..of_planes }).contains("`plain_inputs` without"));
        assert!(refused(side_by_side).contains("at least 4, the second of extent 1"));
    }

    #[test]
    fn zero_points_and_biases_of_filters() {
        let x = Some(Tensor::from_elements(&[1, 1, 2], &[1i8, 2]).unwrap());
        let w = Some(Tensor::from_elements(&[2, 1, 1], &[5u8, 5]).unwrap());
        let zeros = Some(Tensor::from_elements(&[2], &[5u8, 3]).unwrap());
        let bias = Some(Tensor::from_elements(&[2], &[100i32, i32::MAX]).unwrap());
        let result = run_optional(&plain(), &[x.clone(), w.clone(), None, zeros, bias]).unwrap();
        assert_eq!(result.elements::<i32>().unwrap(), [100, 100, i32::MIN + 1, i32::MIN + 3]);
        let wrong = Some(Tensor::from_elements(&[3], &[5u8, 3, 1]).unwrap());
        assert_eq!(
            run_optional(&plain(), &[x, w, None, wrong]).unwrap_err().to_string(),
            "zero point of operand 1: [3] does not fit [2, 1, 1]"
        );
    }
}
