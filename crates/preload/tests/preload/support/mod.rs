//! What the tests of the preload library share: building C programs, and running commands in a directory of their own
//! with and without the library.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use stdchk_filestate::control::Control;
use stdchk_filestate::driver::{Run, Start};
use stdchk_filestate::store::{DIRECTORY, Options, Store};
use stdchk_filestate::{checkpoint, driver, restore};

/// What a tree holds: permissions and contents by path.
pub type Tree = BTreeMap<PathBuf, (u32, String)>;

/// A fresh run of a shell script in `root`.
pub fn sh(root: &Path, script: &str) -> Run {
    let script = format!("cd '{}'; {script}", root.display());
    let command = ["sh", "-c", &script].map(OsString::from).to_vec();
    Run {
        root: root.into(),
        options: Options::default(),
        start: Start::Fresh,
        every: None,
        command,
        environment: Vec::new(),
        tell: |_| {},
    }
}

/// The tree below `root`, the store left out.
pub fn tree(root: &Path) -> Tree {
    let (mut tree, mut to_visit) = (Tree::new(), vec![root.to_owned()]);
    while let Some(directory) = to_visit.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(DIRECTORY) {
                continue;
            }
            let about = path.symlink_metadata().unwrap();
            let contents = if about.is_dir() {
                to_visit.push(path.clone());
                Vec::new()
            } else if about.is_symlink() {
                std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
            } else {
                std::fs::read(&path).unwrap()
            };
            let shown = match std::str::from_utf8(&contents) {
                Ok(text) if text.len() < 200 => text.to_owned(),
                _ => format!("{} bytes, fnv {:x}", contents.len(), fnv(&contents)),
            };
            tree.insert(path.strip_prefix(root).unwrap().into(), (about.permissions().mode(), shown));
        }
    }
    tree
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The preload library that this test run has built.
pub fn library() -> PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().join("libstdchk_preload.so");
    assert!(beside.is_file(), "{} was not built", beside.display());
    beside
}

/// Where built programs go.
fn built() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("programs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn cc(arguments: &[&std::ffi::OsStr]) {
    let output = Command::new("cc").args(arguments).output().expect("a C compiler, `cc`, is needed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The small library with the calls that do nothing.
pub fn small_library() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let build = || {
        let to = built().join("libstdchk.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/stdchk.c");
        cc(&["-shared".as_ref(), "-fPIC".as_ref(), "-o".as_ref(), to.as_ref(), source.as_ref()]);
        to
    };
    BUILT.get_or_init(build).clone()
}

/// Builds `tests/programs/NAME.c`, optimised so that inlined stdio macros occur, and linked with the small library.
pub fn program(name: &str) -> PathBuf {
    // One at a time and each once: a program that is being written cannot be run.
    static DONE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let to = built().join(name);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !done.insert(name.to_owned()) {
        return to;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
    let library = small_library();
    let search = format!("-Wl,-rpath,{}", library.parent().unwrap().display());
    cc(&[
        "-O2".as_ref(),
        "-Wall".as_ref(),
        "-Wno-unused-result".as_ref(),
        "-pthread".as_ref(),
        "-o".as_ref(),
        to.as_ref(),
        source.as_ref(),
        library.as_ref(),
        search.as_ref(),
    ]);
    to
}

/// A protected tree with a store, as the driver makes it.
pub struct Protected {
    /// The tree.
    pub root: PathBuf,
    /// The store in it.
    pub store: Store,
    /// The page of the run.
    pub control: Control,
}

impl Protected {
    /// Protects `root` from its present state on.
    pub fn new(root: &Path, options: &Options) -> Self {
        let root = root.canonicalize().unwrap();
        let store = Store::create(&root, options).unwrap();
        let control = Control::open(&store).unwrap();
        checkpoint::take(&store, &control, "start").unwrap();
        Self { root, store, control }
    }

    /// A command in the tree under the library.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = plain(&self.root, program);
        command.env("LD_PRELOAD", library()).env(driver::ROOT_VARIABLE, &self.root);
        command
    }

    /// Takes a checkpoint from outside.
    pub fn checkpoint(&self) -> u64 {
        checkpoint::take(&self.store, &self.control, "outside").unwrap()
    }

    /// Goes back to `index`.
    pub fn restore(&self, index: u64) {
        restore::in_run(&self.store, &self.control, Some(index)).unwrap();
    }
}

/// A command in `directory` without the library.
pub fn plain(directory: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory).env("LC_ALL", "C").env("HOME", directory).env("TZ", "UTC");
    command
}

/// Runs a command that must succeed; its standard output.
pub fn succeed(command: &mut Command) -> String {
    let output: Output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}
