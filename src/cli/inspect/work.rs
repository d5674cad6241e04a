//! `--work`: multiply-accumulates, operations on elements and bytes of each step, and of each entry with its bodies.
//!
//! Counts are numbers where the dimensions that they depend on are known, else expressions of them. What only a run can
//! tell (iterations of a loop, which branch is taken) is a symbol named after the step.

use crate::cli::arguments::{Dimension, bindings};
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use ipuc_formats::dim::{Bindings, Dim};
use ipuc_formats::model::{KnownStep, Manifest};
use ipuc_formats::ops::{Gathered, Precision, VectorClass, Work, add_counts};
use serde_json::{Value as Json, json};

/// The work of a step, or of all steps of an entry.
#[derive(Default, Clone)]
struct Counts {
    macs: Vec<(Precision, Dim)>,
    vector: Vec<(VectorClass, Dim)>,
    stored: Dim,
    moved: Dim,
    gathered: Dim,
}

impl Counts {
    fn of(work: &Work) -> Counts {
        let bytes = |gathered: &Gathered| &gathered.parts * &gathered.part_bytes;
        Counts {
            macs: work.macs.clone(),
            vector: work.vector.clone(),
            stored: work.stored.clone(),
            moved: work.moved.clone(),
            gathered: work.gathered.as_ref().map_or(Dim::ZERO, bytes),
        }
    }

    /// Add work that is done so many times.
    fn add(&mut self, other: &Counts, times: &Dim) {
        add_counts(&mut self.macs, other.macs.iter().map(|(precision, count)| (*precision, count * times)));
        add_counts(&mut self.vector, other.vector.iter().map(|(class, count)| (*class, count * times)));
        self.stored = &self.stored + &other.stored * times;
        self.moved = &self.moved + &other.moved * times;
        self.gathered = &self.gathered + &other.gathered * times;
    }
}

pub(super) fn show(manifest: &Manifest, dimensions: &[Dimension], output: &mut Output) -> anyhow::Result<()> {
    let values = bindings(dimensions)?;
    let mut table = vec![
        ["block", "step", "operator", "macs", "vector", "stored", "moved", "gathered", "runs", "name"]
            .map(str::to_string),
    ];
    let mut steps = Vec::new();
    // Bodies come after the blocks that run them: from the last block to the first, all of theirs are known.
    let mut blocks: Vec<Counts> = vec![Counts::default(); manifest.blocks.len()];
    for (block, record) in manifest.blocks.iter().enumerate().rev() {
        let mut rows = Vec::new();
        for step in 0..record.steps.len() {
            let misfit = || Failure::file(format!("block {block}, step {step}: the types do not fit the operator"));
            let known = KnownStep::new(manifest, block, step).ok_or_else(misfit)?;
            let work = bound(known.work(), &values);
            let counts = Counts::of(&work);
            let mut total = std::mem::take(&mut blocks[block]);
            total.add(&counts, &Dim::ONE);
            for (body, times) in &work.runs {
                total.add(&blocks[body.0 as usize], times);
            }
            blocks[block] = total;
            let runs = work.runs.iter().map(|(body, times)| format!("{} x {times}", body.0));
            let name = &record.steps[step].name;
            rows.push((
                [
                    block.to_string(),
                    step.to_string(),
                    known.op().name().to_string(),
                    listed(&counts.macs),
                    listed(&classes(&counts.vector)),
                    counts.stored.to_string(),
                    counts.moved.to_string(),
                    counts.gathered.to_string(),
                    runs.collect::<Vec<_>>().join(", "),
                    name.clone(),
                ],
                json_step((block, step), known.op().name(), name, &work),
            ));
        }
        rows.into_iter().rev().for_each(|row| steps.push(row));
    }
    for (row, _) in steps.iter().rev() {
        table.push(row.clone());
    }
    output.table(table)?;
    let mut entries = Vec::new();
    for entry in &manifest.entries {
        let counts = &blocks[entry.block as usize];
        output.line(format_args!("entry `{}`:", entry.name))?;
        for (precision, count) in &counts.macs {
            output.line(format_args!("  {count} multiply-accumulates {precision}"))?;
        }
        for (class, count) in classes(&counts.vector) {
            output.line(format_args!("  {count} {class} operations"))?;
        }
        let (stored, gathered, moved) = (&counts.stored, &counts.gathered, &counts.moved);
        output.line(format_args!("  bytes: {stored} of weights, {gathered} of rows, {moved} moved"))?;
        let mut object = json_counts(counts);
        object["name"] = json!(entry.name);
        entries.push(object);
    }
    let steps: Vec<Json> = steps.into_iter().rev().map(|(_, step)| step).collect();
    output.json(&json!({ "steps": steps, "entries": entries }))
}

/// The work at these values of dimensions.
pub(in crate::cli) fn bound(work: Work, values: &Bindings) -> Work {
    let at = |dim: Dim| dim.substitute(&|symbol| values.get(symbol).map(Dim::known));
    Work {
        macs: work.macs.into_iter().map(|(precision, count)| (precision, at(count))).collect(),
        vector: work.vector.into_iter().map(|(class, count)| (class, at(count))).collect(),
        stored: at(work.stored),
        moved: at(work.moved),
        gathered: work
            .gathered
            .map(|gathered| Gathered { parts: at(gathered.parts), part_bytes: at(gathered.part_bytes) }),
        runs: work.runs.into_iter().map(|(block, times)| (block, at(times))).collect(),
    }
}

fn classes(vector: &[(VectorClass, Dim)]) -> Vec<(&'static str, Dim)> {
    vector.iter().map(|(class, count)| ((*class).into(), count.clone())).collect()
}

fn listed<K: std::fmt::Display>(counts: &[(K, Dim)]) -> String {
    counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ")
}

/// A number, or the text of an expression.
fn number(dim: &Dim) -> Json {
    dim.as_known().map_or_else(|| json!(dim.to_string()), |known| json!(known))
}

fn json_counts(counts: &Counts) -> Json {
    let macs = counts.macs.iter().map(|(precision, count)| {
        json!({
            "activation": precision.activation.name(),
            "weight": precision.weight.name(),
            "accumulator": precision.accumulator.name(),
            "count": number(count),
        })
    });
    let vector =
        classes(&counts.vector).into_iter().map(|(class, count)| json!({"class": class, "count": number(&count)}));
    json!({
        "macs": macs.collect::<Json>(),
        "vector": vector.collect::<Json>(),
        "stored_bytes": number(&counts.stored),
        "moved_bytes": number(&counts.moved),
        "gathered_bytes": number(&counts.gathered),
    })
}

fn json_step((block, step): (usize, usize), operator: &str, node: &str, work: &Work) -> Json {
    let mut object = json_counts(&Counts::of(work));
    object["block"] = json!(block);
    object["step"] = json!(step);
    object["operator"] = json!(operator);
    object["node"] = json!(node);
    let runs = work.runs.iter().map(|(block, times)| json!({"block": block.0, "times": number(times)}));
    object["runs"] = runs.collect();
    object
}
