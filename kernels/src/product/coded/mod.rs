//! Products with weights of at most 8 bits, which lie in panels as codes with planes of parameters.
//!
//! A code stands for `(code - zero point) * scale`. The scale is the product of the scale planes in f32, those of the largest
//! blocks first; the difference is exact for integers; the result is rounded to the type of the weight.
//!
//! [`coded_product`] has the bits of the product with the decoded values. [`dynamic_product`] rounds the activations to 8
//! bits and sums products of codes as integers; it has the same bits on every instruction set, as [`exact_product`] does, whose
//! activations are integers already.

mod code_types;
mod decode;
mod digits;
mod dynamic;
mod dynamic_few;
mod dynamic_sparse;
mod dynamic_tile;
mod exact;
mod exact_chunk;
mod exact_few;
mod exact_rows;
mod exact_tile;
mod layout;
mod pair_of_sums;
mod pieces;
mod planes;
mod records;
mod rows;
mod values;

pub(super) use decode::CodedFew;
pub use dynamic::dynamic_product;
pub(super) use dynamic::{FEW_ROWS, complete};
pub(super) use dynamic_few::{DynamicFew, is_common, shifts};
pub(super) use dynamic_sparse::{SparseCodes, SparseSums};
pub use exact::{ExactWeight, ExactWords, exact_product};
pub use exact_rows::ExactRows;
pub use layout::{CodeType, CodedLayout, CodedPlane, CodedRole, PlaneType, Rounded};
pub(super) use pieces::CodedPanels;
pub use pieces::{CodedPiece, OpenPanels};
pub(super) use planes::{Parameters, integers, load_floats};
pub use rows::DynamicRows;
pub use values::{coded_product, decoded_panels};
