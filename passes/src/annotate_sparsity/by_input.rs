//! Whether a weight is stored input by input, so that products leave out inputs whose activations are zero.

use super::activations::{Activations, Known, Small};
use super::choice::{CACHED_BYTES, Model, current};
use super::elements::{NotFinite, is_finite};
use crate::ir::{ChosenEncoding, ConstantId, Graph, Uses};
use crate::options::ActivationSparsity;
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{InputMajor, Panels, PlaneRole};

/// Below this share of zeros among activations the weight stays in panels. By `cargo bench -p ipuc-kernels --bench input_major`.
pub const LEAST_ZERO_SHARE: f64 = 0.3;

/// As [`LEAST_ZERO_SHARE`] for codes with a scale for each block of inputs, whose sums are scaled block by block however few
/// inputs a block has.
pub const LEAST_ZERO_SHARE_IN_BLOCKS: f64 = 0.85;

/// From this share of zeros on leaving them out pays for weights that a cache holds, too.
pub const LEAST_ZERO_SHARE_IN_CACHE: f64 = 0.5;

/// Products of more rows leave few inputs out, since some row needs most of them.
pub const MOST_ROWS: u64 = 4;

/// Bytes of a run of outputs.
pub const RUN_BYTES: u64 = 2048;

/// From this share of zeros on, runs of outputs are as long as what is read from the disk and checked at a time, so that streaming
/// reads only inputs that are not zero, and few around them.
pub const LEAST_APART_SHARE: f64 = 0.9;

/// Why a weight stays in panels.
pub(super) enum Refusal {
    /// Nothing is known of its activations.
    Silent,
    /// In words.
    Because(String),
}

impl Model {
    /// The encoding input by input, or why there is none.
    pub(super) fn by_input(
        &self,
        graph: &Graph,
        id: ConstantId,
        uses: &Uses,
        activations: &Activations,
    ) -> Result<ChosenEncoding, Refusal> {
        let because = |why: String| Err(Refusal::Because(why));
        let asked = self.activations == ActivationSparsity::Always;
        let ChosenEncoding { encoding, by_budget, reason } = current(graph, id, uses);
        let in_blocks = encoding.encoding().planes().iter().any(|plane| plane.block > 0);
        let least = if in_blocks { LEAST_ZERO_SHARE_IN_BLOCKS } else { LEAST_ZERO_SHARE };
        let are_zero = match activations.small {
            None => "are zero".to_string(),
            Some(Small { threshold, .. }) => format!("are zero or up to {threshold:.3e}"),
        };
        let known = match activations.known {
            Known::Unknown => return Err(Refusal::Silent),
            Known::Measured(share) if share < least && !(asked && share > 0.0) => {
                let (found, least) = (100.0 * share, 100.0 * least);
                return because(format!(
                    "{found:.1} % of its activations {are_zero}, and leaving these out pays from {least:.0} % on"
                ));
            }
            Known::Measured(share) => {
                format!("{:.1} % of its activations {are_zero}{}", 100.0 * share, gain(share, activations))
            }
            Known::Constructed(what) => format!("{what} makes activations zero"),
        };
        if self.activations == ActivationSparsity::Never {
            return because(format!("{known}, and zeros are multiplied as asked for"));
        }
        if !asked && activations.rows > MOST_ROWS {
            let rows = activations.rows;
            return because(format!("{known}, but rarely those of all {rows} rows of a product"));
        }
        if !asked && in_blocks && matches!(activations.known, Known::Constructed(_)) {
            return because(format!("{known}, but whether so many are that scales of blocks pay was not counted"));
        }
        let many = matches!(activations.known, Known::Measured(share) if share >= LEAST_ZERO_SHARE_IN_CACHE);
        if !asked && !many && self.product_bytes < CACHED_BYTES {
            return because(format!("{known}, but a cache holds all weights of products"));
        }
        if self.others.contains(&id) || activations.in_blocks {
            return because(format!("{known}, but a step reads it that leaves nothing out"));
        }
        let Some(panels) = encoding.as_panels() else {
            return because(format!("{known}, but steps read it as it is, or rows of it"));
        };
        let is_rare = matches!(activations.known, Known::Measured(share) if share >= LEAST_APART_SHARE);
        let runs = runs(panels, if is_rare { InputMajor::MOST_RUN_BYTES } else { RUN_BYTES });
        let runs = match runs {
            Ok(runs) => runs,
            Err(why) => return because(format!("{known}, but {why}")),
        };
        match is_finite(graph, id) {
            Ok(()) => {}
            Err(NotFinite::Found) => {
                return because(format!("{known}, but it has NaN or infinities, whose products with zero are NaN"));
            }
            Err(NotFinite::Unknown(why)) => {
                return because(format!("{known}, but whether all of it is finite is not known: {why}"));
            }
        }
        Ok(ChosenEncoding { encoding: runs.into(), by_budget, reason: format!("{reason}; input by input: {known}") })
    }
}

/// What is gained by activations that are taken as zero, and what that spoils.
fn gain(share: f64, activations: &Activations) -> String {
    let Some(Small { squares, .. }) = activations.small else { return String::new() };
    let (squares, read) = (100.0 * squares, 100.0 * (1.0 - share));
    format!(
        " and taken as zero, with {squares:.3} % of the squares: a product of one row reads {read:.1} % of the weight"
    )
}

/// The same panels input by input, where the kernels leave inputs out of such.
fn runs(panels: &Panels, run_bytes: u64) -> Result<InputMajor, String> {
    let kind = panels.dtype;
    let known = match (panels.is_coded(), kind) {
        (false, DType::F32 | DType::F16 | DType::BF16) | (true, DType::I8 | DType::U8 | DType::I4 | DType::U4) => true,
        (_, _) => false,
    };
    let floats = panels.planes.0.iter().any(|plane| plane.role == PlaneRole::ZeroPoint && plane.dtype.is_float());
    if !known || floats || panels.groups != 1 {
        return Err(format!("products of {kind} leave nothing out"));
    }
    InputMajor::of(panels, run_bytes).map_err(|error| error.to_string())
}
