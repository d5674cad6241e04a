//! Records to the messages of the schema. Every message that is written here is read back by `decode.rs`.

use super::{
    AttachmentRecord, BlockRecord, ChunkRecord, EntryRecord, ExtentRecord, Manifest, OperandRecord, PartRecord,
    PlacementRecord, Provenance, Reduction, RegionRecord, SplitKind, SplitRecord, StateRecord, StateUse,
    StepPlacementRecord, StepRecord, ValueRecord, WeightRecord, WeightSource, schema,
};
use crate::attribute::AttributeValue;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::encodings::{Coded, ZeroBlocks, Zeros};
use crate::fact::{Shape, Type};
use crate::ops::{Obligation, Read, Relation};
use crate::tensor::Tensor;
use std::collections::HashMap;

/// The manifest as a message.
pub(super) fn encode(manifest: &Manifest) -> schema::Manifest {
    let mut dimensions = Dimensions::default();
    let obligations = manifest.obligations.iter().map(|obligation| dimensions.obligation(obligation)).collect();
    let blocks = manifest.blocks.iter().map(|block| dimensions.block(block)).collect();
    let states = manifest.states.iter().map(|state| dimensions.state(state)).collect();
    schema::Manifest {
        producer: manifest.producer.clone(),
        provenance: Some(provenance(&manifest.provenance)),
        dimensions: dimensions.texts,
        symbols: manifest
            .symbols
            .iter()
            .map(|symbol| schema::Symbol {
                name: symbol.name.clone(),
                minimum: symbol.minimum,
                maximum: symbol.maximum,
            })
            .collect(),
        obligations,
        entries: manifest.entries.iter().map(entry).collect(),
        blocks,
        weights: manifest.weights.iter().map(weight).collect(),
        extents: manifest.extents.iter().map(extent).collect(),
        chunks: manifest.chunks.iter().map(chunk).collect(),
        files: manifest.files.iter().map(|file| schema::File { root_hash: file.root_hash.to_vec() }).collect(),
        placements: manifest.placements.iter().map(placement).collect(),
        states,
        attachments: manifest.attachments.iter().map(attachment).collect(),
    }
}

fn attachment(attachment: &AttachmentRecord) -> schema::Attachment {
    schema::Attachment { name: attachment.name.clone(), data: attachment.data.to_vec() }
}

/// The table of distinct expressions, in the order of first use.
#[derive(Default)]
struct Dimensions {
    texts: Vec<String>,
    indices: HashMap<Dim, u32>,
}

impl Dimensions {
    fn index(&mut self, dim: &Dim) -> u32 {
        if let Some(&index) = self.indices.get(dim) {
            return index;
        }
        // The number of expressions is limited long before an index could overflow.
        let index = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.texts.push(dim.to_string());
        self.indices.insert(dim.clone(), index);
        index
    }

    fn indices(&mut self, dims: &[Dim]) -> Vec<u32> {
        dims.iter().map(|dim| self.index(dim)).collect()
    }

    fn obligation(&mut self, obligation: &Obligation) -> schema::Obligation {
        let relation = match obligation.relation {
            Relation::Equal => schema::Relation::Equal,
            Relation::Broadcastable => schema::Relation::Broadcastable,
            Relation::AtMost => schema::Relation::AtMost,
            Relation::Multiple => schema::Relation::Multiple,
        };
        schema::Obligation {
            relation: relation.into(),
            left: self.index(&obligation.left),
            right: self.index(&obligation.right),
            subject: obligation.subject.clone(),
        }
    }

    fn block(&mut self, block: &BlockRecord) -> schema::Block {
        schema::Block {
            values: block.values.iter().map(|value| self.value(value)).collect(),
            parameters: block.parameters,
            steps: block.steps.iter().map(step).collect(),
            results: block.results.iter().map(operand).collect(),
        }
    }

    fn value(&mut self, value: &ValueRecord) -> schema::Value {
        schema::Value {
            r#type: Some(self.kind(&value.kind)),
            contents: value.contents.as_ref().map(|dims| schema::Contents { elements: self.indices(dims) }),
            role: i32::from(value.role as u8),
            id: value.id,
            name: value.name.clone(),
        }
    }

    fn state(&mut self, state: &StateRecord) -> schema::State {
        schema::State {
            name: state.name.clone(),
            r#type: Some(self.kind(&state.kind)),
            growth: state.growth.map(|growth| schema::Growth {
                axis: growth.axis,
                page: growth.page,
                rows: growth.rows.map_or(0, |rows| i32::from(rows as u8)),
                overwritten: growth.overwritten,
            }),
        }
    }

    fn kind(&mut self, kind: &Type) -> schema::Type {
        use schema::r#type::Kind;
        let kind = match kind {
            Type::Tensor { dtype, shape } => Kind::Tensor(schema::TensorType {
                dtype: dtype_number(*dtype),
                shape: match shape {
                    Shape::Ranked(dims) => Some(schema::Shape { extents: self.indices(dims) }),
                    Shape::Unranked => None,
                },
            }),
            Type::Sequence(element) => Kind::Sequence(Box::new(self.kind(element))),
            Type::Optional(element) => Kind::Optional(Box::new(self.kind(element))),
            Type::Map { key, element } => {
                let element = Some(Box::new(self.kind(element)));
                Kind::Map(Box::new(schema::MapType { key: dtype_number(*key), element }))
            }
        };
        schema::Type { kind: Some(kind) }
    }
}

fn dtype_number(dtype: DType) -> u32 {
    dtype as u32
}

fn provenance(provenance: &Provenance) -> schema::Provenance {
    let setting = |(name, value): &(String, String)| schema::Setting { name: name.clone(), value: value.clone() };
    schema::Provenance {
        models: provenance.models.clone(),
        weights_hash: provenance.weights_hash.to_vec(),
        options: provenance.options.iter().map(setting).collect(),
        compiler_version: provenance.compiler_version.clone(),
    }
}

fn entry(entry: &EntryRecord) -> schema::Entry {
    let used = |used: &StateUse| schema::StateUse { state: used.state, input: used.input, output: used.output };
    schema::Entry {
        name: entry.name.clone(),
        block: entry.block,
        inputs: entry.inputs.clone(),
        outputs: entry.outputs.clone(),
        states: entry.states.iter().map(used).collect(),
    }
}

fn operand(operand: &OperandRecord) -> u64 {
    match operand {
        OperandRecord::Absent => 0,
        OperandRecord::Value(value) => 2 * u64::from(*value) + 1,
        OperandRecord::Weight(weight) => 2 * u64::from(*weight) + 2,
    }
}

fn step(step: &StepRecord) -> schema::Step {
    let read_kind = |read: Read| match read {
        Read::Once => schema::ReadKind::Once,
        Read::Repeated => schema::ReadKind::Repeated,
        Read::Rows => schema::ReadKind::Rows,
        Read::Groups => schema::ReadKind::Groups,
        Read::Nonzero => schema::ReadKind::Nonzero,
    };
    schema::Step {
        operator: step.op.code(),
        revision: step.op.revision(),
        operands: step.operands.iter().map(operand).collect(),
        results: step.results.clone(),
        reads: step
            .reads
            .iter()
            .map(|read| schema::Read { operand: read.operand, kind: read_kind(read.read).into() })
            .collect(),
        attributes: step
            .op
            .attributes()
            .into_iter()
            .map(|(number, _, value)| schema::Attribute { number, value: Some(attribute(value)) })
            .collect(),
        name: step.name.clone(),
    }
}

pub(super) fn attribute(value: AttributeValue) -> schema::attribute::Value {
    use schema::attribute::Value;
    match value {
        AttributeValue::Integer(integer) => Value::Integer(integer),
        AttributeValue::Float(float) => Value::Float(float.to_bits()),
        AttributeValue::Text(text) => Value::Text(text),
        AttributeValue::Integers(elements) => Value::Integers(schema::Integers { elements }),
        AttributeValue::Floats(floats) => {
            Value::Floats(schema::Floats { elements: floats.into_iter().map(f32::to_bits).collect() })
        }
        AttributeValue::Texts(elements) => Value::Texts(schema::Texts { elements }),
        AttributeValue::Tensor(value) => Value::Tensor(tensor(&value)),
    }
}

fn tensor(tensor: &Tensor) -> schema::Tensor {
    schema::Tensor {
        dtype: dtype_number(tensor.dtype()),
        shape: tensor.shape().iter().map(|&extent| extent as u64).collect(),
        data: tensor.bytes().to_vec(),
        strings: tensor.strings().map(<[String]>::to_vec).unwrap_or_default(),
    }
}

fn weight(weight: &WeightRecord) -> schema::Weight {
    let source = |source: &WeightSource| schema::Source {
        file: source.file.clone(),
        offset: source.offset,
        length: source.length,
        plane: source.plane.map_or(0, |plane| plane + 1),
    };
    schema::Weight {
        name: weight.name.clone(),
        dtype: dtype_number(weight.dtype),
        shape: weight.shape.clone(),
        encoding: Some(encoding(&weight.encoding)),
        parts: weight.parts.iter().map(part).collect(),
        sources: weight.sources.iter().map(source).collect(),
        reason: weight.reason.clone(),
        zeros: weight.zeros.as_ref().map(zeros),
        id: weight.id,
    }
}

fn zeros(found: &Zeros) -> schema::Zeros {
    let Zeros { elements, zeros, not_finite, groups, blocks, record_elements, reason } = found;
    let block = |block: &ZeroBlocks| {
        let ZeroBlocks { inputs, count, zeros } = *block;
        schema::ZeroBlocks { inputs, count, zeros }
    };
    schema::Zeros {
        elements: *elements,
        zeros: *zeros,
        not_finite: *not_finite,
        groups: groups.clone(),
        blocks: blocks.iter().map(block).collect(),
        record_elements: *record_elements,
        reason: reason.clone(),
    }
}

fn encoding(encoding: &Coded) -> schema::Encoding {
    let attributes = encoding.attributes().into_iter();
    schema::Encoding {
        encoding: encoding.code(),
        revision: encoding.revision(),
        attributes: attributes
            .map(|(number, _, value)| schema::Attribute { number, value: Some(attribute(value)) })
            .collect(),
    }
}

fn part(part: &PartRecord) -> schema::Part {
    let PartRecord { extent, start, end, inputs_start, inputs_end } = *part;
    schema::Part { extent, start, end, inputs_start, inputs_end }
}

fn extent(extent: &ExtentRecord) -> schema::Extent {
    schema::Extent {
        file: extent.file,
        offset: extent.offset,
        length: extent.length,
        checksum_block: extent.checksum_block,
        checksums: extent.checksums.clone(),
        pooled: extent.pooled,
        chunk: extent.chunk,
    }
}

fn chunk(chunk: &ChunkRecord) -> schema::Chunk {
    schema::Chunk { offset: chunk.offset, length: chunk.length, hash: chunk.hash.to_vec() }
}

fn placement(placement: &PlacementRecord) -> schema::Placement {
    let bindings = placement.bindings.iter();
    schema::Placement {
        target: placement.target.clone(),
        target_hash: placement.target_hash.to_vec(),
        block: placement.block,
        steps: placement.steps.iter().map(step_placement).collect(),
        bindings: bindings
            .map(|(symbol, value)| schema::DimensionBinding { symbol: symbol.clone(), value: *value })
            .collect(),
    }
}

fn step_placement(step: &StepPlacementRecord) -> schema::StepPlacement {
    let split = |split: &SplitRecord| {
        let kind = match split.kind {
            SplitKind::Tiles => schema::SplitKind::Tiles,
            SplitKind::Time => schema::SplitKind::Time,
        };
        schema::Split { space: split.space, axis: split.axis, parts: split.parts, kind: kind.into() }
    };
    let region = |region: &RegionRecord| schema::Region {
        operand: operand(&region.operand),
        offset: region.offset,
        bytes: region.bytes,
        from: region.from,
        to: region.to,
    };
    let reduction = match step.reduction {
        Reduction::None => schema::Reduction::None,
        Reduction::Chain => schema::Reduction::Chain,
        Reduction::Tree => schema::Reduction::Tree,
    };
    schema::StepPlacement {
        step: step.step,
        splits: step.splits.iter().map(split).collect(),
        // No step has as many operands as there are numbers.
        stationary: step.stationary.map_or(0, |operand| operand.saturating_add(1)),
        tiles: step.tiles.iter().map(|tiles| schema::TileRange { start: tiles.start, end: tiles.end }).collect(),
        regions: step.regions.iter().map(region).collect(),
        reduction: reduction.into(),
        reason: step.reason.clone(),
    }
}
