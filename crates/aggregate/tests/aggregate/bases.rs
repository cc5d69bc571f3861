//! Bases under random histories: none goes that a container needs or may need, and one that nobody needs goes in the end.
//!
//! Relies on a folder as the sink, whose containers can be made unreadable one by one. The model is a note for each container of
//! the base that it needed when it was published, which stays true when it is damaged later.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use stdchk_aggregate::{
    AggregateError, Aggregation, Aggregator, BaseSet, Container, FolderSink, Named, Packing, Round, Sink,
    Unpacking, Watch,
};
use stdchk_formats::Source;
use tempfile::TempDir;

const RANKS: u32 = 2;
/// Numbers of each rank.
const ELEMENTS: u64 = 3000;

/// What the sink answers in place of the bytes under some names.
type Faults = Arc<Mutex<HashMap<String, ErrorKind>>>;

/// A folder of which some containers can't be read.
struct Faulty {
    folder: FolderSink,
    faults: Faults,
}

impl Sink for Faulty {
    fn names(&self) -> Result<Vec<Named>, AggregateError> {
        self.folder.names()
    }

    fn open(&self, name: &str) -> Result<Box<dyn Source + Send + Sync>, AggregateError> {
        match self.faults.lock().unwrap().get(name) {
            Some(kind) => Err(AggregateError::io("read", Path::new(name))(io::Error::from(*kind))),
            None => self.folder.open(name),
        }
    }

    fn draft(&self, name: &str) -> PathBuf {
        self.folder.draft(name)
    }

    fn publish(&self, draft: &Path, name: &str, watch: Watch<'_>) -> Result<(), AggregateError> {
        self.folder.publish(draft, name, watch)
    }

    fn keep_as(&self, name: &str, other: &str) -> Result<(), AggregateError> {
        self.folder.keep_as(name, other)
    }

    fn remove(&self, name: &str) -> Result<(), AggregateError> {
        self.folder.remove(name)
    }

    fn settle(&self) -> Result<(), AggregateError> {
        self.folder.settle()
    }

    fn shown(&self, name: &str) -> String {
        name.to_owned()
    }
}

/// What may happen to a sink. Containers are chosen by a number, as often around as needed.
#[derive(Clone, Debug)]
enum Event {
    /// All ranks of a timestep write.
    Written {
        timestep: u64,
    },
    Damaged(usize),
    Removed(usize),
    /// Only the newest sets stay, as many.
    KeptLast(usize),
    /// Nothing is given out any more under a name: for a while, or as if the sink were away.
    Unreadable(usize, ErrorKind),
    Readable,
    /// Another process goes on.
    Restarted,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_u64..5).prop_map(|timestep| Event::Written { timestep }),
        1 => any::<usize>().prop_map(Event::Damaged),
        1 => any::<usize>().prop_map(Event::Removed),
        1 => (1_usize..3).prop_map(Event::KeptLast),
        1 => any::<usize>().prop_map(|which| Event::Unreadable(which, ErrorKind::ResourceBusy)),
        1 => any::<usize>().prop_map(|which| Event::Unreadable(which, ErrorKind::Other)),
        2 => Just(Event::Readable),
        2 => Just(Event::Restarted),
    ]
}

/// A sink, its source, and what is known of the containers.
struct World {
    root: TempDir,
    faults: Faults,
    aggregator: Option<Aggregator<'static>>,
    /// How often something was written: every time a part of the numbers is drawn anew.
    life: u64,
    /// The base that each container needed when it was intact.
    needs: BTreeMap<String, Option<String>>,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("run")).unwrap();
        let (faults, needs) = (Faults::default(), BTreeMap::new());
        let mut world = Self { root, faults, aggregator: None, life: 0, needs };
        world.restart();
        world
    }

    fn sink(&self) -> PathBuf {
        self.root.path().join("sink")
    }

    /// Another aggregator; none can start while the sink seems to be away.
    fn restart(&mut self) {
        // The one before holds the lock.
        self.aggregator = None;
        let sink =
            Faulty { folder: FolderSink::open(&self.sink()).unwrap(), faults: Arc::clone(&self.faults) };
        let aggregation = Aggregation {
            source: self.root.path().join("run"),
            naming: "".parse().unwrap(),
            ranks: RANKS,
            containers: 1,
            remove_raw: true,
            settle: Duration::ZERO,
            across_time: 2,
            packing: Packing { threads: 1, ..Packing::default() },
        };
        self.aggregator = Aggregator::start(aggregation, Box::new(sink)).ok();
    }

    /// Has the aggregator look; none: it failed.
    fn look(&mut self) -> Option<Round> {
        if self.aggregator.is_none() {
            self.restart();
        }
        let round = self.aggregator.as_mut()?.round().ok();
        for name in self.containers() {
            match Container::open(&self.sink().join(&name)) {
                Ok(_) => drop(self.needs.insert(name, None)),
                Err(AggregateError::BaseMissing { base }) => drop(self.needs.insert(name, Some(base))),
                // What it needed it needs, as long as it is there.
                Err(_) => {}
            }
        }
        round
    }

    fn containers(&self) -> Vec<String> {
        let entries = fs::read_dir(self.sink()).unwrap().map(|entry| entry.unwrap().file_name());
        let names = entries.map(|name| name.into_string().unwrap());
        let mut names: Vec<String> =
            names.filter(|name| name.ends_with(".pack") && !name.starts_with('.')).collect();
        names.sort();
        names
    }

    fn chosen(&self, which: usize) -> Option<String> {
        let names = self.containers();
        names.get(which.checked_rem(names.len())?).cloned()
    }

    /// Identities of the bases that are there, intact, with the names under which they are.
    fn bases(&self) -> BTreeMap<String, Vec<String>> {
        let mut bases: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in self.containers() {
            if let Ok(base) = BaseSet::open(&self.sink().join(&name)) {
                let identity = base.identity().map(|byte| format!("{byte:02x}")).concat();
                bases.entry(identity).or_default().push(name);
            }
        }
        bases
    }

    /// What the containers that are there need.
    fn needed(&self) -> BTreeSet<String> {
        self.containers().iter().filter_map(|name| self.needs.get(name)?.clone()).collect()
    }

    fn suffer(&mut self, event: &Event) {
        match event {
            Event::Written { timestep } => self.write(*timestep),
            Event::Damaged(which) => self.chosen(*which).into_iter().for_each(|name| {
                // By a new file, as nobody writes into a container: the aggregator goes by its stamp.
                let (path, other) = (self.sink().join(name), self.sink().join("other"));
                fs::write(&other, [7; 3000]).unwrap();
                fs::rename(other, path).unwrap();
            }),
            Event::Removed(which) => {
                self.chosen(*which)
                    .into_iter()
                    .for_each(|name| fs::remove_file(self.sink().join(name)).unwrap());
            }
            Event::KeptLast(count) => {
                let sets = self.containers().into_iter().filter(|name| name.starts_with("step-"));
                sets.rev().skip(*count).for_each(|name| fs::remove_file(self.sink().join(name)).unwrap());
            }
            Event::Unreadable(which, kind) => {
                let name = self.chosen(*which);
                self.faults.lock().unwrap().extend(name.map(|name| (name, *kind)));
                // What was looked into before is known for good.
                self.restart();
            }
            Event::Readable => self.faults.lock().unwrap().clear(),
            Event::Restarted => self.restart(),
        }
        let there = self.containers();
        self.needs.retain(|name, _| there.contains(name));
    }

    fn write(&mut self, timestep: u64) {
        self.life += 1;
        for rank in 0..u64::from(RANKS) {
            let path = self.root.path().join(format!("run/net.N{rank}.T{timestep}"));
            fs::write(path, tensor(rank, self.life)).unwrap();
        }
    }
}

fn noise(seed: u64) -> u64 {
    let mixed = (seed ^ (seed >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d) >> 8
}

/// Random numbers, of which a fiftieth is drawn anew in each life.
fn tensor(rank: u64, life: u64) -> Vec<u8> {
    let literal = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({ELEMENTS},), }}");
    let mut bytes = [b"\x93NUMPY\x01\x00\x76\x00", format!("{literal:<117}\n").as_bytes()].concat();
    for element in 0..ELEMENTS {
        let drawn = (1..=life).rev().find(|life| noise(element * 100 + life).is_multiple_of(50)).unwrap_or(0);
        let mantissa = u32::try_from(noise(element * 1000 + drawn * 10 + rank) & 0x7f_ffff).unwrap();
        bytes.extend(f32::from_bits(0x3f80_0000 | mantissa).to_le_bytes());
    }
    bytes
}

#[test]
fn sets_of_this_world_are_coded_against_each_other() {
    let mut world = World::new();
    let mut with_base = Vec::new();
    for timestep in 1..=4 {
        world.write(timestep);
        with_base.push(world.look().unwrap().aggregated[0].with_base);
    }
    assert_eq!(with_base, [0, 1, 1, 0]);
    assert_eq!(world.needed().len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_base_goes_that_may_be_needed_and_one_that_is_not_goes_in_the_end(
        events in prop::collection::vec(event(), 4..14),
    ) {
        let mut world = World::new();
        for event in &events {
            world.suffer(event);
            let before = world.bases();
            world.look();
            let after = world.bases();
            for base in world.needed().iter().filter(|base| before.contains_key(*base)) {
                prop_assert!(after.contains_key(base), "{base} went, after {event:?}: {:?}", world.needs);
            }
        }
        // Everything can be read again, and what is damaged is removed by its owner.
        world.suffer(&Event::Readable);
        for name in world.containers() {
            let path = world.sink().join(&name);
            if matches!(Container::open(&path), Err(AggregateError::NoContainer { .. })) {
                fs::remove_file(path).unwrap();
            }
        }
        world.suffer(&Event::Restarted);
        world.look().unwrap();
        let (bases, needed) = (world.bases(), world.needed());
        for name in world.containers() {
            let path = world.sink().join(&name);
            let has_base = world.needs[&name].as_ref().is_none_or(|base| bases.contains_key(base));
            prop_assert_eq!(has_base, Container::open_beside_base(&path).is_ok());
            if has_base {
                Container::open_beside_base(&path).unwrap().check(&Unpacking::default()).unwrap();
            }
        }
        for (base, names) in &bases {
            let kept = names.iter().filter(|name| name.starts_with("base-")).count();
            prop_assert!(kept == 0 || (names.len() == 1 && needed.contains(base)), "{names:?} stay of {needed:?}");
        }
    }
}
