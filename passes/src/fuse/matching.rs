//! Finds steps that together compute what one operator does, from the last one backwards.

use super::readers::Steps;
use crate::ir::{Graph, Operand, Step};
use ipuc_formats::dim::Dim;
use ipuc_formats::ops::scalar::{Scalar, scalars};
use ipuc_formats::ops::{BinaryFunction, Op, UnaryFunction};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A step, and those before it that were found to belong to it.
pub(super) struct Match<'a> {
    pub(super) graph: &'a Graph,
    steps: &'a Steps,
    at: usize,
    found: BTreeSet<usize>,
}

impl<'a> Match<'a> {
    /// Begins with the step at `at`.
    pub(super) fn new(graph: &'a Graph, steps: &'a Steps, at: usize) -> Self {
        Match { graph, steps, at, found: BTreeSet::new() }
    }

    /// The step that computes an operand.
    pub(super) fn producer(&mut self, operand: Operand) -> Option<&'a Step> {
        let Operand::Value(value) = operand else { return None };
        let (at, step) = self.steps.producer(value).filter(|(at, _)| *at < self.at)?;
        self.found.insert(at);
        Some(step)
    }

    /// The step that computes an operand which nobody but the steps that were found reads.
    pub(super) fn only_producer(&mut self, reader: &Step, operand: Operand) -> Option<&'a Step> {
        let Operand::Value(value) = operand else { return None };
        let (reader, _) = self.steps.producer(*reader.results.first()?)?;
        self.steps.only_for(reader, value)?;
        self.producer(operand)
    }

    /// What `form` finds, or nothing of it.
    pub(super) fn attempt<T>(&mut self, form: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let found = self.found.clone();
        let formed = form(self);
        if formed.is_none() {
            self.found = found;
        }
        formed
    }

    /// Whether nobody reads an operand but steps that were found.
    pub(super) fn is_read_within(&self, operand: Operand) -> bool {
        let Operand::Value(value) = operand else { return false };
        self.steps.is_read_within(value, &self.found)
    }

    /// Where the step is that computes an operand.
    pub(super) fn place(&self, operand: Operand) -> Option<usize> {
        let Operand::Value(value) = operand else { return None };
        Some(self.steps.producer(value)?.0)
    }

    /// The operand of a step that is this function.
    pub(super) fn unary(&mut self, operand: Operand, function: UnaryFunction) -> Option<Operand> {
        let step = self.producer(operand)?;
        let Op::Unary(unary) = &step.op else { return None };
        (unary.function == function).then(|| step.operands[0])
    }

    /// The operands of a step that is this function of two.
    pub(super) fn binary(&mut self, operand: Operand, function: BinaryFunction) -> Option<[Operand; 2]> {
        let step = self.producer(operand)?;
        operands_of(step, function)
    }

    /// What `form` finds in one order of two operands of a function that commutes, or in the other.
    pub(super) fn either<T>(
        &mut self,
        [one, other]: [Operand; 2],
        mut form: impl FnMut(&mut Self, [Operand; 2]) -> Option<T>,
    ) -> Option<T> {
        self.attempt(|matched| form(matched, [one, other]))
            .or_else(|| self.attempt(|matched| form(matched, [other, one])))
    }

    /// The only element of a constant.
    pub(super) fn single(&self, operand: Operand) -> Option<f64> {
        let Operand::Constant(id) = operand else { return None };
        let tensor = self.graph.constant(id).tensor().filter(|tensor| tensor.count() == 1)?;
        match scalars(tensor).ok()?.first()? {
            Scalar::Float(value) => Some(*value),
            Scalar::Integer(value) => Some(*value as f64),
        }
    }

    /// Extents of an operand.
    pub(super) fn dims(&self, operand: Operand) -> Option<Vec<Dim>> {
        Some(self.graph.fact(operand)?.dims()?.to_vec())
    }

    /// Steps that belong to the last one.
    pub(super) fn found(self) -> BTreeSet<usize> {
        self.found
    }

    /// Names of the nodes, each once, in the order in which they compute.
    pub(super) fn name(&self) -> Arc<str> {
        joined_name(self.found.iter().chain([&self.at]).filter_map(|&at| self.steps.get(at)))
    }
}

/// Names of the nodes of some steps, each once.
pub(super) fn joined_name<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Arc<str> {
    let mut names: Vec<&str> = Vec::new();
    for name in steps.into_iter().map(|step| &*step.name).filter(|name| !name.is_empty()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(" + ").into()
}

/// The operands of a step that is this function of two.
pub(super) fn operands_of(step: &Step, function: BinaryFunction) -> Option<[Operand; 2]> {
    let Op::Binary(binary) = &step.op else { return None };
    let &[one, other] = step.operands.as_slice() else { return None };
    (binary.function == function).then_some([one, other])
}
