//! What an operator infers is true of what its reference computes.
//!
//! A family gives random operands for its operators (`movement.rs` is one; a further one is a file beside it and a line
//! in [`FAMILIES`]). For each of them the reference is run, and `infer` is asked with less and less knowledge: extents
//! as numbers, as symbols or unknown, contents as numbers, as expressions or unknown. Once symbols have their values,
//! every inferred type, extent and element must be the reference's, and every obligation must hold. The loops that each
//! operator states must say what their parts need (`spaces.rs`).
#![allow(clippy::unwrap_used, reason = "tests panic where something is wrong")]

mod check;
mod computing;
mod movement;
mod random;
mod spaces;
mod windows;

use ipuc_formats::ops::Op;
use ipuc_formats::tensor::Tensor;
use random::Random;

/// An operator with operands.
pub struct Case {
    /// The operator.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<Option<Tensor>>,
}

impl Case {
    /// A case whose operands are all there.
    pub fn new(op: impl Into<Op>, operands: impl IntoIterator<Item = Tensor>) -> Case {
        Case { op: op.into(), operands: operands.into_iter().map(Some).collect() }
    }

    /// The same with an operand that may be absent behind the others.
    pub fn then(mut self, operand: Option<Tensor>) -> Case {
        self.operands.push(operand);
        self
    }
}

/// Random cases of one operator; most of them should be valid.
pub type Generator = fn(&mut Random) -> Case;

/// The generators of every family.
const FAMILIES: &[&[Generator]] = &[movement::GENERATORS, windows::GENERATORS, computing::GENERATORS];

/// Cases of each generator.
const CASES: usize = 300;

#[test]
fn what_is_inferred_is_true() {
    for (family, generators) in FAMILIES.iter().enumerate() {
        for (index, generator) in generators.iter().enumerate() {
            let mut random = Random::new((family * 1000 + index) as u64);
            let mut valid = 0;
            let mut name = "";
            for _ in 0..CASES {
                let case = generator(&mut random);
                name = case.op.name();
                valid += usize::from(check::agrees(&case, false, &mut random));
            }
            assert!(valid >= CASES / 4, "{name}: only {valid} of {CASES} cases are valid");
        }
    }
}

/// Operands of any kind: refused or computed, and what is inferred is still true.
#[test]
fn nothing_panics() {
    // Sums and products of elements beyond 64 bits wrap, which expressions do not.
    for (family, generators) in FAMILIES[..2].iter().enumerate() {
        for (index, generator) in generators.iter().enumerate() {
            let mut random = Random::new((family * 1000 + index + 500) as u64);
            for _ in 0..CASES {
                let mut case = generator(&mut random);
                for _ in 0..=random.below(2) {
                    let operand = random.below(case.operands.len() + 1);
                    case.operands.resize(case.operands.len().max(operand + 1), None);
                    case.operands[operand] = (!random.once_in(8)).then(|| random.anything());
                }
                check::agrees(&case, true, &mut random);
            }
        }
    }
}

/// Cases of each generator whose spaces are checked: each of them runs the reference several times.
const SPLIT_CASES: usize = 60;

#[test]
fn spaces_say_what_parts_need() {
    for (family, generators) in FAMILIES.iter().enumerate() {
        for (index, generator) in generators.iter().enumerate() {
            let mut random = Random::new((family * 1000 + index + 900) as u64);
            let cases = (0..SPLIT_CASES).map(|_| generator(&mut random)).collect::<Vec<_>>();
            let name = cases[0].op.name();
            let held = cases.iter().filter(|case| spaces::hold(case, &mut random)).count();
            assert!(held >= SPLIT_CASES / 5, "{name}: only {held} of {SPLIT_CASES} cases are valid");
        }
    }
}
