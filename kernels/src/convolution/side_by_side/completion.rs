//! What becomes of the sums of tiles: they are handed on or made codes, for neighbouring filters of a position.

use crate::{
    product::{Requantize, VectorParameters},
    simd::{LANES, Simd},
};

/// Where results of positions are written.
pub enum OutputRows<'s, 'o> {
    /// All outputs of all positions.
    Whole(&'o mut [u8]),
    /// The outputs of each position that are multiplied.
    Each(&'s mut [&'o mut [u8]]),
}

/// What takes the sums of tiles.
pub(super) trait Complete {
    /// What all positions of some filters have in common.
    type Column<const PANELS: usize>;

    /// That of the filters from `filter` on.
    fn column<const PANELS: usize>(&self, filter: usize) -> Self::Column<PANELS>;

    /// Takes those of a position, counted from the first: of as many filters as `filters` says, from its first on.
    fn complete<S: Simd, const PANELS: usize>(
        &mut self,
        simd: S,
        position: usize,
        filters: (usize, usize),
        column: &Self::Column<PANELS>,
        sums: [S::Integers; PANELS],
    );
}

/// Hands them on.
pub(super) struct Handed<V>(pub V);

impl<V: FnMut(usize, usize, &[i32])> Complete for Handed<V> {
    type Column<const PANELS: usize> = ();

    fn column<const PANELS: usize>(&self, _filter: usize) {}

    #[inline(always)]
    fn complete<S: Simd, const PANELS: usize>(
        &mut self,
        simd: S,
        position: usize,
        (filter, count): (usize, usize),
        (): &(),
        sums: [S::Integers; PANELS],
    ) {
        let mut own = [[0; LANES]; PANELS];
        for panel in 0..PANELS {
            simd.store_integers(sums[panel], &mut own[panel]);
        }
        (self.0)(position, filter, &own.as_flattened()[..count]);
    }
}

/// Makes codes of them; `NEAR` where the nearest integer of every value is known to be one of 32 bits.
pub(super) struct Codes<'a, 's, 'o, const NEAR: bool> {
    pub by: Requantize<'a>,
    pub out: &'a mut OutputRows<'s, 'o>,
    /// Filters of a position.
    pub width: usize,
    /// The first filter that is multiplied.
    pub first: usize,
}

impl<const NEAR: bool> Complete for Codes<'_, '_, '_, NEAR> {
    type Column<const PANELS: usize> = VectorParameters<PANELS>;

    fn column<const PANELS: usize>(&self, filter: usize) -> VectorParameters<PANELS> {
        self.by.parameters(filter)
    }

    #[inline(always)]
    fn complete<S: Simd, const PANELS: usize>(
        &mut self,
        simd: S,
        position: usize,
        (filter, count): (usize, usize),
        column: &Self::Column<PANELS>,
        sums: [S::Integers; PANELS],
    ) {
        let out = match &mut self.out {
            OutputRows::Whole(out) => &mut out[position * self.width + filter..][..count],
            OutputRows::Each(rows) => &mut rows[position][filter - self.first..][..count],
        };
        let codes = self.by.of_parameters::<S, NEAR, PANELS>(simd, column, sums);
        match out.first_chunk_mut() {
            Some(out) => *out = codes,
            None => out.copy_from_slice(&codes[..count]),
        }
    }
}
