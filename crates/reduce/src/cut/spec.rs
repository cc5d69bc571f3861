//! How a folder's policy names a cutter: `fsch:1MiB`, `cbch:m=20,k=14,p=20`, `cdc:64KiB`, `cdc:16KiB/64KiB/256KiB`.
//!
//! A [`CutterSpec`] exists only with values that can work, so that making the cutter can't fail; text that can't be
//! used is refused with the reason. Printed, a spec reads back as itself.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use stdchk_model::size;

use super::cbch::{Cbch, CbchParameters};
use super::cdc::Cdc;
use super::fsch::{Fsch, Grid};
use super::{CutLimits, Cutter, PIECE_BYTES_MAX, PIECE_BYTES_MIN, Scanner};
use crate::grid::Seeker;

/// Most bits of the hash that CbCH may want zero: pieces of 4 MiB need 22 where every byte is tried.
const ZERO_BITS_MAX: u32 = 24;
/// Largest window of CbCH, bytes: 16 times the paper's largest.
const WINDOW_BYTES_MAX: usize = 4096;
/// Smallest average of the default cutter, bytes.
const CDC_AVERAGE_MIN: usize = 2048;
/// Largest average of the default cutter, bytes: its longest piece is four times as long, and must fit a chunk.
const CDC_AVERAGE_MAX: usize = PIECE_BYTES_MAX / 4;

/// A cutter with its parameters, all of them checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutterSpec(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Fsch(NonZeroUsize),
    Cbch(CbchParameters),
    Cdc(CutLimits),
}

/// Why a text names no cutter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a cutter: {reason}; examples: fsch:1MiB, cdc:64KiB, cbch:m=20,k=14,p=20")]
pub struct BadCutter {
    /// The text, shortened.
    pub text: String,
    /// What is wrong with it.
    pub reason: String,
}

impl CutterSpec {
    /// A new cutter of this kind, at the start of a stream.
    pub fn cutter(&self) -> Box<dyn Cutter> {
        match self.0 {
            Kind::Fsch(length) => Box::new(Fsch::new(Grid { length, phase: 0 })),
            Kind::Cbch(parameters) => Box::new(Cbch::new(parameters)),
            Kind::Cdc(limits) => Box::new(Cdc::new(limits)),
        }
    }

    /// A new cutter for a stream whose grid of fixed pieces has this phase: a piece ends at each offset that leaves `phase` when
    /// divided by the length of the pieces. Cutters without a grid ignore it.
    pub fn cutter_at(&self, phase: usize) -> Box<dyn Cutter> {
        match self.0 {
            Kind::Fsch(length) => Box::new(Fsch::new(Grid { length, phase: phase % length })),
            Kind::Cbch(_) | Kind::Cdc(_) => self.cutter(),
        }
    }

    /// What seeks the phase of its grid; `None` for cutters that have none, or whose pieces are too long for it.
    pub fn seeker(&self) -> Option<Seeker> {
        match self.0 {
            Kind::Fsch(length) => Seeker::new(length.get()),
            Kind::Cbch(_) | Kind::Cdc(_) => None,
        }
    }

    /// A new cutter that searches with this scanner in place of the fastest. Cutters other than `cdc` search without one.
    pub fn cutter_with(&self, scanner: Scanner) -> Box<dyn Cutter> {
        match self.0 {
            Kind::Cdc(limits) => Box::new(Cdc::with_scanner(limits, scanner)),
            _ => self.cutter(),
        }
    }

    /// The lengths that its pieces can have.
    pub fn limits(&self) -> CutLimits {
        self.cutter().limits()
    }

    /// Pieces of `bytes` each.
    ///
    /// # Errors
    /// A length outside 512 bytes to 4 MiB.
    pub fn fsch(bytes: usize) -> Result<Self, BadCutter> {
        Ok(Self(fsch(bytes).map_err(|reason| refuse(&format!("fsch:{bytes}"), reason))?))
    }

    /// Content-defined pieces of about `average` bytes, from a quarter of it to four times as long.
    ///
    /// # Errors
    /// An average outside 2 KiB to 1 MiB.
    pub fn cdc(average: usize) -> Result<Self, BadCutter> {
        let limits = around(average);
        Ok(Self(cdc(limits).map_err(|reason| refuse(&format!("cdc:{average}"), reason))?))
    }
}

impl FromStr for CutterSpec {
    type Err = BadCutter;

    fn from_str(text: &str) -> Result<Self, BadCutter> {
        let (kind, values) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
        let kind = match kind {
            "fsch" => bytes(values).and_then(fsch),
            "cbch" => cbch(values),
            "cdc" => cdc_values(values).and_then(cdc),
            _ => Err("a cutter is fsch, cbch or cdc, followed by `:` and its values".to_owned()),
        };
        kind.map(Self).map_err(|reason| refuse(text, reason))
    }
}

fn refuse(text: &str, reason: String) -> BadCutter {
    BadCutter { text: text.chars().take(80).collect(), reason }
}

fn bytes(text: &str) -> Result<usize, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    usize::try_from(bytes).map_err(|_| format!("{bytes} bytes are more than this machine can address"))
}

fn within(what: &str, value: usize, min: usize, max: usize) -> Result<usize, String> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    let [value, min, max] = [value, min, max].map(shown);
    Err(format!("{what} of {value} can't be used, {min} to {max} can"))
}

fn fsch(length: usize) -> Result<Kind, String> {
    let length = within("a piece", length, PIECE_BYTES_MIN, PIECE_BYTES_MAX)?;
    NonZeroUsize::new(length).map(Kind::Fsch).ok_or_else(|| "a piece is never empty".to_owned())
}

fn cbch(values: &str) -> Result<Kind, String> {
    let (mut window, mut zero_bits, mut advance, mut max) = (None, None, None, PIECE_BYTES_MAX);
    for pair in values.split(',') {
        let (name, value) =
            pair.split_once('=').ok_or_else(|| format!("`{pair}` is not of the form m=20"))?;
        match name.trim() {
            "m" => window = Some(bytes(value)?),
            "k" => {
                zero_bits = Some(value.trim().parse().map_err(|_| format!("k is a number, not `{value}`"))?)
            }
            "p" => advance = Some(bytes(value)?),
            "max" => max = bytes(value)?,
            other => return Err(format!("`{other}` is unknown: cbch has m, k, p and max")),
        }
    }
    let window = window.ok_or("the window m is missing")?;
    let zero_bits = zero_bits.ok_or("the number of zero bits k is missing")?;
    cbch_checked(CbchParameters { window, zero_bits, advance: advance.unwrap_or(window), max })
}

fn cbch_checked(parameters: CbchParameters) -> Result<Kind, String> {
    let CbchParameters { window, zero_bits, advance, max } = parameters;
    within("a window m", window, 4, WINDOW_BYTES_MAX)?;
    if !(1..=ZERO_BITS_MAX).contains(&zero_bits) {
        return Err(format!("k is 1 to {ZERO_BITS_MAX} bits, not {zero_bits}"));
    }
    if advance == 0 || advance > window {
        return Err(format!(
            "p is 1 (overlap) to m = {window} (no-overlap), or bytes would be skipped; not {advance}"
        ));
    }
    within("a longest piece", max, window.max(PIECE_BYTES_MIN), PIECE_BYTES_MAX)?;
    Ok(Kind::Cbch(parameters))
}

fn around(average: usize) -> CutLimits {
    CutLimits { min: average / 4, average, max: average.saturating_mul(4) }
}

fn cdc_values(values: &str) -> Result<CutLimits, String> {
    match values.split('/').collect::<Vec<_>>().as_slice() {
        [average] => bytes(average).map(around),
        [min, average, max] => Ok(CutLimits { min: bytes(min)?, average: bytes(average)?, max: bytes(max)? }),
        _ => Err("cdc has one value, its average, or three, as in cdc:16KiB/64KiB/256KiB".to_owned()),
    }
}

fn cdc(limits: CutLimits) -> Result<Kind, String> {
    let CutLimits { min, average, max } = limits;
    within("an average", average, CDC_AVERAGE_MIN, CDC_AVERAGE_MAX)?;
    within("a shortest piece", min, PIECE_BYTES_MIN, average / 2)?;
    within("a longest piece", max, average.saturating_mul(2), PIECE_BYTES_MAX)?;
    Ok(Kind::Cdc(limits))
}

fn shown(bytes: usize) -> String {
    size::exact(bytes as u64)
}

impl fmt::Display for CutterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Fsch(length) => write!(f, "fsch:{}", shown(length.get())),
            Kind::Cbch(parameters) => fmt_cbch(parameters, f),
            Kind::Cdc(limits) if limits == around(limits.average) => {
                write!(f, "cdc:{}", shown(limits.average))
            }
            Kind::Cdc(CutLimits { min, average, max }) => {
                write!(f, "cdc:{}/{}/{}", shown(min), shown(average), shown(max))
            }
        }
    }
}

fn fmt_cbch(parameters: CbchParameters, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let CbchParameters { window, zero_bits, advance, max } = parameters;
    write!(f, "cbch:m={window},k={zero_bits},p={advance}")?;
    if max == PIECE_BYTES_MAX { Ok(()) } else { write!(f, ",max={}", shown(max)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_reads_back_what_it_prints() {
        let texts = [
            "fsch:1MiB",
            "fsch:1KiB",
            "fsch:1000",
            "cbch:m=20,k=14,p=20",
            "cbch:m=20,k=14,p=1",
            "cbch:m=256,k=8,p=256,max=1MiB",
            "cdc:64KiB",
            "cdc:8KiB/64KiB/256KiB",
        ];
        for text in texts {
            assert_eq!(text.parse::<CutterSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_spellings_mean_the_same() {
        for (text, meant) in [
            ("cdc:16KiB/64KiB/256KiB", "cdc:64KiB"),
            (" cdc:65536 ", "cdc:64KiB"),
            ("cbch:k=14, m=20", "cbch:m=20,k=14,p=20"),
            ("fsch:1m", "fsch:1MiB"),
        ] {
            assert_eq!(text.parse::<CutterSpec>().unwrap().to_string(), meant);
        }
    }

    #[test]
    fn values_that_cannot_work_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "fsch, cbch or cdc"),
            ("rabin:1MiB", "fsch, cbch or cdc"),
            ("fsch", "not a size"),
            ("fsch:0", "512 to 4MiB"),
            ("fsch:8MiB", "512 to 4MiB"),
            ("cbch:m=20", "k is missing"),
            ("cbch:m=20,k=14,p=0", "p is 1"),
            ("cbch:m=20,k=14,p=21", "bytes would be skipped"),
            ("cbch:m=20,k=64,p=20", "k is 1 to 24"),
            ("cbch:m=20,k=14,q=1", "`q` is unknown"),
            ("cbch:20", "form m=20"),
            ("cbch:m=1,k=14", "a window m of 1"),
            ("cdc:1KiB", "an average of 1KiB"),
            ("cdc:2MiB", "an average of 2MiB"),
            ("cdc:64KiB/64KiB/64KiB", "a shortest piece of 64KiB"),
            ("cdc:16KiB/64KiB/80KiB", "a longest piece of 80KiB"),
            ("cdc:1/2", "one value"),
        ] {
            let error = text.parse::<CutterSpec>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn long_text_is_shortened_in_the_error() {
        assert!("x".repeat(10_000).parse::<CutterSpec>().unwrap_err().to_string().len() < 400);
    }
}
