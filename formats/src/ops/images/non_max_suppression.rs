//! Choosing boxes that do not overlap: ONNX `NonMaxSuppression` (opsets 10, 11).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::single::{check_single, single_float, single_integer};
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Operands: boxes `[n, s, 4]`, scores `[n, c, s]`, most boxes of a class (i64, absent: 0), threshold of the
    /// overlap (f32, absent: 0), threshold of the score (f32) or absent. Result: `i64 [chosen, 3]` of batch, class, box.
    ///
    /// In each batch and class boxes are taken from the highest score down (the lower index first where equal), unless
    /// intersection over union with one already taken is above the threshold.
    pub struct NonMaxSuppression revision 1 {
        /// Boxes are x and y of the centre, width, height; otherwise y, x of two opposite corners.
        1 since 1 => centers: bool,
    }
}

/// A box by its corners.
struct Corners {
    left: f32,
    right: f32,
    top: f32,
    bottom: f32,
}

impl Corners {
    fn new(coordinates: &[f32; 4], centers: bool) -> Corners {
        let &[a, b, c, d] = coordinates;
        if centers {
            Corners { left: a - c / 2.0, right: a + c / 2.0, top: b - d / 2.0, bottom: b + d / 2.0 }
        } else {
            Corners { left: b.min(d), right: b.max(d), top: a.min(c), bottom: a.max(c) }
        }
    }

    fn area(&self) -> f32 {
        (self.right - self.left) * (self.bottom - self.top)
    }

    fn overlaps(&self, other: &Corners, threshold: f32) -> bool {
        let width = self.right.min(other.right) - self.left.max(other.left);
        let height = self.bottom.min(other.bottom) - self.top.max(other.top);
        if width <= 0.0 || height <= 0.0 {
            return false;
        }
        let (intersection, area, other_area) = (width * height, self.area(), other.area());
        let union = area + other_area - intersection;
        if area <= 0.0 || other_area <= 0.0 || union <= 0.0 {
            return false;
        }
        intersection / union > threshold
    }
}

/// Indices of the boxes taken for one class.
fn choose(boxes: &[Corners], scores: &[f32], most: usize, overlap: f32, least_score: Option<f32>) -> Vec<usize> {
    let passes = |index: &usize| least_score.is_none_or(|least| scores[*index] > least);
    let mut candidates: Vec<usize> = (0..boxes.len()).filter(passes).collect();
    // Adding 0.0 makes one zero of two; the sort is stable, so that equal scores stay in the order of the boxes.
    candidates.sort_by(|&left, &right| (scores[right] + 0.0).total_cmp(&(scores[left] + 0.0)));
    let mut chosen: Vec<usize> = Vec::new();
    for candidate in candidates {
        if chosen.len() >= most {
            break;
        }
        if !chosen.iter().any(|&taken| boxes[candidate].overlaps(&boxes[taken], overlap)) {
            chosen.push(candidate);
        }
    }
    chosen
}

impl Operator for NonMaxSuppression {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let mut dims = [None, None];
        for (operand, dims) in dims.iter_mut().enumerate() {
            let (found, shape) = tensor_operand(inputs, operand)?;
            if found != DType::F32 {
                return Err(TypeError::ElementType { operand, expected: "f32".to_string(), found });
            }
            *dims = shape.dims();
            if let Some(found) = shape.rank().filter(|&rank| rank != 3) {
                return Err(TypeError::Rank { operand, expected: "3".to_string(), found });
            }
        }
        if let Some(boxes) = dims[0] {
            context.require_equal(&boxes[2], &Dim::known(4), "coordinates of a box")?;
        }
        if let [Some(boxes), Some(scores)] = dims {
            context.require_equal(&boxes[0], &scores[0], "batches of boxes and of scores")?;
            context.require_equal(&boxes[1], &scores[2], "numbers of boxes and of scores")?;
        }
        check_single(inputs, 2, &[DType::I64])?;
        check_single(inputs, 3, &[DType::F32])?;
        check_single(inputs, 4, &[DType::F32])?;
        Ok(vec![Fact::tensor(DType::I64, vec![context.fresh("chosen"), Dim::known(3)])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (boxes, scores) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let (&[batches, count, 4], &[score_batches, classes, score_count]) = (boxes.shape(), scores.shape()) else {
            return Err(shapes(boxes, scores));
        };
        if batches != score_batches || count != score_count {
            return Err(shapes(boxes, scores));
        }
        let most = usize::try_from(single_integer(inputs, 2)?.unwrap_or(0)).unwrap_or(0);
        let overlap = single_float(inputs, 3)?.unwrap_or(0.0) as f32;
        let least_score = single_float(inputs, 4)?.map(|least| least as f32);
        let (coordinates, _) = boxes.elements::<f32>()?.as_chunks::<4>();
        let all_scores = scores.elements::<f32>()?;
        let mut chosen = Vec::new();
        if count > 0 {
            for batch in 0..batches {
                let boxes = &coordinates[batch * count..(batch + 1) * count];
                let boxes: Vec<Corners> = boxes.iter().map(|corners| Corners::new(corners, self.centers)).collect();
                for class in 0..classes {
                    let start = (batch * classes + class) * count;
                    let taken = choose(&boxes, &all_scores[start..start + count], most, overlap, least_score);
                    chosen.extend(taken.into_iter().flat_map(|index| [batch as i64, class as i64, index as i64]));
                }
            }
        }
        Ok(vec![Tensor::from_elements(&[chosen.len() / 3, 3], &chosen)?.into()])
    }
}

impl Serial for NonMaxSuppression {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        // Each box is compared with those that were taken.
        let taken = facts.result(0).and_then(|dims| dims.first().cloned()).unwrap_or_else(|| facts.fresh("taken"));
        let scores = facts.elements(1);
        [
            each(&scores, &[(VectorClass::Arithmetic, 1)]),
            each(&(scores * taken), &[(VectorClass::Arithmetic, 8), (VectorClass::Divide, 1)]),
        ]
        .concat()
    }
}

fn shapes(boxes: &Tensor, scores: &Tensor) -> ReferenceError {
    TypeError::Dimension {
        subject: "boxes [n, s, 4] and scores [n, c, s]".to_string(),
        left: format!("{:?}", boxes.shape()),
        right: format!("{:?}", scores.shape()),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;

    /// The boxes of the examples of the ONNX page, as corners.
    const BOXES: [f32; 24] = [
        0.0, 0.0, 1.0, 1.0, 0.0, 0.1, 1.0, 1.1, 0.0, -0.1, 1.0, 0.9, 0.0, 10.0, 1.0, 11.0, 0.0, 10.1, 1.0, 11.1, 0.0,
        100.0, 1.0, 101.0,
    ];
    const SCORES: [f32; 6] = [0.9, 0.75, 0.6, 0.95, 0.5, 0.3];

    fn run(centers: bool, boxes: &[f32], scores: &[f32], limits: (i64, f32, Option<f32>)) -> Vec<i64> {
        let count = boxes.len() / 4;
        let inputs = [
            Some(Tensor::from_elements(&[1, count, 4], boxes).unwrap().into()),
            Some(Tensor::from_elements(&[1, scores.len() / count, count], scores).unwrap().into()),
            Some(Tensor::vector_i64(&[limits.0]).into()),
            Some(Tensor::scalar(limits.1).into()),
            limits.2.map(|least| Tensor::scalar(least).into()),
        ];
        let mut blocks = NoBlocks;
        let operator = NonMaxSuppression { centers };
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks)).unwrap();
        results[0].as_tensor().unwrap().elements::<i64>().unwrap().to_vec()
    }

    #[test]
    fn overlapping_boxes_are_left_out() {
        assert_eq!(run(false, &BOXES, &SCORES, (3, 0.5, Some(0.0))), [0, 0, 3, 0, 0, 0, 0, 0, 5]);
        assert_eq!(run(false, &BOXES, &SCORES, (3, 0.5, Some(0.4))), [0, 0, 3, 0, 0, 0]);
        assert_eq!(run(false, &BOXES, &SCORES, (1, 0.5, None)), [0, 0, 3]);
        assert_eq!(run(false, &BOXES, &SCORES, (0, 0.5, None)), [0i64; 0]);
        assert_eq!(run(false, &BOXES, &SCORES, (-1, 0.5, None)), [0i64; 0]);
        let two = [SCORES, SCORES].concat();
        assert_eq!(run(false, &BOXES, &two, (1, 0.5, None)), [0, 0, 3, 0, 1, 3]);
    }

    #[test]
    fn corners_come_in_any_order_and_centers_too() {
        let flipped: Vec<f32> = BOXES.as_chunks::<4>().0.iter().flat_map(|&[a, b, c, d]| [c, d, a, b]).collect();
        assert_eq!(run(false, &flipped, &SCORES, (3, 0.5, Some(0.0))), [0, 0, 3, 0, 0, 0, 0, 0, 5]);
        let centers: Vec<f32> = (BOXES.as_chunks::<4>().0.iter())
            .flat_map(|&[y, x, bottom, right]| [(x + right) / 2.0, (y + bottom) / 2.0, right - x, bottom - y])
            .collect();
        assert_eq!(run(true, &centers, &SCORES, (3, 0.5, Some(0.0))), [0, 0, 3, 0, 0, 0, 0, 0, 5]);
    }

    #[test]
    fn equal_scores_keep_their_order_and_equal_overlap_is_kept() {
        let pair = [0.0, 0.0, 1.0, 2.0, 0.0, 1.0, 1.0, 3.0];
        assert_eq!(run(false, &pair, &[0.5, 0.5], (2, 1.0 / 3.0, None)), [0, 0, 0, 0, 0, 1]);
        assert_eq!(run(false, &pair, &[-0.0, 0.0], (2, 0.3, None)), [0, 0, 0]);
        assert_eq!(run(false, &[0.0; 4], &[f32::NAN], (2, 0.3, Some(0.0))), [0i64; 0]);
    }

    #[test]
    fn numbers_of_boxes_must_agree() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("nms", &ranges, &mut blocks);
        let float = |dims: [&str; 2], last: i64| {
            Fact::tensor(DType::F32, vec![Dim::symbol(dims[0]), Dim::symbol(dims[1]), Dim::known(last)])
        };
        let inputs = [Some(float(["n", "s"], 4)), Some(float(["n", "c"], 9))];
        let facts = NonMaxSuppression { centers: false }.infer(&inputs, &mut context).unwrap();
        assert_eq!(facts, [Fact::tensor(DType::I64, vec![Dim::symbol("nms.chosen"), Dim::known(3)])]);
        assert_eq!(context.obligations.len(), 1);
        let inputs = [Some(float(["n", "s"], 5)), Some(float(["n", "c"], 9))];
        assert_eq!(
            NonMaxSuppression { centers: false }.infer(&inputs, &mut context).unwrap_err().to_string(),
            "coordinates of a box: 5 does not fit 4"
        );
    }
}
