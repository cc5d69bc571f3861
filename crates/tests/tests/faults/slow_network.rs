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
