//! How work is spread over the caller's team: when at all, and into how many parts.

use crate::team;
use std::{
    cell::Cell,
    ops::Range,
    sync::{Mutex, PoisonError},
};

/// Below this many multiply-accumulate operations a kernel stays on the calling thread: waking another costs more.
pub const SERIAL_OPERATIONS: usize = 50_000;

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
    if SERIAL.get() {
        return tasks.into_iter().for_each(run);
    }
    let count = tasks.len();
    let rest = Mutex::new(Rest::new(tasks, team::count()));
    let next = || rest.lock().unwrap_or_else(PoisonError::into_inner).next(team::index());
    team::share(count, &|| {
        while let Some(task) = next() {
            run(task);
        }
    });
}

/// Tasks that nobody has taken.
struct Rest<T> {
    tasks: Vec<Option<T>>,
    /// Those of each thread.
    own: Vec<Range<usize>>,
}

impl<T> Rest<T> {
    fn new(tasks: Vec<T>, threads: usize) -> Self {
        let first = |thread: usize| tasks.len() * thread / threads;
        let own = (0..threads).map(|thread| first(thread)..first(thread + 1)).collect();
        Self { own, tasks: tasks.into_iter().map(Some).collect() }
    }

    /// The next task of a thread.
    fn next(&mut self, thread: usize) -> Option<T> {
        let own = self.own.get_mut(thread).and_then(Iterator::next);
        let taken = own.or_else(|| self.own.iter_mut().max_by_key(|range| range.len())?.next_back());
        self.tasks[taken?].take()
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
        let mut rest = Rest::new(('a'..='g').collect(), 2);
        let taken: String = [0, 1, 1, 0, 0, 0, 0].into_iter().filter_map(|thread| rest.next(thread)).collect();
        assert_eq!(taken, "adebcgf");
        assert_eq!((rest.next(0), rest.next(1)), (None, None));
    }

    #[test]
    fn a_thread_without_tasks_of_its_own_takes_those_of_others() {
        let mut rest = Rest::new(vec![1, 2], 3);
        assert_eq!([0, 0, 7].map(|thread| rest.next(thread)), [Some(2), Some(1), None]);
    }
}
