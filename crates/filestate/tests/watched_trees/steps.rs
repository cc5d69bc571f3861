//! What programs do with files, one call at a time, and how often.

use proptest::prelude::*;

/// Names of the tree; some lead through the symbolic link `l`.
pub const NAMES: [&str; 15] =
    ["a", "b", "d/a", "d/b", "d/e/a", "d", "d/e", "b/a", "b/e", "b/e/a", "l", "l/a", "l/e", "l/e/a", "d/e/"];
/// Where symbolic links lead.
pub const TARGETS: [&str; 4] = ["nowhere", "d", "a", "./b"];
/// Descriptors of each process.
pub const DESCRIPTORS: usize = 4;
/// Processes of the run.
pub const PROCESSES: usize = 3;

/// How a file is opened.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub access: Access,
    pub create: bool,
    pub cut: bool,
    pub append: bool,
    pub exclusive: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Write,
    Both,
    Read,
}

#[derive(Debug, Clone, Copy)]
pub enum Renaming {
    Plain,
    Exchange,
    NoReplace,
}

#[derive(Debug, Clone)]
pub enum Step {
    Open { slot: usize, name: usize, how: How },
    OpenUnnamed { slot: usize, directory: usize },
    NameOpened { slot: usize, name: usize },
    Close { slot: usize },
    Duplicate { from: usize, to: usize },
    Inherit { parent: usize, slot: usize },
    Append { slot: usize, append: bool },
    Write { slot: usize, length: usize },
    WriteAt { slot: usize, offset: u64, length: usize },
    Punch { slot: usize, offset: u64, length: u64 },
    Cut { slot: usize, size: u64 },
    CutPath { name: usize, size: u64 },
    Touch { name: usize },
    Unlink { name: usize },
    MakeDirectory { name: usize },
    RemoveDirectory { name: usize },
    Rename { from: usize, to: usize, how: Renaming },
    Link { from: usize, to: usize },
    Symlink { name: usize, target: usize },
    Mode { name: usize, read_only: bool },
    ModeOpened { slot: usize, read_only: bool },
    Die,
    Checkpoint,
    Look,
    Restore { back: usize, cut_off: Option<(usize, bool)> },
}

fn any_how() -> impl Strategy<Value = How> {
    let access = prop_oneof![5 => Just(Access::Write), 3 => Just(Access::Both), 1 => Just(Access::Read)];
    (access, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(access, create, cut, append, exclusive)| How {
            access,
            create,
            cut,
            append,
            exclusive: create && exclusive,
        },
    )
}

fn any_renaming() -> impl Strategy<Value = Renaming> {
    prop_oneof![6 => Just(Renaming::Plain), 2 => Just(Renaming::Exchange), 1 => Just(Renaming::NoReplace)]
}

/// A change of open files.
fn any_step_on_contents() -> impl Strategy<Value = Step> {
    let (name, slot) = (0..NAMES.len(), 0..DESCRIPTORS);
    // Some files become so large that their blocks are shared.
    let size = prop_oneof![8 => 0u64..9000, 1 => 60_000u64..150_000];
    prop_oneof![
        6 => (slot.clone(), 0usize..6000).prop_map(|(slot, length)| Step::Write { slot, length }),
        6 => (slot.clone(), size.clone(), 0usize..6000)
            .prop_map(|(slot, offset, length)| Step::WriteAt { slot, offset, length }),
        1 => (slot.clone(), size.clone(), 1u64..6000)
            .prop_map(|(slot, offset, length)| Step::Punch { slot, offset, length }),
        2 => (slot, size.clone()).prop_map(|(slot, size)| Step::Cut { slot, size }),
        2 => (name.clone(), size).prop_map(|(name, size)| Step::CutPath { name, size }),
        1 => name.prop_map(|name| Step::Touch { name }),
    ]
}

/// A change of descriptors.
fn any_step_on_descriptors() -> impl Strategy<Value = Step> {
    let (name, slot) = (0..NAMES.len(), 0..DESCRIPTORS);
    prop_oneof![
        8 => (slot.clone(), name.clone(), any_how()).prop_map(|(slot, name, how)| Step::Open { slot, name, how }),
        1 => (slot.clone(), name.clone()).prop_map(|(slot, directory)| Step::OpenUnnamed { slot, directory }),
        1 => (slot.clone(), name).prop_map(|(slot, name)| Step::NameOpened { slot, name }),
        2 => slot.clone().prop_map(|slot| Step::Close { slot }),
        1 => (slot.clone(), slot.clone()).prop_map(|(from, to)| Step::Duplicate { from, to }),
        1 => (0..PROCESSES, slot.clone()).prop_map(|(parent, slot)| Step::Inherit { parent, slot }),
        1 => (slot.clone(), any::<bool>()).prop_map(|(slot, append)| Step::Append { slot, append }),
        1 => (slot, any::<bool>()).prop_map(|(slot, read_only)| Step::ModeOpened { slot, read_only }),
    ]
}

/// A change of names.
fn any_step_on_names() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    prop_oneof![
        4 => name.clone().prop_map(|name| Step::Unlink { name }),
        4 => name.clone().prop_map(|name| Step::MakeDirectory { name }),
        2 => name.clone().prop_map(|name| Step::RemoveDirectory { name }),
        6 => (name.clone(), name.clone(), any_renaming()).prop_map(|(from, to, how)| Step::Rename { from, to, how }),
        3 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::Link { from, to }),
        1 => (name.clone(), 0..TARGETS.len()).prop_map(|(name, target)| Step::Symlink { name, target }),
        1 => (name, any::<bool>()).prop_map(|(name, read_only)| Step::Mode { name, read_only }),
    ]
}

/// Any step.
pub fn any_step() -> impl Strategy<Value = Step> {
    let cut_off = prop::option::of((0usize..30, any::<bool>()));
    prop_oneof![
        18 => any_step_on_contents(),
        16 => any_step_on_descriptors(),
        21 => any_step_on_names(),
        1 => Just(Step::Die),
        4 => Just(Step::Checkpoint),
        2 => Just(Step::Look),
        3 => (0usize..4, cut_off).prop_map(|(back, cut_off)| Step::Restore { back, cut_off }),
    ]
}
