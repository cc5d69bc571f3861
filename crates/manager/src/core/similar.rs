//! Which version a new one most likely resembles: that of the file whose name differs in the fewest numbers.
//!
//! Timesteps and ranks are numbers in names, of files (`run.N3.T40`) or of the folder of a timestep (`DD0040/data.3`);
//! so candidates are files whose names are equal but for numbers, in the same folder and in the folders beside it that
//! are equal but for numbers. Of candidates with equally many equal numbers one of the same rank wins, by the folder's naming:
//! all ranks write a timestep at about the same time, and another rank's file is newer than the same rank's of the timestep
//! before. Then the newest commit wins. What lies in a container has no chunks of its own that a new version could refer to.

use stdchk_model::message::manager::{TimeNs, VersionInfo};
use stdchk_model::naming::Naming;
use stdchk_model::user::Access;
use stdchk_model::{ErrorCode, Failure, Ino, Maker, MapRoot};

use super::inode::{Body, Directory, Version};
use super::namespace::Namespace;

/// Folders beside the file's own that are looked into, those changed last.
const FOLDERS_MAX: usize = 2;

/// A name with its numbers taken out.
struct Shape<'name> {
    /// The name with a NUL, which no name has, for each number.
    text: String,
    numbers: Vec<&'name str>,
}

impl<'name> Shape<'name> {
    fn of(name: &'name str) -> Self {
        let is_digit = |character: char| character.is_ascii_digit();
        let numbers = name.split(|character| !is_digit(character)).filter(|number| !number.is_empty());
        let mut text = name.replace(is_digit, "\0");
        while text.contains("\0\0") {
            text = text.replace("\0\0", "\0");
        }
        Self { text, numbers: numbers.collect() }
    }

    /// How many numbers are equal; `None` if anything but numbers differs.
    fn equal_numbers(&self, other: &Shape<'_>) -> Option<usize> {
        let equal = || self.numbers.iter().zip(&other.numbers).filter(|(one, other)| one == other).count();
        (self.text == other.text).then(equal)
    }
}

/// The file that versions are compared with, as its names say.
struct Sought<'name> {
    ino: Ino,
    shape: Shape<'name>,
    naming: Naming,
    rank: Option<u64>,
    maker: Maker,
}

/// How much a version has in common with the file, the most first: equal numbers, rank, and when it was committed.
type Likeness = (usize, bool, TimeNs, u64);

impl Sought<'_> {
    fn is_same_rank(&self, folder: Option<&str>, name: &str) -> bool {
        self.rank.is_some() && rank_of(&self.naming, folder, name) == self.rank
    }
}

/// The rank that a file's name says, or its name with that of its folder.
fn rank_of(naming: &Naming, folder: Option<&str>, name: &str) -> Option<u64> {
    let with_folder = || naming.read(&format!("{}/{name}", folder?));
    naming.read(name).or_else(with_folder)?.rank
}

impl Namespace {
    /// The newest version of the file most like this one by name, of those whose newest one this maker wrote: that a map names pieces truly is its
    /// writer's word. `None` if there is none but the file itself.
    pub fn similar(&self, ino: Ino, maker: Maker) -> Result<Option<(VersionInfo, MapRoot)>, Failure> {
        let parent = self.inode(ino)?.parent;
        let Some(name) = self.directory(parent).ok().and_then(|folder| name_of(folder, ino)) else {
            return Ok(None);
        };
        let naming = self.policy(ino)?.naming.parse::<Naming>();
        let naming = naming.map_err(|error| Failure::new(ErrorCode::Invalid, error.to_string()))?;
        let rank = rank_of(&naming, self.folder_name(parent), name);
        let sought = Sought { ino, shape: Shape::of(name), naming, rank, maker };
        let mut best = None;
        for folder in self.folders_like(parent)? {
            best = self.best_in(folder, &sought, best)?;
        }
        Ok(best.map(|((_, _, _, number), version)| (version.info(number), version.root.clone())))
    }

    /// The best of the versions in a folder and the best so far.
    fn best_in<'a>(
        &'a self,
        folder: Ino,
        sought: &Sought<'_>,
        mut best: Option<(Likeness, &'a Version)>,
    ) -> Result<Option<(Likeness, &'a Version)>, Failure> {
        let folder_name = self.folder_name(folder);
        for (name, entry) in &self.directory(folder)?.entries {
            let Some(equal) = Shape::of(name).equal_numbers(&sought.shape).filter(|_| *entry != sought.ino)
            else {
                continue;
            };
            if best.as_ref().is_some_and(|((most, ..), _)| equal < *most) {
                continue;
            }
            let Body::File(file) = &self.inode(*entry)?.body else { continue };
            if !self.lets(*entry, Access::READ) {
                continue;
            }
            let own = |(_, version): &(u64, &Version)| {
                !version.root.is_in_container() && version.maker == sought.maker
            };
            let Some((number, version)) = file.newest().filter(own) else { continue };
            let same_rank = sought.is_same_rank(folder_name, name);
            let likeness = (equal, same_rank, version.position, number);
            if best.as_ref().is_none_or(|(of_best, _)| likeness > *of_best) {
                best = Some((likeness, version));
            }
        }
        Ok(best)
    }

    fn folder_name(&self, folder: Ino) -> Option<&str> {
        let above = self.inode(folder).ok()?.parent;
        name_of(self.directory(above).ok()?, folder)
    }

    /// A folder, and those beside it with the same name but for numbers.
    fn folders_like(&self, folder: Ino) -> Result<Vec<Ino>, Failure> {
        let mut folders = vec![folder];
        let above = self.inode(folder)?.parent;
        if folder == Ino::ROOT || above == Ino::ROOT {
            return Ok(folders);
        }
        let above = self.directory(above)?;
        let Some(shape) = name_of(above, folder).map(Shape::of).filter(|shape| !shape.numbers.is_empty())
        else {
            return Ok(folders);
        };
        let mut beside = Vec::new();
        for (name, entry) in &above.entries {
            let inode = self.inode(*entry)?;
            let is_like = *entry != folder && Shape::of(name).equal_numbers(&shape).is_some();
            if is_like && matches!(inode.body, Body::Directory(_)) {
                beside.push((std::cmp::Reverse(inode.mtime), *entry));
            }
        }
        beside.sort_unstable();
        folders.extend(beside.into_iter().take(FOLDERS_MAX).map(|(_, entry)| entry));
        Ok(folders)
    }
}

fn name_of(directory: &Directory, ino: Ino) -> Option<&str> {
    directory.entries.iter().find(|(_, entry)| **entry == ino).map(|(name, _)| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_by_their_numbers() {
        let equal = |one: &str, other: &str| Shape::of(one).equal_numbers(&Shape::of(other));
        assert_eq!(equal("run.N3.T40", "run.N3.T41"), Some(1));
        assert_eq!(equal("run.N3.T40", "run.N4.T41"), Some(0));
        assert_eq!(equal("core.998", "core.1002"), Some(0));
        assert_eq!(equal("run.N3.T40", "other.N3.T40"), None);
        assert_eq!(equal("run.N3.T40", "run.N3"), None);
        assert_eq!(equal("state", "state"), Some(0));
        assert_eq!(equal("7a", "a7"), None, "where the numbers are counts, too");
    }
}
