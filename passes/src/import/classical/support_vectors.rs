//! Support vectors of the domain `ai.onnx.ml`: `SVMRegressor` and `SVMClassifier` (1), as products with kernels.
//!
//! A classifier compares each pair of classes. What the label follows from are votes, as in libsvm and ONNX Runtime, also where
//! there are probabilities.

use crate::import::classical::traditional::{PostTransform, class_labels, top_label};
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::attribute::Keyword;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    ActivationFunction, Binary, BinaryFunction, Clamp, Compare, CompareRelation, Concat, PairwiseProbability, Reduce,
    ReduceFunction, Select, Unary, UnaryFunction,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "ai.onnx.ml", name, since: 1, lower }
}

/// Support vectors.
pub const ROWS: &[Row] = &[row("SVMClassifier", classifier), row("SVMRegressor", regressor)];

/// Spellings of `kernel_type`.
#[derive(Debug, Clone, Copy, PartialEq, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "UPPERCASE")]
enum KernelType {
    Linear,
    Poly,
    Rbf,
    Sigmoid,
}
impl Keyword for KernelType {}

/// `sum_j coefficients[j] * kernel(x, support vector j) + rho`, the sign of it for one class.
fn regressor(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let x = node.cast(x, DType::F32)?;
    let coefficients = required_floats(node, "coefficients")?;
    let rho = required_floats(node, "rho")?;
    let &[rho] = &rho[..] else { return Err(node.refuse(format!("{} values of `rho`", rho.len()))) };
    let supports = node.int("n_supports")?.unwrap_or(0);
    let kernel = node.keyword("kernel_type")?.unwrap_or(KernelType::Linear);
    let parameters = node.floats("kernel_params")?.unwrap_or_default();
    let vectors = node.floats("support_vectors")?.unwrap_or_default();
    let one_class = node.flag("one_class", false)?;
    // "The total number of regression targets, 1 if not defined": one score comes out.
    if node.int("n_targets")?.unwrap_or(1) != 1 {
        return Err(node.refuse("more than one target"));
    }
    if node.keyword("post_transform")?.unwrap_or(PostTransform::None) != PostTransform::None {
        return Err(node.refuse("attribute `post_transform` of support vectors"));
    }
    let kernels = if supports > 0 {
        let count = usize::try_from(supports).ok().filter(|count| vectors.len().is_multiple_of(*count));
        let count = count.filter(|&count| count == coefficients.len());
        let count = count.ok_or_else(|| node.refuse("support vectors whose lists have other lengths"))?;
        let vectors = Tensor::from_elements(&[count, vectors.len() / count], &vectors)?;
        kernels(node, x, vectors, kernel, &parameters)?
    } else {
        x
    };
    let weights = node.constant(Tensor::from_elements(&[coefficients.len(), 1], &coefficients)?);
    let sums = node.product(kernels, weights, false)?;
    let rho = node.scalar(DType::F32, rho.into())?;
    let scores = node.plus(sums, rho)?;
    if !one_class {
        return Ok(vec![scores]);
    }
    let [zero, one, minus] = [0.0, 1.0, -1.0].map(|value| node.scalar(DType::F32, value));
    let positive = node.emit_one(Compare { relation: CompareRelation::Greater }, vec![scores, zero?])?;
    node.emit(Select {}, vec![positive, one?, minus?])
}

fn required_floats(node: &mut Lowering<'_, '_>, name: &str) -> Result<Vec<f32>, LowerError> {
    node.floats(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()))
}

/// The kernel of each row of `x: [n, f]` and each of `vectors: [s, f]`: `[n, s]`. The parameters are gamma, coef0, degree.
fn kernels(
    node: &mut Lowering<'_, '_>,
    x: Operand,
    vectors: Tensor,
    kernel: KernelType,
    parameters: &[f32],
) -> Result<Operand, LowerError> {
    let [gamma, offset, degree] = match *parameters {
        [gamma, offset, degree] => [gamma, offset, degree],
        [] if kernel == KernelType::Linear => [0.0; 3],
        _ => return Err(node.refuse(format!("{} values of `kernel_params`", parameters.len()))),
    };
    let vectors = node.constant(vectors);
    if kernel == KernelType::Rbf {
        let (rows, others) = (node.unsqueezed(x, &[1])?, node.unsqueezed(vectors, &[0])?);
        let difference = node.binary(BinaryFunction::Sub, rows, others)?;
        let axis = node.integers(&[2]);
        let squares = Reduce { function: ReduceFunction::SumSquare, keep_axes: false, keep_without_axes: false };
        let distance = node.emit_one(squares, vec![difference, axis])?;
        let exponent = node.times(distance, -gamma)?;
        return node.emit_one(Unary { function: UnaryFunction::Exp }, vec![exponent]);
    }
    let products = node.product(x, vectors, true)?;
    if kernel == KernelType::Linear {
        return Ok(products);
    }
    let scaled = node.times(products, gamma)?;
    let offset = node.scalar(DType::F32, offset.into())?;
    let shifted = node.plus(scaled, offset)?;
    if kernel == KernelType::Sigmoid {
        return node.emit_one(Unary { function: UnaryFunction::Tanh }, vec![shifted]);
    }
    let degree = node.scalar(DType::F32, degree.trunc().into())?;
    node.emit_one(Binary { function: BinaryFunction::Pow }, vec![shifted, degree])
}

/// Classes of a classifier in pairs.
struct Pairs {
    classes: usize,
    /// The first and the second class of each: (0, 1), (0, 2), .., (1, 2), ..
    members: Vec<(usize, usize)>,
}

impl Pairs {
    fn of(classes: usize) -> Pairs {
        let members = (0..classes).flat_map(|first| (first + 1..classes).map(move |second| (first, second)));
        Pairs { classes, members: members.collect() }
    }

    /// Weights of support vectors for the pairs, `[vectors, pairs]`, from the `classes - 1` rows of coefficients that
    /// libsvm stores: those of a class for each other one.
    fn weights(&self, vectors_per_class: &[usize], coefficients: &[f32]) -> Result<Tensor, LowerError> {
        let count: usize = vectors_per_class.iter().sum();
        let mut weights = vec![0f32; count * self.members.len()];
        let starts: Vec<usize> = vectors_per_class
            .iter()
            .scan(0, |end, &vectors| {
                let start = *end;
                *end += vectors;
                Some(start)
            })
            .collect();
        for (pair, &(first, second)) in self.members.iter().enumerate() {
            for (class, row) in [(first, second - 1), (second, first)] {
                for vector in starts[class]..starts[class] + vectors_per_class[class] {
                    weights[vector * self.members.len() + pair] = coefficients[row * count + vector];
                }
            }
        }
        Ok(Tensor::from_elements(&[count, self.members.len()], &weights)?)
    }

    /// Votes `[n, classes]` of scores `[n, pairs]`: a positive one is for the first class of its pair.
    fn votes(&self, node: &mut Lowering<'_, '_>, scores: Operand) -> Result<Operand, LowerError> {
        let mut change = vec![0f32; self.members.len() * self.classes];
        let mut seconds = vec![0f32; self.classes];
        for (pair, &(first, second)) in self.members.iter().enumerate() {
            change[pair * self.classes + first] += 1.0;
            change[pair * self.classes + second] -= 1.0;
            seconds[second] += 1.0;
        }
        let zero = node.scalar(DType::F32, 0.0)?;
        let positive = node.emit_one(Compare { relation: CompareRelation::Greater }, vec![scores, zero])?;
        let positive = node.cast(positive, DType::F32)?;
        let change = node.constant(Tensor::from_elements(&[self.members.len(), self.classes], &change)?);
        let seconds = node.constant(Tensor::from_elements(&[self.classes], &seconds)?);
        let change = node.product(positive, change, false)?;
        node.plus(change, seconds)
    }
}

/// Labels and scores: probabilities of the classes, else the scores of the pairs; both of two classes.
fn classifier(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    let x = node.cast(x, DType::F32)?;
    let coefficients = required_floats(node, "coefficients")?;
    let rho = required_floats(node, "rho")?;
    let slopes = [node.floats("prob_a")?.unwrap_or_default(), node.floats("prob_b")?.unwrap_or_default()];
    let kernel = node.keyword("kernel_type")?.unwrap_or(KernelType::Linear);
    let parameters = node.floats("kernel_params")?.unwrap_or_default();
    let vectors = node.floats("support_vectors")?.unwrap_or_default();
    let per_class = node.ints("vectors_per_class")?.unwrap_or_default();
    let labels = class_labels(node, "classlabels_ints")?;
    let transform = node.keyword("post_transform")?.unwrap_or(PostTransform::None);
    if vectors.is_empty() || per_class.is_empty() {
        return Err(node.refuse("a classifier without `support_vectors` and `vectors_per_class`"));
    }
    let fits = || node.refuse("support vectors whose lists have other lengths");
    let pairs = Pairs::of(labels.count());
    let per_class: Option<Vec<usize>> = per_class.iter().map(|&count| usize::try_from(count).ok()).collect();
    let per_class = per_class.filter(|list| list.len() == pairs.classes && pairs.classes > 1).ok_or_else(fits)?;
    // Each vector has an element at least, so that the sum of what fits is no more than their number.
    let count =
        per_class.iter().try_fold(0usize, |sum, &count| sum.checked_add(count).filter(|&sum| sum <= vectors.len()));
    let count = count.filter(|&count| count > 0 && vectors.len().is_multiple_of(count)).ok_or_else(fits)?;
    let lengths_fit = coefficients.len() == count * (pairs.classes - 1)
        && rho.len() == pairs.members.len()
        && slopes.iter().all(|list| list.len() == slopes[0].len() && (list.is_empty() || list.len() == rho.len()));
    if !lengths_fit {
        return Err(fits());
    }
    let weights = pairs.weights(&per_class, &coefficients)?;
    let vectors = Tensor::from_elements(&[count, vectors.len() / count], &vectors)?;
    let kernels = kernels(node, x, vectors, kernel, &parameters)?;
    let weights = node.constant(weights);
    let sums = node.product(kernels, weights, false)?;
    let rho = node.constant(Tensor::from_elements(&[rho.len()], &rho)?);
    let scores = node.plus(sums, rho)?;
    let votes = pairs.votes(node, scores)?;
    let label = top_label(node, votes, labels)?;
    if !slopes[0].is_empty() {
        let scores = probabilities(node, scores, &slopes, pairs.classes)?;
        return Ok(vec![label, transform.emit(node, scores)?]);
    }
    if pairs.classes > 2 {
        return Ok(vec![label, transform.emit(node, scores)?]);
    }
    if transform != PostTransform::None {
        return Err(node.refuse("attribute `post_transform` of two classes without probabilities"));
    }
    let other = node.emit_one(Unary { function: UnaryFunction::Neg }, vec![scores])?;
    Ok(vec![label, node.emit_one(Concat { axis: 1 }, vec![other, scores])?])
}

/// Nearest that the probability of a class of a pair may be to 0 and 1.
const LEAST_PROBABILITY: f32 = 1e-7;

/// Probabilities of classes from the scores of pairs by Platt's sigmoids.
fn probabilities(
    node: &mut Lowering<'_, '_>,
    scores: Operand,
    [slope, offset]: &[Vec<f32>; 2],
    classes: usize,
) -> Result<Operand, LowerError> {
    let [slope, offset] = [slope, offset].map(|list| Tensor::from_elements(&[list.len()], list));
    let (slope, offset) = (node.constant(slope?), node.constant(offset?));
    let scaled = node.binary(BinaryFunction::Mul, scores, slope)?;
    let shifted = node.plus(scaled, offset)?;
    let opposite = node.emit_one(Unary { function: UnaryFunction::Neg }, vec![shifted])?;
    let sigmoid = node.activated(opposite, ActivationFunction::Sigmoid)?;
    let [least, most] = [LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY].map(|bound| node.constant(Tensor::scalar(bound)));
    let pairs = node.emit_one(Clamp {}, vec![sigmoid, least, most])?;
    node.emit_one(PairwiseProbability { classes: classes as i64 }, vec![pairs])
}
