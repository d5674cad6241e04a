//! What of a program does not depend on the element is computed once, and chains that programs over codes are made of are one
//! loop: `(x - zero) * scale` of integers, `round(x / scale) + zero` in the range of an integer type, and sums of i32 that wrap around.
//!
//! The bits are those of the steps: differences of integers of 16 bits, as integers or as f32, and clamped sums are exact.

use super::compiled::{Compiled, Kind, Step};
use super::operations::{Arithmetic, Compute, Operation, bounds};
use super::registers::Register;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BinaryFunction, Function, UnaryFunction};

/// Zero points up to which differences of integers of 16 bits are exact in f32.
const MOST_ZERO: u32 = 1 << 16;

impl<'a> Compiled<'a> {
    /// Joins steps.
    pub(super) fn join(&mut self) {
        self.compute_constants();
        self.pass_on();
        let uses = self.uses();
        let mut at = 0;
        while at < self.steps.len() {
            let found = self.dequantized(at, &uses).or_else(|| self.quantized(at, &uses));
            let found = found.or_else(|| self.added_wrapping(at, &uses));
            if let Some((step, gone)) = found {
                self.steps[at] = step;
                at -= gone.len();
                for place in gone.into_iter().rev() {
                    self.steps.remove(place);
                }
            }
            at += 1;
        }
        self.chain();
    }

    /// How often each register is read.
    pub(super) fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.kinds.len()];
        let read = self.steps.iter().flat_map(|step| &step.arguments).chain(&self.results);
        read.for_each(|&register| uses[register] += 1);
        uses
    }

    /// Computes steps of which all arguments are constants. One that fails stays, so that a run says so.
    fn compute_constants(&mut self) {
        for step in std::mem::take(&mut self.steps) {
            match self.computed(&step) {
                Some(result) => self.kinds[step.result] = Kind::Constant(result),
                None => self.steps.push(step),
            }
        }
    }

    /// The result of a step of constants.
    fn computed(&self, step: &Step<'_>) -> Option<Register> {
        let arguments: Option<Vec<&Register>> =
            step.arguments.iter().map(|&register| self.constant(register)).collect();
        let (arguments, Kind::Step(dtype)) = (arguments?, &self.kinds[step.result]) else { return None };
        let mut result = Register::of(*dtype);
        step.operation.run(&arguments, 1, &mut result).ok()?;
        Some(result)
    }

    /// Reads the argument of a conversion that changes nothing where its result was read.
    fn pass_on(&mut self) {
        let mut at = 0;
        while at < self.steps.len() {
            let step = &self.steps[at];
            if !step.operation.is_identity() {
                at += 1;
                continue;
            }
            let (from, to) = (step.arguments[0], step.result);
            self.steps.remove(at);
            let readers = self.steps.iter_mut().flat_map(|step| step.arguments.iter_mut()).chain(&mut self.results);
            readers.filter(|register| **register == to).for_each(|register| *register = from);
        }
    }

    /// The step that makes a register, and its place, where nothing else reads it.
    fn only_maker(&self, register: usize, before: usize, uses: &[usize]) -> Option<(usize, &Step<'a>)> {
        let found = self.steps[..before].iter().enumerate().rev().find(|(_, step)| step.result == register);
        found.filter(|_| uses[register] == 1)
    }

    /// A register that is the same for all elements.
    fn constant(&self, register: usize) -> Option<&Register> {
        match &self.kinds[register] {
            Kind::Constant(register) => Some(register),
            Kind::Input(_) | Kind::Operand(..) | Kind::Step(_) => None,
        }
    }

    /// The value of a constant of i32.
    fn integer(&self, register: usize) -> Option<i32> {
        match self.constant(register)? {
            Register::Integer(values) => values.first().copied(),
            Register::Float(_) | Register::General(_) => None,
        }
    }

    /// The value of a constant of f32.
    pub(super) fn float(&self, register: usize) -> Option<f32> {
        match self.constant(register)? {
            Register::Float(values) => values.first().copied(),
            Register::Integer(_) | Register::General(_) => None,
        }
    }

    /// Whether a register has integers whose differences an i32 holds.
    fn is_narrow(&self, register: usize) -> bool {
        match &self.kinds[register] {
            Kind::Input(dtype) | Kind::Operand(dtype, _) | Kind::Step(dtype) => dtype.bits() <= 16,
            Kind::Constant(_) => false,
        }
    }

    /// `(x - zero) * scale` at `at`, and the places of the steps before it that are part of it, in order.
    fn dequantized(&self, at: usize, uses: &[usize]) -> Option<(Step<'a>, Vec<usize>)> {
        let step = &self.steps[at];
        let &[left, right] = step.operation.floats_of(Arithmetic::Mul, &step.arguments)? else { return None };
        let (wide, scale) = match (self.float(left), self.float(right)) {
            (None, Some(scale)) => (left, scale),
            (Some(scale), None) => (right, scale),
            _ => return None,
        };
        let less = self.less_integer(wide, at, uses);
        let (wide, before) = less.map_or((wide, at), |(wide, _, place)| (wide, place));
        let (widened, step_of) = self.only_maker(wide, before, uses)?;
        let &[integer] = step_of.operation.widened(&step_of.arguments)? else { return None };
        let (x, zero, gone) = match less {
            Some((_, zero, place)) => self.is_narrow(integer).then_some((integer, zero, vec![widened, place]))?,
            None => {
                let difference = self.difference(integer, widened, uses);
                difference.map_or((integer, 0, vec![widened]), |(x, zero, place)| (x, zero, vec![place, widened]))
            }
        };
        let operation = Operation::new(Compute::Dequantize { zero, scale }, DType::F32);
        Some((Step { operation, arguments: vec![x], result: step.result, function: step.function }, gone))
    }

    /// A register that `x - zero` of integers makes, as x and zero and the place of the step.
    fn difference(&self, register: usize, before: usize, uses: &[usize]) -> Option<(usize, i32, usize)> {
        let (place, step) = self.only_maker(register, before, uses)?;
        let &[x, zero] = step.operation.integers_of(Arithmetic::Sub, DType::I32, &step.arguments)? else { return None };
        let zero = self.integer(zero).filter(|zero| zero.unsigned_abs() <= MOST_ZERO)?;
        self.is_narrow(x).then_some((x, zero, place))
    }

    /// A register of f32 that is another one less an integer, as that one and the integer and the place of the step.
    fn less_integer(&self, register: usize, before: usize, uses: &[usize]) -> Option<(usize, i32, usize)> {
        let (place, step) = self.only_maker(register, before, uses)?;
        let &[x, zero] = step.operation.floats_of(Arithmetic::Sub, &step.arguments)? else { return None };
        let zero = self.float(zero).filter(|zero| zero.fract() == 0.0 && zero.abs() <= MOST_ZERO as f32)?;
        Some((x, zero as i32, place))
    }

    /// `round(x / scale) + zero` at `at`, and the places of the steps before it that are part of it, in order.
    fn quantized(&self, at: usize, uses: &[usize]) -> Option<(Step<'a>, Vec<usize>)> {
        let step = &self.steps[at];
        let Kind::Step(dtype) = self.kinds[step.result] else { return None };
        let &[rounded, zero] = step.operation.integers_of(Arithmetic::Add, dtype, &step.arguments)? else {
            return None;
        };
        let ((least, greatest), zero) = (bounds(dtype), self.integer(zero)?);
        let (rounded, rounds) = self.only_maker(rounded, at, uses)?;
        let is_rounding = *rounds.function == Function::Unary(UnaryFunction::Round);
        let Kind::Step(DType::I32) = self.kinds[rounds.result] else { return None };
        let &[quotient] = rounds.arguments.as_slice() else { return None };
        let (divided, division) = self.only_maker(quotient, rounded, uses)?;
        let &[x, scale] = division.operation.floats_of(Arithmetic::Div, &division.arguments)? else { return None };
        let scale = self.float(scale)?;
        // The bounds of the nearest integer are those of the sum less what is added.
        let (least, greatest) = (least.checked_sub(zero)?, greatest.checked_sub(zero)?);
        let fits = is_rounding && dtype.bits() <= 16 && zero.unsigned_abs() <= MOST_ZERO;
        let operation = Operation::new(Compute::Quantize { scale, zero, least, greatest }, dtype);
        let step = Step { operation, arguments: vec![x], result: step.result, function: step.function };
        fits.then_some((step, vec![divided, rounded]))
    }

    /// The low bits of a sum in i64 of two i32 at `at`, and the places of the steps before it that are part of it, in order.
    fn added_wrapping(&self, at: usize, uses: &[usize]) -> Option<(Step<'a>, Vec<usize>)> {
        const ADD: Function = Function::Binary(BinaryFunction::Add);
        let step = &self.steps[at];
        let narrowed = step.operation.general_of(&Function::Cast, (DType::I64, DType::I32), &step.arguments)?;
        let (sum, adds) = self.only_maker(narrowed[0], at, uses)?;
        let &[left, right] = adds.operation.general_of(&ADD, (DType::I64, DType::I64), &adds.arguments)? else {
            return None;
        };
        let widened = |register| {
            let (place, step) = self.only_maker(register, sum, uses)?;
            let from = step.operation.general_of(&Function::Cast, (DType::I32, DType::I64), &step.arguments)?;
            Some((from[0], place))
        };
        let ((left, first), (right, second)) = (widened(left)?, widened(right)?);
        let operation = Operation::new(Compute::AddWrapping, DType::I32);
        let step = Step { operation, arguments: vec![left, right], result: step.result, function: step.function };
        Some((step, vec![first.min(second), first.max(second), sum]))
    }
}
