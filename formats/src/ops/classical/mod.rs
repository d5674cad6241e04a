//! Classical machine learning: ONNX domain `ai.onnx.ml`.

pub(crate) mod label_encode;
pub(crate) mod map_values;
pub(crate) mod pairwise_probability;
pub(crate) mod score_transform;
pub(crate) mod tree_ensemble;
pub(crate) mod zip_map;

pub use label_encode::LabelEncode;
pub use map_values::MapValues;
pub use pairwise_probability::PairwiseProbability;
pub use score_transform::{ScoreFunction, ScoreTransform};
pub use tree_ensemble::{Aggregate, NodeTest, TreeEnsemble};
pub use zip_map::ZipMap;
