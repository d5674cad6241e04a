//! What every encoding must say.

use super::error::EncodingError;
use super::logical::Logical;
use super::part::PartRange;
use super::plane::Plane;
use super::stored::StoredRecord;
use super::transfer::{Elements, WeightReader};
use super::units::Units;
use crate::dtype::DType;
use crate::ops::WeightMatrix;
use std::fmt::Debug;
use std::ops::Range;

/// How the elements of a weight become bytes.
///
/// A weight is a sequence of *units*, each one contiguous and self-contained; the stored bytes of consecutive units, and
/// of consecutive parts of a unit, lie one after another.
pub trait Encoding: Debug {
    /// Type of the stored elements: codes where there are planes.
    fn dtype(&self) -> DType;

    /// Parameters of the elements, in the order in which they are stored; none where elements are values.
    fn planes(&self) -> &[Plane];

    /// Check that it describes a weight of this type and shape.
    ///
    /// # Errors
    /// [`EncodingError`] where it does not fit or is not supported.
    fn check(&self, weight: Logical<'_>) -> Result<(), EncodingError>;

    /// The units of a weight that has been checked.
    ///
    /// # Errors
    /// [`EncodingError::TooLarge`] on overflow.
    fn units(&self, weight: Logical<'_>) -> Result<Units, EncodingError>;

    /// Stored bytes of a part that [`Units::check`] allows; `None` where they depend on the contents.
    ///
    /// # Errors
    /// [`EncodingError::TooLarge`] on overflow.
    fn bytes(&self, weight: Logical<'_>, part: PartRange) -> Result<Option<u64>, EncodingError>;

    /// Give each record of a part in its order, where the part has `bytes` stored bytes; what has no parameters is one record.
    ///
    /// # Errors
    /// [`EncodingError::TooLarge`] on overflow.
    fn records(
        &self,
        weight: Logical<'_>,
        part: PartRange,
        bytes: u64,
        each: &mut dyn FnMut(StoredRecord),
    ) -> Result<(), EncodingError>;

    /// Write the stored bytes of a part; `to` has exactly their number.
    ///
    /// # Errors
    /// [`EncodingError`] where elements cannot be read or have no exact stored form.
    fn pack(
        &self,
        weight: Logical<'_>,
        part: PartRange,
        from: &mut dyn WeightReader,
        to: &mut [u8],
    ) -> Result<(), EncodingError>;

    /// Spread the stored bytes of a part over the elements of the weight; `from` has exactly their number.
    ///
    /// # Errors
    /// [`EncodingError`] where the bytes are malformed.
    fn unpack(&self, weight: Logical<'_>, part: PartRange, from: &[u8], to: &mut Elements)
    -> Result<(), EncodingError>;

    /// The matrices of a coded weight, which say how planes belong to it; `None` where elements are values.
    fn matrices(&self, weight: Logical<'_>) -> Option<WeightMatrix>;

    /// Whether the stored bytes of the weight are its canonical bytes.
    fn is_canonical(&self, weight: Logical<'_>) -> bool;

    /// The units that hold what is picked; `None` where it does not lie in whole units, or is outside the weight.
    fn locate(&self, weight: Logical<'_>, pick: Pick) -> Option<Range<u64>>;

    /// In which order packing reads the elements.
    fn order(&self) -> ReadOrder;
}

/// A piece of a weight that a step chooses by an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// A row along axis 0.
    Row(u64),
    /// A matrix of several, such as an expert.
    Group(u64),
}

/// In which order packing reads the elements of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOrder {
    /// In their order, part after part, where every part holds all inputs of its units.
    Sequential,
    /// A piece of every row for each unit; in their order where all units are packed at once.
    Across,
    /// In no particular order.
    Scattered,
}
