//! How work is spread over the rayon pool of the caller: when at all, and into how many parts.

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
    if threads == 1 || operations < SERIAL_OPERATIONS {
        return 1;
    }
    let worthwhile = operations / (SERIAL_OPERATIONS / 2);
    (threads * PARTS_PER_THREAD).min(worthwhile).min(most).max(1)
}
