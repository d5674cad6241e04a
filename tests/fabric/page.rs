//! The page of `--html` in a browser, where there is one.

use super::{SMALL_DECODER, described};
use crate::models::{F16, Weights, decode};
use std::path::Path;
use std::process::Command;

/// A browser that draws without a screen.
fn browser() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
}

fn draw(browser: &str, folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000"]);
    command.arg(format!("--user-data-dir={}", folder.join("profile").display())).args(arguments);
    let output = command.arg(format!("file://{}", folder.join("page.html").display())).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).to_string()
}

#[test]
fn the_page_is_drawn_in_a_browser() {
    let Some(browser) = browser() else {
        eprintln!("left out: there is no Chromium");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let model = decode(F16, 1, 100, &SMALL_DECODER, Weights::I4);
    let steps = described(&model, true).blocks[0].steps.len();
    std::fs::write(folder.join("model.onnx"), model).unwrap();
    let arguments =
        ["simulate", "model.onnx", "--target", "ipu-edge", "--numerics", "bf16", "--set", "policy.weights=tier2"];
    let page = ["--state", "past.*=present.*", "--html", "page.html", "--beside", "a100", "--quiet"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipuc"));
    let output = command.current_dir(folder).args(arguments).args(page).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let drawn = draw(browser, folder, &["--dump-dom"]);
    assert!(!drawn.contains("data-error"), "{}", drawn.split("data-error").nth(1).unwrap_or(""));
    assert!(drawn.contains("data-shown=\"2\""), "the script did not end");
    // Every tile of the machine with a plan has its field.
    let tiles = ipuc_formats::machine::built_in("ipu-edge", &[]).unwrap().unwrap().tiles.count;
    assert!(drawn.contains(&format!("data-drawn=\"{tiles}\"")), "{tiles} tiles");
    // Tiles and two tiers of the one, tiles and a tier of the other.
    assert_eq!(drawn.matches("class=\"occupancy\"").count(), 5);
    let after = drawn.rsplit("</script>").next().unwrap();
    let rows = after.matches("<tr>").count();
    assert!(rows >= 2 * steps, "{rows} rows for {steps} steps, twice");
    assert!(!after.contains("NaN") && !after.contains("undefined"));
    let picture = folder.join("page.png");
    draw(browser, folder, &[&format!("--screenshot={}", picture.display()), "--window-size=1240,5200"]);
    let bytes = std::fs::read(&picture).unwrap();
    assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 50_000, "{} bytes", bytes.len());
    if let Some(kept) = std::env::var_os("IPUC_SCREENSHOT") {
        std::fs::copy(&picture, kept).unwrap();
    }
}
