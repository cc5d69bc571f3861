//! The stored records: what of the manager's state survives a restart, and how it becomes bytes.
//!
//! Each record is a CBOR array whose element 0 is the version of the record's layout. Elements are added at the end, never
//! changed in meaning; a record of another layout is refused by name. `docs/FORMAT.md` is the
//! description for strangers.

use std::collections::BTreeSet;

use minicbor::{Decode, Encode};
use stdchk_model::labels::Labels;
use stdchk_model::lifetime::Done;
use stdchk_model::message::handshake::{MemberId, Role};
use stdchk_model::message::manager::{
    Attr, BenefactorSecret, Era, FileKind, TimeNs, VersionInfo, VersionState,
};
use stdchk_model::sets::Taught;
use stdchk_model::{
    BenefactorId, Ino, KeyId, Maker, MapRoot, MomentKey, OpId, PoolId, SessionId, Tier, Timestep, User, cbor,
};

use crate::store::StoreError;

/// Layout of every record below.
pub const LAYOUT: u16 = 5;

/// Key of [`PoolRecord`] in its table.
pub const POOL_KEY: &[u8] = b"pool";

/// Numbers of inodes that are left out where a store may lack the last ones that were given: more than files are ever made between a copy
/// and its return.
pub const GIVEN_UP_INOS: u64 = 1 << 32;

/// The pool as a whole.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct PoolRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// The pool.
    #[n(1)]
    pub pool: PoolId,
    /// Inode numbers below this one may be in use; a start of the manager goes on from here.
    #[n(2)]
    pub ino_ceiling: u64,
    /// Number of the next new benefactor.
    #[n(3)]
    pub next_benefactor: u32,
    /// For how long the manager had lived when this was written, all its starts together, milliseconds. It may have lived longer.
    #[n(4)]
    pub lived_ms: u64,
    /// Number of the greatest term that a manager has had; see `Term`.
    #[n(5)]
    pub term: u64,
    /// What the manager signs with that benefactors keep for it.
    #[n(6)]
    pub key: MomentKey,
    /// Where the pool's managers serve.
    #[n(7)]
    pub managers: Vec<String>,
    /// The eras through which the state has gone, but the first, and those that were given up; the present one last.
    #[n(8)]
    pub eras: Vec<Era>,
}

impl PoolRecord {
    /// A new era of the state begins, with this random identity.
    pub fn begin_era(&mut self, id: u64) {
        let before = self.eras.last().copied().unwrap_or(Era::FIRST);
        self.eras.push(Era { number: before.number + 1, id });
    }
}

/// An inode; its names, versions and policy are records of their own.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct InodeRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// What it is.
    #[n(1)]
    pub kind: FileKind,
    /// Permission bits.
    #[n(2)]
    pub mode: u32,
    /// Owner.
    #[n(3)]
    pub uid: u32,
    /// Group.
    #[n(4)]
    pub gid: u32,
    /// Names, not counting `.` and `..`; 0: unlinked while a session had it open.
    #[n(5)]
    pub links: u32,
    /// Last access.
    #[n(6)]
    pub atime: TimeNs,
    /// Last modification.
    #[n(7)]
    pub mtime: TimeNs,
    /// Last change of the inode.
    #[n(8)]
    pub ctime: TimeNs,
    /// Target of a symbolic link, else empty.
    #[n(9)]
    pub target: String,
    /// Number of a file's next version; 0 for others.
    #[n(10)]
    pub next_version: u64,
    /// Position of the operation that last gave a name to it or took one from it.
    #[n(11)]
    pub named: TimeNs,
    /// The lineage under which a file's versions lie; 0 for others.
    #[n(12)]
    pub lineage: u64,
    /// By how much the numbers of its versions are ahead of their keys; 0 for others.
    #[n(13)]
    pub shift: u64,
}

/// A name in a directory.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct EntryRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// What the name stands for.
    #[n(1)]
    pub ino: Ino,
}

/// A committed version.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct VersionRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// Size of the file, bytes.
    #[n(1)]
    pub size: u64,
    /// Modification time that the writer gave it.
    #[n(2)]
    pub mtime: TimeNs,
    /// When it was committed.
    #[n(3)]
    pub committed_at: TimeNs,
    /// How far it got.
    #[n(4)]
    pub state: VersionState,
    /// Bytes that were new to the pool, replicas not counted.
    #[n(5)]
    pub stored_bytes: u64,
    /// The session that committed it.
    #[n(6)]
    pub session: SessionId,
    /// Where its chunk map is.
    #[n(7)]
    pub root: MapRoot,
    /// Bytes that lie in holes.
    #[n(8)]
    pub hole_bytes: u64,
    /// Position of its commit among all operations: nanoseconds since 1970, or just behind the operation before where the calendar
    /// was set back.
    #[n(9)]
    pub position: TimeNs,
    /// For how long the manager had lived when it was committed, milliseconds.
    #[n(10)]
    pub lived_ms: u64,
    /// The key with which it is encrypted.
    #[n(11)]
    pub key: Option<KeyId>,
    /// For how long it was written, milliseconds; `None`: unknown.
    #[n(12)]
    pub written_ms: Option<u64>,
    /// As whom its writer coded it.
    #[n(13)]
    pub maker: Maker,
}

/// The names of all chunks of a map that lies in the pool, its own pieces among them. Versions that have this map share it.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct NamesRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// Names of 32 bytes each, in ascending order.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub names: Vec<u8>,
}

/// What was set on a directory.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct PolicyRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// Keys and values as in `Policy::set`.
    #[n(1)]
    pub pairs: Vec<(String, String)>,
}

/// What is noted of the checkpoint sets of a folder.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct NotedRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// Timesteps of the sealed sets.
    #[n(1)]
    pub sealed: Vec<Timestep>,
    /// The job has succeeded, and sets are left that go.
    #[n(2)]
    pub done: Option<Done>,
    /// What sets that are gone have taught.
    #[n(3)]
    pub taught: Option<Taught>,
}

/// A benefactor that has registered once. Everything else about it is soft state.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct BenefactorRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// Where it served last, `host:port`.
    #[n(1)]
    pub address: String,
    /// What it proves with that it is this benefactor.
    #[n(2)]
    pub secret: BenefactorSecret,
    /// The member of the pool that it registered as last; `None`: one of the manager's machine.
    #[n(3)]
    pub member: Option<MemberId>,
    /// What its owner said last of where it stands.
    #[n(4)]
    #[cbor(default)]
    pub labels: Labels,
    /// Where it kept blocks last: what was only in memory doesn't come back with it, so it has to be known also while it is away.
    #[n(5)]
    #[cbor(default)]
    pub tier: Tier,
}

/// The result of a change, so that its repetition is answered and not done again.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct OperationRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// The change.
    #[n(1)]
    pub id: OpId,
    /// What was answered: an inode, or nothing for `Done`.
    #[n(2)]
    pub entry: Option<Attr>,
}

/// A start of the manager on this store: the commits that it made.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct StartRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// Its first commit.
    #[n(1)]
    pub first: u64,
    /// Its last commit, once another start followed; `u64::MAX`: all that it made elsewhere was given up.
    #[n(2)]
    pub last: Option<u64>,
}

/// A backup of the store that is registered: what it names stays.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct BackupRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// The start of the manager that made its last commit.
    #[n(1)]
    pub start: u64,
    /// How long the pool's managers will have lived when it ends, milliseconds.
    #[n(2)]
    pub ends_lived_ms: u64,
}

/// A version that is kept for a file in a spool.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct BaseRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// The version, as it was when the file was written over it.
    #[n(1)]
    pub info: VersionInfo,
    /// Where its chunk map is.
    #[n(2)]
    pub root: MapRoot,
    /// How far from loss its chunks are wanted.
    #[n(3)]
    pub wanted: u8,
    /// What the host of the spool calls itself.
    #[n(4)]
    pub host: String,
    /// What the spool held of the file, bytes.
    #[n(5)]
    pub bytes: u64,
    /// Since when it is kept.
    #[n(6)]
    pub since: TimeNs,
    /// For how long the manager had lived then, milliseconds.
    #[n(7)]
    pub lived_ms: u64,
    /// The member whose spool it is; absent: the manager's own machine.
    #[n(8)]
    pub member: Option<MemberId>,
}

/// A member that was shut out.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct ShutOutRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
}

/// A host that has joined.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct MemberRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// What it called itself.
    #[n(1)]
    pub host: String,
    /// What it may be.
    #[n(2)]
    pub roles: Vec<Role>,
    /// When it joined.
    #[n(3)]
    pub joined: TimeNs,
    /// For whom it acts as a client; `None`: as whom it says.
    #[n(4)]
    pub user: Option<User>,
}

/// A token that was used.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct TokenRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// The members that joined with it, by their keys.
    #[n(1)]
    pub used_by: BTreeSet<MemberId>,
    /// When it ends, seconds since 1970: then it is refused for that.
    #[n(2)]
    pub end: u64,
}

/// From when on tokens count.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct TokensFromRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// Those that were made before this second, since 1970, don't.
    #[n(1)]
    pub from: u64,
    /// Nor do those that end at this second or before: some were used, and it is forgotten which.
    #[n(2)]
    pub over: u64,
}

/// When a host was there.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct PastRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// As `stdchk_placement::history` encodes it.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub history: Vec<u8>,
}

/// Until when all pasts of hosts are known.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct KnownUntilRecord {
    /// [`LAYOUT`].
    #[n(0)]
    pub layout: u16,
    /// Seconds since 1970.
    #[n(1)]
    pub until: u64,
}

/// The first field of every record.
#[derive(Decode)]
struct Layout {
    #[n(0)]
    layout: u16,
}

/// The record in `bytes`; `what` names it in the error.
pub fn decode<'b, T: Decode<'b, ()>>(bytes: &'b [u8], what: &str) -> Result<T, StoreError> {
    let doing = || format!("reading a record of {what}");
    let layout: Layout = cbor::decode(bytes).map_err(|error| StoreError::new(doing(), error))?;
    if layout.layout != LAYOUT {
        return Err(StoreError::new(doing(), other_layout(layout.layout)));
    }
    cbor::decode(bytes).map_err(|error| StoreError::new(doing(), error))
}

fn other_layout(layout: u16) -> String {
    match layout < LAYOUT {
        true => format!(
            "the state is of an older layout, {layout}, which this stdchk (layout {LAYOUT}) can't read: use the stdchk that wrote it"
        ),
        false => format!("it has layout {layout}, this stdchk reads {LAYOUT}: use a later stdchk"),
    }
}

/// Key of an inode, and of its policy.
pub fn ino_key(ino: Ino) -> [u8; 8] {
    ino.0.to_be_bytes()
}

/// Key of a name: the directory, then the name.
pub fn entry_key(parent: Ino, name: &str) -> Vec<u8> {
    [&ino_key(parent), name.as_bytes()].concat()
}

/// Key of a version: the lineage, then the key within it.
pub fn version_key(lineage: u64, key: u64) -> Vec<u8> {
    [lineage.to_be_bytes(), key.to_be_bytes()].concat()
}

/// Key of a version that is kept: the file, then the session for which it is.
pub fn base_key(ino: Ino, kept_for: SessionId) -> Vec<u8> {
    [&ino_key(ino)[..], &kept_for.0].concat()
}

/// Key of a benefactor.
pub fn benefactor_key(id: BenefactorId) -> [u8; 4] {
    id.0.to_be_bytes()
}

/// Key of a start of the manager.
pub fn start_key(start: u64) -> [u8; 8] {
    start.to_be_bytes()
}

/// Key of the registered backup that shows a commit.
pub fn backup_key(commit: u64) -> [u8; 8] {
    commit.to_be_bytes()
}

/// The number at the start of a key, and what follows it.
pub fn split_number(key: &[u8]) -> Result<(u64, &[u8]), StoreError> {
    let split = key.split_first_chunk::<8>();
    let (number, rest) = split.ok_or_else(|| StoreError::new("reading a key", "it is too short"))?;
    Ok((u64::from_be_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn layout_5_stays_what_it_is() {
        let pool = PoolRecord {
            layout: 5,
            pool: PoolId([1; 16]),
            ino_ceiling: 4098,
            next_benefactor: 3,
            lived_ms: 4,
            term: 6,
            key: MomentKey([7; 32]),
            managers: vec!["a:7400".to_owned()],
            eras: vec![Era { number: 1, id: 9 }],
        };
        assert_eq!(
            hex(&cbor::encode(&pool)),
            format!(
                "890550010101010101010101010101010101011910020304065820{}8166613a3734303081820109",
                "07".repeat(32)
            )
        );
        let version = VersionRecord {
            layout: 5,
            size: 5,
            mtime: -1,
            committed_at: 7,
            state: VersionState::Closed,
            stored_bytes: 5,
            session: SessionId([2; 16]),
            root: MapRoot::Inline { map: vec![0xaa] },
            hole_bytes: 3,
            position: 9,
            lived_ms: 4,
            key: Some(KeyId([7; 12])),
            written_ms: Some(6),
            maker: Maker([8; 8]),
        };
        assert_eq!(
            hex(&cbor::encode(&version)),
            "8e050520070105500202020202020202020202020202020282008141aa0309044c07070707070707070707070706480808080808080808"
        );
    }

    #[test]
    fn records_without_the_elements_that_were_added_are_read() {
        let secret = BenefactorSecret([5; 32]);
        let older = (5u16, "host:1", secret.clone(), None::<MemberId>);
        let read: BenefactorRecord = decode(&cbor::encode(&older), "a benefactor").unwrap();
        let address = "host:1".to_owned();
        let (member, labels, tier) = (None, Vec::new(), Tier::Disk);
        let now = BenefactorRecord { layout: 5, address, secret, member, labels, tier };
        assert_eq!(read, now);
    }

    #[test]
    fn another_layout_is_refused_by_name_and_an_older_one_needs_no_later_stdchk() {
        for (layout, needs_later) in [(LAYOUT + 1, true), (LAYOUT - 1, false)] {
            let other = cbor::encode(&EntryRecord { layout, ino: Ino(5) });
            let error = decode::<EntryRecord>(&other, "a directory entry").unwrap_err().to_string();
            let names = error.contains("a directory entry") && error.contains(&format!("layout {layout}"));
            assert!(names || error.contains(&format!("older layout, {layout}")), "{error}");
            assert_eq!(error.contains("use a later stdchk"), needs_later, "{error}");
        }
        assert!(decode::<EntryRecord>(b"junk", "a directory entry").is_err());
    }

    #[test]
    fn a_field_added_later_is_skipped() {
        let extended = (5u16, Ino(5), "new");
        let bytes = cbor::encode(&extended);
        assert_eq!(decode::<EntryRecord>(&bytes, "").unwrap(), EntryRecord { layout: 5, ino: Ino(5) });
    }
}
