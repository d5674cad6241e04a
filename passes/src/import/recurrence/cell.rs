//! A long short-term memory as a graph of ONNX operators with a `Scan` over the steps, for operators that change it.

use crate::import::definition::{block, float, graph, integer, integers, step};
use crate::import::lowering::{LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::schema::{GraphProto, NodeProto};
use ipuc_formats::ops::{Concat, Expand, RecurrentActivation, RecurrentFunction, ShapeOf};

/// A layer in one direction.
pub(crate) struct Cell<'l> {
    /// Of gates, cell input and cell output.
    pub functions: &'l [RecurrentActivation],
    pub clip: Option<f32>,
    pub coupled: bool,
    /// There are lengths of sequences; peepholes.
    pub has_lengths: bool,
    pub has_peepholes: bool,
    /// Names of operands, with `x: [steps, batch, input]`, `bias`, `initial_h` and `initial_c`; `peepholes` and `sequence_lens`
    /// follow where there are.
    pub inputs: Vec<&'static str>,
    /// `x_products`, the part of the gates that comes from `x`.
    pub of_input: Vec<NodeProto>,
    /// `recurrent`, the part that comes from the state `h`, and `attention` where there is one.
    pub of_state: Vec<NodeProto>,
    /// `next_attention` of the new state `new_h`; none where there is none. Its first is the operand `no_attention`.
    pub attention: Vec<NodeProto>,
}

/// `function(value)`.
fn applied(activation: RecurrentActivation, value: &str, result: &str) -> Vec<NodeProto> {
    let RecurrentActivation { function, alpha, beta } = activation;
    let constant =
        |name: &str, number| step(&format!("Constant -> {result}_{name}"), vec![float("value_float", number)]);
    let simple = |operator: &str, attributes| vec![step(&format!("{operator} {value} -> {result}"), attributes)];
    match function {
        RecurrentFunction::Relu => simple("Relu", vec![]),
        RecurrentFunction::Tanh => simple("Tanh", vec![]),
        RecurrentFunction::Sigmoid => simple("Sigmoid", vec![]),
        RecurrentFunction::Softsign => simple("Softsign", vec![]),
        RecurrentFunction::Softplus => simple("Softplus", vec![]),
        RecurrentFunction::LeakyRelu => simple("LeakyRelu", vec![float("alpha", alpha)]),
        RecurrentFunction::ThresholdedRelu => simple("ThresholdedRelu", vec![float("alpha", alpha)]),
        RecurrentFunction::Elu => simple("Elu", vec![float("alpha", alpha)]),
        RecurrentFunction::HardSigmoid => simple("HardSigmoid", vec![float("alpha", alpha), float("beta", beta)]),
        RecurrentFunction::Affine => vec![
            constant("alpha", alpha),
            constant("beta", beta),
            step(&format!("Mul {value} {result}_alpha -> {result}_scaled"), vec![]),
            step(&format!("Add {result}_scaled {result}_beta -> {result}"), vec![]),
        ],
        RecurrentFunction::ScaledTanh => vec![
            constant("alpha", alpha),
            constant("beta", beta),
            step(&format!("Mul {value} {result}_beta -> {result}_inner"), vec![]),
            step(&format!("Tanh {result}_inner -> {result}_outer"), vec![]),
            step(&format!("Mul {result}_outer {result}_alpha -> {result}"), vec![]),
        ],
    }
}

impl Cell<'_> {
    /// `name`, the function of `name_in`, which is bounded and has its peephole (`peephole` times a state) added.
    fn gate(&self, name: &str, peephole: Option<(&str, &str)>, function: usize) -> Vec<NodeProto> {
        let (mut nodes, mut value) = (Vec::new(), format!("{name}_in"));
        if let Some((peephole, state)) = peephole.filter(|_| self.has_peepholes) {
            nodes.push(step(&format!("Mul {peephole} {state} -> {name}_seen"), vec![]));
            nodes.push(step(&format!("Add {value} {name}_seen -> {name}_sum"), vec![]));
            value = format!("{name}_sum");
        }
        if self.clip.is_some() {
            nodes.push(step(&format!("Clip {value} least most -> {name}_bounded"), vec![]));
            value = format!("{name}_bounded");
        }
        nodes.extend(applied(self.functions[function], &value, name));
        nodes
    }

    /// One step: `h`, `c: [batch, hidden]` and the part of the gates that comes from the input to the next `h`, `c`. With lengths
    /// it carries the number of the step and the last states, too: those of texts that have ended are 0.
    fn step(&self) -> GraphProto {
        let line = |text: &str| step(text, vec![]);
        let mut nodes = self.of_state.clone();
        nodes.push(line("Add gates recurrent -> sum"));
        nodes.push(step("Split sum -> i_in o_in f_in g_in", vec![integer("axis", -1), integer("num_outputs", 4)]));
        if let Some(clip) = self.clip {
            for (name, bound) in [("least", -clip), ("most", clip)] {
                nodes.push(step(&format!("Constant -> {name}"), vec![float("value_float", bound)]));
            }
        }
        nodes.extend(self.gate("i", Some(("peephole_i", "c")), 0));
        nodes.extend(match self.coupled {
            true => {
                vec![step("Constant -> all", vec![float("value_float", 1.0)]), line("Sub all i -> f")]
            }
            false => self.gate("f", Some(("peephole_f", "c")), 0),
        });
        nodes.extend(self.gate("g", None, 1));
        nodes.extend(["Mul f c -> kept", "Mul i g -> added", "Add kept added -> new_c"].map(line));
        nodes.extend(self.gate("o", Some(("peephole_o", "new_c")), 0));
        nodes.extend(applied(self.functions[2], "new_c", "squashed"));
        nodes.push(line("Mul o squashed -> new_h"));
        nodes.extend(self.attention.iter().cloned());
        let (mut inputs, mut outputs) = (vec!["h", "c"], vec!["next_h", "next_c"]);
        if !self.has_lengths {
            nodes.extend(["Identity new_h -> next_h", "Identity new_c -> next_c", "Identity new_h -> y"].map(line));
        } else {
            nodes.push(step("Constant -> nothing", vec![float("value_float", 0.0)]));
            nodes.push(step("Constant -> one", vec![integer("value_int", 1)]));
            nodes.extend(
                [
                    "Less number lengths -> goes_on",
                    "Add number one -> next_number",
                    "Where goes_on new_h nothing -> next_h",
                    "Where goes_on new_c nothing -> next_c",
                    "Where goes_on new_h last_h -> next_last_h",
                    "Where goes_on new_c last_c -> next_last_c",
                    "Identity next_h -> y",
                ]
                .map(line),
            );
            inputs.extend(["number", "last_h", "last_c"]);
            outputs.extend(["next_number", "next_last_h", "next_last_c"]);
        }
        if !self.attention.is_empty() {
            inputs.push("attention");
            outputs.push("next_attention");
        }
        inputs.push("gates");
        outputs.push("y");
        graph(&inputs, nodes, &outputs)
    }

    /// A direction: `x: [steps, batch, input]` to all hidden states `[steps, batch, hidden]` and the last two states.
    pub(crate) fn direction(&self, backwards: bool) -> GraphProto {
        let line = |text: &str| step(text, vec![]);
        let scan = |backwards: bool| {
            let backwards = i64::from(backwards);
            vec![
                block("body", self.step()),
                integer("num_scan_inputs", 1),
                integers("scan_input_directions", backwards),
                integers("scan_output_directions", backwards),
            ]
        };
        let mut nodes = self.of_input.clone();
        nodes.push(line("Add x_products bias -> all_gates"));
        let mut inputs = self.inputs.clone();
        // What attention saw before the first step, and sees behind the last.
        let (before, behind) = if self.attention.is_empty() { ("", "") } else { ("no_attention", "end_attention") };
        if self.has_peepholes {
            inputs.push("peepholes");
            let parts = vec![integer("axis", 0), integer("num_outputs", 3)];
            nodes.push(step("Split peepholes -> peephole_i peephole_o peephole_f", parts));
        }
        if !self.has_lengths {
            let line = format!("Scan initial_h initial_c {before} all_gates -> last_h last_c {behind} hidden");
            nodes.push(step(&line, scan(backwards)));
            return graph(&inputs, nodes, &["hidden", "last_h", "last_c"]);
        }
        inputs.push("sequence_lens");
        nodes.push(step("Cast sequence_lens -> row_lengths", vec![integer("to", i64::from(DType::I64.onnx_code()))]));
        nodes.push(step("Constant -> column", vec![integers("value_ints", 1)]));
        nodes.push(line("Unsqueeze row_lengths column -> lengths"));
        nodes.push(step("Constant -> begin", vec![integer("value_int", 0)]));
        let axes = || vec![integer("batch_axis", 1), integer("time_axis", 0)];
        let (ordered, found) = if backwards { ("ordered_gates", "found") } else { ("all_gates", "hidden") };
        if backwards {
            nodes.push(step("ReverseSequence all_gates row_lengths -> ordered_gates", axes()));
        }
        // The last states of a text without steps are 0.
        nodes.extend(["Shape initial_h -> state_shape", "ConstantOfShape state_shape -> none"].map(line));
        let results = format!("end_h end_c end_number last_h last_c {behind} {found}");
        let line = format!("Scan initial_h initial_c begin none none {before} {ordered} -> {results}");
        nodes.push(step(&line, scan(false)));
        if backwards {
            nodes.push(step("ReverseSequence found row_lengths -> hidden", axes()));
        }
        graph(&inputs, nodes, &["hidden", "last_h", "last_c"])
    }
}

/// The results of directions, each of all hidden states and the last two: `[steps, directions, batch, hidden]`, then
/// `[directions, batch, hidden]` twice.
pub(crate) fn joined(node: &mut Lowering<'_, '_>, directions: Vec<Vec<Operand>>) -> Result<Vec<Operand>, LowerError> {
    let mut results: [Vec<Operand>; 3] = Default::default();
    for outputs in directions {
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
pub(crate) fn zeros(node: &mut Lowering<'_, '_>, x: Operand, hidden: i64) -> Result<Operand, LowerError> {
    let batch = node.emit_one(ShapeOf { start: 1, end: Some(2) }, vec![x])?;
    let hidden = node.integers(&[hidden]);
    let shape = node.emit_one(Concat { axis: 0 }, vec![batch, hidden])?;
    let zero = node.scalar(DType::F32, 0.0)?;
    node.emit_one(Expand {}, vec![zero, shape])
}
