//! What a step picks by index: rows of an embedding, matrices of experts.
//!
//! Which ones is known only when the step begins. So only the checksum blocks around them are read, several at once where
//! they are many, and those that were used last are cached within a share of the budget.

use super::source::{ChunkBytes, Heap, Source, heap};
use crate::steps::{KernelError, PartBytes};
use ipuc_formats::encodings::{EncodingError, PartBytesRange, Pick};
use ipuc_kernels::threads::each;
use lru::LruCache;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that one read brings, at most, where blocks are no larger.
const READ_BYTES: u64 = 2 << 20;

/// Units that are more than the row in them, as panels are, are gathered together up to this many bytes.
pub(super) const UNITS_AT_ONCE_BYTES: u64 = 256 << 10;

/// Bytes of a unit that holds a row: their place in an extent, and where they go.
struct Row {
    extent: u32,
    bytes: Range<u64>,
    target: usize,
}

/// Consecutive blocks of an extent to be read at once: the extent, and begin and end in it.
type Piece = (u32, u64, u64);

/// What a step chose, and what it took.
pub(super) struct Gathered {
    /// Stored bytes of the units.
    bytes: Heap,
    /// Bytes of all units that hold what was chosen, and what of them was in memory.
    pub(super) chosen_bytes: u64,
    pub(super) found_bytes: u64,
    /// Bytes of the file that were read.
    pub(super) read_bytes: u64,
    /// Bytes whose checksums were verified.
    pub(super) checked_bytes: u64,
}

/// Checksum blocks that were used last.
pub(super) struct BlockCache {
    cached: Mutex<Cached>,
}

struct Cached {
    most_bytes: u64,
    bytes: u64,
    /// By extent and block.
    blocks: LruCache<(u32, usize), Box<[u8]>>,
}

impl BlockCache {
    /// Keeps at most this many bytes.
    pub(super) fn new(most_bytes: u64) -> Self {
        BlockCache { cached: Mutex::new(Cached { most_bytes, bytes: 0, blocks: LruCache::unbounded() }) }
    }

    /// Keeps at most this many bytes from now on.
    pub(super) fn set_most_bytes(&self, most_bytes: u64) {
        let mut cached = self.cached();
        cached.most_bytes = most_bytes;
        cached.evict_to(most_bytes);
    }

    fn cached(&self) -> MutexGuard<'_, Cached> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the canonical bytes of rows of a weight, one after another. `pinned` gives chunks that are in memory, `report` is told
    /// what each gathering took.
    pub(super) fn rows(
        &self,
        source: &Source,
        weight: u32,
        (rows, target): (&[u64], &mut [u8]),
        pinned: &dyn Fn(u32) -> Option<Arc<ChunkBytes>>,
        report: &dyn Fn(&Gathered),
    ) -> Result<(), KernelError> {
        let record = &source.weights[weight as usize];
        let failure = |error: EncodingError| source.failure(weight, &error.to_string());
        let is_canonical = record.encoding.encoding().is_canonical(record.logical());
        let at_once = match rows.first() {
            Some(&row) if !is_canonical => {
                let unit_bytes = record.locate(Pick::Row(row)).map_err(failure)?.length_bytes();
                (UNITS_AT_ONCE_BYTES / unit_bytes.max(1)) as usize
            }
            Some(_) | None => rows.len(),
        };
        let mut rest = target;
        for rows in rows.chunks(at_once.max(1)) {
            let places = Places::new(source, weight, rows.iter().map(|&row| Pick::Row(row)))?;
            let gathered = self.gather(source, weight, &places, pinned)?;
            report(&gathered);
            let units = |at: usize| Ok::<_, EncodingError>(&gathered.bytes[places.of_picks[at].clone()]);
            let decoded = if is_canonical { None } else { Some(record.decode_rows(rows, units).map_err(failure)?) };
            let bytes = decoded.as_deref().unwrap_or(&gathered.bytes);
            let own = rest.split_off_mut(..bytes.len());
            own.ok_or_else(|| another_size(source, weight))?.copy_from_slice(bytes);
        }
        if rest.is_empty() { Ok(()) } else { Err(another_size(source, weight)) }
    }

    /// The stored bytes of matrices of a weight, of each the pieces in which it lies. `pinned` gives chunks that are in memory.
    pub(super) fn matrices(
        &self,
        source: &Source,
        weight: u32,
        matrices: &[u64],
        pinned: &dyn Fn(u32) -> Option<Arc<ChunkBytes>>,
    ) -> Result<(Vec<Vec<PartBytes>>, Gathered), KernelError> {
        let mut rows = Vec::with_capacity(matrices.len());
        for &matrix in matrices {
            rows.push(Places::new(source, weight, std::iter::once(Pick::Group(matrix)))?.rows);
        }
        self.held(source, weight, rows, pinned)
    }

    /// Stored bytes that lie anywhere in the parts of a weight. `pinned` gives chunks that are in memory.
    pub(super) fn pieces(
        &self,
        source: &Source,
        weight: u32,
        pieces: &[PartBytesRange],
        pinned: &dyn Fn(u32) -> Option<Arc<ChunkBytes>>,
    ) -> Result<(Vec<PartBytes>, Gathered), KernelError> {
        let record = &source.weights[weight as usize];
        let row = |piece: &PartBytesRange| {
            let part = record.parts.get(piece.part).ok_or_else(|| source.failure(weight, "a part is missing"))?;
            Ok(Row { extent: part.extent, bytes: piece.bytes.clone(), target: 0 })
        };
        let rows = pieces.iter().map(row).collect::<Result<Vec<_>, KernelError>>()?;
        let (pieces, gathered) = self.held(source, weight, vec![rows], pinned)?;
        Ok((pieces.into_iter().flatten().collect(), gathered))
    }

    /// The stored bytes of several things, each of which lies in some pieces.
    fn held(
        &self,
        source: &Source,
        weight: u32,
        picked: Vec<Vec<Row>>,
        pinned: &dyn Fn(u32) -> Option<Arc<ChunkBytes>>,
    ) -> Result<(Vec<Vec<PartBytes>>, Gathered), KernelError> {
        let mut copied = Places::default();
        let (mut found, mut found_bytes) = (Vec::with_capacity(picked.len()), 0);
        for rows in picked {
            let mut pieces = Vec::with_capacity(rows.len());
            for row in rows {
                let extent = &source.manifest.extents[row.extent as usize];
                let bytes = match pinned(extent.chunk) {
                    Some(chunk) => {
                        let start = extent.range_in(&source.manifest.chunks[extent.chunk as usize]).start;
                        let range = start + row.bytes.start as usize..start + row.bytes.end as usize;
                        found_bytes += range.len() as u64;
                        Ok(OfMatrix { bytes: chunk, range })
                    }
                    None => Err(copied.push(row.extent, row.bytes.clone()).ok_or_else(|| too_large(source, weight))?),
                };
                pieces.push(bytes);
            }
            found.push(pieces);
        }
        let mut gathered = self.gather(source, weight, &copied, pinned)?;
        gathered.chosen_bytes += found_bytes;
        gathered.found_bytes += found_bytes;
        let bytes: Arc<ChunkBytes> = Arc::new(Box::new(std::mem::take(&mut gathered.bytes)));
        let piece = |piece: Result<OfMatrix, Range<usize>>| {
            let copy = |range| OfMatrix { bytes: bytes.clone(), range };
            PartBytes::new(Arc::new(piece.unwrap_or_else(copy)))
        };
        let matrices = found.into_iter().map(|pieces| pieces.into_iter().map(piece).collect()).collect();
        Ok((matrices, gathered))
    }

    /// The stored bytes of picked units.
    fn gather(
        &self,
        source: &Source,
        weight: u32,
        places: &Places,
        pinned: &dyn Fn(u32) -> Option<Arc<ChunkBytes>>,
    ) -> Result<Gathered, KernelError> {
        let bytes =
            heap(places.length).ok_or_else(|| source.failure(weight, "there is no memory for what is chosen"))?;
        let mut gathered =
            Gathered { bytes, chosen_bytes: places.length as u64, found_bytes: 0, read_bytes: 0, checked_bytes: 0 };
        let mut missing: BTreeMap<Piece, Vec<&Row>> = BTreeMap::new();
        for row in &places.rows {
            let extent = &source.manifest.extents[row.extent as usize];
            if let Some(chunk) = pinned(extent.chunk) {
                let place = extent.range_in(&source.manifest.chunks[extent.chunk as usize]);
                gathered.found_bytes += copy(&chunk.bytes()[place], 0, row, &mut gathered.bytes);
                continue;
            }
            for piece in self.take_cached(source, row, &mut gathered) {
                missing.entry(piece).or_default().push(row);
            }
        }
        if missing.is_empty() { Ok(gathered) } else { self.read(source, weight, missing, gathered) }
    }

    /// Copies what is cached of a row; gives what is not.
    fn take_cached(&self, source: &Source, row: &Row, gathered: &mut Gathered) -> Vec<Piece> {
        let extent = &source.manifest.extents[row.extent as usize];
        let block_bytes = u64::from(extent.checksum_block.max(1));
        let (first, around) = extent.blocks_around(row.bytes.clone());
        let mut cached = self.cached();
        let mut missing: Vec<Piece> = Vec::new();
        for (block, start) in (first..).zip((around.start..around.end).step_by(block_bytes as usize)) {
            let end = (start + block_bytes).min(around.end);
            if let Some(found) = cached.blocks.get(&(row.extent, block)) {
                gathered.found_bytes += copy(found, start, row, &mut gathered.bytes);
                continue;
            }
            match missing.last_mut() {
                Some((_, begin, last)) if *last == start && end - *begin <= READ_BYTES => *last = end,
                _ => missing.push((row.extent, start, end)),
            }
        }
        missing
    }

    /// Reads what is missing, a piece on each thread, checks it, copies it to the rows that want it and caches it.
    fn read(
        &self,
        source: &Source,
        weight: u32,
        missing: BTreeMap<Piece, Vec<&Row>>,
        gathered: Gathered,
    ) -> Result<Gathered, KernelError> {
        let (gathered, failed) = (Mutex::new(gathered), Mutex::new(None));
        let read = |((index, start, end), rows): (Piece, Vec<&Row>)| -> Result<(), KernelError> {
            let extent = &source.manifest.extents[index as usize];
            let (bytes, inside) = source.read_around(extent.offset + start..extent.offset + end, weight)?;
            let content = &bytes[inside];
            let block_bytes = extent.checksum_block.max(1) as usize;
            let first = start as usize / block_bytes;
            let checked = extent.check_blocks(index, first, content);
            checked.map_err(|error| source.failure(weight, &error.to_string()))?;
            let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
            gathered.read_bytes += bytes.len() as u64;
            gathered.checked_bytes += content.len() as u64;
            for row in rows {
                copy(content, start, row, &mut gathered.bytes);
            }
            drop(gathered);
            let mut cached = self.cached();
            let blocks = (first..).zip(content.chunks(block_bytes));
            blocks.for_each(|(block, content)| cached.keep((index, block), content));
            Ok(())
        };
        each(missing.into_iter().collect(), |piece| {
            let first = || failed.lock().unwrap_or_else(PoisonError::into_inner);
            if first().is_none()
                && let Err(error) = read(piece)
            {
                first().get_or_insert(error);
            }
        });
        if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        Ok(gathered.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Cached {
    /// Drops what was not used for longest until at most this many bytes are kept.
    fn evict_to(&mut self, most_bytes: u64) {
        while self.bytes > most_bytes
            && let Some((_, oldest)) = self.blocks.pop_lru()
        {
            self.bytes -= oldest.len() as u64;
        }
    }

    /// Keeps a block; those that were not used for longest go.
    fn keep(&mut self, place: (u32, usize), block: &[u8]) {
        let length = block.len() as u64;
        let Some(others) = self.most_bytes.checked_sub(length) else { return };
        self.evict_to(others);
        self.bytes += length;
        if let Some(same) = self.blocks.put(place, block.into()) {
            self.bytes -= same.len() as u64;
        }
    }
}

/// Bytes of a matrix: in a chunk that stays, or among those that were gathered.
struct OfMatrix {
    bytes: Arc<ChunkBytes>,
    range: Range<usize>,
}

impl Deref for OfMatrix {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes.bytes()[self.range.clone()]
    }
}

fn too_large(source: &Source, weight: u32) -> KernelError {
    source.failure(weight, "has parts chosen that do not fit in memory")
}

fn another_size(source: &Source, weight: u32) -> KernelError {
    source.failure(weight, "has rows of another size")
}

/// Where what is chosen lies.
#[derive(Default)]
struct Places {
    /// Pieces of the units that hold it, each unit once, in the order in which they are gathered.
    rows: Vec<Row>,
    /// The units of each pick among the bytes that are gathered.
    of_picks: Vec<Range<usize>>,
    /// Bytes of all units.
    length: usize,
}

impl Places {
    fn new(source: &Source, weight: u32, picks: impl Iterator<Item = Pick>) -> Result<Self, KernelError> {
        let record = &source.weights[weight as usize];
        let canonical = record.encoding.encoding().is_canonical(record.logical());
        let mut places = Places::default();
        let mut known: HashMap<u64, Range<usize>> = HashMap::new();
        for pick in picks {
            let place = record.locate(pick).map_err(|error| source.failure(weight, &error.to_string()))?;
            // Rows that are copied as they are lie one after another, however often they are chosen.
            if let Some(range) = known.get(&place.units.start).filter(|_| !canonical) {
                places.of_picks.push(range.clone());
                continue;
            }
            let start = places.length;
            for piece in place.bytes {
                let pushed = places.push(record.parts[piece.part].extent, piece.bytes);
                pushed.ok_or_else(|| too_large(source, weight))?;
            }
            known.insert(place.units.start, start..places.length);
            places.of_picks.push(start..places.length);
        }
        Ok(places)
    }

    /// Gather a piece behind the others: where it will lie; `None` where no address does.
    fn push(&mut self, extent: u32, bytes: Range<u64>) -> Option<Range<usize>> {
        let target = self.length;
        self.length = target.checked_add(usize::try_from(bytes.end - bytes.start).ok()?)?;
        self.rows.push(Row { extent, bytes, target });
        Some(target..self.length)
    }
}

/// Copies what `content`, which begins at `begin` in the extent, holds of a row; gives how many bytes that are.
fn copy(content: &[u8], begin: u64, row: &Row, target: &mut [u8]) -> u64 {
    let start = begin.max(row.bytes.start);
    let end = (begin + content.len() as u64).min(row.bytes.end);
    if start < end {
        let place = row.target + (start - row.bytes.start) as usize;
        let from = &content[(start - begin) as usize..(end - begin) as usize];
        target[place..place + from.len()].copy_from_slice(from);
    }
    end.saturating_sub(start)
}
