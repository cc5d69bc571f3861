//! Versions that are kept for files in spools: until what was written over them is committed, or given up, and whatever else happens.

use crate::harness::{CHUNK_LENGTH, CLIENT, Pool, chunk, map_of, session};
use stdchk_manager::store::Table;
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest, VersionInfo};
use stdchk_model::{ErrorCode, Ino, MapRoot};

/// Longer than a lease, and than chunks are young, milliseconds.
const LONG_MS: u64 = 61_000;
/// Longer than a version is kept for a spool of which nothing is heard, milliseconds.
const HALF_A_YEAR_MS: u64 = 181 * 24 * 3_600_000;

/// A file whose first version has chunk 1, over which session 2 has written; its client has closed it in a spool.
struct Spooled {
    pool: Pool,
    file: Ino,
    base: VersionInfo,
    root: MapRoot,
}

impl Spooled {
    fn new() -> Self {
        let mut pool = Pool::with_benefactors(2);
        let file = pool.make(Ino::ROOT, "x", FileKind::File);
        pool.write(1, file, &[1], &[0, 1]);
        pool.close(1);
        let (base, root) = (pool.versions(file)[0].clone(), pool.root(file, None).unwrap());
        pool.open(2, file);
        let mut spooled = Self { pool, file, base, root };
        assert_eq!(spooled.keep(2), Ok(ManagerReply::Done));
        assert_eq!(spooled.keep(2), Ok(ManagerReply::Done), "it can be repeated");
        spooled
    }

    fn keep(&mut self, number: u8) -> Result<ManagerReply, stdchk_model::Failure> {
        let (session, base, host) = (session(number), self.base.clone(), "a".to_owned());
        self.pool.ask(ManagerRequest::KeepBase { session, base, host, bytes: 25 })
    }

    /// Somebody else makes another version, and drops the first.
    fn base_is_dropped(&mut self) {
        self.pool.write(3, self.file, &[3], &[0, 1]);
        self.pool.close(3);
        self.pool.change(Change::DropVersion { ino: self.file, version: 1 }).unwrap();
    }

    /// Time passes in which the client is silent, and what nobody refers to is collected.
    fn silence(&mut self) {
        for _ in 0..LONG_MS / 1_000 {
            self.pool.pass(1_000);
            (0..2).for_each(|number| drop(self.pool.beat(number, &[], &[])));
        }
        self.pool.collect().unwrap();
    }

    fn restart(&mut self) {
        self.pool.restart();
        for number in 0..2 {
            self.pool.register(Some(number));
            self.pool.inventory(number, &[1, 3]);
        }
    }

    fn take_up(&mut self, number: u8) -> (Option<VersionInfo>, Option<MapRoot>) {
        let (session, kept_for) = (session(number), session(2));
        let (client, ino) = (CLIENT, self.file);
        let request = ManagerRequest::TakeUp { session, client, ino, kept_for, durability: None };
        match self.pool.ask(request).unwrap() {
            ManagerReply::Session { base, base_root, .. } => (base, base_root),
            other => panic!("{other:?}"),
        }
    }

    fn is_kept(&mut self) -> bool {
        let status = self.pool.status();
        assert_eq!(status.kept_bases.len(), self.pool.records(Table::Base));
        if let Some(base) = status.kept_bases.first() {
            let told = (base.kept_for, base.ino, base.path.as_str(), base.version, base.size, base.bytes);
            assert_eq!(told, (session(2), self.file, "x", 1, u64::from(CHUNK_LENGTH), 25));
        }
        !status.kept_bases.is_empty()
    }

    fn is_there(&mut self) -> bool {
        self.pool.locate(1) == [0, 1]
    }
}

type Event = fn(&mut Spooled);

#[test]
fn a_version_that_is_kept_can_be_built_on_whatever_happens() {
    let events: [(&str, Event); 7] = [
        ("nothing", |_| {}),
        ("its session ends", |spooled| spooled.pool.interrupt(2)),
        ("its session is closed", |spooled| spooled.pool.close(2)),
        ("its client is silent", Spooled::silence),
        ("the manager starts anew", Spooled::restart),
        ("the version is dropped", Spooled::base_is_dropped),
        ("another base goes", |spooled| {
            let (ino, kept_for) = (spooled.file, session(9));
            spooled.pool.ask(ManagerRequest::LetBaseGo { ino, kept_for }).unwrap();
        }),
    ];
    for (first, happens) in &events {
        for (second, then) in &events {
            let mut spooled = Spooled::new();
            happens(&mut spooled);
            // A version is dropped once.
            if first != second {
                then(&mut spooled);
            }
            let what = format!("{first}, then {second}");
            assert!(spooled.is_kept(), "{what}");
            spooled.silence();
            assert!(spooled.is_there(), "{what}");
            let (base, root) = spooled.take_up(4);
            assert_eq!((base, root), (Some(spooled.base.clone()), Some(spooled.root.clone())), "{what}");
            // Once more, after a start of the manager in between.
            spooled.restart();
            assert_eq!(spooled.take_up(4).1, Some(spooled.root.clone()), "{what}");
            spooled.pool.secure(4, &[1], &[0, 1]);
            assert!(spooled.pool.commit(4, &[1]).is_ok(), "{what}");
            assert!(!spooled.is_kept(), "{what}: what was written over it is committed");
        }
    }
}

#[test]
fn a_version_is_kept_no_longer_once_what_was_written_over_it_is_committed_or_given_up() {
    let events: [(&str, Event); 5] = [
        ("its session commits", |spooled| {
            spooled.pool.secure(2, &[3], &[0, 1]);
            spooled.pool.commit(2, &[3]).unwrap();
            spooled.pool.close(2);
            spooled.pool.change(Change::DropVersion { ino: spooled.file, version: 1 }).unwrap();
        }),
        ("one commits that took it up", |spooled| {
            spooled.base_is_dropped();
            spooled.take_up(4);
            spooled.pool.secure(4, &[3], &[0, 1]);
            spooled.pool.commit(4, &[3]).unwrap();
        }),
        ("it is given up", |spooled| {
            spooled.base_is_dropped();
            let (ino, kept_for) = (spooled.file, session(2));
            spooled.pool.ask(ManagerRequest::LetBaseGo { ino, kept_for }).unwrap();
        }),
        ("the file is removed", |spooled| {
            spooled.pool.interrupt(2);
            spooled.pool.change(Change::Unlink { parent: Ino::ROOT, name: "x".to_owned() }).unwrap();
        }),
        ("nothing is heard of it for half a year", |spooled| {
            spooled.base_is_dropped();
            spooled.pool.pass(HALF_A_YEAR_MS);
            spooled.restart();
        }),
    ];
    for (what, happens) in events {
        let mut spooled = Spooled::new();
        happens(&mut spooled);
        assert!(!spooled.is_kept(), "{what}");
        spooled.silence();
        assert!(!spooled.is_there(), "{what}");
        spooled.restart();
        assert!(!spooled.is_kept(), "{what}");
    }
}

#[test]
fn a_version_that_is_gone_can_not_be_kept_and_none_is_kept_for_what_another_session_committed() {
    let mut spooled = Spooled::new();
    spooled.pool.open(5, spooled.file);
    spooled.base_is_dropped();
    // The session has it open, so it is there yet.
    assert_eq!(spooled.keep(5), Ok(ManagerReply::Done));
    spooled.pool.open(6, spooled.file);
    assert_eq!(spooled.keep(6).unwrap_err().code, ErrorCode::NotFound);
    let (base, root) = spooled.take_up(7);
    assert_eq!((base.map(|base| base.version), root), (Some(1), Some(spooled.root.clone())));
    // Of one that isn't kept, the newest counts.
    let (session, client, ino) = (session(8), CLIENT, spooled.file);
    let request = ManagerRequest::TakeUp { session, client, ino, kept_for: session, durability: None };
    let ManagerReply::Session { base_root, .. } = spooled.pool.ask(request).unwrap() else { panic!() };
    assert_eq!(base_root, Some(MapRoot::Inline { map: map_of(&[chunk(3)]).encode() }));
}
