//! The value of an attribute: the one field that its type names.
//!
//! Files of IR version 1 state no type; then the one field that is set counts. Anything else that is not
//! plain (an unknown type, another field set besides) is refused.

use super::schema::attribute_proto::AttributeType;
use super::schema::{AttributeProto, GraphProto, SparseTensorProto, TensorProto, TypeProto};

/// What an attribute holds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the attribute types of ONNX under their names")]
pub enum AttributeValue<'a> {
    Float(f32),
    Int(i64),
    String(&'a [u8]),
    Tensor(&'a TensorProto),
    Graph(&'a GraphProto),
    SparseTensor(&'a SparseTensorProto),
    Type(&'a TypeProto),
    Floats(&'a [f32]),
    Ints(&'a [i64]),
    Strings(&'a [Vec<u8>]),
    Tensors(&'a [TensorProto]),
    Graphs(&'a [GraphProto]),
    SparseTensors(&'a [SparseTensorProto]),
    Types(&'a [TypeProto]),
    /// The attribute of that name of the function that the node is in, of the type if it is stated.
    Reference(&'a str, Option<AttributeType>),
}

/// Why an attribute has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// A type from the future, or none.
    #[error("attribute `{name}` has the unknown type {number}")]
    UnknownType {
        /// Name of the attribute.
        name: String,
        /// Number of the type.
        number: i32,
    },
    /// A type whose field is missing.
    #[error("attribute `{name}` is of type {expected} but holds no value")]
    Missing {
        /// Name of the attribute.
        name: String,
        /// ONNX name of the type.
        expected: &'static str,
    },
    /// A field besides the one of the type.
    #[error("attribute `{name}` is of type {expected} but holds {found}")]
    Conflict {
        /// Name of the attribute.
        name: String,
        /// ONNX name of the type.
        expected: &'static str,
        /// ONNX names of the types whose fields are set.
        found: String,
    },
    /// No type, and not one field.
    #[error("attribute `{name}` states no type and holds {found}")]
    NoType {
        /// Name of the attribute.
        name: String,
        /// ONNX names of the types whose fields are set.
        found: String,
    },
    /// A reference that holds a value too.
    #[error("attribute `{name}` refers to attribute `{reference}` and holds {found} besides")]
    ReferenceWithValue {
        /// Name of the attribute.
        name: String,
        /// Name that it refers to.
        reference: String,
        /// ONNX names of the types whose fields are set.
        found: String,
    },
}

/// The value of an attribute.
///
/// # Errors
/// [`AttributeError`] when the attribute does not hold exactly the value that its type names.
pub fn attribute_value(attribute: &AttributeProto) -> Result<AttributeValue<'_>, AttributeError> {
    let name = || attribute.name().to_owned();
    let declared = match attribute.r#type.unwrap_or_default() {
        0 => None,
        number => {
            Some(AttributeType::try_from(number).map_err(|_| AttributeError::UnknownType { name: name(), number })?)
        }
    };
    let set = fields_set(attribute);
    if !attribute.ref_attr_name().is_empty() {
        if !set.is_empty() {
            let reference = attribute.ref_attr_name().to_owned();
            return Err(AttributeError::ReferenceWithValue { name: name(), reference, found: names(&set) });
        }
        return Ok(AttributeValue::Reference(attribute.ref_attr_name(), declared));
    }
    let kind = match (declared, set.as_slice()) {
        (Some(kind), fields) => {
            if fields.iter().any(|field| *field != kind) {
                let (expected, found) = (kind.as_str_name(), names(&set));
                return Err(AttributeError::Conflict { name: name(), expected, found });
            }
            kind
        }
        (None, [only]) => *only,
        (None, _) => {
            return Err(AttributeError::NoType { name: name(), found: names(&set) });
        }
    };
    value(attribute, kind).ok_or_else(|| AttributeError::Missing { name: name(), expected: kind.as_str_name() })
}

/// The field of the type. Writers of proto3 leave out numbers that are zero and text that is empty.
fn value(attribute: &AttributeProto, kind: AttributeType) -> Option<AttributeValue<'_>> {
    Some(match kind {
        AttributeType::Undefined => return None,
        AttributeType::Float => AttributeValue::Float(attribute.f.unwrap_or_default()),
        AttributeType::Int => AttributeValue::Int(attribute.i.unwrap_or_default()),
        AttributeType::String => AttributeValue::String(attribute.s.as_deref().unwrap_or_default()),
        AttributeType::Tensor => AttributeValue::Tensor(attribute.t.as_deref()?),
        AttributeType::Graph => AttributeValue::Graph(attribute.g.as_deref()?),
        AttributeType::SparseTensor => AttributeValue::SparseTensor(attribute.sparse_tensor.as_deref()?),
        AttributeType::TypeProto => AttributeValue::Type(attribute.tp.as_deref()?),
        AttributeType::Floats => AttributeValue::Floats(&attribute.floats),
        AttributeType::Ints => AttributeValue::Ints(&attribute.ints),
        AttributeType::Strings => AttributeValue::Strings(&attribute.strings),
        AttributeType::Tensors => AttributeValue::Tensors(&attribute.tensors),
        AttributeType::Graphs => AttributeValue::Graphs(&attribute.graphs),
        AttributeType::SparseTensors => AttributeValue::SparseTensors(&attribute.sparse_tensors),
        AttributeType::TypeProtos => AttributeValue::Types(&attribute.type_protos),
    })
}

/// Types whose fields hold something.
fn fields_set(attribute: &AttributeProto) -> Vec<AttributeType> {
    // Without `..`, so that a new field must be thought of here.
    let AttributeProto {
        name: _,
        ref_attr_name: _,
        doc_string: _,
        r#type: _,
        f,
        i,
        s,
        t,
        g,
        sparse_tensor,
        tp,
        floats,
        ints,
        strings,
        tensors,
        graphs,
        sparse_tensors,
        type_protos,
    } = attribute;
    let fields = [
        (f.is_some(), AttributeType::Float),
        (i.is_some(), AttributeType::Int),
        (s.is_some(), AttributeType::String),
        (t.is_some(), AttributeType::Tensor),
        (g.is_some(), AttributeType::Graph),
        (sparse_tensor.is_some(), AttributeType::SparseTensor),
        (tp.is_some(), AttributeType::TypeProto),
        (!floats.is_empty(), AttributeType::Floats),
        (!ints.is_empty(), AttributeType::Ints),
        (!strings.is_empty(), AttributeType::Strings),
        (!tensors.is_empty(), AttributeType::Tensors),
        (!graphs.is_empty(), AttributeType::Graphs),
        (!sparse_tensors.is_empty(), AttributeType::SparseTensors),
        (!type_protos.is_empty(), AttributeType::TypeProtos),
    ];
    fields.into_iter().filter_map(|(set, kind)| set.then_some(kind)).collect()
}

/// ONNX names of types.
fn names(types: &[AttributeType]) -> String {
    if types.is_empty() {
        return "no value".to_owned();
    }
    let names: Vec<&str> = types.iter().map(AttributeType::as_str_name).collect();
    names.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named() -> AttributeProto {
        AttributeProto { name: Some("axis".into()), ..AttributeProto::default() }
    }

    fn of_type(kind: AttributeType) -> AttributeProto {
        AttributeProto { r#type: Some(kind as i32), ..named() }
    }

    #[test]
    fn every_type_gives_its_field() {
        let tensor = TensorProto { dims: vec![1], ..TensorProto::default() };
        let attribute = AttributeProto { i: Some(-1), ..of_type(AttributeType::Int) };
        assert_eq!(attribute_value(&attribute), Ok(AttributeValue::Int(-1)));
        let attribute = AttributeProto { t: Some(Box::new(tensor.clone())), ..of_type(AttributeType::Tensor) };
        assert_eq!(attribute_value(&attribute), Ok(AttributeValue::Tensor(&tensor)));
        let attribute = AttributeProto { strings: vec![b"a".to_vec()], ..of_type(AttributeType::Strings) };
        assert_eq!(attribute_value(&attribute), Ok(AttributeValue::Strings(&[b"a".to_vec()])));
        let graphs = vec![GraphProto::default()];
        let attribute = AttributeProto { graphs: graphs.clone(), ..of_type(AttributeType::Graphs) };
        assert_eq!(attribute_value(&attribute), Ok(AttributeValue::Graphs(&graphs)));
    }

    #[test]
    fn zeros_and_empty_lists_may_be_left_out_but_messages_may_not() {
        let value = |kind| attribute_value(&of_type(kind)).map(|value| format!("{value:?}"));
        assert_eq!(value(AttributeType::Float), Ok("Float(0.0)".into()));
        assert_eq!(value(AttributeType::Int), Ok("Int(0)".into()));
        assert_eq!(value(AttributeType::String), Ok("String([])".into()));
        assert_eq!(value(AttributeType::Ints), Ok("Ints([])".into()));
        for kind in [AttributeType::Tensor, AttributeType::Graph, AttributeType::TypeProto] {
            let expected = kind.as_str_name();
            let error = AttributeError::Missing { name: "axis".into(), expected };
            assert_eq!(value(kind), Err(error));
        }
    }

    #[test]
    fn a_missing_type_is_inferred_from_the_one_field() {
        let one = AttributeProto { ints: vec![1, 2], ..named() };
        assert_eq!(attribute_value(&one), Ok(AttributeValue::Ints(&[1, 2])));
        let two = AttributeProto { f: Some(1.0), ..one };
        assert_eq!(
            attribute_value(&two).unwrap_err().to_string(),
            "attribute `axis` states no type and holds FLOAT and INTS"
        );
        assert_eq!(
            attribute_value(&named()).unwrap_err().to_string(),
            "attribute `axis` states no type and holds no value"
        );
    }

    #[test]
    fn unknown_types_and_other_fields_are_refused() {
        for number in [15, 99, -1] {
            let attribute = AttributeProto { r#type: Some(number), i: Some(1), ..named() };
            let error = AttributeError::UnknownType { name: "axis".into(), number };
            assert_eq!(attribute_value(&attribute), Err(error));
        }
        let attribute = AttributeProto { f: Some(1.0), ..of_type(AttributeType::Int) };
        assert_eq!(
            attribute_value(&attribute).unwrap_err().to_string(),
            "attribute `axis` is of type INT but holds FLOAT"
        );
    }

    #[test]
    fn references_hold_no_value() {
        let reference = AttributeProto { ref_attr_name: Some("alpha".into()), ..of_type(AttributeType::Float) };
        let expected = AttributeValue::Reference("alpha", Some(AttributeType::Float));
        assert_eq!(attribute_value(&reference), Ok(expected));
        let both = AttributeProto { f: Some(1.0), ..reference };
        assert!(matches!(attribute_value(&both), Err(AttributeError::ReferenceWithValue { .. })));
    }
}
