//! `ipuc cache`: compiled files of `.onnx` models that were run, and what calibration showed.

use super::Outcome;
use super::arguments::Size;
use super::failure::{Code, Failure};
use super::output::{Output, bytes, count, seconds};
use crate::cache::{Cache, FOLDER_VARIABLE, Listed};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is kept, below the options.
const KEPT: &str = "\
`run`, `verify`, `compare`, `bench` and build scripts keep what they compile in
a folder of the user, and `compile --calibrate` what the examples showed. It is
used again until the model, its data, the examples, the options or the program
change. IPUC_CACHE names another folder; where it is empty,
nothing is kept. At most 32 GiB are: what was used least recently leaves.";

/// List or remove compiled files that are kept of .onnx models, and results of calibration
#[derive(Debug, Args)]
#[command(after_help = KEPT)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// Remove what was used least recently until at most this is left, as 2GiB
    #[arg(long, value_name = "SIZE")]
    max: Option<Size>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Action {
    /// List the files, what was used last first [default]
    List,
    /// Remove all files
    Clear,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary<'a> {
    folder: &'a Path,
    files: Vec<File>,
    removed: Vec<File>,
}

#[derive(Serialize)]
struct File {
    file: PathBuf,
    models: Vec<PathBuf>,
    bytes: u64,
    unused_seconds: f64,
}

impl From<Listed> for File {
    fn from(listed: Listed) -> Self {
        let unused_seconds = listed.unused.as_secs_f64();
        File { file: listed.path, models: listed.models, bytes: listed.bytes, unused_seconds }
    }
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let cache = Cache::of_user().ok_or_else(|| {
        Failure::usage("there is no cache: no folder is known for it, or it is turned off")
            .with_hint(format!("name a folder in the environment variable {FOLDER_VARIABLE}"))
    })?;
    let failed = |error| Failure::output(format!("cannot use the cache `{}`", cache.folder().display()), &error);
    let most_bytes = match (arguments.action, arguments.max) {
        (Some(Action::Clear), Some(_)) => {
            return Err(Failure::usage("`clear` leaves nothing: give --max without it").into());
        }
        (Some(Action::Clear), None) => Some(0),
        (Some(Action::List) | None, max) => max.map(|size| size.bytes),
    };
    let removed = most_bytes.map_or_else(|| Ok(Vec::new()), |most_bytes| cache.shrink(most_bytes));
    let removed: Vec<File> = removed.map_err(failed)?.into_iter().map(File::from).collect();
    let files: Vec<File> = cache.list().map_err(failed)?.into_iter().map(File::from).collect();
    if most_bytes.is_some() {
        output.line(format_args!("removed {}, {}", count(removed.len(), "file"), sum(&removed)))?;
    }
    output.line(format_args!("{}: {}, {}", cache.folder().display(), count(files.len(), "file"), sum(&files)))?;
    let row = |file: &File| {
        let models: Vec<String> = file.models.iter().map(|model| model.display().to_string()).collect();
        let unused = Duration::from_secs_f64(file.unused_seconds.round());
        [bytes(file.bytes), format!("unused for {}", seconds(unused)), models.join(", ")]
    };
    output.table(files.iter().map(row).collect())?;
    output.json(&Summary { folder: cache.folder(), files, removed })?;
    Ok(Code::Success)
}

fn sum(files: &[File]) -> String {
    bytes(files.iter().map(|file| file.bytes).sum())
}
