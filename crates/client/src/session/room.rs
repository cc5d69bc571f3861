//! Memory of the window that its user fills: what is stored from a file needs no copy on its way in.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use stdchk_model::exact::part;
use stdchk_model::{ErrorCode, Failure};

use super::Session;
use super::cell::{Cell, Dirty, Held};

/// Memory for one cell of a file; its content is unspecified until it is filled.
///
/// Who holds one must not wait for another: the window may have no more.
#[derive(Debug)]
pub struct Room {
    held: Held,
}

impl Room {
    /// The memory, as long as a cell.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.held.bytes()
    }
}

impl Session {
    /// Memory for a cell; waits while the window is full.
    ///
    /// # Errors
    /// Whatever made the session fail before.
    pub async fn room(self: &Arc<Self>) -> Result<Room, Failure> {
        self.state.lock().failure.clone().map_or(Ok(()), Err)?;
        Ok(Room { held: self.take_window(self.cell_bytes).await })
    }

    /// Memory for a cell, if the window has some now.
    pub fn try_room(&self) -> Option<Room> {
        let take = || self.try_take_window(self.cell_bytes);
        // What is stored already makes room, as for who waits.
        let held = take().or_else(|| self.pool.release_stored().then(take).flatten());
        held.map(|held| Room { held })
    }

    /// Writes the first `length` bytes of `room` at `offset`: without a copy where a cell begins of which nothing is
    /// written yet.
    ///
    /// # Errors
    /// Those of [`Session::write_at`].
    pub async fn write_room(
        self: &Arc<Self>,
        offset: u64,
        mut room: Room,
        length: usize,
    ) -> Result<(), Failure> {
        super::check_end(offset, length)?;
        if length > room.bytes().len() {
            return Err(Failure::new(ErrorCode::Invalid, "more bytes than the room has"));
        }
        if length == 0 {
            return Ok(());
        }
        if self.within(offset) == 0 {
            match self.place(self.index(offset), room.held, length)? {
                None => return Ok(()),
                Some(held) => room = Room { held },
            }
        }
        let copy = part(room.bytes(), ..length).to_vec();
        drop(room);
        self.write_at(offset, &copy).await
    }

    /// Makes `held` the buffer of a cell; gives it back if the cell has been written to.
    fn place(self: &Arc<Self>, index: u64, held: Held, length: usize) -> Result<Option<Held>, Failure> {
        let mut state = self.state.lock();
        state.failure.clone().map_or(Ok(()), Err)?;
        let under = self.under_base(&state, index);
        let Entry::Vacant(place) = state.cells.entry(index) else { return Ok(Some(held)) };
        place.insert(Cell::Dirty(Dirty::filled(held, length, under)));
        self.wrote(&mut state, index, length);
        Ok(None)
    }
}
