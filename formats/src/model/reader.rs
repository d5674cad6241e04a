//! From the bytes of a file to a validated manifest.
//!
//! In this order: length, signature, version, the superblock's checksum, truncation, the manifest's hash, its wire
//! form, its records, and the rules between them. Nothing is allocated before its size has been checked.

use super::superblock::SUPERBLOCK_BYTES;
use super::{FormatError, Manifest, Superblock, decode, fields, schema, validate, walk};
use crate::read_at::ReadAt;
use prost::Message;
use std::io;

/// The superblock and the manifest of a file.
///
/// # Errors
/// [`FormatError`] where the file is not wholly sound up to the stream.
pub fn read_manifest(source: &dyn ReadAt) -> Result<(Superblock, Manifest), FormatError> {
    let length = source.length();
    let mut first = [0; SUPERBLOCK_BYTES];
    let first = &mut first[..usize::try_from(length).unwrap_or(usize::MAX).min(SUPERBLOCK_BYTES)];
    read_at(source, 0, first)?;
    let superblock = Superblock::from_bytes(first, Some(length))?;
    // The manifest lies inside the file, and its length is within the limit.
    let mut bytes = vec![0; (superblock.stream_offset - SUPERBLOCK_BYTES as u64) as usize];
    read_at(source, SUPERBLOCK_BYTES as u64, &mut bytes)?;
    let manifest = parse_manifest(&superblock, &bytes)?;
    Ok((superblock, manifest))
}

/// The superblock and the manifest from the beginning of a pipe, which is left at the first byte of the stream.
///
/// # Errors
/// [`FormatError`] where the file is not wholly sound up to the stream. Truncation further on is only met there.
pub fn read_manifest_from(source: &mut dyn io::Read) -> Result<(Superblock, Manifest), FormatError> {
    let mut bytes = Vec::new();
    take(source, SUPERBLOCK_BYTES as u64, 0, &mut bytes)?;
    let superblock = Superblock::from_bytes(&bytes, None)?;
    bytes.clear();
    let length = superblock.stream_offset - SUPERBLOCK_BYTES as u64;
    take(source, length, SUPERBLOCK_BYTES as u64, &mut bytes)?;
    if (bytes.len() as u64) < length {
        let found = (SUPERBLOCK_BYTES + bytes.len()) as u64;
        return Err(FormatError::Truncated { expected: superblock.total_length(), found });
    }
    let manifest = parse_manifest(&superblock, &bytes)?;
    Ok((superblock, manifest))
}

/// The manifest from the bytes between superblock and stream.
///
/// # Errors
/// [`FormatError`] where they are not what the superblock says, or no sound manifest.
pub fn parse_manifest(superblock: &Superblock, bytes: &[u8]) -> Result<Manifest, FormatError> {
    let (expected, found) = (superblock.stream_offset - SUPERBLOCK_BYTES as u64, bytes.len() as u64);
    if expected != found {
        return Err(FormatError::Length { what: "the manifest with its padding", expected, found });
    }
    let (bytes, padding) = bytes.split_at(superblock.manifest_length as usize);
    if *blake3::hash(bytes).as_bytes() != superblock.root_hash {
        return Err(FormatError::ManifestHash);
    }
    if let Some(at) = padding.iter().position(|&byte| byte != 0) {
        return Err(FormatError::Padding { offset: (SUPERBLOCK_BYTES + bytes.len() + at) as u64 });
    }
    walk::walk(bytes, &fields::MANIFEST)?;
    let manifest = decode::decode(schema::Manifest::decode(bytes)?)?;
    validate(&manifest, superblock)?;
    Ok(manifest)
}

fn read_at(source: &dyn ReadAt, offset: u64, buffer: &mut [u8]) -> Result<(), FormatError> {
    source.read_exact_at(offset, buffer).map_err(|source| FormatError::Read { offset, source })
}

/// Up to `length` bytes; memory grows with what arrives, not with what is promised.
fn take(source: &mut dyn io::Read, length: u64, offset: u64, bytes: &mut Vec<u8>) -> Result<(), FormatError> {
    let read = io::Read::read_to_end(&mut io::Read::take(source, length), bytes);
    read.map(|_| ()).map_err(|source| FormatError::Read { offset, source })
}
