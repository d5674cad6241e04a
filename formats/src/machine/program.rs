//! A program at one value of each dimension: what its steps compute and touch, as numbers.
//!
//! Made from the records of a file ([`Program::bind`]); weights are not needed, only their sizes. Bodies of control flow
//! follow the step that runs them, each with the number of times that it runs.

use super::numerics::Numerics;
use super::roles::{AxisRole, roles};
use super::zero_map::StepZeros;
use crate::dim::{Bindings, Dim, DimError};
use crate::fact::Type;
use crate::model::{BlockRecord, EntryRecord, KnownStep, Manifest, OperandRecord, Role};
use crate::ops::{Class, Op, Picked, Precision, Space, VectorClass};
use std::collections::{BTreeSet, HashMap};
use thiserror::Error;

/// Why a program cannot be bound.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// The file has no such entry.
    #[error("there is no entry `{name}`; there are {}", known.join(", "))]
    Entry {
        /// The name.
        name: String,
        /// Names of all entries.
        known: Vec<String>,
    },
    /// Dimensions of inputs are open.
    #[error("the dimensions {} have no value", names.join(", "))]
    Unbound {
        /// Their names.
        names: Vec<String>,
    },
    /// A value is given to a dimension that no input has.
    #[error("the inputs have no dimension `{name}`")]
    UnknownDimension {
        /// The name.
        name: String,
    },
    /// Types of a step do not fit its operator.
    #[error("block {block}, step {step}: the types do not fit the operator")]
    Types {
        /// Index of the block.
        block: usize,
        /// Index of the step in it.
        step: usize,
    },
    /// An extent has no value.
    #[error("step `{step}`: {error}")]
    Extent {
        /// Name of the step.
        step: String,
        /// Why.
        error: DimError,
    },
}

/// A tensor that a step reads or writes.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundTensor {
    /// Extents; empty where even the rank is unknown.
    pub extents: Vec<i64>,
    /// All bytes, as the machine holds them.
    pub bytes: f64,
    /// What it is.
    pub source: Source,
}

impl BoundTensor {
    /// Number of elements.
    pub fn elements(&self) -> f64 {
        self.extents.iter().map(|&extent| extent as f64).product()
    }
}

/// What a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A value, by its number in the program.
    Value(u32),
    /// A value that is state.
    State(u32),
    /// A weight.
    Weight(u32),
}

/// A sum of products over a space.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundProduct {
    /// Index of the space.
    pub space: usize,
    /// Element types as the machine takes them.
    pub precision: Precision,
    /// Operand that stays in the matrix unit while rows of the other pass.
    pub stationary: usize,
    /// What each axis is.
    pub roles: Vec<AxisRole>,
    /// Multiply-accumulates.
    pub macs: f64,
    /// Values are held in a wider type than it takes them in.
    pub converted: bool,
}

/// A step at one value of each dimension.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BoundStep {
    /// Index of the block in the file.
    pub block: u32,
    /// Index of the step in the block.
    pub step: u32,
    /// Name of the ONNX node.
    pub name: String,
    /// Name of the operator.
    pub operator: &'static str,
    /// How often it runs.
    pub times: f64,
    /// The loops; their extents are numbers.
    pub spaces: Vec<Space>,
    /// Extents of each space.
    pub extents: Vec<Vec<i64>>,
    /// The products among the spaces.
    pub products: Vec<BoundProduct>,
    /// Operations on single elements by class, in the order of [`VectorClass`].
    pub vector: Vec<(VectorClass, f64)>,
    /// What it reads.
    pub operands: Vec<Option<BoundTensor>>,
    /// What it writes.
    pub results: Vec<BoundTensor>,
    /// Its result is its operand: nothing is moved.
    pub view: bool,
    /// Elements only change their places.
    pub moves: bool,
    /// Its results are its operands with new rows behind them: of those that lie elsewhere only these are written.
    pub appends: bool,
    /// Bytes of weights that it reads, of gathered ones only the parts that are picked.
    pub weight_bytes: f64,
    /// Of those, bytes of elements: without their scales and zero points.
    pub element_bytes: f64,
    /// How many even shares of a weight a tile may hold from run to run; `None` where weights come from a tier.
    pub weight_shares: Option<f64>,
    /// Share of the weights that it reads which stays in the tiles, where others come from a tier.
    pub resident: f64,
    /// Zeros of activations that are left out.
    pub zeros: Option<StepZeros>,
    /// The operand of which matrices are picked, where it is a product of such.
    pub picked: Option<Picked>,
}

impl BoundStep {
    /// Elements of an operand that is no weight.
    pub(super) fn value_elements(&self, operand: usize) -> Option<f64> {
        let tensor = self.operands.get(operand)?.as_ref()?;
        (!matches!(tensor.source, Source::Weight(_))).then(|| tensor.elements())
    }

    /// Bytes of weights that it reads where weights of inputs that are zero are left out.
    pub fn read_weight_bytes(&self) -> f64 {
        let left_out = self.zeros.as_ref().map_or(0.0, |zeros| 1.0 - zeros.read);
        self.weight_bytes - self.element_bytes * left_out
    }

    /// Of those, what comes from a tier.
    pub fn streamed_weight_bytes(&self) -> f64 {
        self.read_weight_bytes() * (1.0 - self.resident)
    }
}

/// A program at one value of each dimension.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Program {
    /// Steps in order of execution.
    pub steps: Vec<BoundStep>,
    /// Bytes of all weights.
    pub weight_bytes: f64,
    /// Of those, bytes that stay in the tiles though not all of them do.
    pub resident_bytes: f64,
    /// Bytes of all state.
    pub state_bytes: f64,
    /// Bytes of the results of a run that are no state.
    pub result_bytes: f64,
    /// Values that are there before a run.
    pub inputs: Vec<Source>,
    /// Values that a run gives.
    pub outputs: Vec<Source>,
    /// Counts that depend on data and were taken to be 1.
    pub assumed: Vec<String>,
}

impl Program {
    /// The program of an entry at these values of dimensions, with floats that are wider than `numerics` in its types.
    ///
    /// # Errors
    /// [`ProgramError`] where there is no such entry or a dimension is open.
    pub fn bind(
        manifest: &Manifest,
        entry: Option<&str>,
        dimensions: &Bindings,
        numerics: Numerics,
    ) -> Result<Program, ProgramError> {
        let entry = choose(manifest, entry)?;
        let (bindings, assumed) = bindings(manifest, entry, dimensions)?;
        let mut binder =
            Binder { manifest, bindings, numerics, program: Program { assumed, ..Program::default() }, values: 0 };
        let block = &manifest.blocks[entry.block as usize];
        let mut slots = HashMap::new();
        for slot in 0..block.parameters {
            let state = entry.state_of_input(slot as usize).is_some();
            let number = binder.fresh();
            let source = if state { Source::State(number) } else { Source::Value(number) };
            slots.insert(slot, source);
            if !state {
                binder.program.inputs.push(source);
            }
        }
        let slots = binder.block(entry.block as usize, slots, 1.0)?;
        let kept = manifest.weights.iter().flat_map(|weight| &weight.parts).map(|part| part.extent);
        let extents: BTreeSet<u32> = kept.collect();
        let lengths = extents.iter().map(|&extent| manifest.extents[extent as usize].length as f64);
        binder.program.weight_bytes = lengths.sum::<f64>();
        if numerics != Numerics::default() {
            let stored = manifest.weights.iter().enumerate();
            let stored = stored
                .map(|(index, weight)| stored_bytes(manifest, index) * numerics.of_weights(weight.encoding.dtype()));
            binder.program.weight_bytes = stored.sum();
        }
        let states = entry.states.iter().filter_map(|state| state.input);
        let states = states.map(|input| binder.tensor_bytes(&block.values[input as usize].kind).unwrap_or(0.0));
        let state_bytes = total(states);
        binder.program.state_bytes = state_bytes;
        let is_state = |index: usize| entry.states.iter().any(|state| state.output == u32::try_from(index).ok());
        let given = block.results.iter().enumerate().filter(|(index, _)| !is_state(*index));
        let given = given.filter_map(|(_, result)| match result {
            OperandRecord::Value(slot) => Some(*slot),
            OperandRecord::Absent | OperandRecord::Weight(_) => None,
        });
        let given: Vec<u32> = given.collect();
        let sizes = given.iter().filter_map(|slot| binder.tensor_bytes(&block.values[*slot as usize].kind));
        let result_bytes = total(sizes);
        binder.program.result_bytes = result_bytes;
        binder.program.outputs = given.iter().filter_map(|slot| slots.get(slot).copied()).collect();
        binder.program.see_through_views();
        Ok(binder.program)
    }

    /// Multiply-accumulates of all steps.
    pub fn macs(&self) -> f64 {
        let of_step = |step: &BoundStep| step.times * total(step.products.iter().map(|product| product.macs));
        total(self.steps.iter().map(of_step))
    }
}

/// The sum of numbers; 0 where there are none (that of the standard library is then -0).
fn total(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |sum, number| sum + number)
}

fn choose<'a>(manifest: &'a Manifest, name: Option<&str>) -> Result<&'a EntryRecord, ProgramError> {
    let found = match name {
        Some(name) => manifest.entries.iter().find(|entry| entry.name == name),
        None if manifest.entries.len() == 1 => manifest.entries.first(),
        None => None,
    };
    let known = || manifest.entries.iter().map(|entry| entry.name.clone()).collect();
    found.ok_or_else(|| ProgramError::Entry { name: name.unwrap_or("").to_string(), known: known() })
}

/// Values of all symbols: those of inputs must be given, counts that depend on data are 1.
fn bindings(
    manifest: &Manifest,
    entry: &EntryRecord,
    given: &Bindings,
) -> Result<(Bindings, Vec<String>), ProgramError> {
    let block = &manifest.blocks[entry.block as usize];
    let kinds = block.values.iter().take(block.parameters as usize).map(|value| &value.kind);
    let open: BTreeSet<_> = kinds.flat_map(Type::symbols).collect();
    if let Some((name, _)) = given.iter().find(|(name, _)| !open.contains(*name)) {
        return Err(ProgramError::UnknownDimension { name: name.to_string() });
    }
    let fixed = |name: &str| {
        let record = manifest.symbols.iter().find(|symbol| symbol.name == name);
        record.filter(|symbol| symbol.minimum == symbol.maximum).map(|symbol| symbol.minimum)
    };
    let value = |name: &str| given.get(name).or_else(|| fixed(name));
    let missing: Vec<String> = open.iter().filter(|name| value(name).is_none()).map(ToString::to_string).collect();
    if !missing.is_empty() {
        return Err(ProgramError::Unbound { names: missing });
    }
    let mut bindings: Bindings = open.iter().filter_map(|name| Some((name.clone(), value(name)?))).collect();
    let mut assumed = Vec::new();
    for symbol in manifest.symbols.iter().filter(|symbol| !open.contains(symbol.name.as_str())) {
        let value = if symbol.minimum == symbol.maximum { symbol.minimum } else { 1.max(symbol.minimum) };
        bindings.insert(symbol.name.as_str(), value);
        if symbol.minimum != symbol.maximum {
            assumed.push(symbol.name.clone());
        }
    }
    Ok((bindings, assumed))
}

/// What the values of a block are.
type Slots = HashMap<u32, Source>;

struct Binder<'a> {
    manifest: &'a Manifest,
    bindings: Bindings,
    numerics: Numerics,
    program: Program,
    values: u32,
}

impl Binder<'_> {
    fn fresh(&mut self) -> u32 {
        self.values += 1;
        self.values - 1
    }

    /// A count; symbols that no record declares depend on data and are 1.
    fn number(&mut self, dim: &Dim, step: &str) -> Result<i64, ProgramError> {
        for symbol in dim.symbols() {
            if self.bindings.get(&symbol).is_none() {
                self.program.assumed.push(symbol.to_string());
                self.bindings.insert(symbol, 1);
            }
        }
        let failure = |error| ProgramError::Extent { step: step.to_string(), error };
        Ok(dim.evaluate(&self.bindings).map_err(failure)?.max(0))
    }

    fn tensor_bytes(&self, kind: &Type) -> Option<f64> {
        let (dtype, shape) = kind.as_tensor()?;
        let extents = shape.dims()?.iter().map(|dim| dim.evaluate(&self.bindings).ok());
        let count = extents.map(|extent| extent.map(|extent| extent.max(0) as f64)).product::<Option<f64>>()?;
        Some(count * dtype.bits() as f64 / 8.0 * self.numerics.of_values(dtype))
    }

    fn block(&mut self, index: usize, mut slots: Slots, times: f64) -> Result<Slots, ProgramError> {
        let manifest = self.manifest;
        let block: &BlockRecord = &manifest.blocks[index];
        for (position, record) in block.steps.iter().enumerate() {
            let misfit = || ProgramError::Types { block: index, step: position };
            let known = KnownStep::new(manifest, index, position).ok_or_else(misfit)?;
            for &slot in &record.results {
                let number = self.fresh();
                let state = block.values[slot as usize].role == Role::State;
                slots.insert(slot, if state { Source::State(number) } else { Source::Value(number) });
            }
            let bound = self.step((index, position), &known, &slots, times)?;
            self.program.steps.push(bound);
            for (body, runs) in known.work().runs {
                let runs = self.number(&runs, &record.name)? as f64;
                let body = body.0 as usize;
                let inner = (0..manifest.blocks[body].parameters).map(|slot| (slot, Source::Value(self.fresh())));
                let inner: HashMap<u32, Source> = inner.collect();
                self.block(body, inner, times * runs)?;
            }
        }
        Ok(slots)
    }

    fn step(
        &mut self,
        (block, position): (usize, usize),
        known: &KnownStep<'_>,
        slots: &HashMap<u32, Source>,
        times: f64,
    ) -> Result<BoundStep, ProgramError> {
        let manifest = self.manifest;
        let record = &manifest.blocks[block].steps[position];
        let name = record.name.as_str();
        let values = &manifest.blocks[block].values;
        let mut operands = Vec::with_capacity(record.operands.len());
        // Of these only the extents are asked for, which are known where the program is.
        let reads_extents = matches!(known.op(), Op::ShapeOf(_) | Op::SizeOf(_));
        for operand in &record.operands {
            operands.push(match *operand {
                OperandRecord::Absent => None,
                OperandRecord::Value(_) | OperandRecord::Weight(_) if reads_extents => None,
                OperandRecord::Value(slot) => {
                    let source = slots.get(&slot).copied().unwrap_or(Source::Value(u32::MAX));
                    Some(self.tensor(&values[slot as usize].kind, source))
                }
                OperandRecord::Weight(weight) => Some(self.weight(weight)),
            });
        }
        let results =
            record.results.iter().map(|slot| self.tensor(&values[*slot as usize].kind, slots[slot])).collect();
        let facts = known.facts();
        let mut spaces = known.op().spaces(&facts);
        let mut extents = Vec::with_capacity(spaces.len());
        for space in &mut spaces {
            let mut of_space = Vec::with_capacity(space.axes.len());
            for axis in &mut space.axes {
                let extent = self.number(&axis.extent, name)?;
                axis.extent = Dim::known(extent);
                of_space.push(extent);
            }
            extents.push(of_space);
        }
        let work = known.work();
        let first = work.macs.first();
        let precision = first.map(|(precision, _)| self.numerics.precision(*precision));
        let converted = first.is_some_and(|(precision, _)| self.numerics.converts(precision.activation));
        let products = spaces.iter().zip(&extents).enumerate().filter(|(_, (space, _))| space.macs != 0);
        let products = products.filter_map(|(index, (space, extents))| {
            let (stationary, roles) = roles(space, operands.len());
            let points: f64 = extents.iter().map(|&extent| extent as f64).product();
            Some(BoundProduct {
                space: index,
                precision: precision?,
                stationary,
                roles,
                macs: points * space.macs as f64,
                converted,
            })
        });
        let products: Vec<BoundProduct> = products.collect();
        let mut vector = Vec::with_capacity(work.vector.len());
        for (class, count) in &work.vector {
            vector.push((*class, self.number(count, name)? as f64));
        }
        let mut weight_bytes = self.number(&work.stored, name)? as f64;
        if let Some(gathered) = &work.gathered {
            weight_bytes +=
                self.number(&gathered.parts, name)? as f64 * self.number(&gathered.part_bytes, name)? as f64;
        }
        let stored = record.operands.iter().find_map(|operand| match operand {
            OperandRecord::Weight(weight) => Some(manifest.weights[*weight as usize].encoding.dtype()),
            OperandRecord::Absent | OperandRecord::Value(_) => None,
        });
        weight_bytes *= stored.map_or(1.0, |dtype| self.numerics.of_weights(dtype));
        let element_bytes = weight_bytes * self.element_share(&products, &record.operands);
        Ok(BoundStep {
            block: block as u32,
            step: position as u32,
            name: record.name.clone(),
            operator: known.op().name(),
            times,
            view: known.op().view_of().is_some(),
            moves: matches!(known.op().class(), Class::Moves(_)),
            appends: matches!(known.op(), Op::Append(_)),
            spaces,
            extents,
            products,
            vector,
            operands,
            results,
            weight_bytes,
            element_bytes,
            weight_shares: None,
            resident: 0.0,
            zeros: None,
            picked: known.op().picked(),
        })
    }

    /// Share of the stored bytes of the weights that products take which is elements.
    fn element_share(&self, products: &[BoundProduct], operands: &[OperandRecord]) -> f64 {
        let taken = products.iter().filter_map(|product| match operands.get(product.stationary)? {
            OperandRecord::Weight(weight) => Some(*weight as usize),
            OperandRecord::Absent | OperandRecord::Value(_) => None,
        });
        let (mut elements, mut stored) = (0.0, 0.0);
        for weight in taken {
            let record = &self.manifest.weights[weight];
            let count: f64 = record.shape.iter().map(|&extent| extent as f64).product();
            let bytes = stored_bytes(self.manifest, weight);
            elements += (count * record.encoding.dtype().bits() as f64 / 8.0).min(bytes);
            stored += bytes;
        }
        if stored > 0.0 { elements / stored } else { 0.0 }
    }

    fn tensor(&self, kind: &Type, source: Source) -> BoundTensor {
        let dims = kind.as_tensor().and_then(|(_, shape)| shape.dims()).unwrap_or(&[]);
        let extents = dims.iter().map(|dim| dim.evaluate(&self.bindings).unwrap_or(1).max(0)).collect();
        BoundTensor { extents, bytes: self.tensor_bytes(kind).unwrap_or(0.0), source }
    }

    fn weight(&self, weight: u32) -> BoundTensor {
        let record = &self.manifest.weights[weight as usize];
        let extents = record.shape.iter().map(|&extent| extent as i64).collect();
        let bytes = stored_bytes(self.manifest, weight as usize) * self.numerics.of_weights(record.encoding.dtype());
        BoundTensor { extents, bytes, source: Source::Weight(weight) }
    }
}

fn stored_bytes(manifest: &Manifest, weight: usize) -> f64 {
    let parts = manifest.weights[weight].parts.iter();
    parts.map(|part| manifest.extents[part.extent as usize].length as f64).sum()
}
