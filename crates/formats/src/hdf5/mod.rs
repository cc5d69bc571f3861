//! HDF5 (file format specification 3.0): superblocks 0 to 3, old and new groups, every layout that is not virtual.
//!
//! Relies on the bounded [`Reader`]. The idea: walk the group tree over object headers and keep of each dataset only
//! its type, shape and where its bytes lie. Datasets behind features that say nothing about bytes in this file (external
//! files, virtual layouts, unallocated storage) are left out, and so stay residue.

mod array_index;
mod chunk_index;
mod dataset;
mod datatype;
mod file;
mod fractal_heap;
mod group;
mod object_header;
mod tree;

use std::collections::HashSet;

pub(crate) use file::superblock_offset;

use crate::reader::Reader;
use crate::reason::{Result, found};
use crate::variable::Variable;
use file::File;
use object_header::ObjectHeader;

/// A group or dataset still to be visited.
struct Pending {
    group: String,
    name: String,
    address: u64,
}

/// All datasets whose bytes lie in the file.
pub(crate) fn parse(reader: &Reader<'_>) -> Result<Vec<Variable>> {
    let (file, root) = File::open(reader)?;
    let mut visited = HashSet::from([root]);
    let mut pending = vec![Pending { group: String::new(), name: String::new(), address: root }];
    let (mut variables, mut unread) = (Vec::new(), None);
    while let Some(object) = pending.pop() {
        let read = read_object(&file, object, &mut visited, &mut pending, &mut variables);
        let Err(reason) = read else { continue };
        let ends = reason.is_the_end();
        unread = if ends { Some(reason) } else { unread.or(Some(reason)) };
        if ends {
            break;
        }
    }
    found(variables, unread)
}

/// Adds what one object is and refers to; what of it can't be read is left out.
fn read_object(
    file: &File<'_, '_>,
    object: Pending,
    visited: &mut HashSet<u64>,
    pending: &mut Vec<Pending>,
    variables: &mut Vec<Variable>,
) -> Result<()> {
    let header = ObjectHeader::read(file, object.address)?;
    let path = joined(&object.group, &object.name);
    let (links, unread) = group::links(file, &header);
    for link in links.into_iter().rev() {
        if visited.insert(link.address) {
            file.reader.keep::<Pending>(path.len() + link.name.len())?;
            pending.push(Pending { group: path.clone(), name: link.name, address: link.address });
        }
    }
    variables.extend(dataset::variable(file, &header, object.group, object.name)?);
    unread.map_or(Ok(()), Err)
}

fn joined(group: &str, name: &str) -> String {
    match (group.is_empty(), name.is_empty()) {
        (true, _) => name.to_owned(),
        (_, true) => group.to_owned(),
        _ => format!("{group}/{name}"),
    }
}
