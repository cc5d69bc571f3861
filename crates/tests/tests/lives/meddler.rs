//! A user of ill will, on a member of the pool that is its own: it has a folder, files and sessions, and asks whatever a client may ask,
//! with names of chunks, encodings, versions and sessions of others. Nobody else may lose anything by it, or keep anything too long.
//!
//! When all comes to rest its files go.

use stdchk_manager::core::Asker;
use stdchk_model::message::manager::{
    Change, DirEntry, Existing, FileKind, ManagerReply, ManagerRequest, VersionInfo, VersionState,
};
use stdchk_model::{ChunkId, ClientId, EncodingId, Failure, Ino, MapRoot, OpId, SessionId, User};

use super::adversaries::{Adversary, OF_ILL_WILL};
use super::content::{self, LENGTH_MAX, Number, id, root_of};
use super::model::{Content, NAMES};
use super::trespass::{MEMBER, USER};
use super::world::World;

const CLIENT: ClientId = ClientId([66; 16]);
const FOLDER: &str = "ill";
const FILES: [&str; 2] = ["a", "b"];

impl World {
    pub fn meddles(&mut self) {
        let Some(folder) = self.its_folder() else {
            let (name, target) = (FOLDER.to_owned(), String::new());
            let kind = FileKind::Directory;
            let parent = Ino::ROOT;
            self.change(&Change::Make { parent, name, kind, mode: 0o755, uid: USER, gid: USER, target });
            return;
        };
        for _ in 0..1 + self.below(4) {
            self.meddles_in(folder);
        }
    }

    /// It asks for something, in its present session or a new one.
    fn meddles_in(&mut self, folder: Ino) {
        let name = FILES[self.below(2)].to_owned();
        let present = self.meddling.filter(|_| self.below(8) > 0);
        let present = present.filter(|(session, _)| self.it_asks(ManagerRequest::Settle(*session)).is_ok());
        let Some((session, ino)) = present.or_else(|| self.it_creates(folder, name.clone())) else { return };
        let request = match self.below(12) {
            0 => ManagerRequest::Known { session, chunks: self.some_chunks(), room_bytes: u64::MAX },
            1 => ManagerRequest::Vouch { session, encodings: self.some_encodings() },
            2 => {
                let Some((chunk, encoding)) = self.some_encodings().pop() else { return };
                ManagerRequest::Doubt { chunk, encoding }
            }
            3 => {
                let Some(base) = self.a_version() else { return };
                ManagerRequest::KeepBase { session, base, host: FOLDER.to_owned(), bytes: u64::MAX }
            }
            4 => self.about_bases(ino),
            5 => ManagerRequest::Closing { session, size: u64::MAX, changes: u64::MAX },
            6 => ManagerRequest::CloseSession { session, interrupted: self.below(2) == 0 },
            7 => ManagerRequest::Names { session, first: true, chunks: self.some_chunks() },
            8 => ManagerRequest::Reserve { session, bytes: u64::MAX, avoid: Vec::new() },
            9 => {
                let (parent, new_parent, new_name) = (folder, folder, FILES[self.below(2)].to_owned());
                let existing =
                    [Existing::Replace, Existing::Exchange, Existing::ReplaceOnCommit][self.below(3)];
                self.it_changes(Change::Rename { parent, name, new_parent, new_name, existing })
            }
            10 => self.it_changes(Change::Unlink { parent: folder, name }),
            _ => return self.it_commits(session),
        };
        let _whatever = self.it_asks(request);
    }

    /// It opens a file of its own to write it.
    fn it_creates(&mut self, parent: Ino, name: String) -> Option<(SessionId, Ino)> {
        let (session, exclusive, again, durability) = (self.new_session(), false, None, None);
        let (client, mode, uid, gid) = (CLIENT, 0o644, USER, USER);
        let create = ManagerRequest::Create {
            session,
            client,
            parent,
            name,
            mode,
            uid,
            gid,
            exclusive,
            again,
            durability,
        };
        let Ok(ManagerReply::Session { attr, .. }) = self.it_asks(create) else { return None };
        self.meddling = Some((session, attr.ino));
        self.meddling
    }

    /// It says that a file of its own waits in a spool for a session of somebody else.
    fn about_bases(&mut self, ino: Ino) -> ManagerRequest {
        let client = self.below(self.clients.len());
        let kept_for = self.clients[client].session;
        if self.below(2) == 0 {
            return ManagerRequest::LetBaseGo { ino, kept_for };
        }
        let (session, client, durability) = (self.new_session(), CLIENT, None);
        ManagerRequest::TakeUp { session, client, ino, kept_for, durability }
    }

    fn its_folder(&mut self) -> Option<Ino> {
        let request = ManagerRequest::Lookup { parent: Ino::ROOT, name: FOLDER.to_owned() };
        match self.ask(request) {
            Ok(ManagerReply::Entry(attr)) => Some(attr.ino),
            _ => None,
        }
    }

    fn new_session(&mut self) -> SessionId {
        self.sessions += 1;
        SessionId(u128::from(self.sessions).to_be_bytes())
    }

    fn it_asks(&mut self, request: ManagerRequest) -> Result<ManagerReply, Failure> {
        let told = format!("{request:?}");
        let told = told.split_once(' ').map_or(&told[..], |(name, _)| name);
        let user = Some(User::new(USER, USER));
        let asker = Asker { member: Some(MEMBER), user, maker: OF_ILL_WILL, ..Asker::default() };
        let answer = self.core.handle_for(asker, request, self.now);
        self.commit_store();
        let code = answer.as_ref().err().map(|failure| failure.code);
        self.note(format!("somebody of ill will asks {told}: {code:?}"));
        answer
    }

    fn it_changes(&mut self, change: Change) -> ManagerRequest {
        self.operations += 1;
        ManagerRequest::Change { id: OpId(self.operations.to_be_bytes()), change }
    }

    fn some_chunks(&mut self) -> Vec<ChunkId> {
        (0..1 + self.below(4)).map(|_| id(self.any_chunk())).collect()
    }

    /// Encodings of a chunk, as they lie somewhere.
    fn some_encodings(&mut self) -> Vec<(ChunkId, EncodingId)> {
        let number = self.any_chunk();
        let at = self.holders().remove(&number).unwrap_or_default();
        at.into_iter().map(|(block, _)| (block.chunk, block.encoding)).collect()
    }

    /// A version of somebody's file.
    pub fn a_version(&mut self) -> Option<VersionInfo> {
        let place = self.below(NAMES);
        let ino = self.files.names[place]?;
        self.version(ino, None)?.0
    }

    /// It commits what it hasn't stored: chunks of others, or the map of a file of others. It may leave out some of the names.
    fn it_commits(&mut self, session: SessionId) {
        let place = self.below(NAMES);
        let content = match self.files.maps(place).pop() {
            Some(map) => Content { list: content::list_of(map), map_in_pool: true },
            None => {
                let list = (0..1 + self.below(LENGTH_MAX)).map(|_| self.any_chunk()).collect();
                Content { list, map_in_pool: self.below(2) == 0 }
            }
        };
        let root = root_of(&content);
        let mut named: Vec<Number> = content.needs().into_iter().collect();
        if self.below(2) == 0 {
            named.remove(self.below(named.len()));
        }
        let names = match root {
            MapRoot::Inline { .. } => Vec::new(),
            MapRoot::Pieces { .. } => named.iter().copied().map(id).collect(),
        };
        let commit = ManagerRequest::Commit {
            session,
            size: content::size(&content.list),
            mtime: 1,
            stored_bytes: u64::MAX,
            named_before: 0,
            key: None,
            changes: u64::MAX,
            named: names,
            root,
            state: [VersionState::Open, VersionState::Closed][self.below(2)],
            hole_bytes: u64::MAX,
            receipts: Vec::new(),
        };
        if self.it_asks(commit).is_ok() && self.in_memory.is_empty() {
            let holders = self.holders();
            let is_there = |number: &Number| {
                self.lost.contains(number)
                    || self.claimed.contains(number)
                    || holders
                        .get(number)
                        .is_some_and(|at| super::checks::suffice(at.iter().map(|(block, _)| block)))
            };
            let missing = named.iter().find(|number| !is_there(number));
            assert_eq!(missing, None, "somebody of ill will commits a chunk that isn't there");
        }
    }

    /// All comes to rest, and its files go.
    pub fn meddling_ends(&mut self) {
        if !self.adversaries.contains(&Adversary::Meddles) {
            return;
        }
        if let Some((session, _)) = self.meddling.take() {
            let _whatever = self.it_asks(ManagerRequest::CloseSession { session, interrupted: true });
        }
        let Some(folder) = self.its_folder() else { return };
        let request = ManagerRequest::ReadDir { ino: folder, after: None, limit: 10 };
        let Ok(ManagerReply::Entries(entries)) = self.ask(request) else { panic!("a folder isn't listed") };
        for DirEntry { name, .. } in entries {
            let unlink = self.it_changes(Change::Unlink { parent: folder, name });
            let _whatever = self.it_asks(unlink);
        }
    }
}
