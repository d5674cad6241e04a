//! Ctrl-C: ends the text that is generated, where one is; else the program, which leaves nothing half-written.

use crate::files::unfinished;
use crate::generate::Cancel;
use std::sync::{Mutex, PoisonError};

/// 128 and the number of the signal, as shells have it.
const INTERRUPTED: i32 = 130;

/// What the next Ctrl-C ends in place of the program.
static TEXT: Mutex<Option<Cancel>> = Mutex::new(None);

fn set(text: Option<Cancel>) -> Option<Cancel> {
    std::mem::replace(&mut *TEXT.lock().unwrap_or_else(PoisonError::into_inner), text)
}

/// Listen to Ctrl-C from now on.
pub(super) fn listen() -> anyhow::Result<()> {
    ctrlc::set_handler(|| match set(None) {
        Some(text) => text.cancel(),
        None => {
            unfinished::remove_all();
            std::process::exit(INTERRUPTED);
        }
    })?;
    Ok(())
}

/// While this lives, the first Ctrl-C ends a text.
pub(super) struct Turn;

/// Have Ctrl-C end a text.
pub(super) fn ends(text: Cancel) -> Turn {
    set(Some(text));
    Turn
}

impl Drop for Turn {
    fn drop(&mut self) {
        set(None);
    }
}
