//! `ipuc simulate` and `ipuc targets` as they are called.

use super::{SMALL_ENCODER, close};
use crate::models::{F16, encoder};
use ipuc_formats::machine::{BUILT_IN, Style};

/// Run `ipuc simulate` on the encoder in this folder, with JSON.
fn simulated_at_the_command_line(folder: &std::path::Path, arguments: &[&str]) -> serde_json::Value {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ipuc"));
    command.current_dir(folder).args(["simulate", "model.onnx", "--numerics", "f16", "--json"]).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn outputs_are_those_of_a_run_whatever_the_machine_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ppocr_v2_cls/model.onnx");
    let call = |arguments: &[&str]| -> serde_json::Value {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ipuc"));
        command.current_dir(folder).env("IPUC_CACHE", folder.join("cache")).arg(arguments[0]).arg(&model);
        let output = command.args(&arguments[1..]).args(["--json", "--quiet"]).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let input = format!("x={}", model.with_file_name("test_data_set_0/input_0.pb").display());
    let run = call(&["run", "--input", &input]);
    for target in ["ipu-edge", "a100", "tenstorrent-n150"] {
        let simulated = call(&["simulate", "--target", target, "--numerics", "bf16", "--input", &input]);
        assert_eq!(simulated["outputs"], run["outputs"], "{target}");
        let steps = simulated["steps"].as_array().unwrap();
        let shares: Vec<f64> = steps.iter().filter_map(|step| step["zero_share"].as_f64()).collect();
        if target != "ipu-edge" {
            assert!(shares.is_empty() && simulated["left_out_macs"] == 0.0, "{target}: {shares:?}");
            continue;
        }
        // Products behind rectifiers.
        assert!(shares.len() > 10 && shares.iter().any(|&share| share > 0.1), "{shares:?}");
        let plain = ["simulate", "--target", target, "--numerics", "bf16", "--input", &input, "--zeros", "0"];
        let plain = call(&plain);
        assert_eq!(plain["left_out_macs"], 0.0);
        assert!(simulated["macs"].as_f64() < plain["macs"].as_f64());
        let matrix = |result: &serde_json::Value| result["energy_joules"]["matrix"].as_f64().unwrap();
        assert!(matrix(&simulated) < matrix(&plain), "{} {}", matrix(&simulated), matrix(&plain));
    }
}

/// There is one program: whatever machine is simulated, its outputs are those of `run`, bit for bit.
#[test]
fn outputs_have_the_bits_of_a_run_on_every_machine() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let call = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ipuc"));
        let output = command.current_dir(folder).args(arguments).args(["--json", "--quiet"]).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let models = [
        ("float16", &[][..]),
        ("functions", &[]),
        ("loop", &[]),
        ("external_data", &[]),
        ("silero_vad_16k_op15", &["--dim", "batch=1", "--dim", "sequence=512"]),
    ];
    for (model, dimensions) in models {
        let path = fixtures.join(model).join("model.onnx");
        let compiled = format!("{model}.ipu");
        call(&["compile", path.to_str().unwrap(), "-o", &compiled]);
        let given = [&[compiled.as_str(), "--random", "7"], dimensions].concat();
        let run = call(&[&["run"], given.as_slice()].concat());
        assert!(run["outputs"].as_array().is_some_and(|outputs| !outputs.is_empty()), "{model}: {run}");
        for (target, _) in BUILT_IN {
            // A type that the machine computes products of.
            let halves = target.starts_with("graphcore") || *target == "groq-tsp";
            let machine = ["--target", target, "--numerics", if halves { "f16" } else { "bf16" }];
            let simulated = call(&[&["simulate"], given.as_slice(), machine.as_slice()].concat());
            assert_eq!(simulated["outputs"], run["outputs"], "{model} on {target}");
            assert!(simulated["seconds"].as_f64().unwrap() > 0.0, "{model} on {target}");
        }
    }
}

/// A run that goes on from the state of an earlier one is the same on every machine, and so is one that begins with none.
#[test]
fn outputs_that_depend_on_state_have_the_bits_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let call = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ipuc"));
        let output = command.current_dir(folder).args(arguments).args(["--json", "--quiet"]).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/silero_vad_16k_op15/model.onnx");
    call(&["compile", model.to_str().unwrap(), "-o", "speech.ipu", "--state", "state=stateN"]);
    let given = ["speech.ipu", "--dim", "batch=1", "--dim", "sequence=512", "--random"];
    let (first, second) = ([given.as_slice(), &["3"]].concat(), [given.as_slice(), &["4"]].concat());
    let begun = call(&[&["run"], first.as_slice(), &["--save-state", "begun.state"]].concat());
    let gone_on = call(&[&["run"], second.as_slice(), &["--load-state", "begun.state"]].concat());
    let fresh = call(&[&["run"], second.as_slice()].concat());
    assert_ne!(fresh["outputs"], gone_on["outputs"], "the state matters");
    for target in ["ipu-edge", "graphcore-mk2", "trainium2"] {
        let machine = ["--target", target, "--numerics", "f16"];
        let simulated = call(&[&["simulate"], first.as_slice(), &machine].concat());
        assert_eq!(simulated["outputs"], begun["outputs"], "{target}");
        let simulated = call(&[&["simulate"], second.as_slice(), &machine, &["--load-state", "begun.state"]].concat());
        assert_eq!(simulated["outputs"], gone_on["outputs"], "{target}");
    }
}

/// Cycles, joules and outputs are the same whatever the number of threads is.
#[test]
fn threads_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("model.onnx"), encoder(F16, 1, &SMALL_ENCODER)).unwrap();
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ppocr_v2_cls");
    let (model, input) = (fixture.join("model.onnx"), fixture.join("test_data_set_0/input_0.pb"));
    let input = format!("x={}", input.display());
    let sweep = ["model.onnx", "--target", "ipu-edge", "--sweep", "target=ipu-edge,graphcore-mk2,a100,trainium2"];
    let sweep = [sweep.as_slice(), &["--sweep", "tiles.clock=500MHz,1GHz", "--numerics", "f16"]].concat();
    let counted = [model.to_str().unwrap(), "--target", "ipu-edge", "--numerics", "bf16", "--input", &input];
    for arguments in [sweep.as_slice(), counted.as_slice()] {
        let with = |threads: &str| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ipuc"));
            command.current_dir(folder).env("RAYON_NUM_THREADS", threads).args(["simulate", "--json", "--quiet"]);
            let output = command.args(arguments).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        };
        let one = with("1");
        assert!(one.len() > 1000, "{}", String::from_utf8_lossy(&one));
        for threads in ["2", "3", "8"] {
            assert_eq!(with(threads), one, "{threads} threads: {arguments:?}");
        }
    }
}

#[test]
fn traces_and_pages_show_the_run_and_need_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("model.onnx"), encoder(F16, 1, &SMALL_ENCODER)).unwrap();
    let files = ["--trace", "trace.json", "--html", "page.html", "--beside", "ipu-server"];
    let result = simulated_at_the_command_line(
        folder,
        &[&["--target", "graphcore-mk2", "--set", "policy.weights=tier2"], files.as_slice()].concat(),
    );
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |track: u64| events.iter().filter(move |event| event["ph"] == "X" && event["tid"] == track);
    let micros = |track: u64| of(track).map(|event| event["dur"].as_f64().unwrap()).sum::<f64>();
    // Steps follow one another, and the bytes of the tier are those of the weights.
    assert!(close(micros(0), result["seconds"].as_f64().unwrap() * 1e6), "{}", micros(0));
    assert!(close(micros(2), result["tiers"][0]["busy_seconds"].as_f64().unwrap() * 1e6), "{}", micros(2));
    let read: f64 = of(2).map(|event| event["args"]["bytes"].as_f64().unwrap()).sum();
    assert!(close(read, result["weights"]["bytes"].as_f64().unwrap()), "{read}");
    assert!(of(1).count() > 10 && events.iter().any(|event| event["ph"] == "C"), "exchange and power");

    let page = std::fs::read_to_string(folder.join("page.html")).unwrap();
    let addresses: Vec<&str> =
        page.match_indices("://").map(|(at, _)| &page[at + 3..(at + 25).min(page.len())]).collect();
    // The namespace of SVG is a name.
    assert!(addresses.iter().all(|address| address.starts_with("www.w3.org/2000/svg")), "{addresses:?}");
    let data = page.split_once("id=\"runs\">").unwrap().1.split_once("</script>").unwrap().0;
    let runs: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(runs[0]["result"], result);
    assert_eq!(runs[1]["result"]["target"], "ipu-server");
}

#[test]
fn this_machine_is_measured_and_found_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let call = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ipuc"));
        command.current_dir(folder).env("IPUC_CACHE", folder.join("kept")).args(arguments).output().unwrap()
    };
    std::fs::write(folder.join("model.onnx"), encoder(F16, 1, &SMALL_ENCODER)).unwrap();
    let simulate = ["simulate", "model.onnx", "--numerics", "f16", "--json", "--target", "host"];
    let refused = call(&simulate);
    let error = String::from_utf8_lossy(&refused.stderr).to_string();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("`ipuc targets calibrate` measures it") && error.contains("kept/host.toml"), "{error}");
    let output = call(&["targets", "calibrate", "--threads", "1", "--json"]);
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("does not tell the sizes of its caches") {
        eprintln!("left out: {error}");
        return;
    }
    assert!(output.status.success(), "{error}");
    assert!(error.contains("kept as `host` in"), "{error}");
    let text = std::fs::read_to_string(folder.join("kept/host.toml")).unwrap();
    let host = ipuc_formats::machine::read_target("host.toml", &text).unwrap();
    assert_eq!((host.tiles.count.get(), host.tiers.len(), host.style), (1, 3, Style::Roofline));
    // Each type with many rows, and with one.
    let (depthwise, products) = host.matrix.split_last().unwrap();
    assert_eq!((depthwise.rows.get(), depthwise.inputs.get(), depthwise.outputs.get()), (16, 1, 1));
    for pair in products.chunks(2) {
        assert_eq!((pair[0].types.clone(), pair[0].rows.get(), pair[1].rows.get()), (pair[1].types.clone(), 8, 1));
    }
    let simulated = call(&simulate);
    assert!(simulated.status.success(), "{}", String::from_utf8_lossy(&simulated.stderr));
    let simulated: serde_json::Value = serde_json::from_slice(&simulated.stdout).unwrap();
    let seconds = simulated["seconds"].as_f64().unwrap();
    assert!((1e-5..100.0).contains(&seconds), "{seconds}");
    assert_eq!(simulated["target"], "host");
    let listed = call(&["targets"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("\nhost "), "{listed:?}");
    let refused = call(&["targets", "calibrate", "host"]);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
}

#[test]
fn a_sweep_is_its_simulations_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("model.onnx"), encoder(F16, 1, &SMALL_ENCODER)).unwrap();
    let sweep = ["--target", "ipu-edge", "--sweep", "target=ipu-edge,tpu-v5e", "--sweep", "tiles.clock=500MHz,1GHz"];
    let swept = simulated_at_the_command_line(folder, &sweep);
    let rows = swept["sweep"].as_array().unwrap();
    let machines = [("ipu-edge", "500MHz"), ("ipu-edge", "1GHz"), ("tpu-v5e", "500MHz"), ("tpu-v5e", "1GHz")];
    assert_eq!(rows.len(), machines.len());
    for (row, (name, clock)) in rows.iter().zip(machines) {
        assert_eq!((&row["set"][0]["value"], &row["set"][1]["value"]), (&name.into(), &clock.into()));
        let alone = ["--target", name, "--set", &format!("tiles.clock={clock}")];
        let alone = simulated_at_the_command_line(folder, &alone);
        assert_eq!(row["seconds"], alone["seconds"], "{name} at {clock}");
        assert_eq!(row["energy_joules"], alone["energy_joules"]["total"], "{name} at {clock}");
    }
}
