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
        ("arithmetic = 4.000", "arithmetic = 0.0", "arithmetic", "`0` is not a positive number"),
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

#[test]
fn a_tier_holds_at_least_a_panel() {
    let text = built_in_text("a100").unwrap().replacen("capacity = \"80GB\"", "capacity = \"4KiB\"", 1);
    let error = read_target("a100.toml", &text).unwrap_err();
    assert_eq!(error.key, "capacity");
    assert!(error.reason.contains("smaller than one panel"), "{error}");
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
