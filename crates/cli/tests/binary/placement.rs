//! Placement as users meet it: labels of benefactors, what explains a choice, and advice on intervals.

use std::process::Stdio;

use stdchk_tests::{Pool, command, outcome, wait_until};

#[test]
fn a_choice_is_explained_and_an_interval_advised_on_as_far_as_something_is_known() {
    let pool = Pool::up(3, &[]);
    pool.ok(&["policy", "set", "sim", "placement=falcon", "stripe=2", "ranks=1"]);
    pool.fails(&["policy", "set", "sim", "placement=best"], 2, &["best", "round-robin", "learned"]);
    for step in [10, 20] {
        let file = pool.file(&format!("sim.N0.T{step}"), &[7; 100_000]);
        pool.ok(&["put", &file, "sim/"]);
    }
    let explained = pool.json(&["placement", "explain", "sim", "--json"]);
    assert_eq!((&explained["policy"], &explained["in_use"]), (&"falcon".into(), &"falcon".into()));
    assert_eq!((&explained["ranked"], &explained["width"]), (&true.into(), &2.into()));
    // All is on one machine: one of the benefactors stands for it, and gets nothing while there are others.
    let compute = explained["compute"].as_u64().unwrap();
    let hosts = explained["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 2);
    for host in hosts {
        assert_ne!(host["id"].as_u64(), Some(compute), "{explained}");
        assert!(host["up_s"].as_u64().is_some() && host["failures_week"] == 0, "{explained}");
    }
    let words = pool.ok(&["placement", "explain", "sim/sim.N0.T20"]);
    assert!(words.contains("falcon") && words.contains("was not seen to fail"), "{words}");
    pool.fails(&["placement", "explain", "nothing"], 4, &["nothing"]);
    // Two sets are known, and no failure.
    let advice = pool.json(&["advise", "sim", "--json"]);
    assert_eq!((&advice["sets"], advice["daly_s"].as_f64()), (&2.into(), None), "{advice}");
    assert!(advice["unknown"][0].as_str().unwrap().contains("how often this machine fails"), "{advice}");
    let given = pool.json(&["advise", "sim", "--mttf", "2h", "--hosts", "2", "--json"]);
    let (cost, daly) = (given["cost_ms"].as_u64().unwrap(), given["daly_s"].as_f64().unwrap());
    let young = (2.0 * cost.max(1) as f64 / 1e3 * 3600.0).sqrt();
    assert!((daly - young).abs() < young, "{given}");
    assert!(pool.ok(&["advise", "sim", "--mttf", "2h"]).contains("take a checkpoint every"));
    pool.fails(&["advise", "sim", "--mttf", "soon"], 2, &["soon"]);
}

#[test]
fn labels_are_kept_in_the_folder_and_shown_until_others_are_given() {
    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name).to_str().unwrap().to_owned();
    let (manager, benefactor) = (path("manager"), path("benefactor"));
    let address = format!("unix:{manager}/socket");
    let access = ["--manager", address.as_str()];
    let spawn = |arguments: &[&str]| command(arguments).stderr(Stdio::null()).spawn().unwrap();
    let mut serving = spawn(&["manager", "run", &manager]);
    let run = ["benefactor", "run", &benefactor, "--donate", "64MiB", "--floor", "1MiB", "--tier", "disk"];
    let refused = outcome(command(&[&run[..], &access, &["--label", "rack=a b"]].concat()));
    assert!(refused.code == 2 && refused.stderr.contains("rack=a b"), "{refused:?}");
    let first = || {
        let status = outcome(command(&[&["status", "--json"], &access[..]].concat()));
        if status.stdout.is_empty() {
            serde_json::Value::Null
        } else {
            status.json()["benefactors"][0].clone()
        }
    };
    let lives = [
        (vec!["--label", "rack=3", "--label", "site=b"], serde_json::json!({"rack": "3", "site": "b"})),
        (vec![], serde_json::json!({"rack": "3", "site": "b"})),
        (vec!["--label", "rack=4"], serde_json::json!({"rack": "4"})),
    ];
    for (given, shown) in lives {
        let mut role = spawn(&[&run[..], &access, &given].concat());
        wait_until(&format!("labels {shown}"), || first()["state"] == "online" && first()["labels"] == shown);
        role.kill().unwrap();
        role.wait().unwrap();
        wait_until("it is gone", || first()["state"] != "online");
    }
    let words = outcome(command(&[&["status"], &access[..]].concat()));
    assert!(words.text().contains("rack=4"), "{words:?}");
    serving.kill().unwrap();
    serving.wait().unwrap();
}
