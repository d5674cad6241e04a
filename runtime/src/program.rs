//! A file made ready to run: its manifest, its weights and what follows from the order of steps.

use crate::steps::PartSource;
use ipuc_formats::model::{BlockRecord, Manifest, OperandRecord, WeightRecord};
use std::sync::Arc;

/// A validated file with a source of weights.
pub(crate) struct Program {
    pub(crate) manifest: Manifest,
    pub(crate) weights: Vec<Arc<WeightRecord>>,
    pub(crate) source: Arc<dyn PartSource>,
    pub(crate) plans: Vec<BlockPlan>,
}

impl Program {
    pub(crate) fn new(mut manifest: Manifest, source: Arc<dyn PartSource>) -> Self {
        let weights = std::mem::take(&mut manifest.weights).into_iter().map(Arc::new).collect();
        let plans = manifest.blocks.iter().map(BlockPlan::new).collect();
        Program { manifest, weights, source, plans }
    }
}

/// Where each value of a block is read last.
pub(crate) struct BlockPlan {
    /// For each value: the last step and operand that read it, or [`LastRead::Result`], or [`LastRead::Never`].
    last_reads: Vec<LastRead>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastRead {
    Never,
    Operand { step: usize, position: usize },
    Result,
}

impl BlockPlan {
    fn new(block: &BlockRecord) -> Self {
        let mut last_reads = vec![LastRead::Never; block.values.len()];
        for (step, record) in block.steps.iter().enumerate() {
            for (position, operand) in record.operands.iter().enumerate() {
                if let OperandRecord::Value(slot) = operand {
                    last_reads[*slot as usize] = LastRead::Operand { step, position };
                }
            }
        }
        for result in &block.results {
            if let OperandRecord::Value(slot) = result {
                last_reads[*slot as usize] = LastRead::Result;
            }
        }
        BlockPlan { last_reads }
    }

    pub(crate) fn is_read(&self, slot: u32) -> bool {
        self.last_reads[slot as usize] != LastRead::Never
    }

    pub(crate) fn is_last_read(&self, slot: u32, step: usize, position: usize) -> bool {
        self.last_reads[slot as usize] == LastRead::Operand { step, position }
    }
}
