//! The `.ipu` file: its records, its bytes, and the checks that make a file from anywhere safe to use.
//!
//! A file is a superblock of 4 KiB, a manifest, and a stream of chunks that hold the weights in the order of first
//! use; `FORMAT.md` specifies it. [`Manifest`] is the manifest as records, [`read_manifest`] the way in, [`plan`] and
//! [`finish`] the way out.
//!
//! Leaves alone: the elements inside stored bytes ([`crate::encodings`]) and what operators mean ([`crate::ops`]).

pub mod checks;
mod decode;
mod encode;
mod error;
#[rustfmt::skip]
mod fields;
mod reader;
mod record;
#[allow(
    missing_docs,
    clippy::all,
    reason = "generated code; the documentation is in proto/ipu.proto"
)]
#[rustfmt::skip]
mod schema;
mod step_facts;
pub mod superblock;
mod validate;
mod walk;
mod writer;

pub use crate::encodings::{PartRecord, WeightRecord, WeightSource};
pub use checks::ChunkDigest;
pub use error::{Fault, FormatError, WireFault};
pub use reader::{parse_manifest, read_manifest, read_manifest_from};
pub use record::*;
pub use step_facts::KnownStep;
pub use superblock::{SUPERBLOCK_BYTES, Superblock};
pub use validate::{check_placement, validate};
pub use writer::{Plan, finish, plan};
