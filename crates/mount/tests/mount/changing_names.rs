//! Names that come to lead elsewhere under a program that knew them: what a name is, times what becomes of it, here or through another
//! mount, times what the program does with it next. Each cell is walked in a pool and in a plain folder and compared.
//!
//! A mount that has seen a name believes for a while what it saw. The cells in which a program may notice, for as long, are those of
//! [`may_be_behind`], which are the table of `docs/SEMANTICS.md`. In all others it sees what a plain folder shows.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, RenameFlags, linkat, renameat_with};

use crate::common::TestPool;

/// What the mounts of this test believe without asking: longer than any cell takes.
const LONG_TTL: Duration = Duration::from_secs(8);

/// What a name leads to before anything happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thing {
    File,
    /// A file that has a second name, `other`.
    TwoNames,
    /// A symbolic link to `target-old`.
    Link,
    /// A symbolic link to the folder `folder-old`, in which lies `inside`.
    LinkToFolder,
    /// A folder in which lies `inside`.
    Folder,
}
const THINGS: [Thing; 5] = [Thing::File, Thing::TwoNames, Thing::Link, Thing::LinkToFolder, Thing::Folder];

/// What becomes of the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// Another thing is renamed onto it; a folder is moved away before.
    Replaced,
    Removed,
    /// It gets another name.
    Moved,
    /// It is removed and made again.
    MadeAnew,
    /// It and another thing exchange their names.
    Exchanged,
    /// It is removed, and a thing of another kind is made.
    OtherKind,
}
const EVENTS: [Event; 6] =
    [Event::Replaced, Event::Removed, Event::Moved, Event::MadeAnew, Event::Exchanged, Event::OtherKind];

/// Through which mount, seen from the program that goes on, and whether it holds the thing open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Here,
    HereWhileOpen,
    Elsewhere,
    ElsewhereWhileOpen,
}
const PLACES: [Place; 4] = [Place::Here, Place::HereWhileOpen, Place::Elsewhere, Place::ElsewhereWhileOpen];

impl Place {
    fn is_elsewhere(self) -> bool {
        matches!(self, Self::Elsewhere | Self::ElsewhereWhileOpen)
    }

    fn is_open(self) -> bool {
        matches!(self, Self::HereWhileOpen | Self::ElsewhereWhileOpen)
    }
}

/// What the program does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Opens it, or what lies in it, and reads.
    Read,
    /// Opens it, or what lies in it, to append.
    Append,
    /// Makes it if it isn't there, empties it, and writes.
    Write,
    MakeFile,
    MakeFolder,
    MakeLink,
    Stat,
    StatLink,
    ReadLink,
    List,
    ListAbove,
    /// Gives it another name beside its own.
    HardLink,
    Rename,
    RenameOnto,
    Remove,
    ChangeMode,
    Truncate,
    /// Makes a file in it.
    MakeBelow,
    /// Reads `other`.
    ReadOther,
    /// Gives `other` one more name.
    LinkOther,
}
const STEPS: [Step; 20] = [
    Step::Read,
    Step::Append,
    Step::Write,
    Step::MakeFile,
    Step::MakeFolder,
    Step::MakeLink,
    Step::Stat,
    Step::StatLink,
    Step::ReadLink,
    Step::List,
    Step::ListAbove,
    Step::HardLink,
    Step::Rename,
    Step::RenameOnto,
    Step::Remove,
    Step::ChangeMode,
    Step::Truncate,
    Step::MakeBelow,
    Step::ReadOther,
    Step::LinkOther,
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cell {
    thing: Thing,
    event: Event,
    place: Place,
    step: Step,
}

/// Whether a program may find the state before the event for as long as the mount believes what it saw.
fn may_be_behind(cell: &Cell) -> bool {
    if !cell.place.is_elsewhere() {
        return false;
    }
    let is_link = matches!(cell.thing, Thing::Link | Thing::LinkToFolder);
    let is_folder = cell.thing == Thing::Folder;
    match cell.step {
        // What `ls` and `stat` show; a link is asked for each time.
        Step::Stat | Step::StatLink | Step::ReadLink | Step::ChangeMode => !is_link,
        Step::ListAbove => true,
        Step::List => !is_link && !is_folder,
        // The way through a folder that was moved, or is none any more, or wasn't one.
        Step::MakeBelow => !is_link,
        Step::Read | Step::Append | Step::Write | Step::Truncate => {
            is_folder && matches!(cell.event, Event::Replaced | Event::Moved | Event::Exchanged)
        }
        _ => (is_folder || cell.event == Event::OtherKind) && !is_link,
    }
}

/// Whether the kernel may still believe that the name leads to a directory: then it refuses to write to it, and nothing of what it did before is left.
fn may_be_refused(cell: &Cell) -> bool {
    cell.place.is_elsewhere()
        && cell.thing == Thing::Folder
        && matches!(cell.event, Event::Removed | Event::OtherKind)
        && matches!(cell.step, Step::Append | Step::Write | Step::Truncate)
}

fn text(of: &str) -> String {
    format!("{of} content\n")
}

/// Makes a thing at `at`, told apart by `age`.
fn make(thing: Thing, at: &Path, age: &str) {
    let beside = |name: &str| at.with_file_name(format!("{name}-{age}"));
    match thing {
        Thing::File => fs::write(at, text(age)).unwrap(),
        Thing::TwoNames => {
            fs::write(at, text(age)).unwrap();
            let other = if age == "old" { at.with_file_name("other") } else { beside("other") };
            fs::hard_link(at, other).unwrap();
        }
        Thing::Link => {
            fs::write(beside("target"), text(age)).unwrap();
            symlink(beside("target").file_name().unwrap(), at).unwrap();
        }
        Thing::LinkToFolder => {
            fs::create_dir(beside("folder")).unwrap();
            fs::write(beside("folder").join("inside"), text(age)).unwrap();
            symlink(beside("folder").file_name().unwrap(), at).unwrap();
        }
        Thing::Folder => {
            fs::create_dir(at).unwrap();
            fs::write(at.join("inside"), text(age)).unwrap();
        }
    }
}

fn remove(thing: Thing, at: &Path) {
    match thing {
        Thing::Folder => fs::remove_dir_all(at).unwrap(),
        _ => fs::remove_file(at).unwrap(),
    }
}

/// Looks at everything, so that the mount knows it.
fn look(folder: &Path) -> Option<()> {
    for entry in fs::read_dir(folder).ok()? {
        let path = entry.ok()?.path();
        let _ = (fs::symlink_metadata(&path), fs::metadata(&path), fs::read(&path), fs::read_link(&path));
        let below: Vec<_> = fs::read_dir(&path).into_iter().flatten().flatten().collect();
        below.iter().for_each(|entry| drop(fs::read(entry.path())));
    }
    Some(())
}

fn happen(cell: &Cell, folder: &Path) {
    let (name, fresh) = (folder.join("name"), folder.join("fresh"));
    match cell.event {
        Event::Replaced => {
            make(cell.thing, &fresh, "new");
            if cell.thing == Thing::Folder {
                fs::rename(&name, folder.join("aside")).unwrap();
            }
            fs::rename(&fresh, &name).unwrap();
        }
        Event::Removed => remove(cell.thing, &name),
        Event::Moved => fs::rename(&name, folder.join("moved")).unwrap(),
        Event::MadeAnew => {
            remove(cell.thing, &name);
            make(cell.thing, &name, "new");
        }
        Event::Exchanged => {
            make(cell.thing, &fresh, "new");
            renameat_with(CWD, &fresh, CWD, &name, RenameFlags::EXCHANGE).unwrap();
        }
        Event::OtherKind => {
            remove(cell.thing, &name);
            let other = match cell.thing {
                Thing::File | Thing::TwoNames => Thing::LinkToFolder,
                Thing::Link => Thing::Folder,
                Thing::LinkToFolder => Thing::File,
                Thing::Folder => Thing::Link,
            };
            make(other, &name, "new");
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

fn shown(about: &fs::Metadata) -> String {
    let size = if about.is_file() { about.len() } else { 0 };
    let links = if about.is_dir() { 0 } else { about.nlink() };
    format!("{:?} of {size} bytes, {links} names", about.file_type())
}

fn names(folder: &Path) -> io::Result<String> {
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().into_string().unwrap()));
    let mut names = entries.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names.join(" "))
}

/// What the program finds.
fn go_on(step: Step, folder: &Path) -> String {
    let (name, second) = (folder.join("name"), folder.join("second"));
    // The thing itself, or the file that lies in it.
    let inner = |open: &dyn Fn(&Path) -> io::Result<File>| match open(&name) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => open(&name.join("inside")),
        opened => opened,
    };
    let write = |mut file: File| file.write_all(b"written").map(|()| "written".to_owned());
    let done = |result: io::Result<()>| result.map(|()| "done".to_owned());
    let found = match step {
        Step::Read => match read(&name) {
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => read(&name.join("inside")),
            text => text,
        },
        Step::Append => inner(&|path| File::options().append(true).open(path)).and_then(write),
        Step::Write => inner(&|path| File::create(path)).and_then(write),
        Step::MakeFile => File::create_new(&name).and_then(write),
        Step::MakeFolder => done(fs::create_dir(&name)),
        Step::MakeLink => done(symlink("target-old", &name)),
        Step::Stat => fs::metadata(&name).map(|about| shown(&about)),
        Step::StatLink => fs::symlink_metadata(&name).map(|about| shown(&about)),
        Step::ReadLink => fs::read_link(&name).map(|target| target.display().to_string()),
        Step::List => names(&name),
        Step::ListAbove => names(folder),
        Step::HardLink => done(fs::hard_link(&name, &second)),
        Step::Rename => done(fs::rename(&name, &second)),
        Step::RenameOnto => {
            fs::write(&second, "replacement").unwrap();
            done(fs::rename(&second, &name))
        }
        Step::Remove => done(fs::remove_file(&name)),
        Step::ChangeMode => done(fs::set_permissions(&name, fs::Permissions::from_mode(0o710))),
        Step::Truncate => {
            done(inner(&|path| File::options().write(true).open(path)).and_then(|file| file.set_len(3)))
        }
        Step::MakeBelow => File::create_new(name.join("below")).and_then(write),
        Step::ReadOther => read(&folder.join("other")),
        Step::LinkOther => done(fs::hard_link(folder.join("other"), &second)),
    };
    found.unwrap_or_else(|error| format!("error {:?}", error.raw_os_error()))
}

/// All that is in a folder.
fn content(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        let what = match () {
            () if about.is_dir() => content(&path).join("; "),
            () if about.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
            () => fs::read_to_string(&path).unwrap(),
        };
        let mode = if about.is_symlink() { 0 } else { about.mode() & 0o777 };
        all.push(format!("{:?}: {mode:o} {} [{what}]", path.file_name().unwrap(), shown(&about)));
    }
    all.sort();
    all
}

/// Walks a cell; `here` and `there` are the same folder. What the program found.
fn walk(cell: &Cell, here: &Path, there: &Path, happens: bool) -> String {
    fs::create_dir(here).unwrap();
    make(cell.thing, &here.join("name"), "old");
    if cell.thing != Thing::TwoNames {
        fs::write(here.join("other"), text("other")).unwrap();
    }
    look(there).unwrap();
    look(here).unwrap();
    let held = cell
        .place
        .is_open()
        .then(|| [here.join("name"), here.join("other")].map(|path| File::open(path).unwrap()));
    if happens {
        happen(cell, if cell.place.is_elsewhere() { there } else { here });
    }
    let found = go_on(cell.step, here);
    drop(held);
    found
}

/// A number of links is as new as the mount could have it, whatever else it believes.
fn but_for_links(found: &str) -> &str {
    found.split_once(" bytes, ").map_or(found, |(found, _links)| found)
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for thing in THINGS {
        for event in EVENTS {
            // To hold a thing open matters where it has a name more.
            for place in PLACES.into_iter().filter(|place| thing == Thing::TwoNames || !place.is_open()) {
                cells.extend(STEPS.map(|step| Cell { thing, event, place, step }));
            }
        }
    }
    cells
}

#[test]
fn a_name_that_comes_to_lead_elsewhere_is_followed_as_in_a_plain_folder() {
    let pool = TestPool::start(1);
    let mount = || pool.mount_with(|config| config.ttl = LONG_TTL);
    let (one, other, plain) = (mount(), mount(), tempfile::tempdir().unwrap());
    let mut wrong = Vec::new();
    let mut behind = 0;
    for (number, cell) in cells().iter().enumerate() {
        let folder = number.to_string();
        let expected = walk(cell, &plain.path().join(&folder), &plain.path().join(&folder), true);
        let found = walk(cell, &one.at(&folder), &other.at(&folder), true);
        if found == expected || may_be_refused(cell) && found.starts_with("error") {
            continue;
        }
        let before = plain.path().join(format!("{folder}-before"));
        let unchanged = walk(cell, &before, &before, false);
        match may_be_behind(cell) && but_for_links(&found) == but_for_links(&unchanged) {
            true => behind += 1,
            false => wrong.push(format!("{cell:?}: {found}, not {expected}")),
        }
    }
    // What it left, seen by a mount that knows nothing.
    let fresh = mount();
    for (number, cell) in
        cells().iter().enumerate().filter(|(_, cell)| !may_be_behind(cell) && !may_be_refused(cell))
    {
        let (left, expected) =
            (content(&fresh.at(&number.to_string())), content(&plain.path().join(number.to_string())));
        if left != expected {
            wrong.push(format!("{cell:?}: left {left:#?}, not {expected:#?}"));
        }
    }
    println!("{} cells, {behind} behind", cells().len());
    assert!(wrong.is_empty(), "{} cells are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_link_that_is_replaced_all_the_time_can_always_be_followed() {
    let pool = TestPool::start(1);
    let mount = || pool.mount_with(|config| config.ttl = LONG_TTL);
    let (one, other) = (mount(), mount());
    for name in ["a", "b"] {
        fs::create_dir(one.at(name)).unwrap();
        fs::write(one.at(name).join("file"), name).unwrap();
    }
    let replace = |round: usize| {
        symlink(["a", "b"][round % 2], one.at("fresh")).unwrap();
        fs::rename(one.at("fresh"), one.at("latest")).unwrap();
    };
    replace(0);
    let ends = AtomicBool::new(false);
    let (replaced, read) = std::thread::scope(|scope| {
        let readers = [&one, &other].map(|mount| {
            let (path, ends) = (mount.at("latest/file"), &ends);
            scope.spawn(move || {
                let mut reads = 0;
                while !ends.load(Ordering::Acquire) {
                    let found = read(&path).unwrap();
                    assert!(found == "a" || found == "b", "{found}");
                    reads += 1;
                }
                reads
            })
        });
        let (begun, mut round) = (Instant::now(), 1);
        while begun.elapsed() < Duration::from_secs(3) {
            replace(round);
            round += 1;
        }
        ends.store(true, Ordering::Release);
        (round, readers.map(|reader| reader.join().unwrap()))
    });
    assert!(replaced > 100 && read.iter().all(|reads| *reads > 100), "{replaced} replaced, {read:?} read");
    for round in replaced..replaced + 20 {
        replace(round);
        assert_eq!(read_at(&other.at("latest/file")), ["a", "b"][round % 2]);
    }
}

fn read_at(path: &Path) -> String {
    read(path).unwrap()
}

#[test]
fn what_a_program_holds_is_found_whatever_became_of_its_names() {
    let pool = TestPool::start(1);
    let mount = || pool.mount_with(|config| config.ttl = LONG_TTL);
    let (one, other) = (mount(), mount());
    fs::create_dir(one.at("folder")).unwrap();
    fs::write(one.at("folder/file"), "content").unwrap();
    look(&one.path);
    look(&other.path);
    let (file, folder) = (File::open(one.at("folder/file")).unwrap(), File::open(one.at("folder")).unwrap());
    fs::rename(other.at("folder/file"), other.at("folder/renamed")).unwrap();
    fs::rename(other.at("folder"), other.at("moved")).unwrap();
    let held = |of: &File| format!("/proc/self/fd/{}", of.as_raw_fd());
    linkat(CWD, held(&file), &folder, "linked", AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(names(Path::new(&held(&folder))).unwrap(), "linked renamed");
    assert_eq!(read_at(&other.at("moved/linked")), "content");
}
