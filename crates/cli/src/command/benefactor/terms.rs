//! On which terms an owner gives a disk, beside its space: how fast it is used, when, with which priority, and who says that the machine
//! goes soon.

use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use stdchk_benefactor::hours::Hours;
use stdchk_benefactor::load::Thresholds;
use stdchk_benefactor::{Config, RATE_MIN, priority};
use stdchk_model::{Tier, duration, size};
use stdchk_net::notice::Source;

use crate::exit::{About, CommandError, Outcome};
use crate::settings::size_of;

/// Stands for all hours, and takes back hours that were given before.
const ALWAYS: &str = "always";

/// Stands for no source of notices, and takes back one that was given before.
const NOBODY: &str = "none";
/// Longest grace, milliseconds: no system waits longer for a process that it ends.
const GRACE_MS_MAX: u64 = 600_000;

/// What is said of the terms; what isn't stays as it was.
#[derive(Args, Debug)]
pub struct TermsArguments {
    /// Most bytes that a benefactor reads and writes on its disk in a second, such as 50MiB [default: any, as 0 says]
    #[arg(long, value_name = "SIZE")]
    io_limit: Option<String>,
    /// Most bytes that it sends and receives in a second, such as 20MiB [default: any, as 0 says]
    #[arg(long, value_name = "SIZE")]
    net_limit: Option<String>,
    /// Space of the donation that copies of what this machine writes may take while nothing else needs it, for folders with
    /// `local=prefer` [default: a quarter; 0: none]
    #[arg(long, value_name = "SIZE")]
    near: Option<String>,
    /// Where its folder keeps blocks: on a disk or in memory, from which nothing comes back after a crash of the machine
    /// [default: auto]
    #[arg(
        long,
        value_name = "TIER",
        long_help = "\
Where its folder keeps blocks: `memory` for a benefactor of folders with `semantics=memory:N`, whose blocks count for
nothing where copies are counted; `disk`; or `auto`: memory if the folder lies on tmpfs or ramfs. [default: auto]"
    )]
    tier: Option<TierTerm>,
    /// Hours of the local clock in which it takes blocks; else it is as if paused [default: always]
    #[arg(
        long,
        value_name = "HOURS",
        long_help = "\
Hours of the local clock in which it takes blocks, such as `mon-fri 20:00-07:00, sat-sun 00:00-24:00` or `18:00-08:00`;
at other times it is as if paused. Hours past midnight belong to the day on which they begin. [default: always]"
    )]
    hours: Option<String>,
    /// Share of time for which other programs keep its disk busy and from which on it takes no new blocks, in percent [default:
    /// 80; 0: never]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    load_limit: Option<u8>,
    /// Share from which on others are preferred, in percent [default: 40]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    load_mark: Option<u8>,
    /// Clients that may send to it at a time [default: 128; 0: any number]
    #[arg(long, value_name = "N")]
    max_clients: Option<u32>,
    /// Whether it gives way to all other programs [default: normal]
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<Priority>,
    #[command(flatten)]
    notice: NoticeArgument,
    /// How long a benefactor that gets SIGTERM stays for what it has to move to others, such as 25s; a second SIGTERM ends it at once
    /// [default: it ends at once]
    #[arg(long, value_name = "DURATION")]
    notice_grace: Option<String>,
}

/// Who says that the machine goes soon.
#[derive(Args, Debug)]
pub struct NoticeArgument {
    /// Who says that this machine is soon preempted or shut down: a file, a URL, aws, gcp, or none
    #[arg(
        long,
        value_name = "SOURCE",
        long_help = "\
Who says that this machine is soon preempted or shut down: the path of a file that is there then; http://HOST:PORT/PATH, which
answers with a body then; aws or gcp, the cloud's service of metadata; or none. [default: none]"
    )]
    notice: Option<String>,
}

impl NoticeArgument {
    /// The source; `None`: nobody.
    ///
    /// # Errors
    /// It is none.
    pub fn source(&self) -> Outcome<Option<Source>> {
        self.notice.as_deref().map_or(Ok(None), source)
    }
}

fn source(text: &str) -> Outcome<Option<Source>> {
    if text == NOBODY {
        return Ok(None);
    }
    let next = "for instance `--notice /run/preempted`, `--notice http://127.0.0.1:8080/going`, `--notice aws` or `--notice none`";
    text.parse()
        .map(Some)
        .map_err(|error| CommandError::usage(format_args!("--notice {text:?}"), error, next))
}

/// How much a benefactor gives way to other programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// As any program
    #[default]
    Normal,
    /// The idle class at the disk, and nice 10 at the processor
    Idle,
}

/// Where a benefactor keeps blocks, as its owner says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TierTerm {
    /// In memory if its folder lies on tmpfs or ramfs, else on a disk
    #[default]
    Auto,
    /// On a disk: its blocks count
    Disk,
    /// In memory: its blocks count for nothing
    Memory,
}

impl TierTerm {
    /// The tier that is said; `None`: it is to be looked at.
    fn said(self) -> Option<Tier> {
        match self {
            Self::Auto => None,
            Self::Disk => Some(Tier::Disk),
            Self::Memory => Some(Tier::Memory),
        }
    }
}

/// The terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// Most bytes from and to the disk in a second; 0: any.
    pub io_bytes_per_second: u64,
    /// Most bytes from and to others in a second; 0: any.
    pub net_bytes_per_second: u64,
    /// Space that near copies may take, bytes; `None`: the usual part of the donation.
    pub near_bytes: Option<u64>,
    /// Where it keeps blocks.
    pub tier: TierTerm,
    /// Hours in which it takes blocks, such as `mon-sun 18:00-08:00`; `None`: all.
    pub hours: Option<String>,
    /// Share of time for which others keep the disk busy and from which on it takes no new blocks, percent; `None`: the usual one, 0: none.
    pub load_limit_percent: Option<u8>,
    /// Share from which on others are preferred, percent; `None`: the usual one.
    pub load_mark_percent: Option<u8>,
    /// Clients that may send at a time; `None`: the usual number, 0: any.
    pub clients_max: Option<u32>,
    /// How much it gives way.
    pub priority: Priority,
    /// Who says that the machine goes soon; `None`: nobody.
    pub notice: Option<String>,
    /// How long one that is warned stays, milliseconds.
    pub notice_grace_ms: u64,
}

impl TermsArguments {
    /// The terms that hold from now on.
    ///
    /// # Errors
    /// A rate is too slow to work with, or the hours are none.
    pub fn over(&self, before: &Terms) -> Outcome<Terms> {
        let mut terms = before.clone();
        if let Some(text) = &self.io_limit {
            terms.io_bytes_per_second = rate("--io-limit", text)?;
        }
        if let Some(text) = &self.net_limit {
            terms.net_bytes_per_second = rate("--net-limit", text)?;
        }
        if let Some(text) = &self.near {
            terms.near_bytes = Some(size_of("--near", text)?);
        }
        terms.tier = self.tier.unwrap_or(terms.tier);
        if let Some(text) = &self.hours {
            terms.hours = hours(text)?.map(|hours| hours.to_string());
        }
        terms.load_limit_percent = self.load_limit.or(terms.load_limit_percent);
        terms.load_mark_percent = self.load_mark.or(terms.load_mark_percent);
        terms.clients_max = self.max_clients.or(terms.clients_max);
        terms.priority = self.priority.unwrap_or(terms.priority);
        if let Some(text) = &self.notice.notice {
            terms.notice = source(text)?.map(|source| source.to_string());
        }
        if let Some(text) = &self.notice_grace {
            terms.notice_grace_ms = grace(text)?;
        }
        Ok(terms)
    }
}

impl Terms {
    /// A benefactor on these terms. Has this process give way from now on if they say so: threads that it starts later do, too.
    ///
    /// # Errors
    /// The hours are none, or the system refuses the priority.
    pub fn applied_to(&self, config: Config) -> Outcome<Config> {
        if self.priority == Priority::Idle {
            priority::give_way().about("--priority idle")?;
        }
        Ok(Config {
            disk_bytes_per_second: self.io_bytes_per_second,
            network_bytes_per_second: self.net_bytes_per_second,
            near_bytes: self.near_bytes,
            tier: self.tier.said(),
            thresholds: self.thresholds(),
            hours: self.hours.as_deref().map(hours).transpose()?.flatten(),
            notice: self.notice.as_deref().map(source).transpose()?.flatten(),
            grace: Duration::from_millis(self.notice_grace_ms),
            ..config
        })
    }

    fn thresholds(&self) -> Thresholds {
        let usual = Thresholds::default();
        let share = |percent: u8| f64::from(percent) / 100.0;
        Thresholds {
            loaded_from: self.load_mark_percent.map_or(usual.loaded_from, share),
            refusing_from: match self.load_limit_percent {
                None => usual.refusing_from,
                Some(0) => None,
                Some(percent) => Some(share(percent)),
            },
            clients_max: match self.clients_max {
                None => usual.clients_max,
                clients => clients.filter(|most| *most > 0),
            },
        }
    }

    /// What `benefactor run` is told of them.
    pub fn arguments(&self) -> Vec<String> {
        let rates = [("--io-limit", self.io_bytes_per_second), ("--net-limit", self.net_bytes_per_second)];
        let rates = rates.into_iter().filter(|(_, rate)| *rate > 0);
        let mut all: Vec<String> =
            rates.flat_map(|(flag, rate)| [flag.to_owned(), rate.to_string()]).collect();
        all.extend(self.near_bytes.iter().flat_map(|bytes| ["--near".to_owned(), bytes.to_string()]));
        if let Some(tier) = self.tier.said() {
            all.extend(["--tier".to_owned(), tier.to_string()]);
        }
        all.extend(self.hours.iter().flat_map(|hours| ["--hours".to_owned(), hours.clone()]));
        let loads = [("--load-limit", self.load_limit_percent), ("--load-mark", self.load_mark_percent)];
        let loads = loads.into_iter().map(|(flag, percent)| (flag, percent.map(u32::from)));
        for (flag, number) in loads.chain([("--max-clients", self.clients_max)]) {
            all.extend(number.iter().flat_map(|number| [flag.to_owned(), number.to_string()]));
        }
        if self.priority == Priority::Idle {
            all.extend(["--priority", "idle"].map(str::to_owned));
        }
        all.extend(self.notice_arguments());
        if self.notice_grace_ms > 0 {
            all.extend(["--notice-grace".to_owned(), duration::exact(self.notice_grace_ms)]);
        }
        all
    }

    /// What `mount` is told of them.
    pub fn notice_arguments(&self) -> Vec<String> {
        self.notice.iter().flat_map(|notice| ["--notice".to_owned(), notice.clone()]).collect()
    }
}

fn rate(flag: &str, text: &str) -> Outcome<u64> {
    let bytes = size_of(flag, text)?;
    if bytes == 0 || bytes >= RATE_MIN {
        return Ok(bytes);
    }
    let next = format!("give at least {}, with its unit, or pause it", size::exact(RATE_MIN));
    Err(CommandError::usage(format_args!("{flag} {text}"), "clients would wait too long for a block", next))
}

fn grace(text: &str) -> Outcome<u64> {
    let most = duration::exact(GRACE_MS_MAX);
    duration::parse(text).filter(|ms| *ms <= GRACE_MS_MAX).ok_or_else(|| {
        let next = "for instance `--notice-grace 25s`, or `--notice-grace 0s`";
        let cause = format!("a duration of at most {most} is expected");
        CommandError::usage(format_args!("--notice-grace {text}"), cause, next)
    })
}

fn hours(text: &str) -> Outcome<Option<Hours>> {
    if text == ALWAYS {
        return Ok(None);
    }
    let next = "for instance `--hours 'mon-fri 20:00-07:00, sat-sun 00:00-24:00'`, or `--hours always`";
    Hours::from_str(text)
        .map(Some)
        .map_err(|error| CommandError::usage(format_args!("--hours {text:?}"), error, next))
}
