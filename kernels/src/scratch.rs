//! Memory that kernels use for the length of a task, kept by each thread for the next one: fresh pages cost more than the
//! copies that are made into them.

use bytemuck::{Pod, Zeroable, cast_slice, cast_slice_mut};
use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

/// Buffers that a thread keeps.
const MOST_KEPT: usize = 6;

/// The longest buffer that is kept, in lines.
const LONGEST_KEPT: usize = 1 << 16;

/// A cache line: vectors of a buffer do not cross two.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// Values of a cache line.
const LINE: usize = 16;

thread_local! {
    static KEPT: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of f32 that goes back to its thread.
#[derive(Debug)]
pub struct Scratch {
    lines: Vec<Line>,
    length: usize,
}

/// The shortest kept buffer of as many lines, or else the longest.
fn take(kept: &mut Vec<Vec<Line>>, needed: usize) -> Option<Vec<Line>> {
    let rank = |lines: &Vec<Line>| if lines.len() >= needed { (0, lines.len()) } else { (1, usize::MAX - lines.len()) };
    let index = (0..kept.len()).min_by_key(|&index| rank(&kept[index]))?;
    Some(kept.swap_remove(index))
}

/// A buffer of `length` values, which may be anything.
#[must_use]
pub fn scratch(length: usize) -> Scratch {
    if length == 0 {
        return Scratch { lines: Vec::new(), length };
    }
    let needed = length.div_ceil(LINE);
    let mut lines = KEPT.with_borrow_mut(|kept| take(kept, needed)).unwrap_or_default();
    if lines.len() < needed {
        lines.resize(needed, Line::default());
    }
    Scratch { lines, length }
}

impl Deref for Scratch {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &cast_slice(&self.lines)[..self.length]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut cast_slice_mut(&mut self.lines)[..self.length]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if (1..=LONGEST_KEPT).contains(&self.lines.len()) {
            let lines = std::mem::take(&mut self.lines);
            KEPT.with_borrow_mut(|kept| {
                if kept.len() < MOST_KEPT {
                    kept.push(lines);
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
