//! Give everything that lies in the memory of a tile its place there, over the whole program.
//!
//! `regions.rs` says what lies there, how much of it and from which step to which, as follows from how steps are spread
//! ([`tile`](crate::tile)) and from where weights, values and state live; `offsets.rs` gives each region an offset so that
//! none of those that live at the same time overlap; `records.rs` makes the records of a file. Code and tables are in the
//! part of the memory that the machine reserves, at its beginning. Steps compute on tiles counted from 0, so that all
//! regions meet on tile 0, and one set of offsets serves every tile.
//!
//! Establishes: no two regions of a tile overlap in bytes and steps (verified where a file is written or read). Leaves
//! alone: how steps are spread, and what they compute. Cost: regions x regions that live at the same time.

mod offsets;
mod records;
mod regions;

pub use records::records;
pub use regions::{Holds, Reading, Region};

use crate::tile::Placed;
use ipuc_formats::machine::units::Bytes;
use ipuc_formats::machine::{Homes, Program, Target};
use ipuc_formats::model::Manifest;
use std::fmt::Write as _;
use thiserror::Error;

/// Where everything lies in the memory of a tile.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// All regions, in the order of the steps that they belong to.
    pub regions: Vec<Region>,
    /// Operands that are read where an earlier step left them.
    pub readings: Vec<Reading>,
    /// What a tile needs, without the reserved part.
    pub needed: Bytes,
    /// What it has, without the reserved part.
    pub available: Bytes,
    /// Index in the program of the step at which most bytes live.
    pub fullest: usize,
}

/// Why a program does not fit into the memories of tiles.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlaceError {
    /// More lives at the same time than a tile holds.
    #[error("`{target}`: {}: {chips} such machines would hold it", self.shortage())]
    Memory {
        /// Name of the target.
        target: String,
        /// Name of the step at which most bytes live.
        step: String,
        /// What a tile needs.
        needed: String,
        /// What it has.
        available: String,
        /// Tiles of the machine.
        tiles: u32,
        /// How many such machines would be enough, if everything were divided among them.
        chips: u64,
    },
}

impl PlaceError {
    /// What a machine lacks, without what would help.
    pub fn shortage(&self) -> String {
        let PlaceError::Memory { step, needed, available, tiles, .. } = self;
        format!("step `{step}` and what lives beside it need {needed} of each of {tiles} tiles, which have {available}")
    }
}

/// Place the regions of a program whose steps are spread like this.
pub fn place(manifest: &Manifest, program: &Program, target: &Target, homes: &Homes, placed: &[Placed]) -> Plan {
    let (mut regions, readings) = regions::collect(manifest, program, target, homes, placed);
    let reserved = target.tiles.reserved.0.ceil() as u64;
    let end = offsets::assign(&mut regions, reserved);
    Plan {
        needed: Bytes((end - reserved) as f64),
        available: target.tiles.sram - target.tiles.reserved,
        fullest: offsets::fullest(&regions, program.steps.len()),
        regions,
        readings,
    }
}

impl Plan {
    /// The plan of steps that come after so many others.
    #[must_use]
    pub fn after(mut self, steps: usize) -> Plan {
        for region in &mut self.regions {
            region.step += steps;
            region.from += steps;
            region.to += steps;
        }
        self.readings.iter_mut().for_each(|reading| reading.step += steps);
        self.fullest += steps;
        self
    }

    /// Whether it fits.
    ///
    /// # Errors
    /// [`PlaceError::Memory`] where a tile needs more than it has.
    pub fn check(&self, program: &Program, target: &Target) -> Result<(), PlaceError> {
        if self.needed <= self.available {
            return Ok(());
        }
        Err(PlaceError::Memory {
            target: target.name.clone(),
            step: program.steps.get(self.fullest).map_or_else(String::new, |step| step.name.clone()),
            needed: self.needed.to_string(),
            available: self.available.to_string(),
            tiles: target.tiles.count.get(),
            chips: (self.needed / self.available).ceil() as u64,
        })
    }

    /// One line a region: where it lies, when, and why.
    pub fn text(&self, program: &Program) -> String {
        let mut text = String::new();
        for region in &self.regions {
            let step = &program.steps[region.step];
            let tensor = match region.tensor.checked_sub(step.operands.len()) {
                Some(result) => format!("result {result}"),
                None => format!("operand {}", region.tensor),
            };
            let holds: &'static str = region.holds.into();
            let (offset, end) = (region.offset, region.offset + region.bytes);
            let _ = writeln!(
                text,
                "{offset:>8}..{end:<8} steps {:>3} to {:<3} {holds}: {tensor} of step {}, {} `{}`",
                region.from, region.to, region.step, step.operator, step.name
            );
        }
        let _ = writeln!(text, "{} of {} in a tile, most at step {}", self.needed, self.available, self.fullest);
        text
    }
}
