//! `--sparsity`: for each weight the zeros that the compiler found, the bytes and multiply-accumulates that they are, and
//! what was made of them and why.
//!
//! Weights come in the order of the manifest. Those that the compiler had no reason to measure, as biases, are left out.

use super::layout::encoding;
use super::weight_name;
use crate::cli::output::Output;
use ipuc_formats::dim::Dim;
use ipuc_formats::encodings::Zeros;
use ipuc_formats::model::{KnownStep, Manifest, OperandRecord, WeightRecord};
use serde_json::{Value as Json, json};

pub(super) fn show(manifest: &Manifest, output: &mut Output) -> anyhow::Result<()> {
    let macs = macs(manifest);
    let headings = ["weight", "encoding", "zeros", "2:4", "16x4 blocks", "bytes", "without zeros", "macs", "why"];
    let mut table = vec![headings.map(str::to_string)];
    let mut weights = Vec::new();
    for (index, weight) in manifest.weights.iter().enumerate() {
        let Some(zeros) = &weight.zeros else { continue };
        let row = Row { weight, zeros, stored_bytes: stored_bytes(manifest, weight), macs: &macs[index] };
        table.push(row.cells(weight_name(manifest, index)));
        weights.push(row.json(index));
    }
    output.table(table)?;
    output.json(&json!({ "weights": weights }))
}

/// A measured weight.
struct Row<'a> {
    weight: &'a WeightRecord,
    zeros: &'a Zeros,
    stored_bytes: u64,
    /// Of all steps that read it.
    macs: &'a Dim,
}

impl Row<'_> {
    /// Bytes of a bit for each element and of the elements that are not zero; estimated where the measure is a sample.
    fn sparse_bytes(&self) -> u64 {
        let encoding = self.weight.encoding.encoding();
        let elements: u64 = self.weight.shape.iter().product();
        let values = (elements as f64 * (1.0 - self.zeros.share())).round() as u64;
        (values * encoding.dtype().bits() as u64 + elements).div_ceil(8)
    }

    fn is_sample(&self) -> bool {
        self.zeros.elements > 0 && self.zeros.elements < self.weight.shape.iter().product()
    }

    fn cells(&self, name: String) -> [String; 9] {
        let Row { weight, zeros, stored_bytes, macs } = self;
        let measured = |text: String| if zeros.elements == 0 { "-".to_string() } else { text };
        let of_matrix = |text: String| if zeros.groups.is_empty() { "-".to_string() } else { text };
        let about = if self.is_sample() { "about " } else { "" };
        let blocks = zeros.blocks.iter().find(|blocks| blocks.inputs == 4).copied().unwrap_or_default();
        [
            name,
            encoding(&weight.encoding),
            measured(format!("{about}{}", percent(zeros.share()))),
            of_matrix(percent(zeros.two_of_four_share())),
            of_matrix(percent(blocks.zeros as f64 / blocks.count.max(1) as f64)),
            stored_bytes.to_string(),
            measured(format!("{about}{}", self.sparse_bytes())),
            of_matrix(format!("{} of {macs}", percent(zeros.share()))),
            zeros.reason.clone(),
        ]
    }

    fn json(&self, index: usize) -> Json {
        let Row { weight, zeros, stored_bytes, macs } = self;
        let blocks = zeros.blocks.iter().map(
            |blocks| json!({"outputs": 16, "inputs": blocks.inputs, "count": blocks.count, "zeros": blocks.zeros}),
        );
        json!({
            "weight": index,
            "name": weight.name,
            "encoding": encoding(&weight.encoding),
            "measured_elements": zeros.elements,
            "sampled": self.is_sample(),
            "zeros": zeros.zeros,
            "not_finite": zeros.not_finite,
            "groups_of_four": zeros.groups,
            "blocks": blocks.collect::<Json>(),
            "stored_bytes": stored_bytes,
            "bytes_without_zeros": self.sparse_bytes(),
            "macs": macs.as_known().map_or_else(|| json!(macs.to_string()), |known| json!(known)),
            "zero_share": zeros.share(),
            "reason": zeros.reason,
        })
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn stored_bytes(manifest: &Manifest, weight: &WeightRecord) -> u64 {
    weight.parts.iter().map(|part| manifest.extents[part.extent as usize].length).sum()
}

/// Multiply-accumulates of the steps that read each weight, each step once.
fn macs(manifest: &Manifest) -> Vec<Dim> {
    let mut macs = vec![Dim::ZERO; manifest.weights.len()];
    for (block, record) in manifest.blocks.iter().enumerate() {
        for (step, record) in record.steps.iter().enumerate() {
            let Some(known) = KnownStep::new(manifest, block, step) else { continue };
            let work = known.work();
            for operand in &record.operands {
                let OperandRecord::Weight(weight) = operand else { continue };
                let sum = &mut macs[*weight as usize];
                *sum = work.macs.iter().fold(sum.clone(), |sum, (_, count)| &sum + count);
            }
        }
    }
    macs
}
