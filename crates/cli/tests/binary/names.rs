//! Names as codes write them: timesteps that are dates and decimal numbers, ranks from 1, layouts of known codes.

use std::fs;

use serde_json::Value;
use stdchk_tests::{Pool, wait_until};

fn put(pool: &Pool, app: &str, paths: &[&str]) {
    paths.iter().for_each(|path| pool.put(path.as_bytes(), &format!("{app}/{path}")));
}

/// The sets of a folder, newest first: timestep and state.
fn sets(pool: &Pool, app: &str) -> Vec<(Value, String)> {
    let sets = pool.json(&["ls", app, "--sets", "--json"]);
    let sets = sets["sets"].as_array().unwrap().iter();
    sets.map(|set| (set["timestep"].clone(), set["state"].as_str().unwrap().to_owned())).collect()
}

fn complete(names: &[&str]) -> Vec<(Value, String)> {
    names.iter().map(|name| ((*name).into(), "complete".to_owned())).collect()
}

#[test]
fn sets_are_ordered_by_decimal_numbers_and_called_what_the_code_wrote() {
    let pool = Pool::up(2, &[]);
    pool.policy("foam", &["naming=processor{rank}/{time}/{name}", "ranks=2"]);
    let times = ["1e-05", "0.005", "0.01", "0.1"];
    for (time, rank) in times.iter().flat_map(|time| [(time, 0), (time, 1)]) {
        put(&pool, "foam", &[&format!("processor{rank}/{time}/U"), &format!("processor{rank}/{time}/p")]);
    }
    assert_eq!(sets(&pool, "foam"), complete(&["0.1", "0.01", "0.005", "1e-05"]));
    assert_eq!(pool.json(&["latest", "foam", "--json"])["timestep"], "0.1");
    assert!(pool.ok(&["latest", "foam"]).starts_with("timestep 0.1: "));
    // What one process has not written yet is missed, whatever else it has written.
    put(&pool, "foam", &["processor0/0.2/U", "processor0/0.2/p", "processor1/0.2/U"]);
    let latest = pool.json(&["latest", "foam", "--json"]);
    assert_eq!((&latest["timestep"], &latest["passed_over"][0]["timestep"]), (&"0.1".into(), &"0.2".into()));
    let reason = latest["passed_over"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("(p)") && reason.contains("rank 1 missing"), "{reason}");

    let out = pool.path("back");
    let restored =
        pool.json(&["restore", "foam", "--set", "0.00001", "-o", &out.display().to_string(), "--json"]);
    assert_eq!(restored["timestep"], "1e-05");
    assert_eq!(fs::read_to_string(out.join("processor1/1e-05/p")).unwrap(), "processor1/1e-05/p");
    pool.fails(&["restore", "foam", "--set", "0.3", "-o", "x"], 4, &["timestep 0.3"]);
    pool.fails(&["restore", "foam", "--set", "soon", "-o", "x"], 2, &["0.005", "2016-10-13"]);
    // A set is sealed, and kept, by its number.
    pool.ok(&["seal", "foam", "--set", "0.0050"]);
    pool.policy("foam", &["lifetime=replace:1 every:0.01"]);
    wait_until("the set that nothing keeps is gone", || sets(&pool, "foam").len() == 4);
    let left: Vec<Value> = sets(&pool, "foam").into_iter().map(|(timestep, _)| timestep).collect();
    assert_eq!(left, ["0.2", "0.1", "0.01", "0.005"]);
}

#[test]
fn sets_are_ordered_by_date_and_packed_under_their_names() {
    let pool = Pool::up(2, &[]);
    let names = ["wrfrst_d01_2016-09-30_18:00:00", "wrfrst_d01_2016-10-01_00:00:00"];
    put(&pool, "wrf", &names);
    // Before anything is set, the folder says what would fit, and what would come of it.
    let said = pool.run(&["ls", "wrf", "--sets"]).stderr;
    assert!(said.contains("stdchk policy set wrf layout=wrf") && said.contains("2 of 2 files fit"), "{said}");
    let tried = pool.run(&["policy", "set", "wrf", "layout=auto", "--dry-run"]);
    assert!(tried.text().contains("2016-10-01_00:00:00") && tried.stderr.contains("layout=wrf"), "{tried:?}");
    assert_eq!(sets(&pool, "wrf"), [], "a dry run changes nothing");
    pool.policy("wrf", &["layout=auto"]);
    assert_eq!(sets(&pool, "wrf"), complete(&["2016-10-01_00:00:00", "2016-09-30_18:00:00"]));
    let policy = pool.json(&["policy", "get", "wrf", "--json"]);
    assert_eq!(
        (&policy["ranks"], policy["naming"].as_str().unwrap().contains("wrfrst_d{rank}_{date}")),
        (&1.into(), true)
    );
    pool.ok(&["aggregate", "wrf", "--once"]);
    let latest = pool.json(&["latest", "wrf", "--json"]);
    assert_eq!(
        (&latest["timestep"], &latest["members"][0]["name"]),
        (&"2016-10-01_00:00:00".into(), &names[1].into())
    );

    let (source, sink) = (pool.path("plain"), pool.path("packed"));
    fs::create_dir(&source).unwrap();
    names.iter().for_each(|name| fs::write(source.join(name), name).unwrap());
    let (source, sink_text) = (source.display().to_string(), sink.display().to_string());
    let naming = ["--naming", "wrfrst_d{rank}_{date}", "--ranks", "1", "--settle", "0", "--once", "--json"];
    let round = pool.json(&[&["aggregate", &source, "-o", &sink_text][..], &naming].concat());
    assert_eq!(round["sets"][1]["timestep"], "2016-10-01_00:00:00", "{round}");
    assert!(sink.join("step-2016-10-01_00:00:00.1of1.pack").is_file());
}

#[test]
fn so_many_files_are_a_set_whatever_their_numbers() {
    let pool = Pool::up(2, &[]);
    pool.policy("fv3", &["naming=restart.{step}.tile{rank}.nc", "ranks=3"]);
    let names = |step: u32, tiles: &[u32]| -> Vec<String> {
        tiles.iter().map(|tile| format!("restart.{step}.tile{tile}.nc")).collect()
    };
    for (step, tiles) in [(100, &[1, 2, 3][..]), (200, &[2, 5, 9]), (300, &[1, 3])] {
        let names = names(step, tiles);
        put(&pool, "fv3", &names.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let latest = pool.json(&["latest", "fv3", "--json"]);
    assert_eq!((&latest["timestep"], latest["members"].as_array().unwrap().len()), (&200.into(), 3));
    let reason = latest["passed_over"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("missing"), "{reason}");

    pool.policy("hf", &["layout=hf-trainer"]);
    let shards = |step: u32, count: u32| -> Vec<String> {
        (1..=count).map(|shard| format!("checkpoint-{step}/model-0000{shard}-of-00003.safetensors")).collect()
    };
    for (step, count) in [(500, 3), (1000, 2)] {
        let shards = shards(step, count);
        put(&pool, "hf", &shards.iter().map(String::as_str).collect::<Vec<_>>());
    }
    assert_eq!(pool.json(&["latest", "hf", "--json"])["timestep"], 500);
    assert_eq!(sets(&pool, "hf")[0], (1000.into(), "incomplete".to_owned()));
}

#[test]
fn names_of_no_code_give_a_pattern_and_names_without_a_timestep_none() {
    let pool = Pool::up(2, &[]);
    put(&pool, "own", &["field.100.1", "field.100.2", "field.200.1", "field.200.2"]);
    let said = pool.run(&["ls", "own", "--sets"]).stderr;
    assert!(said.contains("'naming=field.{step}.{rank}' ranks=2"), "{said}");
    pool.policy("own", &["layout=auto"]);
    assert_eq!(pool.json(&["latest", "own", "--json"])["timestep"], 200);
    put(&pool, "notes", &["todo.txt", "log"]);
    pool.fails(&["policy", "set", "notes", "layout=auto"], 2, &["tell no timestep", "naming=PATTERN"]);
    pool.fails(&["policy", "set", "new", "layout=auto"], 2, &["no files"]);
    pool.fails(&["policy", "set", "own", "layout=nosuch"], 2, &["wrf", "auto", "naming=PATTERN"]);
    pool.fails(&["policy", "set", "own", "layout=wrf", "naming=x.{step}"], 2, &["leave one of them out"]);
    let policy = pool.json(&["policy", "get", "own", "--json"]);
    assert_eq!(policy["naming"], "field.{step}.{rank}", "what was refused changed nothing");
}
