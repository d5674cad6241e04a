//! Files whose weights are stored in the order for another machine.

use super::{check_laws, close};
use crate::models::{F16, Weights, gemm};
use ipuc::compile::{CompileOptions, Source, compile, describe};
use ipuc::simulate::{SimulateOptions, Simulated, Zeros, simulate};
use ipuc_formats::dim::Bindings;
use ipuc_formats::machine::{Target, built_in};
use ipuc_formats::model::{Manifest, PlacementRecord, read_manifest};
use ipuc_passes::place::records;

/// `ipu-edge` with two tiles that read weights from tier 2.
fn machine(sram: &str) -> Target {
    let set = [("tiles.count", "2"), ("tiles.sram", sram), ("tiles.reserved", "1KiB"), ("policy.weights", "tier2")];
    let set = set.map(|(key, value)| (key.to_string(), value.to_string()));
    let target = built_in("ipu-edge", &set).unwrap().unwrap();
    Target { name: format!("ipu-edge of {sram}"), ..target }
}

fn placements(manifest: &Manifest, target: &Target) -> Vec<PlacementRecord> {
    let Simulated { program, placed, plan, .. } = simulate(manifest, target, &SimulateOptions::default()).unwrap();
    records(manifest, &program, target, target.hash().unwrap(), &Bindings::new(), &placed, plan.as_ref())
}

/// The records of a file with a row by a matrix of 256 x 1024 in f16, of which a chunk holds 128 outputs, with placements for
/// these machines.
fn file(targets: &[&Target]) -> Manifest {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, gemm(F16, (1, 256, 1024), Weights::Plain)).unwrap();
    let weights: Vec<u8> =
        (0..2 * 256 * 1024).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 28) as u8 | 1).collect();
    std::fs::write(folder.path().join("weights.bin"), weights).unwrap();
    let source = [Source { entry: "main".to_string(), path }];
    let options = CompileOptions { chunk_bytes: Some(64 << 10), ..CompileOptions::default() };
    let described = describe(&source, &options).unwrap();
    let placements = targets.iter().flat_map(|target| placements(&described, target)).collect();
    let output = folder.path().join("model.ipu");
    compile(&source, &output, &CompileOptions { placements, ..options }).unwrap();
    read_manifest(&std::fs::read(output).unwrap()).unwrap().1
}

fn run(manifest: &Manifest, target: &Target, zeros: f64) -> Simulated {
    let zeros = Zeros { assumed: vec![("*".to_string(), zeros)], ..Zeros::default() };
    let simulated = simulate(manifest, target, &SimulateOptions { zeros, ..SimulateOptions::default() }).unwrap();
    check_laws(&target.name, target, &simulated);
    simulated
}

#[test]
fn a_machine_that_is_not_the_first_of_a_file_is_charged_for_what_it_reads_beyond_its_needs() {
    // Each tile of the small machine has 512 outputs in eight parts in time. A chunk has outputs of two of these, and there is
    // no room to keep it for the second one: all 512 KiB are read twice.
    let (large, small) = (machine("1MiB"), machine("48KiB"));
    let manifest = file(&[&large, &small]);
    let beyond = |target: &Target, zeros: f64| run(&manifest, target, zeros).placed[0].cost.beyond.0;
    assert_eq!((beyond(&large, 0.0), beyond(&small, 0.0)), (0.0, 524_288.0));
    assert_eq!(run(&manifest, &small, 0.0).report.tiers[0].read.0, 2.0 * 524_288.0);
    // Weights of inputs that are zero lie among others in panels, and are read by a machine that the file is not for.
    assert!(close(beyond(&small, 0.5), 1.5 * 524_288.0), "{}", beyond(&small, 0.5));
    assert_eq!(beyond(&large, 0.5), 0.0);
    // The same machine as the first of a file.
    assert_eq!(run(&file(&[&small, &large]), &small, 0.0).placed[0].cost.beyond.0, 0.0);
}
