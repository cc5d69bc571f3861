//! The two kinds of B-tree, reduced to "visit every record".
//!
//! Relies on [`File`]. The idea: nobody here looks a key up, so a tree is only a way to store a list; an explicit
//! stack replaces recursion, and the reader's bounded work ends trees that loop.

use stdchk_model::exact::to_usize;

use super::file::File;
use crate::cursor::Cursor;
use crate::reason::{Reason, Result};

/// Children of leaves, each with its key and its address.
pub(crate) type Leaves = Vec<(Vec<u8>, u64)>;

/// Visits a version 1 tree: for every child of every leaf its key (`key_length` bytes) and its address; and why some nodes can't be read,
/// where that is so.
pub(crate) fn leaves_1(
    file: &File<'_, '_>,
    root: u64,
    node_type: u8,
    key_length: usize,
) -> Result<(Leaves, Option<Reason>)> {
    let mut pending = vec![root];
    let (mut leaves, mut unread) = (Vec::new(), None);
    while let Some(address) = pending.pop() {
        match node_1(file, address, node_type, key_length, &mut leaves, &mut pending) {
            Err(reason) if reason.is_the_end() => return Err(reason),
            outcome => unread = unread.or(outcome.err()),
        }
    }
    Ok((leaves, unread))
}

fn node_1(
    file: &File<'_, '_>,
    address: u64,
    node_type: u8,
    key_length: usize,
    leaves: &mut Leaves,
    pending: &mut Vec<u64>,
) -> Result<()> {
    let head_length = 8 + 2 * file.address_width as u64;
    let mut head = file.reader.cursor("tree node", address, head_length)?;
    head.expect(b"TREE")?;
    let found_type = head.u8()?;
    let (level, entries) = (head.u8()?, usize::from(head.u16_le()?));
    if found_type != node_type {
        return head.invalid();
    }
    let body = (entries * (key_length + file.address_width)) as u64;
    let mut cursor = file.reader.cursor("tree node", address + head_length, body)?;
    for _ in 0..entries {
        let key = cursor.take(key_length)?.to_vec();
        let Some(child) = file.address(&mut cursor)? else { return cursor.invalid() };
        file.reader.keep::<(Vec<u8>, u64)>(key_length)?;
        if level == 0 { leaves.push((key, child)) } else { pending.push(child) }
    }
    Ok(())
}

/// What the header of a version 2 tree says.
struct Tree2 {
    node_size: u64,
    record_length: usize,
    /// Per depth from the leaves up: bytes of a record count, and of the count of all records below.
    count_widths: Vec<(usize, usize)>,
}

struct Node2 {
    address: u64,
    records: u64,
    depth: usize,
}

/// Bytes that hold numbers up to `limit`.
fn width_of(limit: u64) -> usize {
    (limit.max(1).ilog2() / 8 + 1) as usize
}

/// Deepest tree that is believed; a depth of 8 holds more records than any file.
const DEPTH_MAX: usize = 16;

/// All records of a version 2 tree of the given type, in no particular order.
pub(crate) fn records_2(file: &File<'_, '_>, address: u64, tree_type: u8) -> Result<Vec<Cursor>> {
    let mut head = file.reader.cursor_up_to("tree header", address, 64)?;
    head.expect(b"BTHD\0")?;
    head.expect(&[tree_type])?;
    let (node_size, record_length) = (u64::from(head.u32_le()?), usize::from(head.u16_le()?));
    let depth = usize::from(head.u16_le()?);
    head.skip(2)?; // when nodes split and merge
    let root = file.address(&mut head)?;
    let records = u64::from(head.u16_le()?);
    let too_small = node_size < NODE_OVERHEAD + record_length as u64;
    let Some(root) = root else { return Ok(Vec::new()) };
    if depth > DEPTH_MAX || record_length == 0 || too_small {
        return head.invalid();
    }
    let tree =
        Tree2 { node_size, record_length, count_widths: count_widths(file, node_size, record_length, depth) };
    tree.collect(file, Node2 { address: root, records, depth })
}

/// Bytes of signature, version, type and checksum of a node.
const NODE_OVERHEAD: u64 = 10;

fn count_widths(
    file: &File<'_, '_>,
    node_size: u64,
    record_length: usize,
    depth: usize,
) -> Vec<(usize, usize)> {
    let room = node_size - NODE_OVERHEAD;
    let leaf_max = room / record_length as u64;
    let count_width = width_of(leaf_max);
    let mut widths = vec![(count_width, 0)];
    let mut total_max = leaf_max;
    for _ in 0..depth {
        let below = widths.last().map_or(0, |(_, total)| *total);
        let pointer = (file.address_width + count_width + below) as u64;
        let node_max = room.saturating_sub(pointer) / (record_length as u64 + pointer);
        total_max = (node_max + 1).saturating_mul(total_max).saturating_add(node_max);
        widths.push((count_width, width_of(total_max)));
    }
    widths
}

impl Tree2 {
    fn collect(&self, file: &File<'_, '_>, root: Node2) -> Result<Vec<Cursor>> {
        let mut pending = vec![root];
        let mut records = Vec::new();
        while let Some(node) = pending.pop() {
            // Its records keep the node's bytes.
            file.reader.keep::<Node2>(to_usize(self.node_size))?;
            let mut cursor = file.reader.cursor("tree node", node.address, self.node_size)?;
            cursor.expect(if node.depth == 0 { b"BTLF" } else { b"BTIN" })?;
            cursor.skip(2)?; // version, type
            for _ in 0..node.records {
                file.reader.keep::<Cursor>(self.record_length)?;
                records.push(cursor.part("tree record", self.record_length)?);
            }
            if node.depth > 0 {
                self.push_children(file, &node, &mut cursor, &mut pending)?;
            }
        }
        Ok(records)
    }

    fn push_children(
        &self,
        file: &File<'_, '_>,
        node: &Node2,
        cursor: &mut Cursor,
        pending: &mut Vec<Node2>,
    ) -> Result<()> {
        let depth = node.depth - 1;
        let (count_width, total_width) = *self
            .count_widths
            .get(depth)
            .ok_or(Reason::Invalid { what: "tree depth", offset: node.address })?;
        for _ in 0..=node.records {
            let Some(address) = file.address(cursor)? else { return cursor.invalid() };
            let records = cursor.uint_le(count_width)?;
            cursor.skip(total_width)?;
            pending.push(Node2 { address, records, depth });
        }
        Ok(())
    }
}
