//! Rules of placements.
//!
//! - A target has a name. Each binding is of a declared symbol, once, within its range. Placements of a block for one
//!   target differ in their bindings.
//! - Steps are in order and exist. A split names an axis of a space of its step that is parallel, or reduced where the
//!   step states a reduction; it has at least two parts, and those of an axis are together no more than its points.
//! - Tiles are ranges in order without overlaps, as many as the splits over tiles of each space that has any have parts,
//!   one where none has.
//! - Regions are of the step's operands and results, not empty, and live while the step runs, up to a step of the block.
//!   Two that share a tile, a step and a byte are the same region of the same operand. Their number is limited.
//! - On a target: tiles are below its number of tiles, regions end within the memory of one.

use super::super::{
    Fault, FormatError, KnownStep, Manifest, OperandRecord, PlacementRecord, Reduction, RegionRecord, SplitKind,
    StepPlacementRecord,
};
use super::{at_most, in_range};
use crate::dim::Bindings;
use crate::limits;
use crate::ops::{AxisKind, Space};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

pub(super) fn check(manifest: &Manifest) -> Result<(), FormatError> {
    let ranges = |step: &StepPlacementRecord| (step.regions.len() as u64).saturating_mul(step.tiles.len() as u64);
    let regions = manifest.placements.iter().flat_map(|placement| &placement.steps).map(ranges);
    let regions = regions.fold(0u64, u64::saturating_add);
    at_most("the number of regions", regions, limits::IPU_PLACED_REGIONS).map_err(|fault| fault.at("placements"))?;
    let mut seen = HashSet::new();
    for (index, placement) in manifest.placements.iter().enumerate() {
        let place = |fault: Fault| fault.at(format!("placement {index}"));
        check_one(manifest, placement, None).map_err(place)?;
        let bindings: BTreeMap<&str, i64> =
            placement.bindings.iter().map(|(symbol, value)| (symbol.as_str(), *value)).collect();
        if !seen.insert((&placement.target, placement.block, bindings)) {
            return Err(place(Fault::Duplicate { what: "placement on", name: placement.target.clone() }));
        }
    }
    Ok(())
}

/// Check a placement of a block of this manifest against a target of so many tiles, each with so much memory.
///
/// # Errors
/// [`FormatError::Record`] for the first rule that it breaks.
pub fn check_placement(
    manifest: &Manifest,
    placement: &PlacementRecord,
    tiles: u32,
    sram_bytes: u64,
) -> Result<(), FormatError> {
    let place = || format!("placement on `{}`", placement.target);
    check_one(manifest, placement, Some((tiles, sram_bytes))).map_err(|fault| fault.at(place()))
}

fn check_one(manifest: &Manifest, placement: &PlacementRecord, target: Option<(u32, u64)>) -> Result<(), Fault> {
    if placement.target.is_empty() {
        return Err(Fault::Missing("the name of the target"));
    }
    let block = in_range("block", placement.block, manifest.blocks.len())?;
    let bindings = bindings(manifest, placement)?;
    let steps = manifest.blocks[block].steps.len();
    let mut next = 0;
    let mut regions = Vec::new();
    for step in &placement.steps {
        let index = in_range("step", step.step, steps)?;
        if step.step < next {
            return Err(Fault::Rule("its steps are not in order"));
        }
        next = step.step + 1;
        check_splits(manifest, block, index, step, &bindings)?;
        check_regions(manifest, block, step, target)?;
        let placed =
            step.regions.iter().flat_map(|region| step.tiles.iter().map(move |tiles| Placed { region, tiles }));
        regions.extend(placed);
    }
    check_overlaps(regions)
}

/// The values of dimensions, checked.
fn bindings(manifest: &Manifest, placement: &PlacementRecord) -> Result<Bindings, Fault> {
    let mut bindings = Bindings::default();
    for (symbol, value) in &placement.bindings {
        let declared = manifest.symbols.iter().find(|declared| declared.name == *symbol);
        let declared = declared.ok_or_else(|| Fault::UndeclaredSymbol(symbol.clone()))?;
        if *value < declared.minimum || *value > declared.maximum {
            return Err(Fault::Rule("it binds a dimension to a value outside of its range"));
        }
        if bindings.insert(symbol.as_str(), *value).is_some() {
            return Err(Fault::Duplicate { what: "binding", name: symbol.clone() });
        }
    }
    Ok(bindings)
}

fn check_splits(
    manifest: &Manifest,
    block: usize,
    index: usize,
    step: &StepPlacementRecord,
    bindings: &Bindings,
) -> Result<(), Fault> {
    let known = KnownStep::new(manifest, block, index).ok_or(Fault::Rule("the types of a placed step do not fit"))?;
    let spaces = known.op().spaces(&known.facts());
    if let Some(operand) = step.stationary {
        in_range("operand", operand, manifest.blocks[block].steps[index].operands.len())?;
    }
    // Parts of each axis, and parts over tiles of each space.
    let mut axes: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let mut over_tiles: BTreeMap<u32, u64> = BTreeMap::new();
    for split in &step.splits {
        let space: &Space = &spaces[in_range("space", split.space, spaces.len())?];
        let axis = &space.axes[in_range("axis", split.axis, space.axes.len())?];
        match (axis.kind, step.reduction) {
            (AxisKind::Parallel | AxisKind::Recurrent, _) | (AxisKind::Reduced, Reduction::Chain | Reduction::Tree) => {
            }
            (AxisKind::Reduced, Reduction::None) => {
                return Err(Fault::Rule("it splits a reduced axis without a reduction"));
            }
            (AxisKind::Serial, _) => return Err(Fault::Rule("it splits an axis that is serial")),
        }
        if split.parts < 2 {
            return Err(Fault::Rule("it splits an axis in fewer than two parts"));
        }
        let parts = axes.entry((split.space, split.axis)).or_insert(1);
        *parts = parts.saturating_mul(u64::from(split.parts));
        let points = axis.extent.evaluate(bindings);
        let points = points.map_err(|_| Fault::Rule("it splits an axis whose extent its bindings leave open"))?;
        at_most("the number of parts of an axis", *parts, u64::try_from(points).unwrap_or(0))?;
        if split.kind == SplitKind::Tiles {
            let parts = over_tiles.entry(split.space).or_insert(1);
            *parts = parts.saturating_mul(u64::from(split.parts));
        }
    }
    check_tiles(step, &over_tiles)
}

fn check_tiles(step: &StepPlacementRecord, over_tiles: &BTreeMap<u32, u64>) -> Result<(), Fault> {
    let (mut end, mut tiles) = (0, 0u64);
    for range in &step.tiles {
        if range.start < end || range.end <= range.start {
            return Err(Fault::Rule("its tiles are not in order"));
        }
        tiles += u64::from(range.end - range.start);
        end = range.end;
    }
    // What one space has fewer parts of, several tiles compute.
    super::equal("the number of tiles", tiles, over_tiles.values().copied().max().unwrap_or(1))?;
    match over_tiles.values().find(|&&parts| !tiles.is_multiple_of(parts)) {
        Some(_) => Err(Fault::Rule("the parts of a space do not divide its tiles")),
        None => Ok(()),
    }
}

fn check_regions(
    manifest: &Manifest,
    block: usize,
    step: &StepPlacementRecord,
    target: Option<(u32, u64)>,
) -> Result<(), Fault> {
    let block = &manifest.blocks[block];
    let record = &block.steps[step.step as usize];
    for region in &step.regions {
        let known = match region.operand {
            OperandRecord::Absent => false,
            OperandRecord::Value(value) => record.results.contains(&value) || record.operands.contains(&region.operand),
            OperandRecord::Weight(_) => record.operands.contains(&region.operand),
        };
        if !known {
            return Err(Fault::Rule("a region is of no operand and no result of its step"));
        }
        let end = region.offset.checked_add(region.bytes).filter(|_| region.bytes > 0);
        let end = end.ok_or(Fault::Rule("a region is empty or ends beyond 64 bits"))?;
        in_range("step", region.to, block.steps.len())?;
        if step.step < region.from || step.step > region.to {
            return Err(Fault::Rule("a region does not live while its step runs"));
        }
        if let Some((_, sram_bytes)) = target {
            at_most("the end of a region", end, sram_bytes)?;
        }
    }
    match (target, step.tiles.last()) {
        (Some((tiles, _)), Some(last)) => at_most("the end of its tiles", u64::from(last.end), u64::from(tiles)),
        (None, _) | (_, None) => Ok(()),
    }
}

/// A region on one range of tiles.
#[derive(Clone, Copy)]
struct Placed<'a> {
    region: &'a RegionRecord,
    tiles: &'a Range<u32>,
}

impl Placed<'_> {
    fn meets(&self, other: &Placed<'_>) -> bool {
        let (a, b) = (self.region, other.region);
        let bytes = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
        bytes && self.tiles.start < other.tiles.end && other.tiles.start < self.tiles.end
    }
}

/// Regions by their first step, each beside those that still live then.
fn check_overlaps(mut placed: Vec<Placed<'_>>) -> Result<(), Fault> {
    placed.sort_by_key(|placed| placed.region.from);
    let mut living: Vec<Placed<'_>> = Vec::new();
    for next in placed {
        living.retain(|earlier| earlier.region.to >= next.region.from);
        if living.iter().any(|earlier| earlier.meets(&next) && earlier.region != next.region) {
            return Err(Fault::Rule("two regions overlap"));
        }
        living.push(next);
    }
    Ok(())
}
