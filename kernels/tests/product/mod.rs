//! Products with all kinds of weights.

mod coded;
mod dynamic;
mod exact;
mod input_major;
mod integer;
mod panels;
mod plain;
mod sparse;
