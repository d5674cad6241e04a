//! Functions of elements, one at a time; random numbers.

pub(crate) mod activation;
pub(crate) mod binary;
pub(crate) mod bit_cast;
pub(crate) mod cast;
pub(crate) mod clamp;
pub(crate) mod compare;
pub(crate) mod dropout;
pub(crate) mod map;
pub(crate) mod multinomial;
pub(crate) mod random;
pub(crate) mod select;
#[cfg(test)]
mod tests;
pub(crate) mod unary;

pub use activation::*;
pub use binary::*;
pub use bit_cast::*;
pub use cast::*;
pub use clamp::*;
pub use compare::*;
pub use dropout::*;
pub use map::*;
pub use multinomial::*;
pub use random::*;
pub use select::*;
pub use unary::*;
