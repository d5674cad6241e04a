//! The lanes of one vector, joined.

use super::LANES;

/// All lanes, joined pairwise: of 16 the last 8 with the first 8, and so on.
#[inline(always)]
pub(crate) fn joined(lanes: &[f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    // Arrays of known lengths, so that the compiler makes vectors of them.
    let (mut eight, mut four, mut two) = ([0.0; 8], [0.0; 4], [0.0; 2]);
    for lane in 0..8 {
        eight[lane] = join(lanes[lane], lanes[lane + 8]);
    }
    for lane in 0..4 {
        four[lane] = join(eight[lane], eight[lane + 4]);
    }
    for lane in 0..2 {
        two[lane] = join(four[lane], four[lane + 2]);
    }
    join(two[0], two[1])
}
