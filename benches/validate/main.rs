//! Predictions beside measurements on real machines.
//!
//! `cargo bench --bench validate` prints the page, `-- --write` writes it to `formats/src/machine/VALIDATION.md`, and
//! `-- --steps TARGET` prints what the time of each row of a machine is made of.
#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use anyhow::Context;

mod experts;
mod layers;
#[allow(dead_code, reason = "tests use the rest")]
mod models;
mod report;
mod rows;
mod steps;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(position) = arguments.iter().position(|argument| argument == "--steps") {
        let target = arguments.get(position + 1).context("`--steps` needs the name of a target")?;
        print!("{}", steps::page(target)?);
        return Ok(());
    }
    let page = report::page(&report::judge()?);
    if arguments.iter().any(|argument| argument == "--write") {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/formats/src/machine/VALIDATION.md"), page)?;
        return Ok(());
    }
    print!("{page}");
    Ok(())
}
