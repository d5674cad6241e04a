//! How far a run has come, for whoever waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the steps of a run. Clones are the same counter; another thread may read it while the run goes on.
///
/// ```
/// let counter = ipuc_runtime::StepCounter::default();
/// assert_eq!((counter.done(), counter.total(), counter.inner()), (0, 0, 0));
/// ```
#[derive(Debug, Clone, Default)]
pub struct StepCounter {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    total: AtomicU64,
    inner: AtomicU64,
}

impl StepCounter {
    /// Steps of the entry that the run has done.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.counts.done.load(Ordering::Relaxed)
    }

    /// Steps that the entry has; 0 before the first run.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.total.load(Ordering::Relaxed)
    }

    /// Steps that the run has done in branches and bodies of loops, which are in no total: nobody knows how many will be.
    #[must_use]
    pub fn inner(&self) -> u64 {
        self.counts.inner.load(Ordering::Relaxed)
    }

    /// A run of so many steps begins.
    pub(crate) fn begin(&self, total: usize) {
        self.counts.done.store(0, Ordering::Relaxed);
        self.counts.inner.store(0, Ordering::Relaxed);
        self.counts.total.store(total as u64, Ordering::Relaxed);
    }

    /// A step is done, of the entry or of a block inside.
    pub(crate) fn count(&self, is_of_entry: bool) {
        let count = if is_of_entry { &self.counts.done } else { &self.counts.inner };
        count.fetch_add(1, Ordering::Relaxed);
    }
}
