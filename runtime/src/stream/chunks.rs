//! The chunks of a file, and which of them stay in memory.
//!
//! A chunk that is to stay no longer is *leaving*: accesses that were planned use it where it is, later ones find it in the
//! ring, and after the last planned one it is dropped.

use crate::memory::Charge;
use std::sync::Arc;

/// A chunk that stays.
#[derive(Debug)]
pub(super) enum Pinned<B> {
    /// It does not stay.
    No,
    /// No step that uses it has been planned yet.
    Absent,
    /// It will be read.
    Queued,
    /// It is there.
    Loaded(Arc<B>),
    /// It could not be read.
    Failed(String),
}

/// What is known of a chunk.
#[derive(Debug)]
struct Chunk<B> {
    length: u64,
    pinned: Pinned<B>,
    /// What the memory of a chunk that stays is charged with.
    charge: Option<Arc<Charge>>,
    /// Planned accesses that find it where it stays and that have neither been given out nor gone by.
    uses: u32,
    /// It is dropped after the last of them.
    leaving: bool,
}

/// All chunks of a file, by index.
#[derive(Debug)]
pub(super) struct Chunks<B> {
    records: Vec<Chunk<B>>,
    /// Bytes of chunks that are leaving and not dropped yet.
    leaving_bytes: u64,
}

impl<B> Chunks<B> {
    /// Nothing is in memory; `lengths` and `charges` are by chunk, a charge for those that stay.
    pub(super) fn new(lengths: &[u64], charges: Vec<Option<Charge>>) -> Self {
        let chunk = |(&length, charge): (&u64, Option<Charge>)| Chunk {
            length,
            pinned: if charge.is_some() { Pinned::Absent } else { Pinned::No },
            charge: charge.map(Arc::new),
            uses: 0,
            leaving: false,
        };
        Chunks { records: lengths.iter().zip(charges).map(chunk).collect(), leaving_bytes: 0 }
    }

    /// The length of a chunk in bytes.
    pub(super) fn length(&self, chunk: u32) -> u64 {
        self.records[chunk as usize].length
    }

    /// Whether a chunk stays, and how far it is.
    pub(super) fn pinned(&self, chunk: u32) -> &Pinned<B> {
        &self.records[chunk as usize].pinned
    }

    /// What the memory of a chunk that stays is charged with.
    pub(super) fn charge(&self, chunk: u32) -> Option<Arc<Charge>> {
        self.records[chunk as usize].charge.clone()
    }

    /// Accesses that are planned from now on find the chunk where it stays.
    pub(super) fn stays(&self, chunk: u32) -> bool {
        let record = &self.records[chunk as usize];
        !record.leaving && !matches!(record.pinned, Pinned::No)
    }

    /// Bytes of chunks that are leaving and not dropped yet.
    pub(super) fn leaving_bytes(&self) -> u64 {
        self.leaving_bytes
    }

    /// An access is planned that finds the chunk where it stays.
    pub(super) fn plan_use(&mut self, chunk: u32) {
        self.records[chunk as usize].uses += 1;
    }

    /// Such an access has been given out or has gone by.
    pub(super) fn settle_use(&mut self, chunk: u32) {
        let record = &mut self.records[chunk as usize];
        record.uses = record.uses.saturating_sub(1);
        self.drop_unused(chunk);
    }

    /// The chunk is to be read to its place; false where it does not stay or has been queued before.
    pub(super) fn queue(&mut self, chunk: u32) -> bool {
        let pinned = &mut self.records[chunk as usize].pinned;
        let absent = matches!(pinned, Pinned::Absent);
        if absent {
            *pinned = Pinned::Queued;
        }
        absent
    }

    /// The chunk has been read to its place, unless it is not to stay any more.
    pub(super) fn finish(&mut self, chunk: u32, result: Result<Arc<B>, String>) {
        let pinned = &mut self.records[chunk as usize].pinned;
        if matches!(pinned, Pinned::Queued) {
            *pinned = match result {
                Ok(bytes) => Pinned::Loaded(bytes),
                Err(reason) => Pinned::Failed(reason),
            };
        }
    }

    /// The chunk is to stay no longer than the accesses that are planned need it.
    pub(super) fn unpin(&mut self, chunk: u32) {
        let record = &mut self.records[chunk as usize];
        if !std::mem::replace(&mut record.leaving, true) {
            self.leaving_bytes += record.length;
        }
        self.drop_unused(chunk);
    }

    /// No access is planned any more; what is not there is to be read anew.
    pub(super) fn forget(&mut self) {
        for chunk in 0..self.records.len() as u32 {
            let record = &mut self.records[chunk as usize];
            record.uses = 0;
            if matches!(record.pinned, Pinned::Queued | Pinned::Failed(_)) {
                record.pinned = Pinned::Absent;
            }
            self.drop_unused(chunk);
        }
    }

    /// Drops a chunk that is leaving and that no planned access uses.
    fn drop_unused(&mut self, chunk: u32) {
        let record = &mut self.records[chunk as usize];
        if record.leaving && record.uses == 0 {
            self.leaving_bytes -= record.length;
            record.pinned = Pinned::No;
            record.charge = None;
            record.leaving = false;
        }
    }
}
