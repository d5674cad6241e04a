//! What all commands that open a compiled model say: that it is loading, and what a user should know of its memory.

use super::arguments::Size;
use super::output::{Output, bytes};
use super::progress::{Waiting, waiting};
use crate::memory::available_bytes;
use ipuc_runtime::Model;

/// A model is loading, within this memory if the user gives any.
pub(super) fn begin(memory: Option<Size>, output: &Output) -> Waiting {
    // A system that is short of memory ends a process without a word.
    if let (Some(given), Some(available_bytes)) = (memory, available_bytes())
        && given.bytes > available_bytes
    {
        output.note(format_args!(
            "warning: --memory {} is more than the {} that this process can have; it may be killed",
            bytes(given.bytes),
            bytes(available_bytes)
        ));
    }
    waiting(output, "loading")
}

/// A model is loaded.
pub(super) fn end(loading: Waiting, memory: Option<Size>, model: &Model, output: &Output) {
    drop(loading);
    if let (None, Some(residency)) = (memory, model.residency()) {
        output.note(format_args!(
            "note: the weights ({}) do not fit into the memory that is available and are streamed within {}",
            bytes(residency.weights_bytes),
            bytes(residency.budget_bytes)
        ));
    }
}
