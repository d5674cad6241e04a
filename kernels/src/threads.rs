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

/// Runs each task once, side by side where there are several. Each thread takes neighbours one after another, since they read
/// neighbouring memory, which has been asked for by then; one that has no more takes the last of another's.
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

/// As [`each_mut`], with something of its own for each thread, which it makes before its first task and drops behind its last.
pub fn each_with<T: Send, K>(mut tasks: Vec<T>, make: impl Fn() -> K + Sync, run: impl Fn(&mut K, &mut T) + Sync) {
    let (count, threads) = (tasks.len(), team::count());
    let run_all = |tasks: &mut [T]| {
        let mut kept = make();
        tasks.iter_mut().for_each(|task| run(&mut kept, task));
    };
    if SERIAL.get() {
        return run_all(&mut tasks);
    }
    if count < 2 || threads == 1 {
        return team::alone(|| run_all(&mut tasks));
    }
    // The caller begins with the first, for which it waits for no other core: not for one to see that it is called either.
    let shared = Shared::new(tasks, threads);
    let own = || take_all(&shared, Some(0), &make, &run);
    team::share(count, own, &|| take_all(&shared, shared.next(team::index()), &make, &run));
}

/// Runs a task and those that are left: one function for the caller and all others, since it holds all that a task does.
#[inline(never)]
fn take_all<T, K>(shared: &Shared<T>, first: Option<usize>, make: &impl Fn() -> K, run: &impl Fn(&mut K, &mut T)) {
    let Some(mut task) = first else { return };
    let mut kept = make();
    loop {
        run(&mut kept, &mut shared.tasks[task].lock().unwrap_or_else(PoisonError::into_inner));
        match shared.next(team::index()) {
            Some(next) => task = next,
            None => return,
        }
    }
}

/// Tasks that threads share. A thread that takes its own touches no memory that others write, until they help it.
struct Shared<T> {
    /// Each is locked once, by the thread that has taken its index.
    tasks: Vec<Mutex<T>>,
    /// Those of each thread that nobody has taken.
    own: Vec<Indices>,
}

impl<T> Shared<T> {
    /// Tasks of which the caller has taken the first.
    fn new(tasks: Vec<T>, threads: usize) -> Self {
        let first = |thread: usize| (tasks.len() * thread / threads).max(1);
        let own = (0..threads).map(|thread| Indices::new(first(thread)..first(thread + 1))).collect();
        Self { own, tasks: tasks.into_iter().map(Mutex::new).collect() }
    }

    /// The next task of a thread.
    fn next(&self, thread: usize) -> Option<usize> {
        self.own.get(thread).and_then(Indices::first).or_else(|| self.last_of_others())
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
    use crate::team::Team;
    use std::collections::BTreeSet;
    use std::thread;

    #[test]
    fn threads_take_neighbours_and_then_the_last_of_others() {
        // The caller has taken the first of seven.
        let shared = Shared::new(vec![(); 7], 2);
        let taken: Vec<usize> = [1, 1, 0, 0, 0, 0].into_iter().filter_map(|thread| shared.next(thread)).collect();
        assert_eq!(taken, [3, 4, 1, 2, 6, 5]);
        assert_eq!((shared.next(0), shared.next(1)), (None, None));
    }

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

    #[test]
    fn a_thread_without_tasks_of_its_own_takes_those_of_others() {
        let shared = Shared::new(vec![(); 3], 4);
        assert_eq!([0, 0, 7].map(|thread| shared.next(thread)), [Some(2), Some(1), None]);
    }
}
