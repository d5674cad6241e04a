//! From a manifest without places to the bytes in front of the stream.
//!
//! [`plan`] gives every extent its place and the manifest its length before any weight is read: what is known only
//! afterwards (checksums, hashes) has a fixed width. [`Plan::digest`] makes them of one chunk, in any order and on any
//! thread; [`finish`] gives superblock and manifest.

use super::checks::ChunkDigest;
use super::superblock::SUPERBLOCK_BYTES;
use super::{ChunkRecord, FormatError, Manifest, Superblock, encode, validate};
use crate::limits::{IPU_CHUNK_ALIGNMENT, IPU_EXTENT_ALIGNMENT, IPU_MANIFEST_BYTES};
use prost::Message;

/// Where everything of a file will be.
#[derive(Debug, Clone)]
pub struct Plan {
    manifest: Manifest,
    superblock: Superblock,
}

/// Place the extents of a manifest in chunks of about `chunk_bytes`, in the order in which they stand.
///
/// Of the extents of this file (those come first, pooled ones before others) only length, checksum block and `pooled`
/// are looked at; chunks are made anew. Checksums and hashes are zero until [`finish`].
///
/// # Errors
/// [`FormatError`] where the records do not make a sound file.
pub fn plan(mut manifest: Manifest, chunk_bytes: u64) -> Result<Plan, FormatError> {
    // An offset has a fixed width, unless it is zero: then protobuf leaves it out.
    place(&mut manifest, SUPERBLOCK_BYTES as u64, chunk_bytes);
    let manifest_length = encode::encode(&manifest).encoded_len() as u64;
    if manifest_length > IPU_MANIFEST_BYTES {
        let (found, limit) = (manifest_length, IPU_MANIFEST_BYTES);
        return Err(FormatError::Limit { what: "a manifest of length", found, limit });
    }
    let stream_length = manifest.chunks.iter().map(|chunk| chunk.length).sum();
    let superblock = Superblock::new(manifest_length, stream_length, [0; 32]);
    place(&mut manifest, superblock.stream_offset, chunk_bytes);
    validate(&manifest, &superblock)?;
    Ok(Plan { manifest, superblock })
}

fn place(manifest: &mut Manifest, stream_offset: u64, chunk_bytes: u64) {
    let mut chunks: Vec<ChunkRecord> = Vec::new();
    let mut end = stream_offset;
    let mut pooled = None;
    for extent in manifest.extents.iter_mut().filter(|extent| extent.file == 0) {
        let mut offset = end.next_multiple_of(IPU_EXTENT_ALIGNMENT);
        let fits = |chunk: &ChunkRecord| (offset - chunk.offset).saturating_add(extent.length) <= chunk_bytes;
        if pooled != Some(extent.pooled) || !chunks.last().is_some_and(fits) {
            offset = end.next_multiple_of(IPU_CHUNK_ALIGNMENT);
            chunks.push(ChunkRecord { offset, length: 0, hash: [0; 32] });
            pooled = Some(extent.pooled);
        }
        end = offset + extent.length;
        extent.offset = offset;
        extent.chunk = (chunks.len() - 1) as u32;
        let checksums = extent.length.div_ceil(u64::from(extent.checksum_block.max(1)));
        extent.checksums = vec![0; checksums as usize];
        if let Some(chunk) = chunks.last_mut() {
            chunk.length = (end - chunk.offset).next_multiple_of(IPU_CHUNK_ALIGNMENT);
        }
    }
    manifest.chunks = chunks;
}

impl Plan {
    /// The manifest, with places but without checksums.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Where the first chunk begins.
    pub fn stream_offset(&self) -> u64 {
        self.superblock.stream_offset
    }

    /// Length of the whole file.
    pub fn total_length(&self) -> u64 {
        self.superblock.total_length()
    }

    /// The hash over the hashes of all source tensors, where it was not known before they were read.
    pub fn set_weights_hash(&mut self, hash: [u8; 32]) {
        self.manifest.provenance.weights_hash = hash;
    }

    /// Hash and checksums of the bytes of one chunk.
    ///
    /// # Errors
    /// [`FormatError::Length`] where they are not as long as the chunk.
    pub fn digest(&self, chunk: u32, bytes: &[u8]) -> Result<ChunkDigest, FormatError> {
        self.manifest.digest(chunk, bytes)
    }
}

/// The bytes in front of the stream, padding included, and the manifest as it stands in them.
///
/// # Errors
/// [`FormatError::Length`] where there is not one digest a chunk, in order of chunks.
pub fn finish(plan: Plan, digests: &[ChunkDigest]) -> Result<(Vec<u8>, Manifest), FormatError> {
    let Plan { mut manifest, superblock } = plan;
    let unexpected = |what, expected: usize, found: usize| {
        Err(FormatError::Length { what, expected: expected as u64, found: found as u64 })
    };
    if digests.len() != manifest.chunks.len() {
        return unexpected("a list of digests", manifest.chunks.len(), digests.len());
    }
    for (index, digest) in digests.iter().enumerate() {
        manifest.chunks[index].hash = digest.hash;
        let extents = manifest.extents_of_chunk(index as u32);
        if extents.len() != digest.checksums.len() {
            return unexpected("a list of checksums", extents.len(), digest.checksums.len());
        }
        for (extent, checksums) in manifest.extents[extents].iter_mut().zip(&digest.checksums) {
            if extent.checksums.len() != checksums.len() {
                return unexpected("a list of checksums", extent.checksums.len(), checksums.len());
            }
            extent.checksums.clone_from(checksums);
        }
    }
    let encoded = encode::encode(&manifest).encode_to_vec();
    if encoded.len() as u64 != superblock.manifest_length {
        return unexpected("the planned manifest", superblock.manifest_length as usize, encoded.len());
    }
    let root_hash = *blake3::hash(&encoded).as_bytes();
    let mut bytes = Superblock { root_hash, ..superblock }.to_bytes().to_vec();
    bytes.extend_from_slice(&encoded);
    bytes.resize(superblock.stream_offset as usize, 0);
    Ok((bytes, manifest))
}
