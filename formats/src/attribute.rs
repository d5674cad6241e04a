//! Attributes of operators: one value type for the wire and the text form, and its conversions.
//!
//! A field of an operator is any type that implements [`Attribute`]; the `attributes!` macro of [`crate::ops`] derives
//! the bytes and the text of the whole operator from its fields.

use crate::dtype::DType;
use crate::tensor::Tensor;
use thiserror::Error;

/// An attribute as it is stored and printed.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    /// An integer, a block index or a flag (0, 1).
    Integer(i64),
    /// A float; NaN compares unequal, bits are kept.
    Float(f32),
    /// Text or a keyword.
    Text(String),
    /// Integers in order.
    Integers(Vec<i64>),
    /// Floats in order.
    Floats(Vec<f32>),
    /// Texts in order.
    Texts(Vec<String>),
    /// A small tensor.
    Tensor(Tensor),
}

/// Why stored attributes do not make an operator or an encoding.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AttributeError {
    /// The operator code is not in the table.
    #[error("operator code {0:#x} is unknown to this version")]
    UnknownOperator(u32),
    /// The encoding code is not in the table.
    #[error("encoding code {0:#x} is unknown to this version")]
    UnknownEncoding(u32),
    /// The encoding name is not in the table.
    #[error("encoding `{0}` is unknown to this version")]
    UnknownEncodingName(String),
    /// The operator name is not in the table.
    #[error("operator `{0}` is unknown to this version")]
    UnknownName(String),
    /// It exists in a later revision than this version knows.
    #[error("`{operator}` has revision {found}, this version knows up to {known}")]
    Revision {
        /// Name of the operator or encoding.
        operator: &'static str,
        /// Revision asked for.
        found: u32,
        /// Highest revision known.
        known: u32,
    },
    /// An attribute number that it does not have.
    #[error("`{operator}` has no attribute number {number}")]
    UnknownNumber {
        /// Name of the operator or encoding.
        operator: &'static str,
        /// Number found.
        number: u32,
    },
    /// An attribute name that it does not have.
    #[error("`{operator}` has no attribute `{name}`")]
    UnknownAttribute {
        /// Name of the operator or encoding.
        operator: &'static str,
        /// Name found.
        name: String,
    },
    /// The same attribute twice.
    #[error("`{operator}` has attribute `{name}` twice")]
    Duplicate {
        /// Name of the operator or encoding.
        operator: &'static str,
        /// Attribute name.
        name: &'static str,
    },
    /// An attribute that must be there is not.
    #[error("`{operator}` lacks attribute `{name}`")]
    Missing {
        /// Name of the operator or encoding.
        operator: &'static str,
        /// Attribute name.
        name: &'static str,
    },
    /// An attribute of the wrong type or outside its values.
    #[error("`{operator}` attribute `{name}` cannot be {value}")]
    Value {
        /// Name of the operator or encoding.
        operator: &'static str,
        /// Attribute name.
        name: &'static str,
        /// Printed value.
        value: String,
    },
}

/// A Rust type that can be a field of an operator.
pub trait Attribute: Sized {
    /// The stored value; `None` where it is the default that is left out (false, absent, empty).
    fn to_value(&self) -> Option<AttributeValue>;
    /// The field of a stored value; `None` where it does not fit.
    fn from_value(value: &AttributeValue) -> Option<Self>;
    /// The field where nothing is stored; `None` where it must be.
    fn absent() -> Option<Self> {
        None
    }
}

/// A number of a block: the body of a control-flow operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockIndex(pub u32);

impl Attribute for BlockIndex {
    fn to_value(&self) -> Option<AttributeValue> {
        Some(AttributeValue::Integer(i64::from(self.0)))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        i64::from_value(value).and_then(|index| u32::try_from(index).ok()).map(BlockIndex)
    }
}

impl Attribute for i64 {
    fn to_value(&self) -> Option<AttributeValue> {
        Some(AttributeValue::Integer(*self))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        match value {
            AttributeValue::Integer(integer) => Some(*integer),
            _ => None,
        }
    }
}

impl Attribute for u64 {
    fn to_value(&self) -> Option<AttributeValue> {
        // Sizes beyond 63 bits do not occur in files: they are stored as they wrap, and refused when they are read.
        Some(AttributeValue::Integer(*self as i64))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        i64::from_value(value).and_then(|integer| u64::try_from(integer).ok())
    }
}

impl Attribute for bool {
    fn to_value(&self) -> Option<AttributeValue> {
        self.then_some(AttributeValue::Integer(1))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        match value {
            AttributeValue::Integer(1) => Some(true),
            AttributeValue::Integer(0) => Some(false),
            _ => None,
        }
    }
    fn absent() -> Option<Self> {
        Some(false)
    }
}

impl Attribute for f32 {
    fn to_value(&self) -> Option<AttributeValue> {
        Some(AttributeValue::Float(*self))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        match value {
            AttributeValue::Float(float) => Some(*float),
            AttributeValue::Integer(integer) => Some(*integer as f32),
            _ => None,
        }
    }
}

impl Attribute for String {
    fn to_value(&self) -> Option<AttributeValue> {
        Some(AttributeValue::Text(self.clone()))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        match value {
            AttributeValue::Text(text) => Some(text.clone()),
            _ => None,
        }
    }
}

impl Attribute for DType {
    fn to_value(&self) -> Option<AttributeValue> {
        Some(AttributeValue::Text(self.name().to_string()))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        match value {
            AttributeValue::Text(text) => crate::dtype::parse(text),
            _ => None,
        }
    }
}

impl Attribute for Tensor {
    fn to_value(&self) -> Option<AttributeValue> {
        Some(AttributeValue::Tensor(self.clone()))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        match value {
            AttributeValue::Tensor(tensor) => Some(tensor.clone()),
            _ => None,
        }
    }
}

impl Attribute for Vec<i64> {
    fn to_value(&self) -> Option<AttributeValue> {
        (!self.is_empty()).then(|| AttributeValue::Integers(self.clone()))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        match value {
            AttributeValue::Integers(integers) => Some(integers.clone()),
            _ => None,
        }
    }
    fn absent() -> Option<Self> {
        Some(Vec::new())
    }
}

impl Attribute for Vec<f32> {
    fn to_value(&self) -> Option<AttributeValue> {
        (!self.is_empty()).then(|| AttributeValue::Floats(self.clone()))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        match value {
            AttributeValue::Floats(floats) => Some(floats.clone()),
            AttributeValue::Integers(integers) => Some(integers.iter().map(|&integer| integer as f32).collect()),
            _ => None,
        }
    }
    fn absent() -> Option<Self> {
        Some(Vec::new())
    }
}

impl Attribute for Vec<String> {
    fn to_value(&self) -> Option<AttributeValue> {
        (!self.is_empty()).then(|| AttributeValue::Texts(self.clone()))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        match value {
            AttributeValue::Texts(texts) => Some(texts.clone()),
            _ => None,
        }
    }
    fn absent() -> Option<Self> {
        Some(Vec::new())
    }
}

impl<T: Attribute> Attribute for Option<T> {
    fn to_value(&self) -> Option<AttributeValue> {
        let field = self.as_ref()?;
        // A present default (such as `Some(false)`) must be stored: absent means `None` here.
        Some(field.to_value().unwrap_or(AttributeValue::Integer(0)))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        T::from_value(value).map(Some).or_else(|| match value {
            AttributeValue::Integer(0) => T::absent().map(Some),
            _ => None,
        })
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// Keyword fields: an enum with `strum` names is stored as its name.
///
/// `impl Keyword for PoolKind {}` makes `PoolKind` an attribute.
pub trait Keyword: std::str::FromStr + Into<&'static str> + Copy {}

impl<T: Keyword> Attribute for T {
    fn to_value(&self) -> Option<AttributeValue> {
        let name: &'static str = (*self).into();
        Some(AttributeValue::Text(name.to_string()))
    }
    fn from_value(value: &AttributeValue) -> Option<Self> {
        match value {
            AttributeValue::Text(text) => text.parse().ok(),
            _ => None,
        }
    }
}
