//! Tasks that threads take from each other.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tasks that threads share: each is given to one of them, once.
///
/// Each thread has neighbours of its own, which it takes one after another, since they read neighbouring memory, which has been asked
/// for by then; one that has no more takes the last of another's. A thread that takes its own touches no memory that others write,
/// until they help it.
pub(crate) struct Tasks<'a, T> {
    first: *mut T,
    /// Those of each thread that nobody has taken.
    own: &'a [Indices],
    tasks: PhantomData<&'a mut [T]>,
}

// SAFETY: threads share what says which indices are left, and each task goes to one thread alone.
unsafe impl<T: Send> Sync for Tasks<'_, T> {}

impl<'a, T> Tasks<'a, T> {
    /// Those of as many threads as there are `own`, and the first one, which the first thread begins with.
    ///
    /// # Panics
    /// If there are 2^32 tasks or more.
    pub(super) fn new(tasks: &'a mut [T], own: &'a mut [Indices]) -> (Self, Option<&'a mut T>) {
        assert!(u32::try_from(tasks.len()).is_ok(), "{} tasks", tasks.len());
        let (count, threads) = (tasks.len() as u64, own.len() as u64);
        let first = |thread: usize| (count * thread as u64 / threads).max(1).min(count) as u32;
        for (thread, own) in own.iter_mut().enumerate() {
            own.set(first(thread)..first(thread + 1));
        }
        let tasks = Self { first: tasks.as_mut_ptr(), own, tasks: PhantomData };
        // SAFETY: there is one, which is none of those that are left.
        let first = (count > 0).then(|| unsafe { &mut *tasks.first });
        (tasks, first)
    }

    /// The next task of a thread.
    pub(crate) fn next(&self, thread: usize) -> Option<&'a mut T> {
        let index = self.own.get(thread).and_then(Indices::first).or_else(|| self.last_of_others())?;
        // SAFETY: indices are those of tasks, which are borrowed as long as this is, and each is taken once: whoever takes one leaves the
        // others in one exchange, and none is put back before the borrow of the indices ends. The first one is none of them.
        Some(unsafe { &mut *self.first.add(index) })
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
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Indices(AtomicU64);

impl Indices {
    fn set(&mut self, range: Range<u32>) {
        *self.0.get_mut() = Self::packed(range);
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

    /// Leaves `rest` of them, where there are any; gives what there was before. What tasks hold was written before threads were called
    /// for them.
    fn take(&self, rest: impl Fn(Range<u32>) -> Range<u32>) -> Option<Range<u32>> {
        let take = |packed| {
            Some(Self::unpacked(packed)).filter(|range| !range.is_empty()).map(|range| Self::packed(rest(range)))
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(Self::unpacked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tasks that threads take in this order.
    fn taken(tasks: u32, threads: usize, order: &[usize]) -> Vec<Option<u32>> {
        let mut tasks: Vec<u32> = (0..tasks).collect();
        let mut own: Vec<Indices> = (0..threads).map(|_| Indices::default()).collect();
        let (shared, first) = Tasks::new(&mut tasks, &mut own);
        let taken = order.iter().map(|&thread| shared.next(thread).copied());
        [first.copied()].into_iter().chain(taken).collect()
    }

    #[test]
    fn threads_take_neighbours_and_then_the_last_of_others() {
        let order = [1, 1, 0, 0, 0, 0, 0, 1];
        let expected = [Some(0), Some(3), Some(4), Some(1), Some(2), Some(6), Some(5), None, None];
        assert_eq!(taken(7, 2, &order), expected);
    }

    #[test]
    fn a_thread_without_tasks_of_its_own_takes_those_of_others() {
        assert_eq!(taken(3, 4, &[0, 7, 7]), [Some(0), Some(2), Some(1), None]);
        assert_eq!(taken(1, 2, &[0, 1]), [Some(0), None, None]);
        assert_eq!(taken(0, 2, &[0, 1]), [None, None, None]);
    }

    #[test]
    fn threads_that_take_at_once_take_each_task_once() {
        let mut counts = vec![0u32; 10_000];
        let mut own: Vec<Indices> = (0..4).map(|_| Indices::default()).collect();
        let (shared, first) = Tasks::new(&mut counts, &mut own);
        *first.unwrap() += 1;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let shared = &shared;
                scope.spawn(move || {
                    while let Some(count) = shared.next(thread) {
                        *count += 1;
                    }
                });
            }
        });
        assert_eq!(counts, vec![1; 10_000]);
    }
}
