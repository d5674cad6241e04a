//! The lookahead: which steps a run comes to, as far as that is known.
//!
//! Straight-line code is known to its end, across the end of a pass into the next one. A step that runs blocks is not: the
//! lookahead waits there until the run says which block it enters, or that it has left the step.

use super::schedule::{Bodies, Schedule, ScheduledStep};

/// A step that the run will come to, in this pass and this block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Upcoming<'a> {
    pub(super) pass: u64,
    pub(super) block: u32,
    pub(super) step: &'a ScheduledStep,
}

/// The steps of one entry ahead of the run, pass after pass.
#[derive(Debug)]
pub(super) struct Lookahead {
    entry: u32,
    pass: u64,
    stack: Vec<Cursor>,
}

/// A place in a block.
#[derive(Debug)]
struct Cursor {
    block: u32,
    /// Index among the scheduled steps of the block.
    next: usize,
    /// The step there runs blocks, and the run has not left it yet.
    waiting: bool,
}

impl Cursor {
    fn new(block: u32) -> Self {
        Cursor { block, next: 0, waiting: false }
    }

    fn advance(&mut self) {
        self.next += 1;
        self.waiting = false;
    }
}

impl Lookahead {
    /// At the beginning of pass `pass` of an entry's block.
    pub(super) fn new(entry: u32, pass: u64) -> Self {
        Lookahead { entry, pass, stack: vec![Cursor::new(entry)] }
    }

    /// The entry's block.
    pub(super) fn entry(&self) -> u32 {
        self.entry
    }

    /// The next step that is known, in passes up to `last_pass`.
    pub(super) fn next<'a>(&mut self, schedule: &'a Schedule, last_pass: u64) -> Option<Upcoming<'a>> {
        loop {
            let cursor = self.stack.last_mut()?;
            if cursor.waiting {
                return None;
            }
            if let Some(step) = schedule.block(cursor.block).get(cursor.next) {
                match step.bodies {
                    Bodies::None => cursor.next += 1,
                    Bodies::Branch | Bodies::Loop => cursor.waiting = true,
                }
                return Some(Upcoming { pass: self.pass, block: cursor.block, step });
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
            self.stack = vec![Cursor::new(self.entry)];
        }
    }

    /// After a branch comes what follows its step; a loop may go on.
    fn leave_body(&mut self, schedule: &Schedule) {
        if let Some(cursor) = self.stack.last_mut()
            && schedule.block(cursor.block)[cursor.next].bodies == Bodies::Branch
        {
            cursor.advance();
        }
    }

    /// The lookahead waits at this step, whose blocks the run has not left. The same step of the next pass looks the same.
    fn waits_at(&mut self, schedule: &Schedule, block: u32, step: u32) -> Option<&mut Cursor> {
        let cursor = self.stack.last_mut().filter(|cursor| cursor.waiting && cursor.block == block)?;
        (schedule.block(block)[cursor.next].step == step).then_some(cursor)
    }

    /// The run enters `body`, a block of a step. False where the lookahead does not wait there.
    pub(super) fn enter(&mut self, schedule: &Schedule, block: u32, step: u32, body: u32) -> bool {
        let waits = self.waits_at(schedule, block, step).is_some();
        if waits {
            self.stack.push(Cursor::new(body));
        }
        waits
    }

    /// The run has left a step.
    pub(super) fn leave(&mut self, schedule: &Schedule, block: u32, step: u32) {
        if let Some(cursor) = self.waits_at(schedule, block, step) {
            cursor.advance();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u32, bodies: Bodies, blocks: &[u32]) -> ScheduledStep {
        ScheduledStep { step, accesses: Vec::new(), bodies, blocks: blocks.to_vec() }
    }

    /// All that is known up to a pass: pass, block and step of each.
    fn known(lookahead: &mut Lookahead, schedule: &Schedule, last_pass: u64) -> Vec<(u64, u32, u32)> {
        let next = || lookahead.next(schedule, last_pass).map(|next| (next.pass, next.block, next.step.step));
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn after_a_branch_comes_what_follows_it_and_the_next_pass() {
        let entry = vec![step(0, Bodies::Branch, &[1, 2]), step(3, Bodies::None, &[])];
        let schedule = Schedule { blocks: vec![entry, vec![step(0, Bodies::None, &[])], Vec::new()] };
        let mut lookahead = Lookahead::new(0, 5);
        assert_eq!(known(&mut lookahead, &schedule, 6), [(5, 0, 0)]);
        assert!(!lookahead.enter(&schedule, 0, 3, 1), "it does not wait at step 3");
        assert!(lookahead.enter(&schedule, 0, 0, 1));
        assert_eq!(known(&mut lookahead, &schedule, 6), [(5, 1, 0), (5, 0, 3), (6, 0, 0)]);
        // Neither body is entered.
        lookahead.leave(&schedule, 0, 0);
        assert_eq!(known(&mut lookahead, &schedule, 6), [(6, 0, 3)]);
        assert_eq!(known(&mut lookahead, &schedule, 7), [(7, 0, 0)]);
    }

    #[test]
    fn a_loop_is_known_one_iteration_at_a_time() {
        let entry = vec![step(1, Bodies::Loop, &[1]), step(2, Bodies::None, &[])];
        let body = vec![step(0, Bodies::None, &[]), step(4, Bodies::Branch, &[2])];
        let schedule = Schedule { blocks: vec![entry, body, vec![step(7, Bodies::None, &[])]] };
        let mut lookahead = Lookahead::new(0, 0);
        assert_eq!(known(&mut lookahead, &schedule, 0), [(0, 0, 1)]);
        for _ in 0..2 {
            assert!(lookahead.enter(&schedule, 0, 1, 1));
            assert_eq!(known(&mut lookahead, &schedule, 0), [(0, 1, 0), (0, 1, 4)]);
            assert!(lookahead.enter(&schedule, 1, 4, 2));
            assert_eq!(known(&mut lookahead, &schedule, 0), [(0, 2, 7)]);
            // The branch was left when its body ended; leaving it says nothing of the loop.
            lookahead.leave(&schedule, 1, 4);
            assert_eq!(known(&mut lookahead, &schedule, 0), []);
        }
        lookahead.leave(&schedule, 0, 1);
        assert_eq!(known(&mut lookahead, &schedule, 0), [(0, 0, 2)]);
    }
}
