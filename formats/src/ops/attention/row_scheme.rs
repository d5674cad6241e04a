//! How rows of a growing state are stored where they are rounded to fewer bits.

use crate::attribute::Keyword;
use crate::element::f16;
use ipuc_codes::{load_row, row_bytes, store_row};

/// How rows of f32 of a growing state are stored. A row is what follows the axis that grows: one position of one head.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    strum::IntoStaticStr,
    strum::EnumString,
    strum::FromRepr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum RowScheme {
    /// Elements as f16, halves to even.
    F16 = 1,
    /// A scale in f32, and behind it codes of 8 bits, as [`dynamic_row`](crate::ops::dynamic_row) rounds them.
    I8 = 2,
}

impl Keyword for RowScheme {}

impl RowScheme {
    /// Bytes of a row of so many elements; `None` where that is beyond what memory can address.
    pub fn row_bytes(self, elements: usize) -> Option<usize> {
        match self {
            RowScheme::F16 => elements.checked_mul(size_of::<f16>()),
            RowScheme::I8 => row_bytes(elements),
        }
    }

    /// Store a row.
    ///
    /// # Panics
    /// If `to` has not the length that [`row_bytes`](RowScheme::row_bytes) gives.
    pub fn store(self, row: &[f32], to: &mut [u8]) {
        match self {
            RowScheme::F16 => {
                for (value, to) in row.iter().zip(to.as_chunks_mut().0) {
                    *to = f16::from_f32(*value).to_le_bytes();
                }
            }
            RowScheme::I8 => store_row(row, to),
        }
    }

    /// The elements of a row that was stored.
    ///
    /// # Panics
    /// If the row has not the length that [`row_bytes`](RowScheme::row_bytes) gives.
    #[inline(always)]
    pub fn load(self, row: &[u8], to: &mut [f32]) {
        match self {
            RowScheme::F16 => {
                for (value, to) in row.as_chunks().0.iter().zip(to) {
                    *to = f16::from_le_bytes(*value).to_f32();
                }
            }
            RowScheme::I8 => load_row(row, to),
        }
    }

    /// Round rows of `row` elements as storing them does.
    pub fn round(self, values: &mut [f32], row: usize) {
        let Some(bytes) = self.row_bytes(row).filter(|_| row > 0) else { return };
        let mut stored = vec![0; bytes];
        for values in values.chunks_exact_mut(row) {
            self.store(values, &mut stored);
            self.load(&stored, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded<const N: usize>(scheme: RowScheme, mut values: [f32; N]) -> [f32; N] {
        scheme.round(&mut values, N);
        values
    }

    #[test]
    fn rows_are_rounded() {
        assert_eq!(rounded(RowScheme::F16, [2049.0, 0.1, 1e9]), [2048.0, 0.099_975_586, f32::INFINITY]);
        assert_eq!(rounded(RowScheme::I8, [254.0, 1.0, -3.0, 2.9, 1e-9]), [254.0, 0.0, -4.0, 2.0, 0.0]);
        assert!(rounded(RowScheme::I8, [1.0, f32::NAN]).iter().all(|value| value.is_nan()));
        assert_eq!(rounded(RowScheme::I8, [0.0, -0.0]), [0.0, 0.0]);
    }

    #[test]
    fn every_row_has_a_scale_of_its_own() {
        let mut rows = [127.0, 0.6, 1270.0, 6.0];
        RowScheme::I8.round(&mut rows, 2);
        assert_eq!(rows, [127.0, 1.0, 1270.0, 10.0]);
    }

    #[test]
    fn bytes_of_a_row() {
        assert_eq!([RowScheme::F16, RowScheme::I8].map(|scheme| scheme.row_bytes(64)), [Some(128), Some(68)]);
        assert_eq!([RowScheme::F16, RowScheme::I8].map(|scheme| scheme.row_bytes(usize::MAX)), [None, None]);
    }
}
