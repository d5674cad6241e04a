//! Messages of the schema to records. Only what a single message shows is checked here; what records say about one
//! another is for `validate`.

use super::{
    AttachmentRecord, BlockRecord, ChunkRecord, EntryRecord, ExtentRecord, Fault, FileRecord, FormatError, Growth,
    Manifest, OperandRecord, PartRecord, PlacementRecord, Provenance, ReadRecord, Reduction, RegionRecord, Role,
    SplitKind, SplitRecord, StateRecord, StateUse, StepPlacementRecord, StepRecord, SymbolRecord, ValueRecord,
    WeightRecord, WeightSource, schema,
};
use crate::attribute::AttributeValue;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::encodings::{Coded, ZeroBlocks, Zeros};
use crate::fact::{Shape, Type};
use crate::limits;
use crate::ops::{Obligation, Op, Read, Relation, RowScheme};
use crate::tensor::Tensor;
use std::collections::HashSet;

/// The manifest of a message.
pub(super) fn decode(manifest: schema::Manifest) -> Result<Manifest, FormatError> {
    let dims = Dimensions::parse(&manifest.dimensions)?;
    let provenance = manifest.provenance.ok_or(Fault::Missing("the provenance"));
    Ok(Manifest {
        producer: manifest.producer,
        provenance: provenance.and_then(provenance_record).map_err(|fault| fault.at("provenance"))?,
        symbols: manifest
            .symbols
            .into_iter()
            .map(|symbol| SymbolRecord { name: symbol.name, minimum: symbol.minimum, maximum: symbol.maximum })
            .collect(),
        obligations: records("obligation", manifest.obligations, |obligation| dims.obligation(obligation))?,
        entries: manifest.entries.into_iter().map(entry).collect(),
        blocks: blocks(&dims, manifest.blocks)?,
        weights: records("weight", manifest.weights, weight)?,
        extents: manifest.extents.into_iter().map(extent).collect(),
        chunks: records("chunk", manifest.chunks, chunk)?,
        files: records("file", manifest.files, |file| Ok(FileRecord { root_hash: hash(file.root_hash)? }))?,
        placements: records("placement", manifest.placements, placement)?,
        states: records("state", manifest.states, |state| dims.state(state))?,
        attachments: manifest.attachments.into_iter().map(attachment).collect(),
    })
}

fn attachment(attachment: schema::Attachment) -> AttachmentRecord {
    AttachmentRecord { name: attachment.name, data: attachment.data.into() }
}

/// Convert each message; an error says which.
fn records<M, R>(
    what: &'static str,
    messages: Vec<M>,
    convert: impl Fn(M) -> Result<R, Fault>,
) -> Result<Vec<R>, FormatError> {
    let indexed = messages.into_iter().enumerate();
    indexed.map(|(index, message)| convert(message).map_err(|fault| fault.at(format!("{what} {index}")))).collect()
}

fn blocks(dims: &Dimensions, messages: Vec<schema::Block>) -> Result<Vec<BlockRecord>, FormatError> {
    let block = |(index, block): (usize, schema::Block)| {
        let within = |what: &str, at: usize, fault: Fault| fault.at(format!("block {index}, {what} {at}"));
        let values = block.values.into_iter().enumerate();
        let values = values.map(|(at, value)| dims.value(value).map_err(|fault| within("value", at, fault)));
        let steps = block.steps.into_iter().enumerate();
        let steps = steps.map(|(at, record)| {
            let name = record.name.clone();
            step(record).map_err(|fault| within("step", at, fault)).map_err(|error| error.of_step(&name))
        });
        let results = block.results.into_iter().enumerate();
        let results = results.map(|(at, coded)| operand(coded).map_err(|fault| within("result", at, fault)));
        Ok(BlockRecord {
            values: values.collect::<Result<_, _>>()?,
            parameters: block.parameters,
            steps: steps.collect::<Result<_, _>>()?,
            results: results.collect::<Result<_, _>>()?,
        })
    };
    messages.into_iter().enumerate().map(block).collect()
}

impl FormatError {
    /// The same error with the name of the step it is about.
    fn of_step(self, name: &str) -> FormatError {
        match self {
            FormatError::Record { place, fault } => FormatError::Record { place: format!("{place} `{name}`"), fault },
            other => other,
        }
    }
}

/// The table of expressions.
struct Dimensions(Vec<Dim>);

impl Dimensions {
    fn parse(texts: &[String]) -> Result<Dimensions, FormatError> {
        let limit = |what, found, limit| FormatError::Limit { what, found: found as u64, limit: limit as u64 };
        if texts.len() > limits::IPU_DIMENSIONS {
            return Err(limit("a number of dimension expressions of", texts.len(), limits::IPU_DIMENSIONS));
        }
        let text_bytes = texts.iter().map(String::len).sum();
        if text_bytes > limits::IPU_DIMENSION_TEXT_BYTES {
            let most = limits::IPU_DIMENSION_TEXT_BYTES;
            return Err(limit("a text of all dimension expressions of", text_bytes, most));
        }
        let mut seen = HashSet::with_capacity(texts.len());
        let mut dims = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            let new = seen.insert(text.as_str());
            let parsed = if new { parse_canonical(text) } else { Err(duplicate(text)) };
            dims.push(parsed.map_err(|fault| fault.at(format!("dimension {index}")))?);
        }
        Ok(Dimensions(dims))
    }

    fn get(&self, index: u32) -> Result<Dim, Fault> {
        let missing = || Fault::Index { what: "dimension", index: u64::from(index), count: self.0.len() as u64 };
        self.0.get(index as usize).cloned().ok_or_else(missing)
    }

    fn all(&self, indices: &[u32]) -> Result<Vec<Dim>, Fault> {
        indices.iter().map(|&index| self.get(index)).collect()
    }

    fn obligation(&self, obligation: schema::Obligation) -> Result<Obligation, Fault> {
        let relation = match schema::Relation::try_from(obligation.relation) {
            Ok(schema::Relation::Equal) => Relation::Equal,
            Ok(schema::Relation::Broadcastable) => Relation::Broadcastable,
            Ok(schema::Relation::AtMost) => Relation::AtMost,
            Ok(schema::Relation::Multiple) => Relation::Multiple,
            Ok(schema::Relation::Unspecified) | Err(_) => return Err(unknown("relation", obligation.relation)),
        };
        let (left, right) = (self.get(obligation.left)?, self.get(obligation.right)?);
        Ok(Obligation { relation, left, right, subject: obligation.subject })
    }

    fn value(&self, value: schema::Value) -> Result<ValueRecord, Fault> {
        let role = u8::try_from(value.role).ok().and_then(Role::from_repr);
        Ok(ValueRecord {
            kind: self.kind(value.r#type.ok_or(Fault::Missing("the type"))?, 0)?,
            contents: value.contents.map(|contents| self.all(&contents.elements)).transpose()?,
            role: role.ok_or_else(|| unknown("role", value.role))?,
            id: value.id,
            name: value.name,
        })
    }

    fn state(&self, state: schema::State) -> Result<StateRecord, Fault> {
        Ok(StateRecord {
            name: state.name,
            kind: self.kind(state.r#type.ok_or(Fault::Missing("the type"))?, 0)?,
            growth: state.growth.map(growth).transpose()?,
        })
    }

    fn kind(&self, kind: schema::Type, nesting: usize) -> Result<Type, Fault> {
        use schema::r#type::Kind;
        let limit = limits::IPU_TYPE_NESTING;
        if nesting > limit {
            return Err(Fault::Limit { what: "the nesting of types", found: nesting as u64, limit: limit as u64 });
        }
        match kind.kind.ok_or(Fault::Missing("the kind of a type"))? {
            Kind::Tensor(tensor) => {
                let shape = match tensor.shape {
                    Some(shape) => Shape::Ranked(self.all(&shape.extents)?),
                    None => Shape::Unranked,
                };
                Ok(Type::Tensor { dtype: dtype(tensor.dtype)?, shape })
            }
            Kind::Sequence(element) => Ok(Type::Sequence(Box::new(self.kind(*element, nesting + 1)?))),
            Kind::Optional(element) => Ok(Type::Optional(Box::new(self.kind(*element, nesting + 1)?))),
            Kind::Map(map) => {
                let element = map.element.ok_or(Fault::Missing("the element type of a map"))?;
                Ok(Type::Map { key: dtype(map.key)?, element: Box::new(self.kind(*element, nesting + 1)?) })
            }
        }
    }
}

/// A canonical text is about as long as its expression is large; others could be far shorter.
fn parse_canonical(text: &str) -> Result<Dim, Fault> {
    let dim: Dim = text.parse()?;
    if dim.to_string() == text { Ok(dim) } else { Err(Fault::NotCanonical(shortened(text))) }
}

fn duplicate(text: &str) -> Fault {
    Fault::Duplicate { what: "dimension", name: shortened(text) }
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

pub(super) fn unknown(what: &'static str, number: i32) -> Fault {
    Fault::Unknown { what, number: u64::from(number.unsigned_abs()) }
}

fn growth(growth: schema::Growth) -> Result<Growth, Fault> {
    let rows = match u8::try_from(growth.rows) {
        Ok(0) => None,
        number => {
            let known = number.ok().and_then(RowScheme::from_repr);
            Some(known.ok_or_else(|| unknown("row scheme", growth.rows))?)
        }
    };
    Ok(Growth { axis: growth.axis, page: growth.page, rows, overwritten: growth.overwritten })
}

fn dtype(number: u32) -> Result<DType, Fault> {
    let known = u8::try_from(number).ok().and_then(DType::from_repr);
    known.ok_or(Fault::Unknown { what: "element type", number: u64::from(number) })
}

fn hash(bytes: Vec<u8>) -> Result<[u8; 32], Fault> {
    <[u8; 32]>::try_from(bytes).map_err(|bytes| Fault::Mismatch {
        what: "the length of a hash",
        found: bytes.len() as u64,
        expected: 32,
    })
}

fn provenance_record(provenance: schema::Provenance) -> Result<Provenance, Fault> {
    Ok(Provenance {
        models: provenance.models,
        weights_hash: hash(provenance.weights_hash)?,
        options: provenance.options.into_iter().map(|option| (option.name, option.value)).collect(),
        compiler_version: provenance.compiler_version,
    })
}

fn entry(entry: schema::Entry) -> EntryRecord {
    let used = |used: schema::StateUse| StateUse { state: used.state, input: used.input, output: used.output };
    EntryRecord {
        name: entry.name,
        block: entry.block,
        inputs: entry.inputs,
        outputs: entry.outputs,
        states: entry.states.into_iter().map(used).collect(),
    }
}

fn operand(coded: u64) -> Result<OperandRecord, Fault> {
    let index = |coded: u64| u32::try_from(coded / 2).map_err(|_| Fault::Unknown { what: "operand", number: coded });
    match coded {
        0 => Ok(OperandRecord::Absent),
        odd if odd % 2 == 1 => Ok(OperandRecord::Value(index(odd)?)),
        even => Ok(OperandRecord::Weight(index(even - 2)?)),
    }
}

fn step(step: schema::Step) -> Result<StepRecord, Fault> {
    let attributes = step.attributes.into_iter().map(attribute).collect::<Result<Vec<_>, _>>()?;
    Ok(StepRecord {
        op: Op::decode(step.operator, step.revision, &attributes)?,
        operands: step.operands.into_iter().map(operand).collect::<Result<_, _>>()?,
        results: step.results,
        reads: step.reads.into_iter().map(read).collect::<Result<_, _>>()?,
        name: step.name,
    })
}

fn read(read: schema::Read) -> Result<ReadRecord, Fault> {
    let kind = match schema::ReadKind::try_from(read.kind) {
        Ok(schema::ReadKind::Once) => Read::Once,
        Ok(schema::ReadKind::Repeated) => Read::Repeated,
        Ok(schema::ReadKind::Rows) => Read::Rows,
        Ok(schema::ReadKind::Groups) => Read::Groups,
        Ok(schema::ReadKind::Nonzero) => Read::Nonzero,
        Ok(schema::ReadKind::Unspecified) | Err(_) => return Err(unknown("kind of read", read.kind)),
    };
    Ok(ReadRecord { operand: read.operand, read: kind })
}

fn attribute(attribute: schema::Attribute) -> Result<(u32, AttributeValue), Fault> {
    use schema::attribute::Value;
    let value = match attribute.value.ok_or(Fault::Missing("the value of an attribute"))? {
        Value::Integer(integer) => AttributeValue::Integer(integer),
        Value::Float(bits) => AttributeValue::Float(f32::from_bits(bits)),
        Value::Text(text) => AttributeValue::Text(text),
        Value::Integers(integers) => AttributeValue::Integers(integers.elements),
        Value::Floats(floats) => AttributeValue::Floats(floats.elements.into_iter().map(f32::from_bits).collect()),
        Value::Texts(texts) => AttributeValue::Texts(texts.elements),
        Value::Tensor(value) => AttributeValue::Tensor(tensor(value)?),
    };
    Ok((attribute.number, value))
}

fn tensor(tensor: schema::Tensor) -> Result<Tensor, Fault> {
    let shape: Option<Vec<usize>> = tensor.shape.iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let shape = shape.ok_or(Fault::Rule("an attribute is a tensor too large to address"))?;
    let built = match dtype(tensor.dtype)? {
        DType::String if tensor.data.is_empty() => Tensor::from_strings(&shape, tensor.strings),
        dtype if dtype != DType::String && tensor.strings.is_empty() => Tensor::from_bytes(dtype, &shape, &tensor.data),
        _ => return Err(Fault::Rule("an attribute is a tensor with both strings and bytes")),
    };
    built.map_err(|error| Fault::Encoding(error.into()))
}

fn weight(weight: schema::Weight) -> Result<WeightRecord, Fault> {
    let part = |part: schema::Part| {
        let schema::Part { extent, start, end, inputs_start, inputs_end } = part;
        PartRecord { extent, start, end, inputs_start, inputs_end }
    };
    let source = |source: schema::Source| {
        let schema::Source { file, offset, length, plane } = source;
        WeightSource { plane: plane.checked_sub(1), file, offset, length }
    };
    Ok(WeightRecord {
        name: weight.name,
        dtype: dtype(weight.dtype)?,
        shape: weight.shape,
        encoding: encoding(weight.encoding.ok_or(Fault::Missing("the encoding"))?)?,
        reason: weight.reason,
        parts: weight.parts.into_iter().map(part).collect(),
        sources: weight.sources.into_iter().map(source).collect(),
        zeros: weight.zeros.map(zeros).transpose()?,
        id: weight.id,
    })
}

fn zeros(found: schema::Zeros) -> Result<Zeros, Fault> {
    let schema::Zeros { elements, zeros, not_finite, groups, blocks, record_elements, reason } = found;
    if zeros > elements || not_finite > elements - zeros {
        return Err(Fault::Rule("a weight has more zeros than elements"));
    }
    if !groups.is_empty() && groups.len() != Zeros::GROUP_CLASSES {
        return Err(Fault::Rule("groups of four inputs have from 0 to 4 elements that are not zero"));
    }
    let block = |block: schema::ZeroBlocks| {
        let schema::ZeroBlocks { inputs, count, zeros } = block;
        ZeroBlocks { inputs, count, zeros }
    };
    let blocks = blocks.into_iter().map(block).collect();
    Ok(Zeros { elements, zeros, not_finite, groups, blocks, record_elements, reason })
}

fn encoding(encoding: schema::Encoding) -> Result<Coded, Fault> {
    let attributes = encoding.attributes.into_iter().map(attribute).collect::<Result<Vec<_>, _>>()?;
    Ok(Coded::decode(encoding.encoding, encoding.revision, &attributes)?)
}

fn extent(extent: schema::Extent) -> ExtentRecord {
    ExtentRecord {
        file: extent.file,
        offset: extent.offset,
        length: extent.length,
        checksum_block: extent.checksum_block,
        checksums: extent.checksums,
        pooled: extent.pooled,
        chunk: extent.chunk,
    }
}

fn chunk(chunk: schema::Chunk) -> Result<ChunkRecord, Fault> {
    Ok(ChunkRecord { offset: chunk.offset, length: chunk.length, hash: hash(chunk.hash)? })
}

fn placement(placement: schema::Placement) -> Result<PlacementRecord, Fault> {
    Ok(PlacementRecord {
        target: placement.target,
        target_hash: hash(placement.target_hash)?,
        block: placement.block,
        steps: placement.steps.into_iter().map(step_placement).collect::<Result<_, _>>()?,
        bindings: placement.bindings.into_iter().map(|binding| (binding.symbol, binding.value)).collect(),
    })
}

fn step_placement(step: schema::StepPlacement) -> Result<StepPlacementRecord, Fault> {
    let split = |split: schema::Split| {
        let kind = match schema::SplitKind::try_from(split.kind) {
            Ok(schema::SplitKind::Tiles) => SplitKind::Tiles,
            Ok(schema::SplitKind::Time) => SplitKind::Time,
            Ok(schema::SplitKind::Unspecified) | Err(_) => return Err(unknown("kind of split", split.kind)),
        };
        Ok(SplitRecord { space: split.space, axis: split.axis, parts: split.parts, kind })
    };
    let region = |region: schema::Region| {
        let schema::Region { operand: coded, offset, bytes, from, to } = region;
        Ok(RegionRecord { operand: operand(coded)?, offset, bytes, from, to })
    };
    let reduction = match schema::Reduction::try_from(step.reduction) {
        Ok(schema::Reduction::None) => Reduction::None,
        Ok(schema::Reduction::Chain) => Reduction::Chain,
        Ok(schema::Reduction::Tree) => Reduction::Tree,
        Ok(schema::Reduction::Unspecified) | Err(_) => return Err(unknown("reduction", step.reduction)),
    };
    Ok(StepPlacementRecord {
        step: step.step,
        splits: step.splits.into_iter().map(split).collect::<Result<_, Fault>>()?,
        stationary: step.stationary.checked_sub(1),
        tiles: step.tiles.into_iter().map(|tiles| tiles.start..tiles.end).collect(),
        regions: step.regions.into_iter().map(region).collect::<Result<_, Fault>>()?,
        reduction,
        reason: step.reason,
    })
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;

    #[test]
    fn attributes_round_trip_bit_by_bit() {
        let nan = f32::from_bits(0x7fc0_1234);
        let strings = Tensor::from_strings(&[2], vec!["a".into(), String::new()]).unwrap();
        let values = [
            AttributeValue::Integer(i64::MIN),
            AttributeValue::Text("ü".into()),
            AttributeValue::Integers(vec![0, -1]),
            AttributeValue::Texts(vec![String::new()]),
            AttributeValue::Tensor(Tensor::from_codes(DType::U4, &[3], &[1, 2, 3]).unwrap()),
            AttributeValue::Tensor(Tensor::scalar(nan)),
            AttributeValue::Tensor(strings),
            AttributeValue::Tensor(Tensor::zeros(DType::F32, &[0, 7]).unwrap()),
        ];
        for value in values {
            let message = schema::Attribute { number: 5, value: Some(encode::attribute(value.clone())) };
            assert_eq!(attribute(message).unwrap(), (5, value));
        }
        for value in [AttributeValue::Float(nan), AttributeValue::Floats(vec![nan, -0.0])] {
            let message = schema::Attribute { number: 5, value: Some(encode::attribute(value.clone())) };
            let bits = |value: &AttributeValue| match value {
                AttributeValue::Float(float) => vec![float.to_bits()],
                AttributeValue::Floats(floats) => floats.iter().map(|float| float.to_bits()).collect(),
                _ => Vec::new(),
            };
            assert_eq!(bits(&attribute(message).unwrap().1), bits(&value));
        }
    }

    #[test]
    fn records_that_are_none_are_refused() {
        let message = |result: Result<Manifest, FormatError>| result.unwrap_err().to_string();
        let manifest = || schema::Manifest {
            provenance: Some(schema::Provenance { weights_hash: vec![0; 32], ..Default::default() }),
            ..Default::default()
        };
        assert!(decode(manifest()).is_ok());
        assert_eq!(message(decode(schema::Manifest::default())), "provenance: the provenance is missing");
        let changed = |change: fn(&mut schema::Manifest)| {
            let mut manifest = manifest();
            change(&mut manifest);
            message(decode(manifest))
        };
        let found = changed(|m| m.files.push(schema::File { root_hash: vec![0; 31] }));
        assert_eq!(found, "file 0: the length of a hash is 31, expected 32");
        let found = changed(|m| m.dimensions = vec!["1".into(), "b + a".into()]);
        assert_eq!(found, "dimension 1: the dimension `b + a` is not in canonical form");
        let found = changed(|m| m.dimensions = vec!["a".into(), "a".into()]);
        assert_eq!(found, "dimension 1: dimension `a` occurs twice");
        let found = changed(|m| m.dimensions = vec!["(".into()]);
        assert!(found.starts_with("dimension 0: expected "), "{found}");
        let found = changed(|m| m.obligations.push(schema::Obligation { relation: 9, ..Default::default() }));
        assert_eq!(found, "obligation 0: relation 9 is unknown");
        let found = changed(|m| m.obligations.push(schema::Obligation { relation: 1, left: 4, ..Default::default() }));
        assert_eq!(found, "obligation 0: dimension 4 does not exist, there are 0");
        let found = changed(|m| m.weights.push(schema::Weight { dtype: 99, ..Default::default() }));
        assert_eq!(found, "weight 0: element type 99 is unknown");
        let found = changed(|m| m.weights.push(schema::Weight { dtype: 1, ..Default::default() }));
        assert_eq!(found, "weight 0: the encoding is missing");
        let encoding = Some(schema::Encoding { encoding: 99, ..Default::default() });
        let weight = schema::Weight { dtype: 1, encoding, ..Default::default() };
        let found = message(decode(schema::Manifest { weights: vec![weight], ..manifest() }));
        assert_eq!(found, "weight 0: encoding code 0x63 is unknown to this version");
        let with_step = |step: schema::Step| {
            let block = schema::Block { steps: vec![step], ..Default::default() };
            message(decode(schema::Manifest { blocks: vec![block], ..manifest() }))
        };
        let step = schema::Step { operator: 0xffff, name: "/conv".into(), ..Default::default() };
        assert_eq!(with_step(step), "block 0, step 0 `/conv`: operator code 0xffff is unknown to this version");
        let mut kind = schema::Type { kind: None };
        for _ in 0..20 {
            kind = schema::Type { kind: Some(schema::r#type::Kind::Sequence(Box::new(kind))) };
        }
        let block = schema::Block {
            values: vec![schema::Value { r#type: Some(kind), ..Default::default() }],
            ..Default::default()
        };
        let found = message(decode(schema::Manifest { blocks: vec![block], ..manifest() }));
        assert_eq!(found, "block 0, value 0: the nesting of types is 17, the limit is 16");
    }

    #[test]
    fn tensors_are_not_larger_than_their_bytes() {
        let message = |shape: Vec<u64>| schema::Tensor { dtype: 1, shape, data: vec![0; 8], strings: Vec::new() };
        assert!(tensor(message(vec![2])).is_ok());
        assert_eq!(
            tensor(message(vec![1 << 40])).unwrap_err().to_string(),
            "f32[1099511627776] needs 4398046511104 bytes, there are 8"
        );
        assert_eq!(
            tensor(message(vec![u64::MAX, u64::MAX])).unwrap_err().to_string(),
            "f32[18446744073709551615, 18446744073709551615] is too large to address"
        );
        assert_eq!(
            tensor(schema::Tensor { strings: vec![String::new()], ..message(vec![2]) }).unwrap_err().to_string(),
            "an attribute is a tensor with both strings and bytes"
        );
    }
}
