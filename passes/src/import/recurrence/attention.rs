//! `AttnLSTM` of `com.microsoft`, as ONNX Runtime 1.31 defines it: a long short-term memory whose gates see, beside its input and its
//! state, what its state attends to in a memory (Bahdanau's attention).

use crate::import::definition::{float, integer, integers, step};
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::import::recurrence::cell::{Cell, joined, zeros};
use crate::import::recurrence::{activations, microsoft_parameters};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::schema::NodeProto;
use ipuc_formats::ops::{BinaryFunction, Direction, RecurrentFunction, TypeError};

/// Recurrent layers that attend.
pub const ROWS: &[Row] = &[Row { domain: "com.microsoft", name: "AttnLSTM", since: 1, lower: attentive }];

/// Operands of the graph of a direction; `is_memory` follows where there are lengths of memories, `layer_h` and `layer_context` where
/// there is a layer behind the attention.
const INPUTS: [&str; 12] = [
    "x",
    "w",
    "w_attention",
    "r",
    "bias",
    "initial_h",
    "initial_c",
    "no_attention",
    "query_weights",
    "attention_vector",
    "keys",
    "values",
];

fn line(text: &str) -> NodeProto {
    step(text, vec![])
}

/// `next_attention` of the state `new_h: [batch, hidden]`.
fn attention(masked: bool, has_layer: bool) -> Vec<NodeProto> {
    let mut nodes = vec![
        step("Constant -> middle", vec![integers("value_ints", 1)]),
        step("Constant -> last", vec![integers("value_ints", -1)]),
        line("MatMul new_h query_weights -> query"),
        line("Unsqueeze query middle -> query_row"),
        line("Add keys query_row -> similar"),
        line("Tanh similar -> bent"),
        line("Mul bent attention_vector -> weighed"),
        step("ReduceSum weighed last -> all_scores", vec![integer("keepdims", 0)]),
        line(if masked {
            "Where is_memory all_scores hidden_score -> scores"
        } else {
            "Identity all_scores -> scores"
        }),
        step("Softmax scores -> shares", vec![integer("axis", -1)]),
        line("Unsqueeze shares middle -> share_row"),
        line("MatMul share_row values -> context_row"),
        line("Squeeze context_row middle -> context"),
    ];
    match has_layer {
        true => nodes.extend(
            [
                "MatMul new_h layer_h -> of_h",
                "MatMul context layer_context -> of_context",
                "Add of_h of_context -> next_attention",
            ]
            .map(line),
        ),
        false => nodes.push(line("Identity context -> next_attention")),
    }
    nodes
}

/// The memory of a direction: what is behind a text's end is 0; its keys; and which places are memory where there are lengths.
fn memory(
    node: &mut Lowering<'_, '_>,
    [values, lengths, weights]: [Operand; 3],
) -> Result<(Operand, Operand, Option<Operand>), LowerError> {
    if lengths == Operand::Absent {
        return Ok((values, node.product(values, weights, false)?, None));
    }
    let steps = vec![
        step("Shape values -> count", vec![integer("start", 1), integer("end", 2)]),
        step("Constant -> zero", vec![integer("value_int", 0)]),
        step("Constant -> one", vec![integer("value_int", 1)]),
        step("Constant -> column", vec![integers("value_ints", 1)]),
        step("Constant -> behind", vec![integers("value_ints", -1)]),
        step("Constant -> nothing", vec![float("value_float", 0.0)]),
        line("Squeeze count -> steps"),
        line("Range zero steps one -> places"),
        step("Cast lengths -> counts", vec![integer("to", i64::from(DType::I64.onnx_code()))]),
        line("Unsqueeze counts column -> rows"),
        line("Less places rows -> is_memory"),
        line("Unsqueeze is_memory behind -> is_row"),
        line("Where is_row values nothing -> seen"),
        line("MatMul seen weights -> keys"),
    ];
    let given = [("values", values), ("lengths", lengths), ("weights", weights)];
    match node.defined(&given, steps, &["seen", "keys", "is_memory"], "memory")?[..] {
        [seen, keys, is_memory] => Ok((seen, keys, Some(is_memory))),
        _ => Err(node.refuse("a memory without keys")),
    }
}

fn attentive(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    node.at_most_inputs(14)?;
    let kind: Direction = node.keyword("direction")?.unwrap_or(Direction::Forward);
    let usual = [RecurrentFunction::Sigmoid, RecurrentFunction::Tanh, RecurrentFunction::Tanh];
    let functions = activations(node, kind, &usual, microsoft_parameters)?;
    let coupled = node.flag("input_forget", false)?;
    let clip = node.float("clip")?.filter(|&clip| clip != 0.0);
    let [x, w, r] = [node.required(0)?, node.required(1)?, node.required(2)?];
    let found = node.dtype(&x)?;
    if found != DType::F32 {
        return Err(TypeError::ElementType { operand: 0, expected: "f32".to_string(), found }.into());
    }
    let [query_weights, memory_weights, vector, values] =
        [node.required(8)?, node.required(9)?, node.required(10)?, node.required(11)?];
    let (lengths, initial, peepholes) = (node.input(4), [node.input(5), node.input(6)], node.input(7));
    let (memory_lengths, layer) = (node.input(12), node.input(13));
    let hidden = node.extent(&r, 2, "the hidden state")?;
    if node.int("hidden_size")?.is_some_and(|stated| stated != hidden) {
        return Err(node.refuse(format!("attribute `hidden_size` with a hidden state of {hidden}")));
    }
    let width = node.extent(&x, 2, "the input")?;
    let attended = node.extent(&w, 2, "the weights of the input")? - width;
    let mut directions = Vec::new();
    for number in 0..kind.count() {
        let at = number as i64;
        let (weights, recurrent) = (node.taken(w, 0, at)?, node.taken(r, 0, at)?);
        let bias = match node.input(3) {
            Operand::Absent => node.scalar(DType::F32, 0.0)?,
            bias => {
                let bias = node.taken(bias, 0, at)?;
                let parts =
                    [node.sliced(bias, 0, [0, 4 * hidden, 1])?, node.sliced(bias, 0, [4 * hidden, 8 * hidden, 1])?];
                node.binary(BinaryFunction::Add, parts[0], parts[1])?
            }
        };
        let of_memory = node.taken(memory_weights, 0, at)?;
        let (seen, keys, is_memory) = memory(node, [values, memory_lengths, of_memory])?;
        let mut operands = vec![
            x,
            node.sliced(weights, 1, [0, width, 1])?,
            node.sliced(weights, 1, [width, width + attended, 1])?,
            recurrent,
            bias,
        ];
        for initial in initial {
            operands.push(match initial {
                Operand::Absent => zeros(node, x, hidden)?,
                initial => node.taken(initial, 0, at)?,
            });
        }
        operands.push(zeros(node, x, attended)?);
        operands.extend([node.taken(query_weights, 0, at)?, node.taken(vector, 0, at)?, keys, seen]);
        let mut inputs = INPUTS.to_vec();
        if let Some(is_memory) = is_memory {
            inputs.extend(["is_memory", "hidden_score"]);
            operands.extend([is_memory, node.scalar(DType::F32, f64::NEG_INFINITY)?]);
        }
        if layer != Operand::Absent {
            let layer = node.taken(layer, 0, at)?;
            inputs.extend(["layer_h", "layer_context"]);
            operands.extend([node.sliced(layer, 0, [0, hidden, 1])?, node.sliced(layer, 0, [hidden, i64::MAX, 1])?]);
        }
        if peepholes != Operand::Absent {
            operands.push(node.taken(peepholes, 0, at)?);
        }
        operands.extend(Some(lengths).filter(|&lengths| lengths != Operand::Absent));
        let turned = |name: &str| step(&format!("Transpose {name} -> {name}_turned"), vec![]);
        let cell = Cell {
            functions: &functions[3 * number..][..3],
            clip,
            coupled,
            has_lengths: lengths != Operand::Absent,
            has_peepholes: peepholes != Operand::Absent,
            inputs,
            of_input: vec![turned("w"), turned("w_attention"), turned("r"), line("MatMul x w_turned -> x_products")],
            of_state: vec![
                line("MatMul h r_turned -> of_hidden"),
                line("MatMul attention w_attention_turned -> of_attention"),
                line("Add of_hidden of_attention -> recurrent"),
            ],
            attention: attention(is_memory.is_some(), layer != Operand::Absent),
        };
        let direction = cell.direction(kind == Direction::Reverse || number == 1);
        directions.push(node.definition(&direction, &operands, &format!("direction{number}"))?);
    }
    joined(node, directions)
}
