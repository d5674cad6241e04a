//! Reading the elements of a tensor out of its file, in order and a window at a time.
//!
//! Where the file holds the canonical bytes they are passed on; integers and unpacked entries are decoded on
//! the way. Memory does not grow with the tensor.

use super::data_field::{DataField, Segment, TensorData};
use super::elements::{self, Fixed, Packer, check_bytes, entries};
use super::tensor::TensorSource;
use super::tensor_fault::{TensorDataError, TensorFault};
use super::window::{Window, WindowError};
use crate::limits::ONNX_WINDOW_BYTES;
use crate::read_at::ReadAt;
use crate::tensor::Tensor;

/// Reads the elements of a tensor from the first on, as canonical bytes.
pub struct ElementReader<'a> {
    tensor: &'a TensorSource,
    file: &'a dyn ReadAt,
    /// Next byte of the tensor.
    position: u64,
    mode: Mode<'a>,
}

enum Mode<'a> {
    /// In memory.
    Memory(&'a [u8]),
    /// Canonical bytes in the file.
    Direct(Vec<Segment>),
    /// Everything else.
    Decoded(Box<Decoder<'a>>),
}

impl TensorSource {
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
        if let TensorData::Inline(tensor) = self.data() {
            return Ok(tensor.clone());
        }
        // The reader has checked that the file holds at least an eighth of this.
        let mut reader = self.reader(file)?;
        let too_large = |_| self.error(TensorFault::TooLarge { shape: elements::signed(self.shape()) });
        let mut tensor = Tensor::zeros(self.dtype(), self.shape()).map_err(too_large)?;
        reader.read(tensor.bytes_mut())?;
        Ok(tensor)
    }
}

impl<'a> ElementReader<'a> {
    fn new(tensor: &'a TensorSource, file: &'a dyn ReadAt) -> Result<Self, TensorDataError> {
        let mode = match tensor.data() {
            TensorData::Inline(inline) => Mode::Memory(inline.bytes()),
            TensorData::External(external) => {
                let (offset, length) = (external.offset, tensor.length_bytes());
                Mode::Direct(vec![Segment { offset, length, tagged: false }])
            }
            TensorData::InFile { segments, .. } if tensor.is_direct() => Mode::Direct(segments.clone()),
            TensorData::InFile { field, segments } => {
                Mode::Decoded(Box::new(Decoder::new(tensor, *field, segments, file)))
            }
        };
        let segments = match &mode {
            Mode::Memory(_) => &[],
            Mode::Direct(segments) => segments.as_slice(),
            Mode::Decoded(decoder) => decoder.segments,
        };
        let file_bytes = file.length();
        for segment in segments {
            let end = segment.offset.saturating_add(segment.length);
            if end > file_bytes {
                let offset = segment.offset;
                return Err(tensor.error(TensorFault::BeyondFile { offset, end, file_bytes }));
            }
        }
        Ok(Self { tensor, file, position: 0, mode })
    }

    /// Bytes that are left.
    #[must_use]
    pub fn remaining_bytes(&self) -> u64 {
        self.tensor.length_bytes() - self.position
    }

    /// Fills the buffer. With the last byte of the tensor it is known that the file holds no more elements.
    ///
    /// # Errors
    /// [`TensorDataError`] when the data is malformed, or the buffer larger than what is left.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<(), TensorDataError> {
        let tensor = self.tensor;
        self.read_bytes(buffer).map_err(|fault| tensor.error(fault))
    }

    /// Passes over bytes: at no cost where the data [is direct](TensorSource::is_direct).
    ///
    /// # Errors
    /// [`TensorDataError`] when the data is malformed, or ends before.
    pub fn skip(&mut self, mut count: u64) -> Result<(), TensorDataError> {
        let tensor = self.tensor;
        self.check_left(count).map_err(|fault| tensor.error(fault))?;
        if !matches!(self.mode, Mode::Decoded(_)) {
            self.position += count;
            return Ok(());
        }
        let mut buffer = [0; 4096];
        while count > 0 {
            let part = usize::try_from(count).unwrap_or(usize::MAX).min(buffer.len());
            self.read(&mut buffer[..part])?;
            count -= part as u64;
        }
        Ok(())
    }

    fn check_left(&self, count: u64) -> Result<(), TensorFault> {
        if count > self.remaining_bytes() {
            let (from, to) = (self.position, self.position.saturating_add(count));
            let length_bytes = self.tensor.length_bytes();
            return Err(TensorFault::BeyondTensor { from, to, length_bytes });
        }
        Ok(())
    }

    fn read_bytes(&mut self, buffer: &mut [u8]) -> Result<(), TensorFault> {
        self.check_left(buffer.len() as u64)?;
        match &mut self.mode {
            Mode::Memory(bytes) => {
                // The position is within the bytes, so it fits.
                let start = usize::try_from(self.position).unwrap_or(usize::MAX);
                buffer.copy_from_slice(&bytes[start..start + buffer.len()]);
            }
            Mode::Direct(segments) => read_direct(self.file, segments, self.position, buffer)?,
            Mode::Decoded(decoder) => decoder.read(buffer)?,
        }
        check_bytes(self.tensor.dtype(), self.tensor.shape(), self.position, buffer)?;
        self.position += buffer.len() as u64;
        Ok(())
    }
}

/// Fills the buffer from the bytes of the segments, which begin `position` bytes before.
fn read_direct(
    file: &dyn ReadAt,
    segments: &[Segment],
    mut position: u64,
    mut buffer: &mut [u8],
) -> Result<(), TensorFault> {
    for segment in segments {
        if position >= segment.length {
            position -= segment.length;
            continue;
        }
        let offset = segment.offset + position;
        let left = usize::try_from(segment.length - position).unwrap_or(usize::MAX);
        let (part, rest) = buffer.split_at_mut(left.min(buffer.len()));
        file.read_exact_at(offset, part).map_err(|error| TensorFault::Io { offset, error })?;
        (buffer, position) = (rest, 0);
        if buffer.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Decodes integers and unpacked entries, a window at a time.
struct Decoder<'a> {
    field: DataField,
    segments: &'a [Segment],
    /// Segments that are begun.
    begun: usize,
    /// End of the last of them.
    end: u64,
    tagged: bool,
    window: Window<'a>,
    packer: Packer,
    expected_entries: u64,
    found_entries: u64,
    /// Canonical bytes that are decoded.
    staging: Vec<u8>,
    /// How many of them are delivered.
    delivered: usize,
}

impl<'a> Decoder<'a> {
    fn new(tensor: &TensorSource, field: DataField, segments: &'a [Segment], file: &'a dyn ReadAt) -> Self {
        Self {
            field,
            segments,
            begun: 0,
            end: 0,
            tagged: false,
            window: Window::new(file),
            packer: Packer::new(field, tensor.dtype()),
            expected_entries: entries(field, tensor.dtype(), tensor.shape()),
            found_entries: 0,
            staging: Vec::new(),
            delivered: 0,
        }
    }

    fn read(&mut self, mut buffer: &mut [u8]) -> Result<(), TensorFault> {
        while !buffer.is_empty() {
            if self.delivered == self.staging.len() {
                self.stage()?;
            }
            let count = buffer.len().min(self.staging.len() - self.delivered);
            let (part, rest) = buffer.split_at_mut(count);
            part.copy_from_slice(&self.staging[self.delivered..self.delivered + count]);
            self.delivered += count;
            buffer = rest;
        }
        Ok(())
    }

    /// Decodes some entries, at least one.
    fn stage(&mut self) -> Result<(), TensorFault> {
        self.staging.clear();
        self.delivered = 0;
        while self.staging.len() < ONNX_WINDOW_BYTES && self.found_entries < self.expected_entries {
            if !self.in_segment() {
                return Err(self.entries_fault(false));
            }
            self.entry()?;
            self.found_entries += 1;
        }
        if self.found_entries == self.expected_entries {
            self.packer.finish(&mut self.staging);
            if self.in_segment() {
                return Err(self.entries_fault(true));
            }
        }
        Ok(())
    }

    /// Goes on to the next segment where one ends; false after the last.
    fn in_segment(&mut self) -> bool {
        while self.begun == 0 || self.window.position() >= self.end {
            let Some(segment) = self.segments.get(self.begun) else {
                return false;
            };
            self.begun += 1;
            self.window.seek(segment.offset);
            self.end = segment.offset + segment.length;
            self.tagged = segment.tagged;
        }
        true
    }

    fn entry(&mut self) -> Result<(), TensorFault> {
        if self.tagged {
            // The walk has seen that this is the key of the field.
            self.varint()?;
        }
        if let Some(fixed) = Fixed::of(self.field) {
            if self.end - self.window.position() < fixed.entry_bytes {
                return Err(TensorFault::Varint { offset: self.window.position() });
            }
            return self.window.copy(fixed.entry_bytes, &mut self.staging).map_err(|error| self.fault(error));
        }
        let value = self.varint()?;
        let value = match self.field {
            // As protobuf does: the low 32 bits, signed.
            DataField::Int32Data => i128::from(value as i32),
            DataField::Int64Data => i128::from(value.cast_signed()),
            _ => i128::from(value),
        };
        self.packer.put(value, &mut self.staging)
    }

    fn varint(&mut self) -> Result<u64, TensorFault> {
        let value = self.window.varint().map_err(|error| self.fault(error))?;
        if self.window.position() > self.end {
            return Err(TensorFault::Varint { offset: self.end });
        }
        Ok(value)
    }

    fn fault(&self, error: WindowError) -> TensorFault {
        match error {
            WindowError::End | WindowError::VarintOverflow => TensorFault::Varint { offset: self.window.position() },
            WindowError::Io(offset, error) => TensorFault::Io { offset, error },
        }
    }

    fn entries_fault(&self, more: bool) -> TensorFault {
        let (field, expected, found) = (self.field, self.expected_entries, self.found_entries);
        TensorFault::Entries { field, expected, found, more }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::dtype::DType;
    use crate::onnx::read_tensor;
    use crate::onnx::schema::TensorProto;

    /// The tensor as it comes out of a file, and the file.
    fn through_file(tensor: &TensorProto) -> (Result<TensorSource, TensorDataError>, Vec<u8>) {
        let file = tensor.encode_to_vec();
        (TensorSource::of(&read_tensor(&file).unwrap()), file)
    }

    fn of(dtype: DType, dims: &[i64]) -> TensorProto {
        TensorProto {
            dims: dims.to_vec(),
            data_type: Some(dtype.onnx_code()),
            name: Some("w".into()),
            ..TensorProto::default()
        }
    }

    #[test]
    fn unpacked_and_split_data_is_read_in_order() {
        // float_data and int64_data in turn packed and unpacked.
        let mut file = of(DType::F32, &[1500]).encode_to_vec();
        let mut expected = Vec::new();
        for index in 0..500u32 {
            let (one, two) = ((index as f32).to_le_bytes(), (index as f32 + 0.5).to_le_bytes());
            file.push(4 << 3 | 5);
            file.extend(one);
            file.extend([4 << 3 | 2, 8]);
            file.extend(two);
            file.extend(one);
            expected.extend([one, two, one].concat());
        }
        let source = TensorSource::of(&read_tensor(&file).unwrap()).unwrap();
        assert!(!source.is_direct());
        assert_eq!(source.load(&file).unwrap().bytes(), expected);

        let mut file = of(DType::I64, &[1500]).encode_to_vec();
        let mut expected = Vec::new();
        for _ in 0..500 {
            file.extend([7 << 3, 0x80, 1, 7 << 3 | 2, 3, 5, 0xff, 1]);
            expected.extend([128i64, 5, 255].map(i64::to_le_bytes).concat());
        }
        let source = TensorSource::of(&read_tensor(&file).unwrap()).unwrap();
        assert_eq!(source.load(&file).unwrap().bytes(), expected);
    }

    #[test]
    fn packed_data_in_several_pieces_stays_direct() {
        let mut file = of(DType::F32, &[1024]).encode_to_vec();
        let data: Vec<u8> = (0..4096u32).map(|index| index as u8).collect();
        for part in data.chunks(512) {
            prost::encoding::bytes::encode(4, &part.to_vec(), &mut file);
        }
        let source = TensorSource::of(&read_tensor(&file).unwrap()).unwrap();
        assert!(source.is_direct());
        assert_eq!(source.load(&file).unwrap().bytes(), data);
        let mut part = vec![0; 1000];
        source.read_at(&file, 700, &mut part).unwrap();
        assert_eq!(part, data[700..1700]);
    }

    #[test]
    fn malformed_integers_are_refused() {
        for end in [vec![0x80], vec![0xff; 10]] {
            let mut data = vec![1; 2000];
            data.extend(end);
            let mut file = of(DType::I64, &[2001]).encode_to_vec();
            prost::encoding::bytes::encode(7, &data, &mut file);
            // Something follows, which an integer that is cut off would run into.
            file.extend([2 << 3, 7]);
            let source = TensorSource::of(&read_tensor(&file).unwrap()).unwrap();
            let error = source.load(&file).unwrap_err();
            assert!(matches!(*error.fault, TensorFault::Varint { .. }), "{error}");
        }
    }

    #[test]
    fn reads_stay_inside() {
        let tensor = TensorProto { raw_data: Some(vec![1; 2000]), ..of(DType::U8, &[2000]) };
        let (source, file) = through_file(&tensor);
        let source = source.unwrap();
        let error = source.read_at(&file, 1999, &mut [0; 2]).unwrap_err();
        assert_eq!(error.to_string(), "tensor `w` has 2000 bytes, of which 1999 to 2001 were asked for");
        assert_eq!(
            source.read_at(&file, u64::MAX, &mut [0; 2]).unwrap_err().to_string(),
            "tensor `w` has 2000 bytes, of which 0 to 18446744073709551615 were asked for"
        );
        let error = source.load(&file[..100].to_vec()).unwrap_err();
        assert!(matches!(*error.fault, TensorFault::BeyondFile { .. }), "{error}");
    }
}
