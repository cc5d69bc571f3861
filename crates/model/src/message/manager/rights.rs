//! Who may ask the manager for what: by role, and by what the namespace lets the user do for whom it is asked. docs/PROTOCOL.md has
//! both tables. A new request doesn't compile before it stands in both.

use super::namespace::{Change, Existing};
use super::request::ManagerRequest as Request;
use crate::error::Failure;
use crate::id::{BenefactorId, Ino, SessionId};
use crate::message::handshake::Role;
use crate::user::Access;

/// Something of the namespace that a user must be let do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need<'a> {
    /// To come to an inode by one of its names: to go through each folder above it.
    Reach(Ino),
    /// To come to what this path from the root names.
    Path(&'a str),
    /// To come to an inode, and to do this with it.
    Access(Ino, Access),
    /// To take away a name, or to give it to something else, or to make it: to change the folder; of a sticky folder, to own that or what
    /// has the name.
    Name(Ino, &'a str),
    /// To move what has a name to another folder: to write it if it is a folder itself.
    Move(Ino, &'a str, Ino),
    /// To give a file another name: to own it, or to read and write it.
    Link(Ino),
    /// To write a file, chunks of which stay: to own it, or to read and write it.
    Update(Ino),
    /// To own an inode.
    Own(Ino),
    /// To set attributes of an inode.
    Attributes {
        /// The inode.
        ino: Ino,
        /// New permission bits.
        mode: Option<u32>,
        /// New owner.
        uid: Option<u32>,
        /// New group.
        gid: Option<u32>,
    },
    /// To go on with a session that the same member of the pool has opened.
    Session(SessionId),
}

/// Is told each need of a request in turn, and refuses those that aren't met.
pub type Allow<'a> = dyn FnMut(Need<'_>) -> Result<(), Failure> + 'a;

impl Request {
    /// Whether a caller in this role may ask for it.
    pub fn may_be_asked_by(&self, role: Role) -> bool {
        match self {
            Self::Register { .. }
            | Self::BeginInventory { .. }
            | Self::Inventory { .. }
            | Self::Heartbeat { .. }
            | Self::Orders { .. }
            | Self::Unreached { .. }
            | Self::Journal { .. } => role == Role::Benefactor,
            Self::Collect { .. }
            | Self::Forget { .. }
            | Self::AcceptOlderStore
            | Self::SetManagers(_)
            | Self::Members
            | Self::Revoke { .. }
            | Self::BeginBackup { .. }
            | Self::ReleaseBackup { .. }
            | Self::ReadBackup { .. } => role == Role::Operator,
            // The owner of a disk may see how the pool is.
            Self::Status | Self::Space | Self::Own(_) | Self::Managers => {
                matches!(role, Role::Client | Role::Operator | Role::Benefactor)
            }
            Self::Lookup { .. }
            | Self::GetAttr(_)
            | Self::MayOpen { .. }
            | Self::MayChange(_)
            | Self::Resolve { .. }
            | Self::ReadDir { .. }
            | Self::ReadLink(_)
            | Self::Change { .. }
            | Self::Versions(_)
            | Self::OpenVersion { .. }
            | Self::ChunksOf { .. }
            | Self::Locate { .. }
            | Self::Doubt { .. }
            | Self::Benefactors
            | Self::Similar(_)
            | Self::OpenSession { .. }
            | Self::Reserve { .. }
            | Self::Known { .. }
            | Self::Receipts { .. }
            | Self::Vouch { .. }
            | Self::Commit { .. }
            | Self::Names { .. }
            | Self::CloseSession { .. }
            | Self::KeepAlive(_)
            | Self::Reading { .. }
            | Self::Attend { .. }
            | Self::Leave(_)
            | Self::Explain { .. }
            | Self::Pace { .. }
            | Self::Closing { .. }
            | Self::OpenContainer { .. }
            | Self::Create { .. }
            | Self::KeepBase { .. }
            | Self::LetBaseGo { .. }
            | Self::TakeUp { .. }
            | Self::Settle(_)
            | Self::AwaitCopies { .. }
            | Self::GetPolicy(_)
            | Self::Sets(_)
            | Self::Aggregate { .. }
            | Self::MakeRoom
            | Self::Fates { .. } => matches!(role, Role::Client | Role::Operator),
        }
    }

    /// The benefactor in whose name it is asked, once that has registered.
    pub fn benefactor(&self) -> Option<BenefactorId> {
        match self {
            Self::BeginInventory { id, .. }
            | Self::Inventory { id, .. }
            | Self::Heartbeat { id, .. }
            | Self::Orders { id, .. }
            | Self::Unreached { id, .. }
            | Self::Journal { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Tells all that a user must be let do for this request. Chunks and benefactors need nothing: who knows the name of a chunk may have
    /// it, and names come with maps.
    ///
    /// # Errors
    /// The first refusal of `allow`.
    pub fn needs(&self, allow: &mut Allow<'_>) -> Result<(), Failure> {
        match self {
            Self::Lookup { parent, .. } => allow(Need::Access(*parent, Access::SEARCH)),
            Self::GetAttr(ino) | Self::ReadLink(ino) | Self::GetPolicy(ino) | Self::Explain { ino, .. } => {
                allow(Need::Reach(*ino))
            }
            Self::Resolve { path } => allow(Need::Path(path)),
            Self::ReadDir { ino, .. }
            | Self::Pace { ino, .. }
            | Self::Sets(ino)
            | Self::Fates { folder: ino, .. } => allow(Need::Access(*ino, Access::LIST)),
            Self::Change { change, .. } | Self::MayChange(change) => change.needs(allow),
            Self::Versions(ino)
            | Self::OpenVersion { ino, .. }
            | Self::ChunksOf { ino, .. }
            | Self::MayOpen { ino, writes: false } => allow(Need::Access(*ino, Access::READ)),
            Self::Similar(ino)
            | Self::OpenSession { ino, .. }
            | Self::TakeUp { ino, .. }
            | Self::LetBaseGo { ino, .. }
            | Self::MayOpen { ino, writes: true } => allow(Need::Update(*ino)),
            Self::OpenContainer { folder: parent, .. } | Self::Create { parent, .. } => {
                allow(Need::Access(*parent, Access::CHANGE))
            }
            Self::Reserve { session, .. }
            | Self::Known { session, .. }
            | Self::Receipts { session, .. }
            | Self::Commit { session, .. }
            | Self::Names { session, .. }
            | Self::CloseSession { session, .. }
            | Self::Closing { session, .. }
            | Self::Vouch { session, .. }
            | Self::KeepBase { session, .. }
            | Self::Settle(session) => allow(Need::Session(*session)),
            Self::Aggregate { folder, containers, .. } => {
                allow(Need::Access(*folder, Access::CHANGE))?;
                for container in containers {
                    allow(Need::Session(container.session))?;
                    // Nobody compares what the container holds with what the member held: that is its owner's word.
                    container.members.iter().try_for_each(|(ino, _)| allow(Need::Own(*ino)))?;
                }
                Ok(())
            }
            // What they tell of, whoever asks knows already, or it is no file's.
            Self::Space
            | Self::MakeRoom
            | Self::Status
            | Self::Benefactors
            | Self::Own(_)
            | Self::Locate { .. }
            | Self::Doubt { .. }
            | Self::KeepAlive(_)
            | Self::Reading { .. }
            | Self::Attend { .. }
            | Self::Leave(_)
            | Self::AwaitCopies { .. } => Ok(()),
            // These need another role.
            Self::Collect { .. }
            | Self::Forget { .. }
            | Self::AcceptOlderStore
            | Self::Managers
            | Self::SetManagers(_)
            | Self::Members
            | Self::Revoke { .. }
            | Self::BeginBackup { .. }
            | Self::ReleaseBackup { .. }
            | Self::ReadBackup { .. }
            | Self::Register { .. }
            | Self::BeginInventory { .. }
            | Self::Inventory { .. }
            | Self::Heartbeat { .. }
            | Self::Orders { .. }
            | Self::Unreached { .. }
            | Self::Journal { .. } => Ok(()),
        }
    }
}

impl Change {
    fn needs(&self, allow: &mut Allow<'_>) -> Result<(), Failure> {
        match self {
            Self::Make { parent, .. } => allow(Need::Access(*parent, Access::CHANGE)),
            Self::Link { ino, parent, .. } => {
                allow(Need::Link(*ino))?;
                allow(Need::Access(*parent, Access::CHANGE))
            }
            Self::Unlink { parent, name }
            | Self::Rmdir { parent, name }
            | Self::UnlinkUnwritten { parent, name, .. } => allow(Need::Name(*parent, name)),
            Self::Rename { parent, name, new_parent, new_name, existing } => {
                allow(Need::Name(*parent, name))?;
                allow(Need::Name(*new_parent, new_name))?;
                allow(Need::Move(*parent, name, *new_parent))?;
                match existing {
                    Existing::Exchange => allow(Need::Move(*new_parent, new_name, *parent)),
                    Existing::Replace | Existing::Refuse | Existing::ReplaceOnCommit => Ok(()),
                }
            }
            Self::SetAttr { ino, mode, uid, gid, .. } => {
                allow(Need::Attributes { ino: *ino, mode: *mode, uid: *uid, gid: *gid })
            }
            Self::DropVersion { ino, .. } | Self::Learn { ino, .. } => allow(Need::Update(*ino)),
            Self::SetPolicy { ino, .. } => allow(Need::Own(*ino)),
            Self::Seal { ino, .. } | Self::Finish { ino } => allow(Need::Access(*ino, Access::CHANGE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_its_own_requests_and_an_operator_those_of_clients() {
        let beat = Request::Orders { id: BenefactorId(1), registration: 2 };
        let of = |request: &Request| {
            let roles = [Role::Client, Role::Benefactor, Role::Manager, Role::Operator];
            roles.into_iter().filter(|role| request.may_be_asked_by(*role)).collect::<Vec<_>>()
        };
        assert_eq!(of(&beat), [Role::Benefactor]);
        assert_eq!(of(&Request::Benefactors), [Role::Client, Role::Operator]);
        assert_eq!(of(&Request::Status), [Role::Client, Role::Benefactor, Role::Operator]);
        assert_eq!(of(&Request::Collect { dry_run: true }), [Role::Operator]);
        assert_eq!((beat.benefactor(), Request::Status.benefactor()), (Some(BenefactorId(1)), None));
    }

    #[test]
    fn a_rename_needs_both_names_and_the_first_refusal_ends_the_questions() {
        let (parent, new_parent) = (Ino(2), Ino(3));
        let (name, new_name) = ("a".to_owned(), "b".to_owned());
        let rename = |existing| {
            let (name, new_name) = (name.clone(), new_name.clone());
            Change::Rename { parent, name, new_parent, new_name, existing }
        };
        let mut asked = 0;
        let told = rename(Existing::Exchange).needs(&mut |need| {
            let expected = [
                Need::Name(parent, "a"),
                Need::Name(new_parent, "b"),
                Need::Move(parent, "a", new_parent),
                Need::Move(new_parent, "b", parent),
            ];
            assert_eq!(expected.get(asked), Some(&need));
            asked += 1;
            Ok(())
        });
        assert_eq!((told, asked), (Ok(()), 4));
        let refusal = Failure::new(crate::ErrorCode::Denied, "no");
        let refused = rename(Existing::Replace).needs(&mut |need| match need {
            Need::Name(Ino(2), _) => Ok(()),
            Need::Name(..) => Err(refusal.clone()),
            _ => unreachable!("{need:?} comes after the refusal"),
        });
        assert_eq!(refused, Err(refusal.clone()));
    }
}
