//! Loops that lowerings make themselves.

use crate::import::lowering::{LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::control::join::widen;
use ipuc_formats::ops::{Loop, TypeError};
use ipuc_formats::tensor::Tensor;

/// What a loop takes: at most so many iterations (`[]` or `[1]`, i64), values that it carries, and values of outside.
pub(super) struct CountedLoop {
    pub trips: Operand,
    /// Whether there is a first iteration; absent: there is.
    pub condition: Operand,
    pub carried: Vec<Operand>,
    pub captured: Vec<Operand>,
}

/// One iteration of a loop as its body sees it.
pub(super) struct Iteration<'a> {
    /// Its number, from 0 on: `[]`, i64.
    pub number: Operand,
    pub carried: &'a [Operand],
    pub captured: &'a [Operand],
}

/// What a body gives.
pub(super) struct Next {
    /// Whether there is a further iteration: `[]`.
    pub goes_on: Operand,
    pub carried: Vec<Operand>,
    /// Values of which the loop gives one an iteration.
    pub collected: Vec<Operand>,
}

impl CountedLoop {
    /// Emit the loop, of which `iterate` emits the body: what it carries in the end, then what it collects. The body is made
    /// again for wider facts until an iteration changes none.
    pub(super) fn emit(
        self,
        node: &mut Lowering<'_, '_>,
        iterate: &mut dyn FnMut(&mut Lowering<'_, '_>, Iteration<'_>) -> Result<Next, LowerError>,
    ) -> Result<Vec<Operand>, LowerError> {
        let CountedLoop { trips, condition, carried, captured } = self;
        let condition = match condition {
            Operand::Absent => node.constant(Tensor::scalar_bool(true)),
            given => given,
        };
        let mut facts = vec![Fact::tensor(DType::Bool, Vec::new())];
        facts.extend(facts_of(node, &carried)?);
        facts.iter_mut().for_each(|fact| fact.contents = None);
        // Constants are seen everywhere.
        let outside: Vec<Operand> =
            captured.iter().copied().filter(|operand| matches!(operand, Operand::Value(_))).collect();
        let outside_facts = facts_of(node, &outside)?;
        let body = loop {
            let number = Fact::tensor(DType::I64, Vec::new());
            let parameters = [vec![number], facts.clone(), outside_facts.clone()].concat();
            let body = node.block(parameters, |node, parameters| {
                let (own, outside) = parameters.split_at(2 + carried.len());
                let mut outside = outside.iter().copied();
                let inside = |operand: &Operand| match operand {
                    Operand::Value(_) => outside.next().unwrap_or(Operand::Absent),
                    Operand::Constant(_) | Operand::Absent => *operand,
                };
                let captured: Vec<Operand> = captured.iter().map(inside).collect();
                let next = iterate(node, Iteration { number: own[0], carried: &own[2..], captured: &captured })?;
                Ok([vec![next.goes_on], next.carried, next.collected].concat())
            })?;
            let next = widen(&facts, &body.results, node.step_name())?;
            if next == facts {
                break body;
            }
            facts = next;
        };
        let operator = Loop { body: body.block, carried: carried.len() as i64 };
        let operands = [vec![trips, condition], carried, outside, body.captures].concat();
        node.emit(operator, operands)
    }
}

fn facts_of(node: &Lowering<'_, '_>, operands: &[Operand]) -> Result<Vec<Fact>, LowerError> {
    let fact = |(operand, given): (usize, &Operand)| {
        node.fact(given).ok_or_else(|| TypeError::MissingOperand { operand }.into())
    };
    operands.iter().enumerate().map(fact).collect()
}
