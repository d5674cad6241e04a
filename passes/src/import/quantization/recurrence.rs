//! `DynamicQuantizeLSTM` of `com.microsoft`, as ONNX Runtime 1.31 defines it: the input of a layer is quantized as a whole, the
//! hidden state in each step, and their products with the stored codes are exact sums.
//!
//! Each direction is a graph of ONNX operators with a `Scan` over the steps.

use crate::import::definition::{integer, step};
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::import::recurrence::cell::{Cell, joined, zeros};
use crate::import::recurrence::{activations, microsoft_parameters};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::schema::NodeProto;
use ipuc_formats::ops::{BinaryFunction, Direction, RecurrentFunction};

type Lowered = Result<Vec<Operand>, LowerError>;

/// Recurrent layers that quantize.
pub const ROWS: &[Row] =
    &[Row { domain: "com.microsoft", name: "DynamicQuantizeLSTM", since: 1, lower: dynamic_quantize_lstm }];

/// Operands of the graph of a direction, in order: the sequence, codes, scales and zero points of both products, the sum of
/// the biases, the initial states. Those that a layer may lack follow.
const INPUTS: [&str; 10] =
    ["x", "w", "w_scale", "w_zero_point", "r", "r_scale", "r_zero_point", "bias", "initial_h", "initial_c"];

/// `value`, quantized, times the codes `weight`, as f32.
fn product(value: &str, weight: &str, result: &str) -> Vec<NodeProto> {
    let to_float = vec![integer("to", i64::from(DType::F32.onnx_code()))];
    vec![
        step(&format!("DynamicQuantizeLinear {value} -> {value}_codes {value}_scale {value}_zero_point"), vec![]),
        step(
            &format!("MatMulInteger {value}_codes {weight} {value}_zero_point {weight}_zero_point -> {value}_sums"),
            vec![],
        ),
        step(&format!("Cast {value}_sums -> {value}_floats"), to_float),
        step(&format!("Mul {value}_scale {weight}_scale -> {value}_{weight}_scale"), vec![]),
        step(&format!("Mul {value}_floats {value}_{weight}_scale -> {result}"), vec![]),
    ]
}

fn dynamic_quantize_lstm(node: &mut Lowering<'_, '_>) -> Lowered {
    let kind: Direction = node.keyword("direction")?.unwrap_or(Direction::Forward);
    let usual = [RecurrentFunction::Sigmoid, RecurrentFunction::Tanh, RecurrentFunction::Tanh];
    let functions = activations(node, kind, &usual, microsoft_parameters)?;
    let coupled = node.flag("input_forget", false)?;
    // A bound of 0 is none.
    let clip = node.float("clip")?.filter(|&clip| clip != 0.0);
    let (x, w, r) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let parameters = [8, 9, 10, 11].map(|index| node.required(index));
    let [w_scale, w_zero_point, r_scale, r_zero_point] = parameters;
    let weights = [w, w_scale?, w_zero_point?, r, r_scale?, r_zero_point?];
    let hidden = node.extent(&r, 1, "the hidden state")?;
    if node.int("hidden_size")?.is_some_and(|stated| stated != hidden) {
        return Err(node.refuse(format!("attribute `hidden_size` with a hidden state of {hidden}")));
    }
    let bias = match node.input(3) {
        Operand::Absent => None,
        bias => {
            let (of_input, of_state) =
                (node.sliced(bias, 1, [0, 4 * hidden, 1])?, node.sliced(bias, 1, [4 * hidden, 8 * hidden, 1])?);
            Some(node.binary(BinaryFunction::Add, of_input, of_state)?)
        }
    };
    let (lengths, initial, peepholes) = (node.input(4), [node.input(5), node.input(6)], node.input(7));
    let mut directions = Vec::new();
    for number in 0..kind.count() {
        let at = number as i64;
        let mut operands = vec![x];
        for weight in weights {
            operands.push(node.taken(weight, 0, at)?);
        }
        operands.push(match bias {
            Some(bias) => node.taken(bias, 0, at)?,
            None => node.scalar(DType::F32, 0.0)?,
        });
        for initial in initial {
            operands.push(match initial {
                Operand::Absent => zeros(node, x, hidden)?,
                initial => node.taken(initial, 0, at)?,
            });
        }
        if peepholes != Operand::Absent {
            operands.push(node.taken(peepholes, 0, at)?);
        }
        operands.extend(Some(lengths).filter(|&lengths| lengths != Operand::Absent));
        let cell = Cell {
            functions: &functions[3 * number..][..3],
            clip,
            coupled,
            has_lengths: lengths != Operand::Absent,
            has_peepholes: peepholes != Operand::Absent,
            inputs: INPUTS.to_vec(),
            of_input: product("x", "w", "x_products"),
            of_state: product("h", "r", "recurrent"),
            attention: Vec::new(),
        };
        let direction = cell.direction(kind == Direction::Reverse || number == 1);
        directions.push(node.definition(&direction, &operands, &format!("direction{number}"))?);
    }
    joined(node, directions)
}
