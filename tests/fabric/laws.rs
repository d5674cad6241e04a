//! Laws of simulated runs over models, built-in machines and machines made up around them.

use super::{check_laws, programs, run};
use ipuc_formats::machine::{BUILT_IN, built_in};
use rayon::iter::{IntoParallelIterator, ParallelIterator};

#[test]
fn laws_hold_on_every_built_in_machine() {
    let programs = programs();
    let pairs: Vec<_> =
        programs.iter().flat_map(|program| BUILT_IN.iter().map(move |built_in| (program, built_in.0))).collect();
    let ran = pairs.into_par_iter().filter(|((model, manifest), name)| {
        let target = built_in(name, &[]).unwrap().unwrap();
        let Some(simulated) = run(manifest, &target) else { return false };
        check_laws(&format!("{model} on {name}"), &target, &simulated);
        assert_eq!(run(manifest, &target).unwrap().report, simulated.report, "{model} on {name}");
        true
    });
    let ran = ran.count();
    assert!(ran >= 3 * BUILT_IN.len(), "only {ran} ran");
}

/// Numbers that look random and are the same each time.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        of[(self.0 >> 33) as usize % of.len()]
    }
}

#[test]
fn laws_hold_on_machines_made_up_and_more_bandwidth_is_never_slower() {
    let programs = programs();
    let mut numbers = Numbers(7);
    let mut ran = 0;
    for _ in 0..60 {
        let name = numbers.pick(&["ipu-server", "ipu-edge", "graphcore-mk2", "tenstorrent-n150", "a100", "trainium2"]);
        let (model, manifest) = &programs[numbers.pick(&[0_usize, 1, 2, 3])];
        let rate = numbers.pick(&[1.0, 20.0, 300.0]);
        let set = [
            ("tiles.count", numbers.pick(&["1", "3", "64", "1472"]).to_string()),
            ("tiles.sram", numbers.pick(&["256KiB", "1MiB", "64MiB"]).to_string()),
            ("exchange.receive", numbers.pick(&["1 B/cycle", "16 B/cycle"]).to_string()),
            ("matrix.0.load", numbers.pick(&["0 cycles", "300 cycles"]).to_string()),
            ("policy.prefetch", numbers.pick(&["true", "false"]).to_string()),
            ("policy.weights", numbers.pick(&["auto", "tier2"]).to_string()),
            ("overhead.step", numbers.pick(&["0ns", "5us"]).to_string()),
            ("overhead.gap", numbers.pick(&["0ns", "7us"]).to_string()),
            ("tiers.0.chunk", numbers.pick(&["1KiB", "2MiB"]).to_string()),
            ("tiers.0.read", format!("{rate} GB/s")),
        ];
        let mut set: Vec<(String, String)> = set.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
        let target = built_in(name, &set).unwrap().unwrap();
        let Some(simulated) = run(manifest, &target) else { continue };
        let what = format!("{model} on {name} with {set:?}");
        check_laws(&what, &target, &simulated);
        set.last_mut().unwrap().1 = format!("{} GB/s", rate * 2.0);
        let faster = run(manifest, &built_in(name, &set).unwrap().unwrap()).unwrap();
        let (before, after) = (simulated.report.makespan.0, faster.report.makespan.0);
        assert!(after <= before * (1.0 + 1e-9), "{what}: {after} s is slower than {before} s");
        ran += 1;
    }
    assert!(ran >= 30, "only {ran} ran");
}
