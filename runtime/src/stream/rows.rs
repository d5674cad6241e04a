//! Rows that a step chooses by index: lines of an embedding, matrices of experts.
//!
//! Which ones is known only when the step begins. So only the checksum blocks around them are read, several at once where
//! they are many, and those that were used last are kept within a share of the budget.

use super::source::{ChunkBytes, Source, borders};
use crate::memory::Arena;
use crate::steps::KernelError;
use ipuc_formats::encodings::Layout;
use ipuc_formats::tensor::Storage as _;
use lru::LruCache;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that one read brings, at most, where blocks are no larger.
const READ_BYTES: u64 = 2 << 20;
/// Reads in flight.
const LANES: usize = 4;

/// A row of one part of a weight: its bytes in the extent, and where they go.
struct Row {
    extent: u32,
    bytes: Range<u64>,
    target: usize,
}

/// Consecutive blocks of an extent to be read at once: the extent, and begin and end in it.
type Piece = (u32, u64, u64);

/// Pieces in the order of the file, each with the rows that want it.
type Missing<'a> = BTreeMap<Piece, Vec<&'a Row>>;

/// What a step chose, and what it took.
pub(super) struct Gathered {
    pub(super) bytes: Vec<u8>,
    /// Bytes of the file that were read.
    pub(super) read_bytes: u64,
    /// Bytes whose checksums were verified.
    pub(super) checked_bytes: u64,
}

/// Blocks that were used last.
pub(super) struct KeptRows {
    most_bytes: u64,
    kept: Mutex<Kept>,
}

struct Kept {
    bytes: u64,
    /// By extent and block.
    blocks: LruCache<(u32, usize), Box<[u8]>>,
}

impl KeptRows {
    /// Keeps at most this many bytes.
    pub(super) fn new(most_bytes: u64) -> Self {
        KeptRows { most_bytes, kept: Mutex::new(Kept { bytes: 0, blocks: LruCache::unbounded() }) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows of a plain weight, one after another. `pinned` gives chunks that are in memory.
    pub(super) fn gather(
        &self,
        source: &Source,
        weight: u32,
        rows: &[u64],
        pinned: &dyn Fn(u32) -> Option<Arc<ChunkBytes>>,
    ) -> Result<Gathered, KernelError> {
        let (rows, length) = places(source, weight, rows)?;
        let mut gathered = Gathered { bytes: vec![0; length], read_bytes: 0, checked_bytes: 0 };
        let mut missing = Missing::new();
        for row in &rows {
            let extent = &source.manifest.extents[row.extent as usize];
            if let Some(chunk) = pinned(extent.chunk) {
                let place = extent.range_in(&source.manifest.chunks[extent.chunk as usize]);
                let bytes = &chunk.bytes()[place][row.bytes.start as usize..row.bytes.end as usize];
                gathered.bytes[row.target..row.target + bytes.len()].copy_from_slice(bytes);
                continue;
            }
            for piece in self.take_kept(source, row, &mut gathered.bytes) {
                missing.entry(piece).or_default().push(row);
            }
        }
        if missing.is_empty() {
            return Ok(gathered);
        }
        self.read(source, weight, missing, gathered)
    }

    /// Copies what is kept of a row; gives what is not.
    fn take_kept(&self, source: &Source, row: &Row, target: &mut [u8]) -> Vec<Piece> {
        let extent = &source.manifest.extents[row.extent as usize];
        let block_bytes = u64::from(extent.checksum_block.max(1));
        let (first, around) = extent.blocks_around(row.bytes.clone());
        let mut kept = self.kept();
        let mut missing: Vec<Piece> = Vec::new();
        for (block, start) in (first..).zip((around.start..around.end).step_by(block_bytes as usize)) {
            let end = (start + block_bytes).min(around.end);
            if let Some(found) = kept.blocks.get(&(row.extent, block)) {
                copy(found, start, row, target);
                continue;
            }
            match missing.last_mut() {
                Some((_, begin, last)) if *last == start && end - *begin <= READ_BYTES => *last = end,
                _ => missing.push((row.extent, start, end)),
            }
        }
        missing
    }

    /// Reads what is missing, several pieces at a time, checks it, copies and keeps it.
    fn read(
        &self,
        source: &Source,
        weight: u32,
        missing: Missing<'_>,
        gathered: Gathered,
    ) -> Result<Gathered, KernelError> {
        let longest = missing.keys().map(|&piece| span(source, piece)).map(|span| span.end - span.start).max();
        let longest = longest.unwrap_or(0) as usize;
        let lanes = LANES.min(missing.len());
        let short = || source.failure(weight, "has rows that do not fit in memory");
        let arena = longest.checked_mul(lanes).and_then(Arena::new).ok_or_else(short)?;
        let pieces = Mutex::new(missing.into_iter());
        let gathered = Mutex::new(gathered);
        let read = |lane: usize| -> Result<(), KernelError> {
            let mut buffer = arena.take(lane * longest, longest).ok_or_else(short)?;
            let buffer = buffer.bytes_mut().unwrap_or_default();
            loop {
                let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((piece, rows)) = next else { return Ok(()) };
                let span = span(source, piece);
                let bytes = &mut buffer[..(span.end - span.start) as usize];
                source.read(span.start, bytes, weight)?;
                let content = self.check(source, piece, bytes).map_err(|reason| source.failure(weight, &reason))?;
                let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
                gathered.read_bytes += span.end - span.start;
                gathered.checked_bytes += content.len() as u64;
                rows.iter().for_each(|row| copy(content, piece.1, row, &mut gathered.bytes));
            }
        };
        std::thread::scope(|scope| {
            let read = &read;
            // Where no thread can be started, this one does the work.
            let start = |lane| std::thread::Builder::new().spawn_scoped(scope, move || read(lane)).ok();
            let others: Vec<_> = (1..lanes).filter_map(start).collect();
            let mut result = read(0);
            for other in others {
                let ended = other.join().unwrap_or_else(|_| Err(source.failure(weight, "cannot be read")));
                result = result.and(ended);
            }
            result
        })?;
        Ok(gathered.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// The blocks of a piece in what was read around it; they match their checksums, and are kept.
    fn check<'a>(&self, source: &Source, piece: Piece, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let (index, start, end) = piece;
        let extent = &source.manifest.extents[index as usize];
        let before = (extent.offset + start - span(source, piece).start) as usize;
        let content = &bytes[before..before + (end - start) as usize];
        let block_bytes = extent.checksum_block.max(1) as usize;
        let first = start as usize / block_bytes;
        extent.check_blocks(index, first, content).map_err(|error| error.to_string())?;
        let mut kept = self.kept();
        for (number, block) in (first..).zip(content.chunks(block_bytes)) {
            kept.keep((index, number), block, self.most_bytes);
        }
        Ok(content)
    }
}

impl Kept {
    /// Keeps a block; those that were not used for longest go.
    fn keep(&mut self, place: (u32, usize), block: &[u8], most_bytes: u64) {
        let length = block.len() as u64;
        if length > most_bytes {
            return;
        }
        while self.bytes + length > most_bytes
            && let Some((_, oldest)) = self.blocks.pop_lru()
        {
            self.bytes -= oldest.len() as u64;
        }
        self.bytes += length;
        if let Some(same) = self.blocks.put(place, block.into()) {
            self.bytes -= same.len() as u64;
        }
    }
}

/// What of the file is read for a piece.
fn span(source: &Source, (extent, start, end): Piece) -> Range<u64> {
    let offset = source.manifest.extents[extent as usize].offset;
    borders(&(offset + start..offset + end))
}

/// Where rows `rows` of a weight lie, and how many bytes they are in all.
fn places(source: &Source, weight: u32, rows: &[u64]) -> Result<(Vec<Row>, usize), KernelError> {
    let record = &source.weights[weight as usize];
    let fault = |reason: &str| source.failure(weight, reason);
    let count = record.shape.first().copied().unwrap_or(0);
    let elements = record.shape.iter().skip(1).fold(1u64, |count, &extent| count.saturating_mul(extent));
    let wide = record.dtype.bits() >= 8 && matches!(&record.layout, Layout::Plain { dtype } if *dtype == record.dtype);
    if !wide {
        return Err(fault("has no rows of whole bytes"));
    }
    let width = elements.saturating_mul(record.dtype.bits() as u64 / 8);
    let length = usize::try_from(width).ok().and_then(|width| width.checked_mul(rows.len()));
    let length = length.ok_or_else(|| fault("has rows that do not fit in memory"))?;
    let place = |(index, &row): (usize, &u64)| -> Result<Row, KernelError> {
        let part = record.parts.iter().find(|part| (part.start..part.end).contains(&row));
        let part = part.filter(|_| row < count).ok_or_else(|| fault("a row is out of range"))?;
        let start = (row - part.start) * width;
        Ok(Row { extent: part.extent, bytes: start..start + width, target: index * width as usize })
    };
    Ok((rows.iter().enumerate().map(place).collect::<Result<_, _>>()?, length))
}

/// Copies what `content`, which begins at `begin` in the extent, holds of a row.
fn copy(content: &[u8], begin: u64, row: &Row, target: &mut [u8]) {
    let start = begin.max(row.bytes.start);
    let end = (begin + content.len() as u64).min(row.bytes.end);
    if start < end {
        let place = row.target + (start - row.bytes.start) as usize;
        let from = &content[(start - begin) as usize..(end - begin) as usize];
        target[place..place + from.len()].copy_from_slice(from);
    }
}
