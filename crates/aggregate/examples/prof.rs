//! scratch
use rustix::time::{ClockId, clock_gettime};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use stdchk_aggregate::{Container, Mode, Packing, PlanOptions, Unpacking, inputs_of, pack};
fn cpu() -> f64 {
    let n = clock_gettime(ClockId::ProcessCPUTime);
    n.tv_sec as f64 + n.tv_nsec as f64 * 1e-9
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let what = &a[1];
    let level = &a[2];
    let secs: f64 = a[3].parse().unwrap();
    let mode = match level.as_str() {
        "fastest" => Mode::Fastest,
        "default" => Mode::Default,
        _ => Mode::Smallest,
    };
    for set in &a[4..] {
        let inputs = inputs_of(&[set.into()]).unwrap().files;
        let raw: u64 = inputs.iter().map(|i| std::fs::metadata(&i.path).unwrap().len()).sum();
        let c = std::env::temp_dir().join(format!("prof-{}", std::process::id()));
        let back = std::env::temp_dir().join(format!("prof-back-{}", std::process::id()));
        let plan = PlanOptions { keys: mode.keys(), ..PlanOptions::default() };
        let p = Packing { mode: mode.clone(), plan, threads: 1, ..Packing::default() };
        let mut stored = 0;
        let mut blocks = 0;
        if what == "unpack" || what == "both" {
            stored = pack(&inputs, &c, &p).unwrap().stored_bytes;
        }
        let report = |what: &str, work: &mut dyn FnMut()| {
            let mut times = Vec::new();
            let s = cpu();
            while cpu() - s < secs {
                let b = cpu();
                work();
                times.push(cpu() - b);
            }
            if times.is_empty() {
                return;
            }
            times.sort_by(f64::total_cmp);
            println!(
                "{:16} {what:7} {level:8} best {:6.0} median {:6.0} MB/s  runs {}",
                set.rsplit('/').next().unwrap(),
                raw as f64 / 1e6 / times[0],
                raw as f64 / 1e6 / times[times.len() / 2],
                times.len()
            );
        };
        if what == "pack" || what == "both" {
            report("pack", &mut || {
                let k = pack(&inputs, &c, &p).unwrap();
                stored = k.stored_bytes;
                blocks = k.blocks;
            });
        }
        if what == "unpack" || what == "both" {
            report("unpack", &mut || {
                let u = Unpacking { threads: 1, ..Unpacking::default() };
                Container::open(&c).unwrap().unpack(&back, &u).unwrap();
            });
        }
        if what == "floor" {
            report("floor", &mut || {
                let mut all = Vec::new();
                for i in &inputs {
                    let mut f = std::fs::File::open(&i.path).unwrap();
                    f.read_to_end(&mut all).unwrap();
                }
                let _ = blake3::hash(&all);
                let mut f = std::fs::File::options()
                    .create(true)
                    .read(true)
                    .write(true)
                    .truncate(true)
                    .open(&c)
                    .unwrap();
                f.write_all(&all).unwrap();
                f.sync_all().unwrap();
                let mut b = vec![0; all.len()];
                f.read_exact_at(&mut b, 0).unwrap();
                let _ = blake3::hash(&b);
                stored = all.len() as u64;
            });
        }
        println!("   ratio {:.4} {} in {blocks} blocks", raw as f64 / stored as f64, stored);
        let _ = std::fs::remove_file(&c);
        let _ = std::fs::remove_dir_all(&back);
    }
}
