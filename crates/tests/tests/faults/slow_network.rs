//! A network that is the bottleneck: `codec=auto`, as every folder has it, sends less over it where bytes shrink, and
//! leaves alone what doesn't.

use std::time::{Duration, Instant};

use stdchk_tests::{LINK_BURST_BYTES, Machines, random_bytes};

const MIB: usize = 1 << 20;
const LINK_MBIT: u32 = 40;
/// The machine that stores files.
const CLIENT: usize = 4;

fn pool_on_a_slow_network() -> Machines {
    let machines = Machines::with_pool(2);
    machines.ok(CLIENT, &["policy", "set", "app", "redundancy=replicate:1"]);
    machines.shape(CLIENT, LINK_MBIT);
    machines
}

/// Like numbers of a simulation's field: eight bytes each, the upper ones alike, and no mebibyte like another.
fn field(bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 8).flat_map(|at| (0x4050_0000_0000_0000 + (at / 7) * 3).to_le_bytes()).collect()
}

/// What the link needs for so many bytes, if it takes a burst at once.
fn link_needs(bytes: usize) -> Duration {
    let bits = (bytes as u64 - LINK_BURST_BYTES) * 8;
    Duration::from_micros(bits / u64::from(LINK_MBIT))
}

/// Stores the content; the time that took, and the bytes that are stored.
fn put(pool: &Machines, name: &str, content: &[u8]) -> (Duration, u64) {
    let file = pool.path(CLIENT, "source");
    std::fs::write(&file, content).unwrap();
    let file = file.to_str().unwrap();
    let started = Instant::now();
    pool.ok(CLIENT, &["put", file, name]);
    let took = started.elapsed();
    let versions = pool.ok(CLIENT, &["ls", name, "--versions", "--json"]).json();
    assert!(pool.ok(CLIENT, &["get", name, "-o", "-"]).stdout == content);
    let stored = versions[0]["versions"][0]["stored_bytes"].as_u64().unwrap();
    (took, stored)
}

#[test]
fn what_shrinks_is_stored_sooner_than_the_network_could_carry_it() {
    let pool = pool_on_a_slow_network();
    let content = field(64 * MIB);
    let (took, stored) = put(&pool, "app/field", &content);
    assert!(stored < content.len() as u64 / 4, "{stored} bytes are stored");
    let plain = link_needs(content.len());
    assert!(took < plain * 3 / 4, "{took:?}; the link alone would need {plain:?} for the plain bytes");
}

#[test]
fn what_does_not_shrink_is_sent_as_it_is() {
    let pool = pool_on_a_slow_network();
    let content = random_bytes(8 * MIB, 1);
    let (took, stored) = put(&pool, "app/noise", &content);
    assert_eq!(stored, content.len() as u64);
    let least = link_needs(content.len());
    assert!(took >= least * 9 / 10, "{took:?}: the network is faster than {LINK_MBIT} Mbit/s");
}

#[test]
fn the_bandwidth_to_each_benefactor_is_seen_in_what_clients_write() {
    let machines = Machines::start(4);
    machines.make_pool(2, 1, "2GiB");
    machines.ok(CLIENT, &["mkdir", "app"]);
    let policy = ["redundancy=replicate:1", "stripe=2", "codec=store"];
    machines.ok(CLIENT, &[&["policy", "set", "app"][..], &policy].concat());
    // The first benefactor is on machine 2. Each of these is a link of its own.
    for (round, mbit) in (0..).zip([[20, 40], [40, 20]]) {
        (2..4).zip(mbit).for_each(|(machine, mbit)| machines.shape(machine, mbit));
        let file = machines.path(CLIENT, "source");
        for part in 0..6 {
            std::fs::write(&file, random_bytes(12 * MIB, 10 * round + part)).unwrap();
            machines.ok(CLIENT, &["put", file.to_str().unwrap(), "app/noise"]);
            machines.ok(CLIENT, &["rm", "app/noise"]);
        }
        let shown = machines.ok(CLIENT, &["placement", "explain", "app", "--json"]).json();
        let status = machines.ok(CLIENT, &["status", "--json"]).json();
        for (machine, mbit) in (2..4).zip(mbit) {
            let at = format!("10.77.0.{machine}:");
            let of = |one: &&serde_json::Value| one["address"].as_str().unwrap().starts_with(&at);
            let id = status["benefactors"].as_array().unwrap().iter().find(of).unwrap()["id"].clone();
            let host = shown["hosts"].as_array().unwrap().iter().find(|host| host["id"] == id).unwrap();
            let seen = host["bandwidth"].as_f64().unwrap() * 8e-6;
            println!("link of {mbit} Mbit/s: {seen:.1} Mbit/s seen");
            let truth = f64::from(mbit);
            assert!(seen > truth * 0.7 && seen < truth * 1.15, "{seen:.1} Mbit/s seen of {mbit}: {shown}");
        }
    }
}

/// Bytes that each benefactor has.
fn used(machines: &Machines, client: usize) -> Vec<u64> {
    let status = machines.ok(client, &["status", "--json"]).json();
    let all = status["benefactors"].as_array().unwrap();
    all.iter().map(|one| one["used_bytes"].as_u64().unwrap()).collect()
}

#[test]
fn a_client_behind_a_slow_link_spreads_what_it_writes() {
    let machines = Machines::start(7);
    machines.make_pool(5, 1, "1GiB");
    let client = 7;
    machines.ok(client, &["mkdir", "app"]);
    machines.ok(client, &["policy", "set", "app", "redundancy=replicate:1", "codec=store"]);
    let file = machines.path(client, "source");
    let allowed = |bytes: usize, mbit: u32| {
        let link = Duration::from_secs_f64(bytes as f64 * 8e-6 / f64::from(mbit));
        link * 5 / 4 + Duration::from_secs(1)
    };
    // More is on its way at once than the link carries in ten seconds.
    for (mbit, bytes) in [(100, 48 * MIB), (4, 12 * MIB)] {
        machines.shape(client, mbit);
        let (name, content) = (format!("app/noise{mbit}"), random_bytes(bytes, mbit.into()));
        std::fs::write(&file, &content).unwrap();
        let before = used(&machines, client);
        let started = Instant::now();
        machines.ok(client, &["put", file.to_str().unwrap(), &name]);
        let took = started.elapsed();
        let after = used(&machines, client);
        let got: Vec<u64> = after.iter().zip(before).map(|(now, before)| now - before).collect();
        println!("{mbit} Mbit/s: written in {took:?} of {:?}; each got {got:?}", allowed(bytes, mbit));
        assert!(took < allowed(bytes, mbit), "{took:?}");
        // On the slower link what the first one gets keeps others from so much as being connected to.
        let most = *got.iter().max().unwrap();
        assert!(mbit == 4 || most < bytes as u64 * 3 / 10, "one got {most}: {got:?}");
        let started = Instant::now();
        assert!(machines.ok(client, &["get", &name, "-o", "-"]).stdout == content);
        let took = started.elapsed();
        println!("{mbit} Mbit/s: read in {took:?}");
        assert!(took < allowed(bytes, mbit), "{took:?}");
    }
}

#[test]
fn a_writer_does_without_a_host_to_which_little_moves() {
    let machines = Machines::start(6);
    machines.make_pool(4, 1, "1GiB");
    let client = 6;
    machines.ok(client, &["mkdir", "app"]);
    machines.ok(client, &["policy", "set", "app", "redundancy=replicate:1", "codec=store"]);
    (3..7).for_each(|machine| machines.shape(machine, 100));
    // A block takes eight seconds to get there.
    machines.shape(2, 1);
    let mount = machines.mount(client).join("app");
    let write = |name: &str, bytes: usize, seed| {
        let content = random_bytes(bytes, seed);
        let started = Instant::now();
        std::fs::write(mount.join(name), &content).unwrap();
        let took = started.elapsed();
        assert!(std::fs::read(mount.join(name)).unwrap() == content);
        took
    };
    let large = [0, 1].map(|number| write(&format!("large{number}"), 128 * MIB, number));
    let link = Duration::from_secs_f64(128.0 * MIB as f64 * 8e-6 / 100.0);
    println!("128 MiB in {large:?}, the link alone {link:?}");
    let small: Vec<Duration> =
        (0..24).map(|number| write(&format!("small{number}"), MIB / 4, 100 + number)).collect();
    println!("256 KiB in {small:?}");
    assert!(large.iter().all(|took| *took < link * 5 / 4 + Duration::from_secs(4)), "{large:?}");
    assert!(small.iter().sum::<Duration>() < Duration::from_secs(24), "{small:?}");
}

/// What a process of its own needs to read a file, each time anew.
fn reads(machines: &Machines, client: usize, times: usize) -> Vec<Duration> {
    let read = |_| {
        let started = Instant::now();
        machines.ok(client, &["get", "app/noise", "-o", "/dev/null"]);
        started.elapsed()
    };
    (0..times).map(read).collect()
}

#[test]
fn readers_do_without_hosts_behind_slow_links() {
    let machines = Machines::start(7);
    machines.make_pool(5, 0, "256MiB");
    let client = 7;
    machines.ok(client, &["pool", "join", &machines.address(1), "--token", &machines.token("client")]);
    machines.ok(client, &["mkdir", "app"]);
    machines.ok(
        client,
        &["policy", "set", "app", "redundancy=erasure:3,2", "semantics=pessimistic", "codec=store"],
    );
    let file = machines.path(client, "source");
    std::fs::write(&file, random_bytes(32 * MIB, 1)).unwrap();
    machines.ok(client, &["put", file.to_str().unwrap(), "app/noise"]);
    (2..8).for_each(|machine| machines.shape(machine, 100));
    let mut healthy = reads(&machines, client, 3);
    healthy.sort_unstable();
    let healthy = healthy[1];
    for slow in [1, 2] {
        machines.shape(1 + slow, 2);
        let mut took = reads(&machines, client, 5);
        println!("{slow} of 5 hosts behind 2 Mbit/s: {took:?}; healthy {healthy:?}");
        took.sort_unstable();
        assert!(took[2] < healthy * 3 / 2, "{took:?} with {slow} slow hosts, {healthy:?} without");
        // Beside other work one may wait once more; never for the time after which a benefactor counts as gone.
        assert!(took[4] < healthy * 2 + Duration::from_secs(5), "{took:?} with {slow} slow hosts");
    }
}
