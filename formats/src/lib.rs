//! The contract between compiler and runtime: ONNX bytes, `.ipu` bytes, encodings, and what every operator means.
//!
//! This crate is a leaf: it knows no IR, does no I/O, starts no threads, uses no SIMD and no unsafe code.
//! Its modules are a chain: vocabulary ([`dtype`], [`dim`], [`tensor`], [`fact`], [`value`], [`attribute`]), how weights
//! are stored ([`encodings`]), the meaning of operators ([`ops`]), the file ([`model`]), machines that programs are simulated on ([`machine`]); the ONNX reader ([`onnx`])
//! stands beside. Bytes are reached through [`read_at`].
#![forbid(unsafe_code)]

pub mod attribute;
pub mod attribute_text;
pub mod dim;
pub mod dtype;
pub mod element;
pub mod encodings;
pub mod fact;
pub mod limits;
#[cfg(feature = "machines")]
pub mod machine;
pub mod model;
pub mod narrow;
pub mod onnx;
pub mod ops;
pub mod read_at;
pub mod tensor;
pub mod value;

pub use ipuc_codes::size;
