//! Classical machine learning: ONNX domain `ai.onnx.ml`.

use crate::steps::Kernel;
use ipuc_formats::ops::{LabelEncode, MapValues, PairwiseProbability, ScoreTransform, TreeEnsemble, ZipMap};

impl Kernel for LabelEncode {}
impl Kernel for MapValues {}
impl Kernel for PairwiseProbability {}
impl Kernel for TreeEnsemble {}
impl Kernel for ScoreTransform {}
impl Kernel for ZipMap {}
