//! Measure the zeros of every weight, and leave them out of the file where that pays.
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
//! constant @w : f32[4, 4] = f32[4, 4]:[1, 0, 0, 1, 0, 2, 0, 1, 0, 0, 3, 0, 4, 0, 1, 0] with zeros elements=16 zeros=9 not_finite=0 groups=[0, 1, 3, 0, 0] blocks=[1, 4, 0, 4, 1, 0, 64, 1, 0] record_elements=7 because "dense: a mask of its 56.2 % zeros would take more bytes than they do"
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
//! Of these two panels without zeros are made: element by element, or line by line where zeros lie in blocks of 16 outputs by
//! the inputs of a line (1 of f32, 2 of bf16, 4 of 8 bits).
//! Leaves zeros out (panels without zeros) where that takes fewer bytes and no more time: see [`CACHED_BYTES`] and
//! [`BREAK_EVEN`], [`LINES_BREAK_EVEN`], [`CODES_BREAK_EVEN`]. Options ask for them always or never.
//!
//! What products multiply a weight with is looked at, too. Where many activations are zero, as calibration has counted or as
//! they are by construction (ReLU and what goes on with its zeros, masks, the chosen of a top-k), and rows are few, the weight is
//! stored input by input, so that the product reads nothing of inputs that are zero: see [`LEAST_ZERO_SHARE`]. A weight with NaN or
//! infinities stays in panels, since their products with zero are no zeros.
//! With [`Options::sparse_threshold`] activations count as zero whose magnitude lies below that share of the root mean square that
//! calibration has seen, and a step before each product that gains makes them zero.
//!
//! Establishes: what was found and what follows stands in the file. Leaves alone: values, which stay the same (-0 becomes 0), but
//! for those of a threshold.

mod activations;
mod by_input;
mod choice;
mod counts;
mod elements;
mod pieces;
mod threshold;

use crate::error::PassError;
use crate::ir::{Changes, ConstantId, Graph, Uses};
use crate::options::Options;
use by_input::Refusal;
pub use by_input::{
    LEAST_APART_SHARE, LEAST_ZERO_SHARE, LEAST_ZERO_SHARE_IN_BLOCKS, LEAST_ZERO_SHARE_IN_CACHE, MOST_ROWS, RUN_BYTES,
};
use choice::Model;
pub use choice::{BREAK_EVEN, CACHED_BYTES, CODES_BREAK_EVEN, LINES_BREAK_EVEN};
use counts::Counts;
use elements::{Elements, Unmeasured};
use ipuc_formats::encodings::Zeros;
use ipuc_formats::ops::WeightMatrix;
pub use pieces::PIECE_BYTES;
use pieces::Piece;
use rayon::prelude::*;
use std::collections::BTreeMap;

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
pub fn annotate_sparsity(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    let mut changes = Changes::default();
    if options.sizes_only {
        return Ok(changes);
    }
    if let Some(share) = options.sparse_threshold {
        if !(share > 0.0 && share < 1.0) {
            return Err(PassError::Threshold { share });
        }
        if options.calibration.spreads.is_empty() {
            return Err(PassError::Uncalibrated { option: "activations that are taken as zero" });
        }
    }
    let model = Model::new(graph, options);
    let mut thresholds = BTreeMap::new();
    let activations = activations::of_weights(graph, options);
    for (id, uses) in graph.uses() {
        let measured = match Elements::of(graph, id) {
            Ok(elements) => measure(graph, id, &uses, &elements)?.map(|counts| (counts.zeros(), counts)),
            Err(Unmeasured::Silently) => None,
            Err(Unmeasured::Because(reason)) => {
                let reason = format!("not measured: {reason}");
                matrix(graph, id, &uses).map(|_| (Zeros { reason, ..Zeros::default() }, Counts::default()))
            }
        };
        let Some((mut zeros, counts)) = measured else { continue };
        let (chosen, why) = match activations.get(&id).map(|known| model.by_input(graph, id, &uses, known)) {
            Some(Ok(chosen)) => {
                let small = activations.get(&id).and_then(|known| known.small);
                thresholds.extend(small.map(|small| (id, small.threshold)));
                (Some(Ok(chosen)), None)
            }
            Some(Err(Refusal::Because(why))) => (None, Some(why)),
            Some(Err(Refusal::Silent)) | None => (None, None),
        };
        let chosen = chosen.or_else(|| (zeros.elements > 0).then(|| model.choose(graph, id, &uses, (&zeros, &counts))));
        match chosen {
            Some(Ok(chosen)) => {
                zeros.reason = chosen.reason.clone();
                graph.constant_mut(id).encoding = Some(chosen);
            }
            Some(Err(reason)) => zeros.reason = format!("dense: {reason}"),
            None => {}
        }
        if let Some(why) = why {
            zeros.reason = format!("{}; {why}", zeros.reason);
        }
        graph.constant_mut(id).zeros = Some(zeros);
        changes.annotations += 1;
    }
    changes.steps += threshold::apply(graph, &thresholds);
    Ok(changes)
}

/// The matrix that all products see that read a weight, which nothing else reads.
fn matrix(graph: &Graph, id: ConstantId, uses: &Uses) -> Option<WeightMatrix> {
    uses.matrix().filter(|_| uses.rows == 0 && graph.constant(id).byte_count() > 0)
}

fn measure(graph: &Graph, id: ConstantId, uses: &Uses, elements: &Elements<'_>) -> Result<Option<Counts>, PassError> {
    let matrix = matrix(graph, id, uses).filter(|_| elements.dtype.bits() >= 8);
    if matrix.is_none() && elements.count < LEAST_ELEMENTS {
        return Ok(None);
    }
    let pieces = match matrix {
        Some(matrix) => pieces::of_matrix(matrix, elements.dtype),
        None => pieces::flat(elements.count, elements.dtype),
    };
    Ok(Some(counted(elements, matrix, &pieces)?))
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
