//! Steps computed tile by tile, from the placement alone: each tile has the elements that its loops and their split say,
//! and everything else is another number. What comes out together is what the whole step gives, and the bytes that tiles had
//! to get are those that the cost of the step counts.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod statistics;

use crate::models::{Builder, Decoder, Encoder, F16, Weights, decode, encoder, encoder_in_steps, float, gemm, integer};
use ipuc::compile::{CompileOptions, Source as Model, describe};
use ipuc::simulate::{SimulateOptions, simulate};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::f16;
use ipuc_formats::machine::{
    BoundStep, Points, Source, Split, built_in, bytes_of_tile, is_local, layout_of, rests_in_place,
};
use ipuc_formats::model::{KnownStep, Manifest};
use ipuc_formats::ops::{AxisKind, NoBlocks, Op, ReferenceContext, Space};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// A range of points on each axis of a space.
type Tile = Vec<Range<i64>>;

/// Positions on each axis of a tensor.
type Touched = Vec<BTreeSet<i64>>;

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn tensor(&mut self, dtype: DType, extents: &[i64]) -> Tensor {
        let shape: Vec<usize> = extents.iter().map(|&extent| extent as usize).collect();
        let count: usize = shape.iter().product();
        let mut number = || (self.next() % 2001) as f32 / 1000.0 - 1.0;
        match dtype {
            DType::F32 => Tensor::from_elements(&shape, &(0..count).map(|_| number()).collect::<Vec<f32>>()).unwrap(),
            DType::F16 => {
                let elements: Vec<f16> = (0..count).map(|_| f16::from_f32(number())).collect();
                Tensor::from_elements(&shape, &elements).unwrap()
            }
            dtype => Tensor::zeros(dtype, &shape).unwrap(),
        }
    }
}

fn reference(op: &Op, operands: &[Option<Tensor>]) -> Vec<Tensor> {
    let values: Vec<Option<Value>> = operands.iter().map(|operand| operand.clone().map(Value::from)).collect();
    let mut blocks = NoBlocks;
    let results = op.operator().reference(&values, &mut ReferenceContext::new(&mut blocks)).unwrap();
    results.iter().map(|result| result.as_tensor().unwrap().clone()).collect()
}

/// The points of each part of an axis.
fn parts(extent: i64, count: u32) -> Vec<Range<i64>> {
    let length = (extent + i64::from(count) - 1) / i64::from(count);
    let all = (0..i64::from(count)).map(|part| (part * length).min(extent)..((part + 1) * length).min(extent));
    all.filter(|part| !part.is_empty()).collect()
}

/// All tiles of a space; axes that `whole` names are not split.
fn tiles(step: &BoundStep, split: &Split, space: usize, whole: impl Fn(AxisKind) -> bool) -> Vec<Tile> {
    let axes = step.spaces[space].axes.iter().zip(&step.extents[space]).zip(&split.tiles[space]);
    axes.fold(vec![Tile::new()], |tiles, ((axis, &extent), &count)| {
        let own = if whole(axis.kind) { parts(extent, 1) } else { parts(extent, count) };
        tiles.iter().flat_map(|tile| own.iter().map(move |part| [tile.clone(), vec![part.clone()]].concat())).collect()
    })
}

/// Positions of a tensor that a tile touches; none where the space does not touch it.
fn touched(space: &Space, tile: &[Range<i64>], tensor: usize, extents: &[i64]) -> Option<Touched> {
    space.axes.iter().any(|axis| axis.at[tensor].is_some()).then(|| {
        let mut touched: Vec<Option<BTreeSet<i64>>> = vec![None; extents.len()];
        for (axis, points) in space.axes.iter().zip(tile) {
            let Some(index) = axis.at[tensor] else { continue };
            let before = touched[index.axis as usize].take().unwrap_or_else(|| BTreeSet::from([0]));
            let steps = points.clone().map(|point| point * index.stride + index.offset);
            touched[index.axis as usize] =
                Some(steps.flat_map(|step| before.iter().map(move |at| at + step)).collect());
        }
        let all = touched.into_iter().zip(extents);
        all.map(|(own, &extent)| {
            own.map_or_else(|| (0..extent).collect(), |own| own.range(0..extent).copied().collect())
        })
        .collect()
    })
}

fn count(touched: &Touched) -> f64 {
    touched.iter().map(|own| own.len() as f64).product()
}

fn indices(shape: &[usize]) -> Vec<Vec<i64>> {
    shape.iter().fold(vec![Vec::new()], |all, &extent| {
        all.iter().flat_map(|at| (0..extent as i64).map(move |next| [at.clone(), vec![next]].concat())).collect()
    })
}

fn inside(at: &[i64], touched: &Touched) -> bool {
    at.iter().zip(touched).all(|(at, own)| own.contains(at))
}

/// The points of an earlier space that a part of another one needs.
fn needed(step: &BoundStep, space: usize, writing: usize, part: &[Range<i64>]) -> Tile {
    let own = &step.spaces[space];
    let axis = |axis: usize| {
        let linked = own.linked(axis, &step.spaces[writing]).filter(|_| own.axes[axis].kind == AxisKind::Parallel);
        linked.map_or(0..step.extents[space][axis], |linked| part[linked].clone())
    };
    (0..own.axes.len()).map(axis).collect()
}

/// What the tiles that make a part of what a space writes together have of an operand.
fn kept(step: &BoundStep, writing: usize, part: &[Range<i64>], operand: usize, extents: &[i64]) -> Vec<Touched> {
    let earlier = (0..writing).filter(|&space| !step.spaces[space].writes(step.operands.len()));
    let earlier =
        earlier.filter_map(|space| touched(&step.spaces[space], &needed(step, space, writing, part), operand, extents));
    earlier.chain(touched(&step.spaces[writing], part, operand, extents)).collect()
}

/// Compute a step part by part and compare.
fn check_values(op: &Op, step: &BoundStep, split: &Split, operands: &[Option<Tensor>], numbers: &mut Numbers) -> usize {
    let whole = reference(op, operands);
    let mut found: Vec<BTreeSet<Vec<i64>>> = vec![BTreeSet::new(); whole.len()];
    let writing = (0..step.spaces.len()).filter(|&space| step.spaces[space].writes(step.operands.len()));
    let all: Vec<(usize, Tile)> = writing
        .flat_map(|space| {
            // Elements of a recurrent state need all others at each step.
            let tiles = tiles(step, split, space, |kind| matches!(kind, AxisKind::Reduced | AxisKind::Recurrent));
            tiles.into_iter().map(move |tile| (space, tile))
        })
        .collect();
    for (space, part) in &all {
        let space = *space;
        let own: Vec<Option<Tensor>> = (operands.iter().enumerate())
            .map(|(operand, tensor)| {
                let tensor = tensor.as_ref()?;
                let extents: Vec<i64> = tensor.shape().iter().map(|&extent| extent as i64).collect();
                let kept = kept(step, space, part, operand, &extents);
                let at = indices(tensor.shape());
                let source = at.iter().enumerate().map(|(flat, at)| {
                    let has = kept.is_empty() || kept.iter().any(|kept| inside(at, kept));
                    Some(if has { flat } else { numbers.next() as usize % tensor.count() })
                });
                Some(tensor.select(tensor.shape(), source).unwrap())
            })
            .collect();
        let made = reference(op, &own);
        for (result, (whole, made)) in whole.iter().zip(&made).enumerate() {
            let extents: Vec<i64> = whole.shape().iter().map(|&extent| extent as i64).collect();
            let tensor = step.operands.len() + result;
            let Some(own) = touched(&step.spaces[space], part, tensor, &extents) else { continue };
            let at = indices(whole.shape());
            let flat: Vec<Option<usize>> =
                at.iter().enumerate().filter(|(_, at)| inside(at, &own)).map(|(flat, _)| Some(flat)).collect();
            let [expected, found_here] =
                [whole, made].map(|tensor| tensor.select(&[flat.len()], flat.iter().copied()).unwrap());
            assert_eq!(found_here, expected, "part {part:?} of `{}`, {:?}", step.name, split.tiles);
            found[result].extend(at.into_iter().filter(|at| inside(at, &own)));
        }
    }
    // Result 0 is made whole.
    assert_eq!(found[0].len(), whole[0].count(), "`{}`: {:?}", step.name, split.tiles);
    all.len()
}

/// The most bytes of an operand that one tile needs, and whether positions have no gaps.
fn bytes_needed(step: &BoundStep, split: &Split, operand: usize) -> (f64, bool) {
    let bound = step.operands[operand].as_ref().unwrap();
    let all: f64 = bound.extents.iter().map(|&extent| extent as f64).product();
    let of_space = (0..step.spaces.len()).flat_map(|space| {
        let tiles = tiles(step, split, space, |_| false);
        tiles.into_iter().filter_map(move |tile| touched(&step.spaces[space], &tile, operand, &bound.extents))
    });
    let mut most: f64 = -1.0;
    let mut dense = true;
    for own in of_space {
        dense &= own.iter().all(|own| own.first().zip(own.last()).is_none_or(|(a, b)| b - a + 1 == own.len() as i64));
        most = most.max(count(&own));
    }
    let most = if most < 0.0 { all } else { most };
    (bound.bytes * most / all, dense)
}

fn run(model: &[u8], states: bool, unfused: bool, machine: (&str, &str)) -> (usize, usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model).unwrap();
    let states = if states { vec!["past.*=present.*".to_string()] } else { Vec::new() };
    let source = Model { entry: "main".to_string(), path };
    let options = CompileOptions { states, unfused, ..CompileOptions::default() };
    let manifest: Manifest = describe(&[source], &options).unwrap();
    // Small steps are spread only where an exchange costs little besides its bytes.
    let set = [("tiles.count", machine.1), ("exchange.skew", "0 cycles"), ("exchange.phase", "20 cycles")];
    let set = set.map(|(key, value)| (key.to_string(), value.to_string()));
    let target = built_in(machine.0, &set).unwrap().unwrap();
    let simulated = simulate(&manifest, &target, &SimulateOptions::default()).unwrap();
    let mut numbers = Numbers(3);
    let mut values: HashMap<Source, Tensor> = HashMap::new();
    let mut layouts: HashMap<Source, Vec<u32>> = HashMap::new();
    let (mut split_steps, mut parts) = (0, 0);
    for (step, placed) in simulated.program.steps.iter().zip(&simulated.placed) {
        let known = KnownStep::new(&manifest, step.block as usize, step.step as usize).unwrap();
        let facts = known.facts();
        let operands: Vec<Option<Tensor>> = (step.operands.iter().zip(facts.inputs))
            .map(|(bound, fact)| {
                let bound = bound.as_ref()?;
                let (dtype, _) = fact.as_ref().unwrap().kind.as_tensor().unwrap();
                Some(values.entry(bound.source).or_insert_with(|| numbers.tensor(dtype, &bound.extents)).clone())
            })
            .collect();
        let results = match (step.view, &operands[0]) {
            // The elements of operand 0 in another shape.
            (true, Some(from)) => {
                let shape: Vec<usize> = step.results[0].extents.iter().map(|&extent| extent as usize).collect();
                vec![from.select(&shape, (0..from.count()).map(Some)).unwrap()]
            }
            _ => reference(known.op(), &operands),
        };
        let split = &placed.split;
        if !step.view {
            parts += check_values(known.op(), step, split, &operands, &mut numbers);
            split_steps += usize::from(split.tile_count() > 1);
            let reduced = step.spaces.iter().zip(&split.tiles).any(|(space, parts)| {
                space
                    .axes
                    .iter()
                    .zip(parts)
                    .any(|(axis, &parts)| matches!(axis.kind, AxisKind::Reduced | AxisKind::Recurrent) && parts > 1)
            });
            let (mut moved, mut dense) = (0.0, true);
            for (operand, bound) in step.operands.iter().enumerate() {
                let Some(bound) = bound else { continue };
                let (bytes, no_gaps) = bytes_needed(step, split, operand);
                // A tile at the border has no neighbour on that side; what is counted is that of one that has.
                let indices = step.spaces.iter().flat_map(|space| &space.axes).filter_map(|axis| axis.at[operand]);
                let own_dense = no_gaps && indices.into_iter().all(|index| index.offset == 0);
                let counted = bytes_of_tile(step, split, operand, Points::All).0;
                let exact = !own_dense || (counted - bytes).abs() <= 1e-9 * bytes;
                assert!(exact && counted >= bytes - 1e-9, "`{}`, operand {operand}: {bytes} of {counted}", step.name);
                let from = layouts.get(&bound.source);
                let elsewhere =
                    matches!(bound.source, Source::Weight(_)) && !rests_in_place(&target, step, split, operand);
                let comes = matches!(bound.source, Source::Value(_)) && !is_local(step, split, operand, from);
                moved += if elsewhere { bytes.min(step.weight_bytes) } else { 0.0 };
                if comes && (split.tile_count() > 1 || from.is_some()) {
                    moved += bytes;
                    dense &= own_dense;
                }
            }
            let received = placed.cost.received.0;
            assert!(received >= moved - 1e-9, "`{}` moves {moved} bytes of {received}", step.name);
            let states = step.operands.iter().flatten().any(|bound| matches!(bound.source, Source::State(_)));
            if dense && !reduced && !states {
                assert!((received - moved).abs() < 1e-9 * moved.max(1.0), "`{}`: {moved} of {received}", step.name);
            }
        }
        for (index, (bound, result)) in step.results.iter().zip(results).enumerate() {
            if !step.view {
                let last = step.spaces.len() - 1;
                let tensor = step.operands.len() + index;
                layouts.insert(bound.source, layout_of(step, last, split, tensor, bound.extents.len()));
            }
            values.insert(bound.source, result);
        }
    }
    (split_steps, parts)
}

#[test]
fn products_and_encoders_are_right_tile_by_tile() {
    let small = Encoder { layers: 1, width: 32, heads: 2, inner: 64, tokens: 9, biases: false };
    for machine in [("graphcore-mk2", "16"), ("cerebras-wse3", "64"), ("ipu-edge", "5")] {
        let (split, parts) = run(&gemm(F16, (12, 40, 33), Weights::Plain), false, false, machine);
        assert!(split == 1 && parts > 1, "{machine:?}: {split} {parts}");
        let (split, parts) = run(&encoder(F16, 2, &small), false, false, machine);
        assert!(split >= 6 && parts > 12, "{machine:?}: {split} {parts}");
        let (split, parts) = run(&encoder_in_steps(F16, 1, &small), false, true, machine);
        assert!(split > 8 && parts > 20, "{machine:?}: {split} {parts}");
    }
}

#[test]
fn a_convolution_with_a_halo_is_right_tile_by_tile() {
    // 3 x 3 taps over 12 x 12 positions: tiles that share rows need those of their neighbours beside their own.
    let mut builder = Builder::new(F16);
    let x = builder.input("x", &[1, 8, 12, 12]);
    let y = builder.convolution(&x, (8, 4), 3, 1, false);
    let z = builder.convolution(&y, (4, 8), 3, 2, false);
    let model = builder.finish(&[(&z, vec![1, 8, 6, 6])]);
    for machine in [("graphcore-mk2", "6"), ("cerebras-wse3", "36"), ("tenstorrent-n150", "9")] {
        let (split, parts) = run(&model, false, false, machine);
        assert!(split == 2 && parts >= 4, "{machine:?}: {split} {parts}");
    }
}

/// Sums of f32 over parts of the inputs, each computed by one tile, are added as the tiles do: the result differs from that of
/// the whole by rounding, and each tile gets a share of all parts but its own.
#[test]
fn a_sum_that_tiles_share_is_put_together_from_their_parts() {
    let (rows, inputs, outputs) = (3, 512, 4);
    let model = gemm(F16, (rows, inputs, outputs), Weights::Plain);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, &model).unwrap();
    let manifest = describe(&[Model { entry: "main".to_string(), path }], &CompileOptions::default()).unwrap();
    let target = built_in("cerebras-wse3", &[("tiles.count".to_string(), "16".to_string())]).unwrap().unwrap();
    let simulated = simulate(&manifest, &target, &SimulateOptions::default()).unwrap();
    let (step, placed) = (&simulated.program.steps[0], &simulated.placed[0]);
    let known = KnownStep::new(&manifest, step.block as usize, step.step as usize).unwrap();
    let space = step.spaces.len() - 1;
    let reduced = step.spaces[space].axes.iter().position(|axis| axis.kind == AxisKind::Reduced).unwrap();
    let shares = placed.split.tiles[space][reduced];
    assert!(shares > 1, "{:?}", placed.split.tiles);
    let mut numbers = Numbers(9);
    let operands: Vec<Option<Tensor>> =
        step.operands.iter().map(|bound| Some(numbers.tensor(DType::F16, &bound.as_ref()?.extents))).collect();
    let whole = reference(known.op(), &operands).remove(0);
    let mut sums = vec![0.0f32; whole.count()];
    for tile in tiles(step, &placed.split, space, |_| false) {
        // Elements that the tile has not are zero, which adds nothing.
        let own: Vec<Option<Tensor>> = operands
            .iter()
            .enumerate()
            .map(|(operand, tensor)| {
                let tensor = tensor.as_ref()?;
                let extents: Vec<i64> = tensor.shape().iter().map(|&extent| extent as i64).collect();
                let kept = touched(&step.spaces[space], &tile, operand, &extents)?;
                let source = indices(tensor.shape())
                    .into_iter()
                    .enumerate()
                    .map(|(flat, at)| inside(&at, &kept).then_some(flat));
                Some(tensor.select(tensor.shape(), source).unwrap())
            })
            .collect();
        let part = reference(known.op(), &own).remove(0);
        for (sum, part) in sums.iter_mut().zip(part.elements::<f16>().unwrap()) {
            *sum += part.to_f32();
        }
    }
    for (sum, expected) in sums.iter().zip(whole.elements::<f16>().unwrap()) {
        // Each part was rounded to f16 here, which the partial sums of a machine are not.
        assert!((sum - expected.to_f32()).abs() <= 0.02 * f32::from(shares as u16), "{sum} {}", expected.to_f32());
    }
    let tiles_of_result = placed.cost.tiles / shares;
    let results = (rows * outputs) as f64 / f64::from(tiles_of_result);
    let operands: f64 = (0..2)
        .filter(|&operand| !rests_in_place(&target, step, &placed.split, operand) || operand == 0)
        .map(|operand| bytes_of_tile(step, &placed.split, operand, Points::All).0)
        .sum();
    let combined = placed.cost.received.0 - operands;
    let least = (results / f64::from(shares)).ceil() * f64::from(shares - 1) * 4.0;
    assert!(combined > 0.0 && combined <= least + 1e-9, "{combined} B of partial sums, {least} in one phase");
}

#[test]
fn attention_over_cached_keys_is_right_tile_by_tile() {
    let small = Decoder { layers: 1, width: 32, heads: 4, key_heads: 2, head: 8, inner: 32, vocabulary: 32 };
    for machine in [("graphcore-mk2", "16"), ("cerebras-wse3", "256")] {
        let (split, parts) = run(&decode(F16, 1, 40, &small, Weights::Plain), true, false, machine);
        assert!(split >= 6 && parts > 12, "{machine:?}: {split} {parts}");
    }
}

#[test]
fn elements_of_a_recurrent_state_are_computed_tile_by_tile_and_exchanged_at_each_step() {
    let (steps, batch, input, hidden) = (6, 2, 24, 32);
    let mut builder = Builder::new(F16);
    let x = builder.input("x", &[steps, batch, input]);
    let (w, r) = (builder.input("w", &[1, 4 * hidden, input]), builder.input("r", &[1, 4 * hidden, hidden]));
    let y = builder.node("LSTM", &[&x, &w, &r], Vec::new());
    let model = builder.finish(&[(&y, vec![steps, 1, batch, hidden])]);
    for machine in [("graphcore-mk2", "16"), ("cerebras-wse3", "8")] {
        let (_, parts) = run(&model, false, false, machine);
        assert!(parts >= 1, "{machine:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, &model).unwrap();
    let manifest = describe(&[Model { entry: "main".to_string(), path }], &CompileOptions::default()).unwrap();
    // Exchange costs nothing but its bytes, so that all tiles take part.
    let set = [
        ("tiles.count", "8"),
        ("exchange.phase", "0 cycles"),
        ("exchange.receive", "64 B/cycle"),
        ("exchange.transfer", "0 cycles"),
        ("exchange.skew", "0 cycles"),
    ];
    let set = set.map(|(key, value)| (key.to_string(), value.to_string()));
    let target = built_in("graphcore-mk2", &set).unwrap().unwrap();
    let simulated = simulate(&manifest, &target, &SimulateOptions::default()).unwrap();
    let (step, placed) = (&simulated.program.steps[0], &simulated.placed[0]);
    let recurrent = |space: usize| {
        let axes = step.spaces[space].axes.iter().zip(&placed.split.tiles[space]);
        axes.filter(|(axis, _)| axis.kind == AxisKind::Recurrent).map(|(_, &parts)| i64::from(parts)).product::<i64>()
    };
    let parts = recurrent(1);
    assert!(parts > 1 && recurrent(0) == parts, "{:?}", placed.split.tiles);
    // A tile has the rows of its elements in all four gates.
    let own = hidden / parts;
    let weights = bytes_of_tile(step, &placed.split, 2, Points::All).0;
    assert_eq!(weights, (4 * own * hidden * 2) as f64);
    // Once for the inputs, and at each step the elements of other tiles, of both sequences.
    assert_eq!(placed.cost.phases, 1 + steps as u32);
    let operands: f64 = (0..3).map(|operand| bytes_of_tile(step, &placed.split, operand, Points::All).0).sum();
    let sequences = batch / (i64::from(placed.cost.tiles) / parts);
    assert_eq!(placed.cost.received.0, operands + (steps * sequences * (hidden - own) * 2) as f64);
}
