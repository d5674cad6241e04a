//! What the records of a file say of its steps, as the facts from which work and loops follow.

use super::{Manifest, OperandRecord, StepRecord, ValueRecord, WeightRecord};
use crate::dim::{Dim, Ranges};
use crate::fact::{Contents, Fact, Shape};
use crate::ops::{InferContext, NoBlocks, Op, StepFacts, Stored, Work};
use crate::tensor::element_count;

/// The facts of one step of a manifest.
#[derive(Debug, Clone)]
pub struct KnownStep<'a> {
    step: &'a StepRecord,
    inputs: Vec<Option<Fact>>,
    outputs: Vec<Fact>,
    stored: Vec<Option<Stored>>,
}

impl<'a> KnownStep<'a> {
    /// The facts of a step of a block of a valid manifest; `None` where there is no such step, or where the types of its
    /// values do not fit its operator.
    pub fn new(manifest: &'a Manifest, block: usize, step: usize) -> Option<KnownStep<'a>> {
        let block = manifest.blocks.get(block)?;
        let step = block.steps.get(step)?;
        let value = |slot: u32| block.values.get(slot as usize).map(fact);
        let mut known = KnownStep { step, inputs: Vec::new(), outputs: Vec::new(), stored: Vec::new() };
        for operand in &step.operands {
            let (fact, stored) = match *operand {
                OperandRecord::Absent => (None, None),
                OperandRecord::Value(slot) => (Some(value(slot)?), None),
                OperandRecord::Weight(weight) => {
                    let weight = manifest.weights.get(weight as usize)?;
                    let dims = weight.shape.iter().map(|&extent| Dim::from(extent as usize)).collect();
                    (Some(Fact::tensor(weight.dtype, Shape::Ranked(dims))), Some(stored(manifest, weight)))
                }
            };
            known.inputs.push(fact);
            known.stored.push(stored);
        }
        known.outputs = step.results.iter().map(|&slot| value(slot)).collect::<Option<_>>()?;
        known.is_typed().then_some(known)
    }

    /// Types of results are those that the operator gives, as far as ranks; those of bodies are the bodies' own.
    fn is_typed(&self) -> bool {
        if !self.step.op.bodies().is_empty() {
            return true;
        }
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new(&self.step.name, &ranges, &mut blocks);
        let Ok(inferred) = self.step.op.operator().infer(&self.inputs, &mut context) else { return false };
        let fits = |(inferred, stated): (&Fact, &Fact)| match (inferred.rank(), stated.rank()) {
            (Some(inferred), Some(stated)) => inferred == stated,
            (None, _) | (_, None) => true,
        };
        inferred.len() == self.outputs.len() && inferred.iter().zip(&self.outputs).all(fits)
    }

    /// The operator.
    pub fn op(&self) -> &'a Op {
        &self.step.op
    }

    /// The facts, named after the ONNX node.
    pub fn facts(&self) -> StepFacts<'_> {
        StepFacts { step: &self.step.name, inputs: &self.inputs, outputs: &self.outputs, stored: &self.stored }
    }

    /// The work of one run of the step.
    pub fn work(&self) -> Work {
        self.step.op.work(&self.facts())
    }
}

/// Contents that do not fill the shape are left out: operators index what they are told of.
fn fact(value: &ValueRecord) -> Fact {
    let extents = value.kind.as_tensor().and_then(|(_, shape)| shape.as_known());
    let count = extents.and_then(|extents| element_count(&extents));
    let contents = value.contents.clone().filter(|contents| count == Some(contents.len()));
    Fact { kind: value.kind.clone(), contents: contents.map(Contents::Dims) }
}

fn stored(manifest: &Manifest, weight: &WeightRecord) -> Stored {
    let parts = weight.parts.iter().filter_map(|part| manifest.extents.get(part.extent as usize));
    let bytes = parts.fold(0u64, |bytes, extent| bytes.saturating_add(extent.length));
    Stored { dtype: weight.encoding.dtype(), bytes: Dim::from(bytes as usize) }
}
