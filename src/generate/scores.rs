//! Scores of the tokens that may come next, where the pass that computed them has left them.

use ipuc_formats::dtype::DType;
use ipuc_formats::element::{bf16, f16};
use ipuc_formats::tensor::{Tensor, room};

/// The score of each token of the vocabulary behind one position.
#[derive(Debug, Clone)]
pub(super) struct Scores {
    /// Of f32: `[1, positions, vocabulary]`.
    all: Tensor,
    place: usize,
    vocabulary: usize,
}

impl Scores {
    /// The scores behind each position of a tensor `[1, positions, vocabulary]`.
    ///
    /// # Errors
    /// What is wrong with the tensor.
    pub(super) fn of(tensor: &Tensor) -> Result<Vec<Scores>, String> {
        let &[1, positions, vocabulary] = tensor.shape() else {
            return Err(format!("its scores have the shape {:?}", tensor.shape()));
        };
        let all = in_f32(tensor).ok_or_else(|| format!("its scores are {}", tensor.dtype()))?;
        if positions == 0 || vocabulary == 0 {
            return Err("it gives no scores".to_string());
        }
        let mut scores = room(positions).map_err(|error| error.to_string())?;
        scores.extend((0..positions).map(|at| Scores { all: all.clone(), place: at * vocabulary, vocabulary }));
        Ok(scores)
    }

    /// One a token.
    pub(super) fn values(&self) -> &[f32] {
        let all = self.all.elements::<f32>().unwrap_or_default();
        all.get(self.place..self.place + self.vocabulary).unwrap_or_default()
    }
}

/// The tensor itself where it is of f32; `None` where it is of no floats.
fn in_f32(tensor: &Tensor) -> Option<Tensor> {
    let widened: Vec<f32> = match tensor.dtype() {
        DType::F32 => return Some(tensor.clone()),
        DType::F16 => tensor.elements::<f16>().ok()?.iter().map(|score| score.to_f32()).collect(),
        DType::BF16 => tensor.elements::<bf16>().ok()?.iter().map(|score| score.to_f32()).collect(),
        _ => return None,
    };
    Tensor::from_vec(tensor.shape(), widened).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_position_has_its_scores() {
        let halves = [1.0f32, 2.0, 3.0, 4.0].map(f16::from_f32);
        for tensor in [
            Tensor::from_elements(&[1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap(),
            Tensor::from_elements(&[1, 2, 2], &halves).unwrap(),
        ] {
            let scores = Scores::of(&tensor).unwrap();
            assert_eq!(scores.iter().map(Scores::values).collect::<Vec<_>>(), [[1.0, 2.0], [3.0, 4.0]]);
        }
    }

    #[test]
    fn what_has_no_scores_is_told() {
        for (tensor, expected) in [
            (Tensor::from_elements(&[2, 2], &[1.0f32; 4]).unwrap(), "its scores have the shape [2, 2]"),
            (Tensor::from_elements(&[1, 1, 2], &[1i64; 2]).unwrap(), "its scores are i64"),
            (Tensor::from_elements(&[1, 0, 2], &[1.0f32; 0]).unwrap(), "it gives no scores"),
        ] {
            assert_eq!(Scores::of(&tensor).unwrap_err(), expected);
        }
    }
}
