//! What was measured on real machines, and the model that it was measured with.

mod gpus;
mod graphcore;
mod others;
mod tenstorrent;

use ipuc_formats::dtype::DType;
use ipuc_formats::machine::Traffic;

/// What a row compares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantity {
    /// Time of a run, in microseconds.
    Microseconds,
    /// Cycles of the busiest tile in its matrix units.
    MatrixCycles,
    /// Cycles of a whole run.
    Cycles,
    /// Cycles of the traffic of a row.
    ExchangeCycles,
    /// So many a run, by the second.
    PerSecond(f64),
    /// So many a run, by the second, where as many runs are under way as there are machines.
    PerSecondTogether(f64),
    /// Bytes of weights by the second, in GB/s.
    WeightBandwidth,
    /// Average power.
    Watts,
}

impl Quantity {
    pub fn text(self) -> &'static str {
        match self {
            Quantity::Microseconds => "us",
            Quantity::MatrixCycles => "cycles of products",
            Quantity::Cycles => "cycles",
            Quantity::ExchangeCycles => "cycles of exchange",
            Quantity::PerSecond(_) | Quantity::PerSecondTogether(_) => "a second",
            Quantity::WeightBandwidth => "GB/s of weights",
            Quantity::Watts => "W",
        }
    }
}

/// One measurement.
pub struct Row {
    pub target: &'static str,
    pub name: &'static str,
    pub source: &'static str,
    pub model: fn() -> Vec<u8>,
    /// What is exchanged, in place of a model.
    pub traffic: Option<Traffic>,
    /// Results are kept between runs: caches of keys and values.
    pub states: bool,
    /// Machines that share the steps.
    pub chips: Option<u32>,
    pub numerics: Option<DType>,
    /// What the measured configuration has that the description does not.
    pub set: &'static [(&'static str, &'static str)],
    /// Every operator is a step, as in the measured program.
    pub unfused: bool,
    pub quantity: Quantity,
    pub measured: f64,
    /// A parameter of the machine comes from this row, so that it is not judged by it.
    pub calibrates: bool,
    /// Why it is missed, where it is.
    pub remark: &'static str,
}

/// Held and computed in 8 bits.
const F8: Option<DType> = Some(DType::F8E4M3FN);

const BASE: Row = Row {
    target: "",
    name: "",
    source: "",
    model: Vec::new,
    traffic: None,
    states: false,
    chips: None,
    numerics: None,
    set: &[],
    unfused: false,
    quantity: Quantity::Microseconds,
    measured: 0.0,
    calibrates: false,
    remark: "",
};

/// All rows, those of a machine together.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [graphcore::ROWS, tenstorrent::ROWS, others::ROWS, gpus::ROWS].into_iter().flatten()
}
