//! What one cutter did with one series.

use std::fmt::Write as _;

use serde::Serialize;

use super::contenders::Contender;
use super::stored;
use crate::Error;
use crate::row::median;
use crate::series::Series;

/// A measured row; one entry of a list for each image, or for each but the first.
#[derive(Serialize)]
pub struct SimilarityRow {
    series: String,
    program: String,
    interval_seconds: Option<f64>,
    cutter: String,
    peer_of: Option<String>,
    image_bytes: Vec<usize>,
    non_zero_bytes: Vec<usize>,
    /// Of every image: seconds for cutting alone, on one core.
    cut_seconds: Vec<f64>,
    /// Of every image: seconds for naming its pieces (BLAKE3), on one core.
    name_seconds: Vec<f64>,
    pieces: Vec<usize>,
    shortest_bytes: Vec<usize>,
    longest_bytes: Vec<usize>,
    /// Of every image but the first: bytes in pieces that the image before has, zero pages included and without them.
    found_bytes: Vec<usize>,
    found_non_zero_bytes: Vec<usize>,
    /// Of every image but the first: bytes to store, plain and with zstd, and those of the whole image with zstd.
    stored_bytes: Vec<usize>,
    stored_zstd_bytes: Vec<u64>,
    whole_zstd_bytes: Vec<u64>,
}

impl SimilarityRow {
    /// A row without images.
    pub fn new(series: &Series, contender: &Contender) -> Self {
        Self {
            series: series.name.clone(),
            program: series.how.clone(),
            interval_seconds: series.interval_seconds,
            cutter: contender.name.clone(),
            peer_of: contender.peer_of.clone(),
            image_bytes: Vec::new(),
            non_zero_bytes: Vec::new(),
            cut_seconds: Vec::new(),
            name_seconds: Vec::new(),
            pieces: Vec::new(),
            shortest_bytes: Vec::new(),
            longest_bytes: Vec::new(),
            found_bytes: Vec::new(),
            found_non_zero_bytes: Vec::new(),
            stored_bytes: Vec::new(),
            stored_zstd_bytes: Vec::new(),
            whole_zstd_bytes: Vec::new(),
        }
    }

    /// Adds an image of so many bytes.
    pub fn image(&mut self, bytes: usize, non_zero: usize, cut_seconds: f64, name_seconds: f64) {
        self.image_bytes.push(bytes);
        self.non_zero_bytes.push(non_zero);
        self.cut_seconds.push(cut_seconds);
        self.name_seconds.push(name_seconds);
    }

    /// Adds how the image was cut. Its last piece is as long as what was left, and is not counted as the shortest.
    pub fn pieces(&mut self, lengths: &[usize]) {
        let inner = lengths.split_last().map_or(lengths, |(_, inner)| inner);
        self.pieces.push(lengths.len());
        self.shortest_bytes.push(inner.iter().copied().min().unwrap_or(0));
        self.longest_bytes.push(lengths.iter().copied().max().unwrap_or(0));
    }

    /// Adds what of the image was in the one before.
    pub fn found(&mut self, found: usize, non_zero: usize) {
        self.found_bytes.push(found);
        self.found_non_zero_bytes.push(non_zero);
    }

    /// Adds what would be stored of the image; `whole`: its bytes with zstd.
    pub fn stored(&mut self, new: &[&[u8]], whole: u64) -> Result<(), Error> {
        self.stored_bytes.push(new.iter().map(|piece| piece.len()).sum());
        self.stored_zstd_bytes.push(stored::packed_zstd_bytes(new)?);
        self.whole_zstd_bytes.push(whole);
        Ok(())
    }

    /// Whether this is our cutter, on the same series and of the same average as `peer`.
    pub fn is_ours_of(&self, peer: &Self) -> bool {
        self.series == peer.series && peer.peer_of.as_ref() == Some(&self.cutter)
    }

    /// Whether the cutter looks at no byte, so that a rate of cutting alone says nothing.
    fn is_fixed(&self) -> bool {
        self.cutter.starts_with("fsch:")
    }

    /// The series and the cutter.
    pub fn name(&self) -> String {
        format!("{}, {}", self.series, self.cutter)
    }

    /// Cutting alone, megabytes (10^6) per second on one core.
    pub fn rate(&self) -> f64 {
        median(&rates(&self.image_bytes, &self.cut_seconds))
    }

    /// Cutting and naming, as the paper counts a heuristic's throughput, megabytes per second on one core.
    fn named_rate(&self) -> f64 {
        let seconds: Vec<f64> = self.cut_seconds.iter().zip(&self.name_seconds).map(|(a, b)| a + b).collect();
        median(&rates(&self.image_bytes, &seconds))
    }

    /// The paper's similarity: mean share of an image found in the one before, percent.
    pub fn similarity_percent(&self) -> f64 {
        mean_percent(&self.found_bytes, self.image_bytes.get(1..).unwrap_or_default())
    }

    /// Mean share of an image's bytes outside zero pages that was found in the one before, percent.
    fn non_zero_percent(&self) -> f64 {
        mean_percent(&self.found_non_zero_bytes, self.non_zero_bytes.get(1..).unwrap_or_default())
    }

    /// Bytes to store of all images but the first, with zstd.
    pub fn stored_with_zstd(&self) -> u64 {
        self.stored_zstd_bytes.iter().sum()
    }

    /// Bytes of the same images compressed whole.
    pub fn whole_with_zstd(&self) -> u64 {
        self.whole_zstd_bytes.iter().sum()
    }

    fn line(&self) -> String {
        let sum = |values: &[usize]| values.iter().sum::<usize>() as f64;
        let written = sum(self.image_bytes.get(1..).unwrap_or_default());
        let zstd = self.stored_with_zstd() as f64;
        let whole = self.whole_with_zstd() as f64;
        format!(
            "{:24} {:>8} {:>8.0} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.3} {:>8.1} {:>8.1} {:>8.1}",
            self.cutter,
            if self.is_fixed() { "-".to_owned() } else { format!("{:.0}", self.rate()) },
            self.named_rate(),
            self.similarity_percent(),
            self.non_zero_percent(),
            sum(&self.stored_bytes) / written * 100.0,
            zstd / written * 100.0,
            zstd / whole,
            sum(&self.image_bytes) / sum(&self.pieces) / 1024.0,
            mean(&self.shortest_bytes) / 1024.0,
            mean(&self.longest_bytes) / 1024.0,
        )
    }
}

fn rates(bytes: &[usize], seconds: &[f64]) -> Vec<f64> {
    bytes.iter().zip(seconds).map(|(bytes, seconds)| *bytes as f64 / 1e6 / seconds).collect()
}

fn mean(values: &[usize]) -> f64 {
    values.iter().sum::<usize>() as f64 / values.len() as f64
}

fn mean_percent(parts: &[usize], wholes: &[usize]) -> f64 {
    let shares: Vec<f64> =
        parts.iter().zip(wholes).map(|(part, whole)| *part as f64 / (*whole).max(1) as f64).collect();
    shares.iter().sum::<f64>() / shares.len() as f64 * 100.0
}

const HEADING: &str = "                              cut    named   similar  non-zero    stored     +zstd    /whole   piece KiB\n\
                       cutter                     MB/s     MB/s         %         %         %         %      zstd     mean shortest  longest\n";
const EXPLANATION: &str = "
cut: cutting alone (fsch looks at no byte); named: with BLAKE3 of every piece, the paper's throughput of a heuristic; one core, MB = 10^6 bytes.
similar: bytes in pieces that the image before has; non-zero: the same of the bytes outside zero pages; stored: bytes in
new pieces; +zstd: these packed into chunks of 1 MiB, with zstd:3; /whole zstd: against each image compressed whole.
";

/// All rows for people, series by series.
pub fn table(rows: &[SimilarityRow]) -> String {
    let mut text = String::new();
    let mut last = "";
    for row in rows {
        if row.series != last {
            last = &row.series;
            let (bytes, zero) =
                (mean(&row.image_bytes), 1.0 - mean(&row.non_zero_bytes) / mean(&row.image_bytes));
            let (count, zero) = (row.image_bytes.len(), zero * 100.0);
            let _ = writeln!(
                text,
                "{last}: {count} images of {:.1} MB, {zero:.0} % zero pages; {}\n{HEADING}",
                bytes / 1e6,
                row.program
            );
            text.pop();
        }
        text.push_str(&row.line());
        text.push('\n');
    }
    text + EXPLANATION
}
