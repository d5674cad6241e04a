//! How many reads are under way and what becomes of the lines they filled: whatever the device delivers more with.
//!
//! With few reads, what goes round is small enough for a cache, and lines that *stay* there are where the device writes next
//! if it shares that cache (a virtual disk whose host copies on a core beside ours, DDIO): nothing has to go to memory and
//! back. A device beside another cache has to ask for each line that we hold, which is slower than to find it in memory;
//! there, lines *leave* our caches as soon as they have been used, and more reads hide the longer way. On one machine whose
//! host moved its threads, either was 1.2 times as fast as the other at its time, from second to second, so that the other
//! is tried now and then.

use std::time::{Duration, Instant};

/// Reads in flight where lines stay: while one is under way, the next is known.
const FEW_READS: usize = 2;
/// Reads in flight where lines leave.
const MANY_READS: usize = 4;
/// Reads after a change that are not counted: the places of before are still in use.
const SETTLING_READS: u32 = 8;
/// Reads that are timed together.
const TIMED_READS: u32 = 24;
/// The other has to deliver this much more to be kept, which is more than two equal ones differ by chance.
const KEPT_GAIN: f64 = 1.05;
/// The other is tried soon where the rate has fallen to this.
const FALLEN: f64 = 0.85;
/// Timings between two tries, at least.
const SHORTEST_PAUSE: u32 = 8;
/// What tries may cost, of all the time: the more the last one did, the later the next one.
const COST_OF_TRIES: f64 = 0.01;

/// What becomes of lines of the ring when they have been used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lines {
    /// They stay in the caches where they are.
    Stay,
    /// They are dropped from all caches.
    Leave,
}

/// Times reads, and chooses.
#[derive(Debug)]
pub(super) struct Pace {
    /// Said by the user; 0 for what is found to be better.
    reads: usize,
    lines: Lines,
    /// Bytes a second of the way that is kept, as timed last; set while the other is tried.
    kept_rate: Option<f64>,
    last_rate: Option<f64>,
    pause: u32,
    timings: u32,
    settling: u32,
    timed: u32,
    bytes: u64,
    busy: Duration,
    last_end: Option<Instant>,
}

impl Pace {
    /// `reads` in flight, 0 for what the device delivers more with.
    pub(super) fn new(reads: usize) -> Self {
        Pace {
            reads,
            lines: Lines::Stay,
            kept_rate: None,
            last_rate: None,
            pause: SHORTEST_PAUSE,
            timings: 0,
            settling: SETTLING_READS,
            timed: 0,
            bytes: 0,
            busy: Duration::ZERO,
            last_end: None,
        }
    }

    /// Most reads that are ever in flight.
    pub(super) fn most_reads(&self) -> usize {
        if self.reads == 0 { MANY_READS } else { self.reads }
    }

    /// Reads to keep in flight now.
    pub(super) fn reads(&self) -> usize {
        match (self.reads, self.lines) {
            (0, Lines::Stay) => FEW_READS,
            (0, Lines::Leave) => MANY_READS,
            (reads, _) => reads,
        }
    }

    /// What becomes now of lines that have been used.
    pub(super) fn lines(&self) -> Lines {
        self.lines
    }

    /// A read of this many bytes was under way from `begun` to `ended`. Reads end in the order of these calls.
    pub(super) fn ended(&mut self, begun: Instant, ended: Instant, bytes: u64) {
        // While an earlier read was under way, the device was busy with that.
        let from = self.last_end.map_or(begun, |last| last.max(begun));
        self.last_end = Some(ended);
        if self.settling > 0 {
            self.settling -= 1;
            return;
        }
        self.bytes += bytes;
        self.busy += ended.saturating_duration_since(from);
        self.timed += 1;
        if self.timed == TIMED_READS {
            let rate = self.bytes as f64 / self.busy.as_secs_f64().max(1e-9);
            self.count_anew();
            self.judge(rate);
        }
    }

    /// The device was busy until now with what goes elsewhere, and is not timed until that shows no more.
    pub(super) fn interrupted(&mut self, ended: Instant) {
        self.last_end = Some(ended);
        self.settling = SETTLING_READS;
        self.count_anew();
    }

    fn count_anew(&mut self) {
        (self.timed, self.bytes, self.busy) = (0, 0, Duration::ZERO);
    }

    fn judge(&mut self, rate: f64) {
        self.timings = self.timings.saturating_add(1);
        let last = self.last_rate.replace(rate);
        let Some(kept) = self.kept_rate else {
            if self.timings >= self.pause {
                self.kept_rate = Some(rate);
                self.change();
            } else if last.is_some_and(|last| rate < last * FALLEN) {
                // After the next timing, which is all of the new rate.
                self.timings = self.pause;
            }
            return;
        };
        self.kept_rate = None;
        self.pause = SHORTEST_PAUSE;
        if rate <= kept * KEPT_GAIN {
            self.change();
            // Lines that are to stay have to come into the cache again, which loses as much once more.
            let times = if self.lines == Lines::Stay { 2.0 } else { 1.0 };
            let reads_lost = times * f64::from(SETTLING_READS + TIMED_READS) * (kept / rate - 1.0);
            let reads_between = reads_lost / COST_OF_TRIES;
            self.pause = self.pause.max((reads_between / f64::from(TIMED_READS)) as u32);
        }
        self.timings = 0;
    }

    fn change(&mut self) {
        self.lines = match self.lines {
            Lines::Stay => Lines::Leave,
            Lines::Leave => Lines::Stay,
        };
        self.settling = SETTLING_READS;
        self.last_rate = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 2 << 20;

    /// Reads one after another at the rates (bytes a second) at which lines stay and leave; gives how many stayed.
    fn read(pace: &mut Pace, clock: &mut Instant, reads: u32, stay_rate: f64, leave_rate: f64) -> u32 {
        let mut stayed = 0;
        for _ in 0..reads {
            let rate = if pace.lines() == Lines::Stay { stay_rate } else { leave_rate };
            stayed += u32::from(pace.lines() == Lines::Stay);
            let begun = *clock;
            *clock += Duration::from_secs_f64(BYTES as f64 / rate);
            pace.ended(begun, *clock, BYTES);
        }
        stayed
    }

    #[test]
    fn what_delivers_more_is_kept_and_the_other_is_tried_seldom() {
        for (stay_rate, leave_rate) in [(7e9, 5e9), (4e9, 5e9), (5e9, 5e9), (1e9, 5e9)] {
            let (mut pace, mut clock) = (Pace::new(0), Instant::now());
            read(&mut pace, &mut clock, 4096, stay_rate, leave_rate);
            let begun = clock;
            let stayed = read(&mut pace, &mut clock, 100_000, stay_rate, leave_rate);
            let least = 100_000.0 * BYTES as f64 / f64::max(stay_rate, leave_rate);
            let seconds = (clock - begun).as_secs_f64();
            assert!(seconds < least * 1.015, "{stay_rate} {leave_rate}: {seconds} s instead of {least}");
            assert!((1..100_000).contains(&stayed), "{stay_rate} {leave_rate}: the other is tried");
        }
    }

    #[test]
    fn a_change_is_followed() {
        let (mut pace, mut clock) = (Pace::new(0), Instant::now());
        read(&mut pace, &mut clock, 10_000, 7e9, 5e9);
        // A fall is seen at once; that the other has risen, when it is tried next.
        let stayed = read(&mut pace, &mut clock, 1000, 4e9, 5e9);
        assert!(stayed < 150, "{stayed}");
        read(&mut pace, &mut clock, 10_000, 4e9, 5e9);
        let stayed = read(&mut pace, &mut clock, 5000, 7e9, 5e9);
        assert!(stayed > 3000, "{stayed}");
    }

    #[test]
    fn the_device_is_timed_only_while_it_reads() {
        let (mut pace, start) = (Pace::new(0), Instant::now());
        let at = |microseconds: u64| start + Duration::from_micros(microseconds);
        pace.settling = 0;
        pace.ended(at(0), at(100), BYTES);
        assert_eq!(pace.busy, Duration::from_micros(100));
        // Begun while the one before was under way: from the end of that on.
        pace.ended(at(50), at(180), BYTES);
        assert_eq!(pace.busy, Duration::from_micros(180));
        // Begun later: the time between was nobody's.
        pace.ended(at(1000), at(1010), BYTES);
        assert_eq!((pace.busy, pace.bytes), (Duration::from_micros(190), 3 * BYTES));
    }

    #[test]
    fn what_is_read_between_is_not_timed() {
        let (mut pace, mut clock) = (Pace::new(0), Instant::now());
        read(&mut pace, &mut clock, SETTLING_READS + 1, 5e9, 5e9);
        assert_eq!((pace.timed, pace.bytes), (1, BYTES));
        clock += Duration::from_secs(1);
        pace.interrupted(clock);
        read(&mut pace, &mut clock, SETTLING_READS, 5e9, 5e9);
        assert_eq!((pace.timed, pace.busy), (0, Duration::ZERO));
        read(&mut pace, &mut clock, 1, 5e9, 5e9);
        assert!(pace.timed == 1 && pace.busy < Duration::from_millis(1), "{pace:?}");
    }

    #[test]
    fn who_says_how_many_gets_as_many() {
        let (mut pace, mut clock) = (Pace::new(5), Instant::now());
        for _ in 0..100 {
            assert_eq!((pace.reads(), pace.most_reads()), (5, 5));
            read(&mut pace, &mut clock, 100, 4e9, 5e9);
        }
        assert_eq!((Pace::new(0).reads(), Pace::new(0).most_reads()), (FEW_READS, MANY_READS));
    }
}
