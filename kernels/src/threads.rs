//! How work is spread over the caller's team: when at all, and into how many parts.

use crate::team;
use std::cell::Cell;

/// Below this many multiply-accumulate operations a kernel stays on the calling thread: what another reads and writes moves between the
/// caches of cores, which costs more.
pub const SERIAL_OPERATIONS: usize = 100_000;

/// Multiply-accumulate operations in the time that it takes to read or move an element that lies in a cache.
pub const MOVE_OPERATIONS: usize = 4;

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

/// As [`parts`], for work that reads or moves so many elements and computes little with them.
#[must_use]
pub fn parts_of_moves(elements: usize, most: usize) -> usize {
    parts(elements.saturating_mul(MOVE_OPERATIONS), most)
}

thread_local! {
    /// Whether this thread works on a share of something that has been cut already.
    static SERIAL: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on this thread alone: what it begins is not cut further.
pub fn serially<R>(work: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            SERIAL.set(self.0);
        }
    }
    let _reset = Reset(SERIAL.replace(true));
    work()
}

/// Runs each task once, side by side where there are several.
///
/// Tasks are freed by the threads that run them. Those that own memory are to go to [`each_mut`].
pub fn each<T: Send>(tasks: Vec<T>, run: impl Fn(T) + Sync) {
    each_mut(tasks.into_iter().map(Some).collect(), |task| {
        if let Some(task) = task.take() {
            run(task);
        }
    });
}

/// As [`each`], and frees all tasks on this thread: threads that free memory of each other wait for each other whenever they
/// allocate.
pub fn each_mut<T: Send>(tasks: Vec<T>, run: impl Fn(&mut T) + Sync) {
    each_with(tasks, || (), |(), task| run(task));
}

/// As [`each_mut`], with something of its own for each thread, which it makes before its first task and drops behind its last. A thread
/// without tasks makes nothing.
pub fn each_with<T: Send, K>(mut tasks: Vec<T>, make: impl Fn() -> K + Sync, run: impl Fn(&mut K, &mut T) + Sync) {
    team::give(&mut tasks, SERIAL.get(), &|mut given| {
        let Some(first) = given.next() else { return };
        let mut kept = make();
        run(&mut kept, first);
        given.for_each(|task| run(&mut kept, task));
    });
}

/// Runs `run(index, chunk)` for each chunk of `size` elements, side by side.
pub fn chunks<T: Send>(values: &mut [T], size: usize, run: impl Fn(usize, &mut [T]) + Sync) {
    // Compiled once for a type, not once for each kernel.
    fn each_chunk<T: Send>(values: &mut [T], size: usize, run: &(dyn Fn(usize, &mut [T]) + Sync)) {
        each_mut(values.chunks_mut(size).enumerate().collect(), |(index, chunk)| run(*index, chunk));
    }
    each_chunk(values, size, &run);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::Team;
    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    /// Tells which thread frees it.
    struct Freed<'a>(&'a Mutex<Vec<thread::ThreadId>>);

    impl Drop for Freed<'_> {
        fn drop(&mut self) {
            self.0.lock().unwrap().push(thread::current().id());
        }
    }

    #[test]
    fn the_caller_frees_tasks_that_own_memory() {
        let (freed, ran) = (Mutex::default(), Mutex::new(BTreeSet::new()));
        Team::new(2).unwrap().run(|| {
            each_mut((0..100).map(|_| Freed(&freed)).collect(), |_| {
                ran.lock().unwrap().insert(team::index());
                // Until the other thread has come.
                while ran.lock().unwrap().len() < 2 {
                    thread::yield_now();
                }
            });
        });
        assert_eq!(ran.into_inner().unwrap(), BTreeSet::from([0, 1]));
        assert_eq!(freed.into_inner().unwrap(), [thread::current().id(); 100]);
    }

    #[test]
    fn without_tasks_nothing_is_made() {
        let without_tasks = || each_with(Vec::<u32>::new(), || unreachable!("no tasks"), |(), _| {});
        without_tasks();
        serially(without_tasks);
        Team::new(2).unwrap().run(without_tasks);
    }

    #[test]
    fn a_thread_keeps_what_it_has_made_for_all_its_tasks() {
        let made = AtomicU64::new(0);
        let mut tasks: Vec<(u64, usize)> = vec![(0, 0); 60];
        let ran = Mutex::new(BTreeSet::new());
        Team::new(2).unwrap().run(|| {
            let make = || (made.fetch_add(1, Ordering::SeqCst), 0);
            each_with(tasks.iter_mut().collect(), make, |(own, count), task| {
                *count += 1;
                **task = (*own, *count);
                ran.lock().unwrap().insert(team::index());
                // Until the other thread has come.
                while ran.lock().unwrap().len() < 2 {
                    thread::yield_now();
                }
            });
        });
        assert_eq!(made.into_inner(), 2);
        let count = |own: u64| tasks.iter().filter(|task| task.0 == own).map(|task| task.1).max().unwrap();
        assert_eq!(count(0) + count(1), 60, "each counts its own from the first to the last");
    }
}
