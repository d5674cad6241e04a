//! Threads that share the steps of runs, and that sessions share.

use crate::error::RunError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Threads on which sessions run; clones are the same threads.
#[derive(Debug, Clone)]
pub struct Threads {
    pool: Arc<rayon::ThreadPool>,
}

/// Threads that sessions have by default, by their number; none is kept that no session uses.
static SHARED: Mutex<BTreeMap<usize, Weak<rayon::ThreadPool>>> = Mutex::new(BTreeMap::new());

impl Threads {
    /// So many threads of their own; as many as there are cores where 0.
    ///
    /// # Errors
    /// [`RunError::Threads`] where they cannot be started.
    pub fn new(count: usize) -> Result<Threads, RunError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build();
        let pool = pool.map_err(|error| RunError::Threads { reason: error.to_string() })?;
        Ok(Threads { pool: Arc::new(pool) })
    }

    /// The threads that all sessions of this process share that want so many.
    ///
    /// # Errors
    /// [`RunError::Threads`] where they cannot be started.
    pub(crate) fn shared(count: usize) -> Result<Threads, RunError> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = shared.get(&count).and_then(Weak::upgrade) {
            return Ok(Threads { pool });
        }
        let threads = Threads::new(count)?;
        shared.insert(count, Arc::downgrade(&threads.pool));
        Ok(threads)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pool.current_num_threads()
    }

    pub(crate) fn pool(&self) -> &rayon::ThreadPool {
        &self.pool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_threads_of_one_number() {
        let (one, other, third) =
            (Threads::shared(2).unwrap(), Threads::shared(2).unwrap(), Threads::shared(3).unwrap());
        assert!(Arc::ptr_eq(&one.pool, &other.pool) && !Arc::ptr_eq(&one.pool, &third.pool));
        assert!(!Arc::ptr_eq(&one.pool, &Threads::new(2).unwrap().pool));
        assert_eq!((one.count(), third.count()), (2, 3));
    }
}
