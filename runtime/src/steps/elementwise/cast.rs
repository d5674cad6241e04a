//! Conversions between the usual number types.

use super::reload;
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Element;
use ipuc_formats::ops::Cast;
use ipuc_formats::ops::scalar::truncated;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::elements::{MapBlock, map, map_block};
use ipuc_kernels::narrow::{Narrow, narrow, widen};

impl Kernel for Cast {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let input = tensor_operand(&mut operands, 0)?;
        if input.dtype() == self.to {
            return Ok(vec![input.into()]);
        }
        let result = match input.dtype() {
            DType::F32 => from_f32(&input, self.to, context)?,
            DType::F64 => from_f64(&input, self.to, context)?,
            DType::F16 => from_half(&input, self.to, context, f16::to_f32)?,
            DType::BF16 => from_half(&input, self.to, context, bf16::to_f32)?,
            DType::I64 => from_integer(&input, self.to, context, |x: i64| x)?,
            DType::I32 => from_integer(&input, self.to, context, |x: i32| i64::from(x))?,
            DType::I8 => from_integer(&input, self.to, context, |x: i8| i64::from(x))?,
            DType::U8 => from_integer(&input, self.to, context, |x: u8| i64::from(x))?,
            // Stored as a byte that is 0 or 1.
            DType::Bool if self.to == DType::U8 => Some(input.reinterpreted(DType::U8)?),
            DType::Bool => from_integer(&input.reinterpreted(DType::U8)?, self.to, context, |x: u8| i64::from(x))?,
            _ => None,
        };
        match result {
            Some(result) => Ok(vec![result.into()]),
            None => run_reference(self, reload([input]), context),
        }
    }
}

type Outcome = Result<Option<Tensor>, KernelError>;

fn to<A: Element, B: Element>(input: &Tensor, context: &mut Context<'_>, convert: impl Fn(A) -> B + Sync) -> Outcome {
    blocks(input, context, &map_block(convert))
}

fn blocks<A: Element, B: Element>(input: &Tensor, context: &mut Context<'_>, convert: &MapBlock<'_, B, A>) -> Outcome {
    let mut result = context.allocate(0, B::DTYPE, input.shape())?;
    map(result.elements_mut::<B>()?, input.elements::<A>()?, 1, convert);
    Ok(Some(result))
}

fn to_bool<A: Element>(input: &Tensor, context: &mut Context<'_>, truth: impl Fn(A) -> bool + Sync) -> Outcome {
    let mut result = context.allocate(0, DType::Bool, input.shape())?;
    map(result.bytes_mut(), input.elements::<A>()?, 1, &map_block(|x| u8::from(truth(x))));
    Ok(Some(result))
}

/// The low byte of what [`truncated`] gives, in operations that lanes have.
#[inline(always)]
fn low_byte(x: f32) -> u8 {
    // From 2^31 on the last of the 24 bits of a float counts 256 or more. NaN becomes 0.
    let is_multiple = x.abs() >= 2_147_483_648.0;
    if is_multiple { 0 } else { x as i32 as u8 }
}

fn from_f32(input: &Tensor, dtype: DType, context: &mut Context<'_>) -> Outcome {
    match dtype {
        DType::F64 => to(input, context, |x: f32| f64::from(x)),
        DType::F16 => blocks(input, context, &|out: &mut [f16], x: &[f32]| narrow(x, out)),
        DType::BF16 => blocks(input, context, &|out: &mut [bf16], x: &[f32]| narrow(x, out)),
        DType::I64 => to(input, context, |x: f32| x as i64),
        DType::I32 => to(input, context, |x: f32| x as i32),
        DType::I8 => to(input, context, |x: f32| low_byte(x) as i8),
        DType::U8 => to(input, context, low_byte),
        DType::Bool => to_bool(input, context, |x: f32| x != 0.0),
        _ => Ok(None),
    }
}

fn from_f64(input: &Tensor, dtype: DType, context: &mut Context<'_>) -> Outcome {
    match dtype {
        DType::F32 => to(input, context, |x: f64| x as f32),
        DType::I64 => to(input, context, |x: f64| x as i64),
        DType::I32 => to(input, context, |x: f64| x as i32),
        DType::I8 => to(input, context, |x: f64| truncated(x) as i8),
        DType::U8 => to(input, context, |x: f64| truncated(x) as u8),
        DType::Bool => to_bool(input, context, |x: f64| x != 0.0),
        _ => Ok(None),
    }
}

fn from_half<A: Element + Narrow>(
    input: &Tensor,
    dtype: DType,
    context: &mut Context<'_>,
    wide: fn(A) -> f32,
) -> Outcome {
    match dtype {
        DType::F32 => blocks(input, context, &|out: &mut [f32], x: &[A]| widen(x, out)),
        DType::F64 => to(input, context, |x| f64::from(wide(x))),
        DType::F16 => to(input, context, |x| f16::from_f32(wide(x))),
        DType::BF16 => to(input, context, |x| bf16::from_f32(wide(x))),
        DType::I64 => to(input, context, |x| wide(x) as i64),
        DType::I32 => to(input, context, |x| wide(x) as i32),
        DType::I8 => to(input, context, |x| low_byte(wide(x)) as i8),
        DType::U8 => to(input, context, |x| low_byte(wide(x))),
        DType::Bool => to_bool(input, context, |x| wide(x) != 0.0),
        _ => Ok(None),
    }
}

fn from_integer<A: Element>(
    input: &Tensor,
    dtype: DType,
    context: &mut Context<'_>,
    wide: impl Fn(A) -> i64 + Sync,
) -> Outcome {
    match dtype {
        DType::F32 => to(input, context, |x| wide(x) as f32),
        DType::F64 => to(input, context, |x| wide(x) as f64),
        // Where f32 rounds, f16 is infinite.
        DType::F16 => to(input, context, |x| f16::from_f32(wide(x) as f32)),
        // Where f32 does not round.
        DType::BF16 if A::DTYPE.bits() <= 16 => to(input, context, |x| bf16::from_f32(wide(x) as f32)),
        DType::I64 => to(input, context, wide),
        DType::I32 => to(input, context, |x| wide(x) as i32),
        DType::I8 => to(input, context, |x| wide(x) as i8),
        DType::U8 => to(input, context, |x| wide(x) as u8),
        DType::Bool => to_bool(input, context, |x| wide(x) != 0),
        _ => Ok(None),
    }
}
