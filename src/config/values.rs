//! Values that are written as text: sizes, durations, switches, numbers of CPUs, socket paths.
//!
//! Promises: pure, and an error says what would be right (who asks puts the name and the value
//! before it). Called by `cli` and by the parser of ports.

#![forbid(unsafe_code)]

use crate::packet::{MAX_PACKET, MIN_PACKET};
use crate::sys::unix::MAX_PATH;
use crate::wire::Mac;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Why a value was refused, and what would be right.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// A frame size.
    #[error("a frame has {MIN_PACKET} to {MAX_PACKET} bytes")]
    Size,
    /// A number outside of its range.
    #[error("a number from {0} to {1}")]
    Number(u64, u64),
    /// A ring size.
    #[error("a power of two from 2 to 32768")]
    RingSize,
    /// The size of a block of a packet socket's ring.
    #[error("a power of two from 64k to 16M, like 256k or 1M")]
    Block,
    /// The number of a VLAN.
    #[error("a VLAN is a number from 1 to 4094")]
    Vid,
    /// A port is one or the other.
    #[error("vlan= is for frames without a tag and trunk= for those with one; give one of them")]
    VlanAndTrunk,
    /// The address of one host.
    #[error("a unicast MAC address like 52:54:00:00:00:01; several with + between them")]
    Mac,
    /// Packets a second.
    #[error("packets a second are a number above 0, like 1000, 50k or 2M")]
    Rate,
    /// A duration.
    #[error(
        "a duration is a number above 0 with a unit, like 500ms, 5s or 1m; without one, seconds"
    )]
    Duration,
    /// On or off.
    #[error("on or off")]
    Switch,
    /// The number of a CPU.
    #[error("the number of a CPU")]
    Cpu,
    /// A path that no socket can have.
    #[error("the path of a socket has 1 to {MAX_PATH} bytes")]
    SocketPath,
}

/// A frame size in bytes.
pub fn size(text: &str) -> Result<usize, ValueError> {
    number(text, MIN_PACKET as u64..=MAX_PACKET as u64)
        .map(|size| size as usize)
        .map_err(|_| ValueError::Size)
}

/// A decimal number in `range`.
pub fn number(text: &str, range: RangeInclusive<u64>) -> Result<u64, ValueError> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|n| digits && range.contains(n));
    number.ok_or(ValueError::Number(*range.start(), *range.end()))
}

/// Queue pairs.
pub fn queues(text: &str) -> Result<u16, ValueError> {
    number(text, 1..=128).map(|n| n as u16)
}

/// The size of a split ring.
pub fn ring_size(text: &str) -> Result<u16, ValueError> {
    let size = number(text, 2..=32768).ok().filter(|n| n.is_power_of_two());
    size.map(|n| n as u16).ok_or(ValueError::RingSize)
}

/// Packets a second, with `k` or `M` for thousands and millions.
pub fn rate(text: &str) -> Result<u64, ValueError> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1000),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1_000_000)),
    };
    number(digits, 1..=1_000_000_000).map(|n| n * unit).map_err(|_| ValueError::Rate)
}

/// The number of a VLAN.
pub fn vid(text: &str) -> Result<u16, ValueError> {
    number(text, 1..=4094).map(|n| n as u16).map_err(|_| ValueError::Vid)
}

/// The MAC address of one host.
pub fn unicast(text: &str) -> Result<Mac, ValueError> {
    let byte = |part: &str| {
        let digits = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        u8::from_str_radix(part, 16).ok().filter(|_| digits)
    };
    let bytes: Option<Vec<_>> = text.split(':').map(byte).collect();
    let mac = bytes.and_then(|bytes| Mac::try_from(bytes).ok()).filter(|mac| mac[0] & 1 == 0);
    mac.ok_or(ValueError::Mac)
}

/// The number of an fd, but for the standard ones.
pub fn fd(text: &str) -> Result<i32, ValueError> {
    number(text, 3..=i32::MAX as u64).map(|n| n as i32)
}

/// Bytes of a block, with `k` or `M` for powers of 1024.
pub fn block(text: &str) -> Result<usize, ValueError> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let size = number(digits, 1..=1 << 24).map_err(|_| ValueError::Block)? * unit;
    let fits = size.is_power_of_two() && (1 << 16..=1 << 24).contains(&size);
    if fits { Ok(size as usize) } else { Err(ValueError::Block) }
}

/// Blocks of a ring.
pub fn blocks(text: &str) -> Result<usize, ValueError> {
    number(text, 2..=4096).map(|n| n as usize)
}

/// `5s`, `500ms`, `1m`, `1.5` (seconds).
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = text[..text.len() - unit.len()].parse().map_err(|_| ValueError::Duration)?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        _ => return Err(ValueError::Duration),
    };
    let duration = Duration::try_from_secs_f64(seconds).ok();
    duration.filter(|d| !d.is_zero()).ok_or(ValueError::Duration)
}

/// `on` or `off`.
pub fn switch(text: &str) -> Result<bool, ValueError> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(ValueError::Switch),
    }
}

/// The number of a CPU.
pub fn cpu(text: &str) -> Result<usize, ValueError> {
    number(text, 0..=u32::MAX.into()).map(|n| n as usize).map_err(|_| ValueError::Cpu)
}

/// A path that a socket can have.
pub fn socket_path(text: &str) -> Result<std::path::PathBuf, ValueError> {
    if text.is_empty() || text.len() > MAX_PATH {
        return Err(ValueError::SocketPath);
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers_have_ranges() {
        assert_eq!([size("14"), size("65535")], [Ok(14), Ok(65535)]);
        for bad in ["13", "65536", "", "-1", "+64", "64b", "99999999999999999999"] {
            assert_eq!(size(bad), Err(ValueError::Size), "{bad}");
        }
        assert_eq!(ValueError::Size.to_string(), "a frame has 14 to 65535 bytes");
        assert_eq!(number("64", 1..=64), Ok(64));
        assert_eq!(number("65", 1..=64).unwrap_err().to_string(), "a number from 1 to 64");
        assert_eq!([queues("1"), queues("128")], [Ok(1), Ok(128)]);
        assert!(queues("0").is_err() && queues("129").is_err());
        assert_eq!([ring_size("2"), ring_size("32768")], [Ok(2), Ok(32768)]);
        for bad in ["1", "3", "65536", "0"] {
            assert_eq!(ring_size(bad), Err(ValueError::RingSize), "{bad}");
        }
    }

    #[test]
    fn durations_have_units() {
        let good = [
            ("5s", 5000),
            ("500ms", 500),
            ("1m", 60_000),
            ("7", 7000),
            ("1.5", 1500),
            ("0.5m", 30_000),
        ];
        for (text, ms) in good {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "s", "0", "0s", "-1s", "5 s", "5h", "1e99", "1.2.3", ".", "five", "5sec"] {
            assert_eq!(duration(bad), Err(ValueError::Duration), "{bad}");
        }
        // More seconds than a Duration holds.
        assert_eq!(duration(&"9".repeat(40)), Err(ValueError::Duration));
    }

    #[test]
    fn rates_have_units() {
        assert_eq!([rate("7"), rate("50k"), rate("2M")], [Ok(7), Ok(50_000), Ok(2_000_000)]);
        for bad in ["", "0", "k", "1G", "-1", "1.5k"] {
            assert_eq!(rate(bad), Err(ValueError::Rate), "{bad}");
        }
    }

    #[test]
    fn blocks_are_powers_of_two() {
        assert_eq!(
            [block("64k"), block("1M"), block("131072")],
            [Ok(1 << 16), Ok(1 << 20), Ok(1 << 17)]
        );
        for bad in ["", "k", "3M", "32M", "32k", "64kb", "-1M", "1 M"] {
            assert_eq!(block(bad), Err(ValueError::Block), "{bad}");
        }
    }

    #[test]
    fn switches_are_on_or_off() {
        assert_eq!([switch("on"), switch("off")], [Ok(true), Ok(false)]);
        assert_eq!(switch("yes").unwrap_err().to_string(), "on or off");
    }

    #[test]
    fn socket_paths_are_short() {
        assert!(socket_path(&"a".repeat(107)).is_ok());
        for bad in ["", &"a".repeat(108)] {
            let refused = socket_path(bad).unwrap_err().to_string();
            assert_eq!(refused, "the path of a socket has 1 to 107 bytes");
        }
    }

    #[test]
    fn cpus_are_numbers() {
        assert_eq!(cpu("7"), Ok(7));
        assert_eq!(cpu("x").unwrap_err().to_string(), "the number of a CPU");
    }
}
