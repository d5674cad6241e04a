//! Register tiles of a convolution: output channels by vectors of positions, over runs of inputs that lie anywhere.
//!
//! Inputs and outputs of a layer are rarely in a near cache and lie in many short stretches, which the processor does not
//! foresee: each tile asks for the inputs of the next one and for the lines that its outputs will be written to.

use crate::{
    product::RUN,
    simd::{Adjacent, LANES, Places, Routine, Simd},
};

/// Inputs between those that the first column multiplies and those whose weights it asks for: a page, as the processor asks for no
/// more than that by itself.
const WEIGHTS_AHEAD: usize = 4096 / size_of::<[f32; LANES]>();

/// Inputs that are multiplied before a tile asks for others again.
const ASKED: usize = 8;

/// Positions of the widest column of tiles.
pub(super) const MOST_COLUMN: usize = MOST_VECTORS * LANES;

/// Vectors of the widest column.
const MOST_VECTORS: usize = 4;

/// All channels of a panel by some vectors of positions.
#[derive(Clone, Copy)]
pub(super) struct Column {
    /// First position.
    pub first: usize,
    /// From 1 to 4.
    pub vectors: usize,
}

/// The columns of `positions`.
pub(super) fn columns<S: Simd>(positions: usize) -> impl Iterator<Item = Column> {
    let vectors = positions.div_ceil(LANES);
    let mut vector = 0;
    std::iter::from_fn(move || {
        let count = match vectors - vector {
            0 => return None,
            // Tiles of one vector: weights of a run are read for as many as there may be, shared out evenly.
            rest if const { S::TILE_VECTORS == 1 } => rest.div_ceil(rest.div_ceil(MOST_VECTORS)),
            rest @ 1..=2 => rest,
            // Four are better shared out evenly.
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
    /// Inputs with their positions.
    pub data: Data<'a>,
    /// Where each input of position 0 lies.
    pub offsets: Places<'a>,
    /// Whether sums are overwritten.
    pub fresh: bool,
}

/// Inputs at positions: 16 side by side, those that follow at some distance.
#[derive(Clone, Copy)]
pub(super) struct Data<'a> {
    pub values: &'a [f32],
    /// From 16 positions to the next: 16 where all lie side by side, as they do for tiles of several vectors.
    pub distance: usize,
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
            3 if const { S::TILE_VECTORS == 3 } => self.runs::<S, 3>(simd, (column, rows), sums, out),
            2 if const { S::TILE_VECTORS == 3 } => self.runs::<S, 2>(simd, (column, rows), sums, out),
            _ => self.runs::<S, 1>(simd, (column, rows), sums, out),
        }
    }

    #[inline(always)]
    fn runs<S: Simd, const VECTORS: usize>(
        self,
        simd: S,
        (column, rows): (Column, usize),
        sums: Sums<'_>,
        (out, place): (&[&mut [f32]], usize),
    ) {
        for (index, (panel, offsets)) in self.panel.chunks(RUN).zip(self.offsets.chunks(RUN)).enumerate() {
            let operands = Operands { panel, offsets, fresh: self.fresh && index == 0, ..self };
            for vector in (0..column.vectors).step_by(VECTORS) {
                let first = sums.first + vector * LANES;
                let sums = Sums { values: &mut *sums.values, first, ..sums };
                let place = place + vector * LANES;
                let first = column.first + vector * LANES;
                let asked = if index == 0 { out } else { &[] };
                simd.run(PanelTiles::<VECTORS> { operands, rows, first, sums, out: (asked, place) });
            }
        }
    }
}

/// All channels of a panel by up to three vectors of positions, over one run of inputs, which stay in the first-level cache from
/// one tile to the next.
struct PanelTiles<'a, 's, 'o, const VECTORS: usize> {
    operands: Operands<'a>,
    /// Channels that are there.
    rows: usize,
    /// First position.
    first: usize,
    sums: Sums<'s>,
    /// The outputs of its channels where they are prefetched, and the place of their first.
    out: (&'o [&'o mut [f32]], usize),
}

impl<const VECTORS: usize> Routine for PanelTiles<'_, '_, '_, VECTORS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut row = 0;
        while row < self.rows {
            // Channels that are missing in a panel are zeros: a tile with some of them is faster than several small ones.
            row += match self.rows - row {
                // A vector alone leaves registers for the sums of all channels, which take turns in the two units.
                9.. if const { VECTORS == 1 && S::TILE_ROWS == 8 } => self.tile::<S, 16>(simd, row),
                5.. if const { S::TILE_ROWS == 8 } => self.tile::<S, 8>(simd, row),
                // 16 are 6, 5 and 5: sums of 4 are as few as the two units have in flight.
                5 | 10 if const { S::TILE_ROWS == 6 } => self.tile::<S, 5>(simd, row),
                6.. if const { S::TILE_ROWS == 6 } => self.tile::<S, 6>(simd, row),
                3.. => self.tile::<S, 4>(simd, row),
                2 => self.tile::<S, 2>(simd, row),
                _ => self.tile::<S, 1>(simd, row),
            };
        }
    }
}

impl<const VECTORS: usize> PanelTiles<'_, '_, '_, VECTORS> {
    /// `ROWS` channels from one on; gives how many.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize>(&mut self, simd: S, row: usize) -> usize {
        let (out, place) = self.out;
        for out in out.iter().skip(row).take(ROWS) {
            for vector in 0..=VECTORS {
                simd.prefetch(out, place + vector * LANES);
            }
        }
        let run = self.multiply::<S, ROWS>(simd, row);
        let Sums { values, pitch, first } = &mut self.sums;
        for index in 0..ROWS {
            let sums = &mut values[(row + index) * *pitch + *first..].as_chunks_mut().0[..VECTORS];
            for vector in 0..VECTORS {
                let before = if self.operands.fresh { simd.splat(0.0) } else { simd.load(&sums[vector]) };
                simd.store(simd.add(before, run[index][vector]), &mut sums[vector]);
            }
        }
        ROWS
    }

    /// Sums over the run, beginning at 0: registers, as they are indexed by numbers that the compiler knows.
    #[inline(always)]
    fn multiply<S: Simd, const ROWS: usize>(&self, simd: S, row: usize) -> [[S::Vector; VECTORS]; ROWS] {
        let Operands { panel, data, offsets, .. } = self.operands;
        // A constant for tiles of several vectors.
        let distance = if const { S::TILE_VECTORS > 1 } { LANES } else { data.distance };
        let data = &data.values[self.first / LANES * distance..];
        let (groups, rest) = panel.as_chunks::<ASKED>();
        let (group_offsets, rest_offsets) = offsets.all().as_chunks::<ASKED>();
        let (group_values, rest_values) = Adjacent::<VECTORS>::new(data, offsets).groups::<ASKED>();
        // The first channels of a panel ask for the positions behind their own, and at the first positions for weights.
        let asks = row == 0;
        let asks_weights = asks && self.first == 0;
        let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
        for (group, ((weights, offsets), values)) in groups.iter().zip(group_offsets).zip(group_values).enumerate() {
            if asks_weights {
                for input in 0..ASKED {
                    simd.prefetch(panel, group * ASKED + input + WEIGHTS_AHEAD);
                }
            }
            if asks {
                for input in 0..ASKED {
                    for vector in 0..VECTORS {
                        simd.prefetch(data, offsets[input] + VECTORS * distance + vector * LANES);
                    }
                }
            }
            for input in 0..ASKED {
                add_input(simd, &weights[input][row..row + ROWS], values[input], &mut sums);
            }
        }
        for ((weights, &offset), values) in rest.iter().zip(rest_offsets).zip(rest_values) {
            if asks {
                for vector in 0..VECTORS {
                    simd.prefetch(data, offset + VECTORS * distance + vector * LANES);
                }
            }
            add_input(simd, &weights[row..row + ROWS], values, &mut sums);
        }
        sums
    }
}

/// Adds the products of an input.
#[inline(always)]
fn add_input<S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    weights: &[f32],
    values: &[[f32; LANES]; VECTORS],
    sums: &mut [[S::Vector; VECTORS]; ROWS],
) {
    let mut vectors = [simd.splat(0.0); VECTORS];
    for vector in 0..VECTORS {
        vectors[vector] = simd.load(&values[vector]);
    }
    for row in 0..ROWS {
        let factor = simd.splat(weights[row]);
        for vector in 0..VECTORS {
            sums[row][vector] = simd.fused(factor, vectors[vector], sums[row][vector]);
        }
    }
}
