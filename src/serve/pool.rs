//! Generators that requests take turns with.

use crate::generate::{GenerateError, Generator, GeneratorOptions, TextModel};
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Generators that wait for requests.
pub(super) struct Pool {
    free: Mutex<Vec<Generator>>,
    returned: Condvar,
}

impl Pool {
    /// # Errors
    /// [`GenerateError`] where a generator cannot be made.
    pub(super) fn new(model: &TextModel, options: &GeneratorOptions, count: usize) -> Result<Pool, GenerateError> {
        let generators = (0..count.max(1)).map(|_| Generator::new(model, options));
        Ok(Pool { free: Mutex::new(generators.collect::<Result<_, _>>()?), returned: Condvar::new() })
    }

    /// A generator, of those that are free the one whose context has most in common with the prompt; `None` where none is
    /// free in time.
    pub(super) fn take(&self, prompt: &[u32], until: Instant) -> Option<Taken<'_>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let common = |generator: &Generator| {
                generator.tokens().iter().zip(prompt).take_while(|(one, other)| one == other).count()
            };
            if let Some(best) = (0..free.len()).max_by_key(|&at| common(&free[at])) {
                return Some(Taken { generator: Some(free.swap_remove(best)), pool: self });
            }
            let left = until.checked_duration_since(Instant::now())?;
            free = self.returned.wait_timeout(free, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A generator that goes back when it is dropped.
pub(super) struct Taken<'a> {
    generator: Option<Generator>,
    pool: &'a Pool,
}

impl Deref for Taken<'_> {
    type Target = Generator;

    fn deref(&self) -> &Generator {
        self.generator.as_ref().expect("it is there until the drop")
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Generator {
        self.generator.as_mut().expect("it is there until the drop")
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(generator) = self.generator.take() {
            self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(generator);
            self.pool.returned.notify_one();
        }
    }
}
