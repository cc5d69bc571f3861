//! Runs through the driver: what starts, what is refused, what is left after each kind of end, and checkpoints from
//! outside.

use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::{sh, tree};
use stdchk_filestate::driver::{self, Outcome, Run, Start};
use stdchk_filestate::store::{Mode, Options, Store};
use stdchk_filestate::trigger::{Event, Trigger};
use stdchk_filestate::{Error, history, restore};

fn seeded() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), "before\n").unwrap();
    root
}

fn renamed(pattern: &str) -> Trigger {
    Trigger { event: Event::Renamed, pattern: pattern.into() }
}

fn labels(root: &Path) -> Vec<String> {
    Store::open(root).unwrap().entries().unwrap().into_iter().map(|entry| entry.label).collect()
}

fn refusal(result: Result<Outcome, Error>) -> String {
    match result {
        Err(error) => error.to_string(),
        Ok(outcome) => panic!("it ran: {outcome:?}"),
    }
}

#[test]
fn a_run_that_ends_by_itself_leaves_its_files_and_can_be_taken_back() {
    let root = seeded();
    let before = tree(root.path());
    let outcome = sh(root.path(), "echo more >> file; mv file moved").execute().unwrap();
    assert_eq!((outcome.status.code(), outcome.rolled_back, outcome.notes), (Some(0), None, Vec::new()));
    assert_eq!(labels(root.path()), ["start", "end"]);
    let changes = history::changes(&Store::open(root.path()).unwrap(), 0, Some(1)).unwrap();
    assert!(
        changes[b"file".as_slice()].written
            && changes[b"file".as_slice()].moved_to == Some(b"moved".to_vec())
    );
    driver::restore_files(root.path(), Some(0)).unwrap();
    assert_eq!(tree(root.path()), before);
}

#[test]
fn a_run_that_fails_has_not_ended_and_goes_on_from_its_last_checkpoint() {
    let root = seeded();
    let outcome = sh(root.path(), "echo lost >> file; exit 3").execute().unwrap();
    assert_eq!((outcome.status.code(), labels(root.path())), (Some(3), vec!["start".to_owned()]));
    assert!(refusal(sh(root.path(), "true").execute()).contains("--resume"));
    let mut resumed = sh(root.path(), "true");
    resumed.start = Start::Resume(None);
    resumed.execute().unwrap();
    assert_eq!(std::fs::read_to_string(root.path().join("file")).unwrap(), "before\n");
}

#[test]
fn the_newest_checkpoints_are_kept_and_the_files_deleted_before_them_are_not() {
    let root = seeded();
    let script = "for step in 1 2 3 4; do echo $step >> file; echo $step > scratch; echo $step > part.new
                  mv part.new part; rm scratch; done";
    let mut run = sh(root.path(), script);
    run.options =
        Options { triggers: vec![renamed("part")], keep: NonZeroUsize::new(2), ..Options::default() };
    run.execute().unwrap();
    assert_eq!(labels(root.path()), ["renamed to part", "end"]);
    let kept = std::fs::read_dir(root.path().join(".stdchk-files/kept")).unwrap();
    assert!(kept.count() <= 2, "what later checkpoints do not need is gone");
    driver::restore_files(root.path(), Some(4)).unwrap();
    assert_eq!(std::fs::read_to_string(root.path().join("file")).unwrap(), "before\n1\n2\n3\n4\n");
    assert_eq!(std::fs::read_to_string(root.path().join("scratch")).unwrap(), "4\n");
    assert!(matches!(driver::restore_files(root.path(), Some(1)), Err(Error::NoSuchIndex { .. })));
}

#[test]
fn a_child_that_cannot_be_watched_is_told_of() {
    let root = seeded();
    let foreign = setuid_program(root.path());
    let outcome = sh(root.path(), &format!("{} < /dev/null; true", foreign.display())).execute().unwrap();
    assert!(outcome.notes.iter().any(|note| note.contains("setuid")), "{:?}", outcome.notes);
}

/// A C program with the note that Go's linker leaves: what a Go program with C parts looks like from outside.
#[test]
fn a_child_in_go_is_told_of_though_it_is_linked_dynamically() {
    let root = seeded();
    let source = root.path().join("cgo.c");
    let note = r#".pushsection .note.go.buildid,\"a\",@note; .long 4,4,4; .ascii \"Go\\0\\0\"; .long 1; .popsection"#;
    std::fs::write(&source, format!("__asm__(\"{note}\"); int main(void) {{ return 0; }}\n")).unwrap();
    let binary = root.path().join("cgo");
    assert!(Command::new("cc").arg("-o").arg(&binary).arg(&source).status().unwrap().success());
    let outcome = sh(root.path(), "./cgo; true").execute().unwrap();
    assert!(outcome.notes.iter().any(|note| note.contains("Go program")), "{:?}", outcome.notes);
}

#[test]
fn what_a_failed_program_left_running_is_ended_before_its_files_go_back() {
    // One ends when it is asked to, one has to be killed, one is stopped.
    for left in ["exec 9<go", "trap '' TERM; exec 9<go", "sh -c 'kill -STOP $PPID'; exec 9<go"] {
        for mode in [Mode::Single, Mode::Incremental] {
            let root = seeded();
            let before = tree(root.path());
            // The child says that it is there, then appends for as long as it lives.
            let child = format!("({left}) & while :; do echo late >> file; echo late > new; done");
            let script = format!(
                "mkfifo go; ({child}) > /dev/null 2>&1 & while ! [ -e new ]; do :; done; kill -KILL $$"
            );
            let mut run = sh(root.path(), &script);
            run.options = Options { mode, ..Options::default() };
            let outcome = run.execute().unwrap();
            assert!(outcome.rolled_back.is_some());
            assert!(outcome.notes.iter().any(|note| note.contains("left behind")), "{:?}", outcome.notes);
            let after = tree(root.path());
            assert_eq!(after, before, "{left}");
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(tree(root.path()), after, "nobody writes any more");
        }
    }
}

#[test]
fn processes_that_outlive_their_driver_are_not_rolled_back_under_their_feet() {
    let root = seeded();
    // Stays until its pipe is closed, and holds no other descriptor of the run.
    sh(root.path(), "mkfifo go; (read line < go; echo late >> file) > /dev/null 2>&1 & sleep 0.1")
        .execute()
        .unwrap();
    let refused = driver::restore_files(root.path(), Some(0)).unwrap_err().to_string();
    assert!(refused.contains("still runs"), "{refused}");
    assert!(refusal(sh(root.path(), "true").execute()).contains("still runs"));
    std::fs::write(root.path().join("go"), "go\n").unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(180);
    while driver::restore_files(root.path(), Some(0)).is_err() {
        assert!(std::time::Instant::now() < deadline, "the process ends");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(std::fs::read_to_string(root.path().join("file")).unwrap(), "before\n");
}

#[test]
fn what_moves_across_the_border_of_the_tree_is_copied() {
    let root = seeded();
    let outside = tempfile::tempdir_in(root.path().parent().unwrap()).unwrap();
    let before = tree(root.path());
    let script = format!(
        "mkdir d; echo x > d/x; mv d '{0}'/moved; mv '{0}'/moved e; cat e/x",
        outside.path().display()
    );
    sh(root.path(), &script).execute().unwrap();
    assert_eq!(std::fs::read_to_string(root.path().join("e/x")).unwrap(), "x\n");
    driver::restore_files(root.path(), Some(0)).unwrap();
    assert_eq!(tree(root.path()), before);
}

#[test]
fn a_killed_run_in_single_mode_leaves_the_files_of_its_last_checkpoint() {
    for mode in [Mode::Single, Mode::Incremental] {
        let root = seeded();
        let before = tree(root.path());
        let mut run = sh(root.path(), "echo lost >> file; echo x > new; kill -9 $$");
        run.options.mode = mode;
        let outcome = run.execute().unwrap();
        assert!(outcome.rolled_back.is_some());
        assert_eq!(tree(root.path()), before);
    }
}

#[test]
fn a_killed_run_is_refused_a_fresh_start_and_can_be_resumed_or_discarded() {
    let root = seeded();
    let script = "echo kept >> file; echo x > part.new; mv part.new part; echo lost >> file; kill -9 $$";
    let mut run = sh(root.path(), script);
    run.options.triggers = vec![renamed("part")];
    let outcome = run.execute().unwrap();
    assert_eq!(outcome.rolled_back, None);
    assert!(
        std::fs::read_to_string(root.path().join("file")).unwrap().ends_with("lost\n"),
        "users saw it grow"
    );
    assert_eq!(labels(root.path()), ["start", "renamed to part"]);
    assert!(refusal(sh(root.path(), "true").execute()).contains("--resume"));
    let mut resumed = sh(root.path(), "cat file > seen; echo again >> file");
    resumed.start = Start::Resume(None);
    resumed.execute().unwrap();
    assert_eq!(std::fs::read_to_string(root.path().join("seen")).unwrap(), "before\nkept\n");
    assert_eq!(std::fs::read_to_string(root.path().join("file")).unwrap(), "before\nkept\nagain\n");
    assert_eq!(labels(root.path()), ["start", "renamed to part", "end"]);
    sh(root.path(), "kill -9 $$").execute().unwrap();
    driver::discard(root.path()).unwrap();
    sh(root.path(), "true").execute().unwrap();
}

#[test]
fn three_kills_and_restarts_give_the_files_of_an_uninterrupted_run() {
    // A simulation that checkpoints its step number and resumes from it, with a log, a trajectory and a scratch file.
    let job = |kill: &str| {
        format!(
            "step=$(cat state 2>/dev/null || echo 0)
             while [ $step -lt 12 ]; do step=$((step + 1)); echo \"step $step\" >> log; echo $step >> trajectory
             rm -f scratch; echo $step > scratch
             if [ $((step % 3)) = 0 ]; then echo $step > state.new; mv state.new state; fi
             {kill}; done; echo done >> results"
        )
    };
    let (whole, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    sh(whole.path(), &job("true")).execute().unwrap();
    let mut run = sh(broken.path(), &job("test $step != 5 || kill -9 $$"));
    run.options.triggers = vec![renamed("state")];
    run.execute().unwrap();
    for kill in ["test $step != 8 || kill -9 $$", "test $step != 10 || kill -9 $$", "true"] {
        let mut again = sh(broken.path(), &job(kill));
        again.start = Start::Resume(None);
        again.execute().unwrap();
    }
    assert_eq!(tree(broken.path()), tree(whole.path()));
}

#[test]
fn programs_that_cannot_be_watched_are_refused_before_they_start() {
    let root = seeded();
    let source = root.path().join("static.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let binary = root.path().join("static");
    let built = Command::new("cc").arg("-static").arg("-o").arg(&binary).arg(&source).status().unwrap();
    assert!(built.success());
    let with = |program: &Path| Run { command: vec![program.into()], ..sh(root.path(), "") };
    assert!(refusal(with(&binary).execute()).contains("statically linked"));
    let script = root.path().join("script");
    std::fs::write(&script, format!("#!{}\n", binary.display())).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    assert!(refusal(with(&script).execute()).contains("statically linked"));
    let foreign = setuid_program(root.path());
    assert!(refusal(with(&foreign).execute()).contains("setuid"));
    assert!(!Store::exists(root.path()), "nothing was begun");
}

/// A program that would run as somebody else.
fn setuid_program(directory: &Path) -> std::path::PathBuf {
    if !rustix::process::geteuid().is_root() {
        return "/usr/bin/passwd".into();
    }
    let copy = directory.join("setuid");
    std::fs::copy("/bin/true", &copy).unwrap();
    std::os::unix::fs::chown(&copy, Some(65534), None).unwrap();
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o4755)).unwrap();
    copy
}

#[test]
fn two_runs_do_not_share_a_tree() {
    let root = seeded();
    let inner = sh(root.path(), "true");
    let outer = sh(root.path(), "mkfifo go; read line < go");
    std::thread::scope(|scope| {
        let running = scope.spawn(|| outer.execute().unwrap());
        while !root.path().join("go").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(refusal(inner.execute()).contains("another run"));
        std::fs::write(root.path().join("go"), "go\n").unwrap();
        running.join().unwrap();
    });
}

#[test]
fn files_that_were_replaced_or_removed_by_hand_are_told_of_and_the_others_go_back() {
    let root = seeded();
    let at = |name: &str| root.path().join(name);
    for name in ["log", "result", "table"] {
        std::fs::write(at(name), "before\n").unwrap();
    }
    let script =
        "for name in file log result; do echo more >> $name; done; mv result moved; mv table old.table
                  echo x > scratch; sh -c 'echo y >> scratch'; rm scratch; kill -9 $$";
    sh(root.path(), script).execute().unwrap();
    // As `sed -i` and editors do, and what somebody does who needs room.
    std::fs::write(at("log.new"), "by hand\n").unwrap();
    std::fs::rename(at("log.new"), at("log")).unwrap();
    std::fs::remove_file(at("moved")).unwrap();
    std::fs::rename(at("old.table"), at("old")).unwrap();
    let done = driver::restore_files(root.path(), Some(0)).unwrap();
    assert_eq!(done.astray, [b"log".to_vec(), b"result".to_vec(), b"table".to_vec()]);
    assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "before\n");
    assert_eq!(std::fs::read_to_string(at("log")).unwrap(), "by hand\n");
    assert!(done.complaints()[0].starts_with("log is not as at checkpoint 0"), "{:?}", done.complaints());
}

/// A job that makes directories, moves files into them and deletes some; and a user who then puts files of theirs among them.
fn mixed() -> tempfile::TempDir {
    let root = seeded();
    let at = |name: &str| root.path().join(name);
    for name in ["log", "state", "table"] {
        std::fs::write(at(name), "before\n").unwrap();
    }
    let script = "mkdir new new/deep; mv log new/log; echo x > new/deep/x; rm state; mv table moved
                  mkdir own; echo x > own/x; echo more >> file; kill -9 $$";
    sh(root.path(), script).execute().unwrap();
    for (name, contents) in
        [("log.new", "log by hand"), ("state", "state by hand"), ("new/deep/notes", "notes")]
    {
        std::fs::write(at(name), contents).unwrap();
    }
    std::fs::rename(at("log.new"), at("new/log")).unwrap();
    root
}

/// The files of [`mixed`] as they are after going back, and what is said of them.
fn assert_mixed_is_taken_back(root: &Path, done: &stdchk_filestate::restore::Summary) {
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    assert_eq!((read("new/log"), read("new/deep/notes")), ("log by hand".to_owned(), "notes".to_owned()));
    assert_eq!((read("state"), read("state.by-hand")), ("before\n".to_owned(), "state by hand".to_owned()));
    assert_eq!((read("file"), read("table")), ("before\n".to_owned(), "before\n".to_owned()));
    let gone = ["own", "new/deep/x", "moved", "log"];
    assert_eq!(gone.iter().find(|name| root.join(name).exists()), None);
    assert_eq!(done.astray, [b"log".to_vec()]);
    assert_eq!(done.left, [b"new".to_vec(), b"state.by-hand".to_vec()]);
    let said = done.complaints().join("\n");
    assert!(said.contains("new was not there at checkpoint 0 and stays"), "{said}");
}

#[test]
fn what_somebody_put_among_the_files_of_a_run_is_not_deleted_with_them() {
    let root = mixed();
    assert_mixed_is_taken_back(root.path(), &driver::restore_files(root.path(), Some(0)).unwrap());
}

#[test]
fn a_restore_that_was_cut_off_tells_all_that_it_met_when_it_is_completed() {
    for budget in 0.. {
        let root = mixed();
        let store = Store::open(root.path()).unwrap();
        let records = store.log.scan(0, store.log.len().unwrap()).unwrap().len();
        restore::cut_off(&store, 0, budget, false).unwrap();
        assert_mixed_is_taken_back(root.path(), &driver::restore_files(root.path(), None).unwrap());
        if budget > records {
            break;
        }
    }
}

#[test]
fn what_came_from_outside_the_tree_goes_with_what_it_replaced_put_back() {
    let root = seeded();
    let outside = tempfile::tempdir_in(root.path().parent().unwrap()).unwrap();
    std::fs::create_dir_all(outside.path().join("d/below")).unwrap();
    for name in ["new", "file", "d/below/x"] {
        std::fs::write(outside.path().join(name), "from outside").unwrap();
    }
    let before = tree(root.path());
    let script = format!("cd '{}'; mv new file d '{}'", outside.path().display(), root.path().display());
    sh(root.path(), &script).execute().unwrap();
    assert_eq!(std::fs::read_to_string(root.path().join("d/below/x")).unwrap(), "from outside");
    assert_eq!(std::fs::read_to_string(root.path().join("file")).unwrap(), "from outside");
    let changes = history::changes(&Store::open(root.path()).unwrap(), 0, Some(1)).unwrap();
    assert!(changes[b"d".as_slice()].created && changes[b"new".as_slice()].created);
    let done = driver::restore_files(root.path(), Some(0)).unwrap();
    assert_eq!((tree(root.path()), done.complaints()), (before, Vec::new()));
}

#[test]
fn a_store_that_was_copied_with_its_tree_is_not_gone_back_with() {
    let root = seeded();
    sh(root.path(), "echo more >> file; kill -9 $$").execute().unwrap();
    let copies = tempfile::tempdir().unwrap();
    let copy = copies.path().join("copy");
    assert!(Command::new("cp").arg("-a").arg(root.path()).arg(&copy).status().unwrap().success());
    let before = tree(&copy);
    let mut resumed = sh(&copy, "true");
    resumed.start = Start::Resume(None);
    let restored = driver::restore_files(&copy, None).unwrap_err().to_string();
    for refused in [refusal(resumed.execute()), refusal(sh(&copy, "true").execute()), restored] {
        assert!(refused.contains("copied from") && refused.contains("files discard"), "{refused}");
    }
    driver::discard(&copy).unwrap();
    assert_eq!(tree(&copy), before);
    sh(&copy, "true").execute().unwrap();
    driver::restore_files(root.path(), None).unwrap();
    assert_eq!(std::fs::read_to_string(root.path().join("file")).unwrap(), "before\n");
}

#[test]
fn discarded_checkpoints_take_no_space() {
    let root = seeded();
    sh(root.path(), "rm file; kill -9 $$").execute().unwrap();
    driver::discard(root.path()).unwrap();
    assert!(!root.path().join(".stdchk-files").exists());
    assert!(matches!(driver::discard(root.path()), Err(Error::NoStore { .. })));
    assert!(matches!(driver::restore_files(root.path(), None), Err(Error::NoStore { .. })));
}
