//! Decision trees of the domain `ai.onnx.ml`: `TreeEnsemble` (5) and `TreeEnsembleRegressor` (1, 3).
//!
//! Classifiers of trees are in `classifiers.rs`. Both become one form, with leaves apart from nodes and set membership as a chain of tests for equality.

use crate::import::classical::traditional::PostTransform;
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::attribute::Keyword;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact;
use ipuc_formats::ops::single::{from_f64, to_f64};
use ipuc_formats::ops::{Aggregate, Binary, BinaryFunction, Cast, NodeTest, TreeEnsemble};
use ipuc_formats::tensor::Tensor;
use std::collections::{BTreeMap, HashMap};

type Lowered = Result<Vec<Operand>, LowerError>;

/// Trees.
pub const ROWS: &[Row] = &[
    Row { domain: "ai.onnx.ml", name: "TreeEnsemble", since: 5, lower: ensemble },
    Row { domain: "ai.onnx.ml", name: "TreeEnsembleRegressor", since: 1, lower: regressor },
];

/// Trees in the form of the operator.
#[derive(Default)]
pub(super) struct Trees {
    roots: Vec<i64>,
    features: Vec<i64>,
    tests: Vec<u8>,
    thresholds: Vec<f64>,
    /// Two a node.
    children: Vec<i64>,
    missing: Vec<bool>,
    /// Targets and weights of the votes of each leaf.
    leaves: Vec<Vec<(i64, f64)>>,
}

impl Trees {
    /// Add votes of the leaves, each `(target, weight)` for a tree and a node of it.
    pub(super) fn vote(
        &mut self,
        node: &Lowering<'_, '_>,
        leaves: &LeafIndices,
        (tree_ids, node_ids): (&[i64], &[i64]),
        votes: impl Iterator<Item = (i64, f64)>,
    ) -> Result<(), LowerError> {
        for ((&tree, &id), vote) in tree_ids.iter().zip(node_ids).zip(votes) {
            let leaf = leaves.get(&(tree, id));
            let leaf = *leaf.ok_or_else(|| node.refuse(format!("a vote of node {id}, which is no leaf")))?;
            self.leaves[leaf].push(vote);
        }
        Ok(())
    }

    /// Emit the operator over `x`; votes and result are of type `votes`, thresholds are exact.
    pub(super) fn emit(
        &self,
        node: &mut Lowering<'_, '_>,
        x: Operand,
        votes: DType,
        operator: TreeEnsemble,
    ) -> Result<Operand, LowerError> {
        let floats = |dtype: DType, list: &[f64]| {
            from_f64(dtype, &[list.len()], list).map_err(|error| LowerError::Unsupported(error.to_string()))
        };
        let count = self.features.len();
        let mut starts = vec![0i64];
        for leaf in &self.leaves {
            starts.push(starts.last().copied().unwrap_or(0) + leaf.len() as i64);
        }
        let (targets, weights): (Vec<i64>, Vec<f64>) = self.leaves.iter().flatten().copied().unzip();
        let missing = self.missing.contains(&true).then(|| Tensor::from_bools(&[count], &self.missing)).transpose()?;
        let tensors = [
            Some(Tensor::vector_i64(&self.roots)),
            Some(Tensor::vector_i64(&self.features)),
            Some(Tensor::from_elements(&[count], &self.tests)?),
            Some(floats(DType::F64, &self.thresholds)?),
            Some(Tensor::from_elements(&[count, 2], &self.children)?),
            missing,
            Some(Tensor::vector_i64(&starts)),
            Some(Tensor::vector_i64(&targets)),
            Some(floats(votes, &weights)?),
        ];
        let mut operands = vec![x];
        for tensor in tensors {
            operands.push(tensor.map_or(Operand::Absent, |tensor| node.constant(tensor)));
        }
        node.emit_one(operator, operands)
    }
}

pub(super) fn required_ints(node: &mut Lowering<'_, '_>, name: &str) -> Result<Vec<i64>, LowerError> {
    node.ints(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()))
}

fn required_tensor(node: &mut Lowering<'_, '_>, name: &str) -> Result<Tensor, LowerError> {
    node.tensor(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()))
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>, LowerError> {
    to_f64(tensor, 0).map_err(|error| LowerError::Unsupported(error.to_string()))
}

/// Lists that belong to the same things have one length.
pub(super) fn same_lengths(node: &Lowering<'_, '_>, what: &str, lengths: &[usize]) -> Result<(), LowerError> {
    if lengths.array_windows::<2>().all(|[left, right]| left == right) {
        return Ok(());
    }
    Err(node.refuse(format!("lists of {what} with {lengths:?} entries")))
}

/// Number of `BRANCH_MEMBER`: the threshold is one of a set.
const MEMBER: i64 = 6;

/// The sets of member nodes: `values` delimited by NaN, in the order of the nodes.
fn member_sets(values: &[f64]) -> Vec<Vec<f64>> {
    let mut sets: Vec<Vec<f64>> = values.split(|value| value.is_nan()).map(<[f64]>::to_vec).collect();
    // A NaN ends a set, also the last one.
    if values.last().is_none_or(|last| last.is_nan()) {
        sets.pop();
    }
    sets
}

/// Attributes `nodes_..` of `TreeEnsemble`.
struct NodeLists {
    features: Vec<i64>,
    modes: Vec<i64>,
    splits: Vec<f64>,
    children: [Vec<i64>; 2],
    leaf_flags: [Vec<i64>; 2],
    missing: Vec<i64>,
}

impl NodeLists {
    fn new(node: &mut Lowering<'_, '_>) -> Result<NodeLists, LowerError> {
        let features = required_ints(node, "nodes_featureids")?;
        let modes = required_tensor(node, "nodes_modes")?;
        let modes = fact::integers(&modes).ok_or_else(|| node.refuse("attribute `nodes_modes` of no integers"))?;
        let splits = numbers(&required_tensor(node, "nodes_splits")?)?;
        let children = [required_ints(node, "nodes_truenodeids")?, required_ints(node, "nodes_falsenodeids")?];
        let leaf_flags = [required_ints(node, "nodes_trueleafs")?, required_ints(node, "nodes_falseleafs")?];
        let missing = node.ints("nodes_missing_value_tracks_true")?.filter(|list| !list.is_empty());
        let missing = missing.unwrap_or_else(|| vec![0; features.len()]);
        // It is about speed.
        node.ignore("nodes_hitrates");
        let [true_children, false_children] = &children;
        let [true_flags, false_flags] = &leaf_flags;
        let lists = [&modes, true_children, false_children, true_flags, false_flags, &missing];
        let mut lengths = vec![features.len(), splits.len()];
        lengths.extend(lists.map(|list| list.len()));
        same_lengths(node, "nodes", &lengths)?;
        Ok(NodeLists { features, modes, splits, children, leaf_flags, missing })
    }

    /// A child in the form of the operator.
    fn child(&self, side: usize, at: usize) -> i64 {
        let child = self.children[side][at];
        if self.leaf_flags[side][at] == 0 { child } else { (-1i64).saturating_sub(child) }
    }
}

fn ensemble(node: &mut Lowering<'_, '_>) -> Lowered {
    let lists = NodeLists::new(node)?;
    let sets = node.tensor("membership_values")?.map(|values| numbers(&values)).transpose()?.unwrap_or_default();
    let mut sets = member_sets(&sets).into_iter();
    let count = lists.features.len();
    let mut trees = Trees { roots: required_ints(node, "tree_roots")?, ..Trees::default() };
    // Nodes keep their numbers; what a set needs beyond one node comes after all of them.
    let mut extra = Trees::default();
    for at in 0..count {
        let [passes, fails] = [lists.child(0, at), lists.child(1, at)];
        let missing = lists.missing[at] != 0;
        let push = |trees: &mut Trees, test: u8, threshold: f64, fails: i64| {
            trees.features.push(lists.features[at]);
            trees.tests.push(test);
            trees.thresholds.push(threshold);
            trees.children.extend([passes, fails]);
            trees.missing.push(missing);
        };
        if lists.modes[at] != MEMBER {
            let test = u8::try_from(lists.modes[at]).ok().filter(|&test| NodeTest::from_repr(test).is_some());
            let test = test.ok_or_else(|| node.refuse(format!("a node of mode {}", lists.modes[at])))?;
            push(&mut trees, test, lists.splits[at], fails);
            continue;
        }
        let set = sets.next().ok_or_else(|| node.refuse("a node that tests membership without a set"))?;
        // NaN equals nothing: a node for an empty set passes what is missing, where it does, and else fails.
        let (first, rest) = set.split_first().map_or((f64::NAN, &[][..]), |(&first, rest)| (first, rest));
        let number = |index: usize| (count + index) as i64;
        let next = extra.features.len();
        push(&mut trees, NodeTest::Equal as u8, first, if rest.is_empty() { fails } else { number(next) });
        for (index, &member) in rest.iter().enumerate() {
            let fails = if index + 1 == rest.len() { fails } else { number(next + index + 1) };
            push(&mut extra, NodeTest::Equal as u8, member, fails);
        }
    }
    trees.features.append(&mut extra.features);
    trees.tests.append(&mut extra.tests);
    trees.thresholds.append(&mut extra.thresholds);
    trees.children.append(&mut extra.children);
    trees.missing.append(&mut extra.missing);

    let leaf_targets = required_ints(node, "leaf_targetids")?;
    let leaf_weights = required_tensor(node, "leaf_weights")?;
    let weights = numbers(&leaf_weights)?;
    same_lengths(node, "leaves", &[leaf_targets.len(), weights.len()])?;
    trees.leaves = leaf_targets.into_iter().zip(weights).map(|vote| vec![vote]).collect();
    // A tree of one leaf is a node with both branches there, which is as good.
    let targets = node.int("n_targets")?.ok_or_else(|| LowerError::MissingAttribute("n_targets".to_string()))?;
    let number = node.int("aggregate_function")?.unwrap_or(1);
    let aggregate = u8::try_from(number).ok().and_then(Aggregate::from_repr);
    let aggregate = aggregate.ok_or_else(|| node.refuse(format!("attribute `aggregate_function` = {number}")))?;
    let transform = match node.int("post_transform")?.unwrap_or(0) {
        0 => PostTransform::None,
        1 => PostTransform::Softmax,
        2 => PostTransform::Logistic,
        3 => PostTransform::SoftmaxZero,
        4 => PostTransform::Probit,
        number => return Err(node.refuse(format!("attribute `post_transform` = {number}"))),
    };
    let x = node.required(0)?;
    let dtype = node.dtype(&x)?;
    let scores = trees.emit(node, x, dtype, TreeEnsemble { targets, aggregate })?;
    Ok(vec![transformed(node, transform, scores, dtype)?])
}

/// Scores after a transform, which is computed in f32, as `dtype`.
fn transformed(
    node: &mut Lowering<'_, '_>,
    transform: PostTransform,
    scores: Operand,
    dtype: DType,
) -> Result<Operand, LowerError> {
    if transform == PostTransform::None || dtype == DType::F32 {
        return transform.emit(node, scores);
    }
    let single = node.emit_one(Cast::to(DType::F32), vec![scores])?;
    let transformed = transform.emit(node, single)?;
    node.emit_one(Cast::to(dtype), vec![transformed])
}

/// Spellings of `aggregate_function`.
#[derive(Debug, Clone, Copy, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "UPPERCASE")]
enum AggregateName {
    Average,
    Sum,
    Min,
    Max,
}
impl Keyword for AggregateName {}

/// Numbers in `name` (floats) or `name_as_tensor` (doubles).
pub(super) fn either_floats(node: &mut Lowering<'_, '_>, name: &str) -> Result<Option<Vec<f64>>, LowerError> {
    let floats = node.floats(name)?.filter(|list| !list.is_empty());
    let tensor = node.tensor(&format!("{name}_as_tensor"))?;
    match (floats, tensor) {
        (Some(floats), None) => Ok(Some(floats.into_iter().map(f64::from).collect())),
        (None, Some(tensor)) => numbers(&tensor).map(Some),
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(node.refuse(format!("both attributes `{name}` and `{name}_as_tensor`"))),
    }
}

fn test_of(mode: &str) -> Option<NodeTest> {
    match mode {
        "BRANCH_LEQ" => Some(NodeTest::LessOrEqual),
        "BRANCH_LT" => Some(NodeTest::Less),
        "BRANCH_GTE" => Some(NodeTest::GreaterOrEqual),
        "BRANCH_GT" => Some(NodeTest::Greater),
        "BRANCH_EQ" => Some(NodeTest::Equal),
        "BRANCH_NEQ" => Some(NodeTest::NotEqual),
        _ => None,
    }
}

/// Index of the leaf that a tree and a node of it number.
pub(super) type LeafIndices = HashMap<(i64, i64), usize>;

/// Nodes and leaves of the older operators, in which a leaf is a node of its own.
pub(super) fn older_trees(node: &mut Lowering<'_, '_>) -> Result<(Trees, LeafIndices), LowerError> {
    let tree_ids = required_ints(node, "nodes_treeids")?;
    let node_ids = required_ints(node, "nodes_nodeids")?;
    let features = required_ints(node, "nodes_featureids")?;
    let children = [required_ints(node, "nodes_truenodeids")?, required_ints(node, "nodes_falsenodeids")?];
    let modes = node.texts("nodes_modes")?.ok_or_else(|| LowerError::MissingAttribute("nodes_modes".to_string()))?;
    let values = either_floats(node, "nodes_values")?;
    let values = values.ok_or_else(|| LowerError::MissingAttribute("nodes_values".to_string()))?;
    let missing = node.ints("nodes_missing_value_tracks_true")?.filter(|list| !list.is_empty());
    let missing = missing.unwrap_or_else(|| vec![0; modes.len()]);
    // It is about speed.
    node.ignore("nodes_hitrates");
    // It is about speed.
    node.ignore("nodes_hitrates_as_tensor");
    let lengths = [&tree_ids, &node_ids, &features, &children[0], &children[1], &missing].map(|list| list.len());
    same_lengths(node, "nodes", &[&lengths[..], &[modes.len(), values.len()]].concat())?;

    let (mut trees, mut leaves) = (Trees::default(), HashMap::new());
    let mut numbers: HashMap<(i64, i64), i64> = HashMap::new();
    let mut roots: BTreeMap<i64, i64> = BTreeMap::new();
    for (at, mode) in modes.iter().enumerate() {
        let key = (tree_ids[at], node_ids[at]);
        let number = if mode == "LEAF" {
            leaves.insert(key, trees.leaves.len());
            trees.leaves.push(Vec::new());
            -(trees.leaves.len() as i64)
        } else {
            let test = test_of(mode).ok_or_else(|| node.refuse(format!("a node of mode \"{mode}\"")))?;
            trees.tests.push(test as u8);
            trees.features.push(features[at]);
            trees.thresholds.push(values[at]);
            trees.missing.push(missing[at] != 0);
            trees.tests.len() as i64 - 1
        };
        if numbers.insert(key, number).is_some() {
            return Err(node.refuse(format!("two nodes {} in tree {}", key.1, key.0)));
        }
        // The first node of a tree is its root.
        roots.entry(key.0).or_insert(number);
    }
    for at in (0..modes.len()).filter(|&at| modes[at] != "LEAF") {
        for side in &children {
            let child = numbers.get(&(tree_ids[at], side[at]));
            let child = child.ok_or_else(|| node.refuse(format!("a child {} that is no node", side[at])))?;
            trees.children.push(*child);
        }
    }
    trees.roots = roots.into_values().collect();
    Ok((trees, leaves))
}

fn regressor(node: &mut Lowering<'_, '_>) -> Lowered {
    let (mut trees, leaves) = older_trees(node)?;
    let votes = [required_ints(node, "target_treeids")?, required_ints(node, "target_nodeids")?];
    let target_ids = required_ints(node, "target_ids")?;
    let weights = either_floats(node, "target_weights")?;
    let weights = weights.ok_or_else(|| LowerError::MissingAttribute("target_weights".to_string()))?;
    same_lengths(node, "votes", &[votes[0].len(), votes[1].len(), target_ids.len(), weights.len()])?;
    trees.vote(node, &leaves, (&votes[0], &votes[1]), target_ids.iter().copied().zip(weights))?;
    let targets = node.int("n_targets")?.ok_or_else(|| LowerError::MissingAttribute("n_targets".to_string()))?;
    let aggregate = match node.keyword("aggregate_function")?.unwrap_or(AggregateName::Sum) {
        AggregateName::Average => Aggregate::Average,
        AggregateName::Sum => Aggregate::Sum,
        AggregateName::Min => Aggregate::Min,
        AggregateName::Max => Aggregate::Max,
    };
    let transform = node.keyword("post_transform")?.unwrap_or(PostTransform::None);
    let base_values = either_floats(node, "base_values")?;
    let x = node.required(0)?;
    let dtype = node.dtype(&x)?;
    let x = if dtype.is_float() { x } else { node.emit_one(Cast::to(DType::F32), vec![x])? };
    let mut scores = trees.emit(node, x, DType::F32, TreeEnsemble { targets, aggregate })?;
    if let Some(base) = base_values {
        if i64::try_from(base.len()) != Ok(targets) {
            return Err(node.refuse(format!("{} base values for {targets} targets", base.len())));
        }
        let base: Vec<f32> = base.iter().map(|&value| value as f32).collect();
        let base = node.constant(Tensor::from_elements(&[base.len()], &base)?);
        scores = node.emit_one(Binary { function: BinaryFunction::Add }, vec![scores, base])?;
    }
    Ok(vec![transform.emit(node, scores)?])
}
