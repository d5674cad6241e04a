//! Predictions beside measurements: the page in the sources is what the models predict today.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

#[path = "../benches/validate/models.rs"]
mod models;
#[path = "../benches/validate/report.rs"]
mod report;
#[path = "../benches/validate/rows.rs"]
mod rows;

#[test]
fn the_page_of_predictions_is_current() {
    let page = report::page(&report::judge().unwrap());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/formats/src/machine/VALIDATION.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), page);
}
