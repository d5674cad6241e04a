//! Saved state: a header with the hash of the model, then the contents of each state in pieces with checksums.
//!
//! All numbers are little-endian:
//!
//! ```text
//! "ipu state 2\n"                            12 bytes
//! root hash of the model's file              32 bytes
//! seed of random operators                    8 bytes
//! number of states                            4 bytes
//! CRC-32C of all of the above                 4 bytes
//! for each state: number, rank, extents       4, 4 and 8 each
//!   of a growing state: pages forgotten       8
//!   for each piece: its bytes, their CRC-32C  4 behind the bytes
//! ```
//!
//! A growing state has a piece for each page behind those that are forgotten, another state has one.

use crate::error::RunError;
use crate::program::Program;
use crate::state::{States, charged, contents, spill};
use crate::steps::Contents;
use crate::versions::{Version, VersionError};
use ipuc_formats::dtype::DType;
use ipuc_formats::model::StateRecord;
use ipuc_formats::tensor::{Tensor, element_count};
use ipuc_formats::value::Value;
use std::io::{self, Read, Write};
use thiserror::Error;

const MAGIC: &[u8; 12] = b"ipu state 2\n";

/// Pages of a state that may be forgotten, which takes no bytes here but memory later: 134 million positions of pages of 128.
const MOST_FORGOTTEN_PAGES: usize = 1 << 20;

/// Why state cannot be saved or restored.
#[derive(Debug, Error)]
pub enum SavedStateError {
    /// Bytes cannot be read or written.
    #[error("saved state: {0}")]
    Io(#[from] io::Error),
    /// The bytes are no saved state.
    #[error("this is no saved state: {0}")]
    Malformed(String),
    /// The state is that of another model.
    #[error("the saved state is of another model: its file has the hash {found}, this one {expected}")]
    OtherModel {
        /// Hash of the model that the state is of.
        found: String,
        /// Hash of this model.
        expected: String,
    },
    /// Contents that cannot be saved, or do not fit.
    #[error(transparent)]
    State(#[from] RunError),
}

/// What a session was saved as.
pub(crate) struct Saved {
    pub(crate) states: States,
    pub(crate) random_state: u64,
}

fn hexadecimal(hash: &[u8]) -> String {
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Write the contents of states.
///
/// # Errors
/// [`SavedStateError`] where they cannot be written, or are no tensors of numbers.
pub(crate) fn save(saved: &Saved, program: &Program, to: &mut dyn Write) -> Result<(), SavedStateError> {
    let mut header = MAGIC.to_vec();
    header.extend(program.root_hash);
    header.extend(saved.random_state.to_le_bytes());
    header.extend((saved.states.len() as u32).to_le_bytes());
    header.extend(crc_fast::crc32_iscsi(&header).to_le_bytes());
    to.write_all(&header)?;
    for (&number, contents) in &saved.states {
        let record = &program.manifest.states[number as usize];
        let refused = |reason: String| RunError::State { name: record.name.clone(), reason };
        match contents {
            Contents::Version(version) => {
                write_shape(number, version.shape(), to)?;
                to.write_all(&(version.forgotten_pages() as u64).to_le_bytes())?;
                for piece in version.pieces(program) {
                    write_piece(&piece.map_err(|error| refused(error.to_string()))?, to)?;
                }
            }
            Contents::Value(Value::Tensor(tensor)) if tensor.dtype() != DType::String => {
                write_shape(number, tensor.shape(), to)?;
                write_piece(tensor.bytes(), to)?;
            }
            Contents::Value(value) => return Err(refused(format!("{} cannot be saved", value.kind())).into()),
        }
    }
    Ok(())
}

fn write_shape(number: u32, shape: &[usize], to: &mut dyn Write) -> io::Result<()> {
    to.write_all(&number.to_le_bytes())?;
    to.write_all(&(shape.len() as u32).to_le_bytes())?;
    shape.iter().try_for_each(|&extent| to.write_all(&(extent as u64).to_le_bytes()))
}

fn write_piece(bytes: &[u8], to: &mut dyn Write) -> io::Result<()> {
    to.write_all(bytes)?;
    to.write_all(&crc_fast::crc32_iscsi(bytes).to_le_bytes())
}

/// Read what [`save`] has written.
///
/// # Errors
/// [`SavedStateError`] where the bytes are no saved state, or that of another model.
pub(crate) fn restore(program: &Program, from: &mut dyn Read) -> Result<Saved, SavedStateError> {
    let malformed = |reason: &str| SavedStateError::Malformed(reason.to_string());
    let header: [u8; 56] = array(from)?;
    if &header[..12] != MAGIC {
        return Err(malformed("it does not begin with `ipu state 2`"));
    }
    if crc_fast::crc32_iscsi(&header).to_le_bytes() != array(from)? {
        return Err(malformed("the checksum of its header does not match"));
    }
    if header[12..44] != program.root_hash[..] {
        let (found, expected) = (hexadecimal(&header[12..44]), hexadecimal(&program.root_hash));
        return Err(SavedStateError::OtherModel { found, expected });
    }
    let (seed, count) = header[44..].split_at(8);
    let random_state = u64::from_le_bytes(seed.try_into().map_err(|_| malformed("its header is short"))?);
    let count = u32::from_le_bytes(count.try_into().map_err(|_| malformed("its header is short"))?);
    let mut states = States::new();
    for _ in 0..count {
        let number = u32::from_le_bytes(array(from)?);
        let record = program.manifest.states.get(number as usize).ok_or_else(|| malformed("a state does not exist"))?;
        let restored = restore_state((number, record), &states, program, from)?;
        if states.insert(number, restored).is_some() {
            return Err(malformed("a state occurs twice"));
        }
    }
    match from.read(&mut [0])? {
        0 => Ok(Saved { states, random_state }),
        _ => Err(malformed("bytes follow the last state")),
    }
}

fn restore_state(
    (number, record): (u32, &StateRecord),
    others: &States,
    program: &Program,
    from: &mut dyn Read,
) -> Result<Contents, SavedStateError> {
    let malformed = |reason: &str| SavedStateError::Malformed(format!("state `{}`: {reason}", record.name));
    let (dtype, state_shape) = record.kind.as_tensor().ok_or_else(|| malformed("it is no tensor"))?;
    let rank = u32::from_le_bytes(array(from)?) as usize;
    if state_shape.rank() != Some(rank) {
        return Err(malformed("it has another number of axes"));
    }
    let mut shape = Vec::with_capacity(rank);
    for _ in 0..rank {
        let extent = u64::from_le_bytes(array(from)?);
        shape.push(usize::try_from(extent).map_err(|_| malformed("an extent is too large"))?);
    }
    let failed = |error: VersionError| RunError::State { name: record.name.clone(), reason: error.to_string() };
    let unsound = || malformed("a checksum does not match");
    let Some(growth) = record.growth else {
        let length = element_count(&shape).and_then(|count| dtype.packed_bytes(count));
        let bytes = piece(length, from)?.ok_or_else(unsound)?;
        let tensor = Tensor::from_bytes(dtype, &shape, &bytes).map_err(|error| malformed(&error.to_string()))?;
        return Ok(contents(record, charged(tensor.into(), program)?, program)?);
    };
    let length = shape[growth.axis as usize];
    let version = Version::empty(dtype, &shape, growth).map_err(failed)?;
    let forgotten = usize::try_from(u64::from_le_bytes(array(from)?)).unwrap_or(usize::MAX);
    // No run may need what is forgotten.
    let first_read = program.windows[number as usize].map_or(0, |window| window.first_read(length));
    if forgotten > MOST_FORGOTTEN_PAGES.min(first_read / version.page_positions()) {
        return Err(malformed("more positions are forgotten than are never read"));
    }
    let mut version = version.behind_forgotten(forgotten).map_err(failed)?;
    while version.length() < length {
        let positions = version.page_positions().min(length - version.length());
        let bytes = piece(version.stored_bytes(positions), from)?.ok_or_else(unsound)?;
        version = loop {
            match version.append_stored(&bytes, positions, program) {
                Ok(next) => break next,
                // What came before goes to disk where weights cannot make room any more.
                Err(VersionError::Memory { bytes }) => {
                    let moved = version.spill(1, &program.spill).map_err(failed)?;
                    let moved = moved + spill(others, bytes as u64, &program.spill).map_err(failed)?;
                    let moved = moved + program.states.spill(&[], bytes as u64, &program.spill).map_err(failed)?;
                    program.pool.trim();
                    if moved == 0 {
                        return Err(RunError::Memory { bytes: bytes as u64 }.into());
                    }
                }
                Err(error) => return Err(failed(error).into()),
            }
        };
    }
    Ok(Contents::Version(version))
}

/// The bytes of a piece, whose length is `None` where memory cannot address it; `None` where its checksum does not match.
fn piece(length: Option<usize>, from: &mut dyn Read) -> Result<Option<Vec<u8>>, SavedStateError> {
    let length = length.ok_or_else(|| SavedStateError::Malformed("it does not fit in memory".to_string()))?;
    // No more than what is there is ever allocated, whatever the extents say.
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(SavedStateError::Malformed("it ends early".to_string()));
    }
    if crc_fast::crc32_iscsi(&bytes).to_le_bytes() != array(from)? {
        return Ok(None);
    }
    Ok(Some(bytes))
}

fn array<const LENGTH: usize>(from: &mut dyn Read) -> Result<[u8; LENGTH], SavedStateError> {
    let mut bytes = [0; LENGTH];
    from.read_exact(&mut bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => SavedStateError::Malformed("it ends early".to_string()),
        _ => SavedStateError::Io(error),
    })?;
    Ok(bytes)
}
