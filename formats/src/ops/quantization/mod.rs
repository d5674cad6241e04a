//! Between numbers and codes.

pub(crate) mod dequantize;
pub(crate) mod dynamic_quantize;
pub(crate) mod granularity;
pub(crate) mod quantize;

pub use dequantize::*;
pub use dynamic_quantize::*;
pub use ipuc_codes::{code_difference, dequantized, dynamic_row, scale_product};
pub use quantize::*;
