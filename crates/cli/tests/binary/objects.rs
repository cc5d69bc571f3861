//! An object store as users meet it: sets become objects and come back, one rank's restore fetches little, and every mistake
//! is told with its next step.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::ops::Deref;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use stdchk_tests::{
    ACCESS_KEY, BUCKET, Deed, Gate, ObjectStore, Outcome, SECRET_KEY, command, outcome, random_bytes,
};

use crate::across_time;
use crate::aggregate::{Files, RANKS, raw_is_there, set, write};
use crate::pack::Place;

/// A folder in which commands run that reach a store.
pub(crate) struct AtStore {
    place: Place,
    endpoint: String,
    /// Tries of a request.
    pub(crate) attempts: u32,
}

impl Deref for AtStore {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl AtStore {
    pub(crate) fn new(endpoint: String) -> Self {
        Self { place: Place::new(), endpoint, attempts: 3 }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command
            .current_dir(self.place.path(""))
            .env("TMPDIR", self.place.path(""))
            .env("HOME", "/nonexistent");
        command
            .envs(ObjectStore::variables(&self.endpoint))
            .env("AWS_MAX_ATTEMPTS", self.attempts.to_string());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        let ended = outcome(self.command(arguments));
        assert!(!format!("{ended:?}").contains(SECRET_KEY), "a secret was shown: {ended:?}");
        ended
    }

    pub(crate) fn ok(&self, arguments: &[&str]) -> Outcome {
        let ended = self.run(arguments);
        assert_eq!(ended.code, 0, "stdchk {}: {ended:?}", arguments.join(" "));
        ended
    }

    pub(crate) fn fails(&self, arguments: &[&str], code: i32, says: &str) {
        let ended = self.run(arguments);
        assert_eq!(ended.code, code, "stdchk {}: {ended:?}", arguments.join(" "));
        assert!(ended.stderr.contains(says), "`{says}` is missing in: {}", ended.stderr);
    }

    /// Aggregates what is there; the report.
    pub(crate) fn aggregate(&self, more: &[&str]) -> Value {
        self.ok(&[&once(), more, &["--json"]].concat()).json()
    }

    /// Whether a set comes back from its two containers.
    pub(crate) fn comes_back(&self, step: u32, files: &Files) -> bool {
        for number in [1, 2] {
            let url = format!("s3://{BUCKET}/run 7/step-{step}.{number}of2.pack");
            if self.run(&["unpack", &url, "-o", "back"]).code != 0 {
                return false;
            }
        }
        files.iter().all(|(name, bytes)| fs::read(self.path(&format!("back/{name}"))).unwrap() == *bytes)
    }

    /// What stays of drafts.
    pub(crate) fn drafts(&self) -> usize {
        let folders = self.names().into_iter().filter(|name| name.starts_with("stdchk-sink-"));
        let in_folder =
            |name: String| fs::read_dir(self.path(&name)).unwrap().map(|entry| entry.unwrap().file_name());
        folders.flat_map(in_folder).filter(|name| name != "lock").count()
    }
}

/// The arguments for two containers of a set of files that nobody writes to any more. The prefix has a blank on purpose.
pub(crate) fn once() -> [&'static str; 11] {
    let sink = "s3://ckpt/run 7/";
    ["aggregate", "run", "-o", sink, "--ranks", "4", "--settle", "0", "--containers", "2", "--once"]
}

/// The names of objects in a folder of the bucket.
pub(crate) fn objects(store: &ObjectStore) -> Vec<String> {
    let Ok(entries) = fs::read_dir(store.object("run 7")) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn sets_become_objects_and_come_back() {
    let store = ObjectStore::start();
    let place = AtStore::new(store.endpoint());
    let files = set(10);
    write(&place, &files);
    let report = place.aggregate(&["--remove-raw"]);
    assert_eq!(report["sets"][0]["files"], RANKS);
    assert_eq!(report["sets"][0]["containers"][1], "s3://ckpt/run 7/step-10.2of2.pack");
    assert_eq!(report["removed"], RANKS);
    assert_eq!(objects(&store), ["step-10.1of2.pack", "step-10.2of2.pack"]);
    assert!(!raw_is_there(&place, &files));
    assert_eq!(place.drafts(), 0, "nothing stays on the local disk");
    assert!(place.comes_back(10, &files));
    let container = "s3://ckpt/run 7/step-10.2of2.pack";
    let listed = place.ok(&["pack", "--list", container, "--json"]).json();
    assert_eq!(listed[0]["name"], "wave.N2.T10");
    assert_eq!(listed[0]["variables"][0]["shape"], serde_json::json!([64, 64]));
    assert_eq!(place.ok(&["unpack", container, "--check", "--json"]).json()["files"], 2);
    let variable = listed[0]["variables"][0]["path"].as_str().unwrap().to_owned();
    place.ok(&["unpack", container, "wave.N2.T10", "--variable", &variable, "-o", "variable"]);

    // The next set joins it; what is there is left alone, and how many ranks there are is learned from it.
    write(&place, &set(20));
    let again = ["aggregate", "run", "-o", "s3://ckpt/run 7", "--settle", "0", "--once", "--json"];
    let report = place.ok(&again).json();
    assert_eq!(report["sets"][0]["timestep"], 20);
    assert_eq!(objects(&store).len(), 3);
    assert!(raw_is_there(&place, &set(20)), "without --remove-raw they stay");
    assert_eq!(place.ok(&again).json()["sets"], serde_json::json!([]));
}

#[test]
fn a_set_that_is_written_again_replaces_its_objects() {
    let store = ObjectStore::start();
    let place = AtStore::new(store.endpoint());
    write(&place, &set(10));
    place.ok(&["aggregate", "run", "-o", "s3://ckpt/run 7", "--ranks", "4", "--settle", "0", "--once"]);
    assert_eq!(objects(&store), ["step-10.1of1.pack"]);
    let other: Files = set(10).into_keys().zip(set(11).into_values()).collect();
    write(&place, &other);
    place.aggregate(&["--remove-raw"]);
    assert_eq!(objects(&store), ["step-10.1of2.pack", "step-10.2of2.pack"]);
    assert!(place.comes_back(10, &other));
}

#[test]
fn who_restores_one_rank_fetches_little_and_who_restores_all_asks_seldom() {
    const RANKS: usize = 24;
    const BYTES: usize = 1 << 20;
    let store = Arc::new(ObjectStore::start());
    let gate = Gate::open(&store, |_| Deed::Pass);
    let place = AtStore::new(gate.endpoint());
    let content = |rank: usize| random_bytes(BYTES, rank as u64);
    for rank in 0..RANKS {
        place.file(&format!("run/x.N{rank}.T1"), &content(rank));
    }
    place.ok(&[
        "aggregate",
        "run",
        "-o",
        "s3://ckpt",
        "--ranks",
        "24",
        "--settle",
        "0",
        "--level",
        "fastest",
        "--once",
    ]);
    let uploads = gate.asked().iter().filter(|asked| asked.target.contains("partNumber=")).count();
    assert!(uploads >= 3, "24 MiB go in parts: {uploads}");

    let container = format!("s3://{BUCKET}/step-1.1of1.pack");
    gate.reset();
    place.ok(&["unpack", &container, "x.N17.T1", "-o", "back"]);
    assert_eq!(fs::read(place.path("back/x.N17.T1")).unwrap(), content(17));
    let (asked, bytes) = (gate.asked().len(), gate.answered_bytes());
    assert!(bytes < 4 << 20, "{bytes} bytes were fetched for one rank");
    assert!(asked <= 8, "{asked} requests for one rank: {:?}", gate.asked());

    gate.reset();
    place.ok(&["unpack", &container, "-o", "back", "--threads", "2"]);
    assert!(
        (0..RANKS).all(|rank| fs::read(place.path(&format!("back/x.N{rank}.T1"))).unwrap() == content(rank))
    );
    let (asked, bytes) = (gate.asked().len(), gate.answered_bytes());
    assert!(asked <= 20, "{asked} requests for 24 blocks: {:?}", gate.asked());
    assert!(bytes < 28 << 20, "{bytes} bytes were fetched for 24 MiB");
}

#[test]
fn sets_against_earlier_ones_find_their_bases_in_the_store() {
    let store = ObjectStore::start();
    let place = AtStore::new(store.endpoint());
    let aggregated = |files: &Files| {
        across_time::write(&place, files);
        let options =
            ["--ranks", "2", "--settle", "0", "--once", "--json", "--across-time", "4", "--remove-raw"];
        place.ok(&[&["aggregate", "run", "-o", "s3://ckpt/t"], &options[..]].concat()).json()["sets"].clone()
    };
    let comes_back = |step: u64, files: &Files| {
        place.ok(&["unpack", &format!("s3://ckpt/t/step-{step}.1of1.pack"), "-o", "back"]);
        files.iter().all(|(name, bytes)| fs::read(place.path(&format!("back/{name}"))).unwrap() == *bytes)
    };
    let (first, second) = (across_time::set(1, 1), across_time::set(2, 2));
    assert_eq!(aggregated(&first)[0]["with_base"], 0);
    assert_eq!(aggregated(&second)[0]["with_base"], 1);
    assert!(comes_back(2, &second));

    // The first is written again: as a base it stays, under another name.
    let again = across_time::set(1, 7);
    assert_eq!(aggregated(&again)[0]["timestep"], 1);
    assert!(comes_back(1, &again));
    assert!(comes_back(2, &second));
    let entries = fs::read_dir(store.object("t")).unwrap().map(|entry| entry.unwrap().path());
    let bases: Vec<_> = entries.filter(|path| path.to_string_lossy().contains("/base-")).collect();
    assert_eq!(bases.len(), 1);

    // Named, it may lie anywhere; alone the other is of no use, and says so.
    fs::copy(&bases[0], place.path("elsewhere")).unwrap();
    fs::remove_file(&bases[0]).unwrap();
    let container = "s3://ckpt/t/step-2.1of1.pack";
    place.fails(&["unpack", container, "-o", "back"], 2, "--base");
    place.ok(&["unpack", container, "-o", "back", "--base", "elsewhere"]);
}

#[test]
fn every_mistake_is_told_with_what_to_do() {
    let store = ObjectStore::start();
    let place = AtStore::new(store.endpoint());
    write(&place, &set(10));
    let to = |url: &'static str| ["aggregate", "run", "-o", url, "--ranks", "4", "--settle", "0", "--once"];
    place.fails(&to("s3://nowhere/x"), 4, "NoSuchBucket");
    place.fails(&to("s3://"), 2, "write s3://BUCKET/NAME");
    place.fails(&["unpack", "s3://ckpt/none.pack"], 4, "s3://ckpt/none.pack");
    place.fails(&["pack", "run", "-o", "s3://ckpt/x.pack"], 2, "aggregate -o");
    place.fails(&[&to("s3://ckpt/x")[..], &["--level", "auto"]].concat(), 2, "object store");
    fs::create_dir(store.object("x")).unwrap();
    fs::write(store.object("x/no.pack"), random_bytes(300_000, 1)).unwrap();
    fs::write(store.object("x/empty.pack"), b"").unwrap();
    place.fails(&["unpack", "s3://ckpt/x/no.pack"], 2, "no stdchk container");
    place.fails(&["unpack", "s3://ckpt/x/empty.pack"], 2, "no stdchk container");
    assert!(raw_is_there(&place, &set(10)));
}

#[test]
fn who_asks_in_the_wrong_region_is_told_where_to_set_it() {
    let store = Arc::new(ObjectStore::start());
    for refusal in [(301, "PermanentRedirect"), (400, "AuthorizationHeaderMalformed")] {
        let gate = Gate::open(&store, move |_| Deed::Refuse(refusal.0, refusal.1));
        let place = AtStore::new(gate.endpoint());
        place.fails(&["unpack", "s3://ckpt/x.pack"], 2, refusal.1);
        place.fails(&["unpack", "s3://ckpt/x.pack"], 2, "AWS_REGION");
    }
}

/// Lends credentials to everyone, as a container of a cluster does to what runs in it.
fn lender() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/credentials", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut asked = [0; 4096];
            let read = client.read(&mut asked).unwrap();
            assert!(String::from_utf8_lossy(&asked[..read]).contains("whoever-holds-this"));
            let body = format!(
                "{{\"AccessKeyId\": \"{ACCESS_KEY}\", \"SecretAccessKey\": \"{SECRET_KEY}\", \"Token\": \"t\", \
                 \"Expiration\": \"2999-01-01T00:00:00Z\"}}"
            );
            let length = body.len();
            write!(client, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
                .unwrap();
        }
    });
    url
}

#[test]
fn a_container_that_lends_credentials_is_asked_where_none_are_set() {
    let store = ObjectStore::start();
    let place = AtStore::new(store.endpoint());
    write(&place, &set(10));
    place.file("token", b"whoever-holds-this");
    let mut command = place.command(&once());
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    command.env("AWS_CONTAINER_CREDENTIALS_FULL_URI", lender());
    command.env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", place.path("token"));
    ends_with(command, 0, &[]);
    assert!(place.comes_back(10, &set(10)));
}

fn ends_with(mut command: Command, code: i32, says: &[&str]) {
    command.stdin(std::process::Stdio::null());
    let ended = outcome(command);
    assert_eq!(ended.code, code, "{ended:?}");
    for says in says {
        assert!(ended.stderr.contains(says), "`{says}` is missing in: {}", ended.stderr);
    }
    assert!(
        !ended.stderr.contains(SECRET_KEY) && !ended.stderr.contains("another-secret"),
        "{}",
        ended.stderr
    );
}

#[test]
fn who_is_not_let_in_or_finds_nobody_learns_why_soon() {
    let store = ObjectStore::start();
    let place = AtStore::new(store.endpoint());
    write(&place, &set(10));
    let with = |pairs: &[(&str, &str)]| {
        let mut command = place.command(&once());
        command.envs(pairs.iter().copied());
        command
    };
    ends_with(
        with(&[("AWS_SECRET_ACCESS_KEY", "another-secret")]),
        1,
        &["SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"],
    );
    ends_with(with(&[("AWS_ACCESS_KEY_ID", "nobody")]), 1, &["403", "AWS_ACCESS_KEY_ID"]);
    ends_with(with(&[("AWS_ACCESS_KEY_ID", "")]), 2, &["AWS_ACCESS_KEY_ID", "not set"]);
    let mut none = with(&[]);
    none.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    // The machine is asked, too; here nobody answers for it.
    none.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
    ends_with(none, 2, &["no credentials", "127.0.0.1:1", "AWS_ACCESS_KEY_ID"]);
    // Nobody listens on port 1.
    let nobody = [("AWS_ENDPOINT_URL", "http://127.0.0.1:1")];
    ends_with(with(&nobody), 5, &["127.0.0.1:1", "tried 3 times", "AWS_ENDPOINT_URL"]);
    ends_with(with(&[("AWS_ENDPOINT_URL", "127.0.0.1")]), 2, &["AWS_ENDPOINT_URL"]);
    assert!(raw_is_there(&place, &set(10)));

    // The file of credentials does as well.
    let home = place.path("home");
    fs::create_dir_all(home.join(".aws")).unwrap();
    let keys = format!("[default]\naws_access_key_id = someone\naws_secret_access_key = {SECRET_KEY}\n");
    fs::write(home.join(".aws/credentials"), keys).unwrap();
    let mut by_file = with(&[("HOME", home.to_str().unwrap())]);
    by_file.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    ends_with(by_file, 0, &[]);
    assert!(Path::new(&store.object("run 7/step-10.2of2.pack")).exists());
}
