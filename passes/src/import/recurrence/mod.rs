//! Recurrent layers: `LSTM`, `GRU`, `RNN` (opset 1 to 22).
//!
//! Activations are named by texts in any case; parameters are taken from their lists by the functions that have them,
//! in order, as ONNX Runtime does. Where a list ends they are those of the ONNX operators of these names (`ScaledTanh` has
//! none); in `com.microsoft` what ONNX Runtime takes there, 0 for functions for which it has nothing.

mod attention;
pub(crate) mod cell;

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::ops::{Direction, Gru, Lstm, RecurrentActivation, RecurrentFunction, Rnn, TypeError};

type Lowered = Result<Vec<Operand>, LowerError>;

/// All tables of the family.
pub const TABLES: &[&[Row]] = &[ROWS, attention::ROWS];

/// Recurrent networks.
pub const ROWS: &[Row] = &[
    row("LSTM", 1, lstm),
    row("LSTM", 7, lstm),
    row("LSTM", 14, lstm),
    row("LSTM", 22, lstm),
    row("GRU", 1, gru),
    row("GRU", 3, gru),
    row("GRU", 7, gru),
    row("GRU", 14, gru),
    row("GRU", 22, gru),
    row("RNN", 1, rnn),
    row("RNN", 7, rnn),
    row("RNN", 14, rnn),
    row("RNN", 22, rnn),
];

/// The attributes that all layers have.
struct Layer {
    direction: Direction,
    activations: Vec<RecurrentActivation>,
    clip: Option<f32>,
    batch_first: bool,
    hidden_size: Option<i64>,
}

fn layer(node: &mut Lowering<'_, '_>, defaults: &[RecurrentFunction]) -> Result<Layer, LowerError> {
    let direction = node.keyword("direction")?.unwrap_or(Direction::Forward);
    if node.since() < 7 && !node.flag("output_sequence", false)? && node.output_used(0) {
        return Err(node.refuse("output `Y` without `output_sequence`"));
    }
    Ok(Layer {
        direction,
        activations: activations(node, direction, defaults, parameters)?,
        clip: node.float("clip")?,
        batch_first: node.since() >= 14 && node.flag("layout", false)?,
        hidden_size: node.int("hidden_size")?,
    })
}

/// Functions of all directions, with their parameters.
pub(crate) fn activations(
    node: &mut Lowering<'_, '_>,
    direction: Direction,
    defaults: &[RecurrentFunction],
    parameters: fn(RecurrentFunction) -> (Parameter, Parameter),
) -> Result<Vec<RecurrentActivation>, LowerError> {
    let wanted = defaults.len() * direction.count();
    let functions: Vec<RecurrentFunction> = match node.texts("activations")?.filter(|names| !names.is_empty()) {
        None => defaults.repeat(direction.count()),
        Some(names) if names.len() == wanted => {
            names.iter().map(|name| function(node, name)).collect::<Result<_, _>>()?
        }
        Some(names) => {
            return Err(TypeError::Value {
                subject: "number of activations".to_string(),
                found: names.len().to_string(),
                expected: wanted.to_string(),
            }
            .into());
        }
    };
    let mut alphas = node.floats("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = node.floats("activation_beta")?.unwrap_or_default().into_iter();
    let with_parameters = |function: RecurrentFunction| {
        let (alpha, beta) = parameters(function);
        let take = |values: &mut std::vec::IntoIter<f32>, parameter: Parameter| match parameter {
            Parameter::Unused => Ok(0.0),
            Parameter::Default(default) => Ok(values.next().unwrap_or(default)),
            Parameter::Required => {
                values.next().ok_or_else(|| node.refuse(format!("activation {function:?} without its parameters")))
            }
        };
        Ok(RecurrentActivation { function, alpha: take(&mut alphas, alpha)?, beta: take(&mut betas, beta)? })
    };
    functions.into_iter().map(with_parameters).collect()
}

fn function(node: &Lowering<'_, '_>, name: &str) -> Result<RecurrentFunction, LowerError> {
    Ok(match name.to_lowercase().as_str() {
        "relu" => RecurrentFunction::Relu,
        "tanh" => RecurrentFunction::Tanh,
        "sigmoid" => RecurrentFunction::Sigmoid,
        "affine" => RecurrentFunction::Affine,
        "leakyrelu" => RecurrentFunction::LeakyRelu,
        "thresholdedrelu" => RecurrentFunction::ThresholdedRelu,
        "scaledtanh" => RecurrentFunction::ScaledTanh,
        "hardsigmoid" => RecurrentFunction::HardSigmoid,
        "elu" => RecurrentFunction::Elu,
        "softsign" => RecurrentFunction::Softsign,
        "softplus" => RecurrentFunction::Softplus,
        _ => return Err(node.refuse(format!("activation `{name}`"))),
    })
}

/// Whether a function has a parameter.
#[derive(Clone, Copy)]
pub(crate) enum Parameter {
    Unused,
    Default(f32),
    Required,
}

/// The parameters of a function: alpha, beta.
fn parameters(function: RecurrentFunction) -> (Parameter, Parameter) {
    use Parameter::{Default, Required, Unused};
    match function {
        RecurrentFunction::Relu
        | RecurrentFunction::Tanh
        | RecurrentFunction::Sigmoid
        | RecurrentFunction::Softsign
        | RecurrentFunction::Softplus => (Unused, Unused),
        RecurrentFunction::Affine => (Default(1.0), Default(0.0)),
        RecurrentFunction::LeakyRelu => (Default(0.01), Unused),
        RecurrentFunction::ThresholdedRelu | RecurrentFunction::Elu => (Default(1.0), Unused),
        RecurrentFunction::ScaledTanh => (Required, Required),
        RecurrentFunction::HardSigmoid => (Default(0.2), Default(0.5)),
    }
}

/// The parameters of a function where ONNX Runtime defines the operator.
pub(crate) fn microsoft_parameters(function: RecurrentFunction) -> (Parameter, Parameter) {
    use Parameter::Default;
    match function {
        RecurrentFunction::Affine | RecurrentFunction::ScaledTanh => (Default(0.0), Default(0.0)),
        RecurrentFunction::ThresholdedRelu => (Default(0.0), Parameter::Unused),
        RecurrentFunction::Relu
        | RecurrentFunction::Tanh
        | RecurrentFunction::Sigmoid
        | RecurrentFunction::Softsign
        | RecurrentFunction::Softplus
        | RecurrentFunction::LeakyRelu
        | RecurrentFunction::Elu
        | RecurrentFunction::HardSigmoid => parameters(function),
    }
}

/// Inputs in the order of the operator, of which the first `required` must be there.
fn operands(node: &Lowering<'_, '_>, count: usize) -> Result<Vec<Operand>, LowerError> {
    if node.input_count() > count {
        let expected = format!("at most {count}");
        return Err(TypeError::OperandCount { expected, found: node.input_count() }.into());
    }
    (0..3).try_for_each(|index| node.required(index).map(drop))?;
    Ok(node.inputs())
}

fn lstm(node: &mut Lowering<'_, '_>) -> Lowered {
    let (sigmoid, tanh) = (RecurrentFunction::Sigmoid, RecurrentFunction::Tanh);
    let Layer { direction, activations, clip, batch_first, hidden_size } = layer(node, &[sigmoid, tanh, tanh])?;
    let input_forget = node.flag("input_forget", false)?;
    let operands = operands(node, 8)?;
    node.emit(Lstm { direction, activations, clip, input_forget, batch_first, hidden_size }, operands)
}

fn gru(node: &mut Lowering<'_, '_>) -> Lowered {
    let defaults = [RecurrentFunction::Sigmoid, RecurrentFunction::Tanh];
    let Layer { direction, activations, clip, batch_first, hidden_size } = layer(node, &defaults)?;
    // "when linear_before_reset != 0"
    let linear_before_reset = node.int("linear_before_reset")?.unwrap_or(0) != 0;
    let operands = operands(node, 6)?;
    node.emit(Gru { direction, activations, clip, linear_before_reset, batch_first, hidden_size }, operands)
}

fn rnn(node: &mut Lowering<'_, '_>) -> Lowered {
    let Layer { direction, activations, clip, batch_first, hidden_size } = layer(node, &[RecurrentFunction::Tanh])?;
    let operands = operands(node, 6)?;
    node.emit(Rnn { direction, activations, clip, batch_first, hidden_size }, operands)
}
