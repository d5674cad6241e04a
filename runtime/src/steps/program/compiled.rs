//! A program with its operands, and which loop computes each of its steps.

use super::chains::Chain;
use super::feeds::Input;
use super::operations::{Operation, operation};
use super::quarters::TOGETHER;
use super::registers::{Accumulators, BLOCK, Register, Registers, Source, is_written};
use crate::steps::KernelError;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::scalar::{Scalar, scalar_of_bits, scalars};
use ipuc_formats::ops::{Argument, Function, Program, ProgramError, ReferenceError, TypeError};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use std::ops::Range;

/// A checked program over elements of one shape.
pub(in crate::steps) struct Compiled<'a> {
    /// Register by register: the accumulator, operands and constants, then steps.
    pub(super) kinds: Vec<Kind<'a>>,
    pub(super) steps: Vec<Step<'a>>,
    pub(super) results: Vec<usize>,
    /// Registers that something else than a chain reads: operands are always read into them, and constants repeated.
    loaded: Vec<bool>,
    types: Vec<DType>,
    /// Chains read their operands where they lie between multiples of so many elements: blocks end there.
    direct_run: Option<usize>,
    /// The most elements of a block.
    most: usize,
    /// Elements that constants are repeated for where something else than a chain reads them.
    repeated: usize,
}

/// Elements of a block of a single chain that reads all that it reads where it lies: nothing is written between its operands and
/// results, and to begin a block costs as much as some hundred elements.
const LONG_BLOCK: usize = 16 * BLOCK;

/// Elements below which blocks go on over the ends of runs: shorter ones would cost more to begin than to compute.
const SHORTEST_RUN: usize = 256;

pub(super) enum Kind<'a> {
    Input(DType),
    Operand(DType, Source<'a>),
    /// One element.
    Constant(Register),
    Step(DType),
}

pub(super) struct Step<'a> {
    pub(super) function: &'a Function,
    pub(super) operation: Operation,
    pub(super) arguments: Vec<usize>,
    pub(super) result: usize,
}

impl<'a> Compiled<'a> {
    /// The program over results of this shape; `None` where blocks of a result are not whole bytes.
    ///
    /// # Errors
    /// [`KernelError`] where the program is wrong for its operands.
    pub(in crate::steps) fn new(
        program: &'a Program,
        accumulator: Option<DType>,
        shape: &[usize],
        inputs: &'a [Option<Value>],
    ) -> Result<Option<Compiled<'a>>, KernelError> {
        Compiled::after(program, 0, accumulator, shape, inputs)
    }

    /// The same where the results of step `first - 1` are there already: they take the place of the accumulators. Steps from
    /// `first` on read nothing else that is before them.
    ///
    /// # Errors
    /// As [`Compiled::new`].
    pub(super) fn after(
        program: &'a Program,
        first: usize,
        accumulator: Option<DType>,
        shape: &[usize],
        inputs: &'a [Option<Value>],
    ) -> Result<Option<Compiled<'a>>, KernelError> {
        let tensor = |operand: usize| inputs.get(operand)?.as_ref()?.as_tensor();
        let types = program.check(accumulator, |operand| tensor(operand).map(Tensor::dtype));
        let types = types.map_err(TypeError::from)?;
        if !types.iter().copied().all(is_written) {
            return Ok(None);
        }
        let (kinds, steps, results, loaded) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let repeated = shape.iter().product::<usize>().min(BLOCK);
        let mut compiled = Compiled { kinds, steps, results, loaded, types, direct_run: None, most: BLOCK, repeated };
        let mut known: Vec<(Argument, usize)> = Vec::new();
        if let Some(before) = first.checked_sub(1).and_then(|before| u16::try_from(before).ok()) {
            compiled.kinds.push(Kind::Input(program.steps[usize::from(before)].to));
            known.push((Argument::Step(before), 0));
        }
        let mut place = |compiled: &mut Compiled<'a>, argument: Argument| -> Result<usize, KernelError> {
            if let Some((_, register)) = known.iter().find(|(other, _)| *other == argument) {
                return Ok(*register);
            }
            let kind = match argument {
                Argument::Input => Kind::Input(accumulator.ok_or_else(|| missing(ProgramError::NoAccumulator))?),
                Argument::Operand(operand) => {
                    let found = tensor(operand.into()).ok_or_else(|| missing(ProgramError::Operand { operand }))?;
                    check_shape(found.shape(), shape)?;
                    match single(found)? {
                        Some(value) => Kind::Constant(Register::of_value(found.dtype(), value)),
                        None => Kind::Operand(found.dtype(), Source::new(found, shape)?),
                    }
                }
                Argument::Constant(dtype, bits) => {
                    let wrong = || missing(ProgramError::Constant { dtype, bits });
                    Kind::Constant(Register::of_value(dtype, scalar_of_bits(dtype, bits).ok_or_else(wrong)?))
                }
                Argument::Step(step) => Kind::Step(program.steps[usize::from(step)].to),
            };
            compiled.kinds.push(kind);
            known.push((argument, compiled.kinds.len() - 1));
            Ok(compiled.kinds.len() - 1)
        };
        for (index, step) in program.steps.iter().enumerate().skip(first) {
            let arguments = step.arguments.iter().map(|&argument| place(&mut compiled, argument));
            let arguments = arguments.collect::<Result<Vec<usize>, _>>()?;
            let dtypes: Vec<DType> =
                step.arguments.iter().map(|&argument| dtype_of(program, argument, accumulator, inputs)).collect();
            // A checked program has fewer steps than arguments can name.
            let own = Argument::Step(u16::try_from(index).unwrap_or(u16::MAX));
            let result = place(&mut compiled, own)?;
            let exponent = step.arguments.get(1).copied().and_then(float_constant);
            compiled.steps.push(Step {
                function: &step.function,
                operation: operation(&step.function, &dtypes, exponent, step.to),
                arguments,
                result,
            });
        }
        for &result in &program.results {
            let result = place(&mut compiled, result)?;
            compiled.results.push(result);
        }
        compiled.join();
        compiled.plan_reads();
        Ok(Some(compiled))
    }

    /// Which operands chains read where they lie, and the blocks that follow from that.
    fn plan_reads(&mut self) {
        self.loaded = (0..self.kinds.len()).map(|register| self.is_read_alone(register)).collect();
        let runs = self.kinds.iter().zip(&self.loaded).filter_map(|(kind, is_loaded)| match kind {
            Kind::Operand(_, source) if !is_loaded => source.direct_run(),
            Kind::Operand(..) | Kind::Input(_) | Kind::Constant(_) | Kind::Step(_) => None,
        });
        self.direct_run = runs.filter(|run| *run >= SHORTEST_RUN).min();
        if self.reads_all_directly() {
            self.most = LONG_BLOCK;
        }
    }

    /// The types of its results.
    pub(in crate::steps) fn types(&self) -> &[DType] {
        &self.types
    }

    /// About how many operations an element costs.
    pub(in crate::steps) fn cost(&self) -> usize {
        self.steps.iter().map(|step| step.operation.cost()).sum::<usize>() + 1
    }

    /// Where the block that begins at element `start` ends, at most at `end`.
    pub(super) fn block_end(&self, start: usize, end: usize) -> usize {
        let Some(run) = self.direct_run else { return end.min(start + self.most) };
        // A run is cut into blocks of about equal length, so that its last block is not a short one.
        let length = run.div_ceil(run.div_ceil(self.most)).next_multiple_of(TOGETHER).min(self.most);
        end.min(start + length.min(run - start % run))
    }

    /// Whether one chain computes all, whose operands lie side by side in memory for long runs, and whose constants are f32.
    fn reads_all_directly(&self) -> bool {
        let is_direct = |register: usize| match &self.kinds[register] {
            Kind::Operand(_, source) => source.direct_run().is_some_and(|run| run >= SHORTEST_RUN),
            Kind::Constant(Register::Float(_)) => true,
            Kind::Constant(Register::Integer(_) | Register::General(_)) | Kind::Input(_) | Kind::Step(_) => false,
        };
        let [step] = &self.steps[..] else { return false };
        self.last_chain().is_some() && step.arguments.iter().all(|&register| is_direct(register))
    }

    /// Registers for one thread.
    pub(super) fn registers(&self) -> Registers {
        let register = |(kind, is_loaded): (&Kind<'_>, &bool)| match kind {
            Kind::Input(dtype) | Kind::Operand(dtype, _) | Kind::Step(dtype) => Register::of(*dtype),
            // Chains read one element.
            Kind::Constant(Register::Float(one)) if !is_loaded => Register::Float(one.clone()),
            Kind::Constant(constant) => constant.repeated(self.repeated),
        };
        Registers(self.kinds.iter().zip(&self.loaded).map(register).collect())
    }

    /// Computes the elements `range` of the results, at most a block, from their accumulators.
    ///
    /// # Errors
    /// [`ReferenceError`] for a division of integers by zero.
    pub(in crate::steps) fn run(
        &self,
        registers: &mut Registers,
        accumulators: Accumulators<'_>,
        range: Range<usize>,
        outputs: &mut [&mut [u8]],
    ) -> Result<(), ReferenceError> {
        if let (Some(chain), [out]) = (self.last_chain(), &mut *outputs)
            && let Some(out) = chain.direct(out)
        {
            self.compute_steps(&self.steps[..self.steps.len() - 1], registers, accumulators, &range)?;
            chain.run_to(|register| self.input(&registers.0, register, &range), range.len(), out);
            return Ok(());
        }
        self.compute(registers, accumulators, range)?;
        for ((&result, &dtype), output) in self.results.iter().zip(&self.types).zip(outputs) {
            registers.0[result].write(dtype, output)?;
        }
        Ok(())
    }

    /// Computes the registers of the elements `range`.
    ///
    /// # Errors
    /// As [`Compiled::run`].
    pub(super) fn compute(
        &self,
        registers: &mut Registers,
        accumulators: Accumulators<'_>,
        range: Range<usize>,
    ) -> Result<(), ReferenceError> {
        self.compute_steps(&self.steps, registers, accumulators, &range)
    }

    /// The chain that makes the only result with the last step, where that is f32 or integers of 8 bits.
    fn last_chain(&self) -> Option<&Chain> {
        let (last, &[result], &[dtype]) = (self.steps.last()?, &self.results[..], &self.types[..]) else { return None };
        let is_quantized = match dtype {
            DType::F32 => false,
            DType::I8 | DType::U8 => true,
            _ => return None,
        };
        last.operation.chain().filter(|chain| last.result == result && chain.quantized.is_some() == is_quantized)
    }

    /// Reads operands and computes some of the steps.
    fn compute_steps(
        &self,
        steps: &[Step<'_>],
        registers: &mut Registers,
        accumulators: Accumulators<'_>,
        range: &Range<usize>,
    ) -> Result<(), ReferenceError> {
        let registers = &mut registers.0;
        for ((kind, register), &is_loaded) in self.kinds.iter().zip(registers.iter_mut()).zip(&self.loaded) {
            match kind {
                Kind::Input(_) => load_accumulators(register, accumulators),
                Kind::Operand(_, source) if !is_loaded && source.direct(range).is_some() => {}
                Kind::Operand(_, source) => source.load(range.clone(), register),
                Kind::Constant(_) | Kind::Step(_) => {}
            }
        }
        for step in steps {
            // Single assignment: arguments are other registers.
            let mut result = std::mem::replace(&mut registers[step.result], Register::Integer(Vec::new()));
            if let Some(chain) = step.operation.chain() {
                chain.run(range.len(), |register| self.input(registers, register, range), &mut result);
                registers[step.result] = result;
                continue;
            }
            let computed = match *step.arguments.as_slice() {
                [x] => step.operation.run(&[&registers[x]], range.len(), &mut result),
                [x, y] => step.operation.run(&[&registers[x], &registers[y]], range.len(), &mut result),
                [x, y, z] => {
                    step.operation.run(&[&registers[x], &registers[y], &registers[z]], range.len(), &mut result)
                }
                // A checked program has functions of one to three arguments.
                _ => Ok(()),
            };
            registers[step.result] = result;
            computed?;
        }
        Ok(())
    }

    /// The elements `range` of a register that a chain reads: operands that lie side by side are read where they are.
    fn input<'r>(&'r self, registers: &'r [Register], register: usize, range: &Range<usize>) -> Input<'r> {
        let direct = match &self.kinds[register] {
            Kind::Operand(_, source) => source.direct(range).map(Input::of_operand),
            Kind::Constant(Register::Float(values)) => values.first().copied().map(Input::One),
            Kind::Input(_) | Kind::Constant(_) | Kind::Step(_) => None,
        };
        direct.unwrap_or_else(|| Input::of_register(&registers[register], range.len()))
    }

    /// The register of sums of f32 that one chain and nothing else makes the only result of, which is f32, reading long runs of its
    /// operands where they lie.
    pub(super) fn single_chain(&self) -> Option<usize> {
        let ([step], &[result], [DType::F32]) = (&self.steps[..], &self.results[..], &self.types[..]) else {
            return None;
        };
        let are_long = self.kinds.iter().all(|kind| match kind {
            Kind::Operand(_, source) => source.direct_run().is_some_and(|run| run >= SHORTEST_RUN),
            Kind::Input(_) | Kind::Constant(_) | Kind::Step(_) => true,
        });
        step.operation.chain().filter(|_| are_long && step.result == result)?;
        self.kinds.iter().position(|kind| matches!(kind, Kind::Input(DType::F32)))
    }

    /// Changes sums, which are in this register and are elements of one block, to results of the single chain.
    pub(super) fn change_block(&self, own: usize, registers: &Registers, sums: &mut [f32], range: Range<usize>) {
        if let Some(chain) = self.steps.first().and_then(|step| step.operation.chain()) {
            chain.change(own, |register| self.input(&registers.0, register, &range), sums);
        }
    }

    /// The only result, where it is a float that f32 holds.
    pub(super) fn store_float(&self, registers: &Registers, out: &mut [f32]) {
        if let [result] = self.results.as_slice()
            && let Register::Float(values) = &registers.0[*result]
        {
            out.copy_from_slice(&values[..out.len()]);
        }
    }
}

/// The value of a tensor of one element.
fn single(tensor: &Tensor) -> Result<Option<Scalar>, KernelError> {
    if tensor.shape().iter().product::<usize>() != 1 {
        return Ok(None);
    }
    Ok(scalars(tensor)?.first().copied())
}

/// The value of a constant.
fn float_constant(argument: Argument) -> Option<f64> {
    match argument {
        Argument::Constant(dtype, bits) => scalar_of_bits(dtype, bits).map(Scalar::to_f64),
        Argument::Input | Argument::Step(_) | Argument::Operand(_) => None,
    }
}

fn missing(error: ProgramError) -> KernelError {
    TypeError::from(error).into()
}

fn load_accumulators(register: &mut Register, accumulators: Accumulators<'_>) {
    match (register, accumulators) {
        (Register::Float(own), Accumulators::Float(values)) => {
            own.clear();
            own.extend_from_slice(values);
        }
        (Register::Integer(own), Accumulators::Integer(values)) => {
            own.clear();
            own.extend_from_slice(values);
        }
        // The register has the class of the accumulators' type.
        (Register::Float(_) | Register::Integer(_) | Register::General(_), _) => {}
    }
}

/// The type of an argument of a program that was checked.
fn dtype_of(program: &Program, argument: Argument, accumulator: Option<DType>, inputs: &[Option<Value>]) -> DType {
    match argument {
        Argument::Input => accumulator.unwrap_or(DType::F32),
        Argument::Step(step) => program.steps[usize::from(step)].to,
        Argument::Constant(dtype, _) => dtype,
        Argument::Operand(operand) => {
            let tensor = inputs.get(usize::from(operand)).and_then(Option::as_ref).and_then(Value::as_tensor);
            tensor.map_or(DType::F32, Tensor::dtype)
        }
    }
}

/// An operand broadcasts to the result, never the other way round.
fn check_shape(operand: &[usize], shape: &[usize]) -> Result<(), KernelError> {
    let offset = shape.len().checked_sub(operand.len());
    let fits = offset
        .is_some_and(|offset| operand.iter().zip(&shape[offset..]).all(|(&from, &into)| from == 1 || from == into));
    if fits {
        return Ok(());
    }
    let (left, right) = (format!("{operand:?}"), format!("{shape:?}"));
    Err(TypeError::Dimension { subject: "operand of the program".to_string(), left, right }.into())
}
