//! `--sweep`: the same program on machines that differ in some values, side by side.

use crate::cli::output::Output;
use crate::cli::targets::{Replaced, target};
use crate::simulate::{SimulateOptions, Simulated, simulate};
use ipuc_formats::machine::Target;
use ipuc_formats::model::Manifest;
use rayon::prelude::*;
use serde_json::{Value as Json, json};

/// `KEY=a,b,c`.
#[derive(Debug, Clone)]
pub(in crate::cli) struct Swept {
    key: String,
    values: Vec<String>,
}

impl std::str::FromStr for Swept {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected KEY=a,b,c".to_string();
        let (key, values) = text.split_once('=').ok_or_else(expected)?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_string()).collect();
        if key.is_empty() || values.iter().any(String::is_empty) {
            return Err(expected());
        }
        Ok(Swept { key: key.to_string(), values })
    }
}

/// The key whose values are machines.
const TARGET: &str = "target";

/// All combinations of the values, the last key fastest.
fn combinations(swept: &[Swept]) -> Vec<Vec<Replaced>> {
    swept.iter().fold(vec![Vec::new()], |rows, swept| {
        let with = |row: &Vec<Replaced>| {
            let value = |value: &String| Replaced { key: swept.key.clone(), value: value.clone() };
            swept.values.iter().map(move |own| [row.clone(), vec![value(own)]].concat()).collect::<Vec<_>>()
        };
        rows.iter().flat_map(with).collect()
    })
}

/// The machine of a combination.
fn machine(name: &str, set: &[Replaced], combination: &[Replaced]) -> anyhow::Result<Target> {
    let named = combination.iter().rfind(|replaced| replaced.key == TARGET);
    let name = named.map_or(name, |replaced| replaced.value.as_str());
    let values = combination.iter().filter(|replaced| replaced.key != TARGET);
    target(name, &set.iter().chain(values).cloned().collect::<Vec<_>>())
}

/// Simulate every combination and print a row for each. A machine that cannot run the program has a row that says why; a
/// key or value that no machine has is an error.
pub(super) fn show(
    (name, set): (&str, &[Replaced]),
    swept: &[Swept],
    manifest: &Manifest,
    options: &SimulateOptions,
    output: &mut Output,
) -> anyhow::Result<()> {
    let combinations = combinations(swept);
    let machines = combinations.iter().map(|combination| machine(name, set, combination));
    let machines: Vec<Target> = machines.collect::<anyhow::Result<_>>()?;
    let results: Vec<Result<Simulated, String>> = machines
        .par_iter()
        .map(|target| simulate(manifest, target, options).map_err(|error| error.to_string()))
        .collect();
    let mut rows =
        vec![["with", "time", "runs/s", "stalled", "energy", "power", "of the peak", "result"].map(str::to_string)];
    let mut objects = Vec::new();
    for ((combination, target), result) in combinations.iter().zip(&machines).zip(&results) {
        let with = combination.iter().map(|replaced| format!("{}={}", replaced.key, replaced.value));
        rows.push(row(with.collect::<Vec<_>>().join(" "), target, result));
        objects.push(json_row(combination, target, result));
    }
    output.table(rows)?;
    output.json(&json!({ "sweep": objects }))
}

fn row(with: String, target: &Target, result: &Result<Simulated, String>) -> [String; 8] {
    let none = || "-".to_string();
    match result {
        Ok(simulated) => {
            let report = &simulated.report;
            let fits = simulated.plan.as_ref().is_none_or(|plan| plan.check(&simulated.program, target).is_ok());
            [
                with,
                report.makespan.to_string(),
                format!("{:.2}", 1.0 / report.makespan.0),
                report.stall.to_string(),
                report.energy.total().to_string(),
                (report.energy.total() / report.makespan).to_string(),
                report.utilization.map_or_else(none, |share| format!("{:.1} %", share * 100.0)),
                if fits { "fits".to_string() } else { "does not fit into the tiles".to_string() },
            ]
        }
        Err(error) => [with, none(), none(), none(), none(), none(), none(), error.clone()],
    }
}

fn json_row(combination: &[Replaced], target: &Target, result: &Result<Simulated, String>) -> Json {
    let set = combination.iter().map(|replaced| json!({"key": replaced.key, "value": replaced.value}));
    let set: Json = set.collect();
    match result {
        Ok(simulated) => {
            let report = &simulated.report;
            json!({
                "set": set,
                "target": target.name,
                "seconds": report.makespan.0,
                "stall_seconds": report.stall.0,
                "throttled_seconds": report.throttled.0,
                "energy_joules": report.energy.total().0,
                "utilization": report.utilization,
                "error": null,
            })
        }
        Err(error) => json!({
            "set": set,
            "target": target.name,
            "seconds": null,
            "stall_seconds": null,
            "throttled_seconds": null,
            "energy_joules": null,
            "utilization": null,
            "error": error,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_combinations_are_taken_and_malformed_ones_refused() {
        let parse = |text: &str| text.parse::<Swept>();
        let swept = [parse("tiles.sram=512KiB, 1MiB").unwrap(), parse("policy.prefetch=true,false").unwrap()];
        let rows: Vec<Vec<String>> = combinations(&swept)
            .iter()
            .map(|row| row.iter().map(|replaced| replaced.value.clone()).collect())
            .collect();
        assert_eq!(rows, [["512KiB", "true"], ["512KiB", "false"], ["1MiB", "true"], ["1MiB", "false"]]);
        for malformed in ["tiles.sram", "=1", "tiles.sram=1,,2"] {
            assert_eq!(parse(malformed).unwrap_err(), "expected KEY=a,b,c", "{malformed}");
        }
    }
}
