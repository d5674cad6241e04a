//! Threads that share the steps of runs, and that sessions share.

use crate::error::RunError;
use ipuc_kernels::team::Team;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Threads on which sessions run; clones are the same threads. A run computes on the thread that calls it, and on the others of
/// these where they do not help another run.
#[derive(Debug, Clone)]
pub struct Threads {
    team: Arc<Team>,
}

/// Threads that sessions have by default, by their number; none is kept that no session uses.
static SHARED: Mutex<BTreeMap<usize, Weak<Team>>> = Mutex::new(BTreeMap::new());

impl Threads {
    /// So many threads of their own, that of the caller included; as many as there are cores where 0.
    ///
    /// # Errors
    /// [`RunError::Threads`] where they cannot be started.
    pub fn new(count: usize) -> Result<Threads, RunError> {
        let team = Team::new(count).map_err(|error| RunError::Threads { reason: error.to_string() })?;
        Ok(Threads { team: Arc::new(team) })
    }

    /// The threads that all sessions of this process share that want so many.
    ///
    /// # Errors
    /// [`RunError::Threads`] where they cannot be started.
    pub(crate) fn shared(count: usize) -> Result<Threads, RunError> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(team) = shared.get(&count).and_then(Weak::upgrade) {
            return Ok(Threads { team });
        }
        let threads = Threads::new(count)?;
        shared.insert(count, Arc::downgrade(&threads.team));
        Ok(threads)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.team.count()
    }

    pub(crate) fn team(&self) -> &Team {
        &self.team
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_threads_of_one_number() {
        let (one, other, third) =
            (Threads::shared(2).unwrap(), Threads::shared(2).unwrap(), Threads::shared(3).unwrap());
        assert!(Arc::ptr_eq(&one.team, &other.team) && !Arc::ptr_eq(&one.team, &third.team));
        assert!(!Arc::ptr_eq(&one.team, &Threads::new(2).unwrap().team));
        assert_eq!((one.count(), third.count()), (2, 3));
    }
}
