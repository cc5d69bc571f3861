//! Somebody asks for what it may not: a user for files of another one, a member of the pool for the session of another one, a benefactor
//! for blocks that the manager did not let it copy. Whatever the pool is doing, it gets nothing and changes nothing (I13).

use stdchk_manager::core::Asker;
use stdchk_model::message::benefactor::BenefactorRequest;
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{Change, Existing, ManagerRequest, PackedMembers};
use stdchk_model::{ClientId, ErrorCode, OpId, SessionId, User};

use super::client::Step;
use super::content::id;
use super::files::name_of;
use super::model::NAMES;
use super::plant::Plant;
use super::world::World;

/// It owns nothing; others may read files here, and not write them.
pub const USER: u32 = 4002;
pub const MEMBER: MemberId = MemberId([77; 16]);

impl World {
    pub fn trespass(&mut self, node: usize, client: usize) {
        match self.below(4) {
            0 => self.ask_as_user(),
            1 => self.ask_for_session(client),
            2 => self.lie_at_registration(node),
            _ => self.ask_as_benefactor(node),
        }
    }

    /// Asks, is refused, and leaves no trace in the store.
    fn is_refused(&mut self, asker: Asker, request: ManagerRequest) {
        let told = format!("{request:?}");
        let answer = self.core.handle_for(asker, request, self.now);
        let code = answer.as_ref().err().map(|failure| failure.code);
        let refused = matches!(code, Some(ErrorCode::Denied | ErrorCode::NotOwner));
        assert!(refused, "who may not is answered: {told}: {answer:?}");
        assert!(self.core.take_changes().is_empty(), "who is refused leaves something: {told}");
    }

    fn ask_as_user(&mut self) {
        let place = self.below(NAMES);
        let Some(ino) = self.files.names[place] else { return };
        let (parent, name) = (self.folder, name_of(place));
        self.operations += 1;
        let id = OpId(self.operations.to_be_bytes());
        let change = |change| ManagerRequest::Change { id, change };
        let (session, client, durability) = (SessionId([66; 16]), ClientId([66; 16]), None);
        let request = match self.below(16) {
            0 => change(Change::Unlink { parent, name }),
            1 => change(Change::SetPolicy {
                ino: parent,
                pairs: vec![("lifetime".to_owned(), "keep".to_owned())],
            }),
            2 => change(Change::SetAttr {
                ino,
                mode: Some(0o777),
                uid: None,
                gid: None,
                atime: None,
                mtime: None,
            }),
            3 => change(Change::DropVersion { ino, version: 1 }),
            4 => {
                let (new_parent, new_name, existing) = (parent, "mine".to_owned(), Existing::Replace);
                change(Change::Rename { parent, name, new_parent, new_name, existing })
            }
            5 => change(Change::Link { ino, parent, name: "mine".to_owned() }),
            6 => change(Change::UnlinkUnwritten { parent, name, ino }),
            7 => change(Change::Seal { ino: parent, timestep: 1.into(), sealed: true }),
            8 => change(Change::Finish { ino: parent }),
            9 => ManagerRequest::OpenSession { session, client, ino, durability },
            10 => {
                let kept_for = self.clients[0].session;
                ManagerRequest::TakeUp { session, client, ino, kept_for, durability }
            }
            11 => ManagerRequest::LetBaseGo { ino, kept_for: self.clients[0].session },
            12 => ManagerRequest::OpenContainer { session, client, folder: parent },
            13 => {
                let (mode, uid, gid, exclusive, again) = (0o644, USER, USER, false, None);
                ManagerRequest::Create {
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
                }
            }
            14 => {
                let containers = vec![PackedMembers { session, members: vec![(ino, 1)] }];
                ManagerRequest::Aggregate { folder: parent, timestep: 1.into(), containers }
            }
            _ => ManagerRequest::Similar(ino),
        };
        self.note(format!("a user asks for what it may not with {}", name_of(place)));
        let user = (self.plant != Plant::UsersMayAll).then(|| User::new(USER, USER));
        self.is_refused(Asker { user, ..Asker::default() }, request);
    }

    fn ask_for_session(&mut self, client: usize) {
        let (session, step) = (self.clients[client].session, self.clients[client].step);
        // A session that the manager doesn't know may be anybody's.
        if step == Step::Idle || self.core.handle(ManagerRequest::Settle(session), self.now).is_err() {
            return;
        }
        let chunks = vec![id(self.any_chunk())];
        let request = match self.below(10) {
            0 => ManagerRequest::CloseSession { session, interrupted: true },
            1 => ManagerRequest::Reserve { session, bytes: 1, avoid: Vec::new() },
            2 => ManagerRequest::Known { session, chunks, room_bytes: 0 },
            3 => ManagerRequest::Receipts { session, receipts: Vec::new() },
            4 => ManagerRequest::Names { session, first: true, chunks },
            5 => ManagerRequest::Vouch { session, encodings: Vec::new() },
            6 => self.clients[client].commit(self.plant, Vec::new()),
            7 => {
                let Some(base) = self.a_version() else { return };
                ManagerRequest::KeepBase { session, base, host: String::new(), bytes: 0 }
            }
            8 => ManagerRequest::Settle(session),
            _ => ManagerRequest::Closing { session, size: 0, changes: 0 },
        };
        self.note(format!("another member asks for the session of client {client}"));
        let member = (self.plant != Plant::SessionsAreForAll).then_some(MEMBER);
        self.is_refused(Asker { member, ..Asker::default() }, request);
    }

    fn ask_as_benefactor(&mut self, node: usize) {
        if !self.nodes[node].is_up() {
            return;
        }
        let Some(block) = self.nodes[node].blocks().into_iter().next() else { return };
        let request = match self.below(3) {
            0 => BenefactorRequest::Get { block },
            1 => BenefactorRequest::Verify { blocks: vec![block] },
            _ => BenefactorRequest::Sync { blocks: vec![block], tell: false },
        };
        self.note(format!("a benefactor asks {:?} for what it may not", self.nodes[node].id));
        let answer = self.nodes[node].asked_without_permit(request, &self.runtime);
        let code = answer.as_ref().err().map(|failure| failure.code);
        assert_eq!(code, Some(ErrorCode::Denied), "a benefactor has a block without a permit");
    }
}
