//! Series of images: successive checkpoints of one process, oldest first.
//!
//! They come from a folder that `scripts/images` filled. Without one, a small series is made up, so that the measures
//! can run anywhere; its figures show that they work, no more.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use tempfile::TempDir;

use crate::Error;
use crate::bench::Bench;

/// What tells how a series was made.
const ABOUT: &str = "series.json";

/// Successive images of one process.
pub struct Series {
    /// The name of its folder.
    pub name: String,
    /// How it was made.
    pub how: String,
    /// Seconds from one image to the next, where known.
    pub interval_seconds: Option<f64>,
    /// The images, oldest first.
    pub images: Vec<PathBuf>,
    /// Keeps images that were made up.
    _scratch: Option<TempDir>,
}

#[derive(Deserialize)]
struct About {
    how: String,
    interval_s: f64,
}

/// All series of a run.
///
/// # Errors
/// The folder holds no series of at least two images.
pub fn all(bench: &Bench) -> Result<Vec<Series>, Error> {
    let Some(folder) = &bench.images else { return Ok(vec![made_up(&bench.dir)?]) };
    let mut folders: Vec<PathBuf> = entries(folder)?.into_iter().filter(|path| path.is_dir()).collect();
    folders.sort();
    let mut all = Vec::new();
    for folder in folders {
        all.extend(read(&folder)?);
    }
    if all.is_empty() {
        let shown = folder.display();
        return Err(Error(format!(
            "no folder in {shown} holds two images or more; scripts/images makes some"
        )));
    }
    Ok(all)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| Error(format!("{}: {error}", folder.display())))?;
    Ok(entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?)
}

fn read(folder: &Path) -> Result<Option<Series>, Error> {
    let mut images: Vec<PathBuf> =
        entries(folder)?.into_iter().filter(|path| timestep(path).is_some()).collect();
    images.sort_by_key(|path| timestep(path));
    if images.len() < 2 {
        return Ok(None);
    }
    let about = std::fs::read(folder.join(ABOUT)).ok();
    let about: Option<About> = about.map(|text| serde_json::from_slice(&text)).transpose()?;
    Ok(Some(Series {
        name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        how: about.as_ref().map_or_else(String::new, |about| about.how.clone()),
        interval_seconds: about.map(|about| about.interval_s),
        images,
        _scratch: None,
    }))
}

/// The timestep in a name like `blast.N0.T12`.
fn timestep(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    name.rsplit_once(".T")?.1.parse().ok()
}

/// Images of a series that is made up, and pages of each.
const IMAGES: u64 = 2;
const PAGES: u64 = 1024;
const PAGE_BYTES: usize = 4096;

/// A made-up process: half of its pages are zero, a quarter never change, a quarter change from image to image, and its
/// last page moves everything behind it by a few bytes in each image.
fn made_up(below: &Path) -> Result<Series, Error> {
    let scratch = tempfile::Builder::new().prefix("series-").tempdir_in(below)?;
    let mut images = Vec::new();
    for timestep in 1..=IMAGES {
        let mut image = Vec::new();
        for page in 0..PAGES {
            match page / 8 % 4 {
                0 | 1 => image.extend([0; PAGE_BYTES]),
                2 => image.extend(page_of(page)),
                _ => image.extend(page_of(page + timestep * PAGES)),
            }
        }
        image.extend(vec![1; usize::try_from(timestep)?]);
        (0..PAGES / 4).for_each(|page| image.extend(page_of(page + 100 * PAGES)));
        let path = scratch.path().join(format!("made-up.N0.T{timestep}"));
        std::fs::write(&path, image)?;
        images.push(path);
    }
    Ok(Series {
        name: "made-up".to_owned(),
        how: "pages of random bytes".to_owned(),
        interval_seconds: None,
        images,
        _scratch: Some(scratch),
    })
}

/// A page of random bytes that its number determines (xorshift64*).
fn page_of(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = std::iter::repeat_with(|| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes()
    });
    words.take(PAGE_BYTES / 8).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_taken_in_the_order_of_their_timesteps() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.N0.T10", "a.N0.T9", "a.N0.T1", "series.json.old", "notes"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let series = read(folder.path()).unwrap().unwrap();
        let names: Vec<_> =
            series.images.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.N0.T1", "a.N0.T9", "a.N0.T10"]);
    }

    #[test]
    fn one_image_is_no_series() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.N0.T1"), "").unwrap();
        assert!(read(folder.path()).unwrap().is_none());
    }
}
