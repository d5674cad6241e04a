//! Temporary files of commands: where models go that are compiled for one run, or that a pipe brings.

use super::failure::Failure;
use crate::files::unfinished::{self, Unfinished};
use anyhow::Context;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::Path;

/// What to do where the temporary folder is full.
const NAME_TMPDIR: &str = "name a folder with room in the environment variable TMPDIR";

/// A temporary folder that is removed even when the program is interrupted.
pub(super) struct Scratch {
    folder: tempfile::TempDir,
    _unfinished: Unfinished,
}

impl Scratch {
    pub(super) fn new() -> anyhow::Result<Self> {
        let parent = std::env::temp_dir();
        let failed = |error| {
            let message = format!("cannot create a temporary folder in `{}`", parent.display());
            Failure::output(message, &error).with_hint(NAME_TMPDIR)
        };
        unfinished::remove_left_over(&parent);
        loop {
            let builder = tempfile::Builder::new().prefix(unfinished::PREFIX).suffix(unfinished::SUFFIX).tempdir();
            let folder = builder.map_err(failed)?;
            match Unfinished::remember(folder.path()) {
                Ok(unfinished) => return Ok(Scratch { folder, _unfinished: unfinished }),
                // Taken for left over in the moment before it was locked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error).into()),
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Keep an ONNX model that a pipe brings in a file.
pub(super) fn spool(mut pipe: impl Read, path: &Path) -> anyhow::Result<()> {
    let unkept = |error: io::Error| {
        let folder = std::env::temp_dir();
        let message = format!("cannot keep what stdin brings in `{}`", folder.display());
        Failure::output(message, &error).with_hint(NAME_TMPDIR)
    };
    let mut file = File::create(path).map_err(unkept)?;
    let mut block = vec![0; STDIN_BLOCK_BYTES];
    let mut kept_bytes = 0;
    loop {
        let count = match pipe.read(&mut block) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.context("cannot read stdin")?,
        };
        if kept_bytes == 0 && !is_model_begin(&block[..count]) {
            let message = "cannot open `stdin`: it brings neither an .ipu file nor an ONNX model";
            return Err(Failure::file(message).into());
        }
        kept_bytes += count as u64;
        if kept_bytes > PROTOBUF_BYTES {
            let message = "cannot open `stdin`: it brings more than the 2 GiB that an ONNX model can have";
            return Err(Failure::file(message).into());
        }
        file.write_all(&block[..count]).map_err(unkept)?;
    }
}

/// Bytes that are taken from a pipe at a time.
const STDIN_BLOCK_BYTES: usize = 1 << 20;
/// The longest message that Protocol Buffers can write: weights of larger models are external data, which a pipe has not.
const PROTOBUF_BYTES: u64 = 2 << 30;

/// The first byte is the key of a field of `ModelProto`: number 1 to 31 in its upper bits, wire type below.
fn is_model_begin(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|&key| matches!(key & 7, 0..=2 | 5) && (1..=31).contains(&(key >> 3)))
}
