//! Units of a weight, and cutting them into parts of about a budget.

use super::error::EncodingError;
use super::part::PartRange;

/// How many units a weight has, and where parts may begin and end.
///
/// Units have the same number of bytes where they have the same inputs, so that a part's bytes follow from its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Units {
    /// Units of all groups; 0 where the weight has no bytes.
    pub count: u64,
    /// Units of one group (a matrix, an expert). A part holds whole groups, or units of one group.
    pub per_group: u64,
    /// Parts begin at multiples of this many units and end at one or at the end of the group.
    pub step: u64,
    /// Inputs of a unit; 0 where units are never cut.
    pub inputs: u64,
    /// A single unit is cut between inputs at multiples of this.
    pub cut: u64,
}

impl Units {
    /// Check that a part begins and ends where the units may be cut.
    ///
    /// # Errors
    /// [`EncodingError::Part`] with the rule that is broken.
    pub fn check(&self, range: PartRange) -> Result<(), EncodingError> {
        let illegal = |reason| Err(EncodingError::Part { range, reason });
        let PartRange { start, end, inputs_start, inputs_end } = range;
        if start >= end || end > self.count {
            return illegal("it is empty or ends after the last unit");
        }
        let on_step = |unit: u64| unit.is_multiple_of(self.step) || unit.is_multiple_of(self.per_group);
        if !on_step(start) || !on_step(end) {
            return illegal("it begins or ends within a byte");
        }
        if self.inputs == 0 {
            return if (inputs_start, inputs_end) == (0, 0) { Ok(()) } else { illegal("its units have no inputs") };
        }
        if inputs_start >= inputs_end || inputs_end > self.inputs {
            return illegal("its inputs are empty or end after the last input");
        }
        let whole = (inputs_start, inputs_end) == (0, self.inputs);
        if !whole && end - start != 1 {
            return illegal("only a single unit is cut between inputs");
        }
        let on_cut = |input: u64| input == self.inputs || input.is_multiple_of(self.cut);
        if !on_cut(inputs_start) || !on_cut(inputs_end) {
            return illegal("its inputs are not cut at a multiple of the records of the encoding");
        }
        Ok(())
    }

    /// All inputs of a run of units.
    pub fn run(&self, start: u64, end: u64) -> PartRange {
        PartRange { start, end, inputs_start: 0, inputs_end: self.inputs }
    }

    /// Cut into parts, none larger than `budget_bytes` where there are places to cut; `bytes` says how large a part is.
    ///
    /// Groups under the budget stay whole, larger ones share no part; a unit over the budget is cut between inputs.
    ///
    /// # Errors
    /// What `bytes` gives.
    pub(super) fn split(
        &self,
        budget_bytes: u64,
        bytes: impl Fn(PartRange) -> Result<Option<u64>, EncodingError>,
    ) -> Result<Vec<PartRange>, EncodingError> {
        if self.count == 0 {
            return Ok(Vec::new());
        }
        let step = self.step.min(self.per_group);
        let (Some(step_bytes), Some(group_bytes)) = (bytes(self.run(0, step))?, bytes(self.run(0, self.per_group))?)
        else {
            return Ok(vec![self.run(0, self.count)]);
        };
        let whole = |(start, end)| self.run(start, end);
        if group_bytes <= budget_bytes {
            let groups = budget_bytes / group_bytes.max(1);
            return Ok(runs(0, self.count, groups.saturating_mul(self.per_group)).map(whole).collect());
        }
        let mut parts = Vec::new();
        for first in (0..self.count).step_by(usize::try_from(self.per_group).unwrap_or(usize::MAX)) {
            let last = first + self.per_group;
            if step_bytes <= budget_bytes || self.inputs <= self.cut {
                let units = (budget_bytes / step_bytes).max(1).saturating_mul(self.step);
                parts.extend(runs(first, last, units).map(whole));
                continue;
            }
            // The first inputs may take more bytes than others: planes over all inputs lie with them.
            let first_inputs = PartRange { start: first, end: first + 1, inputs_start: 0, inputs_end: self.cut };
            let cut_bytes = bytes(first_inputs)?.unwrap_or(step_bytes).max(1);
            let inputs = (budget_bytes / cut_bytes).max(1).saturating_mul(self.cut);
            for start in first..last {
                let part = |(inputs_start, inputs_end)| PartRange { start, end: start + 1, inputs_start, inputs_end };
                parts.extend(runs(0, self.inputs, inputs).map(part));
            }
        }
        Ok(parts)
    }
}

/// `start..end` in runs of `length`, the last one shorter.
fn runs(start: u64, end: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut next = start;
    std::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let run = (next, end.min(next.saturating_add(length)));
        next = run.1;
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(units: Units, unit_bytes: u64, input_bytes: u64, budget: u64) -> Vec<(u64, u64, u64, u64)> {
        let bytes = |part: PartRange| {
            let inputs = part.inputs_end - part.inputs_start;
            Ok(Some((part.end - part.start) * if units.inputs == 0 { unit_bytes } else { inputs * input_bytes }))
        };
        let parts = units.split(budget, bytes).unwrap();
        parts.iter().for_each(|&part| units.check(part).unwrap());
        parts.iter().map(|part| (part.start, part.end, part.inputs_start, part.inputs_end)).collect()
    }

    #[test]
    fn groups_under_the_budget_stay_whole_and_larger_ones_share_no_part() {
        let units = Units { count: 12, per_group: 3, step: 1, inputs: 10, cut: 256 };
        // A unit of 640 bytes, a group of 1920.
        assert_eq!(split(units, 0, 64, 4000), [(0, 6, 0, 10), (6, 12, 0, 10)]);
        let expected = [(0, 2), (2, 3), (3, 5), (5, 6), (6, 8), (8, 9), (9, 11), (11, 12)];
        assert_eq!(split(units, 0, 64, 1500), expected.map(|(start, end)| (start, end, 0, 10)));
    }

    #[test]
    fn a_unit_over_the_budget_is_cut_between_inputs() {
        let units = Units { count: 2, per_group: 2, step: 1, inputs: 600, cut: 256 };
        let expected =
            [(0, 1, 0, 256), (0, 1, 256, 512), (0, 1, 512, 600), (1, 2, 0, 256), (1, 2, 256, 512), (1, 2, 512, 600)];
        assert_eq!(split(units, 0, 64, 20_000), expected);
    }

    #[test]
    fn units_that_share_bytes_are_cut_in_steps() {
        let units = Units { count: 7, per_group: 7, step: 2, inputs: 0, cut: 0 };
        assert_eq!(split(units, 2, 0, 4), [(0, 2, 0, 0), (2, 4, 0, 0), (4, 6, 0, 0), (6, 7, 0, 0)]);
        assert_eq!(split(Units { count: 0, ..units }, 2, 0, 4), []);
    }

    #[test]
    fn each_rule_of_parts_is_named() {
        let units = Units { count: 6, per_group: 3, step: 2, inputs: 600, cut: 256 };
        let reason = |start, end, inputs_start, inputs_end| match units.check(PartRange {
            start,
            end,
            inputs_start,
            inputs_end,
        }) {
            Ok(()) => "",
            Err(EncodingError::Part { reason, .. }) => reason,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(reason(0, 2, 0, 600), "");
        assert_eq!(reason(2, 3, 256, 600), "");
        assert_eq!(reason(2, 2, 0, 600), "it is empty or ends after the last unit");
        assert_eq!(reason(2, 7, 0, 600), "it is empty or ends after the last unit");
        assert_eq!(reason(1, 2, 0, 600), "it begins or ends within a byte");
        assert_eq!(reason(0, 2, 0, 601), "its inputs are empty or end after the last input");
        assert_eq!(reason(0, 2, 256, 600), "only a single unit is cut between inputs");
        let records = "its inputs are not cut at a multiple of the records of the encoding";
        assert_eq!(reason(2, 3, 100, 600), records);
        let rows = Units { inputs: 0, ..units };
        let error = rows.check(units.run(0, 2)).unwrap_err();
        assert!(matches!(error, EncodingError::Part { reason: "its units have no inputs", .. }), "{error}");
    }
}
