//! The executor: opens a file, keeps its weights, runs its steps.
//!
//! [`Model`] owns the weights, [`Session`] the state of one caller; `program` is a file made ready, `execute` runs it,
//! [`steps`] says how each operator runs, and [`ipuc_kernels`] has the numeric cores; [`fabric`] tells what a run would take on a
//! described machine. The compiler is not needed here and not known: the file is all there is.

mod bind;
mod cancel;
mod check;
mod counter;
mod error;
mod execute;
#[cfg(feature = "fabric")]
pub mod fabric;
mod file;
mod limits;
mod memory;
mod model;
mod observe;
mod program;
mod resident;
mod saved;
mod session;
mod state;
pub mod steps;
mod stream;
mod threads;
mod trace;
mod versions;
mod windows;
mod working;

pub use bind::follow_equations;
pub use cancel::CancelToken;
pub use counter::StepCounter;
pub use error::{OpenError, RunError};
pub use file::{CompletedRead, ReadQueue, WeightFile};
pub use ipuc_kernels::limits::Limits;
pub use ipuc_kernels::product::Skipped;
pub use ipuc_kernels::simd::UnknownInstructions;
pub use model::{MemoryUse, Model, ModelOptions, Port};
pub use observe::Observer;
pub use resident::SharedBytes;
pub use saved::SavedStateError;
pub use session::{Session, SessionOptions};
pub use stream::{PassReport, Residency, StepStall};
pub use threads::Threads;
pub use trace::{Span, Trace, Track};
pub use versions::VersionError;
