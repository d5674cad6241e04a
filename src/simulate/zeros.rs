//! An observer of a run that keeps where activations are zero.

use ipuc_formats::machine::ZeroMap;
use ipuc_formats::model::{Manifest, OperandRecord};
use ipuc_formats::ops::scalar::scalars;
use ipuc_formats::value::Value;
use ipuc_runtime::Observer;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where the values are zero that steps with weights read first. Of a value that is computed several times, as in a loop, the
/// last one counts.
#[derive(Debug, Clone, Default)]
pub struct ZeroMaps {
    wanted: BTreeSet<u32>,
    /// Maps of the values, by their numbers.
    pub maps: BTreeMap<u32, Arc<ZeroMap>>,
    /// There was no memory for one of the maps: what was counted is not complete.
    pub is_incomplete: bool,
}

impl ZeroMaps {
    /// Nothing seen yet of a program.
    pub fn new(manifest: &Manifest) -> ZeroMaps {
        let blocks = manifest.blocks.iter();
        let wanted = blocks.flat_map(|block| {
            let steps = block.steps.iter().filter(|step| step.reads_weights());
            steps.filter_map(move |step| match step.operands.first()? {
                OperandRecord::Value(slot) => Some(block.values[*slot as usize].id),
                OperandRecord::Weight(_) | OperandRecord::Absent => None,
            })
        });
        ZeroMaps { wanted: wanted.collect(), maps: BTreeMap::new(), is_incomplete: false }
    }
}

impl Observer for ZeroMaps {
    fn begin(&mut self) {
        self.maps.clear();
    }

    fn restart(&mut self) {
        self.maps.clear();
    }

    fn block(&mut self, _block: u32) {}

    fn value(&mut self, number: u32, value: &Value) {
        let Some(tensor) = value.as_tensor().filter(|_| self.wanted.contains(&number)) else { return };
        let Ok(elements) = scalars(tensor) else { return };
        match ZeroMap::new(tensor.shape(), elements.into_iter().map(|element| element.to_f64() == 0.0)) {
            Some(map) => drop(self.maps.insert(number, Arc::new(map))),
            None => self.is_incomplete = true,
        }
    }
}
