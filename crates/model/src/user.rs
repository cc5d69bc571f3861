//! Users of a pool, and what the owner, group and mode of an inode let them do (POSIX.1-2017, 4.5 File Access Permissions).
//!
//! Users and groups are numbers that all machines of a pool share, as with NFS. Whoever may do all that concerns files, such as
//! an operator, is no [`User`]: nobody asks for whom.

use minicbor::{Decode, Encode};

/// Most groups that a request names of its user, the first one counted.
pub const GROUPS_MAX: usize = 256;
/// Most groups that a certificate names, as in the credentials of NFS (RFC 5531, appendix A): its names must fit into a greeting.
pub const CERTIFIED_GROUPS_MAX: usize = 16;
/// The number of the system's administrator.
pub const ROOT: u32 = 0;

/// A user with all of its groups.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Encode, Decode)]
pub struct User {
    /// Its number.
    #[n(0)]
    pub uid: u32,
    /// Its group, to which belongs what it makes.
    #[n(1)]
    pub gid: u32,
    /// Its other groups, fewer than [`GROUPS_MAX`].
    #[n(2)]
    pub others: Vec<u32>,
}

impl User {
    /// A user of one group.
    #[must_use]
    pub fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid, others: Vec::new() }
    }

    /// A user of these groups: the first is the one to which belongs what it makes. `None`: there is no group.
    #[must_use]
    pub fn of_groups(uid: u32, groups: &[u32]) -> Option<Self> {
        let (gid, others) = groups.split_first()?;
        Some(Self { uid, gid: *gid, others: others.iter().copied().filter(|other| other != gid).collect() })
    }

    /// Whether it is in this group.
    #[must_use]
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.others.contains(&gid)
    }
}

/// What somebody wants to do with an inode: some of reading, writing and searching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(u32);

impl Access {
    /// Reads a file or lists a folder.
    pub const READ: Self = Self(0o4);
    /// Writes a file, or makes and removes names in a folder.
    pub const WRITE: Self = Self(0o2);
    /// Goes through a folder.
    pub const SEARCH: Self = Self(0o1);
    /// Lists a folder with what its entries are.
    pub const LIST: Self = Self(0o5);
    /// Makes and removes names in a folder.
    pub const CHANGE: Self = Self(0o3);
    /// Changes parts of a file.
    pub const UPDATE: Self = Self(0o6);

    /// Whether only folders know it.
    #[must_use]
    pub fn is_of_folders(self) -> bool {
        self.0 & Self::SEARCH.0 != 0
    }

    /// What it is called when it is refused: somebody may not ….
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::READ => "read it",
            Self::WRITE => "write it",
            Self::SEARCH => "go through it",
            Self::LIST => "list it",
            Self::CHANGE => "make or remove names in it",
            _ => "read and write it",
        }
    }
}

/// Who owns an inode, and what that means for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ownership {
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permission bits.
    pub mode: u32,
}

impl Ownership {
    /// Whether the permission bits let a user do it. Of owner, group and others only the first that the user is counts.
    #[must_use]
    pub fn lets(&self, user: &User, access: Access) -> bool {
        let granted = match (user.uid == self.uid, user.is_in(self.gid)) {
            (true, _) => self.mode >> 6,
            (false, true) => self.mode >> 3,
            (false, false) => self.mode,
        };
        granted & access.0 == access.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_owner_group_and_others_the_first_counts_alone() {
        let (owner, member) = (User::new(1, 9), User::of_groups(2, &[8, 5]).unwrap());
        let (stranger, own_member) = (User::new(3, 8), User::new(1, 5));
        let users = [&owner, &own_member, &member, &stranger];
        let of = |mode, access| {
            let about = Ownership { uid: 1, gid: 5, mode };
            users.map(|user| about.lets(user, access))
        };
        for (access, digit) in [(Access::READ, 4), (Access::WRITE, 2), (Access::SEARCH, 1)] {
            assert_eq!(of(digit << 6, access), [true, true, false, false]);
            assert_eq!(of(digit << 3, access), [false, false, true, false]);
            assert_eq!(of(digit, access), [false, false, false, true]);
            assert_eq!(of(0o777, access), [true; 4]);
            assert_eq!(of(0o777 & !(digit * 0o111), access), [false; 4], "other bits don't help");
        }
        assert_eq!(of(0o452, Access::UPDATE), [false; 4], "all that is wanted must be granted");
        assert_eq!(of(0o650, Access::LIST), [false, false, true, false]);
        assert_eq!(of(0o7000, Access::READ), [false; 4]);
    }

    #[test]
    fn the_first_group_is_named_once() {
        assert_eq!(User::of_groups(1, &[5, 6, 5]), Some(User { uid: 1, gid: 5, others: vec![6] }));
        assert_eq!(User::of_groups(1, &[]), None);
    }
}
