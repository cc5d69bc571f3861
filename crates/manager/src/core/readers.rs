//! Which versions clients go on reading: soft state that they keep alive, as their sessions.
//!
//! | event | the version of a session |
//! |---|---|
//! | a client opens it | is read by that client |
//! | the client tells what it reads, without it | is read no more, unless it was opened within [`OPENED_MS`]: the two may have overtaken each other |
//! | the client leaves, or is silent for a lease | is read no more |
//! | the manager starts anew | is read once the client tells |

use std::collections::HashMap;

use stdchk_model::{ClientId, SessionId};

/// Time in which a message that says what is read may be older than an opening, milliseconds.
const OPENED_MS: u64 = 10_000;
/// Most versions of one client that are known to be read. What it opens beyond isn't waited for.
const READ_MAX: usize = 65_536;

/// The clients that read.
#[derive(Debug, Default)]
pub(super) struct Readers(HashMap<ClientId, Reader>);

#[derive(Debug, Default)]
struct Reader {
    heard_ms: u64,
    /// When each was opened last, milliseconds of the manager's life; 0: long ago.
    sessions: HashMap<SessionId, u64>,
}

impl Readers {
    /// A client has opened the version that a session committed.
    pub fn opens(&mut self, client: ClientId, session: SessionId, now_ms: u64) {
        let reader = self.0.entry(client).or_default();
        reader.heard_ms = now_ms;
        if reader.sessions.len() < READ_MAX {
            reader.sessions.insert(session, now_ms);
        }
    }

    /// A client tells what it reads.
    pub fn reads(&mut self, client: ClientId, sessions: Vec<SessionId>, now_ms: u64) {
        let reader = self.0.entry(client).or_default();
        reader.heard_ms = now_ms;
        reader.sessions.retain(|_, opened_ms| now_ms.saturating_sub(*opened_ms) < OPENED_MS);
        for session in sessions.into_iter().take(READ_MAX) {
            // It was opened long ago: it counts until the next message.
            reader.sessions.entry(session).or_insert(0);
        }
    }

    /// A client reads no more.
    pub fn leave(&mut self, client: ClientId) {
        self.0.remove(&client);
    }

    /// Clients that were silent for so long read no more.
    pub fn tick(&mut self, now_ms: u64, lease_ms: u64) {
        self.0.retain(|_, reader| now_ms.saturating_sub(reader.heard_ms) < lease_ms);
    }

    /// Whether somebody reads the version that a session committed.
    pub fn is_read(&self, session: SessionId) -> bool {
        self.0.values().any(|reader| reader.sessions.contains_key(&session))
    }
}
