//! Weights that a stream brings: into the memory where they stay, while steps wait for those that are not there yet.

use super::shared::{Copied, SharedBytes};
use crate::error::OpenError;
use crate::memory::Charge;
use ipuc_codes::aligned::{AlignedBytes, Page};
use ipuc_formats::model::Manifest;
use ipuc_formats::size::Size;
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// Chunks of a stream, as far as they are there.
pub(super) struct Arrivals {
    chunks: Vec<OnceLock<SharedBytes>>,
    /// Why no more comes.
    ended: Mutex<Option<String>>,
    more: Condvar,
    /// Of all chunks.
    _charge: Charge,
}

impl Arrivals {
    /// Read all chunks on a thread, in order.
    ///
    /// # Errors
    /// [`OpenError::Memory`] where the system starts no thread.
    pub(super) fn begin(
        manifest: &Arc<Manifest>,
        mut stream: impl Read + Send + 'static,
        charge: Charge,
    ) -> Result<Arc<Arrivals>, OpenError> {
        let chunks = manifest.chunks.iter().map(|_| OnceLock::new()).collect();
        let arrivals = Arc::new(Arrivals { chunks, ended: Mutex::default(), more: Condvar::new(), _charge: charge });
        let (told, lengths) = (arrivals.clone(), manifest.clone());
        let read = move || {
            // Chunks follow one another without gaps, as validation has checked.
            for (place, record) in told.chunks.iter().zip(&lengths.chunks) {
                match read_chunk(&mut stream, record.length) {
                    // Each is set once.
                    Ok(bytes) => drop(place.set(bytes)),
                    Err(reason) => return told.end(reason),
                }
                told.wake();
            }
        };
        let started = std::thread::Builder::new().name("ipuc-pipe".to_string()).spawn(read);
        let needed_bytes = manifest.chunks.iter().map(|chunk| chunk.length).sum();
        started.map_err(|_| OpenError::Memory { needed_bytes, available_bytes: 0 })?;
        Ok(arrivals)
    }

    fn end(&self, reason: String) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.more.notify_all();
    }

    fn wake(&self) {
        // With the lock, so that nobody begins to wait between a look and this.
        drop(self.ended.lock().unwrap_or_else(PoisonError::into_inner));
        self.more.notify_all();
    }

    /// The bytes of a chunk once they are there, or why they never will be.
    pub(super) fn chunk(&self, index: u32) -> Result<SharedBytes, String> {
        let place = &self.chunks[index as usize];
        if let Some(bytes) = place.get() {
            return Ok(bytes.clone());
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(bytes) = place.get() {
                return Ok(bytes.clone());
            }
            if let Some(reason) = &*ended {
                return Err(reason.clone());
            }
            ended = self.more.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn read_chunk(stream: &mut impl Read, length: u64) -> Result<SharedBytes, String> {
    let short = || format!("there is no memory for a chunk of {}", Size(length));
    let bytes = usize::try_from(length).ok().and_then(|length| AlignedBytes::<Page>::zeroed(length).ok());
    let mut bytes = bytes.ok_or_else(short)?;
    stream.read_exact(&mut bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => "the pipe ends before the file does".to_string(),
        _ => format!("the pipe fails: {error}"),
    })?;
    Ok(Arc::new(Copied(bytes)))
}
