//! Sizes in text: `1MiB`, `64k`, `10GB`, plain bytes. One parser and one printer for flags, policies and reports.

/// The text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a size: write bytes or a number with KiB, MiB, GiB, TiB (or KB, MB, GB, TB for powers of 1000)"
)]
pub struct NotASize(pub String);

const UNITS: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
];

/// Bytes meant by `text`. Units are case-insensitive; a single letter is a power of 1024, as in `dd` and `qemu`.
pub fn parse(text: &str) -> Result<u64, NotASize> {
    let refuse = || NotASize(text.chars().take(40).collect());
    let lower = text.trim().to_ascii_lowercase();
    let (digits, unit) = match UNITS.iter().find(|(suffix, _)| lower.ends_with(suffix)) {
        Some((suffix, unit)) => (lower.strip_suffix(suffix).unwrap_or(&lower).trim_end(), *unit),
        None => (lower.as_str(), 1),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refuse());
    }
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(refuse)
}

/// Exact text for a policy or a flag: the largest unit that divides `bytes`.
pub fn exact(bytes: u64) -> String {
    for (name, unit) in [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    bytes.to_string()
}

/// Rounded text for people: three significant digits and a unit.
pub fn human(bytes: u64) -> String {
    const NAMES: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut name = NAMES[0];
    for next in &NAMES[1..] {
        if value < 1000.0 {
            break;
        }
        value /= 1024.0;
        name = next;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("0", 0), ("1MiB", 1 << 20), ("64k", 65_536), ("10 GB", 10_000_000_000), ("7b", 7)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in ["", "MiB", "-1", "1.5G", "99999999999T", "x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn exact_text_reads_back() {
        for bytes in [0, 1, 1023, 1024, 1 << 20, (1 << 20) + 1, 3 << 30] {
            assert_eq!(parse(&exact(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn people_get_three_digits() {
        assert_eq!(human(999), "999 B");
        assert_eq!(human(1 << 20), "1.00 MiB");
        assert_eq!(human(1_000_000_000), "954 MiB");
    }
}
