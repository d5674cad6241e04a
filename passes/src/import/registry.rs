//! All import tables together: which row lowers an operator of a given version.

use crate::import::lower_error::LowerError;
use crate::import::lowering::Row;
use crate::import::tables;
use std::collections::HashMap;
use std::sync::LazyLock;

/// Newest operator set of the default domain that is known.
pub const NEWEST_OPSET: i64 = 28;

/// Rows of each operator, oldest first.
static ROWS: LazyLock<HashMap<(&'static str, &'static str), Vec<&'static Row>>> = LazyLock::new(|| {
    let mut by_name: HashMap<_, Vec<&'static Row>> = HashMap::new();
    for row in tables().flatten() {
        by_name.entry((row.domain, row.name)).or_default().push(row);
    }
    for rows in by_name.values_mut() {
        rows.sort_by_key(|row| row.since);
    }
    by_name
});

/// The newest row of an operator that is not newer than `opset`.
pub fn find(domain: &str, name: &str, opset: i64) -> Option<&'static Row> {
    let rows: &HashMap<(&str, &str), Vec<&'static Row>> = &ROWS;
    rows.get(&(domain, name))?.iter().rev().find(|row| row.since <= opset).copied()
}

/// Every row, sorted by domain, name and version.
pub fn all() -> Vec<&'static Row> {
    let mut rows: Vec<&'static Row> = ROWS.values().flatten().copied().collect();
    rows.sort_by_key(|row| (row.domain, row.name, row.since));
    rows
}

/// Element types that an operator takes, by the names of the specification's type variables: `T: f32 f64; I: i32 i64`.
pub fn element_types(domain: &str, name: &str) -> Option<&'static str> {
    static TYPES: LazyLock<HashMap<&'static str, &'static str>> = LazyLock::new(|| {
        let lines = include_str!("element_types.txt").lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| line.split_once("  ")).collect()
    });
    let dot = if domain.is_empty() { "" } else { "." };
    TYPES.get(format!("{domain}{dot}{name}").as_str()).copied()
}

/// Refuse versions of the default operator set that are newer than what is known. Older ones are for the rows: an
/// operator that has not changed since is the same.
pub fn check_opset(domain: &str, opset: i64) -> Result<(), LowerError> {
    if domain.is_empty() && opset > NEWEST_OPSET {
        let known = format!("operator set {opset} (the newest known is {NEWEST_OPSET})");
        return Err(LowerError::Unsupported(known));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_version_has_two_rows() {
        for (name, rows) in ROWS.iter() {
            assert!(rows.windows(2).all(|pair| pair[0].since < pair[1].since), "{name:?}");
        }
    }
}
