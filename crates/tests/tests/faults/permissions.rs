//! Several users of one pool: what each of them may do is the manager's to say, over certificates that are bound to users and through a
//! mount that serves all users of a machine. An adversary asks the manager itself.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::geteuid;
use stdchk_model::message::Asked;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest};
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{Change, ManagerReply, ManagerRequest};
use stdchk_model::{BlockId, ChunkId, ClientId, Durability, ErrorCode, Failure, Ino, OpId, SessionId, User};
use stdchk_net::{Authority, BufferPool, Bytes, CallError, Connection, Identity, Keys};
use stdchk_tests::{
    Mount, Outcome, Pool, Process, command, has_all_copies, outcome, random_bytes, wait_until,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub const ALICE: u32 = 4001;
pub const BOB: u32 = 4002;
pub const LIMIT: Duration = Duration::from_secs(60);

/// A pool that serves the network of this machine, and hosts that have joined it.
pub struct Hosts {
    pub home: TempDir,
    pub address: String,
}

impl Hosts {
    fn start() -> Self {
        Self::start_with(2, &[])
    }

    pub fn with_benefactors(count: u16) -> Self {
        Self::start_with(count, &[])
    }

    /// With so many benefactors, and these variables of the manager.
    pub fn start_with(benefactors: u16, variables: &[(&str, &str)]) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let hosts = Self { home: TempDir::new().unwrap(), address: free.to_string() };
        hosts.ok("manager", &["pool", "init", "--listen", &hosts.address]);
        let benefactors = benefactors.to_string();
        let arguments = ["up", "--benefactors", &benefactors, "--donate", "256MiB", "--floor", "1MiB"];
        let mut up = hosts.command("manager", &arguments);
        up.envs(variables.iter().copied());
        let up = outcome(up);
        assert_eq!(up.code, 0, "{up:?}");
        hosts
    }

    pub fn path(&self, host: &str, name: &str) -> PathBuf {
        let folder = self.home.path().join(host);
        fs::create_dir_all(&folder).unwrap();
        folder.join(name)
    }

    fn command(&self, host: &str, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command.env("STDCHK_DATA", self.path(host, "pool")).current_dir(self.home.path());
        command
    }

    pub fn run(&self, host: &str, arguments: &[&str]) -> Outcome {
        outcome(self.command(host, arguments))
    }

    pub fn ok(&self, host: &str, arguments: &[&str]) -> Outcome {
        let outcome = self.run(host, arguments);
        assert_eq!(outcome.code, 0, "{host}: {arguments:?}: {outcome:?}");
        outcome
    }

    fn refused(&self, host: &str, arguments: &[&str], owner: u32) {
        let outcome = self.run(host, arguments);
        let says = |what: &str| outcome.stderr.contains(what);
        let belongs = format!("belongs to user {owner} ");
        assert!(outcome.code == 1 || outcome.code == 3, "{host}: {arguments:?}: {outcome:?}");
        assert!(says("permission denied") && says(&belongs), "{host}: {arguments:?}: {outcome:?}");
    }

    /// Lets a host join as a client, for this user alone or for all.
    pub fn join(&self, host: &str, user: Option<u32>) {
        let user = user.map(|user| user.to_string());
        let mut token = vec!["pool", "token", "--for", "client"];
        if let Some(user) = &user {
            token.extend(["--user", user, "--groups", user]);
        }
        let token = self.ok("manager", &token).text().trim().to_owned();
        self.ok(host, &["pool", "join", &self.address, "--token", &token]);
    }

    pub fn keys(&self, host: &str) -> Arc<Keys> {
        Arc::new(Keys::load(&self.path(host, "pool/keys")).unwrap())
    }

    pub async fn connect(&self, server: Role, address: &str, role: Role, keys: Arc<Keys>) -> Connection {
        let identity = Identity { role, pool: None, keys: Some(keys) };
        Connection::open(server, address, &identity, &BufferPool::new(8 << 20)).await.unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let run = self.path("manager", "pool/run");
        let entries = fs::read_dir(run).into_iter().flatten();
        entries.filter_map(|entry| Process::recorded_in(&entry.unwrap().path())).for_each(Process::kill);
    }
}

#[test]
fn two_users_with_certificates_have_files_of_their_own() {
    let hosts = Hosts::start();
    for (host, user) in [("alice", Some(ALICE)), ("bob", Some(BOB)), ("login", None)] {
        hosts.join(host, user);
    }
    let file = hosts.path("alice", "x");
    let content = random_bytes(3 << 20, 1);
    fs::write(&file, &content).unwrap();
    let file = file.to_str().unwrap();
    // Nobody but who runs the pool makes folders in its root.
    hosts.refused("alice", &["put", file, "alice/x"], geteuid().as_raw());
    hosts.refused("alice", &["mkdir", "alice"], geteuid().as_raw());
    hosts.ok("manager", &["mkdir", "alice", "--owner", &format!("{ALICE}:{ALICE}"), "--mode", "700"]);
    hosts.ok("manager", &["mkdir", "shared", "--owner", &format!("{ALICE}:{ALICE}")]);
    hosts.ok("alice", &["put", file, "alice/x.N0.T1"]);
    hosts.ok("alice", &["put", file, "shared/y.N0.T1"]);
    // Whoever runs the command, the file is alice's.
    let stat = hosts.ok("manager", &["stat", "alice/x.N0.T1", "--json"]).json();
    assert_eq!(stat["uid"], ALICE, "{stat}");
    assert!(hosts.ok("alice", &["get", "alice/x.N0.T1", "-o", "-"]).stdout == content);
    hosts.ok("alice", &["policy", "set", "alice", "ranks=1"]);
    let latest = hosts.ok("alice", &["latest", "alice", "--json"]).json();
    assert_eq!(latest["timestep"], 1, "{latest}");
    hosts.ok("alice", &["seal", "alice", "--set", "1"]);
    for refused in [
        &["get", "alice/x.N0.T1", "-o", "-"][..],
        &["ls", "alice"],
        &["ls", "alice/x.N0.T1", "--versions"],
        &["put", file, "alice/z"],
        &["rm", "alice/x.N0.T1"],
        &["mv", "alice/x.N0.T1", "alice/z"],
        &["latest", "alice"],
        &["restore", "alice", "-o", "restored"],
        &["stat", "alice/x.N0.T1"],
        &["policy", "set", "alice", "ranks=2"],
        &["seal", "alice", "--set", "1"],
        &["done", "alice"],
        &["put", file, "shared/y.N0.T1"],
        &["put", file, "shared/z"],
        &["rm", "shared/y.N0.T1"],
        &["policy", "set", "shared", "ranks=2"],
        &["mkdir", "shared", "--mode", "777"],
    ] {
        hosts.refused("bob", refused, ALICE);
    }
    assert!(hosts.ok("bob", &["get", "shared/y.N0.T1", "-o", "-"]).stdout == content, "it is open to all");
    hosts.ok("bob", &["status"]);
    hosts.ok("bob", &["ls"]);
    // A host without a user, and who runs the pool, may do all with files.
    for host in ["login", "manager"] {
        assert!(hosts.ok(host, &["get", "alice/x.N0.T1", "-o", "-"]).stdout == content);
    }
    // A folder that is given to bob is bob's.
    hosts.ok("login", &["mkdir", "bob", "--owner", &format!("{BOB}:{BOB}"), "--mode", "750"]);
    hosts.ok("bob", &["put", file, "bob/x"]);
    hosts.refused("alice", &["get", "bob/x", "-o", "-"], BOB);
    let members = hosts.ok("manager", &["pool", "members", "--json"]).json();
    let users: Vec<Option<u64>> =
        members.as_array().unwrap().iter().map(|member| member["user"].as_u64()).collect();
    assert_eq!(users, [Some(u64::from(ALICE)), Some(u64::from(BOB)), None], "{members}");
    // Who is shut out and joins anew has what was its own.
    let id = members[0]["id"].as_str().unwrap();
    hosts.ok("manager", &["pool", "revoke", id]);
    assert_ne!(hosts.run("alice", &["ls", "alice"]).code, 0);
    fs::remove_dir_all(hosts.path("alice", "pool")).unwrap();
    hosts.join("alice", Some(ALICE));
    assert!(hosts.ok("alice", &["get", "alice/x.N0.T1", "-o", "-"]).stdout == content);
}

pub async fn ask(
    connection: &Connection,
    request: ManagerRequest,
    user: Option<User>,
) -> Result<ManagerReply, CallError> {
    let asked = Asked { request, with: user };
    connection.call(&asked, Bytes::new(), LIMIT).await.map(|(reply, _)| reply)
}

fn is_refused<T: std::fmt::Debug>(answer: Result<T, CallError>) -> bool {
    let code = |failure: &Failure| matches!(failure.code, ErrorCode::Denied | ErrorCode::NotOwner);
    matches!(&answer, Err(CallError::Refused(failure)) if code(failure))
}

#[test]
fn an_adversary_that_asks_the_manager_itself_gets_nothing_of_another_user() {
    let hosts = Hosts::start();
    hosts.join("alice", Some(ALICE));
    hosts.join("bob", Some(BOB));
    hosts.ok("manager", &["mkdir", "alice", "--owner", &format!("{ALICE}:{ALICE}"), "--mode", "700"]);
    let file = hosts.path("alice", "x");
    fs::write(&file, random_bytes(100_000, 1)).unwrap();
    hosts.ok("alice", &["put", file.to_str().unwrap(), "alice/x"]);
    Runtime::new().unwrap().block_on(async {
        let bob = hosts.connect(Role::Manager, &hosts.address, Role::Client, hosts.keys("bob")).await;
        let alice = hosts.connect(Role::Manager, &hosts.address, Role::Client, hosts.keys("alice")).await;
        let found = ask(&alice, ManagerRequest::Resolve { path: "alice/x".to_owned() }, None).await;
        let Ok(ManagerReply::Entry(attr)) = found else { panic!("{found:?}") };
        let (ino, client) = (attr.ino, ClientId([9; 16]));
        let open = |session: u8| ManagerRequest::OpenSession {
            session: SessionId([session; 16]),
            client,
            ino,
            durability: Some(Durability::on_disks(1)),
        };
        let chmod =
            Change::SetAttr { ino, mode: Some(0o666), uid: None, gid: None, atime: None, mtime: None };
        let change = |change| ManagerRequest::Change { id: OpId([7; 16]), change };
        ask(&alice, open(1), None).await.unwrap();
        let of_alice = SessionId([1; 16]);
        let requests = [
            ManagerRequest::GetAttr(ino),
            ManagerRequest::OpenVersion { ino, version: None, client: None },
            ManagerRequest::Versions(ino),
            ManagerRequest::Similar(ino),
            open(2),
            open(1),
            ManagerRequest::CloseSession { session: of_alice, interrupted: true },
            ManagerRequest::Closing { session: of_alice, size: 0, changes: 0 },
            change(chmod),
            change(Change::DropVersion { ino, version: 1 }),
            change(Change::Link { ino, parent: Ino::ROOT, name: "mine".to_owned() }),
        ];
        for request in requests {
            // As itself, as who it isn't, and as who may do all.
            for user in [None, Some(BOB), Some(ALICE), Some(0)] {
                let user = user.map(|uid| User::new(uid, uid));
                let answer = ask(&bob, request.clone(), user.clone()).await;
                assert!(is_refused(answer), "{request:?} as {user:?}");
            }
        }
        // All numbers below that of the file: what is open is the root alone.
        let mut seen = Vec::new();
        for number in 1..=ino.0 {
            if ask(&bob, ManagerRequest::ReadDir { ino: Ino(number), after: None, limit: 9 }, None)
                .await
                .is_ok()
            {
                seen.push(number);
            }
        }
        assert_eq!(seen, [Ino::ROOT.0]);
        ask(&alice, ManagerRequest::Settle(of_alice), None).await.unwrap();
    });
}

#[test]
fn a_benefactor_gets_no_block_of_another_one_that_the_manager_did_not_permit() {
    let hosts = Hosts::start();
    let file = hosts.path("manager", "x");
    let content = random_bytes(500_000, 1);
    fs::write(&file, &content).unwrap();
    hosts.ok("manager", &["put", file.to_str().unwrap(), "app/x"]);
    // What they copy from each other is permitted.
    wait_until("there are two copies", || has_all_copies(&hosts.ok("manager", &["status", "--json"]).json()));
    let status = hosts.ok("manager", &["status", "--json"]).json();
    let address = status["benefactors"][0]["address"].as_str().unwrap().to_owned();
    let authority = Authority::open(&hosts.path("manager", "pool/manager/authority")).unwrap();
    Runtime::new().unwrap().block_on(async {
        let connect = async |role: Role| {
            let keys = authority.keys(&[role]).unwrap().keys(hosts.home.path()).unwrap();
            hosts.connect(Role::Benefactor, &address, role, Arc::new(keys)).await
        };
        let block = BlockId::plain(ChunkId::of(&content));
        let get = BenefactorRequest::Get { block };
        let (client, benefactor) = (connect(Role::Client).await, connect(Role::Benefactor).await);
        let served = client.call::<_, BenefactorReply>(&get, Bytes::new(), LIMIT).await.unwrap();
        assert!(served.1[..] == content[..]);
        let refused = [
            get,
            BenefactorRequest::Verify { blocks: vec![block] },
            BenefactorRequest::Sync { blocks: vec![block], tell: false },
            // Near copies are not for benefactors, permitted or not.
            BenefactorRequest::HasNear { chunk: block.chunk },
            BenefactorRequest::GetNear { chunk: block.chunk },
        ];
        for request in refused {
            let answer = benefactor.call::<_, BenefactorReply>(&request, Bytes::new(), LIMIT).await;
            assert!(is_refused(answer.map(|(reply, _)| reply)), "{request:?}");
        }
        benefactor.call::<_, BenefactorReply>(&BenefactorRequest::Status, Bytes::new(), LIMIT).await.unwrap();
    });
}

/// Runs a line of a shell as a user of these groups; `more`: what else `setpriv` gives.
pub fn as_user(user: u32, groups: &str, more: &[&str], line: &str) -> Outcome {
    let mut command = Command::new("setpriv");
    let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
    let groups = if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={groups}") };
    command.args([uid, gid, groups]).args(more).args(["sh", "-c", line]).current_dir("/");
    outcome(command)
}

#[test]
fn a_mount_that_lets_others_in_asks_the_manager_for_each_user_with_all_groups() {
    assert!(geteuid().is_root(), "only root lets other users into a mount, and becomes them");
    let pool = Pool::up(2, &[]);
    // The way to the mount is open to all.
    let open = fs::Permissions::from_mode(0o755);
    let work = pool.work();
    work.ancestors().take(2).for_each(|folder| fs::set_permissions(folder, open.clone()).unwrap());
    let mount = Mount::start_with(&pool, "mnt", &["--allow-other"]);
    let folder = |name: &str, owner: (u32, u32), mode: u32| {
        fs::create_dir(mount.at(name)).unwrap();
        chown(mount.at(name), Some(owner.0), Some(owner.1)).unwrap();
        fs::set_permissions(mount.at(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    folder("alice", (ALICE, ALICE), 0o700);
    folder("team", (0, 7001), 0o2770);
    let at = |path: &str| mount.at(path).to_str().unwrap().to_owned();
    let ok = |outcome: Outcome| assert_eq!(outcome.code, 0, "{outcome:?}");
    ok(as_user(ALICE, "", &[], &format!("echo mine > {}", at("alice/x"))));
    let owner = |path: &str| {
        let about = fs::metadata(mount.at(path)).unwrap();
        (about.uid(), about.gid())
    };
    assert_eq!(owner("alice/x"), (ALICE, ALICE));
    let denied = |outcome: Outcome, what: &str| {
        assert!(outcome.code != 0 && outcome.stderr.contains(what), "{outcome:?}");
    };
    denied(as_user(BOB, "", &[], &format!("cat {}", at("alice/x"))), "Permission denied");
    // The kernel lets a program through that may override permissions; the manager knows whose it is.
    let overrides = [
        "--inh-caps=+dac_override,+dac_read_search,+fowner",
        "--ambient-caps=+dac_override,+dac_read_search,+fowner",
    ];
    denied(as_user(BOB, "", &overrides, &format!("cat {}", at("alice/x"))), "Permission denied");
    denied(as_user(BOB, "", &overrides, &format!("echo > {}", at("alice/y"))), "Permission denied");
    denied(as_user(BOB, "", &overrides, &format!("rm {}", at("alice/x"))), "Permission denied");
    let local = pool.file("local", b"");
    fs::set_permissions(&local, fs::Permissions::from_mode(0o600)).unwrap();
    ok(as_user(BOB, "", &overrides, &format!("cat {local}")));
    // Groups beside the first count, and the folder's is handed on.
    ok(as_user(BOB, "7000,7001", &[], &format!("echo ours > {0}/x && cat {0}/x && ls -l {0}", at("team"))));
    assert_eq!(owner("team/x"), (BOB, 7001));
    denied(as_user(ALICE, "7000", &[], &format!("cat {}", at("team/x"))), "Permission denied");
    ok(as_user(ALICE, "7001", &[], &format!("mv {0}/x {0}/y && rm -f {0}/y", at("team"))));
    // What needs an owner says so.
    ok(as_user(BOB, "7001", &[], &format!("echo > {0}/z && chmod 666 {0}/z", at("team"))));
    denied(as_user(ALICE, "7001", &[], &format!("chmod 600 {}", at("team/z"))), "Operation not permitted");
    denied(
        as_user(ALICE, "7001", &overrides, &format!("chmod 600 {}", at("team/z"))),
        "Operation not permitted",
    );
    // Root may do all.
    assert_eq!(fs::read(mount.at("alice/x")).unwrap(), b"mine\n");
    assert_eq!(pool.get("alice/x"), b"mine\n");
}

#[test]
fn who_writes_an_open_file_goes_on_after_its_mode_changed_and_the_manager_was_killed() {
    assert!(geteuid().is_root(), "only root lets other users into a mount, and becomes them");
    let pool = Pool::up(2, &[]);
    let open = fs::Permissions::from_mode(0o755);
    pool.work().ancestors().take(2).for_each(|folder| fs::set_permissions(folder, open.clone()).unwrap());
    let mount = Mount::start_with(&pool, "mnt", &["--allow-other"]);
    fs::create_dir(mount.at("app")).unwrap();
    fs::set_permissions(mount.at("app"), fs::Permissions::from_mode(0o777)).unwrap();
    let (path, ready, go) = (mount.at("app/x"), pool.path("ready"), pool.path("go"));
    fs::set_permissions(pool.work(), fs::Permissions::from_mode(0o777)).unwrap();
    // As `git` makes its objects: for reading alone, and written after that.
    let line = format!(
        "umask 222; exec > {}; echo begun; echo > {}; while [ ! -e {} ]; do sleep 0.05; done; echo ended",
        shown(&path),
        shown(&ready),
        shown(&go)
    );
    let writing = std::thread::spawn(move || as_user(BOB, "", &[], &line));
    wait_until("the file is open", || ready.exists());
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o444);
    pool.kill("manager");
    pool.ok(&["up"]);
    fs::write(&go, b"").unwrap();
    let outcome = writing.join().unwrap();
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(pool.get("app/x"), b"begun\nended\n");
}

/// Tries each way into the file of its first argument, and prints those that the kernel or the mount lets through.
const WAYS: &str = r#"
import os, sys
path = sys.argv[1]
folder, name = os.path.split(path)
def read(): os.close(os.open(path, os.O_RDONLY))
def write(): os.close(os.open(path, os.O_WRONLY))
def append(): os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
def create(): os.close(os.open(path, os.O_RDWR | os.O_CREAT))
def emptied(): os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
def reopened():
    seen = os.open(path, os.O_PATH)
    try: os.close(os.open(f"/proc/self/fd/{seen}", os.O_RDWR))
    finally: os.close(seen)
def truncated(): os.truncate(path, 1)
def extended(): os.truncate(path, 1 << 20)
def modified():
    if os.system(f"touch -m -d @1000000000 {path} 2>/dev/null"): raise PermissionError
def accessed(): os.utime(path, (5, 5))
def protocol(): os.setxattr(path, "user.stdchk.protocol", b"iw")
def chmod(): os.chmod(path, 0o666)
def linked(): os.link(path, folder + "/linked")
def renamed(): os.rename(path, folder + "/renamed")
def replaced(): os.rename(sys.argv[2], path)
def unlinked(): os.unlink(path)
for way in (read, write, append, create, emptied, reopened, truncated, extended, modified, accessed, protocol, chmod,
            linked, renamed, replaced, unlinked):
    try: way()
    except PermissionError: continue
    except OSError as error: print(way.__name__, "failed otherwise:", error); continue
    print(way.__name__)
"#;

/// What another user than the owner may try, with all that lets it by the kernel's own checks.
const OVERRIDES: [&str; 2] = [
    "--inh-caps=+dac_override,+dac_read_search,+fowner",
    "--ambient-caps=+dac_override,+dac_read_search,+fowner",
];

/// A mount that lets other users in, and a folder there that belongs to Alice and that all may search.
fn mount_for_others(pool: &Pool, more: &[&str]) -> Mount {
    assert!(geteuid().is_root(), "only root lets other users into a mount, and becomes them");
    let open = fs::Permissions::from_mode(0o755);
    pool.work().ancestors().take(2).for_each(|folder| fs::set_permissions(folder, open.clone()).unwrap());
    let mount = Mount::start_with(pool, "mnt", &[&["--allow-other"], more].concat());
    for (name, owner) in [("alice", ALICE), ("bob", BOB)] {
        fs::create_dir(mount.at(name)).unwrap();
        chown(mount.at(name), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(mount.at(name), open.clone()).unwrap();
    }
    mount
}

#[test]
fn nobody_comes_into_a_file_by_the_handle_that_another_user_has_open() {
    for protocol in ["sw", "clw"] {
        let pool = Pool::up(2, &[]);
        let spool = pool.path("spool");
        let mount = mount_for_others(&pool, &["--spool", shown(&spool)]);
        pool.ok(&["policy", "set", "alice", &format!("protocol={protocol}")]);
        let at = |path: &str| shown(&mount.at(path)).to_owned();
        let ways = pool.file("ways", WAYS.as_bytes());
        let (path, own) = (at("alice/x"), at("bob/own"));
        let ok = |outcome: Outcome| assert_eq!(outcome.code, 0, "{outcome:?}");
        ok(as_user(BOB, "", &[], &format!("echo bob > {own}")));
        let (ready, go) = (pool.path("ready"), pool.path("go"));
        fs::set_permissions(pool.work(), fs::Permissions::from_mode(0o777)).unwrap();
        let line = format!(
            "umask 077; exec > {path}; echo secret; sync {path}; echo > {}; while [ ! -e {} ]; do sleep 0.05; done; echo ended",
            shown(&ready),
            shown(&go)
        );
        let writing = std::thread::spawn(move || as_user(ALICE, "", &[], &line));
        wait_until("the file is open", || ready.exists());
        let before = fs::metadata(&path).unwrap();
        // Whoever the kernel lets through.
        let tried = as_user(BOB, "", &OVERRIDES, &format!("python3 {ways} {path} {own}"));
        assert_eq!((tried.code, tried.text().as_str()), (0, ""), "{protocol}: {tried:?}");
        let after = fs::metadata(&path).unwrap();
        assert_eq!((after.mtime(), after.len()), (before.mtime(), before.len()), "{protocol}");
        // Who may read reads on what is being written, and does no more.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let group = ALICE.to_string();
        ok(as_user(BOB, &group, &[], &format!("grep secret {path}")));
        let tried = as_user(BOB, &group, &OVERRIDES, &format!("python3 {ways} {path} {own}"));
        assert_eq!((tried.code, tried.text().as_str()), (0, "read\n"), "{protocol}: {tried:?}");
        // The owner itself, root, and a group that may write come in beside the writer.
        ok(as_user(
            ALICE,
            "",
            &[],
            &format!("cat {path} && truncate -s 4000 {path} && truncate -s 7 {path}"),
        ));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        ok(as_user(
            BOB,
            &group,
            &[],
            &format!("cat {path} && truncate -s 4000 {path} && truncate -s 7 {path}"),
        ));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"secret\n");
        fs::write(&go, b"").unwrap();
        ok(writing.join().unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"secret\nended\n", "{protocol}");
    }
}

#[test]
fn what_the_kernel_has_of_a_closed_folder_is_not_listed_for_another_user() {
    let pool = Pool::up(1, &[]);
    let mount = mount_for_others(&pool, &[]);
    let closed = mount.at("alice");
    fs::write(closed.join("hidden"), "").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let list = format!("ls {}", shown(&closed));
    for _ in 0..5 {
        assert_eq!(as_user(ALICE, "", &[], &list).text(), "hidden\n");
        let outcome = as_user(BOB, "", &OVERRIDES, &list);
        assert!(outcome.code != 0 && !outcome.text().contains("hidden"), "{outcome:?}");
    }
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}
