//! The memory tier: with `semantics=memory:2` a commit counts once two benefactors have it in memory, disks follow, and memory is empty then.
//! What is only in memory is lost with it, and that is said; nothing else is (I1, I5).

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use stdchk_tests::{Disk, Machines, Pool, Setup, has_all_copies, random_bytes, wait_until};

const MIB: usize = 1 << 20;
const FOLDER: [&str; 3] = ["semantics=memory:2", "redundancy=replicate:2", "ranks=1"];

/// A benefactor of the memory tier. Its folder is an ordinary one, so the test says when the memory is gone.
struct Memory {
    child: Child,
    name: String,
    donate: String,
}

impl Memory {
    fn start(pool: &Pool, name: &str, donate: &str) -> Self {
        let child = Self::spawn(pool, name, donate);
        let memory = Self { child, name: name.to_owned(), donate: donate.to_owned() };
        memory.wait_online(pool);
        memory
    }

    fn spawn(pool: &Pool, name: &str, donate: &str) -> Child {
        let folder = pool.path(name);
        let run = ["benefactor", "run", folder.to_str().unwrap(), "--donate", donate, "--floor", "1MiB"];
        let mut command = pool.command(&run);
        // It has the disk of the others, and would take their work for its owner's.
        command.args(["--load-limit", "0", "--tier", "memory"]);
        let log = pool.path(&format!("{name}.log"));
        let log = fs::File::options().create(true).append(true).open(log).unwrap();
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn wait_online(&self, pool: &Pool) {
        wait_until("the memory is on-line", || self.shown(pool)["state"] == "online");
    }

    fn shown(&self, pool: &Pool) -> Value {
        let status = pool.status();
        let is_it = |one: &&Value| one["pid"] == u64::from(self.child.id());
        status["benefactors"].as_array().unwrap().iter().find(is_it).cloned().unwrap_or_default()
    }

    /// The process is killed, and if its machine goes with it also what it had.
    fn kill(&mut self, pool: &Pool, is_lost: bool) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        if is_lost {
            fs::remove_dir_all(pool.path(&self.name).join("segments")).unwrap();
        }
    }

    fn restart(&mut self, pool: &Pool) {
        self.child = Self::spawn(pool, &self.name, &self.donate);
        self.wait_online(pool);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three benefactors with disks, and two with memory.
struct World {
    pool: Pool,
    memory: [Memory; 2],
}

impl World {
    fn start(donate: &str) -> Self {
        // Disks that stand still are taken for on-line meanwhile.
        let setup = Setup { mounted: false, ..Setup::of(3) };
        let setup = setup.with("STDCHK_BENEFACTOR_LEASE_MS", 120_000);
        let pool = setup.with("STDCHK_BENEFACTOR_LOST_MS", 240_000).up();
        let memory = ["memory0", "memory1"].map(|name| Memory::start(&pool, name, donate));
        pool.ok(&["mkdir", "app"]);
        pool.policy("app", &FOLDER);
        Self { pool, memory }
    }

    /// Lets the disks stand still, or go on.
    fn freeze(&self, are_frozen: bool) {
        let signal = if are_frozen { Signal::STOP } else { Signal::CONT };
        (0..3).for_each(|number| self.pool.process(&format!("benefactor-{number}")).signal(signal));
    }

    fn put(&self, timestep: u32, content: &[u8]) {
        self.pool.put(content, &format!("app/a.N0.T{timestep}"));
    }

    fn get(&self, timestep: u32) -> Vec<u8> {
        self.pool.get(&format!("app/a.N0.T{timestep}"))
    }

    fn blocks_in_memory(&self) -> u64 {
        self.memory.iter().filter_map(|memory| memory.shown(&self.pool)["blocks"].as_u64()).sum()
    }

    fn alone(&self) -> u64 {
        self.pool.status()["memory"]["chunks_alone"].as_u64().unwrap()
    }

    fn wait_for_disks(&self) {
        wait_until("disks have all copies", || self.pool.shows(has_all_copies));
    }
}

/// What `ls --sets` says of a timestep.
fn set(pool: &Pool, timestep: u64) -> Value {
    let sets = pool.json(&["ls", "app", "--sets", "--json"]);
    sets["sets"].as_array().unwrap().iter().find(|set| set["timestep"] == timestep).unwrap().clone()
}

#[test]
fn a_commit_counts_while_nothing_is_on_disks_then_disks_follow_and_memory_is_empty() {
    let mut world = World::start("256MiB");
    world.freeze(true);
    let content = random_bytes(16 * MIB, 1);
    world.put(1, &content);
    let status = world.pool.status();
    let chunks = &status["chunks"];
    assert!(chunks.as_u64().unwrap() >= 16, "{chunks}");
    assert_eq!(&status["memory"]["chunks_alone"], chunks);
    assert_eq!(status["memory"]["benefactors"], 2);
    assert_eq!((&status["chunks_lost"], &status["chunks_at_risk"]), (&0.into(), chunks));
    assert_eq!(&set(&world.pool, 1)["exposed"]["in_memory"], chunks);
    assert!(world.pool.ok(&["status"]).contains(&format!("{chunks} of them in memory alone")));
    assert!(world.get(1) == content, "it is read from memory");
    assert_eq!(world.pool.json(&["latest", "app", "--json"])["exposed"]["in_memory"], *chunks);
    // Who doesn't count memory stores it on disks, where it is not.
    world.pool.ok(&["mkdir", "plain"]);
    world.freeze(false);
    world.put(2, &content);
    world.pool.put(&content, "plain/a.N0.T1");
    world.wait_for_disks();
    wait_until("memory is empty", || world.blocks_in_memory() == 0);
    assert_eq!(world.alone(), 0);
    for memory in &mut world.memory {
        memory.kill(&world.pool, true);
    }
    assert!(world.get(1) == content && world.pool.get("plain/a.N0.T1") == content);
    world.pool.ok(&["verify"]);
    assert_eq!(world.pool.json(&["latest", "app", "--json"])["timestep"], 2);
}

#[test]
fn what_was_only_in_memory_is_lost_with_all_of_it_and_the_set_before_is_named() {
    let mut world = World::start("256MiB");
    let contents = [1, 2].map(|seed| random_bytes(8 * MIB, seed));
    world.put(1, &contents[0]);
    world.wait_for_disks();
    world.freeze(true);
    world.put(2, &contents[1]);
    assert_eq!(world.pool.json(&["latest", "app", "--json"])["timestep"], 2);
    // A process that ends takes nothing with it.
    for memory in &mut world.memory {
        memory.kill(&world.pool, false);
        memory.restart(&world.pool);
    }
    assert!(world.get(2) == contents[1], "both processes were killed, and their memory is there");
    // Machines that crash do.
    for memory in &mut world.memory {
        memory.kill(&world.pool, true);
    }
    for memory in &mut world.memory {
        memory.restart(&world.pool);
    }
    world.freeze(false);
    let latest = world.pool.json(&["latest", "app", "--json"]);
    assert_eq!(latest["timestep"], 1, "{latest}");
    let passed_over = &latest["passed_over"][0];
    assert_eq!((&passed_over["timestep"], &passed_over["unavailable"]), (&2.into(), &false.into()));
    assert!(passed_over["reason"].as_str().unwrap().contains("have no intact copy"), "{passed_over}");
    assert!(world.get(1) == contents[0]);
    world.pool.fails(&["get", "app/a.N0.T2", "-o", "-"], 7, &[]);
    world.pool.fails(&["verify"], 7, &[]);
    let status = world.pool.status();
    assert_eq!((&status["health"], &status["chunks_lost"]), (&"damaged".into(), &8.into()), "{status}");
}

#[test]
fn the_loss_of_one_memory_of_two_loses_nothing() {
    let mut world = World::start("256MiB");
    world.freeze(true);
    let content = random_bytes(8 * MIB, 1);
    world.put(1, &content);
    world.memory[0].kill(&world.pool, true);
    assert!(world.get(1) == content);
    world.memory[0].restart(&world.pool);
    assert_eq!(world.alone(), 8);
    world.freeze(false);
    world.wait_for_disks();
    world.memory[1].kill(&world.pool, true);
    assert!(world.get(1) == content);
    world.pool.ok(&["verify"]);
}

#[test]
fn what_memory_has_no_room_for_goes_to_disks() {
    let world = World::start("32MiB");
    // Nothing moves to the disks before the commit, so memory fills.
    let content = random_bytes(96 * MIB, 1);
    world.put(1, &content);
    let alone = world.alone();
    assert!(alone <= 32, "{alone} chunks are in memory alone, which has room for 32 at most");
    assert!(world.get(1) == content);
    world.wait_for_disks();
    wait_until("memory is empty", || world.blocks_in_memory() == 0);
    assert!(world.get(1) == content);
    world.pool.ok(&["verify"]);
}

#[test]
fn a_folder_on_a_file_system_in_memory_is_of_the_memory_tier_unless_its_owner_says_otherwise() {
    let pool = Pool::up(1, &[]);
    for (name, tier, shown) in [("auto", "auto", "memory"), ("said", "disk", "disk")] {
        let disk = Disk::start_with(&pool, name, (64, "1MiB"), &["--tier", tier]);
        assert_eq!(disk.shown(&pool.status()).unwrap()["tier"], shown);
    }
    let status = pool.status();
    let first = &status["benefactors"][0];
    assert_eq!(first["tier"], "disk", "what `up` starts counts, wherever the test lies: {first}");
}

#[test]
fn a_manager_that_lost_its_disk_is_made_anew_of_the_disks_alone_and_reads_what_is_in_memory() {
    let world = World::start("256MiB");
    world.pool.wait_for_recovery();
    world.freeze(true);
    let content = random_bytes(8 * MIB, 1);
    world.put(1, &content);
    assert_eq!(world.alone(), 8);
    world.freeze(false);
    world.pool.wait_for_recovery();
    world.pool.ok(&["down"]);
    fs::remove_dir_all(world.pool.data().join("manager")).unwrap();
    let said = world.pool.json(&["manager", "recover", "--json"]);
    assert_eq!(said["keepers"].as_array().unwrap().len(), 3, "those in memory keep nothing: {said}");
    world.pool.ok(&["up"]);
    assert!(world.get(1) == content);
    world.wait_for_disks();
    wait_until("memory is empty", || world.blocks_in_memory() == 0);
    world.pool.ok(&["verify"]);
}

/// Seconds that a commit takes from `put` on, and until disks have what is wanted.
fn measured(machines: &Machines, writer: usize, semantics: &str, content: &[u8]) -> (f64, f64) {
    let folder = semantics.replace(':', "");
    let source = machines.path(writer, "source");
    fs::write(&source, content).unwrap();
    machines.ok(writer, &["mkdir", &folder]);
    let semantics = format!("semantics={semantics}");
    machines.ok(writer, &["policy", "set", &folder, "redundancy=replicate:2", "codec=store", &semantics]);
    let began = Instant::now();
    machines.ok(writer, &["put", source.to_str().unwrap(), &format!("{folder}/a.N0.T1")]);
    let committed = began.elapsed();
    wait_until("all copies are made", || {
        std::thread::sleep(Duration::from_millis(100));
        has_all_copies(&machines.ok(writer, &["status", "--json"]).json())
    });
    (committed.as_secs_f64(), began.elapsed().as_secs_f64())
}

/// Disks behind slow links, and memory and a writer behind fast ones. `STDCHK_MEMORY_MIB`: how much is written.
#[test]
fn writers_are_as_fast_as_memory_is_where_disks_are_slow() {
    const WRITER: usize = 7;
    let mib = std::env::var("STDCHK_MEMORY_MIB").map_or(12, |mib| mib.parse().unwrap());
    let machines = Machines::start(WRITER);
    machines.make_pool(3, 0, "4GiB");
    for machine in [5, 6] {
        let (manager, token) = (machines.address(1), machines.token("benefactor"));
        let join = ["benefactor", "join", &manager, "--token", &token, "--donate", "1GiB", "--floor", "1MiB"];
        machines.ok(machine, &[&join[..], &["--tier", "memory", "--load-limit", "0"]].concat());
    }
    let token = machines.token("client");
    machines.ok(WRITER, &["pool", "join", &machines.address(1), "--token", &token]);
    (2..5).for_each(|machine| machines.shape(machine, 40));
    let all = ["memory:2", "optimistic", "pessimistic"].into_iter().zip(1..).map(|(semantics, seed)| {
        let content = random_bytes(mib * MIB, seed);
        let (committed, followed) = measured(&machines, WRITER, semantics, &content);
        println!("{mib} MiB, semantics={semantics}: committed after {committed:.2} s, on disks after {followed:.2} s");
        committed
    });
    let all: Vec<f64> = all.collect();
    assert!(all[0] < all[1] && all[1] < all[2], "{all:?}");
}
