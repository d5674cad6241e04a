//! Classifiers of decision trees of the domain `ai.onnx.ml`: `TreeEnsembleClassifier` (1, 3, 5).
//!
//! The label is that of the highest score. Two classes whose votes all are for the first have one score, that of the second
//! class: as in ONNX Runtime it is a probability where no vote is negative, else the sign decides. ONNX Runtime and the
//! reference evaluator of ONNX do not agree on what other layouts of one score mean: these are refused.

use crate::import::classical::traditional::{PostTransform, class_labels, top_label};
use crate::import::classical::trees::{either_floats, older_trees, required_ints, same_lengths};
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Aggregate, Binary, BinaryFunction, Compare, CompareRelation, Concat, Gather, TreeEnsemble, Unary, UnaryFunction,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Classifiers of trees.
pub const ROWS: &[Row] = &[
    Row { domain: "ai.onnx.ml", name: "TreeEnsembleClassifier", since: 1, lower: classifier },
    Row { domain: "ai.onnx.ml", name: "TreeEnsembleClassifier", since: 3, lower: classifier },
    Row { domain: "ai.onnx.ml", name: "TreeEnsembleClassifier", since: 5, lower: classifier },
];

fn classifier(node: &mut Lowering<'_, '_>) -> Lowered {
    let (mut trees, leaves) = older_trees(node)?;
    let votes = [required_ints(node, "class_treeids")?, required_ints(node, "class_nodeids")?];
    let classes = required_ints(node, "class_ids")?;
    let weights = either_floats(node, "class_weights")?;
    let weights = weights.ok_or_else(|| LowerError::MissingAttribute("class_weights".to_string()))?;
    same_lengths(node, "votes", &[votes[0].len(), votes[1].len(), classes.len(), weights.len()])?;
    let labels = class_labels(node, "classlabels_int64s")?;
    let transform = node.keyword("post_transform")?.unwrap_or(PostTransform::None);
    let base = either_floats(node, "base_values")?;
    let base: Option<Vec<f32>> = base.map(|base| base.iter().map(|&value| value as f32).collect());
    let is_probability = weights.iter().all(|&weight| weight >= 0.0);
    trees.vote(node, &leaves, (&votes[0], &votes[1]), classes.iter().copied().zip(weights))?;
    let single = labels.count() == 2 && classes.iter().all(|&class| class == classes[0]);
    if single && classes.first() != Some(&0) {
        return Err(node.refuse("two classes with votes for the second only"));
    }
    let targets = if single { 1 } else { labels.count() as i64 };
    let x = node.required(0)?;
    let x = if node.dtype(&x)?.is_float() { x } else { node.cast(x, DType::F32)? };
    let mut scores = trees.emit(node, x, DType::F32, TreeEnsemble { targets, aggregate: Aggregate::Sum })?;
    if let Some(base) = base {
        if i64::try_from(base.len()) != Ok(targets) {
            return Err(node.refuse(format!("{} base values for {targets} scores", base.len())));
        }
        let base = node.constant(Tensor::from_elements(&[base.len()], &base)?);
        scores = node.binary(BinaryFunction::Add, scores, base)?;
    }
    if single {
        return single_score(node, scores, labels, transform, is_probability);
    }
    let label = top_label(node, scores, labels)?;
    Ok(vec![label, transform.emit(node, scores)?])
}

/// Labels and both scores of two classes with one score `[n, 1]`.
fn single_score(
    node: &mut Lowering<'_, '_>,
    score: Operand,
    labels: Tensor,
    transform: PostTransform,
    is_probability: bool,
) -> Lowered {
    let threshold = node.scalar(DType::F32, if is_probability { 0.5 } else { 0.0 })?;
    let second = node.emit_one(Compare { relation: CompareRelation::Greater }, vec![score, threshold])?;
    let second = node.cast(second, DType::I64)?;
    let flat = node.reshaped(second, &[-1])?;
    let labels = node.constant(labels);
    let label = node.emit_one(Gather { axis: 0 }, vec![labels, flat])?;
    let other = match (transform, is_probability) {
        (PostTransform::None, true) => {
            let one = node.scalar(DType::F32, 1.0)?;
            node.emit_one(Binary { function: BinaryFunction::Sub }, vec![one, score])?
        }
        (PostTransform::None, false) | (PostTransform::Logistic, _) => {
            node.emit_one(Unary { function: UnaryFunction::Neg }, vec![score])?
        }
        (PostTransform::Softmax | PostTransform::SoftmaxZero | PostTransform::Probit, _) => {
            return Err(node.refuse("one score for two classes with a `post_transform` beside NONE and LOGISTIC"));
        }
    };
    let scores = node.emit_one(Concat { axis: 1 }, vec![other, score])?;
    Ok(vec![label, transform.emit(node, scores)?])
}
