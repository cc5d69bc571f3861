//! Patterns that map file names to timestep and rank: `restart.{step}`, `DD{step}/data{step}.cpu{rank}`.
//!
//! A folder's `naming` is a list of patterns separated by spaces; the first that fits a path decides. An empty list is the
//! convention of the paper (section IV.D), `A.Ni.Tj`. What isn't in this table stands for itself:
//!
//! | part | stands for |
//! |---|---|
//! | `{step}` | the timestep: a whole run of digits |
//! | `{time}` | the timestep: a decimal number, perhaps with an exponent |
//! | `{date}` | the timestep: a date, perhaps with a time of day |
//! | `{rank}` | the rank: a whole run of digits, counted from any number |
//! | `{ranks}` | how many ranks the set has: a whole run of digits |
//! | `{name}` | any run of characters except `/`, which tells files of one rank apart |
//! | `*` | any run of characters except `/` |
//! | `**/` | any folders, or none |
//! | `**` | any run of characters |
//!
//! A placeholder that occurs twice must mean the same.

use std::collections::HashSet;
use std::str::FromStr;

use crate::timestep::{Timestep, date_ends, number_ends};

/// The paper's convention: application, node, timestep.
const CONVENTION: &str = "*.N{rank}.T{step}";
/// Most patterns of a folder: each path is tried against each.
const PATTERNS_MAX: usize = 64;
/// Most places of a path and parts of a pattern that are tried with each other before the pattern counts as one that
/// doesn't fit. Names of codes need some tens; a folder's owner may write a pattern that would need millions.
const TRIES_MAX: u32 = 100_000;

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
    Field(Field),
    /// `*`
    Any,
    /// `**/`
    Folders,
    /// `**`
    Deep,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Step,
    Time,
    Date,
    Rank,
    Ranks,
    Name,
}

/// The placeholders, by what stands in the braces.
const FIELDS: [(&str, Field); 6] = [
    ("step", Field::Step),
    ("time", Field::Time),
    ("date", Field::Date),
    ("rank", Field::Rank),
    ("ranks", Field::Ranks),
    ("name", Field::Name),
];

/// What a path says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Index of the pattern that fits.
    pub pattern: usize,
    /// The timestep; `None` if the pattern has none: the file is rewritten, and its versions are the timesteps.
    pub step: Option<Timestep>,
    /// The rank; `None` if the pattern has no `{rank}`: one file for all ranks.
    pub rank: Option<u64>,
    /// How many ranks the set has, if the path says so.
    pub ranks: Option<u64>,
    /// What stands for `{name}`; empty if the pattern has none.
    pub name: String,
}

/// Why a text is no list of patterns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadNaming {
    /// A brace without its partner.
    #[error("the pattern `{0}` has a `{{` without its `}}`, or the other way round")]
    Brace(String),
    /// Something else in braces.
    #[error(
        "the pattern `{pattern}` has `{{{name}}}`: only `{{step}}`, `{{time}}`, `{{date}}`, `{{rank}}`, `{{ranks}}` and \
         `{{name}}` have a meaning"
    )]
    Placeholder {
        /// The pattern.
        pattern: String,
        /// What stands in the braces.
        name: String,
    },
    /// Two placeholders side by side.
    #[error("the pattern `{0}` has two placeholders side by side: nothing tells where the first ends")]
    Adjacent(String),
    /// Two kinds of timesteps.
    #[error("the pattern `{0}` has two of `{{step}}`, `{{time}}` and `{{date}}`: a set has one timestep")]
    Timesteps(String),
    /// How many ranks there are, but not which one it is.
    #[error("the pattern `{0}` has `{{ranks}}`, the number of ranks, but no `{{rank}}`")]
    RanksAlone(String),
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
            let is_folder_start = rest.len() == text.len() && at == 0 || before.ends_with('/');
            let (part, left) = special(text, behind, is_folder_start)?;
            if matches!((parts.last(), &part), (Some(Part::Field(_)), Part::Field(_))) {
                return Err(BadNaming::Adjacent(shown(text)));
            }
            parts.push(part);
            rest = left;
        }
        push_text(&mut parts, rest);
        let pattern = Self { text: text.to_owned(), parts };
        let timesteps = [Field::Step, Field::Time, Field::Date].into_iter();
        if timesteps.filter(|field| pattern.has(*field)).count() > 1 {
            return Err(BadNaming::Timesteps(shown(text)));
        }
        if pattern.has(Field::Ranks) && !pattern.has(Field::Rank) {
            return Err(BadNaming::RanksAlone(shown(text)));
        }
        Ok(pattern)
    }

    /// The pattern as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it fits one name only: it has neither a placeholder nor a wildcard.
    pub fn is_fixed(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(_)))
    }

    /// Whether it tells ranks apart.
    pub fn has_rank(&self) -> bool {
        self.has(Field::Rank)
    }

    /// Whether it tells timesteps apart.
    pub fn has_timestep(&self) -> bool {
        [Field::Step, Field::Time, Field::Date].into_iter().any(|field| self.has(field))
    }

    fn has(&self, field: Field) -> bool {
        self.parts.contains(&Part::Field(field))
    }

    fn read(&self, path: &str, pattern: usize) -> Option<Reading> {
        let mut search = Search { path, dead: HashSet::new(), tries: TRIES_MAX };
        let Known { step, rank, ranks, name } = search.fit(&self.parts, 0, Known::default())?;
        let name = name.and_then(|(from, to)| path.get(from..to)).unwrap_or_default().to_owned();
        Some(Reading { pattern, step, rank, ranks, name })
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

/// The placeholder or wildcard at the start of `rest`, and what follows it. `is_folder_start`: a name begins here.
fn special<'a>(pattern: &str, rest: &'a str, is_folder_start: bool) -> Result<(Part, &'a str), BadNaming> {
    if let Some(left) = rest.strip_prefix("**/").filter(|_| is_folder_start) {
        return Ok((Part::Folders, left));
    }
    if let Some(left) = rest.strip_prefix("**") {
        return Ok((Part::Deep, left.trim_start_matches('*')));
    }
    if let Some(left) = rest.strip_prefix('*') {
        return Ok((Part::Any, left));
    }
    let inner = rest.strip_prefix('{').and_then(|inner| inner.split_once('}'));
    let (name, left) = inner.ok_or_else(|| BadNaming::Brace(shown(pattern)))?;
    match FIELDS.iter().find(|(known, _)| *known == name) {
        Some((_, field)) => Ok((Part::Field(*field), left)),
        None => Err(BadNaming::Placeholder { pattern: shown(pattern), name: shown(name) }),
    }
}

/// What the placeholders mean, as far as that is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Known {
    step: Option<Timestep>,
    rank: Option<u64>,
    ranks: Option<u64>,
    /// Where in the path it begins and ends.
    name: Option<(usize, usize)>,
}

/// A search for a way in which a pattern fits a path.
struct Search<'a> {
    path: &'a str,
    /// Places from which the rest of the pattern is known not to fit: keeps patterns with many `*` from taking for ever.
    dead: HashSet<(usize, usize, Known)>,
    /// How many more places are tried.
    tries: u32,
}

impl Search<'_> {
    fn fit(&mut self, parts: &[Part], at: usize, known: Known) -> Option<Known> {
        let Some((part, left)) = parts.split_first() else {
            return (at == self.path.len()).then_some(known);
        };
        self.tries = self.tries.checked_sub(1)?;
        let rest = self.path.get(at..)?;
        if let Part::Text(text) = part {
            return if rest.starts_with(text.as_str()) {
                self.fit(left, at + text.len(), known)
            } else {
                None
            };
        }
        let place = (left.len(), at, known);
        if self.dead.contains(&place) {
            return None;
        }
        let found = match part {
            Part::Field(Field::Name) => self.fit_name(left, at, known),
            Part::Field(field) => self.fit_field(*field, left, at, known),
            Part::Folders => {
                let ends = rest.match_indices('/').map(|(slash, _)| slash + 1);
                let ends: Vec<usize> = std::iter::once(0).chain(ends).collect();
                ends.into_iter().find_map(|end| self.fit(left, at + end, known))
            }
            Part::Any | Part::Deep => {
                let within = if *part == Part::Deep { rest.len() } else { name_length(rest) };
                let ends = ends(rest, within, left.first());
                ends.into_iter().find_map(|end| self.fit(left, at + end, known))
            }
            Part::Text(_) => None,
        };
        if found.is_none() {
            self.dead.insert(place);
        }
        found
    }

    fn fit_field(&mut self, field: Field, left: &[Part], at: usize, known: Known) -> Option<Known> {
        let rest = self.path.get(at..)?;
        let digits = || Vec::from([rest.bytes().take_while(u8::is_ascii_digit).count()]);
        let ends = match field {
            Field::Time => number_ends(rest, self.may_be_sign(at)),
            Field::Date => date_ends(rest),
            Field::Step | Field::Rank | Field::Ranks | Field::Name => digits(),
        };
        ends.into_iter().find_map(|end| {
            let known = known.with(field, rest.get(..end)?)?;
            self.fit(left, at + end, known)
        })
    }

    /// Whether a minus at `at` can be a sign: it doesn't join two words.
    fn may_be_sign(&self, at: usize) -> bool {
        let before = self.path.get(..at).and_then(|before| before.chars().next_back());
        !before.is_some_and(char::is_alphanumeric)
    }

    fn fit_name(&mut self, left: &[Part], at: usize, known: Known) -> Option<Known> {
        let rest = self.path.get(at..)?;
        let ends = match known.name {
            Some((from, to)) => {
                let name = self.path.get(from..to)?;
                if rest.starts_with(name) { vec![name.len()] } else { Vec::new() }
            }
            None => ends(rest, name_length(rest), left.first()),
        };
        ends.into_iter().filter(|end| *end > 0).find_map(|end| {
            let name = known.name.or(Some((at, at + end)));
            self.fit(left, at + end, Known { name, ..known })
        })
    }
}

impl Known {
    /// With what a placeholder means here; `None` if it means something else elsewhere.
    fn with(self, field: Field, text: &str) -> Option<Self> {
        fn same<T: PartialEq + Copy>(before: Option<T>, now: T) -> Option<Option<T>> {
            let same = before.is_none_or(|before| before == now);
            same.then_some(before.or(Some(now)))
        }
        Some(match field {
            Field::Step | Field::Time | Field::Date => {
                Self { step: same(self.step, text.parse().ok()?)?, ..self }
            }
            Field::Rank => Self { rank: same(self.rank, text.parse().ok()?)?, ..self },
            Field::Ranks => Self { ranks: same(self.ranks, text.parse().ok()?)?, ..self },
            Field::Name => self,
        })
    }
}

/// Bytes of `rest` before its first slash.
fn name_length(rest: &str) -> usize {
    rest.find('/').unwrap_or(rest.len())
}

/// Where a wildcard that begins at the start of `rest` may end: nowhere in a run of digits that a placeholder behind it
/// wants whole.
fn ends(rest: &str, within: usize, next: Option<&Part>) -> Vec<usize> {
    let number_follows = matches!(next, Some(Part::Field(field)) if *field != Field::Name);
    let ends = (0..=within).filter(|end| rest.is_char_boundary(*end));
    ends.filter(|end| !(number_follows && splits_digits(rest, *end))).collect()
}

/// Whether a cut at `end` goes through a run of digits.
fn splits_digits(text: &str, end: usize) -> bool {
    let is_digit = |index: usize| text.as_bytes().get(index).is_some_and(u8::is_ascii_digit);
    end > 0 && is_digit(end - 1) && is_digit(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(naming: &str, path: &str) -> Option<Reading> {
        naming.parse::<Naming>().unwrap().read(path)
    }

    fn read(naming: &str, path: &str) -> Option<(usize, Option<u64>, Option<u64>)> {
        let reading = reading(naming, path)?;
        let step = reading.step.map(|step| step.name().parse().unwrap());
        Some((reading.pattern, step, reading.rank))
    }

    /// The timestep's name.
    fn step_of(naming: &str, path: &str) -> Option<String> {
        reading(naming, path)?.step.map(|step| step.to_string())
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
    fn dates_and_decimal_numbers_are_timesteps_as_the_code_wrote_them() {
        for (naming, path, step) in [
            ("wrfrst_d{rank}_{date}", "wrfrst_d01_2016-10-13_00:00:00", "2016-10-13_00:00:00"),
            ("fesom.{date}.oce.restart/*", "fesom.1959-01-01.oce.restart/ssh.nc", "1959-01-01"),
            ("{date}.fv_core.res.tile{rank}.nc", "20160101.120000.fv_core.res.tile1.nc", "20160101.120000"),
            ("*.cam.r.{date}.nc", "case.cam.r.0001-01-06-00000.nc", "0001-01-06-00000"),
            ("*.r.{date}.*", "x.r.1959.nc", "1959"),
            ("processor{rank}/{time}/{name}", "processor0/0.005/U", "0.005"),
            ("processor{rank}/{time}/{name}", "processor0/1e-05/U.gz", "1e-05"),
            ("{time}/{name}", "-180/p", "-180"),
            ("r.{time}.{rank}", "r.12.5.0003", "12.5"),
            ("r.{time}.{rank}", "r.12.0003", "12"),
            ("a-{time}*", "a-0.5x", "0.5"),
            ("a*{time}", "a-0.5", "0.5"),
        ] {
            assert_eq!(step_of(naming, path).as_deref(), Some(step), "{naming} on {path}");
        }
        for (naming, path) in [("a.{date}.nc", "a.2016-13-01.nc"), ("{date}", "12345"), ("{time}", "x")] {
            assert_eq!(step_of(naming, path), None, "{naming} on {path}");
        }
    }

    #[test]
    fn a_name_tells_files_of_a_rank_apart_and_says_how_many_ranks_there_are() {
        let shard = reading(
            "**/checkpoint-{step}/{name}-{rank}-of-{ranks}.safetensors",
            "out/run/checkpoint-500/model-00001-of-00003.safetensors",
        );
        let shard = shard.unwrap();
        assert_eq!((shard.rank, shard.ranks, shard.name.as_str()), (Some(1), Some(3), "model"));
        assert_eq!(reading("{name}.{step}", ".7"), None, "a name isn't empty");
        assert!(reading("{name}/{name}.{step}", "ab/ab.7").is_some());
        assert_eq!(reading("{name}/{name}.{step}", "ab/ac.7"), None);
    }

    #[test]
    fn folders_above_are_any_or_none() {
        for (naming, path, fits) in [
            ("**/r.{step}", "r.1", true),
            ("**/r.{step}", "a/b/r.1", true),
            ("**/r.{step}", "a/b/xr.1", false),
            ("p{rank}/{step}/**", "p0/7/uniform/time", true),
            ("a**/r.{step}", "ab/c/r.1", true),
        ] {
            assert_eq!(reading(naming, path).is_some(), fits, "{naming} on {path}");
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
            ("restart.{step}", "restart.999999999999999999999999999999999"),
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
            ("a{colour}", "`{colour}`"),
            ("{step}-{date}", "one timestep"),
            ("{step}-of-{ranks}", "no `{rank}`"),
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
        let path = "1.2-3/".repeat(600);
        assert_eq!(read("**{step}**{rank}**{ranks}**{name}**x", &path), None);
    }
}
