//! Rust types that stand for element types, and dispatch from one to the other.

use crate::dtype::DType;
use bytemuck::Pod;
pub use half::{bf16, f16};
use num_complex::Complex;

/// A plain-old-data Rust type that stores one element of [`Element::DTYPE`].
pub trait Element: Pod + PartialEq + std::fmt::Debug + Send + Sync {
    /// The element type that this Rust type stores.
    const DTYPE: DType;
}

/// A real number: every integer of 8 bits and more, f16, bf16, f32 and f64.
///
/// Arithmetic on integers wraps, as ONNX Runtime's does; f16 and bf16 are computed in f32 and rounded once.
pub trait Number: Element + PartialOrd + num_traits::NumCast {
    /// The value as f64 (inexact above 2^53).
    fn to_f64_lossy(self) -> f64;
    /// The nearest value of this type; saturates, NaN becomes 0 for integers.
    fn from_f64_lossy(value: f64) -> Self;
    /// True for integer types.
    const INTEGER: bool;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident,)*) => { $(
        impl Element for $rust { const DTYPE: DType = DType::$dtype; }
    )* };
}
elements! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
    Complex<f32> => C64, Complex<f64> => C128,
}

macro_rules! numbers {
    ($($rust:ty: $integer:literal,)*) => { $(
        impl Number for $rust {
            const INTEGER: bool = $integer;
            fn to_f64_lossy(self) -> f64 { num_traits::ToPrimitive::to_f64(&self).unwrap_or(f64::NAN) }
            fn from_f64_lossy(value: f64) -> Self { num_traits::AsPrimitive::<$rust>::as_(value) }
        }
    )* };
}
numbers! {
    u8: true, i8: true, u16: true, i16: true, u32: true, i32: true, u64: true, i64: true,
    f16: false, bf16: false, f32: false, f64: false,
}

/// Evaluate `$body` with `$T` bound to the Rust type of a number type; `$otherwise` for any other type.
///
/// `with_number!(dtype, T => sum::<T>(&tensor), otherwise Err(..))`
#[macro_export]
macro_rules! with_number {
    ($dtype:expr, $T:ident => $body:expr, otherwise $otherwise:expr) => {
        match $dtype {
            $crate::dtype::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::dtype::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::dtype::DType::U16 => {
                type $T = u16;
                $body
            }
            $crate::dtype::DType::I16 => {
                type $T = i16;
                $body
            }
            $crate::dtype::DType::U32 => {
                type $T = u32;
                $body
            }
            $crate::dtype::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::dtype::DType::U64 => {
                type $T = u64;
                $body
            }
            $crate::dtype::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::dtype::DType::F16 => {
                type $T = $crate::element::f16;
                $body
            }
            $crate::dtype::DType::BF16 => {
                type $T = $crate::element::bf16;
                $body
            }
            $crate::dtype::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::dtype::DType::F64 => {
                type $T = f64;
                $body
            }
            _ => $otherwise,
        }
    };
}
