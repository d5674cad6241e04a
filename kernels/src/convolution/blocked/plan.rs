//! What follows from the shape of a convolution alone, kept from one run to the next.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{InputOrder, planes};
use crate::{
    convolution::ConvolutionShape,
    places::{KeptPlaces, SeenRows},
    window::{self, WindowAxis},
};

/// Places of taps that a plan keeps; those of larger images, which cost little beside their products, are worked out by each run.
const MOST_KEPT: usize = 1 << 17;

/// Rows of taps that a plan keeps.
const MOST_ROWS_KEPT: usize = 1 << 12;

/// A convolution over blocks of channels of one shape, with inputs in one order.
#[derive(Debug)]
pub struct BlockedPlan {
    shape: ConvolutionShape,
    order: InputOrder,
    /// Neighbouring axes are one where both are identities.
    axes: Vec<WindowAxis>,
    /// For tasks of so many windows.
    places: Mutex<Option<(usize, Arc<[KeptPlaces]>)>>,
    seen: OnceLock<Arc<SeenRows>>,
}

impl BlockedPlan {
    /// A plan for this shape, and inputs in this order.
    #[must_use]
    pub fn new(shape: ConvolutionShape, order: InputOrder) -> Self {
        let axes = window::joined(&shape.axes);
        Self { shape, order, axes, places: Mutex::default(), seen: OnceLock::new() }
    }

    pub(super) fn shape(&self) -> &ConvolutionShape {
        &self.shape
    }

    pub(super) fn order(&self) -> InputOrder {
        self.order
    }

    pub(super) fn axes(&self) -> &[WindowAxis] {
        &self.axes
    }

    /// The places of tasks of so many windows, which earlier runs may have left here.
    pub(super) fn places(&self, windows_each: usize) -> Arc<[KeptPlaces]> {
        let windows = window::outputs(&self.axes);
        let tasks = windows.div_ceil(windows_each.max(1));
        let fresh = || (0..tasks).map(|_| KeptPlaces::default()).collect();
        let places = match self.order {
            InputOrder::Blocks => window::taps(&self.axes),
            InputOrder::Planes => planes::places_of_window(&self.axes, self.shape.group_inputs),
        };
        if windows.saturating_mul(places) > MOST_KEPT {
            return fresh();
        }
        let mut kept = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((each, places)) if *each == windows_each => places.clone(),
            Some(_) | None => kept.insert((windows_each, fresh())).1.clone(),
        }
    }

    /// The rows that windows see along all axes but the last.
    pub(super) fn seen_rows(&self) -> Arc<SeenRows> {
        let outer = &self.axes[..self.axes.len() - 1];
        let rows = window::outputs(outer).saturating_mul(window::taps(outer));
        if rows > MOST_ROWS_KEPT {
            return Arc::new(SeenRows::new(outer));
        }
        self.seen.get_or_init(|| Arc::new(SeenRows::new(outer))).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(extent: usize) -> BlockedPlan {
        let axis =
            WindowAxis { input: extent, output: extent, kernel: 3, stride: 1, dilation: 1, pad_begin: 1, pad_end: 1 };
        let shape = ConvolutionShape { batch: 1, groups: 8, group_inputs: 1, group_outputs: 1, axes: vec![axis; 2] };
        BlockedPlan::new(shape, InputOrder::Blocks)
    }

    #[test]
    fn places_are_kept_for_tasks_of_the_same_windows() {
        let small = plan(8);
        assert_eq!(small.places(24).len(), 3);
        assert!(Arc::ptr_eq(&small.places(24), &small.places(24)));
        assert!(!Arc::ptr_eq(&small.places(24), &small.places(64)), "other tasks");
        assert!(Arc::ptr_eq(&small.seen_rows(), &small.seen_rows()));
        // 9 taps of 16,384 windows.
        let large = plan(128);
        assert!(!Arc::ptr_eq(&large.places(24), &large.places(24)));
        assert_eq!(large.seen_rows().ends.len(), 128);
    }
}
