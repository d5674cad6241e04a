//! The first 4 KiB of a file, little-endian.
//!
//! ```text
//!   0  signature 89 49 50 55 0d 0a 1a 0a      40  manifest offset    u64
//!   8  major version        u32               48  manifest length    u64
//!  12  minor version        u32               56  stream offset      u64
//!  16  checksum algorithm   u32               64  stream length      u64
//!  20  hash algorithm       u32               72  total length       u64
//!  24  required features    u64               80  root hash          32 bytes
//!  32  optional features    u64              112  zeros
//!                                           4092  CRC32C of bytes 0 to 4091, u32
//! ```
//!
//! The signature is that of PNG in spirit: a byte beyond ASCII, a name, and line ends that a transfer as text changes.

use super::FormatError;
use crate::limits::{IPU_CHUNK_ALIGNMENT, IPU_MANIFEST_BYTES};

/// Length of the superblock.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// First bytes of every file.
pub const SIGNATURE: [u8; 8] = *b"\x89IPU\r\n\x1a\n";
/// Version of the format that is written, and the only one that is read: major, minor.
pub const VERSION: (u32, u32) = (0, 2);
/// Number of CRC32C among checksum algorithms.
pub const CHECKSUM_CRC32C: u32 = 1;
/// Number of BLAKE3 among hash algorithms.
pub const HASH_BLAKE3: u32 = 1;
/// Features that this version knows, one bit each.
pub const KNOWN_FEATURES: u64 = 0;

const MAJOR: usize = 8;
const MINOR: usize = 12;
const CHECKSUM_ALGORITHM: usize = 16;
const HASH_ALGORITHM: usize = 20;
const REQUIRED_FEATURES: usize = 24;
const OPTIONAL_FEATURES: usize = 32;
const MANIFEST_OFFSET: usize = 40;
const MANIFEST_LENGTH: usize = 48;
const STREAM_OFFSET: usize = 56;
const STREAM_LENGTH: usize = 64;
const TOTAL_LENGTH: usize = 72;
const ROOT_HASH: usize = 80;
const RESERVED: usize = 112;
const CHECKSUM: usize = SUPERBLOCK_BYTES - 4;

/// What the superblock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Features without which the file cannot be understood, one bit each.
    pub required_features: u64,
    /// Features that a reader may ignore, one bit each.
    pub optional_features: u64,
    /// Length of the manifest, which begins after the superblock.
    pub manifest_length: u64,
    /// Offset of the stream.
    pub stream_offset: u64,
    /// Length of the stream.
    pub stream_length: u64,
    /// BLAKE3 of the manifest: the name of the file.
    pub root_hash: [u8; 32],
}

impl Superblock {
    /// The superblock of a file with this manifest and stream.
    pub fn new(manifest_length: u64, stream_length: u64, root_hash: [u8; 32]) -> Superblock {
        let stream_offset = stream_offset(manifest_length);
        let (required_features, optional_features) = (0, 0);
        Superblock { required_features, optional_features, manifest_length, stream_offset, stream_length, root_hash }
    }

    /// Length of the whole file.
    pub fn total_length(&self) -> u64 {
        self.stream_offset.saturating_add(self.stream_length)
    }

    /// The bytes.
    pub fn to_bytes(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &SIGNATURE);
        put(MAJOR, &VERSION.0.to_le_bytes());
        put(MINOR, &VERSION.1.to_le_bytes());
        put(CHECKSUM_ALGORITHM, &CHECKSUM_CRC32C.to_le_bytes());
        put(HASH_ALGORITHM, &HASH_BLAKE3.to_le_bytes());
        put(REQUIRED_FEATURES, &self.required_features.to_le_bytes());
        put(OPTIONAL_FEATURES, &self.optional_features.to_le_bytes());
        put(MANIFEST_OFFSET, &(SUPERBLOCK_BYTES as u64).to_le_bytes());
        put(MANIFEST_LENGTH, &self.manifest_length.to_le_bytes());
        put(STREAM_OFFSET, &self.stream_offset.to_le_bytes());
        put(STREAM_LENGTH, &self.stream_length.to_le_bytes());
        put(TOTAL_LENGTH, &self.total_length().to_le_bytes());
        put(ROOT_HASH, &self.root_hash);
        let checksum = crc_fast::crc32_iscsi(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The superblock at the beginning of `bytes`. `file_length` is the length of the whole file, where it is known
    /// (of a pipe it is not).
    ///
    /// # Errors
    /// [`FormatError`]: first what cannot be a file of this format and version, then damage, then truncation.
    pub fn from_bytes(bytes: &[u8], file_length: Option<u64>) -> Result<Superblock, FormatError> {
        let known = bytes.len().min(SIGNATURE.len());
        if bytes[..known] != SIGNATURE[..known] {
            let name = bytes.len() >= 4 && bytes[..4] == SIGNATURE[..4];
            return Err(if name { FormatError::TextTransfer } else { FormatError::Signature });
        }
        let length = bytes.len() as u64;
        let too_short = FormatError::TooShort { length, expected: SUPERBLOCK_BYTES as u64 };
        let Some(block) = bytes.first_chunk::<SUPERBLOCK_BYTES>() else { return Err(too_short) };
        let (found_major, found_minor) = (u32_at(block, MAJOR), u32_at(block, MINOR));
        if (found_major, found_minor) != VERSION {
            let (known_major, known_minor) = VERSION;
            return Err(FormatError::Version { found_major, found_minor, known_major, known_minor });
        }
        let (stored, computed) = (u32_at(block, CHECKSUM), crc_fast::crc32_iscsi(&block[..CHECKSUM]));
        if stored != computed {
            return Err(FormatError::SuperblockChecksum { stored, computed });
        }
        check_length(u64_at(block, TOTAL_LENGTH), file_length)?;
        let superblock = Superblock {
            required_features: u64_at(block, REQUIRED_FEATURES),
            optional_features: u64_at(block, OPTIONAL_FEATURES),
            manifest_length: u64_at(block, MANIFEST_LENGTH),
            stream_offset: u64_at(block, STREAM_OFFSET),
            stream_length: u64_at(block, STREAM_LENGTH),
            root_hash: std::array::from_fn(|index| block[ROOT_HASH + index]),
        };
        superblock.check(block)?;
        Ok(superblock)
    }

    fn check(&self, block: &[u8; SUPERBLOCK_BYTES]) -> Result<(), FormatError> {
        let algorithm = |purpose, at, number, known| match u32_at(block, at) {
            found if found == number => Ok(()),
            number => Err(FormatError::Algorithm { purpose, number, known }),
        };
        algorithm("checksum", CHECKSUM_ALGORITHM, CHECKSUM_CRC32C, "1 (CRC32C)")?;
        algorithm("hash", HASH_ALGORITHM, HASH_BLAKE3, "1 (BLAKE3)")?;
        let unknown = self.required_features & !KNOWN_FEATURES;
        if unknown != 0 {
            return Err(FormatError::Feature(unknown.trailing_zeros()));
        }
        if let Some(at) = block[RESERVED..CHECKSUM].iter().position(|&byte| byte != 0) {
            return Err(FormatError::Padding { offset: (RESERVED + at) as u64 });
        }
        let (found, limit) = (self.manifest_length, IPU_MANIFEST_BYTES);
        if found > limit {
            return Err(FormatError::Limit { what: "a manifest of length", found, limit });
        }
        let region = |what, found: u64, expected: u64| {
            if found == expected { Ok(()) } else { Err(FormatError::Region { what, found, expected }) }
        };
        region("a manifest offset of", u64_at(block, MANIFEST_OFFSET), SUPERBLOCK_BYTES as u64)?;
        region("a stream offset of", self.stream_offset, stream_offset(self.manifest_length))?;
        let total_length = u64_at(block, TOTAL_LENGTH);
        region("a stream length of", self.stream_length, total_length.saturating_sub(self.stream_offset))?;
        region("a total length of", total_length, self.total_length())?;
        region("a total length of", total_length, total_length / IPU_CHUNK_ALIGNMENT * IPU_CHUNK_ALIGNMENT)
    }
}

fn check_length(expected: u64, file_length: Option<u64>) -> Result<(), FormatError> {
    match file_length {
        Some(found) if found < expected => Err(FormatError::Truncated { expected, found }),
        Some(found) if found > expected => Err(FormatError::Excess { expected, found }),
        Some(_) | None => Ok(()),
    }
}

/// Where the stream begins after a manifest of this length.
fn stream_offset(manifest_length: u64) -> u64 {
    (SUPERBLOCK_BYTES as u64)
        .saturating_add(manifest_length)
        .div_ceil(IPU_CHUNK_ALIGNMENT)
        .saturating_mul(IPU_CHUNK_ALIGNMENT)
}

fn u32_at(block: &[u8; SUPERBLOCK_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| block[at + index]))
}

fn u64_at(block: &[u8; SUPERBLOCK_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| block[at + index]))
}
