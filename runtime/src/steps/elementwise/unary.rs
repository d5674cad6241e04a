//! Functions of one operand, activations, limits.

use super::{load, reload};
use crate::kernels::elements::{map, map_in_place};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use bytemuck::Pod;
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Activation, ActivationFunction, Clamp, Unary, UnaryFunction};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;

/// Operations that an exponential or the like costs.
const TRANSCENDENTAL_COST: usize = 16;

impl Kernel for Unary {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let mut input = tensor_operand(&mut operands, 0)?;
        self.function.check(input.dtype())?;
        let result = match input.dtype() {
            DType::F32 if self.function.is_test() => Some(tested(&input, self.function, context)?),
            DType::F32 => Some(unary_f32(&mut input, self.function, context)?),
            DType::F16 if !self.function.is_test() => {
                Some(through_f32(&mut input, self.function, context, f16::to_f32, f16::from_f32)?)
            }
            DType::BF16 if !self.function.is_test() => {
                Some(through_f32(&mut input, self.function, context, bf16::to_f32, bf16::from_f32)?)
            }
            DType::I64 => integers(&mut input, self.function, context, i64::wrapping_neg, i64::wrapping_abs)?,
            DType::I32 => integers(&mut input, self.function, context, i32::wrapping_neg, i32::wrapping_abs)?,
            DType::Bool if self.function == UnaryFunction::Not => {
                Some(elements(&mut input, context, 1, |x: u8| x ^ 1)?)
            }
            _ => None,
        };
        match result {
            Some(result) => Ok(vec![result.into()]),
            None => run_reference(self, reload([input]), context),
        }
    }
}

/// `function` of each element, written over the input where possible.
fn elements<T: Pod + Send + Sync>(
    input: &mut Tensor,
    context: &mut Context<'_>,
    cost: usize,
    function: impl Fn(T) -> T + Sync,
) -> Result<Tensor, KernelError> {
    if input.is_exclusive() {
        map_in_place(bytemuck::cast_slice_mut(input.bytes_mut()), cost, function);
        return Ok(input.clone());
    }
    let mut result = context.allocate(0, input.dtype(), input.shape())?;
    map(bytemuck::cast_slice_mut(result.bytes_mut()), bytemuck::cast_slice::<u8, T>(input.bytes()), cost, function);
    Ok(result)
}

fn unary_f32(input: &mut Tensor, function: UnaryFunction, context: &mut Context<'_>) -> Result<Tensor, KernelError> {
    use UnaryFunction::*;
    match function {
        Abs => elements(input, context, 1, f32::abs),
        Neg => elements(input, context, 1, |x: f32| -x),
        Sign => elements(input, context, 1, |x: f32| if x == 0.0 || x.is_nan() { x } else { 1f32.copysign(x) }),
        Sqrt => elements(input, context, 2, f32::sqrt),
        Reciprocal => elements(input, context, 2, f32::recip),
        Ceil => elements(input, context, 1, f32::ceil),
        Floor => elements(input, context, 1, f32::floor),
        Round => elements(input, context, 1, f32::round_ties_even),
        Exp => elements(input, context, TRANSCENDENTAL_COST, f32::exp),
        Log => elements(input, context, TRANSCENDENTAL_COST, f32::ln),
        Sin => elements(input, context, TRANSCENDENTAL_COST, f32::sin),
        Cos => elements(input, context, TRANSCENDENTAL_COST, f32::cos),
        Tanh => elements(input, context, TRANSCENDENTAL_COST, f32::tanh),
        Erf | Tan | Asin | Acos | Atan | Sinh | Cosh | Asinh | Acosh | Atanh | Not | BitNot | IsNan | IsInfinite
        | IsPositiveInfinity | IsNegativeInfinity => {
            elements(input, context, TRANSCENDENTAL_COST, move |x| function.apply_f32(x))
        }
    }
}

/// Computed in f32 and rounded once more, which is within half a unit of the narrow type.
fn through_f32<T: Pod + Send + Sync>(
    input: &mut Tensor,
    function: UnaryFunction,
    context: &mut Context<'_>,
    widen: fn(T) -> f32,
    narrow: fn(f32) -> T,
) -> Result<Tensor, KernelError> {
    elements(input, context, TRANSCENDENTAL_COST, move |x| narrow(function.apply_f32(widen(x))))
}

fn integers<T: Pod + Send + Sync>(
    input: &mut Tensor,
    function: UnaryFunction,
    context: &mut Context<'_>,
    negate: fn(T) -> T,
    magnitude: fn(T) -> T,
) -> Result<Option<Tensor>, KernelError> {
    match function {
        UnaryFunction::Neg => elements(input, context, 1, negate).map(Some),
        UnaryFunction::Abs => elements(input, context, 1, magnitude).map(Some),
        _ => Ok(None),
    }
}

fn tested(input: &Tensor, function: UnaryFunction, context: &mut Context<'_>) -> Result<Tensor, KernelError> {
    let mut result = context.allocate(0, DType::Bool, input.shape())?;
    let (out, x) = (result.bytes_mut(), input.elements::<f32>()?);
    match function {
        UnaryFunction::IsNan => map(out, x, 1, |x| u8::from(x.is_nan())),
        UnaryFunction::IsInfinite => map(out, x, 1, |x| u8::from(x.is_infinite())),
        other => map(out, x, 1, move |x| u8::from(other.apply_f32(x) != 0.0)),
    }
    Ok(result)
}

impl Kernel for Activation {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let mut input = tensor_operand(&mut operands, 0)?;
        // A parameter that the function has not is refused by the reference.
        let (alpha, beta) = self.function.defaults();
        let idle = (self.alpha.is_some() && alpha.is_none()) || (self.beta.is_some() && beta.is_none());
        let result = match input.dtype() {
            _ if idle => None,
            DType::F32 => Some(activation_f32(&mut input, self, context)?),
            DType::F16 => {
                let function = |x: f16| f16::from_f32(self.apply_f32(x.to_f32()));
                Some(elements(&mut input, context, TRANSCENDENTAL_COST, function)?)
            }
            DType::BF16 => {
                let function = |x: bf16| bf16::from_f32(self.apply_f32(x.to_f32()));
                Some(elements(&mut input, context, TRANSCENDENTAL_COST, function)?)
            }
            _ => None,
        };
        match result {
            Some(result) => Ok(vec![result.into()]),
            None => run_reference(self, reload([input]), context),
        }
    }
}

fn activation_f32(
    input: &mut Tensor,
    activation: &Activation,
    context: &mut Context<'_>,
) -> Result<Tensor, KernelError> {
    use ActivationFunction::*;
    let (alpha, beta) = activation.parameters();
    // Comparisons keep NaN.
    let limit = |x: f32| {
        if x < 0.0 {
            0.0
        } else if x > 1.0 {
            1.0
        } else {
            x
        }
    };
    match activation.function {
        Relu => elements(input, context, 1, |x: f32| if x < 0.0 { 0.0 } else { x }),
        LeakyRelu => elements(input, context, 1, |x: f32| if x < 0.0 { alpha * x } else { x }),
        ThresholdedRelu => elements(input, context, 1, |x: f32| if x <= alpha { 0.0 } else { x }),
        HardSigmoid => elements(input, context, 1, |x: f32| limit(alpha * x + beta)),
        HardSwish => elements(input, context, 1, |x: f32| x * limit(x * (1.0 / 6.0) + 0.5)),
        Softsign => elements(input, context, 2, |x: f32| x / (1.0 + x.abs())),
        Affine => elements(input, context, 1, |x: f32| alpha * x + beta),
        Sigmoid => elements(input, context, TRANSCENDENTAL_COST, |x: f32| 1.0 / (1.0 + (-x).exp())),
        Swish => elements(input, context, TRANSCENDENTAL_COST, |x: f32| x / (1.0 + (-alpha * x).exp())),
        Softplus | Mish | Gelu | GeluTanh | Elu | Celu | Selu | Shrink | ScaledTanh => {
            elements(input, context, TRANSCENDENTAL_COST, |x| activation.apply_f32(x))
        }
    }
}

impl Kernel for Clamp {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let mut inputs = load(operands)?;
        let single = |operand: usize| match inputs.get(operand) {
            Some(Some(Value::Tensor(bound))) if bound.count() == 1 && bound.rank() <= 1 => Some(bound.clone()),
            _ => None,
        };
        let absent = |operand: usize| !matches!(inputs.get(operand), Some(Some(_)));
        let bounds = [single(1), single(2)];
        let usual = (bounds[0].is_some() || absent(1)) && (bounds[1].is_some() || absent(2));
        let f32_bound = |bound: &Option<Tensor>, absent: f32| match bound {
            None => Some(absent),
            Some(bound) => bound.elements::<f32>().ok().and_then(|elements| elements.first().copied()),
        };
        let limits = (f32_bound(&bounds[0], f32::MIN), f32_bound(&bounds[1], f32::MAX));
        if let (true, (Some(minimum), Some(maximum)), Some(Some(Value::Tensor(input)))) =
            (usual, limits, inputs.get_mut(0))
            && input.dtype() == DType::F32
            && !minimum.is_nan()
            && !maximum.is_nan()
        {
            let limited = elements(input, context, 1, |x: f32| {
                let x = if x < minimum { minimum } else { x };
                if x > maximum { maximum } else { x }
            })?;
            return Ok(vec![limited.into()]);
        }
        let operands = inputs.into_iter().map(|input| input.map_or(Operand::Absent, Operand::Value)).collect();
        run_reference(self, operands, context)
    }
}
