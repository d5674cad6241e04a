//! Blocks for the tests of control flow: closures in place of steps.

use crate::attribute::BlockIndex;
use crate::fact::{Fact, Type};
use crate::ops::{BlockInference, BlockRunner, ReferenceError, TypeError};
use crate::value::Value;

type InferBody = Box<dyn Fn(&[Fact]) -> Vec<Fact>>;
type RunBody = Box<dyn Fn(Vec<Value>) -> Vec<Value>>;

/// A block made of two closures.
pub struct TestBlock {
    infer: InferBody,
    run: RunBody,
    types: Vec<Type>,
}

impl TestBlock {
    /// A block from its type rule and its meaning.
    pub fn new(
        infer: impl Fn(&[Fact]) -> Vec<Fact> + 'static,
        run: impl Fn(Vec<Value>) -> Vec<Value> + 'static,
    ) -> TestBlock {
        TestBlock { infer: Box::new(infer), run: Box::new(run), types: Vec::new() }
    }

    /// A block that gives its parameters back.
    pub fn identity() -> TestBlock {
        TestBlock::new(<[Fact]>::to_vec, |arguments| arguments)
    }

    /// The same with these types of results.
    pub fn with_types(mut self, types: Vec<Type>) -> TestBlock {
        self.types = types;
        self
    }
}

/// Blocks by index, and a record of what ran.
pub struct TestBlocks {
    blocks: Vec<TestBlock>,
    /// Every block that ran, in order.
    pub runs: Vec<BlockIndex>,
}

impl TestBlocks {
    /// Blocks 0, 1, ..
    pub fn new(blocks: Vec<TestBlock>) -> TestBlocks {
        TestBlocks { blocks, runs: Vec::new() }
    }
}

impl BlockInference for TestBlocks {
    fn infer_block(&mut self, block: BlockIndex, parameters: &[Fact]) -> Result<Vec<Fact>, TypeError> {
        Ok((self.blocks[block.0 as usize].infer)(parameters))
    }
}

impl BlockRunner for TestBlocks {
    fn run_block(&mut self, block: BlockIndex, arguments: Vec<Value>) -> Result<Vec<Value>, ReferenceError> {
        self.runs.push(block);
        Ok((self.blocks[block.0 as usize].run)(arguments))
    }

    fn result_types(&mut self, block: BlockIndex) -> Result<Vec<Type>, ReferenceError> {
        Ok(self.blocks[block.0 as usize].types.clone())
    }
}
