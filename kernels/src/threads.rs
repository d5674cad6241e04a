//! How work is spread over the rayon pool of the caller: when at all, and into how many parts.
//!
//! All kernels go through [`each`]: rayon's own iterators would be compiled again for every closure.

use std::{
    cell::{Cell, RefCell},
    sync::{Mutex, PoisonError},
    time::Instant,
    vec,
};

/// Below this many multiply-accumulate operations a kernel stays on the calling thread: waking another costs more.
pub const SERIAL_OPERATIONS: usize = 50_000;

/// Parts per thread that a large kernel is cut into, so that threads of unequal speed finish together.
const PARTS_PER_THREAD: usize = 4;

/// The number of parts for work of `operations`, at most `most`, at least 1.
///
/// It depends on the pool, so no result may depend on it.
#[must_use]
pub fn parts(operations: usize, most: usize) -> usize {
    let threads = rayon::current_num_threads();
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
    if tasks.len() <= 1 || rayon::current_num_threads() == 1 || SERIAL.get() {
        return observed(|| tasks.into_iter().for_each(run));
    }
    let count = tasks.len();
    let rest: Mutex<vec::IntoIter<T>> = Mutex::new(tasks.into_iter());
    let next = || rest.lock().unwrap_or_else(PoisonError::into_inner).next();
    on_threads(count, &|| {
        while let Some(task) = next() {
            run(task);
        }
    });
}

/// Runs `run(index, chunk)` for each chunk of `size` elements, side by side.
pub fn chunks<T: Send>(values: &mut [T], size: usize, run: impl Fn(usize, &mut [T]) + Sync) {
    each(values.chunks_mut(size).enumerate().collect(), |(index, chunk)| run(index, chunk));
}

/// Is told when a piece of work ends, with the time at which it began.
pub type Observer = Box<dyn Fn(Instant)>;

thread_local! {
    static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
}

/// Have what this thread works on observed from now on, or no more.
pub fn observe(observer: Option<Observer>) {
    OBSERVER.with(|slot| *slot.borrow_mut() = observer);
}

fn observed(work: impl FnOnce()) {
    let begun = OBSERVER.with(|observer| observer.borrow().is_some()).then(Instant::now);
    work();
    if let Some(begun) = begun {
        OBSERVER.with(|observer| observer.borrow().as_ref().map(|told| told(begun)));
    }
}

/// Runs `work` on this thread and on as many others of the pool as `most` tasks can use.
fn on_threads(most: usize, work: &(dyn Fn() + Sync)) {
    rayon::scope(|scope| {
        for _ in 1..rayon::current_num_threads().min(most) {
            scope.spawn(|_| observed(work));
        }
        observed(work);
    });
}
