//! Extents and bytes of values at bound dimensions.

use ipuc_formats::dim::{Bindings, Dim};
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::tensor::element_count;
use std::collections::HashMap;

/// The extent that a dimension has; `None` where it does not follow.
pub(super) fn extent_of(dim: &Dim, bindings: &Bindings) -> Option<usize> {
    usize::try_from(dim.evaluate(bindings).ok()?).ok()
}

/// Extents at bound dimensions, and what they were asked for.
pub(super) struct Extents<'a> {
    bindings: &'a Bindings,
    asked: HashMap<Dim, Option<usize>>,
}

impl<'a> Extents<'a> {
    pub(super) fn new(bindings: &'a Bindings) -> Extents<'a> {
        Extents { bindings, asked: HashMap::new() }
    }

    /// The dimensions that follow from symbols, and what they are.
    pub(super) fn into_asked(self) -> Vec<(Dim, Option<usize>)> {
        self.asked.into_iter().collect()
    }

    fn of(&mut self, dim: &Dim) -> Option<usize> {
        match dim.as_known() {
            Some(extent) => usize::try_from(extent).ok(),
            None => *self.asked.entry(dim.clone()).or_insert_with(|| extent_of(dim, self.bindings)),
        }
    }

    /// The extents of a tensor; `None` where one does not follow.
    pub(super) fn of_tensor(&mut self, kind: &Type) -> Option<Box<[usize]>> {
        let Type::Tensor { shape: Shape::Ranked(dims), .. } = kind else { return None };
        // All are asked for: another binding may give the one that is missing.
        let extents: Vec<Option<usize>> = dims.iter().map(|dim| self.of(dim)).collect();
        extents.into_iter().collect()
    }

    /// Bytes of a tensor; `None` where they do not follow, or there are none.
    pub(super) fn bytes_of(&mut self, kind: &Type) -> Option<usize> {
        let (dtype, _) = kind.as_tensor()?;
        dtype.packed_bytes(element_count(&self.of_tensor(kind)?)?).filter(|&bytes| bytes > 0)
    }
}

/// Bytes of a tensor at bound dimensions; `None` where they do not follow.
pub(crate) fn value_bytes(kind: &Type, bindings: &Bindings) -> Option<usize> {
    Extents::new(bindings).bytes_of(kind)
}
