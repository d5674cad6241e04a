//! Which steps of a program are a chain (`chains`).

use super::chains::Chain;
use super::compiled::{Compiled, Step};
use super::feeds::{Feed, MOST_FEEDS, Widened};
use super::links::{Link, LinkFunction};
use super::operations::{Arithmetic, Compute, Operation};
use super::quarters::Quantized;
use ipuc_formats::ops::{ActivationFunction, Function};
use ipuc_kernels::simd::Divisor;

/// The result of a step of a chain.
struct Known {
    register: usize,
    slot: usize,
    /// How often later steps of the chain read it.
    reads: usize,
}

impl<'a> Compiled<'a> {
    /// Makes chains of steps.
    pub(super) fn chain(&mut self) {
        let uses = self.uses();
        let mut first = 0;
        while first < self.steps.len() {
            if let Some((chain, count)) = self.longest_chain(first, &uses) {
                let arguments = chain.feeds.iter().map(|feed| feed.register).collect();
                let last = &self.steps[first + count - 1];
                let operation = Operation::new(Compute::Chain(chain), last.operation.to());
                self.steps[first] = Step { function: last.function, operation, arguments, result: last.result };
                self.steps.drain(first + 1..first + count);
            }
            first += 1;
        }
    }

    /// Whether something else than a chain reads a register.
    pub(super) fn is_read_alone(&self, register: usize) -> bool {
        let reads = |step: &Step<'_>| step.operation.chain().is_none() && step.arguments.contains(&register);
        self.steps.iter().any(reads) || self.results.contains(&register)
    }

    /// The longest chain that begins at a step, and how many steps it has.
    fn longest_chain(&self, first: usize, uses: &[usize]) -> Option<(Chain, usize)> {
        let (mut chain, mut known) = (Chain::default(), Vec::new());
        let mut best = None;
        for (index, step) in self.steps[first..].iter().enumerate() {
            if chain.quantized.is_some() || self.append(&mut chain, &mut known, uses, step).is_none() {
                break;
            }
            let is_inner = |known: &Known| uses[known.register] == known.reads;
            let is_whole = known.split_last().is_some_and(|(_, others)| others.iter().all(is_inner));
            if is_whole && (chain.result >= MOST_FEEDS || chain.quantized.is_some()) {
                best = Some((chain.clone(), index + 1));
            }
        }
        best
    }

    /// Adds a step; `None` where it cannot be part of the chain, which is of no use then.
    fn append(&self, chain: &mut Chain, known: &mut Vec<Known>, uses: &[usize], step: &Step<'a>) -> Option<()> {
        if let Some(function) = step.operation.float_pair() {
            let &[left, right] = step.arguments.as_slice() else { return None };
            let (left, right) = (self.slot(chain, known, left)?, self.slot(chain, known, right)?);
            let is_read_once = |slot: usize| known.iter().any(|known| known.slot == slot && uses[known.register] == 1);
            let is_gated =
                function == Arithmetic::Mul && chain.gate([left, right], |register| self.float(register), is_read_once);
            let link = match function {
                Arithmetic::Add => Link::Add(left, right),
                Arithmetic::Sub => Link::Sub(left, right),
                Arithmetic::Mul => Link::Mul(left, right),
                Arithmetic::Div => Link::Div(left, right),
                Arithmetic::Min | Arithmetic::Max | Arithmetic::Prelu => return None,
            };
            if is_gated {
                // Of the links that there are no more, whose slots others get.
                known.retain(|known| known.slot < chain.result);
            } else {
                chain.link(link)?;
            }
        } else if step.operation.clamps_floats() {
            let &[x, least, greatest] = step.arguments.as_slice() else { return None };
            let (least, greatest) = (self.float(least)?, self.float(greatest)?);
            let x = self.slot(chain, known, x)?;
            (!least.is_nan() && !greatest.is_nan()).then_some(())?;
            chain.link(Link::Clamp(x, least, greatest))?;
        } else if is_relu(step.function) && step.operation.changes_floats() {
            let &[x] = step.arguments.as_slice() else { return None };
            let x = self.slot(chain, known, x)?;
            chain.link(Link::Clamp(x, 0.0, f32::INFINITY))?;
        } else if let Some(function) = LinkFunction::of(step.function).filter(|_| step.operation.changes_floats()) {
            let &[x] = step.arguments.as_slice() else { return None };
            let x = self.slot(chain, known, x)?;
            chain.link(Link::Change(x, function))?;
        } else if let Some(function) = step.operation.float_power().and_then(LinkFunction::of_power) {
            let &[x, _exponent] = step.arguments.as_slice() else { return None };
            let x = self.slot(chain, known, x)?;
            chain.link(Link::Change(x, function))?;
        } else if let Some((zero, scale)) = step.operation.widening() {
            let &[register] = step.arguments.as_slice() else { return None };
            known.iter().all(|known| known.register != register).then_some(())?;
            chain.result = chain.feed(Feed { register, widened: Some(Widened { zero, scale }) })?;
        } else {
            let (scale, zero, least, greatest) = step.operation.quantizing()?;
            let &[x] = step.arguments.as_slice() else { return None };
            let slot = self.slot(chain, known, x)?;
            chain.quantize(slot, Quantized { scale: Divisor::new(scale), zero, least, greatest });
        }
        known.push(Known { register: step.result, slot: chain.result, reads: 0 });
        Some(())
    }

    /// The slot of a register of f32.
    fn slot(&self, chain: &mut Chain, known: &mut [Known], register: usize) -> Option<usize> {
        if let Some(known) = known.iter_mut().find(|known| known.register == register) {
            known.reads += 1;
            return Some(known.slot);
        }
        chain.feed(Feed { register, widened: None })
    }
}

fn is_relu(function: &Function) -> bool {
    matches!(function, Function::Activation(activation) if activation.function == ActivationFunction::Relu)
}
