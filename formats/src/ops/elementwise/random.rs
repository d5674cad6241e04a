//! Random tensors: ONNX `RandomUniform`, `RandomUniformLike`, `RandomNormal`, `RandomNormalLike` (opset 1, 22) and the
//! draw behind `Bernoulli` (opset 15, 22).
//!
//! ONNX leaves the generator open. With a seed every run draws the same numbers; without one each draw differs.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::scalar::{Scalar, from_scalars};
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    optional, optional_tensor, tensor_operand,
};
use crate::tensor::{Tensor, filled};
use crate::value::Value;

attributes! {
    /// Draws a tensor: of the shape of `like: [..]` where that operand is given, else of `shape`.
    pub struct Random revision 1 {
        /// The distribution.
        1 since 1 => distribution: Distribution,
        /// The element type: f16, bf16, f32 or f64.
        2 since 1 => to: DType,
        /// Least value, or mean.
        3 since 1 => low: f32,
        /// Least value that is not drawn, or standard deviation.
        4 since 1 => high: f32,
        /// Extents where there is no operand.
        5 since 1 => shape: Vec<i64>,
        /// Seed; each run draws the same numbers with it.
        6 since 1 => seed: Option<f32>,
    }
}

/// Distributions of [`Random`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Distribution {
    /// From `low` to below `high`, each value alike.
    Uniform,
    /// With mean `low` and standard deviation `high`.
    Normal,
}
impl Keyword for Distribution {}

/// What each output adds to the state of a [`Generator`].
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The draws of one run of a [`Random`], which begin at any element.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    random: Distribution,
    low: f64,
    high: f64,
    state: u64,
}

impl Draws {
    /// The elements from `first` on.
    pub fn fill(&self, first: usize, out: &mut [f64]) {
        let outputs = match self.random {
            Distribution::Uniform => 1,
            Distribution::Normal => 2,
        };
        let mut generator = Generator(self.state.wrapping_add(STEP.wrapping_mul((first as u64).wrapping_mul(outputs))));
        match self.random {
            Distribution::Uniform => {
                out.iter_mut().for_each(|out| *out = self.low + (self.high - self.low) * generator.uniform());
            }
            Distribution::Normal => out.iter_mut().for_each(|out| *out = self.low + self.high * generator.normal()),
        }
    }
}

/// Random bits (SplitMix64): one state, one output a step.
pub(crate) struct Generator(u64);

impl Generator {
    /// The generator of a seed; without one, of the context's state, which it changes.
    pub(crate) fn new(seed: Option<u64>, context: &mut ReferenceContext<'_>) -> Generator {
        Generator::begin(seed, &mut context.random_state)
    }

    fn begin(seed: Option<u64>, random_state: &mut u64) -> Generator {
        match seed {
            Some(seed) => Generator(seed),
            None => {
                let mut generator = Generator(*random_state);
                *random_state = generator.bits();
                generator
            }
        }
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1 in steps of 2^-24, so that f32 holds it exactly.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.bits() >> 40) as f64 / (1u64 << 24) as f64
    }

    /// With mean 0 and standard deviation 1 (Box and Muller).
    fn normal(&mut self) -> f64 {
        let fraction = ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let radius = (-2.0 * fraction.ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

impl Random {
    /// The draws of a run, which changes the state where there is no seed.
    pub fn draws(&self, random_state: &mut u64) -> Draws {
        let generator = Generator::begin(self.seed.map(|seed| seed.to_bits().into()), random_state);
        Draws { random: self.distribution, low: self.low.into(), high: self.high.into(), state: generator.0 }
    }

    fn check(&self) -> Result<Vec<usize>, TypeError> {
        if !matches!(self.to, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(TypeError::Unsupported(format!("random numbers of type {}", self.to)));
        }
        let extent = |&extent: &i64| {
            usize::try_from(extent).map_err(|_| TypeError::Value {
                subject: "an extent of `shape`".to_string(),
                found: extent.to_string(),
                expected: "0 or more".to_string(),
            })
        };
        self.shape.iter().map(extent).collect()
    }
}

impl Operator for Random {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let extents = self.check()?;
        let shape = match optional(inputs, 0) {
            Some(_) => tensor_operand(inputs, 0)?.1.clone(),
            None => Shape::known(&extents),
        };
        Ok(vec![Fact::tensor(self.to, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let extents = self.check()?;
        let extents = optional_tensor(inputs, 0)?.map_or(extents, |like| like.shape().to_vec());
        let count = Tensor::zeros(self.to, &extents)?.count();
        let mut values = filled(0.0, count)?;
        self.draws(&mut context.random_state).fill(0, &mut values);
        let values: Vec<Scalar> = values.into_iter().map(Scalar::Float).collect();
        Ok(vec![from_scalars(self.to, &extents, &values)?.into()])
    }
}

impl Serial for Random {
    fn effect(&self) -> Effect {
        Effect::Random
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, 4)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::NoBlocks;
    use crate::ops::testing::run;

    fn random(distribution: Distribution, low: f32, high: f32, seed: Option<f32>) -> Random {
        Random { distribution, to: DType::F32, low, high, shape: vec![100, 200], seed }
    }

    #[test]
    fn draws_have_their_distribution() {
        let uniform = run(&random(Distribution::Uniform, -1.0, 3.0, Some(1.0)), &[]).unwrap();
        let elements = uniform.elements::<f32>().unwrap();
        assert!(elements.iter().all(|element| (-1.0..3.0).contains(element)));
        let mean = elements.iter().sum::<f32>() / elements.len() as f32;
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
        let normal = run(&random(Distribution::Normal, 2.0, 0.5, Some(7.0)), &[]).unwrap();
        let elements = normal.elements::<f32>().unwrap();
        let mean = elements.iter().sum::<f32>() / elements.len() as f32;
        let variance = elements.iter().map(|element| (element - mean).powi(2)).sum::<f32>() / elements.len() as f32;
        assert!((mean - 2.0).abs() < 0.02 && (variance - 0.25).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn seeds_repeat_and_draws_without_differ() {
        let seeded = random(Distribution::Uniform, 0.0, 1.0, Some(3.0));
        assert_eq!(run(&seeded, &[]).unwrap(), run(&seeded, &[]).unwrap());
        let free = random(Distribution::Uniform, 0.0, 1.0, None);
        let mut blocks = NoBlocks;
        let mut context = ReferenceContext::new(&mut blocks);
        assert_ne!(free.reference(&[], &mut context).unwrap(), free.reference(&[], &mut context).unwrap());
        let like = Tensor::from_strings(&[2], vec![String::new(), String::new()]).unwrap();
        assert_eq!(run(&free, &[like]).unwrap().shape(), [2]);
        let negative = Random { shape: vec![-1], ..free };
        assert_eq!(run(&negative, &[]).unwrap_err().to_string(), "an extent of `shape` is -1, expected 0 or more");
    }
}
