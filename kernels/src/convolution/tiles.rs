//! Register tiles of a convolution: output channels by vectors of positions, over runs of inputs that lie anywhere.
//!
//! Inputs and outputs of a layer are rarely in a near cache and lie in many short stretches, which the processor does not
//! foresee: each tile asks for the inputs of the next one and for the lines that its outputs will be written to.

use crate::{
    product::{RUN, tile},
    simd::{LANES, Routine, Simd},
};

/// Inputs between those that the first column multiplies and those whose weights it asks for: a page, as the processor asks for no
/// more than that by itself.
const WEIGHTS_AHEAD: usize = 4096 / size_of::<[f32; LANES]>();

/// Positions of the widest column of tiles.
pub(super) const MOST_COLUMN: usize = 3 * LANES;

/// All channels of a panel by some vectors of positions.
#[derive(Clone, Copy)]
pub(super) struct Column {
    /// First position.
    pub first: usize,
    /// From 1 to 3.
    pub vectors: usize,
}

/// The columns of `positions`.
pub(super) fn columns<S: Simd>(positions: usize) -> impl Iterator<Item = Column> {
    let vectors = positions.div_ceil(LANES);
    let mut vector = 0;
    std::iter::from_fn(move || {
        // Four are better shared out evenly.
        let count = match vectors - vector {
            0 => return None,
            _ if const { S::TILE_VECTORS == 1 } => 1,
            rest @ 1..=2 => rest,
            4 => 2,
            _ => 3,
        };
        vector += count;
        Some(Column { first: (vector - count) * LANES, vectors: count })
    })
}

/// What the tiles of a panel have in common.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    /// `[inputs][16 channels]`.
    pub panel: &'a [[f32; LANES]],
    /// Inputs with their positions side by side.
    pub data: &'a [f32],
    /// Where each input of position 0 lies.
    pub offsets: &'a [usize],
    /// Whether sums are overwritten.
    pub fresh: bool,
}

/// Sums in memory.
struct Sums<'a> {
    /// `[channels, pitch]`.
    values: &'a mut [f32],
    pitch: usize,
    /// Where the column begins.
    first: usize,
}

impl Operands<'_> {
    /// Adds the product of the first `rows` channels of a panel by a column of positions to `sums` (values, where the column
    /// begins, distance between channels). `out` is where their outputs will be written, if it is known, and from which place on.
    ///
    /// Run by run, so that the inputs of a run stay in the first-level cache for all channels.
    #[inline(always)]
    pub(super) fn column<S: Simd>(
        self,
        simd: S,
        (column, rows): (Column, usize),
        (values, first, pitch): (&mut [f32], usize, usize),
        out: (&[&mut [f32]], usize),
    ) {
        let sums = Sums { values, pitch, first };
        match column.vectors {
            3 => self.runs::<S, 3>(simd, (column.first, rows), sums, out),
            2 => self.runs::<S, 2>(simd, (column.first, rows), sums, out),
            _ => self.runs::<S, 1>(simd, (column.first, rows), sums, out),
        }
    }

    #[inline(always)]
    fn runs<S: Simd, const VECTORS: usize>(
        self,
        simd: S,
        (first, rows): (usize, usize),
        sums: Sums<'_>,
        (out, place): (&[&mut [f32]], usize),
    ) {
        for (index, (panel, offsets)) in self.panel.chunks(RUN).zip(self.offsets.chunks(RUN)).enumerate() {
            let operands = Operands { panel, offsets, fresh: self.fresh && index == 0, ..self };
            let mut row = 0;
            while row < rows {
                // Channels that are missing in a panel are zeros: a tile with some of them is faster than several small ones.
                let count = match rows - row {
                    // A vector alone leaves registers for the sums of all channels, which take turns in the two units.
                    9.. if VECTORS == 1 && S::TILE_ROWS == 8 => 16,
                    5.. if S::TILE_ROWS == 8 => 8,
                    6.. if S::TILE_ROWS == 6 => 6,
                    3.. => 4,
                    rest => rest,
                };
                let own = Sums { values: &mut sums.values[row * sums.pitch..], ..sums };
                let asked = if index == 0 { &out[row.min(out.len())..out.len().min(row + count)] } else { &[] };
                let out = (asked, place);
                match count {
                    16 if const { VECTORS == 1 && S::TILE_ROWS == 8 } => {
                        simd.run(Tile::<16, VECTORS> { operands, row, first, sums: own, out })
                    }
                    8 if const { S::TILE_ROWS == 8 } => {
                        simd.run(Tile::<8, VECTORS> { operands, row, first, sums: own, out })
                    }
                    6 if const { S::TILE_ROWS == 6 } => {
                        simd.run(Tile::<6, VECTORS> { operands, row, first, sums: own, out })
                    }
                    4 => simd.run(Tile::<4, VECTORS> { operands, row, first, sums: own, out }),
                    2 => simd.run(Tile::<2, VECTORS> { operands, row, first, sums: own, out }),
                    _ => simd.run(Tile::<1, VECTORS> { operands, row, first, sums: own, out }),
                }
                row += count;
            }
        }
    }
}

/// Some channels by up to three vectors of positions, over one run of inputs.
struct Tile<'a, 's, 'o, const ROWS: usize, const VECTORS: usize> {
    operands: Operands<'a>,
    /// First channel in the panel.
    row: usize,
    /// First position.
    first: usize,
    /// From its first channel on.
    sums: Sums<'s>,
    /// The outputs of its channels, and the place of its first.
    out: (&'o [&'o mut [f32]], usize),
}

impl<const ROWS: usize, const VECTORS: usize> Routine for Tile<'_, '_, '_, ROWS, VECTORS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (out, place) = self.out;
        for out in out {
            for vector in 0..=VECTORS {
                simd.prefetch(out, place + vector * LANES);
            }
        }
        let run = self.multiply(simd);
        let Sums { values, pitch, first } = self.sums;
        for row in 0..ROWS {
            let sums = &mut values[row * pitch + first..][..VECTORS * LANES];
            for (sums, run) in sums.as_chunks_mut::<LANES>().0.iter_mut().zip(&run[row]) {
                let run = simd.load(run);
                let before = if self.operands.fresh { simd.splat(0.0) } else { simd.load(sums) };
                simd.store(simd.add(before, run), sums);
            }
        }
    }
}

impl<const ROWS: usize, const VECTORS: usize> Tile<'_, '_, '_, ROWS, VECTORS> {
    /// Sums over the run, beginning at 0; handed over in memory, as those of `tile`.
    #[inline(always)]
    fn multiply<S: Simd>(&self, simd: S) -> tile::Sums<ROWS, VECTORS> {
        let Operands { panel, data, offsets, .. } = self.operands;
        let data = &data[self.first..];
        // The first channels of a panel ask for the positions behind their own, and at the first positions for weights.
        let asks = self.row == 0;
        let asks_weights = asks && self.first == 0;
        let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
        for (input, (weights, &offset)) in panel.iter().zip(offsets).enumerate() {
            let weights = &weights[self.row..self.row + ROWS];
            let values = &data[offset..][..VECTORS * LANES];
            let mut vectors = [simd.splat(0.0); VECTORS];
            for (vector, values) in vectors.iter_mut().zip(values.as_chunks::<LANES>().0) {
                *vector = simd.load(values);
            }
            if asks_weights {
                simd.prefetch(panel, input + WEIGHTS_AHEAD);
            }
            if asks {
                for vector in 0..VECTORS {
                    simd.prefetch(values, (VECTORS + vector) * LANES);
                }
            }
            for row in 0..ROWS {
                let factor = simd.splat(weights[row]);
                for vector in 0..VECTORS {
                    sums[row][vector] = simd.fused(factor, vectors[vector], sums[row][vector]);
                }
            }
        }
        let mut stored = [[[0.0; LANES]; VECTORS]; ROWS];
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                simd.store(sums[row][vector], &mut stored[row][vector]);
            }
        }
        stored
    }
}
