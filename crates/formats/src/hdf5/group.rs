//! The links of a group: symbol tables (old style), link messages and dense storage (new style).
//!
//! Relies on [`super::tree`] and [`super::fractal_heap`]. The idea: only hard links matter, since soft and external
//! links own no bytes.

use stdchk_model::exact::to_usize;

use super::file::File;
use super::fractal_heap::FractalHeap;
use super::object_header::{Message, ObjectHeader};
use super::tree;
use crate::cursor::Cursor;
use crate::reason::{Reason, Result};

const LINK_INFO: u16 = 0x02;
const LINK: u16 = 0x06;
const SYMBOL_TABLE: u16 = 0x11;

/// Type of a version 1 tree of a group, and of a version 2 tree of link names.
const GROUP_NODE: u8 = 0;
const LINK_NAME_TREE: u8 = 5;

/// A hard link.
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) address: u64,
}

/// All hard links of an object by name, and why some of them can't be read, where that is so; none for a dataset. Sorted, so
/// that an object with two names always gets the same.
pub(crate) fn links(file: &File<'_, '_>, header: &ObjectHeader) -> (Vec<Link>, Option<Reason>) {
    let (mut links, mut unread) = (Vec::new(), None);
    let mut note = |outcome: Result<()>| {
        if let Err(reason) = outcome {
            unread.get_or_insert(reason);
        }
    };
    if let Some(message) = header.first(SYMBOL_TABLE) {
        note(symbol_table(file, message, &mut links));
    }
    for message in header.all(LINK) {
        note(link(file, &mut message.cursor()).map(|link| links.extend(link)));
    }
    if let Some(message) = header.first(LINK_INFO) {
        note(dense(file, message, &mut links));
    }
    links.sort_by(|one, other| one.name.cmp(&other.name));
    (links, unread)
}

/// Longest heap of names that is read: names of a million members.
const HEAP_MAX: u64 = 128 << 20;

fn symbol_table(file: &File<'_, '_>, message: &Message, links: &mut Vec<Link>) -> Result<()> {
    let mut cursor = message.cursor();
    let (tree, heap) = (file.address(&mut cursor)?, file.address(&mut cursor)?);
    let (Some(tree), Some(heap)) = (tree, heap) else { return cursor.invalid() };
    let names = local_heap(file, heap)?;
    let (nodes, unread) = tree::leaves_1(file, tree, GROUP_NODE, file.length_width)?;
    let mut unread = unread.map_or(Ok(()), Err);
    for (_, node) in nodes {
        match symbol_node(file, node, &names, links) {
            Err(reason) if reason.is_the_end() => return Err(reason),
            outcome => unread = unread.and(outcome),
        }
    }
    unread
}

/// The bytes of a local heap, which hold the names of a group.
fn local_heap(file: &File<'_, '_>, address: u64) -> Result<Vec<u8>> {
    let mut cursor = file.reader.cursor_up_to("local heap", address, 32)?;
    cursor.expect(b"HEAP\0")?;
    cursor.skip(3)?;
    let length = file.length(&mut cursor)?;
    file.length(&mut cursor)?; // free list
    match file.address(&mut cursor)? {
        Some(data) if length <= HEAP_MAX => file.reader.bytes("names of a group", data, length),
        _ => cursor.invalid(),
    }
}

fn symbol_node(file: &File<'_, '_>, address: u64, names: &[u8], links: &mut Vec<Link>) -> Result<()> {
    let mut head = file.reader.cursor("symbol table node", address, 8)?;
    head.expect(b"SNOD\x01")?;
    head.skip(1)?;
    let entries = u64::from(head.u16_le()?);
    let entry_length = (file.length_width + file.address_width + 24) as u64;
    let mut cursor = file.reader.cursor("symbol table node", address + 8, entries * entry_length)?;
    let mut unread = Ok(());
    for _ in 0..entries {
        let mut entry = cursor.part("entry of a group", to_usize(entry_length))?;
        match symbol(file, &mut entry, names) {
            Ok(link) => links.extend(link),
            Err(reason) if reason.is_the_end() => return Err(reason),
            Err(reason) => unread = unread.and(Err(reason)),
        }
    }
    unread
}

/// One entry of a symbol table; `None` for a soft link.
fn symbol(file: &File<'_, '_>, entry: &mut Cursor, names: &[u8]) -> Result<Option<Link>> {
    let name = file.length(entry)?;
    let target = file.address(entry)?;
    let cached = entry.u32_le()?;
    let Some(address) = target.filter(|_| cached != SOFT_LINK) else { return Ok(None) };
    let name = name_at(names, name, entry)?;
    file.reader.keep::<Link>(name.len())?;
    Ok(Some(Link { name, address }))
}

/// Cache type of an entry that is a soft link.
const SOFT_LINK: u32 = 2;

fn name_at(names: &[u8], offset: u64, cursor: &Cursor) -> Result<String> {
    let tail = usize::try_from(offset).ok().and_then(|offset| names.get(offset..));
    let name = tail.and_then(|tail| tail.split(|byte| *byte == 0).next());
    name.map_or_else(|| cursor.invalid(), |name| Ok(String::from_utf8_lossy(name).into_owned()))
}

/// One link message; `None` for soft, external and user-defined links.
fn link(file: &File<'_, '_>, cursor: &mut Cursor) -> Result<Option<Link>> {
    cursor.expect(&[1])?;
    let flags = cursor.u8()?;
    let kind = if flags & 8 != 0 { cursor.u8()? } else { 0 };
    cursor.skip(if flags & 4 != 0 { 8 } else { 0 })?; // creation order
    cursor.skip(usize::from(flags & 16 != 0))?; // character set
    let length = cursor.length_le(1 << (flags & 3))?;
    let name = cursor.text(length)?;
    if kind != 0 {
        return Ok(None);
    }
    file.reader.keep::<Link>(name.len())?;
    Ok(file.address(cursor)?.map(|address| Link { name, address }))
}

fn dense(file: &File<'_, '_>, message: &Message, links: &mut Vec<Link>) -> Result<()> {
    let mut cursor = message.cursor();
    cursor.skip(1)?;
    let flags = cursor.u8()?;
    cursor.skip(if flags & 1 != 0 { 8 } else { 0 })?; // highest creation order
    let (heap, names) = (file.address(&mut cursor)?, file.address(&mut cursor)?);
    let (Some(heap), Some(names)) = (heap, names) else { return Ok(()) };
    let heap = FractalHeap::open(file, heap)?;
    let mut unread = Ok(());
    for mut record in tree::records_2(file, names, LINK_NAME_TREE)? {
        match dense_link(file, &heap, &mut record) {
            Ok(link) => links.extend(link),
            Err(reason) if reason.is_the_end() => return Err(reason),
            Err(reason) => unread = unread.and(Err(reason)),
        }
    }
    unread
}

fn dense_link(file: &File<'_, '_>, heap: &FractalHeap, record: &mut Cursor) -> Result<Option<Link>> {
    record.skip(4)?; // hash of the name
    let (offset, bytes) = heap.object(file, record)?;
    link(file, &mut Cursor::new("link in a heap", offset, bytes))
}
