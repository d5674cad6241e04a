//! What calibration knows of the inputs of products, as constants.

use super::Candidate;
use crate::error::PassError;
use crate::ir::{Constant, ConstantError, ConstantId, Graph};
use crate::moments::{Calibration, Moments};
use std::collections::BTreeMap;

/// Factors that have been computed: products that read the same values share one.
pub(super) struct Factors<'a> {
    pub(super) calibration: &'a Calibration,
    pub(super) constants: BTreeMap<Vec<u32>, ConstantId>,
}

impl Factors<'_> {
    /// The factor of the inputs of a weight, where runs have shown all of them.
    pub(super) fn of(&mut self, graph: &mut Graph, candidate: &Candidate) -> Result<Option<ConstantId>, PassError> {
        let Some(inputs) = &candidate.inputs else { return Ok(None) };
        let moments: Option<Vec<&Moments>> = inputs.iter().map(|input| self.calibration.get(input)).collect();
        let Some(moments) = moments else { return Ok(None) };
        let fits = |moments: &&Moments| moments.channels() as u64 == candidate.matrix.inputs && moments.rows() > 0;
        // Each of several matrices reads values of its own.
        if candidate.matrix.groups != 1 || !moments.iter().all(fits) {
            return Ok(None);
        }
        if let Some(&known) = self.constants.get(inputs) {
            return Ok(Some(known));
        }
        let Some((first, others)) = moments.split_first() else { return Ok(None) };
        let factor = if others.is_empty() {
            first.factor()
        } else {
            let mut all = (*first).clone();
            others.iter().for_each(|other| all.merge(other));
            all.factor()
        };
        let factor = factor.map_err(|error| ConstantError::Recipe {
            tensor: candidate.name.clone(),
            operator: "rounded",
            error: error.into(),
        })?;
        let id = graph.add_constant(Constant::of(factor, None));
        self.constants.insert(inputs.clone(), id);
        Ok(Some(id))
    }
}
