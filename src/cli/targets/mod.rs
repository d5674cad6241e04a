//! `ipuc targets`: machines that programs can be simulated on.

mod calibrate;
mod microbenchmarks;

use super::Outcome;
use super::failure::{Code, Failure};
use super::output::Output;
use crate::cache::{Cache, FOLDER_VARIABLE};
use crate::files::SourceFile;
use clap::{Args, Subcommand};
use ipuc_formats::dtype::DType;
use ipuc_formats::machine::{BUILT_IN, Target, read_target_with};
use ipuc_formats::read_at::ReadAt;
use serde_json::json;
use std::path::{Path, PathBuf};

/// List the machines that programs can be simulated on, or print the description of one
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The machine, by its name or its file
    #[arg(value_name = "NAME|FILE.toml")]
    name: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Calibrate(calibrate::Arguments),
}

/// `KEY=VALUE`.
#[derive(Debug, Clone)]
pub(super) struct Replaced {
    pub(super) key: String,
    pub(super) value: String,
}

impl std::str::FromStr for Replaced {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Replaced { key: key.to_string(), value: value.to_string() }),
            Some(_) | None => Err("expected KEY=VALUE".to_string()),
        }
    }
}

/// The name of this machine, once `ipuc targets calibrate` has measured it.
const HOST: &str = "host";

/// Where the description of this machine is kept: beside compiled models; `None` where nothing is kept.
fn host_file() -> Option<PathBuf> {
    Cache::of_user().map(|cache| cache.folder().join(HOST).with_extension("toml"))
}

/// The text of the description of this machine, which must have been measured.
fn host_text() -> anyhow::Result<(String, String)> {
    let failure = Failure::usage("this machine has not been measured");
    let Some(path) = host_file() else {
        let hint = format!(
            "`ipuc targets calibrate -o FILE.toml` measures it, and --target FILE.toml names the file: {FOLDER_VARIABLE} is \
             empty, so that nothing is kept"
        );
        return Err(failure.with_hint(hint).into());
    };
    if !path.exists() {
        let hint = format!("`ipuc targets calibrate` measures it and keeps what it finds in `{}`", path.display());
        return Err(failure.with_hint(hint).into());
    }
    Ok((path.display().to_string(), file_text(&path)?))
}

/// The text of a description, with the name that errors call it.
fn text(name: &str) -> anyhow::Result<(String, String)> {
    if let Some((known, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
        return Ok((format!("{known}.toml"), (*text).to_string()));
    }
    if name == HOST {
        return host_text();
    }
    if Path::new(name).extension().is_none_or(|extension| extension != "toml") {
        let known: Vec<&str> = BUILT_IN.iter().map(|(known, _)| *known).collect();
        let failure = Failure::usage(format!("there is no target `{name}`"));
        return Err(failure.with_hint(format!("name a file .toml, {HOST}, or one of {}", known.join(", "))).into());
    }
    Ok((name.to_string(), file_text(Path::new(name))?))
}

fn file_text(path: &Path) -> anyhow::Result<String> {
    let file = SourceFile::open(path)?;
    /// A description is some kilobytes.
    const MOST_BYTES: u64 = 1 << 20;
    let (name, bytes) = (path.display(), file.length());
    if bytes > MOST_BYTES {
        return Err(
            Failure::file(format!("`{name}` has {bytes} bytes, too many for the description of a machine")).into()
        );
    }
    let mut content = vec![0; bytes as usize];
    file.read_exact_at(0, &mut content)?;
    Ok(String::from_utf8(content).map_err(|_| Failure::file(format!("`{name}` is no text")))?)
}

/// The machine of a name or file, with values replaced.
pub(super) fn target(name: &str, replaced: &[Replaced]) -> anyhow::Result<Target> {
    let (file, text) = text(name)?;
    let replaced: Vec<(String, String)> =
        replaced.iter().map(|replaced| (replaced.key.clone(), replaced.value.clone())).collect();
    Ok(read_target_with(&file, &text, &replaced)?)
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    if let Some(Command::Calibrate(arguments)) = &arguments.command {
        return calibrate::run(arguments, output);
    }
    if let Some(name) = &arguments.name {
        let (file, text) = text(name)?;
        let target = read_target_with(&file, &text, &[])?;
        output.line(text.trim_end())?;
        output.json(&json!({"targets": [target]}))?;
        return Ok(Code::Success);
    }
    let mut rows = vec![["name", "style", "tiles", "memory", "peak MAC/s", "description"].map(str::to_string)];
    let mut all = Vec::new();
    let built_in = BUILT_IN.iter().map(|(name, text)| (format!("{name}.toml"), text.to_string()));
    let measured = host_file().filter(|path| path.exists()).map(|_| host_text()).transpose()?;
    for (file, text) in built_in.chain(measured) {
        let target = read_target_with(&file, &text, &[])?;
        let style: &'static str = target.style.into();
        let peaks = target.matrix.iter().flat_map(|unit| &unit.types);
        let peaks = peaks.filter_map(|&dtype: &DType| target.peak_macs_per_second(dtype));
        let peak = peaks.fold(0.0, f64::max);
        rows.push([
            target.name.clone(),
            style.to_string(),
            target.tiles.count.to_string(),
            (target.tiles.sram * f64::from(target.tiles.count.get())).to_string(),
            format!("{:.1} T", peak / 1e12),
            target.description.clone(),
        ]);
        all.push(target);
    }
    output.table(rows)?;
    output.json(&json!({"targets": all}))?;
    Ok(Code::Success)
}
