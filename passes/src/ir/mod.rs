//! The intermediate representation: what every pass reads and changes.
//!
//! A [`Graph`] holds blocks; a [`Block`] is a list of [`Step`]s with explicit parameters and results. A block's steps
//! always stand in an order in which they can run: every value is defined by a parameter or an earlier step of the same
//! block. Blocks see nothing of each other: what a body uses from outside is an explicit operand of the step that runs
//! it and a parameter of the body. An [`Entry`] is a block with public names.
//!
//! Constants live in a table of their own and are operands without being nodes; large ones stay where the model has
//! them ([`ConstantData::Stored`]) or are described by how they are computed ([`ConstantData::Recipe`]).
//! A [`ValueId`] is given once and survives all passes, so that a value traces back to its ONNX name and what was
//! measured of it.
//!
//! Passes sweep over the list of steps; where they need the graph of dependencies, [`Graph::dependencies`] derives a
//! petgraph from it. Storing the list, and not the graph, keeps a sweep over 60,000 steps linear and free of the traps
//! of reused indices and of hub nodes.
//!
//! This module knows no ONNX and no file format.

mod computed;
mod constants;
mod copied;
mod dependencies;
mod equality;
mod evaluator;
mod quantized;
mod reshaping;
mod rounded;
mod sums;
pub mod text;
mod typing;
mod uses;

pub use constants::{ChosenEncoding, Constant, ConstantData, ConstantError, Origin, Rounded, RoundedTo, Stored};
pub use dependencies::{Dependencies, substitute};
pub use evaluator::{Evaluate, Evaluator};
pub use quantized::Quantized;
pub use reshaping::{ExtentConstants, reshape_extents};
pub use rounded::widened;
pub use sums::program_of_sums;
pub use typing::BlockTyping;
pub use uses::Uses;

use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Ranges;
use ipuc_formats::fact::Fact;
use ipuc_formats::model::Growth;
use ipuc_formats::ops::{Obligation, Op};
use ipuc_formats::read_at::ReadAt;
use std::fmt;
use std::sync::Arc;

/// A value of the graph; given once, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A constant of the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConstantId(pub u32);

impl fmt::Display for ValueId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "%{}", self.0)
    }
}

impl fmt::Display for ConstantId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "@{}", self.0)
    }
}

/// What a step reads in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operand {
    /// Nothing: the operand is left out.
    Absent,
    /// A value of the same block.
    Value(ValueId),
    /// A constant.
    Constant(ConstantId),
}

/// What is known of a value.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Type, shape, and contents where they matter to shapes.
    pub fact: Fact,
    /// ONNX name, for values that have one.
    pub name: Option<Arc<str>>,
}

/// One operator at its place in a block.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The operator.
    pub op: Op,
    /// What it reads.
    pub operands: Vec<Operand>,
    /// What it defines, one value a result.
    pub results: Vec<ValueId>,
    /// Name of the ONNX node that it comes from; empty for steps without one.
    pub name: Arc<str>,
}

/// A list of steps with explicit parameters and results.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Block {
    /// Values given from outside.
    pub parameters: Vec<ValueId>,
    /// The steps, each after those whose values it reads.
    pub steps: Vec<Step>,
    /// What the block gives.
    pub results: Vec<Operand>,
}

/// Contents that a session keeps from run to run; all entries that use a state share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Its name: that of the input that is given the contents.
    pub name: String,
    /// How runs append to the contents; `None` where they replace them.
    pub growth: Option<Growth>,
}

/// How an entry uses a state: by input, output or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateUse {
    /// Index of the state.
    pub state: usize,
    /// Index of the parameter that is given the contents.
    pub input: Option<usize>,
    /// Index of the result that is the next contents.
    pub output: Option<usize>,
}

/// A block with public names.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Name of the entry.
    pub name: String,
    /// The block.
    pub block: BlockIndex,
    /// One name a parameter of the block.
    pub inputs: Vec<String>,
    /// One name a result of the block.
    pub outputs: Vec<String>,
    /// Inputs and outputs that are state.
    pub states: Vec<StateUse>,
}

/// A file that constants are read from.
#[derive(Clone)]
pub struct Source {
    /// Name as the model has it (no path of this machine).
    pub name: String,
    /// The bytes.
    pub bytes: Arc<dyn ReadAt>,
}

/// A whole model between import and emission.
#[derive(Clone, Default)]
pub struct Graph {
    /// Public entries.
    pub entries: Vec<Entry>,
    /// Every block; an index is never reused.
    pub blocks: Vec<Block>,
    /// Every value by its id.
    pub values: Vec<Value>,
    /// Every constant by its id.
    pub constants: Vec<Constant>,
    /// What is known of symbols.
    pub ranges: Ranges,
    /// Equations that only a bind can decide.
    pub obligations: Vec<Obligation>,
    /// Files behind stored constants.
    pub sources: Vec<Source>,
    /// Peak live memory of each block, once it is in order.
    pub peaks: Vec<Peak>,
    /// What sessions keep from run to run.
    pub states: Vec<State>,
    /// How steps with constant operands are computed.
    pub evaluator: Evaluator,
}

/// Peak live activation bytes of a block in the order that it was given and in the order that was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peak {
    /// The block.
    pub block: BlockIndex,
    /// In the given, topological order.
    pub given_bytes: u64,
    /// In the order that was kept.
    pub kept_bytes: u64,
}

/// How much a pass changed: nothing means that running it again is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Steps that were removed, replaced or moved, or read something else.
    pub steps: usize,
    /// What is said about the graph (types of values, states): it follows from the steps and calls for no other pass.
    pub annotations: usize,
}

impl Changes {
    /// So many steps.
    pub fn of_steps(steps: usize) -> Changes {
        Changes { steps, annotations: 0 }
    }

    /// So much that is said about the graph.
    pub fn of_annotations(annotations: usize) -> Changes {
        Changes { steps: 0, annotations }
    }
}

impl Graph {
    /// The block of this index.
    ///
    /// # Panics
    /// Where the graph has no such block, which is a bug of the caller.
    pub fn block(&self, index: BlockIndex) -> &Block {
        &self.blocks[index.0 as usize]
    }

    /// The block of this index, for changes.
    ///
    /// # Panics
    /// Where the graph has no such block, which is a bug of the caller.
    pub fn block_mut(&mut self, index: BlockIndex) -> &mut Block {
        &mut self.blocks[index.0 as usize]
    }

    /// Add an empty block.
    pub fn add_block(&mut self) -> BlockIndex {
        self.blocks.push(Block::default());
        BlockIndex(self.blocks.len() as u32 - 1)
    }

    /// Indices of all blocks.
    pub fn block_indices(&self) -> impl Iterator<Item = BlockIndex> + use<> {
        (0..self.blocks.len() as u32).map(BlockIndex)
    }

    /// The value of this id.
    ///
    /// # Panics
    /// Where the graph has no such value, which is a bug of the caller.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The value of this id, for changes.
    ///
    /// # Panics
    /// Where the graph has no such value, which is a bug of the caller.
    pub fn value_mut(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id.0 as usize]
    }

    /// Add a value.
    pub fn add_value(&mut self, fact: Fact, name: Option<&str>) -> ValueId {
        self.values.push(Value { fact, name: name.map(Arc::from) });
        ValueId(self.values.len() as u32 - 1)
    }

    /// The constant of this id.
    ///
    /// # Panics
    /// Where the graph has no such constant, which is a bug of the caller.
    pub fn constant(&self, id: ConstantId) -> &Constant {
        &self.constants[id.0 as usize]
    }

    /// The constant of this id, for changes.
    ///
    /// # Panics
    /// Where the graph has no such constant, which is a bug of the caller.
    pub fn constant_mut(&mut self, id: ConstantId) -> &mut Constant {
        &mut self.constants[id.0 as usize]
    }

    /// Add a constant.
    pub fn add_constant(&mut self, constant: Constant) -> ConstantId {
        self.constants.push(constant);
        ConstantId(self.constants.len() as u32 - 1)
    }

    /// What is known of an operand; `None` where it is absent.
    pub fn fact(&self, operand: Operand) -> Option<Fact> {
        match operand {
            Operand::Absent => None,
            Operand::Value(id) => Some(self.value(id).fact.clone()),
            Operand::Constant(id) => Some(self.constant(id).fact()),
        }
    }

    /// Facts of all operands.
    pub fn facts(&self, operands: &[Operand]) -> Vec<Option<Fact>> {
        operands.iter().map(|&operand| self.fact(operand)).collect()
    }

    /// Number of steps in all blocks.
    pub fn step_count(&self) -> usize {
        self.blocks.iter().map(|block| block.steps.len()).sum()
    }

    /// Blocks that entries reach, bodies after the block that runs them; without those that do not exist.
    pub fn reachable_blocks(&self) -> Vec<BlockIndex> {
        let mut reached = vec![false; self.blocks.len()];
        let mut order = Vec::new();
        let mut pending: Vec<BlockIndex> = self.entries.iter().rev().map(|entry| entry.block).collect();
        while let Some(index) = pending.pop() {
            match reached.get_mut(index.0 as usize) {
                Some(seen @ false) => *seen = true,
                Some(true) | None => continue,
            }
            order.push(index);
            for step in self.block(index).steps.iter().rev() {
                pending.extend(step.op.blocks().into_iter().rev());
            }
        }
        order
    }
}
