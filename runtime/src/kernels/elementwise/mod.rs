//! One result element from one element of each operand, in blocks side by side.
//!
//! [`map()`] applies a [`VectorFunction`] ([`functions`] has those of networks, with their errors); [`map_scalar`] any
//! function of a number. [`binary()`] broadcasts its operands by strides. Each element's result depends on that element
//! alone: not on its place, on threads, or on the length.

mod binary;
mod convert;
pub mod functions;
mod map;

#[cfg(test)]
mod tests;

pub use binary::{
    Add, BinaryFunction, Broadcast, Divide, Maximum, Minimum, Multiply, Subtract, binary, binary_in_place,
};
pub use convert::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};
pub use functions::VectorFunction;
pub use map::{map, map_in_place, map_scalar};
