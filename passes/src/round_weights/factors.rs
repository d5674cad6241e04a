//! What calibration knows of the inputs of products, as constants.

use super::Candidate;
use crate::error::PassError;
use crate::ir::{Constant, ConstantError, ConstantId, Graph};
use crate::moments::{Calibration, Moments};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Factors that have been computed: products that read the same values share one.
pub(super) struct Factors<'a> {
    pub(super) calibration: &'a Calibration,
    pub(super) constants: BTreeMap<Vec<u32>, ConstantId>,
}

impl Factors<'_> {
    /// What runs have shown of all that a weight is multiplied with; `None` where they have not.
    pub(super) fn moments(&self, candidate: &Candidate) -> Option<Cow<'_, Moments>> {
        let known: Option<Vec<&Moments>> =
            candidate.inputs.as_ref()?.iter().map(|input| self.calibration.moments.get(input)).collect();
        let known = known?;
        let fits = |moments: &&Moments| moments.channels() as u64 == candidate.matrix.inputs && moments.rows() > 0;
        // Each of several matrices reads values of its own.
        if candidate.matrix.groups != 1 || !known.iter().all(fits) {
            return None;
        }
        let (first, others) = known.split_first()?;
        let mut all = Cow::Borrowed(*first);
        others.iter().for_each(|other| all.to_mut().merge(other));
        Some(all)
    }

    /// How far outputs follow errors of what is computed with a weight; `None` where runs have not shown it.
    pub(super) fn effect(&self, candidate: &Candidate) -> Option<f64> {
        candidate.results.iter().map(|result| self.calibration.effects.get(result)).sum()
    }

    /// The factor of the inputs of a weight, where runs have shown all of them.
    pub(super) fn of(&mut self, graph: &mut Graph, candidate: &Candidate) -> Result<Option<ConstantId>, PassError> {
        let (Some(inputs), Some(moments)) = (&candidate.inputs, self.moments(candidate)) else { return Ok(None) };
        if let Some(&known) = self.constants.get(inputs) {
            return Ok(Some(known));
        }
        let factor = moments.factor().map_err(|error| ConstantError::Recipe {
            tensor: candidate.name.clone(),
            operator: "rounded",
            error: error.into(),
        })?;
        let id = graph.add_constant(Constant::of(factor, None));
        self.constants.insert(inputs.clone(), id);
        Ok(Some(id))
    }
}
