//! Functions of one f32 over vectors, with stated errors, in blocks side by side.
//!
//! [`map_in_place`] applies a [`VectorFunction`]; [`functions`] has those of networks. Each element's result depends on that element
//! alone: not on its place, on threads, or on the length. Functions that the compiler vectorises by itself, of any
//! type and with broadcasting, are in [`elements`](super::elements).

pub mod angles;
pub mod functions;
mod map;
pub mod power;

#[cfg(test)]
mod tests;

pub use functions::VectorFunction;
pub use map::{apply, map_in_place};
