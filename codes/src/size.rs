//! Sizes as people read them.

use std::fmt;

/// A number of bytes: `512 B`, `8.00 MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl From<u64> for Size {
    fn from(bytes: u64) -> Size {
        Size(bytes)
    }
}

impl From<usize> for Size {
    fn from(bytes: usize) -> Size {
        Size(bytes as u64)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_size(formatter, self.0, |size| size)
    }
}

/// A number of bytes that is needed, rounded up, so that what is shown is enough where it is given back as a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NeededSize(pub u64);

impl fmt::Display for NeededSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_size(formatter, self.0, |size| (size * 100.0).ceil() / 100.0)
    }
}

fn write_size(formatter: &mut fmt::Formatter<'_>, bytes: u64, rounded: fn(f64) -> f64) -> fmt::Result {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let Some(first) = (bytes >= 1024).then_some(bytes as f64 / 1024.0) else {
        return write!(formatter, "{bytes} B");
    };
    let (mut size, mut unit) = (first, 0);
    // What would be rounded to 1024 is one of the next unit.
    while rounded(size) >= 1023.995 && unit + 1 < UNITS.len() {
        (size, unit) = (size / 1024.0, unit + 1);
    }
    write!(formatter, "{:.2} {}", rounded(size), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_people_read() {
        let text = |bytes: u64| Size(bytes).to_string();
        assert_eq!([0, 1023, 1024, 1536].map(text), ["0 B", "1023 B", "1.00 KiB", "1.50 KiB"]);
        assert_eq!([8 << 20, (1 << 20) - 1, 3 << 30].map(text), ["8.00 MiB", "1.00 MiB", "3.00 GiB"]);
        assert_eq!(text(u64::MAX), "16777216.00 TiB");
    }

    #[test]
    fn needed_sizes_are_rounded_up() {
        let text = |bytes: u64| NeededSize(bytes).to_string();
        assert_eq!([1023, 1024, 1025].map(text), ["1023 B", "1.00 KiB", "1.01 KiB"]);
        assert_eq!([(1 << 20) - 1, (1 << 20) + 1].map(text), ["1.00 MiB", "1.01 MiB"]);
    }
}
