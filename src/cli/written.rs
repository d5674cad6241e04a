//! Files that commands write beside their result: under a name, or to stdout, which they then have alone.

use super::failure::Failure;
use super::output::{Output, is_stdout};
use crate::files::{Destination, OutputFile};
use ipuc_passes::emit::Output as _;
use std::io::{self, IsTerminal, Write as _};
use std::path::Path;

/// A file that a command may be told to write.
pub(super) struct Written<'a> {
    /// What it is, in messages.
    pub(super) what: &'static str,
    /// Where it goes, if it is asked for.
    pub(super) path: Option<&'a Path>,
    /// Whether it is text, which a terminal may show.
    pub(super) is_text: bool,
}

/// Before anything is done: leave stdout to the file that goes there, and refuse what cannot be.
pub(super) fn prepare(files: &[Written<'_>], output: &mut Output) -> Result<(), Failure> {
    let mut there = files.iter().filter(|file| file.path.is_some_and(is_stdout));
    let (Some(file), second) = (there.next(), there.next()) else { return Ok(()) };
    if !output.leave_stdout() {
        return Err(Failure::usage(format!("{} and --json cannot both go to stdout", file.what)));
    }
    if let Some(second) = second {
        return Err(Failure::usage(format!("{} and {} cannot both go to stdout", file.what, second.what)));
    }
    match file.path {
        Some(path) if !file.is_text && io::stdout().is_terminal() => {
            let message = format!("{} cannot go to `{}`, which is a terminal", file.what, path.display());
            Err(Failure::usage(message).with_hint("name a file, or redirect stdout"))
        }
        Some(_) | None => Ok(()),
    }
}

/// Where the file of a path goes.
pub(super) fn destination(path: &Path) -> Destination<'_> {
    if is_stdout(path) { Destination::Stdout } else { Destination::Path(path) }
}

/// Why a file is not written. Of stdout the system's error says enough: its reader may have seen enough of it.
pub(super) fn unwritten(path: &Path, error: io::Error) -> anyhow::Error {
    match is_stdout(path) {
        true => error.into(),
        false => Failure::output(format!("cannot write `{}`", path.display()), &error).into(),
    }
}

/// Write a text where it goes.
pub(super) fn write_text(path: &Path, text: &str) -> anyhow::Result<()> {
    if is_stdout(path) {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{}", text.trim_end())?;
        return Ok(stdout.flush()?);
    }
    let unwritten = |error| unwritten(path, error);
    let file = OutputFile::create(path).map_err(unwritten)?;
    file.write_at(0, text.as_bytes()).map_err(unwritten)?;
    file.finish().map_err(unwritten)
}
