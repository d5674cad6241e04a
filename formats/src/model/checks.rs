//! Checksums and hashes of stored bytes: made by the writer, checked on arrival and by `inspect --check`.

use super::{ChunkRecord, ExtentRecord, FormatError, Manifest};
use std::ops::Range;

/// What the manifest states about the bytes of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkDigest {
    /// BLAKE3 of the chunk.
    pub hash: [u8; 32],
    /// CRC32C of each block of each of its extents.
    pub checksums: Vec<Vec<u32>>,
}

impl Manifest {
    /// Indices of the extents in a chunk.
    pub fn extents_of_chunk(&self, chunk: u32) -> Range<usize> {
        // Extents of this file come first, in order of chunks.
        let before = |limit: u32| self.extents.partition_point(|extent| extent.file == 0 && extent.chunk < limit);
        let end = chunk.checked_add(1).map_or_else(|| self.extents.partition_point(|extent| extent.file == 0), before);
        before(chunk)..end
    }

    /// Hash and checksums of the bytes of a chunk of a validated manifest.
    ///
    /// # Errors
    /// [`FormatError::Length`] where they are not as long as the chunk.
    pub fn digest(&self, chunk: u32, bytes: &[u8]) -> Result<ChunkDigest, FormatError> {
        let record = self.chunk_of(chunk, bytes)?;
        let checksums = self.extents[self.extents_of_chunk(chunk)].iter().map(|extent| {
            let content = &bytes[extent.range_in(record)];
            content.chunks(extent.checksum_block as usize).map(crc_fast::crc32_iscsi).collect()
        });
        Ok(ChunkDigest { hash: *blake3::hash(bytes).as_bytes(), checksums: checksums.collect() })
    }

    /// Check all that the manifest states about a chunk: its hash, the checksums of its extents, zeros between them.
    ///
    /// # Errors
    /// [`FormatError`] that says what is damaged, the narrowest first.
    pub fn check_chunk(&self, chunk: u32, bytes: &[u8]) -> Result<(), FormatError> {
        let record = *self.chunk_of(chunk, bytes)?;
        let extents = self.extents_of_chunk(chunk);
        for index in extents.clone() {
            self.extents[index].check(index as u32, &bytes[self.extents[index].range_in(&record)])?;
        }
        let mut end = 0;
        let ranges = self.extents[extents].iter().map(|extent| extent.range_in(&record));
        for range in ranges.chain(std::iter::once(bytes.len()..bytes.len())) {
            if let Some(at) = bytes[end..range.start].iter().position(|&byte| byte != 0) {
                return Err(FormatError::Padding { offset: record.offset + (end + at) as u64 });
            }
            end = range.end;
        }
        record.check(chunk, bytes)
    }

    fn chunk_of(&self, chunk: u32, bytes: &[u8]) -> Result<&ChunkRecord, FormatError> {
        let found = bytes.len() as u64;
        match self.chunks.get(chunk as usize) {
            Some(record) if record.length == found => Ok(record),
            Some(record) => Err(FormatError::Length { what: "a chunk", expected: record.length, found }),
            None => Err(FormatError::Length { what: "a chunk that does not exist", expected: 0, found }),
        }
    }
}

impl ChunkRecord {
    /// Check the hash of all bytes of the chunk, which has index `chunk`.
    ///
    /// # Errors
    /// [`FormatError::ChunkHash`] where it differs.
    pub fn check(&self, chunk: u32, bytes: &[u8]) -> Result<(), FormatError> {
        if *blake3::hash(bytes).as_bytes() == self.hash {
            return Ok(());
        }
        Err(FormatError::ChunkHash { chunk, offset: self.offset })
    }
}

impl ExtentRecord {
    /// Check the checksums of all bytes of the extent, which has index `extent`.
    ///
    /// # Errors
    /// [`FormatError::Checksum`] for the first block that differs.
    pub fn check(&self, extent: u32, bytes: &[u8]) -> Result<(), FormatError> {
        if bytes.len() as u64 != self.length {
            return Err(FormatError::Length { what: "an extent", expected: self.length, found: bytes.len() as u64 });
        }
        self.check_blocks(extent, 0, bytes)
    }

    /// Check the checksums of consecutive blocks from block `first` on; `bytes` ends with a block.
    ///
    /// # Errors
    /// [`FormatError::Checksum`] for the first block that differs.
    pub fn check_blocks(&self, extent: u32, first: usize, bytes: &[u8]) -> Result<(), FormatError> {
        let block_bytes = self.checksum_block as usize;
        for (index, block) in bytes.chunks(block_bytes.max(1)).enumerate() {
            let start = (first + index) as u64 * u64::from(self.checksum_block);
            let expected = self.length.saturating_sub(start).min(u64::from(self.checksum_block));
            let stored = self.checksums.get(first + index).copied();
            let Some(stored) = stored.filter(|_| block.len() as u64 == expected) else {
                return Err(FormatError::Length { what: "a checksum block", expected, found: block.len() as u64 });
            };
            let computed = crc_fast::crc32_iscsi(block);
            if stored != computed {
                return Err(FormatError::Checksum { extent, offset: self.offset + start, stored, computed });
            }
        }
        Ok(())
    }

    /// The bytes of whole checksum blocks that hold these bytes of the extent: the first block, and the range.
    pub fn blocks_around(&self, bytes: Range<u64>) -> (usize, Range<u64>) {
        let block = u64::from(self.checksum_block.max(1));
        let first = bytes.start / block;
        let end = bytes.end.div_ceil(block).saturating_mul(block).min(self.length);
        (first as usize, first * block..end)
    }

    /// Where the extent lies in its chunk. Validation has checked that it does.
    pub fn range_in(&self, chunk: &ChunkRecord) -> Range<usize> {
        let start = (self.offset - chunk.offset) as usize;
        start..start + self.length as usize
    }
}
