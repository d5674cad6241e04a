//! The outputs of a simulated run: those of the runtime, whatever the machine is, and the zeros on the way to them.

use super::Arguments;
use crate::cli::execute::{DimensionArguments, Loaded, ModelArguments, gather};
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::cli::progress::running;
use crate::cli::run::{load_state, store};
use crate::cli::sizes::{Beginning, Sizes};
use crate::files::SourceFile;
use crate::simulate::ZeroMaps;
use anyhow::Context;
use ipuc_formats::dim::Bindings;
use ipuc_formats::machine::{Target, ZeroMap};
use ipuc_formats::model::{Manifest, read_manifest};
use ipuc_formats::value::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a run of the program gave.
pub(super) struct Computed {
    /// The program that ran.
    pub(super) manifest: Manifest,
    /// Sizes of the dimensions of the inputs.
    pub(super) bindings: Bindings,
    /// Where values were zero, for a machine that leaves zeros out.
    pub(super) zeros: BTreeMap<u32, Arc<ZeroMap>>,
    outputs: Vec<(String, Value)>,
}

impl Computed {
    /// The outputs by name.
    pub(super) fn outputs(&self) -> &[(String, Value)] {
        &self.outputs
    }
}

/// Run the program on the inputs that are given, and store the outputs where they are to go.
pub(super) fn compute(arguments: &Arguments, target: &Target, output: &mut Output) -> anyhow::Result<Computed> {
    if !arguments.state.is_empty() {
        let failure = Failure::usage("--state and inputs do not go together");
        return Err(failure.with_hint("compile the model with --state first, and simulate the .ipu file").into());
    }
    let name = arguments.entry.as_deref();
    let dimensions = DimensionArguments { dim: arguments.dim.clone() };
    let loaded = Loaded::open(&ModelArguments::of(&arguments.model, name), &dimensions, output)?;
    let entry = loaded.model.entry(name)?;
    // State is empty before a run, unless it goes on from somewhere.
    let beginning = if arguments.load_state.is_some() { Beginning::Given } else { Beginning::Fresh };
    let sizes = Sizes { dimensions: &arguments.dim, beginning };
    let inputs = gather(&loaded, entry, &arguments.inputs, sizes, output)?;
    let mut session = loaded.session()?;
    if let Some(path) = &arguments.load_state {
        load_state(&mut session, path)?;
    }
    // The model has given its records of weights away.
    let (_, manifest) = read_manifest(&SourceFile::open(&loaded.file)?)
        .with_context(|| format!("cannot open `{}`", loaded.file.display()))?;
    let running = running(output, &mut session, "running");
    let mut zeros = ZeroMaps::new(&manifest);
    // Machines of a sweep, or beside this one, may leave zeros out where this one does not.
    let counts = target.zeros.is_some() || !arguments.sweep.is_empty() || arguments.beside.is_some();
    let outputs = match counts {
        true => session.run_observed(name, inputs.values, &mut zeros)?,
        false => session.run(name, inputs.values)?,
    };
    drop(running);
    if zeros.is_incomplete {
        let failure = Failure::memory("there is no memory for the places of zeros among the activations");
        return Err(failure.with_hint("state the shares of zeros with --zeros").into());
    }
    if let Some(target) = &arguments.output {
        store(&outputs, target)?;
    }
    Ok(Computed { manifest, bindings: inputs.bindings, zeros: zeros.maps, outputs })
}
