//! The command line: one file a command, each a set of arguments and one function `run`.
//!
//! Shared by commands: `arguments` (what flags hold), `execute` (opening models and gathering inputs), `random` (inputs
//! that are made up), `sizes` (of open dimensions), `language` (opening language models), `opening` (what is said of it), `interrupt` (Ctrl-C), `output` (stdout, JSON),
//! `written` (files beside the result), `progress` (what is under way) and `failure` (which error is which exit code). Data goes to
//! stdout, everything else to stderr.

mod arguments;
mod bench;
mod cache;
mod chat;
mod compare;
mod compile;
mod completions;
mod cross_check;
mod examples;
mod execute;
mod failure;
mod generate;
mod inspect;
mod interrupt;
mod language;
mod listing;
mod man;
mod observed;
mod opening;
mod ops;
mod output;
mod present;
mod profile;
mod progress;
mod random;
mod run;
mod scratch;
mod serve;
mod signature;
mod simulate;
mod sizes;
mod steps;
mod streamed;
mod targets;
mod verify;
mod written;

use clap::{Parser, Subcommand};
use failure::Code;
use output::Output;
use std::io::Write as _;
use std::process::ExitCode;

/// Compile ONNX models into execution-ordered files, and run them.
#[derive(Debug, Parser)]
#[command(name = "ipuc", version, about, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 success, 1 a negative result (a mismatch, a failed check), 2 usage (a wrong flag; \
    a wrong input name, element type or shape), 3 a file that is bad or holds what is not supported, 4 resources \
    (memory, disk), 5 a file that is not there, 128 and the number of the signal that ended it."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print the result as one JSON object
    #[arg(long, global = true, display_order = 100)]
    json: bool,
    /// Print results and errors only
    #[arg(long, short, global = true, display_order = 101)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compile(compile::Arguments),
    Run(run::Arguments),
    Generate(generate::Arguments),
    Chat(chat::Arguments),
    Serve(serve::Arguments),
    Verify(verify::Arguments),
    Compare(compare::Arguments),
    Bench(bench::Arguments),
    Inspect(inspect::Arguments),
    Simulate(simulate::Arguments),
    Targets(targets::Arguments),
    Cache(cache::Arguments),
    Ops(ops::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

/// Run the command that the program was called with.
#[must_use]
pub fn main() -> ExitCode {
    let code = match Cli::try_parse() {
        Ok(cli) => run(&cli),
        Err(error) => show(&error),
    };
    ExitCode::from(code.unwrap_or_else(|error| failure::report(&error)) as u8)
}

fn run(cli: &Cli) -> Outcome {
    interrupt::listen()?;
    let mut output = Output::new(cli.json, cli.quiet);
    let code = match &cli.command {
        Command::Compile(arguments) => compile::run(arguments, &mut output),
        Command::Run(arguments) => run::run(arguments, &mut output),
        Command::Generate(arguments) => generate::run(arguments, &mut output),
        Command::Chat(arguments) => chat::run(arguments, &mut output),
        Command::Serve(arguments) => serve::run(arguments, &mut output),
        Command::Verify(arguments) => verify::run(arguments, &mut output),
        Command::Compare(arguments) => compare::run(arguments, &mut output),
        Command::Bench(arguments) => bench::run(arguments, &mut output),
        Command::Inspect(arguments) => inspect::run(arguments, &mut output),
        Command::Simulate(arguments) => simulate::run(arguments, &mut output),
        Command::Targets(arguments) => targets::run(arguments, &mut output),
        Command::Cache(arguments) => cache::run(arguments, &mut output),
        Command::Ops(arguments) => ops::run(arguments, &mut output),
        Command::Completions(arguments) => completions::run(arguments, &mut output),
        Command::Man(arguments) => man::run(arguments, &mut output),
    }?;
    output.flush()?;
    Ok(code)
}

/// What the command line is told in place of a command: help, the version, or what is wrong with it.
fn show(error: &clap::Error) -> Outcome {
    error.print()?;
    std::io::stdout().flush()?;
    Ok(if error.use_stderr() { Code::Usage } else { Code::Success })
}

/// What a command came to.
type Outcome = anyhow::Result<Code>;
