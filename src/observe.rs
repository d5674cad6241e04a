//! Observers of a run: ranges, histograms and zeros of what steps compute.

use ipuc_formats::ops::scalar::scalars;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::Observer;
use std::collections::BTreeMap;
use std::str::FromStr;

/// Which elements of a tensor are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// All.
    Tensor,
    /// Those at the same index of an axis, counted from the back where negative; all of a tensor that has no such axis.
    Axis(i64),
    /// So many neighbours along the last axis; a row may end with fewer.
    Block(usize),
}

impl FromStr for Granularity {
    type Err = String;

    /// `tensor`, `axis:1`, `block:32`.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected tensor, axis:N or block:N".to_string();
        match text.split_once(':') {
            None if text == "tensor" => Ok(Granularity::Tensor),
            Some(("axis", axis)) => axis.parse().map(Granularity::Axis).map_err(|_| expected()),
            Some(("block", size)) => match size.parse() {
                Ok(0) | Err(_) => Err(expected()),
                Ok(size) => Ok(Granularity::Block(size)),
            },
            Some(_) | None => Err(expected()),
        }
    }
}

/// What the elements of a part of a value were, over all runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// How many.
    pub elements: u64,
    /// How many were zero.
    pub zeros: u64,
    /// How many were NaN or infinite; they count nowhere else.
    pub not_finite: u64,
    /// The least finite one.
    pub minimum: f64,
    /// The greatest finite one.
    pub maximum: f64,
    /// How many finite ones other than zero had a magnitude in each [`interval`].
    pub histogram: BTreeMap<u32, u64>,
}

impl Default for Part {
    fn default() -> Self {
        let (minimum, maximum) = (f64::INFINITY, f64::NEG_INFINITY);
        Part { elements: 0, zeros: 0, not_finite: 0, minimum, maximum, histogram: BTreeMap::new() }
    }
}

/// Low bits of an f32 that an interval leaves out: there are eight intervals from one power of two to the next.
const INTERVAL_BITS: u32 = 20;

/// The magnitudes of an interval of histograms: from the first on, up to the second, which is not in it.
pub fn interval(index: u32) -> (f32, f32) {
    (f32::from_bits(index << INTERVAL_BITS), f32::from_bits((index + 1) << INTERVAL_BITS))
}

impl Part {
    fn add(&mut self, element: f64) {
        self.elements += 1;
        if !element.is_finite() {
            self.not_finite += 1;
            return;
        }
        self.minimum = self.minimum.min(element);
        self.maximum = self.maximum.max(element);
        if element == 0.0 {
            self.zeros += 1;
        } else {
            // Magnitudes beyond f32 count with its greatest.
            let magnitude = (element.abs() as f32).min(f32::MAX);
            *self.histogram.entry(magnitude.to_bits() >> INTERVAL_BITS).or_default() += 1;
        }
    }
}

/// Ranges, histograms and zeros of every tensor of numbers that steps compute, and how often each block ran.
#[derive(Debug, Clone)]
pub struct Statistics {
    granularity: Granularity,
    /// Parts of each value, by its number.
    pub values: BTreeMap<u32, Vec<Part>>,
    /// Runs of each block.
    pub runs: BTreeMap<u32, u64>,
    /// What was known before the run that is shown.
    before: (BTreeMap<u32, Vec<Part>>, BTreeMap<u32, u64>),
}

impl Statistics {
    /// Nothing seen yet.
    pub fn new(granularity: Granularity) -> Statistics {
        Statistics { granularity, values: BTreeMap::new(), runs: BTreeMap::new(), before: Default::default() }
    }

    fn add(&mut self, number: u32, tensor: &Tensor) {
        // Text and complex numbers have no range.
        let Ok(elements) = scalars(tensor) else { return };
        let parts = self.values.entry(number).or_default();
        let (shape, granularity) = (tensor.shape(), self.granularity);
        for (flat, element) in elements.into_iter().enumerate() {
            let part = part_of(granularity, shape, flat);
            if parts.len() <= part {
                parts.resize_with(part + 1, Part::default);
            }
            parts[part].add(element.to_f64());
        }
    }
}

/// The part that an element belongs to.
fn part_of(granularity: Granularity, shape: &[usize], flat: usize) -> usize {
    match granularity {
        Granularity::Tensor => 0,
        Granularity::Axis(axis) => {
            let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
            let Some((&extent, inner)) = usize::try_from(axis).ok().and_then(|axis| shape.get(axis..)?.split_first())
            else {
                return 0;
            };
            flat / inner.iter().product::<usize>() % extent
        }
        Granularity::Block(size) => {
            let row = shape.last().copied().unwrap_or(1);
            flat / row * row.div_ceil(size) + flat % row / size
        }
    }
}

impl Observer for Statistics {
    fn begin(&mut self) {
        self.before = (self.values.clone(), self.runs.clone());
    }

    fn restart(&mut self) {
        (self.values, self.runs) = self.before.clone();
    }

    fn block(&mut self, block: u32) {
        *self.runs.entry(block).or_default() += 1;
    }

    fn value(&mut self, number: u32, value: &Value) {
        match value {
            Value::Tensor(tensor) => self.add(number, tensor),
            Value::Sequence { items, .. } => items.iter().for_each(|item| self.value(number, item)),
            Value::Optional { value, .. } => value.iter().for_each(|item| self.value(number, item)),
            Value::Map { entries, .. } => entries.iter().for_each(|(_, item)| self.value(number, item)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(granularity: Granularity, shape: &[usize], elements: &[f32]) -> Vec<Part> {
        let mut statistics = Statistics::new(granularity);
        statistics.value(7, &Tensor::from_elements(shape, elements).unwrap().into());
        statistics.values.remove(&7).unwrap()
    }

    #[test]
    fn a_run_that_begins_anew_counts_once() {
        let value: Value = Tensor::from_elements(&[1], &[2.0f32]).unwrap().into();
        let mut statistics = Statistics::new(Granularity::Tensor);
        for restarts in [false, true] {
            statistics.begin();
            statistics.block(0);
            statistics.value(7, &value);
            if restarts {
                statistics.restart();
                statistics.block(0);
                statistics.value(7, &value);
            }
        }
        assert_eq!((statistics.values[&7][0].elements, statistics.runs[&0]), (2, 2));
    }

    #[test]
    fn ranges_zeros_and_histograms_are_counted() {
        let parts = seen(Granularity::Tensor, &[6], &[0.0, -2.0, 1.0, 1.1, f32::NAN, f32::INFINITY]);
        let [part] = parts.as_slice() else { panic!("{parts:?}") };
        assert_eq!((part.elements, part.zeros, part.not_finite), (6, 1, 2));
        assert_eq!((part.minimum, part.maximum), (-2.0, f64::from(1.1f32)));
        let counts: Vec<((f32, f32), u64)> = part.histogram.iter().map(|(&at, &count)| (interval(at), count)).collect();
        assert_eq!(counts, [((1.0, 1.125), 2), ((2.0, 2.25), 1)]);
    }

    #[test]
    fn parts_follow_the_granularity() {
        let elements: Vec<f32> = (0..12).map(|element| element as f32).collect();
        let ranges = |granularity| -> Vec<(f64, f64)> {
            let parts = seen(granularity, &[2, 2, 3], &elements);
            parts.iter().map(|part| (part.minimum, part.maximum)).collect()
        };
        assert_eq!(ranges(Granularity::Axis(1)), [(0.0, 8.0), (3.0, 11.0)]);
        assert_eq!(ranges(Granularity::Axis(-1)), [(0.0, 9.0), (1.0, 10.0), (2.0, 11.0)]);
        assert_eq!(ranges(Granularity::Axis(3)), [(0.0, 11.0)]);
        let blocks = ranges(Granularity::Block(2));
        assert_eq!(blocks[..4], [(0.0, 1.0), (2.0, 2.0), (3.0, 4.0), (5.0, 5.0)]);
        assert_eq!(blocks.len(), 8);
    }

    #[test]
    fn granularities_are_parsed() {
        assert_eq!("tensor".parse(), Ok(Granularity::Tensor));
        assert_eq!("axis:-1".parse(), Ok(Granularity::Axis(-1)));
        assert_eq!("block:32".parse(), Ok(Granularity::Block(32)));
        for wrong in ["", "axis", "axis:x", "block:0", "channel:1"] {
            assert_eq!(wrong.parse::<Granularity>(), Err("expected tensor, axis:N or block:N".to_string()), "{wrong}");
        }
    }
}
