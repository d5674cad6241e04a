//! The memory budget of a model: what is allocated is charged, and dropping the charge gives it back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes in use of a limit.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: u64,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    in_use_bytes: u64,
    peak_bytes: u64,
}

/// A charge that the budget has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exceeded {
    /// Bytes asked for.
    pub(crate) bytes: u64,
}

impl Budget {
    /// Nothing is in use; there is no limit where it is `None`.
    pub(crate) fn new(limit_bytes: Option<u64>) -> Arc<Budget> {
        Arc::new(Budget { limit_bytes: limit_bytes.unwrap_or(u64::MAX), counts: Mutex::default() })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charge `bytes`.
    ///
    /// # Errors
    /// [`Exceeded`] where they are more than is free.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge, Exceeded> {
        let mut counts = self.counts();
        let in_use = counts.in_use_bytes.checked_add(bytes).filter(|&in_use| in_use <= self.limit_bytes);
        counts.in_use_bytes = in_use.ok_or(Exceeded { bytes })?;
        counts.peak_bytes = counts.peak_bytes.max(counts.in_use_bytes);
        Ok(Charge { budget: self.clone(), bytes })
    }

    /// The limit in bytes.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes that are charged now.
    pub(crate) fn in_use_bytes(&self) -> u64 {
        self.counts().in_use_bytes
    }

    /// The most bytes that were ever charged at a time.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.counts().peak_bytes
    }

    /// Bytes that can be charged now.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.limit_bytes - self.in_use_bytes()
    }
}

/// Bytes that are charged to a budget until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    /// Give back all but `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let given_back = self.bytes.saturating_sub(bytes);
        self.bytes -= given_back;
        self.budget.counts().in_use_bytes -= given_back;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.counts().in_use_bytes -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_stay_within_the_limit_and_come_back() {
        let budget = Budget::new(Some(100));
        let first = budget.charge(60).unwrap();
        assert_eq!(budget.charge(41).unwrap_err(), Exceeded { bytes: 41 });
        assert_eq!(budget.charge(u64::MAX).unwrap_err(), Exceeded { bytes: u64::MAX });
        let second = budget.charge(40).unwrap();
        assert_eq!((budget.in_use_bytes(), budget.free_bytes()), (100, 0));
        drop(first);
        assert_eq!((budget.in_use_bytes(), budget.free_bytes(), budget.peak_bytes()), (40, 60, 100));
        let mut second = second;
        second.shrink(10);
        second.shrink(20);
        assert_eq!(budget.in_use_bytes(), 10);
        drop(second);
        assert_eq!((budget.in_use_bytes(), budget.limit_bytes()), (0, 100));
        assert_eq!(Budget::new(None).free_bytes(), u64::MAX);
    }
}
