//! One step of one sequence of a recurrent layer, after its products: sums of gates become states.
//!
//! Every element is computed alone, so that nothing but its own operands has an influence on its bits.

use super::elementwise::change;
use super::elementwise::functions::{
    Affine, CutBelow, Elu, HardSigmoid, HyperbolicTangent, LeakyRelu, Logistic, Relu, ScaledTanh, SoftPlus, SoftSign,
};
use super::simd::{Routine, Simd};

/// The activation of a gate or of a state.
#[derive(Clone, Copy, Debug)]
pub enum CellFunction {
    /// max(x, 0).
    Relu(Relu),
    /// tanh(x).
    Tanh(HyperbolicTangent),
    /// 1 / (1 + exp(-x)).
    Sigmoid(Logistic),
    /// scale * x + offset.
    Affine(Affine),
    /// x, or slope * x below 0.
    LeakyRelu(LeakyRelu),
    /// x, or 0 below a bound.
    CutBelow(CutBelow),
    /// alpha * tanh(beta * x).
    ScaledTanh(ScaledTanh),
    /// alpha * x + beta between 0 and 1.
    HardSigmoid(HardSigmoid),
    /// x, or alpha * (exp(x) - 1) below 0.
    Elu(Elu),
    /// x / (1 + |x|).
    SoftSign(SoftSign),
    /// log(1 + exp(x)).
    SoftPlus(SoftPlus),
}

impl CellFunction {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, values: &mut [f32]) {
        match self {
            CellFunction::Relu(function) => change(simd, function, values),
            CellFunction::Tanh(function) => change(simd, function, values),
            CellFunction::Sigmoid(function) => change(simd, function, values),
            CellFunction::Affine(function) => change(simd, function, values),
            CellFunction::LeakyRelu(function) => change(simd, function, values),
            CellFunction::CutBelow(function) => change(simd, function, values),
            CellFunction::ScaledTanh(function) => change(simd, function, values),
            CellFunction::HardSigmoid(function) => change(simd, function, values),
            CellFunction::Elu(function) => change(simd, function, values),
            CellFunction::SoftSign(function) => change(simd, function, values),
            CellFunction::SoftPlus(function) => change(simd, function, values),
        }
    }
}

#[inline(always)]
fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

#[inline(always)]
fn add_products(sums: &mut [f32], left: &[f32], right: &[f32]) {
    sums.iter_mut().zip(left.iter().zip(right)).for_each(|(sum, (left, right))| *sum += left * right);
}

#[inline(always)]
fn clip(bound: Option<f32>, values: &mut [f32]) {
    if let Some(bound) = bound {
        values.iter_mut().for_each(|value| *value = value.clamp(-bound, bound));
    }
}

/// A step of an LSTM; gates in the order input, output, forget, cell.
pub struct LstmCell<'a> {
    /// Products with the hidden state: `[4h]`; overwritten.
    pub sums: &'a mut [f32],
    /// Products with the input, and biases: `[4h]`.
    pub inputs: &'a [f32],
    /// Hidden state: `[h]`; overwritten.
    pub hidden: &'a mut [f32],
    /// Cell state: `[h]`; replaced by the next.
    pub cell: &'a mut [f32],
    /// Factors of the cell in the input, output and forget gates: `[3h]`.
    pub peepholes: Option<&'a [f32]>,
    /// For gates, cell input, cell output.
    pub functions: [CellFunction; 3],
    /// Bound of what enters the activations of gates and of the cell input.
    pub bound: Option<f32>,
    /// The forget gate is 1 minus the input gate.
    pub coupled: bool,
}

impl Routine for LstmCell<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { sums, inputs, hidden, cell, peepholes, functions, bound, coupled } = self;
        let size = hidden.len();
        add(sums, inputs);
        let (input, rest) = sums.split_at_mut(size);
        let (output, rest) = rest.split_at_mut(size);
        let (forget, candidate) = rest.split_at_mut(size);
        if let Some(peepholes) = peepholes {
            add_products(input, &peepholes[..size], cell);
            add_products(forget, &peepholes[2 * size..], cell);
        }
        [&mut *input, forget, candidate].into_iter().for_each(|gate| clip(bound, gate));
        functions[0].run(simd, input);
        if coupled {
            forget.iter_mut().zip(&*input).for_each(|(forget, input)| *forget = 1.0 - input);
        } else {
            functions[0].run(simd, forget);
        }
        functions[1].run(simd, candidate);
        for unit in 0..size {
            cell[unit] = forget[unit] * cell[unit] + input[unit] * candidate[unit];
        }
        if let Some(peepholes) = peepholes {
            add_products(output, &peepholes[size..2 * size], cell);
        }
        clip(bound, output);
        functions[0].run(simd, output);
        hidden.copy_from_slice(cell);
        functions[2].run(simd, hidden);
        hidden.iter_mut().zip(&*output).for_each(|(hidden, output)| *hidden *= output);
    }
}

/// The first half of a step of a GRU: update and reset gates, and the hidden state behind the reset gate.
pub struct GruGates<'a> {
    /// Products with the hidden state: `[2h]`; become the gates.
    pub sums: &'a mut [f32],
    /// Products with the input, and biases: `[2h]`.
    pub inputs: &'a [f32],
    /// Hidden state: `[h]`.
    pub hidden: &'a [f32],
    /// Reset gate times hidden state: `[h]`; written.
    pub gated: &'a mut [f32],
    /// Activation of the gates.
    pub function: CellFunction,
    /// Bound of what enters it.
    pub bound: Option<f32>,
}

impl Routine for GruGates<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { sums, inputs, hidden, gated, function, bound } = self;
        add(sums, inputs);
        clip(bound, sums);
        function.run(simd, sums);
        let reset = &sums[hidden.len()..];
        gated.iter_mut().zip(reset.iter().zip(hidden)).for_each(|(gated, (reset, hidden))| *gated = reset * hidden);
    }
}

/// The second half of a step of a GRU.
pub struct GruState<'a> {
    /// Products of the hidden gate with the (reset) hidden state: `[h]`; overwritten.
    pub sums: &'a mut [f32],
    /// Products of the hidden gate with the input, and biases: `[h]`.
    pub inputs: &'a [f32],
    /// Update gate: `[h]`.
    pub update: &'a [f32],
    /// Reset gate, where it multiplies the products: `[h]`.
    pub reset: Option<&'a [f32]>,
    /// Hidden state: `[h]`; replaced by the next.
    pub hidden: &'a mut [f32],
    /// Activation of the hidden gate.
    pub function: CellFunction,
    /// Bound of what enters it.
    pub bound: Option<f32>,
}

impl Routine for GruState<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { sums, inputs, update, reset, hidden, function, bound } = self;
        if let Some(reset) = reset {
            sums.iter_mut().zip(reset).for_each(|(sum, reset)| *sum *= reset);
        }
        add(sums, inputs);
        clip(bound, sums);
        function.run(simd, sums);
        for unit in 0..hidden.len() {
            hidden[unit] = (1.0 - update[unit]) * sums[unit] + update[unit] * hidden[unit];
        }
    }
}

/// A step of a plain recurrent layer.
pub struct PlainCell<'a> {
    /// Products with the hidden state: `[h]`.
    pub sums: &'a [f32],
    /// Products with the input, and biases: `[h]`.
    pub inputs: &'a [f32],
    /// Hidden state: `[h]`; replaced by the next.
    pub hidden: &'a mut [f32],
    /// The activation.
    pub function: CellFunction,
    /// Bound of what enters it.
    pub bound: Option<f32>,
}

impl Routine for PlainCell<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { sums, inputs, hidden, function, bound } = self;
        hidden.copy_from_slice(sums);
        add(hidden, inputs);
        clip(bound, hidden);
        function.run(simd, hidden);
    }
}
