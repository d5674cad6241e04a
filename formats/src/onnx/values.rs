//! Files that hold one value: a tensor, a sequence, an optional or a map, as in ONNX test data.
//!
//! A file does not say which of these it is, and an empty sequence not even what it is a sequence of: the
//! caller names the type, from the model. Element types and shapes are those of the file; whether they are
//! the model's is the caller's question.

use super::data_field::{DataField, TensorData};
use super::decode;
use super::elements::Packer;
use super::error::OnnxError;
use super::fields;
use super::schema::sequence_proto::DataType as Kind;
use super::schema::{MapProto, OptionalProto, SequenceProto, TensorProto};
use super::tensor::TensorSource;
use super::tensor_fault::{TensorDataError, TensorFault};
use crate::dtype::DType;
use crate::fact::Type;
use crate::read_at::ReadAt;
use crate::tensor::Tensor;
use crate::value::Value;

/// Why a file holds no value of the type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// Not such a file.
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    /// A tensor is malformed.
    #[error(transparent)]
    Tensor(#[from] TensorDataError),
    /// Something else than the type says.
    #[error("expected a value of type {expected}, the file holds {found}")]
    Kind {
        /// The type.
        expected: Type,
        /// What it holds.
        found: String,
    },
    /// Keys and values that do not pair.
    #[error("a map has {keys} keys and {values} values")]
    MapSize {
        /// Number of keys.
        keys: usize,
        /// Number of values.
        values: usize,
    },
    /// Keys of another type than the map's.
    #[error("the keys of a map are of type {found}, expected {expected}")]
    MapKey {
        /// Element type of the keys.
        expected: DType,
        /// What the file says.
        found: String,
    },
}

/// Reads a file that holds one value of the type.
///
/// # Errors
/// [`ValueError`] when the file is malformed or holds a value of another kind.
pub fn read_value(file: &dyn ReadAt, expected: &Type) -> Result<Value, ValueError> {
    let reader = Reader { file };
    match expected {
        Type::Tensor { .. } => reader.tensor(&decode(file, &fields::TENSOR, "tensor")?),
        Type::Sequence(element) => reader.sequence(&decode(file, &fields::SEQUENCE, "sequence")?, element),
        // Nothing at all is how an absent value may be written.
        Type::Optional(element) if file.length() == 0 => reader.optional(&OptionalProto::default(), element),
        Type::Optional(element) => reader.optional(&decode(file, &fields::OPTIONAL, "optional value")?, element),
        Type::Map { key, element } => reader.map(&decode(file, &fields::MAP, "map")?, *key, element),
    }
}

struct Reader<'a> {
    file: &'a dyn ReadAt,
}

impl Reader<'_> {
    fn tensor(&self, tensor: &TensorProto) -> Result<Value, ValueError> {
        let source = TensorSource::of(tensor)?;
        if let TensorData::External(_) = source.data() {
            return Err(source.error(TensorFault::ExternalUnsupported).into());
        }
        Ok(Value::Tensor(source.load(self.file)?))
    }

    fn sequence(&self, sequence: &SequenceProto, element: &Type) -> Result<Value, ValueError> {
        let lists = [
            (Kind::Tensor, sequence.tensor_values.len()),
            (Kind::SparseTensor, sequence.sparse_tensor_values.len()),
            (Kind::Sequence, sequence.sequence_values.len()),
            (Kind::Map, sequence.map_values.len()),
            (Kind::Optional, sequence.optional_values.len()),
        ];
        check_kind(sequence.elem_type(), &lists, element, &Type::Sequence(Box::new(element.clone())))?;
        let items: Result<Vec<Value>, ValueError> = match element {
            Type::Tensor { .. } => sequence.tensor_values.iter().map(|item| self.tensor(item)).collect(),
            Type::Sequence(inner) => sequence.sequence_values.iter().map(|item| self.sequence(item, inner)).collect(),
            Type::Optional(inner) => sequence.optional_values.iter().map(|item| self.optional(item, inner)).collect(),
            Type::Map { key, element } => {
                sequence.map_values.iter().map(|item| self.map(item, *key, element)).collect()
            }
        };
        Ok(Value::Sequence { element: element.clone(), items: items? })
    }

    fn optional(&self, optional: &OptionalProto, element: &Type) -> Result<Value, ValueError> {
        let fields = [
            (Kind::Tensor, usize::from(optional.tensor_value.is_some())),
            (Kind::SparseTensor, usize::from(optional.sparse_tensor_value.is_some())),
            (Kind::Sequence, usize::from(optional.sequence_value.is_some())),
            (Kind::Map, usize::from(optional.map_value.is_some())),
            (Kind::Optional, usize::from(optional.optional_value.is_some())),
        ];
        check_kind(optional.elem_type(), &fields, element, &Type::Optional(Box::new(element.clone())))?;
        let value = match element {
            Type::Tensor { .. } => optional.tensor_value.as_ref().map(|value| self.tensor(value)),
            Type::Sequence(inner) => optional.sequence_value.as_ref().map(|value| self.sequence(value, inner)),
            Type::Optional(inner) => optional.optional_value.as_ref().map(|value| self.optional(value, inner)),
            Type::Map { key, element } => optional.map_value.as_ref().map(|value| self.map(value, *key, element)),
        };
        Ok(Value::Optional { element: element.clone(), value: value.transpose()?.map(Box::new) })
    }

    fn map(&self, map: &MapProto, key: DType, element: &Type) -> Result<Value, ValueError> {
        let found = DType::from_onnx(map.key_type());
        if found != Some(key) {
            let found = found.map_or_else(|| format!("number {}", map.key_type()), |found| found.to_string());
            return Err(ValueError::MapKey { expected: key, found });
        }
        let keys = map_keys(map, key)?;
        let values = match &map.values {
            Some(values) => self.sequence(values, element)?,
            None => Value::Sequence { element: element.clone(), items: Vec::new() },
        };
        let Value::Sequence { items, .. } = values else {
            return Err(ValueError::Kind { expected: element.clone(), found: "no list of values".to_owned() });
        };
        if keys.len() != items.len() {
            return Err(ValueError::MapSize { keys: keys.len(), values: items.len() });
        }
        let items = items.into_iter().map(|item| as_declared(item, element));
        Ok(Value::Map { key, element: element.clone(), entries: keys.into_iter().zip(items).collect() })
    }
}

/// The value of a map of f32 that is stored in f64 although f32 holds it: so the `onnx` package writes the maps that ONNX
/// Runtime gives, whose values are Python's floats.
fn as_declared(item: Value, element: &Type) -> Value {
    if let (Value::Tensor(tensor), Type::Tensor { dtype: DType::F32, .. }) = (&item, element)
        && let Ok(doubles) = tensor.elements::<f64>()
    {
        let floats: Vec<f32> = doubles.iter().map(|&double| double as f32).collect();
        let same = floats.iter().zip(doubles).all(|(&float, double)| f64::from(float).to_bits() == double.to_bits());
        if let (true, Ok(exact)) = (same, Tensor::from_elements(tensor.shape(), &floats)) {
            return Value::Tensor(exact);
        }
    }
    item
}

/// The stated kind and the one list that is set are those of the element type.
fn check_kind(stated: i32, lists: &[(Kind, usize)], element: &Type, whole: &Type) -> Result<(), ValueError> {
    let expected = match element {
        Type::Tensor { .. } => Kind::Tensor,
        Type::Sequence(_) => Kind::Sequence,
        Type::Optional(_) => Kind::Optional,
        Type::Map { .. } => Kind::Map,
    };
    let set = lists.iter().filter(|(_, count)| *count > 0).map(|(kind, _)| *kind);
    let mut other = set.filter(|kind| *kind != expected).map(|kind| kind.as_str_name().to_owned());
    let found = match Kind::try_from(stated) {
        // An absent optional and an empty sequence may leave it open.
        Ok(kind) if kind == expected || kind == Kind::Undefined => other.next(),
        Ok(kind) => Some(kind.as_str_name().to_owned()),
        Err(_) => Some(format!("the unknown kind {stated}")),
    };
    match found {
        Some(found) => Err(ValueError::Kind { expected: whole.clone(), found }),
        None => Ok(()),
    }
}

/// The keys of a map, each a tensor of shape `[]`.
fn map_keys(map: &MapProto, key: DType) -> Result<Vec<Tensor>, ValueError> {
    let fault = |fault| TensorDataError { name: "keys".to_owned(), fault: Box::new(fault) };
    let other = if key == DType::String { map.keys.len() } else { map.string_keys.len() };
    if other > 0 {
        let found = if key == DType::String { "integers" } else { "strings" };
        return Err(ValueError::MapKey { expected: key, found: found.to_owned() });
    }
    if key == DType::String {
        let text = |(index, bytes): (usize, &Vec<u8>)| {
            let text = String::from_utf8(bytes.clone()).map_err(|_| fault(TensorFault::NotUtf8 { index }))?;
            Tensor::from_strings(&[], vec![text]).map_err(|_| fault(TensorFault::TooLarge { shape: Vec::new() }))
        };
        return Ok(map.string_keys.iter().enumerate().map(text).collect::<Result<_, _>>()?);
    }
    if !key.is_integer() || key.is_sub_byte() {
        return Err(ValueError::MapKey { expected: key, found: "integers".to_owned() });
    }
    let mut packer = Packer::new(DataField::Int64Data, key);
    let number = |value: &i64| {
        let mut bytes = Vec::new();
        packer.put(i128::from(*value), &mut bytes).map_err(fault)?;
        Tensor::from_bytes(key, &[], &bytes).map_err(|_| fault(TensorFault::TooLarge { shape: Vec::new() }))
    };
    Ok(map.keys.iter().map(number).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::Shape;

    fn floats() -> Type {
        Type::tensor(DType::F32, Shape::Unranked)
    }

    fn sequence_of(element: Type) -> Type {
        Type::Sequence(Box::new(element))
    }

    fn optional_of(element: Type) -> Type {
        Type::Optional(Box::new(element))
    }

    fn tensor(values: &[f32]) -> TensorProto {
        TensorProto {
            dims: vec![values.len() as i64],
            data_type: Some(1),
            float_data: values.to_vec(),
            ..TensorProto::default()
        }
    }

    fn read(message: &impl prost::Message, kind: &Type) -> Result<Value, String> {
        read_value(&message.encode_to_vec(), kind).map_err(|error| error.to_string())
    }

    fn value(values: &[f32]) -> Value {
        Value::Tensor(Tensor::from_elements(&[values.len()], values).unwrap())
    }

    #[test]
    fn tensors_and_sequences_are_read() {
        assert_eq!(read(&tensor(&[1.0, 2.0]), &floats()), Ok(value(&[1.0, 2.0])));
        // Large enough to be read from the file.
        let long = vec![0.5; 1000];
        let inner = SequenceProto {
            elem_type: Some(1),
            tensor_values: vec![tensor(&long), tensor(&[1.0])],
            ..SequenceProto::default()
        };
        let items = vec![value(&long), value(&[1.0])];
        let inner_value = Value::Sequence { element: floats(), items };
        assert_eq!(read(&inner, &sequence_of(floats())), Ok(inner_value.clone()));
        let outer = SequenceProto { elem_type: Some(3), sequence_values: vec![inner], ..SequenceProto::default() };
        let element = sequence_of(floats());
        let outer_value = Value::Sequence { element: element.clone(), items: vec![inner_value] };
        assert_eq!(read(&outer, &sequence_of(element)), Ok(outer_value));
        let empty = SequenceProto { elem_type: Some(1), ..SequenceProto::default() };
        let none = Value::Sequence { element: floats(), items: vec![] };
        assert_eq!(read(&empty, &sequence_of(floats())), Ok(none));
    }

    #[test]
    fn values_of_maps_of_floats_may_be_stored_in_f64() {
        let stored = |value: f64| {
            let item = TensorProto { data_type: Some(11), double_data: vec![value], ..TensorProto::default() };
            let values = SequenceProto { elem_type: Some(1), tensor_values: vec![item], ..SequenceProto::default() };
            MapProto { key_type: Some(7), keys: vec![3], values: Some(values), ..MapProto::default() }
        };
        let element = Type::tensor(DType::F32, Shape::known(&[]));
        let kind = Type::Map { key: DType::I64, element: Box::new(element.clone()) };
        let value_of = |value: f64| match read(&stored(value), &kind) {
            Ok(Value::Map { mut entries, .. }) => entries.remove(0).1,
            other => panic!("{other:?}"),
        };
        let exact = f64::from(0.1f32);
        assert_eq!(value_of(exact), Value::Tensor(Tensor::from_elements(&[], &[0.1f32]).unwrap()));
        // What f32 does not hold stays as it is.
        assert_eq!(value_of(0.1), Value::Tensor(Tensor::from_elements(&[], &[0.1f64]).unwrap()));
    }

    #[test]
    fn optionals_are_read_or_absent() {
        let absent = Ok(Value::Optional { element: floats(), value: None });
        let kind = optional_of(floats());
        assert_eq!(read(&OptionalProto::default(), &kind), absent);
        assert_eq!(read(&OptionalProto { elem_type: Some(0), ..OptionalProto::default() }, &kind), absent);
        let some = OptionalProto { elem_type: Some(1), tensor_value: Some(tensor(&[3.0])), ..OptionalProto::default() };
        let present = Value::Optional { element: floats(), value: Some(Box::new(value(&[3.0]))) };
        assert_eq!(read(&some, &kind), Ok(present));
    }

    #[test]
    fn maps_pair_keys_and_values() {
        let values = SequenceProto {
            elem_type: Some(1),
            tensor_values: vec![tensor(&[1.0]), tensor(&[2.0])],
            ..SequenceProto::default()
        };
        let map = MapProto { key_type: Some(6), keys: vec![-1, 7], values: Some(values), ..MapProto::default() };
        let kind = |key| Type::Map { key, element: Box::new(floats()) };
        let Ok(Value::Map { entries, .. }) = read(&map, &kind(DType::I32)) else {
            panic!("a map is read");
        };
        assert_eq!(entries[0], (Tensor::scalar(-1i32), value(&[1.0])));
        assert_eq!(entries[1], (Tensor::scalar(7i32), value(&[2.0])));
        assert_eq!(
            read(&map, &kind(DType::I64)).unwrap_err().to_string(),
            "the keys of a map are of type i32, expected i64"
        );
        let short = MapProto { keys: vec![1], ..map.clone() };
        assert_eq!(read(&short, &kind(DType::I32)).unwrap_err(), "a map has 1 keys and 2 values");
        let wide = MapProto { key_type: Some(3), keys: vec![1, 300], ..map.clone() };
        assert!(read(&wide, &kind(DType::I8)).unwrap_err().contains("300"));
        let text = MapProto { key_type: Some(8), keys: vec![], string_keys: vec![b"a".to_vec(), b"b".to_vec()], ..map };
        let Ok(Value::Map { entries, .. }) = read(&text, &kind(DType::String)) else {
            panic!("a map is read");
        };
        assert_eq!(entries[1].0.strings().unwrap(), ["b"]);
    }

    #[test]
    fn values_of_another_kind_are_refused() {
        let map_values = vec![MapProto::default()];
        let maps = SequenceProto { map_values, ..SequenceProto::default() };
        assert_eq!(
            read(&maps, &sequence_of(floats())).unwrap_err(),
            "expected a value of type sequence(f32[..]), the file holds MAP"
        );
        let stated = SequenceProto { elem_type: Some(5), ..SequenceProto::default() };
        assert!(read(&stated, &sequence_of(floats())).unwrap_err().ends_with("the file holds OPTIONAL"));
        let unknown = SequenceProto { elem_type: Some(6), ..SequenceProto::default() };
        assert!(read(&unknown, &sequence_of(floats())).unwrap_err().ends_with("the unknown kind 6"));
        let sparse = OptionalProto { sparse_tensor_value: Some(Default::default()), ..OptionalProto::default() };
        assert!(read(&sparse, &optional_of(floats())).unwrap_err().ends_with("SPARSE_TENSOR"));
        assert_eq!(read_value(&[0u8; 0], &floats()).unwrap_err().to_string(), "the file is empty");
    }

    #[test]
    fn external_data_is_refused_in_values() {
        let entry = super::super::schema::StringStringEntryProto {
            key: Some("location".into()),
            value: Some("/etc/passwd".into()),
        };
        let tensor =
            TensorProto { float_data: vec![], data_location: Some(1), external_data: vec![entry], ..tensor(&[1.0]) };
        assert!(read(&tensor, &floats()).unwrap_err().contains("lie in another file"));
    }
}
