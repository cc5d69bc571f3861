//! Policies of folders: what is set on a directory holds below it until a nearer directory sets it again.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use stdchk_model::policy::Key;
use stdchk_model::{ErrorCode, Failure, Ino, Policy};
use stdchk_reduce::learn::AUTO;

use super::inode::Body;
use super::namespace::Namespace;

/// Longest value of a policy's key, bytes: patterns are the longest.
const VALUE_BYTES_MAX: usize = 4096;

/// The values that hold in a folder, by key.
type Values<'a> = BTreeMap<&'a str, &'a str>;

impl Namespace {
    /// The policy that holds for a file or directory: of a file with names in several directories, that of the one which wants it farthest
    /// from loss, and encrypted if one of them wants that.
    pub fn policy(&self, ino: Ino) -> Result<Policy, Failure> {
        let mut known = HashMap::new();
        let first = read(&self.values_from(ino, &mut known))?;
        let mut last = None;
        self.inode(ino)?.other_parents().try_fold(first, |best, parent| {
            let values = self.values_from(parent, &mut known);
            // Most folders set nothing, and have the values of the one above.
            if last.replace(Rc::clone(&values)).is_some_and(|last| Rc::ptr_eq(&last, &values)) {
                return Ok(best);
            }
            let other = read(&values)?;
            // What one of the folders wants encrypted, no other has in the clear.
            let encryption = best.encryption.or(other.encryption);
            let farthest =
                if other.redundancy.distance() > best.redundancy.distance() { other } else { best };
            Ok(Policy { encryption, ..farthest })
        })
    }

    /// The policy that is found from here upwards.
    pub(super) fn policy_from(&self, at: Ino) -> Result<Policy, Failure> {
        read(&self.values_from(at, &mut HashMap::new()))
    }

    /// The values that are set from here upwards. `known`: what was found for folders on the way; each is looked at once, however many names lead through it.
    fn values_from<'a>(&'a self, mut at: Ino, known: &mut HashMap<Ino, Rc<Values<'a>>>) -> Rc<Values<'a>> {
        let mut way = Vec::new();
        let mut values = loop {
            if let Some(values) = known.get(&at) {
                break Rc::clone(values);
            }
            // A file without a name may have outlived its folder.
            let Ok(inode) = self.inode(at) else { break Rc::default() };
            way.push((at, inode));
            if at == Ino::ROOT {
                break Rc::default();
            }
            at = inode.parent;
        };
        for (at, inode) in way.into_iter().rev() {
            if let Body::Directory(directory) = &inode.body
                && !directory.policy.is_empty()
            {
                let own = directory.policy.iter().map(|(key, value)| (key.as_str(), value.as_str()));
                let mut all = Values::clone(&values);
                all.extend(own);
                values = Rc::new(all);
            }
            known.insert(at, Rc::clone(&values));
        }
        values
    }

    /// Notes what was learned of a file where `cutter=auto` was set; the nearest directory with a cutter decides.
    pub(super) fn learn(&mut self, ino: Ino, cutter: &str) -> Result<(), Failure> {
        check_cutter(cutter)?;
        let mut at = ino;
        loop {
            let inode = self.inode(at)?;
            if let Body::Directory(directory) = &inode.body
                && let Some(set) = directory.policy.get("cutter")
            {
                return if set == AUTO { self.set_learned(at, cutter) } else { Ok(()) };
            }
            if at == Ino::ROOT {
                return Ok(());
            }
            at = inode.parent;
        }
    }

    fn set_learned(&mut self, folder: Ino, cutter: &str) -> Result<(), Failure> {
        if let Body::Directory(directory) = &mut self.inode_mut(folder)?.body {
            directory.policy.insert("learned".to_owned(), cutter.to_owned());
        }
        self.changed.policies.insert(folder);
        Ok(())
    }

    pub(super) fn set_policy(&mut self, ino: Ino, pairs: &[(String, String)]) -> Result<(), Failure> {
        self.directory(ino)?;
        if ino == Ino::ROOT {
            let message =
                "a policy belongs to an application's folder or a directory below it, not to the root";
            return Err(Failure::new(ErrorCode::Invalid, message));
        }
        pairs.iter().try_for_each(|(key, value)| check(key, value))?;
        let clock = self.clock;
        let inode = self.inode_mut(ino)?;
        inode.ctime = clock;
        if let Body::Directory(directory) = &mut inode.body {
            for (key, value) in pairs {
                if key == "cutter" {
                    // What was learned was learned for the one before.
                    directory.policy.remove("learned");
                }
                match value.as_str() {
                    "" => directory.policy.remove(key),
                    _ => directory.policy.insert(key.clone(), value.clone()),
                };
            }
        }
        self.changed.policies.insert(ino);
        Ok(())
    }
}

fn read(values: &Values<'_>) -> Result<Policy, Failure> {
    let mut policy = Policy::default();
    values.iter().try_for_each(|(key, value)| policy.set(key, value))?;
    Ok(policy)
}

fn check(key: &str, value: &str) -> Result<(), Failure> {
    if value.is_empty() && Key::of(key).is_some() {
        return Ok(());
    }
    if value.len() > VALUE_BYTES_MAX {
        let message = format!("the value of `{key}` is longer than {VALUE_BYTES_MAX} bytes");
        return Err(Failure::new(ErrorCode::TooLong, message));
    }
    Policy::default().set(key, value)?;
    match key {
        "cutter" if value == AUTO => Ok(()),
        "cutter" | "learned" => check_cutter(value),
        "codec" => check_codec(value),
        "placement" => check_placement(value),
        "naming" => check_naming(value),
        _ => Ok(()),
    }
}

fn check_cutter(value: &str) -> Result<(), Failure> {
    let spec = value.parse::<stdchk_reduce::CutterSpec>();
    spec.map(|_| ()).map_err(|error| Failure::new(ErrorCode::Invalid, format!("`cutter={value}`: {error}")))
}

fn check_codec(value: &str) -> Result<(), Failure> {
    let codec = value.parse::<stdchk_reduce::Compression>();
    codec.map(|_| ()).map_err(|error| Failure::new(ErrorCode::Invalid, format!("`codec={value}`: {error}")))
}

fn check_placement(value: &str) -> Result<(), Failure> {
    let way = value.parse::<stdchk_placement::pool::Policy>();
    way.map(|_| ()).map_err(|error| Failure::new(ErrorCode::Invalid, format!("`placement={value}`: {error}")))
}

fn check_naming(value: &str) -> Result<(), Failure> {
    let naming = value.parse::<stdchk_model::naming::Naming>();
    naming.map(|_| ()).map_err(|error| Failure::new(ErrorCode::Invalid, format!("`naming={value}`: {error}")))
}
