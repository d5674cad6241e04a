//! Signals: Ctrl-C ends the text that is generated, where one is; each else the program, which leaves nothing half-written.

use crate::files::unfinished;
use ipuc_runtime::CancelToken;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::{Mutex, PoisonError};

/// Added to the number of the signal, as shells have it.
const SIGNALLED: i32 = 128;

/// What the next Ctrl-C ends in place of the program.
static TEXT: Mutex<Option<CancelToken>> = Mutex::new(None);

fn set(text: Option<CancelToken>) -> Option<CancelToken> {
    std::mem::replace(&mut *TEXT.lock().unwrap_or_else(PoisonError::into_inner), text)
}

/// Listen to signals from now on.
pub(super) fn listen() -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let wait = move || {
        for signal in signals.forever() {
            match set(None).filter(|_| signal == SIGINT) {
                Some(text) => text.cancel(),
                None => {
                    unfinished::remove_all();
                    std::process::exit(SIGNALLED + signal);
                }
            }
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(wait)?;
    Ok(())
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
