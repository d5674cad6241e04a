//! Attributes of one node, each to be asked for once; whatever is never asked for is refused.

use crate::import::lower_error::LowerError;
use ipuc_formats::onnx::schema::{GraphProto, NodeProto, SparseTensorProto, TensorProto, TypeProto};
use ipuc_formats::onnx::{AttributeValue, attribute_value};
use std::collections::BTreeMap;

/// The attributes of one node.
pub(crate) struct AttributeReader<'a> {
    node: &'a NodeProto,
    /// Attributes that nobody has asked for: name to index.
    unread: BTreeMap<&'a str, usize>,
}

impl<'a> AttributeReader<'a> {
    pub(crate) fn new(node: &'a NodeProto) -> Self {
        let named = |(index, attribute): (usize, &'a ipuc_formats::onnx::schema::AttributeProto)| {
            (attribute.name.as_deref().unwrap_or(""), index)
        };
        AttributeReader { node, unread: node.attribute.iter().enumerate().map(named).collect() }
    }

    fn value(&mut self, name: &str) -> Result<Option<AttributeValue<'a>>, LowerError> {
        let node = self.node;
        self.unread.remove(name);
        let Some(attribute) = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name)) else {
            return Ok(None);
        };
        attribute_value(attribute).map(Some).map_err(|error| LowerError::Unsupported(error.to_string()))
    }

    fn take<T>(
        &mut self,
        name: &str,
        expected: &'static str,
        convert: impl FnOnce(AttributeValue<'a>) -> Option<T>,
    ) -> Result<Option<T>, LowerError> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(LowerError::AttributeType { name: name.to_string(), expected }),
        }
    }

    pub(crate) fn int(&mut self, name: &str) -> Result<Option<i64>, LowerError> {
        self.take(name, "int", |value| if let AttributeValue::Int(int) = value { Some(int) } else { None })
    }

    pub(crate) fn float(&mut self, name: &str) -> Result<Option<f32>, LowerError> {
        self.take(name, "float", |value| if let AttributeValue::Float(float) = value { Some(float) } else { None })
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, LowerError> {
        self.take(name, "string", |value| match value {
            AttributeValue::String(bytes) => String::from_utf8(bytes.to_vec()).ok(),
            _ => None,
        })
    }

    pub(crate) fn ints(&mut self, name: &str) -> Result<Option<Vec<i64>>, LowerError> {
        self.take(name, "ints", |value| match value {
            AttributeValue::Ints(ints) => Some(ints.to_vec()),
            _ => None,
        })
    }

    pub(crate) fn floats(&mut self, name: &str) -> Result<Option<Vec<f32>>, LowerError> {
        self.take(name, "floats", |value| match value {
            AttributeValue::Floats(floats) => Some(floats.to_vec()),
            _ => None,
        })
    }

    pub(crate) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, LowerError> {
        self.take(name, "strings", |value| match value {
            AttributeValue::Strings(texts) => {
                texts.iter().map(|text| String::from_utf8(text.clone()).ok()).collect::<Option<Vec<_>>>()
            }
            _ => None,
        })
    }

    pub(crate) fn tensor(&mut self, name: &str) -> Result<Option<&'a TensorProto>, LowerError> {
        self.take(name, "tensor", |value| if let AttributeValue::Tensor(tensor) = value { Some(tensor) } else { None })
    }

    pub(crate) fn sparse_tensor(&mut self, name: &str) -> Result<Option<&'a SparseTensorProto>, LowerError> {
        self.take(name, "sparse_tensor", |value| match value {
            AttributeValue::SparseTensor(tensor) => Some(tensor),
            _ => None,
        })
    }

    pub(crate) fn graph(&mut self, name: &str) -> Result<Option<&'a GraphProto>, LowerError> {
        self.take(name, "graph", |value| if let AttributeValue::Graph(graph) = value { Some(graph) } else { None })
    }

    pub(crate) fn type_proto(&mut self, name: &str) -> Result<Option<&'a TypeProto>, LowerError> {
        self.take(name, "type", |value| if let AttributeValue::Type(kind) = value { Some(kind) } else { None })
    }

    pub(crate) fn ignore(&mut self, name: &str) {
        self.unread.remove(name);
    }

    /// Refuse what nobody asked for, and names that occur twice.
    pub(crate) fn finish(self) -> Result<(), LowerError> {
        if !self.unread.is_empty() {
            let names: Vec<String> = self.unread.keys().map(|name| format!("`{name}`")).collect();
            return Err(LowerError::UnknownAttributes(names.join(", ")));
        }
        let mut names: Vec<_> = self.node.attribute.iter().map(|attribute| attribute.name.as_deref()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(LowerError::Unsupported(format!("attribute `{}` given twice", pair[0].unwrap_or("")))),
            None => Ok(()),
        }
    }
}
