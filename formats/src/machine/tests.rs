//! Descriptions that are good, and descriptions that are not.

use super::units::{Bytes, Cycles};
use super::*;

fn c600(change: impl Fn(&str) -> String) -> Result<Target, TargetError> {
    read_target("machine.toml", &change(built_in_text("graphcore-c600").unwrap()))
}

#[test]
fn built_in_targets_are_good_and_named_after_their_files() {
    for (name, text) in BUILT_IN {
        let target = read_target(name, text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(target.name, *name);
        // What is printed as TOML reads back as the same machine, but for rounding.
        let copy: Target = toml::from_str(&toml::to_string(&target).unwrap()).unwrap();
        assert_eq!((copy.style, copy.tiles.count), (target.style, target.tiles.count), "{name}");
    }
}

#[test]
fn each_mistake_is_one_error_with_file_line_and_key() {
    let lines = [
        ("clock = \"1.5GHz\"", "clock = \"0GHz\"", "clock", "`0GHz` is zero"),
        ("count = 1472", "count = 0", "count", "nonzero"),
        ("hop = ", "hops = ", "hops", "unknown field `hops`"),
        ("clock = \"1.5GHz\"", "clock = 1.5", "clock", "a text with one of the units Hz, kHz, MHz, GHz"),
        ("clock = \"1.5GHz\"", "clock = \"1.5\"", "clock", "`1.5` has no unit"),
        ("static_power = \"60W\"", "static_power = \"-60W\"", "static_power", "`-60W` is negative"),
        ("sram = \"0.2pJ/bit\"", "sram = \"-0.2pJ/bit\"", "sram", "is negative"),
        ("style = \"bsp\"", "style = \"fast\"", "style", "unknown variant `fast`"),
        ("reserved = \"60KiB\"", "reserved = \"1MiB\"", "reserved", "nothing of the memory of a tile is left"),
        ("types = [\"f16\"]", "types = [\"f17\"]", "types", "`f17` is no element type"),
        ("arithmetic = 1.323", "arithmetic = 0.0", "arithmetic", "`0` is not a positive number"),
        ("weights = \"auto\"", "weights = \"tier2\"", "weights", "there is the memory of tiles only"),
    ];
    for (from, to, key, reason) in lines {
        let error = c600(|text| text.replacen(from, to, 1)).unwrap_err();
        let line = built_in_text("graphcore-c600").unwrap().lines().position(|line| line.starts_with(from));
        assert_eq!((error.file.as_str(), error.key.as_str()), ("machine.toml", key), "{error}");
        assert_eq!(Some(error.line - 1), line, "{error}");
        assert!(error.reason.contains(reason), "{error}");
    }
}

/// Several tables have the key: the error is at the one that is meant.
#[test]
fn a_key_that_several_tables_have_is_told_by_its_own_line() {
    let edge = built_in_text("ipu-edge").unwrap();
    // The line of the last assignment of a key to a value, and the text with another value there.
    let last = |text: &str, key: &str, value: &str| {
        let assigns = |line: &&str| line.split('=').next().is_some_and(|name| name.trim() == key);
        let at = text.lines().count() - text.lines().rev().position(|line| assigns(&line)).unwrap();
        let lines = text.lines().enumerate();
        let changed = lines.map(|(index, line)| if index + 1 == at { format!("{key} = {value}") } else { line.into() });
        (at, changed.collect::<Vec<String>>().join("\n"))
    };
    let (line, small) = last(edge, "capacity", "\"4KiB\"");
    // The thermal table has a capacity as well, behind those of the tiers.
    assert!(read_target("edge.toml", &small).unwrap_err().reason.contains("J/K"), "line {line}");
    let thermal = edge.find("[thermal]").unwrap();
    let tiers = &edge[..thermal];
    let (line, small) = last(tiers, "capacity", "\"4KiB\"");
    let error = read_target("edge.toml", &format!("{small}\n{}", &edge[thermal..])).unwrap_err();
    assert_eq!((error.line, error.key.as_str()), (line, "capacity"), "{error}");
    assert!(error.reason.contains("`UFS 4.0` is smaller than one panel"), "{error}");
    // Matrix units for weights of a type name it as the policy names where weights live.
    let text = built_in_text("graphcore-c600").unwrap();
    let units = text.replacen("types = [\"f16\"]", "types = [\"f16\"]\nweights = [\"i4\"]", 1);
    let (line, nowhere) = last(&units, "weights", "\"tier3\"");
    let error = read_target("machine.toml", &nowhere).unwrap_err();
    assert_eq!((error.line, error.key.as_str()), (line, "weights"), "{error}");
    assert_eq!(nowhere.lines().nth(line - 1), Some("weights = \"tier3\""));
    // The second unit of several.
    let (line, idle) = last(text, "pass", "\"0 cycles\"");
    let error = read_target("machine.toml", &idle).unwrap_err();
    assert_eq!((error.line, error.key.as_str()), (line, "pass"), "{error}");
    // Energies and temperatures have limits.
    let (_, drawn) = last(edge, "static_power", "\"3W\"");
    let limit = drawn.lines().position(|line| line == "limit = \"15W\"").unwrap() + 1;
    let error = read_target("edge.toml", &drawn.replacen("limit = \"15W\"", "limit = \"2W\"", 1)).unwrap_err();
    assert_eq!((error.line, error.key.as_str()), (limit, "limit"), "{error}");
}

#[test]
fn missing_tables_are_told() {
    let error = c600(|text| text.replacen("[vector]", "[vectors]", 1)).unwrap_err();
    assert!(error.reason.contains("vector"), "{error}");
}

#[test]
fn values_are_replaced_by_their_keys() {
    let set = |key: &str, value: &str| built_in("graphcore-c600", &[(key.to_string(), value.to_string())]).unwrap();
    assert_eq!(set("tiles.sram", "512KiB").unwrap().tiles.sram, Bytes(524_288.0));
    assert_eq!(set("matrix.1.pass", "2 cycles").unwrap().matrix[1].pass, Cycles(2.0));
    assert_eq!(set("tiles.count", "7").unwrap().tiles.count.get(), 7);
    let refusals = [
        ("tiles.sra", "1KiB", "there is no such key"),
        ("tiles.count", "many", "`many` is no value for it"),
        ("tiles.clock", "0GHz", "`0GHz` is zero"),
        ("matrix.9.pass", "1 cycles", "there is no such key"),
    ];
    for (key, value, reason) in refusals {
        let error = set(key, value).unwrap_err();
        assert_eq!((error.key.as_str(), error.reason.as_str()), (key, reason));
    }
}
