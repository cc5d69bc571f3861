//! What the manager is asked: the namespace, versions, sessions, locations; and the reports of benefactors.
//!
//! Changes of the namespace carry an [`OpId`] and can be repeated after a lost answer. Sessions carry their client's
//! choice of [`SessionId`] and can be opened again after a restart of the manager.

mod chunk;
mod namespace;
mod placement;
mod pool;
mod reply;
mod request;
mod rights;
mod version;

use crate::id::Ino;

pub use chunk::{ChunkLocations, Location, StoredBlock};
pub use namespace::{Attr, Change, DirEntry, Existing, FileKind};
pub use placement::{Pace, PlacedHost, Placement, Sent};
pub use pool::{
    Alone, BenefactorInfo, BenefactorSecret, BenefactorState, BrokenEncodings, CollectionStopped,
    DiskFailure, Era, EtcdInfo, EtcdMember, EtcdTrouble, ExposedSet, HeldBack, KeeperInfo, KeptBase,
    ManagerInfo, MemberInfo, MemorySpace, Moment, PoolStatus, RegisteredBackup, Registration, Space, Term,
    Twin,
};
pub use reply::ManagerReply;
pub use request::ManagerRequest;
pub use rights::{Allow, Need};
pub use version::{
    CheckpointSet, Exposed, Hold, PackedMembers, SetFate, SetMember, SetState, VersionInfo, VersionState,
};

/// Nanoseconds since 1970-01-01 UTC.
pub type TimeNs = i64;

/// An inode's number as JSON has it.
fn ino<S: serde::Serializer>(ino: &Ino, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(ino.0)
}
