//! What the owner of the disk decides: a file in the benefactor's folder with one word, written by `stdchk benefactor pause`, `drain`
//! and `leave`, and removed by `resume`.
//!
//! The file is all of the state. So it holds whether the benefactor runs or not, after each restart, and whatever is killed; who may
//! decide is who may write into the folder. The benefactor looks into the file before it serves, and then twice a second. It writes
//! to it twice: when the pool has forgotten it, `leave` becomes `left`; and when blocks were found damaged again and again, one that is to
//! serve gets `damaged`. Neither is done if the owner has decided otherwise meanwhile.
//!
//! | the file says | blocks are | after a restart |
//! |---|---|---|
//! | nothing: it isn't there | taken and kept | the same |
//! | `pause` | served | the same |
//! | `drain` | served, and let go of once others have them | the same |
//! | `damaged` | the same, until the owner decides | the same |
//! | `leave` | the same; with the last one the benefactor is forgotten and ends | the same |
//! | `left` | none there | the benefactor doesn't start |

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use stdchk_model::message::benefactor::OwnerWish;
use stdchk_net::own;
use tokio::time::sleep;

use crate::damages::Damages;
use crate::hours::Hours;
use crate::service::{Benefactor, blocking};
use crate::store::Store;

/// The file, in the data directory.
const FILE: &str = "wish";
/// Pause between two looks: an owner who waits for it hardly notices.
const LOOK: Duration = Duration::from_millis(500);

/// What an owner has decided, and what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// What the owner wishes.
    Wish(OwnerWish),
    /// The pool has forgotten the benefactor, as its owner wished.
    Left,
}

impl Decision {
    const ALL: [Self; 6] = [
        Self::Wish(OwnerWish::Serve),
        Self::Wish(OwnerWish::Pause),
        Self::Wish(OwnerWish::Drain),
        Self::Wish(OwnerWish::Leave),
        Self::Wish(OwnerWish::Damaged),
        Self::Left,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Wish(OwnerWish::Serve) => "serve",
            Self::Wish(OwnerWish::Pause) => "pause",
            Self::Wish(OwnerWish::Drain) => "drain",
            Self::Wish(OwnerWish::Leave) => "leave",
            Self::Wish(OwnerWish::Damaged) => "damaged",
            Self::Left => "left",
        }
    }
}

/// What the owner of this folder has decided.
///
/// # Errors
/// The folder can't be looked into, or the file says something else.
pub fn decision(folder: &Path) -> io::Result<Decision> {
    let text = match own::text(&folder.join(FILE)) {
        Ok(text) => text,
        // Not so if the folder is gone.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::metadata(folder)?;
            return Ok(Decision::Wish(OwnerWish::Serve));
        }
        Err(error) => return Err(error),
    };
    let found = Decision::ALL.into_iter().find(|decision| decision.word() == text.trim_end());
    found.ok_or_else(|| {
        let message = format!("the file `{FILE}` says {text:?}, which this stdchk doesn't know");
        io::Error::new(ErrorKind::InvalidData, message)
    })
}

/// Writes down what the owner of a benefactor wishes, whether that runs or not. Done by the time it returns, also if the machine fails
/// then.
///
/// # Errors
/// The folder can't be written to. Then it is as before.
pub fn decide(folder: &Path, wish: OwnerWish) -> io::Result<()> {
    let _turn = turn(folder)?;
    write(folder, Decision::Wish(wish))
}

/// The pool has forgotten the benefactor of this folder. Whether its owner still wishes that.
///
/// # Errors
/// The folder can't be looked into or written to.
pub(crate) fn note_left(folder: &Path) -> io::Result<bool> {
    let _turn = turn(folder)?;
    let is_wished = matches!(decision(folder)?, Decision::Wish(OwnerWish::Leave) | Decision::Left);
    if is_wished {
        write(folder, Decision::Left)?;
    }
    Ok(is_wished)
}

/// Blocks of this folder were found damaged again and again. Notes that, if the benefactor is to serve; whether it is.
///
/// # Errors
/// The folder can't be looked into or written to.
pub(crate) fn note_damaged(folder: &Path) -> io::Result<bool> {
    let _turn = turn(folder)?;
    let is_to_serve = decision(folder)? == Decision::Wish(OwnerWish::Serve);
    if is_to_serve {
        write(folder, Decision::Wish(OwnerWish::Damaged))?;
    }
    Ok(is_to_serve)
}

/// Held while somebody looks at the file and writes it.
fn turn(folder: &Path) -> io::Result<File> {
    let folder = File::open(folder)?;
    flock(&folder, FlockOperation::LockExclusive)?;
    Ok(folder)
}

fn write(folder: &Path, decision: Decision) -> io::Result<()> {
    let path = folder.join(FILE);
    if decision == Decision::Wish(OwnerWish::Serve) {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    } else {
        return own::replace(&path, &format!("{}\n", decision.word()), crate::READABLE);
    }
    File::open(folder)?.sync_all()
}

/// What the owner wishes of a benefactor that is to serve in these hours only. Outside of them it is paused; all else that the owner
/// wishes holds at any hour.
pub(crate) fn at_this_hour(wish: OwnerWish, hours: Option<&Hours>) -> OwnerWish {
    match (wish, hours) {
        (OwnerWish::Serve, Some(hours)) if !hours.are_now() => OwnerWish::Pause,
        _ => wish,
    }
}

/// What is decided by now. `was_damaged`: at the last look it was written down that the benefactor drains for its damages. Whoever lets it
/// serve since then knows of them; those that follow count anew. A disk that doesn't take the note is asked again with each look,
/// and drains meanwhile.
fn look(folder: &Path, store: &Store, was_damaged: &mut bool) -> io::Result<Decision> {
    let decided = decision(folder)?;
    let before = std::mem::replace(was_damaged, decided == Decision::Wish(OwnerWish::Damaged));
    if decided != Decision::Wish(OwnerWish::Serve) || !store.is_often_damaged() {
        return Ok(decided);
    }
    if before {
        store.forget_damages();
        return Ok(decided);
    }
    match note_damaged(folder) {
        Ok(false) => return decision(folder),
        Ok(true) => {
            *was_damaged = true;
            tracing::error!(
                path = %folder.display(),
                "blocks were damaged again and again: what is here moves to others, until `stdchk benefactor resume`"
            );
        }
        Err(error) => {
            tracing::error!(path = %folder.display(), %error, "blocks were damaged again and again, and that can't be noted");
        }
    }
    Ok(Decision::Wish(OwnerWish::Damaged))
}

/// What is known from one look to the next.
#[derive(Clone, Debug, Default)]
struct Known {
    was_damaged: bool,
    damages: Damages,
}

/// Does for ever what the owner decides. While the folder can't be looked into, that is what the owner decided last.
pub(crate) async fn obey(benefactor: Arc<Benefactor>, folder: Arc<Path>, hours: Option<Hours>) {
    let (mut is_odd, mut known) = (false, Known::default());
    loop {
        sleep(LOOK).await;
        let (looked_into, store, mut now) =
            (Arc::clone(&folder), Arc::clone(benefactor.store()), known.clone());
        let looked = blocking(move || {
            let decided = look(&looked_into, &store, &mut now.was_damaged);
            let drains = matches!(decided, Ok(Decision::Wish(wish)) if wish.drains());
            store.tend_near(!drains);
            // Behind the wish that may say them: a crash between the two forgets none.
            now.damages.settle(&looked_into, &store);
            (decided, now)
        });
        let looked = looked.await.map(|(decided, now)| {
            known = now;
            decided
        });
        match looked {
            Ok(Ok(Decision::Wish(wish))) => benefactor.set_wish(at_this_hour(wish, hours.as_ref())),
            Ok(Ok(Decision::Left)) => {}
            Ok(Err(error)) if !is_odd => {
                is_odd = true;
                tracing::warn!(%error, "what the owner wishes can't be read: it stays as it was");
                continue;
            }
            Ok(Err(_)) | Err(_) => continue,
        }
        is_odd = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wish_follows_every_other_and_a_folder_that_is_not_there_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let wishes =
            [OwnerWish::Serve, OwnerWish::Pause, OwnerWish::Drain, OwnerWish::Leave, OwnerWish::Damaged];
        for (first, second) in wishes.iter().flat_map(|first| wishes.map(|second| (*first, second))) {
            for wish in [first, second] {
                decide(folder.path(), wish).unwrap();
                assert_eq!(decision(folder.path()).unwrap(), Decision::Wish(wish));
            }
        }
        let nowhere = folder.path().join("nowhere");
        assert!(decide(&nowhere, OwnerWish::Pause).is_err() && decide(&nowhere, OwnerWish::Serve).is_err());
        assert!(decision(&nowhere).is_err());
    }

    #[test]
    fn only_who_is_to_serve_drains_for_its_damages() {
        let folder = tempfile::tempdir().unwrap();
        for wish in [OwnerWish::Pause, OwnerWish::Drain, OwnerWish::Leave] {
            decide(folder.path(), wish).unwrap();
            assert!(!note_damaged(folder.path()).unwrap());
            assert_eq!(decision(folder.path()).unwrap(), Decision::Wish(wish));
        }
        decide(folder.path(), OwnerWish::Serve).unwrap();
        assert!(note_damaged(folder.path()).unwrap());
        assert_eq!(decision(folder.path()).unwrap(), Decision::Wish(OwnerWish::Damaged));
        assert!(!note_damaged(folder.path()).unwrap());
        decide(folder.path(), OwnerWish::Serve).unwrap();
        assert_eq!(decision(folder.path()).unwrap(), Decision::Wish(OwnerWish::Serve));
    }

    #[test]
    fn hours_pause_who_is_to_serve_and_change_no_other_wish() {
        let now = chrono::Local::now();
        let day = now.format("%a").to_string();
        let others: Vec<&str> = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
            .into_iter()
            .filter(|other| !other.eq_ignore_ascii_case(&day))
            .collect();
        // Away from midnight by days.
        let far: Hours = format!("{} 11:00-12:00", others[2]).parse().unwrap();
        let always: Hours = "00:00-24:00".parse().unwrap();
        for wish in [OwnerWish::Serve, OwnerWish::Pause, OwnerWish::Drain, OwnerWish::Leave] {
            assert_eq!(at_this_hour(wish, None), wish);
            assert_eq!(at_this_hour(wish, Some(&always)), wish);
            let expected = if wish == OwnerWish::Serve { OwnerWish::Pause } else { wish };
            assert_eq!(at_this_hour(wish, Some(&far)), expected);
        }
    }

    #[test]
    fn only_who_wishes_to_leave_has_left() {
        let folder = tempfile::tempdir().unwrap();
        for wish in [OwnerWish::Serve, OwnerWish::Pause, OwnerWish::Drain] {
            decide(folder.path(), wish).unwrap();
            assert!(!note_left(folder.path()).unwrap());
            assert_eq!(decision(folder.path()).unwrap(), Decision::Wish(wish));
        }
        decide(folder.path(), OwnerWish::Leave).unwrap();
        assert!(note_left(folder.path()).unwrap() && note_left(folder.path()).unwrap());
        assert_eq!(decision(folder.path()).unwrap(), Decision::Left);
        decide(folder.path(), OwnerWish::Serve).unwrap();
        assert_eq!(decision(folder.path()).unwrap(), Decision::Wish(OwnerWish::Serve));
    }

    #[test]
    fn an_unknown_word_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "sleep\n", "pause pause\n"] {
            fs::write(folder.path().join(FILE), text).unwrap();
            assert_eq!(decision(folder.path()).unwrap_err().kind(), ErrorKind::InvalidData, "{text:?}");
        }
    }
}
