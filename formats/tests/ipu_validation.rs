//! Each rule between records of a manifest, broken once: the message names the record and what is wrong.
#![allow(clippy::unwrap_used, reason = "what fails here is a failed test")]

use crate::ipu_sample::{SMALL_CHUNKS, matrix, value, with_other_file};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::Coded;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::limits::IPU_ATTACHMENT_BYTES;
use ipuc_formats::model::{
    AttachmentRecord, Growth, Manifest, OperandRecord, PlacementRecord, ReadRecord, Role, StateRecord, StateUse,
    Superblock, read_manifest, validate,
};
use ipuc_formats::ops::{If, Read};

/// A change to a sound manifest, and the message that it must cause.
type Case = (fn(&mut Manifest), &'static str);

fn check(cases: &[Case]) {
    let (bytes, manifest) = with_other_file().write(SMALL_CHUNKS);
    let superblock: Superblock = read_manifest(&bytes).unwrap().0;
    validate(&manifest, &superblock).unwrap();
    let mut differences = Vec::new();
    for (change, expected) in cases {
        let mut changed = manifest.clone();
        change(&mut changed);
        let found = validate(&changed, &superblock).map_or_else(|error| error.to_string(), |()| "sound".to_string());
        if found != *expected {
            differences.push(format!("expected {expected}\n   found {found}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn symbols_and_dimensions() {
    check(&[
        (|m| m.symbols[1].name = "batch".into(), "symbols: symbol `batch` occurs twice"),
        (|m| m.symbols[0].minimum = 65, "symbol `batch`: the range 65 to 64 is empty"),
        (|m| m.obligations[0].left = Dim::symbol("new"), "obligation 0: symbol `new` is not declared"),
        (
            |m| m.blocks[1].values[0].kind = matrix([Dim::symbol("new") * 2, Dim::ONE]),
            "block 1, value 0 `then`: symbol `new` is not declared",
        ),
        (
            |m| m.blocks[0].values[4].contents = Some(vec![Dim::symbol("new")]),
            "block 0, value 4 `shape`: symbol `new` is not declared",
        ),
        (
            |m| m.blocks[0].values[3].contents = Some(vec![Dim::ONE]),
            "block 0, value 3 `present`: contents are known of a value that is no integer tensor",
        ),
        (
            |m| m.blocks[0].values[4].contents = Some(vec![Dim::ONE; 1025]),
            "block 0, value 4 `shape`: the number of known elements is 1025, the limit is 1024",
        ),
        (
            |m| m.blocks[0].values[3].kind = Type::tensor(DType::F32, Shape::known(&[1; 65])),
            "block 0, value 3 `present`: the number of axes is 65, the limit is 64",
        ),
        (
            |m| {
                let kind = &mut m.blocks[0].values[3].kind;
                (0..17).for_each(|_| *kind = Type::Sequence(Box::new(kind.clone())));
            },
            "block 0, value 3 `present`: the nesting of types is 17, the limit is 16",
        ),
    ]);
}

#[test]
fn entries() {
    check(&[
        (|m| m.entries.clear(), "entries: an entry is missing"),
        (|m| m.entries.push(m.entries[0].clone()), "entries: entry `everything` occurs twice"),
        (|m| m.entries[0].block = 3, "entry `everything`: block 3 does not exist, there are 3"),
        (|m| m.entries[0].inputs.truncate(1), "entry `everything`: the number of inputs is 1, expected 2"),
        (|m| m.entries[0].outputs.push("z".into()), "entry `everything`: the number of outputs is 4, expected 3"),
        (|m| m.entries[0].inputs[1] = "past".into(), "entry `everything`: input `past` occurs twice"),
        (|m| m.entries[0].outputs[1] = "branch".into(), "entry `everything`: output `branch` occurs twice"),
    ]);
}

#[test]
fn states() {
    check(&[
        (|m| m.states.push(m.states[0].clone()), "states: state `past` occurs twice"),
        (
            |m| m.states[0].growth = Some(Growth { axis: 2, page: 1, rows: None, overwritten: false }),
            "state `past`: axis 2 does not exist, there are 2",
        ),
        (
            |m| m.states[0].growth = Some(Growth { axis: 0, page: 0, rows: None, overwritten: false }),
            "state `past`: its pages are empty",
        ),
        (
            |m| m.states[0].kind = Type::Sequence(Box::new(m.states[0].kind.clone())),
            "state `past`: it grows and is no tensor with axes",
        ),
        (|m| m.entries[0].states[0].state = 1, "entry `everything`: state 1 does not exist, there are 1"),
        (|m| m.entries[0].states[0].input = Some(2), "entry `everything`: input 2 does not exist, there are 2"),
        (|m| m.entries[0].states[0].output = Some(3), "entry `everything`: output 3 does not exist, there are 3"),
        (
            |m| m.entries[0].states.push(StateUse { state: 0, input: None, output: Some(2) }),
            "entry `everything`: state `past` occurs twice",
        ),
        (
            |m| {
                m.states.push(StateRecord { name: "other".into(), kind: m.states[0].kind.clone(), growth: None });
                m.entries[0].states.push(StateUse { state: 1, input: Some(0), output: None });
            },
            "entry `everything`: state of input `past` occurs twice",
        ),
        (
            |m| m.entries[0].states[0] = StateUse { state: 0, input: None, output: None },
            "entry `everything`: a state is neither input nor output",
        ),
        (|m| m.entries[0].states[0].input = Some(1), "entry `everything`: a state's input is 9, expected 1"),
        (
            |m| m.entries[0].states[0].output = Some(1),
            "entry `everything`: the next contents of a state are not computed",
        ),
    ]);
}

#[test]
fn blocks_and_steps() {
    check(&[
        (|m| m.blocks[1].parameters = 3, "block 1: the number of parameters is 3, the limit is 2"),
        (|m| m.blocks[1].parameters = 2, "block 1, step 0 `then`: value 1 is defined twice"),
        (|m| m.blocks[1].steps.clear(), "block 1, value 1: no step defines it"),
        (|m| m.blocks[1].steps[0].results[0] = 9, "block 1, step 0 `then`: value 9 does not exist, there are 2"),
        (
            |m| {
                m.blocks[0].steps[1].operands[0] = OperandRecord::Value(2);
                m.blocks[0].steps.reverse();
            },
            "block 0, step 0 `every kind of operand`: value 2 is used before it is defined",
        ),
        (
            |m| m.blocks[1].steps[0].operands[0] = OperandRecord::Value(1),
            "block 1, step 0 `then`: value 1 is used before it is defined",
        ),
        (
            |m| m.blocks[1].steps[0].operands[0] = OperandRecord::Value(2),
            "block 1, step 0 `then`: value 2 does not exist, there are 2",
        ),
        (
            |m| m.blocks[0].steps[1].operands[2] = OperandRecord::Weight(99),
            "block 0, step 1 `every kind of operand`: weight 99 does not exist, there are 10",
        ),
        (|m| m.blocks[1].results[0] = OperandRecord::Absent, "block 1, result 0: the value is missing"),
        (
            |m| m.blocks[1].results[0] = OperandRecord::Weight(10),
            "block 1, result 0: weight 10 does not exist, there are 10",
        ),
        (
            |m| m.blocks[0].steps[1].reads.truncate(6),
            "block 0, step 1 `every kind of operand`: how a weight operand is read is missing",
        ),
        (
            |m| m.blocks[0].steps[1].reads[0].operand = 3,
            "block 0, step 1 `every kind of operand`: the operand of a read is 3, expected 2",
        ),
        (
            |m| m.blocks[1].steps[0].reads.push(ReadRecord { operand: 0, read: Read::Once }),
            "block 1, step 0 `then`: it states how an operand is read that is no weight",
        ),
    ]);
}

#[test]
fn control_flow() {
    check(&[
        (
            |m| {
                let branch = If { then: BlockIndex(0), otherwise: BlockIndex(2), then_captures: 1 };
                m.blocks[0].steps[0].op = branch.into();
            },
            "block 0, step 0 `if`: it runs a block that does not come after its own",
        ),
        (
            |m| {
                let branch = If { then: BlockIndex(1), otherwise: BlockIndex(7), then_captures: 1 };
                m.blocks[0].steps[0].op = branch.into();
            },
            "block 0, step 0 `if`: block 7 does not exist, there are 3",
        ),
        (
            |m| {
                let branch = If { then: BlockIndex(1), otherwise: BlockIndex(1), then_captures: 1 };
                m.blocks[0].steps[0].op = branch.into();
            },
            "block 2: no entry and no step runs it",
        ),
        (
            // Each block runs the next one twice.
            |m| {
                let template = m.blocks[1].clone();
                for index in 1..40u32 {
                    let mut block = template.clone();
                    let next = BlockIndex(index + 2);
                    let branch = If { then: next, otherwise: next, then_captures: 0 };
                    block.steps[0].op = branch.into();
                    m.blocks.insert(index as usize + 1, block);
                }
            },
            "block 21: the number of ways to all blocks is 1048577, the limit is 1048576",
        ),
        (
            |m| {
                // Each block runs the next one or the last.
                let template = m.blocks[1].clone();
                m.blocks.extend(vec![template; 40]);
                for index in 2..42u32 {
                    let (then, otherwise) = (BlockIndex(index + 1), BlockIndex(42));
                    m.blocks[index as usize].steps[0].op = If { then, otherwise, then_captures: 0 }.into();
                }
            },
            "block 32: its depth is 31, the limit is 30",
        ),
    ]);
}

#[test]
fn chunks_and_extents() {
    check(&[
        (|m| m.chunks[1].offset += 4096, "chunk 1: its offset is 16384, expected 12288"),
        (|m| m.chunks[0].length = 0, "chunk 0: its length is no multiple of 4096"),
        (|m| m.chunks[0].length += 1, "chunk 0: its length is no multiple of 4096"),
        (
            |m| {
                m.chunks.pop();
            },
            "chunks: the end of the last one is 233472, expected 274432",
        ),
        (|m| m.extents[1].offset += 64, "extent 1: its offset is 12096, expected 12032"),
        (|m| m.extents[0].length = 0, "extent 0: it is empty"),
        (|m| m.extents[0].checksum_block = 2048, "extent 0: a checksum block of bytes 2048 is unknown"),
        (|m| m.extents[0].checksum_block = 12288, "extent 0: a checksum block of bytes 12288 is unknown"),
        (|m| m.extents[0].checksums.push(1), "extent 0: the number of checksums is 2, expected 1"),
        (|m| m.extents[3].pooled = true, "extent 3: the length of a pooled extent is 99840, the limit is 65535"),
        (|m| m.extents[1].pooled = false, "extent 1: it shares a chunk with extents that are pooled where it is not"),
        (
            |m| m.extents.iter_mut().filter(|extent| extent.chunk == 4).for_each(|extent| extent.pooled = true),
            "extent 7: it is pooled, but comes after extents that are not",
        ),
        (|m| m.extents[0].chunk = 9, "extent 0: chunk 9 does not exist, there are 5"),
        (|m| m.extents[0].chunk = 1, "extent 0: its chunk is 1, expected 0"),
        (
            |m| {
                m.extents[2].length = 1 << 40;
                m.extents[2].checksums = vec![0; 1 << 19];
                m.extents[2].pooled = false;
                m.extents[1].pooled = false;
                m.extents[0].pooled = false;
            },
            "extent 2: it goes on after the end of its chunk",
        ),
        (|m| m.extents.swap(0, 1), "extent 0: its offset is 12032, expected 8192"),
    ]);
}

#[test]
fn other_files() {
    check(&[
        (|m| m.files.clear(), "extent 13: file 0 does not exist, there are 0"),
        (
            |m| m.extents.last_mut().unwrap().chunk = 1,
            "extent 13: it is in another file, but pooled or in a chunk of this one",
        ),
        (
            |m| m.extents.last_mut().unwrap().offset = 8200,
            "extent 13: it does not begin at a multiple of 64, or ends beyond 64 bits",
        ),
        (
            |m| m.extents.last_mut().unwrap().offset = u64::MAX - 63 + 36,
            "extent 13: it does not begin at a multiple of 64, or ends beyond 64 bits",
        ),
        (
            |m| {
                let last = m.extents.len() - 1;
                m.extents.swap(last, last - 1);
            },
            "extent 13: it comes after extents of other files",
        ),
    ]);
}

#[test]
fn weights() {
    check(&[
        (
            |m| m.weights[0].encoding = Coded::plain(DType::BF16),
            "weight 0 `small`: 0..3 (inputs 0..40) is no part of the weight: its units have no inputs",
        ),
        (|m| m.weights[0].dtype = DType::F64, "weight 0 `small`: a weight of type f64 cannot be stored as f16"),
        (|m| m.weights[1].shape = vec![2], "weight 1 `scalar`: part 1 does not continue where the parts before it end"),
        (|m| m.weights[1].shape = vec![1; 65], "weight 1 `scalar`: the number of axes is 65, the limit is 64"),
        (
            |m| m.weights[2].shape = vec![300],
            "weight 2 `labels`: its extent is too short for the lengths of its strings",
        ),
        (
            |m| m.weights[3].parts = m.weights[1].parts.clone(),
            "weight 3 `empty`: 0..1 (inputs 0..0) is no part of the weight: it is empty or ends after the last unit",
        ),
        (|m| m.weights[4].parts.swap(0, 1), "weight 4 `table`: part 0 does not continue where the parts before it end"),
        (|m| m.weights[5].parts[0].extent = 99, "weight 5 `large`: extent 99 does not exist, there are 14"),
        (
            |m| m.weights[5].parts[0].extent = 0,
            "weight 5 `large`: the length of a part's extent is 3840, expected 28800",
        ),
        (
            |m| {
                m.weights[1].parts.clear();
                m.weights[1].shape = vec![0];
            },
            "extent 1: no weight has a part in it",
        ),
        (
            |m| {
                let shared = m.weights[4].clone();
                m.weights.extend(vec![shared; 1000]);
            },
            "weights: together they are far larger than the bytes that they share",
        ),
        (
            |m| {
                let target = String::new();
                let (target_hash, steps, bindings) = ([0; 32], Vec::new(), Vec::new());
                m.placements.push(PlacementRecord { target, target_hash, block: 0, steps, bindings });
            },
            "placement 0: the name of the target is missing",
        ),
    ]);
}

#[test]
fn unused_values_of_bodies_are_fine() {
    let (bytes, mut manifest) = with_other_file().write(SMALL_CHUNKS);
    let superblock = read_manifest(&bytes).unwrap().0;
    manifest.blocks[1].values.insert(1, value(matrix([Dim::ONE, Dim::ONE]), Role::Activations, 9, "unused"));
    manifest.blocks[1].parameters = 2;
    manifest.blocks[1].steps[0].results[0] = 2;
    manifest.blocks[1].results[0] = OperandRecord::Value(2);
    validate(&manifest, &superblock).unwrap();
}

#[test]
fn attachments() {
    fn attach(manifest: &mut Manifest, name: &str, bytes: u64) {
        let data = vec![0u8; bytes as usize].into();
        manifest.attachments.push(AttachmentRecord { name: name.to_string(), data });
    }
    check(&[
        (|m| attach(m, "tokenizer.json", 3), "sound"),
        (|m| attach(m, "", 0), "attachment 0: its name is no name of a file"),
        (|m| attach(m, "..", 0), "attachment 0: its name is no name of a file"),
        (|m| attach(m, "a/b", 0), "attachment 0: its name is no name of a file"),
        (|m| attach(m, "a\\b", 0), "attachment 0: its name is no name of a file"),
        (|m| attach(m, "a\n", 0), "attachment 0: its name is no name of a file"),
        (
            |m| {
                attach(m, "a", 1);
                attach(m, "a", 2);
            },
            "attachments: attachment `a` occurs twice",
        ),
        (
            |m| (0..65).for_each(|number| attach(m, &number.to_string(), 0)),
            "attachments: the number of attachments is 65, the limit is 64",
        ),
        (
            |m| attach(m, "a", IPU_ATTACHMENT_BYTES + 1),
            "attachments: the size in bytes of all attachments is 134217729, the limit is 134217728",
        ),
    ]);
}
