//! Figures that benchmarks take and give.

use anyhow::{Context, Result};

/// `8GiB`, `512MiB` or plain bytes.
pub fn bytes_of(text: &str) -> Result<u64> {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("", 1)];
    let split = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = split.context("a size ends in GiB or MiB, or is plain bytes")?;
    Ok(number.parse::<u64>().with_context(|| format!("{text} is no size"))? * factor)
}

/// The value in the middle, the upper one of two; at least one value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
