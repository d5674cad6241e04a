//! What a file is by its first bytes.

use crate::files::SourceFile;
use anyhow::Context;
use ipuc_formats::model::superblock;
use ipuc_formats::read_at::ReadAt;
use std::path::Path;

/// The file is `.ipu` by its first bytes.
pub(super) fn has_signature(path: &Path) -> anyhow::Result<bool> {
    let file = SourceFile::open(path)?;
    let mut first = [0; superblock::SIGNATURE.len()];
    if file.length() < first.len() as u64 {
        return Ok(false);
    }
    file.read_exact_at(0, &mut first).with_context(|| format!("cannot read `{}`", path.display()))?;
    Ok(first == superblock::SIGNATURE)
}
