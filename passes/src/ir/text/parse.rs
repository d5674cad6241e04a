//! Parsing: line by line, with the line's number in every error.

use crate::ir::text::types::{parse_dims, parse_type};
use crate::ir::{
    Block, Constant, ConstantData, ConstantId, Entry, Graph, Operand, Source, StatePair, Step, Stored, ValueId,
};
use ipuc_formats::attribute::{AttributeValue, BlockIndex};
use ipuc_formats::attribute_text::{parse as parse_attribute, unquote};
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Contents, Fact};
use ipuc_formats::onnx::TensorSource;
use ipuc_formats::onnx::schema::{StringStringEntryProto, TensorProto};
use ipuc_formats::ops::{Obligation, Op};
use std::collections::HashMap;
use std::sync::Arc;
use thiserror::Error;

/// Text that is no graph.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong, in words.
    pub message: String,
}

/// Read the text form of a graph.
///
/// # Errors
/// [`ParseError`] for the first line that cannot be read.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    let mut parser = Parser::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with("//") {
            parser.line(line).map_err(|message| ParseError { line: index + 1, message })?;
        }
    }
    Ok(parser.graph)
}

#[derive(Default)]
struct Parser {
    graph: Graph,
    values: HashMap<String, ValueId>,
    constants: HashMap<String, ConstantId>,
    open: Option<BlockIndex>,
}

type Parsed<T> = Result<T, String>;

fn expect<'a>(input: &'a str, token: &str) -> Parsed<&'a str> {
    let rest = input.strip_prefix(token).ok_or_else(|| format!("expected `{token}` at `{input}`"))?;
    Ok(rest.trim_start())
}

fn integer<T: std::str::FromStr>(input: &str) -> Parsed<(T, &str)> {
    let end = input.find(|character: char| !character.is_ascii_digit() && character != '-').unwrap_or(input.len());
    let (digits, rest) = input.split_at(end);
    Ok((digits.parse().map_err(|_| format!("expected a number at `{input}`"))?, rest.trim_start()))
}

fn quoted(input: &str) -> Parsed<(String, &str)> {
    let (text, rest) = unquote(input).ok_or_else(|| format!("expected a quoted name at `{input}`"))?;
    Ok((text, rest.trim_start()))
}

impl Parser {
    fn line(&mut self, line: &str) -> Parsed<()> {
        if let Some(block) = self.open {
            return self.block_line(block, line);
        }
        let (keyword, rest) = line.split_once(' ').ok_or_else(|| format!("expected a declaration at `{line}`"))?;
        match keyword {
            "symbol" => self.symbol(rest),
            "require" => self.require(rest),
            "source" => {
                let (name, _) = quoted(rest)?;
                self.graph.sources.push(Source { name, bytes: Arc::new(Vec::new()) });
                Ok(())
            }
            "constant" => self.constant(rest),
            "entry" => self.entry(rest),
            "block" => self.block(rest),
            other => Err(format!("unknown declaration `{other}`")),
        }
    }

    fn symbol(&mut self, rest: &str) -> Parsed<()> {
        let (name, range) = rest.rsplit_once(' ').ok_or("expected a name and a range")?;
        let dim: Dim = name.parse().map_err(|error| format!("{error}"))?;
        let symbol = dim.as_symbol().ok_or_else(|| format!("`{name}` is no symbol"))?;
        let (minimum, rest) = integer(range)?;
        let (maximum, _) = integer(expect(rest, "..=")?)?;
        self.graph.ranges.set(symbol, minimum, maximum).map_err(|error| error.to_string())
    }

    fn require(&mut self, rest: &str) -> Parsed<()> {
        let (relation, rest) = rest.split_once(' ').ok_or("expected a relation")?;
        let relation = relation.parse().map_err(|_| format!("unknown relation `{relation}`"))?;
        let at = rest.rfind(" from \"").ok_or("expected `from`")?;
        let sides = format!("{})", &rest[..at]);
        let (sides, _) = parse_dims(&sides, ')').ok_or("expected two dimensions")?;
        let [left, right] = sides.as_slice() else { return Err("expected two dimensions".to_string()) };
        let (subject, _) = quoted(&rest[at + 6..])?;
        self.graph.obligations.push(Obligation { relation, left: left.clone(), right: right.clone(), subject });
        Ok(())
    }

    fn constant(&mut self, rest: &str) -> Parsed<()> {
        let (name, rest) = self.name(rest, '@')?;
        let (kind, rest) = parse_type(expect(rest, ":")?).ok_or("expected a type")?;
        let known = kind.as_tensor().and_then(|(dtype, shape)| Some((dtype, shape.as_known()?)));
        let (dtype, shape) = known.ok_or("a constant has known dimensions")?;
        let rest = expect(rest.trim_start(), "=")?;
        let data = if let Some(stored) = rest.strip_prefix("stored ") {
            stored_data(stored, dtype, &shape)?
        } else if let Some((AttributeValue::Tensor(tensor), "")) = parse_attribute(rest) {
            ConstantData::Tensor(tensor)
        } else {
            let (op, rest) = operator(rest)?;
            let operands = self.operands(rest)?.into_iter().map(|operand| match operand {
                Operand::Constant(id) => Ok(Some(id)),
                Operand::Absent => Ok(None),
                Operand::Value(_) => Err("a recipe reads constants only".to_string()),
            });
            ConstantData::Recipe { op, operands: operands.collect::<Result<_, _>>()? }
        };
        let label = (!name.chars().all(|digit| digit.is_ascii_digit())).then(|| Arc::from(name.as_str()));
        let id = self.graph.add_constant(Constant { name: label, dtype, shape, data, origin: None });
        self.constants.insert(name, id);
        Ok(())
    }

    fn entry(&mut self, rest: &str) -> Parsed<()> {
        let (name, rest) = quoted(rest)?;
        let (inputs, rest) = quoted_list(rest)?;
        let (outputs, rest) = quoted_list(expect(rest, "->")?)?;
        let (block, mut rest) = integer(expect(expect(rest, "=")?, "block")?)?;
        let mut states = Vec::new();
        while !rest.is_empty() {
            let (input, after) = integer(expect(rest, "state")?)?;
            let (output, after) = integer(expect(after, "=")?)?;
            states.push(StatePair { input, output });
            rest = after;
        }
        self.graph.entries.push(Entry { name, block: BlockIndex(block), inputs, outputs, states });
        Ok(())
    }

    fn block(&mut self, rest: &str) -> Parsed<()> {
        let (number, rest) = integer::<u32>(rest)?;
        if number > 1 << 20 {
            return Err(format!("block number {number} is too large"));
        }
        while self.graph.blocks.len() <= number as usize {
            self.graph.blocks.push(Block::default());
        }
        let index = BlockIndex(number);
        let mut rest = expect(rest, "(")?;
        while !rest.starts_with(')') {
            let (value, after) = self.definition(rest)?;
            self.graph.block_mut(index).parameters.push(value);
            rest = after.strip_prefix(',').unwrap_or(after).trim_start();
        }
        expect(expect(rest, ")")?, "{")?;
        self.open = Some(index);
        Ok(())
    }

    fn block_line(&mut self, index: BlockIndex, line: &str) -> Parsed<()> {
        if line == "}" {
            self.open = None;
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix("return") {
            let results = self.operands(rest.trim_start())?;
            self.graph.block_mut(index).results = results;
            return Ok(());
        }
        let mut rest = line;
        let mut results = Vec::new();
        while !rest.starts_with('=') {
            let (value, after) = self.definition(rest)?;
            results.push(value);
            rest = after.strip_prefix(',').unwrap_or(after).trim_start();
        }
        let (op, rest) = operator(expect(rest, "=")?)?;
        let (operands, name) = match rest.rfind("from \"") {
            Some(at) => (&rest[..at], quoted(&rest[at + 5..])?.0),
            None => (rest, String::new()),
        };
        let operands = self.operands(operands.trim())?;
        self.graph.block_mut(index).steps.push(Step { op, operands, results, name: Arc::from(name) });
        Ok(())
    }

    /// `%name : type`, with contents in braces.
    fn definition<'a>(&mut self, input: &'a str) -> Parsed<(ValueId, &'a str)> {
        let (name, rest) = self.name(input, '%')?;
        let (kind, rest) = parse_type(expect(rest, ":")?).ok_or_else(|| format!("expected a type at `{rest}`"))?;
        let mut fact = Fact::of(kind);
        let mut rest = rest;
        if let Some(contents) = rest.strip_prefix('{') {
            let (dims, after) = parse_dims(contents, '}').ok_or("expected contents in braces")?;
            fact.contents = Some(Contents::Dims(dims));
            rest = after;
        }
        let label = (!name.chars().all(|digit| digit.is_ascii_digit())).then_some(name.as_str());
        let value = self.graph.add_value(fact, label);
        if self.values.insert(name.clone(), value).is_some() {
            return Err(format!("`%{name}` is defined twice"));
        }
        Ok((value, rest.trim_start()))
    }

    fn name<'a>(&self, input: &'a str, sigil: char) -> Parsed<(String, &'a str)> {
        let rest = input.strip_prefix(sigil).ok_or_else(|| format!("expected `{sigil}` at `{input}`"))?;
        if rest.starts_with('"') {
            return quoted(rest);
        }
        let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '.');
        let end = rest.find(|character| !plain(character)).unwrap_or(rest.len());
        Ok((rest[..end].to_string(), rest[end..].trim_start()))
    }

    fn operands(&self, input: &str) -> Parsed<Vec<Operand>> {
        let mut operands = Vec::new();
        let mut rest = input;
        while !rest.is_empty() {
            let (operand, after) = self.operand(rest)?;
            operands.push(operand);
            rest = match after.strip_prefix(',') {
                Some(more) => more.trim_start(),
                None if after.is_empty() => after,
                None => return Err(format!("expected `,` at `{after}`")),
            };
        }
        Ok(operands)
    }

    fn operand<'a>(&self, input: &'a str) -> Parsed<(Operand, &'a str)> {
        if let Some(rest) = input.strip_prefix('_') {
            return Ok((Operand::Absent, rest.trim_start()));
        }
        let undefined = |sigil: char, name: &str| format!("`{sigil}{name}` is not defined");
        if input.starts_with('%') {
            let (name, rest) = self.name(input, '%')?;
            let value = self.values.get(&name).ok_or_else(|| undefined('%', &name))?;
            return Ok((Operand::Value(*value), rest));
        }
        let (name, rest) = self.name(input, '@')?;
        let id = self.constants.get(&name).ok_or_else(|| undefined('@', &name))?;
        Ok((Operand::Constant(*id), rest))
    }
}

fn quoted_list(input: &str) -> Parsed<(Vec<String>, &str)> {
    let mut rest = expect(input, "(")?;
    let mut names = Vec::new();
    while !rest.starts_with(')') {
        let (name, after) = quoted(rest)?;
        names.push(name);
        rest = after.strip_prefix(',').unwrap_or(after).trim_start();
    }
    Ok((names, expect(rest, ")")?))
}

/// `name attribute=value ..`; gives the operator and what follows its attributes.
fn operator(input: &str) -> Parsed<(Op, &str)> {
    let end = input.find(' ').unwrap_or(input.len());
    let (name, rest) = input.split_at(end);
    let mut rest = rest.trim_start();
    let mut attributes = Vec::new();
    while let Some((key, after)) = rest.split_once('=')
        && !key.is_empty()
        && key.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
    {
        let (value, after) = parse_attribute(after).ok_or_else(|| format!("attribute `{key}` has no value"))?;
        attributes.push((key.to_string(), value));
        rest = after.trim_start();
    }
    Ok((Op::build(name, &attributes).map_err(|error| error.to_string())?, rest))
}

fn stored_data(input: &str, dtype: DType, shape: &[usize]) -> Parsed<ConstantData> {
    let (source, rest) = integer::<u32>(input)?;
    let (offset, rest) = integer::<u64>(rest)?;
    let (length, _) = integer::<u64>(rest)?;
    let entry = |key: &str, value: String| StringStringEntryProto { key: Some(key.to_string()), value: Some(value) };
    let proto = TensorProto {
        dims: shape.iter().map(|&extent| extent as i64).collect(),
        data_type: Some(dtype.onnx_code()),
        data_location: Some(1),
        external_data: vec![
            entry("location", "stored".to_string()),
            entry("offset", offset.to_string()),
            entry("length", length.to_string()),
        ],
        ..TensorProto::default()
    };
    let tensor = TensorSource::of(&proto).map_err(|error| error.to_string())?;
    Ok(ConstantData::Stored(Stored { source, tensor: Arc::new(tensor) }))
}

#[cfg(test)]
mod tests {
    use crate::ir::text::{parse, print};

    const SAMPLE: &str = r#"symbol batch 1..=64
require equal batch, n from "add: \"x\" from y"
source "model.onnx"
constant @w : f32[64, 64] = stored 0 1024 16384
constant @one : i64[] = i64[]:0100000000000000
entry "main"("x", "c") -> ("y") = block 0 state 0=0
block 0(%x : f32[batch, 64], %"/c" : i64[2]{batch, 64}) {
  %2 : f32[batch, 64] = unary function=exp %x from "/layer/Exp"
  %y : f32[batch, 64] = binary function=add %2, @w
  %4 : i64[2] = binary function=add %"/c", @one
  return %y
}
"#;

    #[test]
    fn text_round_trips() {
        let graph = parse(SAMPLE).unwrap();
        assert_eq!(print(&graph), SAMPLE);
        assert_eq!(print(&parse(&print(&graph)).unwrap()), SAMPLE);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line) in [
            ("nonsense", 1),
            ("block 0() {\n  return %x\n}", 2),
            ("block 0() {\n  %x : f32[] = nothing\n}", 2),
            ("\nconstant @a : f32[n] = 1", 2),
            ("block 4294967295() {", 1),
        ] {
            assert_eq!(parse(text).err().map(|error| error.line), Some(line), "{text}");
        }
    }
}
