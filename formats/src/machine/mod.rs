//! Machines: what they are made of, and what steps of a program cost on them.
//!
//! [`read_target`] reads the description of a machine (`TARGETS.md` explains it, [`BUILT_IN`] has those that the program
//! knows), [`Program::bind`] gives a program as numbers, [`step_cost`] the cost of a step that is spread in a given way.
//! Everything here is arithmetic: the search for a way is a pass, the timeline of a run is the runtime's.

mod builtin;
mod cost;
mod exchange;
mod grid;
mod homes;
mod io;
mod matrix;
mod numerics;
mod program;
mod read;
mod roles;
mod rows;
mod split;
mod step_cost;
mod target;
#[cfg(test)]
mod tests;
pub mod units;
mod zero_map;
mod zeros;

pub use builtin::{BUILT_IN, built_in, built_in_text};
pub use cost::{CostError, counted_cost, step_cost};
pub use exchange::{Traffic, exchange_cycles, is_local, rests_in_place};
pub use homes::{Homes, Place};
pub use matrix::{TileProduct, fastest};
pub use numerics::Numerics;
pub use program::{BoundProduct, BoundStep, BoundTensor, Program, ProgramError, Source};
pub use read::{SMALLEST_TIER, TargetError, read_target, read_target_with};
pub use roles::AxisRole;
pub use split::{Layout, Points, Split, bytes_of_tile, layout_of, partial_bytes};
pub use step_cost::{ENGINES, StepCost};
pub use target::{
    Energy, Exchange, Home, Links, Matrix, Overhead, Policy, Style, Target, Thermal, Tier, Tiles, Vector, Zeros,
};
pub use zero_map::{ActivationZeros, StepZeros, ZeroMap};
pub use zeros::Kept;
