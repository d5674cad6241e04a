//! Functions of one f32 over vectors, with stated errors, in blocks side by side.
//!
//! [`map_in_place`] applies a [`VectorFunction`]; [`functions`] has those of networks. [`apply_rounded`] applies a
//! [`RoundedFunction`], whose results are those of f64, rounded once: [`angles`], [`arcs`], [`gates`]. Each element's result depends on that element
//! alone: not on its place, on threads, or on the length. Functions that the compiler vectorises by itself, of any
//! type and with broadcasting, are in [`elements`](super::elements).

pub mod angles;
pub mod arcs;
pub mod functions;
pub mod gates;
mod map;
pub mod power;
mod rounded;

#[cfg(test)]
mod tests;

pub use functions::VectorFunction;
pub use map::{apply, change, change_vectors, map_in_place, of_each};
pub use rounded::{RoundedFunction, apply_rounded, round_each};
