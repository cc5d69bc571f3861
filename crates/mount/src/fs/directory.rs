//! Directory streams, with offsets that stay valid while entries come and go.
//!
//! The offset of an entry is its place in the order in which this stream has handed entries out. The stream remembers the
//! names it has handed out; to go on behind one is to ask the manager for the entries that follow that name.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use stdchk_model::exact::to_usize;
use stdchk_model::message::manager::{Attr, DirEntry, FileKind};
use stdchk_model::{ErrorCode, Failure, Ino, User};

use super::nodes::NodeId;
use super::{FileSystem, OVERTAKEN_MAX, Shown};

/// Entries asked for at once: enough for several of the kernel's buffers.
const PAGE_ENTRIES: u32 = 1024;
/// Entries that every directory begins with: `.` and `..`.
const DOTS: u64 = 2;

/// One open directory.
pub(crate) struct Stream {
    ino: Ino,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Names handed out, in order; the offset behind the first is `DOTS + 1`.
    names: Vec<Box<str>>,
    /// Entries behind the last name.
    ahead: VecDeque<DirEntry>,
    /// `changes` of the nodes when `ahead` was asked for.
    asked_at: u64,
    /// Whether `ahead` reaches the end of the directory.
    complete: bool,
}

/// An entry of a directory as it is listed.
pub(crate) struct Listed<'a> {
    pub id: NodeId,
    pub kind: FileKind,
    pub name: &'a str,
    /// Where to go on behind this entry.
    pub next: u64,
    /// Its attributes, if they were asked for: then the kernel holds the inode from now on.
    pub attr: Option<&'a Attr>,
    /// Whether the kernel may believe it for a while.
    pub lasts: bool,
}

/// How handing out entries ended.
enum Handed {
    /// The kernel's buffer is full.
    Full,
    /// There are none ahead any more.
    All,
    /// A change made here overtook the answer: ask again.
    Overtaken,
}

impl State {
    /// Goes to `place`, the number of names handed out before.
    fn seek(&mut self, place: usize) {
        if place < self.names.len() || place == 0 {
            self.names.truncate(place);
            self.ahead.clear();
            self.complete = false;
        }
    }
}

impl FileSystem {
    /// Opens a directory; returns the stream's number, and whether the kernel may list what it has of the directory: that is
    /// as old as the attributes that it believes without asking.
    ///
    /// # Errors
    /// `Stale` if the directory is gone or was renamed elsewhere: the kernel looks for the one that has the name now. Once it is open
    /// nobody could be told: a listing of a directory that is gone is empty. A directory that was removed here can be opened as a working directory.
    pub async fn open_directory(
        &self,
        id: NodeId,
        user: Option<User>,
        ttl: Duration,
        task: u32,
    ) -> Result<(u64, bool), Failure> {
        // No name leads to a directory that was removed here.
        if !self.nodes.lock().is_removed_directory(id) {
            self.check_names(id, task).await?;
        }
        let is_known = self.nodes.lock().opens_directory(id, user, ttl);
        let number = self.number();
        let stream = Stream { ino: id.ino(), state: tokio::sync::Mutex::default() };
        self.streams.lock().insert(number, Arc::new(stream));
        Ok((number, is_known))
    }

    /// Closes a directory.
    pub fn close_directory(&self, number: u64) {
        self.streams.lock().remove(&number);
    }

    /// Lists entries from `offset` until `add` says that it has no room. With `attributes`, every entry is shown to the
    /// kernel as a lookup would.
    pub async fn list(
        &self,
        number: u64,
        offset: u64,
        attributes: bool,
        mut add: impl FnMut(Listed<'_>) -> bool + Send,
    ) -> Result<(), Failure> {
        let stream = self.streams.lock().get(&number).cloned();
        let stream = stream
            .ok_or_else(|| Failure::new(ErrorCode::Stale, format!("no directory stream {number} is open")))?;
        let mut state = stream.state.lock().await;
        for (place, name) in [(0, "."), (1, "..")] {
            let dot = Listed {
                id: NodeId(stream.ino.0),
                kind: FileKind::Directory,
                name,
                next: place + 1,
                attr: None,
                lasts: true,
            };
            if offset <= place && add(dot) {
                return Ok(());
            }
        }
        state.seek(to_usize(offset.saturating_sub(DOTS)));
        let mut overtaken = 0;
        while self.fill(stream.ino, &mut state).await? {
            match self.hand_out(&mut state, attributes, overtaken < OVERTAKEN_MAX, &mut add) {
                Handed::Full => return Ok(()),
                Handed::All => {}
                Handed::Overtaken => overtaken += 1,
            }
        }
        Ok(())
    }

    /// Makes sure that there are entries ahead; false at the end of the directory.
    async fn fill(&self, ino: Ino, state: &mut State) -> Result<bool, Failure> {
        if !state.ahead.is_empty() || state.complete {
            return Ok(!state.ahead.is_empty());
        }
        state.asked_at = self.nodes.lock().changes();
        let after = state.names.last().map(AsRef::as_ref);
        let page = self.pool.read_dir(ino, after, PAGE_ENTRIES).await?;
        state.complete = page.len() < PAGE_ENTRIES as usize;
        state.ahead = page.into();
        Ok(!state.ahead.is_empty())
    }

    /// Hands out entries ahead.
    fn hand_out(
        &self,
        state: &mut State,
        attributes: bool,
        ask_again: bool,
        add: &mut impl FnMut(Listed<'_>) -> bool,
    ) -> Handed {
        while let Some(entry) = state.ahead.pop_front() {
            let asked_at = if ask_again { state.asked_at } else { self.nodes.lock().changes() };
            let shown = attributes.then(|| self.show(entry.attr.clone(), asked_at));
            let (id, attr) = match &shown {
                None => (self.nodes.lock().id_of(entry.attr.ino), None),
                Some(Some(Shown { id, attr, .. })) => (*id, Some(attr)),
                Some(None) => {
                    state.ahead.clear();
                    state.complete = false;
                    return Handed::Overtaken;
                }
            };
            let next = DOTS + state.names.len() as u64 + 1;
            let lasts = shown.as_ref().and_then(Option::as_ref).is_none_or(|shown| shown.lasts);
            let full = add(Listed { id, kind: entry.attr.kind, name: &entry.name, next, attr, lasts });
            if full {
                attr.inspect(|_| self.forget(id, 1));
                state.ahead.push_front(entry);
                return Handed::Full;
            }
            state.names.push(entry.name.into());
        }
        Handed::All
    }
}
