//! The text form of the IR: every graph prints, and parses back to an equal graph.
//!
//! ```text
//! symbol batch 1..=64
//! require equal batch, n from "add: broadcast"
//! source "model.onnx"
//! constant @w : f32[64, 64] = stored 0 raw_data 1024+16384
//! constant @one : i64[] = i64[]:[1]
//! constant @t : f32[64, 64] = transpose permutation=[1, 0] @w
//! state "x"
//! entry "main"("x") -> ("y") = block 0 state 0 0=0
//! block 0(%x : f32[batch, 64]) {
//!   %y : f32[batch, 64] = matmul %x, @t from "/layer/MatMul"
//!   return %y
//! }
//! peak 0 given 256 kept 256
//! ```
//!
//! An operand that is left out is `_`. A value has its ONNX name where no other value has it, else its number:
//! `%"/a/b"`, `%12`, `%12 "shared name"`. Contents of integer tensors stand in braces after the type: `i64[2]{batch, 64}`,
//! or `i64[1]{= i64[1]:[4]}` where they came as a tensor.
//!
//! A constant in memory has its bytes in the text up to 256 bytes, and the hash of its bytes above: such a constant equals
//! the one that was printed, and asking for its bytes is an error. Of sources the text has the names, so that stored
//! constants cannot be read either; what is parsed can be printed, typed, simplified and ordered.
//!
//! A step may stand after its number, as in `0:2 %y : f32[batch, 64] = ..` ([`print_numbered`]), which says nothing.
//!
//! Blocks keep their numbers. Numbers of values and constants only tell them apart: what is parsed counts them anew.

mod constants;
mod label;
mod parse;
mod print;
mod scan;
mod types;

pub use label::Labels;
pub use parse::{ParseError, parse};
pub use print::{print, print_numbered};
pub use types::parse_type;
