//! The compiler: ONNX models in, an execution-ordered file out.
//!
//! [`import`] makes the [`ir`]; passes change it, one file each. What the passes promise one another is checked by a
//! verifier after each of them.
//!
//! This crate opens no files and runs no models: it is handed bytes to read and records to fill.
#![forbid(unsafe_code)]

pub mod import;
pub mod ir;
