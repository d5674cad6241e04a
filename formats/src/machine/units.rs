//! Quantities with units as types: a clock is not a time, an energy for each bit is not one for each byte.
//!
//! In text every quantity has its unit (`1.5 GHz`, `624 KiB`, `3.9 pJ/bit`); a number without one is refused.

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};
use std::str::FromStr;

/// One unit of a quantity: how it is written, and what 1 of it is in the base unit.
type Unit = (&'static str, f64);

macro_rules! quantities {
    ($($(#[$doc:meta])* $name:ident $sign:ident [$($text:literal = $scale:expr),+ $(,)?];)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
            pub struct $name(pub f64);

            impl $name {
                const UNITS: &'static [Unit] = &[$(($text, $scale)),+];
            }

            impl FromStr for $name {
                type Err = String;

                fn from_str(text: &str) -> Result<Self, String> {
                    parse(text, Self::UNITS, Sign::$sign).map($name)
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_any(Text(Self::UNITS))?.parse().map_err(D::Error::custom)
                }
            }

            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    // Not as for people, who want few digits.
                    let (name, scale) = Self::UNITS[0];
                    serializer.collect_str(&format_args!("{} {name}", self.0 / scale))
                }
            }

            impl fmt::Display for $name {
                fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write(formatter, self.0, Self::UNITS)
                }
            }

            impl Add for $name {
                type Output = $name;
                fn add(self, other: $name) -> $name {
                    $name(self.0 + other.0)
                }
            }

            impl Sub for $name {
                type Output = $name;
                fn sub(self, other: $name) -> $name {
                    $name(self.0 - other.0)
                }
            }

            impl AddAssign for $name {
                fn add_assign(&mut self, other: $name) {
                    self.0 += other.0;
                }
            }

            impl Mul<f64> for $name {
                type Output = $name;
                fn mul(self, factor: f64) -> $name {
                    $name(self.0 * factor)
                }
            }

            impl Div for $name {
                type Output = f64;
                fn div(self, other: $name) -> f64 {
                    self.0 / other.0
                }
            }

            impl Sum for $name {
                fn sum<I: Iterator<Item = $name>>(items: I) -> $name {
                    // The sum of no floats is -0 in the standard library.
                    $name(items.fold(0.0, |sum, item| sum + item.0))
                }
            }

            impl $name {
                /// The greater of two.
                #[must_use]
                pub fn max(self, other: $name) -> $name {
                    $name(self.0.max(other.0))
                }

                /// The smaller of two.
                #[must_use]
                pub fn min(self, other: $name) -> $name {
                    $name(self.0.min(other.0))
                }
            }
        )+
    };
}

/// Whether 0 is a value of a quantity.
#[derive(Clone, Copy)]
enum Sign {
    Positive,
    NotNegative,
}

const KIBI: f64 = 1024.0;

quantities! {
    /// Cycles of a clock.
    Cycles NotNegative ["cycles" = 1.0];
    /// A frequency of a clock.
    Hertz Positive ["Hz" = 1.0, "kHz" = 1e3, "MHz" = 1e6, "GHz" = 1e9];
    /// A time.
    Seconds NotNegative ["s" = 1.0, "ms" = 1e-3, "us" = 1e-6, "ns" = 1e-9, "ps" = 1e-12];
    /// A number of bytes.
    Bytes Positive [
        "B" = 1.0, "KiB" = KIBI, "MiB" = KIBI * KIBI, "GiB" = KIBI * KIBI * KIBI, "TiB" = KIBI * KIBI * KIBI * KIBI,
        "kB" = 1e3, "MB" = 1e6, "GB" = 1e9, "TB" = 1e12,
    ];
    /// Bytes in each second.
    BytesPerSecond Positive ["B/s" = 1.0, "MB/s" = 1e6, "GB/s" = 1e9, "TB/s" = 1e12, "PB/s" = 1e15];
    /// Bytes in each cycle of a clock.
    BytesPerCycle Positive ["B/cycle" = 1.0];
    /// An energy.
    Joules NotNegative ["J" = 1.0, "mJ" = 1e-3, "uJ" = 1e-6, "nJ" = 1e-9, "pJ" = 1e-12];
    /// An energy for each byte. An energy for each bit is eight times as much for a byte.
    JoulesPerByte NotNegative ["pJ/B" = 1e-12, "pJ/bit" = 8e-12];
    /// An energy for each operation.
    JoulesPerOperation NotNegative ["pJ/op" = 1e-12];
    /// A power.
    Watts NotNegative ["W" = 1.0, "mW" = 1e-3, "kW" = 1e3];
    /// A temperature.
    Celsius NotNegative ["C" = 1.0];
    /// A difference of temperatures for each power that flows.
    KelvinPerWatt Positive ["K/W" = 1.0];
    /// Heat for each difference of temperatures.
    JoulesPerKelvin Positive ["J/K" = 1.0, "kJ/K" = 1e3];
}

impl Div<Hertz> for Cycles {
    type Output = Seconds;
    fn div(self, clock: Hertz) -> Seconds {
        Seconds(self.0 / clock.0)
    }
}

impl Mul<Hertz> for Seconds {
    type Output = Cycles;
    fn mul(self, clock: Hertz) -> Cycles {
        Cycles(self.0 * clock.0)
    }
}

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;
    fn div(self, rate: BytesPerSecond) -> Seconds {
        Seconds(self.0 / rate.0)
    }
}

impl Div<BytesPerCycle> for Bytes {
    type Output = Cycles;
    fn div(self, rate: BytesPerCycle) -> Cycles {
        Cycles(self.0 / rate.0)
    }
}

impl Mul<Bytes> for JoulesPerByte {
    type Output = Joules;
    fn mul(self, bytes: Bytes) -> Joules {
        Joules(self.0 * bytes.0)
    }
}

impl JoulesPerOperation {
    /// The energy of so many operations.
    #[must_use]
    pub fn of(self, operations: f64) -> Joules {
        Joules(self.0 * operations)
    }
}

impl Mul<Seconds> for Watts {
    type Output = Joules;
    fn mul(self, time: Seconds) -> Joules {
        Joules(self.0 * time.0)
    }
}

impl Div<Seconds> for Joules {
    type Output = Watts;
    fn div(self, time: Seconds) -> Watts {
        Watts(self.0 / time.0)
    }
}

fn names(units: &[Unit]) -> String {
    units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

fn parse(text: &str, units: &[Unit], sign: Sign) -> Result<f64, String> {
    let start = text.find(|letter: char| letter.is_alphabetic() && letter != 'e').unwrap_or(text.len());
    let (number, unit) = text.split_at(start);
    let number: f64 = number.trim().parse().map_err(|_| format!("`{text}` is not a number with a unit"))?;
    let unit = unit.trim();
    let scale = units.iter().find(|(name, _)| *name == unit);
    let Some((_, scale)) = scale else {
        let problem = if unit.is_empty() { "has no unit".to_string() } else { format!("has the unit `{unit}`") };
        return Err(format!("`{text}` {problem}, expected one of {}", names(units)));
    };
    let value = number * scale;
    match sign {
        _ if !value.is_finite() => Err(format!("`{text}` is not finite")),
        _ if value < 0.0 => Err(format!("`{text}` is negative")),
        Sign::Positive if value == 0.0 => Err(format!("`{text}` is zero")),
        Sign::Positive | Sign::NotNegative => Ok(value),
    }
}

/// In the largest unit of which there is at least one.
fn write(formatter: &mut fmt::Formatter<'_>, value: f64, units: &[Unit]) -> fmt::Result {
    let fits = units.iter().filter(|(_, scale)| value.abs() >= *scale);
    let largest = fits.max_by(|(_, left), (_, right)| left.total_cmp(right));
    let (name, scale) =
        largest.or_else(|| units.iter().min_by(|left, right| left.1.total_cmp(&right.1))).unwrap_or(&("", 1.0));
    let number = value / scale;
    let digits = match number.abs() {
        _ if number.fract() == 0.0 => 0,
        magnitude if magnitude >= 100.0 => 1,
        magnitude if magnitude >= 10.0 => 2,
        _ => 3,
    };
    write!(formatter, "{number:.digits$} {name}")
}

/// A text with a unit; a bare number is refused with the units that it may have.
struct Text(&'static [Unit]);

impl serde::de::Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a text with one of the units {}", names(self.0))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_units() {
        assert_eq!("1.5 GHz".parse(), Ok(Hertz(1.5e9)));
        assert_eq!("624KiB".parse(), Ok(Bytes(638_976.0)));
        assert_eq!("1pJ/bit".parse(), Ok(JoulesPerByte(8e-12)));
        assert_eq!("8pJ/B".parse::<JoulesPerByte>(), "1pJ/bit".parse::<JoulesPerByte>());
        assert_eq!("1e3 ns".parse(), Ok(Seconds(1e3 * 1e-9)));
        let refusal = |text: &str| text.parse::<Hertz>().unwrap_err();
        assert_eq!(refusal("1500"), "`1500` has no unit, expected one of Hz, kHz, MHz, GHz");
        assert_eq!(refusal("1 ns"), "`1 ns` has the unit `ns`, expected one of Hz, kHz, MHz, GHz");
        assert_eq!(refusal("0 GHz"), "`0 GHz` is zero");
        assert_eq!(refusal("-1 GHz"), "`-1 GHz` is negative");
        assert_eq!(refusal("fast"), "`fast` is not a number with a unit");
        assert_eq!("-1 pJ/op".parse::<JoulesPerOperation>(), Err("`-1 pJ/op` is negative".to_string()));
    }

    #[test]
    fn quantities_divide_into_others() {
        assert_eq!(Cycles(3e9) / Hertz(1.5e9), Seconds(2.0));
        assert_eq!(Bytes(10.0) / BytesPerSecond(5.0), Seconds(2.0));
        assert_eq!(JoulesPerByte(2.0) * Bytes(3.0), Joules(6.0));
        assert_eq!(Watts(2.0) * Seconds(3.0), Joules(6.0));
    }

    #[test]
    fn quantities_are_printed_in_a_unit_that_fits() {
        assert_eq!(Seconds(0.0015).to_string(), "1.500 ms");
        assert_eq!(Bytes(2048.0).to_string(), "2 KiB");
        assert_eq!(Seconds(0.0).to_string(), "0 ps");
        assert_eq!(Watts(15.0).to_string(), "15 W");
    }
}
