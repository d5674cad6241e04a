//! When two graphs are equal: whatever entries reach is the same, except for the numbers of values and constants.
//!
//! Blocks keep their numbers, since operators name them. Of a source only the name counts. A constant in memory equals
//! one of which only the hash is known, where the hash is that of its bytes. Floats are compared by their bits.

use crate::ir::{Block, Constant, ConstantData, ConstantId, Graph, Operand, Rounded, Step, Value, ValueId};
use ipuc_formats::attribute::AttributeValue;
use ipuc_formats::onnx::TensorData;
use ipuc_formats::ops::Op;
use ipuc_formats::tensor::Tensor;
use std::collections::HashMap;
use std::fmt::Debug;

impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.difference(other).is_none()
    }
}

impl Debug for Graph {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&crate::ir::text::print(self))
    }
}

impl Graph {
    /// The first place where two graphs differ, in words; `None` where they are equal.
    pub fn difference(&self, other: &Graph) -> Option<String> {
        let mut comparison =
            Comparison { left: self, right: other, values: Pairs::default(), constants: Pairs::default() };
        comparison.graphs().err()
    }
}

/// Ids of one graph and their counterparts in the other.
struct Pairs<Id> {
    right: HashMap<Id, Id>,
    left: HashMap<Id, Id>,
}

impl<Id> Default for Pairs<Id> {
    fn default() -> Self {
        Pairs { right: HashMap::new(), left: HashMap::new() }
    }
}

impl<Id: Copy + Eq + std::hash::Hash> Pairs<Id> {
    /// Whether these two are a pair already; `None` where neither has a counterpart, and they become one.
    fn pair(&mut self, left: Id, right: Id) -> Option<bool> {
        match (self.right.get(&left), self.left.get(&right)) {
            (None, None) => {
                self.right.insert(left, right);
                self.left.insert(right, left);
                None
            }
            (found, _) => Some(found == Some(&right)),
        }
    }
}

type Same = Result<(), String>;

fn same<T: PartialEq + Debug>(left: T, right: T, what: impl FnOnce() -> String) -> Same {
    if left == right { Ok(()) } else { Err(format!("{}: {left:?} against {right:?}", what())) }
}

struct Comparison<'a> {
    left: &'a Graph,
    right: &'a Graph,
    values: Pairs<ValueId>,
    constants: Pairs<ConstantId>,
}

impl Comparison<'_> {
    fn graphs(&mut self) -> Same {
        // A new field has to be compared.
        let Graph {
            entries,
            blocks: _,
            values: _,
            constants: _,
            ranges,
            obligations,
            sources,
            peaks,
            states,
            evaluator: _,
        } = self.left;
        same(states, &self.right.states, || "states".to_string())?;
        same(entries, &self.right.entries, || "entries".to_string())?;
        same(ranges, &self.right.ranges, || "ranges".to_string())?;
        same(obligations, &self.right.obligations, || "obligations".to_string())?;
        same(peaks, &self.right.peaks, || "peaks".to_string())?;
        let names = |sources: &[crate::ir::Source]| -> Vec<String> {
            sources.iter().map(|source| source.name.clone()).collect()
        };
        same(names(sources), names(&self.right.sources), || "sources".to_string())?;
        let blocks = self.left.reachable_blocks();
        same(&blocks, &self.right.reachable_blocks(), || "blocks that entries reach".to_string())?;
        for index in blocks {
            self.blocks(index.0, self.left.block(index), self.right.block(index))?;
        }
        Ok(())
    }

    fn blocks(&mut self, index: u32, left: &Block, right: &Block) -> Same {
        let place = || format!("block {index}");
        self.defined(&left.parameters, &right.parameters, &|| format!("parameters of {}", place()))?;
        same(left.steps.len(), right.steps.len(), || format!("steps of {}", place()))?;
        for (at, (one, two)) in left.steps.iter().zip(&right.steps).enumerate() {
            self.steps(one, two, &|| format!("{}, step {at} `{}`", place(), one.name))?;
        }
        self.operands(&left.results, &right.results, &|| format!("results of {}", place()))
    }

    fn steps(&mut self, left: &Step, right: &Step, place: &dyn Fn() -> String) -> Same {
        let Step { op, operands, results, name } = left;
        same(name, &right.name, || format!("name in {}", place()))?;
        if !same_operators(op, &right.op) {
            return Err(format!("operator in {}: {op} against {}", place(), right.op));
        }
        self.operands(operands, &right.operands, place)?;
        self.defined(results, &right.results, place)
    }

    fn defined(&mut self, left: &[ValueId], right: &[ValueId], place: &dyn Fn() -> String) -> Same {
        same(left.len(), right.len(), || format!("number of values in {}", place()))?;
        left.iter().zip(right).try_for_each(|(&left, &right)| self.value(left, right, place))
    }

    fn operands(&mut self, left: &[Operand], right: &[Operand], place: &dyn Fn() -> String) -> Same {
        same(left.len(), right.len(), || format!("number of operands in {}", place()))?;
        for pair in left.iter().zip(right) {
            match pair {
                (Operand::Absent, Operand::Absent) => {}
                (Operand::Value(left), Operand::Value(right)) => self.value(*left, *right, place)?,
                (Operand::Constant(left), Operand::Constant(right)) => self.constant(*left, *right, place)?,
                (left, right) => return Err(format!("operand in {}: {left:?} against {right:?}", place())),
            }
        }
        Ok(())
    }

    fn value(&mut self, left: ValueId, right: ValueId, place: &dyn Fn() -> String) -> Same {
        match self.values.pair(left, right) {
            Some(true) => Ok(()),
            Some(false) => Err(format!("{left} against {right} in {}, which are other values", place())),
            None => {
                let Value { fact, name } = self.left.value(left);
                let other = self.right.value(right);
                same(fact, &other.fact, || format!("fact of {left} in {}", place()))?;
                same(name, &other.name, || format!("name of {left} in {}", place()))
            }
        }
    }

    fn constant(&mut self, left: ConstantId, right: ConstantId, place: &dyn Fn() -> String) -> Same {
        match self.constants.pair(left, right) {
            Some(true) => return Ok(()),
            Some(false) => return Err(format!("{left} against {right} in {}, which are other constants", place())),
            None => {}
        }
        let Constant { name, dtype, shape, data, origin, encoding, zeros } = self.left.constant(left);
        let other = self.right.constant(right);
        let what = |field: &str| format!("{field} of constant {left} in {}", place());
        same(name, &other.name, || what("name"))?;
        same((dtype, shape), (&other.dtype, &other.shape), || what("type"))?;
        same(origin, &other.origin, || what("origin"))?;
        same(encoding, &other.encoding, || what("encoding"))?;
        same(zeros, &other.zeros, || what("zeros"))?;
        match (data, &other.data) {
            (
                ConstantData::Recipe { op, operands },
                ConstantData::Recipe { op: other_op, operands: other_operands },
            ) => {
                if !same_operators(op, other_op) {
                    return Err(format!("{}: {op} against {other_op}", what("recipe")));
                }
                let operand = |id: &Option<ConstantId>| id.map_or(Operand::Absent, Operand::Constant);
                let operands: Vec<Operand> = operands.iter().map(operand).collect();
                let other_operands: Vec<Operand> = other_operands.iter().map(operand).collect();
                self.operands(&operands, &other_operands, place)
            }
            (ConstantData::Rounded(rounded), ConstantData::Rounded(other)) => {
                same(rounded.to, other.to, || what("rounding"))?;
                let operands = |rounded: &Rounded| {
                    let factor = rounded.factor.map_or(Operand::Absent, Operand::Constant);
                    [Operand::Constant(rounded.weight), factor]
                };
                self.operands(&operands(rounded), &operands(other), place)
            }
            (one, two) => match (hash(one), hash(two)) {
                (Some(one), Some(two)) => same(one, two, || what("bytes")),
                (None, None) => same(one, two, || what("data")),
                (Some(_), None) | (None, Some(_)) => Err(format!("{}: {one:?} against {two:?}", what("data"))),
            },
        }
    }
}

/// The hash of the elements, for data that is in memory or known by its hash.
fn hash(data: &ConstantData) -> Option<blake3::Hash> {
    match data {
        ConstantData::Tensor(tensor) => Some(hash_of(tensor)),
        ConstantData::Hashed(hash) => Some(*hash),
        ConstantData::Stored(stored) => match stored.tensor.data() {
            TensorData::Inline(tensor) => Some(hash_of(tensor)),
            TensorData::InFile { .. } | TensorData::External(_) => None,
        },
        ConstantData::Recipe { .. } | ConstantData::Rounded(_) => None,
    }
}

/// Strings are told apart by their lengths and bytes.
fn hash_of(tensor: &Tensor) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for string in tensor.strings().unwrap_or(&[]) {
        hasher.update(&(string.len() as u64).to_le_bytes());
        hasher.update(string.as_bytes());
    }
    hasher.update(tensor.bytes());
    hasher.finalize()
}

/// The same operator with the same attributes, bit for bit.
fn same_operators(left: &Op, right: &Op) -> bool {
    let (one, two) = (left.attributes(), right.attributes());
    left.code() == right.code()
        && one.len() == two.len()
        && one.iter().zip(&two).all(|((number, _, one), (other, _, two))| number == other && same_bits(one, two))
}

fn same_bits(left: &AttributeValue, right: &AttributeValue) -> bool {
    let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect::<Vec<u32>>();
    match (left, right) {
        (AttributeValue::Float(one), AttributeValue::Float(two)) => one.to_bits() == two.to_bits(),
        (AttributeValue::Floats(one), AttributeValue::Floats(two)) => bits(one) == bits(two),
        (one, two) => one == two,
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::ConstantError;
    use crate::ir::text::{parse, print};

    const GRAPH: &str = r#"symbol n 1..=8
require equal n, m from "add"
source "model.onnx"
source "weights.bin"
constant @a : f32[2] = f32[2]:0100c07f00000080 at 0 16 8
constant @b : string[2] = string[2]:["a\u{0}", "\"\n"]
constant @c : u4[3] = u4[3]:2103
constant @d : f32[100] = hash 6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85
constant @e : f32[64] = stored 0 raw_data 1024+200, 1300+56 name "other"
constant @f : i64[3] = stored 0 int64_data 4000+2 tagged, 4002+1
constant @g : f32[64] = stored 1 external "weights.bin" offset 8 length 256 sha1 000102030405060708090a0b0c0d0e0f10111213
constant @7 "shared" : f32[64] = cast to=f32 overflow=1 @e
constant @8 "shared" : f32[] = f32[]:00000000
state "x" grows 0 page 128
entry "main"("x") -> ("y") = block 0 state 0 0=0
entry "other"("x") -> ("y") = block 2
block 0(%x : f32[n]) {
  %1 "y" : f32[n]{= f32[1]:0000803f} = random distribution=uniform to=f32 low=NaN:ffc00001 high=-0.0 shape=[1] from "a from \"b\""
  %"12" : f32[n] = unary function=exp %1
  return %"12"
}
block 2(%3 "y" : i64[2]{n, 2*m}) {
  return @a, @b, @c, @d, @e, @f, @g, @7, @8, _
}
peak 0 given 8 kept 4
"#;

    #[test]
    fn graphs_equal_what_their_text_gives() {
        let graph = parse(GRAPH).unwrap();
        assert_eq!(parse(&print(&graph)).unwrap().difference(&graph), None);
        assert_eq!(print(&parse(&print(&graph)).unwrap()), print(&graph));
    }

    #[test]
    fn every_part_of_a_graph_tells_graphs_apart() {
        let graph = parse(GRAPH).unwrap();
        for (part, other) in [
            ("n 1..=8", "n 1..=9"),
            ("n, m from", "n, k from"),
            ("source \"model.onnx\"", "source \"m.onnx\""),
            ("0100c07f", "0200c07f"),
            ("at 0 16 8", "at 0 24 8"),
            ("a\\u{0}", "a"),
            ("2103", "2104"),
            ("hash 64", "hash 65"),
            ("1024+200, 1300+56", "1024+200, 1301+56"),
            ("2 tagged,", "2,"),
            ("name \"other\"", ""),
            ("offset 8", "offset 9"),
            ("sha1 00", "sha1 01"),
            ("@7 \"shared\"", "@7 \"y\""),
            ("overflow=1 @e", "overflow=1 @g"),
            (" state 0 0=0", ""),
            (" grows 0 page 128", ""),
            ("page 128", "page 64"),
            ("state \"x\"", "state \"z\""),
            ("(\"x\") -> (\"y\") = block 2", "(\"x\") -> (\"z\") = block 2"),
            ("f32[1]:0000803f", "f32[1]:0000803e"),
            ("ffc00001", "ffc00002"),
            ("high=-0.0", "high=0.0"),
            ("from \"a", "from \"c"),
            ("function=exp %1", "function=exp %x"),
            ("function=exp", "function=log"),
            ("%3 \"y\"", "%3 \"z\""),
            ("{n, 2*m}", "{n, 3*m}"),
            ("@8, _", "@8, @8"),
            ("kept 4", "kept 5"),
        ] {
            assert!(GRAPH.contains(part), "{part}");
            let changed = parse(&GRAPH.replacen(part, other, 1)).unwrap_or_else(|error| panic!("{other}: {error}"));
            assert!(graph != changed, "{part} against {other}");
        }
    }

    #[test]
    fn bytes_that_are_only_hashed_are_refused_by_name() {
        let graph = parse(GRAPH).unwrap();
        let id = graph.constants.iter().position(|constant| constant.name.as_deref() == Some("d")).unwrap();
        let error = graph.load_constant(crate::ir::ConstantId(id as u32)).unwrap_err();
        assert!(matches!(&error, ConstantError::Hashed { tensor } if tensor == "d"), "{error}");
    }
}
