//! Binds symbolic dimensions to the inputs of one run, and checks what only a bind can decide.

use crate::error::RunError;
use ipuc_formats::dim::{Bindings, Dim, Solution, solve_for};
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{EntryRecord, Manifest};
use ipuc_formats::ops::{Obligation, Relation};

/// An input as the entry declares it: name and type.
pub(crate) struct Declared<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: &'a Type,
}

/// Values of all symbols that the inputs of an entry name, which have these types with known extents.
///
/// # Errors
/// [`RunError`] where an input does not have its declared type, or an obligation does not hold.
pub(crate) fn bind(
    manifest: &Manifest,
    entry: &EntryRecord,
    declared: &[Declared<'_>],
    kinds: &[Type],
) -> Result<Bindings, RunError> {
    let bindings = bind_symbols(declared, kinds)?;
    check_ranges(manifest, &bindings)?;
    for obligation in &manifest.obligations {
        check_obligation(obligation, &bindings, entry)?;
    }
    Ok(bindings)
}

/// Values of the symbols that these inputs name.
///
/// # Errors
/// [`RunError`] where an input does not have its declared type.
pub(crate) fn bind_symbols(declared: &[Declared<'_>], kinds: &[Type]) -> Result<Bindings, RunError> {
    let mut bindings = Bindings::new();
    let mut open: Vec<(&str, usize, &Dim, usize)> = Vec::new();
    for (input, kind) in declared.iter().zip(kinds) {
        check_kind(input, kind)?;
        let Some((_, Shape::Ranked(dims))) = input.kind.as_tensor() else { continue };
        let Some(extents) = kind.as_tensor().and_then(|(_, shape)| shape.as_known()) else { continue };
        open.extend(dims.iter().zip(extents).enumerate().map(|(axis, (dim, found))| (input.name, axis, dim, found)));
    }
    // A dimension such as `past + seq` waits until others have bound all but one of its symbols.
    loop {
        let before = open.len();
        let mut waiting = Vec::new();
        for (name, axis, dim, found) in open {
            if !solve_one(name, axis, dim, found, &mut bindings)? {
                waiting.push((name, axis, dim, found));
            }
        }
        open = waiting;
        if open.is_empty() || open.len() == before {
            break;
        }
    }
    Ok(bindings)
}

/// Adds the symbols that equations of the model tell from those that are bound, such as an extent that must be 64.
pub fn follow_equations(manifest: &Manifest, bindings: &mut Bindings) {
    let equations = || manifest.obligations.iter().filter(|one| one.relation == Relation::Equal);
    loop {
        let mut found = Vec::new();
        for (one, other) in equations().flat_map(|one| [(&one.left, &one.right), (&one.right, &one.left)]) {
            let Ok(value) = one.evaluate(bindings) else { continue };
            // What contradicts is for the bind to tell.
            if let Ok(Solution::Solved { symbol, value }) = solve_for(other, value, bindings)
                && value >= 0
            {
                found.push((symbol, value));
            }
        }
        if found.is_empty() {
            return;
        }
        for (symbol, value) in found {
            bindings.insert(symbol, value);
        }
    }
}

fn check_kind(input: &Declared<'_>, found: &Type) -> Result<(), RunError> {
    let mismatch = || RunError::InputType {
        name: input.name.to_string(),
        expected: input.kind.to_string(),
        found: found.to_string(),
    };
    let fits = match (input.kind, found) {
        (Type::Tensor { dtype, shape }, Type::Tensor { dtype: found, shape: found_shape }) => {
            dtype == found && shape.rank().is_none_or(|rank| Some(rank) == found_shape.rank())
        }
        (Type::Sequence(_), Type::Sequence(_)) | (Type::Optional(_), Type::Optional(_)) => true,
        (Type::Map { key, .. }, Type::Map { key: found, .. }) => key == found,
        (Type::Tensor { .. } | Type::Sequence(_) | Type::Optional(_) | Type::Map { .. }, _) => false,
    };
    if fits { Ok(()) } else { Err(mismatch()) }
}

/// True where the dimension is settled: it has its value, or its last symbol got one.
fn solve_one(name: &str, axis: usize, dim: &Dim, found: usize, bindings: &mut Bindings) -> Result<bool, RunError> {
    let mismatch =
        |expected: &Dim| RunError::InputShape { name: name.to_string(), axis, expected: expected.to_string(), found };
    let actual = i64::try_from(found).map_err(|_| mismatch(dim))?;
    match solve_for(dim, actual, bindings).map_err(|_| mismatch(dim))? {
        Solution::Satisfied => Ok(true),
        Solution::Solved { value, .. } if value < 0 => Err(mismatch(dim)),
        Solution::Solved { symbol, value } => {
            bindings.insert(symbol, value);
            Ok(true)
        }
        Solution::Contradiction { expression } => Err(mismatch(&expression)),
        Solution::Undetermined { .. } => Ok(false),
    }
}

fn check_ranges(manifest: &Manifest, bindings: &Bindings) -> Result<(), RunError> {
    for symbol in &manifest.symbols {
        let Some(value) = bindings.get(&symbol.name) else { continue };
        if !(symbol.minimum..=symbol.maximum).contains(&value) {
            return Err(RunError::OutOfRange {
                symbol: symbol.name.clone(),
                value,
                minimum: symbol.minimum,
                maximum: symbol.maximum,
            });
        }
    }
    Ok(())
}

/// Whether a relation holds; symbols of other entries leave it open, which is no failure.
fn check_obligation(obligation: &Obligation, bindings: &Bindings, entry: &EntryRecord) -> Result<(), RunError> {
    if obligation.holds(bindings) != Some(false) {
        return Ok(());
    }
    let said = |side: &Dim| match side.evaluate(bindings) {
        Ok(value) => format!("{side} = {value}"),
        Err(_) => side.to_string(),
    };
    Err(RunError::Obligation {
        entry: entry.name.clone(),
        subject: obligation.subject.clone(),
        left: said(&obligation.left),
        right: said(&obligation.right),
    })
}
