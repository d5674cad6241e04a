//! Plans and arenas of all blocks of an entry at one binding of its dimensions; made anew when they change.

use crate::memory::arena::Arena;
use crate::memory::budget::Charge;
use crate::memory::extents::value_bytes;
use crate::memory::plan::{BlockMemory, plan_block};
use crate::memory::pool::{Pool, PoolPages, Refusal};
use crate::steps::{Contents, KernelError, Prepared};
use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::model::{Manifest, OperandRecord};
use ipuc_formats::tensor::{Tensor, TensorError, element_count};
use ipuc_formats::value::Value;
use std::sync::Arc;

/// Memory for one entry at one binding.
pub(crate) struct BoundMemory {
    bindings: Bindings,
    entry_block: u32,
    /// By number; `None` for blocks that the entry does not run.
    blocks: Vec<Option<(BlockMemory, Option<Arc<Arena>>)>>,
    /// Of each step of these blocks.
    prepared: Vec<Box<[Prepared]>>,
    charge: Option<Charge>,
    pool: Arc<Pool>,
    pages: PoolPages,
}

impl BoundMemory {
    /// Plan every block that the entry's block runs; memory comes with [`BoundMemory::acquire`].
    pub(crate) fn new(
        manifest: &Manifest,
        weights_stream: bool,
        entry_block: u32,
        bindings: Bindings,
        pool: Arc<Pool>,
    ) -> Self {
        let mut blocks: Vec<_> = manifest.blocks.iter().map(|_| None).collect();
        let mut pending = vec![entry_block];
        while let Some(index) = pending.pop() {
            let block = &manifest.blocks[index as usize];
            blocks[index as usize] = Some((plan_block(block, &bindings, weights_stream), None));
            let bodies = block.steps.iter().flat_map(|step| step.op.blocks());
            pending.extend(bodies.map(|body| body.0).filter(|body| blocks[*body as usize].is_none()));
        }
        let prepared = manifest.blocks.iter().zip(&blocks).map(|(block, planned)| {
            let steps = planned.iter().flat_map(|_| &block.steps);
            steps.map(|_| Prepared::default()).collect()
        });
        let prepared = prepared.collect();
        BoundMemory { bindings, entry_block, blocks, prepared, charge: None, pages: PoolPages(pool.clone()), pool }
    }

    /// Allocate what is planned, where that is not done yet.
    ///
    /// # Errors
    /// The bytes that there is no room for.
    pub(crate) fn acquire(&mut self) -> Result<(), u64> {
        if self.charge.is_some() {
            return Ok(());
        }
        let charge = self.pool.charge(self.arena_bytes()).map_err(|exceeded| exceeded.bytes)?;
        for (memory, arena) in self.blocks.iter_mut().flatten().filter(|(memory, _)| memory.bytes > 0) {
            *arena = Some(Arena::new(memory.bytes).ok_or(memory.bytes as u64)?);
        }
        self.charge = Some(charge);
        Ok(())
    }

    /// Bytes of buffers for what bodies of control flow give, before and after an iteration.
    pub(crate) fn body_result_bytes(&self, manifest: &Manifest) -> u64 {
        let bodies = self.planned().map(|(block, _)| block).filter(|&block| block != self.entry_block as usize);
        let bytes = |block: usize| -> u64 {
            let block = &manifest.blocks[block];
            let slots = block.results.iter().filter_map(|result| match *result {
                OperandRecord::Value(slot) => Some(slot as usize),
                OperandRecord::Weight(_) | OperandRecord::Absent => None,
            });
            let bytes = slots.filter_map(|slot| value_bytes(&block.values[slot].kind, &self.bindings));
            bytes.map(|bytes| 2 * Pool::capacity(bytes) as u64).sum()
        };
        bodies.map(bytes).sum()
    }

    /// Bytes of arenas that are still to be acquired.
    pub(crate) fn missing_bytes(&self) -> u64 {
        if self.charge.is_some() { 0 } else { self.arena_bytes() }
    }

    /// This memory for another binding of the same entry, where no value that has a place changes its size; `None` where one does.
    pub(crate) fn rebound(mut self, entry_block: u32, bindings: &Bindings) -> Option<Self> {
        if self.entry_block != entry_block {
            return None;
        }
        if self.bindings != *bindings {
            if !self.planned().all(|(_, memory)| memory.is_at(bindings)) {
                return None;
            }
            self.bindings = bindings.clone();
        }
        Some(self)
    }

    /// The shapes of the results of a step that are operand 0, or parts of it one behind the other.
    pub(crate) fn view(&self, block: u32, step: usize) -> Option<&[Box<[usize]>]> {
        self.blocks.get(block as usize)?.as_ref()?.0.view(step)
    }

    /// What a step has worked out from shapes.
    pub(crate) fn prepared(&self, block: u32, step: usize) -> Option<&Prepared> {
        self.prepared.get(block as usize)?.get(step)
    }

    /// Whether a result of a step has its place within that of a larger value.
    pub(crate) fn is_part(&self, block: u32, slots: &[u32]) -> bool {
        let planned = self.blocks.get(block as usize).and_then(Option::as_ref);
        planned.is_some_and(|(memory, _)| slots.iter().any(|&slot| memory.is_part(slot)))
    }

    /// Whether the operands of a step have their places one behind the other in that of its result.
    pub(crate) fn joins(&self, block: u32, step: usize) -> bool {
        let planned = self.blocks.get(block as usize).and_then(Option::as_ref);
        planned.is_some_and(|(memory, _)| memory.join(step).is_some())
    }

    /// The result of a step whose operands lie where it has planned them, one behind the other in its place.
    pub(crate) fn join(&self, block: u32, step: usize, slot: u32, operands: Vec<Tensor>) -> Option<Tensor> {
        let (memory, arena) = self.blocks.get(block as usize)?.as_ref()?;
        let shape = memory.join(step)?;
        let (offset, bytes) = memory.places[slot as usize]?;
        let dtype = operands.first()?.dtype();
        let joined = arena.as_ref()?.join(offset, bytes, operands.into_boxed_slice())?;
        Tensor::over(dtype, shape, Arc::new(joined)).ok()
    }

    /// Bytes of all arenas.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.planned().map(|(_, memory)| memory.bytes as u64).sum()
    }

    /// Plans of blocks, by number.
    fn planned(&self) -> impl Iterator<Item = (usize, &BlockMemory)> {
        let blocks = self.blocks.iter().enumerate();
        blocks.filter_map(|(index, planned)| planned.as_ref().map(|(memory, _)| (index, memory)))
    }

    /// A tensor with unspecified contents for result `result` of a step: in the planned place of its value, or where that
    /// is held or unknown, in a buffer.
    pub(crate) fn allocate(
        &self,
        (block, slot): (u32, Option<u32>),
        result: usize,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, KernelError> {
        let bytes = checked_bytes(dtype, shape)?;
        if bytes == 0 {
            return Ok(Tensor::zeros(dtype, shape)?);
        }
        let planned = self.blocks.get(block as usize).and_then(Option::as_ref);
        let place = planned.and_then(|(memory, arena)| {
            let (offset, _) = memory.places[slot? as usize].filter(|&(_, planned)| planned >= bytes)?;
            arena.as_ref()?.take(offset, bytes)
        });
        if let Some(piece) = place {
            return Ok(Tensor::over(dtype, shape, Arc::new(piece))?);
        }
        self.buffer(result, bytes, dtype, shape)
    }

    /// A tensor with unspecified contents in a buffer.
    pub(crate) fn scratch(&self, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError> {
        match checked_bytes(dtype, shape)? {
            0 => Ok(Tensor::zeros(dtype, shape)?),
            bytes => self.buffer(0, bytes, dtype, shape),
        }
    }

    /// A tensor that was allocated elsewhere, counted from now on.
    pub(crate) fn adopt(&self, result: usize, tensor: Tensor) -> Result<Tensor, KernelError> {
        let Some(storage) = tensor.storage() else { return Ok(tensor) };
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        drop(tensor);
        let adopted = self.pool.adopt(storage);
        let adopted = adopted.map_err(|exceeded| KernelError::Memory { result, bytes: exceeded.bytes })?;
        Ok(Tensor::over(dtype, &shape, adopted)?)
    }

    fn buffer(&self, result: usize, bytes: usize, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError> {
        let buffer = self.pool.take(bytes).map_err(|refusal| match refusal {
            Refusal::Budget => KernelError::Memory { result, bytes: bytes as u64 },
            Refusal::System => TensorError::Memory { dtype, shape: shape.to_vec() }.into(),
        })?;
        Ok(Tensor::over(dtype, shape, Arc::new(buffer))?)
    }

    /// The value, or the contents of a version as one.
    pub(crate) fn whole(&self, contents: &Contents) -> Result<Value, KernelError> {
        let version = match contents {
            Contents::Value(value) => return Ok(value.clone()),
            Contents::Version(version) => version,
        };
        let copy = self.scratch(version.dtype(), version.shape())?;
        Ok(version.copied_into(copy, &self.pages)?.into())
    }

    /// Where pages of state come from.
    pub(crate) fn pages(&self) -> &PoolPages {
        &self.pages
    }
}

fn checked_bytes(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
    let bytes = element_count(shape).and_then(|count| dtype.packed_bytes(count));
    bytes.ok_or_else(|| TensorError::TooLarge { dtype, shape: shape.to_vec() })
}
