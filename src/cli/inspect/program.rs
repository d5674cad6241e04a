//! `--program`: the steps of every block in order of execution, in the manner of the compiler's text form, each after its
//! number as `--layout`, `--work` and traces have it: block, colon, index.

use super::entries;
use crate::cli::output::Output;
use ipuc_formats::attribute_text::quote;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{BlockRecord, Manifest, OperandRecord, StepRecord};
use ipuc_passes::ir::text::Labels;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

pub(super) fn show(manifest: &Manifest, output: &mut Output) -> anyhow::Result<()> {
    lines(manifest).into_iter().try_for_each(|line| output.line(line))?;
    let names = Names::new(manifest);
    output.json(&json!({
        "entries": entries(manifest),
        "blocks": manifest.blocks.iter().map(|block| json_block(&names, block)).collect::<Json>(),
    }))
}

/// The program as text.
pub(in crate::cli) fn lines(manifest: &Manifest) -> Vec<String> {
    let names = Names::new(manifest);
    let mut lines = Vec::new();
    for entry in &manifest.entries {
        let (inputs, outputs) = (quoted(&entry.inputs), quoted(&entry.outputs));
        lines.push(format!("entry {}({inputs}) -> ({outputs}) = block {}", quote(&entry.name), entry.block));
    }
    for (index, block) in manifest.blocks.iter().enumerate() {
        let parameters: Vec<u32> = (0..block.parameters).collect();
        lines.push(format!("block {index}({}) {{", names.definitions(block, &parameters)));
        for (number, step) in block.steps.iter().enumerate() {
            lines.push(format!("  {index}:{number} {}", line(&names, block, step)));
        }
        lines.push(format!("  return {}", names.operands(block, &block.results)));
        lines.push("}".to_string());
    }
    lines
}

/// What values and weights are called: as in the compiler's text form.
pub(super) struct Names {
    /// By the numbers that values had in the compiler.
    values: Labels<u32>,
    weights: Labels<u32>,
}

impl Names {
    pub(super) fn new(manifest: &Manifest) -> Names {
        let values = manifest.blocks.iter().flat_map(|block| &block.values);
        let values: BTreeMap<u32, Option<&str>> = values.map(|value| (value.id, value.name.as_deref())).collect();
        let weights =
            manifest.weights.iter().zip(0..).map(|(weight, index)| (index, weight.id, weight.name.as_deref()));
        Names {
            values: Labels::new('%', values.iter().map(|(&id, &name)| (id, id, name))),
            weights: Labels::new('@', weights),
        }
    }

    fn value(&self, block: &BlockRecord, slot: u32) -> String {
        self.values.used(block.values[slot as usize].id)
    }

    fn definitions(&self, block: &BlockRecord, slots: &[u32]) -> String {
        let definition =
            |&slot: &u32| format!("{} : {}", self.values.defined(block.values[slot as usize].id), kind(block, slot));
        slots.iter().map(definition).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn operand(&self, block: &BlockRecord, operand: &OperandRecord) -> String {
        match *operand {
            OperandRecord::Absent => "_".to_string(),
            OperandRecord::Value(slot) => self.value(block, slot),
            OperandRecord::Weight(index) => self.weights.used(index),
        }
    }

    fn operands(&self, block: &BlockRecord, operands: &[OperandRecord]) -> String {
        operands.iter().map(|one| self.operand(block, one)).collect::<Vec<_>>().join(", ")
    }
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

fn line(names: &Names, block: &BlockRecord, step: &StepRecord) -> String {
    let mut line = format!("{} = {}", names.definitions(block, &step.results), step.op);
    if !step.operands.is_empty() {
        line.push_str(&format!(" {}", names.operands(block, &step.operands)));
    }
    if !step.name.is_empty() {
        line.push_str(&format!(" from {}", quote(&step.name)));
    }
    line
}

fn kind(block: &BlockRecord, slot: u32) -> String {
    block.values[slot as usize].kind.to_string()
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| quote(name)).collect::<Vec<_>>().join(", ")
}

fn json_block(names: &Names, block: &BlockRecord) -> Json {
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
            "operands": step.operands.iter().map(|one| json!(names.operand(block, one))).collect::<Json>(),
            "results": step.results.iter().map(|&slot| json!(names.value(block, slot))).collect::<Json>(),
        })
    });
    json!({
        "parameters": block.parameters,
        "values": values.collect::<Json>(),
        "steps": steps.collect::<Json>(),
        "results": block.results.iter().map(|one| json!(names.operand(block, one))).collect::<Json>(),
    })
}
