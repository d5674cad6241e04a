//! The lookahead: which steps a run comes to, as far as that is known.
//!
//! Straight-line code is known to its end, across the end of a pass into the next one. A step that runs blocks is not: the
//! lookahead waits there until the run says which block it enters, or that it has left the step.

use super::schedule::{Bodies, Schedule};

/// A stop that the run will come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Upcoming {
    /// Different for every stop of every pass.
    pub(super) serial: u64,
    pub(super) pass: u64,
    pub(super) block: u32,
    /// Index among the stops of the block.
    pub(super) stop: usize,
}

/// The stops of one entry ahead of the run, pass after pass.
#[derive(Debug)]
pub(super) struct Lookahead {
    entry: u32,
    stack: Vec<Cursor>,
    pass: u64,
    serial: u64,
}

#[derive(Debug)]
struct Cursor {
    block: u32,
    next: usize,
    /// Serial of the stop at `next` whose blocks the run has not left yet.
    waiting: Option<u64>,
}

impl Lookahead {
    /// At the beginning of pass `pass` of an entry's block; serials begin at `serial`.
    pub(super) fn new(entry: u32, pass: u64, serial: u64) -> Self {
        Lookahead { entry, stack: vec![Cursor { block: entry, next: 0, waiting: None }], pass, serial }
    }

    /// The entry's block.
    pub(super) fn entry(&self) -> u32 {
        self.entry
    }

    /// The next stop that is known, in passes up to `last_pass`.
    pub(super) fn next(&mut self, schedule: &Schedule, last_pass: u64) -> Option<Upcoming> {
        loop {
            let cursor = self.stack.last_mut()?;
            if cursor.waiting.is_some() {
                return None;
            }
            if let Some(stop) = schedule.block(cursor.block).get(cursor.next) {
                let upcoming =
                    Upcoming { serial: self.serial, pass: self.pass, block: cursor.block, stop: cursor.next };
                match stop.bodies {
                    Bodies::None => cursor.next += 1,
                    Bodies::Branch | Bodies::Loop => cursor.waiting = Some(self.serial),
                }
                self.serial += 1;
                return Some(upcoming);
            }
            if self.stack.len() > 1 {
                self.stack.pop();
                self.leave_body(schedule);
                continue;
            }
            if self.pass == last_pass || schedule.block(self.entry).is_empty() {
                return None;
            }
            self.pass += 1;
            self.stack = vec![Cursor { block: self.entry, next: 0, waiting: None }];
        }
    }

    /// After a branch comes what follows its step; a loop may go on.
    fn leave_body(&mut self, schedule: &Schedule) {
        let Some(cursor) = self.stack.last_mut() else { return };
        if schedule.block(cursor.block)[cursor.next].bodies == Bodies::Branch {
            cursor.next += 1;
            cursor.waiting = None;
        }
    }

    /// The run enters a block of the stop `serial`. False where the lookahead does not wait there.
    pub(super) fn enter(&mut self, serial: u64, block: u32) -> bool {
        if self.stack.last().is_none_or(|cursor| cursor.waiting != Some(serial)) {
            return false;
        }
        self.stack.push(Cursor { block, next: 0, waiting: None });
        true
    }

    /// The run has left the stop `serial`.
    pub(super) fn leave(&mut self, serial: u64) {
        if let Some(cursor) = self.stack.last_mut().filter(|cursor| cursor.waiting == Some(serial)) {
            cursor.next += 1;
            cursor.waiting = None;
        }
    }
}
