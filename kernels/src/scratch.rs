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
#[derive(Debug, Default)]
pub struct Scratch {
    lines: Vec<Line>,
    length: usize,
}

/// The shortest kept buffer of as many lines. One that is too short is not made longer: that would copy what it holds.
fn take(kept: &mut Vec<Vec<Line>>, needed: usize) -> Option<Vec<Line>> {
    let long = (0..kept.len()).filter(|&index| kept[index].len() >= needed);
    let index = long.min_by_key(|&index| kept[index].len())?;
    Some(kept.swap_remove(index))
}

/// Keeps a buffer, in place of the shortest one where there are enough and that is shorter.
fn keep(kept: &mut Vec<Vec<Line>>, lines: Vec<Line>) {
    if kept.len() < MOST_KEPT {
        return kept.push(lines);
    }
    if let Some(shortest) = kept.iter_mut().min_by_key(|lines| lines.len())
        && shortest.len() < lines.len()
    {
        *shortest = lines;
    }
}

/// A buffer of `length` values, which may be anything.
#[must_use]
pub fn scratch(length: usize) -> Scratch {
    if length == 0 {
        return Scratch::default();
    }
    let needed = length.div_ceil(LINE);
    let kept = KEPT.with_borrow_mut(|kept| take(kept, needed));
    Scratch { lines: kept.unwrap_or_else(|| vec![Line::default(); needed]), length }
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
            KEPT.with_borrow_mut(|kept| keep(kept, lines));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_buffers_are_kept() {
        let mut kept = Vec::new();
        for length in [3, 9, 1, 7, 5, 8, 6, 2] {
            keep(&mut kept, vec![Line::default(); length]);
        }
        let mut lengths: Vec<usize> = kept.iter().map(Vec::len).collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [3, 5, 6, 7, 8, 9]);
        assert_eq!(take(&mut kept, 4).map(|lines| lines.len()), Some(5));
        assert!(take(&mut kept, 10).is_none() && kept.len() == 5);
    }

    #[test]
    fn buffers_have_the_length_that_was_asked_for() {
        for length in [0, 10, 3, 1000, 7] {
            let (mut one, two) = (scratch(length), scratch(2 * length));
            assert_eq!((one.len(), two.len()), (length, 2 * length));
            one.fill(1.0);
        }
    }
}
