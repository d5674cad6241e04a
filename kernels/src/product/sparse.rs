//! Products with panels without their zeros: a bit for each element, or for each line, says whether it is stored.
//!
//! Some panels at a time are spread out in the second-level cache and multiplied there as panels with zeros are, so that the
//! bits are those of the product with zeros; what comes from memory are bits and values. The bytes are specified in
//! `FORMAT.md`.

use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};

use super::{
    CodedLayout, CodedPiece, Epilogue, PANEL_OUTPUTS,
    multiply::Cut,
    shares::{Shares, outputs_of},
    task::FEW_ROWS,
};
use crate::{
    change::RowChange,
    matrix::MatrixMut,
    scratch::{Scratch, scratch},
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// Inputs of a record.
pub(super) const RECORD_INPUTS: usize = 256;

/// Bytes of a cache line: planes, masks and values begin and end on one.
const LINE: usize = 64;

/// Bytes of panels that are spread out at a time: they are multiplied before they leave the nearest caches.
const NEAR_BYTES: usize = 64 << 10;

/// Stored bytes between what is spread out and what is asked for: as much is on its way while panels are multiplied.
const AHEAD_BYTES: usize = 6 << 10;

/// Panels that are multiplied at a time with many rows: those of a register tile.
const TILE_PANELS: usize = 3;

/// How a weight lies in panels without zeros.
#[derive(Clone, Debug)]
pub struct SparseLayout {
    inputs: usize,
    /// Bytes of an element.
    width: usize,
    /// Inputs side by side.
    group: usize,
    /// Values that a record has room for.
    capacity: usize,
    /// Bytes that a bit of a mask stands for: those of an element, or a line.
    unit: usize,
    /// How codes lie with their zeros, where elements are codes.
    codes: Option<CodedLayout>,
}

/// Bytes of the pieces of a record.
#[derive(Clone, Copy)]
struct Record {
    planes: usize,
    /// With zeros.
    elements: usize,
    mask: usize,
    values: usize,
}

/// The pieces of a record.
#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    pub planes: &'a [u8],
    pub mask: &'a [u8],
    pub values: &'a [u8],
}

impl Record {
    /// Those of the first record of `stored`, and what follows it.
    #[inline(always)]
    fn split(self, stored: &[u8]) -> (Stored<'_>, &[u8]) {
        let (planes, rest) = stored.split_at(self.planes);
        let (mask, rest) = rest.split_at(self.mask);
        let (values, rest) = rest.split_at(self.values);
        (Stored { planes, mask, values }, rest)
    }
}

impl SparseLayout {
    /// Values of `width` bytes, of which `group` inputs lie side by side; a record has room for `capacity` of them.
    ///
    /// # Panics
    /// If values have another width than 1, 2 or 4 bytes.
    #[must_use]
    pub fn values(inputs: usize, width: usize, group: usize, capacity: usize) -> Self {
        assert!(matches!(width, 1 | 2 | 4), "elements of {width} bytes");
        Self { inputs, width, group, capacity, unit: width, codes: None }
    }

    /// The same with a bit for each line.
    ///
    /// # Panics
    /// If elements of the inputs side by side do not fill a line.
    #[must_use]
    pub fn in_lines(self) -> Self {
        assert_eq!(self.width * self.group * PANEL_OUTPUTS, LINE, "bytes of the inputs side by side");
        Self { unit: LINE, ..self }
    }

    /// Codes of 8 bits that lie so with their zeros, in records of 256 inputs.
    ///
    /// # Panics
    /// If they lie otherwise.
    #[must_use]
    pub fn codes(layout: CodedLayout, capacity: usize) -> Self {
        assert_eq!((layout.code().bits(), layout.cut()), (8, RECORD_INPUTS), "bits of codes and inputs of records");
        Self { inputs: layout.inputs(), width: 1, group: 4, capacity, unit: 1, codes: Some(layout) }
    }

    /// Whole panels, one behind the other, without their zeros.
    ///
    /// The compiler writes these itself; this is for weights that exist only while running, and for tests.
    ///
    /// # Panics
    /// If a record has more values than there is room for.
    #[must_use]
    pub fn pack(&self, panels: &[u8]) -> Vec<u8> {
        let (mut stored, mut rest) = (Vec::new(), panels);
        while !rest.is_empty() {
            for record in self.records(&(0..self.inputs)) {
                let (planes, after) = rest.split_at(record.planes);
                let (elements, after) = after.split_at(record.elements);
                rest = after;
                stored.extend(planes);
                let mut mask = vec![0u8; record.mask];
                let mut values = Vec::with_capacity(record.values);
                for (index, element) in elements.chunks_exact(self.unit).enumerate() {
                    if element.iter().any(|&byte| byte != 0) {
                        mask[index / 8] |= 1 << (index % 8);
                        values.extend(element);
                    }
                }
                assert!(values.len() <= record.values, "{} bytes of values, {}", values.len(), record.values);
                values.resize(record.values, 0);
                stored.extend(mask);
                stored.extend(values);
            }
        }
        stored
    }

    fn record(&self, first: usize, inputs: usize) -> Record {
        let elements = inputs.next_multiple_of(self.group) * PANEL_OUTPUTS;
        Record {
            planes: self.codes.as_ref().map_or(0, |codes| codes.planes_bytes(first, inputs)),
            elements: elements * self.width,
            mask: (elements * self.width / self.unit).div_ceil(8).next_multiple_of(LINE),
            values: (self.capacity.min(elements) * self.width).next_multiple_of(LINE),
        }
    }

    /// The records of a run of inputs of a panel.
    fn records(&self, inputs: &Range<usize>) -> impl Iterator<Item = Record> + '_ {
        let end = inputs.end;
        let starts = inputs.clone().step_by(RECORD_INPUTS);
        starts.map(move |first| self.record(first, RECORD_INPUTS.min(end - first)))
    }

    /// How codes lie with their zeros.
    ///
    /// # Panics
    /// If elements are no codes.
    pub(super) fn of_codes(&self) -> &CodedLayout {
        let Some(codes) = &self.codes else { unreachable!("a product of codes has a layout of codes") };
        codes
    }

    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Whether a bit stands for a line.
    pub(super) fn has_bits_of_lines(&self) -> bool {
        self.unit == LINE
    }

    /// The record of `inputs` that `stored` begins with, and what follows it.
    #[inline(always)]
    pub(super) fn stored<'a>(&self, inputs: &Range<usize>, stored: &'a [u8]) -> (Stored<'a>, &'a [u8]) {
        self.record(inputs.start, inputs.len()).split(stored)
    }

    /// Stored bytes of a run of inputs of a panel.
    pub(super) fn stored_bytes(&self, inputs: &Range<usize>) -> usize {
        self.records(inputs).map(|record| record.planes + record.mask + record.values).sum()
    }

    /// Bytes of a run of inputs of a panel with zeros.
    pub(super) fn dense_bytes(&self, inputs: &Range<usize>) -> usize {
        self.records(inputs).map(|record| record.planes + record.elements).sum()
    }

    /// What each thread takes of pieces that have all inputs, and its outputs: all rows of a panel at once, so that it is spread out
    /// once.
    ///
    /// # Panics
    /// If pieces have other bytes than those of their panels, or not all inputs.
    pub(super) fn shares<'a>(
        &'a self,
        pieces: &[CodedPiece<'a>],
        out: MatrixMut<'a>,
    ) -> (Vec<Share<'a>>, Shares<'a, f32>) {
        let rows = out.rows();
        let panels: usize = pieces.iter().map(|piece| piece.panels.len()).sum();
        let parts = threads::parts(rows * self.inputs * panels * PANEL_OUTPUTS, usize::MAX);
        let cut = Cut::new(rows, self.inputs, panels, parts);
        let mut shares = Vec::new();
        for piece in pieces {
            self.check(piece);
            assert_eq!(piece.inputs, 0..self.inputs, "inputs of a piece");
            for first in piece.panels.clone().step_by(cut.panels) {
                let count = cut.panels.min(piece.panels.end - first);
                let stored = &piece.bytes[(first - piece.panels.start) * self.stored_bytes(&piece.inputs)..];
                shares.push(Share { layout: self, first, count, stored });
            }
        }
        let places = shares.iter().map(|share| outputs_of(share.first * PANEL_OUTPUTS, share.count));
        let outputs = Shares::new(rows, places.collect::<Vec<_>>().into_iter(), out.into_rows());
        (shares, outputs)
    }

    /// Panics unless the bytes of a piece are those of its panels.
    fn check(&self, piece: &CodedPiece<'_>) {
        let bytes = piece.panels.len() * self.stored_bytes(&piece.inputs);
        assert_eq!(piece.bytes.len(), bytes, "bytes of a piece without zeros");
    }
}

/// Spreads the panels of a piece out, one behind the other.
pub(super) struct Spread<'a> {
    pub layout: &'a SparseLayout,
    pub inputs: Range<usize>,
    /// Of these panels, and what follows.
    pub stored: &'a [u8],
    pub dense: &'a mut [u8],
}

impl Routine for Spread<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { layout, inputs, mut stored, mut dense } = self;
        while !dense.is_empty() && !inputs.is_empty() {
            for record in layout.records(&inputs) {
                for line in (0..record.planes + record.mask + record.values).step_by(LINE) {
                    simd.prefetch(stored, AHEAD_BYTES + line);
                }
                let (own, rest) = record.split(stored);
                stored = rest;
                let (to_planes, rest) = dense.split_at_mut(record.planes);
                let (elements, rest) = rest.split_at_mut(record.elements);
                dense = rest;
                to_planes.copy_from_slice(own.planes);
                if layout.has_bits_of_lines() {
                    spread_lines(simd, own.mask, own.values, elements);
                } else {
                    spread(simd, layout.width, own.mask, own.values, elements);
                }
            }
        }
    }
}

/// Spreads the lines of a record.
#[inline(always)]
fn spread_lines<S: Simd>(simd: S, mask: &[u8], values: &[u8], elements: &mut [u8]) {
    let stored = values.as_chunks::<LINE>().0;
    let mut next = 0;
    for (index, line) in elements.as_chunks_mut::<LINE>().0.iter_mut().enumerate() {
        let bit = mask[index / 8] >> (index % 8) & 1;
        // Without a branch: lines at random are not foreseen.
        let keep = simd.splat_integer(-i32::from(bit));
        let bytes = stored.get(next).unwrap_or(&[0; LINE]);
        let mut kept = [0; LANES];
        simd.store_integers(simd.and(simd.load_bytes(bytes), keep), &mut kept);
        *line = bytemuck::cast(kept);
        next += usize::from(bit);
    }
}

/// Spreads the values of a record; elements of 16 outputs of few inputs may end within a line.
#[inline(always)]
fn spread<S: Simd>(simd: S, width: usize, mask: &[u8], values: &[u8], elements: &mut [u8]) {
    let (lines, rest) = elements.as_chunks_mut::<LINE>();
    let whole = lines.len() * LINE / width / 8;
    expand(simd, width, &mask[..whole], values, lines);
    if !rest.is_empty() {
        let used: usize = mask[..whole].iter().map(|byte| byte.count_ones() as usize).sum();
        let mut line = [[0; LINE]];
        // The mask is filled up to whole lines.
        let mask = &mask[whole..][..LINE / width / 8];
        expand(simd, width, mask, values.get(used * width..).unwrap_or_default(), &mut line);
        rest.copy_from_slice(&line[0][..rest.len()]);
    }
}

#[inline(always)]
fn expand<S: Simd>(simd: S, width: usize, mask: &[u8], values: &[u8], lines: &mut [[u8; LINE]]) {
    match width {
        1 => simd.expand::<1>(mask, values, lines),
        2 => simd.expand::<2>(mask, values, lines),
        _ => simd.expand::<4>(mask, values, lines),
    }
}

/// A buffer of bytes that begins with a line.
pub(super) struct Near(Scratch, usize);

impl Near {
    pub fn new(bytes: usize) -> Self {
        let values = scratch(bytes.div_ceil(size_of::<f32>()) + LINE / size_of::<f32>());
        let first = values.as_ptr().addr();
        Self(values, first.next_multiple_of(LINE) - first)
    }

    pub fn bytes(&mut self, count: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[self.1..][..count]
    }
}

/// The panels of pieces with their zeros, as `CodedPiece` has them: one buffer for each, of whole f32.
#[must_use]
pub fn spread_panels(
    instructions: Instructions,
    layout: &SparseLayout,
    pieces: &[CodedPiece<'_>],
) -> Vec<(Vec<f32>, usize)> {
    let spread_one = |piece: &CodedPiece<'_>| {
        layout.check(piece);
        let (stored, dense) = (layout.stored_bytes(&piece.inputs), layout.dense_bytes(&piece.inputs));
        let bytes = dense * piece.panels.len();
        let mut panels = vec![0.0; bytes.div_ceil(size_of::<f32>())];
        if bytes > 0 {
            let targets = bytemuck::cast_slice_mut(&mut panels)[..bytes].chunks_mut(dense);
            let tasks = targets.zip(piece.bytes.chunks(stored)).collect();
            threads::each(tasks, |(dense, stored): (&mut [u8], &[u8])| {
                instructions.run(Spread { layout, inputs: piece.inputs.clone(), stored, dense });
            });
        }
        (panels, bytes)
    };
    pieces.iter().map(spread_one).collect()
}

/// A product with pieces that have all inputs of their panels: `multiply` is given some panels with their zeros, as a piece
/// of a weight that has only these, their outputs and the epilogue for these, and overwrites the outputs. It is called from
/// all threads and uses no further ones.
///
/// # Errors
/// The first of `multiply`.
///
/// # Panics
/// If shapes disagree.
pub fn sparse_product<E: Send>(
    instructions: Instructions,
    layout: &SparseLayout,
    pieces: &[CodedPiece<'_>],
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    multiply: &Multiply<'_, E>,
) -> Result<(), E> {
    let (rows, columns) = (out.rows(), out.columns());
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let (shares, mut outputs) = layout.shares(pieces, out);
    let failure = Mutex::new(None);
    threads::each(shares.into_iter().zip(outputs.iter_mut()).collect(), |(share, rows)| {
        let multiplied = threads::serially(|| share.multiply(instructions, rows, columns, epilogue, multiply));
        if let Err(error) = multiplied {
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// What multiplies panels with zeros: see [`sparse_product`].
type Multiply<'a, E> = dyn Fn(&CodedPiece<'_>, MatrixMut<'_>, Epilogue<'_>) -> Result<(), E> + Sync + 'a;

/// Consecutive panels that one thread takes.
#[derive(Clone, Copy)]
pub(super) struct Share<'a> {
    pub layout: &'a SparseLayout,
    pub first: usize,
    pub count: usize,
    /// Of these panels, and what follows.
    pub stored: &'a [u8],
}

impl Share<'_> {
    /// Spreads a few panels out and multiplies them, then the next.
    fn multiply<E>(
        self,
        instructions: Instructions,
        rows: &mut [&mut [f32]],
        columns: usize,
        epilogue: Epilogue<'_>,
        multiply: &Multiply<'_, E>,
    ) -> Result<(), E> {
        let inputs = 0..self.layout.inputs;
        let (stored, dense) = (self.layout.stored_bytes(&inputs), self.layout.dense_bytes(&inputs));
        let least = if rows.len() > FEW_ROWS { TILE_PANELS } else { 1 };
        let most = (NEAR_BYTES / dense.max(1)).max(least);
        let mut near = Near::new(most.min(self.count) * dense);
        let mut block = Vec::new();
        for panel in (0..self.count).step_by(most) {
            let count = most.min(self.count - panel);
            let bytes = near.bytes(count * dense);
            let stored = &self.stored[panel * stored..];
            instructions.run(Spread { layout: self.layout, inputs: inputs.clone(), stored, dense: bytes });
            let piece = CodedPiece { panels: 0..count, inputs: inputs.clone(), bytes };
            let first = panel * PANEL_OUTPUTS;
            let own = rows.first().map_or(0, |row| (row.len() - first).min(count * PANEL_OUTPUTS));
            let epilogue = epilogue.columns_from(self.first * PANEL_OUTPUTS + first, own, columns);
            if let [row] = rows {
                multiply(&piece, MatrixMut::new(&mut row[first..first + own], 1, own), epilogue)?;
                continue;
            }
            block.resize(rows.len() * own, 0.0);
            multiply(&piece, MatrixMut::new(&mut block, rows.len(), own), epilogue)?;
            for (row, block) in rows.iter_mut().zip(block.chunks(own)) {
                row[first..first + own].copy_from_slice(block);
            }
        }
        Ok(())
    }
}

impl<'a> Epilogue<'a> {
    /// The same for a product of `count` outputs that begin at output `first` of rows of `columns`.
    fn columns_from(self, first: usize, count: usize, columns: usize) -> Self {
        let change = self.change.map(|change| {
            assert_eq!(change.columns, columns, "outputs of a row");
            RowChange { start: change.start + first, ..change }
        });
        Self { bias: self.bias.map(|bias| &bias[first..][..count]), change, ..self }
    }
}
