//! The `.ipu` file: its records, its bytes, and the checks that make a file from anywhere safe to use.
//!
//! A file is a superblock of 4 KiB, a manifest, and a stream of chunks that hold the weights in the order of first
//! use; `FORMAT.md` specifies it. [`Manifest`] is the manifest as records.
//!
//! Leaves alone: the elements inside stored bytes ([`crate::encodings`]) and what operators mean ([`crate::ops`]).

mod record;

pub use crate::encodings::{PartRecord, WeightRecord, WeightSource};
pub use record::*;
