//! The policy of an application's folder: how its files are written, cut, protected and named.
//!
//! A folder stores only what was set on it; [`Policy::default`] is what a new folder starts with. Values are read from
//! and printed as `key=value`, the form of `stdchk policy get|set`.

use std::fmt;
use std::str::FromStr;

use minicbor::{Decode, Encode};
use serde::Serialize;

use crate::duration;
use crate::error::{ErrorCode, Failure};
use crate::id::KeyId;
use crate::lifetime::Lifetime;
use crate::limits::{
    CHUNK_BYTES_DEFAULT, REPLICAS_MAX, SEGMENT_BYTES_DEFAULT, STRIPE_WIDTH_DEFAULT, STRIPE_WIDTH_MAX,
    WINDOW_BYTES_DEFAULT, WINDOW_BYTES_MIN,
};
use crate::redundancy::Redundancy;
use crate::size;
use crate::tier::Durability;

/// When a commit counts (paper, section IV.A, "Reliable writes").
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Semantics {
    /// Once as many blocks of every chunk are durable as are enough to read it; the others follow in the background.
    #[n(0)]
    Optimistic,
    /// Once all blocks of every chunk are durable.
    #[n(1)]
    Pessimistic,
    /// Once so many benefactors, 1 to 16, have a copy of every chunk in memory, or it can be read from disks; what `redundancy` asks for
    /// follows on disks in the background.
    #[n(2)]
    Memory(#[n(0)] u8),
}

/// When `close()` returns to the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
#[serde(rename_all = "lowercase")]
#[cbor(index_only)]
pub enum CloseWaits {
    /// Once the version is committed: its chunks are on the benefactors' disks.
    #[n(0)]
    Durable,
    /// Once every chunk is stored at a benefactor, perhaps still in its page cache; the commit follows by itself.
    #[n(1)]
    Stored,
    /// At once, while the window still drains: what follows may fail, and then the version is lost.
    #[n(2)]
    Early,
}

/// How written bytes travel from the application to the pool (paper, section IV.B).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode, Serialize)]
#[serde(rename_all = "lowercase")]
#[cbor(index_only)]
pub enum Protocol {
    /// Sliding window: through memory only.
    #[default]
    #[n(0)]
    Sw,
    /// Complete local write: into a file on the local disk, which is pushed to the pool after `close()`.
    #[n(1)]
    Clw,
    /// Incremental write: into temporary files of a set size on the local disk, each pushed while the next one fills.
    #[n(2)]
    Iw,
}

/// Whether a copy of what is written stays on the machine on which it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode, Serialize)]
#[serde(rename_all = "lowercase")]
#[cbor(index_only)]
pub enum Local {
    /// No.
    #[default]
    #[n(0)]
    No,
    /// Where a benefactor is there with room for one: beside what `redundancy` asks for, which lies elsewhere.
    #[n(1)]
    Prefer,
}

/// How far writers may get ahead of the copies of what was committed before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub enum Exposure {
    /// A commit of a timestep waits until all earlier ones of the folder have their copies; one of a file that fits no naming
    /// until the version before has.
    #[default]
    #[n(0)]
    Previous,
    /// Commits wait once something of the folder has lacked copies for so long.
    #[n(1)]
    Milliseconds(#[n(0)] u64),
    /// Commits wait while more bytes than these of the folder lack copies.
    #[n(2)]
    Bytes(#[n(0)] u64),
    /// Commits don't wait.
    #[n(3)]
    Unbounded,
}

/// Which versions stay of a file that belongs to no checkpoint set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Versions {
    /// All.
    #[n(0)]
    Keep,
    /// So many of the newest, at least 1.
    #[n(1)]
    Newest(#[n(0)] u32),
}

impl Default for Versions {
    fn default() -> Self {
        Self::Newest(2)
    }
}

/// How the files of a folder are treated.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
pub struct Policy {
    /// How chunks survive the loss of benefactors.
    #[n(0)]
    pub redundancy: Redundancy,
    /// When a commit counts.
    #[n(1)]
    pub semantics: Semantics,
    /// When `close()` returns.
    #[n(2)]
    pub close: CloseWaits,
    /// How files are cut into chunks, as `reduce` reads it: `fsch:1MiB`.
    #[n(3)]
    pub cutter: String,
    /// Bytes that one file may have in flight; the process's own window bounds all files together.
    #[n(4)]
    pub window: u64,
    /// Benefactors that one file is striped over.
    #[n(5)]
    pub stripe: u16,
    /// Patterns that map file names to rank and timestep, separated by spaces; empty: `A.Ni.Tj`.
    #[n(6)]
    pub naming: String,
    /// Ranks of a complete set; 0: learned from earlier sets.
    #[n(7)]
    pub ranks: u32,
    /// How chunks are compressed, as `reduce` reads it: `auto`, `store`, `lz4`, `zstd:3`;
    /// empty, from a manager that doesn't know of it: `auto`.
    #[n(8)]
    #[cbor(default)]
    pub codec: String,
    /// How a mount writes the files.
    #[n(9)]
    #[cbor(default)]
    pub protocol: Protocol,
    /// Size of the temporary files of `protocol=iw`, bytes; 0, from a manager that doesn't know of it: the default.
    #[n(10)]
    #[cbor(default)]
    pub segment: u64,
    /// What `cutter=auto` has learned from earlier versions, as `reduce` reads it; empty: nothing yet.
    #[n(11)]
    #[cbor(default)]
    pub learned: String,
    /// How far writers may get ahead of the copies.
    #[n(12)]
    #[cbor(default)]
    pub exposure: Exposure,
    /// How long checkpoint sets live.
    #[n(13)]
    #[cbor(default)]
    pub lifetime: Lifetime,
    /// The key with which clients encrypt what they write; `None`: they don't.
    #[n(14)]
    pub encryption: Option<KeyId>,
    /// How benefactors are chosen for what is written, as `placement` reads it; empty, from a manager that doesn't know of it: they take
    /// turns.
    #[n(15)]
    #[cbor(default)]
    pub placement: String,
    /// Whether a copy stays where it is written.
    #[n(16)]
    #[cbor(default)]
    pub local: Local,
    /// Which versions stay of a file that belongs to no set.
    #[n(17)]
    #[cbor(default)]
    pub versions: Versions,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            redundancy: Redundancy::default(),
            semantics: Semantics::Optimistic,
            close: CloseWaits::Durable,
            cutter: format!("fsch:{}", size::exact(CHUNK_BYTES_DEFAULT as u64)),
            window: WINDOW_BYTES_DEFAULT,
            stripe: STRIPE_WIDTH_DEFAULT,
            naming: String::new(),
            ranks: 0,
            codec: "auto".to_owned(),
            protocol: Protocol::Sw,
            segment: SEGMENT_BYTES_DEFAULT,
            learned: String::new(),
            exposure: Exposure::Previous,
            lifetime: Lifetime::Keep,
            encryption: None,
            placement: "round-robin".to_owned(),
            local: Local::No,
            versions: Versions::default(),
        }
    }
}

/// A key of a policy: all that is said of it anywhere follows from its row in [`KEYS`].
pub struct Key {
    /// As it is written: `redundancy`.
    pub name: &'static str,
    /// What it means and which values it takes, for people, in lines that fit a terminal beside the name.
    pub meaning: &'static [&'static str],
    get: fn(&Policy) -> String,
    set: fn(&mut Policy, &str) -> Result<(), Failure>,
}

/// The keys of a policy, in the order in which they are shown.
pub const KEYS: [Key; 18] = [
    Key {
        name: "redundancy",
        meaning: &[
            "replicate:2 keeps so many copies of every chunk, 1 to 16; erasure:3,2 makes 3 data and 2 parity",
            "fragments of it, each at another benefactor, of which any 3 are enough",
        ],
        get: |policy| policy.redundancy.to_string(),
        set: |policy, value| {
            policy.redundancy = value.parse()?;
            Ok(())
        },
    },
    Key {
        name: "semantics",
        meaning: &[
            "optimistic: close() counts once everything can be read, further copies follow; pessimistic: once all",
            "copies or fragments are durable; memory:2: once two benefactors have it in memory, disks follow",
        ],
        get: |policy| policy.semantics.to_string(),
        set: |policy, value| {
            policy.semantics = value.parse()?;
            Ok(())
        },
    },
    Key {
        name: "exposure",
        meaning: &[
            "how far writers may get ahead of copies: previous (one timestep), a duration such as 30s, a size such",
            "as 1GiB, or none (no bound)",
        ],
        get: |policy| policy.exposure.to_string(),
        set: |policy, value| {
            policy.exposure = value.parse()?;
            Ok(())
        },
    },
    Key {
        name: "protocol",
        meaning: &[
            "sw: through memory; clw: into the mount's spool, pushed after close(); iw: through files in the spool",
        ],
        get: |policy| policy.protocol.to_string(),
        set: |policy, value| {
            policy.protocol = value.parse()?;
            Ok(())
        },
    },
    Key {
        name: "close",
        meaning: &[
            "durable: close() returns when the version is committed; stored: when all is at benefactors; early: at",
            "once, and what fails later is lost (not for protocol=clw)",
        ],
        get: |policy| policy.close.to_string(),
        set: |policy, value| {
            policy.close = value.parse()?;
            Ok(())
        },
    },
    Key {
        name: "cutter",
        meaning: &[
            "fsch:1MiB, cdc:64KiB or cbch:m=20,k=14,p=20; auto: what earlier versions have in common decides",
        ],
        get: |policy| policy.cutter.clone(),
        set: |policy, value| {
            policy.cutter = value.to_owned();
            Ok(())
        },
    },
    Key {
        name: "learned",
        meaning: &["what auto decided; empty it to learn anew"],
        get: |policy| policy.learned.clone(),
        set: |policy, value| {
            policy.learned = value.to_owned();
            Ok(())
        },
    },
    Key {
        name: "codec",
        meaning: &["auto (what makes the transfer fastest), store, lz4, zstd:1 to zstd:19"],
        get: |policy| policy.codec.clone(),
        set: |policy, value| {
            policy.codec = value.to_owned();
            Ok(())
        },
    },
    Key {
        name: "window",
        meaning: &["memory for the writes of one file in flight, such as 64MiB"],
        get: |policy| size::exact(policy.window),
        set: |policy, value| {
            policy.window = window(value)?;
            Ok(())
        },
    },
    Key {
        name: "segment",
        meaning: &["size of the spool's files for protocol=iw"],
        get: |policy| size::exact(policy.segment),
        set: |policy, value| {
            policy.segment = segment(value)?;
            Ok(())
        },
    },
    Key {
        name: "stripe",
        meaning: &["benefactors that one file is spread over"],
        get: |policy| policy.stripe.to_string(),
        set: |policy, value| {
            policy.stripe = number("stripe", value, 1, STRIPE_WIDTH_MAX)?;
            Ok(())
        },
    },
    Key {
        name: "placement",
        meaning: &[
            "which benefactors: round-robin, random, dedicated (those with the label dedicated=yes), pessimistic,",
            "falcon, falcon:7d or learned, by what the manager has seen of them and of the compute host",
        ],
        get: |policy| policy.placement.clone(),
        set: |policy, value| {
            policy.placement = value.to_owned();
            Ok(())
        },
    },
    Key {
        name: "local",
        meaning: &[
            "prefer: a benefactor on the machine that writes keeps a copy as well while it has room, which is read",
            "without the network and counts for nothing; the copies that count lie elsewhere; no: it doesn't",
        ],
        get: |policy| policy.local.to_string(),
        set: |policy, value| {
            policy.local = value.parse()?;
            Ok(())
        },
    },
    Key {
        name: "naming",
        meaning: &[
            "patterns that map file names to {rank} and {step}, {time} or {date}, separated by blanks; empty: A.Ni.Tj",
        ],
        get: |policy| policy.naming.clone(),
        set: |policy, value| {
            policy.naming = value.to_owned();
            Ok(())
        },
    },
    Key {
        name: "ranks",
        meaning: &[
            "files of a complete checkpoint set, whatever their numbers; 0: learned from earlier sets",
        ],
        get: |policy| policy.ranks.to_string(),
        set: |policy, value| {
            policy.ranks = number("ranks", value, 0, u32::MAX)?;
            Ok(())
        },
    },
    Key {
        name: "lifetime",
        meaning: &[
            "keep all sets; or keep what one of these does, separated by blanks: replace:3 the newest 3 complete",
            "sets, purge:7d each for 7 days after its last commit, every:100 each multiple of 100 for ever",
        ],
        get: |policy| policy.lifetime.to_string(),
        set: |policy, value| {
            policy.lifetime = value.parse()?;
            Ok(())
        },
    },
    Key {
        name: "versions",
        meaning: &[
            "replace:2 keeps the newest 2 versions of a file that belongs to no checkpoint set; keep keeps all",
        ],
        get: |policy| policy.versions.to_string(),
        set: |policy, value| {
            policy.versions = value.parse()?;
            Ok(())
        },
    },
    Key {
        name: "encryption",
        meaning: &[
            "none, or the key with which clients encrypt what they write from now on, as `stdchk key list` prints",
            "it; who lacks the key can't read it, and who loses the key loses the files",
        ],
        get: |policy| policy.encryption.map_or_else(|| "none".to_owned(), |key| key.to_string()),
        set: |policy, value| {
            policy.encryption = match value {
                "none" => None,
                key => Some(key.parse().map_err(|_| {
                    let next =
                        "give encryption `none` or a key of `stdchk key list`; `stdchk key create` makes one";
                    invalid("encryption", value, next)
                })?),
            };
            Ok(())
        },
    },
];

impl Key {
    /// The key of this name.
    pub fn of(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }
}

impl Policy {
    /// Changes one value, given as text.
    ///
    /// # Errors
    /// An unknown key or a value that can't work, with the values that can. The cutter, the codec and the patterns are checked by
    /// the crates that read them.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        match Key::of(key) {
            Some(known) => (known.set)(self, value),
            None => {
                let names = KEYS.map(|key| key.name).join(", ");
                Err(invalid(key, value, &format!("a policy has {names}")))
            }
        }
    }

    /// The policy as pairs of key and value, each acceptable to [`Policy::set`].
    pub fn pairs(&self) -> [(&'static str, String); KEYS.len()] {
        KEYS.map(|key| (key.name, (key.get)(self)))
    }

    /// How safe a commit needs every chunk to be.
    pub fn at_commit(&self) -> Durability {
        match self.semantics {
            Semantics::Optimistic => Durability::on_disks(1),
            Semantics::Pessimistic => Durability::on_disks(self.redundancy.distance()),
            Semantics::Memory(hosts) => Durability { distance: 1, in_memory: Some(hosts) },
        }
    }

    /// Whether what was committed may be nearer to loss than the folder wants it in the end.
    pub fn may_lack(&self) -> bool {
        self.at_commit().in_memory.is_some() || self.redundancy.distance() > 1
    }
}

pub(crate) fn invalid(key: &str, value: &str, why: &str) -> Failure {
    let shown: String = value.chars().take(80).collect();
    Failure::new(ErrorCode::Invalid, format!("`{key}={shown}` can't be used")).then(why)
}

fn number<T: FromStr + PartialOrd + fmt::Display>(
    key: &str,
    value: &str,
    min: T,
    max: T,
) -> Result<T, Failure> {
    match value.parse::<T>() {
        Ok(number) if number >= min && number <= max => Ok(number),
        _ => Err(invalid(key, value, &format!("give {key} a number from {min} to {max}"))),
    }
}

fn window(value: &str) -> Result<u64, Failure> {
    let bytes = size::parse(value).map_err(|error| invalid("window", value, &error.to_string()))?;
    if bytes < WINDOW_BYTES_MIN {
        let least = size::exact(WINDOW_BYTES_MIN);
        return Err(invalid("window", value, &format!("at least {least} are needed to overlap transfers")));
    }
    Ok(bytes)
}

fn segment(value: &str) -> Result<u64, Failure> {
    let bytes = size::parse(value).map_err(|error| invalid("segment", value, &error.to_string()))?;
    if bytes < WINDOW_BYTES_MIN {
        let least = size::exact(WINDOW_BYTES_MIN);
        return Err(invalid("segment", value, &format!("at least {least} make a transfer worth its start")));
    }
    Ok(bytes)
}

impl fmt::Display for Semantics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Optimistic => f.write_str("optimistic"),
            Self::Pessimistic => f.write_str("pessimistic"),
            Self::Memory(hosts) => write!(f, "memory:{hosts}"),
        }
    }
}

impl Serialize for Semantics {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl FromStr for Semantics {
    type Err = Failure;

    fn from_str(value: &str) -> Result<Self, Failure> {
        match value {
            "optimistic" => return Ok(Self::Optimistic),
            "pessimistic" => return Ok(Self::Pessimistic),
            _ => {}
        }
        let hosts = value.strip_prefix("memory:").and_then(|hosts| hosts.parse().ok());
        hosts.filter(|hosts| (1..=REPLICAS_MAX).contains(hosts)).map(Self::Memory).ok_or_else(|| {
            let why = format!(
                "give semantics one of `optimistic` `pessimistic` `memory:2`, with 1 to {REPLICAS_MAX} hosts"
            );
            invalid("semantics", value, &why)
        })
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.write_str("keep"),
            Self::Newest(newest) => write!(f, "replace:{newest}"),
        }
    }
}

impl Serialize for Versions {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl FromStr for Versions {
    type Err = Failure;

    fn from_str(value: &str) -> Result<Self, Failure> {
        if value == "keep" {
            return Ok(Self::Keep);
        }
        let newest = value.strip_prefix("replace:").and_then(|newest| newest.parse().ok());
        let why = "`keep`, or `replace:2` with the number of the newest versions that stay, at least 1, is expected";
        newest.filter(|newest| *newest > 0).map(Self::Newest).ok_or_else(|| invalid("versions", value, why))
    }
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Previous => f.write_str("previous"),
            Self::Unbounded => f.write_str("none"),
            Self::Bytes(bytes) => f.write_str(&size::exact(*bytes)),
            Self::Milliseconds(ms) => f.write_str(&duration::exact(*ms)),
        }
    }
}

impl Serialize for Exposure {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl FromStr for Exposure {
    type Err = Failure;

    fn from_str(value: &str) -> Result<Self, Failure> {
        match value {
            "previous" => return Ok(Self::Previous),
            "none" => return Ok(Self::Unbounded),
            _ => {}
        }
        if let Some(ms) = duration::parse(value).filter(|ms| *ms > 0) {
            return Ok(Self::Milliseconds(ms));
        }
        size::parse(value).map(Self::Bytes).map_err(|_| {
            let why = "`previous`, `none`, a duration such as `30s` or `5min`, or a size such as `1GiB` is expected";
            invalid("exposure", value, why)
        })
    }
}

macro_rules! words {
    ($type:ident, $key:literal, $($variant:ident = $word:literal),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl FromStr for $type {
            type Err = Failure;

            fn from_str(value: &str) -> Result<Self, Failure> {
                match value {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(invalid($key, value, concat!("give ", $key, " one of", $(" `", $word, "`",)+))),
                }
            }
        }
    };
}

words!(CloseWaits, "close", Durable = "durable", Stored = "stored", Early = "early");
words!(Local, "local", No = "no", Prefer = "prefer");
words!(Protocol, "protocol", Sw = "sw", Clw = "clw", Iw = "iw");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_reads_back_what_it_prints() {
        let mut policy = Policy::default();
        for (key, value) in [
            ("redundancy", "erasure:3,2"),
            ("close", "early"),
            ("semantics", "memory:2"),
            ("exposure", "90s"),
            ("protocol", "iw"),
            ("segment", "8MiB"),
            ("window", "8MiB"),
            ("ranks", "4"),
            ("local", "prefer"),
            ("lifetime", "replace:3 every:100"),
            ("versions", "replace:7"),
            ("encryption", "0123456789abcdef01234567"),
        ] {
            policy.set(key, value).unwrap();
        }
        let mut copy = Policy::default();
        for (key, value) in policy.pairs() {
            copy.set(key, &value).unwrap();
        }
        assert_eq!(copy, policy);
    }

    #[test]
    fn values_that_cannot_work_are_refused_with_the_reason() {
        let mut policy = Policy::default();
        let bad = [
            ("redundancy", "0"),
            ("window", "1KiB"),
            ("segment", "1MiB"),
            ("protocol", "nfs"),
            ("semantics", "maybe"),
            ("semantics", "memory"),
            ("semantics", "memory:0"),
            ("semantics", "memory:17"),
            ("local", "yes"),
            ("exposure", "soon"),
            ("exposure", "0s"),
            ("lifetime", "replace:none"),
            ("versions", "replace:0"),
            ("encryption", "aes"),
            ("stripe", "-1"),
            ("x", "1"),
        ];
        for (key, value) in bad {
            let failure = policy.set(key, value).unwrap_err();
            assert_eq!(failure.code, ErrorCode::Invalid);
            assert!(failure.message.contains(value), "{failure}");
        }
        assert_eq!(policy, Policy::default());
    }

    #[test]
    fn the_documents_explain_every_key() {
        let document = include_str!("../../../docs/OPERATIONS.md");
        for key in KEYS {
            assert!(document.contains(&format!("\n| `{}` | ", key.name)), "{}", key.name);
            assert!(key.meaning.iter().all(|line| line.len() <= 105), "{}", key.name);
        }
    }

    #[test]
    fn an_exposure_is_read_as_people_write_it_and_printed_the_same() {
        for (text, exposure) in [
            ("previous", Exposure::Previous),
            ("none", Exposure::Unbounded),
            ("30s", Exposure::Milliseconds(30_000)),
            ("250ms", Exposure::Milliseconds(250)),
            ("5min", Exposure::Milliseconds(300_000)),
            ("1GiB", Exposure::Bytes(1 << 30)),
        ] {
            assert_eq!(text.parse::<Exposure>(), Ok(exposure));
            assert_eq!(exposure.to_string(), text);
        }
    }

    #[test]
    fn a_new_folder_has_two_copies_and_is_optimistic() {
        let policy = Policy::default();
        assert_eq!(
            (policy.redundancy, policy.at_commit()),
            (Redundancy::Replicate(2), Durability::on_disks(1))
        );
    }

    #[test]
    fn what_is_in_memory_is_enough_only_where_the_folder_says_so_and_never_all_that_is_wanted() {
        let mut policy = Policy { redundancy: Redundancy::Replicate(1), ..Policy::default() };
        assert!(!policy.may_lack());
        policy.set("semantics", "memory:2").unwrap();
        assert_eq!(policy.at_commit(), Durability { distance: 1, in_memory: Some(2) });
        assert!(policy.may_lack(), "its one copy on a disk follows");
    }
}
