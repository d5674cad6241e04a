//! Whether the records of a file agree with what its operators mean: looked at once, when the file is opened.
//!
//! A file may come from anywhere. Its manifest is sound by itself ([`ipuc_formats::model`]); here each step is typed
//! again from the records of its operands, and must have as many results as its operator gives, of the types that
//! the records state. Bodies of control flow take and give what their own records state, so that each step is visited
//! once. Left to the bind: obligations. Left to the kernels: what depends on data.

use crate::error::OpenError;
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::{Equality, Ranges, equality};
use ipuc_formats::fact::{Contents, Fact, Shape, Type};
use ipuc_formats::model::{
    BlockRecord, Fault, FormatError, Manifest, OperandRecord, StepRecord, ValueRecord, read_manifest,
    read_manifest_from,
};
use ipuc_formats::ops::{BlockInference, InferContext, TypeError};
use ipuc_formats::read_at::ReadAt;
use ipuc_formats::tensor::element_count;

/// A manifest each of whose steps was typed.
pub(crate) struct CheckedManifest {
    pub(crate) manifest: Manifest,
    /// The name of the file.
    pub(crate) root_hash: [u8; 32],
}

/// The manifest of a file, each step typed.
///
/// # Errors
/// [`OpenError`] where the file is not sound up to the stream, or a step does not fit its operator.
pub(crate) fn checked_manifest(file: &dyn ReadAt) -> Result<CheckedManifest, OpenError> {
    let (superblock, manifest) = read_manifest(file)?;
    check(&manifest)?;
    Ok(CheckedManifest { manifest, root_hash: superblock.root_hash })
}

/// The same from the beginning of a stream, which is left at the first byte of the weights.
///
/// # Errors
/// As [`checked_manifest`].
pub(crate) fn checked_manifest_from(stream: &mut dyn std::io::Read) -> Result<CheckedManifest, OpenError> {
    let (superblock, manifest) = read_manifest_from(stream)?;
    check(&manifest)?;
    Ok(CheckedManifest { manifest, root_hash: superblock.root_hash })
}

/// Type every step of a file.
///
/// # Errors
/// [`OpenError::Step`] for the first step whose records do not fit its operator.
fn check(manifest: &Manifest) -> Result<(), OpenError> {
    let mut ranges = Ranges::new();
    for symbol in &manifest.symbols {
        let (minimum, maximum) = (symbol.minimum, symbol.maximum);
        ranges.set(&symbol.name, minimum, maximum).map_err(|_| FormatError::Record {
            place: format!("symbol `{}`", symbol.name),
            fault: Fault::EmptyRange { minimum, maximum },
        })?;
    }
    let records = Records { manifest, ranges: &ranges };
    for (index, block) in manifest.blocks.iter().enumerate() {
        for step in &block.steps {
            records.check_step(block, step).map_err(|error| OpenError::Step {
                block: index as u32,
                step: step.name.clone(),
                operator: step.op.name(),
                error,
            })?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Records<'a> {
    manifest: &'a Manifest,
    ranges: &'a Ranges,
}

impl Records<'_> {
    fn check_step(mut self, block: &BlockRecord, step: &StepRecord) -> Result<(), TypeError> {
        let inputs: Vec<Option<Fact>> = step.operands.iter().map(|operand| self.fact(block, operand)).collect();
        let ranges = self.ranges;
        let mut context = InferContext::new(&step.name, ranges, &mut self);
        let inferred = step.op.operator().infer(&inputs, &mut context)?;
        if inferred.len() != step.results.len() {
            return Err(TypeError::Value {
                subject: "the number of results".to_string(),
                found: step.results.len().to_string(),
                expected: inferred.len().to_string(),
            });
        }
        for (index, (&slot, fact)) in step.results.iter().zip(&inferred).enumerate() {
            self.agree(&block.values[slot as usize].kind, &fact.kind, || format!("the type of result {index}"))?;
        }
        Ok(())
    }

    fn fact(&self, block: &BlockRecord, operand: &OperandRecord) -> Option<Fact> {
        match *operand {
            OperandRecord::Absent => None,
            OperandRecord::Value(slot) => Some(fact_of(&block.values[slot as usize])),
            OperandRecord::Weight(weight) => {
                let weight = &self.manifest.weights[weight as usize];
                let dims = weight.shape.iter().map(|&extent| i64::try_from(extent).unwrap_or(i64::MAX).into());
                Some(Fact::tensor(weight.dtype, Shape::Ranked(dims.collect())))
            }
        }
    }

    /// A recorded type must be one that a value of the inferred type can have.
    fn agree(&self, recorded: &Type, inferred: &Type, subject: impl Fn() -> String) -> Result<(), TypeError> {
        if self.may_be_equal(recorded, inferred) {
            return Ok(());
        }
        Err(TypeError::Value { subject: subject(), found: recorded.to_string(), expected: inferred.to_string() })
    }

    fn may_be_equal(&self, one: &Type, two: &Type) -> bool {
        match (one, two) {
            (Type::Tensor { dtype: one, shape: first }, Type::Tensor { dtype: two, shape: second }) => {
                let refuted = |(one, two)| equality(one, two, self.ranges) == Equality::Refuted;
                let shapes = match (first, second) {
                    (Shape::Ranked(first), Shape::Ranked(second)) => {
                        first.len() == second.len() && !first.iter().zip(second).any(refuted)
                    }
                    (Shape::Unranked, _) | (_, Shape::Unranked) => true,
                };
                one == two && shapes
            }
            (Type::Sequence(one), Type::Sequence(two)) | (Type::Optional(one), Type::Optional(two)) => {
                self.may_be_equal(one, two)
            }
            (Type::Map { key: one, element: first }, Type::Map { key: two, element: second }) => {
                one == two && self.may_be_equal(first, second)
            }
            (Type::Tensor { .. } | Type::Sequence(_) | Type::Optional(_) | Type::Map { .. }, _) => false,
        }
    }
}

/// Contents that do not fill the shape are left out: operators index what they are told of.
fn fact_of(value: &ValueRecord) -> Fact {
    let extents = value.kind.as_tensor().and_then(|(_, shape)| shape.as_known());
    let count = extents.and_then(|extents| element_count(&extents));
    let contents = value.contents.clone().filter(|contents| count == Some(contents.len()));
    Fact { kind: value.kind.clone(), contents: contents.map(Contents::Dims) }
}

impl BlockInference for Records<'_> {
    fn infer_block(&mut self, index: BlockIndex, parameters: &[Fact]) -> Result<Vec<Fact>, TypeError> {
        let missing = || TypeError::Block(format!("block {} does not exist", index.0));
        let block = self.manifest.blocks.get(index.0 as usize).ok_or_else(missing)?;
        let recorded = block.values.get(..block.parameters as usize).unwrap_or(&[]);
        if recorded.len() != parameters.len() {
            return Err(TypeError::OperandCount { expected: recorded.len().to_string(), found: parameters.len() });
        }
        for (at, (value, given)) in recorded.iter().zip(parameters).enumerate() {
            self.agree(&value.kind, &given.kind, || format!("parameter {at} of block {}", index.0))?;
        }
        let absent = || TypeError::Block("a result is missing".to_string());
        block.results.iter().map(|result| self.fact(block, result).ok_or_else(absent)).collect()
    }
}
