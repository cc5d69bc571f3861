//! The files of a set as sources: in memory when the budget allows, else read at offsets.
//!
//! Relies on the standard library. The idea: small sets are read once, front to back; large ones are pulled piece by
//! piece, so that memory does not grow with the set. A file that changes meanwhile is noticed at the end.

use std::fs::{File, Metadata, ReadDir};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stdchk_formats::{Extent, Source};
use stdchk_model::exact::{narrow, part_mut, to_usize};

use crate::codec::scratch;
use crate::container::{FileEntry, Owner};
use crate::error::{AggregateError, Result};
use crate::holes::holes_of;
use crate::name::text_of_name;
use crate::new_file::prefix_of_part;
use crate::unfold::UnfoldedView;

/// A file to be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its name in the container: relative, with `/` between its parts.
    pub name: String,
    /// Where it is now.
    pub path: PathBuf,
}

/// A file to be packed that lies where only its source can read it, and doesn't change.
#[derive(Clone)]
pub struct SetFile {
    /// Its name, length, permissions and time in the container.
    pub entry: FileEntry,
    /// Its bytes, as many as `entry` says.
    pub source: Arc<dyn Source + Send + Sync>,
}

/// The files below some paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Regular files by name, and empty folders, whose names end in `/`.
    pub files: Vec<Input>,
    /// Links and special files in folders, which a container doesn't hold.
    pub left_out: Vec<PathBuf>,
}

impl Inputs {
    fn found(&self) -> usize {
        self.files.len() + self.left_out.len()
    }
}

/// How a file's bytes are reached.
enum Bytes {
    Memory(Vec<u8>),
    Open(File),
    /// Opened for every read.
    Closed,
    /// Where only this can read it.
    Elsewhere(Arc<dyn Source + Send + Sync>),
}

/// One file of the set being packed.
pub(crate) struct Member {
    pub(crate) entry: FileEntry,
    /// Where that is known.
    pub(crate) owner: Option<Owner>,
    path: PathBuf,
    /// What tells that the file was changed: its inode, length, and times of modification and status. `None`: it can't be.
    stamp: Option<[i64; 6]>,
    bytes: Bytes,
    /// Ranges of zeros that nobody reads, in what it shows.
    holes: Vec<Extent>,
    /// Its unfolded form, if it shows that.
    unfolded: Option<UnfoldedView>,
}

impl Member {
    pub(crate) fn look_at(input: &Input) -> Result<Self> {
        let metadata = std::fs::metadata(&input.path).map_err(AggregateError::io("look at", &input.path))?;
        let is_folder = metadata.is_dir() && input.name.ends_with('/');
        if !(metadata.is_file() || is_folder) {
            return Err(AggregateError::Invalid(format!("{} is no regular file", input.path.display())));
        }
        let modified_ns =
            metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
        let entry = FileEntry {
            name: input.name.clone(),
            size: if is_folder { 0 } else { metadata.len() },
            mode: metadata.mode() & 0o7777,
            modified_ns,
        };
        let owner = Some(Owner { uid: metadata.uid(), gid: metadata.gid() });
        let (path, stamp) = (input.path.clone(), Some(stamp(&metadata)));
        let may_be_sparse = metadata.is_file() && metadata.blocks() < entry.size / STAT_BLOCK_BYTES;
        let holes = if may_be_sparse {
            let open = || File::open(&path).and_then(|file| holes_of(&file, entry.size));
            open().map_err(AggregateError::io("look for holes in", &path))?
        } else {
            Vec::new()
        };
        Ok(Self { entry, owner, path, stamp, bytes: Bytes::Closed, holes, unfolded: None })
    }

    pub(crate) fn elsewhere(file: &SetFile) -> Result<Self> {
        let (entry, path) = (file.entry.clone(), PathBuf::from(&file.entry.name));
        let bytes = Bytes::Elsewhere(Arc::clone(&file.source));
        let holes = file.source.holes().map_err(AggregateError::io("look for holes in", &path))?;
        Ok(Self { entry, owner: None, path, stamp: None, bytes, holes, unfolded: None })
    }

    /// Ranges of zeros that nobody reads, in order.
    pub(crate) fn holes(&self) -> &[Extent] {
        &self.holes
    }

    /// Lets all holes but the first ones be data; says how many are left.
    pub(crate) fn keep_holes(&mut self, most: usize) -> usize {
        self.holes.truncate(most);
        self.holes.len()
    }

    /// Bytes of the file itself for so many of what it shows.
    pub(crate) fn bytes_behind(&self, shown: u64) -> u64 {
        let Some(view) = &self.unfolded else { return shown };
        scaled(shown, self.entry.size, view.size())
    }

    /// From now on it is what its unfolded form is.
    pub(crate) fn show_unfolded(&mut self, view: UnfoldedView) {
        self.holes = view.moved_holes(&self.holes);
        self.unfolded = Some(view);
    }

    /// Its unfolded form, if it shows that.
    pub(crate) fn unfolded(&self) -> Option<&UnfoldedView> {
        self.unfolded.as_ref()
    }

    /// Whether many small reads are dear.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.bytes, Bytes::Elsewhere(_))
    }

    /// The whole file was read.
    pub(crate) fn is_loaded(&self) -> bool {
        matches!(self.bytes, Bytes::Memory(_))
    }

    /// Reads the whole file, after which the disk is not touched again.
    pub(crate) fn load(&mut self) -> Result<()> {
        let mut bytes = scratch::empty(to_usize(self.entry.size));
        let whole = Extent { offset: 0, length: self.entry.size };
        assert!(self.unfolded.is_none(), "a file is read before it is unfolded");
        self.append_one(whole, &mut bytes).map_err(|error| self.unread(error))?;
        self.bytes = Bytes::Memory(bytes);
        Ok(())
    }

    /// Gives the memory of a file that was read back.
    pub(crate) fn unload(self) {
        if let Bytes::Memory(bytes) = self.bytes {
            scratch::give_back(bytes);
        }
    }

    /// Opens the file for all reads that follow.
    pub(crate) fn keep_open(&mut self) -> Result<()> {
        if let Bytes::Closed = self.bytes {
            self.bytes = Bytes::Open(File::open(&self.path).map_err(AggregateError::io("open", &self.path))?);
        }
        Ok(())
    }

    /// Fails when the file is no longer what it was when it was looked at.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let Some(before) = self.stamp else { return Ok(()) };
        let metadata = std::fs::metadata(&self.path).map_err(AggregateError::io("look at", &self.path))?;
        let same = stamp(&metadata) == before;
        if same { Ok(()) } else { Err(AggregateError::Changed { path: self.path.clone() }) }
    }

    /// Appends the bytes of the ranges to `buffer`.
    pub(crate) fn append(&self, extents: &[Extent], buffer: &mut Vec<u8>) -> Result<()> {
        let mut each = extents.iter();
        each.try_for_each(|extent| self.append_one(*extent, buffer)).map_err(|error| self.unread(error))
    }

    /// Why it can't be read; one that ends too soon was cut after it was looked at.
    pub(crate) fn unread(&self, error: io::Error) -> AggregateError {
        if error.kind() == io::ErrorKind::UnexpectedEof && self.stamp.is_some() {
            return AggregateError::Changed { path: self.path.clone() };
        }
        AggregateError::io("read", &self.path)(error)
    }

    fn append_one(&self, extent: Extent, buffer: &mut Vec<u8>) -> io::Result<()> {
        match &self.unfolded {
            Some(view) => view.append(extent, &|extent, buffer| self.append_as_is(extent, buffer), buffer),
            None => self.append_as_is(extent, buffer),
        }
    }

    /// Appends a range of the file itself.
    fn append_as_is(&self, extent: Extent, buffer: &mut Vec<u8>) -> io::Result<()> {
        let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let narrow = |value: u64| usize::try_from(value).map_err(|_| cut());
        match &self.bytes {
            Bytes::Memory(bytes) => {
                let range = narrow(extent.offset)?..narrow(extent.end())?;
                buffer.extend_from_slice(bytes.get(range).ok_or_else(cut)?);
                Ok(())
            }
            Bytes::Open(file) => append_range(file, extent, buffer),
            Bytes::Closed => append_range(&File::open(&self.path)?, extent, buffer),
            Bytes::Elsewhere(source) => {
                let start = buffer.len();
                buffer.resize(start + narrow(extent.length)?, 0);
                source.read_at(extent.offset, buffer.get_mut(start..).ok_or_else(cut)?)
            }
        }
    }
}

/// The share of `bytes` that a part of `whole` stands for.
pub(crate) fn scaled(part: u64, bytes: u64, whole: u64) -> u64 {
    assert!(part <= whole, "a part is no longer than the whole");
    narrow(u128::from(part) * u128::from(bytes) / u128::from(whole.max(1)))
}

/// Bytes of a block as `st_blocks` counts them.
const STAT_BLOCK_BYTES: u64 = 512;

/// Longest range, in bytes, that is read by one call into memory that is filled first.
const SHORT_MAX: usize = 16 << 10;

/// Appends a range of a file; the memory for a long one is not filled first.
fn append_range(mut file: &File, range: Extent, buffer: &mut Vec<u8>) -> io::Result<()> {
    let length = usize::try_from(range.length).map_err(|_| io::ErrorKind::UnexpectedEof)?;
    if length <= SHORT_MAX {
        let start = buffer.len();
        buffer.resize(start + length, 0);
        return file.read_exact_at(part_mut(buffer, start..), range.offset);
    }
    buffer.reserve(length);
    file.seek(SeekFrom::Start(range.offset))?;
    let read = file.take(range.length).read_to_end(buffer)?;
    if read == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn stamp(metadata: &Metadata) -> [i64; 6] {
    let (inode, size) = (metadata.ino().cast_signed(), metadata.len().cast_signed());
    [inode, size, metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()]
}

impl Source for Member {
    fn size(&self) -> u64 {
        self.unfolded.as_ref().map_or(self.entry.size, UnfoldedView::size)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.unfolded.is_some() {
            let mut bytes = Vec::with_capacity(buffer.len());
            self.append_one(Extent { offset, length: buffer.len() as u64 }, &mut bytes)?;
            buffer.copy_from_slice(&bytes);
            return Ok(());
        }
        match &self.bytes {
            Bytes::Memory(bytes) => bytes.read_at(offset, buffer),
            Bytes::Open(file) => file.read_exact_at(buffer, offset),
            Bytes::Closed => File::open(&self.path)?.read_exact_at(buffer, offset),
            Bytes::Elsewhere(source) => source.read_at(offset, buffer),
        }
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        match &self.bytes {
            Bytes::Memory(bytes) if self.unfolded.is_none() => Some(bytes),
            _ => None,
        }
    }
}

/// A file that stays open, as a source.
pub(crate) struct FileSource {
    file: File,
    size: u64,
}

impl FileSource {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        // To open a pipe waits for a writer, who may never come.
        if !std::fs::metadata(path).map_err(AggregateError::io("open", path))?.is_file() {
            return Err(AggregateError::NoContainer {
                path: path.to_owned(),
                detail: "it is no regular file",
            });
        }
        let file = File::open(path).map_err(AggregateError::io("open", path))?;
        let size = file.metadata().map_err(AggregateError::io("look at", path))?.len();
        Ok(Self { file, size })
    }
}

impl Source for FileSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn holes(&self) -> io::Result<Vec<Extent>> {
        holes_of(&self.file, self.size)
    }
}

/// The inputs for files and folders: files by their own name, folders by the paths below them. Files in folders that another
/// process is still making, or left unfinished, are none.
///
/// # Errors
/// When a path can't be looked at, or two files would have the same name.
pub fn inputs_of(paths: &[PathBuf]) -> Result<Inputs> {
    let mut inputs = Inputs::default();
    for path in paths {
        let metadata = std::fs::metadata(path).map_err(AggregateError::io("look at", path))?;
        if metadata.is_dir() {
            let entries = std::fs::read_dir(path).map_err(AggregateError::io("list", path))?;
            folder(path, entries, "", &mut inputs)?;
        } else {
            let unnamed = || AggregateError::Invalid(format!("{} has no name of its own", path.display()));
            let name = path.file_name().map(text_of_name).ok_or_else(unnamed)?;
            inputs.files.push(Input { name, path: path.clone() });
        }
    }
    inputs.files.sort_by(|one, other| one.name.cmp(&other.name));
    inputs.left_out.sort();
    let twice = inputs.files.windows(2).find_map(|pair| match pair {
        [one, other] if one.name == other.name => Some(one.name.clone()),
        _ => None,
    });
    match twice {
        Some(name) => {
            Err(AggregateError::Invalid(format!("two files would be called '{name}'; pack their folder")))
        }
        None => Ok(inputs),
    }
}

/// None of what has gone since its folder was listed: programs remove what they wrote before.
fn unless_gone<T>(found: io::Result<T>, action: &'static str, path: &Path) -> Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(AggregateError::io(action, path)),
    }
}

fn folder(path: &Path, entries: ReadDir, prefix: &str, inputs: &mut Inputs) -> Result<()> {
    for entry in entries {
        let Some(entry) = unless_gone(entry, "list", path)? else { continue };
        let path = entry.path();
        let Some(kind) = unless_gone(entry.file_type(), "look at", &path)? else { continue };
        let name = format!("{prefix}{}", text_of_name(&entry.file_name()));
        if kind.is_dir() {
            let Some(entries) = unless_gone(std::fs::read_dir(&path), "list", &path)? else { continue };
            let (name, before) = (format!("{name}/"), inputs.found());
            folder(&path, entries, &name, inputs)?;
            if inputs.found() == before {
                inputs.files.push(Input { name, path });
            }
        } else if kind.is_file() {
            // What is on its way to another name, or was left on it, is no content yet.
            if entry.file_name().to_str().is_none_or(|name| prefix_of_part(name).is_none()) {
                inputs.files.push(Input { name, path });
            }
        } else {
            inputs.left_out.push(path);
        }
    }
    Ok(())
}
