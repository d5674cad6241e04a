//! Recurrent layers in f32: the input projection of all steps is one product, then one product a step. Weights that the file has in
//! panels are multiplied as they lie there.
//!
//! Other types run by their reference. Sequences of different lengths walk side by side; a product covers the whole
//! batch, and what lies behind the end of a sequence is never used.

mod causal_convolution;
mod panels;

use panels::Stored;

use super::floats::computed;
use super::normalization::reduction::{loaded, reference};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Type;
use ipuc_formats::ops::{
    Extents, Gru, Layer, Lstm, Operator, RecurrentActivation, RecurrentFunction, ReferenceError, Rnn, optional_tensor,
    tensor,
};
use ipuc_formats::tensor::filled;
use ipuc_formats::value::Value;
use ipuc_kernels::elementwise::functions;
use ipuc_kernels::matrix::{Matrix, MatrixMut};
use ipuc_kernels::product::{
    Epilogue, PanelElements, PanelPiece, PlainElements, PlainLayout, PlainMatrix, Start, panels_of, panels_product,
    plain_product,
};
use ipuc_kernels::recurrence::{CellFunction, GruGates, GruState, LstmCell, PlainCell};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::threads::each;
use std::ops::Range;

impl Kernel for Lstm {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        run(self, self.layer(), Cell::Lstm { coupled: self.input_forget }, operands, context)
    }
}

impl Kernel for Gru {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        run(self, self.layer(), Cell::Gru { reset_last: self.linear_before_reset }, operands, context)
    }
}

impl Kernel for Rnn {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        run(self, self.layer(), Cell::Plain, operands, context)
    }
}

/// Runs a layer: with its weights in panels, with weights as they come, or, of other types, as the reference does.
fn run<K: Operator + ?Sized>(
    operator: &K,
    layer: Layer<'_>,
    cell: Cell,
    mut operands: Vec<Operand>,
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    let most = 6 + if layer.states == 2 { 2 } else { 0 };
    let mut fits = (3..=most).contains(&operands.len());
    for (index, operand) in operands.iter().enumerate() {
        let is_f32 = |kind: Type| kind.as_tensor().is_some_and(|(dtype, _)| dtype == DType::F32);
        fits &= index == 4 || operand.kind()?.is_none_or(is_f32);
    }
    let stored = if fits { Stored::take(&mut operands, |hidden| cell.first_rows(hidden))? } else { None };
    let inputs = loaded(operands)?;
    if fits { walk(layer, cell, stored.as_ref(), &inputs, context) } else { reference(operator, inputs, context) }
}

#[derive(Clone, Copy)]
enum Cell {
    Lstm { coupled: bool },
    Gru { reset_last: bool },
    Plain,
}

impl Cell {
    /// Rows of the weight of a hidden state of this size that are multiplied before others; 0 where all are multiplied together.
    fn first_rows(self, hidden: usize) -> usize {
        match self {
            // The state of a GRU is multiplied again once its gates are known.
            Cell::Gru { .. } => 2 * hidden,
            Cell::Lstm { .. } | Cell::Plain => 0,
        }
    }
}

fn function(activation: RecurrentActivation) -> CellFunction {
    let RecurrentActivation { function, alpha, beta } = activation;
    match function {
        RecurrentFunction::Relu => CellFunction::Relu(functions::Relu {}),
        RecurrentFunction::Tanh => CellFunction::Tanh(functions::HyperbolicTangent {}),
        RecurrentFunction::Sigmoid => CellFunction::Sigmoid(functions::Logistic {}),
        RecurrentFunction::Affine => CellFunction::Affine(functions::Affine { scale: alpha, offset: beta }),
        RecurrentFunction::LeakyRelu => CellFunction::LeakyRelu(functions::LeakyRelu { slope: alpha }),
        RecurrentFunction::ThresholdedRelu => CellFunction::CutBelow(functions::CutBelow { least: alpha }),
        RecurrentFunction::ScaledTanh => CellFunction::ScaledTanh(functions::ScaledTanh { alpha, beta }),
        RecurrentFunction::HardSigmoid => CellFunction::HardSigmoid(functions::HardSigmoid { alpha, beta }),
        RecurrentFunction::Elu => CellFunction::Elu(functions::Elu { alpha }),
        RecurrentFunction::Softsign => CellFunction::SoftSign(functions::SoftSign {}),
        RecurrentFunction::Softplus => CellFunction::SoftPlus(functions::SoftPlus {}),
    }
}

/// Fewest steps for which the recurrence is put in panels first, which takes about as long as a step.
const STEPS_IN_PANELS: usize = 3;

/// The weight of the hidden state, `[rows, h]`.
struct Recurrence<'a> {
    weights: &'a [f32],
    /// The panels of rows that are multiplied together, where the file has them or there are many steps.
    panels: Vec<(Range<usize>, Rows<'a>)>,
}

enum Rows<'a> {
    OfFile(Vec<PanelPiece<'a>>),
    Made(Vec<f32>),
}

impl<'a> Recurrence<'a> {
    /// For a number of steps, each of which has a product with each of these ranges of rows.
    fn new(weights: &'a [f32], size: usize, rows: &[Range<usize>], steps: usize) -> Recurrence<'a> {
        let mut recurrence = Recurrence { weights, panels: Vec::new() };
        if steps >= STEPS_IN_PANELS {
            let made = |rows: &Range<usize>| Rows::Made(panels_of(Instructions::best(), recurrence.matrix(size, rows)));
            let panels = |rows: &Range<usize>| (rows.clone(), made(rows));
            recurrence.panels = rows.iter().filter(|rows| !rows.is_empty()).map(panels).collect();
        }
        recurrence
    }

    /// Some rows as they come.
    fn matrix(&self, size: usize, rows: &Range<usize>) -> PlainMatrix<'a> {
        let elements = PlainElements::F32(&self.weights[rows.start * size..rows.end * size]);
        PlainMatrix::new(elements, PlainLayout::InputsInner, size, rows.len())
    }
}

/// One direction of a layer.
struct Walk<'a> {
    cell: Cell,
    layer: Layer<'a>,
    extents: Extents,
    direction: usize,
    /// Added to the products with the input and, where it must be apart, to those with the hidden state.
    bias: Vec<f32>,
    hidden_bias: Option<Vec<f32>>,
    peepholes: Option<&'a [f32]>,
    functions: Vec<CellFunction>,
}

/// What walks go along.
#[derive(Clone, Copy)]
struct Sequences<'a> {
    layer: Layer<'a>,
    cell: Cell,
    extents: Extents,
    lengths: &'a [usize],
    inputs: &'a [Option<Value>],
    /// `[t, n, i]`, or `[n, t, i]`.
    data: &'a [f32],
}

/// What a walk reads at each step, and the values of a step for all sequences.
struct Buffers<'a> {
    recurrence: &'a Recurrence<'a>,
    /// Projections of all inputs.
    projected: &'a [f32],
    sums: Vec<f32>,
    gated: Vec<f32>,
    /// Each state `[n, h]`.
    states: Vec<Vec<f32>>,
}

fn walk(
    layer: Layer<'_>,
    cell: Cell,
    stored: Option<&Stored>,
    inputs: &[Option<Value>],
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    layer.check()?;
    let shape = |operand: usize| -> Result<Option<Vec<usize>>, ReferenceError> {
        Ok(optional_tensor(inputs, operand)?.map(|tensor| tensor.shape().to_vec()))
    };
    let shapes = stored.map(|stored| Ok::<_, KernelError>([stored.shape(1)?, stored.shape(2)?])).transpose()?;
    let extents = layer.extents(&|operand| match (&shapes, operand) {
        (Some(shapes), 1 | 2) => Ok(Some(shapes[operand - 1].to_vec())),
        _ => shape(operand),
    })?;
    let lengths = layer.lengths(inputs, extents)?;
    let (sequence_shape, state_shape) = layer.result_shapes(extents);
    let data = tensor(inputs, 0)?.elements::<f32>()?;
    let projections = [layer.direction.count(), extents.steps, extents.batch, layer.gates, extents.hidden];
    let mut projected = context.memory.scratch(DType::F32, &projections)?;
    let mut finals = Vec::with_capacity(layer.states);
    for state in 0..layer.states {
        finals.push(computed(context, 1 + state, DType::F32, &state_shape, |out| {
            out.fill(0.0);
            Ok(())
        })?);
    }
    let sequence = computed(context, 0, DType::F32, &sequence_shape, |out| {
        out.fill(0.0);
        let sequences = Sequences { layer, cell, extents, lengths: &lengths, inputs, data };
        let states = match stored {
            Some(stored) => sequences.walk_stored(stored, projected.elements_mut()?, out)?,
            None => sequences.walk(projected.elements_mut()?, out)?,
        };
        for (direction, states) in states.into_iter().enumerate() {
            for (tensor, state) in finals.iter_mut().zip(&states) {
                let elements = tensor.elements_mut::<f32>()?;
                for (index, state) in state.chunks(extents.hidden.max(1)).enumerate() {
                    // A sequence without steps has no last state.
                    if lengths[index] > 0 {
                        let row = layer.state_row(direction, index, extents);
                        elements[row * state.len()..(row + 1) * state.len()].copy_from_slice(state);
                    }
                }
            }
        }
        Ok(())
    })?;
    Ok(std::iter::once(sequence).chain(finals).map(Value::from).collect())
}

/// What walks along one direction, with the rows of the output that it writes (time by batch); gives the last states.
type RunDirection<'r> = dyn Fn(usize, Vec<&mut [f32]>) -> Result<Vec<Vec<f32>>, KernelError> + Sync + 'r;

/// Last states of each direction. Directions do not know of each other: they run side by side, and the products of one of several
/// stay on its thread.
fn each_direction(
    layer: Layer<'_>,
    extents: Extents,
    out: &mut [f32],
    run: &RunDirection<'_>,
) -> Result<Vec<Vec<Vec<f32>>>, KernelError> {
    let mut rows: Vec<Option<&mut [f32]>> = out.chunks_mut(extents.hidden.max(1)).map(Some).collect();
    let places = |direction| {
        let times = (0..extents.steps).flat_map(move |time| (0..extents.batch).map(move |index| (time, index)));
        times.map(move |(time, index)| layer.output_row(time, direction, index, extents))
    };
    let mut own =
        |direction| places(direction).filter_map(|place| rows.get_mut(place).and_then(Option::take)).collect();
    if layer.direction.count() == 1 {
        return Ok(vec![run(0, own(0))?]);
    }
    let mut results: Vec<Option<Result<Vec<Vec<f32>>, KernelError>>> =
        (0..layer.direction.count()).map(|_| None).collect();
    let tasks: Vec<_> =
        results.iter_mut().enumerate().map(|(direction, result)| (direction, own(direction), result)).collect();
    each(tasks, |(direction, rows, result)| *result = Some(run(direction, rows)));
    results.into_iter().flatten().collect()
}

impl Sequences<'_> {
    /// Last states of each direction, with weights as they come. `projected` is `[d, t * n, rows]`.
    fn walk(&self, projected: &mut [f32], out: &mut [f32]) -> Result<Vec<Vec<Vec<f32>>>, KernelError> {
        let Extents { steps, batch, input, hidden } = self.extents;
        let walks = self.walks()?;
        for walk in &walks {
            let elements = PlainElements::F32(self.part(walk.direction, 1, walk.rows() * input)?);
            plain_product(
                Instructions::best(),
                Matrix::new(self.data, steps * batch, input),
                PlainMatrix::new(elements, PlainLayout::InputsInner, input, walk.rows()),
                MatrixMut::new(&mut projected[walk.projections()], steps * batch, walk.rows()),
                Start::Zero,
                Epilogue::bias(&walk.bias),
            );
        }
        each_direction(self.layer, self.extents, out, &|direction, out| {
            let walk = &walks[direction];
            let weights = self.part(direction, 2, walk.rows() * hidden)?;
            let recurrence = Recurrence::new(weights, hidden, &walk.products(), steps);
            walk.run(self, &recurrence, &projected[walk.projections()], out)
        })
    }

    /// Last states of each direction, with weights in panels as the file has them. `projected` is `[d, t * n, rows]`.
    fn walk_stored(
        &self,
        stored: &Stored,
        projected: &mut [f32],
        out: &mut [f32],
    ) -> Result<Vec<Vec<Vec<f32>>>, KernelError> {
        let Extents { steps, batch, input, .. } = self.extents;
        let walks = self.walks()?;
        stored.for_each_input(|direction, pieces| {
            let walk = &walks[direction];
            let x = Matrix::new(self.data, steps * batch, input);
            let out = MatrixMut::new(&mut projected[walk.projections()], steps * batch, walk.rows());
            panels_product(Instructions::best(), x, pieces, out, Start::Zero, Epilogue::bias(&walk.bias));
        })?;
        stored.with_hidden(|pieces| {
            each_direction(self.layer, self.extents, out, &|direction, out| {
                let walk = &walks[direction];
                let products = walk.products().into_iter().filter(|rows| !rows.is_empty());
                let panels =
                    |rows: Range<usize>| (rows.clone(), Rows::OfFile(stored.hidden_rows(pieces, direction, rows)));
                let recurrence = Recurrence { weights: &[], panels: products.map(panels).collect() };
                walk.run(self, &recurrence, &projected[walk.projections()], out)
            })
        })
    }

    /// The walks of all directions.
    fn walks(&self) -> Result<Vec<Walk<'_>>, KernelError> {
        (0..self.layer.direction.count()).map(|direction| Walk::of(self, direction)).collect()
    }

    /// The elements of an operand that belong to a direction, of which each has so many.
    fn part(&self, direction: usize, operand: usize, width: usize) -> Result<&[f32], KernelError> {
        Ok(self.optional_part(direction, operand, width)?.unwrap_or_default())
    }

    fn optional_part(&self, direction: usize, operand: usize, width: usize) -> Result<Option<&[f32]>, KernelError> {
        let Some(tensor) = optional_tensor(self.inputs, operand)? else { return Ok(None) };
        Ok(Some(&tensor.elements::<f32>()?[direction * width..(direction + 1) * width]))
    }
}

impl<'a> Walk<'a> {
    fn of(sequences: &'a Sequences<'a>, direction: usize) -> Result<Self, KernelError> {
        let Sequences { layer, cell, extents, .. } = *sequences;
        let rows = layer.gates * extents.hidden;
        let given = sequences.optional_part(direction, 3, 2 * rows)?;
        let (mut bias, mut hidden_bias) = (vec![0.0; rows], None);
        if let Some(given) = given {
            let (input, hidden) = given.split_at(rows);
            bias.iter_mut().zip(input.iter().zip(hidden)).for_each(|(sum, (input, hidden))| *sum = input + hidden);
            if let Cell::Gru { reset_last: true } = cell {
                // The reset gate multiplies this bias too.
                let apart = 2 * extents.hidden;
                bias[apart..].copy_from_slice(&input[apart..]);
                let mut own = vec![0.0; rows];
                own[apart..].copy_from_slice(&hidden[apart..]);
                hidden_bias = Some(own);
            }
        }
        let activations = &layer.activations[direction * layer.functions..(direction + 1) * layer.functions];
        let peepholes = sequences.optional_part(direction, 5 + layer.states, 3 * extents.hidden)?;
        Ok(Walk {
            cell,
            layer,
            extents,
            direction,
            bias,
            hidden_bias,
            peepholes: peepholes.filter(|_| layer.states == 2),
            functions: activations.iter().copied().map(function).collect(),
        })
    }

    /// Rows of the weights.
    fn rows(&self) -> usize {
        self.bias.len()
    }

    /// Where its projections of inputs lie in those of all directions, `[d, t * n, rows]`.
    fn projections(&self) -> Range<usize> {
        let length = self.extents.steps * self.extents.batch * self.rows();
        self.direction * length..(self.direction + 1) * length
    }

    /// The rows of the recurrence that are multiplied together.
    fn products(&self) -> [Range<usize>; 2] {
        let first = match self.cell {
            Cell::Gru { .. } => self.cell.first_rows(self.extents.hidden),
            Cell::Lstm { .. } | Cell::Plain => self.rows(),
        };
        [0..first, first..self.rows()]
    }

    /// All steps, with the projections of all inputs; gives the last states.
    fn run(
        &self,
        sequences: &Sequences<'_>,
        recurrence: &Recurrence<'_>,
        projected: &[f32],
        mut out: Vec<&mut [f32]>,
    ) -> Result<Vec<Vec<f32>>, KernelError> {
        let (sums, gated) = (self.extents.batch * self.rows(), self.extents.batch * self.extents.hidden);
        let (sums, gated) = (filled(0.0, sums)?, filled(0.0, gated)?);
        let states = self.start(sequences.inputs)?;
        let mut buffers = Buffers { recurrence, projected, sums, gated, states };
        for step in 0..sequences.lengths.iter().copied().max().unwrap_or(0) {
            self.step(step, sequences.lengths, &mut buffers, &mut out);
        }
        Ok(buffers.states)
    }

    /// The initial states.
    fn start(&self, inputs: &[Option<Value>]) -> Result<Vec<Vec<f32>>, KernelError> {
        let Extents { batch, hidden, .. } = self.extents;
        let mut states: Vec<Vec<f32>> = filled(filled(0.0, batch * hidden)?, self.layer.states)?;
        for (state, values) in states.iter_mut().enumerate() {
            let Some(initial) = optional_tensor(inputs, 5 + state)? else { continue };
            let initial = initial.elements::<f32>()?;
            for (index, values) in values.chunks_mut(hidden.max(1)).enumerate() {
                let row = self.layer.state_row(self.direction, index, self.extents);
                values.copy_from_slice(&initial[row * hidden..(row + 1) * hidden]);
            }
        }
        Ok(states)
    }

    /// Products of hidden states `[n, h]` with rows `rows` of the recurrence.
    fn product(&self, recurrence: &Recurrence<'_>, hidden: &[f32], rows: Range<usize>, out: &mut [f32]) {
        let Extents { batch, hidden: size, .. } = self.extents;
        let bias = self.hidden_bias.as_deref().map(|bias| &bias[rows.clone()]);
        let epilogue = Epilogue { bias, ..Epilogue::default() };
        let (x, out) = (Matrix::new(hidden, batch, size), MatrixMut::new(out, batch, rows.len()));
        let instructions = Instructions::best();
        match recurrence.panels.iter().find(|(own, _)| *own == rows) {
            Some((_, Rows::OfFile(pieces))) => {
                panels_product(instructions, x, pieces, out, Start::Zero, epilogue);
            }
            Some((_, Rows::Made(panels))) => {
                let piece = PanelPiece::whole(rows.len(), size, PanelElements::F32(panels));
                panels_product(instructions, x, &[piece], out, Start::Zero, epilogue);
            }
            None => plain_product(instructions, x, recurrence.matrix(size, &rows), out, Start::Zero, epilogue),
        }
    }

    /// The sequences that have this step: index in the batch, row of the projection, row of the output.
    fn active<'l>(&'l self, step: usize, lengths: &'l [usize]) -> impl Iterator<Item = (usize, usize, usize)> + 'l {
        let reverse = self.layer.direction.is_reverse(self.direction);
        lengths.iter().enumerate().filter(move |(_, length)| step < **length).map(move |(index, length)| {
            let time = if reverse { length - 1 - step } else { step };
            (index, self.layer.data_row(time, index, self.extents), time * self.extents.batch + index)
        })
    }

    fn step(&self, step: usize, lengths: &[usize], buffers: &mut Buffers<'_>, out: &mut [&mut [f32]]) {
        let (size, rows) = (self.extents.hidden, self.bias.len());
        if size == 0 {
            return;
        }
        match self.cell {
            Cell::Gru { reset_last } => self.gru_step(step, lengths, buffers, reset_last),
            Cell::Lstm { .. } | Cell::Plain => {
                self.product(buffers.recurrence, &buffers.states[0], 0..rows, &mut buffers.sums)
            }
        }
        for (index, row, out_row) in self.active(step, lengths) {
            let inputs = &buffers.projected[row * rows..(row + 1) * rows];
            let sums = &mut buffers.sums[index * rows..(index + 1) * rows];
            let unit = index * size..(index + 1) * size;
            match (self.cell, &mut buffers.states[..]) {
                (Cell::Lstm { coupled }, [hidden, cell]) => Instructions::best().run(LstmCell {
                    sums,
                    inputs,
                    hidden: &mut hidden[unit.clone()],
                    cell: &mut cell[unit.clone()],
                    peepholes: self.peepholes,
                    functions: [self.functions[0], self.functions[1], self.functions[2]],
                    bound: self.layer.clip,
                    coupled,
                }),
                (Cell::Plain, [hidden]) => Instructions::best().run(PlainCell {
                    sums,
                    inputs,
                    hidden: &mut hidden[unit.clone()],
                    function: self.functions[0],
                    bound: self.layer.clip,
                }),
                // The states of a GRU are there already.
                (Cell::Lstm { .. } | Cell::Gru { .. } | Cell::Plain, _) => {}
            }
            out[out_row].copy_from_slice(&buffers.states[0][unit]);
        }
    }

    /// New hidden states of a GRU.
    fn gru_step(&self, step: usize, lengths: &[usize], buffers: &mut Buffers<'_>, reset_last: bool) {
        let Extents { batch, hidden: size, .. } = self.extents;
        let rows = self.bias.len();
        let Buffers { recurrence, projected, sums, gated, states } = buffers;
        let hidden = &mut states[0];
        let (gates, state_sums) = sums.split_at_mut(batch * 2 * size);
        self.product(recurrence, hidden, 0..2 * size, gates);
        for (index, row, _) in self.active(step, lengths) {
            let unit = index * size..(index + 1) * size;
            Instructions::best().run(GruGates {
                sums: &mut gates[index * 2 * size..(index + 1) * 2 * size],
                inputs: &projected[row * rows..row * rows + 2 * size],
                hidden: &hidden[unit.clone()],
                gated: &mut gated[unit],
                function: self.functions[0],
                bound: self.layer.clip,
            });
        }
        let source: &[f32] = if reset_last { hidden } else { gated };
        self.product(recurrence, source, 2 * size..3 * size, state_sums);
        for (index, row, _) in self.active(step, lengths) {
            let unit = index * size..(index + 1) * size;
            let (update, reset) = gates[index * 2 * size..(index + 1) * 2 * size].split_at(size);
            Instructions::best().run(GruState {
                sums: &mut state_sums[unit.clone()],
                inputs: &projected[row * rows + 2 * size..(row + 1) * rows],
                update,
                reset: reset_last.then_some(reset),
                hidden: &mut hidden[unit],
                function: self.functions[1],
                bound: self.layer.clip,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::products::tests::{encoded_weight, late_weight, weight};
    use crate::steps::testing::{agree, check, random, run_operands};
    use ipuc_formats::encodings::Panels;
    use ipuc_formats::ops::{Direction, NoBlocks, Op, ReferenceContext, WeightMatrix};
    use ipuc_formats::tensor::Tensor;
    use strum::VariantArray;

    /// Operands of a layer with 3 sequences of `t` steps, 5 inputs and `h` units; absent ones by the bits of `mask`. Weights are
    /// so small that activations without bounds do not amplify a rounding: results are near the exact ones in any order of sums.
    fn operands(
        direction: Direction,
        gates: usize,
        states: usize,
        batch_first: bool,
        (t, h): (usize, usize),
        mask: u32,
    ) -> Vec<Option<Tensor>> {
        let (d, n, i) = (direction.count(), 3, 5);
        let state = if batch_first { [n, d, h] } else { [d, n, h] };
        let float = |shape: &[usize], seed| random(DType::F32, shape, seed);
        let mut operands = vec![
            float(&if batch_first { [n, t, i] } else { [t, n, i] }, 1),
            float(&[d, gates * h, i], 2).map(quarter),
            float(&[d, gates * h, h], 3).map(quarter),
            float(&[d, 2 * gates * h], 4),
            Some(Tensor::from_elements(&[n], &[t as i32, 0, t as i32 / 2]).unwrap()),
        ];
        operands.extend((0..states).map(|seed| float(&state, 5 + seed as u32)));
        if states == 2 {
            operands.push(float(&[d, 3 * h], 9));
        }
        for (index, operand) in operands.iter_mut().enumerate().skip(3) {
            if mask & (1 << index) != 0 {
                *operand = None;
            }
        }
        operands
    }

    fn quarter(mut tensor: Tensor) -> Tensor {
        tensor.elements_mut::<f32>().expect("f32").iter_mut().for_each(|value| *value /= 4.0);
        tensor
    }

    fn activations(count: usize, first: usize) -> Vec<RecurrentActivation> {
        (0..count)
            .map(|index| RecurrentActivation {
                function: RecurrentFunction::VARIANTS[(first + index) % RecurrentFunction::VARIANTS.len()],
                alpha: 0.3,
                beta: 0.6,
            })
            .collect()
    }

    #[test]
    fn layers_agree_with_their_references() {
        for (case, &function) in RecurrentFunction::VARIANTS.iter().enumerate() {
            for &direction in Direction::VARIANTS {
                let batch_first = case % 2 == 1;
                let clip = (case % 3 == 0).then_some(0.5);
                let mask = (case as u32 * 37) << 3;
                // With few steps the recurrence is read as it comes, with more in panels.
                let steps = if case % 3 == 1 { STEPS_IN_PANELS - 1 } else { STEPS_IN_PANELS + 1 };
                let first = function as usize;
                let lstm = Lstm {
                    direction,
                    activations: activations(3 * direction.count(), first),
                    clip,
                    input_forget: case % 4 == 2,
                    batch_first,
                    hidden_size: Some(20),
                };
                check(&lstm, &operands(direction, 4, 2, batch_first, (steps, 20), mask), 1e-5);
                let gru = Gru {
                    direction,
                    activations: activations(2 * direction.count(), first),
                    clip,
                    linear_before_reset: case % 2 == 0,
                    batch_first,
                    hidden_size: None,
                };
                check(&gru, &operands(direction, 3, 1, batch_first, (steps, 20), mask), 1e-5);
                let activations = activations(direction.count(), first);
                let rnn = Rnn { direction, activations, clip, batch_first, hidden_size: None };
                check(&rnn, &operands(direction, 1, 1, batch_first, (steps, 20), mask), 1e-5);
            }
        }
    }

    /// Weights in panels of a file give what the reference gives, and the same bits however they are cut and whenever they come.
    #[test]
    fn weights_in_panels_agree_with_the_reference() {
        for &direction in Direction::VARIANTS {
            // The state of a GRU of 20 units begins within a panel: its weights are stored as they are.
            for (hidden, linear_before_reset) in [(24, true), (24, false), (20, false)] {
                let d = direction.count();
                let standard = |count: usize| activations(count * d, 1);
                let (clip, batch_first, hidden_size) = (None, false, None);
                let lstm =
                    Lstm { direction, activations: standard(3), clip, input_forget: false, batch_first, hidden_size };
                let gru =
                    Gru { direction, activations: standard(2), clip, linear_before_reset, batch_first, hidden_size };
                let rnn = Rnn { direction, activations: standard(1), clip, batch_first, hidden_size };
                let given = |gates, states| operands(direction, gates, states, false, (4, hidden), 0);
                check_weights(&lstm, &Op::Lstm(lstm.clone()), &given(4, 2));
                check_weights(&gru, &Op::Gru(gru.clone()), &given(3, 1));
                check_weights(&rnn, &Op::Rnn(rnn.clone()), &given(1, 1));
            }
        }
    }

    /// Panels of other matrices than the layer's have the elements of its weights all the same.
    #[test]
    fn weights_in_panels_of_other_matrices_are_decoded() {
        let direction = Direction::Forward;
        let (clip, batch_first, hidden_size) = (None, false, None);
        let rnn = Rnn { direction, activations: activations(1, 1), clip, batch_first, hidden_size };
        let inputs = operands(direction, 1, 1, false, (4, 32), 0);
        let other = |tensor: &Tensor| {
            let &[_, rows, columns] = tensor.shape() else { panic!("a matrix for each direction") };
            let (groups, outputs) = (2, rows as u64 / 2);
            let matrix = WeightMatrix { groups, outputs, inputs: columns as u64, output_axis: 0 };
            encoded_weight(Panels::values(DType::F32, matrix).into(), tensor)
        };
        let found = run_stored(&rnn, &inputs, &|_, tensor| other(tensor));
        assert_eq!(found, run_stored(&rnn, &inputs, &|_, tensor| Operand::Value(tensor.clone().into())));
    }

    /// Results with weights as `stored` gives them.
    fn run_stored(
        kernel: &(dyn Kernel + Sync),
        inputs: &[Option<Tensor>],
        stored: &dyn Fn(usize, &Tensor) -> Operand,
    ) -> Vec<Tensor> {
        let operand = |(index, input): (usize, &Option<Tensor>)| match (index, input) {
            (_, None) => Operand::Absent,
            (1 | 2, Some(tensor)) => stored(index, tensor),
            (_, Some(tensor)) => Operand::Value(tensor.clone().into()),
        };
        run_operands(kernel, inputs.iter().enumerate().map(operand).collect())
    }

    fn check_weights(kernel: &(dyn Kernel + Sync), op: &Op, inputs: &[Option<Tensor>]) {
        let values: Vec<Option<Value>> = inputs.iter().cloned().map(|input| input.map(Value::from)).collect();
        let mut blocks = NoBlocks;
        let expected = kernel.reference(&values, &mut ReferenceContext::new(&mut blocks)).expect("operands that fit");
        let run = |stored: &dyn Fn(usize, &Tensor) -> Operand| run_stored(kernel, inputs, stored);
        let whole = run(&|index, tensor| weight(op, index, tensor, DType::F32, 1 << 20));
        agree(kernel, &whole, &expected, 1e-5);
        assert_eq!(whole, run(&|index, tensor| weight(op, index, tensor, DType::F32, 1)), "{kernel:?} in many parts");
        assert_eq!(whole, run(&|index, tensor| late_weight(op, index, tensor, 1)), "{kernel:?} part by part");
    }
}
