//! Which experts a token goes to, of `com.microsoft`: `MoEGroupRouter`, as ONNX Runtime 1.32 computes it on a processor.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    ActivationFunction, BinaryFunction, Cast, Expand, Reduce, ReduceFunction, ScatterElements, ScatterReduction,
    Select, ShapeOf, TopK, Unary, UnaryFunction,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Routing of ONNX Runtime.
pub const ROWS: &[Row] = &[Row { domain: "com.microsoft", name: "MoEGroupRouter", since: 1, lower: routed }];

/// The least sigmoid whose logarithm is taken.
const LEAST: f32 = 1e-20;

/// The logarithms of the sigmoids of chosen experts (output 0), or all sigmoids, with their bias (1) and without (2). Chosen are
/// the best of the best groups; how good is said by sigmoids with a bias.
fn routed(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(3)?;
    node.refuse_inputs(&[(2, "projection_weight")])?;
    let sentinel = node.float("router_sentinel")?.unwrap_or(-10000.0);
    let groups = node.int("n_group")?.unwrap_or(1);
    let active = node.int("topk_group")?.unwrap_or(1);
    let best_of_group = node.int("group_topk")?.unwrap_or(2);
    let chosen = node.positive("top_k")?;
    let logits = node.required(0)?;
    let dtype = node.dtype(&logits)?;
    let experts = node.extent(&logits, -1, "scores of experts")?;
    let divides = groups > 0 && experts % groups == 0;
    if !divides || best_of_group < 1 || !(1..=groups).contains(&active) || chosen > active * (experts / groups) {
        let found = format!("{chosen} of {experts} experts in {active} of {groups} groups");
        return Err(node.refuse(format!("attribute `top_k`: {found}")));
    }
    let logits = node.cast(logits, DType::F32)?;
    let logits = node.reshaped(logits, &[-1, experts])?;
    let sigmoids = node.activated(logits, ActivationFunction::Sigmoid)?;
    let bias = node.required(1)?;
    let biased = node.plus(sigmoids, bias)?;
    if node.output_used(1) || node.output_used(2) {
        if node.output_used(0) || groups != 1 {
            return Err(node.refuse("outputs `selection_scores` and `router_weights` beside `router_probs` or groups"));
        }
        return Ok(vec![Operand::Absent, biased, sigmoids]);
    }
    let candidates = in_active_groups(node, biased, [groups, active, best_of_group.min(experts / groups)])?;
    let count = node.integers(&[chosen]);
    let best = node.emit(TopK { axis: 1, largest: true, sorted: true }, vec![candidates, count])?;
    let seen = marked(node, candidates, best[1])?;
    let least = node.constant(Tensor::scalar(LEAST));
    let bounded = node.binary(BinaryFunction::Max, sigmoids, least)?;
    let logarithms = node.emit_one(Unary { function: UnaryFunction::Log }, vec![bounded])?;
    let sentinel = node.constant(Tensor::scalar(sentinel));
    let result = node.emit_one(Select {}, vec![seen, logarithms, sentinel])?;
    Ok(vec![node.cast(result, dtype)?])
}

/// `scores: [t, experts]`, minus infinity in all groups but the `active` ones whose `best` scores have the greatest sum.
fn in_active_groups(
    node: &mut Lowering<'_, '_>,
    scores: Operand,
    [groups, active, best]: [i64; 3],
) -> Result<Operand, LowerError> {
    if active == groups {
        return Ok(scores);
    }
    let grouped = node.reshaped(scores, &[0, groups, -1])?;
    let count = node.integers(&[best]);
    let best = node.emit(TopK { axis: 2, largest: true, sorted: true }, vec![grouped, count])?;
    let axis = node.integers(&[2]);
    let sum = Reduce { function: ReduceFunction::Sum, keep_axes: false, keep_without_axes: false };
    let sums = node.emit_one(sum, vec![best[0], axis])?;
    let count = node.integers(&[active]);
    let best = node.emit(TopK { axis: 1, largest: true, sorted: true }, vec![sums, count])?;
    let seen = marked(node, sums, best[1])?;
    let seen = node.unsqueezed(seen, &[2])?;
    let nothing = node.constant(Tensor::scalar(f32::NEG_INFINITY));
    let masked = node.emit_one(Select {}, vec![seen, grouped, nothing])?;
    node.reshaped_like(masked, scores)
}

/// True at `places: [t, k]` of `[t, n]`, the shape of `like`.
fn marked(node: &mut Lowering<'_, '_>, like: Operand, places: Operand) -> Result<Operand, LowerError> {
    let [nothing, something] = [0u8, 1].map(|number| node.constant(Tensor::scalar(number)));
    let mut parts = Vec::new();
    for (value, shape) in [(nothing, like), (something, places)] {
        let shape = node.emit_one(ShapeOf { start: 0, end: None }, vec![shape])?;
        parts.push(node.emit_one(Expand {}, vec![value, shape])?);
    }
    let scatter = ScatterElements { axis: 1, reduction: ScatterReduction::None };
    let marks = node.emit_one(scatter, vec![parts[0], places, parts[1]])?;
    node.emit_one(Cast::to(DType::Bool), vec![marks])
}
