//! Users and groups as this machine's accounts have them, by name or number.

use nix::unistd::{Gid, Group, Uid, getgrouplist};
use stdchk_model::User;

/// A user by name or number, in these groups, or in those of its account.
///
/// # Errors
/// What isn't known, for people.
pub fn user(name: &str, groups: &[String]) -> Result<User, String> {
    let account = match name.parse() {
        Ok(number) => nix::unistd::User::from_uid(Uid::from_raw(number)),
        Err(_) => nix::unistd::User::from_name(name),
    };
    let account = account.map_err(|error| format!("the accounts of this machine can't be read: {error}"))?;
    let uid = account.as_ref().map(|account| account.uid.as_raw()).or_else(|| name.parse().ok());
    let uid = uid.ok_or("this machine knows no such user")?;
    let groups = match (groups, account) {
        ([], Some(account)) => groups_of(&account)?,
        ([], None) => return Err("this machine knows no groups of that user".to_owned()),
        (groups, _) => groups.iter().map(|group| group_number(group)).collect::<Result<_, _>>()?,
    };
    User::of_groups(uid, &groups).ok_or_else(|| "a user has a group".to_owned())
}

/// The groups of an account, its own first.
fn groups_of(account: &nix::unistd::User) -> Result<Vec<u32>, String> {
    let unreadable = |error: String| format!("its groups can't be read: {error}");
    let name =
        std::ffi::CString::new(account.name.as_str()).map_err(|error| unreadable(error.to_string()))?;
    let listed = getgrouplist(&name, account.gid).map_err(|error| unreadable(error.to_string()))?;
    let others = listed.into_iter().map(Gid::as_raw).filter(|gid| *gid != account.gid.as_raw());
    Ok(std::iter::once(account.gid.as_raw()).chain(others).collect())
}

fn group_number(name: &str) -> Result<u32, String> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let group = Group::from_name(name)
        .map_err(|error| format!("the groups of this machine can't be read: {error}"))?;
    group.map(|group| group.gid.as_raw()).ok_or_else(|| format!("this machine knows no group `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_name_the_same_user() {
        let root = user("root", &[]).unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(user("0", &[]), Ok(root));
        let given = ["7".to_owned(), "root".to_owned(), "9".to_owned()];
        assert_eq!(user("4000000", &given), Ok(User { uid: 4_000_000, gid: 7, others: vec![0, 9] }));
        assert!(user("4000000", &[]).unwrap_err().contains("groups"));
        assert!(user("no such user", &[]).unwrap_err().contains("user"));
        assert!(user("0", &["no such group".to_owned()]).unwrap_err().contains("no such group"));
    }
}
