//! The processes of one pool, and how time passes for them.

use std::cell::RefCell;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use stdchk_client::{ClientConfig, Pool, Spool, Unpushed};
use stdchk_manager::Manager;
use stdchk_model::Tier;
use stdchk_model::policy::Protocol;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::host::Host;
use super::log::Log;
use super::network::{Network, Place, address};
use super::plant::Plant;
use super::random::Random;

/// Lives of which one has benefactors that keep blocks in memory.
const LIVES_FOR_MEMORY: u64 = 3;
const MANAGER_PORT: u16 = 7000;
/// Places of the manager, the first benefactor and the first client.
const MANAGER: Place = 1;
const BENEFACTORS: Place = 10;
const CLIENTS: Place = 100;
const DONATED: u64 = 1 << 30;
/// Memory that some give: too little for what there is.
const LITTLE_MEMORY: u64 = 512 << 10;
const SPOOL_BYTES: u64 = 64 << 20;
/// How long clients ask for a manager that is away.
const PATIENCE: Duration = Duration::from_secs(20);
/// How far the clocks go on at once, while clients are at work and while none is.
const TICK: Duration = Duration::from_millis(4);
const LONG_TICK: Duration = Duration::from_millis(20);
/// Pause of a client before it tries again what it does at its start.
const PAUSE: Duration = Duration::from_millis(300);

/// A process, running or not.
pub struct Process {
    pub place: Place,
    host: Option<Host>,
    /// It runs, but gets no time, for so long by now.
    stopped: Option<Duration>,
    /// Ends only if something is wrong.
    task: Option<JoinHandle<String>>,
}

/// A benefactor, running or not.
pub struct Benefactor {
    pub process: Process,
    pub tier: Tier,
    /// The number of what it stores blocks on.
    disk: usize,
    donated: u64,
}

/// A client with what it is connected to, once it is.
pub struct Client {
    pub process: Process,
    pub connected: Arc<Mutex<Option<Connected>>>,
    pub deeds: Vec<JoinHandle<()>>,
    protocol: Option<Protocol>,
}

#[derive(Clone)]
pub struct Connected {
    pub pool: Pool,
    pub spool: Option<Arc<Spool>>,
}

/// All processes of a life.
pub struct World {
    pub log: Log,
    pub network: Network,
    pub random: Random,
    pub plant: Plant,
    pub manager: Process,
    /// Those with disks come first.
    pub benefactors: Vec<Benefactor>,
    /// Some benefactors keep blocks in memory.
    pub has_memory: bool,
    pub clients: Vec<Client>,
    /// Disks and memories that benefactors ever had.
    disks: usize,
    directory: TempDir,
}

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Notes panics, which end a task without anybody else noticing.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            before(panic);
        }));
    });
    PANICS.take();
}

impl Process {
    fn new(place: Place) -> Self {
        Self { place, host: None, stopped: None, task: None }
    }

    pub fn is_running(&self) -> bool {
        self.host.is_some()
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    fn start(&mut self, task: impl Future<Output = String> + Send + 'static) {
        let host = Host::new();
        self.task = Some(host.spawn(task));
        self.host = Some(host);
    }

    /// Ends all that it does, wherever that is.
    pub fn kill(&mut self) {
        (self.host, self.stopped, self.task) = (None, None, None);
    }

    /// Gets no time until it is continued.
    pub fn stop(&mut self) {
        self.stopped = self.host.is_some().then_some(Duration::ZERO);
    }

    pub fn go_on(&mut self) {
        if let (Some(time), Some(host)) = (self.stopped.take(), &self.host) {
            host.skip(time);
        }
    }

    fn step(&mut self, tick: Duration, network: &Network, log: &Log) {
        if let Some(time) = &mut self.stopped {
            *time += tick;
            return;
        }
        let Some(host) = &self.host else { return };
        network.is_at(self.place);
        host.step(tick);
        if self.task.as_ref().is_some_and(JoinHandle::is_finished) {
            let ended = self.task.take().map(|task| host.wait(task));
            log.fail(format_args!("the process at {} ended: {ended:?}", self.place));
        }
    }
}

impl World {
    pub fn new(seed: u64, plant: Plant) -> Self {
        note_panics();
        let mut random = Random::new(seed);
        let network = Network::new(random.next());
        // The disk is not what is tested: in memory it is faster.
        let directory = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap();
        Self {
            log: Log::default(),
            network,
            random,
            plant,
            manager: Process::new(MANAGER),
            benefactors: Vec::new(),
            has_memory: seed % LIVES_FOR_MEMORY == 2,
            clients: Vec::new(),
            disks: 0,
            directory,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn kill_manager(&mut self) {
        self.manager.kill();
        if self.plant == Plant::StoreIsSetBack {
            self.copy("manager as it was", "manager");
        }
    }

    pub fn kill_benefactor(&mut self, number: usize) {
        let Benefactor { process, disk, .. } = &mut self.benefactors[number];
        process.kill();
        if self.plant == Plant::DiskForgets {
            let disk = format!("disk{disk}");
            self.copy(&format!("{disk} as it was"), &disk);
        }
    }

    /// Makes a directory what another one is; nothing where that isn't there.
    fn copy(&self, from: &str, to: &str) {
        if self.path(from).exists() {
            let _ = std::fs::remove_dir_all(self.path(to));
            let mut copy = std::process::Command::new("cp");
            copy.args(["-a", "--sparse=always"]).arg(self.path(from)).arg(self.path(to));
            assert!(copy.status().unwrap().success());
        }
    }

    pub fn start_manager(&mut self) {
        if self.plant == Plant::StoreIsSetBack {
            self.copy("manager", "manager as it was");
        }
        let config = stdchk_manager::Config::new(self.path("manager"), manager_address());
        self.network.is_at(MANAGER);
        self.manager.start(async move {
            match Manager::open(config).await {
                Ok(manager) => format!("{:?}", manager.serve(std::future::pending()).await),
                Err(error) => error.to_string(),
            }
        });
    }

    pub fn add_benefactor(&mut self, tier: Tier) {
        let place = BENEFACTORS + Place::try_from(self.benefactors.len()).unwrap();
        let has_little = tier == Tier::Memory && self.random.once_in(3);
        let donated = if has_little { LITTLE_MEMORY } else { DONATED };
        self.benefactors.push(Benefactor { process: Process::new(place), tier, disk: 0, donated });
        self.renew_disk(self.benefactors.len() - 1);
        self.start_benefactor(self.benefactors.len() - 1);
    }

    /// How many benefactors have disks: those come first.
    pub fn with_disks(&self) -> usize {
        self.benefactors.iter().filter(|one| one.tier == Tier::Disk).count()
    }

    /// What a benefactor that doesn't run has stored is gone.
    pub fn renew_disk(&mut self, benefactor: usize) {
        let lost = std::mem::replace(&mut self.benefactors[benefactor].disk, self.disks);
        // The first one was never there.
        let _ = std::fs::remove_dir_all(self.path(&format!("disk{lost}")));
        self.disks += 1;
    }

    pub fn start_benefactor(&mut self, number: usize) {
        let Benefactor { disk, donated, tier, .. } = self.benefactors[number];
        let disk = format!("disk{disk}");
        if self.plant == Plant::DiskForgets {
            self.copy(&disk, &format!("{disk} as it was"));
        }
        let data = self.path(&disk);
        let process = &mut self.benefactors[number].process;
        let listen = format!("{}:0", address(process.place));
        let mut config = stdchk_benefactor::Config::new(data, manager_address(), listen, donated);
        config.floor_bytes = 0;
        let is_believed_a_disk = self.plant == Plant::MemoryIsCalledDisk;
        config.tier = Some(if is_believed_a_disk { Tier::Disk } else { tier });
        config.memory_bytes = 16 << 20;
        self.network.is_at(process.place);
        process.start(async move {
            format!("{:?}", stdchk_benefactor::run(config, std::future::pending()).await)
        });
    }

    pub fn add_client(&mut self, protocol: Option<Protocol>) {
        let place = CLIENTS + Place::try_from(self.clients.len()).unwrap();
        let process = Process::new(place);
        self.clients.push(Client { process, connected: Arc::default(), deeds: Vec::new(), protocol });
        self.start_client(self.clients.len() - 1);
    }

    pub fn start_client(&mut self, number: usize) {
        let spool = self.path(&format!("spool{number}"));
        let client = &mut self.clients[number];
        let config = ClientConfig {
            manager: manager_address(),
            keys: None,
            encryption_keys: None,
            window_bytes: 8 << 20,
            read_cache_bytes: 4 << 20,
            patience: PATIENCE,
            protocol: client.protocol,
            or_older: false,
        };
        let spool = client.protocol.is_some_and(|protocol| protocol != Protocol::Sw).then_some(spool);
        let (connected, log) = (Arc::clone(&client.connected), self.log.clone());
        client.process.start(async move {
            let connection = loop {
                match connect(config.clone(), spool.clone()).await {
                    Ok(connection) => break connection,
                    Err(failure) => log.say(format_args!("a client can't begin yet: {failure}")),
                }
                tokio::time::sleep(PAUSE).await;
            };
            *connected.lock().unwrap() = Some(connection);
            std::future::pending().await
        });
    }

    pub fn kill_client(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let connected = client.connected.lock().unwrap().take();
        client.deeds.clear();
        client.process.kill();
        drop(connected);
        client.connected = Arc::default();
        if self.plant == Plant::SpoolIsLost {
            // The first client has none.
            let _ = std::fs::remove_dir_all(self.path(&format!("spool{number}")));
        }
    }

    /// Begins something at a client; whether it is connected.
    pub fn begin<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        client: usize,
        deed: impl FnOnce(Connected) -> F,
    ) -> bool {
        let client = &mut self.clients[client];
        client.deeds.retain(|deed| !deed.is_finished());
        let connected = client.connected.lock().unwrap().clone();
        let (Some(connected), Some(host)) = (connected, &client.process.host) else { return false };
        client.deeds.push(host.spawn(deed(connected)));
        true
    }

    pub fn is_at_work(&self) -> bool {
        self.clients.iter().any(|client| client.deeds.iter().any(|deed| !deed.is_finished()))
    }

    /// Lets time pass; an error if something went wrong.
    pub fn pass(&mut self, time: Duration) -> Result<(), String> {
        let mut left = time;
        while !left.is_zero() {
            let tick = if self.is_at_work() { TICK } else { LONG_TICK }.min(left);
            left -= tick;
            self.step(tick)?;
        }
        Ok(())
    }

    fn step(&mut self, tick: Duration) -> Result<(), String> {
        let (network, log) = (&self.network, &self.log);
        let benefactors = self.benefactors.iter_mut().map(|one| &mut one.process);
        let clients = self.clients.iter_mut().map(|client| &mut client.process);
        let mut all: Vec<&mut Process> =
            std::iter::once(&mut self.manager).chain(benefactors).chain(clients).collect();
        let first = self.random.below(all.len());
        all.rotate_left(first);
        for process in all {
            process.step(tick, network, log);
        }
        self.network.step(tick);
        self.log.pass(tick);
        PANICS.take().into_iter().for_each(|panic| self.log.fail(panic));
        self.log.failure().map_or(Ok(()), Err)
    }
}

fn manager_address() -> String {
    format!("{}:{MANAGER_PORT}", address(MANAGER))
}

/// Connects a client, which first takes up what it had in its spool when it was killed.
async fn connect(config: ClientConfig, spool: Option<PathBuf>) -> Result<Connected, stdchk_model::Failure> {
    let pool = Pool::connect(config).await?;
    let Some(path) = spool else { return Ok(Connected { pool, spool: None }) };
    let spool = Spool::open(&path, SPOOL_BYTES, &pool).await?;
    for unpushed in pool.take_up(&spool).await?.0 {
        push(&pool, unpushed).await?;
    }
    Ok(Connected { pool, spool: Some(spool) })
}

async fn push(pool: &Pool, unpushed: Unpushed) -> Result<(), stdchk_model::Failure> {
    let Unpushed { writer, mtime, state } = unpushed;
    loop {
        match writer.push(mtime, state).await {
            Ok(_) => {
                writer.close_later();
                return Ok(());
            }
            // The mount gives a file up then, too.
            Err(failure) if pool.is_gone(&failure).await => return writer.discard(pool).await,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
