//! `--program`: the steps of every block in order of execution, in the manner of the compiler's text form.

use super::entries;
use crate::cli::output::Output;
use ipuc_formats::attribute_text::quote;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{BlockRecord, Manifest, OperandRecord, StepRecord};
use serde_json::{Value as Json, json};

pub(super) fn show(manifest: &Manifest, output: &mut Output) -> anyhow::Result<()> {
    for entry in &manifest.entries {
        let (inputs, outputs) = (quoted(&entry.inputs), quoted(&entry.outputs));
        output.line(format_args!("entry {}({inputs}) -> ({outputs}) = block {}", quote(&entry.name), entry.block))?;
    }
    for (index, block) in manifest.blocks.iter().enumerate() {
        let parameters = (0..block.parameters).map(|slot| format!("{} : {}", value(slot), kind(block, slot)));
        output.line(format_args!("block {index}({}) {{", parameters.collect::<Vec<_>>().join(", ")))?;
        for step in &block.steps {
            output.line(format_args!("  {}", line(manifest, block, step)))?;
        }
        output.line(format_args!("  return {}\n}}", operands(manifest, &block.results)))?;
    }
    output.json(&json!({
        "entries": entries(manifest),
        "blocks": manifest.blocks.iter().map(|block| json_block(manifest, block)).collect::<Json>(),
    }))
}

/// The type of a step's operand or a block's result.
pub(super) fn operand_type(manifest: &Manifest, block: &BlockRecord, operand: &OperandRecord) -> String {
    match *operand {
        OperandRecord::Absent => "nothing".to_string(),
        OperandRecord::Value(slot) => kind(block, slot),
        OperandRecord::Weight(index) => {
            let weight = &manifest.weights[index as usize];
            let extents: Vec<usize> = weight.shape.iter().map(|&extent| extent as usize).collect();
            Type::tensor(weight.dtype, Shape::known(&extents)).to_string()
        }
    }
}

fn line(manifest: &Manifest, block: &BlockRecord, step: &StepRecord) -> String {
    let results = step.results.iter().map(|&slot| format!("{} : {}", value(slot), kind(block, slot)));
    let mut line = format!("{} = {}", results.collect::<Vec<_>>().join(", "), step.op);
    if !step.operands.is_empty() {
        line.push_str(&format!(" {}", operands(manifest, &step.operands)));
    }
    if !step.name.is_empty() {
        line.push_str(&format!(" from {}", quote(&step.name)));
    }
    line
}

fn value(slot: u32) -> String {
    format!("%{slot}")
}

fn kind(block: &BlockRecord, slot: u32) -> String {
    block.values[slot as usize].kind.to_string()
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| quote(name)).collect::<Vec<_>>().join(", ")
}

fn operand(manifest: &Manifest, operand: &OperandRecord) -> String {
    match *operand {
        OperandRecord::Absent => "_".to_string(),
        OperandRecord::Value(slot) => value(slot),
        OperandRecord::Weight(index) => match &manifest.weights[index as usize].name {
            Some(name) => format!("@{}", quote(name)),
            None => format!("@{index}"),
        },
    }
}

fn operands(manifest: &Manifest, operands: &[OperandRecord]) -> String {
    operands.iter().map(|one| operand(manifest, one)).collect::<Vec<_>>().join(", ")
}

fn json_block(manifest: &Manifest, block: &BlockRecord) -> Json {
    let values = block.values.iter().map(|value| {
        let role: &'static str = value.role.into();
        json!({"name": value.name, "type": value.kind.to_string(), "role": role, "id": value.id})
    });
    let steps = block.steps.iter().map(|step| {
        let attributes = step
            .op
            .attributes()
            .into_iter()
            .map(|(_, name, value)| json!({"name": name, "value": ipuc_formats::attribute_text::print(&value)}));
        json!({
            "operator": step.op.name(),
            "node": step.name,
            "attributes": attributes.collect::<Json>(),
            "operands": step.operands.iter().map(|one| json!(operand(manifest, one))).collect::<Json>(),
            "results": step.results.iter().map(|&slot| json!(value(slot))).collect::<Json>(),
        })
    });
    json!({
        "parameters": block.parameters,
        "values": values.collect::<Json>(),
        "steps": steps.collect::<Json>(),
        "results": block.results.iter().map(|one| json!(operand(manifest, one))).collect::<Json>(),
    })
}
