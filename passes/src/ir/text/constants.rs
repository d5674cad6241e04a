//! Constants in text.
//!
//! ```text
//! constant @one : i64[] = i64[]:[1] at 0 16384 8
//! constant @large : f32[64, 64] = hash 6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85
//! constant @w : f32[64, 64] = stored 0 raw_data 1024+16384
//! constant @v : i32[500] = stored 0 int32_data 20000+300, 20400+900 tagged name "v.int"
//! constant @e : f32[64, 64] = stored 1 external "weights.bin" offset 4096 length 16384
//! constant @t : f32[64, 64] = transpose permutation=[1, 0] @w
//! constant @h : f16[64, 64] = rounded @w
//! constant @c : i4[64, 64] = rounded codes i4 f16 32 matrix 1 64 64 1 @w
//! constant @p : f32[64, 64] = hash 6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85 as plain dtype=f16 because "it is exact"
//! constant @s : f32[2, 2] = f32[2, 2]:[1, 0, 0, 0] with zeros elements=4 zeros=3 not_finite=0 groups=[] blocks=[] record_elements=0 because "it is small"
//! ```
//!
//! `stored` gives the number of the source, the field of the ONNX file and the bytes there (offset+length), or what the
//! model says of external data; `name` is the name in the file where it differs. `at` says where bytes in memory came
//! from: source, offset, length. `rounded` is the weight rounded to the type of the constant, or what rounding it to codes
//! gives: `codes`, `scales` or `zero_points`, then the types of codes and scales, the inputs that share a scale, and groups,
//! inputs, outputs and the axis of outputs of its matrices; a second constant says what is known of the inputs. `with zeros` is
//! what a pass found of zeros: see [`Zeros`]; of each shape of blocks it has inputs, count and zeros.

use crate::ir::text::label::Labels;
use crate::ir::text::scan::{Parsed, end, expect, integer, named, quoted, word};
use crate::ir::{ChosenEncoding, Constant, ConstantData, ConstantId, Origin, RoundedTo, Stored};
use crate::rounding::{Part, Scheme};
use ipuc_formats::attribute::AttributeValue;
use ipuc_formats::attribute_text::{parse as parse_attribute, print as print_attribute, quote};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Coded, ZeroBlocks, Zeros};
use ipuc_formats::onnx::schema::{StoredSegment, StringStringEntryProto, TensorProto};
use ipuc_formats::onnx::{DataField, TensorData, TensorSource};
use ipuc_formats::ops::WeightMatrix;
use std::fmt::Write as _;
use std::sync::Arc;

/// What the end of a line says: where bytes in memory came from, the encoding, and what was found of zeros.
type Storage = (Option<Origin>, Option<ChosenEncoding>, Option<Zeros>);

/// Constants in memory up to this size are printed whole; of larger ones only the hash is.
const PRINTED_BYTES: usize = 256;

/// Everything behind `=`.
pub(super) fn print_data(constant: &Constant, labels: &Labels<ConstantId>, text: &mut String) -> std::fmt::Result {
    match &constant.data {
        ConstantData::Stored(stored) => match stored.tensor.data() {
            // As good as in memory: nothing is read from the file.
            TensorData::Inline(tensor) => print_tensor(tensor, text)?,
            TensorData::InFile { field, segments } => {
                write!(text, "stored {} {}", stored.source, field.name())?;
                for (index, segment) in segments.iter().enumerate() {
                    let separator = if index == 0 { " " } else { ", " };
                    write!(text, "{separator}{}+{}", segment.offset, segment.length)?;
                    text.push_str(if segment.tagged { " tagged" } else { "" });
                }
                print_name(constant, stored, text)?;
            }
            TensorData::External(external) => {
                let location = quote(&external.location);
                write!(text, "stored {} external {location} offset {}", stored.source, external.offset)?;
                if let Some(length) = external.length {
                    write!(text, " length {length}")?;
                }
                if let Some(digest) = &external.sha1 {
                    text.push_str(" sha1 ");
                    digest.iter().try_for_each(|byte| write!(text, "{byte:02x}"))?;
                }
                print_name(constant, stored, text)?;
            }
        },
        ConstantData::Tensor(tensor) => print_tensor(tensor, text)?,
        ConstantData::Hashed(hash) => write!(text, "hash {hash}")?,
        ConstantData::Rounded(rounded) => {
            text.push_str("rounded");
            if let RoundedTo::Codes(scheme, part) = &rounded.to {
                let Scheme { code, scale, block, matrix } = scheme;
                let WeightMatrix { groups, inputs, outputs, output_axis } = matrix;
                let part: &str = part.into();
                write!(text, " {part} {code} {scale} {block} matrix {groups} {inputs} {outputs} {output_axis}")?;
            }
            let operands = [Some(rounded.weight), rounded.factor].into_iter().flatten().map(|id| labels.used(id));
            write!(text, " {}", operands.collect::<Vec<_>>().join(", "))?;
        }
        ConstantData::Recipe { op, operands } => {
            let operands = operands.iter().map(|operand| operand.map_or("_".to_string(), |id| labels.used(id)));
            write!(text, "{op} {}", operands.collect::<Vec<_>>().join(", "))?;
        }
    }
    if let Some(Origin { source, offset, length }) = constant.origin {
        write!(text, " at {source} {offset} {length}")?;
    }
    if let Some(ChosenEncoding { encoding, by_budget, reason }) = &constant.encoding {
        let decided = if *by_budget { " by budget" } else { "" };
        write!(text, " as {encoding}{decided} because {}", quote(reason))?;
    }
    constant.zeros.as_ref().map_or(Ok(()), |zeros| print_zeros(zeros, text))
}

fn print_tensor(tensor: &ipuc_formats::tensor::Tensor, text: &mut String) -> std::fmt::Result {
    if tensor.bytes().len() <= PRINTED_BYTES {
        text.push_str(&print_attribute(&AttributeValue::Tensor(tensor.clone())));
        return Ok(());
    }
    write!(text, "hash {}", blake3::hash(tensor.bytes()))
}

fn print_name(constant: &Constant, stored: &Stored, text: &mut String) -> std::fmt::Result {
    if constant.name.as_deref().unwrap_or("") == stored.tensor.name() {
        return Ok(());
    }
    write!(text, " name {}", quote(stored.tensor.name()))
}

/// Data that is no recipe, at the start of `input`; `None` where it is one. `name` is that of the constant.
pub(super) fn parse_data<'a>(
    input: &'a str,
    name: Option<&str>,
    dtype: DType,
    shape: &[usize],
) -> Parsed<Option<(ConstantData, &'a str)>> {
    if let Some(rest) = input.strip_prefix("hash ") {
        let (digits, rest) = word(rest);
        let hash = blake3::Hash::from_hex(digits).map_err(|error| error.to_string())?;
        return Ok(Some((ConstantData::Hashed(hash), rest)));
    }
    if let Some(rest) = input.strip_prefix("stored ") {
        let (stored, rest) = parse_stored(rest, name, dtype, shape)?;
        return Ok(Some((ConstantData::Stored(stored), rest)));
    }
    match parse_attribute(input) {
        Some((AttributeValue::Tensor(tensor), rest)) if (tensor.dtype(), tensor.shape()) == (dtype, shape) => {
            Ok(Some((ConstantData::Tensor(tensor), rest.trim_start())))
        }
        Some((AttributeValue::Tensor(tensor), _)) => {
            Err(format!("the type is {dtype}{shape:?}, the data {}{:?}", tensor.dtype(), tensor.shape()))
        }
        _ => Ok(None),
    }
}

/// What a rounded constant is rounded to, behind `rounded`.
pub(super) fn parse_rounded(input: &str) -> Parsed<(RoundedTo, &str)> {
    let (part, rest) = word(input);
    if part.is_empty() {
        return Ok((RoundedTo::Narrow, input));
    }
    let part: Part = part.parse().map_err(|_| format!("`{part}` is no part of a rounded weight"))?;
    let dtype = |input| {
        let (name, rest) = word(input);
        ipuc_formats::dtype::parse(name).map(|dtype| (dtype, rest)).ok_or_else(|| format!("`{name}` is no type"))
    };
    let (code, rest) = dtype(rest)?;
    let (scale, rest) = dtype(rest)?;
    let (block, rest) = integer(rest)?;
    let (groups, rest) = integer(expect(rest, "matrix")?)?;
    let (inputs, rest) = integer(rest)?;
    let (outputs, rest) = integer(rest)?;
    let (output_axis, rest) = integer(rest)?;
    let matrix = WeightMatrix { groups, inputs, outputs, output_axis };
    Ok((RoundedTo::Codes(Scheme { code, scale, block, matrix }, part), rest))
}

/// What may end the line: ` at 0 16384 8`, ` as plain dtype=f16 because "it is exact"`, ` with zeros .. because "..."`.
pub(super) fn parse_storage(input: &str) -> Parsed<Storage> {
    let (mut origin, mut chosen, mut zeros, mut rest) = (None, None, None, input);
    if let Some(place) = rest.strip_prefix("at ") {
        let (source, after) = integer(place)?;
        let (offset, after) = integer(after)?;
        let (length, after) = integer(after)?;
        (origin, rest) = (Some(Origin { source, offset, length }), after);
    }
    if let Some(encoding) = rest.strip_prefix("as ") {
        let (name, attributes, after) = named(encoding)?;
        let encoding = Coded::build(name, &attributes).map_err(|error| error.to_string())?;
        let decided = after.strip_prefix("by budget ");
        let (reason, after) = quoted(expect(decided.unwrap_or(after), "because")?)?;
        (chosen, rest) = (Some(ChosenEncoding { encoding, by_budget: decided.is_some(), reason }), after.trim_start());
    }
    if let Some(found) = rest.strip_prefix("with ") {
        let (found, after) = parse_zeros(found)?;
        (zeros, rest) = (Some(found), after);
    }
    end(rest)?;
    Ok((origin, chosen, zeros))
}

fn print_zeros(found: &Zeros, text: &mut String) -> std::fmt::Result {
    let Zeros { elements, zeros, not_finite, groups, blocks, record_elements, reason } = found;
    let list = |numbers: Vec<u64>| {
        print_attribute(&AttributeValue::Integers(numbers.into_iter().map(|number| number as i64).collect()))
    };
    let blocks = blocks.iter().flat_map(|block| [block.inputs, block.count, block.zeros]).collect();
    write!(text, " with zeros elements={elements} zeros={zeros} not_finite={not_finite}")?;
    write!(text, " groups={} blocks={}", list(groups.clone()), list(blocks))?;
    write!(text, " record_elements={record_elements} because {}", quote(reason))
}

fn parse_zeros(input: &str) -> Parsed<(Zeros, &str)> {
    let (name, attributes, rest) = named(input)?;
    if name != "zeros" {
        return Err(format!("expected `zeros`, found `{name}`"));
    }
    let mut found = Zeros::default();
    for (name, value) in attributes {
        let numbers = match &value {
            AttributeValue::Integer(number) => vec![*number],
            AttributeValue::Integers(numbers) => numbers.clone(),
            _ => Vec::new(),
        };
        let numbers: Result<Vec<u64>, _> = numbers.into_iter().map(u64::try_from).collect();
        let numbers = numbers.map_err(|_| format!("`{name}` is negative"))?;
        match (name.as_str(), numbers.as_slice()) {
            ("elements", &[number]) => found.elements = number,
            ("zeros", &[number]) => found.zeros = number,
            ("not_finite", &[number]) => found.not_finite = number,
            ("record_elements", &[number]) => found.record_elements = number,
            ("groups", numbers) => found.groups = numbers.to_vec(),
            ("blocks", numbers) => {
                let blocks = numbers.as_chunks::<3>().0.iter();
                found.blocks = blocks.map(|&[inputs, count, zeros]| ZeroBlocks { inputs, count, zeros }).collect();
            }
            (_, _) => return Err(format!("`{name}` is no count of zeros")),
        }
    }
    let (reason, rest) = quoted(expect(rest, "because")?)?;
    found.reason = reason;
    Ok((found, rest))
}

fn parse_stored<'a>(input: &'a str, name: Option<&str>, dtype: DType, shape: &[usize]) -> Parsed<(Stored, &'a str)> {
    let (source, rest) = integer(input)?;
    let (place, rest) = word(rest);
    let mut proto = TensorProto {
        dims: shape.iter().map(|&extent| extent as i64).collect(),
        data_type: Some(dtype.onnx_code()),
        ..TensorProto::default()
    };
    let mut rest = if place == "external" {
        parse_external(rest, &mut proto)?
    } else {
        let mut fields = <DataField as strum::VariantArray>::VARIANTS.iter();
        let field = fields.find(|field| field.name() == place);
        let field = *field.ok_or_else(|| format!("`{place}` is no data field of a tensor"))?;
        parse_segments(rest, field, &mut proto)?
    };
    let mut name = name.map(str::to_string);
    if let Some(after) = rest.strip_prefix("name ") {
        let (other, after) = quoted(after)?;
        name = Some(other);
        rest = after;
    }
    proto.name = name;
    let tensor = TensorSource::of(&proto).map_err(|error| error.to_string())?;
    Ok((Stored { source, tensor: Arc::new(tensor) }, rest))
}

fn parse_segments<'a>(input: &'a str, field: DataField, proto: &mut TensorProto) -> Parsed<&'a str> {
    let mut rest = input;
    loop {
        let (offset, after) = integer(rest)?;
        let (length, after) = integer(expect(after, "+")?)?;
        let tagged = after.strip_prefix("tagged").map(str::trim_start);
        proto.stored_segments.push(StoredSegment {
            field: Some(field as u32),
            offset: Some(offset),
            length: Some(length),
            tagged: Some(tagged.is_some()),
        });
        rest = tagged.unwrap_or(after);
        match rest.strip_prefix(',') {
            Some(next) => rest = next.trim_start(),
            None => return Ok(rest),
        }
    }
}

fn parse_external<'a>(input: &'a str, proto: &mut TensorProto) -> Parsed<&'a str> {
    let (location, mut rest) = quoted(input)?;
    let mut add = |key: &str, value: String| {
        proto.external_data.push(StringStringEntryProto { key: Some(key.to_string()), value: Some(value) });
    };
    add("location", location);
    for (keyword, key) in [("offset ", "offset"), ("length ", "length"), ("sha1 ", "checksum")] {
        if let Some(after) = rest.strip_prefix(keyword) {
            let (value, after) = word(after);
            add(key, value.to_string());
            rest = after;
        }
    }
    proto.data_location = Some(1);
    Ok(rest)
}
