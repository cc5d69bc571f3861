//! Which files' events take a checkpoint: `--when-renamed` and `--when-closed`, and the warning when none of them happened.
//!
//! That a trigger fired is an empty file of the store, so the warning can be given at the end of a run and after a kill alike.

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::error::Result;
use crate::history;
use crate::record::RelativePath;
use crate::store::Store;

/// Files that the warning names.
const NAMED_MAX: usize = 8;
const FIRED: &str = "fired";

/// An event of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It is renamed to its name.
    Renamed,
    /// A writer has closed it, and nobody else of the run has it open for writing.
    Closed,
}

impl Event {
    /// The word in the manifest and in labels.
    pub fn word(self) -> &'static str {
        match self {
            Self::Renamed => "renamed",
            Self::Closed => "closed",
        }
    }
}

/// An event of the files whose paths, relative to the root, match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    /// The event.
    pub event: Event,
    /// The pattern, see [`matches`].
    pub pattern: Vec<u8>,
}

impl Trigger {
    /// The label of a checkpoint that this event of the file at `path` takes.
    pub fn label(event: Event, path: &[u8]) -> String {
        let to = if event == Event::Renamed { " to" } else { "" };
        format!("{}{to} {}", event.word(), String::from_utf8_lossy(path))
    }
}

/// The number of the first trigger for this event of the file at `path`.
pub fn find(triggers: &[Trigger], event: Event, path: &[u8]) -> Option<usize> {
    triggers.iter().position(|trigger| trigger.event == event && matches(&trigger.pattern, path))
}

/// Whether the pattern matches the whole of `path`. `*` stands for any bytes within a name, `**` for any bytes, `**/` also
/// for nothing, `?` for one byte of a name, `[a-z]` and `[!a-z]` for one byte of a set, and `\` takes the next byte as it is.
pub fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let (mut pattern, mut path) = (pattern, path);
    while let Some((first, rest)) = pattern.split_first() {
        if *first == b'*' {
            return matches_any(rest, path);
        }
        let Some((byte, left)) = path.split_first() else { return false };
        let (is_it, behind) = match *first {
            b'?' => (*byte != b'/', rest),
            b'[' => set(rest, *byte).unwrap_or((*byte == b'[', rest)),
            b'\\' => rest.split_first().map_or((*byte == b'\\', rest), |(next, rest)| (next == byte, rest)),
            plain => (plain == *byte, rest),
        };
        if !is_it {
            return false;
        }
        (pattern, path) = (behind, left);
    }
    path.is_empty()
}

/// Whether `*` and `rest` match the whole of `path`.
fn matches_any(rest: &[u8], path: &[u8]) -> bool {
    let (rest, crosses) = match rest.strip_prefix(b"*") {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    if crosses && rest.strip_prefix(b"/").is_some_and(|rest| matches(rest, path)) {
        return true;
    }
    let mut path = path;
    loop {
        if matches(rest, path) {
            return true;
        }
        match path.split_first() {
            Some((byte, left)) if crosses || *byte != b'/' => path = left,
            _ => return false,
        }
    }
}

/// Whether `byte` is in the set that begins behind a `[`, and what follows the set; `None` where it isn't closed.
fn set(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match pattern.split_first()? {
        (b'!' | b'^', rest) => (true, rest),
        _ => (false, pattern),
    };
    let mut found = false;
    let mut is_first = true;
    loop {
        let (low, left) = rest.split_first()?;
        if *low == b']' && !is_first {
            return Some((found != negated && byte != b'/', left));
        }
        is_first = false;
        rest = left;
        let mut high = low;
        if let [b'-', last, left @ ..] = rest
            && *last != b']'
        {
            (high, rest) = (last, left);
        }
        found |= (*low..=*high).contains(&byte);
    }
}

/// Whether the text has bytes with a meaning in patterns.
pub fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| b"*?[\\".contains(byte))
}

/// The pattern that matches this path alone.
pub fn escaped(path: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| [b'\\', *byte].into_iter().skip(usize::from(!is_pattern(&[*byte])));
    path.iter().flat_map(escape).collect()
}

impl Store {
    /// Writes down that the trigger of this number took a checkpoint.
    pub fn mark_fired(&self, number: usize) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let name = format!("{FIRED}.{number}");
        // Without it the end of the run says wrongly that nothing happened, beside a list of checkpoints.
        let _ = rustix::fs::openat(self.directory(), name, flags, Mode::from_raw_mode(0o600));
    }

    fn has_fired(&self, number: usize) -> bool {
        rustix::fs::statat(self.directory(), format!("{FIRED}.{number}"), AtFlags::empty()).is_ok()
    }

    /// A line for each trigger that took no checkpoint, with the files written since the start that may have been meant.
    pub fn unfired(&self) -> Result<Vec<String>> {
        let triggers = self.options.triggers.iter().enumerate();
        let unfired: Vec<&Trigger> =
            triggers.filter(|(number, _)| !self.has_fired(*number)).map(|(_, trigger)| trigger).collect();
        let entries = self.entries()?;
        let Some(first) = entries.first().filter(|_| !unfired.is_empty()) else { return Ok(Vec::new()) };
        let written = written(self, first.index)?;
        Ok(unfired.into_iter().map(|trigger| line(trigger, &written)).collect())
    }
}

/// The files that were created, written or renamed since checkpoint `index`, by the names that they have now.
fn written(store: &Store, index: u64) -> Result<Vec<RelativePath>> {
    let changes = history::changes(store, index, None)?;
    let changed = changes
        .into_iter()
        .filter(|(_, change)| change.created || change.written || change.moved_to.is_some());
    let mut names: Vec<RelativePath> =
        changed.map(|(path, change)| change.moved_to.unwrap_or(path)).collect();
    names.sort();
    names.dedup();
    names.retain(|path| {
        let found = rustix::fs::statat(store.root(), path.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
        let kind = found.map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode));
        kind == Ok(rustix::fs::FileType::RegularFile)
    });
    Ok(names)
}

fn line(trigger: &Trigger, written: &[RelativePath]) -> String {
    let (event, pattern) = (trigger.event.word(), String::from_utf8_lossy(&trigger.pattern));
    let what = match trigger.event {
        Event::Renamed => "no file was renamed to such a name",
        Event::Closed => "no writer closed such a file",
    };
    let names: Vec<_> = written.iter().take(NAMED_MAX).map(|path| String::from_utf8_lossy(path)).collect();
    let more = match written.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let meant = match names.is_empty() {
        true => "the run wrote no file".to_owned(),
        false => format!("the run wrote {}{more}", names.join(", ")),
    };
    format!("--when-{event} {pattern} took no checkpoint: {what}; {meant}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_match_whole_paths() {
        let yes = [
            ("ck*", "ckpt.12"),
            ("run/*.rst", "run/a.rst"),
            ("**/state", "state"),
            ("**/state", "a/b/state"),
            ("a**z", "a/b/z"),
            ("s?[0-9]", "st7"),
            ("[!a]x", "bx"),
            ("[]]", "]"),
            ("[x", "[x"),
            ("a\\*", "a*"),
            ("*a*b", "xaab"),
        ];
        for (pattern, path) in yes {
            assert!(matches(pattern.as_bytes(), path.as_bytes()), "{pattern} {path}");
        }
        for (pattern, path) in
            [("ck*", "run/ck1"), ("*", "a/b"), ("a?b", "a/b"), ("[!a]x", "ax"), ("a\\*", "ab"), ("a", "ab")]
        {
            assert!(!matches(pattern.as_bytes(), path.as_bytes()), "{pattern} {path}");
        }
    }

    proptest! {
        #[test]
        fn an_escaped_path_matches_itself_alone(path in prop::collection::vec(any::<u8>(), 0..20), other in prop::collection::vec(any::<u8>(), 0..3)) {
            prop_assert!(matches(&escaped(&path), &path));
            prop_assert_eq!(matches(&escaped(&path), &other), path == other);
        }
    }
}
