//! How often a mount asks the manager: each question is a round trip before the program goes on.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::common::relay::Relay;
use crate::common::{TestMount, TestPool, noise};

/// Longer than any test takes: nothing that the kernel was told is asked for again.
const LONG: Duration = Duration::from_secs(3600);

/// A mount that a relay listens to.
fn listened(pool: &TestPool) -> (TestMount, Relay) {
    let relay = Relay::to(pool.manager());
    let mount = pool.mount_with(|config| {
        config.client.manager = relay.address.clone();
        config.ttl = LONG;
    });
    (mount, relay)
}

/// Reads the first byte of a file that the mount has not heard of before; the questions that were asked for it. Without those after
/// benefactors: on a busy machine one answers late, and the mount looks who else there is.
fn first_byte(mount: &TestMount, relay: &Relay, path: &str) -> (u8, Vec<String>) {
    relay.asked();
    let file = File::open(mount.at(path)).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    let mut asked = relay.asked();
    asked.retain(|question| question != "Benefactors");
    (byte[0], asked)
}

#[test]
fn the_first_byte_of_a_file_takes_three_questions_and_one_more_if_its_map_lies_in_chunks() {
    let pool = TestPool::start(2);
    let writer = pool.mount();
    fs::create_dir(writer.at("app")).unwrap();
    pool.set_policy("app", "cutter", "fsch:512");
    // Every second piece is a hole, so that each of the others is an extent of the map.
    let mut content = noise(3, 4 << 20);
    content.chunks_mut(1024).for_each(|pieces| pieces[512..].fill(0));
    fs::write(writer.at("large"), noise(1, 3 << 20)).unwrap();
    fs::write(writer.at("app/small"), noise(2, 100)).unwrap();
    fs::write(writer.at("app/scattered"), &content).unwrap();
    let (mount, relay) = listened(&pool);
    // After this the mount knows where the benefactors are.
    assert_eq!(first_byte(&mount, &relay, "large").0, noise(1, 1)[0]);
    fs::metadata(mount.at("app")).unwrap();
    assert_eq!(first_byte(&mount, &relay, "app/small").1, ["Lookup", "OpenVersion", "Locate"]);
    let (byte, asked) = first_byte(&mount, &relay, "app/scattered");
    assert_eq!(byte, content[0]);
    assert_eq!(asked[..4], ["Lookup", "OpenVersion", "Locate", "Locate"]);
    // The kernel reads on by requests of its own, which ask side by side.
    assert!(asked.len() <= 8 && asked[4..].iter().all(|question| question == "Locate"), "{asked:?}");
    // Nothing that the kernel reads on is under way any more once it has the whole file.
    assert!(fs::read(mount.at("app/scattered")).unwrap() == content);
    assert_eq!(
        first_byte(&mount, &relay, "app/small").1,
        ["OpenVersion"],
        "the rest is known, and the kernel has the byte"
    );
}

/// Everything that `ls -lR` looks at.
fn look_at(mount: &TestMount) -> Vec<(String, u64)> {
    let mut seen = Vec::new();
    for folder in fs::read_dir(&mount.path).unwrap() {
        for file in fs::read_dir(folder.unwrap().path()).unwrap() {
            let file = file.unwrap();
            let size = fs::symlink_metadata(file.path()).unwrap().len();
            seen.push((file.file_name().into_string().unwrap(), size));
        }
    }
    seen.sort();
    seen
}

#[test]
fn a_tree_that_was_looked_at_is_shown_again_with_two_questions_for_each_directory_at_most_until_it_changes() {
    let pool = TestPool::start(1);
    let writer = pool.mount();
    for folder in ["one", "two"] {
        fs::create_dir(writer.at(folder)).unwrap();
        for number in 0..40 {
            fs::write(writer.at(&format!("{folder}/file{number}")), vec![7; number + 1]).unwrap();
        }
    }
    let (mount, relay) = listened(&pool);
    let first = look_at(&mount);
    assert_eq!(first.len(), 80);
    assert!(relay.asked().contains(&"ReadDir".to_owned()));
    assert_eq!(look_at(&mount), first);
    // The mount asks whether a directory that is opened is still there, and the kernel for its access time since it was listed.
    let asked = relay.asked();
    assert!(asked.len() <= 6 && asked.iter().all(|question| question == "GetAttr"), "{asked:?}");
    fs::write(mount.at("one/new"), "new").unwrap();
    fs::remove_file(mount.at("two/file0")).unwrap();
    fs::rename(mount.at("two/file1"), mount.at("two/renamed")).unwrap();
    let names = |seen: Vec<(String, u64)>| seen.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let now = names(look_at(&mount));
    assert_eq!(now.len(), 80);
    assert!(["new", "renamed"].iter().all(|name| now.contains(&(*name).to_owned())), "{now:?}");
}
