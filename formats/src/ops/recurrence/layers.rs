//! What the recurrent layers (LSTM, GRU, RNN) share: operands, shapes, the walk over time.
//!
//! Operands: `x: [t, n, i]`, `w: [d, g*h, i]`, `r: [d, g*h, h]`, optional `b: [d, 2*g*h]`, `lengths: [n]` (i32),
//! initial states `[d, n, h]`. With `batch_first` it is `[n, t, i]` and `[n, d, h]`. Steps beyond the length of a sequence give
//! zeros, and a sequence of length 0 gives zero states, as in ONNX Runtime. Computed in f64 and rounded once.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::floats::{narrowed, require_computing_float, widened};
use crate::ops::loops::{self, Loops};
use crate::ops::recurrence::recurrent_activation::{Direction, RecurrentActivation};
use crate::ops::{
    AxisKind, InferContext, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, WeightMatrix,
    each, integers, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::element_count;
use crate::tensor::filled;
use crate::value::Value;

/// The attributes that every recurrent layer has.
#[derive(Debug, Clone, Copy)]
pub struct Layer<'a> {
    /// The walks over time.
    pub direction: Direction,
    /// `functions` a direction.
    pub activations: &'a [RecurrentActivation],
    /// Bound of what enters the activations of gates.
    pub clip: Option<f32>,
    /// The batch comes before time and before directions.
    pub batch_first: bool,
    /// `h`, where it is stated apart from the weights.
    pub hidden_size: Option<i64>,
    /// Blocks of `h` rows in the weights.
    pub gates: usize,
    /// Activations that one direction needs.
    pub functions: usize,
    /// States carried from step to step, each with an initial value from operand 5 on and a result.
    pub states: usize,
}

/// Known extents of a layer.
#[derive(Debug, Clone, Copy)]
pub struct Extents {
    /// `t`.
    pub steps: usize,
    /// `n`.
    pub batch: usize,
    /// `i`.
    pub input: usize,
    /// `h`.
    pub hidden: usize,
}

/// The matrices of operands 1 and 2, one for each direction.
pub(super) fn matrices(operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
    match (operand, shape) {
        (1 | 2, &[groups, outputs, inputs]) => Some(WeightMatrix { groups, inputs, outputs, output_axis: 0 }),
        _ => None,
    }
}

impl Layer<'_> {
    /// Check the attributes.
    ///
    /// # Errors
    /// [`TypeError::Value`] for the wrong number of activations and for a negative clip.
    pub fn check(&self) -> Result<(), TypeError> {
        let wanted = self.functions * self.direction.count();
        if self.activations.len() != wanted {
            return Err(TypeError::Value {
                subject: "number of activations".to_string(),
                found: self.activations.len().to_string(),
                expected: wanted.to_string(),
            });
        }
        match self.clip {
            Some(clip) if clip.is_nan() || clip < 0.0 => Err(TypeError::Value {
                subject: "clip".to_string(),
                found: clip.to_string(),
                expected: "at least 0".to_string(),
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Swap time and batch, or direction and batch, where the batch comes first.
    fn ordered<T>(&self, first: T, batch: T, rest: T) -> Vec<T> {
        if self.batch_first { vec![batch, first, rest] } else { vec![first, batch, rest] }
    }

    /// Facts of `y: [t, d, n, h]` (`[n, t, d, h]` where the batch comes first) and of each state `[d, n, h]`.
    pub(crate) fn infer(
        &self,
        inputs: &[Option<Fact>],
        context: &mut InferContext<'_>,
    ) -> Result<Vec<Fact>, TypeError> {
        self.check()?;
        let dtype = self.check_types(inputs)?;
        let dims = |operand: usize, rank: usize| match optional(inputs, operand).and_then(Fact::dims) {
            Some(dims) if dims.len() != rank => {
                Err(TypeError::Rank { operand, expected: rank.to_string(), found: dims.len() })
            }
            found => Ok(found.map(<[Dim]>::to_vec)),
        };
        let data = dims(0, 3)?;
        let part = |index: usize, label: &str| data.as_ref().map_or(context.fresh(label), |dims| dims[index].clone());
        let (time_axis, batch_axis) = if self.batch_first { (1, 0) } else { (0, 1) };
        let (steps, batch, input) = (part(time_axis, "steps"), part(batch_axis, "batch"), part(2, "input"));
        let recurrence = dims(2, 3)?;
        let mut hidden = recurrence.as_ref().map_or(context.fresh("hidden"), |dims| dims[2].clone());
        if let Some(stated) = self.hidden_size {
            hidden = context.require_equal(&hidden, &Dim::known(stated), "hidden size")?;
        }
        let directions = Dim::from(self.direction.count());
        let rows = &hidden * self.gates as i64;
        let state = self.ordered(directions.clone(), batch.clone(), hidden.clone());
        let mut wanted = vec![
            (1, vec![directions.clone(), rows.clone(), input]),
            (2, vec![directions.clone(), rows.clone(), hidden.clone()]),
            (3, vec![directions.clone(), rows * 2]),
            (4, vec![batch.clone()]),
        ];
        wanted.extend((0..self.states).map(|index| (5 + index, state.clone())));
        // Only LSTM has three gates' peepholes behind its states.
        wanted.push((5 + self.states, vec![directions.clone(), &hidden * 3]));
        for (operand, wanted) in wanted {
            let Some(found) = dims(operand, wanted.len())? else { continue };
            for (left, right) in found.iter().zip(&wanted) {
                context.require_equal(left, right, &format!("extent of operand {operand} of a recurrent layer"))?;
            }
        }
        let sequence = match self.batch_first {
            true => vec![batch, steps, directions, hidden],
            false => vec![steps, directions, batch, hidden],
        };
        let mut facts = vec![Fact::tensor(dtype, sequence)];
        facts.extend((0..self.states).map(|_| Fact::tensor(dtype, state.clone())));
        Ok(facts)
    }

    fn check_types(&self, inputs: &[Option<Fact>]) -> Result<DType, TypeError> {
        let (dtype, _) = tensor_operand(inputs, 0)?;
        require_computing_float(dtype, 0)?;
        tensor_operand(inputs, 1)?;
        tensor_operand(inputs, 2)?;
        for operand in 1..inputs.len() {
            if inputs[operand].is_none() {
                continue;
            }
            let (found, _) = tensor_operand(inputs, operand)?;
            if operand > 5 + self.states {
                let expected = format!("at most {}", 6 + self.states);
                return Err(TypeError::OperandCount { expected, found: inputs.len() });
            }
            if operand == 4 && !found.is_integer() || operand != 4 && found != dtype {
                let expected = if operand == 4 { "integers".to_string() } else { dtype.to_string() };
                return Err(TypeError::ElementType { operand, expected, found });
            }
        }
        Ok(dtype)
    }

    /// Loops of the products with the input, then with the hidden state, when every sequence has its full length. Steps
    /// follow one another, and each needs all of the state before: elements of the state may be computed apart, each with
    /// the rows of its gates.
    pub(crate) fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let (Some([_, _, input]), Some(sequence)) = (facts.dims(1), facts.result(0)) else {
            return loops::unknown(facts, 1);
        };
        let [_, _, _, hidden] = sequence else { return loops::unknown(facts, 1) };
        let (steps, batch, batch_axis) = match self.batch_first {
            true => (&sequence[1], &sequence[0], 0),
            false => (&sequence[0], &sequence[2], 1),
        };
        let nest = |summed: &Dim| {
            let walks = (1..4).chain(5 + self.states..6 + self.states).map(|operand| loops::operand(operand, 0));
            let (output, state) = if self.batch_first { (2, 1) } else { (1, 0) };
            let states =
                (0..self.states).flat_map(|own| [loops::operand(5 + own, state), loops::result(1 + own, state)]);
            let sequences = (0..self.states)
                .flat_map(|own| [loops::operand(5 + own, batch_axis), loops::result(1 + own, batch_axis)])
                .chain([loops::operand(0, batch_axis), loops::operand(4, 0)])
                .chain([loops::result(0, if self.batch_first { 0 } else { 2 })]);
            let nest = Loops::new(facts)
                .parallel(&Dim::from(self.direction.count()), walks.chain(states).chain([loops::result(0, output)]))
                .parallel(batch, sequences)
                .serial(steps);
            // Rows of the gates lie one gate after another, as far apart as there are elements.
            let gates = Dim::from(self.gates);
            let Some(apart) = hidden.as_known() else {
                return nest.serial(&gates).serial(hidden).serial(summed).products(1);
            };
            let of_gates = [1, 2].map(|operand| loops::operand(operand, 1).stride(apart));
            let of_elements = [1, 2].map(|operand| loops::operand(operand, 1));
            let made = (0..self.states).map(|own| loops::result(1 + own, 2)).chain([loops::result(0, 3)]);
            nest.axis(AxisKind::Serial, &gates, of_gates)
                .axis(AxisKind::Recurrent, hidden, made.chain(of_elements))
                .serial(summed)
                .products(1)
        };
        vec![nest(input), nest(hidden)]
    }

    /// Sums, activations and products of the gates of all steps.
    pub(crate) fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let (gates, functions) = (self.gates as i64, self.functions as i64);
        let costs =
            [(VectorClass::Arithmetic, 3 * gates + functions), (VectorClass::Transcendental, gates + functions - 1)];
        each(&facts.result_elements(0), &costs)
    }

    /// Walk over all sequences: `cell(walk, x, states)` gives the new states, the first of which is the output.
    pub(crate) fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
        cell: impl Fn(&mut Walk<'_>, &[f64], &[Vec<f64>]) -> Vec<Vec<f64>>,
    ) -> Result<Vec<Value>, ReferenceError> {
        self.check()?;
        let facts: Vec<Option<Fact>> = inputs.iter().map(|value| Some(Fact::of(value.as_ref()?.kind()))).collect();
        let dtype = self.check_types(&facts)?;
        let shape = |operand| Ok(optional_tensor(inputs, operand)?.map(|tensor| tensor.shape().to_vec()));
        let extents = self.extents(&shape)?;
        let operands = self.operands(inputs, extents)?;
        let Extents { batch, input, hidden, .. } = extents;
        let directions = self.direction.count();
        let (sequence_shape, state_shape) = self.result_shapes(extents);
        let mut sequence = filled(0.0, count(&sequence_shape)?)?;
        let mut finals = filled(filled(0.0, count(&state_shape)?)?, self.states)?;
        for direction in 0..directions {
            for index in 0..batch {
                let length = operands.lengths[index];
                let at = self.state_row(direction, index, extents) * hidden;
                let mut states: Vec<Vec<f64>> =
                    operands.initial.iter().map(|initial| initial[at..at + hidden].to_vec()).collect();
                for step in 0..length {
                    let time = if self.direction.is_reverse(direction) { length - 1 - step } else { step };
                    let row = self.data_row(time, index, extents);
                    let mut walk = operands.walk(self, direction, extents);
                    states = cell(&mut walk, &operands.data[row * input..(row + 1) * input], &states);
                    context.macs += walk.macs;
                    let out = self.output_row(time, direction, index, extents);
                    sequence[out * hidden..(out + 1) * hidden].copy_from_slice(&states[0]);
                }
                if length > 0 {
                    for (total, state) in finals.iter_mut().zip(&states) {
                        total[at..at + hidden].copy_from_slice(state);
                    }
                }
            }
        }
        let mut results: Vec<Value> = vec![narrowed(dtype, &sequence_shape, &sequence)?.into()];
        for total in &finals {
            results.push(narrowed(dtype, &state_shape, total)?.into());
        }
        Ok(results)
    }

    /// Shapes of the output and of each state.
    pub fn result_shapes(&self, extents: Extents) -> ([usize; 4], [usize; 3]) {
        let Extents { steps, batch, hidden, .. } = extents;
        let directions = self.direction.count();
        match self.batch_first {
            true => ([batch, steps, directions, hidden], [batch, directions, hidden]),
            false => ([steps, directions, batch, hidden], [directions, batch, hidden]),
        }
    }

    /// Row of the data, in rows of `i`, for a step of a sequence.
    pub fn data_row(&self, time: usize, index: usize, extents: Extents) -> usize {
        if self.batch_first { index * extents.steps + time } else { time * extents.batch + index }
    }

    /// Row of the output, in rows of `h`.
    pub fn output_row(&self, time: usize, direction: usize, index: usize, extents: Extents) -> usize {
        let directions = self.direction.count();
        match self.batch_first {
            true => (index * extents.steps + time) * directions + direction,
            false => (time * directions + direction) * extents.batch + index,
        }
    }

    /// Row of a state, in rows of `h`.
    pub fn state_row(&self, direction: usize, index: usize, extents: Extents) -> usize {
        let directions = self.direction.count();
        if self.batch_first { index * directions + direction } else { direction * extents.batch + index }
    }

    /// The extents, with every operand's shape checked against them. `shape` gives that of an operand, `None` where it is absent.
    ///
    /// # Errors
    /// [`TypeError`] where a shape does not fit.
    pub fn extents(
        &self,
        shape: &dyn Fn(usize) -> Result<Option<Vec<usize>>, ReferenceError>,
    ) -> Result<Extents, ReferenceError> {
        let shape_of = |operand: usize| -> Result<Vec<usize>, ReferenceError> {
            Ok(shape(operand)?.ok_or(TypeError::MissingOperand { operand })?)
        };
        let &[first, second, input] = &shape_of(0)?[..] else { return Err(rank(0, 3, shape_of(0)?.len())) };
        let (steps, batch) = if self.batch_first { (second, first) } else { (first, second) };
        let &[_, _, hidden] = &shape_of(2)?[..] else { return Err(rank(2, 3, shape_of(2)?.len())) };
        if let Some(stated) = self.hidden_size
            && usize::try_from(stated) != Ok(hidden)
        {
            return Err(mismatch("hidden size", &[hidden], &[usize::try_from(stated).unwrap_or(0)]));
        }
        let directions = self.direction.count();
        let rows = hidden.saturating_mul(self.gates);
        let state = self.ordered(directions, batch, hidden);
        let mut wanted = vec![
            (1, vec![directions, rows, input]),
            (2, vec![directions, rows, hidden]),
            (3, vec![directions, rows.saturating_mul(2)]),
            (4, vec![batch]),
        ];
        wanted.extend((0..self.states).map(|index| (5 + index, state.clone())));
        wanted.push((5 + self.states, vec![directions, hidden.saturating_mul(3)]));
        for (operand, wanted) in wanted {
            if let Some(found) = shape(operand)?
                && found != wanted
            {
                return Err(mismatch(&format!("operand {operand} of a recurrent layer"), &found, &wanted));
            }
        }
        Ok(Extents { steps, batch, input, hidden })
    }

    /// The length of each sequence, checked.
    ///
    /// # Errors
    /// [`ReferenceError::OutOfRange`] where one is negative or longer than time.
    pub fn lengths(&self, inputs: &[Option<Value>], extents: Extents) -> Result<Vec<usize>, ReferenceError> {
        if optional_tensor(inputs, 4)?.is_none() {
            return Ok(filled(extents.steps, extents.batch)?);
        }
        let in_range = |found: i64| {
            usize::try_from(found).ok().filter(|length| *length <= extents.steps).ok_or_else(|| {
                ReferenceError::OutOfRange {
                    subject: "length of a sequence".to_string(),
                    found,
                    range: format!("0 to {}", extents.steps),
                }
            })
        };
        integers(inputs, 4)?.into_iter().map(in_range).collect()
    }

    fn operands(&self, inputs: &[Option<Value>], extents: Extents) -> Result<Operands, ReferenceError> {
        let given = |operand: usize| optional_tensor(inputs, operand)?.map(widened).transpose();
        let state = self.direction.count().saturating_mul(extents.batch).saturating_mul(extents.hidden);
        let initial = (0..self.states).map(|index| match given(5 + index)? {
            Some(given) => Ok(given),
            None => Ok(filled(0.0, state)?),
        });
        Ok(Operands {
            data: widened(tensor(inputs, 0)?)?,
            weights: widened(tensor(inputs, 1)?)?,
            recurrence: widened(tensor(inputs, 2)?)?,
            bias: given(3)?,
            lengths: self.lengths(inputs, extents)?,
            initial: initial.collect::<Result<_, ReferenceError>>()?,
            peepholes: given(5 + self.states)?,
        })
    }
}

fn count(shape: &[usize]) -> Result<usize, ReferenceError> {
    let too_large = || crate::tensor::TensorError::TooLarge { dtype: DType::F64, shape: shape.to_vec() };
    Ok(element_count(shape).ok_or_else(too_large)?)
}

fn rank(operand: usize, expected: usize, found: usize) -> ReferenceError {
    TypeError::Rank { operand, expected: expected.to_string(), found }.into()
}

fn mismatch(subject: &str, found: &[usize], wanted: &[usize]) -> ReferenceError {
    let (left, right) = (format!("{found:?}"), format!("{wanted:?}"));
    TypeError::Dimension { subject: subject.to_string(), left, right }.into()
}

struct Operands {
    data: Vec<f64>,
    weights: Vec<f64>,
    recurrence: Vec<f64>,
    bias: Option<Vec<f64>>,
    lengths: Vec<usize>,
    initial: Vec<Vec<f64>>,
    peepholes: Option<Vec<f64>>,
}

impl Operands {
    fn walk<'a>(&'a self, layer: &'a Layer<'a>, direction: usize, extents: Extents) -> Walk<'a> {
        let rows = layer.gates * extents.hidden;
        let part = |values: &'a [f64], width: usize| &values[direction * width..(direction + 1) * width];
        Walk {
            weights: part(&self.weights, rows * extents.input),
            recurrence: part(&self.recurrence, rows * extents.hidden),
            bias: self.bias.as_deref().map(|bias| part(bias, 2 * rows)),
            peepholes: self.peepholes.as_deref().map(|peepholes| part(peepholes, 3 * extents.hidden)),
            activations: &layer.activations[direction * layer.functions..(direction + 1) * layer.functions],
            clip: layer.clip,
            hidden: extents.hidden,
            gates: layer.gates,
            macs: 0,
        }
    }
}

/// One step of one sequence in one direction.
pub(crate) struct Walk<'a> {
    weights: &'a [f64],
    recurrence: &'a [f64],
    bias: Option<&'a [f64]>,
    peepholes: Option<&'a [f64]>,
    activations: &'a [RecurrentActivation],
    clip: Option<f32>,
    /// Elements of a state.
    pub(crate) hidden: usize,
    gates: usize,
    macs: u64,
}

impl Walk<'_> {
    /// `x * w^T + wb` of one gate's unit.
    pub(crate) fn input(&mut self, gate: usize, unit: usize, x: &[f64]) -> f64 {
        let row = gate * self.hidden + unit;
        let bias = self.bias.map_or(0.0, |bias| bias[row]);
        product(&self.weights[row * x.len()..(row + 1) * x.len()], x, &mut self.macs) + bias
    }

    /// `h * r^T + rb` of one gate's unit.
    pub(crate) fn hidden(&mut self, gate: usize, unit: usize, h: &[f64]) -> f64 {
        let row = gate * self.hidden + unit;
        let bias = self.bias.map_or(0.0, |bias| bias[self.gates * self.hidden + row]);
        product(&self.recurrence[row * h.len()..(row + 1) * h.len()], h, &mut self.macs) + bias
    }

    /// Peephole `index` of a unit times its cell.
    pub(crate) fn peephole(&self, index: usize, unit: usize, cell: f64) -> f64 {
        self.peepholes.map_or(0.0, |peepholes| peepholes[index * self.hidden + unit] * cell)
    }

    /// Activation `index` of the clipped sum.
    pub(crate) fn activate(&self, index: usize, sum: f64) -> f64 {
        let clipped = match self.clip {
            Some(clip) if !sum.is_nan() => sum.clamp(-f64::from(clip), f64::from(clip)),
            Some(_) | None => sum,
        };
        self.activate_unclipped(index, clipped)
    }

    /// Activation `index` of a value.
    pub(crate) fn activate_unclipped(&self, index: usize, value: f64) -> f64 {
        self.activations[index].apply(value)
    }
}

fn product(left: &[f64], right: &[f64], macs: &mut u64) -> f64 {
    let mut sum = 0.0;
    for (left, right) in left.iter().zip(right) {
        sum += left * right;
        *macs += 1;
    }
    sum
}

/// A tensor of a recurrent layer's operands, for tests of the three layers.
#[cfg(test)]
pub(crate) fn test_tensor(shape: &[usize], values: &[f32]) -> Option<Value> {
    crate::tensor::Tensor::from_elements(shape, values).ok().map(Value::from)
}
