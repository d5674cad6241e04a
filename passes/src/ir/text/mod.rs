//! The text form of the IR; it round-trips.
//!
//! ```text
//! symbol batch 1..=64
//! require equal batch, n from "add: broadcast"
//! source "model.onnx"
//! constant @w : f32[64, 64] = stored 0 1024 16384
//! constant @one : i64[] = i64[]:0100000000000000
//! constant @t : f32[64, 64] = transpose permutation=[1, 0] @w
//! entry main(x) -> (y) = block 0 state 0=0
//! block 0(%x : f32[batch, 64]) {
//!   %y : f32[batch, 64] = matmul %x, @t from "/layer/MatMul"
//!   return %y
//! }
//! ```
//!
//! An operand that is left out is `_`. A value has its ONNX name where that is unique, else its number: `%"/a/b"`, `%12`.
//! Contents of small integer tensors stand in braces after the type: `i64[2]{batch, 64}`. Constants that stay in a file
//! give source, offset and length; what is parsed from that can be printed, typed and ordered.

mod parse;
mod print;
mod types;

pub use parse::{ParseError, parse};
pub use print::print;
pub use types::parse_type;
