//! From the text of a target file to a [`Target`], with errors that name file, line and key.

use super::target::{Home, Matrix, Target};
use super::units::Bytes;
use std::collections::HashMap;
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
    check(&target).map_err(|(key, reason)| error_at(file, text, find(text, &key), reason))?;
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

/// What the types do not say: keys, as `--set` names them, and reasons.
fn check(target: &Target) -> Result<(), (String, String)> {
    let failure = |key: &str, reason: &str| Err((key.to_string(), reason.to_string()));
    if target.name.is_empty() {
        return failure("name", "it is empty");
    }
    if target.tiles.reserved >= target.tiles.sram {
        return failure("tiles.reserved", "nothing of the memory of a tile is left");
    }
    let unusable = |matrix: &Matrix| matrix.types.is_empty() || matrix.group().0 <= 0.0;
    if let Some(index) = target.matrix.iter().position(unusable) {
        let key = if target.matrix[index].types.is_empty() { "types" } else { "pass" };
        return failure(
            &format!("matrix.{index}.{key}"),
            "a matrix unit needs types, and a pass of more than 0 cycles",
        );
    }
    if target.energy.limit.is_some_and(|limit| limit <= target.energy.static_power) {
        return failure("energy.limit", "what is drawn whatever happens is no less");
    }
    if let Some(thermal) = &target.thermal {
        if thermal.limit <= thermal.ambient {
            return failure("thermal.limit", "the surroundings are no colder");
        }
        if thermal.power() <= target.energy.static_power {
            let reason =
                format!("what is drawn whatever happens is no less than the {} that it lets out", thermal.power());
            return failure("thermal.resistance", &reason);
        }
    }
    check_memories(target)
}

/// That each tier holds something, and that what lives in one has it.
fn check_memories(target: &Target) -> Result<(), (String, String)> {
    if let Some(index) = target.tiers.iter().position(|tier| tier.capacity < SMALLEST_TIER) {
        let name = &target.tiers[index].name;
        let reason = format!("tier `{name}` is smaller than one panel of weights ({SMALLEST_TIER})");
        return Err((format!("tiers.{index}.capacity"), reason));
    }
    let homes = [
        ("policy.weights", target.policy.weights),
        ("policy.activations", target.policy.activations),
        ("policy.state", target.policy.state),
        ("policy.io", target.policy.io),
    ];
    for (key, home) in homes {
        let needed = match home {
            Home::Auto | Home::Sram => 0,
            Home::Tier2 => 1,
            Home::Tier3 => 2,
        };
        if target.tiers.len() < needed {
            let reason = match target.tiers.len() {
                0 => "there is the memory of tiles only",
                _ => "there are tiles and tier 2 only",
            };
            return Err((key.to_string(), reason.to_string()));
        }
    }
    if !target.tiles.holds_weights && target.tiers.is_empty() {
        let reason = "weights have no place: tiles do not hold them and there is no tier";
        return Err(("tiles.holds_weights".to_string(), reason.to_string()));
    }
    Ok(())
}

/// Where a key is assigned, which names its tables, and numbers those of an array; where it is not, its table begins.
fn find(text: &str, key: &str) -> Range<usize> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let (mut table, mut offset, mut begun) = (String::new(), 0, 0..0);
    for line in text.split_inclusive('\n') {
        let span = offset..offset + line.len();
        offset += line.len();
        let content = line.split('#').next().unwrap_or("").trim();
        if let Some(name) = content.strip_prefix("[[").and_then(|rest| rest.strip_suffix("]]")) {
            let count = counts.entry(name.trim()).or_insert(0);
            table = format!("{}.{count}.", name.trim());
            *count += 1;
        } else if let Some(name) = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            table = format!("{}.", name.trim());
        } else if content.split_once('=').is_some_and(|(name, _)| key.strip_prefix(&table) == Some(name.trim())) {
            return span;
        } else {
            continue;
        }
        if key.starts_with(&table) {
            begun = span;
        }
    }
    begun
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
