//! The text form is total: each model's graph, after import and after every pass, parses back to an equal graph.
//!
//! The models are the fixtures, and the cases of the folder that `IPUC_CASES` names or of the one beside this checkout;
//! without such a folder the cases are skipped.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests report and panic")]

use ipuc_formats::onnx::{TensorData, TensorSource, read_model};
use ipuc_formats::read_at::ReadAt;
use ipuc_passes::import::{ExternalFiles, ImportError, Model, import};
use ipuc_passes::ir::Graph;
use ipuc_passes::ir::text::{parse, print};
use ipuc_passes::options::Options;
use ipuc_passes::pipeline::run;
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Beside(PathBuf);

impl ExternalFiles for Beside {
    fn open(&self, tensor: &TensorSource) -> Result<Arc<dyn ReadAt>, String> {
        let TensorData::External(data) = tensor.data() else { return Err("no external data".to_string()) };
        let bytes = std::fs::read(self.0.join(&data.location)).map_err(|error| error.to_string())?;
        Ok(Arc::new(bytes))
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

/// Folders that hold a model, in order.
fn models_in(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.join("model.onnx").is_file());
    found.sort();
    found
}

fn round_trips(place: &str, graph: &Graph) {
    let text = print(graph);
    let parsed = parse(&text).unwrap_or_else(|error| panic!("{place}: {error}\n{text}"));
    if let Some(difference) = graph.difference(&parsed) {
        panic!("{place}: {difference}");
    }
}

/// Check these models as entries of one graph after import and after each pass; gives the number of passes that ran.
fn check(folders: &[PathBuf], states: &[&str]) -> Result<usize, ImportError> {
    let read = |folder: &PathBuf| {
        let bytes = Arc::new(std::fs::read(folder.join("model.onnx")).unwrap());
        (folder.file_name().unwrap().to_string_lossy().into_owned(), read_model(&*bytes).unwrap(), bytes)
    };
    let files: Vec<Beside> = folders.iter().cloned().map(Beside).collect();
    let opened: Vec<_> = folders.iter().map(read).collect();
    let models = opened.iter().zip(&files).map(|((entry, proto, bytes), files)| Model {
        entry,
        file_name: "model.onnx",
        proto,
        bytes: bytes.clone(),
        files,
        overridable: &[],
    });
    let mut graph = import(&models.collect::<Vec<_>>())?;
    let place = folders[0].display();
    round_trips(&format!("{place} after import"), &graph);
    let mut passes = 0;
    let options = Options { states: states.iter().map(ToString::to_string).collect(), ..Options::default() };
    run(&mut graph, &options, &mut |report, graph| {
        passes += 1;
        round_trips(&format!("{place} after {} ({passes})", report.pass), graph);
    })
    .unwrap();
    Ok(passes)
}

#[test]
fn fixtures_parse_back_to_equal_graphs() {
    let folders = models_in(&fixtures());
    assert!(folders.len() >= 6, "{folders:?}");
    for folder in folders {
        let passes = check(std::slice::from_ref(&folder), &[]).unwrap();
        assert!(passes > 5, "{}: {passes} passes", folder.display());
    }
    let entries = models_in(&fixtures().join("entries"));
    assert_eq!(entries.len(), 2);
    check(&entries, &["total=total_out"]).unwrap();
}

#[test]
fn cases_parse_back_to_equal_graphs() {
    let folder = std::env::var_os("IPUC_CASES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases"), PathBuf::from);
    if !folder.is_dir() {
        eprintln!("skipped: there is no folder of cases at {} (set IPUC_CASES)", folder.display());
        return;
    }
    let folders = models_in(&folder);
    let mut checked = 0;
    for case in &folders {
        match check(std::slice::from_ref(case), &[]) {
            Ok(_) => checked += 1,
            // Operators of other domains.
            Err(ImportError::Refused(nodes)) => {
                eprintln!("skipped: {} of the nodes of {} are not supported", nodes.len(), case.display());
            }
            Err(error) => panic!("{}: {error}", case.display()),
        }
    }
    assert!(checked > 0, "{} cases in {} are all refused", folders.len(), folder.display());
}
