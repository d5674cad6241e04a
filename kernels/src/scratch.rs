//! Memory that kernels use for the length of a task, kept by each thread for the next one: fresh pages cost more than the
//! copies that are made into them.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

/// Buffers that a thread keeps.
const MOST_KEPT: usize = 4;

/// The longest buffer that is kept, in values.
const LONGEST_KEPT: usize = 1 << 20;

thread_local! {
    static KEPT: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of f32 that goes back to its thread.
pub(crate) struct Scratch {
    values: Vec<f32>,
    length: usize,
}

/// A buffer of `length` values, which may be anything.
pub(crate) fn scratch(length: usize) -> Scratch {
    let mut values = KEPT.with_borrow_mut(Vec::pop).unwrap_or_default();
    if values.len() < length {
        values.resize(length, 0.0);
    }
    Scratch { values, length }
}

impl Deref for Scratch {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.values[..self.length]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[..self.length]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.values.len() <= LONGEST_KEPT {
            let values = std::mem::take(&mut self.values);
            KEPT.with_borrow_mut(|kept| {
                if kept.len() < MOST_KEPT {
                    kept.push(values);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_the_length_that_was_asked_for() {
        for length in [0, 10, 3, 1000, 7] {
            let (mut one, two) = (scratch(length), scratch(2 * length));
            assert_eq!((one.len(), two.len()), (length, 2 * length));
            one.fill(1.0);
        }
    }
}
