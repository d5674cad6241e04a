//! Cutting a weight into parts of about a budget, on the borders of its layout.

use super::layout::{byte_border, packed_bytes, rows_of};
use super::{EncodingError, Layout, PanelLayout, PartRange};
use crate::dtype::DType;

/// A single panel over the budget is cut at multiples of this many inputs.
pub const INPUTS_BORDER: u64 = 256;

impl Layout {
    /// The parts of a weight of this shape, none larger than `budget_bytes` where the layout has borders for that.
    ///
    /// Plain weights are cut between rows (a row over the budget is a part of its own). Panels are cut between
    /// panels; matrices under the budget stay whole, larger ones share no part; a panel over the budget is cut
    /// between inputs. Strings are one part. A weight without bytes has no parts.
    ///
    /// # Errors
    /// [`EncodingError`] where the layout does not fit the shape.
    pub fn split(&self, shape: &[u64], budget_bytes: u64) -> Result<Vec<PartRange>, EncodingError> {
        let overflow = || EncodingError::TooLarge { shape: shape.to_vec() };
        match self {
            Layout::Plain { dtype } => {
                let (rows, row_elements) = rows_of(shape).ok_or_else(overflow)?;
                Ok(split_rows(*dtype, rows, row_elements, budget_bytes))
            }
            Layout::Panels(panels) => {
                self.stored_bytes(shape)?;
                split_panels(panels, budget_bytes).ok_or_else(overflow)
            }
            Layout::Strings => {
                let (rows, row_elements) = rows_of(shape).ok_or_else(overflow)?;
                let empty = rows == 0 || row_elements == 0;
                Ok(if empty {
                    Vec::new()
                } else {
                    vec![PartRange { start: 0, end: 1, inputs_start: 0, inputs_end: 0 }]
                })
            }
        }
    }
}

fn split_rows(dtype: DType, rows: u64, row_elements: u64, budget_bytes: u64) -> Vec<PartRange> {
    if rows == 0 || row_elements == 0 {
        return Vec::new();
    }
    // Rows of sub-byte elements: the fewest that end on a byte.
    let step = (1..=8).find(|&rows| byte_border(dtype, rows, row_elements).is_some()).unwrap_or(8);
    let step_bytes = packed_bytes(dtype, row_elements.saturating_mul(step)).unwrap_or(u64::MAX).max(1);
    let rows_per_part = (budget_bytes / step_bytes).max(1).saturating_mul(step);
    runs(0, rows, rows_per_part).map(|(start, end)| PartRange { start, end, inputs_start: 0, inputs_end: 0 }).collect()
}

fn split_panels(layout: &PanelLayout, budget_bytes: u64) -> Option<Vec<PartRange>> {
    let panels = layout.panel_count()?;
    if panels == 0 || layout.inputs == 0 {
        return Some(Vec::new());
    }
    let panel_bytes = layout.panel_bytes(layout.inputs)?;
    let per_group = layout.panels_per_group();
    let group_bytes = per_group.checked_mul(panel_bytes)?;
    let whole = |(start, end)| PartRange { start, end, inputs_start: 0, inputs_end: layout.inputs };
    if group_bytes <= budget_bytes {
        let groups_per_part = budget_bytes / group_bytes;
        return Some(runs(0, panels, groups_per_part.saturating_mul(per_group)).map(whole).collect());
    }
    let mut parts = Vec::new();
    for group in 0..layout.groups {
        let (first, last) = (group * per_group, (group + 1) * per_group);
        if panel_bytes <= budget_bytes {
            parts.extend(runs(first, last, budget_bytes / panel_bytes).map(whole));
            continue;
        }
        let inputs_bytes = layout.panel_bytes(INPUTS_BORDER)?;
        let inputs_per_part = (budget_bytes / inputs_bytes).max(1) * INPUTS_BORDER;
        for panel in first..last {
            parts.extend(runs(0, layout.inputs, inputs_per_part).map(|(inputs_start, inputs_end)| PartRange {
                start: panel,
                end: panel + 1,
                inputs_start,
                inputs_end,
            }));
        }
    }
    Some(parts)
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

    fn plain(dtype: DType) -> Layout {
        Layout::Plain { dtype }
    }

    fn rows(parts: &[PartRange]) -> Vec<(u64, u64)> {
        parts.iter().map(|part| (part.start, part.end)).collect()
    }

    #[test]
    fn rows_are_kept_whole() {
        let parts = plain(DType::F32).split(&[10, 3], 50).unwrap();
        assert_eq!(rows(&parts), [(0, 4), (4, 8), (8, 10)]);
        let parts = plain(DType::F32).split(&[2, 1000], 50).unwrap();
        assert_eq!(rows(&parts), [(0, 1), (1, 2)]);
        assert_eq!(rows(&plain(DType::F32).split(&[], 50).unwrap()), [(0, 1)]);
        assert_eq!(plain(DType::F32).split(&[5, 0], 50).unwrap(), []);
        assert_eq!(plain(DType::F32).split(&[0, 5], 50).unwrap(), []);
    }

    #[test]
    fn rows_of_nibbles_are_cut_between_bytes() {
        // Three nibbles a row: an even number of rows.
        let parts = plain(DType::U4).split(&[7, 3], 4).unwrap();
        assert_eq!(rows(&parts), [(0, 2), (2, 4), (4, 6), (6, 7)]);
        for part in &parts {
            plain(DType::U4).part_bytes(&[7, 3], part).unwrap();
        }
        let odd = PartRange { start: 1, end: 7, inputs_start: 0, inputs_end: 0 };
        assert!(plain(DType::U4).part_bytes(&[7, 3], &odd).is_err());
    }

    #[test]
    fn matrices_under_the_budget_stay_whole_and_larger_ones_share_no_part() {
        let mut layout = PanelLayout::matrix(DType::F32, 40, 10, 0);
        layout.groups = 4;
        // A panel is 640 bytes, a matrix of three panels 1920.
        let parts = split_panels(&layout, 4000).unwrap();
        assert_eq!(rows(&parts), [(0, 6), (6, 12)]);
        let parts = split_panels(&layout, 1500).unwrap();
        assert_eq!(rows(&parts), [(0, 2), (2, 3), (3, 5), (5, 6), (6, 8), (8, 9), (9, 11), (11, 12)]);
    }

    #[test]
    fn a_panel_over_the_budget_is_cut_between_inputs() {
        let layout = PanelLayout::matrix(DType::F32, 20, 600, 1);
        let parts = split_panels(&layout, 20_000).unwrap();
        let inputs: Vec<_> = parts.iter().map(|part| (part.start, part.inputs_start, part.inputs_end)).collect();
        assert_eq!(inputs, [(0, 0, 256), (0, 256, 512), (0, 512, 600), (1, 0, 256), (1, 256, 512), (1, 512, 600)]);
        let total: u64 = parts
            .iter()
            .map(|part| Layout::Panels(layout.clone()).part_bytes(&[600, 20], part).unwrap().unwrap())
            .sum();
        assert_eq!(total, Layout::Panels(layout).stored_bytes(&[600, 20]).unwrap());
    }
}
