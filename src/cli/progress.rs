//! What is under way, on a terminal: a line that says what and for how long, or a bar; both from the second second on.

use super::output::{Output, bytes, count, seconds};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ipuc_passes::emit;
use ipuc_runtime::{Session, StepCounter};
use std::fmt::Display;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a piece of work is silent.
const SILENCE: Duration = Duration::from_secs(1);
/// How often a line is written anew.
const TICK: Duration = Duration::from_millis(100);

/// Says what is going on and for how long, until it is dropped.
pub(super) fn waiting(output: &Output, label: impl Display) -> Waiting {
    watching(output, label, String::new)
}

/// The same, with something behind it that is asked for again and again.
fn watching(output: &Output, label: impl Display, detail: impl Fn() -> String + Send + 'static) -> Waiting {
    let label = Arc::new(Mutex::new(label.to_string()));
    if !output.shows_progress() {
        return Waiting { label, ended: None, thread: None };
    }
    let (ended, end) = mpsc::channel::<()>();
    let said = label.clone();
    let text = move || format!("{}{}", said.lock().unwrap_or_else(PoisonError::into_inner), detail());
    let thread = std::thread::Builder::new().spawn(move || show(&end, &text)).ok();
    Waiting { label, ended: Some(ended), thread }
}

/// Write the line until the channel ends; nothing is ever sent.
fn show(end: &mpsc::Receiver<()>, text: &dyn Fn() -> String) {
    if end.recv_timeout(SILENCE) != Err(mpsc::RecvTimeoutError::Timeout) {
        return;
    }
    let spinner = ProgressBar::new_spinner().with_elapsed(SILENCE);
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
    // The template is fixed; without it the plain one will do.
    let spinner = style.map_or(spinner.clone(), |style| spinner.with_style(style));
    loop {
        spinner.set_message(text());
        spinner.tick();
        if end.recv_timeout(TICK) != Err(mpsc::RecvTimeoutError::Timeout) {
            break;
        }
    }
    spinner.finish_and_clear();
}

/// A line on the terminal for as long as this lives.
pub(super) struct Waiting {
    label: Arc<Mutex<String>>,
    ended: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Something else is under way now.
    pub(super) fn say(&self, label: impl Display) {
        *self.label.lock().unwrap_or_else(PoisonError::into_inner) = label.to_string();
    }
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

/// Says how many steps the runs of a session have done, until it is dropped.
pub(super) fn running(output: &Output, session: &mut Session, label: impl Display) -> Waiting {
    let counter = StepCounter::default();
    session.set_counter(output.shows_progress().then(|| counter.clone()));
    watching(output, label, move || steps(counter.done(), counter.total(), counter.inner()))
}

/// `: 12 of 54 steps`, with those inside of loops and branches where there are any.
fn steps(done: u64, total: u64, inner: u64) -> String {
    match (total, inner) {
        (0, _) => String::new(),
        (_, 0) => format!(": {done} of {}", count(total as usize, "step")),
        (_, inner) => format!(": {done} of {}, {inner} in loops and branches", count(total as usize, "step")),
    }
}

/// What a compilation does before it writes.
pub(super) struct Passes {
    waiting: Waiting,
    done: usize,
}

impl Passes {
    pub(super) fn begin(output: &Output) -> Passes {
        Passes { waiting: waiting(output, "compiling: reading the model"), done: 0 }
    }

    /// A pass has ended.
    pub(super) fn done(&mut self, pass: &str) {
        self.done += 1;
        self.waiting.say(format_args!("compiling: {} passes done, the last is {pass}", self.done));
    }
}

/// What a bar counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    Items,
}

/// Progress of one piece of work, which begins now.
pub(super) struct Bar {
    shown: bool,
    label: &'static str,
    unit: Unit,
    start: Instant,
    bar: OnceLock<ProgressBar>,
}

impl Bar {
    pub(super) fn new(output: &Output, label: &'static str, unit: Unit) -> Bar {
        Bar { shown: output.shows_progress(), label, unit, start: Instant::now(), bar: OnceLock::new() }
    }

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

impl emit::Progress for Bar {
    fn written(&self, bytes: u64, total_bytes: u64) {
        self.set(bytes, total_bytes);
    }
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
    fn steps_of_loops_stand_beside_those_of_the_entry() {
        assert_eq!(steps(0, 0, 0), "");
        assert_eq!(steps(0, 1, 0), ": 0 of 1 step");
        assert_eq!(steps(3, 54, 0), ": 3 of 54 steps");
        assert_eq!(steps(3, 54, 700), ": 3 of 54 steps, 700 in loops and branches");
    }
}
