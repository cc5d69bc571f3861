//! `stdchk run` on an MPI program that asks for its checkpoints itself, through the library's own call.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use stdchk_tests::{Outcome, outcome, wait_until};

use crate::files::{files, job_is_gone, json, stdchk};

/// The program, linked as a user links it.
struct Program {
    directory: tempfile::TempDir,
}

impl Program {
    fn build() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (library, program) = (directory.path().join("libstdchk.so"), directory.path().join("ranks"));
        let source = crates.join("preload/c/stdchk.c");
        succeed(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source));
        let mut compiler = Command::new("mpicc.openmpi");
        compiler.arg("-I").arg(crates.join("preload/include")).args(["-O1", "-Wall", "-o"]).arg(program);
        compiler.arg(crates.join("cli/tests/programs/ranks.c")).arg(&library);
        succeed(compiler.arg(format!("-Wl,-rpath,{}", directory.path().display())));
        Self { directory }
    }

    /// Four ranks, also as root, on fewer cores and without a network. What Open MPI keeps for itself lies outside of
    /// the protected tree.
    fn script(&self, kill_at: u32) -> String {
        let beside = self.directory.path().display();
        format!(
            "export DRIVER=$PPID TMPDIR={beside} OMPI_MCA_btl_vader_backing_directory={beside}
             export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm=isolated
             export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
             export OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none
             export OMPI_MCA_mpi_yield_when_idle=1
             exec mpirun.openmpi -n 4 {beside}/ranks {kill_at}"
        )
    }

    fn run(&self, root: &Path, flags: &[&str], kill_at: u32) -> Outcome {
        let script = self.script(kill_at);
        outcome(stdchk(root, &[&["run"], flags, &["--", "sh", "-c", &script]].concat()))
    }
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn labels(root: &Path) -> Vec<String> {
    let log = json(root, &["files", "log", "--json"]);
    let entries = log["checkpoints"].as_array().unwrap();
    entries.iter().map(|entry| entry["label"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn ranks_that_are_killed_between_checkpoints_of_their_own_leave_the_files_of_an_uninterrupted_run() {
    let program = Program::build();
    let (whole, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    const NEVER: u32 = 0;
    succeed(Command::new("sh").args(["-c", &program.script(NEVER)]).current_dir(whole.path()));
    for (kill_at, flags, from) in [(5, &[][..], 0), (8, &["--resume"], 3), (10, &["--resume"], 6)] {
        let killed = program.run(broken.path(), flags, kill_at);
        assert!(killed.code != 0 && killed.text().contains(&format!("from step {from}\n")), "{killed:?}");
        wait_until("the job is gone", || job_is_gone(broken.path()));
    }
    let ended = program.run(broken.path(), &["--resume"], NEVER);
    assert!(ended.code == 0 && ended.text().contains("from step 9\n"), "{ended:?}");
    assert_eq!(labels(broken.path()), ["start", "program", "program", "program", "program", "end"]);
    let (expected, left) = (files(whole.path()), files(broken.path()));
    assert!(left.keys().eq(expected.keys()), "{:?}", left.keys());
    assert_eq!(left.len(), 4 + 4 + 2, "a log and a field of each rank, the common field, the state");
    let different: Vec<&PathBuf> =
        left.iter().filter(|(path, what)| *what != &expected[*path]).map(|(path, _)| path).collect();
    assert!(different.is_empty(), "{different:?}");
}
