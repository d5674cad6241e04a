//! Versions of the operator sets that a model or function imports.

use ipuc_formats::onnx::schema::OperatorSetIdProto;
use std::collections::BTreeMap;

/// Versions of operator sets by domain.
pub(crate) type Opsets = BTreeMap<String, i64>;

/// The default domain has two spellings.
pub(crate) fn canonical_domain(domain: Option<&str>) -> &str {
    match domain {
        None | Some("ai.onnx") => "",
        Some(domain) => domain,
    }
}

/// Versions of operator sets that a model or function imports.
pub(crate) fn opsets(imports: &[OperatorSetIdProto]) -> Opsets {
    imports
        .iter()
        .map(|import| (canonical_domain(import.domain.as_deref()).to_string(), import.version.unwrap_or(0)))
        .collect()
}
