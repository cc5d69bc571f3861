//! Which version a new one most likely resembles: that of the file whose name differs in the fewest numbers.
//!
//! Timesteps and ranks are numbers in names, of files (`run.N3.T40`) or of the folder of a timestep (`DD0040/data.3`);
//! so candidates are files whose names are equal but for numbers, in the same folder and in the folders beside it that
//! are equal but for numbers. Of candidates with equally many equal numbers the newest commit wins. What lies in a container
//! has no chunks of its own that a new version could refer to.

use stdchk_model::message::manager::VersionInfo;
use stdchk_model::{Failure, Ino, MapRoot};

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

impl Namespace {
    /// The newest version of the file most like this one by name; `None` if there is none but the file itself.
    pub fn similar(&self, ino: Ino) -> Result<Option<(VersionInfo, MapRoot)>, Failure> {
        let parent = self.inode(ino)?.parent;
        let Ok(folder) = self.directory(parent) else { return Ok(None) };
        let Some(name) = name_of(folder, ino) else { return Ok(None) };
        let shape = Shape::of(name);
        let mut best = None;
        for folder in self.folders_like(parent)? {
            for (other, entry) in &self.directory(folder)?.entries {
                let Some(equal) = Shape::of(other).equal_numbers(&shape).filter(|_| *entry != ino) else {
                    continue;
                };
                let Body::File(file) = &self.inode(*entry)?.body else { continue };
                let own = |(_, version): &(u64, &Version)| !version.root.is_in_container();
                let Some((number, version)) = file.newest().filter(own) else { continue };
                let rank = (equal, version.committed_at, number);
                if best.as_ref().is_none_or(|(of_best, _, _)| rank > *of_best) {
                    best = Some((rank, number, version));
                }
            }
        }
        Ok(best.map(|(_, number, version)| (version.info(number), version.root.clone())))
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
