//! Rules of attachments.
//!
//! - Their names differ, and are names of files: not empty, neither `.` nor `..`, without separators of folders, colons and
//!   control characters. Whoever stores them in a folder writes nothing outside of it.
//! - Their number and the bytes of all of them are limited.

use super::super::{Fault, FormatError, Manifest};
use super::{at_most, unique};
use crate::limits;

pub(super) fn check(manifest: &Manifest) -> Result<(), FormatError> {
    let attachments = &manifest.attachments;
    let bytes = attachments.iter().map(|attachment| attachment.data.len() as u64).sum();
    at_most("the number of attachments", attachments.len() as u64, limits::IPU_ATTACHMENTS)
        .and_then(|()| at_most("the size in bytes of all attachments", bytes, limits::IPU_ATTACHMENT_BYTES))
        .and_then(|()| unique("attachment", attachments.iter().map(|attachment| attachment.name.as_str())))
        .map_err(|fault| fault.at("attachments"))?;
    for (index, attachment) in attachments.iter().enumerate() {
        if !is_file_name(&attachment.name) {
            return Err(Fault::Rule("its name is no name of a file").at(format!("attachment {index}")));
        }
    }
    Ok(())
}

fn is_file_name(name: &str) -> bool {
    let forbidden = |character: char| matches!(character, '/' | '\\' | ':') || character.is_control();
    !name.is_empty() && name != "." && name != ".." && !name.contains(forbidden)
}
