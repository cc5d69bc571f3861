//! Patterns that map file names to rank and timestep: `restart.{step}`, `DD{step}/data{step}.cpu{rank}`.
//!
//! A folder's `naming` is a list of patterns separated by spaces; the first that fits a path decides. `{step}` and `{rank}`
//! stand for a whole run of digits, leading zeros allowed; `*` stands for any run of characters except `/`; everything
//! else stands for itself. A placeholder that occurs twice must mean the same number. An empty list is the convention
//! of the paper (section IV.D), `A.Ni.Tj`.

use std::collections::HashSet;
use std::str::FromStr;

/// The paper's convention: application, node, timestep.
const CONVENTION: &str = "*.N{rank}.T{step}";
/// Most patterns of a folder: each path is tried against each.
const PATTERNS_MAX: usize = 64;

/// The patterns of a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Naming {
    patterns: Vec<Pattern>,
}

/// One pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Text(String),
    Number(Meaning),
    Any,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meaning {
    Step,
    Rank,
}

/// What a path says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Index of the pattern that fits.
    pub pattern: usize,
    /// The timestep; `None` if the pattern has no `{step}`: the file is rewritten, and its versions are the timesteps.
    pub step: Option<u64>,
    /// The rank; `None` if the pattern has no `{rank}`: one file for all ranks.
    pub rank: Option<u64>,
}

/// Why a text is no list of patterns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadNaming {
    /// A brace without its partner.
    #[error("the pattern `{0}` has a `{{` without its `}}`, or the other way round")]
    Brace(String),
    /// Something else in braces.
    #[error("the pattern `{pattern}` has `{{{name}}}`: only `{{step}}` and `{{rank}}` have a meaning")]
    Placeholder {
        /// The pattern.
        pattern: String,
        /// What stands in the braces.
        name: String,
    },
    /// Two placeholders side by side.
    #[error("the pattern `{0}` has two placeholders side by side: nothing tells where the first ends")]
    Adjacent(String),
    /// A pattern that fits one path only, or starts or ends with a slash.
    #[error("the pattern `{0}` can't fit a path below the folder: leave out slashes at its ends")]
    Slash(String),
    /// Too many.
    #[error("{0} patterns are too many: 64 are possible")]
    Many(usize),
}

impl FromStr for Naming {
    type Err = BadNaming;

    fn from_str(text: &str) -> Result<Self, BadNaming> {
        let texts: Vec<&str> = match text.trim() {
            "" => vec![CONVENTION],
            text => text.split_whitespace().collect(),
        };
        if texts.len() > PATTERNS_MAX {
            return Err(BadNaming::Many(texts.len()));
        }
        let patterns = texts.into_iter().map(Pattern::parse).collect::<Result<_, _>>()?;
        Ok(Self { patterns })
    }
}

impl Naming {
    /// The patterns, in the order in which they are tried.
    pub fn patterns(&self) -> &[Pattern] {
        &self.patterns
    }

    /// What `path` says, which starts below the folder. `None`: it belongs to no checkpoint set.
    pub fn read(&self, path: &str) -> Option<Reading> {
        self.patterns.iter().enumerate().find_map(|(index, pattern)| pattern.read(path, index))
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, BadNaming> {
        if text.starts_with('/') || text.ends_with('/') || text.contains("//") {
            return Err(BadNaming::Slash(shown(text)));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}', '*']) {
            let (before, behind) = rest.split_at(at);
            push_text(&mut parts, before);
            let (part, left) = special(text, behind)?;
            if matches!((parts.last(), &part), (Some(Part::Number(_)), Part::Number(_))) {
                return Err(BadNaming::Adjacent(shown(text)));
            }
            parts.push(part);
            rest = left;
        }
        push_text(&mut parts, rest);
        Ok(Self { text: text.to_owned(), parts })
    }

    /// The pattern as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it fits one name only: it has neither a placeholder nor a `*`.
    pub fn is_fixed(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(_)))
    }

    /// Whether it tells ranks apart.
    pub fn has_rank(&self) -> bool {
        self.parts.contains(&Part::Number(Meaning::Rank))
    }

    fn read(&self, path: &str, pattern: usize) -> Option<Reading> {
        let mut search = Search { path, dead: HashSet::new() };
        let (step, rank) = search.fit(&self.parts, 0, (None, None))?;
        Some(Reading { pattern, step, rank })
    }
}

fn shown(text: &str) -> String {
    text.chars().take(120).collect()
}

fn push_text(parts: &mut Vec<Part>, text: &str) {
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
}

/// The placeholder or wildcard at the start of `rest`, and what follows it.
fn special<'a>(pattern: &str, rest: &'a str) -> Result<(Part, &'a str), BadNaming> {
    if let Some(left) = rest.strip_prefix('*') {
        return Ok((Part::Any, left.trim_start_matches('*')));
    }
    let inner = rest.strip_prefix('{').and_then(|inner| inner.split_once('}'));
    let (name, left) = inner.ok_or_else(|| BadNaming::Brace(shown(pattern)))?;
    match name {
        "step" => Ok((Part::Number(Meaning::Step), left)),
        "rank" => Ok((Part::Number(Meaning::Rank), left)),
        _ => Err(BadNaming::Placeholder { pattern: shown(pattern), name: shown(name) }),
    }
}

/// Step and rank as far as they are known.
type Known = (Option<u64>, Option<u64>);

/// A search for a way in which a pattern fits a path.
struct Search<'a> {
    path: &'a str,
    /// Places from which the rest of the pattern is known not to fit: keeps patterns with many `*` from taking for ever.
    dead: HashSet<(usize, usize, Known)>,
}

impl Search<'_> {
    fn fit(&mut self, parts: &[Part], at: usize, known: Known) -> Option<Known> {
        let Some((part, left)) = parts.split_first() else {
            return (at == self.path.len()).then_some(known);
        };
        let place = (left.len(), at, known);
        if self.dead.contains(&place) {
            return None;
        }
        let rest = self.path.get(at..)?;
        let found = match part {
            Part::Text(text) if rest.starts_with(text.as_str()) => self.fit(left, at + text.len(), known),
            Part::Text(_) => None,
            Part::Number(meaning) => self.fit_number(*meaning, left, at, known),
            Part::Any => self.fit_any(left, at, known),
        };
        if found.is_none() {
            self.dead.insert(place);
        }
        found
    }

    fn fit_number(&mut self, meaning: Meaning, left: &[Part], at: usize, known: Known) -> Option<Known> {
        let rest = self.path.get(at..)?;
        let length = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest.get(..length)?.parse().ok()?;
        let (step, rank) = known;
        let before = if meaning == Meaning::Step { step } else { rank };
        if before.is_some_and(|before| before != number) {
            return None;
        }
        let known = match meaning {
            Meaning::Step => (Some(number), rank),
            Meaning::Rank => (step, Some(number)),
        };
        self.fit(left, at + length, known)
    }

    fn fit_any(&mut self, left: &[Part], at: usize, known: Known) -> Option<Known> {
        let rest = self.path.get(at..)?;
        let reach = rest.find('/').unwrap_or(rest.len());
        let number_follows = matches!(left.first(), Some(Part::Number(_)));
        let ends = (0..=reach).filter(|end| rest.is_char_boundary(*end));
        let ends: Vec<usize> = ends.filter(|end| !(number_follows && splits_digits(rest, *end))).collect();
        ends.into_iter().find_map(|end| self.fit(left, at + end, known))
    }
}

/// Whether a cut at `end` goes through a run of digits.
fn splits_digits(text: &str, end: usize) -> bool {
    let is_digit = |index: usize| text.as_bytes().get(index).is_some_and(u8::is_ascii_digit);
    end > 0 && is_digit(end - 1) && is_digit(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(naming: &str, path: &str) -> Option<(usize, Option<u64>, Option<u64>)> {
        let reading = naming.parse::<Naming>().unwrap().read(path)?;
        Some((reading.pattern, reading.step, reading.rank))
    }

    #[test]
    fn names_of_real_codes_are_read() {
        for (naming, path, step, rank) in [
            ("", "heat.N3.T12", Some(12), Some(3)),
            ("", "my.app.N0.T007", Some(7), Some(0)),
            ("restart.{step}", "restart.120000", Some(120_000), None),
            ("restart.{step}.{rank}", "restart.5.0003", Some(5), Some(3)),
            ("DD{step}/data{step}.cpu{rank}", "DD0012/data0012.cpu0003", Some(12), Some(3)),
            (
                "global_step{step}/mp_rank_{rank}_model_states.pt",
                "global_step100/mp_rank_00_model_states.pt",
                Some(100),
                Some(0),
            ),
            ("state.cpt", "state.cpt", None, None),
            ("*{step}.*", "ab-12.rst", Some(12), None),
            ("*-{step}*", "a1-b2-33x", Some(33), None),
        ] {
            assert_eq!(read(naming, path), Some((0, step, rank)), "{naming} on {path}");
        }
    }

    #[test]
    fn other_names_belong_to_no_set() {
        for (naming, path) in [
            ("", "log.txt"),
            ("", "run/heat.N3.T12"),
            ("restart.{step}", "restart."),
            ("restart.{step}", "restart.12.tmp"),
            ("DD{step}/data{step}", "DD0012/data0013"),
            ("restart.{step}", "restart.99999999999999999999999"),
            ("*.rst", "a/b.rst"),
            ("état{step}", "é1"),
        ] {
            assert_eq!(read(naming, path), None, "{naming} on {path}");
        }
    }

    #[test]
    fn the_first_pattern_that_fits_decides() {
        assert_eq!(read("a{step} *{step}", "a7"), Some((0, Some(7), None)));
        assert_eq!(read("a{step} *{step}", "b7"), Some((1, Some(7), None)));
    }

    #[test]
    fn patterns_that_cannot_work_are_refused_with_the_reason() {
        for (naming, reason) in [
            ("a{step", "`{` without"),
            ("a}", "`{` without"),
            ("a{time}", "`{time}`"),
            ("{step}{rank}", "side by side"),
            ("/a{step}", "slashes"),
            (&"x ".repeat(65), "65 patterns"),
        ] {
            let error = naming.parse::<Naming>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_pattern_of_many_wildcards_answers_in_no_time() {
        let path = "a".repeat(255);
        assert_eq!(read(&format!("{}b", "*a".repeat(100)), &path), None);
    }
}
