//! Elements of any real type, one at a time: what references compute with.
//!
//! Integers are exact (128 bits hold every sum and product of two 64-bit ones before it wraps), floats are f64, which
//! rounds f16, bf16 and f32 results once. Leaves alone: strings and complex numbers.

use crate::dtype::DType;
use crate::element::{Element, Number};
use crate::narrow::{self, RoundMode};
use crate::ops::{ReferenceError, TypeError};
use crate::tensor::{Tensor, TensorError};
use crate::with_number;
use half::{bf16, f16};

/// One element: an integer or bool (0, 1), or a float.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// Of an integer type or bool.
    Integer(i128),
    /// Of a floating-point type.
    Float(f64),
}

impl Scalar {
    /// The nearest f64.
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::Integer(integer) => integer as f64,
            Scalar::Float(float) => float,
        }
    }

    /// Anything but zero; NaN is true.
    pub fn is_true(self) -> bool {
        match self {
            Scalar::Integer(integer) => integer != 0,
            Scalar::Float(float) => float != 0.0,
        }
    }

    /// An f64 that rounds to narrower types as the exact value would (see [`odd_f64`]).
    fn to_odd_f64(self) -> f64 {
        match self {
            Scalar::Integer(integer) => odd_f64(integer),
            Scalar::Float(float) => float,
        }
    }
}

/// An integer or floating-point type, of any width.
pub fn is_number(dtype: DType) -> bool {
    dtype.is_integer() || dtype.is_float()
}

/// Every element in row-major order.
///
/// # Errors
/// [`TypeError::Unsupported`] for strings and complex numbers.
pub fn scalars(tensor: &Tensor) -> Result<Vec<Scalar>, ReferenceError> {
    let dtype = tensor.dtype();
    if dtype.is_narrow_float() {
        let decode = |code| Scalar::Float(f64::from(narrow::decode(dtype, code)));
        return Ok(tensor.codes().into_iter().map(decode).collect());
    }
    if dtype == DType::Bool || dtype.is_sub_byte() {
        let integers = crate::fact::integers(tensor).unwrap_or_default();
        return Ok(integers.into_iter().map(|integer| Scalar::Integer(integer.into())).collect());
    }
    with_number!(
        dtype,
        T => Ok(tensor.elements::<T>()?.iter().map(|&element| widen(element)).collect()),
        otherwise Err(TypeError::Unsupported(format!("a real number of type {dtype}")).into())
    )
}

fn widen<T: Number>(element: T) -> Scalar {
    if T::INTEGER {
        Scalar::Integer(num_traits::ToPrimitive::to_i128(&element).unwrap_or(0))
    } else {
        Scalar::Float(element.to_f64_lossy())
    }
}

/// How values outside a narrow float type are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Narrowing {
    /// The greatest finite value instead of NaN or infinity.
    pub saturate: bool,
    /// Rounding towards f8e8m0.
    pub round: RoundMode,
}

impl Default for Narrowing {
    fn default() -> Narrowing {
        Narrowing { saturate: true, round: RoundMode::Up }
    }
}

/// A tensor of these values: integers wrap among integer types; floats are truncated towards them, and beyond their range
/// saturate at 32 and 64 bits and wrap at fewer (NaN gives 0), where ONNX leaves it open and this is what most do;
/// floating-point types take the nearest value, ties to even; bool is what is not zero.
///
/// # Errors
/// [`TypeError::Unsupported`] for strings and complex types; [`TensorError`] where the count is not the shape's.
pub fn from_scalars(dtype: DType, shape: &[usize], values: &[Scalar]) -> Result<Tensor, ReferenceError> {
    narrowed(dtype, shape, values, Narrowing::default())
}

/// [`from_scalars`] with a choice for narrow floats.
///
/// # Errors
/// As [`from_scalars`].
pub fn narrowed(
    dtype: DType,
    shape: &[usize],
    values: &[Scalar],
    narrowing: Narrowing,
) -> Result<Tensor, ReferenceError> {
    if dtype.bits() <= 8 && dtype != DType::String {
        let codes: Vec<u8> = values.iter().map(|&value| code_of(dtype, value, narrowing)).collect();
        return Ok(Tensor::from_codes(dtype, shape, &codes)?);
    }
    macro_rules! build {
        ($T:ty) => {
            build::<$T>(shape, values)?
        };
    }
    Ok(match dtype {
        DType::U16 => build!(u16),
        DType::I16 => build!(i16),
        DType::U32 => build!(u32),
        DType::I32 => build!(i32),
        DType::U64 => build!(u64),
        DType::I64 => build!(i64),
        DType::F16 => build!(f16),
        DType::BF16 => build!(bf16),
        DType::F32 => build!(f32),
        DType::F64 => build!(f64),
        other => return Err(TypeError::Unsupported(format!("a real number of type {other}")).into()),
    })
}

fn build<T: Element + FromScalar>(shape: &[usize], values: &[Scalar]) -> Result<Tensor, TensorError> {
    let elements: Vec<T> = values.iter().map(|&value| T::from_scalar(value)).collect();
    Tensor::from_elements(shape, &elements)
}

/// The stored bits of one value in a type of at most 8 bits.
fn code_of(dtype: DType, value: Scalar, narrowing: Narrowing) -> u8 {
    match (dtype, value) {
        (DType::Bool, value) => u8::from(value.is_true()),
        (_, value) if dtype.is_narrow_float() => {
            narrow::encode_f64(dtype, value.to_odd_f64(), narrowing.saturate, narrowing.round)
        }
        (_, Scalar::Integer(integer)) => integer as u8,
        (_, Scalar::Float(float)) => truncated(float) as u8,
    }
}

/// A float towards zero, 0 where no i64 holds it: what integers of up to 16 bits take the low bits of.
#[inline(always)]
pub fn truncated(float: f64) -> i64 {
    let integer = float as i64;
    if float.is_finite() && integer != i64::MAX && integer != i64::MIN { integer } else { 0 }
}

/// Conversion of one value to a Rust type.
trait FromScalar {
    fn from_scalar(value: Scalar) -> Self;
}

macro_rules! from_scalar {
    ($($T:ty)*) => { $(
        impl FromScalar for $T {
            fn from_scalar(value: Scalar) -> $T {
                match value {
                    Scalar::Integer(integer) => integer as $T,
                    Scalar::Float(float) => float as $T,
                }
            }
        }
    )* };
}
from_scalar! { u32 i32 u64 i64 f32 f64 }

macro_rules! from_scalar_low_bits {
    ($($T:ty)*) => { $(
        impl FromScalar for $T {
            fn from_scalar(value: Scalar) -> $T {
                match value {
                    Scalar::Integer(integer) => integer as $T,
                    Scalar::Float(float) => truncated(float) as $T,
                }
            }
        }
    )* };
}
from_scalar_low_bits! { u16 i16 }

impl FromScalar for f16 {
    fn from_scalar(value: Scalar) -> f16 {
        f16::from_f32(odd_f32(value.to_odd_f64()))
    }
}

impl FromScalar for bf16 {
    fn from_scalar(value: Scalar) -> bf16 {
        bf16::from_f32(odd_f32(value.to_odd_f64()))
    }
}

/// The value as the nearest number of a floating-point type; other types give it back.
pub fn round_to(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(value as f32),
        DType::F16 => f16::from_scalar(Scalar::Float(value)).to_f64(),
        DType::BF16 => bf16::from_scalar(Scalar::Float(value)).to_f64(),
        _ if dtype.is_narrow_float() => {
            f64::from(narrow::decode(dtype, narrow::encode_f64(dtype, value, true, RoundMode::Up)))
        }
        _ => value,
    }
}

/// The nearest value of an integer type.
pub fn saturate(dtype: DType, value: i128) -> Scalar {
    let bits = dtype.bits() as u32;
    let (least, greatest) = match dtype.is_signed_integer() {
        true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        false => (0, (1i128 << bits) - 1),
    };
    Scalar::Integer(value.clamp(least, greatest))
}

/// The nearest value of a type: integers take the nearest integer, halves to even, limited to their range, and 0 for NaN;
/// bool is what is not zero.
pub fn round_scalar(dtype: DType, value: Scalar) -> Scalar {
    match value {
        _ if dtype == DType::Bool => Scalar::Integer(i128::from(value.is_true())),
        Scalar::Integer(integer) if dtype.is_integer() => saturate(dtype, integer),
        // A float becomes the nearest i128, NaN 0.
        Scalar::Float(float) if dtype.is_integer() => saturate(dtype, float.round_ties_even() as i128),
        Scalar::Integer(integer) if dtype == DType::F32 => Scalar::Float(f64::from(integer as f32)),
        Scalar::Integer(integer) if dtype == DType::F64 => Scalar::Float(integer as f64),
        value => Scalar::Float(round_to(dtype, value.to_odd_f64())),
    }
}

/// Each value as [`from_scalars`] converts it.
///
/// # Errors
/// As [`from_scalars`].
pub fn convert(dtype: DType, values: &[Scalar]) -> Result<Vec<Scalar>, ReferenceError> {
    scalars(&from_scalars(dtype, &[values.len()], values)?)
}

/// The value of an element of an integer type, bool, f16, bf16, f32 or f64 from its bits; `None` for other types and where
/// bits are set that the type has not.
pub fn scalar_of_bits(dtype: DType, bits: u64) -> Option<Scalar> {
    let width = dtype.bits() as u32;
    if width == 0 || width > 64 || (width < 64 && bits >> width != 0) {
        return None;
    }
    match dtype {
        DType::F16 => Some(Scalar::Float(f16::from_bits(bits as u16).to_f64())),
        DType::BF16 => Some(Scalar::Float(bf16::from_bits(bits as u16).to_f64())),
        DType::F32 => Some(Scalar::Float(f32::from_bits(bits as u32).into())),
        DType::F64 => Some(Scalar::Float(f64::from_bits(bits))),
        DType::Bool if bits > 1 => None,
        _ if dtype.is_signed_integer() => {
            let unused = u64::BITS - width;
            Some(Scalar::Integer(i128::from(((bits << unused) as i64) >> unused)))
        }
        _ if dtype.is_unsigned_integer() || dtype == DType::Bool => Some(Scalar::Integer(bits.into())),
        _ => None,
    }
}

/// The bits of a value of one of these types, which holds it; `None` for other types.
pub fn bits_of_scalar(dtype: DType, value: Scalar) -> Option<u64> {
    match (dtype, value) {
        (DType::F16, value) => Some(f16::from_f64(value.to_f64()).to_bits().into()),
        (DType::BF16, value) => Some(bf16::from_f64(value.to_f64()).to_bits().into()),
        (DType::F32, value) => Some((value.to_f64() as f32).to_bits().into()),
        (DType::F64, value) => Some(value.to_f64().to_bits()),
        (DType::Bool, value) => Some(value.is_true().into()),
        (_, Scalar::Integer(integer)) if dtype.is_integer() => {
            Some(integer as u64 & (u64::MAX >> (u64::BITS - dtype.bits() as u32)))
        }
        _ => None,
    }
}

/// The f32 towards zero, with its last bit set where anything was cut off: rounding it to 22 or fewer bits gives what
/// rounding the f64 would have given, which rounding to the nearest f32 first does not.
pub fn odd_f32(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() {
        return nearest;
    }
    let below = if back.abs() > value.abs() { f32::from_bits(nearest.to_bits() - 1) } else { nearest };
    f32::from_bits(below.to_bits() | 1)
}

/// The f64 towards zero, with its last bit set where anything was cut off.
fn odd_f64(integer: i128) -> f64 {
    let magnitude = integer.unsigned_abs();
    let excess = (u128::BITS - magnitude.leading_zeros()).saturating_sub(f64::MANTISSA_DIGITS);
    let kept = magnitude >> excess << excess;
    let odd = if kept == magnitude { kept } else { kept | 1 << excess };
    let float = odd as f64;
    if integer < 0 { -float } else { float }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_exact_and_wrap() {
        let tensor = Tensor::from_elements(&[2], &[u64::MAX, 1 << 63]).unwrap();
        let values = scalars(&tensor).unwrap();
        assert_eq!(values[0], Scalar::Integer(u64::MAX.into()));
        assert_eq!(from_scalars(DType::U64, &[2], &values).unwrap(), tensor);
        let wrapped = from_scalars(DType::I8, &[2], &[Scalar::Integer(200), Scalar::Integer(-129)]).unwrap();
        assert_eq!(wrapped.elements::<i8>().unwrap(), [-56, 127]);
    }

    #[test]
    fn floats_beyond_integers() {
        let values = [300.7, -300.7, f64::NAN, 1.9, -1.9, f64::INFINITY].map(Scalar::Float);
        let bytes = from_scalars(DType::U8, &[6], &values).unwrap();
        assert_eq!(bytes.elements::<u8>().unwrap(), [44, 212, 0, 1, 255, 0]);
        let nibbles = from_scalars(DType::I4, &[6], &values).unwrap();
        assert_eq!(scalars(&nibbles).unwrap(), [-4, 4, 0, 1, -1, 0].map(Scalar::Integer));
        let shorts = from_scalars(DType::I16, &[2], &[-40_000.5, 1.5].map(Scalar::Float)).unwrap();
        assert_eq!(shorts.elements::<i16>().unwrap(), [25_536, 1]);
        let longs = from_scalars(DType::I64, &[6], &values).unwrap();
        assert_eq!(longs.elements::<i64>().unwrap(), [300, -300, 0, 1, -1, i64::MAX]);
    }

    #[test]
    fn halves_are_rounded_once() {
        // One bit above the tie between 1 and 1 + 2^-10: f32 rounds it to the tie, which then goes to even.
        let above_tie = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(round_to(DType::F16, above_tie), 1.0 + 2f64.powi(-10));
        assert_eq!(round_to(DType::F16, 1.0 + 2f64.powi(-11)), 1.0);
        assert_eq!(round_to(DType::BF16, -(1.0 + 2f64.powi(-8) + 2f64.powi(-40))), -(1.0 + 2f64.powi(-7)));
        let integer = Scalar::Integer((1 << 62) + (1 << 54) + 1);
        let rounded = from_scalars(DType::BF16, &[1], &[integer]).unwrap();
        assert_eq!(rounded.elements::<bf16>().unwrap()[0].to_f64(), 2f64.powi(62) + 2f64.powi(55));
        assert_eq!(round_to(DType::F16, 1e10), f64::INFINITY);
        assert_eq!(round_to(DType::F16, f64::NEG_INFINITY), f64::NEG_INFINITY);
        assert!(round_to(DType::BF16, f64::NAN).is_nan());
    }

    #[test]
    fn every_half_comes_back() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            let brain = bf16::from_bits(bits);
            assert!(half.is_nan() || f16::from_scalar(Scalar::Float(half.to_f64())) == half);
            assert!(brain.is_nan() || bf16::from_scalar(Scalar::Float(brain.to_f64())) == brain);
        }
    }
}
