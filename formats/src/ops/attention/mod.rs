//! Attention and what positions do to it.

pub(crate) mod append;
pub(crate) mod cache_scatter;
pub(crate) mod definition;
pub(crate) mod dot_product;
pub(crate) mod dot_product_reference;
mod faults;
pub(crate) mod linear_attention;
pub(crate) mod rotary_embedding;
pub(crate) mod row_scheme;

pub use append::*;
pub use cache_scatter::*;
pub use definition::*;
pub use linear_attention::*;
pub use rotary_embedding::*;
pub use row_scheme::*;
