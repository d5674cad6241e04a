//! `run --observe`: what was seen of the values that steps computed.

use super::output::Output;
use super::present::short;
use crate::observe::{Part, Statistics, interval};
use ipuc_formats::model::{Manifest, ValueRecord};
use serde_json::{Value as Json, json};

/// A line for each part of each value.
pub(super) fn show(manifest: &Manifest, statistics: &Statistics, output: &mut Output) -> anyhow::Result<()> {
    let mut table =
        vec![["value", "part", "elements", "zeros", "not finite", "least", "greatest", "name"].map(str::to_string)];
    for (number, parts) in &statistics.values {
        for (index, part) in parts.iter().enumerate() {
            let name = record(manifest, *number).and_then(|value| value.name.clone()).unwrap_or_default();
            let bound = |bound: f64| if bound.is_finite() { short(bound) } else { "-".to_string() };
            table.push([
                number.to_string(),
                index.to_string(),
                part.elements.to_string(),
                part.zeros.to_string(),
                part.not_finite.to_string(),
                bound(part.minimum),
                bound(part.maximum),
                name,
            ]);
        }
    }
    output.table(table)
}

/// The value of this number, in whatever block it is.
fn record(manifest: &Manifest, number: u32) -> Option<&ValueRecord> {
    manifest.blocks.iter().flat_map(|block| &block.values).find(|value| value.id == number)
}

pub(super) fn values(manifest: &Manifest, statistics: &Statistics) -> Json {
    let value = |(number, parts): (&u32, &Vec<Part>)| {
        let record = record(manifest, *number);
        json!({
            "value": number,
            "name": record.and_then(|value| value.name.clone()),
            "type": record.map(|value| value.kind.to_string()),
            "parts": parts.iter().map(part).collect::<Json>(),
        })
    };
    statistics.values.iter().map(value).collect()
}

fn part(part: &Part) -> Json {
    let bound = |bound: f64| bound.is_finite().then_some(bound);
    let histogram = part.histogram.iter().map(|(&index, &count)| {
        let (from, to) = interval(index);
        json!({"from": from, "to": bound(to.into()), "count": count})
    });
    json!({
        "elements": part.elements,
        "zeros": part.zeros,
        "not_finite": part.not_finite,
        "minimum": bound(part.minimum),
        "maximum": bound(part.maximum),
        "histogram": histogram.collect::<Json>(),
    })
}

pub(super) fn runs(statistics: &Statistics) -> Json {
    statistics.runs.iter().map(|(block, times)| json!({"block": block, "times": times})).collect()
}
