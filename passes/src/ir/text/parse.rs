//! Parsing: line by line, with the line's number in every error.

use crate::ir::text::constants::{parse_data, parse_rounded, parse_storage};
use crate::ir::text::label::Label;
use crate::ir::text::scan::{Parsed, end, expect, integer, operator, quoted, quoted_list, word};
use crate::ir::text::types::{parse_dims, parse_type};
use crate::ir::{
    Block, Constant, ConstantData, ConstantId, Entry, Graph, Operand, Peak, Rounded, Source, State, StateUse, Step,
    ValueId,
};
use ipuc_formats::attribute::{AttributeValue, BlockIndex};
use ipuc_formats::attribute_text::parse as parse_attribute;
use ipuc_formats::dim::Dim;
use ipuc_formats::fact::{Contents, Fact};
use ipuc_formats::model::Growth;
use ipuc_formats::ops::{Obligation, RowScheme};
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
    values: HashMap<Label, ValueId>,
    constants: HashMap<Label, ConstantId>,
    open: Option<BlockIndex>,
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
                let (name, rest) = quoted(rest)?;
                end(rest)?;
                self.graph.sources.push(Source { name, bytes: Arc::new(Vec::new()) });
                Ok(())
            }
            "constant" => self.constant(rest),
            "state" => self.state(rest),
            "entry" => self.entry(rest),
            "block" => self.block(rest),
            "peak" => self.peak(rest),
            other => Err(format!("unknown declaration `{other}`")),
        }
    }

    fn symbol(&mut self, rest: &str) -> Parsed<()> {
        let (name, range) = rest.rsplit_once(' ').ok_or("expected a name and a range")?;
        let dim: Dim = name.parse().map_err(|error| format!("{error}"))?;
        let symbol = dim.as_symbol().ok_or_else(|| format!("`{name}` is no symbol"))?;
        let (minimum, rest) = integer(range)?;
        let (maximum, rest) = integer(expect(rest, "..=")?)?;
        end(rest)?;
        self.graph.ranges.set(symbol, minimum, maximum).map_err(|error| error.to_string())
    }

    fn require(&mut self, rest: &str) -> Parsed<()> {
        let (relation, rest) = rest.split_once(' ').ok_or("expected a relation")?;
        let relation = relation.parse().map_err(|_| format!("unknown relation `{relation}`"))?;
        let at = rest.rfind(" from \"").ok_or("expected `from`")?;
        let sides = format!("{})", &rest[..at]);
        let (sides, _) = parse_dims(&sides, ')').ok_or("expected two dimensions")?;
        let [left, right] = sides.as_slice() else { return Err("expected two dimensions".to_string()) };
        let (subject, rest) = quoted(&rest[at + 6..])?;
        end(rest)?;
        self.graph.obligations.push(Obligation { relation, left: left.clone(), right: right.clone(), subject });
        Ok(())
    }

    fn constant(&mut self, rest: &str) -> Parsed<()> {
        let (label, name, rest) = Label::read_defined(rest, '@')?;
        let (kind, rest) = parse_type(expect(rest, ":")?).ok_or("expected a type")?;
        let known = kind.as_tensor().and_then(|(dtype, shape)| Some((dtype, shape.as_known()?)));
        let (dtype, shape) = known.ok_or("a constant has known dimensions")?;
        let rest = expect(rest.trim_start(), "=")?;
        let (data, rest) = match parse_data(rest, name.as_deref(), dtype, &shape)? {
            Some(data) => data,
            None => match rest.strip_prefix("rounded ") {
                Some(rest) => self.rounded(rest)?,
                None => self.recipe(rest)?,
            },
        };
        let (origin, encoding, zeros) = parse_storage(rest)?;
        let name = name.map(Arc::from);
        let id = self.graph.add_constant(Constant { name, dtype, shape, data, origin, encoding, zeros });
        match self.constants.insert(label.clone(), id) {
            Some(_) => Err(format!("`@{label}` is defined twice")),
            None => Ok(()),
        }
    }

    fn recipe<'a>(&self, rest: &'a str) -> Parsed<(ConstantData, &'a str)> {
        let (op, rest) = operator(rest)?;
        let (operands, rest) = self.operands(rest)?;
        let operands = operands.into_iter().map(|operand| match operand {
            Operand::Constant(id) => Ok(Some(id)),
            Operand::Absent => Ok(None),
            Operand::Value(_) => Err("a recipe reads constants only".to_string()),
        });
        Ok((ConstantData::Recipe { op, operands: operands.collect::<Result<_, _>>()? }, rest))
    }

    fn rounded<'a>(&self, rest: &'a str) -> Parsed<(ConstantData, &'a str)> {
        let (to, rest) = parse_rounded(rest)?;
        let (operands, rest) = self.operands(rest)?;
        let (weight, factor) = match *operands.as_slice() {
            [Operand::Constant(weight)] => (weight, None),
            [Operand::Constant(weight), Operand::Constant(factor)] => (weight, Some(factor)),
            _ => return Err("expected the constant that is rounded, and what is known of its inputs".to_string()),
        };
        Ok((ConstantData::Rounded(Rounded { weight, factor, to }), rest))
    }

    fn state(&mut self, rest: &str) -> Parsed<()> {
        let (name, rest) = quoted(rest)?;
        let growth = match rest.is_empty() {
            true => None,
            false => {
                let (verb, rest) = word(rest);
                let overwritten = match verb {
                    "grows" => false,
                    "overwrites" => true,
                    _ => return Err(format!("expected `grows` or `overwrites` at `{verb}`")),
                };
                let (axis, rest) = integer(rest)?;
                let (page, rest) = integer(expect(rest, "page")?)?;
                let rows = match rest.is_empty() {
                    true => None,
                    false => {
                        let (name, rest) = word(expect(rest, "rows")?);
                        end(rest)?;
                        Some(name.parse::<RowScheme>().map_err(|_| format!("`{name}` is no scheme of rows"))?)
                    }
                };
                Some(Growth { axis, page, rows, overwritten })
            }
        };
        self.graph.states.push(State { name, growth });
        Ok(())
    }

    fn entry(&mut self, rest: &str) -> Parsed<()> {
        let (name, rest) = quoted(rest)?;
        let (inputs, rest) = quoted_list(rest)?;
        let (outputs, rest) = quoted_list(expect(rest, "->")?)?;
        let (block, mut rest) = integer(expect(expect(rest, "=")?, "block")?)?;
        let mut states = Vec::new();
        while !rest.is_empty() {
            let (state, after) = integer(expect(rest, "state")?)?;
            let (input, after) = port(after)?;
            let (output, after) = port(expect(after, "=")?)?;
            states.push(StateUse { state, input, output });
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
        // The number of a step is its place, whatever it says.
        let line = match line.split_once(' ') {
            Some((number, rest)) if is_number_of_step(number) => rest,
            Some(_) | None => line,
        };
        if let Some(rest) = line.strip_prefix("return") {
            let (results, rest) = self.operands(rest.trim_start())?;
            end(rest)?;
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
        let (operands, rest) = self.operands(rest)?;
        let (name, rest) = match rest.strip_prefix("from ") {
            Some(name) => quoted(name)?,
            None => (String::new(), rest),
        };
        end(rest)?;
        self.graph.block_mut(index).steps.push(Step { op, operands, results, name: Arc::from(name) });
        Ok(())
    }

    fn peak(&mut self, rest: &str) -> Parsed<()> {
        let (block, rest) = integer(rest)?;
        let (given_bytes, rest) = integer(expect(rest, "given")?)?;
        let (kept_bytes, rest) = integer(expect(rest, "kept")?)?;
        end(rest)?;
        self.graph.peaks.push(Peak { block: BlockIndex(block), given_bytes, kept_bytes });
        Ok(())
    }

    /// `%name : type`, with contents in braces.
    fn definition<'a>(&mut self, input: &'a str) -> Parsed<(ValueId, &'a str)> {
        let (label, name, rest) = Label::read_defined(input, '%')?;
        let (kind, rest) = parse_type(expect(rest, ":")?).ok_or_else(|| format!("expected a type at `{rest}`"))?;
        let mut fact = Fact::of(kind);
        let mut rest = rest;
        if let Some(contents) = rest.strip_prefix("{= ") {
            let Some((AttributeValue::Tensor(tensor), after)) = parse_attribute(contents) else {
                return Err("expected a tensor in braces".to_string());
            };
            fact.contents = Some(Contents::Constant(tensor));
            rest = expect(after, "}")?;
        } else if let Some(contents) = rest.strip_prefix('{') {
            let (dims, after) = parse_dims(contents, '}').ok_or("expected contents in braces")?;
            fact.contents = Some(Contents::Dims(dims));
            rest = after;
        }
        let value = self.graph.add_value(fact, name.as_deref());
        match self.values.insert(label.clone(), value) {
            Some(_) => Err(format!("`%{label}` is defined twice")),
            None => Ok((value, rest.trim_start())),
        }
    }

    /// `%a, @b, _`; what follows starts with no operand.
    fn operands<'a>(&self, input: &'a str) -> Parsed<(Vec<Operand>, &'a str)> {
        let mut operands = Vec::new();
        let mut rest = input;
        while rest.starts_with(['%', '@', '_']) {
            let (operand, after) = self.operand(rest)?;
            operands.push(operand);
            match after.strip_prefix(',') {
                Some(more) => rest = more.trim_start(),
                None => return Ok((operands, after)),
            }
        }
        Ok((operands, rest))
    }

    fn operand<'a>(&self, input: &'a str) -> Parsed<(Operand, &'a str)> {
        if let Some(rest) = input.strip_prefix('_') {
            return Ok((Operand::Absent, rest.trim_start()));
        }
        if input.starts_with('%') {
            let (label, rest) = Label::read(input, '%')?;
            let value = self.values.get(&label).ok_or_else(|| format!("`%{label}` is not defined"))?;
            return Ok((Operand::Value(*value), rest));
        }
        let (label, rest) = Label::read(input, '@')?;
        let id = self.constants.get(&label).ok_or_else(|| format!("`@{label}` is not defined"))?;
        Ok((Operand::Constant(*id), rest))
    }
}

/// A number, or `_` for none.
fn port(rest: &str) -> Parsed<(Option<usize>, &str)> {
    match expect(rest, "_") {
        Ok(rest) => Ok((None, rest)),
        Err(_) => integer(rest).map(|(port, rest)| (Some(port), rest)),
    }
}

/// `0:2`: block, colon, index.
fn is_number_of_step(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once(':').is_some_and(|(block, index)| is_number(block) && is_number(index))
}

#[cfg(test)]
mod tests {
    use crate::ir::text::{parse, print};

    const SAMPLE: &str = r#"symbol batch 1..=64
require equal batch, n from "add: \"x\" from y"
source "model.onnx"
constant @w : f32[64, 64] = stored 0 raw_data 1024+16384
constant @one : i64[] = i64[]:[1]
state "x" grows 0 page 128
state "c"
entry "main"("x", "c") -> ("y") = block 0 state 0 0=0 state 1 _=0
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

    #[test]
    fn examples_in_comments_parse() {
        for source in [include_str!("mod.rs"), include_str!("constants.rs")] {
            let comment = source.lines().map_while(|line| line.strip_prefix("//!")).collect::<Vec<_>>().join("\n");
            let example = comment.split("```").nth(1).unwrap().strip_prefix("text\n").unwrap();
            let graph = parse(example).unwrap_or_else(|error| panic!("{error}\n{example}"));
            assert!(graph.constants.len() >= 3, "{example}");
            assert_eq!(graph.difference(&parse(&print(&graph)).unwrap()), None);
        }
    }
}
