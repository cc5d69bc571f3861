//! Object headers, versions 1 and 2: the list of messages that describes a group or a dataset.
//!
//! Relies on [`File`]. The idea: continuation blocks are a queue; the reader's bounded work ends a queue that loops.

use std::collections::VecDeque;

use super::file::File;
use crate::cursor::Cursor;
use crate::reason::{Reason, Result};
use crate::variable::Extent;

/// What errors call a message.
const MESSAGE: &str = "object header message";
const CONTINUATION: u16 = 0x10;
/// Blocks and messages of one header, in bytes of memory: those of an object with thousands of attributes.
const MESSAGES_BYTES_MAX: usize = 32 << 20;
/// A message's flag for "the body is a reference to where the message really is".
const SHARED: u8 = 2;

/// One message of a header.
pub(crate) struct Message {
    pub(crate) kind: u16,
    flags: u8,
    body: Cursor,
}

impl Message {
    /// The body, ready to be taken apart; its offsets are those of the file.
    pub(crate) fn cursor(&self) -> Cursor {
        self.body.clone()
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.flags & SHARED != 0
    }
}

/// Messages, and the memory that they take.
#[derive(Default)]
struct Messages {
    list: Vec<Message>,
    bytes: usize,
}

impl Messages {
    /// Takes what is going to be kept into account; `place` is where it was read.
    fn account(&mut self, bytes: usize, place: &Cursor) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        let offset = place.offset();
        let fits = self.bytes <= MESSAGES_BYTES_MAX;
        if fits { Ok(()) } else { Err(Reason::Invalid { what: "object header", offset }) }
    }
}

/// All messages of one object.
pub(crate) struct ObjectHeader {
    messages: Vec<Message>,
}

impl ObjectHeader {
    pub(crate) fn read(file: &File<'_, '_>, address: u64) -> Result<Self> {
        let mut start = file.reader.cursor_up_to("object header", address, 64)?;
        let messages = match start.u8()? {
            1 => read_version_1(file, start)?,
            b'O' => read_version_2(file, start)?,
            _ => return start.invalid(),
        };
        Ok(Self { messages: messages.list })
    }

    /// The messages of one kind.
    pub(crate) fn all(&self, kind: u16) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(move |message| message.kind == kind)
    }

    /// The first message of one kind.
    pub(crate) fn first(&self, kind: u16) -> Option<&Message> {
        self.all(kind).next()
    }
}

/// Where a continuation message points to.
fn continuation(file: &File<'_, '_>, message: &Message) -> Result<Extent> {
    let mut cursor = message.cursor();
    let offset = file.address(&mut cursor)?;
    let length = file.length(&mut cursor)?;
    offset.map_or_else(|| cursor.invalid(), |offset| Ok(Extent { offset, length }))
}

fn read_version_1(file: &File<'_, '_>, mut start: Cursor) -> Result<Messages> {
    start.skip(7)?; // reserved, number of messages, references
    let length = u64::from(start.u32_le()?);
    start.skip(4)?; // padding
    let mut blocks = VecDeque::from([Extent { offset: start.offset(), length }]);
    let mut messages = Messages::default();
    while let Some(block) = blocks.pop_front() {
        let mut cursor = file.reader.cursor("object header block", block.offset, block.length)?;
        messages.account(cursor.remaining(), &cursor)?;
        while cursor.remaining() >= 8 {
            let (kind, length) = (cursor.u16_le()?, usize::from(cursor.u16_le()?));
            let flags = cursor.u8()?;
            cursor.skip(3)?;
            let message = Message { kind, flags, body: cursor.part(MESSAGE, length)? };
            keep(file, message, &mut messages, &mut blocks)?;
        }
    }
    Ok(messages)
}

fn keep(
    file: &File<'_, '_>,
    message: Message,
    messages: &mut Messages,
    blocks: &mut VecDeque<Extent>,
) -> Result<()> {
    if message.kind == CONTINUATION {
        blocks.push_back(continuation(file, &message)?);
    } else {
        messages.account(size_of::<Message>(), &message.body)?;
        messages.list.push(message);
    }
    Ok(())
}

/// Bytes of the checksum that ends every block of a version 2 header.
const CHECKSUM: u64 = 4;

fn read_version_2(file: &File<'_, '_>, mut start: Cursor) -> Result<Messages> {
    start.expect(b"HDR\x02")?;
    let flags = start.u8()?;
    start.skip(if flags & 0x20 != 0 { 16 } else { 0 })?; // times
    start.skip(if flags & 0x10 != 0 { 4 } else { 0 })?; // limits of attribute storage
    let length = start.uint_le(1 << (flags & 3))?;
    let tracks_order = flags & 4 != 0;
    let mut messages = Messages::default();
    let mut blocks = VecDeque::new();
    let first = file.reader.cursor("object header block", start.offset(), length)?;
    read_messages_2(file, first, tracks_order, &mut messages, &mut blocks)?;
    while let Some(block) = blocks.pop_front() {
        let inner = block
            .length
            .checked_sub(CHECKSUM)
            .ok_or(Reason::Invalid { what: "object header continuation", offset: block.offset })?;
        let mut cursor = file.reader.cursor("object header continuation", block.offset, inner)?;
        cursor.expect(b"OCHK")?;
        read_messages_2(file, cursor, tracks_order, &mut messages, &mut blocks)?;
    }
    Ok(messages)
}

fn read_messages_2(
    file: &File<'_, '_>,
    mut cursor: Cursor,
    tracks_order: bool,
    messages: &mut Messages,
    blocks: &mut VecDeque<Extent>,
) -> Result<()> {
    messages.account(cursor.remaining(), &cursor)?;
    let head = if tracks_order { 6 } else { 4 };
    while cursor.remaining() >= head {
        let (kind, length, flags) = (u16::from(cursor.u8()?), usize::from(cursor.u16_le()?), cursor.u8()?);
        cursor.skip(head - 4)?;
        let message = Message { kind, flags, body: cursor.part(MESSAGE, length)? };
        keep(file, message, messages, blocks)?;
    }
    Ok(())
}
