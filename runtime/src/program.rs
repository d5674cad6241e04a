//! A file made ready to run: its manifest, its weights and what follows from the order of steps.

use crate::check::CheckedManifest;
use crate::error::OpenError;
use crate::file::WeightFile;
use crate::memory::{Budget, Pool, PoolPages};
use crate::resident::{Resident, SharedBytes};
use crate::state::AllStates;
use crate::steps::{PartSource, StoredWeight};
use crate::stream::{Need, Streamed, StreamedOptions};
use crate::versions::{PageMemory, SpillFolder, VersionError};
use crate::windows::{Window, windows};
use ipuc_formats::model::{BlockRecord, Manifest, OperandRecord, WeightRecord};
use ipuc_formats::read_at::ReadAt;
use ipuc_formats::tensor::Storage;
use std::io::Read;
use std::sync::Arc;

/// A validated file with a source of weights.
pub(crate) struct Program {
    pub(crate) manifest: Arc<Manifest>,
    /// The name of the file.
    pub(crate) root_hash: [u8; 32],
    pub(crate) weights: Vec<Arc<StoredWeight>>,
    pub(crate) source: Arc<dyn PartSource>,
    /// The source again, where it works within a budget.
    pub(crate) streamed: Option<Arc<Streamed>>,
    pub(crate) plans: Vec<BlockPlan>,
    /// What all sessions are charged to, weights included where they stream.
    pub(crate) budget: Arc<Budget>,
    pub(crate) pool: Arc<Pool>,
    /// Where pages of state go when memory is short.
    pub(crate) spill: SpillFolder,
    /// What the sessions keep.
    pub(crate) states: AllStates,
    /// How far back steps read each state.
    pub(crate) windows: Vec<Option<Window>>,
}

impl Program {
    /// All weights in memory.
    ///
    /// # Errors
    /// [`OpenError`] where they cannot be read.
    pub(crate) fn resident(checked: CheckedManifest, file: &dyn ReadAt) -> Result<Self, OpenError> {
        let CheckedManifest { mut manifest, root_hash } = checked;
        let weights = records(&mut manifest)?;
        let manifest = Arc::new(manifest);
        let source = Arc::new(Resident::copy(manifest.clone(), weights.clone(), file)?);
        Ok(Program::new(manifest, root_hash, weights, source, None, Budget::new(None)))
    }

    /// Weights where they lie in the bytes of a whole file.
    ///
    /// # Errors
    /// [`OpenError::OtherFiles`].
    pub(crate) fn mapped(checked: CheckedManifest, file: SharedBytes) -> Result<Self, OpenError> {
        let CheckedManifest { mut manifest, root_hash } = checked;
        let weights = records(&mut manifest)?;
        let manifest = Arc::new(manifest);
        let source = Arc::new(Resident::over_file(manifest.clone(), weights.clone(), file));
        Ok(Program::new(manifest, root_hash, weights, source, None, Budget::new(None)))
    }

    /// Weights that a stream brings, which stay in memory; the next byte is the first of the first chunk.
    ///
    /// # Errors
    /// [`OpenError::Budget`] where the weights do not fit, [`OpenError::Memory`] where no thread can be started.
    pub(crate) fn arriving(
        checked: CheckedManifest,
        stream: impl Read + Send + 'static,
        memory_bytes: Option<u64>,
    ) -> Result<Self, OpenError> {
        let CheckedManifest { mut manifest, root_hash } = checked;
        let weights = records(&mut manifest)?;
        let manifest = Arc::new(manifest);
        let budget = Budget::new(memory_bytes);
        let needed_bytes = manifest.chunks.iter().map(|chunk| chunk.length).sum();
        let short = |_| OpenError::Budget { needed_bytes, budget_bytes: memory_bytes.unwrap_or(u64::MAX) };
        let charge = budget.charge(needed_bytes).map_err(short)?;
        let source = Arc::new(Resident::arriving(manifest.clone(), weights.clone(), stream, charge)?);
        Ok(Program::new(manifest, root_hash, weights, source, None, budget))
    }

    /// Weights within a budget.
    ///
    /// # Errors
    /// [`OpenError::Budget`] where it is too small.
    pub(crate) fn streamed(
        checked: CheckedManifest,
        file: Arc<dyn WeightFile>,
        budget: &Arc<Budget>,
        options: StreamedOptions,
        spill: SpillFolder,
    ) -> Result<Self, OpenError> {
        let CheckedManifest { mut manifest, root_hash } = checked;
        let weights = records(&mut manifest)?;
        let manifest = Arc::new(manifest);
        let streamed = Arc::new(Streamed::new(file, manifest.clone(), weights.clone(), budget, options)?);
        let program = Program::new(manifest, root_hash, weights, streamed.clone(), Some(streamed), budget.clone());
        Ok(Program { spill, ..program })
    }

    fn new(
        manifest: Arc<Manifest>,
        root_hash: [u8; 32],
        weights: Vec<Arc<WeightRecord>>,
        source: Arc<dyn PartSource>,
        streamed: Option<Arc<Streamed>>,
        budget: Arc<Budget>,
    ) -> Self {
        let plans = manifest.blocks.iter().map(BlockPlan::new).collect();
        let weights = weights.into_iter().map(|record| Arc::new(StoredWeight::new(record))).collect();
        let (pool, spill) = (Pool::new(budget.clone()), SpillFolder::new(None));
        let (states, windows) = (AllStates::default(), windows(&manifest));
        Program { manifest, root_hash, weights, source, streamed, plans, pool, budget, spill, states, windows }
    }
}

/// Pages of state between runs: where the budget has no room, weights leave for them.
impl PageMemory for Program {
    fn page(&self, bytes: usize) -> Result<Box<dyn Storage>, VersionError> {
        let pages = PoolPages(self.pool.clone());
        let Some(streamed) = &self.streamed else { return pages.page(bytes) };
        pages.page(bytes).or_else(|error| {
            let needed_bytes = Pool::capacity(bytes) as u64;
            let room = streamed.make_room(Need { bytes: needed_bytes, growth_bytes: 0, growth_ahead_bytes: 0 });
            room.map_err(|_| error).and_then(|()| pages.page(bytes))
        })
    }
}

/// The records of weights, which sources and steps share.
fn records(manifest: &mut Manifest) -> Result<Vec<Arc<WeightRecord>>, OpenError> {
    if !manifest.files.is_empty() {
        return Err(OpenError::OtherFiles { count: manifest.files.len() });
    }
    Ok(std::mem::take(&mut manifest.weights).into_iter().map(Arc::new).collect())
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
