//! How the files of an application's folder are written, cut, protected and named.

use std::collections::HashSet;

use stdchk_model::layout::{self, Proposal};
use stdchk_model::message::manager::Change;
use stdchk_model::naming::Naming;
use stdchk_model::policy::Key;
use stdchk_model::{Ino, Policy, Redundancy};
use stdchk_placement::pool::Policy as Placement;
use stdchk_reduce::learn::AUTO;
use stdchk_reduce::{Compression, CutterSpec};

use crate::error::{About, Error, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;

/// A change of a folder's policy; it holds for what is written from then on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyChange {
    /// The folder, made where it is missing.
    pub folder: Target,
    /// Keys and values; an empty value takes a key back to its default. `layout` stands for `naming` and `ranks`.
    pub pairs: Vec<(String, String)>,
}

/// The key that stands for a known code's `naming` and `ranks`, and its value that has one found by the files.
const LAYOUT: &str = "layout";
const BY_FILES: &str = "auto";

/// What a change of a policy led to, with what a person should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyChanged {
    /// Whether the folder was made.
    pub created: bool,
    /// What `layout` stood for.
    pub layout: Option<Proposal>,
    /// A pattern among the new `naming` in which nothing varies: it fits only the file of exactly that name.
    pub fixed_pattern: Option<String>,
    /// Copies of each chunk that the folder asks for.
    pub redundancy: Redundancy,
    /// Benefactors of the pool: with fewer of them than `redundancy` needs, some blocks are never made.
    pub benefactors: usize,
}

impl Pool {
    /// Changes keys of a folder's policy.
    ///
    /// # Errors
    /// [`Code::Invalid`](crate::Code::Invalid): a key or a value can't be used, and nothing was changed.
    pub async fn set_policy(&self, change: &PolicyChange) -> Result<PolicyChanged> {
        let (pool, folder, shown) = (&self.client, &change.folder, change.folder.shown());
        check_pairs(&change.pairs)?;
        self.check_key(&change.pairs)?;
        let (pairs, layout) = self.without_layout(change).await?;
        let created = namespace::resolve_if_there(pool, folder).await?.is_none();
        let ino = namespace::make_folders(pool, &folder.names).await?;
        if ino == Ino::ROOT {
            return Err(Error::invalid("/", "a policy is one of a folder", "name the application's folder"));
        }
        let naming = pairs.iter().filter(|(key, _)| key == "naming");
        let fixed_pattern = naming.filter_map(|(_, value)| fixed_pattern(value)).next();
        pool.change(Change::SetPolicy { ino, pairs: pairs.clone() }).await.map(drop).about(&shown)?;
        let redundancy = pool.policy(ino).await.about(&shown)?.redundancy;
        let benefactors = pool.benefactors().await.about(&shown)?.len();
        Ok(PolicyChanged { created, layout, fixed_pattern, redundancy, benefactors })
    }
}

impl Pool {
    /// The pairs of a change with `naming` and `ranks` in the place of `layout`, and what that found.
    ///
    /// # Errors
    /// [`Code::Invalid`](crate::Code::Invalid): `layout=auto`, and no file of the folder tells a layout.
    pub(crate) async fn without_layout(
        &self,
        change: &PolicyChange,
    ) -> Result<(Vec<(String, String)>, Option<Proposal>)> {
        let mut pairs = change.pairs.clone();
        let Some(at) = pairs.iter().position(|(key, _)| key == LAYOUT) else { return Ok((pairs, None)) };
        let (_, name) = pairs.remove(at);
        let paths = match namespace::resolve_if_there(&self.client, &change.folder).await? {
            Some(_) => namespace::paths_below(&self.client, &change.folder).await?,
            None => Vec::new(),
        };
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let found = if name == BY_FILES { layout::proposed(&paths) } else { layout::of_code(&name, &paths) };
        let mut proposal = found.ok_or_else(|| {
            let cause = match paths.is_empty() {
                true => "the folder has no files that could tell its layout".to_owned(),
                false => format!("the names of {} files tell no timestep", paths.len()),
            };
            let next = "write `naming=PATTERN`, or name the code with `layout=NAME`";
            Error::invalid(format!("{LAYOUT}={name} of {}", change.folder.shown()), cause, next)
        })?;
        pairs.push(("naming".to_owned(), proposal.naming.clone()));
        if pairs.iter().any(|(key, _)| key == "ranks") {
            proposal.ranks = None;
        }
        pairs.extend(proposal.ranks.map(|ranks| ("ranks".to_owned(), ranks.to_string())));
        Ok((pairs, Some(proposal)))
    }

    /// Refuses to let a folder be encrypted with a key that isn't here: it may be none at all, and then nobody writes there any more.
    fn check_key(&self, pairs: &[(String, String)]) -> Result {
        let Some((_, value)) = pairs.iter().find(|(key, _)| key == "encryption") else { return Ok(()) };
        let mut policy = Policy::default();
        if !value.is_empty() {
            policy.set("encryption", value)?;
        }
        let key = policy.encryption.map(|key| self.client.encryption_keys().require(key));
        key.transpose().map(drop).about(format!("encryption={value}"))
    }
}

/// The first pattern of a `naming` in which nothing varies.
fn fixed_pattern(naming: &str) -> Option<String> {
    let naming: Naming = naming.parse().ok()?;
    naming.patterns().iter().find(|pattern| pattern.is_fixed()).map(|pattern| pattern.text().to_owned())
}

/// Refuses pairs that can't work, and two for one key, of which only one could hold.
fn check_pairs(pairs: &[(String, String)]) -> Result {
    let mut keys = HashSet::new();
    pairs.iter().try_for_each(|(key, value)| {
        check_pair(key, value)?;
        match keys.insert(key) {
            true => Ok(()),
            false => {
                Err(Error::invalid(format!("{key}={value}"), "the key is set twice", "leave one of them out"))
            }
        }
    })?;
    match pairs.iter().find(|(key, _)| key == LAYOUT) {
        Some((_, name)) if pairs.iter().any(|(key, _)| key == "naming") => {
            let cause = "a layout sets `naming`, which is set as well";
            Err(Error::invalid(format!("{LAYOUT}={name}"), cause, "leave one of them out"))
        }
        _ => Ok(()),
    }
}

/// Refuses a layout that isn't known.
fn check_layout(name: &str) -> Result {
    if name == BY_FILES || layout::LAYOUTS.iter().any(|layout| layout.name == name) {
        return Ok(());
    }
    let known = layout::names().join(", ");
    let next = format!("choose one of {known}, or `{BY_FILES}`, or write `naming=PATTERN`");
    Err(Error::invalid(format!("{LAYOUT}={name}"), "no such layout is known", next))
}

/// Refuses a key and a value of a policy that can't work.
///
/// # Errors
/// [`Code::Invalid`](crate::Code::Invalid): there is no such key, or it can't have this value.
pub fn check_pair(key: &str, value: &str) -> Result {
    if key == LAYOUT {
        return check_layout(value);
    }
    if value.is_empty() && Key::of(key).is_some() {
        return Ok(());
    }
    Policy::default().set(key, value)?;
    let text = || format!("{key}={value}");
    if key == "naming" {
        let next = "such as `restart.{step}.{rank}`";
        value.parse::<Naming>().map_err(|error| Error::invalid(text(), error, next))?;
    }
    let next = "choose one of these";
    if key == "learned" || key == "cutter" && value != AUTO {
        value.parse::<CutterSpec>().map_err(|error| Error::invalid(text(), error, next))?;
    }
    if key == "codec" {
        value.parse::<Compression>().map_err(|error| Error::invalid(text(), error, next))?;
    }
    if key == "placement" {
        value.parse::<Placement>().map_err(|error| Error::invalid(text(), error, next))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn pairs_that_cannot_work_are_refused_before_they_are_sent() {
        for (key, value) in [
            ("redundancy", "0"),
            ("cutter", "scissors"),
            ("codec", "gzip"),
            ("colour", "red"),
            ("colour", ""),
            ("naming", "x.{colour}"),
            ("layout", "nosuch"),
            ("layout", ""),
        ] {
            assert_eq!(check_pair(key, value).unwrap_err().code, Code::Invalid, "{key}={value}");
        }
        for (key, value) in [
            ("naming", "{step}=b"),
            ("redundancy", ""),
            ("cutter", "fsch:64KiB"),
            ("layout", "wrf"),
            ("layout", "auto"),
        ] {
            check_pair(key, value).unwrap();
        }
        let twice = ["2", "3"].map(|value| ("redundancy".to_owned(), format!("replicate:{value}")));
        assert_eq!(check_pairs(&twice).unwrap_err().code, Code::Invalid);
        check_pairs(&twice[1..]).unwrap();
        let both =
            [("layout", "wrf"), ("naming", "{step}")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(check_pairs(&both).unwrap_err().code, Code::Invalid);
        assert_eq!(fixed_pattern("restart").as_deref(), Some("restart"));
        assert_eq!(fixed_pattern("restart.{step} *.out"), None);
    }
}
