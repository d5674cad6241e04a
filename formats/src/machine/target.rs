//! The description of a machine, as its TOML file has it; `TARGETS.md` explains every key.

use super::units::{
    Bytes, BytesPerCycle, BytesPerSecond, Celsius, Cycles, Hertz, JoulesPerByte, JoulesPerKelvin, JoulesPerOperation,
    KelvinPerWatt, Seconds, Watts,
};
use crate::dtype::DType;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::num::NonZeroU32;

/// A machine that programs are simulated on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Name by which it is chosen.
    pub name: String,
    /// What it is, in a line.
    pub description: String,
    /// How its parts work together.
    pub style: Style,
    /// What computes.
    pub tiles: Tiles,
    /// How data moves between tiles.
    pub exchange: Exchange,
    /// Matrix units of one tile: what a product may be computed with.
    pub matrix: Vec<Matrix>,
    /// Vector unit of one tile.
    pub vector: Vector,
    /// Memory outside of the tiles, nearest first: tier 2, tier 3.
    #[serde(default)]
    pub tiers: Vec<Tier>,
    /// Where values live.
    #[serde(default)]
    pub policy: Policy,
    /// Costs of running a step that depend on nothing.
    #[serde(default)]
    pub overhead: Overhead,
    /// Energies.
    #[serde(default)]
    pub energy: Energy,
    /// How zeros of activations are left out of products; none are where it is absent.
    pub zeros: Option<Zeros>,
    /// How heat leaves it; its temperature has no limit where it is absent.
    pub thermal: Option<Thermal>,
    /// How several of it are joined; a program has to fit into one where it is absent.
    pub links: Option<Links>,
}

/// How the parts of a machine work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Style {
    /// Phases: all tiles meet, exchange, and compute; none overlaps another.
    Bsp,
    /// One schedule for all units, cycle by cycle: data streams through the units while they compute.
    Static,
    /// Tiles send packets over links that they share while they compute.
    Packet,
    /// Engines with instruction streams of their own that wait for one another with semaphores.
    Queues,
    /// Steps run one after another as fast as arithmetic or memory allows.
    Roofline,
}

/// What computes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiles {
    /// How many a program may use.
    pub count: NonZeroU32,
    /// Memory of each.
    pub sram: Bytes,
    /// Part of that memory which holds code and tables.
    pub reserved: Bytes,
    /// Clock of the tiles and of what connects them.
    pub clock: Hertz,
    /// Weights may stay in this memory from run to run.
    pub holds_weights: bool,
    /// Rate at which a tile reads or writes its own memory.
    pub bandwidth: BytesPerCycle,
    /// Of each separate run of elements in a copy that changes their order, beside which its bytes move.
    #[serde(default)]
    pub run: Cycles,
    /// The windows of a convolution are copied out one by one before the matrix unit takes them; others read them where
    /// they are.
    #[serde(default)]
    pub gathers_windows: bool,
    /// Values that stay in a matrix unit and whose inputs lie side by side, as the keys of attention, are copied so that their
    /// outputs do. Weights are stored as the unit takes them.
    #[serde(default)]
    pub turns_values: bool,
    /// The longest row that a tile keeps from one loop of a step to the next, as of a softmax: loops read a longer one again,
    /// and compute again what they need of it.
    pub row: Option<Bytes>,
    /// Rows that a tile works on side by side. Where they and their results do not fit into its memory, loops read them again
    /// from where they live.
    pub rows: Option<NonZeroU32>,
}

/// How data moves between tiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// What one tile may receive.
    pub receive: BytesPerCycle,
    /// Of one phase, besides its transfers.
    pub phase: Cycles,
    /// For one hop between neighbouring tiles.
    pub hop: Cycles,
    /// Control of each separate transfer that a tile sends or receives, beside which its bytes move.
    pub transfer: Cycles,
    /// Bytes of the blocks that values lie in, which move whole; transfers are as small as they come where there are none.
    pub block: Option<Bytes>,
    /// Share of the rate that a schedule of transfers reaches which must not collide.
    #[serde(default = "Exchange::everything", deserialize_with = "share")]
    pub efficiency: f64,
    /// What tiles that do the same work arrive apart at a phase, so that the first waits for the last.
    #[serde(default)]
    pub skew: Cycles,
    /// Of each element of a value that a step needs in other parts than those it lies in: a copy brings it into order.
    #[serde(default)]
    pub arrange: Cycles,
    /// What one tile may receive of data that its neighbour receives at the same time, where they share a bus.
    pub shared: Option<BytesPerCycle>,
    /// What a link between neighbours on a square grid carries each way: the busiest one is waited for.
    pub link: Option<BytesPerCycle>,
    /// The ends of rows and of columns are joined.
    #[serde(default)]
    pub ring: bool,
    /// Bytes that may cross the middle of the machine, where that is less than what all tiles may receive.
    pub bisection: Option<BytesPerCycle>,
}

impl Exchange {
    fn everything() -> f64 {
        1.0
    }
}

/// A matrix unit: it holds a block of weights and passes rows of activations by it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// Types of activations that it takes.
    #[serde(with = "dtypes")]
    pub types: Vec<DType>,
    /// Types of weights, as they are stored, that it takes; every type where there are none.
    #[serde(default, with = "dtypes", skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<DType>,
    /// How many of these units a tile has.
    pub units: NonZeroU32,
    /// Rows of activations that pass together.
    pub rows: NonZeroU32,
    /// Inputs of the block, which are summed.
    pub inputs: NonZeroU32,
    /// Outputs of the block, side by side.
    pub outputs: NonZeroU32,
    /// From one group of rows to the next, besides its phases.
    pub pass: Cycles,
    /// Of each phase in which a group of rows passes, some bits of the operands at a time.
    #[serde(default)]
    pub phase: Cycles,
    /// Phases of a pass: more of them, more bits of the operands that count.
    #[serde(default = "Matrix::one_phase")]
    pub fidelity: NonZeroU32,
    /// To bring in the next block of weights, beside which nothing runs.
    pub load: Cycles,
    /// Loading the next block runs beside the passes of this one.
    pub overlapped: bool,
    /// Threads that rows are dealt to: their number is rounded up to a multiple.
    pub threads: NonZeroU32,
    /// The block may be of operand 0 as well, by which weights pass as rows.
    #[serde(default)]
    pub turns: bool,
    /// Energy of one multiply-accumulate.
    pub energy: JoulesPerOperation,
}

/// Rates of a tile's vector unit in operations on single elements per cycle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// Additions, multiplications, comparisons, selections.
    #[serde(deserialize_with = "positive")]
    pub arithmetic: f64,
    /// Conversions between types.
    #[serde(deserialize_with = "positive")]
    pub convert: f64,
    /// Divisions, square roots.
    #[serde(deserialize_with = "positive")]
    pub divide: f64,
    /// Exponentials and the like.
    #[serde(deserialize_with = "positive")]
    pub transcendental: f64,
    /// Operations for each weight that is stored as a code and multiplied as a float.
    #[serde(default)]
    pub decodes: f64,
    /// It computes in f32: elements of two bytes are converted when they come and when they go.
    #[serde(default)]
    pub widens: bool,
    /// Energy of one operation.
    pub energy: JoulesPerOperation,
}

/// Memory outside of the tiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// What it is.
    pub name: String,
    /// What it holds.
    pub capacity: Bytes,
    /// Rate of reading that long transfers reach.
    pub read: BytesPerSecond,
    /// Rate of writing that long transfers reach.
    pub write: BytesPerSecond,
    /// From a request to the first byte.
    pub latency: Seconds,
    /// What a step waits for before it begins, of what it reads.
    #[serde(default = "Tier::file_chunk")]
    pub chunk: Bytes,
    /// Energy of moving a byte between it and the tiles.
    pub energy: JoulesPerByte,
}

impl Tier {
    /// The unit in which a file is streamed.
    fn file_chunk() -> Bytes {
        Bytes(2_097_152.0)
    }
}

/// A memory that values may live in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Home {
    /// The nearest that has room.
    #[default]
    Auto,
    /// Tier 1: the memory of the tiles.
    Sram,
    /// Tier 2.
    Tier2,
    /// Tier 3.
    Tier3,
}

/// Where values of each role live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Weights.
    pub weights: Home,
    /// Results of steps.
    pub activations: Home,
    /// State, such as caches of keys and values.
    pub state: Home,
    /// Inputs and outputs of the program: with `auto` where other values are.
    pub io: Home,
    /// Transfers for later steps are issued ahead while earlier ones compute.
    pub prefetch: bool,
}

/// Costs of running a step that depend on nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Overhead {
    /// Of every step on the device: to start it, to fill its pipelines and to drain them.
    pub step: Seconds,
    /// From the end of one step to the start of the next, in which it neither computes nor reads.
    pub gap: Seconds,
    /// Of every step on the host, where the host starts each.
    pub host: Seconds,
    /// The host starts steps ahead of the device: a step takes at least what the host takes to start one.
    pub host_ahead: bool,
    /// Rate at which the host reads the results of a run after its last step.
    pub results: Option<BytesPerSecond>,
    /// A run ends when the host has its results, not when they are computed.
    pub waits_for_results: bool,
    /// All tiles meet, once before each phase; in style `roofline` once for a step that several tiles share.
    pub sync: Cycles,
    /// An engine waits for what another one has computed (`queues`).
    pub semaphore: Seconds,
    /// Of steps that only give their operand another shape.
    pub view: Seconds,
    /// Elementwise steps run while their operand leaves the unit that made it: they have no start of their own.
    pub chained: bool,
}

/// Energies that belong to no unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Energy {
    /// Reading or writing a byte of a tile's memory.
    pub sram: JoulesPerByte,
    /// Moving a byte from tile to tile, however far.
    pub exchange: JoulesPerByte,
    /// For each hop on its way.
    pub hop: JoulesPerByte,
    /// Power that is drawn whatever happens.
    pub static_power: Watts,
    /// Power that must not be exceeded, where there is a limit.
    pub limit: Option<Watts>,
}

/// How zeros of activations are left out of products with weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zeros {
    /// Neighbouring inputs that are left out together, where they are zero in all rows that pass together.
    pub inputs: NonZeroU32,
    /// What a tier gives at once: weights of inputs that are left out are not read where so many bytes of them lie together.
    pub burst: Bytes,
}

/// Heat as one resistance and one capacity between the machine and its surroundings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thermal {
    /// Temperature of the surroundings, and of the machine before the first run.
    pub ambient: Celsius,
    /// Temperature that is not exceeded: the machine slows down to the power that leaves it there.
    pub limit: Celsius,
    /// Between the machine and its surroundings.
    pub resistance: KelvinPerWatt,
    /// Of what grows warm with the machine.
    pub capacity: JoulesPerKelvin,
}

impl Thermal {
    /// Power at which the temperature stays at its limit.
    pub fn power(&self) -> Watts {
        Watts((self.limit.0 - self.ambient.0) / self.resistance.0)
    }
}

/// How several machines are joined: each holds some of the steps with their weights, and hands its results on to the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// How many may be joined.
    pub most: NonZeroU32,
    /// Rate from one to the next.
    pub bandwidth: BytesPerSecond,
    /// From sending the first byte to its arrival.
    pub latency: Seconds,
    /// Energy of moving a byte.
    pub energy: JoulesPerByte,
}

impl Target {
    /// BLAKE3 of the description, written in one way: comments and the order of keys do not matter.
    ///
    /// # Errors
    /// Where the description cannot be written as TOML, as numbers that are not finite cannot.
    pub fn hash(&self) -> Result<[u8; 32], toml::ser::Error> {
        Ok(*blake3::hash(toml::to_string(self)?.as_bytes()).as_bytes())
    }

    /// Memory of all tiles that values may use.
    pub fn sram(&self) -> Bytes {
        (self.tiles.sram - self.tiles.reserved) * f64::from(self.tiles.count.get())
    }

    /// Multiply-accumulates per second of the fastest matrix units that take this type.
    pub fn peak_macs_per_second(&self, activation: DType) -> Option<f64> {
        let units = self.matrix.iter().filter(|matrix| matrix.types.contains(&activation));
        let per_tile = units.map(Matrix::macs_per_cycle).max_by(f64::total_cmp)?;
        Some(per_tile * f64::from(self.tiles.count.get()) * self.tiles.clock.0)
    }
}

impl Matrix {
    /// Multiply-accumulates of all units of a tile in each cycle.
    pub fn macs_per_cycle(&self) -> f64 {
        let block = [self.units, self.rows, self.inputs, self.outputs].map(|factor| f64::from(factor.get()));
        block.iter().product::<f64>() / self.group().0
    }

    /// From one group of rows to the next: all phases.
    pub fn group(&self) -> Cycles {
        self.pass + self.phase * f64::from(self.fidelity.get())
    }

    fn one_phase() -> NonZeroU32 {
        NonZeroU32::MIN
    }
}

fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    if number.is_finite() && number > 0.0 {
        return Ok(number);
    }
    Err(serde::de::Error::custom(format!("`{number}` is not a positive number")))
}

fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    if number > 0.0 && number <= 1.0 {
        return Ok(number);
    }
    Err(serde::de::Error::custom(format!("`{number}` is no share: it must be more than 0 and at most 1")))
}

/// Element types by their names.
mod dtypes {
    use super::{DType, Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(types: &[DType], serializer: S) -> Result<S::Ok, S::Error> {
        types.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<DType>, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        let parse = |name: &String| {
            crate::dtype::parse(name).ok_or_else(|| serde::de::Error::custom(format!("`{name}` is no element type")))
        };
        names.iter().map(parse).collect()
    }
}
