//! Files that anybody may have made: every checksum is right, but the records say what no compiler would write.
//!
//! Opening and running such a file gives outputs or an error, never a panic. Steps get other operators, attributes,
//! operands and results, values other types, weights other readers; what the rules of the format refuse by themselves
//! is not counted. `IPUC_CASES` names a folder of further cases, `IPUC_HOSTILE_ROUNDS` the number of changed files of
//! each model.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests panic and report")]

use crate::support::{Random, linear, linear_weight, nested, write};
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc_formats::attribute::AttributeValue;
use ipuc_formats::dim::{Bindings, Dim};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{BlockRecord, Manifest, OperandRecord, ReadRecord, finish, plan, read_manifest};
use ipuc_formats::ops::Op;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::{Model, Session, SessionOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use strum::VariantArray as _;

/// A compiled model: its records, and the stored bytes of each extent.
struct Sample {
    name: String,
    manifest: Manifest,
    extents: Vec<Vec<u8>>,
}

impl Sample {
    fn of(name: &str, path: &Path) -> Option<Sample> {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("model.ipu");
        let source = Source { entry: "main".to_string(), path: path.to_owned() };
        compile(&[source], &output, &CompileOptions::default()).ok()?;
        let bytes = std::fs::read(&output).unwrap();
        let (_, manifest) = read_manifest(&bytes).unwrap();
        let stored = |extent: &ipuc_formats::model::ExtentRecord| {
            bytes[extent.offset as usize..][..extent.length as usize].to_vec()
        };
        let extents = manifest.extents.iter().map(stored).collect();
        Some(Sample { name: name.to_string(), manifest, extents })
    }

    /// A sound file around these records; `None` where they break a rule of the format.
    fn sealed(&self, manifest: Manifest) -> Option<Vec<u8>> {
        let plan = plan(manifest, 1 << 20).ok()?;
        let first = plan.stream_offset();
        let mut stream = vec![0; (plan.total_length() - first) as usize];
        for (extent, bytes) in plan.manifest().extents.iter().zip(&self.extents) {
            stream[(extent.offset - first) as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        let chunks = plan.manifest().chunks.iter().enumerate();
        let digest = |(index, chunk): (usize, &ipuc_formats::model::ChunkRecord)| {
            plan.digest(index as u32, &stream[(chunk.offset - first) as usize..][..chunk.length as usize]).unwrap()
        };
        let digests: Vec<_> = chunks.map(digest).collect();
        let (mut bytes, _) = finish(plan, &digests).ok()?;
        bytes.extend(stream);
        Some(bytes)
    }
}

fn samples() -> Vec<Sample> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "linear.onnx", &linear(linear_weight()));
    write(folder.path(), "nested.onnx", &nested(3));
    let mut models: Vec<(String, PathBuf)> =
        ["linear.onnx", "nested.onnx"].iter().map(|name| ((*name).to_string(), folder.path().join(name))).collect();
    for name in ["loop", "functions", "external_data", "float16", "entries/decoder", "silero_vad_16k_op15"] {
        models.push((name.to_string(), fixtures.join(name).join("model.onnx")));
    }
    let cases = std::env::var_os("IPUC_CASES").map(PathBuf::from);
    let cases = cases.map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    let mut cases: Vec<PathBuf> = cases.into_iter().flatten().collect();
    cases.sort();
    models.extend(cases.iter().map(|path| (path.display().to_string(), path.join("model.onnx"))));
    models.iter().filter_map(|(name, path)| Sample::of(name, path)).collect()
}

fn every_operator(samples: &[Sample]) -> Vec<Op> {
    let blocks = samples.iter().flat_map(|sample| &sample.manifest.blocks);
    blocks.flat_map(|block| &block.steps).map(|step| step.op.clone()).collect()
}

/// Change something about one block; gives it in words.
fn change(manifest: &mut Manifest, operators: &[Op], random: &mut Random) -> String {
    let weights = manifest.weights.len();
    let chosen = random.below(manifest.blocks.len());
    if weights > 0 && random.below(12) == 0 {
        return change_weight(manifest, random);
    }
    let block = &mut manifest.blocks[chosen];
    let changed = if block.steps.is_empty() || random.below(4) == 0 {
        change_value(block, random)
    } else {
        change_step(block, weights, operators, random)
    };
    format!("block {chosen} {changed}")
}

fn change_value(block: &mut BlockRecord, random: &mut Random) -> String {
    let slot = random.below(block.values.len().max(1));
    let Some(value) = block.values.get_mut(slot) else { return "as it is".to_string() };
    if random.below(3) == 0 {
        value.contents = Some((0..random.below(4)).map(|_| Dim::known(random.below(4) as i64)).collect());
    } else {
        value.kind = other_type(&value.kind, random);
    }
    format!("value {slot}: {} {:?}", value.kind, value.contents)
}

fn change_step(block: &mut BlockRecord, weights: usize, operators: &[Op], random: &mut Random) -> String {
    let (at, other) = (random.below(block.steps.len()), random.below(block.steps.len()));
    let new = match random.below(8) {
        0 => OperandRecord::Absent,
        1 | 2 if weights > 0 => OperandRecord::Weight(random.below(weights) as u32),
        _ => OperandRecord::Value(random.below(block.values.len().max(1)) as u32),
    };
    let operands = &mut block.steps[at].operands;
    match random.below(9) {
        0 => block.steps[at].op = operators[random.below(operators.len())].clone(),
        1 | 2 => {
            if let Some(op) = other_attributes(&block.steps[at].op, random) {
                block.steps[at].op = op;
            }
        }
        3 => operands.insert(random.below(operands.len() + 1), new),
        4 if !operands.is_empty() => drop(operands.remove(random.below(operands.len()))),
        5 => {
            let one = std::mem::take(&mut block.steps[at].results);
            let two = std::mem::replace(&mut block.steps[other].results, one);
            if at != other {
                block.steps[at].results = two;
            }
        }
        6 => {
            let moved = block.steps[other].results.pop();
            block.steps[at].results.extend(moved);
        }
        7 if !block.results.is_empty() => block.results[0] = new,
        _ if !operands.is_empty() => {
            let position = random.below(operands.len());
            operands[position] = new;
        }
        _ => {}
    }
    let step = &mut block.steps[at];
    let read = |(position, operand): (usize, &OperandRecord)| match operand {
        OperandRecord::Weight(_) => Some(ReadRecord { operand: position as u32, read: step.op.read(position) }),
        OperandRecord::Absent | OperandRecord::Value(_) => None,
    };
    step.reads = step.operands.iter().enumerate().filter_map(read).collect();
    format!("step {at}: {:?} {:?} {:?}", step.op, step.operands, step.results)
}

fn change_weight(manifest: &mut Manifest, random: &mut Random) -> String {
    let (one, two) = (random.below(manifest.weights.len()), random.below(manifest.weights.len()));
    match random.below(3) {
        0 => manifest.weights.swap(one, two),
        1 => manifest.weights[one].shape.reverse(),
        _ => {
            let product: u64 = manifest.weights[one].shape.iter().product();
            manifest.weights[one].shape = vec![product];
        }
    }
    format!("weights {one} and {two}: {:?}", manifest.weights[one])
}

fn other_type(kind: &Type, random: &mut Random) -> Type {
    let Type::Tensor { dtype, shape } = kind else {
        return Type::tensor(DType::F32, Shape::known(&[2]));
    };
    let mut dims = shape.dims().unwrap_or(&[]).to_vec();
    match random.below(6) {
        0 => return Type::tensor(DType::VARIANTS[random.below(DType::VARIANTS.len())], shape.clone()),
        1 => return Type::tensor(*dtype, Shape::Unranked),
        2 => dims.push(Dim::known(random.below(4) as i64)),
        3 => drop(dims.pop()),
        4 => return Type::Sequence(Box::new(kind.clone())),
        _ => {
            let count = dims.len().max(1);
            if let Some(dim) = dims.get_mut(random.below(count)) {
                *dim = Dim::known(random.below(5) as i64);
            }
        }
    }
    Type::tensor(*dtype, dims)
}

fn other_attributes(op: &Op, random: &mut Random) -> Option<Op> {
    let mut attributes: Vec<(u32, AttributeValue)> =
        op.attributes().into_iter().map(|(number, _, value)| (number, value)).collect();
    if attributes.is_empty() {
        return None;
    }
    let small = |random: &mut Random| random.below(7) as i64 - 3;
    let chosen = random.below(attributes.len());
    match &mut attributes[chosen].1 {
        AttributeValue::Integer(integer) => *integer = small(random),
        AttributeValue::Float(float) => *float = [0.0, -1.0, f32::NAN, f32::INFINITY, 1e30][random.below(5)],
        AttributeValue::Integers(integers) => match random.below(3) {
            0 => integers.push(small(random)),
            1 => drop(integers.pop()),
            _ => integers.iter_mut().for_each(|integer| *integer = small(random)),
        },
        AttributeValue::Floats(floats) => drop(floats.pop()),
        AttributeValue::Texts(texts) => drop(texts.pop()),
        AttributeValue::Text(text) => text.push('x'),
        AttributeValue::Tensor(_) => drop(attributes.remove(chosen)),
    }
    Op::decode(op.code(), op.revision(), &attributes).ok()
}

/// Open a file and run each entry. The open dimensions of inputs are 1 to 3.
fn use_file(bytes: Vec<u8>, random: &mut Random) -> Result<(), String> {
    let model = Model::open(&bytes).map_err(|error| error.to_string())?;
    let mut last = Ok(());
    for entry in &model.manifest().entries {
        let mut bindings = Bindings::new();
        for symbol in &model.manifest().symbols {
            let value = [1, 2, 3, 576][random.below(4)];
            bindings.insert(symbol.name.as_str(), value.clamp(symbol.minimum, symbol.maximum));
        }
        let ports = model.inputs(entry).into_iter();
        let inputs = ports.filter_map(|port| Some((port.name, value_of(&port.kind, &bindings, random)?)));
        let inputs: Vec<(String, Value)> = inputs.collect();
        let mut session = Session::new(&model, &SessionOptions { threads: 1, ..SessionOptions::default() }).unwrap();
        let outcome = session.run(Some(&entry.name), inputs);
        last = outcome.map(|_| ()).map_err(|error| error.to_string());
    }
    last
}

fn value_of(kind: &Type, bindings: &Bindings, random: &mut Random) -> Option<Value> {
    match kind {
        Type::Tensor { dtype, shape } => {
            let extent = |dim: &Dim| usize::try_from(dim.evaluate(bindings).ok()?).ok().filter(|&extent| extent < 4096);
            let dims = shape.dims().unwrap_or(&[]);
            let extents: Vec<usize> = dims.iter().map(extent).collect::<Option<_>>()?;
            if extents.iter().product::<usize>() > 1 << 20 {
                return None;
            }
            let mut tensor = match dtype {
                DType::String => {
                    return Tensor::from_strings(&extents, vec![String::new(); extents.iter().product()])
                        .ok()
                        .map(Value::Tensor);
                }
                dtype => Tensor::zeros(*dtype, &extents).ok()?,
            };
            if dtype.is_float() && !dtype.is_sub_byte() {
                tensor.bytes_mut().iter_mut().for_each(|byte| *byte = random.below(64) as u8);
            } else if *dtype == DType::Bool || dtype.is_integer() && !dtype.is_sub_byte() {
                let width = dtype.bits() / 8;
                tensor.bytes_mut().iter_mut().step_by(width.max(1)).for_each(|byte| *byte = random.below(2) as u8);
            }
            Some(Value::Tensor(tensor))
        }
        Type::Sequence(element) => {
            let items = vec![value_of(element, bindings, random)?];
            Some(Value::Sequence { element: (**element).clone(), items })
        }
        Type::Optional(element) => Some(Value::Optional { element: (**element).clone(), value: None }),
        Type::Map { .. } => None,
    }
}

#[test]
fn no_file_panics() {
    let rounds = std::env::var("IPUC_HOSTILE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(150);
    let samples = samples();
    let operators = every_operator(&samples);
    let mut panics = Vec::new();
    let (mut used, mut ran) = (0, 0);
    for (number, sample) in samples.iter().enumerate() {
        let unchanged = sample.sealed(sample.manifest.clone()).unwrap();
        assert!(Model::open(&unchanged).is_ok(), "{} is refused as it is", sample.name);
        for round in 0..rounds {
            let mut random = Random::new(number as u64 * 1_000_003 + round);
            let mut manifest = sample.manifest.clone();
            let changes: Vec<String> =
                (0..1 + random.below(3)).map(|_| change(&mut manifest, &operators, &mut random)).collect();
            if random.below(4) == 0 {
                manifest.obligations.clear();
            }
            let Some(bytes) = sample.sealed(manifest) else { continue };
            used += 1;
            match catch_unwind(AssertUnwindSafe(|| use_file(bytes, &mut random))) {
                Ok(outcome) => ran += usize::from(outcome.is_ok()),
                Err(_) => panics.push(format!("{} round {round}: {}", sample.name, changes.join("; "))),
            }
        }
    }
    eprintln!("{used} files, {ran} of them ran");
    assert!(used > 100, "only {used} files were sound enough to be opened");
    assert!(panics.is_empty(), "{} files panicked:\n{}", panics.len(), panics.join("\n"));
}
