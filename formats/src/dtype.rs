//! Element types: every data type of ONNX (IR version 14), under its ONNX number.

use std::fmt;
use std::str::FromStr;

/// The type of one tensor element.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    strum::IntoStaticStr,
    strum::EnumString,
    strum::FromRepr,
    strum::VariantArray,
)]
#[strum(serialize_all = "lowercase")]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = 1,
    /// Unsigned 8 bit.
    U8 = 2,
    /// Signed 8 bit.
    I8 = 3,
    /// Unsigned 16 bit.
    U16 = 4,
    /// Signed 16 bit.
    I16 = 5,
    /// Signed 32 bit.
    I32 = 6,
    /// Signed 64 bit.
    I64 = 7,
    /// UTF-8 text.
    String = 8,
    /// One byte, 0 or 1.
    Bool = 9,
    /// IEEE 754 binary16.
    F16 = 10,
    /// IEEE 754 binary64.
    F64 = 11,
    /// Unsigned 32 bit.
    U32 = 12,
    /// Unsigned 64 bit.
    U64 = 13,
    /// Two f32: real, imaginary.
    C64 = 14,
    /// Two f64: real, imaginary.
    C128 = 15,
    /// bfloat16.
    BF16 = 16,
    /// 8-bit float, 4 exponent bits, no infinities.
    F8E4M3FN = 17,
    /// 8-bit float, 4 exponent bits, no infinities, no negative zero.
    F8E4M3FNUZ = 18,
    /// 8-bit float, 5 exponent bits.
    F8E5M2 = 19,
    /// 8-bit float, 5 exponent bits, no infinities, no negative zero.
    F8E5M2FNUZ = 20,
    /// Unsigned 4 bit.
    U4 = 21,
    /// Signed 4 bit.
    I4 = 22,
    /// 4-bit float (OCP MX v1.0).
    F4E2M1 = 23,
    /// Power of two, the scale of microscaling formats (OCP MX v1.0).
    F8E8M0 = 24,
    /// Unsigned 2 bit.
    U2 = 25,
    /// Signed 2 bit.
    I2 = 26,
    /// 6-bit float, 2 exponent bits (OCP MX v1.0).
    F6E2M3 = 27,
    /// 6-bit float, 3 exponent bits (OCP MX v1.0).
    F6E3M2 = 28,
}

impl DType {
    /// The type with this `TensorProto.DataType` number; `None` for 0 (undefined) and unknown numbers.
    pub fn from_onnx(code: i32) -> Option<DType> {
        u8::try_from(code).ok().and_then(DType::from_repr)
    }

    /// The `TensorProto.DataType` number.
    pub fn onnx_code(self) -> i32 {
        i32::from(self as u8)
    }

    /// Bits of one stored element; 0 for strings, which have no fixed width.
    pub fn bits(self) -> usize {
        match self {
            DType::String => 0,
            DType::U2 | DType::I2 => 2,
            DType::U4 | DType::I4 | DType::F4E2M1 => 4,
            DType::F6E2M3 | DType::F6E3M2 => 6,
            DType::U8
            | DType::I8
            | DType::Bool
            | DType::F8E4M3FN
            | DType::F8E4M3FNUZ
            | DType::F8E5M2
            | DType::F8E5M2FNUZ
            | DType::F8E8M0 => 8,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 16,
            DType::F32 | DType::I32 | DType::U32 => 32,
            DType::I64 | DType::F64 | DType::U64 | DType::C64 => 64,
            DType::C128 => 128,
        }
    }

    /// Bytes of `count` packed elements; `None` on overflow and for strings.
    pub fn packed_bytes(self, count: usize) -> Option<usize> {
        match self.bits() {
            0 => None,
            bits if bits >= 8 => count.checked_mul(bits / 8),
            bits => Some((count / 8).checked_mul(bits)? + ((count % 8) * bits).div_ceil(8)),
        }
    }

    /// Elements share bytes (width under 8 bits).
    pub fn is_sub_byte(self) -> bool {
        matches!(self.bits(), 2 | 4 | 6)
    }

    /// A real floating-point type of any width.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16) || self.is_narrow_float()
    }

    /// A floating-point type of 8 bits or less, stored as a code.
    pub fn is_narrow_float(self) -> bool {
        matches!(
            self,
            DType::F8E4M3FN
                | DType::F8E4M3FNUZ
                | DType::F8E5M2
                | DType::F8E5M2FNUZ
                | DType::F4E2M1
                | DType::F8E8M0
                | DType::F6E2M3
                | DType::F6E3M2
        )
    }

    /// A signed or unsigned integer of any width (not bool).
    pub fn is_integer(self) -> bool {
        self.is_signed_integer() || self.is_unsigned_integer()
    }

    /// A signed integer of any width.
    pub fn is_signed_integer(self) -> bool {
        matches!(self, DType::I2 | DType::I4 | DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// An unsigned integer of any width.
    pub fn is_unsigned_integer(self) -> bool {
        matches!(self, DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }

    /// A complex type.
    pub fn is_complex(self) -> bool {
        matches!(self, DType::C64 | DType::C128)
    }

    /// The lower-case name of the text form, such as `f32` or `f8e4m3fn`.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The type of this lower-case name, or `None`.
pub fn parse(name: &str) -> Option<DType> {
    DType::from_str(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use strum::VariantArray;

    #[test]
    fn numbers_and_names_round_trip() {
        for &dtype in DType::VARIANTS {
            assert_eq!(DType::from_onnx(dtype.onnx_code()), Some(dtype));
            assert_eq!(parse(dtype.name()), Some(dtype));
        }
        assert_eq!(DType::from_onnx(0), None);
        assert_eq!(DType::from_onnx(29), None);
        assert_eq!(DType::from_onnx(257), None);
    }

    #[test]
    fn packed_sizes_round_up_to_bytes() {
        assert_eq!(DType::U4.packed_bytes(3), Some(2));
        assert_eq!(DType::I2.packed_bytes(5), Some(2));
        assert_eq!(DType::F6E2M3.packed_bytes(4), Some(3));
        assert_eq!(DType::F6E2M3.packed_bytes(5), Some(4));
        assert_eq!(DType::F32.packed_bytes(3), Some(12));
        assert_eq!(DType::F64.packed_bytes(usize::MAX), None);
        assert_eq!(DType::String.packed_bytes(1), None);
    }
}
