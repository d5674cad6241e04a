//! How work is spread over the caller's team: when at all, and into how many parts.

use crate::team;
use std::{
    cell::Cell,
    sync::{Mutex, PoisonError},
    vec,
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

/// Runs each task once, side by side where there are several; threads take them in order.
pub fn each<T: Send>(tasks: Vec<T>, run: impl Fn(T) + Sync) {
    if SERIAL.get() {
        return tasks.into_iter().for_each(run);
    }
    let count = tasks.len();
    let rest: Mutex<vec::IntoIter<T>> = Mutex::new(tasks.into_iter());
    let next = || rest.lock().unwrap_or_else(PoisonError::into_inner).next();
    team::share(count, &|| {
        while let Some(task) = next() {
            run(task);
        }
    });
}

/// Runs `run(index, chunk)` for each chunk of `size` elements, side by side.
pub fn chunks<T: Send>(values: &mut [T], size: usize, run: impl Fn(usize, &mut [T]) + Sync) {
    each(values.chunks_mut(size).enumerate().collect(), |(index, chunk)| run(index, chunk));
}
