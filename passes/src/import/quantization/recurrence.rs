//! `DynamicQuantizeLSTM` of `com.microsoft`, as ONNX Runtime 1.31 defines it: the input of a layer is quantized as a whole, the
//! hidden state in each step, and their products with the stored codes are exact sums.
//!
//! Each direction is a graph of ONNX operators with a `Scan` over the steps.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, NodeProto, ValueInfoProto, attribute_proto::AttributeType,
};
use ipuc_formats::ops::{BinaryFunction, Concat, Direction, Expand, ShapeOf};

type Lowered = Result<Vec<Operand>, LowerError>;

/// Recurrent layers that quantize.
pub const ROWS: &[Row] =
    &[Row { domain: "com.microsoft", name: "DynamicQuantizeLSTM", since: 1, lower: dynamic_quantize_lstm }];

/// Inputs of the graph of a direction, in order: the sequence, codes, scales and zero points of both products, the sum of
/// the biases, the initial states.
const INPUTS: [&str; 10] =
    ["x", "w", "w_scale", "w_zero_point", "r", "r_scale", "r_zero_point", "bias", "initial_h", "initial_c"];

fn integer(name: &str, value: i64) -> AttributeProto {
    let kind = Some(AttributeType::Int as i32);
    AttributeProto { name: Some(name.to_string()), r#type: kind, i: Some(value), ..AttributeProto::default() }
}

fn integers(name: &str, value: i64) -> AttributeProto {
    let kind = Some(AttributeType::Ints as i32);
    AttributeProto { name: Some(name.to_string()), r#type: kind, ints: vec![value], ..AttributeProto::default() }
}

/// `OPERATOR inputs.. -> outputs..`, separated by spaces.
fn node(text: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    let words = |text: &str| text.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let (left, outputs) = text.split_once("->").unwrap_or((text, ""));
    let mut input = words(left);
    let operator = input.remove(0);
    let (name, output) = (Some(outputs.trim().to_string()), words(outputs));
    NodeProto { op_type: Some(operator), input, output, attribute, name, ..NodeProto::default() }
}

fn ports(names: &[&str]) -> Vec<ValueInfoProto> {
    names.iter().map(|name| ValueInfoProto { name: Some((*name).to_string()), ..ValueInfoProto::default() }).collect()
}

/// `value`, quantized, times the codes `weight`, as f32.
fn product(value: &str, weight: &str, result: &str) -> Vec<NodeProto> {
    let float = vec![integer("to", i64::from(DType::F32.onnx_code()))];
    vec![
        node(&format!("DynamicQuantizeLinear {value} -> {value}_codes {value}_scale {value}_zero_point"), vec![]),
        node(
            &format!("MatMulInteger {value}_codes {weight} {value}_zero_point {weight}_zero_point -> {value}_sums"),
            vec![],
        ),
        node(&format!("Cast {value}_sums -> {value}_floats"), float),
        node(&format!("Mul {value}_scale {weight}_scale -> {value}_{weight}_scale"), vec![]),
        node(&format!("Mul {value}_floats {value}_{weight}_scale -> {result}"), vec![]),
    ]
}

/// One step: `h`, `c: [batch, hidden]` and the part of the gates that comes from the input to the next `h`, `c`.
fn step() -> GraphProto {
    let mut nodes = product("h", "r", "recurrent");
    nodes.extend(
        [
            ("Add gates recurrent -> sum", vec![]),
            ("Split sum -> i_in o_in f_in g_in", vec![integer("axis", -1), integer("num_outputs", 4)]),
            ("Sigmoid i_in -> i", vec![]),
            ("Sigmoid o_in -> o", vec![]),
            ("Sigmoid f_in -> f", vec![]),
            ("Tanh g_in -> g", vec![]),
            ("Mul f c -> kept", vec![]),
            ("Mul i g -> added", vec![]),
            ("Add kept added -> next_c", vec![]),
            ("Tanh next_c -> squashed", vec![]),
            ("Mul o squashed -> next_h", vec![]),
            ("Identity next_h -> y", vec![]),
        ]
        .map(|(text, attributes)| node(text, attributes)),
    );
    let (input, output) = (ports(&["h", "c", "gates"]), ports(&["next_h", "next_c", "y"]));
    GraphProto { node: nodes, input, output, ..GraphProto::default() }
}

/// A direction: `x: [steps, batch, input]` to all hidden states `[steps, batch, hidden]` and the last two states.
fn direction(backwards: bool) -> GraphProto {
    let body = AttributeProto {
        name: Some("body".to_string()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(Box::new(step())),
        ..AttributeProto::default()
    };
    let backwards = i64::from(backwards);
    let scan = vec![
        body,
        integer("num_scan_inputs", 1),
        integers("scan_input_directions", backwards),
        integers("scan_output_directions", backwards),
    ];
    let mut nodes = product("x", "w", "x_products");
    nodes.push(node("Add x_products bias -> all_gates", vec![]));
    nodes.push(node("Scan initial_h initial_c all_gates -> last_h last_c hidden", scan));
    let (input, output) = (ports(&INPUTS), ports(&["hidden", "last_h", "last_c"]));
    GraphProto { node: nodes, input, output, ..GraphProto::default() }
}

fn dynamic_quantize_lstm(node: &mut Lowering<'_, '_>) -> Lowered {
    let kind: Direction = node.keyword("direction")?.unwrap_or(Direction::Forward);
    let directions = kind.count() as i64;
    let usual = |names: &Vec<String>| {
        let names: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
        names.chunks(3).all(|names| names == ["sigmoid", "tanh", "tanh"])
    };
    if node.texts("activations")?.is_some_and(|names| !usual(&names)) {
        return Err(node.refuse("attribute `activations` other than Sigmoid, Tanh, Tanh"));
    }
    if node.flag("input_forget", false)? {
        return Err(node.refuse("attribute `input_forget` = 1"));
    }
    // A bound of 0 is none.
    if let Some(clip) = node.float("clip")?.filter(|&clip| clip != 0.0) {
        return Err(node.refuse(format!("attribute `clip` = {clip}")));
    }
    for (index, name) in [(4, "sequence_lens"), (7, "P")] {
        if node.input(index) != Operand::Absent {
            return Err(node.refuse(format!("input `{name}`")));
        }
    }
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
    let initial = [node.input(5), node.input(6)];
    let mut results: [Vec<Operand>; 3] = Default::default();
    for number in 0..directions {
        let mut operands = vec![x];
        for weight in weights {
            operands.push(node.taken(weight, 0, number)?);
        }
        operands.push(match bias {
            Some(bias) => node.taken(bias, 0, number)?,
            None => node.scalar(DType::F32, 0.0)?,
        });
        for initial in initial {
            operands.push(match initial {
                Operand::Absent => zeros(node, x, hidden)?,
                initial => node.taken(initial, 0, number)?,
            });
        }
        let backwards = kind == Direction::Reverse || number == 1;
        let outputs = node.definition(&direction(backwards), &operands, &format!("direction{number}"))?;
        for ((output, results), axis) in outputs.into_iter().zip(&mut results).zip([1, 0, 0]) {
            results.push(node.unsqueezed(output, &[axis])?);
        }
    }
    let [all, last_h, last_c] = results;
    [(all, 1), (last_h, 0), (last_c, 0)]
        .into_iter()
        .map(|(parts, axis)| match parts[..] {
            [only] => Ok(only),
            _ => node.emit_one(Concat { axis }, parts),
        })
        .collect()
}

/// f32 `[batch, hidden]` for `x: [steps, batch, input]`.
fn zeros(node: &mut Lowering<'_, '_>, x: Operand, hidden: i64) -> Result<Operand, LowerError> {
    let batch = node.emit_one(ShapeOf { start: 1, end: Some(2) }, vec![x])?;
    let hidden = node.integers(&[hidden]);
    let shape = node.emit_one(Concat { axis: 0 }, vec![batch, hidden])?;
    let zero = node.scalar(DType::F32, 0.0)?;
    node.emit_one(Expand {}, vec![zero, shape])
}
