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
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        let Some(first) = (self.0 >= 1024).then_some(self.0 as f64 / 1024.0) else {
            return write!(formatter, "{} B", self.0);
        };
        let (mut size, mut unit) = (first, 0);
        // What would be rounded to 1024 is one of the next unit.
        while size >= 1023.995 && unit + 1 < UNITS.len() {
            (size, unit) = (size / 1024.0, unit + 1);
        }
        write!(formatter, "{size:.2} {}", UNITS[unit])
    }
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
}
