//! Functions of one f32 over vectors, with stated errors, and conversions of float types, in blocks side by side.
//!
//! [`map()`] applies a [`VectorFunction`]; [`functions`] has those of networks. Each element's result depends on that element
//! alone: not on its place, on threads, or on the length. Functions that the compiler vectorises by itself, of any
//! type and with broadcasting, are in [`elements`](super::elements).

mod convert;
pub mod functions;
mod map;

#[cfg(test)]
mod tests;

pub use convert::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};
pub use functions::VectorFunction;
pub use map::{map, map_in_place};
