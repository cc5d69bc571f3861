//! Pools as they are, in one thread: manager, benefactors and clients on a network in memory, in lives that are drawn from seeds.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod content;
mod host;
mod log;
mod model;
mod network;
mod random;
mod work;
mod world;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use stdchk_model::Ino;
use stdchk_model::message::manager::{Change, FileKind};
use work::{Deed, Folder, Worker};

#[test]
fn smoke() {
    let mut world = world::World::new(1);
    world.start_manager();
    (0..3).for_each(|_| world.add_benefactor());
    world.add_client(None);
    world.pass(Duration::from_secs(3)).unwrap();
    let names = model::Names::new(1, 4);
    let made = Arc::new(std::sync::Mutex::new(None));
    let to = made.clone();
    assert!(world.begin(0, |connected| async move {
        let change = Change::Make {
            parent: Ino::ROOT,
            name: "app".into(),
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            target: String::new(),
        };
        *to.lock().unwrap() = Some(connected.pool.change(change).await.unwrap().unwrap().ino);
    }));
    world.pass(Duration::from_secs(1)).unwrap();
    let ino = made.lock().unwrap().unwrap();
    let folders = Arc::new(vec![Folder {
        ino,
        name: "app".into(),
        policy: Default::default(),
        is_safe: AtomicBool::new(false),
    }]);
    let started = std::time::Instant::now();
    for number in 0..40 {
        let (names, folders, log, mut random) =
            (names.clone(), folders.clone(), world.log.clone(), random::Random::new(number));
        let deed = if number % 3 == 2 {
            Deed::Read((0, number as usize % 4))
        } else {
            Deed::Write((0, random.below(4)))
        };
        world.begin(0, |connected| async move {
            Worker { who: "c0".into(), pool: connected.pool, spool: None, names, folders, log, random }
                .work(deed)
                .await
        });
        world.pass(Duration::from_secs(1)).unwrap();
    }
    println!("{:?} for {:?}", started.elapsed(), world.log.now());
    let started = std::time::Instant::now();
    world.pass(Duration::from_secs(100)).unwrap();
    println!("{:?} for 100 s; {}", started.elapsed(), world.log.hash());
}
