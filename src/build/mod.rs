//! For build scripts: compile a model while a program is built, and give the program a typed handle to it.
//!
//! ```toml
//! [dependencies]
//! ipuc = { version = "0.1", default-features = false, features = ["run"] }
//! [build-dependencies]
//! ipuc = { version = "0.1", default-features = false, features = ["compile"] }
//! ```
//!
//! In `build.rs`:
//!
//! ```no_run
//! fn main() -> Result<(), ipuc::build::BuildError> {
//!     ipuc::build::compile("models/digits.onnx")
//! }
//! ```
//!
//! In the program, where the model has an input `image` and an output `scores`:
//!
//! ```ignore
//! ipuc::include_model!(digits);
//!
//! let mut session = digits::Model::embedded()?.session(&ipuc::SessionOptions::default())?;
//! let outputs = session.main(digits::MainInputs { image: ipuc::Array::new([1, 784], pixels) })?;
//! println!("{:?}", outputs.scores.elements);
//! ```
//!
//! The compiled file and the handle go to `OUT_DIR`; the program is built again when the model or its external data
//! change. A later build into an empty folder copies the file from the [`cache`](crate::cache). `Model::embedded` uses a copy
//! inside the program. A file of more than [`EMBEDDED_BYTES`] is left beside the program instead, in the folder of the profile
//! (`target/release`), and the handle has `Model::beside`; [`compile_beside`] does so with any. Install it with the program.
//! `Model::open` reads any copy: `PATH` says where it was built.
//!
//! Build scripts are not optimized unless the workspace says so, and then compile some fifty times slower; a large model is
//! warned about:
//!
//! ```toml
//! [profile.dev.build-override]
//! opt-level = 3
//! [profile.release.build-override]
//! opt-level = 3
//! ```

mod generate;

use crate::cache::Cache;
use crate::compile::{CompileError, CompileOptions, Source};
use generate::Copied;
use ipuc_formats::model::Manifest;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why a model cannot be compiled for a build.
///
/// Its `Debug` form is that of its `Display`, since a build script that returns an error shows it so.
#[derive(Error)]
pub enum BuildError {
    /// Not called by a build script.
    #[error("OUT_DIR is not set: this is for build scripts, which cargo runs")]
    NoOutputFolder,
    /// The name cannot be that of a module.
    #[error("`{0}` has no file name that could name a module")]
    Name(PathBuf),
    /// The model cannot be compiled.
    #[error("{}", sentence(path, error))]
    Compile {
        /// The model.
        path: PathBuf,
        /// Why.
        error: Box<CompileError>,
    },
    /// The handle cannot be written.
    #[error("cannot write `{}`: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system reports.
        error: std::io::Error,
    },
}

fn sentence(path: &Path, error: &CompileError) -> String {
    if error.names_file() { error.to_string() } else { format!("cannot compile `{}`: {error}", path.display()) }
}

impl fmt::Debug for BuildError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Compile a model, for [`include_model!`](crate::include_model) under the name of its file.
///
/// # Errors
/// [`BuildError`] where it cannot be compiled or cargo does not run this.
pub fn compile(model: impl AsRef<Path>) -> Result<(), BuildError> {
    let model = model.as_ref();
    let stem = model.file_stem().map(|stem| generate::snake_case(&stem.to_string_lossy()));
    let name = stem.ok_or_else(|| BuildError::Name(model.to_owned()))?;
    let source = Source { entry: "main".to_string(), path: model.to_owned() };
    compile_with(&name, &[source], &CompileOptions::default())
}

/// The largest compiled file that becomes a part of the program.
pub const EMBEDDED_BYTES: u64 = 64 << 20;

/// [`compile`] with options, or several models as entries; `name` is that of the module.
///
/// # Errors
/// As [`compile`].
pub fn compile_with(name: &str, models: &[Source], options: &CompileOptions) -> Result<(), BuildError> {
    compile_for(name, models, options, EMBEDDED_BYTES)
}

/// [`compile_with`], with the compiled file beside the program, however small it is.
///
/// # Errors
/// As [`compile`].
pub fn compile_beside(name: &str, models: &[Source], options: &CompileOptions) -> Result<(), BuildError> {
    compile_for(name, models, options, 0)
}

fn compile_for(name: &str, models: &[Source], options: &CompileOptions, embedded_bytes: u64) -> Result<(), BuildError> {
    let folder = std::env::var_os("OUT_DIR").map(PathBuf::from).ok_or(BuildError::NoOutputFolder)?;
    // Said first, so that a model that does not compile is tried again once it has changed.
    models.iter().for_each(|model| rerun_if_changed(&model.path));
    let file = folder.join(format!("{name}.ipu"));
    let begun = Instant::now();
    let (manifest, inputs) = compile_or_copy(models, options, &file)?;
    let elapsed = begun.elapsed();
    inputs.iter().for_each(|path| rerun_if_changed(path));
    let written = |path: &Path, error| BuildError::Write { path: path.to_owned(), error };
    let bytes = std::fs::metadata(&file).map_err(|error| written(&file, error))?.len();
    if let Some(hint) = hint(bytes, elapsed, &std::env::var("PROFILE").unwrap_or_default()) {
        warn(&hint);
    }
    let copied = if bytes > embedded_bytes { Copied::Beside } else { Copied::Inside };
    // `target/PROFILE/build/PACKAGE/out`
    if let (Copied::Beside, Some(profile)) = (copied, folder.ancestors().nth(3)) {
        let beside = profile.join(format!("{name}.ipu"));
        leave(&file, &beside).map_err(|error| written(&beside, error))?;
    }
    let module = folder.join(format!("{name}.rs"));
    let code = generate::module(name, &file, &manifest, copied);
    std::fs::write(&module, code).map_err(|error| BuildError::Write { path: module, error })
}

/// The file in a second place, without a second copy of its bytes where the file system can.
fn leave(file: &Path, beside: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(beside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    std::fs::hard_link(file, beside).or_else(|_| std::fs::copy(file, beside).map(|_| ()))
}

/// Bytes that are compiled in a second at least where code is optimized: it reads, packs and writes some hundred megabytes.
const OPTIMIZED_BYTES: f64 = (40 << 20) as f64;

/// How a large model compiles faster, where it took so long that this code is not optimized: build scripts are not, in release
/// builds either, and nothing else tells them so.
fn hint(bytes: u64, elapsed: Duration, profile: &str) -> Option<String> {
    if bytes <= EMBEDDED_BYTES || bytes as f64 >= OPTIMIZED_BYTES * elapsed.as_secs_f64() {
        return None;
    }
    let profile = if profile == "release" { "release" } else { "dev" };
    Some(format!(
        "a large model compiles much faster with optimized build scripts: write `opt-level = 3` below \
         [profile.{profile}.build-override] into Cargo.toml"
    ))
}

#[allow(clippy::print_stdout, reason = "stdout is how a build script talks to cargo")]
fn warn(text: &str) {
    println!("cargo:warning={text}");
}

/// Write the compiled file; gives what is in it, and what it was made from.
fn compile_or_copy(
    models: &[Source],
    options: &CompileOptions,
    file: &Path,
) -> Result<(Manifest, Vec<PathBuf>), BuildError> {
    let cache = Cache::of_user();
    if let Some(cache) = &cache
        && let Some(kept) = cache.find(models, options)
        && std::fs::copy(&kept.path, file).is_ok()
    {
        return Ok((kept.manifest, kept.inputs));
    }
    let place = cache.as_ref().and_then(|cache| cache.place(models, options).ok());
    let compiled = crate::compile::compile(models, file, options).map_err(|error| {
        let path = models.first().map(|model| model.path.clone()).unwrap_or_default();
        BuildError::Compile { path, error: Box::new(error) }
    })?;
    if let (Some(cache), Some(place)) = (cache, place) {
        // A build does not fail where there is no room to keep what it has made.
        let _ = std::fs::copy(file, &place.path).and_then(|_| cache.keep(&place, models, &compiled));
    }
    Ok((compiled.emitted.manifest, compiled.inputs))
}

#[allow(clippy::print_stdout, reason = "stdout is how a build script talks to cargo")]
fn rerun_if_changed(path: &Path) {
    println!("cargo:rerun-if-changed={}", path.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_model_that_takes_long_has_a_hint() {
        let gigabyte = 1 << 30;
        // As measured: unoptimized and optimized.
        let slow = hint(gigabyte, Duration::from_secs(101), "release").unwrap();
        assert!(slow.contains("[profile.release.build-override]"), "{slow}");
        assert!(hint(gigabyte, Duration::from_secs(101), "debug").unwrap().contains("[profile.dev.build-override]"));
        assert_eq!(hint(gigabyte, Duration::from_millis(1500), "release"), None);
        assert_eq!(hint(EMBEDDED_BYTES, Duration::from_secs(101), "release"), None);
    }
}
