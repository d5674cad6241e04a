//! Matrix products: `out[m, n] = x[m, k] · w[k, n]`.
//!
//! All are made of one register tile (`tile`) over *panels*: 16 outputs side by side, the inputs one behind the
//! other. Weights lie in panels in the file (`panels`); other operands are packed into them on the way.
//! Weights of at most 8 bits lie in panels of codes (`coded`), weights with many zeros in panels without these (`sparse`), those of
//! activations with many zeros input by input (`input_major`); `integer` has the products of integers.
//!
//! The order of every reduction: inputs are cut into runs of `panels::RUN` from the first on; a run is summed
//! with fused multiply-adds in order, beginning at 0; the output is the sum of its runs in order, beginning at 0 (or
//! at what the output held, if it accumulates). Nothing else has an influence on the bits: not the number of rows, nor
//! threads, nor the pieces that a weight comes in (they end at multiples of `panels::BLOCK`), nor its element type, nor
//! whether it lies in panels.

mod coded;
mod epilogue;
mod few;
mod input_major;
mod integer;
mod integer_rows;
mod multiply;
mod panels;
mod plain;
mod plain_matrix;
mod requantize;
mod shares;
mod sparse;
mod sparse_few;
mod task;
mod thin;
pub(crate) mod tile;

pub use coded::{
    CodeType, CodedLayout, CodedPiece, CodedPlane, CodedRole, DynamicRows, ExactRows, ExactWeight, ExactWords,
    OpenPanels, PlaneType, Rounded, coded_product, decoded_panels, dynamic_product, exact_product,
};
pub use epilogue::Epilogue;
pub(crate) use epilogue::{all_clamped, clamp_all, clamped};
pub use input_major::{
    InputMajorLayout, InputMajorProduct, RunElements, RunInputs, RunPiece, RunRows, Skipped, panels_of_runs,
};
pub use integer::{IntegerLine, IntegerPiece, IntegerSums, IntegerWeight, SumOrder, integer_product, pack_integers};
pub use integer_rows::{ByteType, IntegerRows, Zero};
pub use multiply::panels_product;
pub use panels::{PANEL_OUTPUTS, PanelElements, PanelPiece, pack_panels};
pub(crate) use panels::{Panels, RUN, Weight};
pub(crate) use plain::plain_product_within;
pub use plain::{Batch, batched_product, broadcast_places, plain_product};
pub use plain_matrix::{PlainElements, PlainLayout, PlainMatrix, panels_of};
pub(crate) use requantize::VectorParameters;
pub use requantize::{Parameter, Requantize, SumScale, requantize, scale_sums};
pub use shares::Shares;
pub use sparse::{SparseLayout, sparse_product, spread_panels};
pub use sparse_few::sparse_dynamic_product;
pub use task::Start;
