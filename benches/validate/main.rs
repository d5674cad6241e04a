//! Predictions beside measurements on real machines.
//!
//! `cargo bench --bench validate` prints the page, `-- --write` writes it to `formats/src/machine/VALIDATION.md`.
#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

mod models;
mod report;
mod rows;

fn main() -> anyhow::Result<()> {
    let page = report::page(&report::judge()?);
    if std::env::args().any(|argument| argument == "--write") {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/formats/src/machine/VALIDATION.md"), page)?;
        return Ok(());
    }
    print!("{page}");
    Ok(())
}
