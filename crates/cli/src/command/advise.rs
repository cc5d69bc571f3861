//! `stdchk advise`: how often a job should take checkpoints.

use clap::Args;
use stdchk_model::duration;
use stdchk_operations::{Advice, Target};

use super::placement::time;
use crate::context::Context;
use crate::exit::{CommandError, Outcome};
use crate::output;

/// What `advise` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
A checkpoint costs the time from the first open of its files to the last commit, as the manager has seen of the newest sets. How often
this machine fails, it knows from the machine's past: a machine fails when what wrote on it falls silent without taking leave. From both
follow the intervals of Young (sqrt(2 C M)) and Daly, which loses the least time on checkpoints and repeated work together.

Example:
  stdchk advise climate --hosts 64
  stdchk advise climate --mttf 12h")]
pub struct Arguments {
    /// The application's folder
    app: String,
    /// Machines that the job runs on; it fails when any of them does
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    hosts: u32,
    /// Mean time to failure of each machine, such as 12h [default: as the manager has seen of this one]
    #[arg(long, value_name = "TIME")]
    mttf: Option<String>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let mttf = arguments.mttf.as_deref().map(seconds).transpose()?;
    let app = Target::parse_plain(&arguments.app)?;
    let advice = context.pool().await?.advise(&app, arguments.hosts, mttf).await?;
    if arguments.json { output::json(&advice) } else { print(&advice) }
}

fn seconds(text: &str) -> Outcome<f64> {
    let ms = duration::parse(text).filter(|ms| *ms > 0);
    let refuse = || {
        CommandError::usage(format!("--mttf {text}"), "it is no time", "give one such as `90min` or `12h`")
    };
    ms.map(|ms| ms as f64 / 1e3).ok_or_else(refuse)
}

fn print(advice: &Advice) -> Outcome {
    let tell = |name: &str, what: String| output::line(format_args!("{name:<11} {what}"));
    if let Some(ms) = advice.pace.cost_ms {
        tell(
            "checkpoint",
            format!(
                "takes {:.1} s to write, seen of {}",
                ms as f64 / 1e3,
                output::count(advice.pace.sets, "set")
            ),
        )?;
    }
    if let Some(ms) = advice.pace.interval_ms {
        tell("interval", format!("{} so far", time(ms / 1000)))?;
    }
    if let Some(mean) = advice.mean_time_to_failure_s {
        let of = if advice.hosts > 1 {
            format!("; the job has {}", output::count(advice.hosts, "machine"))
        } else {
            String::new()
        };
        tell("failure", format!("of a machine after {} on average{of}", time(whole(mean))))?;
    }
    advice.unknown.iter().try_for_each(|unknown| tell("unknown", unknown.clone()))?;
    match advice.daly_s.zip(advice.young_s) {
        Some((daly, young)) => tell(
            "advice",
            format!("take a checkpoint every {} (Daly; Young: {})", time(whole(daly)), time(whole(young))),
        ),
        None => tell("advice", "none yet: let the job run on, or give --mttf".to_owned()),
    }
}

fn whole(seconds: f64) -> u64 {
    std::time::Duration::try_from_secs_f64(seconds.round()).map_or(u64::MAX, |seconds| seconds.as_secs())
}
