//! `stdchk placement`: on which benefactors the files of a folder go, and why.

use clap::{Args, Subcommand};
use stdchk_model::message::benefactor::StorageState;
use stdchk_model::message::manager::{PlacedHost, Placement};
use stdchk_model::size;
use stdchk_operations::Target;

use crate::context::Context;
use crate::exit::Outcome;
use crate::output::{self, Table};

/// What `placement` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  stdchk placement explain climate
  stdchk policy set climate placement=learned")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Show the benefactors for files that this machine writes, in the order of preference, and what speaks for and against each
    #[command(after_help = "\
The first lines say how benefactors are chosen (`stdchk policy set APP placement=...`) and what is known of this machine. `falcon` ranks
benefactors by how surely they stay when this machine fails, `learned` by a model that learns from every failure; until it judges better
than the plain availability of a week, `falcon:7d` stands in. Those below the line stand in for others that are full, busy or away.
`loaded` is the share of the week's time for which the owner's work kept the disk busy, `speed` what this machine reached when it wrote there.

Example:
  stdchk placement explain climate --json")]
    Explain {
        /// The folder or file, APP[/PATH]
        path: String,
        /// Report as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let Action::Explain { path, json } = &arguments.action;
    let placement = context.pool().await?.placement(&Target::parse_plain(path)?).await?;
    if *json {
        return output::json(&placement);
    }
    print(&placement)
}

fn print(placement: &Placement) -> Outcome {
    output::line(format_args!("placement  {}", policy(placement)))?;
    output::line(format_args!("this host  {}", compute(placement)))?;
    if let Some(share) = placement.recoverable_ppm {
        let percent = f64::from(share) / 1e4;
        output::line(format_args!("survival   {percent:.2} % of its failures, by what was learned"))?;
    }
    let mut table = Table::new(&[
        "",
        "benefactor",
        "there for",
        ">failed",
        ">there",
        ">loaded",
        ">speed",
        ">score",
        ">loss",
        "why",
    ]);
    for (place, host) in placement.hosts.iter().enumerate() {
        let stands_in = place >= usize::from(placement.width);
        let percent =
            |ppm: Option<u32>| ppm.map_or("?".to_owned(), |ppm| format!("{:.1} %", f64::from(ppm) / 1e4));
        table.row([
            if stands_in { "stands in" } else { "chosen" }.to_owned(),
            host.id.to_string(),
            host.up_s.map_or("away".to_owned(), time),
            format!("{} / week", host.failures_week),
            percent(host.up_week_ppm),
            host.loaded_week_ppm.map_or("-".to_owned(), |ppm| percent(Some(ppm))),
            host.bandwidth.map_or("?".to_owned(), |bytes| format!("{}/s", size::human(bytes))),
            host.score_ppm.map_or("-".to_owned(), |score| format!("{:.2}", f64::from(score) / 1e6)),
            host.lost_ppm.map_or("-".to_owned(), |ppm| percent(Some(ppm))),
            why(host),
        ]);
    }
    table.print()
}

fn policy(placement: &Placement) -> String {
    let Placement { policy, in_use, ranked, proven, lessons, losses, .. } = placement;
    match (ranked, policy == in_use) {
        (false, _) => format!("{policy}; benefactors take turns until they are ranked: ask again"),
        (true, false) => format!(
            "{policy}; {in_use} stands in until the model has proven itself ({lessons} lessons so far, {losses} losses among them)"
        ),
        (true, true) if *proven => format!("{policy}; the model has proven itself in {lessons} lessons"),
        (true, true) => policy.clone(),
    }
}

fn compute(placement: &Placement) -> String {
    let takes_turns = ["round-robin", "random", "dedicated"].contains(&placement.policy.as_str());
    let where_ = match placement.compute {
        Some(id) if takes_turns => format!("benefactor {id}"),
        Some(id) => format!("benefactor {id}, which gets nothing of its own while there are others"),
        None => "no benefactor".to_owned(),
    };
    match placement.mean_time_to_failure_s {
        Some(seconds) => format!("{where_}; fails after {} on average", time(seconds)),
        None => format!("{where_}; was not seen to fail"),
    }
}

/// What speaks for or against a benefactor, in words.
fn why(host: &PlacedHost) -> String {
    let mut all: Vec<String> = Vec::new();
    match host.state {
        StorageState::Running => {}
        StorageState::Loaded => all.push("loaded now".to_owned()),
        StorageState::Full => all.push("takes no more clients now".to_owned()),
        StorageState::Refusing => all.push("takes nothing new now, for its owner's work".to_owned()),
    }
    if !host.shares.is_empty() {
        all.push(format!("shares {} with this host", host.shares.join(" and ")));
    }
    let told = host.reasons.iter().filter(|(_, odds)| *odds != 0).take(3);
    all.extend(told.map(|(name, odds)| match *odds < 0 {
        true => format!("for: {name}"),
        false => format!("against: {name}"),
    }));
    all.join("; ")
}

/// Seconds, as people say them.
pub(super) fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use stdchk_model::BenefactorId;

    use super::*;

    #[test]
    fn only_ranked_ways_pass_over_the_benefactor_beside_who_writes() {
        let beside = |policy: &str| {
            let policy = policy.to_owned();
            compute(&Placement { policy, compute: Some(BenefactorId(3)), ..Placement::default() })
        };
        for turns in ["round-robin", "random", "dedicated"] {
            assert!(beside(turns).starts_with("benefactor b3; "), "{turns}");
        }
        for ranked in ["pessimistic", "falcon:7d", "learned"] {
            assert!(beside(ranked).contains("gets nothing of its own"), "{ranked}");
        }
    }
}
