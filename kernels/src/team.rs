//! Threads that compute side by side with the thread that calls them.
//!
//! Steps of a model follow each other within microseconds, and a thread that sleeps takes 5 to 50 of them to wake. So a
//! thread without work watches for more for 200 microseconds before it sleeps, and the caller never waits for one that has not
//! begun: it does the work itself and takes back what nobody has come for. The caller computes with the team, so that one
//! thread alone hands nothing over.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, hint, io};

/// How long a thread without work watches for more.
const WATCH: Duration = Duration::from_micros(200);

/// Looks at what it watches between two looks at the clock, and before it lets other threads run.
const LOOKS: usize = 64;

/// Is told when a piece of work ends: on which thread of the team (0 is the caller), and when it began.
pub type Observer = Arc<dyn Fn(usize, Instant) + Send + Sync>;

/// A caller and the threads that compute beside it. Several callers may share a team: it helps one at a time.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Team {
    /// A caller and `threads - 1` others; as many as there are cores where 0.
    ///
    /// # Errors
    /// Where a thread cannot be started.
    pub fn new(threads: usize) -> io::Result<Team> {
        let threads = match threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let shared = Arc::new(Shared { others: threads - 1, ..Shared::default() });
        let mut team = Team { shared, workers: Vec::new() };
        for index in 1..threads {
            let shared = team.shared.clone();
            let name = format!("ipuc worker {index}");
            team.workers.push(thread::Builder::new().name(name).spawn(move || shared.work(index))?);
        }
        Ok(team)
    }

    /// Threads of the team, its caller included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.others + 1
    }

    /// Has the team share the work of `run`.
    pub fn run<T>(&self, run: impl FnOnce() -> T) -> T {
        struct Restore(Option<Arc<Shared>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(self.shared.clone())));
        run()
    }

    /// Have what its threads work on observed from now on, or no more.
    pub fn observe(&self, observer: Option<Observer>) {
        self.shared.is_observed.store(observer.is_some(), Ordering::Release);
        *lock(&self.shared.observer) = observer;
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Team").field("threads", &self.count()).finish()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        lock(&self.shared.board).is_closed = true;
        self.shared.posted.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches what its work panics with.
            let _ = worker.join();
        }
    }
}

thread_local! {
    /// The team that shares what this thread computes; none on the threads of a team themselves.
    static CURRENT: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
    /// Which thread of its team this is.
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// Threads that share what the caller computes, itself included.
#[must_use]
pub fn count() -> usize {
    CURRENT.with_borrow(|team| team.as_ref().map_or(1, |team| team.others + 1))
}

/// Which thread of its team the caller is; 0 for one that has called a team or has none.
#[must_use]
pub fn index() -> usize {
    INDEX.get()
}

/// Runs `work` on this thread, and nowhere else.
pub(crate) fn alone(work: impl FnOnce()) {
    let team = CURRENT.with_borrow(|team| team.as_ref().filter(|team| team.is_observed()).cloned());
    match team {
        Some(team) => team.observed(0, work),
        None => work(),
    }
}

/// Runs `work` on this thread and on as many others of its team as come before it ends, `threads` at most in all.
pub(crate) fn share(threads: usize, work: &(dyn Fn() + Sync)) {
    let Some(team) = CURRENT.with_borrow(Clone::clone) else { return work() };
    match threads.saturating_sub(1).min(team.others) {
        0 => team.observed(0, work),
        others => team.share(others, work),
    }
}

/// What the threads of a team have in common.
#[derive(Default)]
struct Shared {
    /// Threads besides the caller.
    others: usize,
    /// Held by the caller that the team helps.
    caller: Mutex<()>,
    board: Mutex<Board>,
    /// How often work has been posted; what threads without work watch.
    posted: AtomicUsize,
    /// Threads that are at the posted work.
    running: AtomicUsize,
    /// Wakes threads that sleep.
    wake: Condvar,
    is_observed: AtomicBool,
    observer: Mutex<Option<Observer>>,
}

/// Where work is posted.
#[derive(Default)]
struct Board {
    posted: Option<Posted>,
    sleeping: usize,
    is_closed: bool,
    /// What work panicked with.
    panic: Option<Box<dyn Any + Send>>,
}

/// Work that threads may come for. The caller takes it back before the borrow that it stands for ends.
struct Posted {
    work: &'static (dyn Fn() + Sync),
    /// Threads that may still come.
    seats: usize,
}

impl Shared {
    fn share(&self, others: usize, work: &(dyn Fn() + Sync)) {
        let _caller = match self.caller.try_lock() {
            Ok(caller) => caller,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The team helps somebody else, or this is work within its work.
            Err(TryLockError::WouldBlock) => return self.observed(0, work),
        };
        // SAFETY: only the lifetime changes. Threads reach `work` through `board.posted` alone, each counts itself as running
        // under the lock of the board before it calls, and no more after its call. `TakenBack` empties `board.posted`
        // and waits until none runs before this function returns or unwinds, so no call outlives the borrow.
        let erased = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) };
        let taken_back = TakenBack(self);
        let mut board = lock(&self.board);
        board.posted = Some(Posted { work: erased, seats: others });
        board.panic = None;
        let sleeping = board.sleeping;
        drop(board);
        self.posted.fetch_add(1, Ordering::Release);
        match sleeping {
            0 => {}
            1 => self.wake.notify_one(),
            _ => self.wake.notify_all(),
        }
        self.observed(0, work);
        drop(taken_back);
        let panic = lock(&self.board).panic.take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// What a thread besides the caller does as long as the team is there.
    fn work(&self, index: usize) {
        INDEX.set(index);
        let mut seen = 0;
        loop {
            self.watch(&mut seen);
            let mut board = lock(&self.board);
            if board.is_closed {
                return;
            }
            let Some(posted) = board.posted.as_mut().filter(|posted| posted.seats > 0) else { continue };
            posted.seats -= 1;
            let work = posted.work;
            self.running.fetch_add(1, Ordering::Relaxed);
            drop(board);
            let ended = catch_unwind(AssertUnwindSafe(|| self.observed(index, work)));
            if let Err(panic) = ended {
                lock(&self.board).panic.get_or_insert(panic);
            }
            self.running.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns when there may be work that was not `seen`.
    fn watch(&self, seen: &mut usize) {
        let begun = Instant::now();
        loop {
            for _ in 0..LOOKS {
                let posted = self.posted.load(Ordering::Acquire);
                if posted != *seen {
                    *seen = posted;
                    return;
                }
                hint::spin_loop();
            }
            if begun.elapsed() > WATCH {
                break;
            }
        }
        let mut board = lock(&self.board);
        // Work is posted under the lock: what came since is seen here, what comes later finds the sleeper counted.
        while board.posted.is_none() && !board.is_closed {
            board.sleeping += 1;
            board = self.wake.wait(board).unwrap_or_else(PoisonError::into_inner);
            board.sleeping -= 1;
        }
        *seen = self.posted.load(Ordering::Acquire);
    }

    fn is_observed(&self) -> bool {
        self.is_observed.load(Ordering::Acquire)
    }

    fn observed(&self, index: usize, work: impl FnOnce()) {
        if !self.is_observed() {
            return work();
        }
        let begun = Instant::now();
        work();
        let observer = lock(&self.observer).clone();
        if let Some(observer) = observer {
            observer(index, begun);
        }
    }
}

/// Takes posted work back and waits for those who are at it.
struct TakenBack<'a>(&'a Shared);

impl Drop for TakenBack<'_> {
    fn drop(&mut self) {
        lock(&self.0.board).posted = None;
        let mut looks = 0usize;
        while self.0.running.load(Ordering::Acquire) > 0 {
            looks += 1;
            if looks.is_multiple_of(LOOKS) { thread::yield_now() } else { hint::spin_loop() }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::each;
    use std::collections::BTreeSet;

    /// Runs as many tasks as a team of 3 has threads, of which each waits until all have begun.
    fn together(team: &Team) -> BTreeSet<usize> {
        let (begun, indices) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
        team.run(|| {
            each(vec![(); 3], |()| {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < 3 {
                    thread::yield_now();
                }
                indices.lock().unwrap().insert(index());
            });
        });
        indices.into_inner().unwrap()
    }

    #[test]
    fn all_threads_work_at_once_whether_they_watch_or_sleep() {
        let team = Team::new(3).unwrap();
        assert_eq!(team.count(), 3);
        for pause in [Duration::ZERO, 5 * WATCH, Duration::ZERO] {
            thread::sleep(pause);
            assert_eq!(together(&team), BTreeSet::from([0, 1, 2]));
        }
        assert_eq!(count(), 1, "the team was current for the run only");
    }

    #[test]
    fn each_task_runs_once_however_short() {
        let team = Team::new(4).unwrap();
        team.run(|| {
            assert_eq!(count(), 4);
            for round in 0..2_000 {
                let runs: Vec<AtomicUsize> = (0..round % 7).map(|_| AtomicUsize::new(0)).collect();
                each(runs.iter().collect(), |run| {
                    run.fetch_add(1, Ordering::Relaxed);
                });
                assert!(runs.iter().all(|run| run.load(Ordering::Relaxed) == 1));
            }
        });
    }

    #[test]
    fn callers_that_share_a_team_and_work_within_work_come_to_an_end() {
        let team = Team::new(2).unwrap();
        let sum = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    team.run(|| {
                        each((0..50).collect(), |outer: usize| {
                            each((0..10).collect(), |inner: usize| {
                                sum.fetch_add(outer * inner, Ordering::Relaxed);
                            });
                        });
                    });
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * (49 * 50 / 2) * 45);
    }

    #[test]
    fn a_panic_of_any_thread_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(3).unwrap();
        for panicking in 0..3 {
            let (begun, failed) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
            let run = || {
                each(vec![(); 3], |()| {
                    begun.fetch_add(1, Ordering::SeqCst);
                    while begun.load(Ordering::SeqCst) < 3 {
                        thread::yield_now();
                    }
                    if index() == panicking {
                        failed.store(index(), Ordering::SeqCst);
                        resume_unwind(Box::new("a task failed"));
                    }
                });
            };
            let payload = catch_unwind(AssertUnwindSafe(|| team.run(run))).unwrap_err();
            assert_eq!(payload.downcast_ref(), Some(&"a task failed"));
            assert_eq!(failed.into_inner(), panicking);
            assert_eq!(together(&team).len(), 3);
        }
    }

    #[test]
    fn an_observer_is_told_of_the_work_of_each_thread() {
        let team = Team::new(3).unwrap();
        let told: Arc<Mutex<BTreeSet<usize>>> = Arc::default();
        let own = told.clone();
        team.observe(Some(Arc::new(move |index, _| {
            own.lock().unwrap().insert(index);
        })));
        together(&team);
        assert_eq!(*told.lock().unwrap(), BTreeSet::from([0, 1, 2]));
        team.observe(None);
        told.lock().unwrap().clear();
        together(&team);
        assert!(told.lock().unwrap().is_empty());
    }
}
