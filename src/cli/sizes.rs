//! Sizes of open dimensions: what the user says, what inputs show, what the equations of the program tell, and for the rest
//! sizes that fit.

use super::arguments::Dimension;
use super::failure::Failure;
use crate::compile::CompileError;
use ipuc_formats::dim::{Bindings, Dim, Solution, solve_for};
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{EntryRecord, Growth, Manifest};
use ipuc_formats::ops::{Obligation, Relation};
use ipuc_formats::value::Value;
use ipuc_runtime::{Port, RunError, follow_equations};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What state holds when an entry runs, as far as sizes depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beginning {
    /// Nothing yet: state that grows has no positions.
    Fresh,
    /// As many positions as the user says, made up; else nothing yet.
    MadeUp,
    /// Contents from elsewhere, which decide no sizes here.
    Given,
}

/// What decides sizes besides inputs.
#[derive(Clone, Copy)]
pub(super) struct Sizes<'a> {
    pub(super) dimensions: &'a [Dimension],
    pub(super) beginning: Beginning,
}

impl Sizes<'_> {
    /// Sizes of dimensions by what the user says and by the inputs that are given.
    ///
    /// # Errors
    /// [`CompileError::UnknownDimension`] where the user names one that is not there, [`RunError`] where inputs do not fit.
    pub(super) fn bind(
        self,
        manifest: &Manifest,
        entry: &EntryRecord,
        ports: &[Port],
        given: &[(String, Value)],
    ) -> anyhow::Result<Bindings> {
        let mut known: BTreeSet<Arc<str>> = ports.iter().flat_map(|port| port.kind.symbols()).collect();
        if self.beginning == Beginning::MadeUp {
            known.extend(states(manifest, entry).flat_map(|state| state.kind.symbols()));
        }
        let mut bindings = Bindings::new();
        for dimension in self.dimensions {
            let Some(value) = dimension.value() else { continue };
            if !known.contains(dimension.name.as_str()) {
                let (name, known) = (dimension.name.clone(), known.iter().map(ToString::to_string).collect());
                return Err(CompileError::UnknownDimension { name, known }.into());
            }
            bindings.insert(dimension.name.as_str(), value);
        }
        // A dimension such as `past + seq` waits until others have bound all but one of its symbols.
        loop {
            let before = bindings.len();
            for port in ports {
                let Some((_, value)) = given.iter().find(|(name, _)| *name == port.name) else { continue };
                let (Some((_, Shape::Ranked(dims))), Some(tensor)) = (port.kind.as_tensor(), value.as_tensor()) else {
                    continue;
                };
                for (axis, (dim, &found)) in dims.iter().zip(tensor.shape()).enumerate() {
                    solve(&port.name, axis, dim, found, &mut bindings)?;
                }
            }
            if bindings.len() == before {
                return Ok(bindings);
            }
        }
    }

    /// Choose sizes for dimensions that are open: what equations tell of them, else the least that their range allows, but
    /// no zero.
    ///
    /// # Errors
    /// [`Failure`] where the sizes contradict an obligation of the program.
    pub(super) fn choose(
        self,
        manifest: &Manifest,
        entry: &EntryRecord,
        open: &[Arc<str>],
        bindings: &mut Bindings,
    ) -> Result<(), Failure> {
        follow_equations(manifest, bindings);
        if self.beginning != Beginning::Given {
            for state in states(manifest, entry) {
                // A dimension that is known already says how much is made up.
                if let Some(positions) = state.positions()
                    && let Ok(Solution::Solved { symbol, value: 0 }) = solve_for(positions, 0, bindings)
                {
                    bindings.insert(symbol, 0);
                }
            }
        }
        loop {
            follow_equations(manifest, bindings);
            let Some(symbol) = next(manifest, open, bindings) else { break };
            let range = manifest.symbols.iter().find(|record| record.name == *symbol);
            bindings.insert(symbol, range.map_or(1, |record| record.minimum.max(1)));
        }
        match manifest.obligations.iter().find(|obligation| obligation.holds(bindings) == Some(false)) {
            Some(obligation) => Err(contradiction(obligation, bindings)),
            None => Ok(()),
        }
    }
}

/// The dimension to choose next: one that equations tell as soon as others are chosen comes last.
fn next(manifest: &Manifest, open: &[Arc<str>], bindings: &Bindings) -> Option<Arc<str>> {
    let mut unbound = open.iter().filter(|symbol| bindings.get(symbol).is_none());
    let follows = |symbol: &Arc<str>| {
        let equations = manifest.obligations.iter().filter(|one| one.relation == Relation::Equal);
        let mut sides = equations.flat_map(|one| [(&one.left, &one.right), (&one.right, &one.left)]);
        sides.any(|(side, other)| side.as_symbol() == Some(symbol) && !other.symbols().contains(symbol))
    };
    unbound.clone().find(|symbol| !follows(symbol)).or_else(|| unbound.next()).cloned()
}

fn contradiction(obligation: &Obligation, bindings: &Bindings) -> Failure {
    let Obligation { relation, left, right, subject } = obligation;
    let said = |dim: &Dim| match dim.evaluate(bindings) {
        Ok(value) if !dim.is_known() => format!("{dim} = {value}"),
        Ok(_) | Err(_) => dim.to_string(),
    };
    let must = match relation {
        Relation::Equal => "must equal",
        Relation::Broadcastable => "must equal (or one must be 1)",
        Relation::AtMost => "must be at most",
        Relation::Multiple => "must be a multiple of",
    };
    let failure = Failure::usage(format!("sizes do not fit: {} {must} {} ({subject})", said(left), said(right)));
    let alone = |side: &Dim, other: &Dim| Some((side.as_symbol()?.to_string(), other.evaluate(bindings).ok()?));
    let told = match relation {
        Relation::Equal => alone(left, right).or_else(|| alone(right, left)),
        Relation::AtMost => alone(left, right),
        Relation::Broadcastable | Relation::Multiple => None,
    };
    failure.with_hint(match told {
        Some((symbol, value)) => format!("give --dim {symbol}={value}, or other sizes that fit"),
        None => "give sizes that fit with --dim NAME=N".to_string(),
    })
}

/// A state that an entry takes as an input.
pub(super) struct StateInput<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'a Type,
    growth: Option<Growth>,
}

impl StateInput<'_> {
    /// How many positions it has, where runs append to it.
    pub(super) fn positions(&self) -> Option<&Dim> {
        let growth = self.growth.filter(|growth| !growth.overwritten)?;
        self.kind.as_tensor()?.1.dims()?.get(growth.axis as usize)
    }
}

/// The states that an entry takes as inputs.
pub(super) fn states<'a>(manifest: &'a Manifest, entry: &'a EntryRecord) -> impl Iterator<Item = StateInput<'a>> {
    let block = &manifest.blocks[entry.block as usize];
    entry.states.iter().filter_map(|used| {
        let record = &manifest.states[used.state as usize];
        let kind = &block.values[used.input? as usize].kind;
        Some(StateInput { name: &record.name, kind, growth: record.growth })
    })
}

fn solve(name: &str, axis: usize, dim: &Dim, found: usize, bindings: &mut Bindings) -> Result<(), RunError> {
    let mismatch =
        |expected: &Dim| RunError::InputShape { name: name.to_string(), axis, expected: expected.to_string(), found };
    let actual = i64::try_from(found).map_err(|_| mismatch(dim))?;
    match solve_for(dim, actual, bindings).map_err(|_| mismatch(dim))? {
        Solution::Satisfied | Solution::Undetermined { .. } => Ok(()),
        Solution::Solved { symbol, value } => {
            bindings.insert(symbol, value);
            Ok(())
        }
        Solution::Contradiction { expression } => Err(mismatch(&expression)),
    }
}
