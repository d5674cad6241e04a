//! How many workers compute at a time: one that waits for the disk gives up its turn meanwhile.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Turns to compute.
pub(super) struct Turns {
    free: Mutex<usize>,
    given_back: Condvar,
}

impl Turns {
    pub(super) fn new(count: usize) -> Self {
        Turns { free: Mutex::new(count), given_back: Condvar::new() }
    }

    /// Wait for a turn; it is given back when what this returns is dropped, by a panic too.
    pub(super) fn take(&self) -> Turn<'_> {
        let mut free = self.free();
        while *free == 0 {
            free = self.given_back.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Turn { turns: self }
    }

    /// Do something that computes nothing, for a worker that has a turn, and wait for a turn again.
    pub(super) fn without<T>(&self, action: impl FnOnce() -> T) -> T {
        self.give_back();
        // The worker's own turn is given back once more when that is dropped: this one stands for it, after a panic too.
        struct Again<'a>(&'a Turns);
        impl Drop for Again<'_> {
            fn drop(&mut self) {
                std::mem::forget(self.0.take());
            }
        }
        let _again = Again(self);
        action()
    }

    fn give_back(&self) {
        *self.free() += 1;
        self.given_back.notify_one();
    }

    fn free(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to compute.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn as_many_compute_as_there_are_turns() {
        let turns = Turns::new(2);
        let (computing, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let compute = || {
            most.fetch_max(computing.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            computing.fetch_sub(1, Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let _turn = turns.take();
                        compute();
                        turns.without(std::thread::yield_now);
                        compute();
                    }
                });
            }
        });
        assert!(most.into_inner() <= 2);
        assert_eq!(*turns.free(), 2);
    }

    #[test]
    fn who_gives_up_a_turn_lets_another_compute() {
        let turns = Turns::new(1);
        let _turn = turns.take();
        turns.without(|| {
            std::thread::scope(|scope| scope.spawn(|| drop(turns.take())).join()).unwrap();
        });
        assert_eq!(*turns.free(), 0);
    }
}
