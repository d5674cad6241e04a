//! What flags hold: names with values, sizes of dimensions.

use super::failure::Failure;
use crate::compile::Precision;
use ipuc_formats::dim::Bindings;
use std::path::PathBuf;
use std::str::FromStr;

/// `NAME=FILE`.
#[derive(Debug, Clone)]
pub(super) struct NamedFile {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

impl FromStr for NamedFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                Ok(NamedFile { name: name.to_string(), path: PathBuf::from(path) })
            }
            _ => Err("expected NAME=FILE".to_string()),
        }
    }
}

/// `MODEL.onnx` or `NAME=MODEL.onnx`.
#[derive(Debug, Clone)]
pub(super) struct NamedModel {
    pub(super) name: Option<String>,
    pub(super) path: PathBuf,
}

impl FromStr for NamedModel {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A file whose name holds `=` is more likely meant than an entry with a missing file.
        let named = text.split_once('=').filter(|(name, path)| {
            !name.is_empty() && !path.is_empty() && !name.contains('/') && !PathBuf::from(text).exists()
        });
        Ok(match named {
            Some((name, path)) => NamedModel { name: Some(name.to_string()), path: PathBuf::from(path) },
            None => NamedModel { name: None, path: PathBuf::from(text) },
        })
    }
}

/// `PATTERN=TYPE[:BLOCK]`.
#[derive(Debug, Clone)]
pub(super) struct NamedPrecision {
    pub(super) pattern: String,
    pub(super) precision: Precision,
}

impl FromStr for NamedPrecision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Names may hold `=`; precisions do not.
        match text.rsplit_once('=') {
            Some((pattern, precision)) if !pattern.is_empty() => {
                Ok(NamedPrecision { pattern: pattern.to_string(), precision: precision.parse()? })
            }
            _ => Err("expected PATTERN=TYPE, as ffn.*=i4".to_string()),
        }
    }
}

/// Bytes, as `512MiB`, `2GB` or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) bytes: u64,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected a size as 512MiB, 2GB or a number of bytes".to_string();
        let digits = text.find(|letter: char| !(letter.is_ascii_digit() || letter == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let scale: u64 = match unit.trim() {
            "" | "B" => 1,
            "kB" | "KB" => 1000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            "KiB" | "K" => 1 << 10,
            "MiB" | "M" => 1 << 20,
            "GiB" | "G" => 1 << 30,
            "TiB" | "T" => 1 << 40,
            _ => return Err(expected()),
        };
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(scale).ok_or_else(|| format!("{text} is more than can be counted"))?,
            Err(_) => {
                let fraction = number.parse::<f64>().map_err(|_| expected())? * scale as f64;
                if fraction >= u64::MAX as f64 {
                    return Err(format!("{text} is more than can be counted"));
                }
                fraction as u64
            }
        };
        Ok(Size { bytes })
    }
}

/// `NAME=N`, or `NAME=A..B` with both ends included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dimension {
    pub(super) name: String,
    pub(super) minimum: i64,
    pub(super) maximum: i64,
}

impl Dimension {
    /// The value, where there is only one.
    pub(super) fn value(&self) -> Option<i64> {
        (self.minimum == self.maximum).then_some(self.minimum)
    }
}

impl FromStr for Dimension {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Names of dimensions are free text; values hold no `=` but that of `..=`.
        let split = text.replace("..=", "..");
        let (name, value) = split.rsplit_once('=').ok_or("expected NAME=N or NAME=A..B")?;
        let number = |text: &str| text.trim().parse::<i64>().ok().filter(|&number| number >= 0);
        let range = match value.split_once("..") {
            Some((minimum, maximum)) => number(minimum).zip(number(maximum)),
            None => number(value).map(|number| (number, number)),
        };
        let (minimum, maximum) = range.ok_or("expected NAME=N or NAME=A..B with numbers of at least 0")?;
        if name.is_empty() {
            return Err("expected NAME=N or NAME=A..B".to_string());
        }
        if minimum > maximum {
            return Err(format!("the range {minimum}..{maximum} is empty"));
        }
        Ok(Dimension { name: name.to_string(), minimum, maximum })
    }
}

/// A dimension has one size or range.
pub(super) fn check_once(dimensions: &[Dimension]) -> Result<(), Failure> {
    let mut names = std::collections::BTreeSet::new();
    match dimensions.iter().find(|dimension| !names.insert(&dimension.name)) {
        Some(twice) => Err(Failure::usage(format!("dimension `{}` is given twice", twice.name))),
        None => Ok(()),
    }
}

/// Values of dimensions, each given once; a range is none.
pub(super) fn bindings(dimensions: &[Dimension]) -> Result<Bindings, Failure> {
    check_once(dimensions)?;
    let mut values = Bindings::default();
    for dimension in dimensions {
        let one_size = || Failure::usage(format!("dimension `{}` needs one size", dimension.name));
        values.insert(dimension.name.as_str(), dimension.value().ok_or_else(one_size)?);
    }
    Ok(values)
}

/// A tolerance.
pub(super) fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number >= 0.0);
    number.ok_or_else(|| "expected a number of at least 0".to_string())
}

/// A number of threads.
pub(super) fn threads(text: &str) -> Result<usize, String> {
    /// More than this many is a slip of the finger, which the system would answer for us.
    const MOST: usize = 1 << 10;
    let number = text.parse::<usize>().ok().filter(|number| (1..=MOST).contains(number));
    number.ok_or_else(|| format!("expected a number from 1 to {MOST}"))
}

/// How often something is done.
pub(super) fn times(text: &str) -> Result<u32, String> {
    let number = text.parse::<u32>().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "expected a number of at least 1".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dimension(text: &str) -> Result<(String, i64, i64), String> {
        text.parse().map(|dimension: Dimension| (dimension.name, dimension.minimum, dimension.maximum))
    }

    #[test]
    fn dimensions_are_sizes_or_ranges() {
        assert_eq!(dimension("batch=4"), Ok(("batch".to_string(), 4, 4)));
        assert_eq!(dimension("seq=1..2048"), Ok(("seq".to_string(), 1, 2048)));
        assert_eq!(dimension("seq=1..=8"), Ok(("seq".to_string(), 1, 8)));
        assert_eq!(dimension("a=b=3"), Ok(("a=b".to_string(), 3, 3)));
        for wrong in ["batch", "batch=", "=3", "batch=-1", "batch=5..2", "batch=x", "batch=1..", "batch=1.5"] {
            assert!(dimension(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn models_may_have_names() {
        let parse = |text: &str| -> (Option<String>, PathBuf) {
            let model: NamedModel = text.parse().unwrap();
            (model.name, model.path)
        };
        assert_eq!(parse("a.onnx"), (None, "a.onnx".into()));
        assert_eq!(parse("encoder=a.onnx"), (Some("encoder".to_string()), "a.onnx".into()));
        assert_eq!(parse("folder/x=y.onnx"), (None, "folder/x=y.onnx".into()));
    }
}
