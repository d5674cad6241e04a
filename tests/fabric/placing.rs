//! What lies where in the memories of tiles.

use super::{SMALL_ENCODER, described, programs, run};
use crate::models::{Encoder, F16, encoder};
use ipuc::simulate::{SimulateOptions, Simulated, simulate};
use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::built_in;
use ipuc_formats::model::check_placement;
use ipuc_passes::place::{PlaceError, records};
use std::num::NonZeroU32;

#[test]
fn placements_are_valid_for_their_targets() {
    let mut fitting = 0;
    for (model, manifest) in programs() {
        for name in ["graphcore-c600", "tenstorrent-n150", "ipu-server", "ipu-edge", "groq-tsp", "cerebras-wse3"] {
            let target = built_in(name, &[]).unwrap().unwrap();
            let Some(Simulated { program, placed, plan, .. }) = run(&manifest, &target) else { continue };
            let plan = plan.unwrap();
            let placements = records(&manifest, &program, &target, [0; 32], &Bindings::new(), &placed, Some(&plan));
            let regions = placements.iter().flat_map(|placement| &placement.steps).map(|step| step.regions.len());
            assert_eq!(regions.sum::<usize>(), plan.regions.len() + plan.readings.len(), "{model} on {name}");
            let fits = plan.check(&program, &target).is_ok();
            let sram = if fits { target.tiles.sram.0 as u64 } else { u64::MAX };
            fitting += usize::from(fits);
            for placement in &placements {
                check_placement(&manifest, placement, target.tiles.count.get(), sram)
                    .unwrap_or_else(|error| panic!("{model} on {name}: {error}"));
            }
        }
    }
    assert!(fitting >= 15, "only {fitting} fit");
}

/// What is planned for a small encoder, region by region.
#[test]
fn plans_are_what_their_files_say() {
    let manifest = described(&encoder(F16, 1, &Encoder { layers: 1, ..SMALL_ENCODER }), false);
    for name in ["graphcore-mk2", "ipu-edge"] {
        let target = built_in(name, &[("tiles.count".to_string(), "64".to_string())]).unwrap().unwrap();
        let Simulated { program, plan, .. } = run(&manifest, &target).unwrap();
        let plan = plan.unwrap();
        assert_eq!(plan.check(&program, &target), Ok(()));
        let path = format!("{}/tests/place/encoder_{name}.txt", env!("CARGO_MANIFEST_DIR"));
        let found = plan.text(&program);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), found, "{path}");
    }
}

#[test]
fn what_does_not_fit_is_said_with_bytes_and_tiles() {
    let manifest = described(&encoder(F16, 1, &SMALL_ENCODER), false);
    let small = [("tiles.count", "4"), ("tiles.sram", "95KiB"), ("policy.weights", "tier2")];
    let small = small.map(|(key, value)| (key.to_string(), value.to_string()));
    let target = built_in("graphcore-mk2", &small).unwrap().unwrap();
    let options = |chips: u32| SimulateOptions {
        numerics: Some(DType::F16),
        chips: NonZeroU32::new(chips),
        ..SimulateOptions::default()
    };
    let Simulated { program, plan, .. } = simulate(&manifest, &target, &options(1)).unwrap();
    let PlaceError::Memory { step, needed, available, tiles, chips, .. } =
        plan.unwrap().check(&program, &target).unwrap_err();
    assert_eq!((step.as_str(), needed.as_str(), available.as_str()), ("Attention_v4", "65.62 KiB", "35 KiB"));
    assert_eq!((tiles, chips), (4, 2));
}
