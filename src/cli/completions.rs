//! `ipuc completions`: a script that completes commands and flags in a shell.

use super::failure::Code;
use super::output::Output;
use super::{Cli, Outcome};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use serde_json::json;

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments, output: &mut Output) -> Outcome {
    // The generator ends the program where it cannot write, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "ipuc", &mut script);
    if output.is_json() {
        let script = String::from_utf8_lossy(&script);
        output.json(&json!({ "shell": arguments.shell.to_string(), "script": script }))?;
    } else {
        output.stdout().write_all(&script)?;
    }
    Ok(Code::Success)
}
