//! A forward reader over positional reads, one window at a time.

use std::io;

use crate::limits::ONNX_WINDOW_BYTES;
use crate::read_at::ReadAt;

/// Why a read failed, before the place in the message is known.
#[derive(Debug)]
pub(super) enum WindowError {
    /// The bytes end here.
    End,
    /// An integer of more than 64 bits.
    VarintOverflow,
    /// The medium failed at this offset.
    Io(u64, io::Error),
}

/// Position in the source, with the bytes around it.
pub(super) struct Window<'a> {
    source: &'a dyn ReadAt,
    source_bytes: u64,
    /// Bytes that begin at `start` in the source.
    bytes: Vec<u8>,
    start: u64,
    /// Position within `bytes`.
    at: usize,
}

impl<'a> Window<'a> {
    /// At the beginning of the source.
    pub fn new(source: &'a dyn ReadAt) -> Self {
        Self { source, source_bytes: source.length(), bytes: Vec::new(), start: 0, at: 0 }
    }

    /// Length of the source in bytes.
    pub fn source_bytes(&self) -> u64 {
        self.source_bytes
    }

    /// Offset of the next byte.
    pub fn position(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Goes to any offset up to the end of the source, without reading.
    ///
    /// # Panics
    /// If it lies behind the end.
    pub fn seek(&mut self, offset: u64) {
        assert!(offset <= self.source_bytes, "offset {offset} in a source of {} bytes", self.source_bytes);
        match offset.checked_sub(self.start) {
            Some(distance) if distance <= self.bytes.len() as u64 => self.at = low_usize(distance),
            _ => {
                self.start = offset;
                self.at = 0;
                self.bytes.clear();
            }
        }
    }

    /// Reads the next window, unless some bytes are left in this one.
    fn fill(&mut self) -> Result<(), WindowError> {
        if self.at < self.bytes.len() {
            return Ok(());
        }
        let position = self.position();
        let left = self.source_bytes - position;
        if left == 0 {
            return Err(WindowError::End);
        }
        let wanted = low_usize(left.min(ONNX_WINDOW_BYTES as u64));
        self.start = position;
        self.at = 0;
        self.bytes.resize(wanted, 0);
        let read = self.source.read_exact_at(position, &mut self.bytes);
        read.map_err(|error| {
            self.bytes.clear();
            WindowError::Io(position, error)
        })
    }

    /// The next integer of 1 to 10 bytes.
    pub fn varint(&mut self) -> Result<u64, WindowError> {
        let mut value = 0u64;
        for index in 0..10 {
            self.fill()?;
            let byte = self.bytes[self.at];
            self.at += 1;
            if index == 9 && byte > 1 {
                return Err(WindowError::VarintOverflow);
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(WindowError::VarintOverflow)
    }

    /// Appends the next `length` bytes to `out`. The caller has checked that the source holds them.
    pub fn copy(&mut self, length: u64, out: &mut Vec<u8>) -> Result<(), WindowError> {
        let mut left = low_usize(length);
        while left > 0 {
            if self.at == self.bytes.len() && left >= ONNX_WINDOW_BYTES {
                let position = self.position();
                let start = out.len();
                out.resize(start + left, 0);
                self.source
                    .read_exact_at(position, &mut out[start..])
                    .map_err(|error| WindowError::Io(position, error))?;
                self.seek(position + left as u64);
                return Ok(());
            }
            self.fill()?;
            let count = left.min(self.bytes.len() - self.at);
            out.extend_from_slice(&self.bytes[self.at..self.at + count]);
            self.at += count;
            left -= count;
        }
        Ok(())
    }
}

/// A count of bytes that lie in memory, or are about to.
fn low_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_all_lengths() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            prost::encoding::encode_varint(value, &mut bytes);
            assert_eq!(Window::new(&bytes).varint().unwrap(), value);
            bytes.pop();
            let end = Window::new(&bytes).varint();
            assert!(matches!(end, Err(WindowError::End)), "{value}");
        }
        // The tenth byte holds one bit.
        let mut bytes = vec![0xff; 9];
        bytes.push(2);
        assert!(matches!(Window::new(&bytes).varint(), Err(WindowError::VarintOverflow)));
        let endless = vec![0x80; 20];
        assert!(matches!(Window::new(&endless).varint(), Err(WindowError::VarintOverflow)));
    }

    #[test]
    fn copies_and_seeks_across_windows() {
        let bytes: Vec<u8> = (0..ONNX_WINDOW_BYTES * 3 + 17).map(|index| index as u8).collect();
        let mut window = Window::new(&bytes);
        let mut out = Vec::new();
        window.copy(10, &mut out).unwrap();
        window.copy(ONNX_WINDOW_BYTES as u64 * 2, &mut out).unwrap();
        assert_eq!(out, bytes[..out.len()]);
        assert_eq!(window.position(), out.len() as u64);
        window.seek(5);
        out.clear();
        window.copy(bytes.len() as u64 - 5, &mut out).unwrap();
        assert_eq!(out, bytes[5..]);
        assert!(matches!(window.varint(), Err(WindowError::End)));
    }
}
