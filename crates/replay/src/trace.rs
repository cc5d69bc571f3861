//! Reads traces of availability: hourly presence of volunteers, spot instances by zone, logs of preemption, failures of clusters.
//!
//! The format follows from the files that a directory has:
//!
//! | files | format |
//! |---|---|
//! | `up_intervals.csv`, `hosts.csv`, `snapshot_age_hours.csv` (also `.gz`) | hourly presence: host, from, to; host, its /24, its /16, its country |
//! | `*.json` | `{"metadata": {"gap_seconds": g}, "data": [instances at each tick]}`, a file for each zone |
//! | `*.csv`, `*.txt`, or one `.tar.xz` of them | logs of instances: `ms,add|remove,node`, or `[ms, "add"|"remove", {"nodes": [...]}]` |
//! | `event_trace.tab` (also `.xz`) | Failure Trace Archive: states of nodes with their beginning and end |

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stdchk_model::exact::narrow;
use stdchk_placement::predictor::Fate;
use stdchk_placement::random::Random;
use stdchk_placement::shocks::{Groups, NO_GROUP};

use crate::Error;
use crate::world::{Host, World, slots};

/// Bytes of a file after decompression: a hundred times what the largest known trace has.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Ticks of a trace: a year in seconds, or a century in hours.
const TICKS_MAX: u64 = 40_000_000;
/// Hosts of a trace.
const HOSTS_MAX: usize = 1_000_000;
/// Hours within which a host whose failure is doubtful must be seen again: longer than any gap between snapshots.
const SEEN_AGAIN: u32 = 24;
/// Tick of logs whose times are exact, seconds.
const LOG_TICK: u64 = 60;
/// Tick of the Failure Trace Archive, seconds: its systems fail some times a week.
const ARCHIVE_TICK: u64 = 3600;

/// Reads a directory. `seed` decides which of a zone's instances goes where the trace has only numbers.
///
/// # Errors
/// A trace is damaged; the message names the file and the line. A directory without any has none, which is no error.
pub fn read(dir: &Path, seed: u64) -> Result<Vec<World>, Error> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .map_err(|error| at(dir, error))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    let named = |name: &str| {
        let is = |path: &&PathBuf| {
            path.file_name().and_then(|own| own.to_str()).is_some_and(|own| own.starts_with(name))
        };
        files.iter().find(is)
    };
    let with = |ending: &str| -> Vec<PathBuf> {
        files
            .iter()
            .filter(|path| path.to_str().is_some_and(|path| path.ends_with(ending)))
            .cloned()
            .collect()
    };
    let name =
        dir.file_name().map_or_else(|| dir.display().to_string(), |name| name.to_string_lossy().into_owned());
    if let (Some(intervals), Some(hosts)) = (named("up_intervals.csv"), named("hosts.csv")) {
        return Ok(vec![presence(
            name,
            intervals,
            hosts,
            named("snapshot_age_hours.csv").map(PathBuf::as_path),
        )?]);
    }
    if let Some(events) = named("event_trace.tab") {
        return Ok(vec![archive(name, events)?]);
    }
    let zones = with(".json");
    if !zones.is_empty() {
        return Ok(vec![spot(name, &zones, seed)?]);
    }
    let mut logs: Vec<(String, String)> = Vec::new();
    for path in with(".tar.xz") {
        logs.extend(members(&path)?);
    }
    for path in with(".csv").into_iter().chain(with(".txt")) {
        logs.push((path.display().to_string(), text(&path)?));
    }
    let mut worlds = Vec::new();
    for (log, content) in logs {
        worlds.extend(instances(&log, &content)?);
    }
    Ok(worlds)
}

fn at(path: &Path, error: impl std::fmt::Display) -> Error {
    Error(format!("{}: {error}", path.display()))
}

fn bytes(path: &Path) -> Result<Vec<u8>, Error> {
    let file = File::open(path).map_err(|error| at(path, error))?;
    let ending = path.extension().and_then(|ending| ending.to_str());
    let mut content = Vec::new();
    match ending {
        Some("gz") => flate2::read::MultiGzDecoder::new(file).take(FILE_BYTES_MAX).read_to_end(&mut content),
        Some("xz") => {
            let mut input = std::io::BufReader::new(file);
            lzma_rs::xz_decompress(&mut input, &mut content)
                .map_err(|error| at(path, format!("{error:?}")))?;
            Ok(0)
        }
        _ => file.take(FILE_BYTES_MAX).read_to_end(&mut content),
    }
    .map_err(|error| at(path, error))?;
    Ok(content)
}

fn text(path: &Path) -> Result<String, Error> {
    String::from_utf8(bytes(path)?).map_err(|error| at(path, error))
}

/// Text files of a compressed archive, by name.
fn members(path: &Path) -> Result<Vec<(String, String)>, Error> {
    let content = bytes(path)?;
    let mut found = Vec::new();
    for member in tar::Archive::new(content.as_slice()).entries().map_err(|error| at(path, error))? {
        let mut member = member.map_err(|error| at(path, error))?;
        let name = member.path().map_err(|error| at(path, error))?.display().to_string();
        if name.ends_with(".csv") || name.ends_with(".txt") {
            let mut text = String::new();
            member.read_to_string(&mut text).map_err(|error| at(path, error))?;
            found.push((name, text));
        }
    }
    found.sort();
    Ok(found)
}

/// Lines with their numbers, the first left out if it is a heading.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_heading = |line: &str| line.starts_with(|first: char| first.is_ascii_alphabetic());
    (1..)
        .zip(text.lines())
        .filter(move |(number, line)| !(line.trim().is_empty() || *number == 1 && is_heading(line)))
}

fn numbers<const COUNT: usize>(line: &str) -> Option<[u64; COUNT]> {
    let mut fields = line.split(',');
    let mut found = [0; COUNT];
    for slot in &mut found {
        *slot = fields.next()?.trim().parse().ok()?;
    }
    Some(found)
}

fn presence(name: String, intervals: &Path, hosts: &Path, ages: Option<&Path>) -> Result<World, Error> {
    let bad = |path: &Path, line: usize| at(path, format!("line {line} isn't what is expected there"));
    let mut countries: BTreeMap<String, u32> = BTreeMap::new();
    let (mut found, mut places): (Vec<Host>, BTreeMap<u64, usize>) = (Vec::new(), BTreeMap::new());
    for (number, line) in lines(&text(hosts)?) {
        let [host, near, far] = numbers(line).ok_or_else(|| bad(hosts, number))?;
        let country = line.rsplit(',').next().unwrap_or_default().to_owned();
        if found.len() >= HOSTS_MAX || near.max(far) >= HOSTS_MAX as u64 || places.contains_key(&host) {
            return Err(bad(hosts, number));
        }
        places.insert(host, found.len());
        let next = narrow(countries.len());
        let country = if country == "??" { NO_GROUP } else { *countries.entry(country).or_insert(next) };
        found.push(Host { up: Vec::new(), groups: [narrow(near), narrow(far), country], computes: true });
    }
    let mut ticks = 0;
    for (number, line) in lines(&text(intervals)?) {
        let [host, from, to] = numbers(line).ok_or_else(|| bad(intervals, number))?;
        let host = places
            .get(&host)
            .and_then(|place| found.get_mut(*place))
            .ok_or_else(|| bad(intervals, number))?;
        let after_the_last = host.up.last().is_none_or(|last| u64::from(last.1) < from);
        if to <= from || to > TICKS_MAX || !after_the_last {
            return Err(bad(intervals, number));
        }
        host.up.push((narrow(from), narrow(to)));
        ticks = ticks.max(to);
    }
    let mut doubtful = Vec::new();
    if let Some(ages) = ages {
        for (number, line) in lines(&text(ages)?) {
            let [hour, age] = numbers(line).ok_or_else(|| bad(ages, number))?;
            if age > 0 && hour < TICKS_MAX {
                // A host that left during an old snapshot is missed in the first new one.
                doubtful.extend([narrow::<u32, _>(hour), narrow::<u32, _>(hour) + 1]);
            }
        }
        doubtful.sort_unstable();
        doubtful.dedup();
        found.iter_mut().for_each(|host| join(&mut host.up, &doubtful));
    }
    Ok(World { name, tick: 3600, ticks: narrow(ticks), hosts: found, doubtful, fate: Fate::Returns })
}

/// Ignores failures in doubtful hours: the host was there all the time if it is seen again within [`SEEN_AGAIN`].
fn join(spans: &mut Vec<(u32, u32)>, doubtful: &[u32]) {
    let mut joined: Vec<(u32, u32)> = Vec::with_capacity(spans.len());
    for span in spans.drain(..) {
        match joined.last_mut() {
            Some(last) if span.0 <= last.1 + SEEN_AGAIN && doubtful.binary_search(&last.1).is_ok() => {
                last.1 = span.1
            }
            _ => joined.push(span),
        }
    }
    *spans = joined;
}

#[derive(Deserialize)]
struct Zone {
    metadata: ZoneMetadata,
    data: Vec<usize>,
}

#[derive(Deserialize)]
struct ZoneMetadata {
    gap_seconds: u64,
}

fn spot(name: String, zones: &[PathBuf], seed: u64) -> Result<World, Error> {
    let (mut tick, mut ticks, mut hosts, mut doubtful) = (0, 0, Vec::new(), Vec::new());
    let mut regions: BTreeMap<String, u32> = BTreeMap::new();
    for (number, path) in (0_u32..).zip(zones) {
        let zone: Zone = serde_json::from_slice(&bytes(path)?).map_err(|error| at(path, error))?;
        let gap = zone.metadata.gap_seconds;
        let most = zone.data.iter().copied().max().unwrap_or(0);
        if gap == 0 || (tick != 0 && gap != tick) {
            return Err(at(path, format!("its tick is {gap} s, where the zones before have {tick} s")));
        }
        if most > 10_000 || zone.data.len() as u64 > TICKS_MAX {
            return Err(at(path, "more instances or ticks than any trace has"));
        }
        tick = gap;
        ticks = ticks.max(narrow::<u32, _>(zone.data.len()));
        // A zone whose record ends before the others' doesn't fail there.
        doubtful.push(narrow::<u32, _>(zone.data.len()));
        let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let zone_name = stem.split('_').next().unwrap_or(&stem);
        let region = zone_name.trim_end_matches(|last: char| last.is_ascii_alphabetic()).to_owned();
        let next = narrow(regions.len());
        let region = *regions.entry(region).or_insert(next);
        // The same victims whatever other zones there are.
        let mut random = Random::new(seed ^ u64::from(number).wrapping_mul(0x9e37_79b9));
        hosts.extend(slots(&zone.data, [number, region, NO_GROUP], &mut random));
    }
    doubtful.retain(|end| *end < ticks);
    doubtful.sort_unstable();
    Ok(World { name, tick, ticks, hosts, doubtful, fate: Fate::Gone })
}

/// A log of instances; none if it is a text of another kind.
fn instances(name: &str, content: &str) -> Result<Option<World>, Error> {
    let mut up: BTreeMap<String, Option<u32>> = BTreeMap::new();
    let mut found: BTreeMap<String, Vec<(u32, u32)>> = BTreeMap::new();
    let mut ticks = 0;
    for (number, line) in lines(content) {
        let Some((at_ms, adds, nodes)) = event(line) else {
            if number == 1 || found.is_empty() && up.is_empty() {
                return Ok(None);
            }
            return Err(Error(format!("{name}: line {number} isn't what is expected there")));
        };
        let tick: u32 = narrow((at_ms / 1000 / LOG_TICK).min(TICKS_MAX));
        ticks = ticks.max(tick + 1);
        for node in nodes {
            let since = up.entry(node.clone()).or_default();
            match (adds, *since) {
                (true, None) => *since = Some(tick),
                (false, Some(from)) => {
                    *since = None;
                    let spans = found.entry(node).or_default();
                    match spans.last_mut() {
                        _ if from == tick => {}
                        Some(last) if last.1 == from => last.1 = tick,
                        _ => spans.push((from, tick)),
                    }
                }
                _ => {}
            }
        }
    }
    for (node, since) in up {
        if let Some(from) = since.filter(|from| *from < ticks) {
            found.entry(node).or_default().push((from, ticks));
        }
    }
    let groups: Groups = [0, NO_GROUP, NO_GROUP];
    let hosts = found.into_values().map(|up| Host { up, groups, computes: true }).collect();
    let name = name.rsplit('/').next().unwrap_or(name).to_owned();
    Ok(Some(World { name, tick: LOG_TICK, ticks, hosts, doubtful: Vec::new(), fate: Fate::Gone }))
}

#[derive(Deserialize)]
struct Nodes {
    #[serde(default)]
    nodes: Vec<String>,
}

/// A line of a log: when (milliseconds), whether nodes are added, which.
fn event(line: &str) -> Option<(u64, bool, Vec<String>)> {
    let adds = |word: &str| match word {
        "add" => Some(true),
        "remove" => Some(false),
        _ => None,
    };
    if line.starts_with('[') {
        let (at_ms, word, nodes): (u64, String, Nodes) = serde_json::from_str(line).ok()?;
        // A line that only says that time goes on, or what the program did, names no nodes.
        let adds = if nodes.nodes.is_empty() { true } else { adds(&word)? };
        return Some((at_ms, adds, nodes.nodes));
    }
    let mut fields = line.split(',').map(str::trim);
    let at = fields.next()?.parse().ok()?;
    let word = adds(fields.next()?)?;
    Some((at, word, vec![fields.next()?.to_owned()]))
}

fn archive(name: String, path: &Path) -> Result<World, Error> {
    let content = text(path)?;
    let mut spans: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for (number, line) in lines(&content) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let field = |place: usize| fields.get(place).and_then(|field| field.parse::<f64>().ok());
        // event, component, node, platform, name, type (1: available), start, stop, reason
        let (Some(node), Some(platform), Some(kind), Some(from), Some(to)) =
            (field(2), field(3), field(5), field(6), field(7))
        else {
            if number <= 1 {
                continue;
            }
            return Err(at(path, format!("line {number} isn't what is expected there")));
        };
        let whole =
            |value: f64| std::time::Duration::try_from_secs_f64(value).ok().map(|value| value.as_secs());
        let (Some(node), Some(platform), Some(from), Some(to)) =
            (whole(node), whole(platform), whole(from), whole(to))
        else {
            return Err(at(path, format!("line {number} has a number below zero")));
        };
        let known = spans.entry((platform, node)).or_default();
        if kind == 1.0 && to > from {
            known.push((from, to));
        }
    }
    let begin = spans.values().flatten().map(|span| span.0).min().unwrap_or(0);
    let tick = |at: u64| narrow::<u32, _>(((at - begin) / ARCHIVE_TICK).min(TICKS_MAX));
    let mut platforms: BTreeMap<u64, u32> = BTreeMap::new();
    let (mut hosts, mut ticks) = (Vec::new(), 0);
    for ((platform, _), mut known) in spans {
        let next = narrow(platforms.len());
        let platform = *platforms.entry(platform).or_insert(next);
        known.sort_unstable();
        let mut up: Vec<(u32, u32)> = Vec::new();
        for (from, to) in known {
            let (from, to) = (tick(from), tick(to));
            ticks = ticks.max(to);
            match up.last_mut() {
                // A repair shorter than a tick is still a failure: the host is away for the tick.
                Some(last) if from <= last.1 => {
                    let next = last.1 + 1;
                    if to > next {
                        up.push((next, to));
                    }
                }
                _ if to > from => up.push((from, to)),
                _ => {}
            }
        }
        hosts.push(Host { up, groups: [platform, NO_GROUP, NO_GROUP], computes: true });
    }
    Ok(World { name, tick: ARCHIVE_TICK, ticks, hosts, doubtful: Vec::new(), fate: Fate::Returns })
}
