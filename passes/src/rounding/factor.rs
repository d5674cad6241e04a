//! What is known of the inputs of a weight.

/// What [`Moments::factor`](crate::moments::Moments::factor) gives.
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a> {
    /// `[inputs + 1][inputs]`: the factor above and on the diagonal, moments below it, and their diagonal behind all; or the
    /// diagonal of the factor alone.
    pub elements: &'a [f32],
}

impl Factor<'_> {
    /// Whether moments of pairs are known.
    pub(super) fn is_paired(&self, inputs: usize) -> bool {
        self.elements.len() == (inputs + 1) * inputs
    }

    /// The mean moment of an input with itself, damped.
    pub(super) fn moment(&self, inputs: usize, input: usize) -> f32 {
        self.elements[inputs * inputs + input]
    }

    /// The factor of inputs that are divided by these numbers, whose damping is divided too.
    pub fn divided(&self, divisors: &[f32]) -> Vec<f32> {
        let inputs = divisors.len();
        if !self.is_paired(inputs) {
            return self.elements.iter().zip(divisors).map(|(own, divisor)| own * divisor).collect();
        }
        let divided = |(index, &element): (usize, &f32)| match (index / inputs, index % inputs) {
            (row, column) if row == inputs => element / (divisors[column] * divisors[column]),
            (row, column) if column < row => element / (divisors[row] * divisors[column]),
            (_, column) => element * divisors[column],
        };
        self.elements.iter().enumerate().map(divided).collect()
    }

    /// Mean moments of an input with all before it.
    pub(super) fn below(&self, inputs: usize, input: usize) -> &[f32] {
        &self.elements[input * inputs..input * inputs + input]
    }

    /// The factor's own element of an input.
    pub(super) fn diagonal(&self, inputs: usize, input: usize) -> f32 {
        let at = if self.is_paired(inputs) { input * inputs + input } else { input };
        self.elements[at]
    }

    /// What the square of an error costs, for each input.
    pub(super) fn importance(&self, inputs: usize) -> Vec<f32> {
        let diagonal: Vec<f64> = (0..inputs).map(|input| f64::from(self.diagonal(inputs, input))).collect();
        let costs: Vec<f64> = diagonal.iter().map(|own| 1.0 / (own * own)).collect();
        let greatest = costs.iter().fold(f64::MIN_POSITIVE, |greatest, &cost| greatest.max(cost));
        // The least share is kept above zero: an input that was never seen still has a nearest code.
        costs.iter().map(|cost| (cost / greatest).max(1e-6) as f32).collect()
    }

    /// The elements behind the diagonal of a row; none where only the diagonal is known.
    pub(super) fn behind(&self, inputs: usize, input: usize) -> &[f32] {
        if self.is_paired(inputs) { &self.elements[input * inputs + input + 1..(input + 1) * inputs] } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_divided_inputs() {
        // The factor [2 3; 0 5], the moment 7 of both inputs below it, and those of each behind.
        let elements = [2.0, 3.0, 7.0, 5.0, 11.0, 13.0];
        assert_eq!(Factor { elements: &elements }.divided(&[2.0, 0.5]), [4.0, 1.5, 7.0, 2.5, 2.75, 52.0]);
        assert_eq!(Factor { elements: &[3.0, 5.0, 7.0] }.divided(&[2.0, 0.5, 1.0]), [6.0, 2.5, 7.0]);
    }
}
