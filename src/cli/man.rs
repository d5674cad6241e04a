//! `ipuc man`: manual pages of the program and its commands, made of what `--help` says.

use super::failure::{Code, Failure};
use super::output::{Output, count};
use super::{Cli, Outcome};
use clap::{Args, Command, CommandFactory as _};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Write the manual pages of the program and its commands
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The folder for ipuc.1, ipuc-run.1, .., as ~/.local/share/man/man1; it is made where it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    let folder = &arguments.folder;
    let unwritten =
        |path: &Path, error: &std::io::Error| Failure::output(format!("cannot write `{}`", path.display()), error);
    std::fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
    let mut program = Cli::command();
    program.build();
    let mut files = Vec::new();
    for (name, command) in pages(&program) {
        let path = folder.join(format!("{name}.1"));
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(command).title(&name).render(&mut page);
        rendered.and_then(|()| std::fs::write(&path, &page)).map_err(|error| unwritten(&path, &error))?;
        files.push(path);
    }
    output.line(format_args!("{} in {}", count(files.len(), "page"), folder.display()))?;
    output.json(&json!({ "files": files }))?;
    Ok(Code::Success)
}

/// The program and each command, under the name of its page: `ipuc`, `ipuc-run`, `ipuc-cache-list`.
fn pages(program: &Command) -> Vec<(String, Command)> {
    let mut pages = Vec::new();
    let mut pending = vec![(program.get_name().to_string(), program.clone())];
    while let Some((name, command)) = pending.pop() {
        let shown = command.get_subcommands().filter(|command| command.get_name() != "help" && !command.is_hide_set());
        pending.extend(shown.map(|below| (format!("{name}-{}", below.get_name()), below.clone())));
        pages.push((name, command));
    }
    pages.sort_by(|(one, _), (other, _)| one.cmp(other));
    pages
}
