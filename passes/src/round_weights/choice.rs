//! What becomes of each weight.

use crate::options::Precision;

/// What is to become of a weight.
pub(super) enum Choice {
    /// Nobody asked.
    Unasked,
    /// It stays, and why.
    Keep(String),
    /// To what, and who says so.
    Round(Precision, String),
    /// The budget decides.
    Budget,
}
