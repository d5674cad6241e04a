//! The elements of a `TensorProto`: which field holds them, and where.
//!
//! [`TensorSource::of`] checks everything about a tensor that can be checked without reading its data: type,
//! dimensions, one data field only and of the right type, the size. Small tensors are decoded on the spot;
//! large ones can be read in order ([`ElementReader`]) or, where the file holds the canonical bytes as they
//! are, at any position.
//!
//! Source: `TensorProto` of the schema. Where the schema leaves a choice, this follows `onnx.numpy_helper`.

use std::io;

use super::ReadAt;
use super::element_reader::ElementReader;
use super::elements::{self, Fixed};
use super::external::{ExternalData, ExternalDataError};
use super::schema::{StoredSegment, TensorProto};
use crate::dtype::DType;
use crate::tensor::{Tensor, element_count};

/// A data field of `TensorProto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u32)]
pub enum DataField {
    /// 4 bytes an element: f32, and the halves of c64.
    FloatData = 4,
    /// Varints: all integers up to 32 bits, booleans, and the bits of narrow floats.
    Int32Data = 5,
    /// Text.
    StringData = 6,
    /// Varints: i64.
    Int64Data = 7,
    /// The canonical bytes.
    RawData = 9,
    /// 8 bytes an element: f64, and the halves of c128.
    DoubleData = 10,
    /// Varints: u32 and u64.
    Uint64Data = 11,
}

impl DataField {
    /// Name in the schema.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether elements of this type may be stored in this field.
    fn holds(self, dtype: DType) -> bool {
        match self {
            Self::FloatData => matches!(dtype, DType::F32 | DType::C64),
            Self::DoubleData => matches!(dtype, DType::F64 | DType::C128),
            Self::Int64Data => dtype == DType::I64,
            Self::Uint64Data => matches!(dtype, DType::U32 | DType::U64),
            Self::StringData => dtype == DType::String,
            Self::RawData => dtype != DType::String,
            Self::Int32Data => {
                let narrow = matches!(dtype.bits(), 1..=16);
                narrow || dtype == DType::I32
            }
        }
    }
}

/// Bytes of a data field in the ONNX file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where they begin.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
    /// Each element has its field key before it, instead of all being packed.
    pub tagged: bool,
}

/// Where the elements of a tensor are.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorData {
    /// Here.
    Inline(Tensor),
    /// In the ONNX file.
    InFile {
        /// The field, which says how they are stored.
        field: DataField,
        /// The occurrences of the field, in order.
        segments: Vec<Segment>,
    },
    /// In another file, as canonical bytes.
    External(ExternalData),
}

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

/// What is wrong with the data of a tensor.
#[derive(Debug, thiserror::Error)]
#[error("{} {fault}", named_tensor(name))]
pub struct TensorDataError {
    /// Name of the tensor, which may be empty.
    pub name: String,
    /// What is wrong.
    pub fault: Box<TensorFault>,
}

fn unknown_type(number: i32) -> String {
    match number {
        0 => "states no element type".to_string(),
        number => format!("has the unknown element type {number}"),
    }
}

fn named_tensor(name: &str) -> String {
    if name.is_empty() { "the tensor".to_string() } else { format!("tensor `{}`", name.escape_debug()) }
}

/// What can be wrong with the data of a tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorFault {
    /// A type from the future, or none.
    #[error("{}", unknown_type(*number))]
    UnknownType {
        /// Number of the type.
        number: i32,
    },
    /// An extent below zero.
    #[error("has the extent {extent} in axis {axis}")]
    NegativeExtent {
        /// The axis.
        axis: usize,
        /// Its extent.
        extent: i64,
    },
    /// More elements than can be addressed.
    #[error("of shape {shape:?} is too large to address")]
    TooLarge {
        /// The shape.
        shape: Vec<i64>,
    },
    /// A part of a tensor.
    #[error("is one chunk of a larger tensor (`segment` is set), which is not supported")]
    Chunk,
    /// Data twice.
    #[error("has its elements in {fields} at once")]
    SeveralFields {
        /// The fields that are set.
        fields: String,
    },
    /// Data in a field that cannot hold the type.
    #[error("has elements of type {dtype} in `{}`, which cannot hold them", field.name())]
    FieldType {
        /// The field.
        field: DataField,
        /// The element type.
        dtype: DType,
    },
    /// No data.
    #[error("has {count} elements by its shape but holds none")]
    NoData {
        /// Number of elements.
        count: usize,
    },
    /// Bytes that do not fill the shape.
    #[error("of type {dtype} and shape {shape:?} needs {expected} bytes, there are {found}")]
    Size {
        /// The element type.
        dtype: DType,
        /// The shape.
        shape: Vec<usize>,
        /// Bytes that it needs.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// Entries of a typed field that do not fill the shape.
    #[error("needs {expected} entries in `{}`, there are {}{found}", field.name(), if *more { "more than " } else { "" })]
    Entries {
        /// The field.
        field: DataField,
        /// Entries that the shape needs.
        expected: u64,
        /// Entries that there are.
        found: u64,
        /// More than that.
        more: bool,
    },
    /// A number that the element type cannot hold.
    #[error("has the value {value} in entry {index} of `{}`, beyond the range of {dtype}", field.name())]
    Range {
        /// The field.
        field: DataField,
        /// Which entry.
        index: u64,
        /// Its value.
        value: i128,
        /// The element type.
        dtype: DType,
    },
    /// A boolean that is neither.
    #[error("is boolean and has the value {value} in element {index}")]
    NotABoolean {
        /// Which element.
        index: u64,
        /// Its byte.
        value: u8,
    },
    /// Text that is not UTF-8.
    #[error("has text that is not UTF-8 in element {index}")]
    NotUtf8 {
        /// Which element.
        index: usize,
    },
    /// A storage place from the future.
    #[error("has the unknown data location {number}")]
    UnknownLocation {
        /// Number of the location.
        number: i32,
    },
    /// External data, and elements here.
    #[error("has external data and elements in {fields} besides")]
    ExternalBesides {
        /// The fields that are set.
        fields: String,
    },
    /// A wrong description of external data.
    #[error("cannot be found: {0}")]
    External(ExternalDataError),
    /// Strings elsewhere.
    #[error("has external data, which cannot hold strings")]
    ExternalStrings,
    /// External data in a place where it is not followed.
    #[error("has elements that lie in another file, which is not supported for a value or a part of a sparse tensor")]
    ExternalUnsupported,
    /// An integer that is cut off or has more than 64 bits.
    #[error("has a malformed integer at offset {offset}")]
    Varint {
        /// Where it begins or ends.
        offset: u64,
    },
    /// Data beyond the end of the file that is to hold it.
    #[error("lies in bytes {offset} to {end} of a file of {file_bytes} bytes")]
    BeyondFile {
        /// Where it begins.
        offset: u64,
        /// Where it ends.
        end: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// A read beyond the end of the tensor.
    #[error("has {length_bytes} bytes, of which {from} to {to} were asked for")]
    BeyondTensor {
        /// Where the read begins.
        from: u64,
        /// Where it ends.
        to: u64,
        /// Length of the tensor.
        length_bytes: u64,
    },
    /// The medium failed.
    #[error("cannot be read at offset {offset}: {error}")]
    Io {
        /// Where the read began.
        offset: u64,
        /// What the medium reports.
        error: io::Error,
    },
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

    /// Reads the elements from the first on, as canonical bytes. `file` is the ONNX file or, for external
    /// data, the file that its location names.
    ///
    /// # Errors
    /// [`TensorFault::BeyondFile`] when the file is shorter than the data.
    pub fn reader<'a>(&'a self, file: &'a dyn ReadAt) -> Result<ElementReader<'a>, TensorDataError> {
        ElementReader::new(self, file)
    }

    /// Fills `buffer` with the canonical bytes from `offset` on. Costs a reading of all that is before where
    /// the data [is not direct](Self::is_direct).
    ///
    /// # Errors
    /// [`TensorDataError`] when the data is malformed, or ends before.
    pub fn read_at(&self, file: &dyn ReadAt, offset: u64, buffer: &mut [u8]) -> Result<(), TensorDataError> {
        let mut reader = self.reader(file)?;
        reader.skip(offset)?;
        reader.read(buffer)
    }

    /// All elements, in memory.
    ///
    /// # Errors
    /// [`TensorDataError`] when the data is malformed.
    pub fn load(&self, file: &dyn ReadAt) -> Result<Tensor, TensorDataError> {
        if let TensorData::Inline(tensor) = &self.data {
            return Ok(tensor.clone());
        }
        // The reader has checked that the file holds at least an eighth of this.
        let mut reader = self.reader(file)?;
        let too_large = |_| self.error(TensorFault::TooLarge { shape: elements::signed(&self.shape) });
        let mut tensor = Tensor::zeros(self.dtype, &self.shape).map_err(too_large)?;
        reader.read(tensor.bytes_mut())?;
        Ok(tensor)
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
