//! `PyTorch`: the archive that `torch.save` writes, and files of distributed checkpoints, which hold several in a row.
//!
//! Relies on [`crate::zip`] and [`crate::pickle`]. The idea: `data.pkl` says which storage every tensor views, and the
//! storages are stored members; a storage that several tensors view differently is one flat variable, because no two
//! variables may hold the same bytes.

use std::collections::{BTreeMap, HashSet};

use stdchk_model::exact::part_mut;

use crate::numpy;
use crate::parsed::{Format, RANK_MAX};
use crate::pickle::{self, Node, NodeId, Tree};
use crate::reader::Reader;
use crate::reason::{Reason, Result, found};
use crate::safetensors::split_path;
use crate::variable::{ByteOrder, DataType, Extent, Kind, Storage, Variable};
use crate::zip::{self, Method};

type Parser = fn(&Reader<'_>) -> Result<Vec<Variable>>;

/// What an archive that begins with `head` is: its first member tells.
pub(crate) fn zip_parser(head: &[u8]) -> (Format, Parser) {
    match zip::first_name(head) {
        Some(name) if name.ends_with(b".npy") => (Format::Npz, numpy::parse_npz),
        Some(name) if name.ends_with(b"data.pkl") => (Format::Torch, parse),
        _ => (Format::Unknown, |_| Err(Reason::UnknownFormat)),
    }
}

/// Most archives in one file: one per tensor that a rank keeps.
const ARCHIVES_MAX: usize = 1 << 20;

/// The tensors of all archives of the file. With several, the groups begin with their number.
fn parse(reader: &Reader<'_>) -> Result<Vec<Variable>> {
    let mut archives = Vec::new();
    let mut end = reader.size();
    while end > 0 {
        let archive = zip::entries(reader, end)?;
        if archive.start >= end || archives.len() >= ARCHIVES_MAX {
            return Err(Reason::Invalid { what: "zip archive", offset: archive.start });
        }
        end = archive.start;
        archives.push(archive);
    }
    archives.reverse();
    let several = archives.len() > 1;
    let (mut variables, mut unread) = (Vec::new(), None);
    for (number, archive) in archives.iter().enumerate() {
        let prefix = if several { format!("item {number}") } else { String::new() };
        match tensors(reader, archive, &prefix) {
            Ok(tensors) => variables.extend(tensors),
            Err(reason) if reason.is_the_end() => return Err(reason),
            Err(reason) => unread = unread.or(Some(reason)),
        }
    }
    found(variables, unread)
}

/// How one tensor views its storage, in elements.
#[derive(Clone, PartialEq, Eq)]
struct View {
    path: String,
    data_type: DataType,
    first: u64,
    shape: Vec<u64>,
    contiguous: bool,
}

fn tensors(reader: &Reader<'_>, archive: &zip::Archive, prefix: &str) -> Result<Vec<Variable>> {
    let pickled = archive.entries.iter().find(|entry| entry.name.ends_with("data.pkl"));
    let Some(pickled) = pickled.filter(|entry| entry.method == Method::Stored) else {
        return Err(Reason::Unsupported("an archive without a stored data.pkl"));
    };
    let order = byte_order(reader, archive)?;
    let bytes = reader.bytes("data.pkl", pickled.data.offset, pickled.data.length)?;
    let views = views(reader, &pickle::read(bytes, pickled.data.offset)?, order)?;
    let mut variables = Vec::new();
    for entry in
        archive.entries.iter().filter(|entry| entry.method == Method::Stored && entry.data.length > 0)
    {
        let Some((_, key)) = entry.name.rsplit_once("/data/") else { continue };
        if let Some(views) = views.get(key) {
            reader.keep::<Variable>(prefix.len())?;
            variables.push(variable(prefix, views, entry.data));
        }
    }
    Ok(variables)
}

/// Order of the storages' bytes: a member says so in newer archives, and it is little-endian without it.
fn byte_order(reader: &Reader<'_>, archive: &zip::Archive) -> Result<ByteOrder> {
    let Some(entry) = archive.entries.iter().find(|entry| entry.name.ends_with("/byteorder")) else {
        return Ok(ByteOrder::Little);
    };
    let bytes = reader.bytes("byteorder", entry.data.offset, entry.data.length.min(8))?;
    Ok(if bytes.starts_with(b"big") { ByteOrder::Big } else { ByteOrder::Little })
}

/// The variable of one storage: the tensor's where a single one covers elements in order, else the flat storage.
fn variable(prefix: &str, views: &[View], data: Extent) -> Variable {
    let first = views.first().cloned();
    let size = first.as_ref().map_or(1, |view| u64::from(view.data_type.size));
    let only = first.clone().filter(|one| {
        one.contiguous && views.iter().all(|view| (view.first, &view.shape) == (one.first, &one.shape))
    });
    let placed = only.and_then(|view| {
        let length = view.shape.iter().try_fold(size, |product, length| product.checked_mul(*length))?;
        let skip = view.first.checked_mul(size)?;
        let inside = skip.checked_add(length)? <= data.length && length > 0;
        inside.then(|| (view.shape.clone(), Extent { offset: data.offset + skip, length }))
    });
    let whole = (vec![data.length / size], Extent { offset: data.offset, length: data.length / size * size });
    let (shape, extent) = placed.unwrap_or(whole);
    let (group, name) = split_path(first.as_ref().map_or_else(String::new, |view| view.path.clone()));
    let group =
        [prefix, &group].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(".");
    let data_type = first.map_or_else(DataType::bytes, |view| view.data_type);
    Variable { group, name, data_type, shape, storage: Storage::Plain, extents: vec![extent] }
}

/// How a node was reached: from which step before, and under which key.
struct Step {
    node: NodeId,
    from: Option<usize>,
    part: Part,
}

#[derive(Clone, Copy)]
enum Part {
    Key(NodeId),
    Index(usize),
    /// Arguments and state of an object stand for the object.
    Same,
}

/// All tensors by the key of their storage.
fn views(reader: &Reader<'_>, tree: &Tree, order: ByteOrder) -> Result<BTreeMap<String, Vec<View>>> {
    let mut found: BTreeMap<String, Vec<View>> = BTreeMap::new();
    let mut visited = HashSet::new();
    let mut steps: Vec<Step> = Vec::new();
    let mut pending = vec![Step { node: tree.root, from: None, part: Part::Same }];
    while let Some(step) = pending.pop() {
        if !visited.insert(step.node) {
            continue;
        }
        let node = step.node;
        steps.push(step);
        let here = steps.len() - 1;
        if let Some((key, mut view)) = tensor(tree, node, order) {
            view.path = path(tree, &steps, here);
            reader.keep::<View>(view.path.len() + key.len() + view.shape.len() * 8)?;
            found.entry(key).or_default().push(view);
            continue;
        }
        push_children(tree, node, here, &mut pending);
    }
    Ok(found)
}

/// Steps of a path that are kept, the last ones, and characters of each: real names stay far below.
const STEPS_MAX: usize = 128;
const PART_MAX: usize = 128;

/// The keys on the way to a step, joined by dots.
fn path(tree: &Tree, steps: &[Step], mut at: usize) -> String {
    let mut parts = Vec::new();
    for _ in 0..STEPS_MAX {
        let Some(step) = steps.get(at) else { break };
        match step.part {
            Part::Key(key) => parts.push(match tree.node(key) {
                Node::Text(text) => text.chars().take(PART_MAX).collect(),
                Node::Integer(number) => number.to_string(),
                _ => "?".to_owned(),
            }),
            Part::Index(number) => parts.push(number.to_string()),
            Part::Same => {}
        }
        match step.from {
            Some(from) => at = from,
            None => break,
        }
    }
    parts.reverse();
    parts.join(".")
}

fn push_children(tree: &Tree, node: NodeId, here: usize, pending: &mut Vec<Step>) {
    let first = pending.len();
    let below = |node: NodeId, part: Part| Step { node, from: Some(here), part };
    match tree.node(node) {
        Node::Dictionary(entries) => {
            pending.extend(entries.iter().map(|(key, value)| below(*value, Part::Key(*key))));
        }
        Node::Sequence(items) => {
            pending.extend(items.iter().enumerate().map(|(n, item)| below(*item, Part::Index(n))));
        }
        Node::Call { arguments, state, .. } => {
            pending.extend(std::iter::once(*arguments).chain(*state).map(|node| below(node, Part::Same)));
        }
        _ => {}
    }
    // The stack gives back the last first, and of tensors that share a storage the first gives its name.
    part_mut(pending, first..).reverse();
}

/// A call of one of PyTorch's rebuilding functions: `(storage, offset, size, stride, ...)`.
fn tensor(tree: &Tree, node: NodeId, order: ByteOrder) -> Option<(String, View)> {
    let Node::Call { function, arguments, .. } = tree.node(node) else { return None };
    let Node::Global(function) = tree.node(*function) else { return None };
    let arguments = tree.sequence(*arguments)?;
    // Types that came later have storages without a type, and say theirs themselves.
    let own_type = match function.as_str() {
        "torch._utils _rebuild_tensor_v2" | "torch._utils _rebuild_tensor" => None,
        "torch._utils _rebuild_tensor_v3" => Some(tensor_type(tree, *arguments.get(6)?, order)?),
        _ => return None,
    };
    let [storage, first, size, stride, ..] = arguments else { return None };
    let Node::Persistent(identifier) = tree.node(*storage) else { return None };
    let [_, class, key, ..] = tree.sequence(*identifier)? else { return None };
    let Node::Global(class) = tree.node(*class) else { return None };
    let lengths = |id: NodeId| {
        ranked(tree.sequence(id)?)?.iter().map(|id| tree.unsigned(*id)).collect::<Option<Vec<_>>>()
    };
    let (shape, strides) = (lengths(*size)?, lengths(*stride)?);
    let view = View {
        path: String::new(),
        data_type: own_type.unwrap_or_else(|| storage_type(class, order)),
        first: tree.unsigned(*first)?,
        contiguous: is_contiguous(&shape, &strides),
        shape,
    };
    Some((tree.text(*key)?.to_owned(), view))
}

/// Lengths or strides, unless there are more than any tensor has.
fn ranked(ids: &[NodeId]) -> Option<&[NodeId]> {
    (ids.len() <= RANK_MAX).then_some(ids)
}

fn is_contiguous(shape: &[u64], strides: &[u64]) -> bool {
    let mut expected = Some(1_u64);
    let in_order = shape.iter().zip(strides).rev().all(|(length, stride)| {
        let fits = *length == 1 || expected == Some(*stride);
        expected = expected.and_then(|expected| expected.checked_mul(*length));
        fits
    });
    in_order && shape.len() == strides.len()
}

/// The name of a class or type without its module, which stands before the last space.
fn last_word(name: &str) -> &str {
    name.rsplit_once(' ').map_or(name, |(_, last)| last)
}

/// The type that a tensor names, `torch.float8_e4m3fn` for one.
fn tensor_type(tree: &Tree, node: NodeId, order: ByteOrder) -> Option<DataType> {
    let Node::Global(name) = tree.node(node) else { return None };
    let (kind, size) = match last_word(name) {
        "uint16" => (Kind::Unsigned, 2),
        "uint32" => (Kind::Unsigned, 4),
        "uint64" => (Kind::Unsigned, 8),
        _ => (Kind::Unsigned, 1),
    };
    Some(DataType::new(kind, size, order))
}

fn storage_type(class: &str, order: ByteOrder) -> DataType {
    let (kind, size) = match last_word(class) {
        "DoubleStorage" => (Kind::Float, 8),
        "FloatStorage" => (Kind::Float, 4),
        "HalfStorage" => (Kind::Float, 2),
        "BFloat16Storage" => (Kind::BFloat, 2),
        "LongStorage" => (Kind::Signed, 8),
        "IntStorage" => (Kind::Signed, 4),
        "ShortStorage" => (Kind::Signed, 2),
        "CharStorage" => (Kind::Signed, 1),
        "ComplexFloatStorage" => (Kind::Complex, 8),
        "ComplexDoubleStorage" => (Kind::Complex, 16),
        _ => (Kind::Unsigned, 1),
    };
    DataType::new(kind, size, order)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `_rebuild_tensor_v3(storage, 0, (2, 3), (3, 1), False, (), torch.NAME)`, as `torch.save` pickles it.
    fn pickled(name: &str) -> Vec<u8> {
        let length = |text: &str| u32::try_from(text.len()).unwrap().to_le_bytes();
        let text = |text: &str| [b"X", &length(text)[..], text.as_bytes()].concat();
        let global = |name: &str| format!("c{name}\n").into_bytes();
        let storage =
            [text("storage"), global("torch\nUntypedStorage"), text("7"), text("cpu"), b"K\x06".to_vec()];
        let arguments =
            [b"(".to_vec(), storage.concat(), b"tQK\x00K\x02K\x03\x86K\x03K\x01\x86\x89)".to_vec()];
        let type_ = global(&format!("torch\n{name}"));
        let head = [b"\x80\x02".to_vec(), global("torch._utils\n_rebuild_tensor_v3"), b"(".to_vec()];
        [head.concat(), arguments.concat(), type_, b"tR.".to_vec()].concat()
    }

    #[test]
    fn tensors_that_name_their_own_type_are_seen() {
        for (name, expected) in [("float8_e4m3fn", "U8"), ("uint16", "U16LE"), ("uint64", "U64LE")] {
            let tree = pickle::read(pickled(name), 0).unwrap();
            let (key, view) = tensor(&tree, tree.root, ByteOrder::Little).unwrap();
            assert_eq!((key.as_str(), view.shape), ("7", vec![2, 3]));
            assert_eq!((view.data_type.to_string().as_str(), view.contiguous), (expected, true));
        }
    }
}
