//! Predictions beside measurements: the page in the sources is what the models predict today, and they are as near as it says.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use crate::report;

#[test]
fn the_page_of_predictions_is_current_and_they_are_near_what_was_measured() {
    let judged = report::judge().unwrap();
    let page = report::page(&judged);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/formats/src/machine/VALIDATION.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), page);
    let errors = report::errors(&judged, None);
    assert!(errors.len() >= 90, "{} rows judge", errors.len());
    let median = report::median(&errors).unwrap();
    assert!(median <= 0.10, "median error {median}");
    let near = errors.iter().filter(|&&error| error <= 0.25).count();
    assert!(near * 10 >= errors.len() * 9, "{near} of {} within 25 %", errors.len());
    let far: Vec<&str> = judged.iter().filter(|row| row.error() > 1.0).map(|row| row.row.name).collect();
    assert!(far.is_empty(), "off by more than a factor of two: {far:?}");
    // A row that is missed has a sentence.
    let silent = judged.iter().filter(|row| row.error() > 0.25 && row.row.remark.is_empty());
    let silent: Vec<&str> = silent.map(|row| row.row.name).collect();
    assert!(silent.is_empty(), "missed without a word: {silent:?}");
}
