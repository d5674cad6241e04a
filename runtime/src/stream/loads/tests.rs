use super::super::schedule::{Access, Bodies, ScheduledStep};
use super::*;
use crate::memory::Budget;
use proptest::prelude::*;

/// One step that takes a part of each of `chunks` chunks of 10 bytes, of which the first `pinned` are pinned; a ring of
/// `slots`.
fn loads(chunks: u32, pinned: u32, slots: u64, budget: &Arc<Budget>) -> (Schedule, Loads<()>) {
    let accesses = (0..chunks).map(|part| Access { weight: 0, part, chunk: part }).collect();
    let step = ScheduledStep { step: 0, accesses, bodies: Bodies::None, blocks: Vec::new() };
    let charges = (0..chunks).map(|chunk| (chunk < pinned).then(|| budget.charge(10).unwrap())).collect();
    let mut loads = Loads::new(&vec![10; chunks as usize], charges, Vec::new());
    loads.set_ring(slots * 10, 10);
    (Schedule { blocks: vec![vec![step]] }, loads)
}

fn begin(loads: &mut Loads<()>, schedule: &Schedule) {
    loads.begin_pass(schedule, 0);
    loads.begin_step(0, 0);
}

/// Reads what can be read; gives the chunks.
fn read_all(loads: &mut Loads<()>) -> Vec<u32> {
    let reads: Vec<ChunkRead> = std::iter::from_fn(|| loads.begin_read()).collect();
    reads.iter().for_each(|read| loads.complete(read, Ok(Arc::new(()))));
    reads.iter().map(|read| read.chunk).collect()
}

/// Asks for the part of a chunk, which has been read, and gives it back at once; whether it was pinned.
fn take(loads: &mut Loads<()>, part: u32) -> bool {
    let load = loads.take(0, part).unwrap();
    assert!(matches!(loads.status(load), Some(Status::Ready(_))), "part {part}");
    let in_place = matches!(loads.loads[&load].target, Some(Target::Place(_)));
    loads.release(load);
    in_place
}

#[test]
fn an_unpinned_chunk_is_used_once_more_then_dropped_and_read_through_the_ring() {
    let budget = Budget::new(None);
    let (schedule, mut loads) = loads(2, 2, 1, &budget);
    begin(&mut loads, &schedule);
    assert_eq!(read_all(&mut loads), [0, 1]);
    take(&mut loads, 0);
    take(&mut loads, 1);
    loads.end_step(&schedule, 0, 0);
    loads.end_pass();
    loads.unpin(0);
    assert_eq!((loads.unpinned_bytes(), budget.in_use_bytes()), (10, 20), "the second pass is planned with it");
    begin(&mut loads, &schedule);
    assert!(take(&mut loads, 0));
    assert_eq!((loads.unpinned_bytes(), budget.in_use_bytes()), (0, 10), "after that use it is dropped");
    take(&mut loads, 1);
    loads.end_step(&schedule, 0, 0);
    assert_eq!((loads.end_pass().stream_bytes, read_all(&mut loads)), (0, vec![0]), "read ahead for the next pass");
    begin(&mut loads, &schedule);
    assert!(!take(&mut loads, 0));
    assert!(take(&mut loads, 1));
    loads.end_step(&schedule, 0, 0);
    assert_eq!(loads.end_pass().stream_bytes, 10);
    // What is read ahead is dropped and counted, and what is unpinned goes at once.
    assert_eq!(read_all(&mut loads), [0]);
    loads.unpin(1);
    assert!(loads.prepare_to_forget());
    loads.forget();
    assert_eq!((budget.in_use_bytes(), loads.unpinned_bytes()), (0, 0));
    begin(&mut loads, &schedule);
    assert_eq!((loads.report().dropped_bytes, read_all(&mut loads)), (10, vec![0]));
}

#[test]
fn a_chunk_that_is_unpinned_before_it_is_read_is_not_read_to_its_place() {
    let budget = Budget::new(None);
    let (schedule, mut loads) = loads(3, 3, 1, &budget);
    loads.unpin(0);
    assert_eq!(budget.in_use_bytes(), 20);
    begin(&mut loads, &schedule);
    loads.unpin(1);
    assert_eq!((budget.in_use_bytes(), loads.unpinned_bytes()), (10, 0));
    let first = loads.begin_read().unwrap();
    assert!(matches!(first, ChunkRead { chunk: 0, target: Target::Slot(0), .. }), "{first:?}");
    assert!(loads.begin_read().is_none(), "the ring is full");
    loads.complete(&first, Ok(Arc::new(())));
    take(&mut loads, 0);
    let second = loads.begin_read().unwrap();
    assert!(matches!(second, ChunkRead { chunk: 1, target: Target::Slot(0), .. }), "{second:?}");
    let third = loads.begin_read().unwrap();
    assert!(matches!(third, ChunkRead { chunk: 2, target: Target::Place(_), .. }), "{third:?}");
}

#[test]
fn a_pinned_chunk_that_is_unpinned_while_it_is_read_is_charged_until_the_read_has_completed() {
    let budget = Budget::new(None);
    let (schedule, mut loads) = loads(1, 1, 1, &budget);
    begin(&mut loads, &schedule);
    let read = loads.begin_read().unwrap();
    loads.end_step(&schedule, 0, 0);
    loads.unpin(0);
    assert!(!loads.prepare_to_forget(), "a read is in flight");
    assert_eq!((loads.unpinned_bytes(), budget.in_use_bytes()), (10, 10));
    loads.complete(&read, Ok(Arc::new(())));
    assert!(loads.prepare_to_forget());
    loads.forget();
    drop(read);
    assert_eq!((loads.unpinned_bytes(), budget.in_use_bytes()), (0, 0));
}

/// One step takes a part of a pinned chunk and two parts of chunks that stream, of which the ring holds one.
#[test]
fn parts_are_ready_once_they_are_read_and_until_they_are_taken() {
    let (schedule, mut loads) = loads(3, 1, 1, &Budget::new(None));
    begin(&mut loads, &schedule);
    let ready = |loads: &Loads<()>| [0, 1, 2].map(|part| loads.is_ready(0, part));
    assert_eq!(ready(&loads), [false, false, false]);
    let (pinned, first) = (loads.begin_read().unwrap(), loads.begin_read().unwrap());
    assert!(loads.begin_read().is_none(), "the ring is full");
    assert_eq!(ready(&loads), [false, false, false], "both are being read");
    loads.complete(&pinned, Ok(Arc::new(())));
    assert_eq!(ready(&loads), [true, false, false]);
    loads.complete(&first, Err("broken".to_string()));
    assert_eq!(ready(&loads), [true, true, false], "nobody has to wait for what has failed");
    assert_eq!(loads.take(0, 1), Some(first.load));
    assert!(loads.is_ready(0, 1), "what is not expected is read beside the ring, without waiting for a turn");
}

#[test]
fn what_is_read_late_is_counted_for_the_next_pass() {
    let (schedule, mut loads) = loads(2, 0, 2, &Budget::new(None));
    begin(&mut loads, &schedule);
    let late = loads.begin_read().unwrap();
    loads.end_step(&schedule, 0, 0);
    assert_eq!(loads.end_pass().stream_bytes, 0);
    loads.complete(&late, Ok(Arc::new(())));
    assert_eq!(read_all(&mut loads), [0, 1], "the slot is free again, and the part that was not asked for is not read");
    begin(&mut loads, &schedule);
    loads.end_step(&schedule, 0, 0);
    let report = loads.end_pass();
    assert_eq!((report.stream_bytes, report.reads, report.dropped_bytes), (30, 3, 0));
}

#[test]
fn a_run_that_leaves_the_plan_is_given_nothing_until_the_next_pass() {
    let (schedule, mut loads) = loads(2, 1, 1, &Budget::new(None));
    begin(&mut loads, &schedule);
    assert_eq!(read_all(&mut loads), [0, 1]);
    loads.end_step(&schedule, 0, 7);
    assert_eq!(loads.take(0, 0), None);
    loads.begin_step(0, 0);
    assert_eq!(loads.take(0, 0), None);
    assert_eq!(loads.end_pass().stream_bytes, 20);
    assert!(!loads.is_aligned(0) && loads.prepare_to_forget());
    loads.forget();
    begin(&mut loads, &schedule);
    assert_eq!((loads.report().dropped_bytes, read_all(&mut loads)), (10, vec![1]), "what is pinned stays");
    assert!(take(&mut loads, 0) && !take(&mut loads, 1));
}

proptest! {
    /// Slots in which reads are in flight or whose bytes are held never overlap, and all come back.
    #[test]
    fn slots_never_overlap(turns in proptest::collection::vec((0..3u8, any::<prop::sample::Index>()), 1..300)) {
        let (schedule, mut loads) = loads(7, 2, 3, &Budget::new(None));
        let (mut in_flight, mut held, mut part): (Vec<ChunkRead>, Vec<u64>, u32) = (Vec::new(), Vec::new(), 0);
        begin(&mut loads, &schedule);
        for (turn, index) in turns {
            match turn {
                0 => in_flight.extend(loads.begin_read()),
                1 if !in_flight.is_empty() => {
                    let read = in_flight.swap_remove(index.index(in_flight.len()));
                    loads.complete(&read, Ok(Arc::new(())));
                }
                1 => {}
                _ if part < 7 => {
                    held.extend(loads.take(0, part));
                    part += 1;
                }
                _ => {
                    held.drain(..).for_each(|load| loads.release(load));
                    loads.end_step(&schedule, 0, 0);
                    loads.end_pass();
                    begin(&mut loads, &schedule);
                    part = 0;
                }
            }
            let slot = |load: &Load<()>| match load.target {
                Some(Target::Slot(slot)) => Some(slot),
                Some(Target::Place(_)) | None => None,
            };
            let mut slots: Vec<usize> = loads.loads.values().filter_map(slot).chain(loads.free_slots.clone()).collect();
            slots.sort_unstable();
            prop_assert_eq!(slots, [0, 10, 20]);
            prop_assert_eq!(loads.in_flight, in_flight.len());
        }
    }
}
