//! Measure the zeros of every weight, and say what follows from them.
//!
//! ```text
//! constant @w : f32[4, 4] = f32[4, 4]:[1, 0, 0, 1, 0, 2, 0, 1, 0, 0, 3, 0, 4, 0, 1, 0]
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[2, 4]) {
//!   %y : f32[2, 4] = matmul %x, @w
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @w : f32[4, 4] = f32[4, 4]:[1, 0, 0, 1, 0, 2, 0, 1, 0, 0, 3, 0, 4, 0, 1, 0] with zeros elements=16 zeros=9 not_finite=0 groups=[0, 1, 3, 0, 0] blocks=[1, 4, 0, 4, 1, 0, 64, 1, 0] record_elements=7 because "dense: no kernel skips its zeros"
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[2, 4]) {
//!   %y : f32[2, 4] = matmul %x, @w
//!   return %y
//! }
//! ```
//!
//! A weight that products read as a matrix is measured by elements, by groups of four inputs of an output (the pattern 2:4
//! has at most two that are not zero), by blocks of 16 outputs and 1, 4 or 64 inputs, and by records of 16 outputs and 256
//! inputs; any other of at least [`LEAST_ELEMENTS`] by elements. Of codes, those are zeros that stand for 0. Of a weight
//! that is rounded while it is stored, the values before: a zero stays one.
//!
//! Elements are read in pieces of at most [`PIECE_BYTES`], one for each thread. Of a weight above [`SAMPLED_BYTES`] one piece
//! of [`SAMPLE_STEP`] is read first; without zeros in [`SAMPLED_SHARE`] of that, it is all that is read.
//! Establishes: what was found and what follows stands in the file. Leaves alone: values, which stay the same.

mod counts;
mod elements;
mod pieces;

use crate::error::PassError;
use crate::ir::{Changes, ConstantId, Graph, Uses};
use crate::options::Options;
use counts::Counts;
use elements::{Elements, Unmeasured};
use ipuc_formats::encodings::Zeros;
use ipuc_formats::ops::WeightMatrix;
pub use pieces::PIECE_BYTES;
use pieces::Piece;
use rayon::prelude::*;

/// Weights of fewer elements are measured only where products read them as a matrix.
pub const LEAST_ELEMENTS: u64 = 4096;

/// Weights of more bytes are sampled first.
pub const SAMPLED_BYTES: u64 = 16 << 20;

/// Of so many pieces one is in the sample.
pub const SAMPLE_STEP: usize = 16;

/// Below this share of zeros in the sample the rest is not read: no encoding gains from so few.
pub const SAMPLED_SHARE: f64 = 0.05;

/// Measure zeros; see the module.
///
/// # Errors
/// [`PassError::Constant`] where a weight cannot be read.
pub fn annotate_sparsity(graph: &mut Graph, _options: &Options) -> Result<Changes, PassError> {
    let mut changes = Changes::default();
    for (id, uses) in graph.uses() {
        let zeros = match Elements::of(graph, id) {
            Ok(elements) => measure(graph, id, &uses, &elements)?,
            Err(Unmeasured::Silently) => None,
            Err(Unmeasured::Because(reason)) => {
                let reason = format!("not measured: {reason}");
                matrix(graph, id, &uses).map(|_| Zeros { reason, ..Zeros::default() })
            }
        };
        if zeros.is_some() && graph.constant(id).zeros != zeros {
            graph.constant_mut(id).zeros = zeros;
            changes.annotations += 1;
        }
    }
    Ok(changes)
}

/// The matrix that all products see that read a weight, which nothing else reads.
fn matrix(graph: &Graph, id: ConstantId, uses: &Uses) -> Option<WeightMatrix> {
    uses.matrix().filter(|_| uses.rows == 0 && graph.constant(id).byte_count() > 0)
}

fn measure(graph: &Graph, id: ConstantId, uses: &Uses, elements: &Elements<'_>) -> Result<Option<Zeros>, PassError> {
    let matrix = matrix(graph, id, uses).filter(|_| elements.dtype.bits() >= 8);
    if matrix.is_none() && elements.count < LEAST_ELEMENTS {
        return Ok(None);
    }
    let pieces = match matrix {
        Some(matrix) => pieces::of_matrix(matrix, elements.dtype),
        None => pieces::flat(elements.count, elements.dtype),
    };
    let counts = counted(elements, matrix, &pieces)?;
    let mut zeros = counts.zeros();
    zeros.reason = reason(&zeros, matrix.is_some(), elements);
    Ok(Some(zeros))
}

/// The counts of all pieces, or of the sample where that has hardly any zeros.
fn counted(elements: &Elements<'_>, matrix: Option<WeightMatrix>, pieces: &[Piece]) -> Result<Counts, PassError> {
    let all = |pieces: &[Piece]| {
        let count = |piece: &Piece| elements.read(piece).map(|classes| Counts::of(piece, matrix, &classes));
        pieces.par_iter().map(count).try_reduce(Counts::default, |one, other| Ok(one.and(&other)))
    };
    let bytes = elements.count.saturating_mul(elements.dtype.bits() as u64) / 8;
    if bytes > SAMPLED_BYTES {
        let sample: Vec<Piece> = pieces.iter().step_by(SAMPLE_STEP).cloned().collect();
        let counts = all(&sample)?;
        if counts.zeros().share() < SAMPLED_SHARE {
            return Ok(counts);
        }
    }
    Ok(all(pieces)?)
}

/// Why a weight is stored as it is.
fn reason(zeros: &Zeros, is_matrix: bool, elements: &Elements<'_>) -> String {
    if zeros.zeros == 0 {
        return "dense: it has no zeros".to_string();
    }
    if !is_matrix {
        return "dense: steps read it as it is, or rows of it".to_string();
    }
    let bits = elements.dtype.bits() as u64;
    let (dense, sparse) = (zeros.elements * bits, (zeros.elements - zeros.zeros) * bits + zeros.elements);
    if sparse >= dense {
        return format!("dense: a mask of its zeros takes more bytes than its {:.1} % zeros", 100.0 * zeros.share());
    }
    "dense: no kernel skips its zeros".to_string()
}
