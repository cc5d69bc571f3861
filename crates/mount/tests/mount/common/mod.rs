//! A pool with real mounts: a real manager and benefactors on loopback, the kernel's FUSE, and real programs.

pub mod relay;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stdchk_client::{ClientConfig, Pool};
use stdchk_manager::Manager;
use stdchk_model::message::manager::{BenefactorState, Change, VersionInfo};
use stdchk_mount::{MountConfig, Mounted};
use stdchk_net::transport::unix_address;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const DONATED: u64 = 4 << 30;
/// What the mounts of the tests believe without asking: short, so that no test waits for long.
pub const TTL: Duration = Duration::from_millis(100);

/// A pool in this process, to which mounts and clients connect over sockets.
pub struct TestPool {
    runtime: Runtime,
    _folder: TempDir,
    manager: String,
    pub client: Pool,
}

/// A mount of a pool, taken off when it is dropped.
pub struct TestMount {
    pub path: PathBuf,
    mounted: Mounted,
    _folder: TempDir,
}

impl TestPool {
    pub fn start(benefactors: usize) -> Self {
        let runtime = Runtime::new().unwrap();
        let folder = TempDir::new().unwrap();
        let (manager, client) = runtime.block_on(async {
            let data = folder.path().join("manager");
            let config = stdchk_manager::Config::new(data, unix_address(&folder.path().join("socket")));
            let manager = Manager::open(config).await.unwrap();
            let address = manager.addresses()[0].clone();
            tokio::spawn(async move { manager.serve(std::future::pending()).await.unwrap() });
            for number in 0..benefactors {
                start_benefactor(folder.path(), &address, number);
            }
            let client = Pool::connect(client_config(&address)).await.unwrap();
            wait_online(&client, benefactors).await;
            (address, client)
        });
        Self { runtime, _folder: folder, manager, client }
    }

    /// The address of its manager.
    pub fn manager(&self) -> &str {
        &self.manager
    }

    /// Mounts the pool, once more.
    pub fn mount(&self) -> TestMount {
        self.mount_with(|_| {})
    }

    pub fn mount_with(&self, change: impl FnOnce(&mut MountConfig)) -> TestMount {
        let folder = TempDir::new().unwrap();
        let mut config = MountConfig::new(folder.path().to_owned(), client_config(&self.manager));
        config.ttl = TTL;
        change(&mut config);
        let mounted = stdchk_mount::mount(config).unwrap();
        TestMount { path: mounted.mount_point().to_owned(), mounted, _folder: folder }
    }

    /// The versions of a file, oldest first.
    pub fn versions(&self, path: &str) -> Vec<VersionInfo> {
        self.runtime.block_on(async {
            let ino = self.client.resolve(path).await.unwrap().ino;
            self.client.versions(ino).await.unwrap()
        })
    }

    /// Sets a policy on a folder.
    pub fn set_policy(&self, path: &str, key: &str, value: &str) {
        self.runtime.block_on(async {
            let ino = self.client.resolve(path).await.unwrap().ino;
            let pairs = vec![(key.to_owned(), value.to_owned())];
            self.client.change(Change::SetPolicy { ino, pairs }).await.unwrap();
        });
    }
}

fn client_config(manager: &str) -> ClientConfig {
    ClientConfig {
        manager: manager.to_owned(),
        window_bytes: 16 << 20,
        read_cache_bytes: 8 << 20,
        patience: Duration::from_secs(20),
        ..ClientConfig::default()
    }
}

fn start_benefactor(folder: &Path, manager: &str, number: usize) {
    let data = folder.join(format!("benefactor{number}"));
    let listen = unix_address(&data.join("socket"));
    let mut config = stdchk_benefactor::Config::new(data, manager.to_owned(), listen, DONATED);
    config.floor_bytes = 0;
    // The folder of a test may lie in memory.
    config.tier = Some(stdchk_model::Tier::Disk);
    config.heartbeat = Duration::from_millis(50);
    tokio::spawn(async move { stdchk_benefactor::run(config, std::future::pending()).await.unwrap() });
}

async fn wait_online(client: &Pool, count: usize) {
    for _ in 0..400 {
        let status = client.status().await.unwrap();
        if status.benefactors.iter().filter(|one| one.state == BenefactorState::Online).count() >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{count} benefactors did not come on-line");
}

impl TestMount {
    /// A path below the mount point.
    pub fn at(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    /// Unmounts, and waits until everything is committed.
    pub fn unmount(&self) {
        self.mounted.unmount().unwrap();
        self.mounted.join().unwrap();
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let _ = self.mounted.unmount();
        let _ = self.mounted.join();
    }
}

/// Runs a program and returns what it printed; it must succeed.
pub fn run(program: &str, arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{program} can't be started: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs a shell script; every command in it must succeed.
pub fn shell(script: &str, folder: &Path) -> String {
    run("bash", &["-euo", "pipefail", "-c", script], folder)
}

/// The Python of the project's environment, which `scripts/setup` makes.
pub fn python(script: &str, folder: &Path) -> String {
    let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    run(environment.to_str().unwrap(), &["-c", script], folder)
}

/// Starts a Python program and waits for its first line of output.
pub fn start_python(script: &str, folder: &Path) -> Child {
    let mut command = Command::new("python3");
    let mut child = command
        .args(["-c", script])
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// Waits until `holds` does.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..400 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("{what} did not come to pass");
}

/// Bytes that no compressor and no earlier chunk knows, the same for the same seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    (0..length.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(length).collect()
}

/// Opens a file for reading and writing, made if it isn't there.
pub fn open_both(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}
