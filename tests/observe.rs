//! What an observer sees of real models: the values that a run computes, counted as anybody would count them.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::observe::{Granularity, Part, Statistics, interval};
use ipuc::{Model, Observer, Session, SessionOptions, Tensor, Value};
use ipuc_formats::model::OperandRecord;
use ipuc_formats::onnx::read_value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn opened(case: &Path) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.ipu");
    let source = Source { entry: "main".to_string(), path: case.join("model.onnx") };
    compile(&[source], &output, &CompileOptions { unfused: true, ..CompileOptions::default() }).unwrap();
    ipuc::open(&output).unwrap()
}

fn inputs(model: &Model, case: &Path) -> Vec<(String, Value)> {
    let ports = model.inputs(model.entry(None).unwrap()).into_iter().enumerate();
    let read = |(index, port): (usize, ipuc_runtime::Port)| {
        let bytes = std::fs::read(case.join(format!("test_data_set_0/input_{index}.pb"))).unwrap();
        (port.name, read_value(&bytes, &port.kind).unwrap())
    };
    ports.map(read).collect()
}

fn floats(value: &Value) -> Vec<f64> {
    let tensor: &Tensor = value.as_tensor().unwrap();
    tensor.elements::<f32>().unwrap().iter().map(|&element| f64::from(element)).collect()
}

/// The same counts in another way.
fn counted(elements: &[f64]) -> Part {
    let others = elements.iter().filter(|element| **element != 0.0);
    let mut histogram = BTreeMap::new();
    for element in others {
        let power = element.abs().log2().floor();
        let eighth = ((element.abs() / power.exp2() - 1.0) * 8.0).floor();
        let from = (power.exp2() * (1.0 + eighth / 8.0)) as f32;
        *histogram.entry(from.to_bits() >> 20).or_default() += 1;
    }
    Part {
        elements: elements.len() as u64,
        zeros: elements.iter().filter(|element| **element == 0.0).count() as u64,
        not_finite: 0,
        minimum: elements.iter().copied().fold(f64::INFINITY, f64::min),
        maximum: elements.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        histogram,
    }
}

/// Keeps the last of each value.
#[derive(Default)]
struct Kept {
    values: BTreeMap<u32, Value>,
    blocks: Vec<u32>,
}

impl Observer for Kept {
    fn begin(&mut self) {
        *self = Kept::default();
    }

    fn restart(&mut self) {
        *self = Kept::default();
    }

    fn block(&mut self, block: u32) {
        self.blocks.push(block);
    }

    fn value(&mut self, number: u32, value: &Value) {
        self.values.insert(number, value.clone());
    }
}

#[test]
fn statistics_are_those_of_the_values_and_of_the_reference() {
    let case = fixture("ppocr_v2_cls");
    let model = opened(&case);
    let session = || Session::new(&model, &SessionOptions::default()).unwrap();
    let plain = session().run(None, inputs(&model, &case)).unwrap();
    let mut statistics = Statistics::new(Granularity::Tensor);
    let observed = session().run_observed(None, inputs(&model, &case), &mut statistics).unwrap();
    assert_eq!(observed, plain, "an observed run computes the same");

    let mut kept = Kept::default();
    session().run_observed(None, inputs(&model, &case), &mut kept).unwrap();
    assert_eq!(kept.values.keys().collect::<Vec<_>>(), statistics.values.keys().collect::<Vec<_>>());
    let mut compared = 0;
    for (number, value) in &kept.values {
        if value.as_tensor().is_some_and(|tensor| tensor.elements::<f32>().is_ok()) {
            assert_eq!(statistics.values[number], [counted(&floats(value))], "value {number}");
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared} values of floats");

    // The expected output of the model is the reference's, to within the rounding of sums.
    let entry = model.entry(None).unwrap();
    let block = &model.manifest().blocks[entry.block as usize];
    let OperandRecord::Value(slot) = block.results[0] else { panic!("a constant output") };
    let record = &block.values[slot as usize];
    let expected = std::fs::read(case.join("test_data_set_0/output_0.pb")).unwrap();
    let expected = counted(&floats(&read_value(&expected, &record.kind).unwrap()));
    let [part] = statistics.values[&record.id].as_slice() else { panic!("one part a tensor") };
    assert_eq!((part.elements, part.zeros), (expected.elements, expected.zeros));
    assert!((part.minimum - expected.minimum).abs() < 1e-5, "{} is not {}", part.minimum, expected.minimum);
    assert!((part.maximum - expected.maximum).abs() < 1e-5, "{} is not {}", part.maximum, expected.maximum);
    let middle = |part: &Part| part.histogram.keys().map(|&index| interval(index).0).collect::<Vec<_>>();
    assert_eq!(middle(part), middle(&expected));
}

#[test]
fn bodies_are_seen_each_time_they_run() {
    let case = fixture("loop");
    let model = opened(&case);
    let mut kept = Kept::default();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    session.run_observed(None, inputs(&model, &case), &mut kept).unwrap();
    let entry = model.entry(None).unwrap().block;
    assert_eq!(kept.blocks[0], entry);
    let body = kept.blocks.iter().filter(|&&block| block != entry).count();
    assert!(body > 1, "the loop runs its body {body} times");
    // Numbers of values in bodies are their own.
    let numbers = |block: usize| model.manifest().blocks[block].values.iter().map(|value| value.id).collect::<Vec<_>>();
    let (outer, inner) = (numbers(0), numbers(1));
    assert!(inner.iter().all(|number| !outer.contains(number)), "{outer:?} {inner:?}");
}

/// Gives zeros in place of a value.
struct Zeroed {
    number: u32,
    kept: Kept,
}

impl Observer for Zeroed {
    fn begin(&mut self) {
        self.kept.begin();
    }

    fn restart(&mut self) {
        self.kept.restart();
    }

    fn block(&mut self, block: u32) {
        self.kept.block(block);
    }

    fn value(&mut self, number: u32, value: &Value) {
        self.kept.value(number, value);
    }

    fn replaced(&mut self, number: u32, value: &Value) -> Option<Value> {
        let tensor = value.as_tensor().filter(|_| number == self.number)?;
        Some(Tensor::zeros(tensor.dtype(), tensor.shape()).unwrap().into())
    }
}

/// What is shown is what was computed, and what reads it computes from its replacement; what does not is the same.
#[test]
fn later_steps_read_what_an_observer_puts_in_place_of_a_value() {
    let case = fixture("ppocr_v2_cls");
    let model = opened(&case);
    let session = || Session::new(&model, &SessionOptions::default()).unwrap();
    let mut plain = Kept::default();
    let outputs = session().run_observed(None, inputs(&model, &case), &mut plain).unwrap();
    // The first value in the order of the model.
    let entry = model.entry(None).unwrap();
    let block = &model.manifest().blocks[entry.block as usize];
    let first = block.values[block.steps[0].results[0] as usize].id;
    let mut zeroed = Zeroed { number: first, kept: Kept::default() };
    let changed = session().run_observed(None, inputs(&model, &case), &mut zeroed).unwrap();
    assert_ne!(changed, outputs);
    assert_eq!(zeroed.kept.values[&first], plain.values[&first]);
    let differing = plain.values.iter().filter(|(number, value)| zeroed.kept.values[number] != **value).count();
    assert!(differing > 20, "{differing} values of {} differ", plain.values.len());
    // An output in whose place zeros are given is zero.
    let OperandRecord::Value(slot) = block.results[0] else { panic!("a constant output") };
    let mut zeroed = Zeroed { number: block.values[slot as usize].id, kept: Kept::default() };
    let changed = session().run_observed(None, inputs(&model, &case), &mut zeroed).unwrap();
    assert!(floats(&changed[0].1).iter().all(|&element| element == 0.0));
}
