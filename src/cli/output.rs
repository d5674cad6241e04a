//! What commands print: results on stdout as text or JSON, notes and progress on stderr.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ipuc_formats::size::Size;
use ipuc_passes::emit::Progress;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::sync::{OnceLock, mpsc};
use std::thread::JoinHandle;
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

    /// Whether the result is printed as JSON.
    pub(super) fn is_json(&self) -> bool {
        self.json
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

    /// Says on a terminal what is going on and for how long, from the second second on, until it is dropped.
    pub(super) fn waiting(&self, label: &'static str) -> Waiting {
        if self.quiet || !io::stderr().is_terminal() {
            return Waiting { ended: None, thread: None };
        }
        let (ended, end) = mpsc::channel::<()>();
        let show = move || {
            if end.recv_timeout(SILENCE) != Err(mpsc::RecvTimeoutError::Timeout) {
                return;
            }
            let spinner = ProgressBar::new_spinner().with_elapsed(SILENCE);
            let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
            // The template is fixed; without it the plain one will do.
            let spinner = style.map_or(spinner.clone(), |style| spinner.with_style(style));
            spinner.set_message(label);
            spinner.enable_steady_tick(TICK);
            // Nothing is sent: the channel ends.
            let _ = end.recv();
            spinner.finish_and_clear();
        };
        Waiting { ended: Some(ended), thread: std::thread::Builder::new().spawn(show).ok() }
    }

    /// A bar that appears on a terminal once the work has taken a second.
    pub(super) fn bar(&self, label: &'static str, unit: Unit) -> Bar {
        let shown = !self.quiet && io::stderr().is_terminal();
        Bar { shown, label, unit, start: Instant::now(), bar: OnceLock::new() }
    }
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

/// How long a piece of work is silent.
const SILENCE: Duration = Duration::from_secs(1);
/// How often a spinner moves.
const TICK: Duration = Duration::from_millis(100);

/// A message on the terminal for as long as this lives.
pub(super) struct Waiting {
    ended: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.ended.take());
        if let Some(thread) = self.thread.take() {
            // A thread that failed has shown nothing.
            let _ = thread.join();
        }
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
        let elapsed = self.start.elapsed();
        if !self.shown || elapsed < SILENCE {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let counts = match self.unit {
                Unit::Bytes => "{bytes}/{total_bytes} ({msg})",
                Unit::Items => "{pos}/{len} ({msg})",
            };
            let style = ProgressStyle::with_template(&format!("{} [{{bar:30}}] {counts}", self.label));
            // The template is fixed; without it the plain bar will do.
            style.map_or(bar.clone(), |style| bar.with_style(style.progress_chars("=> ")))
        });
        bar.set_position(done);
        bar.set_message(pace(self.unit, done, total, elapsed));
    }
}

/// `1.5 MiB/s, 12 s left`, over the whole time of the work: the bar itself comes later.
fn pace(unit: Unit, done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-9);
    let left = total.saturating_sub(done) as f64 / rate.max(1e-9);
    let left = format!("{} left", seconds(Duration::try_from_secs_f64(left.round()).unwrap_or(Duration::MAX)));
    match unit {
        Unit::Bytes => format!("{}/s, {left}", bytes(rate as u64)),
        Unit::Items => left,
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
    fn the_pace_counts_from_the_beginning_of_the_work() {
        let four_seconds = Duration::from_secs(4);
        assert_eq!(pace(Unit::Bytes, 4 << 20, 12 << 20, four_seconds), "1.00 MiB/s, 8.00 s left");
        assert_eq!(pace(Unit::Items, 1, 3, four_seconds), "8.00 s left");
    }

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
