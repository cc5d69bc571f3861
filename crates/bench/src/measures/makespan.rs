//! How long jobs take that are evicted (FALCON's Figure 3): a real program takes checkpoints, which go to the pool or to a dedicated server
//! beside its work; it is killed, its newest stored checkpoint comes back on another machine, and it goes on from there.
//!
//! Time runs sixty times as fast as in the paper: an hour is a minute. Images are as much smaller and links are as fast, so that
//! a transfer takes the same share of the time between two checkpoints. What takes a set time, such as the start of a process,
//! weighs sixty times as much. Evictions are drawn from the paper's Table 2 or from a trace, the same for all schemes.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::testbed::bed::{Bed, LAN_MBIT, Place};
use crate::Error;
use crate::bench::{Bench, Size};
use crate::evictions::Source;
use crate::paper::{Image, MCF, TIGR_I};
use crate::row::median;
use crate::section::{Section, at_least};

/// Seconds of the paper in one of ours.
const FASTER: f64 = 60.0;
/// Seconds of an hour.
const HOUR: f64 = 3600.0;
/// The paper's checkpoints are taken every five minutes, seconds.
const INTERVAL: f64 = 300.0;
/// Time of a step of the job.
const STEP_MS: u64 = 50;
/// A link to a server at another university, Mbit/s: the paper says nothing of it.
const REMOTE_MBIT: u32 = 20;
/// The images of the jobs.
const IMAGES: [Image; 2] = [MCF, TIGR_I];
/// Bytes of a MB.
const MB: f64 = 1e6;
/// Time between two looks at a job.
const LOOK: Duration = Duration::from_millis(5);
/// Improvement over a dedicated server that the paper found at least.
const IMPROVEMENT: f64 = 0.11;

const FOLDER: &str = "jobs";
const OURS: &str = "(3,2)";
const LOCAL: &str = "dedicated, local";
const REMOTE: &str = "dedicated, remote";

/// How much is measured.
struct Plan {
    hosts: usize,
    /// Jobs of each image, all at the same time.
    jobs: usize,
    hours: f64,
    /// Between two checkpoints, seconds of the paper.
    interval: f64,
    /// An eviction that is not by chance, so that a short job sees one; seconds.
    first: Option<f64>,
    evictions: Source,
}

/// A job that is done.
struct Done {
    seconds: f64,
    recoveries: Vec<f64>,
    sum: String,
}

/// Jobs of one image under one scheme.
#[derive(Serialize)]
struct Made {
    image: &'static str,
    scheme: &'static str,
    /// Undisturbed, in hours of the paper.
    work_hours: f64,
    makespan_hours: Vec<f64>,
    evictions: usize,
    /// From an eviction until the job runs again, seconds of the paper.
    recovery_seconds: Vec<f64>,
    /// What the jobs computed.
    sums: Vec<String>,
}

/// Measures all schemes, one after the other, on one testbed.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let evictions = Source::of(bench.trace.as_deref())?;
    let plan = match bench.size {
        Size::Tiny => Plan { hosts: 5, jobs: 1, hours: 0.04, interval: 60.0, first: Some(1.5), evictions },
        Size::Small => Plan { hosts: 12, jobs: 2, hours: 1.0, interval: INTERVAL, first: None, evictions },
        Size::Full => Plan { hosts: 12, jobs: 2, hours: 4.0, interval: INTERVAL, first: None, evictions },
    };
    let jobs = plan.jobs * IMAGES.len();
    let bed = Bed::start(bench, plan.hosts, jobs + 2)?;
    bed.folders(&[(FOLDER, "redundancy=erasure:3,2")])?;
    let mut rows = Vec::new();
    for (scheme, place, server_mbit) in [
        (OURS, Place::Folder(FOLDER), LAN_MBIT),
        (LOCAL, Place::Dedicated, LAN_MBIT),
        (REMOTE, Place::Dedicated, REMOTE_MBIT),
    ] {
        bed.link(bed.server(), server_mbit);
        rows.extend(all_jobs(bench, &bed, &plan, (scheme, place))?);
    }
    for Image { name: image, .. } in IMAGES {
        let mut sums: Vec<&String> =
            rows.iter().filter(|row| row.image == image).flat_map(|row| &row.sums).collect();
        sums.dedup();
        if sums.len() != 1 {
            return Err(Error(format!("jobs with {image} came to different results: {sums:?}")));
        }
    }
    let sum = |image: &str, scheme: &str| {
        let row = rows.iter().find(|row| row.image == image && row.scheme == scheme);
        row.map_or(f64::NAN, |row| row.makespan_hours.iter().sum::<f64>())
    };
    let targets = IMAGES.iter().flat_map(|Image { name: image, .. }| {
        [LOCAL, REMOTE].map(|peer| {
            let gained = 1.0 - sum(image, OURS) / sum(image, peer);
            at_least(format!("{image}: makespan, gained over {peer}"), gained, IMPROVEMENT)
        })
    });
    // The paper says what is gained under its own conditions.
    let targets = if bench.trace.is_none() { targets.collect() } else { Vec::new() };
    let from = plan.evictions.name();
    let rows_with_source = serde_json::json!({ "evictions_from": from, "jobs": rows });
    Ok(Section { table: format!("Evictions: {from}\n{}", table(&rows)), rows: rows_with_source, targets })
}

fn table(rows: &[Made]) -> String {
    let mut text =
        "image    scheme               work, h   makespan, h   evictions   recovery, s\n".to_owned();
    for Made { image, scheme, work_hours, makespan_hours, evictions, recovery_seconds, .. } in rows {
        let mean = makespan_hours.iter().sum::<f64>() / makespan_hours.len() as f64;
        let recovery = median(recovery_seconds);
        let _ = writeln!(
            text,
            "{image:8} {scheme:20} {work_hours:>7.2} {mean:>13.3} {evictions:>11} {recovery:>13.1}"
        );
    }
    text.push_str(
        "\nHours and seconds of the paper, sixty times ours; means of the jobs, medians of the recoveries.\n",
    );
    text
}

/// A job as it is run.
struct Run<'a> {
    bench: &'a Bench,
    bed: &'a Bed,
    place: Place<'a>,
    /// Which of all jobs, and how often it was evicted: they decide on which machine it is.
    number: usize,
    evictions: usize,
    name: String,
    bytes: f64,
    walkers: f64,
    steps: u64,
    plan: &'a Plan,
}

/// Something that the driver has started; it ends with the driver.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn all_jobs(
    bench: &Bench,
    bed: &Bed,
    plan: &Plan,
    (scheme, place): (&'static str, Place<'_>),
) -> Result<Vec<Made>, Error> {
    let work = plan.hours * HOUR / FASTER;
    let steps = std::iter::successors(Some(1_u64), |step| Some(step + 1))
        .find(|step| *step as f64 * STEP_MS as f64 / 1e3 >= work)
        .unwrap_or(1);
    let images = IMAGES.iter().flat_map(|image| std::iter::repeat_n(image, plan.jobs));
    let runs = images.enumerate().map(|(number, image)| Run {
        bench,
        bed,
        place,
        number,
        evictions: 0,
        name: format!("{}-{number}-{}", image.name, scheme.replace([' ', ',', '(', ')'], "")),
        bytes: image.mb as f64 * MB / FASTER,
        walkers: image.shrinks_to(),
        steps,
        plan,
    });
    let done = std::thread::scope(|threads| {
        let running: Vec<_> = runs.map(|mut run| threads.spawn(move || run.finish())).collect();
        let ended = running.into_iter();
        ended
            .map(|job| job.join().map_err(|_| Error("a driver ended".to_owned()))?)
            .collect::<Result<Vec<_>, _>>()
    })?;
    let of_images = IMAGES.iter().zip(done.chunks(plan.jobs));
    Ok(of_images
        .map(|(image, jobs)| Made {
            image: image.name,
            scheme,
            work_hours: plan.hours,
            makespan_hours: jobs.iter().map(|job| job.seconds * FASTER / HOUR).collect(),
            evictions: jobs.iter().map(|job| job.recoveries.len()).sum(),
            recovery_seconds: jobs
                .iter()
                .flat_map(|job| &job.recoveries)
                .map(|seconds| seconds * FASTER)
                .collect(),
            sums: jobs.iter().map(|job| job.sum.clone()).collect(),
        })
        .collect())
}

impl Run<'_> {
    fn client(&self) -> usize {
        self.number + self.evictions
    }

    fn path(&self, name: &str) -> PathBuf {
        self.bench.dir.join(format!("{}.{name}", self.name))
    }

    /// Starts the job, from a checkpoint if there is one; what it says comes by the channel.
    fn start(&self, from: Option<&PathBuf>) -> Result<(Running, Receiver<String>), Error> {
        let every = self.plan.interval / FASTER * 1e3 / STEP_MS as f64;
        let mut command = Command::new(&self.bench.own);
        command.arg("job").arg("--checkpoints").arg(self.path("T"));
        command.args([format!("--bytes={:.0}", self.bytes), format!("--walkers={}", self.walkers)]);
        command.args([format!("--steps={}", self.steps), format!("--every={every:.0}")]);
        command.arg(format!("--step-ms={STEP_MS}"));
        from.inspect(|from| {
            command.arg("--from").arg(from);
        });
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let (say, said) = channel();
        let printed = child.stdout.take().ok_or_else(|| Error("the job prints nothing".to_owned()))?;
        std::thread::spawn(move || {
            BufReader::new(printed).lines().map_while(Result::ok).try_for_each(|line| say.send(line))
        });
        Ok((Running(child), said))
    }

    /// Runs the job until it is done.
    fn finish(&mut self) -> Result<Done, Error> {
        let mut evictions = self.plan.evictions.for_job(self.number);
        let (began, mut recoveries) = (Instant::now(), Vec::new());
        let mut next_after =
            |elapsed: f64| elapsed + evictions.waiting(elapsed * FASTER / HOUR) * HOUR / FASTER;
        let mut evicted_at = self.plan.first.unwrap_or_else(|| next_after(0.0));
        let mut stored: Option<u64> = None;
        let (mut job, mut said) = self.start(None)?;
        let mut sending: Option<(u64, Running)> = None;
        let mut newest: Option<u64> = None;
        loop {
            match said.recv_timeout(LOOK) {
                Ok(line) => match line.split_once(' ') {
                    Some(("checkpoint", step)) => newest = Some(step.parse()?),
                    Some(("done", sum)) => {
                        let seconds = began.elapsed().as_secs_f64();
                        return Ok(Done { seconds, recoveries, sum: sum.to_owned() });
                    }
                    _ => return Err(Error(format!("the job says `{line}`"))),
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Error("the job ended early".to_owned())),
            }
            if let Some((step, sender)) = &mut sending
                && let Some(status) = sender.0.try_wait()?
            {
                if !status.success() {
                    return Err(Error(format!("storing {} failed: {status}", self.name)));
                }
                stored = Some(*step);
                std::fs::remove_file(self.path(&format!("T{step}")))?;
                sending = None;
            }
            if sending.is_none()
                && let Some(step) = newest.take()
            {
                let path = self.path(&format!("T{step}"));
                let store = self.bed.store_command(self.place, self.client(), &path, &self.called(step));
                sending = Some((step, spawned(store)?));
            }
            if began.elapsed().as_secs_f64() >= evicted_at {
                // The machine goes back to its owner, with what is on its way.
                (sending, newest) = (None, None);
                drop(job);
                let back = Instant::now();
                (job, said) = self.recover(stored)?;
                recoveries.push(back.elapsed().as_secs_f64());
                evicted_at = next_after(began.elapsed().as_secs_f64());
            }
        }
    }

    fn called(&self, step: u64) -> String {
        format!("{}.T{step}", self.name)
    }

    /// Brings the newest stored checkpoint to another machine, and starts the job from it.
    fn recover(&mut self, stored: Option<u64>) -> Result<(Running, Receiver<String>), Error> {
        self.evictions += 1;
        let Some(step) = stored else { return self.start(None) };
        let path = self.path("back");
        let recover = self.bed.recover_command(self.place, self.client(), &self.called(step), &path);
        let status = spawned(recover)?.0.wait()?;
        if !status.success() {
            return Err(Error(format!("{} did not come back: {status}", self.called(step))));
        }
        self.start(Some(&path))
    }
}

fn spawned(mut command: Command) -> Result<Running, Error> {
    Ok(Running(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
}
