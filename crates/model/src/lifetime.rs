//! How long checkpoint sets live: which of a folder's sets go, and why each other one stays (paper, section IV.D).
//!
//! Pure: what is known of each set in, a fate for each out. A folder's [`Lifetime`] says what stays; a set goes once nothing keeps it. Whatever
//! it says, the newest set that is complete and *whole* stays, and so does all that isn't older than that: only a set that another one can take
//! the place of may go. Older means both: of a smaller timestep, and last written before the first file that the newest one is made of was
//! committed. What it is to be whole, the caller says.

use std::fmt;
use std::str::FromStr;

use minicbor::{Decode, Encode};
use serde::Serialize;

use crate::duration;
use crate::error::Failure;
use crate::message::manager::{SetState, TimeNs};
use crate::policy::invalid;
use crate::timestep::Timestep;

/// What stays of a folder's sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub enum Lifetime {
    /// All.
    #[default]
    #[n(0)]
    Keep,
    /// What one of these keeps.
    #[n(1)]
    Keeping(#[n(0)] Kept),
}

/// What keeps sets. At least one of the first two is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Kept {
    /// So many of the newest complete sets stay, at least 1.
    #[n(0)]
    pub newest: Option<u32>,
    /// A set stays for so long after its last commit, milliseconds of the manager's life.
    #[n(1)]
    pub within_ms: Option<u64>,
    /// Every timestep that is a multiple of this stays for ever: more than 0, and not 1.
    #[n(2)]
    pub every: Option<Timestep>,
}

impl FromStr for Lifetime {
    type Err = Failure;

    fn from_str(value: &str) -> Result<Self, Failure> {
        let refuse = |why: &str| Err(invalid("lifetime", value, why));
        if value.trim() == "keep" {
            return Ok(Self::Keep);
        }
        let mut kept = Kept { newest: None, within_ms: None, every: None };
        for word in value.split_whitespace() {
            let Some((name, number)) = word.split_once(':') else {
                return refuse(
                    "`keep`, or some of `replace:3`, `purge:7d` and `every:100`, separated by blanks, are expected",
                );
            };
            let is_new = match name {
                "replace" => match number.parse().ok().filter(|newest| *newest > 0) {
                    Some(newest) => kept.newest.replace(newest).is_none(),
                    None => {
                        return refuse(
                            "`replace:3` keeps the newest 3 complete sets; at least 1 always stays",
                        );
                    }
                },
                "purge" => match duration::parse(number) {
                    Some(ms) if ms > 0 => kept.within_ms.replace(ms).is_none(),
                    _ => return refuse("`purge:` needs a duration such as `12h` or `7d`"),
                },
                "every" => match number
                    .parse()
                    .ok()
                    .filter(|every: &Timestep| every.can_divide() && *every != 1.into())
                {
                    Some(every) => kept.every.replace(every).is_none(),
                    None => {
                        return refuse(
                            "`every:100` keeps each timestep that is a multiple of 100, a number; to keep all, write `keep`",
                        );
                    }
                },
                _ => return refuse("only `replace:3`, `purge:7d` and `every:100` have a meaning"),
            };
            if !is_new {
                return refuse("each of `replace`, `purge` and `every` can be given once");
            }
        }
        if kept.newest.is_none() && kept.within_ms.is_none() {
            return refuse("nothing says what may go: add `replace:3` or `purge:7d`");
        }
        Ok(Self::Keeping(kept))
    }
}

impl fmt::Display for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Keeping(Kept { newest, within_ms, every }) = self else { return f.write_str("keep") };
        let words = [
            newest.map(|newest| format!("replace:{newest}")),
            within_ms.map(|ms| format!("purge:{}", duration::exact(ms))),
            every.map(|every| format!("every:{every}")),
        ];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

impl Serialize for Lifetime {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

/// What decides about the sets of a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// The folder's lifetime.
    pub lifetime: Lifetime,
    /// The job has succeeded: of the sets before, only what is sealed, or kept by `every`, stays.
    pub done: Option<Done>,
}

/// A job has succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Done {
    /// With this timestep.
    #[n(0)]
    pub timestep: Timestep,
    /// Position at which that was said: what is written later is of another run.
    #[n(1)]
    pub position: TimeNs,
}

impl Done {
    /// Whether a set is one of the job's before its last.
    fn covers(self, set: &Facts) -> bool {
        set.timestep < self.timestep && set.position < self.position
    }
}

/// What is known of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Its timestep.
    pub timestep: Timestep,
    /// Whether all its files are there.
    pub state: SetState,
    /// Position of its last commit, or of what gave the last of its files a name, if that was later.
    pub position: TimeNs,
    /// Position of the earliest commit among those that it is made of.
    pub committed: TimeNs,
    /// Time since its last commit, milliseconds of the manager's life; `None`: nothing of it was committed.
    pub age_ms: Option<u64>,
    /// Its owner wants it to stay.
    pub is_sealed: bool,
    /// One of its files belongs to another folder as well.
    pub is_shared: bool,
    /// One of its files is being written.
    pub is_written: bool,
}

/// What becomes of a set, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It stays: the folder's lifetime is `keep`.
    Kept,
    /// It stays: no complete set is whole.
    NoneIsWhole,
    /// It stays: it is the newest complete set that is whole.
    Newest,
    /// It stays: it isn't older than the newest complete set that is whole, of this timestep.
    NotOlder(Timestep),
    /// It stays: it is sealed.
    Sealed,
    /// It stays: one of its files belongs to another folder as well.
    Shared,
    /// It stays for now: one of its files is being written.
    Written,
    /// It stays: its timestep is a multiple of this.
    Every(Timestep),
    /// It stays: it is one of the newest complete sets, so many.
    OfNewest(u32),
    /// It stays for now: it is complete, or may be, and too few newer sets are whole.
    InPlaceOfWhole,
    /// It stays for so many more milliseconds of the manager's life.
    For(u64),
    /// It goes: so many newer sets are complete and whole.
    Replaced(u32),
    /// It goes: it is incomplete, and a newer one is complete and whole.
    Incomplete,
    /// It goes: its last commit is longer ago than the lifetime, milliseconds.
    Old(u64),
    /// It goes: the job has succeeded.
    Done,
}

impl Fate {
    /// Whether the set goes.
    pub fn goes(self) -> bool {
        matches!(self, Self::Replaced(_) | Self::Incomplete | Self::Old(_) | Self::Done)
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => write!(f, "the folder keeps all sets"),
            Self::NoneIsWhole => write!(f, "no complete set is known to have all its copies now"),
            Self::Newest => write!(f, "the newest complete set"),
            Self::NotOlder(newest) => {
                write!(f, "not older than timestep {newest}, the newest complete set that has all its copies")
            }
            Self::Sealed => write!(f, "sealed"),
            Self::Shared => write!(f, "a file of it has another name or belongs to another folder, too"),
            Self::Written => write!(f, "a file of it is being written"),
            Self::Every(every) => write!(f, "a multiple of {every}"),
            Self::OfNewest(1) => write!(f, "the newest complete set"),
            Self::OfNewest(newest) => write!(f, "one of the newest {newest} complete sets"),
            Self::InPlaceOfWhole => write!(f, "too few newer sets are known to have all their copies now"),
            Self::For(ms) => write!(f, "stays for {} more", rounded(*ms)),
            Self::Replaced(1) => write!(f, "a newer set is complete"),
            Self::Replaced(newest) => write!(f, "{newest} newer sets are complete"),
            Self::Incomplete => write!(f, "incomplete, and a newer set is complete"),
            Self::Old(ms) => write!(f, "older than {}", duration::exact(*ms)),
            Self::Done => write!(f, "the job is done"),
        }
    }
}

/// A duration for people, in its largest unit.
fn rounded(ms: u64) -> String {
    const SECOND: u64 = 1_000;
    let unit = [86_400 * SECOND, 3_600 * SECOND, 60 * SECOND].into_iter().find(|unit| ms >= 2 * unit);
    let unit = unit.unwrap_or(SECOND);
    duration::exact(ms.div_ceil(unit).max(1) * unit)
}

impl Rules {
    /// Whether any set may go.
    pub fn any_goes(&self) -> bool {
        self.lifetime != Lifetime::Keep || self.done.is_some()
    }

    /// So many sets, the newest that are complete and whole, have to be known to say what goes.
    pub fn whole_needed(&self) -> usize {
        match self.lifetime {
            Lifetime::Keeping(Kept { newest: Some(newest), .. }) => {
                usize::try_from(newest).unwrap_or(usize::MAX)
            }
            _ => 1,
        }
    }

    /// What becomes of each set. `sets` are ordered, the newest timestep first; `is_whole` says of each whether it is known to be complete and
    /// whole, at least of the newest [`Rules::whole_needed`] that are.
    pub fn fates(&self, sets: &[Facts], is_whole: &[bool]) -> Vec<Fate> {
        assert_eq!(sets.len(), is_whole.len(), "each set is whole or not");
        assert!(sets.is_sorted_by(|one, other| one.timestep > other.timestep), "the newest is first");
        if !self.any_goes() {
            return vec![Fate::Kept; sets.len()];
        }
        let Some(newest) = sets.iter().zip(is_whole).find(|(_, whole)| **whole).map(|(set, _)| *set) else {
            return vec![Fate::NoneIsWhole; sets.len()];
        };
        let mut newer_whole = 0;
        let fates = sets.iter().zip(is_whole).map(|(set, whole)| {
            let fate = self.fate(set, &newest, newer_whole, *whole);
            newer_whole += u32::from(*whole);
            fate
        });
        fates.collect()
    }

    /// What becomes of a set when so many newer ones are complete and whole, of which `newest` is the newest.
    fn fate(&self, set: &Facts, newest: &Facts, newer_whole: u32, is_whole: bool) -> Fate {
        if set.timestep == newest.timestep {
            return Fate::Newest;
        }
        if set.timestep > newest.timestep || set.position >= newest.committed {
            return Fate::NotOlder(newest.timestep);
        }
        for (stays, fate) in
            [(set.is_sealed, Fate::Sealed), (set.is_shared, Fate::Shared), (set.is_written, Fate::Written)]
        {
            if stays {
                return fate;
            }
        }
        let kept = match self.lifetime {
            Lifetime::Keeping(kept) => Some(kept),
            Lifetime::Keep => None,
        };
        let is_done = self.done.is_some_and(|done| done.covers(set));
        let every = kept.and_then(|kept| kept.every).filter(|every| set.timestep.is_multiple_of(every));
        match (every, kept) {
            (Some(every), _) if set.state != SetState::Incomplete => Fate::Every(every),
            _ if is_done => Fate::Done,
            (_, None) => Fate::Kept,
            (_, Some(kept)) => kept.fate(set, newer_whole, is_whole),
        }
    }
}

impl Kept {
    /// What becomes of a set that is older than the newest that is whole.
    fn fate(&self, set: &Facts, newer_whole: u32, is_whole: bool) -> Fate {
        if let Some(newest) = self.newest.filter(|newest| newer_whole < *newest) {
            match set.state {
                SetState::Complete if is_whole => return Fate::OfNewest(newest),
                // Its benefactors may come back, or it may turn out to be complete.
                SetState::Complete | SetState::Unknown => return Fate::InPlaceOfWhole,
                SetState::Incomplete => {}
            }
        }
        match (self.within_ms, set.age_ms) {
            // Nothing says how old it is.
            (Some(within), None) => Fate::For(within),
            (Some(within), Some(age)) if age < within => Fate::For(within - age),
            _ => match (self.newest, self.within_ms) {
                (Some(newest), _) if newer_whole >= newest => Fate::Replaced(newest),
                (Some(_), _) => Fate::Incomplete,
                (None, Some(within)) => Fate::Old(within),
                (None, None) => unreachable!("something says what may go"),
            },
        }
    }
}

#[cfg(test)]
mod tests;
