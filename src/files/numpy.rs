//! NumPy files: `.npy` holds one array, `.npz` is a ZIP archive of them by name.
//!
//! Read: booleans, integers, f16, f32, f64 and complex numbers in either byte order and either order of axes. Other
//! element types (text, objects, records) and, when writing, those that NumPy lacks are refused by name. What is
//! allocated grows with the bytes that are there, not with what a header promises.
//!
//! Source: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use ipuc_formats::dtype::DType;
use ipuc_formats::tensor::{Tensor, TensorError};
use std::io::{self, Read, Seek, Write};
use thiserror::Error;

const SIGNATURE: &[u8] = b"\x93NUMPY";
/// Headers are padded to this, so that the elements of a mapped file are aligned.
const HEADER_ALIGNMENT: usize = 64;
/// Longest header that is read.
const HEADER_BYTES: usize = 1 << 16;

/// Why a NumPy file cannot be read or written.
#[derive(Debug, Error)]
pub enum NumpyError {
    /// Other first bytes.
    #[error("the file is not a NumPy array: it does not begin with the signature of .npy")]
    Signature,
    /// A version of the format that is not known.
    #[error("the .npy format has version {0}, known are 1 to 3")]
    Version(u8),
    /// The header is not a dictionary of the three known keys.
    #[error("the header of the NumPy array is malformed: {0}")]
    Header(&'static str),
    /// An element type that tensors do not have.
    #[error("the NumPy array has elements of type `{0}`, which are not supported")]
    ElementType(String),
    /// An element type that NumPy does not have.
    #[error("elements of type {0} cannot be stored in a NumPy file")]
    NotRepresentable(DType),
    /// More or fewer bytes than the shape needs.
    #[error("the NumPy array has {found} bytes of elements, its shape needs {expected}")]
    Length {
        /// Bytes that the shape needs.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// The shape is too large.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The archive is malformed.
    #[error("the .npz archive cannot be read: {0}")]
    Archive(#[from] zip::result::ZipError),
    /// A member of an archive that is not an array.
    #[error("member `{member}` of the archive: {error}")]
    Member {
        /// Name of the member.
        member: String,
        /// Why.
        error: Box<NumpyError>,
    },
    /// The medium failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Read an `.npy` file.
///
/// # Errors
/// [`NumpyError`] where it is malformed or holds elements that tensors cannot.
pub fn read_npy(source: &mut dyn Read) -> Result<Tensor, NumpyError> {
    let header = read_header(source)?;
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes)?;
    header.tensor(bytes)
}

/// Read all arrays of an `.npz` file, each with its name, in the order of the archive.
///
/// # Errors
/// [`NumpyError`] where the archive or a member is malformed.
pub fn read_npz(source: impl Read + Seek) -> Result<Vec<(String, Tensor)>, NumpyError> {
    let mut archive = zip::ZipArchive::new(source)?;
    let mut arrays = Vec::with_capacity(archive.len());
    for index in 0..archive.len() {
        let mut member = archive.by_index(index)?;
        let name = member.name()?.into_owned();
        let tensor = read_npy(&mut member);
        let tensor = tensor.map_err(|error| NumpyError::Member { member: name.clone(), error: Box::new(error) })?;
        arrays.push((name.strip_suffix(".npy").unwrap_or(&name).to_string(), tensor));
    }
    Ok(arrays)
}

/// Write an `.npy` file.
///
/// # Errors
/// [`NumpyError::NotRepresentable`] for element types that NumPy lacks.
pub fn write_npy(tensor: &Tensor, output: &mut dyn Write) -> Result<(), NumpyError> {
    let descriptor = descriptor(tensor.dtype()).ok_or(NumpyError::NotRepresentable(tensor.dtype()))?;
    let extents: Vec<String> = tensor.shape().iter().map(|extent| format!("{extent}, ")).collect();
    let mut extents = extents.concat();
    // A tuple of one keeps its comma: `(3,)`.
    extents.truncate(extents.len().saturating_sub(if tensor.rank() == 1 { 1 } else { 2 }));
    let mut header = format!("{{'descr': '{descriptor}', 'fortran_order': False, 'shape': ({extents}), }}");
    let before = SIGNATURE.len() + 4;
    let padded = (before + header.len() + 1).next_multiple_of(HEADER_ALIGNMENT) - before;
    header.extend(std::iter::repeat_n(' ', padded - header.len() - 1));
    header.push('\n');
    // A shape has few axes, far from 64 KiB of header.
    let length = u16::try_from(header.len()).map_err(|_| NumpyError::Header("it is too long"))?;
    output.write_all(SIGNATURE)?;
    output.write_all(&[1, 0])?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(header.as_bytes())?;
    output.write_all(tensor.bytes())?;
    Ok(())
}

/// Write arrays by name as an `.npz` file, uncompressed like `numpy.savez`.
///
/// # Errors
/// [`NumpyError`] where an element type cannot be stored or the medium fails.
pub fn write_npz(arrays: &[(String, Tensor)], output: impl Write + Seek) -> Result<(), NumpyError> {
    let mut archive = zip::ZipWriter::new(output);
    for (name, tensor) in arrays {
        let large = tensor.bytes().len() >= u32::MAX as usize;
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .large_file(large);
        archive.start_file(format!("{name}.npy"), options)?;
        write_npy(tensor, &mut archive)
            .map_err(|error| NumpyError::Member { member: name.clone(), error: Box::new(error) })?;
    }
    archive.finish()?;
    Ok(())
}

struct Header {
    dtype: DType,
    big_endian: bool,
    column_major: bool,
    shape: Vec<usize>,
}

impl Header {
    fn tensor(self, mut bytes: Vec<u8>) -> Result<Tensor, NumpyError> {
        let count = self.shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent));
        let expected = count.and_then(|count| self.dtype.packed_bytes(count)).ok_or_else(|| {
            NumpyError::Tensor(TensorError::TooLarge { dtype: self.dtype, shape: self.shape.clone() })
        })?;
        if bytes.len() != expected {
            return Err(NumpyError::Length { expected: expected as u64, found: bytes.len() as u64 });
        }
        if self.big_endian {
            let parts = if self.dtype.is_complex() { 2 } else { 1 };
            bytes.chunks_exact_mut(self.dtype.bits() / 8 / parts).for_each(<[u8]>::reverse);
        }
        if self.dtype == DType::Bool {
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        let tensor = Tensor::from_bytes(self.dtype, &self.shape, &bytes)?;
        if !self.column_major || self.shape.len() < 2 {
            return Ok(tensor);
        }
        Ok(tensor.select(&self.shape, column_major_positions(&self.shape))?)
    }
}

/// For each element in row-major order, its position in column-major order.
fn column_major_positions(shape: &[usize]) -> impl Iterator<Item = Option<usize>> + use<'_> {
    let count: usize = shape.iter().product();
    (0..count).map(move |index| {
        let (mut rest, mut position, mut stride) = (index, 0, count);
        for &extent in shape.iter().rev() {
            stride /= extent;
            position += rest % extent * stride;
            rest /= extent;
        }
        Some(position)
    })
}

fn read_header(source: &mut dyn Read) -> Result<Header, NumpyError> {
    let mut start = [0; 8];
    source.read_exact(&mut start).map_err(|_| NumpyError::Signature)?;
    if !start.starts_with(SIGNATURE) {
        return Err(NumpyError::Signature);
    }
    let truncated = |_| NumpyError::Header("it is truncated");
    let length = match start[6] {
        1 => {
            let mut length = [0; 2];
            source.read_exact(&mut length).map_err(truncated)?;
            usize::from(u16::from_le_bytes(length))
        }
        2 | 3 => {
            let mut length = [0; 4];
            source.read_exact(&mut length).map_err(truncated)?;
            usize::try_from(u32::from_le_bytes(length)).map_err(|_| NumpyError::Header("it is too long"))?
        }
        version => return Err(NumpyError::Version(version)),
    };
    if length > HEADER_BYTES {
        return Err(NumpyError::Header("it is too long"));
    }
    let mut header = vec![0; length];
    source.read_exact(&mut header).map_err(truncated)?;
    let text = std::str::from_utf8(&header).map_err(|_| NumpyError::Header("it is not text"))?;
    parse_header(text)
}

/// Parse `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`, with the keys in any order.
fn parse_header(text: &str) -> Result<Header, NumpyError> {
    let malformed = NumpyError::Header;
    let inner = text.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let mut rest = inner.ok_or(malformed("it is not a dictionary"))?.trim();
    let (mut element, mut column_major, mut shape) = (None, None, None);
    while !rest.is_empty() {
        let (key, after) = quoted(rest).ok_or(malformed("a key is not in quotes"))?;
        let value = after.trim_start().strip_prefix(':').ok_or(malformed("a key has no value"))?.trim_start();
        let after = match key {
            "descr" => {
                let (descriptor, after) =
                    quoted(value).ok_or_else(|| NumpyError::ElementType("a record".to_string()))?;
                element = Some(parse_descriptor(descriptor)?);
                after
            }
            "fortran_order" => {
                let truth = value.strip_prefix("True").map(|after| (true, after));
                let truth = truth.or_else(|| value.strip_prefix("False").map(|after| (false, after)));
                let (truth, after) = truth.ok_or(malformed("`fortran_order` is neither True nor False"))?;
                column_major = Some(truth);
                after
            }
            "shape" => {
                let tuple = value.strip_prefix('(').and_then(|value| value.split_once(')'));
                let (extents, after) = tuple.ok_or(malformed("`shape` is not a tuple"))?;
                let extents = extents.split(',').map(str::trim).filter(|extent| !extent.is_empty());
                // Python 2 wrote long integers as `3L`.
                let extents = extents.map(|extent| extent.strip_suffix('L').unwrap_or(extent).parse());
                let extents: Result<Vec<usize>, _> = extents.collect();
                shape = Some(extents.map_err(|_| malformed("an extent is not a number"))?);
                after
            }
            _ => return Err(malformed("it has an unknown key")),
        };
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if after.is_empty() => after,
            None => return Err(malformed("something stands between two keys")),
        };
    }
    let (Some((dtype, big_endian)), Some(column_major), Some(shape)) = (element, column_major, shape) else {
        return Err(malformed("a key is missing"));
    };
    Ok(Header { dtype, big_endian, column_major, shape })
}

/// Text in quotes at the start, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|&quote| quote == '\'' || quote == '"')?;
    text[1..].split_once(quote)
}

/// Element type and byte order of `<f4`, `|b1`, `>i8`.
fn parse_descriptor(descriptor: &str) -> Result<(DType, bool), NumpyError> {
    let unknown = || NumpyError::ElementType(descriptor.to_string());
    let order = descriptor.chars().next().ok_or_else(unknown)?;
    let big_endian = match order {
        '<' | '|' => false,
        '>' => true,
        '=' => cfg!(target_endian = "big"),
        _ => return Err(unknown()),
    };
    let dtype = TYPES.iter().find(|(_, name)| *name == &descriptor[1..]).map(|(dtype, _)| *dtype);
    Ok((dtype.ok_or_else(unknown)?, big_endian))
}

fn descriptor(dtype: DType) -> Option<String> {
    let (_, name) = TYPES.iter().find(|(known, _)| *known == dtype)?;
    let order = if dtype.bits() == 8 { '|' } else { '<' };
    Some(format!("{order}{name}"))
}

/// Element types that NumPy has, with its kind and bytes.
const TYPES: &[(DType, &str)] = &[
    (DType::Bool, "b1"),
    (DType::I8, "i1"),
    (DType::I16, "i2"),
    (DType::I32, "i4"),
    (DType::I64, "i8"),
    (DType::U8, "u1"),
    (DType::U16, "u2"),
    (DType::U32, "u4"),
    (DType::U64, "u8"),
    (DType::F16, "f2"),
    (DType::F32, "f4"),
    (DType::F64, "f8"),
    (DType::C64, "c8"),
    (DType::C128, "c16"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn written(tensor: &Tensor) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_npy(tensor, &mut bytes).unwrap();
        bytes
    }

    /// An `.npy` file of version 1 with this header.
    fn file(header: &str, elements: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(elements);
        bytes
    }

    fn message(bytes: &[u8]) -> String {
        read_npy(&mut &*bytes).unwrap_err().to_string()
    }

    #[test]
    fn every_type_round_trips() {
        for &(dtype, _) in TYPES {
            for shape in [&[][..], &[3], &[2, 0], &[2, 3]] {
                let mut tensor = Tensor::zeros(dtype, shape).unwrap();
                let fill = tensor.bytes_mut();
                fill.iter_mut()
                    .enumerate()
                    .for_each(|(at, byte)| *byte = if dtype == DType::Bool { 1 } else { at as u8 });
                let bytes = written(&tensor);
                assert_eq!((bytes.len() - tensor.bytes().len()) % 64, 0);
                assert_eq!(read_npy(&mut &*bytes).unwrap(), tensor, "{dtype} {shape:?}");
            }
        }
    }

    #[test]
    fn headers_are_those_of_numpy() {
        let text = |shape: &[usize]| {
            let bytes = written(&Tensor::zeros(DType::F32, shape).unwrap());
            String::from_utf8_lossy(&bytes[10..]).trim_end_matches(['\0', '\n', ' ']).to_string()
        };
        assert_eq!(text(&[]), "{'descr': '<f4', 'fortran_order': False, 'shape': (), }");
        assert_eq!(text(&[3]), "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }");
        assert_eq!(text(&[3, 4]), "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }");
    }

    #[test]
    fn other_orders_are_brought_in_order() {
        let header = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }";
        let read = read_npy(&mut &*file(header, &[0, 1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6])).unwrap();
        assert_eq!(read, Tensor::from_elements(&[2, 3], &[1i16, 2, 3, 4, 5, 6]).unwrap());
        let header = "{'descr': '>c8', 'fortran_order': False, 'shape': (1,), }";
        let mut elements = 1f32.to_be_bytes().to_vec();
        elements.extend(2f32.to_be_bytes());
        let read = read_npy(&mut &*file(header, &elements)).unwrap();
        assert_eq!(&read.bytes()[..4], 1f32.to_le_bytes());
    }

    #[test]
    fn malformed_files_are_refused() {
        assert_eq!(message(b"PK\x03\x04"), NumpyError::Signature.to_string());
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
        assert_eq!(message(&file(good, &[0; 7])), "the NumPy array has 7 bytes of elements, its shape needs 8");
        let strings = good.replace("<f4", "<U4");
        let expected = "the NumPy array has elements of type `<U4`, which are not supported";
        assert_eq!(message(&file(&strings, &[0; 32])), expected);
        let huge = good.replace("(2,)", "(99999999999, 99999999999)");
        assert!(message(&file(&huge, &[])).contains("99999999999"));
        for header in ["", "{}", "{'descr': '<f4'}", "{'descr' '<f4'}", "{'shape': (2), 'x': 1}"] {
            assert!(message(&file(header, &[])).starts_with("the header of the NumPy array is malformed"), "{header}");
        }
        let mut truncated = file(good, &[]);
        truncated.truncate(20);
        assert_eq!(message(&truncated), "the header of the NumPy array is malformed: it is truncated");
    }

    #[test]
    fn types_that_numpy_lacks_are_refused_by_name() {
        let tensor = Tensor::zeros(DType::BF16, &[1]).unwrap();
        let error = write_npy(&tensor, &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "elements of type bf16 cannot be stored in a NumPy file");
    }

    #[test]
    fn archives_round_trip() {
        let arrays = vec![("a/b".to_string(), Tensor::vector_i64(&[1, 2])), ("c".to_string(), Tensor::scalar(1.5f32))];
        let mut bytes = io::Cursor::new(Vec::new());
        write_npz(&arrays, &mut bytes).unwrap();
        bytes.set_position(0);
        assert_eq!(read_npz(bytes).unwrap(), arrays);
    }
}
