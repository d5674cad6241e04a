//! The elements of a `TensorProto`: which field holds them, and where.
//!
//! [`TensorSource::of`] checks everything about a tensor that can be checked without reading its data: type,
//! dimensions, one data field only and of the right type, the size. Small tensors are decoded on the spot;
//! large ones can be read in order ([`ElementReader`](super::ElementReader)) or, where the file holds the canonical
//! bytes as they are, at any position.
//!
//! Source: `TensorProto` of the schema. Where the schema leaves a choice, this follows `onnx.numpy_helper`.

use super::data_field::{DataField, Segment, TensorData};
use super::elements::{self, Fixed};
use super::external::ExternalData;
use super::schema::{StoredSegment, TensorProto};
use super::tensor_fault::{TensorDataError, TensorFault};
use crate::dtype::DType;
use crate::tensor::element_count;

/// A tensor of an ONNX file whose elements may still be there.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSource {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    length_bytes: u64,
    source_offset: Option<u64>,
    data: TensorData,
}

impl TensorSource {
    /// Checks a tensor and finds its elements.
    ///
    /// # Errors
    /// [`TensorDataError`] when the tensor is not one dense tensor whose data can fill its shape.
    pub fn of(tensor: &TensorProto) -> Result<Self, TensorDataError> {
        let name = tensor.name().to_owned();
        describe(tensor).map_err(|fault| TensorDataError { name, fault: Box::new(fault) })
    }

    /// Name of the tensor, which may be empty.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extent of each axis.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Length of the canonical bytes; 0 for strings.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Where the elements begin in the ONNX file or, for external data, in the file that its location names.
    /// `None` for text, for tensors without elements, and for those that were not read from a file.
    #[must_use]
    pub fn source_offset(&self) -> Option<u64> {
        self.source_offset
    }

    /// Where the elements are.
    #[must_use]
    pub fn data(&self) -> &TensorData {
        &self.data
    }

    /// The elements can be read at any position at the cost of reading them.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        match &self.data {
            TensorData::Inline(_) | TensorData::External(_) => true,
            TensorData::InFile { field, segments } => {
                Fixed::of(*field).is_some() && segments.iter().all(|segment| !segment.tagged)
            }
        }
    }

    /// An error about this tensor.
    pub(super) fn error(&self, fault: TensorFault) -> TensorDataError {
        TensorDataError { name: self.name.clone(), fault: Box::new(fault) }
    }
}

fn describe(tensor: &TensorProto) -> Result<TensorSource, TensorFault> {
    let number = tensor.data_type.unwrap_or_default();
    let dtype = DType::from_onnx(number).ok_or(TensorFault::UnknownType { number })?;
    let (shape, count) = shape_of(tensor)?;
    let length_bytes = match dtype {
        DType::String => 0,
        _ => dtype
            .packed_bytes(count)
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| TensorFault::TooLarge { shape: tensor.dims.clone() })?,
    };
    if tensor.segment.is_some() {
        return Err(TensorFault::Chunk);
    }
    let fields = fields_set(tensor);
    let (data, source_offset) = match tensor.data_location.unwrap_or_default() {
        0 => stored_here(tensor, &fields, dtype, &shape)?,
        1 if !fields.is_empty() => return Err(TensorFault::ExternalBesides { fields: names(&fields) }),
        1 if dtype == DType::String => return Err(TensorFault::ExternalStrings),
        1 => {
            let external = ExternalData::from_entries(&tensor.external_data).map_err(TensorFault::External)?;
            if let Some(found) = external.length
                && found != length_bytes as u64
            {
                return Err(TensorFault::Size { dtype, shape, expected: length_bytes as u64, found });
            }
            let offset = external.offset;
            (TensorData::External(external), Some(offset))
        }
        number => return Err(TensorFault::UnknownLocation { number }),
    };
    let name = tensor.name().to_owned();
    Ok(TensorSource { name, dtype, shape, length_bytes: length_bytes as u64, source_offset, data })
}

/// The data of a tensor that is in the ONNX file, and where it begins there.
fn stored_here(
    tensor: &TensorProto,
    fields: &[DataField],
    dtype: DType,
    shape: &[usize],
) -> Result<(TensorData, Option<u64>), TensorFault> {
    let field = match fields {
        [] => return Ok((elements::none(dtype, shape, tensor.raw_data.is_some())?, None)),
        [field] if !field.holds(dtype) => return Err(TensorFault::FieldType { field: *field, dtype }),
        [field] => *field,
        _ => return Err(TensorFault::SeveralFields { fields: names(fields) }),
    };
    let segments = segments_of(tensor, field);
    let offset = segments.first().map(|segment| segment.offset);
    if here(tensor, field) {
        return Ok((TensorData::Inline(elements::inline(tensor, field, dtype, shape)?), offset));
    }
    elements::check_segments(field, dtype, shape, &segments)?;
    Ok((TensorData::InFile { field, segments }, offset))
}

/// The shape and the number of its elements.
fn shape_of(tensor: &TensorProto) -> Result<(Vec<usize>, usize), TensorFault> {
    let too_large = || TensorFault::TooLarge { shape: tensor.dims.clone() };
    let mut shape = Vec::with_capacity(tensor.dims.len());
    for (axis, &extent) in tensor.dims.iter().enumerate() {
        if extent < 0 {
            return Err(TensorFault::NegativeExtent { axis, extent });
        }
        shape.push(usize::try_from(extent).map_err(|_| too_large())?);
    }
    let count = element_count(&shape).ok_or_else(too_large)?;
    Ok((shape, count))
}

/// Whether the message itself holds data in the field.
fn here(tensor: &TensorProto, field: DataField) -> bool {
    match field {
        DataField::FloatData => !tensor.float_data.is_empty(),
        DataField::Int32Data => !tensor.int32_data.is_empty(),
        DataField::StringData => !tensor.string_data.is_empty(),
        DataField::Int64Data => !tensor.int64_data.is_empty(),
        DataField::RawData => tensor.raw_data.as_ref().is_some_and(|raw| !raw.is_empty()),
        DataField::DoubleData => !tensor.double_data.is_empty(),
        DataField::Uint64Data => !tensor.uint64_data.is_empty(),
    }
}

/// Data fields that hold something, here or in the file.
fn fields_set(tensor: &TensorProto) -> Vec<DataField> {
    let in_file = |field: DataField| {
        tensor.stored_segments.iter().any(|stored| stored.field() == field as u32 && stored.length() > 0)
    };
    let fields = <DataField as strum::VariantArray>::VARIANTS.iter().copied();
    fields.filter(|field| here(tensor, *field) || in_file(*field)).collect()
}

/// Where the field lies in the file.
fn segments_of(tensor: &TensorProto, field: DataField) -> Vec<Segment> {
    let segment =
        |stored: &StoredSegment| Segment { offset: stored.offset(), length: stored.length(), tagged: stored.tagged() };
    tensor.stored_segments.iter().filter(|stored| stored.field() == field as u32).map(segment).collect()
}

fn names(fields: &[DataField]) -> String {
    let names: Vec<String> = fields.iter().map(|field| format!("`{}`", field.name())).collect();
    names.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::schema::{StringStringEntryProto, tensor_proto};

    fn floats(dims: &[i64]) -> TensorProto {
        TensorProto {
            dims: dims.to_vec(),
            data_type: Some(1),
            name: Some("w".into()),
            float_data: vec![1.0; 6],
            ..TensorProto::default()
        }
    }

    fn message(tensor: &TensorProto) -> String {
        TensorSource::of(tensor).expect_err("refused").to_string()
    }

    fn entry(key: &str, value: &str) -> StringStringEntryProto {
        StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) }
    }

    #[test]
    fn types_and_shapes_are_checked() {
        let source = TensorSource::of(&floats(&[2, 3])).unwrap();
        assert_eq!((source.name(), source.dtype(), source.shape()), ("w", DType::F32, [2, 3].as_slice()));
        assert_eq!(source.length_bytes(), 24);
        let undefined = TensorProto { data_type: Some(0), ..floats(&[6]) };
        assert_eq!(message(&undefined), "tensor `w` states no element type");
        for number in [29, -1] {
            let tensor = TensorProto { data_type: Some(number), ..floats(&[6]) };
            assert_eq!(message(&tensor), format!("tensor `w` has the unknown element type {number}"));
        }
        assert_eq!(message(&floats(&[3, -2])), "tensor `w` has the extent -2 in axis 1");
        assert!(message(&floats(&[i64::MAX, 8])).ends_with("is too large to address"));
        assert!(message(&floats(&[i64::MAX / 2])).ends_with("is too large to address"));
    }

    #[test]
    fn one_field_holds_the_data() {
        let both = TensorProto { raw_data: Some(vec![0; 24]), ..floats(&[6]) };
        assert_eq!(message(&both), "tensor `w` has its elements in `float_data` and `raw_data` at once");
        let empty = TensorProto { raw_data: Some(vec![]), ..floats(&[6]) };
        assert!(TensorSource::of(&empty).is_ok());
        let other = TensorProto { data_type: Some(7), ..floats(&[6]) };
        assert_eq!(message(&other), "tensor `w` has elements of type i64 in `float_data`, which cannot hold them");
        let text = TensorProto { data_type: Some(8), float_data: vec![], raw_data: Some(vec![1]), ..floats(&[1]) };
        assert!(message(&text).contains("`raw_data`, which cannot hold them"));
        let segment = Some(tensor_proto::Segment { begin: Some(0), end: Some(6) });
        assert!(message(&TensorProto { segment, ..floats(&[6]) }).contains("chunk"));
    }

    #[test]
    fn every_type_has_the_fields_of_the_schema() {
        use strum::VariantArray as _;
        let fields = |dtype| {
            let fields = DataField::VARIANTS.iter().copied();
            fields.filter(|field| field.holds(dtype)).collect::<Vec<_>>()
        };
        for dtype in DType::VARIANTS.iter().copied() {
            let typed = match dtype {
                DType::F32 | DType::C64 => DataField::FloatData,
                DType::F64 | DType::C128 => DataField::DoubleData,
                DType::I64 => DataField::Int64Data,
                DType::U32 | DType::U64 => DataField::Uint64Data,
                DType::String => DataField::StringData,
                _ => DataField::Int32Data,
            };
            let found = fields(dtype);
            assert!(found.contains(&typed), "{dtype}");
            assert_eq!(found.len(), if dtype == DType::String { 1 } else { 2 }, "{dtype}");
        }
    }

    #[test]
    fn external_data_is_described() {
        let tensor = TensorProto {
            float_data: vec![],
            data_location: Some(1),
            external_data: vec![entry("location", "w.bin"), entry("offset", "64"), entry("length", "24")],
            ..floats(&[6])
        };
        let source = TensorSource::of(&tensor).unwrap();
        assert!(matches!(source.data(), TensorData::External(data) if data.location == "w.bin"));
        assert_eq!(source.source_offset(), Some(64));
        let mut file = vec![0; 64];
        file.extend([7; 24]);
        assert_eq!(source.load(&file).unwrap().bytes(), [7; 24]);
        let short = source.load(&vec![0; 80]).unwrap_err().to_string();
        assert_eq!(short, "tensor `w` lies in bytes 64 to 88 of a file of 80 bytes");

        let longer = TensorProto { dims: vec![7], ..tensor.clone() };
        assert_eq!(message(&longer), "tensor `w` of type f32 and shape [7] needs 28 bytes, there are 24");
        let besides = TensorProto { raw_data: Some(vec![1]), ..tensor.clone() };
        assert_eq!(message(&besides), "tensor `w` has external data and elements in `raw_data` besides");
        let text = TensorProto { data_type: Some(8), ..tensor.clone() };
        assert_eq!(message(&text), "tensor `w` has external data, which cannot hold strings");
        let lost = TensorProto { external_data: vec![], ..tensor.clone() };
        assert_eq!(message(&lost), "tensor `w` cannot be found: its external data has no location");
        let elsewhere = TensorProto { data_location: Some(2), ..tensor };
        assert_eq!(message(&elsewhere), "tensor `w` has the unknown data location 2");
    }
}
