//! Rules of weights, extents and chunks.
//!
//! - Chunks follow one another from the beginning of the stream to the end of the file; each begins and ends on 4 KiB.
//! - Extents of this file come first, in order. The first of a chunk begins with it, each other one on the next 64
//!   bytes; after the last one there are fewer than 4 KiB. So there are no overlaps, and no holes but padding.
//! - Pooled extents are smaller than 64 KiB, come before all others, and share no chunk with them.
//! - Extents of other files name one, belong to no chunk and are not pooled.
//! - No extent is empty; its checksums cover it in blocks of a power of two from 4 KiB to 2 MiB.
//! - A weight's encoding fits its type and shape; its parts cover it in order, cut where the encoding may be cut; each part
//!   is as long as its extent; its sources name planes that it has. Every extent holds a part. Weights may share extents, up to a total.

use super::super::{ExtentRecord, Fault, FormatError, Manifest, Superblock, WeightRecord};
use super::{at_most, equal, in_range};
use crate::dtype::DType;
use crate::limits::{self, IPU_CHUNK_ALIGNMENT, IPU_EXTENT_ALIGNMENT};

pub(super) fn check(manifest: &Manifest, superblock: &Superblock) -> Result<(), FormatError> {
    check_chunks(manifest, superblock)?;
    check_extents(manifest)?;
    let mut used = vec![false; manifest.extents.len()];
    let mut decoded_bytes = 0u128;
    for (index, weight) in manifest.weights.iter().enumerate() {
        let name = weight.name.as_deref().unwrap_or_default();
        let decoded = check_weight(manifest, weight, &mut used);
        decoded_bytes += u128::from(decoded.map_err(|fault| fault.at(format!("weight {index} `{name}`")))?);
    }
    if let Some(index) = used.iter().position(|used| !used) {
        return Err(Fault::Rule("no weight has a part in it").at(format!("extent {index}")));
    }
    let stored_bytes: u128 = manifest.extents.iter().map(|extent| u128::from(extent.length)).sum();
    let limit = stored_bytes * u128::from(limits::IPU_SHARED_FACTOR) + u128::from(limits::IPU_SHARED_BYTES);
    if decoded_bytes > limit {
        return Err(Fault::Rule("together they are far larger than the bytes that they share").at("weights"));
    }
    Ok(())
}

fn check_chunks(manifest: &Manifest, superblock: &Superblock) -> Result<(), FormatError> {
    let mut next = superblock.stream_offset;
    for (index, chunk) in manifest.chunks.iter().enumerate() {
        let place = || format!("chunk {index}");
        equal("its offset", chunk.offset, next).map_err(|fault| fault.at(place()))?;
        if chunk.length == 0 || !chunk.length.is_multiple_of(IPU_CHUNK_ALIGNMENT) {
            return Err(Fault::Rule("its length is no multiple of 4096").at(place()));
        }
        next = next.checked_add(chunk.length).ok_or_else(|| Fault::Rule("it ends beyond 64 bits").at(place()))?;
    }
    equal("the end of the last one", next, superblock.total_length()).map_err(|fault| fault.at("chunks"))
}

fn check_extents(manifest: &Manifest) -> Result<(), FormatError> {
    let mut stream = Stream { manifest, previous: None };
    let mut foreign = false;
    for (index, extent) in manifest.extents.iter().enumerate() {
        let checked = check_checksums(extent).and_then(|()| match extent.file {
            0 if foreign => Err(Fault::Rule("it comes after extents of other files")),
            0 => stream.append(extent),
            file => {
                foreign = true;
                check_foreign(manifest, file, extent)
            }
        });
        checked.map_err(|fault| fault.at(format!("extent {index}")))?;
    }
    stream.finish().map_err(|fault| fault.at("the last chunk"))
}

fn check_checksums(extent: &ExtentRecord) -> Result<(), Fault> {
    if extent.length == 0 {
        return Err(Fault::Rule("it is empty"));
    }
    let block = extent.checksum_block;
    if !block.is_power_of_two() || !(limits::IPU_ROW_CHECKSUM_BLOCK..=limits::IPU_CHECKSUM_BLOCK).contains(&block) {
        return Err(Fault::Unknown { what: "a checksum block of bytes", number: u64::from(block) });
    }
    let expected = extent.length.div_ceil(u64::from(block));
    equal("the number of checksums", extent.checksums.len() as u64, expected)
}

fn check_foreign(manifest: &Manifest, file: u32, extent: &ExtentRecord) -> Result<(), Fault> {
    in_range("file", file - 1, manifest.files.len())?;
    if extent.pooled || extent.chunk != 0 {
        return Err(Fault::Rule("it is in another file, but pooled or in a chunk of this one"));
    }
    match extent.offset.checked_add(extent.length) {
        Some(_) if extent.offset.is_multiple_of(IPU_EXTENT_ALIGNMENT) => Ok(()),
        _ => Err(Fault::Rule("it does not begin at a multiple of 64, or ends beyond 64 bits")),
    }
}

/// The extents of this file, one after another.
struct Stream<'a> {
    manifest: &'a Manifest,
    previous: Option<&'a ExtentRecord>,
}

impl<'a> Stream<'a> {
    fn append(&mut self, extent: &'a ExtentRecord) -> Result<(), Fault> {
        let chunk = &self.manifest.chunks[in_range("chunk", extent.chunk, self.manifest.chunks.len())?];
        let offset = match self.previous {
            Some(previous) if previous.chunk == extent.chunk => {
                if previous.pooled != extent.pooled {
                    return Err(Fault::Rule("it shares a chunk with extents that are pooled where it is not"));
                }
                (previous.offset + previous.length).next_multiple_of(IPU_EXTENT_ALIGNMENT)
            }
            _ => {
                self.close()?;
                equal(
                    "its chunk",
                    u64::from(extent.chunk),
                    self.previous.map_or(0, |previous| u64::from(previous.chunk) + 1),
                )?;
                chunk.offset
            }
        };
        equal("its offset", extent.offset, offset)?;
        // The end of a chunk has been checked to fit into 64 bits.
        if extent.length > (chunk.offset + chunk.length).saturating_sub(extent.offset) {
            return Err(Fault::Rule("it goes on after the end of its chunk"));
        }
        if extent.pooled && self.previous.is_some_and(|previous| !previous.pooled) {
            return Err(Fault::Rule("it is pooled, but comes after extents that are not"));
        }
        if extent.pooled {
            at_most("the length of a pooled extent", extent.length, limits::IPU_POOLED_BYTES - 1)?;
        }
        self.previous = Some(extent);
        Ok(())
    }

    /// Nothing but padding follows the last extent of a chunk.
    fn close(&self) -> Result<(), Fault> {
        let Some(previous) = self.previous else { return Ok(()) };
        let chunk = &self.manifest.chunks[previous.chunk as usize];
        let end = (previous.offset + previous.length).div_ceil(IPU_CHUNK_ALIGNMENT);
        equal("the end of the chunk before", (chunk.offset + chunk.length) / IPU_CHUNK_ALIGNMENT, end)
    }

    fn finish(&self) -> Result<(), Fault> {
        self.close()?;
        let used = self.previous.map_or(0, |previous| u64::from(previous.chunk) + 1);
        equal("the number of chunks with extents", used, self.manifest.chunks.len() as u64)
    }
}

/// Check a weight and mark its extents; gives its decoded bytes.
fn check_weight(manifest: &Manifest, weight: &WeightRecord, used: &mut [bool]) -> Result<u64, Fault> {
    at_most("the number of axes", weight.shape.len() as u64, limits::IPU_RANK as u64)?;
    weight.check()?;
    let mut stored_bytes = 0u64;
    for part in &weight.parts {
        let extent = in_range("extent", part.extent, manifest.extents.len())?;
        used[extent] = true;
        let length = manifest.extents[extent].length;
        match weight.encoding.part_bytes(weight.logical(), part.range())? {
            Some(expected) => equal("the length of a part's extent", length, expected)?,
            None => {
                let count = weight.shape.iter().fold(1u64, |count, &extent| count.saturating_mul(extent));
                if length < count.saturating_mul(4) {
                    return Err(Fault::Rule("its extent is too short for the lengths of its strings"));
                }
            }
        }
        stored_bytes = stored_bytes.saturating_add(length);
    }
    for source in &weight.sources {
        if let Some(plane) = source.plane {
            in_range("plane", plane, weight.encoding.encoding().planes().len())?;
        }
    }
    // Weights that are stored narrower than they are grow; padding of panels does not count twice.
    let (logical, stored) = (weight.dtype.bits() as u64, weight.encoding.encoding().dtype().bits() as u64);
    let factor = if weight.dtype == DType::String { 1 } else { logical.div_ceil(stored.max(1)) };
    Ok(stored_bytes.saturating_mul(factor))
}
