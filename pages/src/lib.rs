//! Page-aligned memory for direct reads and writes, on huge pages where it is large.

#![allow(unsafe_code, reason = "the system takes memory back")]

use memmap2::MmapMut;
use std::io;
use std::ops::{Deref, DerefMut, Range};

/// Size of a huge page.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory that begins at a page border, as direct reads and writes require. From 2 MiB on it begins at the border of a huge
/// page and consists of huge pages: one translation and one descriptor for the device instead of 512, which makes direct
/// reads about three times as fast.
#[derive(Debug)]
pub struct Pages {
    map: MmapMut,
    start: usize,
    length: usize,
}

impl Pages {
    /// Zeroed memory of `length` bytes.
    ///
    /// # Errors
    /// The system's error where it has no more memory.
    pub fn zeroed(length: usize) -> io::Result<Self> {
        let slack = if length >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 0 };
        let map = MmapMut::map_anon(length.max(1).saturating_add(slack))?;
        #[cfg(target_os = "linux")]
        if slack > 0 {
            // Small pages serve as well, only slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let start = if slack > 0 { map.as_ptr().align_offset(HUGE_PAGE_BYTES) } else { 0 };
        Ok(Pages { map, start, length })
    }

    /// Gives the memory of these bytes back to the system, as far as it allows; they are unspecified until they are written
    /// again.
    ///
    /// # Safety
    /// Nobody refers to these bytes.
    ///
    /// # Panics
    /// Where the range is not inside.
    pub unsafe fn discard(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} of {} bytes", self.length);
        #[cfg(target_os = "linux")]
        if !range.is_empty() {
            let (offset, length) = (self.start + range.start, range.end - range.start);
            // SAFETY: the memory is anonymous and private, so that it only becomes zeros, and the caller says that nobody
            // refers to it. Where the system keeps it, nothing changes.
            let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, length) };
        }
    }
}

impl Deref for Pages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.map[self.start..self.start + self.length]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.length]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests panic")]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_at_a_page_or_at_a_huge_one() {
        for (length, alignment) in
            [(0, 4096), (5, 4096), (HUGE_PAGE_BYTES, HUGE_PAGE_BYTES), (5 << 20, HUGE_PAGE_BYTES)]
        {
            let mut pages = Pages::zeroed(length).unwrap();
            assert_eq!((pages.len(), pages.as_ptr().align_offset(alignment)), (length, 0), "{length}");
            assert!(pages.iter().all(|&byte| byte == 0));
            pages.fill(1);
        }
        assert!(Pages::zeroed(usize::MAX / 2).is_err());
    }

    #[test]
    fn discarded_bytes_can_be_written_again_and_others_stay() {
        let mut pages = Pages::zeroed(4 * 4096).unwrap();
        pages.fill(7);
        // SAFETY: nothing refers to the bytes.
        unsafe { pages.discard(4096..3 * 4096) };
        assert!(pages[..4096].iter().chain(&pages[3 * 4096..]).all(|&byte| byte == 7));
        pages[4096..3 * 4096].fill(9);
        assert_eq!((pages[4096], pages[3 * 4096 - 1]), (9, 9));
    }
}
