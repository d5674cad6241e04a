//! Placements through a real file: written beside the program, read back, validated, ignored by a run on the host.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use crate::support::{linear, linear_weight, write};
use ipuc::compile::{CompileError, CompileOptions, Source, compile};
use ipuc::{Session, SessionOptions, Tensor};
use ipuc_formats::model::{
    Manifest, OperandRecord, PlacementRecord, Reduction, RegionRecord, SplitKind, SplitRecord, StepPlacementRecord,
    check_placement, read_manifest,
};
use std::path::Path;

const fn region(operand: OperandRecord, offset: u64, bytes: u64, from: u32, to: u32) -> RegionRecord {
    RegionRecord { operand, offset, bytes, from, to }
}

fn split(axis: u32, parts: u32, kind: SplitKind) -> SplitRecord {
    SplitRecord { space: 0, axis, parts, kind }
}

/// A product of `[4, 3]` and `[3, 2]` over rows and columns on four tiles, then an addition where its parts are.
fn placement() -> PlacementRecord {
    let (product, sum) = (OperandRecord::Value(1), OperandRecord::Value(2));
    let product = region(product, 64, 8, 0, 1);
    PlacementRecord {
        target: "fabric".to_string(),
        target_hash: [7; 32],
        block: 0,
        steps: vec![
            StepPlacementRecord {
                step: 0,
                splits: vec![split(0, 2, SplitKind::Tiles), split(1, 2, SplitKind::Tiles)],
                stationary: Some(1),
                tiles: vec![0..2, 4..6],
                regions: vec![region(OperandRecord::Weight(0), 0, 12, 0, 0), product],
                reduction: Reduction::None,
                reason: "the only way".to_string(),
            },
            StepPlacementRecord {
                step: 1,
                splits: vec![split(0, 2, SplitKind::Tiles), split(1, 2, SplitKind::Tiles)],
                stationary: None,
                tiles: vec![0..2, 4..6],
                regions: vec![product, region(sum, 0, 8, 1, 1)],
                reduction: Reduction::None,
                reason: "the only way".to_string(),
            },
        ],
        bindings: vec![("batch".to_string(), 4)],
    }
}

/// The manifest of the model compiled with these placements.
fn compiled(folder: &Path, placements: Vec<PlacementRecord>) -> Result<Manifest, CompileError> {
    write(folder, "linear.onnx", &linear(linear_weight()));
    let source = Source { entry: "main".to_string(), path: folder.join("linear.onnx") };
    let ranges = vec![("batch".to_string(), 1, 8)];
    let output = folder.join("linear.ipu");
    compile(&[source], &output, &CompileOptions { placements, ranges, unfused: true, ..CompileOptions::default() })?;
    let bytes = std::fs::read(output).unwrap();
    Ok(read_manifest(&bytes).unwrap().1)
}

fn refusal(manifest: &Manifest, placement: &PlacementRecord, tiles: u32, sram_bytes: u64) -> Option<String> {
    check_placement(manifest, placement, tiles, sram_bytes).err().map(|error| error.to_string())
}

#[test]
fn a_placement_survives_the_file_and_the_host_ignores_it() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = compiled(folder.path(), vec![placement()]).unwrap();
    assert_eq!(manifest.placements, [placement()]);
    assert_eq!(refusal(&manifest, &placement(), 6, 72), None);
    let tiles = refusal(&manifest, &placement(), 5, 72).unwrap();
    assert!(tiles.ends_with("the end of its tiles is 6, the limit is 5"), "{tiles}");
    let memory = refusal(&manifest, &placement(), 6, 71).unwrap();
    assert!(memory.ends_with("the end of a region is 72, the limit is 71"), "{memory}");

    let model = ipuc::open(folder.path().join("linear.ipu")).unwrap();
    let x = Tensor::from_elements(&[1, 3], &[1.0f32; 3]).unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let outputs = session.run(None, vec![("x".to_string(), x.into())]).unwrap();
    assert_eq!(outputs[0].1.as_tensor().unwrap().elements::<f32>().unwrap(), [9.5, 11.5]);
}

#[test]
fn what_cannot_be_is_refused_when_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |placements: Vec<PlacementRecord>, expected: &str| {
        let error = compiled(folder.path(), placements).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}\nshould end with: {expected}");
    };
    refused(vec![placement(), placement()], "placement on `fabric` occurs twice");
    let mut elsewhere = placement();
    elsewhere.block = 1;
    refused(vec![elsewhere], "block 1 does not exist, there are 1");
}

type Change = fn(&mut PlacementRecord);

#[test]
fn every_rule_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = compiled(folder.path(), vec![]).unwrap();
    let rules: &[(Change, &str)] = &[
        (|p| p.target.clear(), "the name of the target is missing"),
        (|p| p.bindings[0].0 = "other".to_string(), "symbol `other` is not declared"),
        (|p| p.bindings[0].1 = 9, "it binds a dimension to a value outside of its range"),
        (|p| p.bindings.push(("batch".to_string(), 4)), "binding `batch` occurs twice"),
        (|p| p.bindings.clear(), "it splits an axis whose extent its bindings leave open"),
        (|p| p.steps[1].step = 2, "step 2 does not exist, there are 2"),
        (|p| p.steps[1].step = 0, "its steps are not in order"),
        (|p| p.steps[0].splits[0].space = 1, "space 1 does not exist, there are 1"),
        (|p| p.steps[0].splits[0].axis = 3, "axis 3 does not exist, there are 3"),
        (|p| p.steps[0].splits[0].axis = 2, "it splits a reduced axis without a reduction"),
        (|p| p.steps[0].splits[0].parts = 1, "it splits an axis in fewer than two parts"),
        (|p| p.steps[0].splits[0].parts = 5, "the number of parts of an axis is 5, the limit is 4"),
        (
            |p| {
                p.steps[0].splits[1].axis = 0;
                p.steps[0].splits[1].parts = 3;
            },
            "the number of parts of an axis is 6, the limit is 4",
        ),
        (|p| p.steps[0].splits[1].kind = SplitKind::Time, "the number of tiles is 4, expected 2"),
        (|p| p.steps[0].splits.clear(), "the number of tiles is 4, expected 1"),
        (|p| p.steps[0].stationary = Some(2), "operand 2 does not exist, there are 2"),
        (|p| p.steps[0].tiles.swap(0, 1), "its tiles are not in order"),
        (|p| p.steps[0].tiles[0] = 2..2, "its tiles are not in order"),
        (|p| p.steps[0].tiles[1].end = 7, "the number of tiles is 5, expected 4"),
        (
            |p| p.steps[0].regions[0].operand = OperandRecord::Absent,
            "a region is of no operand and no result of its step",
        ),
        (
            |p| p.steps[0].regions[0].operand = OperandRecord::Weight(1),
            "a region is of no operand and no result of its step",
        ),
        (|p| p.steps[0].regions[0].bytes = 0, "a region is empty or ends beyond 64 bits"),
        (|p| p.steps[0].regions[0].offset = u64::MAX, "a region is empty or ends beyond 64 bits"),
        (|p| p.steps[0].regions[0].from = 1, "a region does not live while its step runs"),
        (|p| p.steps[0].regions[0].to = 2, "step 2 does not exist, there are 2"),
        (|p| p.steps[0].regions[0].to = 1, "two regions overlap"),
        (|p| p.steps[0].regions[0].bytes = 65, "two regions overlap"),
    ];
    for (index, (change, expected)) in rules.iter().enumerate() {
        let mut changed = placement();
        change(&mut changed);
        let found = refusal(&manifest, &changed, 64, 1 << 20).unwrap_or_else(|| panic!("rule {index}: {expected}"));
        assert!(found.ends_with(expected), "rule {index}: {found}\nshould end with: {expected}");
    }
    let mut reduced = placement();
    reduced.steps[0].splits[0].axis = 2;
    reduced.steps[0].reduction = Reduction::Tree;
    assert_eq!(refusal(&manifest, &reduced, 64, 1 << 20), None);
}

/// Regions overlap where a byte of a tile is claimed twice in a step, whoever counts.
#[test]
fn overlaps_are_those_of_bytes_and_steps() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = compiled(folder.path(), vec![]).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |limit: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % limit
    };
    let (mut sound, mut broken) = (0, 0);
    for _ in 0..2000 {
        let mut random = placement();
        let operands =
            [[OperandRecord::Weight(0), OperandRecord::Value(1)], [OperandRecord::Value(1), OperandRecord::Value(2)]];
        for (step, operands) in random.steps.iter_mut().zip(operands) {
            let start = below(3) as u32;
            step.tiles = vec![start..start + 2, start + 3..start + 5];
            for (own, operand) in step.regions.iter_mut().zip(operands) {
                let from = if step.step == 0 { 0 } else { below(2) as u32 };
                let to = if step.step == 1 { 1 } else { below(2) as u32 };
                *own = region(operand, below(12), 1 + below(5), from, to);
            }
        }
        let mut claimed: Vec<((u32, u32, u64), RegionRecord)> = Vec::new();
        let mut overlap = false;
        for step in &random.steps {
            for own in &step.regions {
                for tile in step.tiles.iter().cloned().flatten() {
                    for at in own.from..=own.to {
                        for byte in own.offset..own.offset + own.bytes {
                            let place = (tile, at, byte);
                            overlap |= claimed.iter().any(|(other, by)| *other == place && by != own);
                            claimed.push((place, *own));
                        }
                    }
                }
            }
        }
        let found = refusal(&manifest, &random, 64, 64);
        assert_eq!(found.is_some_and(|error| error.ends_with("two regions overlap")), overlap, "{random:?}");
        if overlap { broken += 1 } else { sound += 1 }
    }
    assert!(sound > 50 && broken > 50, "{sound} sound, {broken} broken");
}
