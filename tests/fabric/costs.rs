//! What steps cost: products, windows, reductions, exchange, gaps.

use super::{SMALL_DECODER, close, described, run, run_with};
use crate::models::{self, BF16, Decoder, F16, Weights, decode, gemm, resnet50};
use ipuc::simulate::Simulated;
use ipuc_formats::machine::built_in;

#[test]
fn work_of_the_program_is_that_of_the_models() {
    let resnet = described(&resnet50(F16, 1), false);
    let target = built_in("graphcore-c600", &[]).unwrap().unwrap();
    let simulated = run(&resnet, &target).unwrap();
    // 4.09 G for ResNet-50 v1.5, and 25.5 million weights.
    assert_eq!(simulated.report.macs, 4_089_184_256.0);
    assert!((simulated.program.weight_bytes / 2.0 - 25.5e6).abs() < 0.2e6, "{}", simulated.program.weight_bytes);
}

#[test]
fn windows_are_copied_out_where_the_machine_does_so_and_only_those_that_overlap() {
    let resnet = described(&resnet50(F16, 2), false);
    let gathered = run_with(&resnet, "tenstorrent-n150", &[]);
    let mut windows = 0;
    for (step, placed) in gathered.program.steps.iter().zip(&gathered.placed) {
        let overlap = step.operator == "convolution" && step.extents[0][5] > 1;
        windows += usize::from(overlap);
        assert_eq!(placed.cost.copies.0 > 0.0, overlap, "{} {:?}: {}", step.name, step.extents, placed.cost.copies.0);
    }
    // One in each of 16 blocks, and the first convolution.
    assert_eq!(windows, 17);
    let read = run_with(&resnet, "tenstorrent-n150", &[("tiles.gathers_windows", "false")]);
    assert!(read.placed.iter().all(|placed| placed.cost.copies.0 == 0.0));
    assert!(read.report.makespan < gathered.report.makespan);
}

#[test]
fn keys_are_copied_with_outputs_side_by_side_where_the_machine_does_so() {
    let decoder = described(&decode(F16, 1, 1000, &SMALL_DECODER, Weights::Plain), true);
    let read = run_with(&decoder, "a100", &[]);
    let turned = run_with(&decoder, "a100", &[("tiles.turns_values", "true")]);
    let copies = |simulated: &Simulated| -> Vec<f64> {
        let steps = simulated.program.steps.iter().zip(&simulated.placed);
        let attention = steps.filter(|(step, _)| step.operator == "attention");
        attention.map(|(_, placed)| placed.cost.copies.0 * f64::from(placed.cost.tiles)).collect()
    };
    assert!(!copies(&read).is_empty() && copies(&read).iter().all(|&cycles| cycles == 0.0), "{:?}", copies(&read));
    // Keys of a layer, in f16, are read and written once by all tiles together.
    let keys = f64::from(SMALL_DECODER.key_heads as u32 * 1000 * SMALL_DECODER.head as u32);
    let least = 2.0 * 2.0 * keys / built_in("a100", &[]).unwrap().unwrap().tiles.bandwidth.0;
    // What the busiest tile copies, taken of each of them, is little more.
    let of_keys = least..1.1 * least;
    assert!(copies(&turned).iter().all(|cycles| of_keys.contains(cycles)), "{:?} of {least}", copies(&turned));
}

#[test]
fn keys_of_attention_and_rows_of_normalization_are_shared_by_tiles_and_combined() {
    let decoder = described(&decode(F16, 1, 1000, &SMALL_DECODER, Weights::Plain), true);
    let wafer = run_with(&decoder, "cerebras-wse3", &[]);
    let steps = || wafer.program.steps.iter().zip(&wafer.placed);
    for (step, placed) in steps().filter(|(step, _)| step.operator == "attention") {
        // Scores, the softmax over them, and values: batch, key heads, queries of each, queries, keys.
        let keys: Vec<u32> = placed.split.tiles.iter().map(|parts| parts[4]).collect();
        assert!(keys[0] > 1 && keys.iter().all(|&parts| parts == keys[0]), "{keys:?}");
        assert!(placed.cost.tiles > 8, "{} tiles for 8 heads", placed.cost.tiles);
        // Maxima of one query of each head go to the tiles that share its keys and back, then sums of 64 values.
        let queries =
            step.extents[0][..4].iter().zip(&placed.split.tiles[0]).map(|(all, parts)| all / i64::from(*parts));
        let values = queries.product::<i64>() as f64 * 64.0 * 4.0;
        let combined = values * f64::from(keys[0] - 1) / f64::from(keys[0]);
        assert!(placed.cost.received.0 > combined, "{} of {combined}", placed.cost.received);
    }
    // Caches that have grown lie in parts too.
    let plan = wafer.plan.as_ref().unwrap();
    assert!(plan.needed.0 < 0.2 * wafer.program.state_bytes, "{} of {}", plan.needed, wafer.program.state_bytes);
    let shared = steps().filter(|(step, placed)| step.operator == "layer_normalization" && placed.cost.tiles > 1);
    assert!(shared.count() > 0);
    // Where there is one query and one head, tiles have nothing but keys to share.
    let single = Decoder { layers: 1, width: 64, heads: 1, key_heads: 1, head: 64, inner: 128, vocabulary: 256 };
    let long = described(&decode(F16, 1, 100_000, &single, Weights::Plain), true);
    let [one, many] = ["1", "1472"].map(|count| {
        let simulated = run_with(&long, "graphcore-c600", &[("tiles.count", count), ("tiles.sram", "64MiB")]);
        let mut steps = simulated.program.steps.iter().zip(&simulated.placed);
        let (_, placed) = steps.find(|(step, _)| step.operator == "attention").unwrap();
        placed.cost.clone()
    });
    assert!(many.matrix.0 < one.matrix.0 / 100.0, "{} cycles on one tile, {} on many", one.matrix.0, many.matrix.0);
    assert!(one.phases == 0 && many.phases >= 3, "{} phases, {}", one.phases, many.phases);
}

#[test]
fn neighbours_that_need_the_same_rows_receive_them_at_the_rate_of_their_bus() {
    let scores = described(&models::products(F16, 16, (729, 72, 729)), false);
    let shared = run_with(&scores, "graphcore-c600", &[]);
    let cost = &shared.placed[0].cost;
    // Two halves of the rows of a head, each needed by 46 tiles; rows and columns of 72 elements of two bytes.
    assert_eq!(shared.placed[0].split.tiles, [[16, 2, 46, 1]]);
    assert_eq!((cost.shared.0, cost.received.0), (365.0 * 144.0, (365.0 + 16.0) * 144.0));
    assert!(close(cost.exchange.0, (365.0 * 144.0 / 8.0 + 16.0 * 144.0 / 4.0) / 0.827 + 237.0), "{}", cost.exchange.0);
    let alone = run_with(&scores, "graphcore-c600", &[("exchange.shared", "4 B/cycle")]);
    assert!(alone.report.makespan > shared.report.makespan);
}

#[test]
fn gaps_and_results_that_go_to_the_host_take_the_time_that_they_take() {
    let decoder = described(&decode(F16, 2, 100, &SMALL_DECODER, Weights::I4), true);
    let without = run_with(&decoder, "tenstorrent-n150", &[("overhead.gap", "0ns")]);
    // Scores of two users; caches stay on the machine.
    assert_eq!(without.program.result_bytes, 2.0 * 4096.0 * 2.0);
    let set = [("overhead.gap", "0ns"), ("overhead.results", "1MB/s"), ("overhead.waits_for_results", "true")];
    let read = run_with(&decoder, "tenstorrent-n150", &set);
    assert!(close(read.report.makespan.0 - without.report.makespan.0, 16_384.0 / 1e6));
    let apart = run_with(&decoder, "tenstorrent-n150", &[("overhead.gap", "5us")]);
    let steps = apart.report.steps.iter().filter(|step| step.busy.0 > 0.0).count() as f64;
    assert!(steps > 20.0, "{steps}");
    // What a step waited for on a tier may arrive within a gap.
    let added = (apart.report.makespan.0 - without.report.makespan.0) / (steps * 5e-6);
    assert!((0.9..1.0 + 1e-9).contains(&added), "{added}");
}

#[test]
fn results_that_are_made_in_one_part_are_written_after_the_step() {
    let product = described(&gemm(BF16, (512, 512, 512), Weights::Plain), false);
    let slow = [("policy.activations", "tier2"), ("tiers.0.write", "1GB/s")];
    let simulated = run_with(&product, "tenstorrent-n150", &slow);
    let [step] = simulated.placed.as_slice() else { panic!("{} steps", simulated.placed.len()) };
    assert_eq!(step.cost.stages, 1);
    let write = simulated.report.transfers.iter().find(|transfer| transfer.write).unwrap();
    // 512 x 512 elements of two bytes, after everything that the step computes.
    assert!(close((write.end - write.start).0, 524_288.0 / 1e9));
    assert!(write.start.0 >= simulated.report.steps[0].busy.0, "{write:?}");
}

/// What the search looks at is counted: equal steps are searched once, so that layers cost nothing.
#[test]
fn so_many_ways_are_looked_at() {
    let llama = |layers: usize| Decoder {
        layers,
        width: 4096,
        heads: 32,
        key_heads: 8,
        head: 128,
        inner: 14336,
        vocabulary: 128_256,
    };
    let counted = |manifest: &ipuc_formats::model::Manifest, target: &str| {
        let simulated = run_with(manifest, target, &[]);
        let searched = simulated.placed.iter().filter(|placed| placed.tried > 0);
        (searched.clone().count(), searched.map(|placed| placed.tried).sum::<u32>())
    };
    let resnet = described(&resnet50(F16, 1), false);
    assert_eq!(counted(&resnet, "graphcore-c600"), (40, 35_549), "ResNet-50");
    let [few, many] = [4, 32].map(|layers| described(&decode(F16, 1, 1000, &llama(layers), Weights::I8), true));
    let found = counted(&many, "ipu-server");
    assert_eq!(found, counted(&few, "ipu-server"));
    assert_eq!(found, (15, 2_124), "a token of a decoder");
}

/// Units that may hold a block of either operand hold that of which fewer rows pass by less full groups.
#[test]
fn either_operand_stays_in_units_that_may_hold_both() {
    let product = described(&gemm(BF16, (512, 64, 8), Weights::Plain), false);
    let with = |turns: &str| {
        let set = [("tiles.count", "1"), ("matrix.0.turns", turns), ("matrix.1.turns", turns)];
        run_with(&product, "ipu-edge", &set).placed.remove(0)
    };
    let (fixed, free) = (with("false"), with("true"));
    assert_eq!((fixed.cost.stationary, fixed.cost.turned), (Some(1), None));
    // Eight outputs in blocks of 16, by which 512 rows pass; the other way 512 rows fill 32 blocks, by which eight outputs pass.
    assert_eq!(free.cost.stationary, if free.cost.matrix < fixed.cost.matrix { Some(0) } else { Some(1) });
    assert!(free.cost.turned.is_some_and(|other| other >= free.cost.matrix));
    assert!(free.reason.contains("stays in matrix units"), "{}", free.reason);
}
