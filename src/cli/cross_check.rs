//! What tract says of the types of a model's values, beside what `compile --verify` checks by itself.

use super::output::Output;
#[cfg(feature = "cross-check")]
use super::output::count;
use crate::compile::Compiled;
#[cfg(feature = "cross-check")]
use ipuc_passes::import::{CrossCheck, Disagreement};
use serde::Serialize;

#[cfg(feature = "cross-check")]
#[derive(Serialize)]
pub(super) struct CrossCheckSummary {
    entry: String,
    agreeing: usize,
    unknown: usize,
    disagreements: Vec<DisagreementSummary>,
    /// Why tract says nothing, or not all.
    failure: Option<String>,
}

#[cfg(feature = "cross-check")]
#[derive(Serialize)]
struct DisagreementSummary {
    value: String,
    ipuc: String,
    tract: String,
}

/// None is made without the feature `cross-check`.
#[cfg(not(feature = "cross-check"))]
#[derive(Serialize)]
pub(super) enum CrossCheckSummary {}

/// Say of each entry what tract says, and give it for `--json`.
///
/// # Errors
/// Where nothing can be said.
#[cfg(feature = "cross-check")]
pub(super) fn cross_checks(compiled: &Compiled, output: &mut Output) -> anyhow::Result<Vec<CrossCheckSummary>> {
    let found: Vec<CrossCheckSummary> =
        compiled.cross_checks.iter().map(|(entry, found)| summary(entry, found)).collect();
    for check in &found {
        remark(check, output)?;
    }
    Ok(found)
}

/// Say that tract was not asked.
///
/// # Errors
/// Where nothing can be said.
#[cfg(not(feature = "cross-check"))]
pub(super) fn cross_checks(_compiled: &Compiled, output: &mut Output) -> anyhow::Result<Vec<CrossCheckSummary>> {
    output.remark(format_args!(
        "  every pass was checked; built without the feature `cross-check`, nothing was compared with tract"
    ))?;
    Ok(Vec::new())
}

#[cfg(feature = "cross-check")]
fn summary(entry: &str, found: &Result<CrossCheck, String>) -> CrossCheckSummary {
    let (found, failure) = match found {
        Ok(found) => (found.clone(), found.failure.clone()),
        Err(failure) => (CrossCheck::default(), Some(failure.clone())),
    };
    let disagreement = |one: Disagreement| DisagreementSummary { value: one.value, ipuc: one.ours, tract: one.theirs };
    CrossCheckSummary {
        entry: entry.to_string(),
        agreeing: found.agreeing,
        unknown: found.unknown,
        disagreements: found.disagreements.into_iter().map(disagreement).collect(),
        failure,
    }
}

#[cfg(feature = "cross-check")]
fn remark(check: &CrossCheckSummary, output: &mut Output) -> anyhow::Result<()> {
    let entry = &check.entry;
    if let Some(failure) = &check.failure {
        output.remark(format_args!("  tract does not know all types of entry {entry}: {failure}"))?;
    }
    let agreeing = count(check.agreeing, "value");
    output.remark(format_args!("  tract agrees on the types of {agreeing} of entry {entry}"))?;
    for one in &check.disagreements {
        output.remark(format_args!(
            "  tract disagrees on `{}`: it is {} here, {} there",
            one.value, one.ipuc, one.tract
        ))?;
    }
    Ok(())
}
