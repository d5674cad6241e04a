//! How work is spread over the caller's team: when at all, and into how many parts.

use crate::team;
use std::{
    cell::Cell,
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Below this many multiply-accumulate operations a kernel stays on the calling thread: what another reads and writes moves between the
/// caches of cores, which costs more.
pub const SERIAL_OPERATIONS: usize = 100_000;

/// Parts per thread that a large kernel is cut into, so that threads of unequal speed finish together.
const PARTS_PER_THREAD: usize = 4;

/// The number of parts for work of `operations`, at most `most`, at least 1.
///
/// It depends on the team, so no result may depend on it.
#[must_use]
pub fn parts(operations: usize, most: usize) -> usize {
    let threads = team::count();
    if threads == 1 || SERIAL.get() || operations < SERIAL_OPERATIONS {
        return 1;
    }
    let worthwhile = operations / (SERIAL_OPERATIONS / 2);
    (threads * PARTS_PER_THREAD).min(worthwhile).min(most).max(1)
}

thread_local! {
    /// Whether this thread works on a share of something that has been cut already.
    static SERIAL: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on this thread alone: what it begins is not cut further.
pub(crate) fn serially<R>(work: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            SERIAL.set(self.0);
        }
    }
    let _reset = Reset(SERIAL.replace(true));
    work()
}

/// Runs each task once, side by side where there are several. Each thread takes neighbours one after another, since they read
/// neighbouring memory, which has been asked for by then; one that has no more takes the last of another's.
pub fn each<T: Send>(tasks: Vec<T>, run: impl Fn(T) + Sync) {
    let (count, threads) = (tasks.len(), team::count());
    if SERIAL.get() {
        return tasks.into_iter().for_each(run);
    }
    if count < 2 || threads == 1 {
        return team::alone(|| tasks.into_iter().for_each(run));
    }
    // The caller begins with the first, for which it waits for no other core: not for one to see that it is called either.
    let mut tasks = tasks.into_iter();
    let first = tasks.next();
    let rest = Rest::new(tasks, threads);
    let own = || take_all(&rest, first, &run);
    team::share(count, own, &|| take_all(&rest, rest.next(team::index()), &run));
}

/// Runs a task and those that are left: one function for the caller and all others, since it holds all that a task does.
#[inline(never)]
fn take_all<T>(rest: &Rest<T>, first: Option<T>, run: &impl Fn(T)) {
    let mut next = first;
    while let Some(task) = next {
        run(task);
        next = rest.next(team::index());
    }
}

/// Tasks that nobody has taken. A thread that takes its own touches no memory that others write, until they help it.
struct Rest<T> {
    tasks: Vec<Mutex<Option<T>>>,
    /// Those of each thread.
    own: Vec<Indices>,
}

impl<T> Rest<T> {
    /// Tasks behind one that the caller has taken.
    fn new(tasks: impl ExactSizeIterator<Item = T>, threads: usize) -> Self {
        let count = tasks.len() + 1;
        let first = |thread: usize| (count * thread / threads).saturating_sub(1);
        let own = (0..threads).map(|thread| Indices::new(first(thread)..first(thread + 1))).collect();
        Self { own, tasks: tasks.map(|task| Mutex::new(Some(task))).collect() }
    }

    /// The next task of a thread.
    fn next(&self, thread: usize) -> Option<T> {
        let taken = self.own.get(thread).and_then(Indices::first).or_else(|| self.last_of_others());
        self.tasks[taken?].lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The last of the thread that has most.
    fn last_of_others(&self) -> Option<usize> {
        loop {
            let most = self.own.iter().max_by_key(|indices| indices.count()).filter(|indices| indices.count() > 0)?;
            if let Some(last) = most.last() {
                return Some(last);
            }
        }
    }
}

/// Indices of tasks, taken from both ends: the first in the lower half, the end in the upper. Those of two threads lie in lines
/// of their own.
#[repr(align(128))]
struct Indices(AtomicU64);

impl Indices {
    fn new(range: Range<usize>) -> Self {
        assert!(u32::try_from(range.end).is_ok(), "{} tasks", range.end);
        Self(AtomicU64::new(Self::packed(range.start as u32..range.end as u32)))
    }

    fn packed(range: Range<u32>) -> u64 {
        u64::from(range.start) | u64::from(range.end) << 32
    }

    fn unpacked(packed: u64) -> Range<u32> {
        packed as u32..(packed >> 32) as u32
    }

    fn count(&self) -> usize {
        Self::unpacked(self.0.load(Ordering::Relaxed)).len()
    }

    fn first(&self) -> Option<usize> {
        self.take(|range| range.start + 1..range.end).map(|before| before.start as usize)
    }

    fn last(&self) -> Option<usize> {
        self.take(|range| range.start..range.end - 1).map(|before| before.end as usize - 1)
    }

    /// Leaves `rest` of them, where there are any; gives what there was before. Which thread has an index is all that is decided
    /// here: tasks themselves are behind locks.
    fn take(&self, rest: impl Fn(Range<u32>) -> Range<u32>) -> Option<Range<u32>> {
        let take = |packed| {
            Some(Self::unpacked(packed)).filter(|range| !range.is_empty()).map(|range| Self::packed(rest(range)))
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(Self::unpacked)
    }
}

/// Runs `run(index, chunk)` for each chunk of `size` elements, side by side.
pub fn chunks<T: Send>(values: &mut [T], size: usize, run: impl Fn(usize, &mut [T]) + Sync) {
    each(values.chunks_mut(size).enumerate().collect(), |(index, chunk)| run(index, chunk));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_neighbours_and_then_the_last_of_others() {
        // The caller has taken a.
        let rest = Rest::new(('b'..='g').collect::<Vec<_>>().into_iter(), 2);
        let taken: String = [1, 1, 0, 0, 0, 0].into_iter().filter_map(|thread| rest.next(thread)).collect();
        assert_eq!(taken, "debcgf");
        assert_eq!((rest.next(0), rest.next(1)), (None, None));
    }

    #[test]
    fn a_thread_without_tasks_of_its_own_takes_those_of_others() {
        let rest = Rest::new([2, 3].into_iter(), 4);
        assert_eq!([0, 0, 7].map(|thread| rest.next(thread)), [Some(3), Some(2), None]);
    }
}
