//! Resampling along one axis: which input positions make an output position, with which weights.
//!
//! Formulas of ONNX `Resize` (opset 19). Coordinates are computed in f32, as implementations do: whether a position
//! lies halfway between two elements depends on it. Leaves alone: the tensor, and extents of results.

use crate::attribute::Keyword;

/// How an output position maps to an input coordinate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ResizeCoordinates {
    /// Centres of elements at halves.
    HalfPixel,
    /// As `half_pixel`, around the centre of what the scale would give before rounding down.
    HalfPixelSymmetric,
    /// As `half_pixel`; a result of one element takes coordinate 0.
    PytorchHalfPixel,
    /// First and last elements map to each other.
    AlignCorners,
    /// Positions divided by the scale.
    Asymmetric,
    /// As `align_corners` within a region.
    TfCropAndResize,
    /// Centres of elements divided by the scale, without the shift back (opset 11 only).
    TfHalfPixelForNn,
}
impl Keyword for ResizeCoordinates {}

/// Which element a coordinate between two of them takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ResizeNearest {
    /// The nearer; halfway the lower.
    RoundPreferFloor,
    /// The nearer; halfway the upper.
    RoundPreferCeil,
    /// The lower.
    Floor,
    /// The upper.
    Ceil,
    /// The lower, or where the axis shrinks the upper (`Resize` of opset 10, which does not say; as implemented).
    FloorCeilDown,
}
impl Keyword for ResizeNearest {}

/// How elements are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ResizeMode {
    /// One element.
    Nearest,
    /// The two neighbours by distance.
    Linear,
    /// Four neighbours, Keys' cubic convolution.
    Cubic,
}
impl Keyword for ResizeMode {}

/// How one axis is resampled, without its extents.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ResizeRule {
    pub(crate) mode: ResizeMode,
    pub(crate) coordinates: ResizeCoordinates,
    pub(crate) nearest: ResizeNearest,
    pub(crate) cubic_coefficient: f32,
    pub(crate) exclude_outside: bool,
    pub(crate) antialias: bool,
}

/// One axis of a resize.
#[derive(Debug, Clone, PartialEq)]
pub struct ResizeAxis {
    /// Extent of the operand.
    pub input: usize,
    /// Extent of the result.
    pub output: usize,
    /// Elements of the result an element of the operand.
    pub(crate) scale: f32,
    /// Extent of the result before it is rounded.
    pub(crate) output_width: f32,
    /// Part of the axis that is shown, relative to its extent.
    pub(crate) region: (f32, f32),
}

/// What makes one output position.
#[derive(Debug, Clone, PartialEq)]
pub enum ResizeTaps {
    /// The sum of input positions times weights.
    Weighted(Vec<(usize, f64)>),
    /// The coordinate lies outside: the extrapolation value.
    Outside,
}

impl ResizeAxis {
    /// Every output position takes the element of the same input position.
    pub(crate) fn is_identity(&self, rule: &ResizeRule) -> bool {
        let whole = rule.coordinates != ResizeCoordinates::TfCropAndResize || self.region == (0.0, 1.0);
        self.scale == 1.0 && self.input == self.output && whole
    }

    /// The input coordinate of an output position.
    fn coordinate(&self, rule: &ResizeRule, position: usize) -> f32 {
        let x = position as f32;
        let last = self.input as f32 - 1.0;
        match rule.coordinates {
            ResizeCoordinates::HalfPixel => (x + 0.5) / self.scale - 0.5,
            ResizeCoordinates::HalfPixelSymmetric => {
                let adjustment = self.output as f32 / self.output_width;
                let offset = self.input as f32 / 2.0 * (1.0 - adjustment);
                offset + (x + 0.5) / self.scale - 0.5
            }
            ResizeCoordinates::PytorchHalfPixel if self.output > 1 => (x + 0.5) / self.scale - 0.5,
            ResizeCoordinates::PytorchHalfPixel => 0.0,
            // The target extent may be fractional, which the operator's test cases count in.
            ResizeCoordinates::AlignCorners if self.output_width == 1.0 => 0.0,
            ResizeCoordinates::AlignCorners => x * last / (self.output_width - 1.0),
            ResizeCoordinates::Asymmetric => x / self.scale,
            ResizeCoordinates::TfHalfPixelForNn => (x + 0.5) / self.scale,
            ResizeCoordinates::TfCropAndResize => {
                let (start, end) = self.region;
                if self.output > 1 {
                    start * last + x * (end - start) * last / (self.output as f32 - 1.0)
                } else {
                    0.5 * (start + end) * last
                }
            }
        }
    }

    /// The taps of an output position; the axis must not be empty.
    pub(crate) fn taps(&self, rule: &ResizeRule, position: usize) -> ResizeTaps {
        if rule.mode == ResizeMode::Nearest {
            let chosen = self.chosen(rule, position);
            return chosen.map_or(ResizeTaps::Outside, |chosen| ResizeTaps::Weighted(vec![(chosen, 1.0)]));
        }
        let Some(x) = self.inside(rule, position) else { return ResizeTaps::Outside };
        let last = self.input.saturating_sub(1);
        let clamped = |index: i64| usize::try_from(index).unwrap_or(0).min(last);
        let weights = self.weights(rule, x);
        let inside = |index: i64| usize::try_from(index).is_ok_and(|index| index <= last);
        let kept = |index: i64| !rule.exclude_outside || inside(index);
        let total: f64 = weights.iter().filter(|(index, _)| kept(*index)).map(|(_, weight)| weight).sum();
        let normalized = |weight: f64| {
            if (rule.antialias || rule.exclude_outside) && total != 0.0 { weight / total } else { weight }
        };
        let taps = weights.into_iter().filter(|(index, _)| kept(*index));
        ResizeTaps::Weighted(taps.map(|(index, weight)| (clamped(index), normalized(weight))).collect())
    }

    /// The input position that mode `nearest` takes for an output position, or none outside; the axis must not be empty.
    pub(crate) fn chosen(&self, rule: &ResizeRule, position: usize) -> Option<usize> {
        let index = self.nearest(rule.nearest, self.inside(rule, position)?);
        Some(usize::try_from(index).unwrap_or(0).min(self.input.saturating_sub(1)))
    }

    /// The coordinate of an output position, or none where that is outside of what is read.
    fn inside(&self, rule: &ResizeRule, position: usize) -> Option<f64> {
        let x = self.coordinate(rule, position);
        let inside = (0.0..=self.input.saturating_sub(1) as f32).contains(&x);
        // Wide enough for every extent, narrow enough for index arithmetic.
        let is_read = rule.coordinates != ResizeCoordinates::TfCropAndResize || inside;
        is_read.then(|| f64::from(x).clamp(-1e15, 1e15))
    }

    fn nearest(&self, mode: ResizeNearest, x: f64) -> i64 {
        let index = match mode {
            ResizeNearest::RoundPreferFloor => (x - 0.5).ceil(),
            ResizeNearest::RoundPreferCeil => (x + 0.5).floor(),
            ResizeNearest::Floor => x.floor(),
            ResizeNearest::Ceil => x.ceil(),
            ResizeNearest::FloorCeilDown if self.scale < 1.0 => x.ceil(),
            ResizeNearest::FloorCeilDown => x.floor(),
        };
        index as i64
    }

    /// Unclamped positions and their weights, in order.
    fn weights(&self, rule: &ResizeRule, x: f64) -> Vec<(i64, f64)> {
        // With antialiasing the filter is as wide as an element of the result.
        let narrowing = if rule.antialias { f64::from(self.scale.min(1.0)) } else { 1.0 };
        let reach = if rule.mode == ResizeMode::Cubic { 2.0 } else { 1.0 } / narrowing;
        let first = (x - reach).floor() as i64 + 1;
        let end = (x + reach).ceil() as i64;
        let weight = |index: i64| match rule.mode {
            ResizeMode::Cubic => cubic((index as f64 - x) * narrowing, rule.cubic_coefficient.into()),
            ResizeMode::Linear | ResizeMode::Nearest => (1.0 - ((index as f64 - x) * narrowing).abs()).max(0.0),
        };
        (first..end).map(|index| (index, weight(index))).collect()
    }
}

/// Keys' cubic convolution kernel.
pub(crate) fn cubic(distance: f64, coefficient: f64) -> f64 {
    let (x, a) = (distance.abs(), coefficient);
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: ResizeRule = ResizeRule {
        mode: ResizeMode::Linear,
        coordinates: ResizeCoordinates::HalfPixel,
        nearest: ResizeNearest::RoundPreferFloor,
        cubic_coefficient: -0.75,
        exclude_outside: false,
        antialias: false,
    };

    fn axis(input: usize, output: usize) -> ResizeAxis {
        ResizeAxis {
            input,
            output,
            scale: output as f32 / input as f32,
            output_width: output as f32,
            region: (0.0, 1.0),
        }
    }

    fn taps(axis: &ResizeAxis, rule: &ResizeRule, position: usize) -> Vec<(usize, f64)> {
        match axis.taps(rule, position) {
            ResizeTaps::Weighted(taps) => taps.into_iter().filter(|(_, weight)| *weight != 0.0).collect(),
            ResizeTaps::Outside => Vec::new(),
        }
    }

    #[test]
    fn linear_weights_are_distances_and_edges_repeat() {
        assert_eq!(taps(&axis(2, 4), &RULE, 1), [(0, 0.75), (1, 0.25)]);
        assert_eq!(taps(&axis(2, 4), &RULE, 0), [(0, 0.25), (0, 0.75)]);
        let corners = ResizeRule { coordinates: ResizeCoordinates::AlignCorners, ..RULE };
        assert_eq!(taps(&axis(2, 3), &corners, 1), [(0, 0.5), (1, 0.5)]);
        assert_eq!(taps(&axis(2, 3), &corners, 2), [(1, 1.0)]);
    }

    #[test]
    fn cubic_weights_sum_to_one_everywhere() {
        for antialias in [false, true] {
            let rule = ResizeRule { mode: ResizeMode::Cubic, antialias, ..RULE };
            for position in 0..4 {
                let total: f64 = taps(&axis(9, 4), &rule, position).iter().map(|(_, weight)| weight).sum();
                assert!((total - 1.0).abs() < 1e-9, "{total}");
            }
        }
    }

    #[test]
    fn excluded_taps_are_shared_among_the_others() {
        let rule = ResizeRule { exclude_outside: true, ..RULE };
        assert_eq!(taps(&axis(2, 4), &rule, 0), [(0, 1.0)]);
    }

    #[test]
    fn halfway_goes_where_the_mode_says() {
        let asymmetric = ResizeRule { mode: ResizeMode::Nearest, coordinates: ResizeCoordinates::Asymmetric, ..RULE };
        let chosen = |nearest| taps(&axis(4, 8), &ResizeRule { nearest, ..asymmetric }, 3)[0].0;
        assert_eq!(chosen(ResizeNearest::RoundPreferFloor), 1);
        assert_eq!(chosen(ResizeNearest::RoundPreferCeil), 2);
        assert_eq!(chosen(ResizeNearest::Floor), 1);
        assert_eq!(chosen(ResizeNearest::Ceil), 2);
        assert_eq!(chosen(ResizeNearest::FloorCeilDown), 1);
        let pixels = ResizeCoordinates::TfHalfPixelForNn;
        let next = ResizeRule { coordinates: pixels, nearest: ResizeNearest::Ceil, ..asymmetric };
        assert_eq!([0, 3].map(|position| axis(4, 4).chosen(&next, position)), [Some(1), Some(3)], "of the same extent");
        let cropped = ResizeRule { coordinates: ResizeCoordinates::TfCropAndResize, ..asymmetric };
        let beyond = ResizeAxis { region: (0.0, 2.0), ..axis(3, 5) };
        assert_eq!([0, 2, 3].map(|position| beyond.chosen(&cropped, position)), [Some(0), Some(2), None]);
        let down = taps(&axis(5, 3), &ResizeRule { nearest: ResizeNearest::FloorCeilDown, ..asymmetric }, 1);
        assert_eq!(down[0].0, 2);
    }

    #[test]
    fn regions_may_reach_outside() {
        let rule = ResizeRule { coordinates: ResizeCoordinates::TfCropAndResize, ..RULE };
        let axis = ResizeAxis { region: (0.5, 1.5), ..axis(3, 3) };
        assert_eq!(taps(&axis, &rule, 0), [(1, 1.0)]);
        assert_eq!(axis.taps(&rule, 2), ResizeTaps::Outside);
        let broken = ResizeAxis { region: (f32::NAN, 1.0), ..axis };
        assert_eq!(broken.taps(&rule, 0), ResizeTaps::Outside);
    }
}
