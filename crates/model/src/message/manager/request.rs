//! The requests to a manager. Numbers in steps of ten, by subject, so that each has room to grow.

use minicbor::{Decode, Encode};

use super::{
    BenefactorSecret, Change, Hold, Moment, PackedMembers, Registration, Sent, StoredBlock, TimeNs,
    VersionInfo, VersionState,
};
use crate::block::{BlockId, EncodingId};
use crate::chunk_map::MapRoot;
use crate::id::{BenefactorId, ChunkId, ClientId, Ino, KeyId, MachineId, OpId, SessionId};
use crate::journal::Reach;
use crate::message::benefactor::{BenefactorLoad, Decoded, FailedCopy, Seen, Unreached};
use crate::message::handshake::MemberId;
use crate::receipt::Receipt;
use crate::signed::Signed;
use crate::tier::Durability;
use crate::timestep::Timestep;

/// A request to the manager.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum ManagerRequest {
    // --- namespace, reading
    /// The entry `name` of a directory. Answered by `Entry`.
    #[n(0)]
    Lookup {
        /// The directory.
        #[n(0)]
        parent: Ino,
        /// The entry's name.
        #[n(1)]
        name: String,
    },
    /// An inode. Answered by `Entry`.
    #[n(1)]
    GetAttr(#[n(0)] Ino),
    /// An inode by its path from the root. Answered by `Entry`.
    #[n(2)]
    Resolve {
        /// Names joined by `/`.
        #[n(0)]
        path: String,
    },
    /// Entries of a directory in name order. Answered by `Entries`.
    #[n(3)]
    ReadDir {
        /// The directory.
        #[n(0)]
        ino: Ino,
        /// Only entries behind this name.
        #[n(1)]
        after: Option<String>,
        /// Most entries in the answer, at most [`crate::limits::LIST_ENTRIES_MAX`].
        #[n(2)]
        limit: u32,
    },
    /// Target of a symbolic link. Answered by `Target`.
    #[n(4)]
    ReadLink(#[n(0)] Ino),
    /// Space and counts of the pool. Answered by `Space`.
    #[n(5)]
    Space,
    /// The versions that a client goes on reading, by the sessions that committed them; at most
    /// [`crate::limits::LIST_ENTRIES_MAX`]. Those that it opened in the last seconds count without being named. Sent with signs of life.
    /// Answered by `Done`.
    #[n(73)]
    Reading {
        /// The client.
        #[n(0)]
        client: ClientId,
        /// The sessions.
        #[n(1)]
        sessions: Vec<SessionId>,
    },
    /// As `Space`, for a writer that finds the pool full: the manager collects what may go, and answers once there is room for a
    /// chunk, or nothing makes any. Answered by `Space`.
    #[n(72)]
    MakeRoom,

    // --- namespace, changing
    /// A change; repeated with the same id, it is answered as the first time. Answered by `Entry` or `Done`.
    #[n(10)]
    Change {
        /// Identity of the change.
        #[n(0)]
        id: OpId,
        /// What to do.
        #[n(1)]
        change: Change,
    },

    // --- versions
    /// The versions of a file, oldest first. Answered by `Versions`.
    #[n(20)]
    Versions(#[n(0)] Ino),
    /// One version with its map root; the newest if none is named. Answered by `Version`.
    #[n(21)]
    OpenVersion {
        /// The file.
        #[n(0)]
        ino: Ino,
        /// Its version number.
        #[n(1)]
        version: Option<u64>,
        /// Who goes on reading it, if somebody does: `versions` of the folder lets none of these go.
        #[n(2)]
        client: Option<ClientId>,
    },
    /// The chunks that a version needs, those that hold its map included: for who can't read the map, which may be encrypted. In
    /// the order of their names, at most [`crate::limits::LIST_ENTRIES_MAX`]. Answered by `Chunks`.
    #[n(29)]
    ChunksOf {
        /// The file.
        #[n(0)]
        ino: Ino,
        /// Its version number.
        #[n(1)]
        version: u64,
        /// Only those whose names come behind this one.
        #[n(2)]
        after: Option<ChunkId>,
    },
    /// Where these chunks are. Answered by `Locations`.
    #[n(22)]
    Locate {
        /// The chunks, at most [`crate::limits::LIST_ENTRIES_MAX`].
        #[n(0)]
        chunks: Vec<ChunkId>,
    },
    /// A reader has had enough blocks of this encoding, each what it is named after, and they don't make the chunk. The manager has benefactors
    /// find out whether that is so. Answered by `Done`.
    #[n(68)]
    Doubt {
        /// The chunk.
        #[n(0)]
        chunk: ChunkId,
        /// The encoding.
        #[n(1)]
        encoding: EncodingId,
    },
    /// The benefactors of the pool. Answered by `Benefactors`.
    #[n(23)]
    Benefactors,
    /// The committed version in which a new version of this file will most likely find its pieces again: of the file whose
    /// name differs in the fewest numbers, as a checkpoint's from the one of the timestep before, of the asker's own maker. Answered by
    /// `Version`.
    #[n(24)]
    Similar(#[n(0)] Ino),

    /// Whether the user may open a file to read it, or to read and write it: for who has it open already, for another user. Changes
    /// nothing. Answered by `Entry`.
    #[n(27)]
    MayOpen {
        /// The file.
        #[n(0)]
        ino: Ino,
        /// Whether to write it, too.
        #[n(1)]
        writes: bool,
    },
    /// Whether the user may make a change, before something else is done for it. Changes nothing. Answered by `Done`.
    #[n(28)]
    MayChange(#[n(0)] Change),

    // --- sessions
    /// Opens a session on a file, or opens it again after a restart of the manager. Answered by `Session`.
    #[n(30)]
    OpenSession {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The client that holds its lease.
        #[n(1)]
        client: ClientId,
        /// The file.
        #[n(2)]
        ino: Ino,
        /// How safe its client makes the chunks of a commit: as the policy asked for when the session was first opened. `None`: it is
        /// opened for the first time.
        #[n(3)]
        durability: Option<Durability>,
    },
    /// Space for the session's next chunks, and a stripe to put them on. Answered by `Stripe`.
    #[n(31)]
    Reserve {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// Space wanted, bytes, every replica counted; what is granted takes the place of what is reserved and unused.
        #[n(1)]
        bytes: u64,
        /// Benefactors that just failed this client; the stripe leaves them out.
        #[n(2)]
        avoid: Vec<BenefactorId>,
    },
    /// Which of these chunks does the pool have? Those are pinned for the session: they stay until it ends. Answered by
    /// `Known`.
    #[n(32)]
    Known {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The chunks, at most [`crate::limits::LIST_ENTRIES_MAX`].
        #[n(1)]
        chunks: Vec<ChunkId>,
        /// Space wanted as by `Reserve`, bytes; 0: none. What can't be granted is left out of the answer.
        #[n(2)]
        #[cbor(default)]
        room_bytes: u64,
    },
    /// Receipts of benefactors for chunks that the session is about to commit. The session holds these chunks from now on.
    /// Answered by `Done`, or refused with `Outdated`.
    #[n(33)]
    Receipts {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// Receipts, each with the benefactor that gave it; of at most [`crate::limits::LIST_ENTRIES_MAX`] blocks together.
        #[n(1)]
        receipts: Vec<(BenefactorId, Receipt)>,
    },
    /// The session's content becomes the newest version, in one step (I2). Every chunk of the map must have durable copies
    /// that the manager knows of, by receipts or by reports of benefactors. Repeated commits of one session replace each
    /// other's version. Answered by `Version`, or refused with `Outdated`.
    #[n(34)]
    Commit {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The map.
        #[n(1)]
        root: MapRoot,
        /// Size of the file, bytes.
        #[n(2)]
        size: u64,
        /// Its modification time.
        #[n(3)]
        mtime: TimeNs,
        /// Bytes that the session sent to benefactors, not counting replicas.
        #[n(4)]
        stored_bytes: u64,
        /// All distinct chunks that the map names, its own pieces counted, unless the map is in `root`; without those that `Names` told
        /// before.
        #[n(5)]
        named: Vec<ChunkId>,
        /// How many names `Names` told before.
        #[n(9)]
        #[cbor(default)]
        named_before: u64,
        /// `Open`: the session goes on. `Closed` or `Interrupted`: this was its last commit.
        #[n(6)]
        #[cbor(default)]
        state: VersionState,
        /// Bytes of the file that lie in holes of the map.
        #[n(7)]
        #[cbor(default)]
        hole_bytes: u64,
        /// Receipts as in `Receipts`.
        #[n(8)]
        #[cbor(default)]
        receipts: Vec<(BenefactorId, Receipt)>,
        /// The key with which the client encrypted what it stored, or with which the version before was that it keeps parts of. Refused
        /// with `NoKey` if there is none and the folder asks for one.
        #[n(10)]
        key: Option<KeyId>,
        /// How many changes of the file by this session are in it: a close of which `Closing` told is over if it saw no more of them.
        #[n(11)]
        changes: u64,
    },
    /// Names for the next commit of a session, which don't fit into one list with the others. Answered by `Done`.
    #[n(43)]
    Names {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// Those that came before are void.
        #[n(1)]
        first: bool,
        /// The chunks.
        #[n(2)]
        chunks: Vec<ChunkId>,
    },
    /// The session has the content of these chunks, and would have coded it in just the same bytes as these encodings, of other makers,
    /// are. They count for this session from now on. Chunks that the session doesn't hold are left out. Answered by `Done`.
    #[n(67)]
    Vouch {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The chunks, each with its encoding, at most [`crate::limits::LIST_ENTRIES_MAX`].
        #[n(1)]
        encodings: Vec<(ChunkId, EncodingId)>,
    },
    /// Ends a session. Its last commit counts as finished; without a commit nothing happened. Answered by `Done`.
    #[n(35)]
    CloseSession {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The writer was killed: what was committed may be torn and never makes a set complete.
        #[n(1)]
        interrupted: bool,
    },
    /// Where the pool's managers serve. Answered by `Managers`.
    #[n(75)]
    Managers,
    /// Sets where the pool's managers serve, `host:port`: all members learn it. Answered by `Done`.
    #[n(76)]
    SetManagers(#[n(0)] Vec<String>),
    /// A sign of life; keeps the client's sessions. Answered by `Sessions` with those that the manager knows.
    #[n(36)]
    KeepAlive(#[n(0)] ClientId),

    /// A client that writes says on which machine it runs, with its first file and beside each sign of life. Answered by `Done`.
    #[n(44)]
    Attend {
        /// The client.
        #[n(0)]
        client: ClientId,
        /// Its machine.
        #[n(1)]
        machine: MachineId,
        /// What it has sent to benefactors since it said so last, at most [`crate::limits::SENT_ENTRIES_MAX`] of them.
        #[n(2)]
        #[cbor(default)]
        sent: Vec<Sent>,
    },
    /// A client ends by its own will: that it falls silent says nothing of its machine. Answered by `Done`.
    #[n(45)]
    Leave(#[n(0)] ClientId),
    /// The benefactor on a machine, for clients there. Answered by `Own`.
    #[n(49)]
    Own(#[n(0)] MachineId),
    /// How benefactors are chosen for a file or folder, for clients on a machine, and why. Answered by `Placement`, which may not be
    /// ranked yet: then it will be within seconds.
    #[n(46)]
    Explain {
        /// The file or folder.
        #[n(0)]
        ino: Ino,
        /// The machine of the clients.
        #[n(1)]
        machine: MachineId,
    },

    /// What is known for advice on how often an application on a machine should take checkpoints. Answered by `Pace`.
    #[n(48)]
    Pace {
        /// The application's folder.
        #[n(0)]
        ino: Ino,
        /// The machine.
        #[n(1)]
        machine: MachineId,
    },

    /// The application is about to be told that the file is closed, ahead of the commit. Should the session end without one,
    /// the file gets a version `Lost`. Answered by `Done`, or by `Held` if the application should wait for copies before.
    #[n(37)]
    Closing {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// Size of the file, bytes.
        #[n(1)]
        size: u64,
        /// How many changes of the file by this session were closed: a commit that has fewer of them may be on its way.
        #[n(2)]
        changes: u64,
    },

    /// Opens a session on a new file without a name, which lives as long as the session: a container on its way. Answered by
    /// `Session`.
    #[n(38)]
    OpenContainer {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The client that holds its lease.
        #[n(1)]
        client: ClientId,
        /// The folder whose policy holds for it.
        #[n(2)]
        folder: Ino,
    },

    /// Makes a file and opens a session on it. The file is durable with the first commit of the session, with any other change
    /// of the namespace, or with `Settle`; if it is `exclusive`, before this is answered. A manager that was restarted may
    /// have forgotten the file: then the client asks again, with the number that the file had. Answered by `Session`.
    #[n(39)]
    Create {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The client that holds its lease.
        #[n(1)]
        client: ClientId,
        /// The directory.
        #[n(2)]
        parent: Ino,
        /// Name of the new file.
        #[n(3)]
        name: String,
        /// Permission bits.
        #[n(4)]
        mode: u32,
        /// Owner.
        #[n(5)]
        uid: u32,
        /// Group.
        #[n(6)]
        gid: u32,
        /// Nobody else may ever be answered that they made it.
        #[n(7)]
        exclusive: bool,
        /// What the first answer said the file is; `None`: there was none.
        #[n(8)]
        again: Option<Ino>,
        /// As for [`Self::OpenSession`].
        #[n(9)]
        durability: Option<Durability>,
    },

    /// The file of this session is durable once this is answered, also if it was only made. Answered by `Done`.
    #[n(25)]
    Settle(#[n(0)] SessionId),

    /// A writer asks whether the copies are made that it should wait for. Answered after a second at the latest, by `Done` or
    /// `Waiting`. `Done` also says that the copies can't be made now.
    #[n(26)]
    AwaitCopies {
        /// The file that was committed.
        #[n(0)]
        ino: Ino,
        /// What the answer to the commit said.
        #[n(1)]
        hold: Hold,
    },

    // --- folders
    /// The policy that holds for a file or directory. Answered by `Policy`.
    #[n(40)]
    GetPolicy(#[n(0)] Ino),
    /// The checkpoint sets of an application's folder, newest timestep first. Answered by `Sets`.
    #[n(41)]
    Sets(#[n(0)] Ino),
    /// Lets all members of a checkpoint set lie in these containers from now on, in one step; their own chunks are no longer
    /// referred to. Refused unless the set is complete and the containers hold exactly its members, at these versions, and
    /// while a member is being written, a session doesn't hold all chunks of its container, or one of them has fewer copies
    /// than the members' folders ask for and the benefactors allow. Can be repeated. Answered by `Done`.
    #[n(42)]
    Aggregate {
        /// The folder.
        #[n(0)]
        folder: Ino,
        /// Timestep of the set.
        #[n(1)]
        timestep: Timestep,
        /// The containers with what they hold.
        #[n(2)]
        containers: Vec<PackedMembers>,
    },

    /// What would become of the checkpoint sets of a folder now, newest timestep first. Changes nothing. Answered by `Fates`.
    #[n(47)]
    Fates {
        /// The folder.
        #[n(0)]
        folder: Ino,
        /// Under this lifetime, as `Policy::set` takes it; `None`: that of the folder.
        #[n(1)]
        lifetime: Option<String>,
        /// If the job had succeeded, as with `Change::Finish`.
        #[n(2)]
        done: bool,
    },

    // --- care
    /// State of the pool. Answered by `Status`.
    #[n(50)]
    Status,
    /// Removes chunks that nothing refers to, or says which. Answered by `Collected`.
    #[n(51)]
    Collect {
        /// Only say what would go.
        #[n(0)]
        dry_run: bool,
    },
    /// Forgets a benefactor that is not on-line and won't come back: nothing is expected of it any more. Refused with
    /// `Denied` while chunks would be left without a copy, unless told to. Can be repeated. Answered by `Done`.
    #[n(52)]
    Forget {
        /// Which.
        #[n(0)]
        id: BenefactorId,
        /// Also when chunks have no other copy.
        #[n(1)]
        force: bool,
    },

    /// Goes on with a store that is older than what benefactors remember of it: what was stored since is given up, and
    /// collected in the end. Without such a benefactor nothing happens. Can be repeated. Answered by `Done`.
    #[n(53)]
    AcceptOlderStore,
    /// Takes a copy of the store as it is now, to be read while the manager goes on. The copy before it is let go, and so is one
    /// that nobody has read for a minute. Answered by `Backup`.
    #[n(54)]
    BeginBackup {
        /// For how long the backup is registered, milliseconds of the manager's life: what it names isn't deleted meanwhile. It is given up
        /// earlier if it isn't read to its end. 0: it isn't registered.
        #[n(0)]
        keep_ms: u64,
    },
    /// Reads the copy that was taken, part by part from 0 on; the part that was read last may be read again. Answered by
    /// `BackupPart`.
    #[n(55)]
    ReadBackup {
        /// Which copy.
        #[n(0)]
        id: u64,
        /// Which part of it.
        #[n(1)]
        part: u32,
    },

    /// Who has joined the pool with a token. Answered by `Members`.
    #[n(56)]
    Members,
    /// Accepts the keys of a member no more, for ever. Its connections end, here at once and at benefactors that are on-line within
    /// a heartbeat. Can be repeated. Answered by `Done`.
    #[n(57)]
    Revoke {
        /// Which.
        #[n(0)]
        member: MemberId,
    },

    // --- benefactors
    /// A benefactor starts or was forgotten. Answered by `Registered`.
    #[n(60)]
    Register {
        /// What it says.
        #[n(0)]
        registration: Registration,
        /// Its secret, for a manager that doesn't know it.
        #[n(1)]
        secret: Option<BenefactorSecret>,
        /// Keyed hash of the registration that shows that the sender knows the secret.
        #[cbor(n(2), with = "minicbor::bytes")]
        proof: [u8; 32],
    },
    /// A benefactor is about to take its inventory: what a receipt says from now on counts beside that. Answered by `Done`.
    #[n(64)]
    BeginInventory {
        /// Whose.
        #[n(0)]
        id: BenefactorId,
        /// Number of its last registration: what was sent before that is out of date.
        #[n(1)]
        registration: u64,
    },
    /// A part of the inventory that was begun last. Answered by `Done`.
    #[n(61)]
    Inventory {
        /// Whose.
        #[n(0)]
        id: BenefactorId,
        /// Number of its last registration: what was sent before that is out of date.
        #[n(1)]
        registration: u64,
        /// Whether this is the last part.
        #[n(2)]
        last: bool,
        /// The blocks of this part.
        #[n(3)]
        blocks: Vec<StoredBlock>,
        /// Sequence number of its last put when the inventory was taken.
        #[n(4)]
        put_sequence: u64,
    },
    /// A sign of life with what changed since the last. Answered by `Commands`.
    #[n(62)]
    Heartbeat {
        /// Whose.
        #[n(0)]
        id: BenefactorId,
        /// Number of its last registration: what was sent before that is out of date.
        #[n(1)]
        registration: u64,
        /// Its space.
        #[n(2)]
        load: BenefactorLoad,
        /// Sequence number of its last put before all puts were made durable last: orders to delete rest on it.
        #[n(3)]
        durable_sequence: u64,
        /// Blocks that became durable.
        #[n(4)]
        added: Vec<StoredBlock>,
        /// Blocks that were removed or found damaged.
        #[n(5)]
        removed: Vec<BlockId>,
        /// How many of `removed` were damaged.
        #[n(6)]
        damaged: u32,
        /// What failed of the orders to make blocks since the last heartbeat.
        #[n(7)]
        copies_failed: Vec<FailedCopy>,
        /// Sequence number of its last put when `added` and `removed` were taken.
        #[n(8)]
        put_sequence: u64,
        /// Encodings of which the benefactor was ordered to gather blocks, and what they make.
        #[n(9)]
        decoded: Vec<Decoded>,
        /// Answers to orders to see blocks of others before its own may go.
        #[n(10)]
        seen: Vec<Seen>,
        /// The error of its disk, after which it stores nothing more, for people; `None`: the disk is sound. At most
        /// [`CAUSE_BYTES_MAX`](crate::limits::CAUSE_BYTES_MAX) bytes.
        #[n(11)]
        disk: Option<String>,
    },
    /// A benefactor is ready to make copies. Answered by `Commands` with copies to make as soon as there are some, and by
    /// none after ten seconds.
    #[n(63)]
    Orders {
        /// Whose.
        #[n(0)]
        id: BenefactorId,
        /// Number of its last registration: what was sent before that is out of date.
        #[n(1)]
        registration: u64,
    },
    /// All other benefactors that this one can't send to now. Takes the place of what it said before; a registration says that there are none. Answered by
    /// `Benefactors` with a few others that it should try as well.
    #[n(74)]
    Unreached {
        /// Whose word it is.
        #[n(0)]
        id: BenefactorId,
        /// Number of its last registration: what was sent before that is out of date.
        #[n(1)]
        registration: u64,
        /// The others.
        #[n(2)]
        unreached: Vec<Unreached>,
        /// It tried several, and has reached no other benefactor since.
        #[n(3)]
        reaches_none: bool,
    },
    /// A keeper of the journal asks for what follows on what it has. Answered by `Journal`: with commits as soon as there are some, or with a
    /// part of a base; with nothing after a second. By `Done` for a benefactor that is no keeper.
    #[n(65)]
    Journal {
        /// Whose.
        #[n(0)]
        id: BenefactorId,
        /// Number of its last registration.
        #[n(1)]
        registration: u64,
        /// How far its journal goes; `None`: it has none, or wants a new base.
        #[n(2)]
        has: Option<Reach>,
        /// The part of a base that it takes next.
        #[n(3)]
        part: u32,
        /// It is leaving: what is there is answered at once.
        #[n(4)]
        now: bool,
        /// How far its journal would go if its host lost its power now, whether it wants a new base or not.
        #[n(5)]
        durable: Option<Signed<Moment>>,
    },
    /// Gives up a registered backup: what it alone names is collected. Answered by `Done`.
    #[n(66)]
    ReleaseBackup {
        /// The commit that it shows.
        #[n(0)]
        commit: u64,
    },

    // --- spools
    /// The file of this session is closed or synced in a spool and keeps parts of the version that the session builds on. That
    /// is kept from now on, under the number of the session, until a session commits that did so or took the file up, or
    /// `LetBaseGo`. Can be repeated. Answered by `Done`; `NotFound`: the version is gone.
    #[n(69)]
    KeepBase {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The version, as the answer to `OpenSession` said.
        #[n(1)]
        base: VersionInfo,
        /// What the host of the spool calls itself, at most [`crate::limits::NAME_BYTES_MAX`] bytes.
        #[n(2)]
        host: String,
        /// What the spool holds of the file, bytes.
        #[n(3)]
        bytes: u64,
    },
    /// A version that is kept for a file in a spool is kept no longer. Can be repeated. Answered by `Done`.
    #[n(70)]
    LetBaseGo {
        /// The file.
        #[n(0)]
        ino: Ino,
        /// The session for which it is kept.
        #[n(1)]
        kept_for: SessionId,
    },
    /// Opens a session as `OpenSession` does, to push a file that was left in a spool. It builds on the version that is kept for that
    /// file, whichever is the newest; on the newest if none is kept. Answered by `Session`.
    #[n(71)]
    TakeUp {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The client that holds its lease.
        #[n(1)]
        client: ClientId,
        /// The file.
        #[n(2)]
        ino: Ino,
        /// The session for which the version is kept.
        #[n(3)]
        kept_for: SessionId,
        /// As for [`Self::OpenSession`].
        #[n(4)]
        durability: Option<Durability>,
    },
}
