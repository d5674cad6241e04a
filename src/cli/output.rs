//! What commands print: results on stdout as text or JSON, notes and progress on stderr.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ipuc_passes::emit::Progress;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Where a command prints.
pub(super) struct Output {
    stdout: BufWriter<Stdout>,
    json: bool,
    quiet: bool,
}

impl Output {
    pub(super) fn new(json: bool, quiet: bool) -> Self {
        Output { stdout: BufWriter::new(io::stdout()), json, quiet }
    }

    /// A line of the result; nothing where JSON is wanted.
    pub(super) fn line(&mut self, text: impl Display) -> anyhow::Result<()> {
        if !self.json {
            writeln!(self.stdout, "{text}")?;
        }
        Ok(())
    }

    /// A piece of the result, shown at once; nothing where JSON is wanted.
    pub(super) fn piece(&mut self, text: &str) -> anyhow::Result<()> {
        if !self.json && !text.is_empty() {
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
        let mut widths = [0; COLUMNS];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            self.line(cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
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

    /// A bar that appears on a terminal once the work has taken a second.
    pub(super) fn bar(&self, label: &'static str, unit: Unit) -> Bar {
        let shown = !self.quiet && io::stderr().is_terminal();
        Bar { shown, label, unit, start: Instant::now(), bar: OnceLock::new() }
    }
}

/// What a bar counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    Items,
}

/// Progress of one piece of work.
pub(super) struct Bar {
    shown: bool,
    label: &'static str,
    unit: Unit,
    start: Instant,
    bar: OnceLock<ProgressBar>,
}

impl Bar {
    /// So much is done, of so much.
    pub(super) fn set(&self, done: u64, total: u64) {
        if !self.shown || self.start.elapsed() < Duration::from_secs(1) {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let counts = match self.unit {
                Unit::Bytes => "{bytes}/{total_bytes} ({bytes_per_sec}, {eta} left)",
                Unit::Items => "{pos}/{len} ({eta} left)",
            };
            let style = ProgressStyle::with_template(&format!("{} [{{bar:30}}] {counts}", self.label));
            // The template is fixed; without it the plain bar will do.
            style.map_or(bar.clone(), |style| bar.with_style(style.progress_chars("=> ")))
        });
        bar.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Bar {
    fn written(&self, bytes: u64, total_bytes: u64) {
        self.set(bytes, total_bytes);
    }
}

/// Bytes with a unit, for people: `1.5 MiB`.
pub(super) fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
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
