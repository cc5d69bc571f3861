//! The page that the processes of a run share: which interval it is, who is inside a file call, and who holds the
//! world still while a checkpoint is taken.
//!
//! The one idea: every process has a slot with a count of the calls in flight. A call counts itself in, looks whether
//! the world is frozen, and if so counts itself out again and waits; a checkpoint freezes first and then waits for the
//! counts to drop to zero. Two atomic additions per call, no system call, and a killed process is recognised because
//! its slot names it. This is the only module with `unsafe`: it maps the page.

#![expect(unsafe_code, reason = "shared memory between processes is mapped here and nowhere else")]

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Pid;

use stdchk_model::exact::part;

use crate::error::{Error, Result};
use crate::index::read_whole;
use crate::store::{DIRECTORY, Store};

/// The name of the page in a store.
const NAME: &str = "control";
/// How many processes may take part at one time: 4096, a page of slots for each of the largest nodes' processors.
const SLOTS: usize = 4096;
/// How long a checkpoint waits for a call in flight: far beyond any write to a working disk.
const FREEZE_WAIT_MAX: Duration = Duration::from_secs(20);
/// How often a waiting call looks whether the freezer still lives.
const THAW_POLL: Duration = Duration::from_micros(200);
/// Stands for the freezer when a restore was cut off or failed: the tree is between two states, and no process number
/// is that large.
const BETWEEN_STATES: u32 = u32::MAX;

/// The layout of the page. All of it may be zero: that is a fresh page.
#[repr(C)]
struct Page {
    /// Grows at every checkpoint and every restore: what processes know about an interval is void when it does.
    generation: AtomicU64,
    /// The checkpoint index that opened the current interval.
    interval: AtomicU64,
    /// Files kept so far: numbers their names.
    kept: AtomicU64,
    /// The process that holds the world still, [`BETWEEN_STATES`], or 0.
    freezer: AtomicU32,
    /// 1 while the freezer takes the tree from one state to another.
    restoring: AtomicU32,
    slots: [Slot; SLOTS],
    /// Restores begun so far.
    restores: AtomicU64,
}

#[repr(C)]
struct Slot {
    /// The process that owns the slot, or 0.
    pid: AtomicU32,
    /// Its calls in flight.
    active: AtomicU32,
}

/// The mapped page, and this process's slot in it.
pub struct Control {
    page: NonNull<Page>,
    slot: AtomicU32,
}

// SAFETY: the page is only ever read and written through atomics, and stays mapped as long as the value lives.
unsafe impl Send for Control {}
// SAFETY: as for `Send`.
unsafe impl Sync for Control {}

impl std::fmt::Debug for Control {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Control")
            .field("generation", &self.generation())
            .field("interval", &self.interval())
            .finish()
    }
}

thread_local! {
    /// Calls of this thread in flight. Above one, a signal handler's call interrupts another one of the same thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is inside a call.
pub fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// A call in flight: no checkpoint is taken while it lives. It belongs to its thread.
#[derive(Debug)]
pub struct Inside<'control>(&'control Control, PhantomData<*const ()>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // In this order: a handler that interrupts between the two must not take itself for nested in a call.
        DEPTH.set(DEPTH.get().saturating_sub(1));
        self.0.own_slot().active.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The world held still.
#[derive(Debug)]
pub struct Frozen<'control>(&'control Control);

impl Frozen<'_> {
    /// The tree is about to leave the state that it is in. Unless [`Frozen::arrive`] follows, all later calls fail.
    pub fn depart(&self) {
        self.0.page().restores.fetch_add(1, Ordering::SeqCst);
        self.0.page().restoring.store(1, Ordering::SeqCst);
    }

    /// The tree is in one state again.
    pub fn arrive(&self) {
        self.0.page().restoring.store(0, Ordering::SeqCst);
    }

    /// Whether the tree is between two states: a restore was cut off.
    pub fn is_between_states(&self) -> bool {
        self.0.page().restoring.load(Ordering::SeqCst) != 0
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let left = if self.is_between_states() { BETWEEN_STATES } else { 0 };
        self.0.page().freezer.store(left, Ordering::SeqCst);
    }
}

impl Control {
    /// Maps the page of `store`, creating it where there is none, and takes a slot.
    pub fn open(store: &Store) -> Result<Self> {
        let shown = store.path().join(NAME);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(store.directory(), NAME, flags, Mode::from_raw_mode(0o600));
        let file = file.map_err(Error::system("open", &shown))?;
        make_room(&file).map_err(Error::system("size", &shown))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping of a file that is at least a `Page` long; no other reference to it exists here.
        let mapped = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), size_of::<Page>(), protection, MapFlags::SHARED, &file, 0)
        };
        let mapped = mapped.map_err(Error::system("map", &shown))?;
        let page = NonNull::new(mapped.cast::<Page>())
            .ok_or_else(|| Error::Refused("the system mapped the control page at address 0".into()))?;
        let control = Self { page, slot: AtomicU32::new(0) };
        control.take_slot()?;
        Ok(control)
    }

    /// Removes the page: the next run begins with a fresh one.
    pub fn remove(store: &Store) -> Result<()> {
        crate::index::remove_file(store.directory(), &store.path(), NAME)
    }

    /// The processes of a run on `store` that still live: those whose slot is taken and that have the page mapped.
    #[expect(clippy::host_endian_bytes, reason = "the page is this machine's own memory")]
    pub fn participants(store: &Store) -> Result<Vec<u32>> {
        let shown = store.path().join(NAME);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let (bytes, inode) = match rustix::fs::openat(store.directory(), NAME, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            other => other
                .and_then(|file| Ok((read_whole(&file)?, rustix::fs::fstat(&file)?.st_ino)))
                .map_err(Error::system("read", &shown))?,
        };
        // A page that is not as long yet was never mapped: it gets its length first.
        let Some(slots) = bytes.get(offset_of!(Page, slots)..) else { return Ok(Vec::new()) };
        let slots = slots.chunks_exact(size_of::<Slot>());
        let pids = slots.filter_map(|slot| Some(u32::from_ne_bytes(slot.first_chunk().copied()?)));
        Ok(pids.filter(|pid| *pid != 0 && is_alive(*pid) && maps(*pid, inode)).collect())
    }

    /// The processes that take part, without a look whether they still live.
    pub fn processes(&self) -> Vec<u32> {
        let owners = self.page().slots.iter().map(|slot| slot.pid.load(Ordering::SeqCst));
        owners.filter(|owner| *owner != 0).collect()
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped in `open`, unmapped only in `drop`; all fields are atomics, so sharing them is sound.
        unsafe { self.page.as_ref() }
    }

    /// Takes a slot for this process: at the start, and in a child after `fork`.
    pub fn take_slot(&self) -> Result<()> {
        let own = own_pid();
        // One that is its own already is from before an `exec`: nobody is inside any more.
        let taken = self.take_slot_where(own, |owner| owner == 0 || owner == own)
            || self.take_slot_where(own, |owner| !is_alive(owner));
        if taken {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "more than {SLOTS} processes take part in one run; protect them in smaller groups"
        )))
    }

    fn take_slot_where(&self, own: u32, is_free: impl Fn(u32) -> bool) -> bool {
        (0u32..).zip(&self.page().slots).any(|(number, slot)| {
            let owner = slot.pid.load(Ordering::SeqCst);
            let exchange = || slot.pid.compare_exchange(owner, own, Ordering::SeqCst, Ordering::SeqCst);
            let taken = is_free(owner) && exchange().is_ok();
            if taken {
                // Not 0 where a signal handler forked during a call: the child will leave that call as well.
                slot.active.store(DEPTH.get(), Ordering::SeqCst);
                self.slot.store(number, Ordering::SeqCst);
            }
            taken
        })
    }

    fn own_slot(&self) -> &Slot {
        part(&self.page().slots, self.slot.load(Ordering::Relaxed) as usize)
    }

    /// Grows whenever what is known about the current interval becomes void.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.page().generation.load(Ordering::Acquire)
    }

    /// The checkpoint index that opened the current interval.
    pub fn interval(&self) -> u64 {
        self.page().interval.load(Ordering::Acquire)
    }

    /// How many restores have begun in this run: who reads files and log together sees by it that both went back meanwhile.
    pub fn restores(&self) -> u64 {
        self.page().restores.load(Ordering::SeqCst)
    }

    /// A number that no other kept file of this interval has.
    pub fn number_kept(&self) -> u64 {
        self.page().kept.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes what every process knows about the current interval void: something stated did not happen.
    pub fn void_knowledge(&self) {
        self.page().generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Opens a new interval after the checkpoint `index`. The world must be frozen.
    pub fn begin_interval(&self, world: &Frozen<'_>, index: u64) {
        self.page().interval.store(index, Ordering::SeqCst);
        self.void_knowledge();
        world.arrive();
    }

    /// Enters a call that changes the tree; waits while the world is frozen. A call that interrupts one of the same
    /// thread does not wait, because the freezer waits for the outer one. Fails with `EIO` between two states.
    #[inline]
    pub fn enter(&self) -> std::result::Result<Inside<'_>, Errno> {
        let slot = self.own_slot();
        loop {
            slot.active.fetch_add(1, Ordering::SeqCst);
            if is_inside() || self.page().freezer.load(Ordering::SeqCst) == 0 {
                DEPTH.set(DEPTH.get() + 1);
                return Ok(Inside(self, PhantomData));
            }
            slot.active.fetch_sub(1, Ordering::SeqCst);
            self.wait_for_thaw()?;
        }
    }

    #[cold]
    fn wait_for_thaw(&self) -> std::result::Result<(), Errno> {
        let page = self.page();
        let holder = page.freezer.load(Ordering::SeqCst);
        if holder == 0 {
            return Ok(());
        }
        if is_alive(holder) {
            pause(THAW_POLL);
            return Ok(());
        }
        if page.restoring.load(Ordering::SeqCst) != 0 {
            return Err(Errno::IO);
        }
        // Killed while it held the world. If the line of its checkpoint is there, what was saved before that line does
        // not count for what is changed after it.
        self.void_knowledge();
        let _ = page.freezer.compare_exchange(holder, 0, Ordering::SeqCst, Ordering::SeqCst);
        Ok(())
    }

    /// Holds the world still for a change of what is known: a checkpoint, a restore. The caller must not be inside a call.
    pub fn freeze(&self) -> Result<Frozen<'_>> {
        let frozen = self.hold()?;
        // Whatever becomes of that change: at worst something is stated twice.
        self.void_knowledge();
        Ok(frozen)
    }

    /// Holds the world still for a look at it: returns when no process is inside a call. The caller must not be inside one
    /// itself.
    pub fn hold(&self) -> Result<Frozen<'_>> {
        let began = Instant::now();
        let freezer = &self.page().freezer;
        loop {
            let holder = freezer.load(Ordering::SeqCst);
            let free = holder == 0 || !is_alive(holder);
            if free && freezer.compare_exchange(holder, own_pid(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
            {
                if holder != 0 {
                    // Killed in the midst, as in `wait_for_thaw`.
                    self.void_knowledge();
                }
                break;
            }
            if began.elapsed() > FREEZE_WAIT_MAX {
                return Err(busy(holder, began));
            }
            pause(THAW_POLL);
        }
        let frozen = Frozen(self);
        for slot in &self.page().slots {
            wait_until_out(slot, began)?;
        }
        Ok(frozen)
    }
}

/// Makes the file as long as the page, with blocks of its own: on a disk that fills up later, a process that is the first to
/// touch a part of the page would be killed.
fn make_room(file: &rustix::fd::OwnedFd) -> rustix::io::Result<()> {
    let wanted = size_of::<Page>() as u64;
    if rustix::fs::fstat(file)?.st_size.cast_unsigned() >= wanted {
        return Ok(());
    }
    // Blocks first: a file that has its length counts as one that has them.
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, wanted) {
        Err(Errno::OPNOTSUPP) => rustix::fs::ftruncate(file, wanted),
        other => other,
    }
}

/// Whether the process has the page mapped, whatever the tree is called by now.
fn maps(pid: u32, inode: u64) -> bool {
    let end = format!("{DIRECTORY}/{NAME}");
    let is_it = |line: &[u8]| {
        let fields = String::from_utf8_lossy(line);
        line.ends_with(end.as_bytes()) && fields.split_ascii_whitespace().nth(4) == Some(&inode.to_string())
    };
    let maps = rustix::fs::open(format!("/proc/{pid}/maps"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    // A process that can't be looked at has ended, or is another user's and no program of the run.
    let Ok(text) = maps.and_then(|file| read_whole(&file)) else { return false };
    text.split(|byte| *byte == b'\n').any(is_it)
}

impl Drop for Control {
    fn drop(&mut self) {
        self.own_slot().pid.store(0, Ordering::SeqCst);
        // SAFETY: the mapping made in `open`; nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), size_of::<Page>()) };
    }
}

fn wait_until_out(slot: &Slot, began: Instant) -> Result<()> {
    while slot.active.load(Ordering::SeqCst) != 0 {
        let pid = slot.pid.load(Ordering::SeqCst);
        if pid == 0 || !is_alive(pid) {
            return Ok(());
        }
        if began.elapsed() > FREEZE_WAIT_MAX {
            return Err(busy(pid, began));
        }
        pause(THAW_POLL / 10);
    }
    Ok(())
}

fn busy(pid: u32, began: Instant) -> Error {
    Error::Busy { pid, waited_s: began.elapsed().as_secs() }
}

fn pause(time: Duration) {
    let wanted = rustix::thread::Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    let _ = rustix::thread::nanosleep(&wanted);
}

pub(crate) fn own_pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// Whether the process exists, a zombie not counted: it will never finish a call.
pub(crate) fn is_alive(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    rustix::process::test_kill_process(pid) != Err(Errno::SRCH) && !is_zombie(pid)
}

fn is_zombie(pid: Pid) -> bool {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let mut bytes = [0; 256];
    // A process that is gone by now is no zombie.
    let Ok(count) = rustix::io::read(&file, &mut bytes) else { return false };
    // The state follows the command's name, which is in parentheses and may contain anything.
    let text = part(&bytes, ..count);
    let after = text.iter().rposition(|byte| *byte == b')').and_then(|at| text.get(at + 2));
    matches!(after, Some(b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Options;
    use std::sync::atomic::AtomicBool;

    fn control() -> (tempfile::TempDir, Control) {
        let root = tempfile::tempdir().unwrap();
        let control = Control::open(&Store::create(root.path(), &Options::default()).unwrap()).unwrap();
        (root, control)
    }

    #[test]
    fn nobody_is_inside_while_the_world_is_frozen() {
        let (_root, control) = control();
        let (stop, inside) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        let _call = control.enter().unwrap();
                        inside.fetch_add(1, Ordering::SeqCst);
                        std::hint::spin_loop();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            for round in 1..=50 {
                let frozen = control.freeze().unwrap();
                assert_eq!(inside.load(Ordering::SeqCst), 0);
                control.begin_interval(&frozen, round);
            }
            stop.store(true, Ordering::SeqCst);
        });
        assert_eq!(control.interval(), 50);
    }

    #[test]
    fn the_page_has_all_its_blocks_before_anybody_uses_it() {
        use std::os::unix::fs::MetadataExt;
        let (root, _control) = control();
        let about = root.path().join(".stdchk-files").join(NAME).metadata().unwrap();
        assert!(about.blocks() * 512 >= size_of::<Page>() as u64, "{} blocks", about.blocks());
    }

    fn dead_process() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn a_freezer_that_died_holds_nobody_and_leaves_nothing_known() {
        let (_root, control) = control();
        control.page().freezer.store(dead_process(), Ordering::SeqCst);
        let before = control.generation();
        drop(control.enter().unwrap());
        assert_eq!(control.page().freezer.load(Ordering::SeqCst), 0);
        assert!(control.generation() > before, "its checkpoint may exist: what was known before it is void");
    }

    #[test]
    fn a_restore_that_was_cut_off_lets_nobody_change_files_until_it_is_completed() {
        let (_root, control) = control();
        let world = control.freeze().unwrap();
        world.depart();
        drop(world);
        assert_eq!(control.enter().unwrap_err(), Errno::IO);
        let world = control.freeze().unwrap();
        assert!(world.is_between_states());
        control.begin_interval(&world, 3);
        drop(world);
        assert!(control.enter().is_ok());
    }

    #[test]
    fn a_call_inside_a_call_of_the_same_thread_does_not_wait() {
        let (_root, control) = control();
        let outer = control.enter().unwrap();
        control.page().freezer.store(own_pid(), Ordering::SeqCst);
        drop(control.enter().unwrap());
        control.page().freezer.store(0, Ordering::SeqCst);
        drop(outer);
        assert!(!is_inside());
    }

    #[test]
    fn the_processes_that_take_part_are_those_that_map_the_page() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(root.path(), &Options::default()).unwrap();
        assert_eq!(Control::participants(&store).unwrap(), []);
        let control = Control::open(&store).unwrap();
        control.page().slots[5].pid.store(dead_process(), Ordering::SeqCst);
        control.page().slots[6].pid.store(1, Ordering::SeqCst);
        assert_eq!(Control::participants(&store).unwrap(), [own_pid()]);
    }

    #[test]
    fn a_process_that_died_inside_a_call_does_not_hold_a_checkpoint_up() {
        let (_root, control) = control();
        control.page().slots[7].pid.store(dead_process(), Ordering::SeqCst);
        control.page().slots[7].active.store(1, Ordering::SeqCst);
        assert!(control.freeze().is_ok());
    }
}
