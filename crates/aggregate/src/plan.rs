//! Which bytes go next to each other: files and variables merged into groups of like members (mcrEngine, III.B).
//!
//! Relies on `stdchk-formats`. Pure. The idea: a plan is a list of groups of members in rank order; schemes only differ
//! in what a member is and in what order pieces of members follow each other.

use std::collections::HashMap;

use stdchk_formats::{DataType, Extent, Parsed, Storage, Variable};

use crate::codec::Shape;
use crate::container::{Member, Place};
use crate::key::KeyRule;
use crate::limits::VARIABLE_MIN;

/// The four merge schemes of the paper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergeScheme {
    /// Whole files, one after the other.
    Agnostic,
    /// Pieces of all files, in turn; the length is in bytes.
    AgnosticBlock(u64),
    /// Like variables, one after the other.
    #[default]
    Aware,
    /// Pieces of like variables, in turn; the length is in bytes.
    AwareBlock(u64),
}

/// How files are cut and merged.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// The merge scheme.
    pub scheme: MergeScheme,
    /// Which variables are alike.
    pub keys: KeyRule,
    /// Smallest variable that is grouped, in bytes; smaller ones stay in the residue.
    pub variable_min: u64,
    /// Files that are merged with each other (the paper's group size); the others form groups of their own.
    pub group_size: usize,
}

impl Default for PlanOptions {
    fn default() -> Self {
        let (scheme, keys) = (MergeScheme::default(), KeyRule::default());
        Self { scheme, keys, variable_min: VARIABLE_MIN, group_size: usize::MAX }
    }
}

/// A member and what its elements look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) member: Member,
    pub(crate) shape: Shape,
}

/// Members that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) key: String,
    /// Type of the elements; `None` for residue and whole files.
    pub(crate) data_type: Option<DataType>,
    pub(crate) members: Vec<Planned>,
}

/// What a file contributes to the plan.
pub(crate) struct PlannedFile<'parsed> {
    pub(crate) name: &'parsed str,
    pub(crate) parsed: &'parsed Parsed,
}

/// All groups of a set, and for every file the ranges that make up its rest.
pub(crate) struct Plan {
    pub(crate) groups: Vec<Group>,
    pub(crate) rests: Vec<Vec<Extent>>,
}

/// Groups in order of their first member.
#[derive(Default)]
struct Groups {
    by_key: HashMap<String, usize>,
    groups: Vec<Group>,
}

impl Groups {
    fn add(&mut self, key: String, data_type: Option<DataType>, planned: Planned) {
        let next = self.groups.len();
        let index = *self.by_key.entry(key.clone()).or_insert(next);
        if index == next {
            self.groups.push(Group { key, data_type, members: Vec::new() });
        }
        if let Some(group) = self.groups.get_mut(index) {
            group.members.push(planned);
        }
    }
}

/// Merges the files of a set.
pub(crate) fn plan(files: &[PlannedFile<'_>], options: &PlanOptions) -> Plan {
    let aware = matches!(options.scheme, MergeScheme::Aware | MergeScheme::AwareBlock(_));
    let mut groups = Groups::default();
    let mut rests = Vec::with_capacity(files.len());
    for (number, file) in files.iter().enumerate() {
        let party = number / options.group_size.max(1);
        let label = |key: String| if party == 0 { key } else { format!("{key} of group {party}") };
        let index = u32::try_from(number).unwrap_or(u32::MAX);
        let mut held = Vec::new();
        if aware {
            for variable in file.parsed.variables.iter().filter(|variable| is_grouped(variable, options)) {
                held.extend_from_slice(&variable.extents);
                let (key, data_type) = (label(options.keys.key(variable)), element_type(variable));
                groups.add(key, data_type, planned(index, variable));
            }
        }
        let rest = complement(file.parsed.size, held);
        let length = rest.iter().map(|extent| extent.length).sum();
        rests.push(rest);
        if length > 0 {
            let member = rest_member(index, length);
            groups.add(label(rest_key(file, aware)), None, member);
        }
    }
    let mut groups = groups.groups;
    if let MergeScheme::AwareBlock(piece) | MergeScheme::AgnosticBlock(piece) = options.scheme {
        groups.iter_mut().for_each(|group| interleave(group, piece.max(1)));
    }
    Plan { groups, rests }
}

fn is_grouped(variable: &Variable, options: &PlanOptions) -> bool {
    variable.stored_bytes() >= options.variable_min.max(1)
}

/// Filtered chunks are bytes without a type.
fn element_type(variable: &Variable) -> Option<DataType> {
    (variable.storage != Storage::Encoded).then_some(variable.data_type)
}

fn planned(file: u32, variable: &Variable) -> Planned {
    let place = Place::Extents(variable.extents.clone());
    let shape = match &variable.storage {
        Storage::Plain => variable.shape.clone(),
        Storage::ColumnMajor => variable.shape.iter().rev().copied().collect(),
        // Chunks follow each other along one more dimension.
        Storage::Chunked(chunks) => [&[chunks.origins.len() as u64], chunks.shape.as_slice()].concat(),
        Storage::Encoded => vec![variable.stored_bytes()],
    };
    Planned { member: Member { file, place, same_as: None, base_file: None }, shape: Shape(shape) }
}

fn rest_member(file: u32, length: u64) -> Planned {
    let place = Place::Rest(Extent { offset: 0, length });
    Planned { member: Member { file, place, same_as: None, base_file: None }, shape: Shape(vec![length]) }
}

fn rest_key(file: &PlannedFile<'_>, aware: bool) -> String {
    match (aware, file.parsed.variables.is_empty()) {
        (false, _) => "files".to_owned(),
        (true, true) => format!("file {}", crate::key::without_numbers(file.name)),
        (true, false) => format!("residue of {}", file.parsed.format),
    }
}

/// What `held` leaves of a file.
pub(crate) fn complement(size: u64, mut held: Vec<Extent>) -> Vec<Extent> {
    held.sort_unstable();
    let mut rest = Vec::new();
    let mut position = 0;
    for extent in held.into_iter().chain([Extent { offset: size, length: 0 }]) {
        if extent.offset > position {
            rest.push(Extent { offset: position, length: extent.offset - position });
        }
        position = position.max(extent.end());
    }
    rest
}

/// Pieces of all members in turn, as long as members last.
fn interleave(group: &mut Group, piece: u64) {
    let mut queues: Vec<std::vec::IntoIter<Planned>> =
        group.members.drain(..).map(|planned| cut(planned, piece, 1).into_iter()).collect();
    while !queues.is_empty() {
        queues.retain_mut(|queue| queue.next().map(|planned| group.members.push(planned)).is_some());
    }
}

/// A member in pieces of at most `limit` bytes, each a whole number of `unit` bytes where that is possible.
pub(crate) fn cut(planned: Planned, limit: u64, unit: u64) -> Vec<Planned> {
    let length = planned.member.place.length();
    if length <= limit {
        return vec![planned];
    }
    let step = if unit <= limit { limit / unit.max(1) * unit.max(1) } else { limit }.max(1);
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < length {
        let range = Extent { offset: start, length: step.min(length - start) };
        let place = part(&planned.member.place, range);
        let member = Member { place, ..planned.member.clone() };
        pieces.push(Planned { member, shape: slab(&planned.shape, length, range.length) });
        start += range.length;
    }
    pieces
}

/// The shape of a piece: fewer of the slowest dimension where it is cut between rows, else flat.
fn slab(shape: &Shape, length: u64, piece: u64) -> Shape {
    let Some((slowest, faster)) = shape.0.split_first().filter(|(slowest, _)| **slowest > 0) else {
        return Shape(vec![piece]);
    };
    let row = length / slowest;
    if row > 0 && piece.is_multiple_of(row) {
        return Shape([&[piece / row], faster].concat());
    }
    let elements = shape.0.iter().fold(1_u64, |product, length| product.saturating_mul(*length)).max(1);
    Shape(vec![piece / (length / elements).max(1)])
}

/// The part of a place that a range of its bytes covers.
fn part(place: &Place, range: Extent) -> Place {
    match place {
        Place::Rest(whole) => {
            Place::Rest(Extent { offset: whole.offset + range.offset, length: range.length })
        }
        Place::Extents(extents) => Place::Extents(part_of_extents(extents, range)),
    }
}

/// The ranges that hold bytes `range` of what `extents` hold together.
pub(crate) fn part_of_extents(extents: &[Extent], range: Extent) -> Vec<Extent> {
    let mut found = Vec::new();
    let mut position = 0;
    for extent in extents {
        let (start, end) = (range.offset.max(position), range.end().min(position + extent.length));
        if start < end {
            found.push(Extent { offset: extent.offset + (start - position), length: end - start });
        }
        position += extent.length;
    }
    found
}
