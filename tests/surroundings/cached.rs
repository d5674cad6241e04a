//! Compiled files and results of calibration that are kept in a folder.

use super::*;
use std::time::SystemTime;

/// Last changed a minute ago: what changed just now may change again without its time telling.
fn aged(path: &Path) {
    let old = SystemTime::now() - Duration::from_secs(60);
    fs::File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
}

fn cached(folder: &Path, arguments: &str) -> Output {
    let mut command = ipuc(folder);
    command.env("IPUC_CACHE", folder.join("cache")).args(arguments.split_whitespace());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", errors(&output));
    output
}

fn text(folder: &Path, arguments: &str) -> String {
    String::from_utf8(cached(folder, arguments).stdout).unwrap()
}

/// `cache --max` leaves what was used last.
#[test]
fn a_cache_is_made_smaller() {
    let folder = folder_with_model();
    let folder = folder.path();
    fs::copy(folder.join("linear.onnx"), folder.join("other.onnx")).unwrap();
    let mut weight = linear_weight();
    weight.raw_data.as_mut().unwrap()[3] ^= 0x80;
    write(folder, "other.onnx", &linear(weight));
    for model in ["linear", "other"] {
        aged(&folder.join(model).with_extension("onnx"));
        text(folder, &format!("run {model}.onnx --random 1"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let compiled = fs::read_dir(folder.join("cache")).unwrap().map(|entry| entry.unwrap().path());
    let compiled = compiled.filter(|path| path.extension().is_some_and(|extension| extension == "ipu"));
    let bytes: Vec<u64> = compiled.map(|path| fs::metadata(path).unwrap().len()).collect();
    assert_eq!(bytes.len(), 2);
    let unchanged = text(folder, &format!("cache --max {}", bytes.iter().sum::<u64>()));
    assert!(unchanged.starts_with("removed 0 files, 0 B\n"), "{unchanged}");
    let smaller = text(folder, &format!("cache --max {}", bytes[0].max(bytes[1])));
    assert!(smaller.starts_with("removed 1 file, "), "{smaller}");
    assert!(smaller.contains("other.onnx") && !smaller.contains("linear.onnx"), "{smaller}");
    let refused = {
        let mut command = ipuc(folder);
        command.env("IPUC_CACHE", folder.join("cache")).args(["cache", "--max", "much"]).output().unwrap()
    };
    assert_eq!(refused.status.code(), Some(2), "{}", errors(&refused));
}

/// What calibration measured is kept beside compiled files, thrown away when it is damaged, and made anew when an example changes.
#[test]
fn examples_are_run_once() {
    let folder = folder_with_model();
    let folder = folder.path();
    // Large enough to be rounded.
    let elements: Vec<f32> = (0..64 * 64).map(|at| ((at * 7 % 31) as f32 - 15.0) / 16.0).collect();
    let nodes = vec![node("MatMul", &["x", "w"], &["y"])];
    let weights = vec![tensor("w", &[64, 64], &elements)];
    let graph = graph(vec![port("x", &["1", "64"])], weights, nodes, vec![port("y", &["1", "64"])]);
    write(folder, "wide.onnx", &model(graph));
    let example = |scale: f32| {
        let elements: Vec<f32> = (0..64).map(|at| at as f32 * scale).collect();
        write(folder, "data/test_data_set_0/input_0.pb", &tensor_file(&[1, 64], &elements));
        aged(&folder.join("data/test_data_set_0/input_0.pb"));
    };
    example(1.0);
    aged(&folder.join("wide.onnx"));
    let compile = "compile wide.onnx --weights i4 --calibrate data -o wide.ipu";
    let is_known = |arguments: &str| errors(&cached(folder, arguments)).contains("used again");
    let bytes = || fs::read(folder.join("wide.ipu")).unwrap();
    assert!(!is_known(compile));
    let expected = bytes();
    assert!(is_known(compile) && bytes() == expected);
    assert!(!is_known(&format!("{compile} --no-cache")) && bytes() == expected);
    assert!(!is_known(&format!("{compile} --calibrate-tokens 7")), "other choices are another calibration");
    let listed = text(folder, "cache list --json");
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let files: Vec<&str> =
        listed["files"].as_array().unwrap().iter().map(|file| file["file"].as_str().unwrap()).collect();
    assert!(files.len() == 2 && files.iter().all(|file| file.ends_with(".calibration")), "{files:?}");
    for file in &files {
        let mut damaged = fs::read(file).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(file, damaged).unwrap();
    }
    assert!(!is_known(compile) && bytes() == expected, "damaged");
    assert!(is_known(compile));
    example(2.0);
    assert!(!is_known(compile), "another example");
    example(1.0);
    assert!(is_known(compile) && bytes() == expected);
    assert!(text(folder, "cache clear").starts_with("removed 3 files, "));
    assert_eq!(fs::read_dir(folder.join("cache")).unwrap().count(), 0);
}

#[test]
fn a_model_is_compiled_once() {
    let folder = folder_with_model();
    let folder = folder.path();
    let old = std::time::SystemTime::now() - Duration::from_secs(60);
    fs::File::options().write(true).open(folder.join("linear.onnx")).unwrap().set_modified(old).unwrap();
    let cached = |arguments: &str| {
        let mut command = ipuc(folder);
        command.env("IPUC_CACHE", folder.join("cache")).args(arguments.split_whitespace());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", errors(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let files = || {
        let entries = fs::read_dir(folder.join("cache")).map_or_else(|_| Vec::new(), Iterator::collect);
        let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let uncached = cached("run linear.onnx --random 1 --no-cache -q");
    assert_eq!(files(), [""; 0].map(std::path::PathBuf::from));
    assert_eq!(cached("run linear.onnx --random 1 -q"), uncached);
    let kept = files();
    assert_eq!(kept.len(), 2, "a compiled file and its record: {kept:?}");
    let made = fs::metadata(&kept[0]).unwrap().modified().unwrap();
    assert_eq!(cached("run linear.onnx --random 1 -q"), uncached);
    cached("bench linear.onnx --runs 1");
    assert_eq!(files(), kept);
    assert_eq!(fs::metadata(&kept[0]).unwrap().modified().unwrap(), made, "it was not written again");
    assert!(cached("cache list").contains("linear.onnx"));
    // Another weight in a file of the same length and time.
    let mut weight = linear_weight();
    weight.raw_data.as_mut().unwrap()[3] ^= 0x80;
    write(folder, "linear.onnx", &linear(weight));
    fs::File::options().write(true).open(folder.join("linear.onnx")).unwrap().set_modified(old).unwrap();
    assert_ne!(cached("run linear.onnx --random 1 -q"), uncached);
    // Both are there: the file of the model as it was stays until room is needed.
    assert!(cached("cache clear").starts_with("removed 2 files, "));
    assert_eq!(files(), [""; 0].map(std::path::PathBuf::from));
}

/// A folder that cannot be written to is no reason not to run.
#[test]
fn a_cache_that_cannot_be_used_is_left_out() {
    let folder = folder_with_model();
    let mut command = ipuc(folder.path());
    command.env("IPUC_CACHE", folder.path().join("linear.onnx")).args(["run", "linear.onnx", "--random", "1"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(others(folder.path(), &["linear.onnx"]), [""; 0]);
}
