//! Buffers of results that are sized while running; kept for the next one of about the size.

use aligned_vec::{AVec, ConstAlign};
use ipuc_formats::tensor::Storage;
use std::sync::{Arc, Mutex, PoisonError};

type Buffer = AVec<u8, ConstAlign<64>>;

/// Buffers kept at a time; the smallest go first.
const KEPT_BUFFERS: usize = 64;

/// Buffers that nobody uses.
#[derive(Default)]
pub(crate) struct Pool {
    free: Mutex<Vec<Buffer>>,
}

impl Pool {
    /// A buffer of this many bytes with unspecified contents; `None` where there is no memory for it.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<PoolBytes> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // The smallest that is large enough, unless it is more than twice as large.
        let fitting = free.partition_point(|buffer| buffer.len() < bytes);
        let kept = free.get(fitting).filter(|buffer| buffer.len() / 2 <= bytes).map(|_| fitting);
        let buffer = kept.map(|index| free.remove(index));
        drop(free);
        let buffer = match buffer {
            Some(buffer) => buffer,
            None => {
                let mut buffer = Buffer::new(64);
                buffer.try_reserve_exact(bytes).ok()?;
                buffer.resize(bytes, 0);
                buffer
            }
        };
        Some(PoolBytes { pool: self.clone(), buffer, bytes })
    }

    fn give_back(&self, buffer: Buffer) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let place = free.partition_point(|other| other.len() < buffer.len());
        free.insert(place, buffer);
        if free.len() > KEPT_BUFFERS {
            free.remove(0);
        }
    }
}

/// A buffer in use; dropping it gives it back.
pub(crate) struct PoolBytes {
    pool: Arc<Pool>,
    buffer: Buffer,
    bytes: usize,
}

impl Storage for PoolBytes {
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.bytes]
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer[..self.bytes])
    }
}

impl Drop for PoolBytes {
    fn drop(&mut self) {
        let buffer = std::mem::replace(&mut self.buffer, Buffer::new(64));
        self.pool.give_back(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let pool = Arc::new(Pool::default());
        let first = pool.take(1000).unwrap();
        let address = first.bytes().as_ptr();
        drop(first);
        assert_eq!(pool.take(900).unwrap().bytes().as_ptr(), address);
        assert_ne!(pool.take(100).unwrap().bytes().len(), 1000);
        let held = pool.take(900).unwrap();
        assert_ne!(pool.take(900).unwrap().bytes().as_ptr(), held.bytes().as_ptr());
    }
}
