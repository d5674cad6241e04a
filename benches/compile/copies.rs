//! Ways of copying a model that compiling is compared with.

use anyhow::{Context, Result, ensure};
use ipuc::files::{OutputFile, SourceFile};
use ipuc_formats::read_at::ReadAt as _;
use ipuc_pages::Pages;
use ipuc_passes::emit::Output as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// How files are copied.
#[derive(Clone, Copy, strum::Display, strum::VariantArray)]
pub enum CopyKind {
    /// The system's `cp`.
    #[strum(to_string = "cp")]
    Cp,
    /// One stream out of a buffer as `dd` has it.
    #[strum(to_string = "dd")]
    Dd,
    /// The same out of a huge page.
    #[strum(to_string = "dd on huge pages")]
    DdOnHugePages,
}

impl CopyKind {
    /// Seconds to copy these files to a place that does not exist yet; what was written is removed again.
    pub fn seconds(self, files: &[PathBuf], target: &Path) -> Result<f64> {
        match self {
            CopyKind::Cp => copy(files, target),
            CopyKind::Dd => copy_alike(files, target, false),
            CopyKind::DdOnHugePages => copy_alike(files, target, true),
        }
    }

    /// What compiling should reach of it.
    pub fn goal(self) -> Option<&'static str> {
        match self {
            CopyKind::Cp => Some("should be 60 or more"),
            CopyKind::Dd => Some("should be 70 or more from 8 GiB on"),
            CopyKind::DdOnHugePages => None,
        }
    }
}

/// Seconds to copy files with `cp`, which ends before the bytes are on the disk, and to bring them there.
fn copy(files: &[PathBuf], target: &Path) -> Result<f64> {
    std::fs::create_dir_all(target)?;
    let start = Instant::now();
    let status = Command::new("cp").args(files).arg(target).status().context("there is no `cp`")?;
    ensure!(status.success(), "`cp` failed");
    for file in files {
        File::open(target.join(file.file_name().context("a file has a name")?))?.sync_all()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    std::fs::remove_dir_all(target)?;
    Ok(seconds)
}

/// Seconds to copy files into one as `dd` does, by the reads and writes of the compiler; what is left after the last
/// whole block of 4 KiB is written as zeros.
fn copy_alike(files: &[PathBuf], target: &Path, huge_pages: bool) -> Result<f64> {
    const ALIGNMENT: usize = 4096;
    const BLOCK_BYTES: usize = 2 << 20;
    let begun = Instant::now();
    let inputs = files.iter().map(|file| Ok(SourceFile::open(file)?)).collect::<Result<Vec<_>>>()?;
    let output = OutputFile::create(target)?;
    let whole = |input: &SourceFile| input.length().next_multiple_of(ALIGNMENT as u64);
    output.reserve(inputs.iter().map(whole).sum())?;
    let mut huge = Pages::zeroed(BLOCK_BYTES)?;
    let mut small = vec![0; BLOCK_BYTES + ALIGNMENT];
    let start = small.as_ptr().align_offset(ALIGNMENT);
    let block = if huge_pages { &mut huge[..] } else { &mut small[start..start + BLOCK_BYTES] };
    let mut written = 0;
    for input in &inputs {
        let mut offset = 0;
        while offset < input.length() {
            let length = (input.length() - offset).min(block.len() as u64) as usize;
            input.read_exact_at(offset, &mut block[..length])?;
            let padded = length.next_multiple_of(ALIGNMENT);
            block[length..padded].fill(0);
            output.write_at(written, &block[..padded])?;
            offset += length as u64;
            written += padded as u64;
        }
    }
    output.finish()?;
    let seconds = begun.elapsed().as_secs_f64();
    std::fs::remove_file(target)?;
    Ok(seconds)
}
