//! What is known of a step when its work is counted: types and shapes of its values, and how its weights are stored.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};

/// How a weight lies in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Element type in the file.
    pub dtype: DType,
    /// All bytes in the file, with scales and padding.
    pub bytes: Dim,
}

/// The facts of one step.
#[derive(Debug, Clone, Copy)]
pub struct StepFacts<'a> {
    /// Name of the step: counts that depend on data are symbols named after it.
    pub step: &'a str,
    /// Facts of the operands; `None` where one is absent.
    pub inputs: &'a [Option<Fact>],
    /// Facts of the results.
    pub outputs: &'a [Fact],
    /// For each operand that is a weight, how it is stored; the list may end early.
    pub stored: &'a [Option<Stored>],
}

impl<'a> StepFacts<'a> {
    /// A step without stored weights.
    pub fn new(step: &'a str, inputs: &'a [Option<Fact>], outputs: &'a [Fact]) -> StepFacts<'a> {
        StepFacts { step, inputs, outputs, stored: &[] }
    }

    /// A count known only at run time, named `step.label`.
    pub fn fresh(&self, label: &str) -> Dim {
        Dim::symbol(&format!("{}.{label}", self.step))
    }

    /// The fact of an operand, where it is there.
    pub fn operand(&self, operand: usize) -> Option<&'a Fact> {
        self.inputs.get(operand).and_then(Option::as_ref)
    }

    /// The extents of an operand, where it is a tensor of known rank.
    pub fn dims(&self, operand: usize) -> Option<&'a [Dim]> {
        self.operand(operand).and_then(Fact::dims)
    }

    /// The extents of a result, where it is a tensor of known rank.
    pub fn result(&self, result: usize) -> Option<&'a [Dim]> {
        self.outputs.get(result).and_then(Fact::dims)
    }

    /// The integers that an operand is known to hold.
    pub fn integers(&self, operand: usize) -> Option<Vec<i64>> {
        self.operand(operand).and_then(Fact::elements_as_integers)
    }

    /// The element type of an operand as it is stored or, where it is no weight, as it is computed.
    pub fn stored_type(&self, operand: usize) -> Option<DType> {
        match self.stored.get(operand) {
            Some(Some(stored)) => Some(stored.dtype),
            Some(None) | None => self.operand(operand)?.kind.as_tensor().map(|(dtype, _)| dtype),
        }
    }

    /// Number of elements of an operand: 0 where it is absent, a symbol where even its rank is unknown.
    pub fn elements(&self, operand: usize) -> Dim {
        match self.operand(operand) {
            None => Dim::ZERO,
            Some(fact) => count(fact).unwrap_or_else(|| self.fresh(&format!("operand{operand}.elements"))),
        }
    }

    /// Number of elements of a result: 0 where there is none, a symbol where even its rank is unknown.
    pub fn result_elements(&self, result: usize) -> Dim {
        match self.outputs.get(result) {
            None => Dim::ZERO,
            Some(fact) => count(fact).unwrap_or_else(|| self.fresh(&format!("result{result}.elements"))),
        }
    }

    /// Bytes of an operand that is no weight.
    pub fn operand_bytes(&self, operand: usize) -> Dim {
        match (self.stored.get(operand), self.operand(operand)) {
            (Some(Some(_)), _) | (_, None) => Dim::ZERO,
            (Some(None) | None, Some(fact)) => bytes(fact, self.elements(operand)),
        }
    }

    /// Bytes of a copy to result 0 and further results: each is read once and written once.
    pub fn copied_bytes(&self) -> Dim {
        self.result_bytes() * 2
    }

    /// Bytes of all results.
    pub fn result_bytes(&self) -> Dim {
        let of = |(result, fact)| bytes(fact, self.result_elements(result));
        Dim::sum(&self.outputs.iter().enumerate().map(of).collect::<Vec<_>>())
    }
}

fn count(fact: &Fact) -> Option<Dim> {
    match fact.kind.as_tensor() {
        Some((_, Shape::Ranked(dims))) => Some(Dim::product(dims)),
        Some((_, Shape::Unranked)) | None => None,
    }
}

/// Packed bytes of this many elements; those of strings and of sequences are the elements themselves, one byte each.
fn bytes(fact: &Fact, elements: Dim) -> Dim {
    match fact.kind.as_tensor() {
        Some((dtype, _)) if dtype != DType::String => (elements * dtype.bits() as i64).ceil_div(&Dim::known(8)),
        Some(_) | None => elements,
    }
}
