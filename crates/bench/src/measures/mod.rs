//! What is measured: one module for each group of rows that belong together.
//!
//! A measure is a name, a sentence and a function from the run's settings to a [`Section`]. A new one is a module here and
//! a line in [`ALL`]; its rows may be of any kind, as the section carries its own table and its own targets.

mod aggregate;
mod bounds;
mod coding;
mod files;
mod images;
mod machines;
mod makespan;
mod manager;
mod memory;
mod merging;
mod packing;
mod placement;
mod repair;
mod repeats;
mod sets;
mod similarity;
mod sweeps;
mod testbed;
mod versions;
mod writes;

use crate::Error;
use crate::bench::Bench;
use crate::section::Section;

/// A group of rows that is measured together.
pub struct Measure {
    /// What `--only` calls it; its results go to `NAME.json`.
    pub name: &'static str,
    /// What it shows, for the heading of its table.
    pub what: &'static str,
    /// Measures it.
    pub run: fn(&Bench) -> Result<Section, Error>,
}

/// All measures, in the order in which they are taken.
pub const ALL: &[Measure] = &[
    Measure {
        name: "writes",
        what: "one file at a time, beside a plain file and a do-nothing mount",
        run: writes::run,
    },
    Measure {
        name: "bounds",
        what: "what each byte must cost on this machine, and how near the mount comes",
        run: bounds::run,
    },
    Measure { name: "repeats", what: "content that the pool has already, and cold reads", run: repeats::run },
    Measure { name: "stripe", what: "over the number of benefactors", run: sweeps::stripe },
    Measure { name: "window", what: "over the size of the window", run: sweeps::window },
    Measure {
        name: "files",
        what: "programs under file states, beside Metamori's figure 5.1",
        run: files::run,
    },
    Measure { name: "memory", what: "one large file", run: memory::run },
    Measure {
        name: "placement",
        what: "what each way to choose benefactors would have lost, on made-up traces",
        run: placement::run,
    },
    Measure {
        name: "similarity",
        what: "what each cutter finds again in the image before",
        run: similarity::run,
    },
    Measure { name: "versions", what: "restores of the first and of the newest version", run: versions::run },
    Measure {
        name: "aggregate",
        what: "sets packed by mcrEngine's schemes, by ours and by general compressors; a slow sink",
        run: aggregate::run,
    },
    Measure {
        name: "merging",
        what: "mcrEngine's merge schemes over the size of groups and of pieces",
        run: merging::run,
    },
    Measure {
        name: "packing",
        what: "memory over the number of ranks, time over the number of variables",
        run: packing::run,
    },
    Measure {
        name: "manager",
        what: "small commits of many clients; a restart, and the loss of benefactors, in a large simulated pool",
        run: manager::run,
    },
    Measure {
        name: "machines",
        what: "clients of a pool of many machines, over the speed of their links",
        run: machines::run,
    },
    Measure {
        name: "repair",
        what: "copies made anew of what a lost machine had, over the speed of the links",
        run: repair::run,
    },
    Measure {
        name: "coding",
        what: "what erasure coding costs: by threads, beside copies, and while benefactors are dead",
        run: coding::run,
    },
    Measure {
        name: "testbed-clients",
        what: "FALCON's testbed: clients that store at once, through each way to choose hosts",
        run: testbed::clients,
    },
    Measure {
        name: "testbed-hosts",
        what: "FALCON's testbed: storing and recovering while hosts are dead, silent or slow",
        run: testbed::hosts,
    },
    Measure {
        name: "testbed-phases",
        what: "FALCON's testbed: what each technique contributes, and where the time goes",
        run: testbed::phases,
    },
    Measure {
        name: "testbed-links",
        what: "FALCON's testbed: how much of the links a store with a code uses, and a recovery",
        run: testbed::over_links,
    },
    Measure {
        name: "makespan",
        what: "jobs that are evicted, beside a dedicated server for their checkpoints (FALCON's Figure 3)",
        run: makespan::run,
    },
    Measure { name: "images", what: "series of images through the mount and `put`", run: images::run },
];

/// The measures of these names, in the order of [`ALL`]; all of them for none.
///
/// # Errors
/// A name that no measure has.
pub fn named(names: &[String]) -> Result<Vec<&'static Measure>, Error> {
    let known = || ALL.iter().map(|measure| measure.name).collect::<Vec<_>>().join(", ");
    match names.iter().find(|name| ALL.iter().all(|measure| measure.name != **name)) {
        Some(unknown) => Err(Error(format!("there is no measure `{unknown}`; there are {}", known()))),
        None => Ok(ALL
            .iter()
            .filter(|measure| names.is_empty() || names.iter().any(|name| name == measure.name))
            .collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_are_found_by_name_and_a_wrong_name_is_refused() {
        let names = |asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
            named(&asked).map(|found| found.iter().map(|measure| measure.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), ALL.len());
        assert_eq!(names(&["memory", "writes"]).unwrap(), ["writes", "memory"]);
        assert!(names(&["write"]).unwrap_err().to_string().contains("`write`"));
    }
}
