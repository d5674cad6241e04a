//! Predicted beside measured.

use crate::rows::{Quantity, Row, rows};
use ipuc::compile::{CompileOptions, Source, describe};
use ipuc::simulate::{SimulateOptions, Simulated, simulate};
use ipuc_formats::machine::{Target, built_in, exchange_cycles};
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::path::Path;

/// A row with what was predicted.
pub struct Judged {
    pub row: &'static Row,
    pub predicted: f64,
}

impl Judged {
    pub fn ratio(&self) -> f64 {
        self.predicted / self.row.measured
    }

    /// How far the greater of both is above the other.
    pub fn error(&self) -> f64 {
        let ratio = self.ratio();
        ratio.max(1.0 / ratio) - 1.0
    }
}

/// The machine of a row, in the configuration that was measured.
pub fn target(row: &Row) -> anyhow::Result<Target> {
    let set: Vec<(String, String)> = row.set.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    Ok(built_in(row.target, &set).ok_or_else(|| anyhow::anyhow!("no target `{}`", row.target))??)
}

/// Simulate a model that lies in a folder of its own.
pub fn run(folder: &Path, row: &Row) -> anyhow::Result<(Target, Simulated)> {
    let path = folder.join("model.onnx");
    std::fs::write(&path, (row.model)())?;
    let target = target(row)?;
    let plain = CompileOptions { unfused: row.unfused, ..CompileOptions::default() };
    let options = CompileOptions { states: vec!["past.*=present.*".to_string()], ..plain.clone() };
    let source = Source { entry: "main".to_string(), path };
    let options = if row.states { options } else { plain };
    let manifest = describe(&[source], &options)?;
    let chips = row.chips.and_then(NonZeroU32::new);
    let options = SimulateOptions { numerics: row.numerics, chips, ..SimulateOptions::default() };
    let simulated = simulate(&manifest, &target, &options)?;
    Ok((target, simulated))
}

/// All rows with what is predicted for them.
pub fn judge() -> anyhow::Result<Vec<Judged>> {
    let folder = tempfile::tempdir()?;
    let one = |row: &'static Row| -> anyhow::Result<Judged> {
        use anyhow::Context;
        Ok(Judged {
            row,
            predicted: predict(folder.path(), row).with_context(|| format!("{}: {}", row.target, row.name))?,
        })
    };
    rows().map(one).collect()
}

fn predict(folder: &Path, row: &Row) -> anyhow::Result<f64> {
    if let Some(traffic) = &row.traffic {
        return Ok(exchange_cycles(&target(row)?, traffic).0);
    }
    let (_, simulated) = run(folder, row)?;
    let report = &simulated.report;
    Ok(match row.quantity {
        Quantity::Microseconds => report.makespan.0 * 1e6,
        Quantity::MatrixCycles => simulated.placed.iter().map(|placed| placed.cost.matrix.0).sum(),
        Quantity::ExchangeCycles => simulated.placed.iter().map(|placed| placed.cost.exchange.0).sum(),
        Quantity::Cycles => report.cycles.0,
        Quantity::PerSecond(items) => items / report.makespan.0,
        Quantity::PerSecondTogether(items) => items / report.interval.0,
        Quantity::Watts => (report.energy.total() / report.makespan).0,
        Quantity::WeightBandwidth => simulated.program.weight_bytes / report.makespan.0 / 1e9,
    })
}

fn number(value: f64) -> String {
    match value {
        value if value >= 1000.0 => format!("{value:.0}"),
        value if value >= 100.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// The middle of errors in order; `None` where there are none.
pub fn median(errors: &[f64]) -> Option<f64> {
    let last = errors.len().checked_sub(1)?;
    Some((errors[last / 2] + errors[errors.len() / 2]) / 2.0)
}

/// The errors of the rows that judge a machine, or all of them, in order.
pub fn errors(judged: &[Judged], target: Option<&str>) -> Vec<f64> {
    let own = judged.iter().filter(|row| !row.row.calibrates && target.is_none_or(|target| row.row.target == target));
    let mut errors: Vec<f64> = own.map(Judged::error).collect();
    errors.sort_by(f64::total_cmp);
    errors
}

/// The middle of the errors, and how many are within 25 % and within a factor of two.
fn summary(errors: &[f64]) -> String {
    let (Some(median), Some(greatest)) = (median(errors), errors.last()) else { return "no rows".to_string() };
    let count = errors.len();
    let within = |limit: f64| errors.iter().filter(|&&error| error <= limit).count();
    format!(
        "median error {:.1} %, {} of {count} within 25 %, {} of {count} within a factor of two, greatest {:.0} %",
        median * 100.0,
        within(0.25),
        within(1.0),
        greatest * 100.0
    )
}

/// Measurements of the same sources that no row has, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "ResNet-50 on NorthPole, 42,460 images a second",
        "the figure is recalled, not read in a source; its rate needs 174 T multiply-accumulates a second, of which the machine has 210.",
    ),
    (
        "exchange of an MLP on a C600 in two orders of tiles, 484,530 and 741,414 cycles",
        "a program that streams weights from tile to tile, panel by panel; in the model they rest where they are needed.",
    ),
    (
        "YOLOv4 and Whisper on n150 and p150",
        "whole demonstrations, of which the host's part (choosing tokens and boxes in Python) is most and is not published apart: two layers of a Whisper decoder take 17 ms a token, of which its weights take one.",
    ),
    (
        "Mixtral 8x7B on eight Wormholes and on two to eight A100, Llama-3.1-405B on eight A100, a layer of GPT-3 with its sums over four",
        "every step is shared by several machines; in the model several share a program step after step.",
    ),
    (
        "training on Pods of Graphcore, LSTM on eight GroqCards, Llama-2 70B on 576 of them",
        "training is no program here; shapes of the first network are not published, nor how the second is divided.",
    ),
    (
        "matrix by vector of 10,000 x 1,000 in f32 with a vertex in C++ on a Mk2, 25,444,984 cycles",
        "a loop of scalar code, 7.4 times as slow as the vendor's estimate for it; the model has what the units of a tile do.",
    ),
    ("softmax, normalization and products on an MI210, Llama-2-7B on an MI250X", "these machines are not described."),
];

/// The page `VALIDATION.md`.
pub fn page(judged: &[Judged]) -> String {
    let mut page = String::from(
        "# What the machine models predict, beside what was measured\n\n\
         Generated by `cargo bench --bench validate -- --write`; a test checks that it is current.\n\n\
         Every row is a model by its shapes, simulated on the built-in description of the machine; `with` says what the\n\
         measured configuration has that the description does not. A row from which a parameter of the machine was taken is\n\
         marked *calibrates* and judges nothing. The error is how far the greater of prediction and measurement is above\n\
         the other. Rows that are missed stay, with a sentence.\n\n",
    );
    let _ = writeln!(page, "In all: {}.\n", summary(&errors(judged, None)));
    let mut targets: Vec<&str> = judged.iter().map(|row| row.row.target).collect();
    targets.dedup();
    for target in targets {
        let own = || judged.iter().filter(move |row| row.row.target == target);
        let _ = writeln!(page, "## {target}\n\n{}\n", summary(&errors(judged, Some(target))));
        page.push_str("| what | with | predicted | measured | unit | ratio | source |\n| --- | --- | --- | --- | --- | --- | --- |\n");
        for row in own() {
            let (predicted, measured, ratio) = (number(row.predicted), number(row.row.measured), row.ratio());
            let mut with: Vec<String> = row.row.set.iter().map(|(key, value)| format!("{key}={value}")).collect();
            with.extend(row.row.numerics.map(|dtype| format!("numerics {dtype}")));
            with.extend(row.row.chips.map(|chips| format!("{chips} of them")));
            let calibrates = if row.row.calibrates { " *calibrates*" } else { "" };
            let _ = writeln!(
                page,
                "| {}{calibrates} | {} | {predicted} | {measured} | {} | {ratio:.2} | {} |",
                row.row.name,
                with.join(", "),
                row.row.quantity.text(),
                row.row.source
            );
        }
        page.push('\n');
        for row in own().filter(|row| !row.row.remark.is_empty()) {
            let _ = writeln!(page, "- {}: {}", row.row.name, row.row.remark);
        }
        if own().any(|row| !row.row.remark.is_empty()) {
            page.push('\n');
        }
    }
    page.push_str("## Not predicted\n\n");
    for (what, why) in LEFT_OUT {
        let _ = writeln!(page, "- {what}: {why}");
    }
    page
}
