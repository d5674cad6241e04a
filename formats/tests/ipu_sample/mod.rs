//! Files for the tests of the `.ipu` format: the worked example of FORMAT.md, and one with some of everything.
#![allow(clippy::unwrap_used, reason = "what fails here is a failed test")]

use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{
    Coded, Elements, Logical, Panels, PartRecord, Plane, PlaneRole, Planes, Rows, Strings, WeightRecord, WeightSource,
    ZeroBlocks, Zeros, pack_strings,
};
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::limits::{IPU_CHECKSUM_BLOCK, IPU_CHUNK_BYTES, IPU_ROW_CHECKSUM_BLOCK};
use ipuc_formats::model::{
    BlockRecord, EntryRecord, ExtentRecord, FileRecord, Growth, Manifest, OperandRecord, Provenance, ReadRecord, Role,
    StateRecord, StateUse, StepRecord, SymbolRecord, ValueRecord, finish, plan,
};
use ipuc_formats::ops::{If, Matmul, Obligation, Op, Relation, Unary, UnaryFunction, WeightMatrix};
use ipuc_formats::tensor::Tensor;

/// A manifest without places, and the stored bytes of each extent of the file.
pub struct Sample {
    pub manifest: Manifest,
    pub extents: Vec<Vec<u8>>,
}

impl Sample {
    /// The bytes of the file, and the manifest as it stands in it.
    pub fn write(&self, chunk_bytes: u64) -> (Vec<u8>, Manifest) {
        let plan = plan(self.manifest.clone(), chunk_bytes).unwrap();
        let mut stream = Vec::new();
        let mut digests = Vec::new();
        for (number, chunk) in plan.manifest().chunks.iter().enumerate() {
            let mut bytes = vec![0; chunk.length as usize];
            for index in plan.manifest().extents_of_chunk(number as u32) {
                let start = (plan.manifest().extents[index].offset - chunk.offset) as usize;
                bytes[start..start + self.extents[index].len()].copy_from_slice(&self.extents[index]);
            }
            digests.push(plan.digest(number as u32, &bytes).unwrap());
            stream.extend(bytes);
        }
        let (stream_offset, total_length) = (plan.stream_offset(), plan.total_length());
        let (mut bytes, manifest) = finish(plan, &digests).unwrap();
        assert_eq!(bytes.len() as u64, stream_offset);
        bytes.extend(stream);
        assert_eq!(bytes.len() as u64, total_length);
        (bytes, manifest)
    }
}

pub fn value(kind: Type, role: Role, id: u32, name: &str) -> ValueRecord {
    ValueRecord { kind, contents: None, role, id, name: Some(name.to_string()) }
}

pub fn matrix(dims: [Dim; 2]) -> Type {
    Type::tensor(DType::F32, Vec::from(dims))
}

fn step(op: impl Into<Op>, operands: Vec<OperandRecord>, results: Vec<u32>, name: &str) -> StepRecord {
    let op = op.into();
    let weights = operands.iter().enumerate().filter(|(_, operand)| matches!(operand, OperandRecord::Weight(_)));
    let reads = weights.map(|(position, _)| ReadRecord { operand: position as u32, read: op.read(position) });
    StepRecord { reads: reads.collect(), op, operands, results, name: name.to_string() }
}

/// `y = relu(x × w)` with `x: [batch, 3]`, `w: [3, 2]` as panels: the worked example.
pub fn example() -> Sample {
    let mut builder = Builder::default();
    let panels = Panels::values(DType::F32, matrices(1, 3, 2, 1));
    let values = floats(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let w = builder.weight("w", DType::F32, &[3, 2], panels, &values, 1 << 20, true);
    let batch = Dim::symbol("batch");
    let block = BlockRecord {
        values: vec![
            value(matrix([batch.clone(), Dim::known(3)]), Role::InputOutput, 0, "x"),
            value(matrix([batch.clone(), Dim::known(2)]), Role::Activations, 1, "xw"),
            value(matrix([batch, Dim::known(2)]), Role::InputOutput, 2, "y"),
        ],
        parameters: 1,
        steps: vec![
            step(
                Matmul::new(false, false),
                vec![OperandRecord::Value(0), OperandRecord::Weight(w)],
                vec![1],
                "product",
            ),
            step(Unary { function: UnaryFunction::Abs }, vec![OperandRecord::Value(1)], vec![2], "magnitude"),
        ],
        results: vec![OperandRecord::Value(2)],
    };
    builder.finish("example", vec![symbol("batch", 1, 64)], vec![block], &["x"], &["y"])
}

fn symbol(name: &str, minimum: i64, maximum: i64) -> SymbolRecord {
    SymbolRecord { name: name.to_string(), minimum, maximum }
}

fn matrices(groups: u64, inputs: u64, outputs: u64, output_axis: u32) -> WeightMatrix {
    WeightMatrix { groups, inputs, outputs, output_axis }
}

fn floats(shape: &[usize], values: &[f32]) -> Elements {
    Elements { stored: Tensor::from_elements(shape, values).unwrap(), planes: Vec::new() }
}

/// Codes of 4 bits of `[rows, inputs]` with a scale for each 32 inputs.
fn codes(rows: usize, inputs: usize) -> Elements {
    let codes: Vec<u8> = (0..rows * inputs).map(|index| (index * 7 % 16) as u8).collect();
    let scales: Vec<f32> = (0..rows * inputs.div_ceil(32)).map(|index| index as f32 * 0.5).collect();
    Elements {
        stored: Tensor::from_codes(DType::I4, &[rows, inputs], &codes).unwrap(),
        planes: vec![Tensor::from_elements(&[rows, inputs.div_ceil(32)], &scales).unwrap()],
    }
}

/// Some of everything: control flow, state, all encodings, shared and empty weights, another file, every kind of type.
pub fn everything() -> Sample {
    let mut builder = Builder::default();
    let numbers = |shape: &[usize]| {
        floats(shape, &(0..shape.iter().product()).map(|index| index as f32 * 0.25).collect::<Vec<_>>())
    };
    let f16 = Panels::values(DType::F16, matrices(1, 40, 33, 0));
    let small = builder.weight("small", DType::F32, &[33, 40], f16, &numbers(&[33, 40]), 1 << 20, true);
    let yes = Elements { stored: Tensor::scalar_bool(true), planes: Vec::new() };
    let scalar = builder.weight("scalar", DType::Bool, &[], Coded::plain(DType::Bool), &yes, 1 << 20, true);
    let strings = builder.strings("labels", &["a", "", "ü"]);
    let plain = Coded::plain(DType::F32);
    let empty = builder.weight("empty", DType::F32, &[0, 7], plain.clone(), &numbers(&[0, 7]), 1 << 20, true);
    let table = builder.weight("table", DType::F32, &[600, 64], plain, &numbers(&[600, 64]), 100_000, false);
    let groups = Panels::values(DType::F32, matrices(3, 90, 70, 1));
    let large = builder.weight("large", DType::F32, &[3, 90, 70], groups, &numbers(&[3, 90, 70]), 30_000, false);
    let scale = Plane { role: PlaneRole::Scale, dtype: DType::F32, block: 32 };
    let panels = Panels::codes(DType::I4, matrices(1, 300, 40, 0), vec![scale]);
    let coded = builder.weight("coded", DType::F32, &[40, 300], panels, &codes(40, 300), 5_000, false);
    let rows = Rows { dtype: DType::I4, planes: Planes(vec![scale]) };
    let coded_rows = builder.weight("coded_rows", DType::F16, &[9, 70], rows, &codes(9, 70), 300, false);
    let mut shared = builder.manifest_weights[table as usize].clone();
    shared.name = None;
    builder.manifest_weights.push(shared);
    let shared = builder.manifest_weights.len() as u32 - 1;

    let (batch, count) = (Dim::symbol("batch"), Dim::symbol("/select/NonZero.count"));
    let rows = |dim: &Dim| matrix([dim.clone(), Dim::known(4)]);
    let boolean = Type::tensor(DType::Bool, Shape::known(&[]));
    let weights = |list: &[u32]| list.iter().map(|&weight| OperandRecord::Weight(weight)).collect::<Vec<_>>();
    let body = |name: &str| BlockRecord {
        values: vec![value(rows(&batch), Role::Activations, 7, name), value(rows(&batch), Role::Activations, 8, name)],
        parameters: 1,
        steps: vec![step(Unary { function: UnaryFunction::Neg }, vec![OperandRecord::Value(0)], vec![1], name)],
        results: vec![OperandRecord::Value(1)],
    };
    let mut known = value(Type::tensor(DType::I64, Shape::known(&[2])), Role::Activations, 4, "shape");
    known.contents = Some(vec![&batch * 2 + 1, batch.floor_div(&Dim::known(2))]);
    let text = Type::tensor(DType::String, Shape::Unranked);
    let map = Type::Map { key: DType::I64, element: Box::new(Type::Sequence(Box::new(text))) };
    let mut operands = vec![OperandRecord::Value(1), OperandRecord::Absent];
    operands.extend(weights(&[small, scalar, strings, empty, table, large, shared, coded, coded_rows]));
    let branch = If { then: BlockIndex(1), otherwise: BlockIndex(2), then_captures: 1 };
    let main = BlockRecord {
        values: vec![
            value(rows(&batch), Role::State, 0, "past"),
            value(boolean, Role::InputOutput, 1, "choose"),
            value(rows(&batch), Role::Activations, 2, "branch"),
            value(rows(&(&batch + 1)), Role::State, 3, "present"),
            known,
            value(Type::Optional(Box::new(map)), Role::Constants, 5, "lookup"),
            value(rows(&count), Role::Weights, 6, "found"),
        ],
        parameters: 2,
        steps: vec![
            step(
                branch,
                vec![OperandRecord::Value(1), OperandRecord::Value(0), OperandRecord::Value(0)],
                vec![2],
                "if",
            ),
            step(Unary { function: UnaryFunction::Abs }, operands, vec![3, 4, 5, 6], "every kind of operand"),
        ],
        results: vec![OperandRecord::Value(3), OperandRecord::Weight(table), OperandRecord::Value(2)],
    };
    let blocks = vec![main, body("then"), body("else")];
    let symbols = vec![symbol("batch", 1, 64), symbol("/select/NonZero.count", 0, i64::MAX)];
    let mut sample =
        builder.finish("everything", symbols, blocks, &["past", "choose"], &["present", "table", "branch"]);
    sample.manifest.entries[0].states = vec![StateUse { state: 0, input: Some(0), output: Some(0) }];
    let kind = sample.manifest.blocks[0].values[0].kind.clone();
    sample.manifest.states = vec![StateRecord {
        name: "past".to_string(),
        kind,
        growth: Some(Growth { axis: 0, page: 16, rows: None, overwritten: false }),
    }];
    let subject = "/select: rows".to_string();
    sample.manifest.obligations = vec![Obligation { relation: Relation::AtMost, left: count, right: batch, subject }];
    sample
}

/// [`everything`], with a part of a weight in another file.
pub fn with_other_file() -> Sample {
    let mut sample = everything();
    let manifest = &mut sample.manifest;
    manifest.files.push(FileRecord { root_hash: [7; 32] });
    manifest.extents.push(ExtentRecord {
        file: 1,
        offset: 8192,
        length: 28,
        checksum_block: IPU_CHECKSUM_BLOCK,
        checksums: vec![1],
        pooled: false,
        chunk: 0,
    });
    let extent = manifest.extents.len() as u32 - 1;
    let part = PartRecord { extent, start: 0, end: 7, inputs_start: 0, inputs_end: 0 };
    let sources = vec![WeightSource { plane: None, file: "weights.bin".into(), offset: 64, length: 28 }];
    manifest.weights.push(WeightRecord {
        name: Some("elsewhere".to_string()),
        dtype: DType::F32,
        shape: vec![7],
        encoding: Coded::plain(DType::F32),
        reason: "it is in another file".to_string(),
        parts: vec![part],
        sources,
        zeros: Some(Zeros {
            elements: 7,
            zeros: 3,
            not_finite: 1,
            groups: vec![0, 1, 1, 0, 0],
            blocks: vec![ZeroBlocks { inputs: 4, count: 2, zeros: 1 }],
            record_elements: 4,
            reason: "it is small".to_string(),
        }),
        id: 11,
    });
    sample
}

#[derive(Default)]
struct Builder {
    manifest_weights: Vec<WeightRecord>,
    records: Vec<ExtentRecord>,
    extents: Vec<Vec<u8>>,
}

impl Builder {
    #[allow(clippy::too_many_arguments, reason = "a weight has that many sides")]
    fn weight(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[u64],
        encoding: impl Into<Coded>,
        elements: &Elements,
        part_bytes: u64,
        pooled: bool,
    ) -> u32 {
        let (encoding, logical) = (encoding.into(), Logical { dtype, shape });
        let mut parts = Vec::new();
        for range in encoding.split(logical, part_bytes).unwrap() {
            let mut packed = vec![0; encoding.part_bytes(logical, range).unwrap().unwrap() as usize];
            encoding.pack(logical, range, &mut &*elements, &mut packed).unwrap();
            parts.push(range.in_extent(self.extent(packed, pooled)));
        }
        let source = |(plane, tensor): (usize, &Tensor)| WeightSource {
            plane: plane.checked_sub(1).map(|plane| plane as u32),
            file: String::new(),
            offset: 1234,
            length: tensor.bytes().len() as u64,
        };
        let sources = [&elements.stored].into_iter().chain(&elements.planes).enumerate().map(source).collect();
        let (name, shape, reason) = (Some(name.to_string()), shape.to_vec(), String::new());
        self.manifest_weights.push(WeightRecord {
            name,
            dtype,
            shape,
            encoding,
            reason,
            parts,
            sources,
            zeros: None,
            id: 0,
        });
        self.manifest_weights.len() as u32 - 1
    }

    fn strings(&mut self, name: &str, strings: &[&str]) -> u32 {
        let strings: Vec<String> = strings.iter().map(ToString::to_string).collect();
        let shape = vec![strings.len() as u64];
        let extent = self.extent(pack_strings(&strings).unwrap(), true);
        let parts = vec![PartRecord { extent, start: 0, end: 1, inputs_start: 0, inputs_end: 0 }];
        let (name, encoding, dtype) = (Some(name.to_string()), Strings {}.into(), DType::String);
        let (reason, sources) = (String::new(), Vec::new());
        self.manifest_weights.push(WeightRecord {
            name,
            dtype,
            shape,
            encoding,
            reason,
            parts,
            sources,
            zeros: None,
            id: 0,
        });
        self.manifest_weights.len() as u32 - 1
    }

    fn extent(&mut self, bytes: Vec<u8>, pooled: bool) -> u32 {
        let checksum_block = if pooled { IPU_CHECKSUM_BLOCK } else { IPU_ROW_CHECKSUM_BLOCK };
        let (offset, length, checksums) = (0, bytes.len() as u64, Vec::new());
        self.records.push(ExtentRecord { file: 0, offset, length, checksum_block, checksums, pooled, chunk: 0 });
        self.extents.push(bytes);
        self.records.len() as u32 - 1
    }

    fn finish(
        self,
        entry: &str,
        symbols: Vec<SymbolRecord>,
        blocks: Vec<BlockRecord>,
        inputs: &[&str],
        outputs: &[&str],
    ) -> Sample {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let manifest = Manifest {
            producer: "ipuc".to_string(),
            provenance: Provenance {
                models: vec!["example.onnx".to_string()],
                weights_hash: [0x11; 32],
                options: vec![("weights".to_string(), "keep".to_string())],
                compiler_version: "0.1.0".to_string(),
            },
            symbols,
            obligations: Vec::new(),
            entries: vec![EntryRecord {
                name: entry.to_string(),
                block: 0,
                inputs: names(inputs),
                outputs: names(outputs),
                states: Vec::new(),
            }],
            blocks,
            weights: self.manifest_weights,
            extents: self.records,
            chunks: Vec::new(),
            files: Vec::new(),
            placements: Vec::new(),
            states: Vec::new(),
            attachments: Vec::new(),
        };
        Sample { manifest, extents: self.extents }
    }
}

/// How large chunks are in files of tests that want several.
pub const SMALL_CHUNKS: u64 = 64 << 10;
/// How large they are elsewhere.
pub const LARGE_CHUNKS: u64 = IPU_CHUNK_BYTES;
