//! How the chunks of a folder survive the loss of benefactors: by copies, or by an erasure code.
//!
//! Both are measured by one number, the *distance* to loss: how many benefactors have to be lost before the chunk is. r copies
//! have distance r, the blocks of an (m, k) code k + 1. What holders there are says `protect`; what is wanted says this.

use std::fmt;
use std::str::FromStr;

use minicbor::{Decode, Encode};
use serde::Serialize;

use crate::block::Code;
use crate::error::Failure;
use crate::limits::{CODED_BYTES_PER_FRAGMENT_MIN, REPLICAS_DEFAULT, REPLICAS_MAX};
use crate::policy::invalid;

/// How chunks survive the loss of benefactors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Redundancy {
    /// So many copies of every chunk, 1 to 16, each at another benefactor (stdchk, section IV.A).
    #[n(0)]
    Replicate(#[n(0)] u8),
    /// An (m, k) erasure code: m + k fragments of every chunk, each at another benefactor (FALCON, section IV). Chunk maps, and
    /// chunks that are too small, are replicated k + 1 times.
    #[n(1)]
    Erasure(#[n(0)] Code),
}

impl Default for Redundancy {
    fn default() -> Self {
        Self::Replicate(REPLICAS_DEFAULT)
    }
}

impl Redundancy {
    /// How many benefactors have to be lost before a chunk is, once it has all its blocks.
    pub fn distance(self) -> u8 {
        match self {
            Self::Replicate(copies) => copies,
            Self::Erasure(code) => code.parity() + 1,
        }
    }

    /// How a chunk of so many encoded bytes is protected.
    pub fn code_of(self, encoded_length: usize) -> Code {
        match self {
            Self::Erasure(code)
                if encoded_length >= usize::from(code.data()) * CODED_BYTES_PER_FRAGMENT_MIN as usize =>
            {
                code
            }
            _ => Code::COPY,
        }
    }

    /// What chunks have that are nearer to loss than this, for people: "fewer than 2 copies".
    pub fn shortage(self) -> String {
        match self {
            Self::Replicate(copies) => format!("fewer than {copies} copies"),
            Self::Erasure(_) => format!("fewer blocks than `{self}` makes"),
        }
    }

    /// Bytes that so many encoded bytes take in the pool, all blocks together.
    pub fn stored_bytes(self, encoded: u64) -> u64 {
        match self {
            Self::Replicate(copies) => encoded.saturating_mul(u64::from(copies)),
            Self::Erasure(code) => {
                encoded.saturating_mul(u64::from(code.blocks())).div_ceil(u64::from(code.data()))
            }
        }
    }

    /// The distance that can be reached with so many benefactors.
    pub fn distance_with(self, hosts: usize) -> u8 {
        let lacking = usize::from(self.hosts()).saturating_sub(hosts);
        self.distance().saturating_sub(u8::try_from(lacking).unwrap_or_else(|_| unreachable!("at most 32")))
    }

    /// Benefactors that the blocks of one chunk need, each another one.
    pub fn hosts(self) -> u8 {
        match self {
            Self::Replicate(copies) => copies,
            Self::Erasure(code) => code.blocks(),
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicate(copies) => write!(f, "replicate:{copies}"),
            Self::Erasure(code) => write!(f, "erasure:{},{}", code.data(), code.parity()),
        }
    }
}

impl Serialize for Redundancy {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl FromStr for Redundancy {
    type Err = Failure;

    /// Reads `replicate:2` and `erasure:3,2`, or as the papers write them, `replicate(2)` and `erasure(3,2)`.
    fn from_str(value: &str) -> Result<Self, Failure> {
        let refuse = || {
            let why = format!(
                "give `replicate:N` with 1 to {REPLICAS_MAX} copies, or `erasure:M,K` with M data fragments (at least 2) and K \
                 parity fragments (at least 1), together at most 32"
            );
            invalid("redundancy", value, &why)
        };
        let inner = value.strip_suffix(')').and_then(|value| value.split_once('('));
        let (kind, numbers) = inner.or_else(|| value.split_once(':')).ok_or_else(refuse)?;
        let number = |text: &str| text.trim().parse::<u8>().map_err(|_| refuse());
        match kind {
            "replicate" => {
                let copies = number(numbers)?;
                (1..=REPLICAS_MAX).contains(&copies).then_some(Self::Replicate(copies)).ok_or_else(refuse)
            }
            "erasure" => {
                let (data, parity) = numbers.split_once(',').ok_or_else(refuse)?;
                Code::erasure(number(data)?, number(parity)?).map(Self::Erasure).ok_or_else(refuse)
            }
            _ => Err(refuse()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redundancy_is_read_as_it_is_printed_and_as_papers_write_it() {
        let erasure = Redundancy::Erasure(Code::erasure(3, 2).unwrap());
        for (text, redundancy) in [("replicate:2", Redundancy::Replicate(2)), ("erasure:3,2", erasure)] {
            assert_eq!(text.parse(), Ok(redundancy));
            assert_eq!(redundancy.to_string(), text);
        }
        assert_eq!("erasure(3, 2)".parse(), Ok(erasure));
        assert_eq!("replicate(1)".parse(), Ok(Redundancy::Replicate(1)));
        for bad in
            ["2", "", "replicate:0", "replicate:17", "erasure:1,1", "erasure:3", "erasure:30,3", "raid:5"]
        {
            assert!(
                bad.parse::<Redundancy>().unwrap_err().to_string().contains("give `replicate:N`"),
                "{bad}"
            );
        }
    }

    #[test]
    fn both_kinds_are_measured_by_the_losses_that_they_survive() {
        let erasure = Redundancy::Erasure(Code::erasure(4, 2).unwrap());
        assert_eq!((erasure.distance(), erasure.hosts()), (3, 6));
        assert_eq!(Redundancy::Replicate(3).distance(), 3);
        let enough = 4 * CODED_BYTES_PER_FRAGMENT_MIN as usize;
        assert_eq!((erasure.code_of(enough).blocks(), erasure.code_of(enough - 1)), (6, Code::COPY));
    }
}
