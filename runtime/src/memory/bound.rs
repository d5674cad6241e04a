//! Plans and arenas of all blocks of an entry at one binding of its dimensions; made anew when they change.

use crate::memory::arena::Arena;
use crate::memory::plan::{BlockMemory, plan_block};
use crate::memory::pool::Pool;
use crate::steps::KernelError;
use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::model::Manifest;
use ipuc_formats::tensor::{Tensor, TensorError, element_count};
use std::collections::HashMap;
use std::sync::Arc;

/// Memory for one entry at one binding.
pub(crate) struct BoundMemory {
    bindings: Bindings,
    entry_block: u32,
    blocks: HashMap<u32, (BlockMemory, Option<Arc<Arena>>)>,
    pool: Arc<Pool>,
}

impl BoundMemory {
    /// Plan every block that the entry's block runs; memory comes with [`BoundMemory::acquire`].
    pub(crate) fn new(manifest: &Manifest, entry_block: u32, bindings: Bindings, pool: Arc<Pool>) -> Self {
        let mut blocks = HashMap::new();
        let mut pending = vec![entry_block];
        while let Some(index) = pending.pop() {
            let block = &manifest.blocks[index as usize];
            blocks.insert(index, (plan_block(block, &bindings), None));
            let bodies = block.steps.iter().flat_map(|step| step.op.operator().blocks());
            pending.extend(bodies.map(|body| body.0).filter(|body| !blocks.contains_key(body)));
        }
        BoundMemory { bindings, entry_block, blocks, pool }
    }

    /// Allocate what is planned. Where there is no room for an arena, results are allocated one by one.
    pub(crate) fn acquire(&mut self) {
        for (memory, arena) in self.blocks.values_mut().filter(|(memory, _)| memory.bytes > 0) {
            *arena = Arena::new(memory.bytes);
        }
    }

    /// This memory was planned for that entry and binding.
    pub(crate) fn fits(&self, entry_block: u32, bindings: &Bindings) -> bool {
        self.entry_block == entry_block && self.bindings == *bindings
    }

    /// Bytes of all arenas.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.blocks.values().map(|(memory, _)| memory.bytes as u64).sum()
    }

    /// A tensor with unspecified contents: in its planned place, or where that is held or unknown, in a buffer.
    pub(crate) fn allocate(
        &self,
        block: u32,
        slot: Option<u32>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, KernelError> {
        let bytes = element_count(shape).and_then(|count| dtype.packed_bytes(count));
        let bytes = bytes.ok_or_else(|| TensorError::TooLarge { dtype, shape: shape.to_vec() })?;
        if bytes == 0 {
            return Ok(Tensor::zeros(dtype, shape)?);
        }
        let (memory, arena) = &self.blocks[&block];
        let place = slot.and_then(|slot| memory.places[slot as usize]).filter(|&(_, planned)| planned >= bytes);
        if let Some((offset, _)) = place
            && let Some(piece) = arena.as_ref().and_then(|arena| arena.take(offset, bytes))
        {
            return Ok(Tensor::over(dtype, shape, Arc::new(piece))?);
        }
        let buffer = self.pool.take(bytes).ok_or_else(|| TensorError::Memory { dtype, shape: shape.to_vec() })?;
        Ok(Tensor::over(dtype, shape, Arc::new(buffer))?)
    }
}
