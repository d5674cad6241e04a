//! What calibration knows of the inputs of products, as constants.

use super::Candidate;
use crate::error::PassError;
use crate::ir::{Constant, ConstantData, ConstantError, ConstantId, Graph};
use crate::moments::{Calibration, Moments};
use ipuc_formats::tensor::Tensor;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Factors that have been computed: products that read the same values share one.
pub(super) struct Factors<'a> {
    calibration: &'a Calibration,
    constants: BTreeMap<Vec<u32>, ConstantId>,
    /// What the channels of values are divided by, as `equalize` has it.
    divisors: BTreeMap<u32, Vec<f32>>,
    /// Whether biases may take up errors.
    pub(super) may_correct: bool,
}

impl<'a> Factors<'a> {
    pub(super) fn new(calibration: &'a Calibration) -> Factors<'a> {
        Factors { calibration, constants: BTreeMap::new(), divisors: BTreeMap::new(), may_correct: false }
    }

    /// Whether runs have shown what products read.
    pub(super) fn know_moments(&self) -> bool {
        !self.calibration.moments.is_empty()
    }

    /// Whether runs have shown how far outputs follow errors.
    pub(super) fn know_effects(&self) -> bool {
        !self.calibration.effects.is_empty()
    }

    /// The part of an error of outputs that estimates may take.
    pub(super) fn error_part(&self) -> f64 {
        self.calibration.error_part
    }

    /// What runs have shown of all that a weight is multiplied with; `None` where they have not.
    pub(super) fn moments(&self, candidate: &Candidate) -> Option<Cow<'_, Moments>> {
        let known: Option<Vec<Cow<'_, Moments>>> =
            candidate.inputs.as_ref()?.iter().map(|&input| self.of_value(input)).collect();
        let mut known = known?.into_iter();
        let fits = |moments: &Moments| moments.channels() as u64 == candidate.matrix.inputs && moments.rows() > 0;
        // Each of several matrices reads values of its own.
        let mut all = known.next().filter(|moments| candidate.matrix.groups == 1 && fits(moments))?;
        for other in known {
            all.to_mut().merge(Some(other).filter(|moments| fits(moments))?.as_ref());
        }
        Some(all)
    }

    fn of_value(&self, input: u32) -> Option<Cow<'_, Moments>> {
        let moments = self.calibration.moments.get(&input)?;
        Some(match self.divisors.get(&input) {
            Some(divisors) if divisors.len() == moments.channels() => Cow::Owned(moments.divided(divisors)),
            Some(_) | None => Cow::Borrowed(moments),
        })
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

    /// From now on the channels of a value are divided by so much, and this is the factor of them.
    pub(super) fn divide(&mut self, graph: &mut Graph, value: u32, divisors: Vec<f32>, factor: Tensor) {
        if let Some(&id) = self.constants.get([value].as_slice()) {
            graph.constant_mut(id).data = ConstantData::Tensor(factor);
        }
        self.divisors.insert(value, divisors);
    }
}
