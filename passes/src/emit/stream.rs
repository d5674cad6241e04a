//! Reads, packs, checks and writes the bytes of the stream.
//!
//! Every offset is known before the first byte is read, so that pieces of work (see `division.rs`) are done on all threads
//! and written where they belong. A piece begins when the memory that it takes is free, in order:
//! [`EmitOptions::memory_bytes`] bounds what all of them hold at a time. Which thread does a piece, and how the stream is
//! divided, change no byte.
//!
//! Writing waits for the disk, so that there are more workers than processors: while some wait, others compute.

use crate::emit::blocks::Numbering;
use crate::emit::buffer::Buffer;
use crate::emit::division::{Division, Piece, Room, Task, divide};
use crate::emit::reader::{PlaneError, Reader, planes};
use crate::emit::sources::SourceHash;
use crate::emit::work::{Filling, Work};
use crate::emit::{EmitError, EmitOptions, Emitted, Output, Progress};
use crate::ir::{ConstantId, Graph};
use crate::rounding::Region;
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{EncodingError, PartRange, pack_strings};
use ipuc_formats::model::{ChunkDigest, Manifest, Plan, Superblock, finish, plan};
use ipuc_formats::tensor::Tensor;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Workers beyond one for each processor: about so many wait for the disk at a time.
const WAITING_WORKERS: usize = 4;
/// The same where pieces are whole matrices, which compute for longer between writes.
const WAITING_WHOLE: usize = 2;

/// Write the stream, then the manifest with its checksums.
pub(super) fn write(
    graph: &Graph,
    manifest: Manifest,
    numbering: &Numbering,
    options: &EmitOptions,
    output: &dyn Output,
    progress: &dyn Progress,
) -> Result<Emitted, EmitError> {
    let mut plan = plan(manifest, options.chunk_bytes)?;
    output.reserve(plan.total_length()).map_err(|error| EmitError::Write { offset: 0, error })?;
    let written = write_chunks(graph, &plan, numbering, options, output, progress)?;
    let mut weights_hash = blake3::Hasher::new();
    written.source_hashes.iter().for_each(|hash| {
        weights_hash.update(hash);
    });
    plan.set_weights_hash(*weights_hash.finalize().as_bytes());
    let file_bytes = plan.total_length();
    let (head, manifest) = finish(plan, &written.digests)?;
    output.write_at(0, &head).map_err(|error| EmitError::Write { offset: 0, error })?;
    let root_hash = Superblock::from_bytes(&head, None)?.root_hash;
    let by_budget = |&id: &ConstantId| graph.constant(id).encoding.as_ref().is_some_and(|chosen| chosen.by_budget);
    let numbered = numbering.constants.iter().enumerate();
    let budgeted = numbered.filter(|(_, id)| by_budget(id)).map(|(number, _)| number).collect();
    Ok(Emitted { manifest, root_hash, file_bytes, budgeted })
}

/// What is known once the chunks are written.
struct Written {
    digests: Vec<ChunkDigest>,
    source_hashes: Vec<[u8; 32]>,
}

fn write_chunks(
    graph: &Graph,
    plan: &Plan,
    numbering: &Numbering,
    options: &EmitOptions,
    output: &dyn Output,
    progress: &dyn Progress,
) -> Result<Written, EmitError> {
    let processors = rayon::current_num_threads().max(1);
    let room = Room {
        run_bytes: options.memory_bytes / (processors + WAITING_WORKERS) as u64,
        whole_bytes: options.memory_bytes / (processors + WAITING_WHOLE) as u64,
    };
    let work = Work::new(graph, plan.manifest(), numbering, room.whole_bytes);
    let Division { pieces, hashed } = divide(&work, room);
    let needed_bytes = pieces.iter().map(|piece| piece.bytes).max().unwrap_or(0);
    let most_bytes = options.memory_bytes.max(options.piece_bytes);
    if needed_bytes > most_bytes {
        return Err(EmitError::Memory { memory_bytes: most_bytes, needed_bytes });
    }
    let queue = Queue::new(&pieces, options.memory_bytes.max(needed_bytes));
    let writer = Writer {
        work: &work,
        hashed: &hashed,
        plan,
        output,
        progress,
        written_bytes: AtomicU64::new(0),
        digests: Mutex::new(vec![None; work.extents.len()]),
        source_hashes: Mutex::new(vec![[0; 32]; work.sources.len()]),
    };
    std::thread::scope(|scope| {
        for _ in 0..(processors + WAITING_WORKERS).min(pieces.len()) {
            scope.spawn(|| {
                while let Some(mut taken) = queue.take() {
                    if let Err(error) = writer.perform(&mut taken) {
                        queue.fail(taken.number, error);
                    }
                }
            });
        }
    });
    queue.finish()?;
    let digests = into_inner(writer.digests).into_iter().flatten().collect();
    Ok(Written { digests, source_hashes: into_inner(writer.source_hashes) })
}

/// A thread that panicked has left nothing half-written in these.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Hands out pieces in order, each when the memory that it takes is free.
struct Queue<'a> {
    pieces: &'a [Piece],
    state: Mutex<QueueState>,
    freed: Condvar,
}

struct QueueState {
    next: usize,
    free_bytes: u64,
    /// Of earlier pieces, the shortest first; together not more than what is free.
    buffers: Vec<Buffer>,
    /// The first failure in the order of the stream, whichever thread met it first.
    failure: Option<(usize, EmitError)>,
}

impl<'a> Queue<'a> {
    fn new(pieces: &'a [Piece], free_bytes: u64) -> Self {
        let state = QueueState { next: 0, free_bytes, buffers: Vec::new(), failure: None };
        Queue { pieces, state: Mutex::new(state), freed: Condvar::new() }
    }

    fn take(&self) -> Option<Taken<'_>> {
        let mut state = lock(&self.state);
        loop {
            let number = state.next;
            let piece = self.pieces.get(number).filter(|_| state.failure.is_none())?;
            if piece.bytes <= state.free_bytes {
                state.free_bytes -= piece.bytes;
                state.next += 1;
                let buffer = state.buffer(piece.buffer_bytes);
                return Some(Taken { queue: self, number, piece, buffer });
            }
            // Whoever holds the memory gives it back without waiting for anybody.
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn fail(&self, number: usize, error: EmitError) {
        let mut state = lock(&self.state);
        if state.failure.as_ref().is_none_or(|(earlier, _)| number < *earlier) {
            state.failure = Some((number, error));
        }
    }

    /// Whether what a piece does is for nothing.
    fn has_failed_before(&self, number: usize) -> bool {
        lock(&self.state).failure.as_ref().is_some_and(|(failed, _)| *failed < number)
    }

    fn finish(self) -> Result<(), EmitError> {
        into_inner(self.state).failure.map_or(Ok(()), |(_, error)| Err(error))
    }
}

impl QueueState {
    /// The longest buffer for a piece that needs no longer one; others go where its memory is to come from them.
    fn buffer(&mut self, needed_bytes: u64) -> Buffer {
        let fitting = self.buffers.iter().rposition(|buffer| buffer.length() as u64 <= needed_bytes);
        let taken = fitting.map(|at| self.buffers.remove(at)).unwrap_or_default();
        while self.buffers.iter().map(|buffer| buffer.length() as u64).sum::<u64>() > self.free_bytes {
            self.buffers.pop();
        }
        taken
    }

    fn keep(&mut self, buffer: Buffer) {
        let at = self.buffers.partition_point(|shorter| shorter.length() < buffer.length());
        self.buffers.insert(at, buffer);
    }
}

/// A piece that is being done; its memory is given back when this is dropped, by a panic too.
struct Taken<'a> {
    queue: &'a Queue<'a>,
    number: usize,
    piece: &'a Piece,
    buffer: Buffer,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.state);
        state.free_bytes += self.piece.bytes;
        state.keep(std::mem::take(&mut self.buffer));
        drop(state);
        self.queue.freed.notify_all();
    }
}

/// What a piece knows of the tensors that it packs.
#[derive(Default)]
struct Tensors {
    /// Those that are loaded for it.
    loaded: HashMap<ConstantId, Tensor>,
    /// Planes of the weights that it packs.
    planes: HashMap<usize, Vec<Tensor>>,
    /// Of the one that is being read, where that gives its hash.
    hash: SourceHash,
}

/// Does pieces of work, on any thread.
struct Writer<'a> {
    work: &'a Work<'a>,
    /// Source tensors that are hashed while weights are packed.
    hashed: &'a [Option<usize>],
    plan: &'a Plan,
    output: &'a dyn Output,
    progress: &'a dyn Progress,
    written_bytes: AtomicU64,
    digests: Mutex<Vec<Option<ChunkDigest>>>,
    source_hashes: Mutex<Vec<[u8; 32]>>,
}

impl Writer<'_> {
    fn perform(&self, taken: &mut Taken<'_>) -> Result<(), EmitError> {
        let Taken { queue, number, piece, buffer } = taken;
        let goes_on = |_: &usize| !queue.has_failed_before(*number);
        let mut tensors = Tensors::default();
        match &piece.task {
            Task::Hash(source) => self.finish_hash(*source, SourceHash::default()),
            Task::Chunks(chunks) => {
                chunks.clone().take_while(goes_on).try_for_each(|chunk| self.fill(chunk, &mut tensors, buffer))
            }
            Task::Panels(chunks) => {
                let mut rest = &*self.fill_panels(chunks, &mut tensors, buffer)?;
                chunks.clone().take_while(goes_on).try_for_each(|chunk| {
                    let (bytes, others) = rest.split_at(self.work.chunk_bytes(chunk) as usize);
                    rest = others;
                    self.write(chunk, bytes)
                })
            }
        }
    }

    fn finish_hash(&self, source: usize, hash: SourceHash) -> Result<(), EmitError> {
        let hash = hash.finish(self.work.graph, self.work.sources[source])?;
        lock(&self.source_hashes)[source] = hash;
        Ok(())
    }

    /// Fill one chunk, extent by extent, and write it.
    fn fill(&self, chunk: usize, tensors: &mut Tensors, buffer: &mut Buffer) -> Result<(), EmitError> {
        let manifest = self.work.manifest;
        let record = manifest.chunks[chunk];
        let buffer = buffer.of_length(record.length as usize)?;
        let extents = self.work.extents[chunk].clone();
        let filled: Vec<Filling> = extents.clone().filter_map(|extent| self.work.fillings[extent]).collect();
        let needed: Vec<ConstantId> = filled.iter().filter_map(|filling| self.work.loaded(filling)).collect();
        tensors.loaded.retain(|constant, _| needed.contains(constant));
        tensors.planes.retain(|weight, _| filled.iter().any(|filling| filling.weight == *weight));
        let mut end = 0;
        for index in extents {
            let extent = &manifest.extents[index];
            let start = (extent.offset - record.offset) as usize;
            buffer[end..start].fill(0);
            end = start + extent.length as usize;
            match &self.work.fillings[index] {
                Some(filling) => {
                    if let Some(constant) = self.work.loaded(filling)
                        && !tensors.loaded.contains_key(&constant)
                    {
                        tensors.loaded.insert(constant, self.work.graph.load_constant(constant)?);
                    }
                    self.pack(filling, filling.range, tensors, &mut buffer[start..end])?;
                }
                None => buffer[start..end].fill(0),
            }
        }
        buffer[end..].fill(0);
        self.write(chunk, buffer)
    }

    /// Fill chunks that hold consecutive panels of one weight; gives their bytes.
    fn fill_panels<'b>(
        &self,
        chunks: &Range<usize>,
        tensors: &mut Tensors,
        buffer: &'b mut Buffer,
    ) -> Result<&'b mut [u8], EmitError> {
        let manifest = self.work.manifest;
        let extents = chunks.clone().flat_map(|chunk| self.work.extents[chunk].clone());
        let (mut range, mut packed_bytes): (Option<(Filling, PartRange)>, usize) = (None, 0);
        for index in extents {
            packed_bytes += manifest.extents[index].length as usize;
            let Some(filling) = self.work.fillings[index] else { continue };
            let (_, range) = range.get_or_insert((filling, filling.range));
            range.end = filling.range.end;
        }
        let Some((filling, range)) = range else { return Ok(&mut []) };
        let total_bytes = self.work.bytes(chunks) as usize;
        let buffer = buffer.of_length(total_bytes)?;
        self.pack(&filling, range, tensors, &mut buffer[..packed_bytes])?;
        // Move the parts to where their chunks begin, the last one first, and fill up what is between them.
        let (mut packed_end, mut chunk_end) = (packed_bytes, total_bytes);
        for chunk in chunks.clone().rev() {
            let length: usize =
                self.work.extents[chunk].clone().map(|index| manifest.extents[index].length as usize).sum();
            let (from, to) = (packed_end - length, chunk_end - manifest.chunks[chunk].length as usize);
            if from != to {
                buffer.copy_within(from..packed_end, to);
            }
            buffer[to + length..chunk_end].fill(0);
            (packed_end, chunk_end) = (from, to);
        }
        Ok(buffer)
    }

    fn write(&self, chunk: usize, bytes: &[u8]) -> Result<(), EmitError> {
        let digest = self.plan.digest(chunk as u32, bytes)?;
        let offset = self.work.manifest.chunks[chunk].offset;
        self.output.write_at(offset, bytes).map_err(|error| EmitError::Write { offset, error })?;
        lock(&self.digests)[chunk] = Some(digest);
        let length = bytes.len() as u64;
        let written_bytes = self.written_bytes.fetch_add(length, Ordering::Relaxed) + length;
        self.progress.written(written_bytes, self.plan.total_length() - self.plan.stream_offset());
        Ok(())
    }

    /// Pack a range of a weight, out of memory where its tensor is there, else out of its file; with the last range the hash
    /// of a tensor that is hashed meanwhile is known.
    fn pack(
        &self,
        filling: &Filling,
        range: PartRange,
        tensors: &mut Tensors,
        target: &mut [u8],
    ) -> Result<(), EmitError> {
        let record = &self.work.manifest.weights[filling.weight];
        let constant = self.work.graph.constant(filling.constant);
        let failure = |error| EmitError::Encoding { weight: constant.label().to_string(), error };
        if !self.work.planes(filling.weight).is_empty() && !tensors.planes.contains_key(&filling.weight) {
            let planes = planes(self.work, filling.weight).map_err(|error| match error {
                PlaneError::Constant(error) => EmitError::Constant(error),
                PlaneError::Encoding(error) => failure(error),
            })?;
            tensors.planes.insert(filling.weight, planes);
        }
        let Tensors { loaded, planes, hash } = tensors;
        let whole = self.work.loaded(filling).and_then(|constant| loaded.get(&constant));
        let in_memory = whole.or_else(|| constant.tensor());
        if constant.dtype == DType::String {
            let strings = in_memory.map(Tensor::strings).unwrap_or(Ok(&[])).map_err(EncodingError::from);
            target.copy_from_slice(&strings.and_then(pack_strings).map_err(failure)?);
            return Ok(());
        }
        let mut reader = Reader {
            graph: self.work.graph,
            constant: filling.constant,
            dtype: self.work.graph.constant(self.work.made_of[filling.weight][0]).dtype,
            in_memory,
            rounded: self.rounded(filling, range, whole)?,
            roles: record.encoding.encoding().planes().iter().map(|plane| plane.role).collect(),
            planes: planes.get(&filling.weight).map_or(&[], Vec::as_slice),
            hash: self.hashed[filling.weight].is_some().then_some(&mut *hash),
            failure: None,
        };
        let packed = record.encoding.pack(record.logical(), range, &mut reader, target);
        match (packed, reader.failure) {
            (_, Some(error)) => return Err(error.into()),
            (packed, None) => packed.map_err(failure)?,
        }
        let is_last = record
            .parts
            .last()
            .map(|part| part.range())
            .is_some_and(|last| (last.end, last.inputs_end) == (range.end, range.inputs_end));
        match self.hashed[filling.weight] {
            Some(source) if is_last => self.finish_hash(source, std::mem::take(hash)),
            Some(_) | None => Ok(()),
        }
    }
}

impl Writer<'_> {
    /// The codes and parameters of a part of a weight that is rounded while it is packed.
    fn rounded(
        &self,
        filling: &Filling,
        range: PartRange,
        whole: Option<&Tensor>,
    ) -> Result<Option<Region>, EmitError> {
        let Some((rounded, scheme)) = self.work.scheme(filling.weight) else { return Ok(None) };
        let outputs = self.work.outputs(filling, &scheme, range);
        Ok(Some(self.work.graph.rounded_region(rounded, scheme, outputs, whole)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_kept_within_what_is_free() {
        let piece =
            |kibibytes: u64| Piece { task: Task::Hash(0), bytes: kibibytes << 10, buffer_bytes: (kibibytes - 4) << 10 };
        let pieces = [100, 60, 60, 20, 100, 94].map(piece);
        let queue = Queue::new(&pieces, 160 << 10);
        let take = |length: usize| {
            let mut taken = queue.take().unwrap();
            let kept = taken.buffer.length() >> 10;
            taken.buffer.of_length(length << 10).unwrap();
            (taken, kept)
        };
        let kept = || lock(&queue.state).buffers.iter().map(|buffer| buffer.length() >> 10).collect::<Vec<_>>();
        let (first, second) = (take(96), take(56));
        assert_eq!((first.1, second.1), (0, 0));
        drop(first);
        drop(second);
        assert_eq!(kept(), [56, 96]);
        // No piece gets a longer buffer than it needs.
        let (third, fourth) = (take(50), take(20));
        assert_eq!((third.1, fourth.1, kept()), (56, 0, vec![]), "96 KiB are more than what is free");
        drop(third);
        let fifth = take(90);
        assert_eq!((fifth.1, kept()), (56, vec![]));
        drop((fifth, fourth));
        assert_eq!((take(80).1, kept()), (90, vec![20]));
        assert!(queue.take().is_none());
    }
}
