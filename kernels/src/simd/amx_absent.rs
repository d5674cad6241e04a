//! In place of `amx` on processors of other families: no value of its token exists.

use super::Portable;

/// Elements of a row of sums: those of two right tiles side by side.
pub const SUM_COLUMNS: usize = 32;

/// Bytes of a tile.
pub const TILE_BYTES: usize = 1024;

/// A left tile, or a right one whose lines lie side by side.
pub type Tile = [u8; TILE_BYTES];

/// The token of AMX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amx {}

impl Amx {
    /// The token of vectors.
    #[must_use]
    pub fn vectors(self) -> Portable {
        match self {}
    }

    /// Configured tiles.
    #[must_use]
    pub fn tiles(self) -> Tiles {
        match self {}
    }
}

/// Tiles are configured on this thread.
#[derive(Debug)]
pub enum Tiles {}

/// Two columns of right tiles whose lines lie anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Right<'a> {
    /// What all lines lie in.
    pub bytes: &'a [u8],
    /// Where the first line of each step lies.
    pub steps: &'a [usize],
    /// Bytes from a line to the next.
    pub pitch: usize,
}

/// The signs of left and right bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signs {
    /// Left bytes are from -128 to 127, else from 0 to 255.
    pub left: bool,
    /// As `left`.
    pub right: bool,
}

impl Tiles {
    /// Products of bytes.
    pub fn multiply_bytes(&self, _: Signs, _: [&[Tile]; 2], _: Right<'_>, _: usize, _: (&mut [i32], usize)) {
        match *self {}
    }
}
