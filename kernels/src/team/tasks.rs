//! Tasks that threads take from each other.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where tasks lie that threads share.
pub(super) struct Memory<'a, T> {
    first: *mut T,
    tasks: PhantomData<&'a mut [T]>,
}

// SAFETY: of what threads share, each task goes to one thread alone (see `Memory::given`).
unsafe impl<T: Send> Sync for Memory<'_, T> {}

impl<'a, T> Memory<'a, T> {
    pub(super) fn new(tasks: &'a mut [T]) -> Self {
        Self { first: tasks.as_mut_ptr(), tasks: PhantomData }
    }

    /// The tasks of indices.
    ///
    /// # Safety
    /// They are indices of these tasks, and none is given twice while the tasks are borrowed, here or elsewhere.
    pub(super) unsafe fn given<'i>(&self, indices: &'i mut dyn Iterator<Item = usize>) -> Given<'i, 'a, T> {
        Given { first: self.first, indices, tasks: PhantomData }
    }
}

/// Tasks that one thread is given, one after another.
pub(crate) struct Given<'i, 'a, T> {
    first: *mut T,
    indices: &'i mut dyn Iterator<Item = usize>,
    tasks: PhantomData<&'a mut [T]>,
}

impl<'a, T> Iterator for Given<'_, 'a, T> {
    type Item = &'a mut T;

    fn next(&mut self) -> Option<&'a mut T> {
        // SAFETY: whoever made this promised that indices are those of tasks, and that none is given twice (see `Memory::given`).
        self.indices.next().map(|index| unsafe { &mut *self.first.add(index) })
    }
}

/// Gives each thread as many neighbouring indices below `count`, but the first index, which the caller has; gives those of the caller.
///
/// # Panics
/// If there are 2^32 or more.
pub(super) fn hand_out(count: usize, own: &mut [Indices]) -> Left<'_> {
    assert!(u32::try_from(count).is_ok(), "{count} tasks");
    let (count, threads) = (count as u64, own.len() as u64);
    let first = |thread: usize| (count * thread as u64 / threads).max(1).min(count) as u32;
    for (thread, own) in own.iter_mut().enumerate() {
        own.set(first(thread)..first(thread + 1));
    }
    Left { own, thread: 0, first: (count > 0).then_some(0) }
}

/// The indices that a thread takes: each goes to one thread, once.
///
/// Each thread has neighbours of its own, which it takes one after another, since their tasks read neighbouring memory, which has been
/// asked for by then; one that has no more takes the last of another's. A thread that takes its own touches no memory that others write,
/// until they help it.
pub(super) struct Left<'a> {
    /// Those of each thread that nobody has taken.
    pub(super) own: &'a [Indices],
    thread: usize,
    /// What the caller begins with.
    first: Option<usize>,
}

impl<'a> Left<'a> {
    /// Of a thread besides the caller.
    pub(super) fn of_other(own: &'a [Indices], thread: usize) -> Self {
        Self { own, thread, first: None }
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

impl Iterator for Left<'_> {
    type Item = usize;

    /// Whoever takes an index leaves the others in one exchange, and none is put back while they are borrowed.
    fn next(&mut self) -> Option<usize> {
        let own = || self.own.get(self.thread).and_then(Indices::first);
        self.first.take().or_else(own).or_else(|| self.last_of_others())
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

    fn none(threads: usize) -> Vec<Indices> {
        (0..threads).map(|_| Indices::default()).collect()
    }

    /// The first task of the caller, and those that threads take in this order.
    fn taken(count: usize, threads: usize, order: &[usize]) -> Vec<Option<usize>> {
        let mut own = none(threads);
        let mut of_caller = hand_out(count, &mut own);
        let taken = order.iter().map(|&thread| Left::of_other(of_caller.own, thread).next());
        let taken: Vec<_> = taken.collect();
        [of_caller.next()].into_iter().chain(taken).collect()
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
        let mut own = none(4);
        let of_caller = hand_out(counts.len(), &mut own);
        let of_others = (1..4).map(|thread| Left::of_other(of_caller.own, thread));
        let of_threads: Vec<_> = of_others.chain([of_caller]).collect();
        let memory = &Memory::new(&mut counts);
        std::thread::scope(|scope| {
            for mut left in of_threads {
                scope.spawn(move || {
                    // SAFETY: these are the indices of all counts, which threads take once.
                    unsafe { memory.given(&mut left) }.for_each(|count| *count += 1);
                });
            }
        });
        assert_eq!(counts, vec![1; 10_000]);
    }
}
