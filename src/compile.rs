//! Models in, one file out.

mod emission;
mod error;
pub mod folder;
mod opened;
mod optimize;
mod options;

pub use error::CompileError;
pub use ipuc_passes::moments::Calibration;
pub use ipuc_passes::options::{ActivationSparsity, Activations, Budget, Precision, Sparsity, WeightOptions};
pub use ipuc_passes::options::{Joined, Part};
pub use options::{Branch, CompileOptions, Source};

use crate::files::{Destination, OutputFile};
use emission::{emit_options, weights_bytes};
use ipuc_formats::model::Manifest;
use ipuc_passes::emit::{Emitted, NoProgress, Progress, describe as records, emit};
#[cfg(feature = "cross-check")]
use ipuc_passes::import::{CrossCheck, cross_check};
use ipuc_passes::ir::{Graph, Peak};
use ipuc_passes::pipeline::Report;
use opened::{Opened, open};
use optimize::{Attempt, optimize, optimize_to_size};
use std::path::{Path, PathBuf};

/// What came out of a compilation.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// The file's manifest, hash and length.
    pub emitted: Emitted,
    /// Peak live activation memory of each block.
    pub peaks: Vec<Peak>,
    /// What each pass did.
    pub reports: Vec<Report>,
    /// Files that the result depends on.
    pub inputs: Vec<PathBuf>,
    /// For each entry, what tract says of its types and shapes, or why it says nothing; where verifying was asked for.
    #[cfg(feature = "cross-check")]
    pub cross_checks: Vec<(String, Result<CrossCheck, String>)>,
}

/// The output must not be a model or its data: these are still read while it is written.
fn check_output(output: &Path, inputs: &[PathBuf]) -> Result<(), CompileError> {
    let Ok(target) = output.canonicalize() else { return Ok(()) };
    if inputs.iter().any(|input| input.canonicalize().is_ok_and(|input| input == target)) {
        return Err(CompileError::Overwrites { path: output.to_owned() });
    }
    Ok(())
}

/// Compile models into one file, which appears under its name only when it is whole.
///
/// # Errors
/// [`CompileError`] where a model is malformed, holds what is not supported, or the file cannot be written.
pub fn compile(sources: &[Source], output: &Path, options: &CompileOptions) -> Result<Compiled, CompileError> {
    compile_observed(sources, output, options, &NoProgress, &mut |_, _| {})
}

/// The records of the file that [`compile`] would write, without reading or writing a weight: files of weights may even
/// be missing. What the records lack is where weights are in the file, and their hashes.
///
/// # Errors
/// As [`compile`].
pub fn describe(sources: &[Source], options: &CompileOptions) -> Result<Manifest, CompileError> {
    let opened: Vec<Opened> = sources.iter().map(|source| open(source, options)).collect::<Result<_, _>>()?;
    let graph = optimize(&opened, options, Attempt { sizes_only: true, ..Attempt::default() }, &mut |_, _| {})?;
    Ok(records(&graph, &emit_options(options))?)
}

/// [`compile`] to a file or to standard output, with the graph shown after each pass and progress while weights are written.
///
/// # Errors
/// As [`compile`].
pub fn compile_observed<'a>(
    sources: &[Source],
    output: impl Into<Destination<'a>>,
    options: &CompileOptions,
    progress: &dyn Progress,
    observe: &mut dyn FnMut(&Report, &Graph),
) -> Result<Compiled, CompileError> {
    Optimized::new(sources, options, observe)?.write(output, options, progress)
}

/// Models that are imported and optimized, and not written yet.
pub struct Optimized {
    opened: Vec<Opened>,
    graph: Graph,
    reports: Vec<Report>,
    #[cfg(feature = "cross-check")]
    cross_checks: Vec<(String, Result<CrossCheck, String>)>,
}

impl Optimized {
    /// Import models and run all passes, with the graph shown after each.
    ///
    /// # Errors
    /// As [`compile`].
    pub fn new(
        sources: &[Source],
        options: &CompileOptions,
        observe: &mut dyn FnMut(&Report, &Graph),
    ) -> Result<Optimized, CompileError> {
        let opened: Vec<Opened> = sources.iter().map(|source| open(source, options)).collect::<Result<_, _>>()?;
        let mut reports: Vec<Report> = Vec::new();
        #[cfg(feature = "cross-check")]
        let mut cross_checks = Vec::new();
        let mut shown = |report: &Report, graph: &Graph| {
            // Types are known for the first time, and nothing is folded yet.
            #[cfg(feature = "cross-check")]
            if options.verify && report.pass == "infer" && cross_checks.is_empty() {
                let check = |model: &Opened| (model.entry.clone(), cross_check(&model.proto, graph, &model.entry));
                cross_checks = opened.iter().map(check).collect();
            }
            // What a first attempt did that took too much does not count.
            if report.pass == "import" {
                reports.clear();
            }
            reports.push(report.clone());
            observe(report, graph);
        };
        let graph = optimize_to_size(&opened, options, &mut shown)?;
        Ok(Optimized {
            opened,
            graph,
            reports,
            #[cfg(feature = "cross-check")]
            cross_checks,
        })
    }

    /// The records of the file that [`write`](Optimized::write) would write, as [`describe`] gives them.
    ///
    /// # Errors
    /// [`CompileError::Emit`] where a weight cannot be encoded.
    pub fn records(&self, options: &CompileOptions) -> Result<Manifest, CompileError> {
        Ok(records(&self.graph, &emit_options(options))?)
    }

    /// Write the file, which appears under its name only when it is whole.
    ///
    /// # Errors
    /// As [`compile`].
    pub fn write<'a>(
        self,
        output: impl Into<Destination<'a>>,
        options: &CompileOptions,
        progress: &dyn Progress,
    ) -> Result<Compiled, CompileError> {
        let mut inputs: Vec<PathBuf> = self.opened.iter().map(|model| model.file.path().to_owned()).collect();
        inputs.extend(self.opened.iter().flat_map(|model| model.external.paths()));
        let output = output.into();
        let path = match output {
            Destination::Path(path) => {
                check_output(path, &inputs)?;
                path
            }
            Destination::Stdout => Path::new("standard output"),
        };
        let failure = |error| CompileError::Output { path: path.to_owned(), error };
        let file = OutputFile::create(output).map_err(failure)?;
        let emitted = emit(&self.graph, &emit_options(options), &file, progress)?;
        if let Some(Budget::Size(size_bytes)) = options.weights.budget {
            let weights_bytes = weights_bytes(&emitted.manifest);
            if weights_bytes > size_bytes {
                return Err(CompileError::Size { size_bytes, weights_bytes });
            }
        }
        // What was read before and after a change belongs to no model.
        for model in &self.opened {
            model.file.check_unchanged()?;
            model.external.check_unchanged()?;
        }
        file.finish().map_err(failure)?;
        Ok(Compiled {
            emitted,
            peaks: self.graph.peaks.clone(),
            reports: self.reports,
            inputs,
            #[cfg(feature = "cross-check")]
            cross_checks: self.cross_checks,
        })
    }
}
