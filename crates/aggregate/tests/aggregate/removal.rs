//! What keeps raw files and containers from going too early, and one set from ending the work on all.
//!
//! Relies on a folder as the sink, with a hook in front of every operation: there a test changes what the aggregator has looked
//! at, or has the operation fail.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use stdchk_aggregate::{
    AggregateError, Aggregation, Aggregator, Container, FolderSink, Named, Packing, Sink, Unpacking, Watch,
    inputs_of,
};
use stdchk_formats::Source;
use tempfile::TempDir;

/// Called with the operation and the name; an answer is the error in its place.
type Hook = Arc<dyn Fn(&str, &str) -> Option<ErrorKind> + Send + Sync>;

type Outcome<T> = Result<T, AggregateError>;

struct Hooked {
    folder: FolderSink,
    hook: Hook,
}

impl Hooked {
    fn ask(&self, operation: &str, name: &str) -> Outcome<()> {
        let error = |kind| AggregateError::io("use", Path::new(&self.shown(name)))(io::Error::from(kind));
        (self.hook)(operation, name).map_or(Ok(()), |kind| Err(error(kind)))
    }
}

impl Sink for Hooked {
    fn names(&self) -> Outcome<Vec<Named>> {
        self.folder.names()
    }

    fn open(&self, name: &str) -> Outcome<Box<dyn Source + Send + Sync>> {
        self.ask("open", name).and_then(|()| self.folder.open(name))
    }

    fn draft(&self, name: &str) -> PathBuf {
        self.folder.draft(name)
    }

    fn publish(&self, draft: &Path, name: &str, watch: Watch<'_>) -> Outcome<()> {
        self.ask("publish", name).and_then(|()| self.folder.publish(draft, name, watch))
    }

    fn keep_as(&self, name: &str, other: &str) -> Outcome<()> {
        self.ask("keep", name).and_then(|()| self.folder.keep_as(name, other))
    }

    fn remove(&self, name: &str) -> Outcome<()> {
        self.ask("remove", name).and_then(|()| self.folder.remove(name))
    }

    fn settle(&self) -> Outcome<()> {
        self.ask("settle", "").and_then(|()| self.folder.settle())
    }

    fn shown(&self, name: &str) -> String {
        self.folder.shown(name)
    }
}

/// A folder in which two ranks write, and its sink.
struct World(TempDir);

impl World {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        fs::create_dir(root.path().join("run")).unwrap();
        Self(root)
    }

    fn run(&self, name: &str) -> PathBuf {
        self.0.path().join("run").join(name)
    }

    fn sink(&self, name: &str) -> PathBuf {
        self.0.path().join("sink").join(name)
    }

    /// Both ranks of a timestep; most of it is the same for all timesteps.
    fn write(&self, timestep: u64) {
        for rank in 0..2 {
            fs::write(self.run(&format!("net.N{rank}.T{timestep}")), content(rank, timestep)).unwrap();
        }
    }

    fn aggregation(&self) -> Aggregation<'static> {
        Aggregation {
            source: self.0.path().join("run"),
            naming: "".parse().unwrap(),
            ranks: 2,
            containers: 1,
            remove_raw: true,
            settle: Duration::ZERO,
            across_time: 0,
            packing: Packing { threads: 1, ..Packing::default() },
        }
    }

    fn start(&self, options: Aggregation<'static>) -> Outcome<Aggregator<'static>> {
        self.start_with(options, Arc::new(|_, _| None))
    }

    fn start_with(&self, options: Aggregation<'static>, hook: Hook) -> Outcome<Aggregator<'static>> {
        let folder = FolderSink::open(&self.sink(""))?;
        Aggregator::start(options, Box::new(Hooked { folder, hook }))
    }

    /// A byte in the middle of a container becomes another one: in a block, that is.
    fn damage(&self, name: &str) {
        let mut bytes = fs::read(self.sink(name)).unwrap();
        let middle = bytes.len() / 2;
        *bytes.get_mut(middle).unwrap() ^= 1;
        fs::write(self.sink(name), bytes).unwrap();
    }
}

/// An array of bytes as `.npy`, of which the first tell the timestep.
fn content(rank: u64, timestep: u64) -> Vec<u8> {
    const COUNT: usize = 50_000;
    let literal = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({COUNT},), }}");
    let head = [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), format!("{literal:<117}\n").as_bytes()].concat();
    let mut state = rank + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()[6]
    };
    let noise: Vec<u8> = (8..COUNT).map(|_| next()).collect();
    [head.as_slice(), &timestep.to_le_bytes(), &noise].concat()
}

#[test]
fn a_container_stays_that_alone_holds_a_file_of_a_set_which_is_not_whole() {
    let world = World::new();
    (1..=2).for_each(|timestep| world.write(timestep));
    let options = Aggregation { ranks: 0, containers: 2, ..world.aggregation() };
    let mut aggregator = world.start(options).unwrap();
    assert_eq!(aggregator.round().unwrap().removed, 4);
    fs::write(world.run("net.N1.T1"), content(9, 1)).unwrap();
    fs::write(world.sink("step-1.2of2.pack"), b"no container any more").unwrap();

    let round = aggregator.round().unwrap();
    assert_eq!((round.aggregated.len(), round.waiting.len()), (0, 1), "{round:?}");
    let back = TempDir::new().unwrap();
    let container = Container::open(&world.sink("step-1.1of2.pack")).unwrap();
    container.unpack(back.path(), &Unpacking::default()).unwrap();
    assert_eq!(fs::read(back.path().join("net.N0.T1")).unwrap(), content(0, 1));
    assert_eq!(fs::read(world.run("net.N1.T1")).unwrap(), content(9, 1));
    // With the other file it is whole again.
    fs::write(world.run("net.N0.T1"), content(0, 1)).unwrap();
    assert_eq!(aggregator.round().unwrap().removed, 2);
}

#[test]
fn a_file_that_is_begun_anew_before_it_is_packed_stays() {
    let world = World::new();
    world.write(1);
    // The containers of what stood there before are old: they go before the files are packed anew.
    let options = Aggregation { remove_raw: false, ..world.aggregation() };
    assert_eq!(world.start(options).unwrap().round().unwrap().aggregated.len(), 1);
    let long_ago = SystemTime::now() - Duration::from_secs(7200);
    for rank in 0..2 {
        let file = File::options().write(true).open(world.run(&format!("net.N{rank}.T1"))).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    let (raw, written) = (world.run("net.N0.T1"), AtomicBool::new(false));
    let path = raw.clone();
    // Just when old containers are gone, after the look at raw files.
    let hook = move |operation: &str, _: &str| {
        if operation == "settle" && !written.swap(true, Ordering::Relaxed) {
            fs::write(&path, b"the first of many bytes").unwrap();
        }
        None
    };
    let options = Aggregation { settle: Duration::from_secs(3600), ..world.aggregation() };
    let round = world.start_with(options, Arc::new(hook)).unwrap().round().unwrap();
    assert_eq!((round.aggregated.len(), round.removed, round.unsettled), (0, 0, true), "{round:?}");
    assert_eq!(fs::read(&raw).unwrap(), b"the first of many bytes");
    assert!(!world.sink("step-1.1of1.pack").exists());
}

#[test]
fn a_file_that_is_cut_while_it_is_packed_ends_no_look() {
    let world = World::new();
    world.write(1);
    let raw = world.run("net.N1.T1");
    let path = raw.clone();
    // The file before it is read then.
    let watch: Watch<'static> = Box::leak(Box::new(move |_| {
        File::options().write(true).open(&path).unwrap().set_len(200).unwrap();
        true
    }));
    let options =
        Aggregation { packing: Packing { watch, ..world.aggregation().packing }, ..world.aggregation() };
    let round = world.start(options).unwrap().round().unwrap();
    assert_eq!((round.aggregated.len(), round.removed, round.unsettled), (0, 0, true), "{round:?}");
    assert_eq!(fs::metadata(&raw).unwrap().len(), 200);
}

#[test]
fn a_container_that_can_not_be_looked_at_is_not_taken_for_none() {
    let world = World::new();
    world.write(1);
    fs::create_dir(world.sink("")).unwrap();
    let container = world.sink("step-1.1of1.pack");
    std::os::unix::fs::symlink("step-1.1of1.pack", &container).unwrap();
    let outcome = world.start(world.aggregation()).and_then(|mut aggregator| aggregator.round());
    assert!(matches!(&outcome, Err(AggregateError::Io { path, .. }) if *path == container), "{outcome:?}");
    assert!(container.is_symlink() && world.run("net.N0.T1").exists());
    // What is no container is nobody's business.
    fs::remove_file(&container).unwrap();
    std::os::unix::fs::symlink("other", world.sink("other")).unwrap();
    assert_eq!(world.start(world.aggregation()).unwrap().round().unwrap().removed, 2);
}

#[test]
fn sets_are_aggregated_by_themselves_where_the_base_is_damaged() {
    let world = World::new();
    let mut aggregator =
        world.start(Aggregation { across_time: 5, remove_raw: false, ..world.aggregation() }).unwrap();
    let mut with_base = |timestep| {
        world.write(timestep);
        let round = aggregator.round().unwrap();
        round.aggregated.iter().map(|set| set.with_base).collect::<Vec<_>>()
    };
    assert_eq!((with_base(1), with_base(2)), (vec![0], vec![1]));
    world.damage("step-1.1of1.pack");
    assert_eq!(with_base(3), [0]);
    let back = TempDir::new().unwrap();
    let container = Container::open(&world.sink("step-3.1of1.pack")).unwrap();
    container.unpack(back.path(), &Unpacking::default()).unwrap();
    assert_eq!(fs::read(back.path().join("net.N1.T3")).unwrap(), content(1, 3));
}

#[test]
fn a_pipe_beside_a_container_is_nobodys_base() {
    let world = World::new();
    let options = Aggregation { across_time: 1, remove_raw: false, ..world.aggregation() };
    let mut aggregator = world.start(options).unwrap();
    for timestep in 1..=2 {
        world.write(timestep);
        aggregator.round().unwrap();
    }
    fs::remove_file(world.sink("step-1.1of1.pack")).unwrap();
    assert!(Command::new("mkfifo").arg(world.sink("x.pack")).status().unwrap().success());
    let (told, answer) = mpsc::channel();
    let container = world.sink("step-2.1of1.pack");
    std::thread::spawn(move || told.send(Container::open_beside_base(&container).err()));
    let error = answer.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(matches!(error, Some(AggregateError::BaseMissing { .. })), "{error:?}");
}

#[test]
fn folders_that_go_while_they_are_listed_do_not_end_a_look() {
    let world = World::new();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let folders: Vec<PathBuf> = (0..8).map(|number| world.run(&format!("D{number}"))).collect();
                folders.iter().for_each(|folder| fs::create_dir_all(folder.join("below")).unwrap());
                folders.iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
            }
        });
        let looks = (0..5000).map(|_| inputs_of(&[world.run("")]));
        let failed = looks.filter_map(Result::err).next();
        done.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{failed:?}");
    });
}

#[test]
fn a_time_that_is_yet_to_come_keeps_no_set_waiting() {
    let world = World::new();
    world.write(1);
    let file = File::options().write(true).open(world.run("net.N0.T1")).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(1 << 30)).unwrap();
    let round = world.start(world.aggregation()).unwrap().round().unwrap();
    assert_eq!((round.removed, round.unsettled), (2, false), "{round:?}");
}

#[test]
fn what_a_look_found_is_told_although_it_ended_with_an_error() {
    let world = World::new();
    world.write(1);
    let options = || Aggregation { remove_raw: false, ..world.aggregation() };
    world.start(options()).unwrap().round().unwrap();
    world.damage("step-1.1of1.pack");
    world.write(2);
    fs::remove_file(world.run("net.N1.T1")).unwrap();

    let hook = |operation: &str, _: &str| (operation == "publish").then_some(ErrorKind::Other);
    let mut aggregator = world.start_with(world.aggregation(), Arc::new(hook)).unwrap();
    let looks: Vec<_> = (0..4).map(|_| aggregator.round()).collect();
    let damaged: usize = looks.iter().flatten().map(|round| round.damaged.len()).sum();
    assert_eq!(damaged, 1, "{looks:?}");
    assert!(looks.iter().any(Result::is_err), "{looks:?}");
    assert!(world.run("net.N0.T1").exists());
}

#[test]
fn containers_beside_raw_files_are_none() {
    let world = World::new();
    fs::write(world.run("state-1.rst"), content(0, 1)).unwrap();
    let options = Aggregation {
        naming: "*-{step}.*".parse().unwrap(),
        ranks: 0,
        remove_raw: false,
        ..world.aggregation()
    };
    let mut aggregator =
        Aggregator::start(options, Box::new(FolderSink::open(&world.run("")).unwrap())).unwrap();
    assert_eq!(aggregator.round().unwrap().aggregated.len(), 1);
    assert!(world.run("step-1.1of1.pack").exists());
    let round = aggregator.round().unwrap();
    assert_eq!((round.aggregated.len(), round.waiting.len()), (0, 0), "{round:?}");
}

#[test]
fn a_set_of_which_a_raw_file_can_not_be_read_keeps_no_other_waiting() {
    let world = World::new();
    (1..=2).for_each(|timestep| world.write(timestep));
    let (raw, refused) = (world.run("net.N0.T1"), AtomicBool::new(false));
    // After the look at raw files: nobody may follow a link to itself.
    let hook = move |operation: &str, _: &str| {
        if operation == "settle" && !refused.swap(true, Ordering::Relaxed) {
            fs::remove_file(&raw).unwrap();
            std::os::unix::fs::symlink(&raw, &raw).unwrap();
        }
        None
    };
    let round = world.start_with(world.aggregation(), Arc::new(hook)).unwrap().round().unwrap();
    let waiting: Vec<String> = round.waiting.iter().map(|(timestep, _)| timestep.to_string()).collect();
    assert_eq!((round.removed, waiting, round.refused_anew), (2, vec!["1".to_owned()], true), "{round:?}");
}

#[test]
fn a_base_that_is_withheld_meanwhile_damages_nothing() {
    let world = World::new();
    let options = || Aggregation { across_time: 1, ..world.aggregation() };
    let mut aggregator = world.start(Aggregation { remove_raw: false, ..options() }).unwrap();
    for timestep in 1..=2 {
        world.write(timestep);
        aggregator.round().unwrap();
    }
    drop(aggregator);
    let opened = AtomicBool::new(false);
    // It is looked into, and then it moves to an archive.
    let hook = move |operation: &str, name: &str| {
        let again = (operation, name) == ("open", "step-1.1of1.pack") && opened.swap(true, Ordering::Relaxed);
        again.then_some(ErrorKind::ResourceBusy)
    };
    let mut aggregator = world.start_with(options(), Arc::new(hook)).unwrap();
    let round = aggregator.round().unwrap();
    assert_eq!((round.damaged.len(), round.waiting.len(), round.withheld.len()), (0, 2, 1), "{round:?}");
    assert_eq!((round.aggregated.len(), round.removed), (0, 0), "{round:?}");
}

#[test]
fn a_kept_base_goes_after_what_takes_its_place_is_durable() {
    let world = World::new();
    let log = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&log);
    let hook = move |operation: &str, name: &str| {
        noted.lock().unwrap().push(format!("{operation} {}", name.split('-').next().unwrap()));
        None
    };
    let options = Aggregation { across_time: 1, remove_raw: false, ..world.aggregation() };
    let mut aggregator = world.start_with(options, Arc::new(hook)).unwrap();
    for timestep in [1, 2, 1] {
        world.write(timestep);
        log.lock().unwrap().clear();
        assert_eq!(aggregator.round().unwrap().aggregated.len(), 1);
    }
    let log = log.lock().unwrap();
    let place = |what: &str| log.iter().rposition(|done| done == what);
    let (published, gone) = (place("publish step"), place("remove base"));
    assert!(place("keep step").is_some() && published.is_some() && published < gone, "{log:?}");
    let between = &log[published.unwrap()..gone.unwrap()];
    assert!(between.contains(&"settle ".to_owned()), "{log:?}");
}
