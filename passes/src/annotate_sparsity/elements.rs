//! Reads the elements of a weight in pieces, one class a byte.

use super::pieces::{self, Piece};
use crate::ir::{Constant, ConstantData, ConstantError, ConstantId, Graph, RoundedTo, Stored};
use crate::rounding::Part;
use ipuc_formats::dtype::DType;
use ipuc_formats::tensor::{Tensor, element_count};
use rayon::prelude::*;
use std::borrow::Cow;

/// An element that is not zero.
pub(super) const VALUE: u8 = 1;
/// NaN or an infinity, beside [`VALUE`].
pub(super) const NOT_FINITE: u8 = 2;

/// Constants that are computed are measured up to this size.
const COMPUTED_BYTES: u64 = 64 << 20;

/// Why a constant is not measured.
pub(super) enum Unmeasured {
    /// There is nothing to say: it holds no numbers, or its bytes are not at hand.
    Silently,
    /// In words.
    Because(&'static str),
}

/// The elements whose zeros are those of a weight.
pub(super) struct Elements<'a> {
    graph: &'a Graph,
    bytes: Bytes<'a>,
    pub(super) dtype: DType,
    pub(super) count: u64,
}

enum Bytes<'a> {
    Memory(Cow<'a, Tensor>),
    File(&'a Stored),
}

impl<'a> Elements<'a> {
    /// Those of a constant.
    pub(super) fn of(graph: &'a Graph, id: ConstantId) -> Result<Elements<'a>, Unmeasured> {
        Self::at(graph, graph.bytes_of(stored(graph, id)?))
    }

    /// Those of a constant itself.
    fn at(graph: &'a Graph, id: ConstantId) -> Result<Elements<'a>, Unmeasured> {
        let constant = graph.constant(id);
        let is_number =
            constant.dtype != DType::String && constant.dtype != DType::Bool && !constant.dtype.is_complex();
        if !is_number {
            return Err(Unmeasured::Silently);
        }
        let bytes = match &constant.data {
            ConstantData::Tensor(tensor) => Bytes::Memory(Cow::Borrowed(tensor)),
            ConstantData::Stored(stored) if stored.tensor.is_direct() => Bytes::File(stored),
            ConstantData::Hashed(_) => return Err(Unmeasured::Silently),
            ConstantData::Stored(_) | ConstantData::Recipe { .. } | ConstantData::Rounded(_) => computed(graph, id)?,
        };
        let count = element_count(&constant.shape).unwrap_or(0) as u64;
        Ok(Elements { graph, bytes, dtype: constant.dtype, count })
    }

    /// The classes of the elements of a piece, row by row.
    pub(super) fn read(&self, piece: &Piece) -> Result<Vec<u8>, ConstantError> {
        let bits = self.dtype.bits() as u64;
        let mut classes = Vec::with_capacity((piece.rows * piece.length) as usize);
        let in_one = piece.length == piece.stride && bits >= 8;
        let (runs, length) = if in_one { (1, piece.rows * piece.length) } else { (piece.rows, piece.length) };
        let run_bytes = (length * bits).div_ceil(8) as usize;
        let mut bytes = vec![0; run_bytes];
        for run in 0..runs {
            let offset = (piece.first + run * piece.stride) * bits / 8;
            match &self.bytes {
                Bytes::Memory(tensor) => bytes.copy_from_slice(&tensor.bytes()[offset as usize..][..run_bytes]),
                Bytes::File(stored) => self.graph.read_stored(stored, offset, &mut bytes)?,
            }
            classify(self.dtype, &bytes, length as usize, &mut classes);
        }
        Ok(classes)
    }
}

/// Why not all of a weight is known to be finite.
pub(super) enum NotFinite {
    /// It has a NaN or an infinity.
    Found,
    /// It cannot be said: why.
    Unknown(String),
}

/// Checks that a weight as it is stored, and the parameters of its codes, are finite.
pub(super) fn is_finite(graph: &Graph, id: ConstantId) -> Result<(), NotFinite> {
    let planes = graph.constant(id).encoding.as_ref();
    let planes = planes.is_some_and(|chosen| !chosen.encoding.encoding().planes().is_empty());
    let stored: Vec<ConstantId> = match graph.quantized(id).filter(|_| planes) {
        Some(quantized) => quantized.parameters().map(|(_, id)| id).chain([quantized.codes]).collect(),
        None => vec![graph.stored_elements(id)],
    };
    // What is rounded while it is stored is made of the weight before, and of factors that are finite.
    let mut sources: Vec<ConstantId> =
        stored.into_iter().map(|id| graph.bytes_of(graph.rounded(id).map_or(id, |rounded| rounded.weight))).collect();
    sources.sort();
    sources.dedup();
    for source in sources {
        let elements = Elements::at(graph, source).map_err(|unmeasured| match unmeasured {
            Unmeasured::Silently => NotFinite::Unknown("its bytes are not at hand".to_string()),
            Unmeasured::Because(reason) => NotFinite::Unknown(reason.to_string()),
        })?;
        if elements.dtype.is_integer() {
            continue;
        }
        let found = |piece: &Piece| {
            let classes = elements.read(piece).map_err(|error| NotFinite::Unknown(error.to_string()))?;
            if classes.iter().any(|class| class & NOT_FINITE != 0) { Err(NotFinite::Found) } else { Ok(()) }
        };
        pieces::flat(elements.count, elements.dtype).par_iter().try_for_each(found)?;
    }
    Ok(())
}

/// The constant whose zeros are those of what is stored of another.
fn stored(graph: &Graph, id: ConstantId) -> Result<ConstantId, Unmeasured> {
    let constant = graph.constant(id);
    let planes = constant.encoding.as_ref().is_some_and(|chosen| !chosen.encoding.encoding().planes().is_empty());
    let stored = match graph.quantized(id).filter(|_| planes) {
        Some(quantized) => {
            if let Some(zero_point) = quantized.zero_point
                && !is_zero(graph.constant(zero_point))
            {
                return Err(Unmeasured::Because("the codes have zero points, so that 0 has many codes"));
            }
            quantized.codes
        }
        None => graph.stored_elements(id),
    };
    let Some(rounded) = graph.rounded(stored) else { return Ok(stored) };
    match (rounded.to, rounded.factor) {
        (RoundedTo::Codes(scheme, Part::Codes), None) if !scheme.has_zero_points() => Ok(rounded.weight),
        (RoundedTo::Narrow, _) => Ok(rounded.weight),
        (RoundedTo::Codes(..), None) => {
            Err(Unmeasured::Because("the codes have zero points, so that 0 has many codes"))
        }
        (RoundedTo::Codes(..), Some(_)) => {
            Err(Unmeasured::Because("its codes make up for the errors of others, so that zeros do not stay"))
        }
    }
}

fn is_zero(constant: &Constant) -> bool {
    constant.tensor().is_some_and(|tensor| tensor.bytes().iter().all(|&byte| byte == 0))
}

fn computed<'a>(graph: &Graph, id: ConstantId) -> Result<Bytes<'a>, Unmeasured> {
    if graph.constant(id).byte_count() > COMPUTED_BYTES {
        return Err(Unmeasured::Because("it is computed while it is stored"));
    }
    // Where the bytes are missing or cannot be read, emission says so.
    let tensor = graph.load_constant(id).map_err(|_| Unmeasured::Silently)?;
    Ok(Bytes::Memory(Cow::Owned(tensor)))
}

/// Append the class of each of `count` packed elements.
fn classify(dtype: DType, bytes: &[u8], count: usize, classes: &mut Vec<u8>) {
    let class = |value: bool, finite: bool| (u8::from(value) * VALUE) | (u8::from(!finite) * NOT_FINITE);
    let halves = || bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
    match dtype {
        DType::F32 => classes.extend(bytes.as_chunks::<4>().0.iter().map(|word| {
            let bits = u32::from_le_bytes(*word);
            class(bits << 1 != 0, bits << 1 >> 24 != 0xff)
        })),
        DType::F64 => classes.extend(bytes.as_chunks::<8>().0.iter().map(|word| {
            let bits = u64::from_le_bytes(*word);
            class(bits << 1 != 0, bits << 1 >> 53 != 0x7ff)
        })),
        DType::F16 => classes.extend(halves().map(|bits| class(bits << 1 != 0, bits >> 10 & 0x1f != 0x1f))),
        DType::BF16 => classes.extend(halves().map(|bits| class(bits << 1 != 0, bits >> 7 & 0xff != 0xff))),
        _ if dtype.bits() < 8 => {
            let (bits, mask) = (dtype.bits(), (1u16 << dtype.bits()) - 1);
            let element = |index: usize| {
                let bit = index * bits;
                let pair = u16::from(bytes[bit / 8]) | u16::from(bytes.get(bit / 8 + 1).copied().unwrap_or(0)) << 8;
                pair >> (bit % 8) & mask
            };
            classes.extend((0..count).map(|index| class(element(index) != 0, true)));
        }
        _ => {
            let elements = bytes.chunks_exact(dtype.bits() / 8);
            classes.extend(elements.map(|element| class(element.iter().any(|&byte| byte != 0), true)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minus_zero_is_zero_and_what_is_not_finite_is_seen() {
        let classes = |dtype, bytes: &[u8], count| {
            let mut classes = Vec::new();
            classify(dtype, bytes, count, &mut classes);
            classes
        };
        let floats = [0.0f32, -0.0, 1e-45, -1.0, f32::NAN, f32::INFINITY, f32::MAX];
        let bytes: Vec<u8> = floats.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(classes(DType::F32, &bytes, 7), [0, 0, 1, 1, 3, 3, 1]);
        let bytes: Vec<u8> = floats.iter().flat_map(|&value| f64::from(value).to_le_bytes()).collect();
        assert_eq!(classes(DType::F64, &bytes, 7), [0, 0, 1, 1, 3, 3, 1]);
        let halves = [0x0000u16, 0x8000, 0x0001, 0x7c00, 0xfe00, 0x7bff];
        let bytes: Vec<u8> = halves.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(classes(DType::F16, &bytes, 6), [0, 0, 1, 3, 3, 1]);
        let halves = [0x0000u16, 0x8000, 0x0001, 0x7f80, 0xffc0, 0x7f7f];
        let bytes: Vec<u8> = halves.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(classes(DType::BF16, &bytes, 6), [0, 0, 1, 3, 3, 1]);
        assert_eq!(classes(DType::I8, &[0, 128, 255], 3), [0, 1, 1]);
        assert_eq!(classes(DType::I16, &[0, 0, 0, 1], 2), [0, 1]);
        assert_eq!(classes(DType::I4, &[0x10, 0x02], 3), [0, 1, 1]);
    }
}
