//! Memory as the disk and the processor like it.

use memmap2::MmapMut;
use std::io;
use std::ops::{Deref, DerefMut};

/// Size of a huge page.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes that begin at a page, as direct reads and writes ask for; where they are as many as a huge page holds, they begin
/// at such a page and lie on them: the system finds, holds and hands to the disk one page instead of 512, and direct reads
/// are about three times as fast.
#[derive(Debug)]
pub struct Pages {
    map: MmapMut,
    start: usize,
    length: usize,
}

impl Pages {
    /// So many zeros.
    ///
    /// # Errors
    /// What the system says where it has no more memory.
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
}
