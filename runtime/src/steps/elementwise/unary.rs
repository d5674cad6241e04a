//! Functions of one operand, activations, limits.

use super::vectors::{self, Change};
use super::{load, reload};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use bytemuck::Pod;
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Element;
use ipuc_formats::ops::{Activation, Clamp, Unary, UnaryFunction};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::elements::{MapBlock, in_parts, map, map_block, map_in_place};
use ipuc_kernels::narrow::{Narrow, narrow, widen};

impl Kernel for Unary {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let mut input = tensor_operand(&mut operands, 0)?;
        self.function.check(input.dtype())?;
        let result = match input.dtype() {
            DType::F32 if self.function.is_test() => Some(tested(&input, self.function, context)?),
            DType::F32 | DType::F16 | DType::BF16 if !self.function.is_test() => {
                let mut floats = Floats { input: &mut input, context };
                vectors::unary(self.function).map(|change| floats.change(change)).transpose()?
            }
            DType::F64
                if !self.function.is_test() && !matches!(self.function, UnaryFunction::Not | UnaryFunction::BitNot) =>
            {
                let function = self.function;
                Some(elements(&mut input, context, F64_COST, move |x: f64| function.apply(x))?)
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

/// About how many operations a function of f64 costs.
const F64_COST: usize = 16;

/// `function` of each element, written over the input where possible.
fn elements<T: Pod + Send + Sync>(
    input: &mut Tensor,
    context: &mut Context<'_>,
    cost: usize,
    function: impl Fn(T) -> T + Sync,
) -> Result<Tensor, KernelError> {
    blocks(input, context, cost, &map_block(function))
}

/// A function of blocks of elements, written over the input where possible.
fn blocks<T: Pod + Send + Sync>(
    input: &mut Tensor,
    context: &mut Context<'_>,
    cost: usize,
    function: &MapBlock<'_, T, T>,
) -> Result<Tensor, KernelError> {
    if input.is_exclusive() {
        map_in_place(bytemuck::cast_slice_mut(input.bytes_mut()), cost, function);
        return Ok(input.clone());
    }
    let mut result = context.allocate(0, input.dtype(), input.shape())?;
    map(bytemuck::cast_slice_mut(result.bytes_mut()), bytemuck::cast_slice::<u8, T>(input.bytes()), cost, function);
    Ok(result)
}

/// A tensor of f32, f16 or bf16 and where its results go.
struct Floats<'a, 'c> {
    input: &'a mut Tensor,
    context: &'a mut Context<'c>,
}

/// Elements that are computed at once: as f32 they stay in the first-level cache.
const BLOCK: usize = 1024;

impl Floats<'_, '_> {
    /// A change of blocks of f32; narrow types are computed in f32 and rounded once more.
    fn change(&mut self, Change { cost, apply }: Change) -> Result<Tensor, KernelError> {
        let change: &(dyn Fn(&mut [f32]) + Sync) = &apply;
        match self.input.dtype() {
            DType::F16 => self.narrow::<f16>(cost, change),
            DType::BF16 => self.narrow::<bf16>(cost, change),
            _ if self.input.is_exclusive() => {
                in_parts(self.input.elements_mut::<f32>()?, cost, &|_, values| change(values));
                Ok(self.input.clone())
            }
            _ => {
                let mut result = self.context.allocate(0, DType::F32, self.input.shape())?;
                let copied = |out: &mut [f32], x: &[f32]| {
                    for (out, x) in out.chunks_mut(BLOCK).zip(x.chunks(BLOCK)) {
                        out.copy_from_slice(x);
                        change(out);
                    }
                };
                map(result.elements_mut()?, self.input.elements()?, cost, &copied);
                Ok(result)
            }
        }
    }

    fn narrow<T: Element + Narrow>(
        &mut self,
        cost: usize,
        change: &(dyn Fn(&mut [f32]) + Sync),
    ) -> Result<Tensor, KernelError> {
        let mut result = self.context.allocate(0, T::DTYPE, self.input.shape())?;
        let by_f32 = |out: &mut [T], x: &[T]| {
            let mut wide = [0f32; BLOCK];
            for (out, x) in out.chunks_mut(BLOCK).zip(x.chunks(BLOCK)) {
                let wide = &mut wide[..x.len()];
                widen(x, wide);
                change(wide);
                narrow(wide, out);
            }
        };
        map(result.elements_mut::<T>()?, self.input.elements::<T>()?, cost, &by_f32);
        Ok(result)
    }
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
        UnaryFunction::IsNan => map(out, x, 1, &map_block(|x: f32| u8::from(x.is_nan()))),
        UnaryFunction::IsInfinite => map(out, x, 1, &map_block(|x: f32| u8::from(x.is_infinite()))),
        other => map(out, x, 1, &map_block(move |x: f32| u8::from(other.apply_f32(x) != 0.0))),
    }
    Ok(result)
}

impl Kernel for Activation {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let mut input = tensor_operand(&mut operands, 0)?;
        // A parameter that the function has not is refused by the reference.
        let (alpha, beta) = self.function.defaults();
        let idle = (self.alpha.is_some() && alpha.is_none()) || (self.beta.is_some() && beta.is_none());
        if !idle && matches!(input.dtype(), DType::F32 | DType::F16 | DType::BF16) {
            let result = Floats { input: &mut input, context }.change(vectors::activation(self))?;
            return Ok(vec![result.into()]);
        }
        run_reference(self, reload([input]), context)
    }
}

/// Elements within bounds of their own type; `None` for other types.
fn limited(
    input: &mut Tensor,
    bounds: &[Option<Tensor>; 2],
    context: &mut Context<'_>,
) -> Result<Option<Tensor>, KernelError> {
    if bounds.iter().flatten().any(|bound| bound.dtype() != input.dtype()) {
        return Ok(None);
    }
    /// The bounds as numbers, others where one is absent.
    fn of<T: Element>(bounds: &[Option<Tensor>; 2], [least, greatest]: [T; 2]) -> Result<[T; 2], KernelError> {
        let number = |bound: &Option<Tensor>, absent: T| -> Result<T, KernelError> {
            let Some(bound) = bound else { return Ok(absent) };
            Ok(bound.elements::<T>()?.first().copied().unwrap_or(absent))
        };
        Ok([number(&bounds[0], least)?, number(&bounds[1], greatest)?])
    }
    macro_rules! of_integers {
        ($T:ty) => {{
            let [least, greatest] = of::<$T>(bounds, [<$T>::MIN, <$T>::MAX])?;
            Some(elements(input, context, 1, move |x: $T| x.max(least).min(greatest))?)
        }};
    }
    Ok(match input.dtype() {
        DType::I64 => of_integers!(i64),
        DType::I32 => of_integers!(i32),
        DType::I8 => of_integers!(i8),
        DType::U8 => of_integers!(u8),
        DType::F16 => {
            let [least, greatest] = of::<f16>(bounds, [f16::MIN, f16::MAX])?.map(f16::to_f32);
            let usual = !least.is_nan() && !greatest.is_nan();
            usual.then(|| Floats { input, context }.change(vectors::clamp(least, greatest))).transpose()?
        }
        _ => None,
    })
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
        if usual
            && let Some(Some(Value::Tensor(input))) = inputs.first_mut()
            && let Some(limited) = limited(input, &bounds, context)?
        {
            return Ok(vec![limited.into()]);
        }
        let operands = inputs.into_iter().map(|input| input.map_or(Operand::Absent, Operand::Value)).collect();
        run_reference(self, operands, context)
    }
}
