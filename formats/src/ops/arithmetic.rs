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
    /// How the left operand enters multiplications; of convolutions and attention, every operand.
    pub activation: Activations,
    /// Each partial sum is rounded to this type.
    pub accumulator: DType,
    /// How they are rounded.
    pub rounding: Rounding,
}

/// How activations enter multiplications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activations {
    /// Floating operands are rounded to this type.
    Rounded(DType),
    /// The rows of the left operand of a matrix product are quantized by their greatest magnitude (see
    /// [`dynamic_row`](crate::ops::dynamic_row)): with a scale for each `block` inputs, or one a row where that is 0.
    Dynamic {
        /// Type of the codes: i8.
        dtype: DType,
        /// Inputs that share a scale: a power of two from 16 on, or 0.
        block: u32,
    },
}

impl Activations {
    fn text(self) -> String {
        match self {
            Activations::Rounded(dtype) => dtype.name().to_string(),
            Activations::Dynamic { dtype, block } => format!("dynamic {dtype} {block}"),
        }
    }

    fn parse(text: &str) -> Option<Activations> {
        let Some(dynamic) = text.strip_prefix("dynamic ") else {
            return crate::dtype::parse(text).filter(|&dtype| rounds(dtype)).map(Activations::Rounded);
        };
        let (dtype, block) = dynamic.split_once(' ')?;
        let (dtype, block) = (crate::dtype::parse(dtype)?, block.parse::<u32>().ok()?);
        let in_blocks = block == 0 || (block.is_power_of_two() && block >= 16);
        (dtype == DType::I8 && in_blocks).then_some(Activations::Dynamic { dtype, block })
    }
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
        Arithmetic {
            activation: Activations::Rounded(DType::F32),
            accumulator: DType::F32,
            rounding: Rounding::NearestEven,
        }
    }
}

impl Arithmetic {
    /// The type of the sums of products of elements of type `dtype`: what a program begins with.
    pub fn accumulator_of(&self, dtype: DType) -> DType {
        // ONNX's own arithmetic sums integers exactly and f64 in f64.
        if dtype.is_integer() || (dtype == DType::F64 && self.is_default()) { dtype } else { self.accumulator }
    }

    /// Whether it is ONNX's own arithmetic.
    pub fn is_default(&self) -> bool {
        *self == Arithmetic::default()
    }

    /// The blocks of inputs that share a scale, where rows are quantized; 0 for whole rows.
    pub fn dynamic_block(&self) -> Option<u32> {
        match self.activation {
            Activations::Rounded(_) => None,
            Activations::Dynamic { block, .. } => Some(block),
        }
    }

    /// An operand as it enters a multiplication.
    pub fn activation(&self, value: f64) -> f64 {
        match self.activation {
            Activations::Rounded(dtype) => self.round(dtype, value),
            // Rows have been quantized as a whole.
            Activations::Dynamic { .. } => value,
        }
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
        let texts = vec![self.activation.text(), self.accumulator.to_string(), rounding.to_string()];
        (!self.is_default()).then_some(AttributeValue::Texts(texts))
    }

    fn from_value(value: &AttributeValue) -> Option<Self> {
        let AttributeValue::Texts(texts) = value else { return None };
        let [activation, accumulator, rounding] = texts.as_slice() else { return None };
        let arithmetic = Arithmetic {
            activation: Activations::parse(activation)?,
            accumulator: crate::dtype::parse(accumulator)?,
            rounding: rounding.parse().ok()?,
        };
        rounds(arithmetic.accumulator).then_some(arithmetic)
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
        let arithmetic = Arithmetic {
            activation: Activations::Rounded(DType::BF16),
            accumulator: DType::F32,
            rounding: Rounding::TowardZero,
        };
        let value = arithmetic.to_value().unwrap();
        assert_eq!(Arithmetic::from_value(&value), Some(arithmetic));
        let texts = |texts: [&str; 3]| AttributeValue::Texts(texts.map(str::to_string).to_vec());
        assert_eq!(value, texts(["bf16", "f32", "toward_zero"]));
        assert_eq!(Arithmetic::from_value(&texts(["i8", "i32", "nearest_even"])), None);
        let dynamic =
            Arithmetic { activation: Activations::Dynamic { dtype: DType::I8, block: 32 }, ..Arithmetic::default() };
        let value = texts(["dynamic i8 32", "f32", "nearest_even"]);
        assert_eq!((dynamic.to_value(), Arithmetic::from_value(&value)), (Some(value), Some(dynamic)));
        for wrong in ["dynamic i4 32", "dynamic i8 24", "dynamic i8", "dynamic i8 -1"] {
            assert_eq!(Arithmetic::from_value(&texts([wrong, "f32", "nearest_even"])), None, "{wrong}");
        }
        assert_eq!(Arithmetic::from_value(&texts(["f32", "f32", "up"])), None);
    }

    #[test]
    fn values_are_rounded() {
        let third = 1.0 / 3.0;
        assert_eq!(Arithmetic::default().activation(third), third);
        let arithmetic =
            |rounding| Arithmetic { activation: Activations::Rounded(DType::F16), accumulator: DType::F32, rounding };
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
