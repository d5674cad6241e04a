//! How a product step computes: in which type it takes activations, in which it sums, and how it rounds.
//!
//! An attribute of matmul, convolution and attention; left out where it is [`Arithmetic::default`].

use crate::attribute::{Attribute, AttributeValue};
use crate::dtype::DType;
use crate::ops::scalar::round_to;

/// Arithmetic of a product step.
///
/// The default, f32 everywhere, means ONNX's own: operands as they are, floats summed in f32 or wider, integers exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arithmetic {
    /// Floating operands are rounded to this type before they are multiplied.
    pub activation: DType,
    /// Each partial sum is rounded to this type.
    pub accumulator: DType,
    /// How they are rounded.
    pub rounding: Rounding,
}

/// How a value between two numbers of a type is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub enum Rounding {
    /// To the nearest, ties to even.
    NearestEven,
    /// Towards zero.
    TowardZero,
}

impl Default for Arithmetic {
    fn default() -> Arithmetic {
        Arithmetic { activation: DType::F32, accumulator: DType::F32, rounding: Rounding::NearestEven }
    }
}

impl Arithmetic {
    /// Whether it is ONNX's own arithmetic.
    pub fn is_default(&self) -> bool {
        *self == Arithmetic::default()
    }

    /// An operand as it enters a multiplication.
    pub fn activation(&self, value: f64) -> f64 {
        self.round(self.activation, value)
    }

    /// A partial sum as it is kept.
    pub fn accumulator(&self, sum: f64) -> f64 {
        self.round(self.accumulator, sum)
    }

    fn round(&self, dtype: DType, value: f64) -> f64 {
        if dtype == DType::F32 && self.is_default() {
            return value;
        }
        let nearest = round_to(dtype, value);
        match self.rounding {
            Rounding::TowardZero if nearest.abs() > value.abs() => next_toward_zero(dtype, nearest),
            Rounding::TowardZero | Rounding::NearestEven => nearest,
        }
    }
}

/// The next smaller magnitude of a type; `value` is a number of the type other than zero.
fn next_toward_zero(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F16 => half::f16::from_bits(half::f16::from_f64(value).to_bits().wrapping_sub(1)).to_f64(),
        DType::BF16 => half::bf16::from_bits(half::bf16::from_f64(value).to_bits().wrapping_sub(1)).to_f64(),
        DType::F32 => f64::from(f32::from_bits((value as f32).to_bits().wrapping_sub(1))),
        _ => value,
    }
}

/// Types that round: the others are refused until there is arithmetic for them.
fn rounds(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
}

impl Attribute for Arithmetic {
    fn to_value(&self) -> Option<AttributeValue> {
        let rounding: &'static str = self.rounding.into();
        let texts = [self.activation.name(), self.accumulator.name(), rounding];
        (!self.is_default()).then(|| AttributeValue::Texts(texts.map(str::to_string).to_vec()))
    }

    fn from_value(value: &AttributeValue) -> Option<Self> {
        let AttributeValue::Texts(texts) = value else { return None };
        let [activation, accumulator, rounding] = texts.as_slice() else { return None };
        let arithmetic = Arithmetic {
            activation: crate::dtype::parse(activation)?,
            accumulator: crate::dtype::parse(accumulator)?,
            rounding: rounding.parse().ok()?,
        };
        (rounds(arithmetic.activation) && rounds(arithmetic.accumulator)).then_some(arithmetic)
    }

    fn absent() -> Option<Self> {
        Some(Arithmetic::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_left_out_and_others_round_trip() {
        assert_eq!(Arithmetic::default().to_value(), None);
        assert_eq!(Arithmetic::absent(), Some(Arithmetic::default()));
        let arithmetic =
            Arithmetic { activation: DType::BF16, accumulator: DType::F32, rounding: Rounding::TowardZero };
        let value = arithmetic.to_value().unwrap();
        assert_eq!(Arithmetic::from_value(&value), Some(arithmetic));
        let texts = |texts: [&str; 3]| AttributeValue::Texts(texts.map(str::to_string).to_vec());
        assert_eq!(value, texts(["bf16", "f32", "toward_zero"]));
        assert_eq!(Arithmetic::from_value(&texts(["i8", "i32", "nearest_even"])), None);
        assert_eq!(Arithmetic::from_value(&texts(["f32", "f32", "up"])), None);
    }

    #[test]
    fn values_are_rounded() {
        let third = 1.0 / 3.0;
        assert_eq!(Arithmetic::default().activation(third), third);
        let arithmetic = |rounding| Arithmetic { activation: DType::F16, accumulator: DType::F32, rounding };
        let nearest = arithmetic(Rounding::NearestEven);
        assert_eq!(nearest.activation(1.0 + 3.0 / 2048.0), 1.0 + 2.0 / 1024.0);
        assert_eq!(nearest.accumulator(third), f64::from(1.0f32 / 3.0));
        let zero = arithmetic(Rounding::TowardZero);
        assert_eq!(zero.activation(1.0 + 3.0 / 2048.0), 1.0 + 1.0 / 1024.0);
        assert_eq!(zero.activation(-(1.0 + 3.0 / 2048.0)), -(1.0 + 1.0 / 1024.0));
        assert_eq!(zero.activation(0.0), 0.0);
        // Rounding up would overflow; towards zero stays finite.
        assert_eq!(zero.activation(1e6), 65504.0);
    }
}
