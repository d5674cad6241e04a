//! A context in a file: its tokens, then their cache. A prompt that was read once need not be read again.
//!
//! ```text
//! "ipu context 1\n"       14 bytes
//! number of tokens         4 bytes, little-endian
//! the tokens               4 bytes each
//! CRC-32C of the above     4 bytes
//! saved state              as `ipuc_runtime` writes it: it has the hash of the model
//! ```

use super::generator::Generator;
use ipuc_runtime::SavedStateError;
use std::io::{self, Read, Write};
use thiserror::Error;

const MAGIC: &[u8; 14] = b"ipu context 1\n";

/// Why a context cannot be stored or gone on from.
#[derive(Debug, Error)]
pub enum ContextError {
    /// The file cannot be read or written.
    #[error("context: {0}")]
    Io(#[from] io::Error),
    /// The file holds no context.
    #[error("this is no saved context: {0}")]
    Malformed(&'static str),
    /// The cache does not fit.
    #[error(transparent)]
    State(#[from] SavedStateError),
}

impl Generator {
    /// Write what was read and generated so far.
    ///
    /// # Errors
    /// [`ContextError`] where it cannot be written.
    pub fn save(&mut self, to: &mut dyn Write) -> Result<(), ContextError> {
        self.settle().map_err(SavedStateError::State)?;
        let mut header = MAGIC.to_vec();
        header.extend(u32::try_from(self.tokens().len()).unwrap_or(u32::MAX).to_le_bytes());
        header.extend(self.tokens().iter().flat_map(|token| token.to_le_bytes()));
        header.extend(crc_fast::crc32_iscsi(&header).to_le_bytes());
        to.write_all(&header)?;
        self.session().save(to)?;
        Ok(())
    }

    /// Go on from what [`Generator::save`] has written: prompts that begin with the same tokens are read from there on.
    ///
    /// # Errors
    /// [`ContextError`] where the bytes are no context, or that of another model; what was read before is kept then.
    pub fn restore(&mut self, from: &mut dyn Read) -> Result<(), ContextError> {
        let mut header = vec![0; MAGIC.len() + 4];
        from.read_exact(&mut header).map_err(ended)?;
        let (magic, count) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(ContextError::Malformed("it does not begin with `ipu context 1`"));
        }
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |all, &byte| all << 8 | u32::from(byte));
        let count = u64::from(number(count));
        // Memory grows with what arrives, not with what is promised.
        let mut bytes = Vec::new();
        let length = (&mut *from).take(count * 4).read_to_end(&mut bytes)? as u64;
        if length < count * 4 {
            return Err(ContextError::Malformed("it ends early"));
        }
        header.extend_from_slice(&bytes);
        let mut checksum = [0; 4];
        from.read_exact(&mut checksum).map_err(ended)?;
        if crc_fast::crc32_iscsi(&header).to_le_bytes() != checksum {
            return Err(ContextError::Malformed("the checksum of its tokens does not match"));
        }
        Ok(self.restore_session(from, bytes.chunks_exact(4).map(number).collect())?)
    }
}

fn ended(error: io::Error) -> ContextError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ContextError::Malformed("it ends early"),
        _ => ContextError::Io(error),
    }
}
