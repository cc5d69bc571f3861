//! How known codes name their restart files, and which of these layouts, or which pattern, would fit files that are there.
//!
//! Pure: paths in, a proposal out. [`LAYOUTS`] is the only place that knows a code; a row is the code's own naming in the
//! words of [`crate::naming`]. A code that can write in several ways has a row for each, under one name.

mod known;

use std::collections::{BTreeMap, BTreeSet};

use crate::naming::{Naming, Pattern, Reading};
use crate::timestep::{Timestep, date_ends, number_ends};

pub use self::known::LAYOUTS;

/// How a code names the files of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The code, as `layout=NAME` has it.
    pub name: &'static str,
    /// What is named like this, for people.
    pub about: &'static str,
    /// The patterns, separated by spaces.
    pub naming: &'static str,
    /// Ranks of a complete set, if they don't depend on the job.
    pub ranks: Option<u32>,
    /// Names as the code writes them: two timesteps of one run.
    pub examples: &'static [&'static str],
    /// Where to look the names up. Rows whose source is a file of the code were compared with it; of the others not every one.
    pub source: &'static str,
}

/// Most paths that a proposal looks at: names repeat long before.
pub const PATHS_MAX: usize = 20_000;
/// Most patterns of a proposal that isn't a known layout.
const PATTERNS_PROPOSED_MAX: usize = 8;

/// What would make checkpoint sets of files that are there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The layout of a known code; `None`: the patterns were made from the names.
    pub layout: Option<&'static Layout>,
    /// The patterns, separated by spaces.
    pub naming: String,
    /// Ranks of a complete set; `None`: they are learned.
    pub ranks: Option<u32>,
    /// Why, for people.
    pub why: String,
}

/// The names of all layouts, once each.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = LAYOUTS.iter().map(|layout| layout.name).collect();
    names.dedup();
    names
}

/// The layout of a code that fits most of the files, or its first one; `None`: no such code is known.
pub fn of_code(name: &str, paths: &[&str]) -> Option<Proposal> {
    let mut rows: Vec<(usize, &Layout)> = LAYOUTS
        .iter()
        .filter(|layout| layout.name == name)
        .map(|layout| (fitting(layout.naming, paths), layout))
        .collect();
    rows.sort_by_key(|(fitting, _)| std::cmp::Reverse(*fitting));
    rows.first().map(|(_, layout)| of_layout(layout, paths))
}

/// The layout, or else patterns, that would make sets of the files; `None`: nothing would.
pub fn proposed(paths: &[&str]) -> Option<Proposal> {
    let paths = paths.get(..paths.len().min(PATHS_MAX)).unwrap_or(paths);
    let counts: Vec<usize> = LAYOUTS.iter().map(|layout| fitting(layout.naming, paths)).collect();
    let best = counts.iter().copied().max().unwrap_or(0);
    let mut fitting_well =
        LAYOUTS.iter().zip(&counts).filter(|(_, count)| **count > 0 && 2 * **count >= best);
    let known = fitting_well.next().and_then(|(layout, _)| of_code(layout.name, paths));
    known.or_else(|| from_names(paths))
}

/// How many files a layout gives a place in a set.
fn fitting(naming: &str, paths: &[&str]) -> usize {
    let Ok(naming) = naming.parse::<Naming>() else { return 0 };
    paths.iter().filter(|path| naming.read(path).is_some()).count()
}

fn of_layout(layout: &'static Layout, paths: &[&str]) -> Proposal {
    let naming = layout.naming.split_whitespace().collect::<Vec<_>>().join(" ");
    let (ranks, seen) = seen(&naming, paths);
    let why = match seen.is_empty() {
        true => layout.about.to_owned(),
        false => format!("{}; {seen}", layout.about),
    };
    Proposal { layout: Some(layout), naming, ranks: ranks.or(layout.ranks), why }
}

/// The ranks of a set, if two timesteps have the same number of them and none has more, and what patterns find.
fn seen(naming: &str, paths: &[&str]) -> (Option<u32>, String) {
    let Ok(naming) = naming.parse::<Naming>() else { return (None, String::new()) };
    let readings: Vec<Reading> = paths.iter().filter_map(|path| naming.read(path)).collect();
    let steps: BTreeSet<Timestep> = readings.iter().filter_map(|reading| reading.step).collect();
    let mut ranks: BTreeMap<Timestep, BTreeSet<u64>> = BTreeMap::new();
    for reading in readings.iter().filter(|reading| reading.ranks.is_none()) {
        if let (Some(step), Some(rank)) = (reading.step, reading.rank) {
            ranks.entry(step).or_default().insert(rank);
        }
    }
    let most = ranks.values().map(BTreeSet::len).max().unwrap_or(0);
    let agree = ranks.values().filter(|ranks| ranks.len() == most).count();
    let declared = u32::try_from(most).ok().filter(|most| *most > 0 && agree > 1);
    let mut text = Vec::new();
    if !readings.is_empty() {
        text.push(format!("{} of {} files fit", readings.len(), paths.len()));
    }
    if let (Some(first), Some(last)) = (steps.first(), steps.last()) {
        text.push(format!("{} timesteps from {first} to {last}", steps.len()));
    }
    if let Some(ranks) = declared {
        text.push(format!("{ranks} ranks in {agree} of them"));
    }
    (declared, text.join(", "))
}

// --- patterns from names

/// A part of a name: what stands between numbers, or a number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Token<'a> {
    Text(&'a str),
    Number(&'a str),
    Time(&'a str),
    Date(&'a str),
}

/// What takes the place of a number in a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Same,
    Step,
    Rank,
    Any,
}

/// Words before a number that say that it counts ranks.
const RANK_WORDS: [&str; 12] =
    ["rank", "proc", "processor", "cpu", "tile", "node", "part", "mesh", "domain", "shard", "task", "pe"];
/// Words before a number that say that it counts steps.
const STEP_WORDS: [&str; 12] = [
    "step",
    "it",
    "iter",
    "iteration",
    "chk",
    "ckpt",
    "checkpoint",
    "restart",
    "epoch",
    "cycle",
    "time",
    "dump",
];

fn tokens<'a>(path: &'a str) -> Vec<Token<'a>> {
    let mut found = Vec::new();
    let (mut at, mut text_from) = (0, 0);
    while let Some(rest) = path.get(at..).filter(|rest| !rest.is_empty()) {
        let starts_name = at == 0 || path.get(..at).is_some_and(|before| before.ends_with('/'));
        let time = number_ends(rest, true).first().copied().filter(|end| {
            starts_name
                && rest.get(*end..).is_some_and(|behind| behind.starts_with('/'))
                && rest.get(..*end).is_some_and(|time| time.contains(['.', 'e', 'E']))
        });
        let date = || date_ends(rest).first().copied().filter(|end| *end >= 8 && starts_date(path, at));
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (end, make): (usize, fn(&'a str) -> Token<'a>) = match (time, date()) {
            (Some(end), _) => (end, Token::Time),
            (None, Some(end)) => (end, Token::Date),
            _ if digits > 0 => (digits, Token::Number),
            _ => {
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            }
        };
        found.extend(path.get(text_from..at).filter(|text| !text.is_empty()).map(Token::Text));
        found.extend(path.get(at..at + end).map(make));
        at += end;
        text_from = at;
    }
    found.extend(path.get(text_from..).filter(|text| !text.is_empty()).map(Token::Text));
    found
}

/// Whether a date can begin at `at`: eight digits or more of it that aren't part of a longer number.
fn starts_date(path: &str, at: usize) -> bool {
    !path.get(..at).is_some_and(|before| before.ends_with(|letter: char| letter.is_ascii_digit()))
}

/// Names that differ in their numbers alone.
type Shape<'a> = Vec<Option<&'a str>>;

fn shape<'a>(tokens: &[Token<'a>]) -> Shape<'a> {
    let part = |token: &Token<'a>| match token {
        Token::Text(text) => Some(*text),
        Token::Number(_) => None,
        Token::Time(_) => Some("{time}"),
        Token::Date(_) => Some("{date}"),
    };
    tokens.iter().map(part).collect()
}

fn from_names(paths: &[&str]) -> Option<Proposal> {
    let mut shapes: BTreeMap<Shape<'_>, Vec<Vec<Token<'_>>>> = BTreeMap::new();
    for path in paths {
        let tokens = tokens(path);
        if tokens.iter().any(|token| !matches!(token, Token::Text(_))) {
            shapes.entry(shape(&tokens)).or_default().push(tokens);
        }
    }
    let most = shapes.values().map(Vec::len).max().filter(|most| *most > 1)?;
    let mut largest: Vec<&Vec<Vec<Token<'_>>>> =
        shapes.values().filter(|names| 4 * names.len() >= most.max(8)).collect();
    largest.sort_by_key(|names| std::cmp::Reverse(names.len()));
    let mut patterns: Vec<String> =
        largest.into_iter().take(PATTERNS_PROPOSED_MAX).filter_map(|names| pattern(names)).collect();
    patterns.dedup();
    let naming = patterns.join(" ");
    let parsed: Naming = naming.parse().ok().filter(|_| !naming.is_empty())?;
    if !parsed.patterns().iter().all(Pattern::has_timestep) {
        return None;
    }
    let (ranks, seen) = seen(&naming, paths);
    Some(Proposal { layout: None, naming, ranks, why: format!("made from the names: {seen}") })
}

/// The pattern of names of one shape; `None`: nothing varies that can be a timestep.
fn pattern(names: &[Vec<Token<'_>>]) -> Option<String> {
    let first = names.first()?;
    let column = |index: usize| -> Vec<&str> {
        let texts = names.iter().filter_map(|name| match name.get(index) {
            Some(Token::Number(text) | Token::Time(text) | Token::Date(text)) => Some(*text),
            _ => None,
        });
        texts.collect()
    };
    let has_time = first.iter().any(|token| matches!(token, Token::Time(_) | Token::Date(_)));
    let varying: Vec<usize> = (0..first.len())
        .filter(|index| matches!(first.get(*index), Some(Token::Number(_))))
        .filter(|index| column(*index).iter().collect::<BTreeSet<_>>().len() > 1)
        .collect();
    let word = |index: usize| match index.checked_sub(1).and_then(|before| first.get(before)) {
        Some(Token::Text(text)) => {
            let text = text.trim_end_matches(|letter: char| !letter.is_alphabetic());
            text.rsplit(|letter: char| !letter.is_alphabetic()).next().unwrap_or("").to_ascii_lowercase()
        }
        _ => String::new(),
    };
    let is_rank = |index: usize| RANK_WORDS.contains(&word(index).as_str());
    let is_step = |index: usize| STEP_WORDS.contains(&word(index).as_str());
    let largest = |index: usize| column(index).iter().filter_map(|text| text.parse::<u64>().ok()).max();
    let candidates = || varying.iter().copied().filter(|index| !is_rank(*index));
    let step = match has_time {
        true => None,
        // Of several, the one that is called a step; else the one that counts furthest.
        false => Some(
            candidates()
                .find(|index| is_step(*index))
                .or_else(|| candidates().max_by_key(|index| largest(*index)))?,
        ),
    };
    let equals = |index: usize| step.is_some_and(|step| column(index) == column(step));
    let others: Vec<usize> = varying.iter().copied().filter(|index| !equals(*index)).collect();
    let rank = others.iter().copied().find(|index| is_rank(*index)).or_else(|| others.last().copied());
    let role = |index: usize| match index {
        _ if !varying.contains(&index) => Role::Same,
        _ if equals(index) => Role::Step,
        _ if Some(index) == rank => Role::Rank,
        _ => Role::Any,
    };
    let text = first.iter().enumerate().map(|(index, token)| match token {
        Token::Text(text) => *text,
        Token::Time(_) => "{time}",
        Token::Date(_) => "{date}",
        Token::Number(number) => match role(index) {
            Role::Same => *number,
            Role::Step => "{step}",
            Role::Rank => "{rank}",
            Role::Any => "*",
        },
    });
    let text: String = text.collect();
    // Blanks separate patterns, and braces and stars in names have no way to be written.
    let is_plain =
        !first.iter().any(|token| matches!(token, Token::Text(text) if text.contains([' ', '{', '}', '*'])));
    is_plain.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_each_code_are_read_by_its_layout_and_auto_finds_it() {
        for layout in LAYOUTS {
            let naming: Naming =
                layout.naming.parse().unwrap_or_else(|error| panic!("{}: {error}", layout.name));
            for example in layout.examples {
                let reading = naming.read(example).unwrap_or_else(|| panic!("{}: {example}", layout.name));
                let has_step = naming.patterns()[reading.pattern].has_timestep();
                assert_eq!(reading.step.is_some(), has_step, "{}: {example}", layout.name);
                let above = format!("run7/{example}");
                let is_serial_foam = layout.naming.starts_with("{time}");
                assert!(is_serial_foam || naming.read(&above).is_some(), "{}: {above}", layout.name);
            }
            let proposal = proposed(layout.examples).unwrap();
            let found = proposal.layout.unwrap();
            assert_eq!((found.name, found.about), (layout.name, layout.about));
            assert_eq!(of_code(layout.name, layout.examples).unwrap().layout, Some(layout));
            assert!(!layout.source.is_empty() && !layout.about.is_empty());
        }
        assert_eq!(of_code("nosuch", &[]), None);
        let sorted: BTreeSet<&str> = names().into_iter().collect();
        assert_eq!(sorted.len(), names().len(), "rows of one code stand together");
    }

    #[test]
    fn the_documents_list_every_layout() {
        let document = include_str!("../../../docs/OPERATIONS.md");
        for name in names() {
            assert!(document.contains(&format!("\n| `{name}` | ")), "{name}");
        }
    }

    fn step_of(code: &str, path: &str) -> Option<String> {
        let proposal = of_code(code, &[path]).unwrap();
        let reading = proposal.naming.parse::<Naming>().unwrap().read(path)?;
        Some(format!(
            "{}/{}",
            reading.step.map_or("-".to_owned(), |step| step.to_string()),
            reading.rank.map_or("-".to_owned(), |rank| rank.to_string())
        ))
    }

    #[test]
    fn timesteps_and_ranks_are_those_that_the_code_means() {
        for (code, path, expected) in [
            ("wrf", "wrfrst_d02_2016-10-13_00:00:00", "2016-10-13_00:00:00/2"),
            ("wrf", "wrfrst_d01_2021-01-02_00_00_00", "2021-01-02_00_00_00/1"),
            ("wrf", "wrfrst_d01_2016-10-13_00:00:00_0003", "2016-10-13_00:00:00/3"),
            ("fv3", "RESTART/20160101.120000.sfc_data.tile6.nc", "20160101.120000/6"),
            ("cesm", "f.e21.FHIST.f09.011.cam_0080.rs.2020-01-01-00000.nc", "2020-01-01-00000/-"),
            ("icon", "exp_restart_ATM_19790101T000000Z.nc", "19790101T000000Z/-"),
            ("openfoam", "case/processor3/0.005/p", "0.005/3"),
            ("openfoam", "0.25/U", "0.25/-"),
            ("dcp", "epoch=3-step=100.ckpt/__2_0.distcp", "100/2"),
            ("dcp", "0000400.net_optim/__3_0.distcp", "0000400/3"),
            ("lammps", "restart.0.1000", "0/1000"),
            ("namd", "a.restart.coor", "-/-"),
        ] {
            assert_eq!(step_of(code, path).as_deref(), Some(expected), "{code}: {path}");
        }
        for (code, path) in [
            ("cactus", "checkpoint.chkpt.tmp.it_9876.file_0.h5"),
            ("mitgcm", "pickup.ckptA.data"),
            ("openfoam", "postProcessing/probes/0/U"),
            ("namd", "a.restart.coor.old"),
        ] {
            assert_eq!(step_of(code, path), None, "{code}: {path}");
        }
    }

    type Set = (&'static str, &'static [(&'static str, &'static str)]);

    /// A layout, names that its code writes, and the timestep and rank that they mean.
    const SEEN: &[Set] = &[
        (
            "cesm",
            &[("case.cam.r.0001-01-06-00000.nc", "0001-01-06-00000/-"), ("case.cam.h0.0001-01.nc", "no")],
        ),
        (
            "nemo",
            &[
                ("ORCA_00000240_restart_0003.nc", "00000240/3"),
                ("ORCA_00000240_restart_trc_0003.nc", "00000240/3"),
            ],
        ),
        (
            "specfem",
            &[("DATABASES_MPI/dump_all_arrays000000", "-/0"), ("DATABASES_MPI/dump_all_arrays000001", "-/1")],
        ),
        ("athena", &[("cr.00012.rst", "00012/-"), ("cr.final.rst", "no")]),
        ("flash", &[("rt_hdf5_chk_0001", "0001/-"), ("rt_hdf5_plt_cnt_0001", "no")]),
        ("gadget", &[("snapdir_005/snapshot_005.3.hdf5", "005/3")]),
        ("vasp", &[("relax/WAVECAR", "-/-"), ("relax/CHGCAR", "-/-"), ("relax/INCAR", "no")]),
        ("amber", &[("restrt_5000", "5000/-"), ("restrt_10000", "10000/-"), ("prod.nc", "no")]),
        (
            "amrex",
            &[("sub_chk00100/Header", "00100/-"), ("sub_chk00100/Level_0/SD_0_New_MF_D_00001", "00100/-")],
        ),
        (
            "lightning",
            &[("a/checkpoints/epoch=3-step=400.ckpt", "400/-"), ("epoch=3-step=400-v1.ckpt", "400/-")],
        ),
        (
            "orbax",
            &[
                ("ckpt/1000/default/ocdbt.process_0/d/0f3a", "1000/-"),
                ("ckpt/1000/_CHECKPOINT_METADATA", "1000/-"),
            ],
        ),
        ("bout", &[("data/BOUT.restart.0.nc", "-/0"), ("data/BOUT.restart.1.nc", "-/1")]),
        // A data set's iterator, metrics, and what a writer that failed has left.
        (
            "orbax",
            &[
                ("ckpt/1000/_CHECKPOINT_METADATA", "1000/-"),
                ("ckpt/1000/orbax.checkpoint", "1000/-"),
                ("ckpt/1000/pytree/array_metadatas/process_0", "1000/-"),
                ("ckpt/1000/pytree/_sharding", "1000/-"),
                ("ckpt/1000/dataset/manifest.ocdbt", "1000/-"),
                ("ckpt/1000/metrics/metrics", "1000/-"),
                ("ckpt/2000.orbax-checkpoint-tmp-17/pytree/d/0f", "no"),
            ],
        ),
        (
            "orbax",
            &[
                ("checkpoint_0023/_METADATA", "0023/-"),
                ("checkpoint_0023/ocdbt.process_1/d/7a", "0023/-"),
                ("checkpoint_0023/manifest.ocdbt", "0023/-"),
                ("checkpoint_0024.orbax-checkpoint-tmp-3/_METADATA", "no"),
            ],
        ),
        ("bout", &[("delta_1/BOUT.restart.nc", "-/-"), ("delta_1/BOUT.dmp.nc", "no")]),
        ("bout", &[("data/BOUT.restart.bp/md.0", "-/-"), ("data/BOUT.settings", "no")]),
        (
            "specfem",
            &[
                ("DATABASES_MPI/save_frame_at000003.bp", "000003/-"),
                ("DATABASES_MPI/proc000001_reg1_solver_data.bin", "no"),
            ],
        ),
        (
            "specfem",
            &[
                ("OUTPUT_FILES/lastframe_acoustic000001.bin", "-/1"),
                ("OUTPUT_FILES/lastframe_poroelastic_w000002.bin", "-/2"),
                ("OUTPUT_FILES/absorb_elastic_left000001.bin", "no"),
            ],
        ),
        (
            "vasp",
            &[("TAUCAR", "-/-"), ("POT", "-/-"), ("vaspwave.h5", "-/-"), ("CHG", "no"), ("LOCPOT", "no")],
        ),
        ("amber", &[("heat.rst_2500", "2500/-"), ("heat.rst_5000", "5000/-"), ("heat.mdcrd", "no")]),
        ("amber", &[("heat.rst", "-/-"), ("min.rst", "-/-"), ("heat.out", "no")]),
        (
            "fv3",
            &[
                ("RESTART/20200825.180000.fv_core.res.nest02.tile7.nc", "20200825.180000/-"),
                ("RESTART/20200825.180000.fv_core.res.nest02.nc", "20200825.180000/-"),
                ("RESTART/20200825.180000.phy_data.tile6.nc", "20200825.180000/6"),
                ("RESTART/20210323.060000.ca_data.tile1.nc", "20210323.060000/1"),
                ("RESTART/20210323.060000.restart.ww3", "20210323.060000/-"),
                ("CICE_RESTART/cice_model.res.2021-03-23-21600.nc", "2021-03-23-21600/-"),
                ("RESTART/DATM_CFSR.cpl.r.2011-10-02-00000.nc", "2011-10-02-00000/-"),
                ("RESTART/fv_BC_ne.res.nest02.nc", "no"),
                ("atmf024.tile1.nc", "no"),
            ],
        ),
        // The mediator's restart file of a run of CESM is of the same form as that of UFS.
        ("cesm", &[("run.cpl.r.2011-10-02-00000.nc", "2011-10-02-00000/-")]),
        ("fesom", &[("awi.1958.oce.restart.nc", "1958/-"), ("awi.1958.bio.restart.nc", "1958/-")]),
        ("fesom", &[("fesom_raw_restart/np128/00017.dump", "-/17"), ("fesom_raw_restart/np128.info", "-/-")]),
        (
            "ramses",
            &[
                ("output_00002/group_00001/part_00002.out00012", "00002/12"),
                ("output_00002/group_00001/header_00002.txt", "00002/-"),
            ],
        ),
        ("safetensors", &[("model.safetensors", "-/-"), ("config.json", "no")]),
        (
            "safetensors",
            &[("model-00002-of-00003.safetensors", "-/2"), ("model.safetensors.index.json", "-/-")],
        ),
        // Digits of a format's name are no timestep, and four digits in front of any ending are no date.
        (
            "",
            &[
                ("out/checkpoint_001000.bp5/data.0", "001000/-"),
                ("out/checkpoint_002000.bp5/data.0", "002000/-"),
            ],
        ),
        ("", &[("hdf5/Chk_000100.3d.hdf5", "000100/-"), ("hdf5/Chk_000200.3d.hdf5", "000200/-")]),
        ("", &[("0003.sdf", "0003/-"), ("0004.sdf", "0004/-")]),
        ("", &[("checkpoint_0100/shard_0.pt", "0100/0"), ("checkpoint_0200/shard_1.pt", "0200/1")]),
    ];

    #[test]
    fn names_that_codes_were_seen_to_write_are_proposed_with_the_sets_that_they_mean() {
        for (code, names) in SEEN {
            let paths: Vec<&str> = names.iter().map(|(path, _)| *path).collect();
            let proposal = proposed(&paths).unwrap_or_else(|| panic!("{paths:?}"));
            assert_eq!(proposal.layout.map_or("", |layout| layout.name), *code, "{paths:?}");
            let naming: Naming = proposal.naming.parse().unwrap();
            for (path, expected) in *names {
                let read = naming.read(path).map_or("no".to_owned(), |reading| {
                    let step = reading.step.map_or("-".to_owned(), |step| step.to_string());
                    format!("{step}/{}", reading.rank.map_or("-".to_owned(), |rank| rank.to_string()))
                });
                assert_eq!(read, *expected, "{path}");
            }
        }
    }

    #[test]
    fn ranks_are_proposed_when_two_timesteps_agree() {
        let names: Vec<String> = [100, 200]
            .iter()
            .flat_map(|step| (1..=3).map(move |mesh| format!("DD{step}/data{step}.cpu{mesh}")))
            .collect();
        let paths: Vec<&str> = names.iter().map(String::as_str).collect();
        let proposal = proposed(&paths).unwrap();
        assert_eq!((proposal.layout.unwrap().name, proposal.ranks), ("enzo", Some(3)));
        assert!(
            proposal.why.contains("6 of 6 files fit, 2 timesteps from 100 to 200, 3 ranks in 2 of them"),
            "{}",
            proposal.why
        );
        assert_eq!(proposed(&paths[..3]).unwrap().ranks, None, "one timestep may be half written");
        assert_eq!(of_code("fv3", &[]).unwrap().ranks, Some(6));
    }

    #[test]
    fn names_of_no_known_code_give_a_pattern() {
        for (paths, naming) in [
            (&["field.100.0", "field.100.1", "field.200.0", "field.200.1"][..], "field.{step}.{rank}"),
            (
                &["rank0/state.100", "rank1/state.100", "rank0/state.200", "rank1/state.200"],
                "rank{rank}/state.{step}",
            ),
            (&["ocean_2016-10-13.bin", "ocean_2016-10-14.bin"], "ocean_{date}.bin"),
            (&["0.5/a/x.7.bin", "0.25/a/x.7.bin"], "{time}/a/x.7.bin"),
            (&["run7/cycle1/save1.dat", "run7/cycle2/save2.dat"], "run7/cycle{step}/save{step}.dat"),
        ] {
            let proposal = from_names(paths).unwrap();
            assert_eq!(proposal.naming, naming);
            assert_eq!(fitting(naming, paths), paths.len());
        }
        for paths in [&["notes.txt", "log"][..], &["a1"], &[], &["é b1", "é b2"]] {
            assert_eq!(from_names(paths), None, "{paths:?}");
        }
    }

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_names_are_looked_at_without_a_panic(names in prop::collection::vec("[a-c0-9._/é {}*=-]{0,24}", 0..12)) {
            let paths: Vec<&str> = names.iter().map(String::as_str).collect();
            if let Some(proposal) = proposed(&paths) {
                prop_assert!(proposal.naming.parse::<Naming>().is_ok());
            }
            if let Some(proposal) = from_names(&paths) {
                prop_assert!(fitting(&proposal.naming, &paths) > 0);
            }
        }
    }
}
