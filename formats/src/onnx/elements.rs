//! From the data fields of a `TensorProto` to canonical bytes: little-endian, packed as in `raw_data`.
//!
//! The same packing serves small tensors, which are decoded here, and large ones, which
//! [`ElementReader`](super::ElementReader) reads. Integers narrower than their field are accepted as signed or as bits (-1 and 255 are
//! the same byte), which is what writers do; anything wider is refused.

use super::data_field::{DataField, Segment, TensorData};
use super::schema::TensorProto;
use super::tensor_fault::TensorFault;
use crate::dtype::DType;
use crate::tensor::{Tensor, TensorError, element_count};

/// Fields whose packed bytes are canonical.
pub(super) struct Fixed {
    /// Bytes of an entry.
    pub entry_bytes: u64,
}

impl Fixed {
    pub fn of(field: DataField) -> Option<Self> {
        match field {
            DataField::RawData => Some(Self { entry_bytes: 1 }),
            DataField::FloatData => Some(Self { entry_bytes: 4 }),
            DataField::DoubleData => Some(Self { entry_bytes: 8 }),
            DataField::Int32Data | DataField::Int64Data | DataField::Uint64Data | DataField::StringData => None,
        }
    }
}

/// Number of entries that a typed field needs: 4 and 2-bit elements share one, a complex number takes two.
pub(super) fn entries(field: DataField, dtype: DType, shape: &[usize]) -> u64 {
    let count = element_count(shape).unwrap_or(usize::MAX);
    let bytes = dtype.packed_bytes(count).unwrap_or(usize::MAX) as u64;
    match Fixed::of(field) {
        Some(fixed) => bytes / fixed.entry_bytes,
        None if matches!(dtype.bits(), 2 | 4) => bytes,
        None => count as u64,
    }
}

fn size_fault(dtype: DType, shape: &[usize], found: u64) -> TensorFault {
    let count = element_count(shape).unwrap_or(usize::MAX);
    let expected = dtype.packed_bytes(count).unwrap_or(usize::MAX) as u64;
    TensorFault::Size { dtype, shape: shape.to_vec(), expected, found }
}

/// A shape as it is in the file.
pub(super) fn signed(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|extent| i64::try_from(*extent).unwrap_or(i64::MAX)).collect()
}

fn tensor_fault(error: TensorError, shape: &[usize]) -> TensorFault {
    match error {
        TensorError::Size { dtype, shape, expected, found } => {
            TensorFault::Size { dtype, shape, expected: expected as u64, found: found as u64 }
        }
        TensorError::TooLarge { .. }
        | TensorError::Index { .. }
        | TensorError::Memory { .. }
        | TensorError::Room { .. }
        | TensorError::ElementType { .. } => TensorFault::TooLarge { shape: signed(shape) },
    }
}

/// A tensor of no data: right only where there are no elements.
pub(super) fn none(dtype: DType, shape: &[usize], raw: bool) -> Result<TensorData, TensorFault> {
    let count = element_count(shape).unwrap_or(usize::MAX);
    if count > 0 {
        return Err(if raw { size_fault(dtype, shape, 0) } else { TensorFault::NoData { count } });
    }
    let tensor = match dtype {
        DType::String => Tensor::from_strings(shape, Vec::new()),
        _ => Tensor::from_bytes(dtype, shape, &[]),
    };
    tensor.map(TensorData::Inline).map_err(|error| tensor_fault(error, shape))
}

/// Checks what can be known of the size of data in the file before it is read.
pub(super) fn check_segments(
    field: DataField,
    dtype: DType,
    shape: &[usize],
    segments: &[Segment],
) -> Result<(), TensorFault> {
    let found = segments.iter().fold(0u64, |sum, segment| sum.saturating_add(segment.length));
    let expected = entries(field, dtype, shape);
    let tagged = segments.iter().any(|segment| segment.tagged);
    match Fixed::of(field) {
        Some(fixed) if !tagged && found / fixed.entry_bytes != expected => {
            return Err(size_fault(dtype, shape, found));
        }
        // An entry takes at least one byte: a bound on memory until the entries are counted.
        _ if expected == 0 => {
            return Err(TensorFault::Entries { field, expected, found: 0, more: true });
        }
        _ if found < expected => {
            return Err(TensorFault::Entries { field, expected, found, more: false });
        }
        _ => {}
    }
    Ok(())
}

/// Decodes a tensor whose data is part of the message.
pub(super) fn inline(
    tensor: &TensorProto,
    field: DataField,
    dtype: DType,
    shape: &[usize],
) -> Result<Tensor, TensorFault> {
    let mut packer = Packer::new(field, dtype);
    let mut bytes = Vec::new();
    let found = match field {
        DataField::RawData => {
            let raw = tensor.raw_data.as_deref().unwrap_or_default();
            if raw.len() as u64 != entries(field, dtype, shape) {
                return Err(size_fault(dtype, shape, raw.len() as u64));
            }
            bytes.extend_from_slice(raw);
            raw.len()
        }
        DataField::StringData => return strings(tensor, shape),
        DataField::FloatData => {
            bytes.extend(tensor.float_data.iter().flat_map(|value| value.to_le_bytes()));
            tensor.float_data.len()
        }
        DataField::DoubleData => {
            bytes.extend(tensor.double_data.iter().flat_map(|value| value.to_le_bytes()));
            tensor.double_data.len()
        }
        DataField::Int32Data => {
            for value in &tensor.int32_data {
                packer.put(i128::from(*value), &mut bytes)?;
            }
            tensor.int32_data.len()
        }
        DataField::Int64Data => {
            for value in &tensor.int64_data {
                packer.put(i128::from(*value), &mut bytes)?;
            }
            tensor.int64_data.len()
        }
        DataField::Uint64Data => {
            for value in &tensor.uint64_data {
                packer.put(i128::from(*value), &mut bytes)?;
            }
            tensor.uint64_data.len()
        }
    };
    packer.finish(&mut bytes);
    let (expected, found) = (entries(field, dtype, shape), found as u64);
    if found != expected {
        return Err(TensorFault::Entries { field, expected, found, more: false });
    }
    check_bytes(dtype, shape, 0, &mut bytes)?;
    Tensor::from_bytes(dtype, shape, &bytes).map_err(|error| tensor_fault(error, shape))
}

fn strings(tensor: &TensorProto, shape: &[usize]) -> Result<Tensor, TensorFault> {
    let text = |(index, bytes): (usize, &Vec<u8>)| {
        String::from_utf8(bytes.clone()).map_err(|_| TensorFault::NotUtf8 { index })
    };
    let strings: Vec<String> = tensor.string_data.iter().enumerate().map(text).collect::<Result<_, _>>()?;
    let (expected, found) = (element_count(shape).unwrap_or(usize::MAX) as u64, strings.len() as u64);
    if found != expected {
        let field = DataField::StringData;
        return Err(TensorFault::Entries { field, expected, found, more: false });
    }
    Tensor::from_strings(shape, strings).map_err(|error| tensor_fault(error, shape))
}

/// Checks booleans and clears the unused bits of the last byte. `bytes` are those from `offset` on.
pub(super) fn check_bytes(dtype: DType, shape: &[usize], offset: u64, bytes: &mut [u8]) -> Result<(), TensorFault> {
    if dtype == DType::Bool
        && let Some(index) = bytes.iter().position(|byte| *byte > 1)
    {
        return Err(TensorFault::NotABoolean { index: offset + index as u64, value: bytes[index] });
    }
    if dtype.is_sub_byte() {
        let count = element_count(shape).unwrap_or(usize::MAX);
        let total = dtype.packed_bytes(count).unwrap_or(usize::MAX) as u64;
        // A multiple of 8 elements fills its bytes.
        let used_bits = (count % 8) * dtype.bits() % 8;
        if used_bits > 0
            && offset + bytes.len() as u64 == total
            && let Some(last) = bytes.last_mut()
        {
            *last &= (1u8 << used_bits) - 1;
        }
    }
    Ok(())
}

/// Puts the entries of an integer field together to canonical bytes.
pub(super) struct Packer {
    field: DataField,
    dtype: DType,
    /// Entries so far.
    index: u64,
    /// 6-bit elements that do not fill a byte yet.
    bits: u32,
    bit_count: u32,
}

impl Packer {
    pub fn new(field: DataField, dtype: DType) -> Self {
        Self { field, dtype, index: 0, bits: 0, bit_count: 0 }
    }

    /// Adds one entry.
    pub fn put(&mut self, value: i128, out: &mut Vec<u8>) -> Result<(), TensorFault> {
        let width = match self.dtype {
            DType::F6E2M3 | DType::F6E3M2 => 6,
            DType::Bool => 1,
            dtype => dtype.bits().max(8),
        };
        let lowest = match width {
            // The bits that are not the element's must be zero.
            1 | 6 => 0,
            _ if self.field == DataField::Uint64Data => 0,
            _ => -(1i128 << (width - 1)),
        };
        if value < lowest || value >= 1i128 << width {
            let (field, index, dtype) = (self.field, self.index, self.dtype);
            return Err(TensorFault::Range { field, index, value, dtype });
        }
        self.index += 1;
        let bytes = value.to_le_bytes();
        if width == 6 {
            self.bits |= u32::from(bytes[0]) << self.bit_count;
            self.bit_count += 6;
            while self.bit_count >= 8 {
                out.push(self.bits.to_le_bytes()[0]);
                self.bits >>= 8;
                self.bit_count -= 8;
            }
        } else {
            out.extend_from_slice(&bytes[..width.div_ceil(8)]);
        }
        Ok(())
    }

    /// Writes the bits that do not fill a byte.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.bit_count > 0 {
            out.push(self.bits.to_le_bytes()[0]);
            (self.bits, self.bit_count) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::onnx::read_tensor;
    use crate::onnx::{TensorDataError, TensorSource};

    /// The tensor as it comes out of a file, and the file.
    fn through_file(tensor: &TensorProto) -> (Result<TensorSource, TensorDataError>, Vec<u8>) {
        let file = tensor.encode_to_vec();
        (TensorSource::of(&read_tensor(&file).unwrap()), file)
    }

    /// The canonical bytes, read whole, in odd pieces, and at a position.
    fn bytes(tensor: &TensorProto) -> Result<Vec<u8>, String> {
        let (source, file) = through_file(tensor);
        let source = source.map_err(|error| error.to_string())?;
        let whole = source.load(&file).map_err(|error| error.to_string())?.bytes().to_vec();
        if let Some(raw) = &tensor.raw_data
            && let Some(offset) = source.source_offset()
        {
            assert_eq!(&file[offset as usize..offset as usize + raw.len()], raw);
        }
        assert_eq!(whole.len() as u64, source.length_bytes());
        let mut pieces = Vec::new();
        let mut reader = source.reader(&file).unwrap();
        for size in [1, 2, 3, 7, 100, 33].iter().cycle() {
            let mut piece = vec![0; (*size).min(reader.remaining_bytes() as usize)];
            reader.read(&mut piece).unwrap();
            pieces.extend(piece);
            if reader.remaining_bytes() == 0 {
                break;
            }
        }
        assert_eq!(pieces, whole);
        let middle = whole.len() / 3;
        let mut end = vec![0; whole.len() - middle];
        source.read_at(&file, middle as u64, &mut end).unwrap();
        assert_eq!(end, whole[middle..]);
        Ok(whole)
    }

    fn of(dtype: DType, dims: &[i64]) -> TensorProto {
        TensorProto {
            dims: dims.to_vec(),
            data_type: Some(dtype.onnx_code()),
            name: Some("w".into()),
            ..TensorProto::default()
        }
    }

    /// Lengths below and above what stays inline.
    const COUNTS: [i64; 2] = [6, 3000];

    #[test]
    fn wide_integers_come_out_of_their_fields() {
        for count in COUNTS {
            let numbers: Vec<i64> = (0..count).map(|index| (index - 3) * 0x1234_5678_9abc).collect();
            let tensor = TensorProto { int64_data: numbers.clone(), ..of(DType::I64, &[count]) };
            let expected: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            assert_eq!(bytes(&tensor), Ok(expected.clone()));
            let unsigned = numbers.iter().map(|number| number.cast_unsigned()).collect();
            let tensor = TensorProto { uint64_data: unsigned, ..of(DType::U64, &[count]) };
            assert_eq!(bytes(&tensor), Ok(expected));
            let numbers: Vec<u32> = (0..count as u32).map(|index| index.wrapping_mul(0x9e37_79b9)).collect();
            let expected: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let wide = numbers.iter().map(|number| u64::from(*number)).collect();
            let tensor = TensorProto { uint64_data: wide, ..of(DType::U32, &[count]) };
            assert_eq!(bytes(&tensor), Ok(expected.clone()));
            let signed = numbers.iter().map(|number| number.cast_signed()).collect();
            let tensor = TensorProto { int32_data: signed, ..of(DType::I32, &[count]) };
            assert_eq!(bytes(&tensor), Ok(expected));
        }
    }

    #[test]
    fn narrow_elements_come_out_of_int32_data_signed_or_as_bits() {
        for count in COUNTS {
            for dtype in [DType::I16, DType::U16, DType::F16, DType::BF16] {
                let numbers: Vec<i32> = (0..count as i32).map(|index| index * 4001 % 0x8000).collect();
                for offset in [0, 0x8000, -0x8000] {
                    let moved: Vec<i32> = numbers.iter().map(|number| number + offset).collect();
                    let expected: Vec<u8> = moved.iter().flat_map(|number| (*number as u16).to_le_bytes()).collect();
                    let tensor = TensorProto { int32_data: moved, ..of(dtype, &[2, count / 2]) };
                    assert_eq!(bytes(&tensor), Ok(expected), "{dtype}");
                }
            }
            for dtype in [DType::U8, DType::I8, DType::F8E4M3FN, DType::F8E5M2FNUZ, DType::F8E8M0] {
                let numbers: Vec<i32> = (0..count as i32).map(|index| index % 384 - 128).collect();
                let expected = numbers.iter().map(|number| *number as u8).collect();
                let tensor = TensorProto { int32_data: numbers, ..of(dtype, &[count]) };
                assert_eq!(bytes(&tensor), Ok(expected), "{dtype}");
            }
            let numbers: Vec<i32> = (0..count as i32).map(|index| index % 2).collect();
            let expected = numbers.iter().map(|number| *number as u8).collect();
            let tensor = TensorProto { int32_data: numbers, ..of(DType::Bool, &[count]) };
            assert_eq!(bytes(&tensor), Ok(expected));
        }
    }

    #[test]
    fn elements_below_a_byte_are_packed() {
        for count in [5, 8, 5001] {
            for dtype in [DType::U4, DType::I4, DType::F4E2M1, DType::U2, DType::I2] {
                let codes: Vec<u8> = (0..count as usize).map(|index| (index * 7 % 16) as u8).collect();
                let packed = crate::tensor::pack_codes(&codes, dtype.bits());
                let entries = packed.iter().map(|byte| i32::from(*byte)).collect();
                let tensor = TensorProto { int32_data: entries, ..of(dtype, &[count]) };
                assert_eq!(bytes(&tensor).as_ref(), Ok(&packed), "{dtype} {count}");
                let tensor = TensorProto { raw_data: Some(packed.clone()), ..of(dtype, &[count]) };
                assert_eq!(bytes(&tensor), Ok(packed), "{dtype} {count}");
            }
            for dtype in [DType::F6E2M3, DType::F6E3M2] {
                let codes: Vec<u8> = (0..count as usize).map(|index| (index * 11 % 64) as u8).collect();
                let packed = crate::tensor::pack_codes(&codes, 6);
                let entries = codes.iter().map(|code| i32::from(*code)).collect();
                let tensor = TensorProto { int32_data: entries, ..of(dtype, &[count]) };
                assert_eq!(bytes(&tensor).as_ref(), Ok(&packed), "{dtype} {count}");
                let tensor = TensorProto { raw_data: Some(packed.clone()), ..of(dtype, &[count]) };
                assert_eq!(bytes(&tensor), Ok(packed), "{dtype} {count}");
            }
        }
    }

    #[test]
    fn unused_bits_are_cleared() {
        for (dtype, count, last) in [(DType::U4, 2001, 0x0f), (DType::I2, 5001, 0x03), (DType::F6E2M3, 2001, 0x3f)] {
            let length = dtype.packed_bytes(count).unwrap();
            let tensor = TensorProto { raw_data: Some(vec![0xff; length]), ..of(dtype, &[count as i64]) };
            let found = bytes(&tensor).unwrap();
            assert_eq!(found[length - 1], last, "{dtype}");
            assert!(found[..length - 1].iter().all(|byte| *byte == 0xff));
        }
    }

    #[test]
    fn floats_and_complex_numbers_keep_their_bits() {
        for count in COUNTS {
            let bits = |index: i64| 0x7fa0_0001u32.wrapping_add(index as u32 * 77_777);
            let floats: Vec<f32> = (0..count).map(|index| f32::from_bits(bits(index))).collect();
            let expected: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
            let tensor = TensorProto { float_data: floats.clone(), ..of(DType::F32, &[count]) };
            assert_eq!(bytes(&tensor).as_ref(), Ok(&expected));
            let tensor = TensorProto { float_data: floats, ..of(DType::C64, &[count / 2]) };
            assert_eq!(bytes(&tensor), Ok(expected));
            let doubles: Vec<f64> = (0..count).map(|index| index as f64 / 7.0).collect();
            let expected: Vec<u8> = doubles.iter().flat_map(|double| double.to_le_bytes()).collect();
            let tensor = TensorProto { double_data: doubles.clone(), ..of(DType::F64, &[count]) };
            assert_eq!(bytes(&tensor).as_ref(), Ok(&expected));
            let tensor = TensorProto { double_data: doubles, ..of(DType::C128, &[count / 2]) };
            assert_eq!(bytes(&tensor).as_ref(), Ok(&expected));
            let tensor = TensorProto { raw_data: Some(expected.clone()), ..of(DType::C128, &[count / 2]) };
            assert_eq!(bytes(&tensor), Ok(expected));
        }
    }

    #[test]
    fn strings_are_text() {
        let text = vec![b"a".to_vec(), "ü".into(), Vec::new()];
        let tensor = TensorProto { string_data: text.clone(), ..of(DType::String, &[3]) };
        let (source, file) = through_file(&tensor);
        assert_eq!(source.unwrap().load(&file).unwrap().strings().unwrap(), ["a", "ü", ""]);
        let tensor = TensorProto { string_data: text, ..of(DType::String, &[2]) };
        assert_eq!(bytes(&tensor).unwrap_err(), "tensor `w` needs 2 entries in `string_data`, there are 3");
        let tensor = TensorProto { string_data: vec![vec![0xff]], ..of(DType::String, &[]) };
        assert_eq!(bytes(&tensor).unwrap_err(), "tensor `w` has text that is not UTF-8 in element 0");
    }

    #[test]
    fn empty_tensors_need_no_data() {
        assert_eq!(bytes(&of(DType::F32, &[3, 0])), Ok(vec![]));
        assert_eq!(bytes(&TensorProto { raw_data: Some(vec![]), ..of(DType::F6E2M3, &[0]) }), Ok(vec![]));
        assert_eq!(bytes(&of(DType::F32, &[])).unwrap_err(), "tensor `w` has 1 elements by its shape but holds none");
    }

    #[test]
    fn wrong_sizes_are_refused_with_numbers() {
        for count in COUNTS {
            let floats = vec![0.0; count as usize];
            let raw = vec![0; count as usize * 4];
            for wrong in [count - 1, count + 1] {
                let tensor = TensorProto { float_data: floats.clone(), ..of(DType::F32, &[wrong]) };
                assert!(bytes(&tensor).is_err());
                let tensor = TensorProto { raw_data: Some(raw.clone()), ..of(DType::F32, &[wrong]) };
                assert_eq!(
                    bytes(&tensor).unwrap_err(),
                    format!(
                        "tensor `w` of type f32 and shape [{wrong}] needs {} bytes, there are {}",
                        wrong * 4,
                        count * 4
                    )
                );
                let tensor = TensorProto { int64_data: vec![1; count as usize], ..of(DType::I64, &[wrong]) };
                assert!(bytes(&tensor).unwrap_err().contains(&format!("needs {wrong} entries in `int64_data`")));
            }
            let tensor = TensorProto { int64_data: vec![1; count as usize], ..of(DType::I64, &[0]) };
            assert!(bytes(&tensor).unwrap_err().contains("needs 0 entries in `int64_data`"));
        }
    }

    #[test]
    fn values_beyond_the_type_are_refused() {
        for count in COUNTS {
            let with = |dtype, value| {
                let mut int32_data = vec![1; count as usize];
                int32_data[4] = value;
                bytes(&TensorProto { int32_data, ..of(dtype, &[count]) })
            };
            for (dtype, value) in [(DType::U8, 256), (DType::I8, -129), (DType::F16, 65536), (DType::F6E2M3, 64)] {
                let expected =
                    format!("tensor `w` has the value {value} in entry 4 of `int32_data`, beyond the range of {dtype}");
                assert_eq!(with(dtype, value).unwrap_err(), expected);
            }
            assert_eq!(
                with(DType::Bool, 2).unwrap_err().to_string(),
                "tensor `w` has the value 2 in entry 4 of `int32_data`, beyond the range of bool"
            );
            assert_eq!(
                with(DType::F6E3M2, -1).unwrap_err().to_string(),
                "tensor `w` has the value -1 in entry 4 of `int32_data`, beyond the range of f6e3m2"
            );
            let mut raw = vec![1; count as usize];
            raw[5] = 2;
            let tensor = TensorProto { raw_data: Some(raw), ..of(DType::Bool, &[count]) };
            assert_eq!(bytes(&tensor).unwrap_err(), "tensor `w` is boolean and has the value 2 in element 5");
        }
        let wide = TensorProto { uint64_data: vec![1 << 32], ..of(DType::U32, &[1]) };
        assert_eq!(
            bytes(&wide).unwrap_err().to_string(),
            "tensor `w` has the value 4294967296 in entry 0 of `uint64_data`, beyond the range of u32"
        );
    }
}
