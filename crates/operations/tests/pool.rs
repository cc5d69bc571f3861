//! The library against a real pool: errors by their codes, the JSON of the commands, operations that are dropped,
//! and a hundred at once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;
use serde_json::Value;
use stdchk_operations::{
    Aggregate, Code, Depth, Event, Latest, Opening, Options, PolicyChange, Pool, Put, Remove, Rename,
    Restore, Source, Target, Verify, Watch, WhenAway, WhyNoSets,
};
use stdchk_tests::random_bytes;
use tokio::runtime::{Builder, Runtime};

/// How the pool of a test is reached.
fn options(pool: &stdchk_tests::Pool) -> Options {
    let socket = pool.data().join("run/manager.sock");
    Options::new(stdchk_net::transport::unix_address(&socket))
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

/// A connection whose operations are waited for.
struct Waiting {
    runtime: Runtime,
    pool: Pool,
}

impl Waiting {
    fn connect(options: Options) -> stdchk_operations::Result<Self> {
        let runtime = runtime();
        let pool = runtime.block_on(Pool::connect(options))?;
        Ok(Self { runtime, pool })
    }

    fn wait<T>(&self, operation: impl Future<Output = T>) -> T {
        self.runtime.block_on(operation)
    }
}

impl std::ops::Deref for Waiting {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

fn target(text: &str) -> Target {
    Target::parse(text).unwrap()
}

fn nobody() -> Watch {
    Watch::default()
}

/// All bytes of a version, read piece by piece.
fn content(pool: &Waiting, name: &str) -> Vec<u8> {
    let file = pool.wait(pool.open(&target(name))).unwrap();
    let read = pool.wait(file.read_at(0, usize::try_from(file.size()).unwrap())).unwrap();
    assert!(pool.wait(file.read_at(file.size(), 10)).unwrap().is_empty());
    read.to_vec()
}

fn put_of(paths: &[String], to: &str) -> Put {
    let sources = paths.iter().map(|path| Source::Path(PathBuf::from(path))).collect();
    Put { sources, target: target(to), into_folder: to.ends_with('/'), recursive: false }
}

fn as_json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

/// A source that gives some bytes, says that it did, and then nothing more until it is told to end.
struct Stuck {
    given: u64,
    asked_again: mpsc::Sender<()>,
    ends: mpsc::Receiver<()>,
}

/// Larger than a part of the window, so that the session has begun to take it.
const GIVEN_BYTES: u64 = 3 << 20;

impl Read for Stuck {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given >= GIVEN_BYTES {
            let _ = self.asked_again.send(());
            let _ = self.ends.recv();
            return Ok(0);
        }
        buffer.fill(7);
        self.given += buffer.len() as u64;
        Ok(buffer.len())
    }
}

/// Begins to store such a source under `name`, drops that in the middle, and waits until it is taken back.
fn put_and_drop(runtime: &Runtime, pool: &Pool, name: &str) {
    let (asked_again, is_stuck) = mpsc::channel();
    let (end, ends) = mpsc::channel();
    let (pool, name) = (pool.clone(), target(name));
    let storing = {
        let (pool, source) = (pool.clone(), Stuck { given: 0, asked_again, ends });
        runtime.spawn(async move { pool.put_from(source, "a stream", &name, &nobody()).await })
    };
    is_stuck.recv_timeout(stdchk_tests::PATIENCE).unwrap();
    storing.abort();
    runtime.block_on(async {
        assert!(storing.await.unwrap_err().is_cancelled());
        pool.settle().await;
    });
    drop(end);
}

#[test]
fn two_connections_store_list_and_fetch_the_same_bytes() {
    let local = stdchk_tests::Pool::up(2, &[]);
    let (first, second) = (random_bytes(3_000_000, 1), random_bytes(70_000, 2));
    let paths = [local.file("first", &first), local.file("second", &second)];
    let runtime = runtime();
    let stored = runtime.block_on(async {
        let pool = Pool::connect(options(&local)).await.unwrap();
        let stored = pool.put(&put_of(&paths, "app/"), &nobody()).await.unwrap();
        pool.close().await;
        stored
    });
    assert_eq!((stored.tally.succeeded, stored.bytes), (2, 3_070_000));
    stored.tally.outcome("app").unwrap();

    let pool = Waiting::connect(options(&local)).unwrap();
    let names: Vec<String> =
        pool.wait(pool.list(&target("app"))).unwrap().entries.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["first", "second"]);
    let fetched = pool.wait(pool.get(&target("app/first"), &local.path("back"), &nobody())).unwrap();
    assert_eq!((fetched.bytes, fetched.version), (3_000_000, Some(1)));
    assert_eq!(std::fs::read(&fetched.path).unwrap(), first);
    let mut stream = Vec::new();
    assert_eq!(
        pool.wait(pool.get_to(&target("app/second"), &mut stream, "memory", &nobody())).unwrap(),
        70_000
    );
    assert_eq!(stream, second);
    let open = pool.wait(pool.open(&target("app/first"))).unwrap();
    assert_eq!(pool.wait(open.read_at(2_999_990, 100)).unwrap(), first[2_999_990..]);
    assert_eq!(pool.wait(open.read_at(1_048_570, 20)).unwrap(), first[1_048_570..1_048_590]);

    let again = io::Cursor::new(second.clone());
    assert_eq!(
        pool.wait(pool.put_from(again, "memory", &target("app/first"), &nobody())).unwrap().version,
        2
    );
    let versions = pool.wait(pool.versions(&target("app/first"))).unwrap();
    assert_eq!(versions[0].versions.len(), 2);
    assert!(!pool.wait(pool.diff(&target("app/first"), None, &nobody())).unwrap().identical);
    let into =
        Rename { source: target("app/first"), target: target("other"), into_folder: true, no_replace: true };
    pool.wait(pool.make_folder(&target("other"))).unwrap();
    pool.wait(pool.rename(&into)).unwrap();
    assert_eq!(content(&pool, "other/first@1"), first);
    assert_eq!((open.version(), pool.wait(open.read_at(0, 4_000_000)).unwrap().to_vec()), (Some(1), first));
    let everything = Remove { target: target("other"), recursive: true, dry_run: false };
    assert_eq!(pool.wait(pool.remove(&everything)).unwrap(), [target("other/first"), target("other")]);
    assert_eq!(pool.wait(pool.usage(&target("app"))).unwrap().total.files, 1);
}

#[test]
fn what_fails_has_a_code_an_object_a_cause_and_a_next_step() {
    let local = stdchk_tests::Pool::up(1, &[]);
    local.put(b"content", "app/file");
    let pool = Waiting::connect(options(&local)).unwrap();
    let fails = |code, error: stdchk_operations::Error| {
        assert_eq!(error.code, code, "{error:?}");
        assert!(!error.cause.is_empty() && !error.next.is_empty(), "{error:?}");
        error
    };
    let folder = local.path("");
    let gone =
        fails(Code::NotFound, pool.wait(pool.get(&target("app/none"), &folder, &nobody())).unwrap_err());
    assert_eq!(gone.object, "app/none");
    fails(Code::NotFound, pool.wait(pool.get(&target("app/file@9"), &folder, &nobody())).unwrap_err());
    fails(Code::WrongKind, pool.wait(pool.get(&target("app"), &folder, &nobody())).unwrap_err());
    fails(
        Code::WrongKind,
        pool.wait(pool.latest(&target("app/file"), WhenAway::Fail, Depth::Known, &nobody())).unwrap_err(),
    );
    fails(Code::Invalid, Target::parse("app/../x").unwrap_err());
    let change = |key: &str, value: &str| PolicyChange {
        folder: target("app"),
        pairs: vec![(key.to_owned(), value.to_owned())],
    };
    fails(Code::Invalid, pool.wait(pool.set_policy(&change("redundancy", "0"))).unwrap_err());
    fails(Code::Invalid, pool.wait(pool.set_policy(&change("colour", "red"))).unwrap_err());
    assert_eq!(pool.wait(pool.set_policy(&change("redundancy", "replicate:3"))).unwrap().benefactors, 1);
    assert_eq!(pool.wait(pool.policy(&target("app"))).unwrap().redundancy.distance(), 3);
    fails(
        Code::WrongKind,
        pool.wait(pool.remove(&Remove { target: target("app"), recursive: false, dry_run: false }))
            .unwrap_err(),
    );
    pool.wait(pool.put_from(&b"x"[..], "memory", &target("app/other"), &nobody())).unwrap();
    let onto = Rename {
        source: target("app/other"),
        target: target("app/file"),
        into_folder: false,
        no_replace: true,
    };
    fails(Code::Exists, pool.wait(pool.rename(&onto)).unwrap_err());
    fails(
        Code::WrongKind,
        pool.wait(pool.put_from(&b"x"[..], "memory", &target("app"), &nobody())).unwrap_err(),
    );
    let latest = pool.wait(pool.latest(&target("app"), WhenAway::Fail, Depth::Known, &nobody())).unwrap();
    assert_eq!(latest, Latest::None(Vec::new()));
    fails(Code::NotFound, latest.required(&target("app")).unwrap_err());
    assert!(matches!(pool.wait(pool.why_no_sets(&target("app"))).unwrap(), WhyNoSets::NoName { .. }));

    // An address of the network, without keys.
    let stranger = Options { patience: Duration::from_millis(10), ..Options::new("127.0.0.1:1") };
    fails(Code::OtherPool, Waiting::connect(stranger).err().unwrap());
    let nowhere = Options { patience: Duration::from_millis(10), ..Options::new("unix:/no/manager") };
    fails(Code::Unreachable, Waiting::connect(nowhere).err().unwrap());
    let single = Builder::new_current_thread().enable_all().build().unwrap();
    fails(Code::Invalid, single.block_on(Pool::connect(options(&local))).err().unwrap());
}

#[test]
fn results_are_the_json_that_the_commands_print() {
    let local = stdchk_tests::Pool::up(2, &[]);
    for (step, rank) in [(1, 0), (1, 1), (2, 0)] {
        local.put(&random_bytes(50_000, step * 10 + rank), &format!("app/run.N{rank}.T{step}"));
    }
    local.policy("app", &["ranks=2"]);
    local.wait_for_copies();
    let pool = Waiting::connect(options(&local)).unwrap();
    let (app, file) = (target("app"), target("app/run.N0.T1"));
    let same = |arguments: &[&str], value: Value| assert_eq!(local.json(arguments), value, "{arguments:?}");
    same(&["ls", "app", "--json"], as_json(&pool.wait(pool.list(&app)).unwrap()));
    same(&["ls", "app", "--versions", "--json"], as_json(&pool.wait(pool.versions(&app)).unwrap()));
    same(&["ls", "app", "--sets", "--json"], as_json(&pool.wait(pool.sets(&app)).unwrap()));
    same(&["stat", "app/run.N0.T1", "--json"], as_json(&pool.wait(pool.stat(&file, &nobody())).unwrap()));
    same(&["du", "--json"], as_json(&pool.wait(pool.usage(&target(""))).unwrap()));
    let latest = pool
        .wait(pool.latest(&app, WhenAway::Fail, Depth::Known, &nobody()))
        .unwrap()
        .required(&app)
        .unwrap();
    assert_eq!((latest.timestep, latest.passed_over.len()), (1.into(), 1));
    same(&["latest", "app", "--json"], as_json(&latest));
    let difference = pool.wait(pool.diff(&file, Some(&target("app/run.N1.T1")), &nobody())).unwrap();
    same(&["diff", "app/run.N0.T1", "app/run.N1.T1", "--json"], as_json(&difference));
    let verify = Verify { target: app.clone(), repair: false };
    same(&["verify", "app", "--json"], as_json(&pool.wait(pool.verify(&verify, &nobody())).unwrap()));
    same(&["policy", "get", "app", "--json"], as_json(&pool.wait(pool.policy(&app)).unwrap()));
    // A manager that was just started collects nothing yet.
    assert_eq!(pool.wait(pool.collect(true)).unwrap_err().code, Code::Unreachable);
    local.fails(&["gc", "--dry-run"], 5, &["collect again in"]);
}

#[test]
fn a_set_comes_back_and_what_happens_is_told() {
    let local = stdchk_tests::Pool::up(2, &[]);
    for (step, rank) in [(1, 0), (1, 1), (2, 0)] {
        local.put(&random_bytes(200_000, step * 10 + rank), &format!("app/run.N{rank}.T{step}"));
    }
    local.policy("app", &["ranks=2"]);
    let pool = Waiting::connect(options(&local)).unwrap();
    let (moved, passed_over, failed) = (Arc::new(AtomicU64::new(0)), Arc::default(), Arc::default());
    let watch = {
        let (moved, passed_over, failed): (_, Arc<AtomicU64>, Arc<AtomicU64>) =
            (Arc::clone(&moved), Arc::clone(&passed_over), Arc::clone(&failed));
        Watch::new(move |event| match event {
            Event::Moved { bytes } => drop(moved.fetch_add(*bytes, Ordering::Relaxed)),
            Event::PassedOver { set, .. } => {
                _ = passed_over.fetch_add(set.timestep.name().parse().unwrap(), Ordering::Relaxed)
            }
            Event::Failed(error) => {
                assert_eq!(error.code, Code::NotFound, "{error}");
                failed.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        })
    };
    let mut restore =
        Restore { app: target("app"), timestep: None, when_away: WhenAway::Fail, output: local.path("back") };
    let restored = pool.wait(pool.restore(&restore, &watch)).unwrap();
    assert_eq!((restored.timestep, restored.members.len(), restored.bytes), (1.into(), 2, 400_000));
    assert_eq!(std::fs::read(local.path("back/run.N1.T1")).unwrap(), random_bytes(200_000, 11));
    assert!(moved.load(Ordering::Relaxed) >= 800_000, "verified, then fetched");
    assert_eq!(passed_over.load(Ordering::Relaxed), 2);
    let again = pool.wait(pool.restore(&restore, &nobody())).unwrap();
    assert!(again.members.iter().all(|member| member.kept), "{again:?}");
    restore.timestep = Some(2.into());
    let part = pool.wait(pool.restore(&restore, &watch)).unwrap();
    assert_eq!((part.members.len(), failed.load(Ordering::Relaxed)), (1, 1));
    assert_eq!(part.tally.outcome("app").unwrap_err().code, Code::Partial);
    restore.timestep = Some(3.into());
    assert_eq!(pool.wait(pool.restore(&restore, &nobody())).unwrap_err().code, Code::NotFound);
}

#[test]
fn a_put_that_is_dropped_takes_its_entry_back_and_keeps_the_version_before() {
    let local = stdchk_tests::Pool::up(1, &[]);
    local.put(b"before", "app/old");
    let runtime = runtime();
    let pool = runtime.block_on(Pool::connect(options(&local))).unwrap();
    put_and_drop(&runtime, &pool, "app/new");
    put_and_drop(&runtime, &pool, "app/old");
    runtime.block_on(async {
        let names = pool.list(&target("app")).await.unwrap().entries;
        assert_eq!(names.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["old"]);
        let old = pool.open(&target("app/old")).await.unwrap();
        assert_eq!(old.read_at(0, 100).await.unwrap(), b"before"[..]);
        assert_eq!(pool.versions(&target("app/old")).await.unwrap()[0].versions.len(), 1);
        assert_eq!(pool.status().await.unwrap().sessions, 0, "what was reserved is given back");
        pool.close().await;
    });
}

#[test]
fn a_get_that_is_dropped_leaves_what_was_there() {
    let local = stdchk_tests::Pool::up(1, &[]);
    local.put(&random_bytes(20 << 20, 3), "app/large");
    let here = local.file("folder/large", b"before");
    let runtime = runtime();
    let (begun, has_begun) = mpsc::channel();
    let (goes_on, go_on) = mpsc::channel::<()>();
    let go_on = std::sync::Mutex::new(go_on);
    let watch = Watch::new(move |event| {
        if matches!(event, Event::Moved { .. }) {
            let _ = begun.send(());
            let _ = go_on.lock().unwrap().recv();
        }
    });
    let pool = runtime.block_on(Pool::connect(options(&local))).unwrap();
    let fetching = {
        let (pool, here) = (pool.clone(), PathBuf::from(&here));
        runtime.spawn(async move { pool.get(&target("app/large"), &here, &watch).await })
    };
    has_begun.recv_timeout(stdchk_tests::PATIENCE).unwrap();
    // What is not read yet doesn't come, so that it ends where it waits for that.
    let benefactor = local.process("benefactor-0");
    benefactor.signal(Signal::STOP);
    fetching.abort();
    drop(goes_on);
    let ended = runtime.block_on(fetching);
    benefactor.signal(Signal::CONT);
    assert!(ended.unwrap_err().is_cancelled());
    assert_eq!(std::fs::read(&here).unwrap(), b"before");
    assert_eq!(std::fs::read_dir(local.path("folder")).unwrap().count(), 1, "no part of it is left");
}

#[test]
fn a_hundred_operations_at_once_all_come_to_their_end() {
    let local = stdchk_tests::Pool::up(2, &[]);
    let runtime = runtime();
    runtime.block_on(async {
        let pool = Pool::connect(options(&local)).await.unwrap();
        let mut running = tokio::task::JoinSet::new();
        for number in 0..100_u64 {
            let pool = pool.clone();
            running.spawn(async move {
                let (name, content) =
                    (target(&format!("app/{}/{number}", number % 7)), random_bytes(150_000, number));
                let source = io::Cursor::new(content.clone());
                let stored = pool.put_from(source, "memory", &name, &nobody()).await.unwrap();
                assert_eq!(stored.bytes, 150_000);
                pool.stat(&name, &nobody()).await.unwrap().verdict(&name).unwrap();
                let file = pool.open(&name).await.unwrap();
                assert_eq!(file.read_at(0, 200_000).await.unwrap(), content);
            });
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap();
        }
        assert_eq!(pool.usage(&target("app")).await.unwrap().total.files, 100);
        pool.close().await;
    });
}

#[test]
fn sets_are_packed_and_read_as_before() {
    let local = stdchk_tests::Pool::up(2, &[]);
    for rank in 0..2_u8 {
        local.put(&vec![rank + 1; 400_000], &format!("app/run.N{rank}.T1"));
    }
    local.policy("app", &["ranks=2"]);
    let pool = Waiting::connect(options(&local)).unwrap();
    let aggregate = Aggregate {
        app: target("app"),
        containers: 1,
        mode: stdchk_aggregate::Mode::Fastest,
        threads: 1,
        memory_bytes: 32 << 20,
    };
    let mut aggregator = pool.wait(pool.aggregator(aggregate)).unwrap();
    let error = aggregator.round(&nobody(), &|| true).unwrap_err();
    assert_eq!(error.code, Code::Interrupted);
    let round = aggregator.round(&nobody(), &|| false).unwrap();
    assert_eq!((round.sets.len(), round.waiting.len()), (1, 0), "{round:?}");
    assert_eq!(content(&pool, "app/run.N1.T1"), vec![2; 400_000]);
}

#[test]
fn a_version_that_is_written_piece_by_piece_is_seen_whole_or_not_at_all() {
    let local = stdchk_tests::Pool::up(1, &[]);
    let pool = Waiting::connect(options(&local)).unwrap();
    let (name, bytes) = (target("app/file"), random_bytes(2_500_000, 5));
    let mut written = pool.wait(pool.create(&name, 0o640, Opening::Replace)).unwrap();
    for piece in bytes.chunks(700_001) {
        pool.wait(written.write(piece)).unwrap();
    }
    assert_eq!(pool.wait(pool.open(&name)).unwrap().version(), None, "nothing is committed yet");
    assert_eq!(written.length(), 2_500_000);
    assert_eq!(pool.wait(written.commit(1_700_000_000_000_000_000)).unwrap(), 1);
    let stat = pool.wait(pool.stat(&name, &nobody())).unwrap();
    assert_eq!((stat.mode, stat.mtime, stat.size), (0o640, 1_700_000_000_000_000_000, 2_500_000));
    assert_eq!(content(&pool, "app/file"), bytes);

    let mut given_up = pool.wait(pool.create(&name, 0o640, Opening::Replace)).unwrap();
    pool.wait(given_up.write(b"other")).unwrap();
    pool.wait(given_up.discard());
    let dropped = pool.wait(pool.create(&target("app/dropped"), 0o600, Opening::Replace)).unwrap();
    drop(dropped);
    pool.wait(pool.settle());
    let names: Vec<String> =
        pool.wait(pool.list(&target("app"))).unwrap().entries.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["file"]);
    assert_eq!(pool.wait(pool.versions(&name)).unwrap()[0].versions.len(), 1);
    assert_eq!(pool.wait(pool.status()).unwrap().sessions, 0);
}
