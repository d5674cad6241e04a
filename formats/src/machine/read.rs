//! From the text of a target file to a [`Target`], with errors that name file, line and key.

use super::target::{Home, Target};
use super::units::Bytes;
use std::ops::Range;
use thiserror::Error;

/// What a tier must hold at least: a panel of 16 outputs of 1024 inputs in f32.
pub const SMALLEST_TIER: Bytes = Bytes(65_536.0);

/// Why a text is not the description of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}{}, key `{key}`: {reason}", place(*line))]
pub struct TargetError {
    /// Name of the file.
    pub file: String,
    /// Line, from 1 on; 0 for a value that was given in place of that in the file.
    pub line: usize,
    /// The key on that line, or the table that the line is in.
    pub key: String,
    /// What is wrong.
    pub reason: String,
}

fn place(line: usize) -> String {
    if line == 0 { " with values replaced".to_string() } else { format!(", line {line}") }
}

/// Read the description of a machine.
///
/// # Errors
/// [`TargetError`] for what is no TOML, a key that is unknown or missing, a value without a unit or out of its range.
pub fn read_target(file: &str, text: &str) -> Result<Target, TargetError> {
    let target: Target = toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        error_at(file, text, span, error.message().trim().replace('\n', ", "))
    })?;
    check(&target).map_err(|(key, reason)| error_at(file, text, find(text, key), reason))?;
    Ok(target)
}

/// Read the description of a machine with some of its values replaced: `tiles.sram` and `512KiB`, `tiers.0.read` and
/// `1 TB/s`.
///
/// # Errors
/// [`TargetError`] as [`read_target`], and where a key is not in the file or the description no longer holds.
pub fn read_target_with(file: &str, text: &str, replaced: &[(String, String)]) -> Result<Target, TargetError> {
    let target = read_target(file, text)?;
    if replaced.is_empty() {
        return Ok(target);
    }
    // What the file leaves out is there with its default.
    let failure =
        |key: &str, reason: String| TargetError { file: file.to_string(), line: 0, key: key.to_string(), reason };
    let mut table = toml::Value::try_from(&target).map_err(|error| failure("", error.to_string()))?;
    for (key, value) in replaced {
        let slot = slot(&mut table, key).ok_or_else(|| failure(key, "there is no such key".to_string()))?;
        *slot = match &*slot {
            toml::Value::Integer(_) => value.parse().map(toml::Value::Integer).ok(),
            toml::Value::Float(_) => value.parse().map(toml::Value::Float).ok(),
            toml::Value::Boolean(_) => value.parse().map(toml::Value::Boolean).ok(),
            toml::Value::String(_) => Some(toml::Value::String(value.clone())),
            toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => None,
        }
        .ok_or_else(|| failure(key, format!("`{value}` is no value for it")))?;
        let text = toml::to_string(&table).map_err(|error| failure(key, error.to_string()))?;
        read_target(file, &text).map_err(|error| failure(key, error.reason))?;
    }
    let text = toml::to_string(&table).map_err(|error| failure("", error.to_string()))?;
    read_target(file, &text).map_err(|error| failure(&error.key, error.reason.clone()))
}

/// The value behind a dotted key; numbers count the tables of an array.
fn slot<'a>(table: &'a mut toml::Value, key: &str) -> Option<&'a mut toml::Value> {
    key.split('.').try_fold(table, |value, part| match value {
        toml::Value::Table(table) => table.get_mut(part),
        toml::Value::Array(items) => items.get_mut(part.parse::<usize>().ok()?),
        _ => None,
    })
}

/// What the types do not say: keys and reasons.
fn check(target: &Target) -> Result<(), (&'static str, String)> {
    if target.name.is_empty() {
        return Err(("name", "it is empty".to_string()));
    }
    if target.tiles.reserved >= target.tiles.sram {
        return Err(("reserved", "nothing of the memory of a tile is left".to_string()));
    }
    if let Some(matrix) = target.matrix.iter().find(|matrix| matrix.types.is_empty() || matrix.pass.0 <= 0.0) {
        let key = if matrix.types.is_empty() { "types" } else { "pass" };
        return Err((key, "a matrix unit needs types, and a pass of more than 0 cycles".to_string()));
    }
    if target.energy.limit.is_some_and(|limit| limit <= target.energy.static_power) {
        return Err(("energy.limit", "what is drawn whatever happens is no less".to_string()));
    }
    if let Some(thermal) = &target.thermal {
        if thermal.limit <= thermal.ambient {
            return Err(("thermal.limit", "the surroundings are no colder".to_string()));
        }
        if thermal.power() <= target.energy.static_power {
            let reason =
                format!("what is drawn whatever happens is no less than the {} that it lets out", thermal.power());
            return Err(("thermal.resistance", reason));
        }
    }
    if let Some(tier) = target.tiers.iter().find(|tier| tier.capacity < SMALLEST_TIER) {
        return Err((
            "capacity",
            format!("tier `{}` is smaller than one panel of weights ({SMALLEST_TIER})", tier.name),
        ));
    }
    let homes = [
        ("weights", target.policy.weights),
        ("activations", target.policy.activations),
        ("state", target.policy.state),
    ];
    for (key, home) in homes {
        let needed = match home {
            Home::Auto | Home::Sram => 0,
            Home::Tier2 => 1,
            Home::Tier3 => 2,
        };
        if target.tiers.len() < needed {
            return Err((
                key,
                format!(
                    "there {} only",
                    match target.tiers.len() {
                        0 => "is the memory of tiles".to_string(),
                        _ => "are tiles and tier 2".to_string(),
                    }
                ),
            ));
        }
    }
    if !target.tiles.holds_weights && target.tiers.is_empty() {
        return Err((
            "holds_weights",
            "weights have no place: tiles do not hold them and there is no tier".to_string(),
        ));
    }
    Ok(())
}

/// Where a key is assigned, in the table that it names where it names one.
fn find(text: &str, key: &str) -> Range<usize> {
    let mut offset = 0;
    let (table, key) = key.split_once('.').map_or((None, key), |(table, key)| (Some(table), key));
    let mut inside = table.is_none();
    for line in text.split_inclusive('\n') {
        if let Some(table) = table.filter(|_| line.starts_with('[')) {
            inside = line.trim().trim_matches(['[', ']']) == table;
        }
        if inside && line.split('=').next().is_some_and(|name| name.trim() == key) {
            return offset..offset + line.len();
        }
        offset += line.len();
    }
    0..0
}

fn error_at(file: &str, text: &str, span: Range<usize>, reason: String) -> TargetError {
    let before = text.get(..span.start).unwrap_or("");
    let line = before.matches('\n').count();
    let own = text.lines().nth(line).unwrap_or("");
    let key = match own.split_once('=') {
        Some((key, _)) => key.trim().to_string(),
        None => own.trim().trim_matches(['[', ']']).to_string(),
    };
    TargetError { file: file.to_string(), line: line + 1, key, reason }
}
