//! The compiler: ONNX models in, an execution-ordered file out.
//!
//! [`import`] makes the [`ir`]; passes change it, one file each; [`pipeline`] says in which order, and is the page to
//! read first. What the passes promise one another is checked by [`verify`] after each of them.
//!
//! This crate opens no files and runs no models: it is handed bytes to read and records to fill. Inside it everything
//! uses [`ir`]; `import`, the passes and `verify` never use one another; only [`pipeline`] knows them all.
#![forbid(unsafe_code)]

pub mod annotate_sparsity;
mod block_channels;
pub mod dead_code;
pub mod emit;
pub mod error;
pub mod fold_constants;
pub mod fuse;
pub mod import;
pub mod infer;
pub mod integers;
pub mod ir;
pub mod join;
pub mod moments;
pub mod options;
pub mod order;
pub mod pipeline;
pub mod place;
pub mod prefill;
pub mod quantize;
pub mod round_weights;
pub mod rounding;
pub mod simplify;
pub mod states;
pub mod tile;
pub mod verify;
