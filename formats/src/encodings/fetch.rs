//! Blocks of elements as they are stored: narrowed where the weight is stored in a narrower type, and one code a byte
//! where elements are narrower than a byte.

use super::convert::{can_store, narrow};
use super::error::EncodingError;
use super::transfer::{WeightReader, read};
use crate::dtype::DType;

/// Elements of a block: `rows` runs of `length` elements, `stride` elements apart.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    pub(super) first: u64,
    pub(super) rows: usize,
    pub(super) length: usize,
    pub(super) stride: u64,
}

/// Reads blocks of elements.
pub(super) struct Fetch<'a> {
    pub(super) from: &'a mut dyn WeightReader,
    stored: DType,
    given: Vec<u8>,
    block: Vec<u8>,
}

impl<'a> Fetch<'a> {
    /// A reader of elements that become elements of type `stored`.
    ///
    /// # Errors
    /// [`EncodingError::Conversion`] where they have no exact stored form.
    pub(super) fn new(from: &'a mut dyn WeightReader, stored: DType) -> Result<Fetch<'a>, EncodingError> {
        let given = from.dtype();
        if !can_store(given, stored) {
            return Err(EncodingError::Conversion { logical: given, stored });
        }
        Ok(Fetch { from, stored, given: Vec::new(), block: Vec::new() })
    }

    /// Whether the bytes that are read are those that are stored.
    pub(super) fn is_direct(&self) -> bool {
        self.from.dtype() == self.stored
    }

    /// The runs one after another, as stored elements.
    pub(super) fn fetch(&mut self, runs: Runs) -> Result<&[u8], EncodingError> {
        if self.stored.is_sub_byte() {
            return self.fetch_codes(runs);
        }
        let width = self.from.dtype().bits() / 8;
        let stored_width = self.stored.bits() / 8;
        let direct = self.is_direct();
        let Fetch { from, stored, given, block } = self;
        let target = if direct { &mut *block } else { &mut *given };
        target.resize(runs.rows * runs.length * width, 0);
        if runs.stride == runs.length as u64 {
            read(*from, runs.first * width as u64, target)?;
        } else {
            for (row, buffer) in target.chunks_exact_mut(runs.length * width).enumerate() {
                read(*from, (runs.first + row as u64 * runs.stride) * width as u64, buffer)?;
            }
        }
        if !direct {
            block.resize(runs.rows * runs.length * stored_width, 0);
            let rows = given.chunks_exact(runs.length * width).zip(block.chunks_exact_mut(runs.length * stored_width));
            for (row, (given, narrowed)) in rows.enumerate() {
                narrow(given, *stored, narrowed, runs.first + row as u64 * runs.stride)?;
            }
        }
        Ok(block)
    }

    /// As [`Fetch::fetch`], one code a byte.
    fn fetch_codes(&mut self, runs: Runs) -> Result<&[u8], EncodingError> {
        let bits = self.stored.bits();
        let Fetch { from, given, block, .. } = self;
        block.clear();
        for row in 0..runs.rows as u64 {
            // A row may begin and end within a byte.
            let first_bit = u128::from(runs.first + row * runs.stride) * bits as u128;
            let skipped = (first_bit % 8) as usize;
            given.resize((skipped + runs.length * bits).div_ceil(8), 0);
            read(*from, (first_bit / 8) as u64, given)?;
            expand(given, skipped, bits, runs.length, block);
        }
        Ok(block)
    }
}

/// Append `count` codes of `bits` bits that begin at bit `skipped` of `packed`, one a byte. `bits` divides 8.
pub(super) fn expand(packed: &[u8], skipped: usize, bits: usize, count: usize, codes: &mut Vec<u8>) {
    let mask = (1u8 << bits) - 1;
    if bits == 4 && skipped == 0 {
        codes.extend(packed.iter().flat_map(|byte| [byte & 15, byte >> 4]).take(count));
        return;
    }
    codes.extend((0..count).map(|index| {
        let bit = skipped + index * bits;
        packed[bit / 8] >> (bit % 8) & mask
    }));
}

/// Write code `index` of `bits` bits (a divisor of 8) among packed codes.
pub(super) fn put_code(packed: &mut [u8], bits: usize, index: usize, code: u8) {
    let (byte, shift) = (index * bits / 8, index * bits % 8);
    let mask = ((1u16 << bits) - 1) as u8;
    packed[byte] = packed[byte] & !(mask << shift) | (code & mask) << shift;
}
