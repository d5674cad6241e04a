//! Arithmetic, logic and bits of two operands.

use super::powers::{POWER_COST, Power};
use super::{reload, runs};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use bytemuck::Pod;
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Element;
use ipuc_formats::ops::broadcast::broadcast_extents;
use ipuc_formats::ops::{Binary, BinaryFunction};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::elements::{Runs, ZipBlock, zip, zip_block, zip_in_place};
use ipuc_kernels::elementwise::power::{Exponents, powers};
use ipuc_kernels::narrow;
use ipuc_kernels::simd::Instructions;

impl Kernel for Binary {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let mut pair = Pair { left: tensor_operand(&mut operands, 0)?, right: tensor_operand(&mut operands, 1)? };
        let result = match (pair.left.dtype(), pair.right.dtype()) {
            (left, right) if left != right => None,
            (DType::F32, _) => pair.float::<f32>(self.function, context)?,
            (DType::F64, _) => pair.float::<f64>(self.function, context)?,
            (DType::F16, _) => pair.float::<f16>(self.function, context)?,
            (DType::BF16, _) => pair.float::<bf16>(self.function, context)?,
            (DType::I64, _) => pair.integer::<i64>(self.function, context)?,
            (DType::I32, _) => pair.integer::<i32>(self.function, context)?,
            (DType::I16, _) => pair.integer::<i16>(self.function, context)?,
            (DType::I8, _) => pair.integer::<i8>(self.function, context)?,
            (DType::U64, _) => pair.integer::<u64>(self.function, context)?,
            (DType::U32, _) => pair.integer::<u32>(self.function, context)?,
            (DType::U16, _) => pair.integer::<u16>(self.function, context)?,
            (DType::U8, _) => pair.integer::<u8>(self.function, context)?,
            (DType::Bool, _) => pair.truth(self.function, context)?,
            _ => None,
        };
        match result {
            Some(result) => Ok(vec![result.into()]),
            None => run_reference(self, reload([pair.left, pair.right]), context),
        }
    }
}

/// A float that computes in itself or, where it is narrow, in f32: one operation in f32 rounds to 16 bits as the exact
/// result would.
trait Float: Element {
    type Wide: Copy;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn add(x: Self::Wide, y: Self::Wide) -> Self::Wide;
    fn sub(x: Self::Wide, y: Self::Wide) -> Self::Wide;
    fn mul(x: Self::Wide, y: Self::Wide) -> Self::Wide;
    fn div(x: Self::Wide, y: Self::Wide) -> Self::Wide;
    fn min(x: Self::Wide, y: Self::Wide) -> Self::Wide;
    fn max(x: Self::Wide, y: Self::Wide) -> Self::Wide;
    fn prelu(x: Self::Wide, y: Self::Wide) -> Self::Wide;
    fn to_f64(wide: Self::Wide) -> f64;
    fn from_f64(wide: f64) -> Self::Wide;
    /// A function over blocks, each result rounded once.
    fn block(
        function: impl Fn(Self::Wide, Self::Wide) -> Self::Wide + Sync,
    ) -> impl Fn(&mut [Self], &[Self], &[Self]) + Sync;
}

macro_rules! float {
    ($T:ty, $Wide:ty, $widen:expr, $narrow:expr, $block:path) => {
        impl Float for $T {
            type Wide = $Wide;
            #[inline(always)]
            fn widen(self) -> $Wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(wide: $Wide) -> Self {
                $narrow(wide)
            }
            #[inline(always)]
            fn add(x: $Wide, y: $Wide) -> $Wide {
                x + y
            }
            #[inline(always)]
            fn sub(x: $Wide, y: $Wide) -> $Wide {
                x - y
            }
            #[inline(always)]
            fn mul(x: $Wide, y: $Wide) -> $Wide {
                x * y
            }
            #[inline(always)]
            fn div(x: $Wide, y: $Wide) -> $Wide {
                x / y
            }
            #[inline(always)]
            fn min(x: $Wide, y: $Wide) -> $Wide {
                // NaN on either side comes out.
                if x < y || x.is_nan() { x } else { y }
            }
            #[inline(always)]
            fn max(x: $Wide, y: $Wide) -> $Wide {
                if x > y || x.is_nan() { x } else { y }
            }
            #[inline(always)]
            fn prelu(x: $Wide, y: $Wide) -> $Wide {
                if x < 0.0 { x * y } else { x }
            }
            #[inline(always)]
            fn to_f64(wide: $Wide) -> f64 {
                wide.into()
            }
            #[inline(always)]
            fn from_f64(wide: f64) -> $Wide {
                wide as $Wide
            }
            fn block(function: impl Fn($Wide, $Wide) -> $Wide + Sync) -> impl Fn(&mut [Self], &[Self], &[Self]) + Sync {
                $block(function)
            }
        }
    };
}
float!(f32, f32, |x| x, |x| x, zip_block);
float!(f64, f64, |x| x, |x| x, zip_block);
float!(f16, f32, f16::to_f32, f16::from_f32, narrow::zip_block);
float!(bf16, f32, bf16::to_f32, bf16::from_f32, narrow::zip_block);

/// An integer whose arithmetic wraps.
trait Integer: Element + Ord + Default {
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The divisor is not zero.
    fn div(self, other: Self) -> Self;
    /// The divisor is not zero.
    fn remainder(self, other: Self) -> Self;
    /// The divisor is not zero.
    fn modulo(self, other: Self) -> Self;
    /// 0 where the other is negative or at least the width.
    fn shift_left(self, other: Self) -> Self;
    /// Keeps the sign; 0 or -1 where the other is negative or at least the width.
    fn shift_right(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

macro_rules! integer {
    ($($T:ty)*) => { $(
        impl Integer for $T {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn sub(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn div(self, other: Self) -> Self { self.wrapping_div(other) }
            #[inline(always)]
            fn remainder(self, other: Self) -> Self { self.wrapping_rem(other) }
            #[inline(always)]
            fn modulo(self, other: Self) -> Self {
                let remainder = self.wrapping_rem(other);
                let zero = Self::default();
                if remainder != zero && (remainder < zero) != (other < zero) {
                    remainder.wrapping_add(other)
                } else {
                    remainder
                }
            }
            #[inline(always)]
            fn shift_left(self, other: Self) -> Self {
                // A negative number is a large one.
                if other as u64 >= u64::from(<$T>::BITS) { 0 } else { self << other }
            }
            #[inline(always)]
            fn shift_right(self, other: Self) -> Self {
                let most = <$T>::BITS - 1;
                if other as u64 > u64::from(most) {
                    if Self::MIN == 0 { 0 } else { self >> most }
                } else {
                    self >> other
                }
            }
            #[inline(always)]
            fn and(self, other: Self) -> Self { self & other }
            #[inline(always)]
            fn or(self, other: Self) -> Self { self | other }
            #[inline(always)]
            fn xor(self, other: Self) -> Self { self ^ other }
        }
    )* };
}
integer! { i64 i32 i16 i8 u64 u32 u16 u8 }

/// The two operands; one of them may become the result.
struct Pair {
    left: Tensor,
    right: Tensor,
}

type Outcome = Result<Option<Tensor>, KernelError>;

impl Pair {
    fn float<T: Float>(&mut self, function: BinaryFunction, context: &mut Context<'_>) -> Outcome {
        use BinaryFunction::*;
        match function {
            Add => self.wide::<T>(context, T::add),
            Sub => self.wide::<T>(context, T::sub),
            Mul => self.wide::<T>(context, T::mul),
            Div => self.wide::<T>(context, T::div),
            Min => self.wide::<T>(context, T::min),
            Max => self.wide::<T>(context, T::max),
            Prelu => self.wide::<T>(context, T::prelu),
            Pow => self.power::<T>(context),
            Modulo | Remainder => {
                let by_f64 = move |x, y| T::from_f64(function.apply(T::to_f64(x), T::to_f64(y)));
                self.elements(context, POWER_COST, move |x: T, y: T| T::narrow(by_f64(x.widen(), y.widen())))
            }
            And | Or | Xor | BitAnd | BitOr | BitXor | ShiftLeft | ShiftRight => Ok(None),
        }
    }

    fn wide<T: Float>(
        &mut self,
        context: &mut Context<'_>,
        function: impl Fn(T::Wide, T::Wide) -> T::Wide + Sync,
    ) -> Outcome {
        self.bytes(context, 1, &T::block(function))
    }

    /// The usual exponents have cheaper forms.
    fn power<T: Float>(&mut self, context: &mut Context<'_>) -> Outcome {
        let exponent = match self.right.elements::<T>()? {
            [exponent] => T::to_f64(exponent.widen()),
            _ => f64::NAN,
        };
        let power = Power::new(exponent);
        if T::DTYPE == DType::F32 {
            let instructions = Instructions::best();
            return match exponent.is_nan() {
                true => self.bytes(context, POWER_COST, &|out: &mut [f32], x: &[f32], y: &[f32]| {
                    powers(instructions, x, Exponents::Each(y), out);
                }),
                false => self.bytes(context, power.cost(), &|out: &mut [f32], x: &[f32], _: &[f32]| {
                    power.of_all(x, out);
                }),
            };
        }
        if exponent.is_nan() {
            let by_f64 = |x: T, y: T| T::from_f64(T::to_f64(x.widen()).powf(T::to_f64(y.widen())));
            return self.elements(context, POWER_COST, move |x: T, y: T| T::narrow(by_f64(x, y)));
        }
        let by_f64 = move |x: T, _: T| T::narrow(T::from_f64(power.of_f64(T::to_f64(x.widen()))));
        self.elements(context, power.cost(), by_f64)
    }

    fn integer<T: Integer>(&mut self, function: BinaryFunction, context: &mut Context<'_>) -> Outcome {
        use BinaryFunction::*;
        match function {
            Add => self.elements(context, 1, T::add),
            Sub => self.elements(context, 1, T::sub),
            Mul => self.elements(context, 1, T::mul),
            Min => self.elements(context, 1, T::min),
            Max => self.elements(context, 1, T::max),
            BitAnd => self.elements(context, 1, T::and),
            BitOr => self.elements(context, 1, T::or),
            BitXor => self.elements(context, 1, T::xor),
            // The reference says which divisor is zero.
            Div | Modulo | Remainder if self.right.elements::<T>()?.contains(&T::default()) => Ok(None),
            Div => self.elements(context, 8, T::div),
            Modulo => self.elements(context, 8, T::modulo),
            Remainder => self.elements(context, 8, T::remainder),
            ShiftLeft => self.elements(context, 2, T::shift_left),
            ShiftRight => self.elements(context, 2, T::shift_right),
            Pow | Prelu | And | Or | Xor => Ok(None),
        }
    }

    /// Bools are bytes that are 0 or 1.
    fn truth(&mut self, function: BinaryFunction, context: &mut Context<'_>) -> Outcome {
        use BinaryFunction::*;
        match function {
            And => self.bytes(context, 1, &zip_block(|x: u8, y: u8| x & y)),
            Or => self.bytes(context, 1, &zip_block(|x: u8, y: u8| x | y)),
            Xor => self.bytes(context, 1, &zip_block(|x: u8, y: u8| x ^ y)),
            Add | Sub | Mul | Div | Pow | Min | Max | Modulo | Remainder | Prelu | BitAnd | BitOr | BitXor
            | ShiftLeft | ShiftRight => Ok(None),
        }
    }

    fn elements<T: Element>(
        &mut self,
        context: &mut Context<'_>,
        cost: usize,
        function: impl Fn(T, T) -> T + Sync,
    ) -> Outcome {
        self.bytes(context, cost, &zip_block(function))
    }

    /// `function` over both operands, whose elements have the size of `T`; written over one of them where possible.
    fn bytes<T: Pod + Send + Sync>(
        &mut self,
        context: &mut Context<'_>,
        cost: usize,
        function: &ZipBlock<'_, T, T, T>,
    ) -> Outcome {
        if self.left.shape() == self.right.shape() && self.left.is_exclusive() {
            let runs = Runs::flat(self.left.count(), [true]);
            let out = bytemuck::cast_slice_mut(self.left.bytes_mut());
            zip_in_place(out, bytemuck::cast_slice::<u8, T>(self.right.bytes()), &runs, cost, function);
            return Ok(Some(self.left.clone()));
        }
        let extents = broadcast_extents(&[self.left.shape(), self.right.shape()])?;
        if self.left.shape() == extents && self.left.is_exclusive() {
            let runs = runs(&extents, [self.right.shape()]);
            let out = bytemuck::cast_slice_mut(self.left.bytes_mut());
            zip_in_place(out, bytemuck::cast_slice::<u8, T>(self.right.bytes()), &runs, cost, function);
            return Ok(Some(self.left.clone()));
        }
        if self.right.shape() == extents && self.right.is_exclusive() {
            let runs = runs(&extents, [self.left.shape()]);
            let out = bytemuck::cast_slice_mut(self.right.bytes_mut());
            let left = bytemuck::cast_slice::<u8, T>(self.left.bytes());
            zip_in_place(out, left, &runs, cost, &|out, right, left| function(out, left, right));
            return Ok(Some(self.right.clone()));
        }
        let mut result = context.allocate(0, self.left.dtype(), &extents)?;
        let runs = runs(&extents, [self.left.shape(), self.right.shape()]);
        let (left, right) = (self.left.bytes(), self.right.bytes());
        let (left, right) = (bytemuck::cast_slice::<u8, T>(left), bytemuck::cast_slice::<u8, T>(right));
        zip(bytemuck::cast_slice_mut(result.bytes_mut()), left, right, &runs, cost, function);
        Ok(Some(result))
    }
}
