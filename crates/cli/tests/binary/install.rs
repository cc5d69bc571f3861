//! `scripts/install`: what it installs is all that a user needs to run programs under `stdchk run`, and to write programs
//! in C, Fortran and Python that take their checkpoints themselves.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use stdchk_tests::{binary, preload_library};

/// An installation of the build that this test belongs to, in a directory of its own.
struct Installation {
    home: tempfile::TempDir,
}

impl Installation {
    fn make() -> Self {
        let home = tempfile::tempdir().unwrap();
        let built = home.path().join("built");
        std::fs::create_dir(&built).unwrap();
        symlink(binary(), built.join("stdchk")).unwrap();
        symlink(preload_library(), built.join("libstdchk_preload.so")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
        let installation = Self { home };
        succeed(Command::new(script).arg(installation.prefix()).arg("--from").arg(&built));
        installation
    }

    fn prefix(&self) -> PathBuf {
        self.home.path().join("prefix")
    }

    /// A program of `tests/programs`, compiled and linked as a user does it.
    fn compile(&self, compiler: &str, sources: &[PathBuf], linking: &[&str]) -> PathBuf {
        let (prefix, program) = (self.prefix(), self.home.path().join(format!("program-{compiler}")));
        let mut command = Command::new(compiler);
        command.current_dir(self.home.path()).arg("-Wall").arg("-o").arg(&program).args(sources);
        command.arg("-I").arg(prefix.join("include")).arg("-L").arg(prefix.join("lib")).args(linking);
        succeed(command.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display())));
        program
    }

    /// What the command prints, alone and under `stdchk run`.
    fn both_ways(&self, command: &[&Path]) -> [String; 2] {
        let stdchk = self.prefix().join("bin/stdchk");
        let under_run = [stdchk.as_path(), Path::new("run"), Path::new("--")];
        [&[][..], &under_run[..]].map(|before| {
            let words = [before, command].concat();
            let root = tempfile::tempdir().unwrap();
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).current_dir(root.path()).stdin(Stdio::null());
            command.env("PYTHONPATH", self.prefix().join("lib/stdchk/python")).env_remove("STDCHK_PRELOAD");
            String::from_utf8(succeed(&mut command).stdout).unwrap()
        })
    }
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// Alone the calls do nothing; under `stdchk run` the second line and the other file are gone again.
const EXPECTED: [&str; 2] = ["F 8 T\n", "T 4 F\n"];

#[test]
fn programs_in_c_fortran_and_python_take_checkpoints_with_what_is_installed() {
    let installation = Installation::make();
    let in_c = installation.compile("cc", &[source("calls.c")], &["-lstdchk"]);
    assert_eq!(installation.both_ways(&[&in_c]), EXPECTED);
    let module = installation.prefix().join("include/stdchk.f90");
    let in_fortran = installation.compile("gfortran", &[module, source("calls.f90")], &["-lstdchk"]);
    assert_eq!(installation.both_ways(&[&in_fortran]), EXPECTED);
    assert_eq!(installation.both_ways(&[Path::new("python3"), &source("calls.py")]), EXPECTED);
}

#[test]
fn what_was_not_built_is_not_installed() {
    let home = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
    let ended = Command::new(script).arg(home.path().join("prefix")).arg("--from").arg(home.path()).output();
    let ended = ended.unwrap();
    assert!(!ended.status.success());
    assert!(String::from_utf8_lossy(&ended.stderr).contains("make build"), "{ended:?}");
    assert!(!home.path().join("prefix").exists());
}
