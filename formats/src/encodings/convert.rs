//! Exact conversions between a weight's logical type and a narrower stored one.

use super::EncodingError;
use crate::dtype::DType;
use half::{bf16, f16};

/// Whether canonical bytes of `from` can be stored as `to` (element by element, where exact).
pub(super) fn can_store(from: DType, to: DType) -> bool {
    from == to || (from == DType::F32 && matches!(to, DType::F16 | DType::BF16))
}

/// Narrow f32 to f16 or bf16. `first` is the row-major index of the first element, for the error.
pub(super) fn narrow(wide: &[u8], stored: DType, narrow: &mut [u8], first: u64) -> Result<(), EncodingError> {
    let pairs = wide.as_chunks::<4>().0.iter().zip(narrow.as_chunks_mut::<2>().0);
    for (index, (wide, narrow)) in pairs.enumerate() {
        let value = f32::from_le_bytes(*wide);
        let (bytes, back) = match stored {
            DType::F16 => (f16::from_f32(value).to_le_bytes(), f16::from_f32(value).to_f32()),
            _ => (bf16::from_f32(value).to_le_bytes(), bf16::from_f32(value).to_f32()),
        };
        if back.to_bits() != value.to_bits() {
            return Err(EncodingError::Inexact { element: first + index as u64, stored });
        }
        *narrow = bytes;
    }
    Ok(())
}

/// Widen f16 or bf16 to f32.
pub(super) fn widen(narrow: &[u8], stored: DType, wide: &mut [u8]) {
    for (narrow, wide) in narrow.as_chunks::<2>().0.iter().zip(wide.as_chunks_mut::<4>().0) {
        let value = match stored {
            DType::F16 => f16::from_le_bytes(*narrow).to_f32(),
            _ => bf16::from_le_bytes(*narrow).to_f32(),
        };
        *wide = value.to_le_bytes();
    }
}
