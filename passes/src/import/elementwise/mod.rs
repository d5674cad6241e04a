//! Functions of elements, one at a time; random numbers.

mod functions;
mod microsoft;
mod random;

pub(super) use functions::type_attribute;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] =
    &[functions::ROWS, functions::MACHINE_LEARNING_ROWS, microsoft::ROWS, random::ROWS];
