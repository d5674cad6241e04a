//! Floats of 32 bits as floats of 16.

use super::RoundingError;
use half::{bf16, f16};
use ipuc_formats::dtype::DType;

/// Canonical bytes of elements rounded to f16 or bf16, to nearest, ties to even; `first` is the row-major index of the first
/// element. NaN and infinities stay what they are.
///
/// # Errors
/// [`RoundingError::Range`] where a finite element would become infinite.
pub fn narrow(elements: &[f32], to: DType, first: u64, bytes: &mut [u8]) -> Result<(), RoundingError> {
    for (index, (&value, bytes)) in elements.iter().zip(bytes.as_chunks_mut::<2>().0).enumerate() {
        let (held, greatest) = match to {
            DType::F16 => {
                let held = f16::from_f32(value);
                *bytes = held.to_le_bytes();
                (held.to_f32(), f16::MAX.to_f32())
            }
            _ => {
                let held = bf16::from_f32(value);
                *bytes = held.to_le_bytes();
                (held.to_f32(), bf16::MAX.to_f32())
            }
        };
        if value.is_finite() && !held.is_finite() {
            return Err(RoundingError::Range { element: first + index as u64, value, to, greatest });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_type_cannot_hold_is_refused() {
        let mut bytes = [0; 4];
        narrow(&[65519.0, f32::NAN], DType::F16, 0, &mut bytes).unwrap();
        assert_eq!(bytes[..2], f16::MAX.to_le_bytes());
        assert!(f16::from_le_bytes([bytes[2], bytes[3]]).is_nan());
        let range = RoundingError::Range { element: 8, value: -65520.0, to: DType::F16, greatest: 65504.0 };
        assert_eq!(narrow(&[1.0, -65520.0], DType::F16, 7, &mut bytes), Err(range));
        narrow(&[1e38, f32::INFINITY], DType::BF16, 0, &mut bytes).unwrap();
        assert_eq!(bytes[2..], bf16::INFINITY.to_le_bytes());
    }
}
