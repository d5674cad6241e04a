//! Which elements of which matrix a panel holds.

use super::{PANEL_OUTPUTS, Panels};

/// Where the outputs of a panel are.
#[derive(Debug, Clone, Copy)]
pub(super) struct PanelPlace {
    /// The matrix.
    pub(super) matrix: u64,
    /// First output within the matrix.
    pub(super) output: u64,
    /// Outputs that exist, at most 16.
    pub(super) outputs: usize,
}

impl Panels {
    pub(super) fn place(&self, panel: u64) -> PanelPlace {
        let per_group = self.panels_per_group().max(1);
        let (matrix, output) = (panel / per_group, panel % per_group * PANEL_OUTPUTS as u64);
        let outputs = self.outputs.saturating_sub(output).min(PANEL_OUTPUTS as u64) as usize;
        PanelPlace { matrix, output, outputs }
    }

    /// The panels of one output of any matrix alone. `lane` is where it lies among the outputs of its panel.
    pub(in crate::encodings) fn of_one_output(&self, output: u64) -> (Panels, usize) {
        let lane = (output % PANEL_OUTPUTS as u64) as usize;
        (Panels { groups: 1, outputs: 1, ..self.clone() }, lane)
    }
}
