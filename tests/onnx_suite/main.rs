//! The ONNX backend suite: every case of the package `onnx`, within the tolerances that the suite states.
//!
//! `tests/onnx_suite/cases.py` says how the cases are got; without Python and the package the test says so and passes.
//! What fails is listed with its reason in `tests/onnx_suite/expected_failures.txt`: a case that is not listed must pass,
//! one that is listed must fail, so that the list only shrinks. Outputs that are drawn at random (`skipped.txt`) have the type and
//! shape that is expected, and are not compared.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::folding::{self, Elements, Single};
use ipuc::compare::{Tolerance, compare};
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::{Model, Session, SessionOptions, Value};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Type;
use ipuc_formats::for_each_operator;
use ipuc_formats::onnx::read_value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two units in the last place of bfloat16, as the suite has it.
const BF16_RELATIVE: f64 = 1.0 / 64.0;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx_suite")
}

/// A case of the suite.
struct Case {
    /// Kind and name.
    name: String,
    folder: PathBuf,
    relative: f64,
    absolute: f64,
}

impl Case {
    fn of(folder: PathBuf) -> Case {
        let tolerances = std::fs::read_to_string(folder.join("tolerances")).unwrap();
        let (relative, absolute) = tolerances.split_once(' ').unwrap();
        let name = folder.file_name().unwrap().to_str().unwrap().to_string();
        Case { name, relative: relative.parse().unwrap(), absolute: absolute.parse().unwrap(), folder }
    }

    fn model(&self) -> PathBuf {
        match std::fs::read_to_string(self.folder.join("path")) {
            Ok(path) => PathBuf::from(path),
            Err(_) => self.folder.join("model.onnx"),
        }
    }

    /// The folders of its data sets in order.
    fn sets(&self) -> Vec<PathBuf> {
        let folders = (0..).map(|number| self.folder.join(format!("test_data_set_{number}")));
        folders.take_while(|folder| folder.is_dir()).collect()
    }

    fn tolerance(&self, value: &Value) -> Tolerance {
        let narrow = value.as_tensor().is_some_and(|tensor| tensor.dtype() == DType::BF16);
        let relative = if narrow { self.relative.max(BF16_RELATIVE) } else { self.relative };
        Tolerance { relative: Some(relative), absolute: Some(self.absolute), ..Tolerance::default() }
    }

    fn compiled(&self) -> Result<Model, String> {
        let scratch = tempfile::tempdir().unwrap();
        let output = scratch.path().join("model.ipu");
        let source = Source { entry: "main".to_string(), path: self.model() };
        compile(&[source], &output, &CompileOptions::default()).map_err(|error| error.to_string())?;
        ipuc::open(&output).map_err(|error| error.to_string())
    }

    /// The model with its inputs, where it is one node, and its inputs are tensors and there are some.
    fn single(&self, model: Model) -> Option<Single> {
        let bytes = std::fs::read(self.folder.join("model.onnx")).ok()?;
        let mut inputs = Vec::new();
        for (index, port) in model.inputs(model.entry(None).unwrap()).into_iter().enumerate() {
            let Type::Tensor { .. } = port.kind else { return None };
            inputs.push((port.name, read(&self.folder.join("test_data_set_0"), "input", index, &port.kind)?.unwrap()));
        }
        if inputs.is_empty() { None } else { Single::new(&bytes, model, inputs) }
    }

    /// Compile the case and run its data sets, then with what it computes computed while compiling; `compared`: the outputs are
    /// those of the suite.
    fn outcome(&self, compared: bool) -> Outcome {
        let model = match self.compiled() {
            Ok(model) => model,
            Err(reason) => return Outcome { passed: Err(reason), folded: Ok(BTreeSet::new()) },
        };
        let passed = self.sets().iter().try_for_each(|set| self.run_set(&model, set, compared));
        let folded = self.single(model).map_or(Ok(BTreeSet::new()), |single| {
            for &elements in Elements::ALL {
                single.check(elements).map_err(|reason| format!("{elements:?}: {reason}"))?;
            }
            single.folded()
        });
        Outcome { passed, folded }
    }

    fn run_set(&self, model: &Model, set: &Path, compared: bool) -> Result<(), String> {
        let entry = model.entry(None).unwrap();
        let ports = model.inputs(entry).into_iter().enumerate();
        let inputs: Result<Vec<(String, Value)>, String> = ports
            .filter_map(|(index, port)| Some((port.name, read(set, "input", index, &port.kind)?)))
            .map(|(name, value)| Ok((name, value?)))
            .collect();
        let mut session = Session::new(model, &SessionOptions { threads: 1, seed: 0 }).unwrap();
        let outputs = session.run(None, inputs?).map_err(|error| error.to_string())?;
        for (index, (name, found)) in outputs.iter().enumerate() {
            let expected = read(set, "output", index, &found.kind()).ok_or_else(|| format!("no output {index}"))??;
            if !compared {
                if found.kind() != expected.kind() {
                    return Err(format!("output `{name}` is {}, expected {}", found.kind(), expected.kind()));
                }
                continue;
            }
            compare(name, found, &expected, self.tolerance(found)).map_err(|mismatch| mismatch.to_string())?;
        }
        Ok(())
    }
}

/// What a case gives.
struct Outcome {
    passed: Result<(), String>,
    /// Operators that were computed while compiling, with the bits of a run.
    folded: Result<BTreeSet<&'static str>, String>,
}

/// The value in a file of a data set; `None` without the file, which stands for an optional that is left out.
fn read(set: &Path, role: &str, index: usize, kind: &Type) -> Option<Result<Value, String>> {
    let bytes = std::fs::read(set.join(format!("{role}_{index}.pb"))).ok()?;
    Some(read_value(&bytes, kind).map_err(|error| format!("{role} {index}: {error}")))
}

/// A line that is seen also where the output of passing tests is not.
fn report(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Write all cases; `None` where that cannot be, with the reason printed.
fn write_cases(target: &Path) -> Option<Vec<Case>> {
    let python = std::env::var_os("IPUC_PYTHON").unwrap_or_else(|| "python3".into());
    let written = Command::new(&python).arg(folder().join("cases.py")).arg(target).output();
    let reason = match written {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(reason) = reason {
        let last = reason.lines().last().unwrap_or_default().to_string();
        let python = python.display();
        report(&format!(
            "ONNX backend suite: skipped, {python} cannot write the cases ({last}); see tests/onnx_suite/cases.py"
        ));
        return None;
    }
    let mut cases: Vec<Case> =
        std::fs::read_dir(target).unwrap().map(|entry| Case::of(entry.unwrap().path())).collect();
    cases.sort_by(|left, right| left.name.cmp(&right.name));
    Some(cases)
}

/// Cases of a list, and why they are in it: `KIND.NAME  reason`, a line each.
fn listed(list: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(folder().join(list)).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap()).map(|(name, why)| (name.into(), why.trim().into())).collect()
}

/// What each case gives, by name, on as many threads as there are processors.
fn outcomes(cases: &[Case], outcome: impl Fn(&Case) -> Outcome + Sync) -> BTreeMap<String, Outcome> {
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = outcome(case);
                    outcomes.lock().unwrap().insert(case.name.clone(), outcome);
                }
            });
        }
    });
    outcomes.into_inner().unwrap()
}

/// Every case passes that is not listed, and what is computed while compiling is what a run computes.
#[test]
fn every_case_passes_that_is_not_listed_and_has_the_same_bits_computed_while_compiling() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cases) = write_cases(scratch.path()) else { return };
    assert!(cases.len() > 2000, "{} cases", cases.len());
    let (expected, skipped) = (listed("expected_failures.txt"), listed("skipped.txt"));
    let gone: Vec<&String> = skipped.keys().filter(|name| !cases.iter().any(|case| case.name == **name)).collect();
    assert!(gone.is_empty(), "no cases, and must leave skipped.txt: {gone:#?}");
    let outcomes = outcomes(&cases, |case| case.outcome(!skipped.contains_key(&case.name)));
    let failed = outcomes.iter().filter_map(|(name, outcome)| Some((name, outcome.passed.as_ref().err()?)));
    let failed: BTreeMap<&String, &String> = failed.collect();
    let passed = cases.len() - failed.len() - skipped.keys().filter(|name| !failed.contains_key(name)).count();
    report(&format!("ONNX backend suite: {passed} passed, {} failed, {} skipped", failed.len(), skipped.len()));
    for (name, reason) in &failed {
        report(&format!("  {name}: {reason}"));
    }
    let new: Vec<_> = failed.keys().filter(|name| !expected.contains_key(**name)).collect();
    assert!(new.is_empty(), "{} cases fail that are not listed: {new:#?}", new.len());
    let passing: Vec<&String> = expected.keys().filter(|name| !failed.contains_key(name)).collect();
    assert!(passing.is_empty(), "these pass and must leave the list: {passing:#?}");
    check_folded(&outcomes);
}

/// Operators that no compilation computes, and why: every other one of the table must have a case that is computed.
const NOT_FOLDED: &[(&str, &str)] = &[
    ("blocked_convolution", "a pass behind those that compute makes it"),
    ("random", "it draws at random"),
    ("multinomial", "it draws at random"),
    ("dropout", "it draws at random"),
    ("append", "it changes state"),
    ("decode_image", "its extents are in the file that it reads"),
    ("non_max_suppression", "its extents follow from what it computes"),
    ("string_split", "its extents follow from what it computes"),
    ("time_warping", "its extents follow from what it computes"),
    ("tokenize", "its extents follow from what it computes"),
    ("unique", "its extents follow from what it computes"),
    ("if", "it runs blocks"),
    ("loop", "it runs blocks"),
    ("scan", "it runs blocks"),
    ("sequence_map", "it runs blocks"),
    ("sequence", "it gives a sequence"),
    ("sequence_insert", "it gives a sequence"),
    ("sequence_erase", "it gives a sequence"),
    ("sequence_split", "it gives a sequence"),
    ("sequence_at", "it takes a sequence"),
    ("sequence_length", "it takes a sequence"),
    ("sequence_concat", "it takes a sequence"),
    ("optional", "it gives an optional"),
    ("optional_get", "it takes an optional"),
    ("optional_has", "it takes an optional"),
    ("zip_map", "it gives a sequence of maps"),
    ("map_values", "it takes a map"),
];

macro_rules! names {
    ($($code:literal $Op:ident $class:ident $name:literal,)*) => { &[$($name),*] };
}
const OPERATORS: &[&str] = for_each_operator!(names);

/// Each case has the bits of a run where it is computed while compiling, and every operator is computed that is not listed.
fn check_folded(outcomes: &BTreeMap<String, Outcome>) {
    let wrong =
        outcomes.iter().filter_map(|(name, outcome)| Some(format!("{name}, {}", outcome.folded.as_ref().err()?)));
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    let mut folded: BTreeSet<&str> =
        outcomes.values().filter_map(|outcome| outcome.folded.as_ref().ok()).flatten().copied().collect();
    for (name, single) in folding::beside_onnx() {
        folded.extend(single.folded().unwrap_or_else(|error| panic!("{name}: {error}")));
    }
    let missing: Vec<&&str> = OPERATORS
        .iter()
        .filter(|name| !folded.contains(*name) && !NOT_FOLDED.iter().any(|(listed, _)| listed == *name))
        .collect();
    assert!(missing.is_empty(), "no case of these is computed while compiling: {missing:?}");
    let listed: Vec<_> =
        NOT_FOLDED.iter().filter(|(name, _)| folded.contains(name) || !OPERATORS.contains(name)).collect();
    assert!(listed.is_empty(), "these are computed, or no operators, and must leave the list: {listed:?}");
}
