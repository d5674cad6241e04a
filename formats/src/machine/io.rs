//! Inputs and outputs of a program among its values.

use super::program::{Program, Source};
use std::collections::HashMap;

impl Program {
    /// Views of inputs are inputs, and what an output is a view of is the output.
    pub(super) fn see_through_views(&mut self) {
        let views = self.steps.iter().filter(|step| step.view);
        let views =
            views.filter_map(|step| Some((step.operands.first()?.as_ref()?.source, step.results.first()?.source)));
        let views: Vec<(Source, Source)> = views.collect();
        for (of, view) in &views {
            if self.inputs.contains(of) {
                self.inputs.push(*view);
            }
        }
        for (of, view) in views.iter().rev() {
            self.outputs.iter_mut().filter(|output| *output == view).for_each(|output| *output = *of);
        }
    }

    /// Bytes of inputs that steps read and of outputs.
    pub fn io_bytes(&self) -> f64 {
        let mut sizes: HashMap<Source, f64> = HashMap::new();
        for step in self.steps.iter().filter(|step| !step.view) {
            let read = step.operands.iter().flatten().filter(|tensor| self.inputs.contains(&tensor.source));
            let given = step.results.iter().filter(|tensor| self.outputs.contains(&tensor.source));
            sizes.extend(read.chain(given).map(|tensor| (tensor.source, tensor.bytes)));
        }
        let mut sizes: Vec<f64> = sizes.into_values().collect();
        sizes.sort_by(f64::total_cmp);
        sizes.into_iter().sum()
    }
}
