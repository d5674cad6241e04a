//! What flows between steps: a tensor, a sequence, an optional or a map.

use crate::dtype::DType;
use crate::fact::{Fact, Type};
use crate::tensor::Tensor;

/// A value at run time.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A dense tensor.
    Tensor(Tensor),
    /// Values of one type in order; the type is known even while it is empty.
    Sequence {
        /// Type of each item.
        element: Type,
        /// The items.
        items: Vec<Value>,
    },
    /// A value or nothing; the type is known either way.
    Optional {
        /// Type of the value.
        element: Type,
        /// The value, if there is one.
        value: Option<Box<Value>>,
    },
    /// Keys (integers or strings) to values of one type, in insertion order.
    Map {
        /// Element type of the keys.
        key: DType,
        /// Type of each value.
        element: Type,
        /// The entries; a key is a tensor of shape `[]`.
        entries: Vec<(Tensor, Value)>,
    },
}

impl Value {
    /// The tensor, if this is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Value::Tensor(tensor) => Some(tensor),
            Value::Sequence { .. } | Value::Optional { .. } | Value::Map { .. } => None,
        }
    }

    /// The type, with known dimensions for a tensor.
    pub fn kind(&self) -> Type {
        match self {
            Value::Tensor(tensor) => Type::of_tensor(tensor),
            Value::Sequence { element, .. } => Type::Sequence(Box::new(element.clone())),
            Value::Optional { element, .. } => Type::Optional(Box::new(element.clone())),
            Value::Map { key, element, .. } => Type::Map { key: *key, element: Box::new(element.clone()) },
        }
    }

    /// Everything that is known of this value: its type and, for a tensor, its contents.
    pub fn fact(&self) -> Fact {
        match self {
            Value::Tensor(tensor) => Fact::constant(tensor.clone()),
            Value::Sequence { .. } | Value::Optional { .. } | Value::Map { .. } => Fact::of(self.kind()),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Tensor(tensor)
    }
}
