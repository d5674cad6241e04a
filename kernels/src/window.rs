//! Where the windows of convolutions and pools lie along one axis.

use std::ops::Range;

/// All windows along one axis. Window `o` has its tap `t` at input position `o * stride + t * dilation - pad_begin`; positions
/// outside of the input are padding. How `output` follows from the rest is for the operator to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowAxis {
    /// Positions of the input.
    pub input: usize,
    /// The number of windows.
    pub output: usize,
    /// Taps of a window.
    pub kernel: usize,
    /// Distance between windows.
    pub stride: usize,
    /// Distance between taps.
    pub dilation: usize,
    /// Padding before the first position.
    pub pad_begin: usize,
    /// Padding after the last position.
    pub pad_end: usize,
}

impl WindowAxis {
    /// One position, seen by one window.
    pub(crate) const POINT: Self =
        Self { input: 1, output: 1, kernel: 1, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };

    /// Whether each window is the position of the same number.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.pad_begin == 0 && self.input == self.output
    }

    /// Whether there is one window, whose taps are the positions of the input, each once.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.output == 1 && self.pad_begin == 0 && self.kernel == self.input && self.taps(0).len() == self.input
    }

    /// Input position of tap 0 of window `output`, negative in the padding.
    #[must_use]
    #[inline(always)]
    pub fn start(&self, output: usize) -> isize {
        (output * self.stride) as isize - self.pad_begin as isize
    }

    /// Input position of `tap` of window `output`, if it is not padding.
    #[must_use]
    #[inline(always)]
    pub fn position(&self, output: usize, tap: usize) -> Option<usize> {
        (output * self.stride + tap * self.dilation)
            .checked_sub(self.pad_begin)
            .filter(|&position| position < self.input)
    }

    /// Which of some windows have their tap `tap` at a position that is not padding.
    pub(crate) fn outputs_of(&self, tap: usize, outputs: Range<usize>) -> Range<usize> {
        let offset = tap * self.dilation;
        // The windows whose tap lies before a position, which counts from the padding's beginning.
        let before = |position: usize| {
            position.saturating_sub(offset).div_ceil(self.stride.max(1)).clamp(outputs.start, outputs.end)
        };
        before(self.pad_begin)..before(self.pad_begin + self.input)
    }

    /// Those of the first `outputs` windows of which no tap is padding.
    pub(crate) fn inside(&self, outputs: usize) -> Range<usize> {
        let reach = self.kernel.saturating_sub(1) * self.dilation + 1;
        let end = (self.input + self.pad_begin).checked_sub(reach).map_or(0, |last| last / self.stride + 1);
        let end = end.min(outputs);
        self.pad_begin.div_ceil(self.stride).min(end)..end
    }

    /// Which taps of window `output` are not padding.
    #[must_use]
    #[inline(always)]
    pub fn taps(&self, output: usize) -> Range<usize> {
        let start = self.start(output);
        let below = |position: isize| (position.max(0) as usize).div_ceil(self.dilation).min(self.kernel);
        below(-start)..below(self.input as isize - start)
    }
}

/// The product of the numbers of windows along all axes.
#[must_use]
pub fn outputs(axes: &[WindowAxis]) -> usize {
    axes.iter().map(|axis| axis.output).product()
}

/// The product of the input's positions along all axes.
#[must_use]
pub fn inputs(axes: &[WindowAxis]) -> usize {
    axes.iter().map(|axis| axis.input).product()
}

/// The number of taps of a window over all axes.
#[must_use]
pub fn taps(axes: &[WindowAxis]) -> usize {
    axes.iter().map(|axis| axis.kernel).product()
}

/// The same windows with neighbouring axes joined where both are identities: a convolution of 1 × 1 is one of a single axis.
/// At least one axis.
#[must_use]
pub fn joined(axes: &[WindowAxis]) -> Vec<WindowAxis> {
    let mut result: Vec<WindowAxis> = Vec::with_capacity(axes.len().max(1));
    for &axis in axes {
        match result.last_mut() {
            Some(last) if last.is_identity() && axis.is_identity() => {
                last.input *= axis.input;
                last.output *= axis.output;
            }
            _ => result.push(axis),
        }
    }
    if result.is_empty() {
        result.push(WindowAxis::POINT);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_are_those_with_a_position() {
        for (input, kernel, stride, dilation, pad_begin) in
            [(7, 3, 1, 1, 1), (7, 3, 2, 2, 0), (5, 4, 3, 2, 5), (2, 6, 1, 3, 9), (1, 1, 1, 1, 0), (9, 2, 1, 5, 3)]
        {
            let axis = WindowAxis { input, output: 20, kernel, stride, dilation, pad_begin, pad_end: 0 };
            for output in 0..axis.output {
                let taps: Vec<usize> = (0..kernel).filter(|&tap| axis.position(output, tap).is_some()).collect();
                let range = axis.taps(output);
                assert_eq!(axis.inside(20).contains(&output), taps.len() == kernel, "{axis:?} window {output}");
                assert_eq!(range.clone().collect::<Vec<_>>(), taps, "{axis:?} window {output}: {range:?}");
            }
            for (tap, outputs) in (0..kernel).flat_map(|tap| [(tap, 0..20), (tap, 3..11), (tap, 6..6)]) {
                let seen: Vec<usize> = outputs.clone().filter(|&output| axis.position(output, tap).is_some()).collect();
                let range = axis.outputs_of(tap, outputs);
                assert_eq!(range.clone().collect::<Vec<_>>(), seen, "{axis:?} tap {tap}: {range:?}");
            }
        }
    }

    #[test]
    fn joins_only_identities() {
        let identity = WindowAxis { input: 5, output: 5, kernel: 1, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };
        let strided = WindowAxis { stride: 2, output: 3, ..identity };
        assert_eq!(joined(&[identity, identity]), [WindowAxis { input: 25, output: 25, ..identity }]);
        assert_eq!(joined(&[strided, identity, identity]).len(), 2);
        assert_eq!(joined(&[]).len(), 1);
    }
}
