//! Each invariant with a graph that breaks it.

use crate::ir::text::parse;
use crate::ir::{ConstantData, ConstantId, Graph, Operand, Origin, StateUse, ValueId};
use crate::verify::{Invariant, Stage, VerifyError, verify};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::ops::Op;
use strum::VariantArray as _;

/// Values are %0 c, %1 x, %2 y, %3 z, %4 a, %5 b, %6 d; constants @0 w, @1 t.
const SOUND: &str = r#"source "model.onnx"
constant @w : f32[64, 64] = stored 0 raw_data 1024+16384
constant @t : f32[64, 64] = transpose permutation=[1, 0] @w
state "x"
entry "main"("c", "x") -> ("y", "z") = block 0 state 0 1=1
block 0(%c : bool[], %x : f32[2, 64]) {
  %y : f32[2, 64] = if then=1 otherwise=2 then_captures=1 %c, %x, %x from "choice"
  %z : f32[2, 64] = matmul %x, @t from "product"
  return %y, %z
}
block 1(%a : f32[2, 64]) {
  %b : f32[2, 64] = unary function=exp %a from "exp"
  return %b
}
block 2(%d : f32[2, 64]) {
  return %d
}
peak 0 given 1024 kept 1024
peak 1 given 512 kept 512
peak 2 given 0 kept 0
"#;

/// How a sound graph is broken, and all that is reported of it.
struct Broken {
    invariant: Invariant,
    how: fn(&mut Graph),
    violations: &'static str,
}

const BROKEN: &[Broken] = &[
    Broken {
        invariant: Invariant::BlockExists,
        how: |graph| graph.entries[0].block = BlockIndex(9),
        violations: "entry main: block 9 does not exist",
    },
    Broken {
        invariant: Invariant::BlockExists,
        how: |graph| {
            let Op::If(choice) = &mut graph.blocks[0].steps[0].op else { panic!("the first step is the choice") };
            choice.then = BlockIndex(9);
        },
        violations: "block 0, step 0 `choice` (if then=9 otherwise=2 then_captures=1): block 9 does not exist",
    },
    Broken {
        invariant: Invariant::BlockExists,
        how: |graph| graph.peaks[2].block = BlockIndex(9),
        violations: "peaks: block 9 does not exist",
    },
    Broken {
        invariant: Invariant::ValueExists,
        how: |graph| graph.blocks[1].steps[0].operands[0] = Operand::Value(ValueId(99)),
        violations: "block 1, step 0 `exp` (unary function=exp): %99 does not exist",
    },
    Broken {
        invariant: Invariant::ValueExists,
        how: |graph| {
            graph.blocks[2].parameters[0] = ValueId(99);
            graph.blocks[2].results[0] = Operand::Value(ValueId(99));
        },
        violations: "block 2: %99 does not exist",
    },
    Broken {
        invariant: Invariant::ConstantExists,
        how: |graph| graph.blocks[0].steps[1].operands[1] = Operand::Constant(ConstantId(99)),
        violations: "block 0, step 1 `product` (matmul): @99 does not exist",
    },
    Broken {
        invariant: Invariant::ConstantExists,
        how: |graph| {
            let ConstantData::Recipe { operands, .. } = &mut graph.constants[1].data else { panic!("@t is a recipe") };
            operands[0] = Some(ConstantId(99));
        },
        violations: "recipe of @1: @99 does not exist",
    },
    Broken {
        invariant: Invariant::SourceExists,
        how: |graph| graph.sources.clear(),
        violations: "@0: source 0 does not exist",
    },
    Broken {
        invariant: Invariant::SourceExists,
        how: |graph| graph.constants[1].origin = Some(Origin { source: 7, offset: 0, length: 0 }),
        violations: "@1: source 7 does not exist",
    },
    Broken {
        invariant: Invariant::DefinedOnce,
        how: |graph| graph.blocks[0].steps[1].results[0] = ValueId(2),
        violations: "block 0, step 1 `product` (matmul): %2 is defined twice; \
                     results of block 0: %3 is read before it is defined",
    },
    Broken {
        invariant: Invariant::DefinedBeforeRead,
        how: |graph| graph.blocks[0].steps[0].operands[1] = Operand::Value(ValueId(3)),
        violations: "block 0, step 0 `choice` (if then=1 otherwise=2 then_captures=1): %3 is read before it is defined",
    },
    Broken {
        invariant: Invariant::DefinedBeforeRead,
        how: |graph| graph.blocks[2].results[0] = Operand::Value(ValueId(1)),
        violations: "results of block 2: %1 is read before it is defined; \
                     block 0, step 0 `choice` (if then=1 otherwise=2 then_captures=1): in the body: a result is missing",
    },
    Broken {
        invariant: Invariant::OneRunner,
        how: |graph| {
            let Op::If(choice) = &mut graph.blocks[0].steps[0].op else { panic!("the first step is the choice") };
            choice.otherwise = BlockIndex(1);
        },
        violations: "block 1: is run from 2 places",
    },
    Broken {
        invariant: Invariant::NoRecursion,
        how: |graph| {
            let mut choice = graph.blocks[0].steps[0].clone();
            choice.operands.fill(Operand::Value(ValueId(4)));
            choice.results = vec![graph.add_value(graph.values[2].fact.clone(), None)];
            graph.blocks[1].steps.push(choice);
        },
        violations: "block 1: is run from 2 places; block 2: is run from 2 places; blocks [1]: run themselves",
    },
    Broken {
        invariant: Invariant::NoRecursion,
        how: |graph| {
            let mut choice = graph.blocks[0].steps[0].clone();
            choice.operands.fill(Operand::Value(ValueId(6)));
            choice.results = vec![graph.add_value(graph.values[2].fact.clone(), None)];
            let Op::If(inner) = &mut choice.op else { panic!("the first step is the choice") };
            (inner.then, inner.otherwise) = (BlockIndex(0), BlockIndex(3));
            graph.blocks[2].steps.push(choice);
            graph.add_block();
        },
        violations: "block 0: is run from 2 places; blocks [0, 2]: run themselves",
    },
    Broken {
        invariant: Invariant::PortsNamed,
        how: |graph| graph.entries[0].inputs.push("more".to_string()),
        violations: "entry main: names and signature differ in length",
    },
    Broken {
        invariant: Invariant::StatesExist,
        how: |graph| {
            graph.entries[0].states.push(StateUse { state: 0, input: Some(2), output: Some(0) });
            graph.entries[0].states.push(StateUse { state: 1, input: None, output: Some(1) });
        },
        violations: "entry main: state 0 by input Some(2) and output Some(0) of 2 and 2; entry main: state 1 by input None and output Some(1) of 2 and 2",
    },
    Broken {
        invariant: Invariant::StatesUsed,
        how: |graph| graph.entries[0].states.clear(),
        violations: "state x: no entry uses it",
    },
    Broken {
        invariant: Invariant::OperandsFit,
        how: |graph| graph.blocks[0].steps[1].operands[1] = Operand::Absent,
        violations: "block 0, step 1 `product` (matmul): operand 1 is missing",
    },
    Broken {
        invariant: Invariant::ResultCount,
        how: |graph| {
            let more = graph.add_value(graph.values[5].fact.clone(), None);
            graph.blocks[1].steps[0].results.push(more);
        },
        violations: "block 1, step 0 `exp` (unary function=exp): has 2 results, infers 1",
    },
    Broken {
        invariant: Invariant::ResultTypes,
        how: |graph| graph.values[5].fact = graph.values[0].fact.clone(),
        violations: "block 1, step 0 `exp` (unary function=exp): %5 is bool[], inferred f32[2, 64]",
    },
    Broken {
        invariant: Invariant::PeakKnown,
        how: |graph| graph.peaks.truncate(2),
        violations: "block 2: has no known peak",
    },
    Broken {
        invariant: Invariant::PeakNotRaised,
        how: |graph| graph.peaks[1].kept_bytes = 513,
        violations: "block 1: peak rose from 512 to 513 bytes",
    },
];

fn sound() -> Graph {
    let graph = parse(SOUND).unwrap();
    assert_eq!(verify(&graph, Stage::Ordered), Ok(()));
    graph
}

fn broken(how: &[fn(&mut Graph)]) -> VerifyError {
    let mut graph = sound();
    how.iter().for_each(|how| how(&mut graph));
    verify(&graph, Stage::Ordered).unwrap_err()
}

#[test]
fn broken_graphs_are_told_by_what_is_broken() {
    for Broken { invariant, how, violations } in BROKEN {
        let error = broken(&[*how]);
        assert_eq!(error.to_string(), *violations);
        assert!(error.0.iter().any(|violation| violation.invariant == *invariant), "{invariant:?}: {error:?}");
    }
}

#[test]
fn every_invariant_has_a_broken_graph() {
    for invariant in Invariant::VARIANTS {
        assert!(BROKEN.iter().any(|broken| broken.invariant == *invariant), "{invariant:?}");
    }
}

#[test]
fn all_violations_are_reported_at_once() {
    let breaks = |invariant: Invariant| BROKEN.iter().find(|broken| broken.invariant == invariant).unwrap().how;
    let across_stages =
        [Invariant::PeakNotRaised, Invariant::OperandsFit, Invariant::PortsNamed, Invariant::DefinedBeforeRead];
    let found: Vec<Invariant> = broken(&across_stages.map(breaks)).0.iter().map(|one| one.invariant).collect();
    let expected =
        [Invariant::PortsNamed, Invariant::DefinedBeforeRead, Invariant::OperandsFit, Invariant::PeakNotRaised];
    assert_eq!(found, expected);
    let indices = [Invariant::ConstantExists, Invariant::ValueExists, Invariant::SourceExists];
    let found: Vec<Invariant> = broken(&indices.map(breaks)).0.iter().map(|one| one.invariant).collect();
    assert_eq!(found, [Invariant::ConstantExists, Invariant::ValueExists]);
}

#[test]
fn stages_ask_for_no_more_than_they_say() {
    let mut graph = sound();
    graph.peaks.clear();
    assert_eq!(verify(&graph, Stage::Typed), Ok(()));
    graph.values[5].fact = graph.values[0].fact.clone();
    assert_eq!(verify(&graph, Stage::Imported), Ok(()));
}
