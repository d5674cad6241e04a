//! Threads that run for some microseconds at a time ask to be run as soon as they wake.
//!
//! While all processors compute, a thread that has been woken waits for a slice to end, milliseconds on Linux, and the device
//! waits with it. A short slice of its own lets it run at once, without taking more of the processor than its share.
#![allow(unsafe_code, reason = "sched_setattr has no safe binding")]

/// The shortest slice that Linux grants.
#[cfg(target_os = "linux")]
const SLICE_NANOSECONDS: u64 = 100_000;

/// Ask the system to run this thread as soon as it wakes. Linux from 6.12 on does; elsewhere nothing changes.
#[cfg(target_os = "linux")]
pub(super) fn run_promptly() {
    const THIS_THREAD: libc::c_long = 0;
    const NO_FLAGS: libc::c_long = 0;
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `size` bytes to a struct of that size.
    let found = unsafe { libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, size, NO_FLAGS) };
    if found != 0 || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = SLICE_NANOSECONDS;
    // SAFETY: the kernel reads `attributes.size` bytes of a struct of that size. Where it refuses, nothing changes.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attributes, NO_FLAGS) };
}

/// Ask the system to run this thread as soon as it wakes. Linux from 6.12 on does; elsewhere nothing changes.
#[cfg(not(target_os = "linux"))]
pub(super) fn run_promptly() {}
