//! Bytes that several readers hold.

use ipuc_formats::tensor::Storage;
use std::ops::Deref;
use std::sync::Arc;

/// Bytes that outlive whoever reads them.
pub type SharedBytes = Arc<dyn Deref<Target = [u8]> + Send + Sync>;

/// A copy of its own, such as one on huge pages.
pub(super) struct Copied<S: Storage>(pub(super) S);

impl<S: Storage> Deref for Copied<S> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}
