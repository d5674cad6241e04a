//! Parameters of coded elements: scales, zero points and sums, stored beside the codes that they belong to.

use crate::attribute::{Attribute, AttributeValue};
use crate::dtype::{self, DType};

/// Parameters of one kind: one element for each block of inputs of each output.
///
/// The canonical elements of a plane are `[groups, outputs, blocks]` where the weight is `[groups, outputs, inputs]`,
/// `[groups, blocks, outputs]` where it is `[groups, inputs, outputs]`, and `[groups, outputs]` with a block of 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Plane {
    /// What it holds.
    pub role: PlaneRole,
    /// Element type.
    pub dtype: DType,
    /// Inputs that share one element: a power of two from 16 to 256, or 0 for all inputs.
    pub block: u64,
}

impl Plane {
    /// Blocks of this many inputs.
    pub fn blocks(&self, inputs: u64) -> u64 {
        if self.block == 0 { 1 } else { inputs.div_ceil(self.block) }
    }

    /// Whether an encoding may have it.
    pub(super) fn is_supported(&self) -> bool {
        let block = self.block == 0 || (self.block.is_power_of_two() && (16..=256).contains(&self.block));
        let float = matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16);
        block
            && match self.role {
                PlaneRole::Scale => float || matches!(self.dtype, DType::F8E8M0 | DType::F8E4M3FN),
                PlaneRole::ZeroPoint => float || (self.dtype.is_integer() && self.dtype.bits() <= 8),
                PlaneRole::Sum => self.dtype == DType::I32 && self.block == 0,
            }
    }
}

/// What a plane holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub enum PlaneRole {
    /// Factors.
    Scale,
    /// What is subtracted from codes.
    ZeroPoint,
    /// Sums of the codes of all inputs, which correct for offsets of activations. No result depends on them.
    Sum,
}

/// The planes of an encoding, in the order in which they are stored: `["scale f16 32", "zero_point u4 32"]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Planes(pub Vec<Plane>);

impl std::fmt::Display for Plane {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let role: &'static str = self.role.into();
        write!(formatter, "{role} {} {}", self.dtype, self.block)
    }
}

fn parse(text: &str) -> Option<Plane> {
    let [role, dtype, block] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
    Some(Plane { role: role.parse().ok()?, dtype: dtype::parse(dtype)?, block: block.parse().ok()? })
}

impl Attribute for Planes {
    fn to_value(&self) -> Option<AttributeValue> {
        (!self.0.is_empty()).then(|| AttributeValue::Texts(self.0.iter().map(Plane::to_string).collect()))
    }

    fn from_value(value: &AttributeValue) -> Option<Self> {
        let AttributeValue::Texts(texts) = value else { return None };
        texts.iter().map(|text| parse(text)).collect::<Option<_>>().map(Planes)
    }

    fn absent() -> Option<Self> {
        Some(Planes::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_are_texts() {
        let planes = Planes(vec![
            Plane { role: PlaneRole::Scale, dtype: DType::F16, block: 32 },
            Plane { role: PlaneRole::ZeroPoint, dtype: DType::U4, block: 0 },
        ]);
        let value = planes.to_value().unwrap();
        let texts = ["scale f16 32", "zero_point u4 0"].map(str::to_string).to_vec();
        assert_eq!(value, AttributeValue::Texts(texts));
        assert_eq!(Planes::from_value(&value), Some(planes));
        let of = |text: &str| Planes::from_value(&AttributeValue::Texts(vec![text.to_string()]));
        for wrong in ["scale f16", "scale f16 32 1", "mean f16 32", "scale f15 32", "scale f16 -1", ""] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
