//! Signals: Ctrl-C ends the text that is generated, where one is; each else the program, which leaves nothing half-written.

use crate::files::unfinished;
use ipuc_runtime::CancelToken;
use signal_hook::consts::SIGINT;
use std::sync::{Mutex, PoisonError};

/// Added to the number of the signal, as shells have it.
const SIGNALLED: i32 = 128;

/// What the next Ctrl-C ends in place of the program.
static TEXT: Mutex<Option<CancelToken>> = Mutex::new(None);

fn set(text: Option<CancelToken>) -> Option<CancelToken> {
    std::mem::replace(&mut *TEXT.lock().unwrap_or_else(PoisonError::into_inner), text)
}

/// Listen to signals from now on.
#[cfg(unix)]
pub(super) fn listen() -> anyhow::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let wait = move || signals.forever().for_each(obey);
    std::thread::Builder::new().name("signals".to_string()).spawn(wait)?;
    Ok(())
}

/// Listen to Ctrl-C from now on: there is no other signal here, and none that a thread can wait for.
#[cfg(not(unix))]
pub(super) fn listen() -> anyhow::Result<()> {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, interrupted.clone())?;
    let wait = move || {
        loop {
            std::thread::sleep(std::time::Duration::from_millis(50));
            if interrupted.swap(false, Ordering::Relaxed) {
                obey(SIGINT);
            }
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(wait)?;
    Ok(())
}

/// A signal has come.
fn obey(signal: i32) {
    match set(None).filter(|_| signal == SIGINT) {
        Some(text) => text.cancel(),
        None => {
            unfinished::remove_all();
            std::process::exit(SIGNALLED + signal);
        }
    }
}

/// While this lives, the first Ctrl-C ends a text.
pub(super) struct Turn;

/// Have Ctrl-C end a text.
pub(super) fn ends(text: CancelToken) -> Turn {
    set(Some(text));
    Turn
}

impl Drop for Turn {
    fn drop(&mut self) {
        set(None);
    }
}
