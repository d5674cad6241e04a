//! What must hold between the records of a manifest before anything uses it.
//!
//! A file may come from anywhere: whoever holds a validated manifest may index with what it says. `program.rs` has the
//! rules of symbols, entries, blocks and steps, `storage.rs` those of weights, extents and chunks, `placement.rs` those of
//! placements, `attachments.rs` those of attachments; each begins with its list. Not checked here: that types fit operators (the runtime infers them again when dimensions bind), and the
//! stored bytes ([`super::checks`]).

mod attachments;
mod placement;
mod program;
mod storage;

use super::{Fault, FormatError, Manifest, Superblock};

pub use placement::check_placement;

/// Check every rule on the records of a manifest in a file with this superblock.
///
/// # Errors
/// [`FormatError::Record`] for the first record that breaks one.
pub fn validate(manifest: &Manifest, superblock: &Superblock) -> Result<(), FormatError> {
    program::check(manifest)?;
    storage::check(manifest, superblock)?;
    placement::check(manifest)?;
    attachments::check(manifest)
}

/// An index that must be below a count.
fn in_range(what: &'static str, index: u32, count: usize) -> Result<usize, Fault> {
    let (position, count) = (index as usize, count as u64);
    if u64::from(index) < count { Ok(position) } else { Err(Fault::Index { what, index: u64::from(index), count }) }
}

/// Two numbers that must be equal.
fn equal(what: &'static str, found: u64, expected: u64) -> Result<(), Fault> {
    if found == expected { Ok(()) } else { Err(Fault::Mismatch { what, found, expected }) }
}

/// A number that must not exceed a limit.
fn at_most(what: &'static str, found: u64, limit: u64) -> Result<(), Fault> {
    if found <= limit { Ok(()) } else { Err(Fault::Limit { what, found, limit }) }
}

/// Names that must differ.
fn unique<'a>(what: &'static str, names: impl Iterator<Item = &'a str>) -> Result<(), Fault> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Fault::Duplicate { what, name: name.to_string() });
        }
    }
    Ok(())
}
