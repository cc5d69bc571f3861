//! How much of an image each cutter finds again in the image before it, how fast, and what would be stored (the paper's
//! section V.E: Tables 2 to 4).
//!
//! As in the paper, similarity is the share of an image's bytes in pieces whose hash the version before has too, averaged
//! over the series. Three quarters of some images are zeros, which every cutter finds and nobody stores, so the share of
//! the bytes outside zero pages is given beside it. All cutters run over one image before the next is taken.

mod contenders;
mod pages;
mod row;
mod stored;

use std::collections::HashSet;
use std::time::Instant;

use contenders::Contender;
use pages::NonZero;
use row::SimilarityRow;
use stdchk_model::ChunkId;

use crate::Error;
use crate::bench::Bench;
use crate::section::{Section, Target, at_least, at_most};
use crate::series::{self, Series};

/// Names of the pieces of an image.
type Names = HashSet<ChunkId>;

/// How much faster than `fastcdc` the default cutter should be.
const FASTER: f64 = 2.5;
/// How far apart the similarity that the two find may be, percent of the image.
const POINTS: f64 = 2.0;

/// All contenders over all series.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let mut rows = Vec::new();
    for series in series::all(bench)? {
        rows.extend(of_series(&series, contenders::all(bench.size)?)?);
    }
    Ok(Section { rows: serde_json::to_value(&rows)?, table: row::table(&rows), targets: targets(&rows) })
}

/// A contender with what it knows of the image before.
struct Entrant {
    contender: Contender,
    row: SimilarityRow,
    before: Names,
}

/// The fewest bytes that these cutters would leave to store of each image but the first, with zstd; and those of the
/// whole images with zstd.
pub fn least_stored(series: &Series, cutters: &[&str]) -> Result<(u64, u64), Error> {
    let rows = of_series(series, contenders::of(cutters)?)?;
    let least = rows.iter().map(SimilarityRow::stored_with_zstd).min().unwrap_or(0);
    Ok((least, rows.first().map_or(0, SimilarityRow::whole_with_zstd)))
}

fn of_series(series: &Series, contenders: Vec<Contender>) -> Result<Vec<SimilarityRow>, Error> {
    let mut entrants: Vec<Entrant> = contenders
        .into_iter()
        .map(|contender| Entrant {
            row: SimilarityRow::new(series, &contender),
            contender,
            before: Names::new(),
        })
        .collect();
    for (place, image) in series.images.iter().enumerate() {
        let image = std::fs::read(image)?;
        let whole = stored::whole_zstd_bytes(&image)?;
        let non_zero = NonZero::of(&image);
        for entrant in &mut entrants {
            entrant.take(&image, &non_zero, whole, place == 0)?;
        }
    }
    Ok(entrants.into_iter().map(|entrant| entrant.row).collect())
}

impl Entrant {
    fn take(&mut self, image: &[u8], non_zero: &NonZero, whole: u64, first: bool) -> Result<(), Error> {
        let began = Instant::now();
        let lengths = self.contender.cut(image);
        let cut_seconds = began.elapsed().as_secs_f64();
        let pieces = split(image, &lengths);
        let began = Instant::now();
        let names: Vec<ChunkId> = pieces.iter().map(|piece| ChunkId::of(piece)).collect();
        let name_seconds = began.elapsed().as_secs_f64();
        self.row.image(image.len(), non_zero.total(), cut_seconds, name_seconds);
        self.row.pieces(&lengths);
        if !first {
            let (mut found, mut found_non_zero, mut start) = (0, 0, 0);
            for (piece, name) in pieces.iter().zip(&names) {
                let end = start + piece.len();
                if self.before.contains(name) {
                    found += piece.len();
                    found_non_zero += non_zero.within(start..end);
                }
                start = end;
            }
            self.row.found(found, found_non_zero);
            let new = new_pieces(&pieces, &names, &self.before);
            self.row.stored(&new, whole)?;
        }
        self.before = names.into_iter().collect();
        Ok(())
    }
}

fn split<'image>(image: &'image [u8], lengths: &[usize]) -> Vec<&'image [u8]> {
    let mut rest = image;
    let mut pieces = Vec::with_capacity(lengths.len());
    for length in lengths {
        let (piece, after) = rest.split_at_checked(*length).unwrap_or((rest, &[]));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// What would be stored: pieces that are not zeros, not in the version before and not seen earlier in this one.
fn new_pieces<'image>(pieces: &[&'image [u8]], names: &[ChunkId], before: &Names) -> Vec<&'image [u8]> {
    let mut seen = HashSet::new();
    let candidates = pieces.iter().zip(names).filter(|(piece, name)| {
        !before.contains(*name) && !stdchk_reduce::is_zero(piece) && seen.insert(**name)
    });
    candidates.map(|(piece, _)| *piece).collect()
}

fn targets(rows: &[SimilarityRow]) -> Vec<Target> {
    let pairs = rows.iter().filter_map(|peer| Some((rows.iter().find(|ours| ours.is_ours_of(peer))?, peer)));
    pairs
        .flat_map(|(ours, peer)| {
            let name = ours.name();
            [
                at_least(format!("{name}: rate / fastcdc's"), ours.rate() / peer.rate(), FASTER),
                at_most(
                    format!("{name}: similarity that fastcdc finds beyond, points"),
                    peer.similarity_percent() - ours.similarity_percent(),
                    POINTS,
                ),
            ]
        })
        .collect()
}
