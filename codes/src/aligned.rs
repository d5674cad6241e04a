//! Bytes that begin at the border of a cache line, or of a page as direct reads need.

use bytemuck::{Pod, Zeroable, cast_slice, cast_slice_mut};
use std::collections::TryReserveError;
use std::ops::{Deref, DerefMut};

/// A cache line.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Line([u8; 64]);

/// A page of the smallest size.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
pub struct Page([u8; 4096]);

/// Bytes on the heap that begin at the border of a unit.
#[derive(Debug, Clone)]
pub struct AlignedBytes<U = Line> {
    units: Vec<U>,
    length: usize,
}

impl<U> Default for AlignedBytes<U> {
    /// No bytes.
    fn default() -> Self {
        AlignedBytes { units: Vec::new(), length: 0 }
    }
}

impl<U: Pod> AlignedBytes<U> {
    /// Zeros.
    ///
    /// # Errors
    /// Where there is no memory for them.
    pub fn zeroed(length: usize) -> Result<Self, TryReserveError> {
        let count = length.div_ceil(size_of::<U>());
        let mut units = Vec::new();
        units.try_reserve_exact(count)?;
        units.resize(count, U::zeroed());
        Ok(AlignedBytes { units, length })
    }

    /// A copy.
    ///
    /// # Errors
    /// Where there is no memory for it; [`AlignedBytes::from`] ends the program there.
    pub fn copied(bytes: &[u8]) -> Result<Self, TryReserveError> {
        let mut copy = AlignedBytes::zeroed(bytes.len())?;
        copy.copy_from_slice(bytes);
        Ok(copy)
    }
}

impl<U: Pod> From<&[u8]> for AlignedBytes<U> {
    /// A copy of what is in memory.
    fn from(bytes: &[u8]) -> Self {
        let units = vec![U::zeroed(); bytes.len().div_ceil(size_of::<U>())];
        let mut copy = AlignedBytes { units, length: bytes.len() };
        copy.copy_from_slice(bytes);
        copy
    }
}

impl<U: Pod> Deref for AlignedBytes<U> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &cast_slice(&self.units)[..self.length]
    }
}

impl<U: Pod> DerefMut for AlignedBytes<U> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut cast_slice_mut(&mut self.units)[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_at_borders() {
        let lines = AlignedBytes::<Line>::copied(&[1, 2, 3]).unwrap();
        let pages = AlignedBytes::<Page>::zeroed(4097).unwrap();
        assert_eq!((&lines[..], lines.as_ptr() as usize % 64), (&[1u8, 2, 3][..], 0));
        assert_eq!((pages.len(), pages.as_ptr() as usize % 4096), (4097, 0));
        assert!(AlignedBytes::<Line>::zeroed(usize::MAX).is_err());
        assert_eq!(AlignedBytes::<Line>::default().len(), 0);
    }
}
