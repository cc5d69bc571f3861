//! Random programs of file calls, with checkpoints and restores anywhere, against the plainest model there is: a copy
//! of the tree taken at each checkpoint. Several processes take part (watches over one store, each with its own
//! knowledge), and every restore may be cut off and continued.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod model;
mod process;
mod steps;
mod world;

use proptest::prelude::*;

use steps::{Access, How, PROCESSES, Renaming, Step, any_step};
use world::World;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_restore_and_every_look_back_gives_the_tree_of_its_checkpoint(clones in any::<bool>(), steps in prop::collection::vec((0..PROCESSES, any_step()), 1..80)) {
        let mut world = World::new(clones);
        for (who, step) in &steps {
            world.step(*who, step);
        }
        world.restore_newest_and_oldest();
    }
}

#[test]
fn old_contents_of_a_large_file_are_shared_with_one_kept_file_and_come_back() {
    let mut world = World::new(true);
    let both = How { access: Access::Both, create: false, cut: false, append: false, exclusive: false };
    world.step(0, &Step::Open { slot: 0, name: 0, how: both });
    world.step(0, &Step::WriteAt { slot: 0, offset: 10, length: 5000 });
    world.step(0, &Step::WriteAt { slot: 0, offset: 69_000, length: 5000 });
    assert_eq!(world.count_kept(), 1);
    world.step(0, &Step::Look);
    world.restore(0, None);
    assert_eq!(world.count_kept(), 0);
}

#[test]
fn a_file_comes_back_that_was_deleted_from_within_a_directory_that_is_gone_too() {
    let mut world = World::new(false);
    world.step(1, &Step::MakeDirectory { name: 6 });
    world.step(0, &Step::Rename { from: 3, to: 4, how: Renaming::Plain });
    world.step(0, &Step::Unlink { name: 4 });
    world.step(1, &Step::RemoveDirectory { name: 6 });
    world.restore(0, None);
}

#[test]
fn a_file_that_was_opened_before_it_had_a_name_goes_back_under_the_name_that_it_was_given() {
    let mut world = World::new(false);
    world.step(0, &Step::OpenUnnamed { slot: 0, directory: 5 });
    world.step(0, &Step::Write { slot: 0, length: 5000 });
    world.step(0, &Step::NameOpened { slot: 0, name: 2 });
    world.step(0, &Step::Checkpoint);
    world.step(0, &Step::WriteAt { slot: 0, offset: 10, length: 100 });
    world.step(0, &Step::Look);
    world.restore(0, None);
}

#[test]
fn a_checkpoint_passes_over_names_that_lead_in_a_circle_by_now() {
    let mut world = World::new(false);
    world.step(0, &Step::MakeDirectory { name: 6 });
    world.step(0, &Step::Rename { from: 5, to: 10, how: Renaming::Exchange });
    world.step(0, &Step::Checkpoint);
    world.restore(1, None);
}

#[test]
fn creating_a_file_by_a_name_that_ends_with_a_slash_is_left_to_the_kernel() {
    let mut world = World::new(false);
    let create = How { access: Access::Write, create: true, cut: false, append: false, exclusive: false };
    world.step(0, &Step::Symlink { name: 6, target: 0 });
    world.step(0, &Step::Open { slot: 0, name: 14, how: create });
    world.restore(0, None);
}
