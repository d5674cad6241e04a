//! Machines that the program knows, each a file in `targets/` with the source of every figure.

use super::read::{TargetError, read_target_with};
use super::target::Target;

macro_rules! built_in {
    ($($name:literal),+ $(,)?) => {
        /// Names and texts of the built-in machines.
        pub const BUILT_IN: &[(&str, &str)] = &[$(($name, include_str!(concat!("targets/", $name, ".toml")))),+];
    };
}

built_in!(
    "ipu-server",
    "ipu-edge",
    "graphcore-mk2",
    "graphcore-bow",
    "graphcore-c600",
    "northpole",
    "groq-tsp",
    "tenstorrent-n150",
    "tenstorrent-p150",
    "cerebras-wse3",
    "sambanova-sn40l",
    "tpu-v5e",
    "trainium2",
    "a100",
    "h100",
    "dgx-spark",
    "apple-m1-max",
);

/// The text of a built-in machine; `None` where there is none of this name.
pub fn built_in_text(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// A built-in machine with some of its values replaced; `None` where there is none of this name.
pub fn built_in(name: &str, replaced: &[(String, String)]) -> Option<Result<Target, TargetError>> {
    built_in_text(name).map(|text| read_target_with(&format!("{name}.toml"), text, replaced))
}
