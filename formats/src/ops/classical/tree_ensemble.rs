//! Decision trees: `TreeEnsemble` (5) and `TreeEnsembleRegressor` (1, 3) of `ai.onnx.ml`, in one form.
//!
//! Leaves are apart from nodes: a child c below 0 is leaf -1 - c. Set membership is a chain of nodes that test equality.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::single::{FLOATS, from_f64, to_f64};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    integers, loops, optional, optional_tensor, required, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::tensor::filled;
use crate::value::Value;

attributes! {
    /// Leads each row of `x: [n, f]` through every tree and gathers the votes of the leaves: `[n, targets]`, of the
    /// type of the weights. Operands after x: roots `i64 [t]`; of k nodes features `i64 [k]`, tests `u8 [k]` (numbers
    /// of [`NodeTest`]), thresholds `[k]`, children `i64 [k, 2]` (true, false), `bool [k]` where NaN passes the test or
    /// absent; of l leaves first votes `i64 [l + 1]`; of v votes targets `i64 [v]` and weights `[v]`.
    pub struct TreeEnsemble revision 1 {
        /// Number of targets.
        1 since 1 => targets: i64,
        /// What becomes of several votes for a target.
        2 since 1 => aggregate: Aggregate,
    }
}

/// How [`TreeEnsemble`] combines votes; a target without votes is 0.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    strum::IntoStaticStr,
    strum::EnumString,
    strum::FromRepr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Aggregate {
    /// Sum over number of trees.
    Average = 0,
    /// Sum.
    Sum = 1,
    /// Least.
    Min = 2,
    /// Greatest.
    Max = 3,
}
impl Keyword for Aggregate {}

/// Tests of nodes, with ONNX's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::FromRepr)]
#[repr(u8)]
pub enum NodeTest {
    /// At most the threshold.
    LessOrEqual = 0,
    /// Below the threshold.
    Less = 1,
    /// At least the threshold.
    GreaterOrEqual = 2,
    /// Above the threshold.
    Greater = 3,
    /// The threshold itself.
    Equal = 4,
    /// Anything but the threshold.
    NotEqual = 5,
}

impl NodeTest {
    fn holds(self, x: f64, threshold: f64) -> bool {
        match self {
            NodeTest::LessOrEqual => x <= threshold,
            NodeTest::Less => x < threshold,
            NodeTest::GreaterOrEqual => x >= threshold,
            NodeTest::Greater => x > threshold,
            NodeTest::Equal => x == threshold,
            NodeTest::NotEqual => x != threshold,
        }
    }
}

struct Node {
    feature: usize,
    test: NodeTest,
    threshold: f64,
    children: [i64; 2],
    missing_passes: bool,
}

/// The trees, with every index checked.
struct Trees {
    roots: Vec<i64>,
    nodes: Vec<Node>,
    /// Votes of each leaf: target and weight.
    leaves: Vec<Vec<(usize, f64)>>,
}

fn out_of_range(subject: &str, found: i64, limit: usize) -> ReferenceError {
    ReferenceError::OutOfRange { subject: subject.to_string(), found, range: format!("0 to {limit}, excluded") }
}

fn index(subject: &str, found: i64, limit: usize) -> Result<usize, ReferenceError> {
    let index = usize::try_from(found).ok().filter(|&index| index < limit);
    index.ok_or_else(|| out_of_range(subject, found, limit))
}

fn same_length(subject: &str, found: usize, expected: usize) -> Result<(), ReferenceError> {
    if found == expected {
        return Ok(());
    }
    let (left, right) = (found.to_string(), expected.to_string());
    Err(TypeError::Dimension { subject: subject.to_string(), left, right }.into())
}

impl Trees {
    fn new(inputs: &[Option<Value>], features: usize, targets: usize) -> Result<Trees, ReferenceError> {
        let roots = integers(inputs, 1)?;
        let node_features = integers(inputs, 2)?;
        let count = node_features.len();
        let (tests, thresholds, children) =
            (integers(inputs, 3)?, to_f64(tensor(inputs, 4)?, 4)?, integers(inputs, 5)?);
        let missing = optional_tensor(inputs, 6)?.map(Tensor::bools).transpose()?;
        let missing = missing.unwrap_or_else(|| vec![false; count]);
        let (starts, vote_targets) = (integers(inputs, 7)?, integers(inputs, 8)?);
        let weights = to_f64(tensor(inputs, 9)?, 9)?;
        let (children, rest) = children.as_chunks::<2>();
        for found in [tests.len(), thresholds.len(), children.len(), missing.len(), count + rest.len()] {
            same_length("nodes of a tree ensemble", found, count)?;
        }
        same_length("votes of a tree ensemble", vote_targets.len(), weights.len())?;
        let votes: Vec<(usize, f64)> = (vote_targets.iter().zip(&weights))
            .map(|(&target, &weight)| Ok((index("target of a vote", target, targets)?, weight)))
            .collect::<Result<_, ReferenceError>>()?;
        let mut leaves = Vec::with_capacity(starts.len());
        for pair in starts.array_windows::<2>() {
            let [start, end] = pair.map(|start| usize::try_from(start).unwrap_or(usize::MAX));
            let votes =
                votes.get(start..end).ok_or_else(|| out_of_range("votes of a leaf", pair[1], votes.len() + 1))?;
            leaves.push(votes.to_vec());
        }
        let check_child = |child: i64| match child {
            0.. => index("node", child, count),
            _ => index("leaf", -1 - child, leaves.len()),
        };
        roots.iter().try_for_each(|&root| check_child(root).map(|_| ()))?;
        let mut nodes = Vec::with_capacity(count);
        for at in 0..count {
            children[at].iter().try_for_each(|&child| check_child(child).map(|_| ()))?;
            let test = u8::try_from(tests[at]).ok().and_then(NodeTest::from_repr);
            nodes.push(Node {
                feature: index("feature of a node", node_features[at], features)?,
                test: test.ok_or_else(|| out_of_range("test of a node", tests[at], 6))?,
                threshold: thresholds[at],
                children: children[at],
                missing_passes: missing[at],
            });
        }
        Ok(Trees { roots, nodes, leaves })
    }

    /// The votes of the leaf where a row arrives.
    fn votes(&self, root: i64, row: &[f64]) -> Result<&[(usize, f64)], ReferenceError> {
        let mut at = root;
        // A tree has no cycles: no path is longer than the number of nodes.
        for _ in 0..=self.nodes.len() {
            let Ok(node) = usize::try_from(at) else { return Ok(&self.leaves[(-1 - at) as usize]) };
            let node = &self.nodes[node];
            let x = row[node.feature];
            let passes = node.test.holds(x, node.threshold) || (node.missing_passes && x.is_nan());
            at = node.children[usize::from(!passes)];
        }
        Err(TypeError::Unsupported("a decision tree with a cycle".to_string()).into())
    }
}

impl Operator for TreeEnsemble {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let expected = [DType::I64, DType::I64, DType::U8];
        for (operand, expected) in (1..).zip(expected).chain([(5, DType::I64), (7, DType::I64), (8, DType::I64)]) {
            let (found, _) = tensor_operand(inputs, operand)?;
            if found != expected {
                return Err(TypeError::ElementType { operand, expected: expected.to_string(), found });
            }
        }
        for operand in [0, 4, 9] {
            let (found, _) = tensor_operand(inputs, operand)?;
            if !FLOATS.contains(&found) {
                let expected = "a floating-point type of 16 bits or more".to_string();
                return Err(TypeError::ElementType { operand, expected, found });
            }
        }
        if optional(inputs, 6).is_some_and(|missing| missing.dtype() != Some(DType::Bool)) {
            let found = required(inputs, 6)?.kind.to_string();
            return Err(TypeError::Kind { operand: 6, expected: "a bool tensor", found });
        }
        let rows = match tensor_operand(inputs, 0)?.1 {
            Shape::Unranked => context.fresh("rows"),
            Shape::Ranked(dims) => match dims.as_slice() {
                [rows, _] => rows.clone(),
                _ => return Err(TypeError::Rank { operand: 0, expected: "2".to_string(), found: dims.len() }),
            },
        };
        if self.targets < 1 {
            let expected = "1 or more".to_string();
            let found = self.targets.to_string();
            return Err(TypeError::Value { subject: "targets".to_string(), found, expected });
        }
        Ok(vec![Fact::tensor(tensor_operand(inputs, 9)?.0, vec![rows, Dim::known(self.targets)])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let x = tensor(inputs, 0)?;
        let &[rows, features] = x.shape() else {
            return Err(TypeError::Rank { operand: 0, expected: "2".to_string(), found: x.rank() }.into());
        };
        let targets = usize::try_from(self.targets).unwrap_or(0);
        let trees = Trees::new(inputs, features, targets)?;
        let dtype = tensor(inputs, 9)?.dtype();
        // Refuses sizes that cannot be, before anything of that size is computed.
        let count = Tensor::zeros(dtype, &[rows, targets])?.count();
        let elements = to_f64(x, 0)?;
        let mut scores: Vec<Option<f64>> = filled(None, count)?;
        if features > 0 && targets > 0 {
            for (row, scores) in elements.chunks_exact(features).zip(scores.chunks_exact_mut(targets)) {
                for &root in &trees.roots {
                    for &(target, weight) in trees.votes(root, row)? {
                        scores[target] = Some(match (scores[target], self.aggregate) {
                            (None, _) => weight,
                            (Some(score), Aggregate::Sum | Aggregate::Average) => score + weight,
                            (Some(score), Aggregate::Min) => score.min(weight),
                            (Some(score), Aggregate::Max) => score.max(weight),
                        });
                    }
                }
            }
        }
        let divisor = if self.aggregate == Aggregate::Average { trees.roots.len().max(1) as f64 } else { 1.0 };
        let scores: Vec<f64> = scores.into_iter().map(|score| score.unwrap_or(0.0) / divisor).collect();
        Ok(vec![from_f64(dtype, &[rows, targets], &scores)?.into()])
    }
}

impl Computes for TreeEnsemble {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some([rows, _]) = facts.dims(0) else { return loops::serial(facts) };
        let nest = loops::Loops::new(facts).parallel(rows, [loops::operand(0, 0), loops::result(0, 0)]);
        vec![nest.serial(&facts.elements(1)).space()]
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        // How deep a row falls depends on the row.
        each(&facts.fresh("visits"), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run_optional;

    /// One tree: feature 0 <= 1 ? (feature 1 == 5 ? leaf 0 : leaf 1) : leaf 2; and one that is leaf 2 alone.
    fn operands(rows: &[[f32; 2]], children: &[i64]) -> Vec<Option<Tensor>> {
        let x = Tensor::from_elements(&[rows.len(), 2], rows.as_flattened()).unwrap();
        let vector = Tensor::vector_i64;
        let tensors = [
            x,
            vector(&[0, -3]),
            vector(&[0, 1]),
            Tensor::from_elements(&[2], &[0u8, 4]).unwrap(),
            Tensor::from_elements(&[2], &[1.0f32, 5.0]).unwrap(),
            Tensor::from_elements(&[2, 2], children).unwrap(),
            Tensor::from_bools(&[2], &[false, true]).unwrap(),
            vector(&[0, 2, 3, 4]),
            vector(&[0, 1, 0, 1]),
            Tensor::from_elements(&[4], &[1.0f32, 2.0, 4.0, 8.0]).unwrap(),
        ];
        tensors.into_iter().map(Some).collect()
    }

    const CHILDREN: [i64; 4] = [1, -3, -1, -2];

    fn scores(aggregate: Aggregate, rows: &[[f32; 2]]) -> Vec<f32> {
        let operator = TreeEnsemble { targets: 2, aggregate };
        run_optional(&operator, &operands(rows, &CHILDREN)).unwrap().elements::<f32>().unwrap().to_vec()
    }

    #[test]
    fn votes_are_gathered() {
        let rows = [[0.0, 5.0], [0.0, 6.0], [2.0, 5.0], [f32::NAN, 5.0], [0.0, f32::NAN]];
        let sums = [[1.0, 10.0], [4.0, 8.0], [0.0, 16.0], [0.0, 16.0], [1.0, 10.0]];
        assert_eq!(scores(Aggregate::Sum, &rows), sums.as_flattened());
        assert_eq!(scores(Aggregate::Average, &rows[..1]), [0.5, 5.0]);
        assert_eq!(scores(Aggregate::Min, &rows[..2]), [1.0, 2.0, 4.0, 8.0]);
        assert_eq!(scores(Aggregate::Max, &rows[..2]), [1.0, 8.0, 4.0, 8.0]);
    }

    #[test]
    fn indices_are_checked_and_cycles_found() {
        let operator = TreeEnsemble { targets: 2, aggregate: Aggregate::Sum };
        for children in [[2, -1, -1, -1], [-4, -1, -1, -1], [0, 0, -1, -1], [i64::MIN, -1, -1, -1]] {
            assert!(run_optional(&operator, &operands(&[[0.0, 0.0]], &children)).is_err(), "{children:?}");
        }
        let narrow = TreeEnsemble { targets: 1, aggregate: Aggregate::Sum };
        assert_eq!(
            run_optional(&narrow, &operands(&[[0.0, 0.0]], &CHILDREN)).unwrap_err().to_string(),
            "target of a vote is 1, outside 0 to 1, excluded"
        );
    }
}
