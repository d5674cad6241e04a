//! Memory that somebody else writes next, taken out of our caches.
#![allow(unsafe_code, reason = "the instruction has no intrinsic")]

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Writes the cache lines of `bytes` back to memory and drops them from all caches. Nothing happens on processors without
/// an instruction for it that can overlap with others.
#[cfg(target_arch = "x86_64")]
pub fn flush_lines(bytes: &[u8]) {
    if bytes.is_empty() || !*HAS_CLFLUSHOPT {
        return;
    }
    let start = bytes.as_ptr();
    let before = start.addr() % LINE_BYTES;
    for offset in (0..before + bytes.len()).step_by(LINE_BYTES) {
        let line = start.wrapping_sub(before).wrapping_add(offset);
        // SAFETY: the line has a byte of `bytes` in it, so that it is mapped; its values stay as they are.
        unsafe { std::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
    }
}

/// Nothing happens here.
#[cfg(not(target_arch = "x86_64"))]
pub fn flush_lines(_bytes: &[u8]) {}

/// CPUID leaf 7, EBX bit 23 (Intel SDM volume 2, CLFLUSHOPT).
#[cfg(target_arch = "x86_64")]
static HAS_CLFLUSHOPT: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & 1 << 23 != 0
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay() {
        let bytes: Vec<u8> = (0..1000u32).map(|value| value as u8).collect();
        for range in [0..1000, 1..1, 1..2, 63..65, 130..777] {
            flush_lines(&bytes[range]);
        }
        flush_lines(&[]);
        assert!(bytes.iter().zip(0..1000u32).all(|(&byte, value)| byte == value as u8));
    }
}
