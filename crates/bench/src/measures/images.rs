//! Series of images of a running program, end to end: what the application waits and what the pool then holds, for the
//! cutters and codecs that a policy offers (the paper's section V.E and Figure 7).
//!
//! Every policy gets a pool of its own, which takes the images in their order, and beside each of them a file of unique
//! data of the same size, so that the two rates come from the same minute. The paper's "no-FsCH" has no counterpart, as
//! all content is named by its hash; the unique data, of which nothing is found again, stand in its place.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use stdchk_model::size;

use super::similarity;
use crate::Error;
use crate::bench::{BENEFACTORS, BLOCK, Bench, Size, WINDOW};
use crate::cpu;
use crate::pool::LocalPool;
use crate::row::median;
use crate::section::{Section, Target, at_least, at_most};
use crate::series::{self, Series};
use crate::stock::Stock;
use crate::transfer::{self, Content};

/// How a series is stored.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
struct Way {
    cutter: &'static str,
    codec: &'static str,
    close: &'static str,
    through: &'static str,
    window_bytes: u64,
}

const DEFAULT: Way =
    Way { cutter: "fsch:1MiB", codec: "auto", close: "stored", through: "mount", window_bytes: WINDOW };

/// What a user would choose from.
const WAYS: [Way; 7] = [
    DEFAULT,
    Way { cutter: "cdc:64KiB", ..DEFAULT },
    Way { codec: "zstd", ..DEFAULT },
    Way { cutter: "fsch:4KiB", codec: "zstd", ..DEFAULT },
    Way { cutter: "cdc:16KiB", codec: "zstd", ..DEFAULT },
    Way { cutter: "cdc:64KiB", codec: "zstd", ..DEFAULT },
    Way { cutter: "fsch:4KiB", codec: "zstd", through: "put", ..DEFAULT },
];
/// What the tiny size keeps of them: small pieces through the mount and by `put`.
const WAYS_TINY: [Way; 2] = [WAYS[3], WAYS[6]];
/// Windows of the paper's Figure 7, besides the default, bytes.
const WINDOWS: [u64; 4] = [16 << 20, 32 << 20, 128 << 20, 256 << 20];

/// Its rates: OAB-early, OAB and ASB.
const CLOSES: [&str; 3] = ["early", "stored", "durable"];

/// The cutters whose best is what stored bytes are compared with.
const SEARCHED: [&str; 3] = ["fsch:4KiB", "cdc:8KiB", "cdc:16KiB"];
/// How much more than the best of these may be stored, and how much slower than unique data that may be.
const STORED_OVER_BEST: f64 = 1.05;
const OAB_OF_UNIQUE: f64 = 0.5;
/// Rate with the default content-defined cutter against that with FsCH.
const CDC_OF_FSCH: f64 = 0.9;

/// All ways for all series.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let mut stock = Stock::new();
    let (mut rows, mut targets) = (Vec::new(), Vec::new());
    for series in series::all(bench)? {
        let (best, whole) = similarity::least_stored(&series, &SEARCHED)?;
        let of_series = ways(bench.size)
            .into_iter()
            .map(|way| store(bench, &series, way, whole, &mut stock))
            .collect::<Result<Vec<_>, _>>()?;
        targets.extend(targets_of(&series.name, &of_series, best));
        rows.extend(of_series);
    }
    Ok(Section { rows: serde_json::to_value(&rows)?, table: table(&rows), targets })
}

fn ways(size: Size) -> Vec<Way> {
    match size {
        Size::Tiny => WAYS_TINY.to_vec(),
        Size::Small => WAYS.to_vec(),
        Size::Full => {
            let windows = WINDOWS.into_iter().chain([WINDOW]);
            let figure_7 =
                windows.flat_map(|window_bytes| CLOSES.map(|close| Way { close, window_bytes, ..DEFAULT }));
            WAYS.into_iter().chain(figure_7.filter(|way| *way != DEFAULT)).collect()
        }
    }
}

/// A series stored one way: one entry of a list for each image.
#[derive(Serialize)]
struct ImagesRow {
    series: String,
    #[serde(flatten)]
    way: Way,
    image_bytes: Vec<u64>,
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
    /// What the pool grew by.
    stored_bytes: Vec<u64>,
    /// Seconds for unique data of the same size, through the mount, with the default cutter and codec.
    unique_seconds: Vec<f64>,
    /// Bytes of all images but the first, each compressed whole with zstd:3.
    whole_zstd_bytes: u64,
}

fn store(
    bench: &Bench,
    series: &Series,
    way: Way,
    whole_zstd_bytes: u64,
    stock: &mut Stock,
) -> Result<ImagesRow, Error> {
    let pool = bench.up(BENEFACTORS, way.window_bytes)?;
    let close = format!("close={}", way.close);
    let (cutter, codec) = (format!("cutter={}", way.cutter), format!("codec={}", way.codec));
    pool.folder("images", &["redundancy=replicate:1", &close, &cutter, &codec])?;
    let unique = pool.folder("unique", &["redundancy=replicate:1", &close])?;
    let mut row = ImagesRow {
        series: series.name.clone(),
        way,
        image_bytes: Vec::new(),
        seconds: Vec::new(),
        cpu_seconds: Vec::new(),
        stored_bytes: Vec::new(),
        unique_seconds: Vec::new(),
        whole_zstd_bytes,
    };
    for (timestep, image) in series.images.iter().enumerate() {
        stock.renew();
        let bytes = std::fs::metadata(image)?.len();
        let content = Content { bytes, ..bench.content() };
        let name = format!("run.N0.T{timestep}");
        row.unique_seconds.push(transfer::write(&unique.join(&name), content, stock, false)?);
        pool.wait_committed(&format!("unique/{name}"), bytes)?;
        let stored = pool.stored_bytes()?;
        let (seconds, cpu) = take(&pool, image, timestep, way)?;
        row.image_bytes.push(bytes);
        row.seconds.push(seconds);
        row.cpu_seconds.push(cpu);
        row.stored_bytes.push(pool.stored_bytes()?.saturating_sub(stored));
    }
    Ok(row)
}

/// Stores one image; seconds and CPU seconds of it.
fn take(pool: &LocalPool, image: &Path, timestep: usize, way: Way) -> Result<(f64, f64), Error> {
    let name = format!("images/run.N0.T{timestep}");
    let content = std::fs::read(image)?; // for `put`, this brings it into the page cache
    let before = cpu::seconds_with(&pool.pids(""));
    let seconds = if way.through == "put" {
        let started = Instant::now();
        pool.run(&["put", &image.to_string_lossy(), &name])?;
        started.elapsed().as_secs_f64()
    } else {
        transfer::write_bytes(&pool.mount_point().join(&name), &content, BLOCK)?
    };
    let asking = pool.wait_committed(&name, content.len() as u64)?;
    Ok((seconds, cpu::seconds_with(&pool.pids("")) - before - asking))
}

impl ImagesRow {
    /// Median rate of all images but the first, megabytes (10^6) per second.
    fn rate(&self) -> f64 {
        rate(&self.image_bytes, &self.seconds)
    }

    /// Median rate of the unique data beside the images, megabytes (10^6) per second.
    fn unique_rate(&self) -> f64 {
        rate(&self.image_bytes, &self.unique_seconds)
    }

    /// Bytes stored of all images but the first.
    fn stored(&self) -> f64 {
        self.stored_bytes.iter().skip(1).sum::<u64>() as f64
    }

    fn written(&self) -> f64 {
        self.image_bytes.iter().skip(1).sum::<u64>() as f64
    }

    fn line(&self) -> String {
        let first = |values: &[u64]| values.first().map_or(f64::NAN, |value| *value as f64);
        let first_rate = first(&self.image_bytes) / 1e6 / self.seconds.first().copied().unwrap_or(f64::NAN);
        let cpu: f64 = self.cpu_seconds.iter().skip(1).sum();
        format!(
            "{:10} {:6} {:8} {:6} {:>7} {:>8.0} {:>8.0} {:>8.0} {:>8.2} {:>9.1} {:>9.2} {:>8.3}",
            self.way.cutter,
            self.way.codec,
            self.way.close,
            self.way.through,
            size::exact(self.way.window_bytes),
            first_rate,
            self.rate(),
            self.unique_rate(),
            cpu / (self.written() / 1e9),
            first(&self.stored_bytes) / first(&self.image_bytes) * 100.0,
            self.stored() / self.written() * 100.0,
            self.stored() / self.whole_zstd_bytes as f64,
        )
    }
}

fn rate(bytes: &[u64], seconds: &[f64]) -> f64 {
    let rates = bytes.iter().zip(seconds).skip(1).map(|(bytes, seconds)| *bytes as f64 / 1e6 / seconds);
    median(&rates.collect::<Vec<_>>())
}

fn targets_of(series: &str, rows: &[ImagesRow], best: u64) -> Vec<Target> {
    let least = rows.iter().min_by(|one, other| one.stored().total_cmp(&other.stored()));
    let mut targets = Vec::new();
    if let Some(row) = least {
        let what =
            format!("{series}: least stored ({}, {}) / best of a search", row.way.cutter, row.way.codec);
        targets.push(at_most(what, row.stored() / best as f64, STORED_OVER_BEST));
        let what = format!("{series}: its rate / that of unique data");
        targets.push(at_least(what, row.rate() / row.unique_rate(), OAB_OF_UNIQUE));
    }
    let plain = |cutter| {
        let is_it = |row: &&ImagesRow| row.way.cutter == cutter && row.way.codec == "auto";
        rows.iter().find(is_it).map(ImagesRow::rate)
    };
    if let (Some(cdc), Some(fsch)) = (plain("cdc:64KiB"), plain("fsch:1MiB")) {
        targets.push(at_least(format!("{series}: cdc:64KiB / fsch:1MiB"), cdc / fsch, CDC_OF_FSCH));
    }
    targets
}

const HEADING: &str = "                                            first     next   unique  CPU s/GB    first      next   /whole\n\
                       cutter     codec  close    way     window     MB/s     MB/s     MB/s            stored %  stored %     zstd\n";
const EXPLANATION: &str = "
close=early gives OAB-early, stored OAB, durable ASB. first: the first image of the series; next: median of the others;
unique: data of which nothing is found again, beside them; stored: what the pool grew by; /whole zstd: of the next images,
against each compressed whole. The best of a search is what similarity finds for fsch:4KiB, cdc:8KiB and cdc:16KiB with zstd.
";

fn table(rows: &[ImagesRow]) -> String {
    let mut text = String::new();
    let mut last = "";
    for row in rows {
        if row.series != last {
            last = &row.series;
            text.push_str(&format!("{last}: {} images\n{HEADING}", row.image_bytes.len()));
        }
        text.push_str(&row.line());
        text.push('\n');
    }
    text + EXPLANATION
}
