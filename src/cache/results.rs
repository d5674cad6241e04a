//! What calibration showed, as a file: a throw-away one, which is made anew where anything about it is not as it should be.
//!
//! It is the BLAKE3 of what follows, then the value as postcard writes it. (Not bincode, which is not maintained any more,
//! RUSTSEC-2025-0141; both write the fields one after another, and any version of this program reads only its own.)

use crate::compile::Calibration;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

/// The extension of such files.
pub(super) const EXTENSION: &str = "calibration";
/// The longest file that is written or read: sums of large models take more, and are made anew.
const RESULT_BYTES: u64 = 1 << 30;
/// The hash before the value.
const HASH_BYTES: usize = 32;

/// What a file holds; `None` where there is none, or it is damaged.
pub(super) fn read(path: &Path) -> Option<Calibration> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(RESULT_BYTES).read_to_end(&mut bytes).ok()?;
    let (hash, value) = bytes.split_at_checked(HASH_BYTES)?;
    if blake3::hash(value).as_bytes() != hash {
        return None;
    }
    postcard::from_bytes(value).ok()
}

/// Write a file in a folder; gives the hash of what it holds, and nothing where that is too much to be kept.
///
/// # Errors
/// What the system reports.
pub(super) fn write(folder: &Path, path: &Path, calibration: &Calibration) -> io::Result<Option<[u8; HASH_BYTES]>> {
    let value = postcard::to_stdvec(calibration).map_err(io::Error::other)?;
    if (value.len() + HASH_BYTES) as u64 > RESULT_BYTES {
        return Ok(None);
    }
    let hash = *blake3::hash(&value).as_bytes();
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&hash)?;
    file.write_all(&value)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(Some(hash))
}
