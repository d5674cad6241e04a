//! Probabilities of classes from those of pairs: support vector classifiers, as libsvm couples them (Wu, Lin and Weng:
//! Probability Estimates for Multi-class Classification by Pairwise Coupling, 2004, second approach).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::windows::value_error;
use crate::ops::{
    AxisKind, Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError,
    VectorClass, each, loops, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Of each row of `x: f32 [n, classes * (classes - 1) / 2]`, the probabilities of the first of two classes for the
    /// pairs (0, 1), (0, 2), .., (1, 2), ..: those of the classes, `f32 [n, classes]`.
    pub struct PairwiseProbability revision 1 {
        /// How many classes there are.
        1 since 1 => classes: i64,
    }
}

/// Most classes: the work grows with their square.
const MOST_CLASSES: i64 = 1 << 12;

/// Rounds after which the estimates are taken as they are.
const ROUNDS: usize = 100;

impl PairwiseProbability {
    fn classes(&self) -> Result<usize, TypeError> {
        if (2..=MOST_CLASSES).contains(&self.classes) {
            return Ok(self.classes as usize);
        }
        Err(value_error("`classes`", self.classes, format!("2 to {MOST_CLASSES}")))
    }
}

/// Probabilities of `classes` classes from those of pairs, in f32 as ONNX Runtime has it.
fn coupled(pairs: &[f32], classes: usize) -> Vec<f32> {
    let mut pair = vec![0f32; classes * classes];
    let mut given = pairs.iter();
    for first in 0..classes {
        for (second, &probability) in (first + 1..classes).zip(&mut given) {
            pair[first * classes + second] = probability;
            pair[second * classes + first] = 1.0 - probability;
        }
    }
    let mut q = vec![0f32; classes * classes];
    for row in 0..classes {
        for column in 0..classes {
            q[row * classes + column] = if row == column {
                (0..classes).filter(|&other| other != row).map(|other| pair[other * classes + row].powi(2)).sum()
            } else {
                -pair[column * classes + row] * pair[row * classes + column]
            };
        }
    }
    let mut estimates = vec![1.0 / classes as f32; classes];
    let tolerance = 0.005 / classes as f32;
    for _ in 0..ROUNDS {
        let mut qp: Vec<f32> =
            q.chunks(classes).map(|row| row.iter().zip(&estimates).map(|(one, other)| one * other).sum()).collect();
        let mut pqp: f32 = qp.iter().zip(&estimates).map(|(one, other)| one * other).sum();
        let error = qp.iter().fold(0f32, |largest, one| largest.max((one - pqp).abs()));
        if error < tolerance {
            break;
        }
        for class in 0..classes {
            let own = q[class * classes + class];
            let difference = (-qp[class] + pqp) / own;
            estimates[class] += difference;
            pqp = (pqp + difference * (difference * own + 2.0 * qp[class])) / (1.0 + difference).powi(2);
            for other in 0..classes {
                qp[other] = (qp[other] + difference * q[class * classes + other]) / (1.0 + difference);
                estimates[other] /= 1.0 + difference;
            }
        }
    }
    estimates
}

impl Operator for PairwiseProbability {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (found, shape) = tensor_operand(inputs, 0)?;
        if found != DType::F32 {
            return Err(TypeError::ElementType { operand: 0, expected: "f32".to_string(), found });
        }
        let classes = self.classes()? as i64;
        let shape = match shape.dims() {
            None => Shape::Unranked,
            Some([rows, pairs]) => {
                context.require_equal(pairs, &Dim::known(classes * (classes - 1) / 2), "pairs of classes")?;
                vec![rows.clone(), Dim::known(classes)].into()
            }
            Some(dims) => return Err(TypeError::Rank { operand: 0, expected: "2".to_string(), found: dims.len() }),
        };
        Ok(vec![Fact::tensor(DType::F32, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let x = tensor(inputs, 0)?;
        let classes = self.classes()?;
        let pairs = classes * (classes - 1) / 2;
        let [rows, found] = *x.shape() else {
            return Err(TypeError::Rank { operand: 0, expected: "2".to_string(), found: x.rank() }.into());
        };
        if found != pairs {
            let (left, right) = (found.to_string(), pairs.to_string());
            return Err(TypeError::Dimension { subject: "pairs of classes".to_string(), left, right }.into());
        }
        let all = x.elements::<f32>()?.chunks_exact(pairs).flat_map(|row| coupled(row, classes));
        Ok(vec![Tensor::from_elements(&[rows, classes], &all.collect::<Vec<f32>>())?.into()])
    }
}

impl Computes for PairwiseProbability {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::along(facts, &[1], AxisKind::Serial, true)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        // How often it goes on depends on the data.
        each(&(facts.elements(0) * facts.fresh("rounds")), &[(VectorClass::Arithmetic, 4)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;

    #[test]
    fn classes_share_what_their_pairs_have() {
        let coupled = |classes: i64, pairs: &[f32]| {
            let x = Tensor::from_elements(&[1, pairs.len()], pairs).unwrap();
            run(&PairwiseProbability { classes }, &[x]).map(|found| found.elements::<f32>().unwrap().to_vec())
        };
        let close = |found: Vec<f32>, expected: &[f32]| {
            assert_eq!(found.len(), expected.len());
            assert!(
                found.iter().zip(expected).all(|(one, two)| (one - two).abs() < 1e-6),
                "{found:?}, not {expected:?}"
            );
        };
        close(coupled(2, &[0.75]).unwrap(), &[0.75, 0.25]);
        close(coupled(3, &[0.5, 0.5, 0.5]).unwrap(), &[1.0 / 3.0; 3]);
        let three = coupled(3, &[0.9, 0.8, 0.4]).unwrap();
        assert!(
            (three.iter().sum::<f32>() - 1.0).abs() < 1e-6 && three[0] > three[2] && three[2] > three[1],
            "{three:?}"
        );
        assert_eq!(coupled(3, &[0.5]).unwrap_err().to_string(), "pairs of classes: 1 does not fit 3");
    }
}
