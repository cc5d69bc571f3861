//! Checkpoints from outside. Alone in its process: a signal to the driver reaches every run of that process.

use std::path::Path;
use std::time::Duration;

use crate::support::sh;
use stdchk_filestate::store::Store;

fn seeded() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), "before\n").unwrap();
    root
}

fn labels(root: &Path) -> Vec<String> {
    Store::open(root).unwrap().entries().unwrap().into_iter().map(|entry| entry.label).collect()
}

#[test]
fn checkpoints_come_from_a_timer_and_from_a_signal() {
    let root = seeded();
    let mut run =
        sh(root.path(), "until grep -q timer .stdchk-files/index; do echo $$ >> file; sleep 0.01; done");
    run.every = Some(Duration::from_millis(100));
    run.execute().unwrap();
    assert!(labels(root.path()).iter().any(|label| label == "timer"), "{:?}", labels(root.path()));
    let root = seeded();
    let script = "kill -USR1 $PPID; until grep -q signal .stdchk-files/index; do sleep 0.01; done";
    sh(root.path(), script).execute().unwrap();
    assert!(labels(root.path()).iter().any(|label| label == "signal"), "{:?}", labels(root.path()));
}
