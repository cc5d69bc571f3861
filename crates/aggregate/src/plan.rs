//! Which bytes go next to each other: files and variables merged into groups of like members (mcrEngine, III.B).
//!
//! Relies on `stdchk-formats`. Pure. The idea: a plan is a list of groups of members in rank order; schemes only differ
//! in what a member is and in what order pieces of members follow each other.

use std::collections::HashMap;

use stdchk_formats::{DataType, Extent, Parsed, Storage, Variable};
use stdchk_model::exact::{narrow, part_mut};

use crate::codec::Shape;
use crate::container::{Member, MemberRanges};
use crate::holes::holes_beside;
use crate::key::KeyRule;
use crate::limits::{HOLE_MIN, VARIABLE_MIN};
use crate::numbers_in::Numbers;

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
    /// Bytes that no parser understands: of unknown files, or compressed by the application.
    pub(crate) opaque: bool,
    /// Length of the records that opaque bytes look like.
    pub(crate) record: Option<u32>,
    pub(crate) members: Vec<Planned>,
}

impl Group {
    /// Bytes of all members.
    pub(crate) fn bytes(&self) -> u64 {
        self.members.iter().fold(0_u64, |sum, member| sum.saturating_add(member.member.place.length()))
    }
}

/// What a file contributes to the plan.
pub(crate) struct PlannedFile<'parsed> {
    pub(crate) name: &'parsed str,
    pub(crate) parsed: &'parsed Parsed,
    /// Arrays in what no parser understands.
    pub(crate) numbers: &'parsed [Numbers],
    /// Length of the records that such a file looks like.
    pub(crate) record: Option<u32>,
    /// Where it is zeros that nobody reads.
    pub(crate) holes: &'parsed [Extent],
}

/// All groups of a set, and for every file the ranges that make up its rest, and those that no group holds.
pub(crate) struct Plan {
    pub(crate) groups: Vec<Group>,
    pub(crate) rests: Vec<Vec<Extent>>,
    pub(crate) holes: Vec<Vec<Extent>>,
}

/// Longest variable, in bytes, that is joined with its neighbours: what is known of a member takes half as much.
const SMALL_MAX: u64 = 1 << 10;
/// Longest member that is made of small variables, in bytes: what repeats is found by the member.
const JOINED_MAX: u64 = 64 << 10;

/// A group of fewer bytes is joined with others of its type.
const SMALL_GROUP_MAX: u64 = 64 << 10;
/// A group of fewer bytes that no parser understands is joined with others like it. They repeat each other over longer
/// distances than numbers do; but a lost block loses all files in it.
const SMALL_FILES_MAX: u64 = 256 << 10;

/// A group that members are added to.
struct Growing {
    group: Group,
    /// Bytes of its last member, if that is made of small variables.
    small_bytes: Option<u64>,
}

impl Growing {
    /// Adds a variable of so many bytes; a small one becomes part of the member before, where that is made of small ones too.
    fn add(&mut self, variable: Planned, bytes: u64) {
        let joined = self.small_bytes.map(|before| before + bytes).filter(|_| bytes <= SMALL_MAX);
        let unjoined = match self.group.members.last_mut() {
            Some(last) if joined.is_some_and(|joined| joined <= JOINED_MAX) => join(last, variable),
            _ => Some(variable),
        };
        let alone = (bytes <= SMALL_MAX).then_some(bytes);
        self.small_bytes = if unjoined.is_some() { alone } else { joined };
        self.group.members.extend(unjoined);
    }
}

/// Groups in order of their first member.
#[derive(Default)]
struct Groups {
    by_key: HashMap<String, usize>,
    groups: Vec<Growing>,
}

impl Groups {
    /// The group of this key, begun if there was none.
    fn of(&mut self, key: &str, data_type: Option<DataType>) -> &mut Growing {
        if let Some(position) = self.by_key.get(key) {
            return part_mut(&mut self.groups, *position);
        }
        self.by_key.insert(key.to_owned(), self.groups.len());
        let group =
            Group { key: key.to_owned(), data_type, opaque: false, record: None, members: Vec::new() };
        self.groups.push_mut(Growing { group, small_bytes: None })
    }
}

/// Merges the files of a set.
pub(crate) fn plan(files: &[PlannedFile<'_>], options: &PlanOptions) -> Plan {
    let aware = matches!(options.scheme, MergeScheme::Aware | MergeScheme::AwareBlock(_));
    // Where pieces of members take turns, every variable takes its own.
    let joins = options.scheme == MergeScheme::Aware;
    let mut groups = Groups::default();
    let (mut rests, mut holes) = (Vec::with_capacity(files.len()), Vec::with_capacity(files.len()));
    let mut key = String::new();
    for (number, file) in files.iter().enumerate() {
        let party = match number / options.group_size.max(1) {
            0 => String::new(),
            party => format!(" of group {party}"),
        };
        let index = narrow(number);
        let mut held = Vec::new();
        if aware {
            for variable in file.parsed.variables.iter().filter(|variable| is_grouped(variable, options)) {
                options.keys.write(variable, &mut key);
                key.push_str(if is_encoded(variable) { " encoded" } else { "" });
                key.push_str(&party);
                let group = groups.of(&key, element_type(variable));
                group.group.opaque = is_encoded(variable);
                around_holes(planned(index, variable), file.holes, variable.data_type.size, |piece| {
                    held.extend_from_slice(extents_of(&piece.member.place));
                    let bytes = if joins { piece.member.place.length() } else { u64::MAX };
                    group.add(piece, bytes);
                });
            }
            for numbers in file.numbers {
                let key = format!("numbers_{}{party}", numbers.data_type);
                let group = groups.of(&key, Some(numbers.data_type));
                group.group.opaque = true;
                let planned = planned_numbers(index, numbers);
                around_holes(planned, file.holes, numbers.data_type.size, |piece| {
                    held.extend_from_slice(extents_of(&piece.member.place));
                    group.group.members.push(piece);
                });
            }
        }
        let left_out = holes_beside(file.parsed.size, file.holes, &held);
        held.extend_from_slice(&left_out);
        holes.push(left_out);
        let rest = complement(file.parsed.size, held);
        let length = rest.iter().map(|extent| extent.length).sum();
        rests.push(rest);
        if length > 0 {
            let group = groups.of(&(rest_key(file, aware) + &party), None);
            group.group.opaque = aware && file.parsed.variables.is_empty();
            group.group.record = file.record;
            group.group.members.push(rest_member(index, length));
        }
    }
    let mut groups: Vec<Group> = groups.groups.into_iter().map(|growing| growing.group).collect();
    if joins {
        groups = with_small_ones_joined(groups);
    }
    if let MergeScheme::AwareBlock(piece) | MergeScheme::AgnosticBlock(piece) = options.scheme {
        groups.iter_mut().for_each(|group| interleave(group, piece.max(1)));
    }
    groups.retain(|group| !group.members.is_empty());
    Plan { groups, rests, holes }
}

fn extents_of(place: &MemberRanges) -> &[Extent] {
    match place {
        MemberRanges::Extents(extents) => extents,
        MemberRanges::Rest(_) => &[],
    }
}

/// Longest row, in bytes, of which a piece beside a hole keeps the whole.
const ROW_MAX: u64 = HOLE_MIN;

/// Adds the parts of a variable that lie in no hole: whole rows of its slowest dimension or, where these are long, whole elements.
fn around_holes(variable: Planned, holes: &[Extent], element: u32, mut add: impl FnMut(Planned)) {
    let inside = holes_inside(extents_of(&variable.member.place), holes);
    if inside.is_empty() {
        return add(variable);
    }
    let length = variable.member.place.length();
    let row = variable.shape.0.first().map_or(length, |slowest| length / (*slowest).max(1));
    let unit = if (1..=ROW_MAX).contains(&row) { row } else { u64::from(element).max(1) };
    let whole = inside.iter().filter_map(|hole| {
        let (start, end) = (hole.offset.next_multiple_of(unit), hole.end() / unit * unit);
        (end >= start.saturating_add(HOLE_MIN)).then(|| Extent { offset: start, length: end - start })
    });
    for range in complement(length, whole.collect()) {
        let place = part(&variable.member.place, range);
        let member = Member { place, ..variable.member.clone() };
        add(Planned { member, shape: slab(&variable.shape, length, range.length) });
    }
}

/// The parts of some ranges that lie in holes, as places in all ranges together.
fn holes_inside(extents: &[Extent], holes: &[Extent]) -> Vec<Extent> {
    let mut inside: Vec<Extent> = Vec::new();
    if holes.is_empty() {
        return inside;
    }
    let mut position = 0;
    for extent in extents {
        let first = holes.partition_point(|hole| hole.end() <= extent.offset);
        for hole in holes.iter().skip(first).take_while(|hole| hole.offset < extent.end()) {
            let (start, end) = (hole.offset.max(extent.offset), hole.end().min(extent.end()));
            let offset = position + (start - extent.offset);
            match inside.last_mut() {
                Some(last) if last.end() == offset => last.length += end - start,
                _ => inside.push(Extent { offset, length: end - start }),
            }
        }
        position += extent.length;
    }
    inside
}

/// Groups of like bytes that are small for a block are one group, where the first of them stood: each block costs a header
/// and a record, and learns anew what its bytes are like.
fn with_small_ones_joined(groups: Vec<Group>) -> Vec<Group> {
    let mut joined: Vec<Group> = Vec::with_capacity(groups.len());
    let mut places: HashMap<(Option<DataType>, bool, Option<u32>), usize> = HashMap::new();
    for group in groups {
        let small = group.bytes() < if group.opaque { SMALL_FILES_MAX } else { SMALL_GROUP_MAX };
        let kind = (group.data_type, group.opaque, group.record);
        let place = small.then(|| places.get(&kind).copied()).flatten();
        match place.and_then(|place| joined.get_mut(place)) {
            Some(first) => {
                first.key = key_of_small(kind);
                first.members.extend(group.members);
            }
            None => {
                if small {
                    places.insert(kind, joined.len());
                }
                joined.push(group);
            }
        }
    }
    joined
}

fn key_of_small((data_type, opaque, record): (Option<DataType>, bool, Option<u32>)) -> String {
    match (data_type, record) {
        (Some(data_type), _) => format!("small_{data_type}"),
        (None, Some(record)) => format!("small records of {record}"),
        (None, None) if opaque => "small opaque".to_owned(),
        (None, None) => "small residues".to_owned(),
    }
}

/// Adds a variable's ranges to the member before, where both lie in one file and their elements add up along the slowest
/// dimension; gives it back otherwise.
fn join(last: &mut Planned, next: Planned) -> Option<Planned> {
    let (MemberRanges::Extents(held), MemberRanges::Extents(more)) =
        (&mut last.member.place, &next.member.place)
    else {
        return Some(next);
    };
    let (Some((length, faster)), Some((more_length, more_faster))) =
        (last.shape.0.split_first_mut(), next.shape.0.split_first())
    else {
        return Some(next);
    };
    if last.member.file != next.member.file || faster != more_faster {
        return Some(next);
    }
    *length = length.saturating_add(*more_length);
    for extent in more {
        match held.last_mut() {
            Some(before) if before.end() == extent.offset => before.length += extent.length,
            _ => held.push(*extent),
        }
    }
    None
}

fn is_grouped(variable: &Variable, options: &PlanOptions) -> bool {
    variable.stored_bytes() >= options.variable_min.max(1)
}

/// Whether the application compressed the variable, so that its bytes have no type.
fn is_encoded(variable: &Variable) -> bool {
    matches!(variable.storage, Storage::Encoded | Storage::Filtered(_) | Storage::DeflatedNpy)
}

fn element_type(variable: &Variable) -> Option<DataType> {
    (!is_encoded(variable)).then_some(variable.data_type)
}

fn planned(file: u32, variable: &Variable) -> Planned {
    let place = MemberRanges::Extents(variable.extents.clone());
    let shape = match &variable.storage {
        Storage::Plain if variable.shape.is_empty() => vec![1],
        Storage::Plain => variable.shape.clone(),
        Storage::ColumnMajor => variable.shape.iter().rev().copied().collect(),
        // Chunks follow each other along one more dimension.
        Storage::Chunked(chunks) => [&[chunks.origins.len() as u64], chunks.shape.as_slice()].concat(),
        Storage::Encoded | Storage::Filtered(_) | Storage::DeflatedNpy => vec![variable.stored_bytes()],
    };
    Planned { member: Member { file, place, same_as: None, base_file: None }, shape: Shape(shape) }
}

fn planned_numbers(file: u32, numbers: &Numbers) -> Planned {
    let place = MemberRanges::Extents(vec![numbers.extent]);
    let elements = numbers.extent.length / u64::from(numbers.data_type.size);
    Planned { member: Member { file, place, same_as: None, base_file: None }, shape: Shape(vec![elements]) }
}

fn rest_member(file: u32, length: u64) -> Planned {
    let place = MemberRanges::Rest(Extent { offset: 0, length });
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
pub(crate) fn slab(shape: &Shape, length: u64, piece: u64) -> Shape {
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
pub(crate) fn part(place: &MemberRanges, range: Extent) -> MemberRanges {
    match place {
        MemberRanges::Rest(whole) => {
            MemberRanges::Rest(Extent { offset: whole.offset + range.offset, length: range.length })
        }
        MemberRanges::Extents(extents) => MemberRanges::Extents(part_of_extents(extents, range)),
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
