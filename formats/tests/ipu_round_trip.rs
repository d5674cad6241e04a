//! Any manifest that can be written is read as it was.
#![allow(clippy::unwrap_used, reason = "what fails here is a failed test")]

use crate::ipu_sample::{Sample, example};
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Coded, PartRecord, WeightRecord, WeightSource};
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::limits::{IPU_CHECKSUM_BLOCK, IPU_ROW_CHECKSUM_BLOCK};
use ipuc_formats::model::{
    AttachmentRecord, BlockRecord, ExtentRecord, OperandRecord, ReadRecord, Role, StepRecord, SymbolRecord,
    ValueRecord, read_manifest,
};
use ipuc_formats::ops::{GroupNormalization, Obligation, Op, Read, Relation, TfIdf, Unary, UnaryFunction, Weighting};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use strum::VariantArray;

const SYMBOLS: [&str; 3] = ["batch", "a name with `marks`", "Zeile ü"];

fn dims() -> impl Strategy<Value = Dim> {
    let leaf = prop_oneof![
        any::<i32>().prop_map(|value| Dim::known(i64::from(value))),
        select(&SYMBOLS[..]).prop_map(Dim::symbol)
    ];
    leaf.prop_recursive(3, 12, 2, |inner| {
        (inner.clone(), inner, 0..6).prop_map(|(left, right, operation)| match operation {
            0 => left + right,
            1 => left - right,
            2 => left * right,
            3 => left.floor_div(&right),
            4 => left.modulo(&right),
            _ => Dim::max(&left, &right),
        })
    })
}

fn types() -> impl Strategy<Value = Type> {
    let dtypes = || select(DType::VARIANTS);
    let shapes = prop_oneof![Just(Shape::Unranked), vec(dims(), 0..4).prop_map(Shape::Ranked)];
    let tensor = (dtypes(), shapes).prop_map(|(dtype, shape)| Type::Tensor { dtype, shape });
    tensor.prop_recursive(3, 6, 1, move |inner| {
        (inner, dtypes(), 0..3).prop_map(|(element, key, kind)| match kind {
            0 => Type::Sequence(Box::new(element)),
            1 => Type::Optional(Box::new(element)),
            _ => Type::Map { key, element: Box::new(element) },
        })
    })
}

fn values() -> impl Strategy<Value = ValueRecord> {
    let contents = (vec(dims(), 0..5), select(vec![DType::I64, DType::Bool, DType::U4]));
    let kinds = prop_oneof![
        types().prop_map(|kind| (kind, None)),
        contents.prop_map(|(dims, dtype)| (Type::tensor(dtype, Shape::Unranked), Some(dims))),
    ];
    let names = prop::option::of(".{0,8}");
    (kinds, select(Role::VARIANTS), any::<u32>(), names).prop_map(|((kind, contents), role, id, name)| ValueRecord {
        kind,
        contents,
        role,
        id,
        name,
    })
}

fn operators() -> impl Strategy<Value = Op> {
    // Bits of floats are kept, also those of NaN, but NaN is not equal to itself.
    let floats = || any::<u32>().prop_map(f32::from_bits).prop_filter("comparable", |value| !value.is_nan());
    let tfidf =
        (vec(any::<i64>(), 0..4), vec(floats(), 0..4), vec(".{0,5}", 0..4)).prop_map(|(integers, weights, texts)| {
            Op::from(TfIdf {
                weighting: Weighting::Idf,
                minimum_length: 1,
                maximum_length: i64::MAX,
                maximum_skips: i64::MIN,
                starts: integers.clone(),
                columns: Vec::new(),
                weights,
                integer_pool: integers,
                text_pool: texts,
            })
        });
    let epsilons = (floats(), prop::option::of(any::<i64>()));
    prop_oneof![
        select(UnaryFunction::VARIANTS).prop_map(|function| Op::from(Unary { function })),
        epsilons.prop_map(|(epsilon, groups)| {
            Op::from(GroupNormalization {
                groups,
                epsilon,
                scale_per_group: groups.is_some(),
                stash: DType::F32,
                in_blocks: false,
            })
        }),
        tfidf,
    ]
}

/// Steps of one result each; operands are chosen among what is there by then.
fn blocks(weights: usize) -> impl Strategy<Value = BlockRecord> {
    let reads = select(vec![Read::Once, Read::Repeated, Read::Rows, Read::Groups, Read::Nonzero]);
    let operands = vec((any::<prop::sample::Index>(), 0..3, reads), 0..4);
    let steps = vec((operators(), values(), operands, ".{0,8}"), 0..6);
    (vec(values(), 0..3), steps).prop_map(move |(parameters, steps)| {
        let count = parameters.len() as u32;
        let mut block = BlockRecord { values: parameters, parameters: count, steps: Vec::new(), results: Vec::new() };
        for (op, value, chosen, name) in steps {
            let defined = block.values.len();
            let (mut operands, mut reads) = (Vec::new(), Vec::new());
            for (index, kind, read) in chosen {
                operands.push(match kind {
                    1 if defined > 0 => OperandRecord::Value(index.index(defined) as u32),
                    2 if weights > 0 => {
                        reads.push(ReadRecord { operand: operands.len() as u32, read });
                        OperandRecord::Weight(index.index(weights) as u32)
                    }
                    _ => OperandRecord::Absent,
                });
            }
            block.values.push(value);
            block.steps.push(StepRecord { op, operands, results: vec![defined as u32], reads, name });
        }
        block.results = (0..block.values.len() as u32).rev().take(2).map(OperandRecord::Value).collect();
        block
    })
}

/// Plain weights of bytes, each in two extents of its own.
fn weights() -> impl Strategy<Value = (Vec<WeightRecord>, Vec<ExtentRecord>)> {
    let blocks = select(vec![IPU_ROW_CHECKSUM_BLOCK, IPU_CHECKSUM_BLOCK]);
    vec((1u64..9000, 1u64..9000, prop::option::of(".{0,8}"), blocks), 0..5).prop_map(|sizes| {
        let (mut weights, mut extents) = (Vec::new(), Vec::new());
        for (first, second, name, checksum_block) in sizes {
            let ends = [(0, first), (first, first + second)];
            let parts = ends.map(|(start, end)| {
                let (offset, length, checksums, pooled) = (0, end - start, Vec::new(), false);
                extents.push(ExtentRecord { file: 0, offset, length, checksum_block, checksums, pooled, chunk: 0 });
                PartRecord { extent: extents.len() as u32 - 1, start, end, inputs_start: 0, inputs_end: 0 }
            });
            let source = |file| WeightSource { plane: None, file, offset: first, length: second };
            let (sources, parts) = (name.clone().map(source).into_iter().collect(), parts.to_vec());
            let (dtype, encoding, shape) = (DType::U8, Coded::plain(DType::U8), vec![first + second]);
            let reason = name.clone().unwrap_or_default();
            weights.push(WeightRecord { name, dtype, shape, encoding, reason, parts, sources, zeros: None, id: 3 });
        }
        (weights, extents)
    })
}

fn obligations() -> impl Strategy<Value = Obligation> {
    let relations = select(vec![Relation::Equal, Relation::Broadcastable, Relation::AtMost, Relation::Multiple]);
    (relations, dims(), dims(), ".{0,8}").prop_map(|(relation, left, right, subject)| Obligation {
        relation,
        left,
        right,
        subject,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn manifests_round_trip(
        (weights, extents) in weights(),
        block in blocks(4),
        obligations in vec(obligations(), 0..3),
        options in vec((".{0,8}", ".{0,8}"), 0..3),
        ranges in vec((any::<i64>(), any::<i64>()), 3),
        attachments in vec(vec(any::<u8>(), 0..50), 0..3),
        chunk_bytes in 1u64..40_000,
    ) {
        prop_assume!(weights.len() >= 4 || block.steps.iter().all(|step| step.reads.is_empty()));
        let Sample { mut manifest, .. } = example();
        manifest.provenance.options = options;
        manifest.obligations = obligations;
        let attachments = attachments.into_iter().enumerate();
        manifest.attachments = attachments
            .map(|(index, data)| AttachmentRecord { name: format!("{index}.json"), data: data.into() })
            .collect();
        let symbols = SYMBOLS.iter().zip(ranges);
        manifest.symbols = symbols.map(|(name, (one, other))| SymbolRecord {
            name: name.to_string(),
            minimum: one.min(other),
            maximum: one.max(other),
        }).collect();
        let names = |count: usize| (0..count).map(|index| index.to_string()).collect();
        manifest.entries[0].inputs = names(block.parameters as usize);
        manifest.entries[0].outputs = names(block.results.len());
        (manifest.blocks, manifest.weights, manifest.extents) = (vec![block], weights, extents);
        let contents = manifest.extents.iter().map(|extent| vec![3; extent.length as usize]).collect();
        let (bytes, written) = Sample { manifest, extents: contents }.write(chunk_bytes);
        prop_assert_eq!(read_manifest(&bytes).unwrap().1, written);
    }
}
