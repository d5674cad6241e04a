//! Functions of elements, one at a time; random numbers.

mod first_versions;
mod functions;
mod microsoft;
mod random;
mod training;

pub(super) use functions::type_attribute;

use crate::import::Row;

/// The tables of this family.
pub(super) const TABLES: &[&[Row]] = &[
    first_versions::ROWS,
    functions::ROWS,
    functions::MACHINE_LEARNING_ROWS,
    microsoft::ROWS,
    random::ROWS,
    training::ROWS,
];
