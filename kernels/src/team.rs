//! Threads that compute side by side with the thread that calls them.
//!
//! Steps of a model follow each other within microseconds, and a thread that sleeps takes 5 to 50 of them to wake. So a
//! thread without work watches for more for 200 microseconds before it sleeps, and the caller never waits for one that has not
//! begun: it does the work itself and takes back what nobody has come for. The caller computes with the team, so that one
//! thread alone hands nothing over. A cache line that one core has written takes another 100 to 600 nanoseconds to read: all that is
//! handed over lies in one.

mod tasks;

pub(crate) use tasks::Given;

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, hint, io};
use tasks::{Indices, Left, Memory, hand_out};

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
        let others = u16::try_from(threads - 1);
        let others = others.map_err(|_| io::Error::other(format!("a team of {threads} threads is too large")))?;
        let caller = Mutex::new((0..threads).map(|_| Indices::default()).collect());
        let shared = Arc::new(Shared { others: others.into(), caller, ..Shared::default() });
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
        self.shared.is_closed.store(true, Ordering::Relaxed);
        {
            let _sleep = lock(&self.shared.sleep);
            self.shared.post.call();
        }
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

/// Gives each task to one call of `work`, which takes tasks until none is left. There is a call on this thread and, unless the work is
/// serial, one on each thread of its team that comes before the tasks are taken. The caller has the first task from the beginning: it waits
/// for no other core then, not even for one to see that it is called.
///
/// # Panics
/// If several threads are to share 2^32 tasks or more.
pub(crate) fn give<T: Send>(tasks: &mut [T], is_serial: bool, work: &(impl Fn(Given<'_, '_, T>) + Sync)) {
    let (count, memory) = (tasks.len(), Memory::new(tasks));
    // SAFETY: `spread` gives out the indices below `count`, each to one call and once.
    spread(count, is_serial, &|indices: &mut dyn Iterator<Item = usize>| work(unsafe { memory.given(indices) }));
}

/// Takes indices of tasks until none is left. What spreads work over threads knows no types of tasks, so that it is compiled once.
type Work<'a> = dyn Fn(&mut dyn Iterator<Item = usize>) + Sync + 'a;

/// Gives out the indices below `count`, each to one call of `work` and once.
fn spread(count: usize, is_serial: bool, work: &Work<'_>) {
    let mut all = 0..count;
    if is_serial {
        return work(&mut all);
    }
    let is_shared = |team: &Arc<Shared>| count > 1 && team.others > 0;
    // A clone of the `Arc` writes a count that all callers of the team share: work that the team neither shares nor observes needs none.
    let team = |team: &Option<Arc<Shared>>| team.as_ref().filter(|team| is_shared(team) || team.is_observed()).cloned();
    match CURRENT.with_borrow(team) {
        Some(team) if is_shared(&team) => team.share(count, work),
        Some(team) => team.observed(0, &mut || work(&mut all)),
        None => work(&mut all),
    }
}

/// What the threads of a team have in common.
#[derive(Default)]
struct Shared {
    post: Post,
    /// Threads besides the caller.
    others: usize,
    /// Which tasks each thread may take, held by the caller that the team helps.
    caller: Mutex<Vec<Indices>>,
    /// Threads that sleep, or are about to.
    sleeping: AtomicUsize,
    /// Held while a thread makes sure that there is nothing to wake it for.
    sleep: Mutex<()>,
    wake: Condvar,
    is_closed: AtomicBool,
    has_panicked: AtomicBool,
    /// What work panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    is_observed: AtomicBool,
    observer: Mutex<Option<Observer>>,
}

/// Work that threads may come for, in cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Post {
    /// How often threads have been called, from bit 32 on; seats, from bit 16 on; threads that are at the work.
    state: AtomicU64,
    /// The work, which is there as long as there are seats, or threads at it.
    work: UnsafeCell<Option<&'static (dyn Fn() + Sync)>>,
}

// SAFETY: `work` is written by the one caller that the team helps, while there are neither seats nor threads at the work, and read by
// threads that have counted themselves as being at it (see `Post::sit`).
unsafe impl Sync for Post {}

/// A thread that is at the work.
const RUNNING: u64 = 1;
/// A thread that may still come.
const SEAT: u64 = 1 << 16;
/// A call of threads.
const CALL: u64 = 1 << 32;

/// Threads that may still come.
fn seats(state: u64) -> u64 {
    state % CALL / SEAT
}

/// Threads that are at the work.
fn running(state: u64) -> u64 {
    state % SEAT
}

impl Post {
    /// Offers work to `seats` threads.
    ///
    /// # Safety
    /// The caller is the only one that the team helps, earlier work was taken back, and this work outlives [`Post::take_back`].
    unsafe fn offer(&self, work: &'static (dyn Fn() + Sync), seats: usize) {
        // SAFETY: earlier work was taken back: there are neither seats nor threads at it, so nobody reads this.
        unsafe { *self.work.get() = Some(work) };
        // Nobody else writes without seats. What is stored is on its way while the caller begins with the work.
        let calls = self.state.load(Ordering::Relaxed) & !(CALL - 1);
        self.state.store(calls.wrapping_add(CALL) + seats as u64 * SEAT, Ordering::Release);
    }

    /// Calls threads for nothing.
    fn call(&self) {
        self.state.fetch_add(CALL, Ordering::SeqCst);
    }

    /// How often threads have been called.
    fn calls(&self, order: Ordering) -> u64 {
        self.state.load(order) / CALL
    }

    /// Takes a seat at the work, which is left with [`Post::leave`]; gives the call that it belongs to, or the last one.
    fn sit(&self) -> Result<(u64, &'static (dyn Fn() + Sync)), u64> {
        let seated = |state| (seats(state) > 0).then(|| state - SEAT + RUNNING);
        let state =
            self.state.fetch_update(Ordering::Acquire, Ordering::Acquire, seated).map_err(|state| state / CALL)?;
        // SAFETY: there were seats, and this thread is at the work now: the caller wrote it before it gave the seats, and
        // writes again only when nobody is at it.
        let work = unsafe { *self.work.get() };
        work.map(|work| (state / CALL, work)).ok_or(state / CALL)
    }

    fn leave(&self) {
        self.state.fetch_sub(RUNNING, Ordering::Release);
    }

    /// Takes the seats away and waits for those who have taken theirs.
    fn take_back(&self) {
        let mut state = self.state.load(Ordering::Acquire);
        if seats(state) > 0 {
            state = self.state.fetch_and(!(CALL - SEAT), Ordering::Acquire);
        }
        let mut looks = 0usize;
        while running(state) > 0 {
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                thread::yield_now()
            } else {
                hint::spin_loop()
            }
            state = self.state.load(Ordering::Acquire);
        }
    }
}

impl Shared {
    fn share(&self, count: usize, work: &Work<'_>) {
        let mut own = match self.caller.try_lock() {
            Ok(own) => own,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The team helps somebody else, or this is work within its work.
            Err(TryLockError::WouldBlock) => {
                let mut all = 0..count;
                return self.observed(0, &mut || work(&mut all));
            }
        };
        let others = self.others.min(count.saturating_sub(1));
        let mut of_caller = hand_out(count, &mut own[..=others]);
        let handed_out = of_caller.own;
        let of_others: &(dyn Fn() + Sync) = &|| work(&mut Left::of_other(handed_out, INDEX.get()));
        // SAFETY: only the lifetime changes. `TakenBack` takes the work back before this function returns or unwinds, so no call
        // outlives the borrow.
        let erased = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(of_others) };
        // Of an earlier call whose caller unwound itself.
        drop(self.panic());
        // SAFETY: this caller holds `caller`, and so did the one before it until its work was taken back.
        unsafe { self.post.offer(erased, others) };
        let taken_back = TakenBack(self);
        // A thread that is about to sleep while this is posted may be missed: it helps with the next work then.
        match self.sleeping.load(Ordering::Relaxed) {
            0 => {}
            sleeping => {
                drop(lock(&self.sleep));
                if sleeping == 1 { self.wake.notify_one() } else { self.wake.notify_all() }
            }
        }
        self.observed(0, &mut || work(&mut of_caller));
        drop(taken_back);
        if let Some(panic) = self.panic() {
            resume_unwind(panic);
        }
    }

    /// Takes what work has panicked with.
    fn panic(&self) -> Option<Box<dyn Any + Send>> {
        // Written before work is left, which has been waited for.
        if !self.has_panicked.load(Ordering::Relaxed) {
            return None;
        }
        self.has_panicked.store(false, Ordering::Relaxed);
        lock(&self.panic).take()
    }

    /// What a thread besides the caller does as long as the team is there.
    fn work(&self, index: usize) {
        INDEX.set(index);
        loop {
            let seen = match self.post.sit() {
                Ok((call, work)) => {
                    let ended = catch_unwind(AssertUnwindSafe(|| self.observed(index, &mut || work())));
                    if let Err(panic) = ended {
                        lock(&self.panic).get_or_insert(panic);
                        self.has_panicked.store(true, Ordering::Relaxed);
                    }
                    self.post.leave();
                    call
                }
                Err(call) => call,
            };
            // Behind the call: one that closes the team says so before.
            if self.is_closed.load(Ordering::Relaxed) {
                return;
            }
            self.watch(seen);
        }
    }

    /// Returns when threads have been called again.
    fn watch(&self, seen: u64) {
        let begun = Instant::now();
        while begun.elapsed() < WATCH {
            for _ in 0..LOOKS {
                if self.post.calls(Ordering::Acquire) != seen {
                    return;
                }
                hint::spin_loop();
            }
        }
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        // Longer than a call that did not find this thread counted takes to be seen.
        for _ in 0..LOOKS {
            hint::spin_loop();
        }
        let mut sleep = lock(&self.sleep);
        while self.post.calls(Ordering::SeqCst) == seen {
            sleep = self.wake.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        }
        drop(sleep);
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_observed(&self) -> bool {
        self.is_observed.load(Ordering::Acquire)
    }

    fn observed(&self, index: usize, work: &mut dyn FnMut()) {
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
        self.0.post.take_back();
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
    fn a_thread_of_a_team_calls_another_team() {
        let (outer, inner) = (Team::new(2).unwrap(), Team::new(3).unwrap());
        let (sum, begun) = (AtomicUsize::new(0), AtomicUsize::new(0));
        outer.run(|| {
            each(vec![(); 2], |()| {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                inner.run(|| {
                    each((0..100).collect(), |number: usize| {
                        sum.fetch_add(number, Ordering::Relaxed);
                    });
                });
            });
        });
        assert_eq!(sum.into_inner(), 2 * (99 * 100 / 2));
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

    /// The caller unwinds with its own panic; that of the other thread is not left for what comes next.
    #[test]
    fn panics_of_several_threads_end_with_their_call() {
        let team = Team::new(2).unwrap();
        let begun = AtomicUsize::new(0);
        let run = || {
            each(vec![(); 2], |()| {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                resume_unwind(Box::new("a task failed"));
            });
        };
        let payload = catch_unwind(AssertUnwindSafe(|| team.run(run))).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"a task failed"));
        let sum = AtomicUsize::new(0);
        team.run(|| {
            each(vec![1, 2, 3], |number| {
                sum.fetch_add(number, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 6);
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
        told.lock().unwrap().clear();
        team.run(|| each(vec![()], |()| {}));
        assert_eq!(*told.lock().unwrap(), BTreeSet::from([0]), "a task that nobody else may take");
        team.observe(None);
        told.lock().unwrap().clear();
        together(&team);
        assert!(told.lock().unwrap().is_empty());
    }
}
