//! How the elements of a weight lie in the file: encodings, their sizes, and the way in and out.
//!
//! A weight has a logical element type and shape, and an encoding ([`Coded`]) that says what is stored. Operators mean the
//! same for every encoding. A weight is a sequence of *units* (rows, panels), each contiguous and self-contained: its
//! parameters (*planes*: scales, zero points), then its elements. Parts are runs of units ([`Units`]); a part is packed
//! alone ([`Coded::pack`]) from positional reads of canonical bytes, so that a large weight needs the memory of one part at
//! a time. The *canonical* bytes of a weight are those of a [`Tensor`](crate::tensor::Tensor): row-major, little-endian,
//! packed.
//!
//! Elements are values, or codes that planes give a value: `(code - zero) * scale`, rounded to the logical type.
//!
//! The table of encodings is [`for_each_encoding!`](crate::for_each_encoding); what each must say is [`Encoding`].
//! `FORMAT.md` specifies the bytes. Leaves alone: where parts lie in the file ([`crate::model`]), and choosing codes: a
//! conversion that is not exact is refused.

mod codes;
mod convert;
mod decode;
mod encoding;
mod error;
mod fetch;
mod input_major;
mod logical;
mod panels;
mod part;
mod plain;
mod plane;
mod record;
mod rows;
mod sparse_panels;
mod stored;
mod strings;
mod table;
mod transfer;
mod units;
mod zeros;

pub use codes::{is_code, sums_exactly};
pub use encoding::{Encoding, Pick, ReadOrder};
pub use error::EncodingError;
pub use input_major::InputMajor;
pub use logical::Logical;
pub use panels::{PANEL_OUTPUTS, Panels};
pub use part::PartRange;
pub use plain::Plain;
pub use plane::{Plane, PlaneRole, Planes};
pub use record::{PartBytesRange, PartRecord, Place, WeightRecord, WeightSource};
pub use rows::Rows;
pub use sparse_panels::SparsePanels;
pub use stored::{StoredPiece, StoredRecord};
pub use strings::{Strings, pack_strings};
pub use table::{Coded, ENCODINGS};
pub use transfer::{Elements, WeightReader};
pub use units::Units;
pub use zeros::{ZeroBlocks, Zeros};

#[cfg(test)]
mod tests;
