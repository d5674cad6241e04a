//! What commands print: results on stdout as text or JSON, notes on stderr.

use ipuc_formats::size::Size;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::path::Path;
use std::time::Duration;

/// Where a command prints.
pub(super) struct Output {
    stdout: BufWriter<Stdout>,
    json: bool,
    quiet: bool,
    /// Whether a file goes to stdout; the text of the result goes to stderr then.
    left: bool,
}

impl Output {
    pub(super) fn new(json: bool, quiet: bool) -> Self {
        Output { stdout: BufWriter::new(io::stdout()), json, quiet, left: false }
    }

    /// Whether the result is printed as JSON.
    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// Leave stdout to a file that goes there; `false` where JSON does.
    #[must_use]
    pub(super) fn leave_stdout(&mut self) -> bool {
        self.left = !self.json;
        self.left
    }

    /// A line of the result; nothing where JSON is wanted.
    pub(super) fn line(&mut self, text: impl Display) -> anyhow::Result<()> {
        if self.left {
            writeln!(io::stderr(), "{text}")?;
        } else if !self.json {
            writeln!(self.stdout, "{text}")?;
        }
        Ok(())
    }

    /// A piece of the result, shown at once; nothing where JSON is wanted.
    pub(super) fn piece(&mut self, text: &str) -> anyhow::Result<()> {
        if self.left {
            write!(io::stderr(), "{text}")?;
        } else if !self.json && !text.is_empty() {
            self.stdout.write_all(text.as_bytes())?;
            self.stdout.flush()?;
        }
        Ok(())
    }

    /// A line that is no result: left out where the user wants quiet, or JSON.
    pub(super) fn remark(&mut self, text: impl Display) -> anyhow::Result<()> {
        if self.quiet { Ok(()) } else { self.line(text) }
    }

    /// Lines of the result in columns; the last one is not padded.
    pub(super) fn table<const COLUMNS: usize>(&mut self, rows: Vec<[String; COLUMNS]>) -> anyhow::Result<()> {
        aligned(rows).into_iter().try_for_each(|line| self.line(line))
    }

    /// The whole result as JSON, where that is wanted.
    pub(super) fn json(&mut self, result: &impl Serialize) -> anyhow::Result<()> {
        if self.json {
            serde_json::to_writer_pretty(&mut self.stdout, result)?;
            writeln!(self.stdout)?;
        }
        Ok(())
    }

    /// Something that a user should know and that is no result.
    #[allow(clippy::print_stderr, reason = "notes go to stderr")]
    pub(super) fn note(&self, text: impl Display) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    /// The stream of the result, for what is neither text nor JSON.
    pub(super) fn stdout(&mut self) -> &mut dyn Write {
        &mut self.stdout
    }

    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        Ok(self.stdout.flush()?)
    }

    /// Whether what is under way is shown: on a terminal, unless the user wants quiet.
    pub(super) fn shows_progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }
}

/// Whether a path stands for standard output: `-`, or a device that is it.
pub(super) fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}

/// Rows as lines with aligned columns; the last one is not padded.
pub(super) fn aligned<const COLUMNS: usize>(rows: Vec<[String; COLUMNS]>) -> Vec<String> {
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: [String; COLUMNS]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.into_iter().map(line).collect()
}

/// Bytes with a unit, for people: `1.50 MiB`.
pub(super) fn bytes(count: u64) -> String {
    Size(count).to_string()
}

/// A size that is enough for so many bytes, as flags take it: `1537MiB`.
pub(super) fn at_least(count: u64) -> String {
    // Three digits and more of each unit: what is rounded up is less than a part in a thousand.
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let exact = |&&(unit, _): &&(u64, &str)| count >= unit && (count.is_multiple_of(unit) || count / unit >= 1000);
    let (unit, name) = units.iter().find(exact).copied().unwrap_or((1 << 10, "KiB"));
    format!("{}{name}", count.div_ceil(unit))
}

/// A time for people: `1.25 s`, `3.1 ms`.
pub(super) fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        _ if seconds >= 1.0 => format!("{seconds:.2} s"),
        _ if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{:.0} us", seconds * 1e6),
    }
}

/// `1 step`, `2 steps`.
pub(super) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_as_the_flags_take_them() {
        assert_eq!(at_least(1), "1KiB");
        assert_eq!(at_least(1 << 20), "1MiB");
        assert_eq!(at_least((1 << 20) + 1), "1025KiB");
        assert_eq!(at_least(1_610_629_140), "1537MiB");
        for bytes in [1, 1000, 123_456_789, u64::MAX / 2] {
            let size: crate::cli::arguments::Size = at_least(bytes).parse().unwrap();
            assert!(size.bytes >= bytes);
        }
    }
}
