//! Reads, packs, checks and writes the bytes of the stream.
//!
//! Every offset is known before the first byte is read, so that pieces of work (see `work.rs`) are done on all threads and
//! written where they belong. A piece begins when the memory that it takes is free, in order: [`EmitOptions::memory_bytes`]
//! bounds what all of them hold at a time. Which thread does a piece, and how the stream is divided, change no byte.
//!
//! Writing waits for the disk, so that there are more workers than processors: while some wait, others compute.

use crate::emit::blocks::Numbering;
use crate::emit::buffer::Buffer;
use crate::emit::sources::{self, READ_BYTES};
use crate::emit::work::{Filling, Piece, Task, Work};
use crate::emit::{EmitError, EmitOptions, Emitted, Output, Progress};
use crate::ir::{ConstantData, ConstantId, Graph};
use ipuc_formats::encodings::{EncodingError, Layout, PartRange, pack, pack_strings};
use ipuc_formats::model::{ChunkDigest, Manifest, Plan, Superblock, finish, plan};
use ipuc_formats::tensor::Tensor;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Workers beyond one for each processor: about so many wait for the disk at a time.
const WAITING_WORKERS: usize = 4;

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
    Ok(Emitted { manifest, root_hash, file_bytes })
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
    let work = Work::new(graph, plan.manifest(), numbering);
    let workers = rayon::current_num_threads().max(1) + WAITING_WORKERS;
    let piece_bytes = options.memory_bytes / workers as u64;
    let pieces = work.pieces(piece_bytes);
    let needed_bytes = pieces.iter().map(|piece| piece.bytes).max().unwrap_or(0);
    if needed_bytes > options.memory_bytes {
        return Err(EmitError::Memory { memory_bytes: options.memory_bytes, needed_bytes });
    }
    let queue = Queue::new(&pieces, options.memory_bytes);
    let writer = Writer {
        work: &work,
        plan,
        output,
        progress,
        written_bytes: AtomicU64::new(0),
        digests: Mutex::new(vec![None; work.extents.len()]),
        source_hashes: Mutex::new(vec![[0; 32]; work.sources.len()]),
    };
    std::thread::scope(|scope| {
        for _ in 0..workers.min(pieces.len()) {
            scope.spawn(|| {
                let mut buffer = Buffer::default();
                while let Some(taken) = queue.take() {
                    if let Err(error) = writer.perform(&taken.piece.task, &mut buffer) {
                        queue.fail(taken.number, error);
                    }
                    // What a worker keeps between pieces is within its share.
                    if buffer.length() as u64 > piece_bytes {
                        buffer = Buffer::default();
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
    /// The first failure in the order of the stream, whichever thread met it first.
    failure: Option<(usize, EmitError)>,
}

impl<'a> Queue<'a> {
    fn new(pieces: &'a [Piece], free_bytes: u64) -> Self {
        Queue { pieces, state: Mutex::new(QueueState { next: 0, free_bytes, failure: None }), freed: Condvar::new() }
    }

    fn take(&self) -> Option<Taken<'_>> {
        let mut state = lock(&self.state);
        loop {
            let number = state.next;
            let piece = self.pieces.get(number).filter(|_| state.failure.is_none())?;
            if piece.bytes <= state.free_bytes {
                state.free_bytes -= piece.bytes;
                state.next += 1;
                return Some(Taken { queue: self, number, piece });
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

    fn finish(self) -> Result<(), EmitError> {
        into_inner(self.state).failure.map_or(Ok(()), |(_, error)| Err(error))
    }
}

/// A piece that is being done; its memory is given back when this is dropped, by a panic too.
struct Taken<'a> {
    queue: &'a Queue<'a>,
    number: usize,
    piece: &'a Piece,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        lock(&self.queue.state).free_bytes += self.piece.bytes;
        self.queue.freed.notify_all();
    }
}

/// Does pieces of work, on any thread.
struct Writer<'a> {
    work: &'a Work<'a>,
    plan: &'a Plan,
    output: &'a dyn Output,
    progress: &'a dyn Progress,
    written_bytes: AtomicU64,
    digests: Mutex<Vec<Option<ChunkDigest>>>,
    source_hashes: Mutex<Vec<[u8; 32]>>,
}

impl Writer<'_> {
    fn perform(&self, task: &Task, buffer: &mut Buffer) -> Result<(), EmitError> {
        match task {
            Task::Hash(number) => {
                let hash = sources::hash(self.work.graph, self.work.sources[*number], buffer.of_length(READ_BYTES)?)?;
                lock(&self.source_hashes)[*number] = hash;
                Ok(())
            }
            Task::Chunks(chunks) => {
                let mut loaded = HashMap::new();
                chunks.clone().try_for_each(|chunk| self.fill(chunk, &mut loaded, buffer))
            }
            Task::Panels(chunks) => self.fill_panels(chunks, buffer),
        }
    }

    /// Fill one chunk, extent by extent, and write it.
    fn fill(
        &self,
        chunk: usize,
        loaded: &mut HashMap<ConstantId, Tensor>,
        buffer: &mut Buffer,
    ) -> Result<(), EmitError> {
        let manifest = self.work.manifest;
        let record = manifest.chunks[chunk];
        let buffer = buffer.of_length(record.length as usize)?;
        let extents = self.work.extents[chunk].clone();
        let filled: Vec<Filling> = extents.clone().filter_map(|extent| self.work.fillings[extent]).collect();
        loaded.retain(|constant, _| filled.iter().any(|filling| filling.constant == *constant));
        let mut end = 0;
        for index in extents {
            let extent = &manifest.extents[index];
            let start = (extent.offset - record.offset) as usize;
            buffer[end..start].fill(0);
            end = start + extent.length as usize;
            match &self.work.fillings[index] {
                Some(filling) => {
                    if self.work.is_loaded(filling.constant) && !loaded.contains_key(&filling.constant) {
                        loaded.insert(filling.constant, self.work.graph.load_constant(filling.constant)?);
                    }
                    self.pack(filling, filling.range, loaded.get(&filling.constant), &mut buffer[start..end])?;
                }
                None => buffer[start..end].fill(0),
            }
        }
        buffer[end..].fill(0);
        self.write(chunk, buffer)
    }

    /// Fill chunks that hold consecutive panels of one weight, and write them.
    fn fill_panels(&self, chunks: &Range<usize>, buffer: &mut Buffer) -> Result<(), EmitError> {
        let manifest = self.work.manifest;
        let extents = chunks.clone().flat_map(|chunk| self.work.extents[chunk].clone());
        let (mut range, mut packed_bytes): (Option<(Filling, PartRange)>, usize) = (None, 0);
        for index in extents {
            packed_bytes += manifest.extents[index].length as usize;
            let Some(filling) = self.work.fillings[index] else { continue };
            let (_, range) = range.get_or_insert((filling, filling.range));
            range.end = filling.range.end;
        }
        let Some((filling, range)) = range else { return Ok(()) };
        let total_bytes = chunks.clone().map(|chunk| manifest.chunks[chunk].length as usize).sum();
        let buffer = buffer.of_length(total_bytes)?;
        self.pack(&filling, range, None, &mut buffer[..packed_bytes])?;
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
        let mut start = 0;
        chunks.clone().try_for_each(|chunk| {
            let end = start + manifest.chunks[chunk].length as usize;
            let written = self.write(chunk, &buffer[start..end]);
            start = end;
            written
        })
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

    /// Pack a range of a weight, out of memory where its tensor is there, else out of its file.
    fn pack(
        &self,
        filling: &Filling,
        range: PartRange,
        loaded: Option<&Tensor>,
        target: &mut [u8],
    ) -> Result<(), EmitError> {
        let record = &self.work.manifest.weights[filling.weight];
        let constant = self.work.graph.constant(filling.constant);
        let failure = |error| EmitError::Encoding { weight: constant.label().to_string(), error };
        let in_memory = loaded.or_else(|| constant.tensor());
        if record.layout == Layout::Strings {
            let strings = in_memory.map(Tensor::strings).unwrap_or(Ok(&[])).map_err(EncodingError::from);
            target.copy_from_slice(&strings.and_then(pack_strings).map_err(failure)?);
            return Ok(());
        }
        let mut unreadable = None;
        let mut read = |offset: u64, buffer: &mut [u8]| -> io::Result<()> {
            match (in_memory, &constant.data) {
                (Some(tensor), _) => {
                    let start = usize::try_from(offset).map_err(io::Error::other)?;
                    let range = start..start + buffer.len();
                    buffer.copy_from_slice(tensor.bytes().get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
                    Ok(())
                }
                (None, ConstantData::Stored(stored)) => {
                    self.work.graph.read_stored(stored, offset, buffer).map_err(|error| {
                        unreadable = Some(error);
                        io::ErrorKind::Other.into()
                    })
                }
                (None, ConstantData::Tensor(_) | ConstantData::Recipe { .. }) => Err(io::ErrorKind::NotFound.into()),
            }
        };
        let packed = pack(&record.layout, constant.dtype, &record.shape, range, &mut read, target);
        match (packed, unreadable) {
            (_, Some(error)) => Err(error.into()),
            (packed, None) => packed.map_err(failure),
        }
    }
}
