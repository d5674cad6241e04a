//! Walks the wire form of an ONNX file and cuts the large tensors out of it.
//!
//! The result is a *skeleton*: the same message without documentation, in which every data field of a tensor
//! is joined, and every large one replaced, by `stored_segments` that say where it lies in the file. prost
//! decodes the skeleton.
//! Only the windows that the walk passes through are read: a tensor of any size is jumped over, so that a
//! model of a gigabyte costs a few milliseconds and a few megabytes.
//!
//! The field `stored_segments` is in no table of [`fields`](super::fields), so a file that brings its own is
//! refused as one with an unknown field. Whatever protobuf would drop or default (unknown fields, groups) is
//! refused too. Repetition follows protobuf: the last scalar counts, messages merge; except that a single
//! tensor may not occur twice.

use std::fmt;

use prost::Message as _;

use super::error::OnnxError;
use super::fields::{Elements, Field, GRAPH, Kind, Message, TENSOR};
use super::schema::StoredSegment;
use super::window::{Window, WindowError};
use crate::limits::{ONNX_DECODED_BYTES, ONNX_GRAPH_NESTING, ONNX_INLINE_BYTES, ONNX_MESSAGE_NESTING};
use crate::read_at::ReadAt;

/// Number of `TensorProto.stored_segments`, the highest that protobuf has.
pub(super) const STORED_SEGMENTS_FIELD: u32 = (1 << 29) - 1;

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const DELIMITED: u8 = 2;
const FIXED32: u8 = 5;

/// Bytes that stand for a length until it is known: enough for any skeleton, and a valid integer.
const LENGTH_BYTES: usize = 5;

/// Memory of a decoded `String` or `Vec` without its contents.
const VECTOR_BYTES: u64 = size_of::<Vec<u8>>() as u64;

/// Memory of a segment: here, in the skeleton and decoded.
const SEGMENT_BYTES: u64 = (size_of::<Segment>() + 32 + size_of::<StoredSegment>()) as u64;

/// The skeleton of the message of type `message` that the source holds; errors call the whole `root`.
pub(super) fn skeleton(
    source: &dyn ReadAt,
    message: &'static Message,
    root: &'static str,
) -> Result<Vec<u8>, OnnxError> {
    let mut walker =
        Walker { root, window: Window::new(source), out: Vec::new(), path: Vec::new(), graphs: 0, decoded_bytes: 0 };
    let end = walker.window.source_bytes();
    walker.message(message, end)?;
    Ok(walker.out)
}

/// A field on the way from the root, with its index where it is repeated.
struct PathStep {
    field: &'static str,
    index: Option<u32>,
}

impl fmt::Display for PathStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.field)?;
        self.index.map_or(Ok(()), |index| write!(formatter, "[{index}]"))
    }
}

/// A field that has begun: its row, key and place.
#[derive(Clone, Copy)]
struct Place {
    field: &'static Field,
    wire_type: u8,
    /// Offset of the key.
    offset: u64,
    /// End of the message that holds the field.
    message_end: u64,
}

/// An occurrence of a data field.
#[derive(Clone, Copy)]
struct Segment {
    place: Place,
    offset: u64,
    length: u64,
    /// A run of unpacked elements with their keys.
    tagged: bool,
}

/// Data fields of one tensor, in the order of the file.
#[derive(Default)]
struct TensorData {
    raw: Option<Segment>,
    typed: Vec<Segment>,
}

struct Walker<'a> {
    root: &'static str,
    window: Window<'a>,
    out: Vec<u8>,
    path: Vec<PathStep>,
    graphs: usize,
    decoded_bytes: u64,
}

impl Walker<'_> {
    /// Walks the fields up to `end`.
    fn message(&mut self, message: &'static Message, end: u64) -> Result<(), OnnxError> {
        let mut counts = [0u32; 32];
        let mut data = TensorData::default();
        while self.window.position() < end {
            let (row, place) = self.key(message, end)?;
            let index = counts[row];
            counts[row] = index.saturating_add(1);
            match place.field.kind {
                Kind::Many(inner) => self.nested(place, inner, Some(index))?,
                Kind::One(inner) => self.nested(place, inner, None)?,
                Kind::Once(inner) if index == 0 => self.nested(place, inner, None)?,
                Kind::Once(_) => {
                    let path = self.path_of(place.field);
                    return Err(OnnxError::Repeated { path, offset: place.offset });
                }
                Kind::Data(elements) => self.data(place, elements, &mut data)?,
                Kind::Dropped => self.dropped(place)?,
                Kind::Integer | Kind::Integers => self.numbers(place, VARINT)?,
                Kind::Float | Kind::Floats => self.numbers(place, FIXED32)?,
                Kind::Text => self.text(place)?,
                Kind::Bytes => self.bytes(place).map(drop)?,
            }
        }
        if data.raw.is_some() || !data.typed.is_empty() {
            self.tensor_data(&data)?;
            self.window.seek(end);
        }
        Ok(())
    }

    /// Reads a field key and finds its row.
    fn key(&mut self, message: &'static Message, end: u64) -> Result<(usize, Place), OnnxError> {
        let offset = self.window.position();
        let key = self.window.varint().map_err(|error| self.window_error(error, offset))?;
        let invalid = |walker: &Self| OnnxError::InvalidKey { path: walker.path_text(), key, offset };
        // The field number of a key has 29 bits.
        let number = u32::try_from(key).map_err(|_| invalid(self))? >> 3;
        let wire_type = (key & 7) as u8;
        if number == 0 || !matches!(wire_type, VARINT | FIXED64 | DELIMITED | FIXED32) {
            return Err(invalid(self));
        }
        let Some(row) = message.fields.iter().position(|field| field.number == number) else {
            return Err(OnnxError::UnknownField { path: self.path_text(), message: message.name, number, offset });
        };
        let place = Place { field: &message.fields[row], wire_type, offset, message_end: end };
        self.check_end(place, self.window.position())?;
        Ok((row, place))
    }

    /// Reads the length of a delimited field; the end of the field is inside its message.
    fn length(&mut self, place: Place) -> Result<u64, OnnxError> {
        if place.wire_type != DELIMITED {
            return Err(self.wire_type(place));
        }
        let length = self.varint(place)?;
        let end = self.window.position().saturating_add(length);
        self.check_end(place, end)?;
        Ok(length)
    }

    fn varint(&mut self, place: Place) -> Result<u64, OnnxError> {
        let value = self.window.varint().map_err(|error| match error {
            WindowError::End => self.beyond(place, self.window.source_bytes().saturating_add(1)),
            WindowError::VarintOverflow => {
                OnnxError::VarintOverflow { path: self.path_of(place.field), offset: place.offset }
            }
            WindowError::Io(offset, error) => OnnxError::Io { offset, error },
        })?;
        self.check_end(place, self.window.position())?;
        Ok(value)
    }

    /// A message inside this one.
    fn nested(&mut self, place: Place, inner: &'static Message, index: Option<u32>) -> Result<(), OnnxError> {
        let length = self.length(place)?;
        let end = self.window.position() + length;
        self.charge(place, inner.memory_bytes as u64 + LENGTH_BYTES as u64)?;
        self.path.push(PathStep { field: place.field.name, index });
        // The root is a message too.
        if self.path.len() >= ONNX_MESSAGE_NESTING {
            return Err(OnnxError::MessageNesting { path: self.path_text() });
        }
        let graph = std::ptr::eq(inner, &GRAPH);
        if graph {
            self.graphs += 1;
            if self.graphs > ONNX_GRAPH_NESTING {
                return Err(OnnxError::GraphNesting { path: self.path_text() });
            }
        }
        self.put_key(place.field.number, DELIMITED);
        let start = self.out.len();
        self.out.extend_from_slice(&[0; LENGTH_BYTES]);
        self.message(inner, end)?;
        let written = self.out.len() - start - LENGTH_BYTES;
        put_length(&mut self.out[start..start + LENGTH_BYTES], written);
        if graph {
            self.graphs -= 1;
        }
        self.path.pop();
        Ok(())
    }

    /// Integers or floats: one of the wire type of the element, or packed.
    fn numbers(&mut self, place: Place, element: u8) -> Result<(), OnnxError> {
        let repeated = matches!(place.field.kind, Kind::Integers | Kind::Floats);
        if place.wire_type == DELIMITED && repeated {
            let length = self.length(place)?;
            self.check_packed(place, length, element)?;
            // An integer takes 8 bytes, and at least one on the wire.
            let growth = if element == VARINT { 9 } else { 2 };
            self.charge(place, length.saturating_mul(growth))?;
            self.put_key(place.field.number, DELIMITED);
            self.put_varint(length);
            return self.copy(length);
        }
        if place.wire_type != element {
            return Err(self.wire_type(place));
        }
        self.charge(place, 16)?;
        self.put_key(place.field.number, element);
        if element == VARINT {
            let value = self.varint(place)?;
            self.put_varint(value);
            return Ok(());
        }
        self.check_end(place, self.window.position().saturating_add(4))?;
        self.copy(4)
    }

    /// Copies a bytes field and says where it begins in the skeleton.
    fn bytes(&mut self, place: Place) -> Result<usize, OnnxError> {
        let length = self.length(place)?;
        self.charge(place, VECTOR_BYTES.saturating_add(length.saturating_mul(2)))?;
        self.put_key(place.field.number, DELIMITED);
        self.put_varint(length);
        let start = self.out.len();
        self.copy(length)?;
        Ok(start)
    }

    fn text(&mut self, place: Place) -> Result<(), OnnxError> {
        let start = self.bytes(place)?;
        if std::str::from_utf8(&self.out[start..]).is_err() {
            return Err(OnnxError::NotUtf8 { path: self.path_of(place.field), offset: place.offset });
        }
        Ok(())
    }

    /// Steps over a field of any type.
    fn dropped(&mut self, place: Place) -> Result<(), OnnxError> {
        let length = match place.wire_type {
            VARINT => return self.varint(place).map(drop),
            FIXED64 => 8,
            FIXED32 => 4,
            _ => self.length(place)?,
        };
        self.skip(place, length)
    }

    fn skip(&mut self, place: Place, length: u64) -> Result<(), OnnxError> {
        let end = self.window.position().saturating_add(length);
        self.check_end(place, end)?;
        self.window.seek(end);
        Ok(())
    }

    /// Notes where an occurrence of a data field lies, and steps over it.
    fn data(&mut self, place: Place, elements: Elements, data: &mut TensorData) -> Result<(), OnnxError> {
        let element = match elements {
            Elements::Raw => DELIMITED,
            Elements::Fixed32 => FIXED32,
            Elements::Fixed64 => FIXED64,
            Elements::Varint => VARINT,
        };
        if place.wire_type == DELIMITED {
            let length = self.length(place)?;
            self.check_packed(place, length, element)?;
            let offset = self.window.position();
            self.window.seek(offset + length);
            let segment = Segment { place, offset, length, tagged: false };
            if elements == Elements::Raw {
                data.raw = Some(segment);
            } else if length > 0 {
                self.charge(place, SEGMENT_BYTES)?;
                data.typed.push(segment);
            }
            return Ok(());
        }
        if place.wire_type != element {
            return Err(self.wire_type(place));
        }
        match elements {
            Elements::Fixed32 => self.skip(place, 4)?,
            Elements::Fixed64 => self.skip(place, 8)?,
            Elements::Varint | Elements::Raw => self.varint(place).map(drop)?,
        }
        let length = self.window.position() - place.offset;
        if let Some(last) = data.typed.last_mut()
            && last.tagged
            && last.place.field.number == place.field.number
            && last.offset + last.length == place.offset
        {
            last.length += length;
            return Ok(());
        }
        self.charge(place, SEGMENT_BYTES)?;
        data.typed.push(Segment { place, offset: place.offset, length, tagged: true });
        Ok(())
    }

    /// Writes the data of a tensor as where it lies, and small fields as they are besides.
    fn tensor_data(&mut self, data: &TensorData) -> Result<(), OnnxError> {
        if let Some(raw) = data.raw {
            self.data_field([raw].iter())?;
        }
        for field in TENSOR.fields.iter().filter(|field| matches!(field.kind, Kind::Data(_))) {
            let same = |segment: &&Segment| segment.place.field.number == field.number;
            self.data_field(data.typed.iter().filter(same))?;
        }
        Ok(())
    }

    /// Writes the occurrences of one data field.
    fn data_field<'s>(&mut self, segments: impl Iterator<Item = &'s Segment> + Clone) -> Result<(), OnnxError> {
        let total: u64 = segments.clone().map(|segment| segment.length).sum();
        for segment in segments {
            if total < ONNX_INLINE_BYTES {
                self.inline(*segment)?;
            }
            self.stored(*segment);
        }
        Ok(())
    }

    fn inline(&mut self, segment: Segment) -> Result<(), OnnxError> {
        // An integer takes 8 bytes, and at least one on the wire.
        self.charge(segment.place, VECTOR_BYTES + segment.length * 9)?;
        if !segment.tagged {
            self.put_key(segment.place.field.number, DELIMITED);
            self.put_varint(segment.length);
        }
        self.window.seek(segment.offset);
        self.copy(segment.length)
    }

    fn stored(&mut self, segment: Segment) {
        let stored = StoredSegment {
            field: Some(segment.place.field.number),
            offset: Some(segment.offset),
            length: Some(segment.length),
            tagged: Some(segment.tagged),
        };
        self.put_key(STORED_SEGMENTS_FIELD, DELIMITED);
        self.put_varint(stored.encoded_len() as u64);
        self.out.extend_from_slice(&stored.encode_to_vec());
    }

    fn copy(&mut self, length: u64) -> Result<(), OnnxError> {
        let offset = self.window.position();
        let copied = self.window.copy(length, &mut self.out);
        copied.map_err(|error| self.window_error(error, offset))
    }

    fn put_key(&mut self, number: u32, wire_type: u8) {
        self.put_varint(u64::from(number) << 3 | u64::from(wire_type));
    }

    fn put_varint(&mut self, value: u64) {
        prost::encoding::encode_varint(value, &mut self.out);
    }

    /// Counts memory that the decoded message will take.
    fn charge(&mut self, place: Place, bytes: u64) -> Result<(), OnnxError> {
        self.decoded_bytes = self.decoded_bytes.saturating_add(bytes);
        if self.decoded_bytes > ONNX_DECODED_BYTES {
            return Err(OnnxError::TooLarge { path: self.path_of(place.field), offset: place.offset });
        }
        Ok(())
    }

    fn check_packed(&self, place: Place, length: u64, element: u8) -> Result<(), OnnxError> {
        let element_bytes = match element {
            FIXED32 => 4,
            FIXED64 => 8,
            _ => return Ok(()),
        };
        if !length.is_multiple_of(element_bytes) {
            return Err(OnnxError::PackedLength {
                path: self.path_of(place.field),
                offset: place.offset,
                length,
                element_bytes,
            });
        }
        Ok(())
    }

    /// The end of a field lies within its message, and so within the file.
    fn check_end(&self, place: Place, end: u64) -> Result<(), OnnxError> {
        if end > place.message_end { Err(self.beyond(place, end)) } else { Ok(()) }
    }

    fn beyond(&self, place: Place, end: u64) -> OnnxError {
        let path = self.path_of(place.field);
        let (offset, file_end) = (place.offset, self.window.source_bytes());
        if end > file_end {
            OnnxError::Truncated { path, offset, end, file_end }
        } else {
            OnnxError::BeyondMessage { path, offset, end, message_end: place.message_end }
        }
    }

    fn wire_type(&self, place: Place) -> OnnxError {
        OnnxError::WireType { path: self.path_of(place.field), offset: place.offset, found: place.wire_type }
    }

    /// An error of the window outside of any field.
    fn window_error(&self, error: WindowError, offset: u64) -> OnnxError {
        let file_end = self.window.source_bytes();
        match error {
            WindowError::End => {
                OnnxError::Truncated { path: self.path_text(), offset, end: file_end.saturating_add(1), file_end }
            }
            WindowError::VarintOverflow => OnnxError::VarintOverflow { path: self.path_text(), offset },
            WindowError::Io(offset, error) => OnnxError::Io { offset, error },
        }
    }

    /// The way to the message that is being walked.
    fn path_text(&self) -> String {
        if self.path.is_empty() {
            return self.root.to_owned();
        }
        let steps: Vec<String> = self.path.iter().map(PathStep::to_string).collect();
        steps.join(".")
    }

    /// The way to a field of the message that is being walked.
    fn path_of(&self, field: &Field) -> String {
        if self.path.is_empty() {
            return field.name.to_owned();
        }
        format!("{}.{}", self.path_text(), field.name)
    }
}

/// Writes a length as an integer of a fixed number of bytes.
fn put_length(bytes: &mut [u8], mut length: usize) {
    let last = bytes.len() - 1;
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = (length & 0x7f) as u8 | if index == last { 0 } else { 0x80 };
        length >>= 7;
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::MODEL;
    use super::super::schema::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
    use super::*;

    /// A model of the graph.
    fn model(graph: GraphProto) -> ModelProto {
        ModelProto { ir_version: Some(10), graph: Some(graph), ..ModelProto::default() }
    }

    fn walk(bytes: &[u8]) -> Result<ModelProto, OnnxError> {
        let bytes = bytes.to_vec();
        let skeleton = skeleton(&bytes, &MODEL, "model")?;
        Ok(ModelProto::decode(skeleton.as_slice()).expect("the walker writes valid messages"))
    }

    fn message(walked: Result<ModelProto, OnnxError>) -> String {
        walked.expect_err("refused").to_string()
    }

    /// A delimited field.
    fn delimited(number: u32, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        prost::encoding::encode_varint(u64::from(number) << 3 | 2, &mut out);
        prost::encoding::encode_varint(content.len() as u64, &mut out);
        out.extend_from_slice(content);
        out
    }

    /// A model with one initializer, given as bytes.
    fn with_tensor(tensor: &[u8]) -> Vec<u8> {
        let mut out = vec![8, 10];
        out.extend(delimited(7, &delimited(5, tensor)));
        out
    }

    fn tensor_of(bytes: &[u8]) -> TensorProto {
        let graph = walk(&with_tensor(bytes)).unwrap().graph.unwrap();
        graph.initializer.into_iter().next().unwrap()
    }

    /// Bytes of the file that the segments name.
    fn stored_bytes(file: &[u8], tensor: &TensorProto) -> Vec<u8> {
        let segments = tensor.stored_segments.iter();
        let ranges = segments.map(|segment| {
            let start = segment.offset() as usize;
            &file[start..start + segment.length() as usize]
        });
        ranges.flatten().copied().collect()
    }

    #[test]
    fn small_models_come_out_as_they_are() {
        let tensor = TensorProto {
            dims: vec![3],
            data_type: Some(7),
            int64_data: vec![-1, 0, i64::MAX],
            name: Some("w".into()),
            ..TensorProto::default()
        };
        let attributes = vec![
            AttributeProto { floats: vec![1.0, f32::NAN], ..AttributeProto::default() },
            AttributeProto { ints: vec![-7, 8], i: Some(-3), ..AttributeProto::default() },
            AttributeProto { s: Some(b"\xff".to_vec()), f: Some(2.5), ..AttributeProto::default() },
            AttributeProto { t: Some(Box::new(tensor.clone())), ..AttributeProto::default() },
        ];
        let node = NodeProto {
            input: vec!["a".into(), String::new()],
            op_type: Some("Foo".into()),
            attribute: attributes,
            ..NodeProto::default()
        };
        let graph = GraphProto { node: vec![node], initializer: vec![tensor], ..GraphProto::default() };
        let before = model(graph);
        let mut after = walk(&before.encode_to_vec()).unwrap();
        let graph = after.graph.as_mut().unwrap();
        let in_attribute = graph.node[0].attribute[3].t.as_mut().unwrap();
        for tensor in [&mut graph.initializer[0], in_attribute] {
            assert_eq!(tensor.stored_segments.len(), 1);
            tensor.stored_segments.clear();
        }
        assert_eq!(after.encode_to_vec(), before.encode_to_vec());
    }

    #[test]
    fn documentation_is_dropped() {
        let input = ValueInfoProto { doc_string: Some("long".into()), ..ValueInfoProto::default() };
        let graph = GraphProto { doc_string: Some("long".into()), input: vec![input], ..GraphProto::default() };
        let graph = walk(&model(graph).encode_to_vec()).unwrap().graph.unwrap();
        assert_eq!(graph.doc_string, None);
        assert_eq!(graph.input, vec![ValueInfoProto::default()]);
    }

    #[test]
    fn large_data_of_every_field_is_cut_out() {
        let floats: Vec<f32> = (0..300).map(|index| index as f32).collect();
        let cases = [
            (4, TensorProto { float_data: floats.clone(), ..TensorProto::default() }),
            (5, TensorProto { int32_data: vec![-1; 200], ..TensorProto::default() }),
            (7, TensorProto { int64_data: vec![1; 1024], ..TensorProto::default() }),
            (9, TensorProto { raw_data: Some(vec![7; 1024]), ..TensorProto::default() }),
            (10, TensorProto { double_data: vec![0.5; 128], ..TensorProto::default() }),
            (11, TensorProto { uint64_data: vec![u64::MAX; 128], ..TensorProto::default() }),
        ];
        for (field, tensor) in cases {
            let named = TensorProto { name: Some("w".into()), dims: vec![4], ..tensor };
            let file = with_tensor(&named.encode_to_vec());
            let walked = walk(&file).unwrap().graph.unwrap().initializer.remove(0);
            assert_eq!(walked.stored_segments.len(), 1, "field {field}");
            assert_eq!(walked.stored_segments[0].field(), field);
            let content = delimited(field, &stored_bytes(&file, &walked));
            let again = TensorProto { stored_segments: vec![], ..TensorProto::decode(content.as_slice()).unwrap() };
            assert_eq!(TensorProto { name: named.name.clone(), dims: vec![4], ..again }, named);
            assert_eq!((walked.name(), &walked.dims), ("w", &vec![4]));
            assert!(walked.encoded_len() < 60, "nothing of the data is left");
        }
    }

    #[test]
    fn tensors_are_cut_wherever_they_are() {
        let tensor = TensorProto { raw_data: Some(vec![1; 5000]), ..TensorProto::default() };
        let inner = GraphProto { initializer: vec![tensor.clone()], ..GraphProto::default() };
        let sparse = super::super::schema::SparseTensorProto {
            values: Some(tensor.clone()),
            indices: Some(tensor.clone()),
            dims: vec![5],
        };
        let attribute = AttributeProto {
            t: Some(Box::new(tensor.clone())),
            tensors: vec![tensor.clone(); 2],
            g: Some(Box::new(inner.clone())),
            graphs: vec![inner],
            sparse_tensor: Some(Box::new(sparse.clone())),
            sparse_tensors: vec![sparse.clone()],
            ..AttributeProto::default()
        };
        let node = NodeProto { attribute: vec![attribute.clone()], ..NodeProto::default() };
        let graph = GraphProto { node: vec![node.clone()], sparse_initializer: vec![sparse], ..GraphProto::default() };
        let function = super::super::schema::FunctionProto {
            attribute_proto: vec![attribute],
            node: vec![node],
            ..Default::default()
        };
        let training = super::super::schema::TrainingInfoProto { algorithm: Some(graph.clone()), ..Default::default() };
        let whole = ModelProto { functions: vec![function], training_info: vec![training], ..model(graph) };
        let bytes = whole.encode_to_vec();
        let walked = walk(&bytes).unwrap();
        let tensors = bytes.len() / 5000;
        assert!(tensors >= 40);
        assert!(walked.encoded_len() < tensors * 100);
        let value = &walked.functions[0].node[0].attribute[0];
        let indices = value.sparse_tensors[0].indices.as_ref().unwrap();
        assert_eq!(stored_bytes(&bytes, indices), vec![1; 5000]);
    }

    #[test]
    fn data_in_several_pieces_keeps_its_order() {
        // Packed, packed and empty, two unpacked, packed.
        let mut small = delimited(7, &[1, 2]);
        small.extend(delimited(7, &[]));
        small.extend([7 << 3, 3, 7 << 3, 4]);
        small.extend(delimited(7, &[5]));
        assert_eq!(tensor_of(&small).int64_data, vec![1, 2, 3, 4, 5]);

        let mut large = delimited(7, &[1; 1500]);
        large.extend([7 << 3, 3, 7 << 3, 0x80, 1]);
        large.extend(delimited(8, b"name"));
        large.extend([7 << 3, 4]);
        let tensor = tensor_of(&large);
        let forms: Vec<(bool, u64)> =
            tensor.stored_segments.iter().map(|segment| (segment.tagged(), segment.length())).collect();
        assert_eq!(forms, [(false, 1500), (true, 5), (true, 2)]);
        assert_eq!(tensor.name(), "name");
        assert!(tensor.int64_data.is_empty());
    }

    #[test]
    fn last_raw_data_counts() {
        let mut bytes = delimited(9, &[1; 4000]);
        bytes.extend(delimited(9, &[2; 8]));
        let tensor = tensor_of(&bytes);
        assert_eq!(tensor.raw_data, Some(vec![2; 8]));
        assert_eq!(tensor.stored_segments.len(), 1);
        assert_eq!(stored_bytes(&with_tensor(&bytes), &tensor), [2; 8]);

        let mut bytes = delimited(9, &[2; 8]);
        bytes.extend(delimited(9, &[1; 4000]));
        let tensor = tensor_of(&bytes);
        assert_eq!(tensor.raw_data, None);
        assert_eq!(tensor.stored_segments[0].length(), 4000);
    }

    #[test]
    fn a_file_can_not_bring_its_own_segments() {
        let segment = StoredSegment { field: Some(9), offset: Some(0), length: Some(4), tagged: None };
        let tensor = TensorProto { stored_segments: vec![segment], ..TensorProto::default() };
        let walked = walk(&with_tensor(&tensor.encode_to_vec()));
        assert_eq!(message(walked), "unknown field 536870911 of TensorProto in `graph.initializer[0]` at offset 6");
    }

    #[test]
    fn unknown_fields_are_refused_with_their_place() {
        let mut node = NodeProto { op_type: Some("Foo".into()), ..NodeProto::default() }.encode_to_vec();
        node.extend([99 << 3 & 0x7f | 0x80, 6, 1]);
        let mut file = vec![8, 10];
        file.extend(delimited(7, &[delimited(1, &[]), delimited(1, &node)].concat()));
        let found = message(walk(&file));
        assert_eq!(found, "unknown field 99 of NodeProto in `graph.node[1]` at offset 13");
    }

    #[test]
    fn wrong_types_groups_and_keys_are_refused() {
        let cases: [(&[u8], &str); 7] = [
            (&[8 | 2, 1, 0], "`ir_version` at offset 0 has wire type 2, which is not that of the field"),
            (&[7 << 3, 1], "`graph` at offset 0 has wire type 0, which is not that of the field"),
            (&[7 << 3 | 3, 7 << 3 | 4], "`model` holds an invalid field key 59 at offset 0"),
            (&[7 << 3 | 6], "`model` holds an invalid field key 62 at offset 0"),
            (&[0, 1], "`model` holds an invalid field key 0 at offset 0"),
            (&[2 << 3 | 2, 1, 0xff], "`producer_name` at offset 0 is not UTF-8"),
            (
                &[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2],
                "`ir_version` holds an integer of more than 64 bits at offset 0",
            ),
        ];
        for (bytes, expected) in cases {
            assert_eq!(message(walk(bytes)), expected);
        }
        let odd = walk(&with_tensor(&delimited(4, &[0; 6])));
        assert_eq!(message(odd), "`graph.initializer[0].float_data` at offset 6 has 6 bytes, not a multiple of 4");
        let twice = [delimited(5, &[]), delimited(5, &[])].concat();
        let node = delimited(1, &delimited(5, &twice));
        assert_eq!(
            message(walk(&[vec![8, 10], delimited(7, &node)].concat())),
            "`graph.node[0].attribute[0].t` occurs a second time at offset 10"
        );
    }

    #[test]
    fn every_truncation_is_refused() {
        let tensor = TensorProto {
            raw_data: Some(vec![1; 2000]),
            float_data: vec![1.0; 3],
            name: Some("w".into()),
            ..TensorProto::default()
        };
        let file = with_tensor(&tensor.encode_to_vec());
        for length in 3..file.len() {
            let error = walk(&file[..length]).expect_err("refused");
            assert!(matches!(error, OnnxError::Truncated { .. }), "{length}: {error}");
        }
        let found = message(walk(&file[..100]));
        let end = file.len();
        assert_eq!(
            found,
            format!("the file is truncated: `graph` at offset 2 goes on to byte {end}, the file ends at 100")
        );
    }

    #[test]
    fn lengths_stay_inside_their_message() {
        // A name of 100 bytes in a graph of 4, in a file that is long enough.
        let mut file = vec![8, 10, 7 << 3 | 2, 4, 2 << 3 | 2, 100];
        file.extend([0; 200]);
        assert_eq!(
            message(walk(&file)),
            "`graph.name` at offset 4 goes on to byte 106, but the message that holds it ends at 8"
        );
        // A length near the largest integer does not wrap.
        let mut file = vec![8, 10, 7 << 3 | 2];
        prost::encoding::encode_varint(u64::MAX, &mut file);
        assert!(matches!(walk(&file), Err(OnnxError::Truncated { end: u64::MAX, .. })));
    }

    /// A model whose main graph holds graphs inside each other, `depth` in all.
    fn nested_graphs(depth: usize) -> ModelProto {
        let mut graph = GraphProto::default();
        for _ in 1..depth {
            let attribute = AttributeProto { g: Some(Box::new(graph)), ..AttributeProto::default() };
            let node = NodeProto { attribute: vec![attribute], ..NodeProto::default() };
            graph = GraphProto { node: vec![node], ..GraphProto::default() };
        }
        model(graph)
    }

    #[test]
    fn graphs_nest_up_to_the_limit() {
        walk(&nested_graphs(ONNX_GRAPH_NESTING).encode_to_vec()).unwrap();
        let found = message(walk(&nested_graphs(ONNX_GRAPH_NESTING + 1).encode_to_vec()));
        assert!(found.ends_with("is nested too deep: more than 30 graphs inside each other"), "{found}");
    }

    #[test]
    fn messages_nest_up_to_the_limit() {
        // A type of sequences without end; the decoder must not meet its own limit first.
        let nested = |depth: usize| {
            let mut types = Vec::new();
            for _ in 0..depth {
                types = delimited(4, &delimited(1, &types));
            }
            let input = delimited(2, &types);
            [vec![8, 10], delimited(7, &delimited(11, &input))].concat()
        };
        walk(&nested(ONNX_MESSAGE_NESTING / 2 - 2)).unwrap();
        let found = message(walk(&nested(ONNX_MESSAGE_NESTING / 2 - 1)));
        assert!(found.ends_with("more than 96 messages inside each other"), "{found}");
    }

    #[test]
    fn small_messages_can_not_fill_the_memory() {
        // An empty attribute takes two bytes in the file and a few hundred decoded.
        let attributes = delimited(5, &[]).repeat((ONNX_DECODED_BYTES / 300) as usize);
        let file = [vec![8, 10], delimited(7, &delimited(1, &attributes))].concat();
        let error = skeleton(&file, &MODEL, "model").expect_err("refused");
        assert!(matches!(error, OnnxError::TooLarge { .. }), "{error}");
        assert!((file.len() as u64) < ONNX_DECODED_BYTES / 100);
    }

    /// Counts what is read.
    struct Counting(Vec<u8>, std::sync::atomic::AtomicU64);

    impl ReadAt for Counting {
        fn length(&self) -> u64 {
            self.0.length()
        }

        fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
            self.1.fetch_add(buffer.len() as u64, std::sync::atomic::Ordering::Relaxed);
            self.0.read_exact_at(offset, buffer)
        }
    }

    #[test]
    fn large_tensors_are_not_read() {
        let tensor = TensorProto { raw_data: Some(vec![1; 4 << 20]), ..TensorProto::default() };
        let graph = GraphProto { initializer: vec![tensor; 4], ..GraphProto::default() };
        let file = Counting(model(graph).encode_to_vec(), 0.into());
        let skeleton = skeleton(&file, &MODEL, "model").unwrap();
        assert!(skeleton.len() < 400);
        let read = file.1.into_inner();
        assert!(read <= 6 * crate::limits::ONNX_WINDOW_BYTES as u64, "{read} bytes were read");
    }
}
