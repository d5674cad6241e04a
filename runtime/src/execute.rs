//! Runs the steps of a block, one after another; threads share a step.
//!
//! A frame holds the values of one running block. A value is handed to its last reader, so that a kernel may write over
//! it, and is dropped where nobody reads it.
//!
//! `joint` runs a block for several callers at once.

pub(crate) mod joint;

use crate::cancel::CancelToken;
use crate::counter::StepCounter;
use crate::error::RunError;
use crate::memory::BoundMemory;
use crate::observe::Observer;
use crate::program::{BlockPlan, Program};
use crate::steps::{Allocate, Contents, Context, KernelError, Operand, PartSource, Prepared, Progress, Weight, kernel};
use crate::trace::Trace;
use crate::versions::{PageMemory, Version};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Type;
use ipuc_formats::model::{BlockRecord, OperandRecord, StepRecord};
use ipuc_formats::ops::{BlockRunner, ReferenceError, TypeError};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::product::Skipped;
use std::sync::Arc;
use std::time::Instant;

/// One run of an entry.
pub(crate) struct Execution<'a, 'o> {
    pub(crate) program: &'a Program,
    pub(crate) memory: &'a BoundMemory,
    pub(crate) random_state: u64,
    /// What products have left out.
    pub(crate) skipped: Skipped,
    pub(crate) trace: Option<&'a Trace>,
    pub(crate) cancel: Option<&'a CancelToken>,
    /// What counts the steps, and the block of the entry.
    pub(crate) counter: Option<(&'a StepCounter, u32)>,
    pub(crate) observer: Option<&'a mut (dyn Observer + 'o)>,
}

impl Execution<'_, '_> {
    /// Results of a block for its parameters.
    ///
    /// # Errors
    /// [`RunError::Step`] for the first step that fails.
    pub(crate) fn run_block(&mut self, index: u32, arguments: Vec<Contents>) -> Result<Vec<Contents>, RunError> {
        let program = self.program;
        let block = &program.manifest.blocks[index as usize];
        let plan = &program.plans[index as usize];
        if let Some(observer) = &mut self.observer {
            observer.block(index);
        }
        let mut frame = frame(arguments, block);
        for (at, step) in block.steps.iter().enumerate() {
            if self.cancel.is_some_and(CancelToken::is_cancelled) {
                return Err(failure(step, KernelError::Cancelled));
            }
            let here = at as u32;
            program.source.progress(Progress::StepBegins { block: index, step: here });
            let begun = self.trace.map(|_| Instant::now());
            let views = self.memory.view(index, at).and_then(|shapes| viewed(step, &frame, shapes));
            let given = views.or_else(|| self.joined(index, step, at, &frame));
            let mut results = match given {
                Some(given) => given,
                None => {
                    let operands = self.operands(index, step, plan, at, &mut frame, &program.source);
                    // Keys and values of the next attention come from the disk while this one and what lies between are computed.
                    if reads_caches(&operands) && program.spill.spilled_bytes() > 0 {
                        upcoming_versions(&block.steps[at + 1..], &frame).for_each(Version::read_ahead);
                    }
                    self.run_step((index, at), step, operands)?
                }
            };
            release(step, plan, at, &mut frame);
            if let (Some(trace), Some(begun)) = (self.trace, begun) {
                trace.add_step((index, here), step.op.name(), &step.name, begun);
            }
            program.source.progress(Progress::StepEnds { block: index, step: here });
            if let Some(observer) = &mut self.observer {
                for (&slot, contents) in step.results.iter().zip(&mut results) {
                    let number = block.values[slot as usize].id;
                    let value = self.memory.whole(contents).map_err(|error| failure(step, error))?;
                    observer.value(number, &value);
                    if let Some(other) = observer.replaced(number, &value) {
                        let is_alike = matches!(contents, Contents::Value(_)) && other.kind() == value.kind();
                        is_alike.then_some(()).ok_or_else(|| RunError::Replaced { step: step.name.clone() })?;
                        *contents = Contents::Value(other);
                    }
                }
            }
            keep(results, step, plan, &mut frame);
            if let Some((counter, entry)) = self.counter {
                counter.count(index == entry);
            }
        }
        let end = block.steps.len() as u32;
        program.source.progress(Progress::StepBegins { block: index, step: end });
        let results = block.results.iter().map(|operand| self.result(operand, &mut frame)).collect();
        program.source.progress(Progress::StepEnds { block: index, step: end });
        results
    }

    /// The result of a step whose operands lie in its place already.
    fn joined(&self, block: u32, step: &StepRecord, at: usize, frame: &[Option<Contents>]) -> Option<Vec<Contents>> {
        self.memory.joins(block, at).then_some(())?;
        let operand = |operand: &OperandRecord| match *operand {
            OperandRecord::Value(slot) => match frame[slot as usize].as_ref()? {
                Contents::Value(value) => value.as_tensor().cloned(),
                Contents::Version(_) => None,
            },
            OperandRecord::Weight(_) | OperandRecord::Absent => None,
        };
        let operands = step.operands.iter().map(operand).collect::<Option<Vec<_>>>()?;
        let joined = self.memory.join(block, at, *step.results.first()?, operands)?;
        Some(vec![Contents::Value(joined.into())])
    }

    /// The operands of a step, whose weights come from `source`. A step that nobody reads them after owns them and may write over them,
    /// but where its result has its place within a larger value: they are to be released behind it.
    fn operands(
        &self,
        block: u32,
        step: &StepRecord,
        plan: &BlockPlan,
        at: usize,
        frame: &mut [Option<Contents>],
        source: &Arc<dyn PartSource>,
    ) -> Vec<Operand> {
        let mut operands: Vec<Operand> = Vec::with_capacity(step.operands.len());
        let is_part = self.memory.is_part(block, &step.results);
        for (position, operand) in step.operands.iter().enumerate() {
            operands.push(match *operand {
                OperandRecord::Absent => Operand::Absent,
                OperandRecord::Weight(weight) => Operand::Weight(self.weight_from(weight, source)),
                OperandRecord::Value(slot) => {
                    let slot_value = &mut frame[slot as usize];
                    let last = plan.is_last_read(slot, at, position) && !is_part;
                    match if last { slot_value.take() } else { slot_value.clone() } {
                        Some(Contents::Value(value)) => Operand::Value(value),
                        Some(Contents::Version(version)) => Operand::Version(version),
                        None => Operand::Absent,
                    }
                }
            });
        }
        operands
    }

    fn weight(&self, index: u32) -> Weight {
        self.weight_from(index, &self.program.source)
    }

    fn weight_from(&self, index: u32, source: &Arc<dyn PartSource>) -> Weight {
        Weight::new(index, self.program.weights[index as usize].clone(), source.clone())
    }

    fn run_step(
        &mut self,
        (block, at): (u32, usize),
        step: &StepRecord,
        operands: Vec<Operand>,
    ) -> Result<Vec<Contents>, RunError> {
        let mut memory = StepMemory { bound: self.memory, block, step: at, slots: &step.results };
        let random_state = self.random_state;
        let skipped = Skipped::default();
        let mut context = Context { blocks: self, memory: &mut memory, random_state, skipped };
        let results = kernel(&step.op).compute(operands, &mut context);
        let (random_state, skipped) = (context.random_state, context.skipped);
        self.random_state = random_state;
        self.skipped += skipped;
        results.map_err(|error| failure(step, error))
    }

    fn result(&self, operand: &OperandRecord, frame: &mut [Option<Contents>]) -> Result<Contents, RunError> {
        let missing = || RunError::Step {
            step: "result".to_string(),
            operator: "return",
            error: TypeError::MissingOperand { operand: 0 }.into(),
        };
        match *operand {
            OperandRecord::Absent => Err(missing()),
            OperandRecord::Value(slot) => frame[slot as usize].clone().ok_or_else(missing),
            OperandRecord::Weight(weight) => {
                let loaded = self.weight(weight).tensor();
                loaded.map(|tensor| Value::Tensor(tensor).into()).map_err(|error| RunError::Step {
                    step: "result".to_string(),
                    operator: "return",
                    error,
                })
            }
        }
    }
}

/// The values of a block that begins: its parameters.
fn frame(arguments: Vec<Contents>, block: &BlockRecord) -> Vec<Option<Contents>> {
    let mut frame: Vec<Option<Contents>> = arguments.into_iter().map(Some).collect();
    frame.resize(block.values.len(), None);
    frame
}

/// Operand 0 of a step in the shapes that the plan knows for the results, one behind the other: such a step does nothing else. `None`
/// where the operand is no tensor of as many elements.
fn viewed(step: &StepRecord, frame: &[Option<Contents>], shapes: &[Box<[usize]>]) -> Option<Vec<Contents>> {
    let Some(&OperandRecord::Value(slot)) = step.operands.first() else { return None };
    let Some(Contents::Value(Value::Tensor(tensor))) = &frame[slot as usize] else { return None };
    let views = match shapes {
        [shape] => vec![Contents::Value(tensor.reshaped(shape).ok()?.into())],
        shapes => {
            let mut first = 0;
            let mut part = |shape: &[usize]| {
                let part = tensor.part(first, shape)?;
                first += part.count();
                Some(Contents::Value(part.into()))
            };
            let parts = shapes.iter().map(|shape| part(shape)).collect::<Option<Vec<_>>>()?;
            (first == tensor.count()).then_some(parts)?
        }
    };
    Some(views)
}

/// Drops the operands of a step that nobody reads behind it.
fn release(step: &StepRecord, plan: &BlockPlan, at: usize, frame: &mut [Option<Contents>]) {
    for (position, operand) in step.operands.iter().enumerate() {
        match *operand {
            OperandRecord::Value(slot) if plan.is_last_read(slot, at, position) => frame[slot as usize] = None,
            OperandRecord::Value(_) | OperandRecord::Weight(_) | OperandRecord::Absent => {}
        }
    }
}

/// Keeps the results of a step that somebody reads.
fn keep(results: Vec<Contents>, step: &StepRecord, plan: &BlockPlan, frame: &mut [Option<Contents>]) {
    for (&slot, value) in step.results.iter().zip(results) {
        if plan.is_read(slot) {
            frame[slot as usize] = Some(value);
        }
    }
}

/// Whether these are the operands of a step that reads more than one growing state.
fn reads_caches(operands: &[Operand]) -> bool {
    operands.iter().filter(|operand| matches!(operand, Operand::Version(_))).count() > 1
}

/// The next two versions that steps read: keys and values.
fn upcoming_versions<'a>(steps: &'a [StepRecord], frame: &'a [Option<Contents>]) -> impl Iterator<Item = &'a Version> {
    let slots = steps.iter().flat_map(|step| &step.operands).filter_map(|operand| match *operand {
        OperandRecord::Value(slot) => frame[slot as usize].as_ref(),
        OperandRecord::Weight(_) | OperandRecord::Absent => None,
    });
    let versions = slots.filter_map(|contents| match contents {
        Contents::Version(version) => Some(version),
        Contents::Value(_) => None,
    });
    versions.take(2)
}

fn failure(step: &StepRecord, error: KernelError) -> RunError {
    RunError::Step { step: step.name.clone(), operator: step.op.name(), error }
}

/// Memory for the results of one step.
struct StepMemory<'a> {
    bound: &'a BoundMemory,
    block: u32,
    step: usize,
    slots: &'a [u32],
}

impl Allocate for StepMemory<'_> {
    fn allocate(&mut self, result: usize, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError> {
        self.bound.allocate((self.block, self.slots.get(result).copied()), result, dtype, shape)
    }

    fn scratch(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor, KernelError> {
        self.bound.scratch(dtype, shape)
    }

    fn adopt(&mut self, result: usize, tensor: Tensor) -> Result<Tensor, KernelError> {
        self.bound.adopt(result, tensor)
    }

    fn pages(&self) -> &dyn PageMemory {
        self.bound.pages()
    }

    fn prepared(&self) -> Option<&Prepared> {
        self.bound.prepared(self.block, self.step)
    }
}

impl BlockRunner for Execution<'_, '_> {
    fn run_block(&mut self, block: BlockIndex, arguments: Vec<Value>) -> Result<Vec<Value>, ReferenceError> {
        self.program.source.progress(Progress::BlockBegins { block: block.0 });
        let failure = |error| ReferenceError::Block(Box::new(error));
        let arguments = arguments.into_iter().map(Contents::Value).collect();
        let results = Execution::run_block(self, block.0, arguments).map_err(failure)?;
        let whole = |contents| self.memory.whole(&contents).map_err(|error| ReferenceError::Block(Box::new(error)));
        results.into_iter().map(whole).collect()
    }

    fn result_types(&mut self, block: BlockIndex) -> Result<Vec<Type>, ReferenceError> {
        let record = &self.program.manifest.blocks[block.0 as usize];
        let kind = |operand: &OperandRecord| match *operand {
            OperandRecord::Absent => Err(TypeError::MissingOperand { operand: 0 }.into()),
            OperandRecord::Value(slot) => Ok(record.values[slot as usize].kind.clone()),
            OperandRecord::Weight(weight) => {
                let weight = self.weight(weight);
                let shape = weight.shape().map_err(|error| ReferenceError::Block(Box::new(error)))?;
                Ok(Type::tensor(weight.dtype(), ipuc_formats::fact::Shape::known(shape)))
            }
        };
        record.results.iter().map(kind).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_formats::model::Growth;
    use ipuc_formats::ops::{Append, Concat};

    #[test]
    fn the_next_keys_and_values_come_next() {
        let growth = Growth { axis: 0, page: 4, rows: None, overwritten: false };
        let version = |extent: usize| Version::empty(DType::U8, &[0, extent], growth).unwrap();
        let frame: Vec<Option<Contents>> = vec![
            Some(Contents::Version(version(1))),
            Some(Contents::Value(Tensor::vector_i64(&[1]).into())),
            Some(Contents::Version(version(2))),
            None,
            Some(Contents::Version(version(3))),
        ];
        let step = |op, operands: &[u32]| StepRecord {
            op,
            operands: operands.iter().map(|&slot| OperandRecord::Value(slot)).collect(),
            results: Vec::new(),
            reads: Vec::new(),
            name: String::new(),
        };
        let append = || Append { axis: 0, rows: None }.into();
        let steps = [
            step(Concat { axis: 0 }.into(), &[1, 3]),
            step(append(), &[2, 1]),
            step(append(), &[4, 1]),
            step(append(), &[0, 1]),
        ];
        let extents = |from: usize| -> Vec<usize> {
            upcoming_versions(&steps[from..], &frame).map(|version| version.shape()[1]).collect()
        };
        assert_eq!((extents(0), extents(2), extents(3), extents(4)), (vec![2, 3], vec![3, 1], vec![1], vec![]));
        let operand = |slot: usize| match frame[slot].clone() {
            Some(Contents::Version(version)) => Operand::Version(version),
            Some(Contents::Value(value)) => Operand::Value(value),
            None => Operand::Absent,
        };
        assert!(reads_caches(&[operand(0), operand(1), operand(2)]));
        assert!(!reads_caches(&[operand(0), operand(1), operand(3)]), "an append of one state");
    }
}
