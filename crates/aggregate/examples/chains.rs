//! scratch: sizes and times of chains on files as raw elements
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use stdchk_aggregate::codec::{Lane, Shape, Side, Step, decode, encode};
fn cpu() -> f64 {
    let n = clock_gettime(ClockId::ProcessCPUTime);
    n.tv_sec as f64 + n.tv_nsec as f64 * 1e-9
}
fn main() {
    let mut w = std::env::args().skip(1);
    let size: u32 = w.next().unwrap().parse().unwrap();
    let block: usize = w.next().unwrap().parse::<usize>().unwrap() << 10;
    let mut b = Vec::new();
    for p in w {
        b.extend(fs::read(p).unwrap());
    }
    let (lane, _d) = match size {
        2 => (Lane::F16, Lane::U16),
        4 => (Lane::F32, Lane::U32),
        _ => (Lane::F64, Lane::U64),
    };
    for chain in [
        vec![Step::Planes(size, i32::MIN)],
        vec![Step::Planes(size, 1)],
        vec![Step::Lorenzo(lane), Step::Planes(size, i32::MIN)],
        vec![Step::Lorenzo(lane), Step::Planes(size, 1)],
        vec![Step::Distinct(size)],
        vec![Step::Lz4],
        vec![Step::Zstd(1)],
        vec![Step::Zstd(-3)],
        vec![Step::Shuffle(size), Step::Lz4],
        vec![Step::Shuffle(size), Step::Zstd(-3)],
        vec![Step::Shuffle(size), Step::Zstd(1)],
        vec![Step::Shuffle(size)],
    ] {
        if size == 2 && chain == vec![Step::Distinct(2)] {
            continue;
        }
        let (mut te, mut td, mut stored) = (f64::MAX, f64::MAX, 0);
        for _ in 0..6 {
            let (mut a, mut c) = (0., 0.);
            stored = 0;
            for x in b.chunks(block) {
                let sh = [Shape(vec![(x.len() / size as usize) as u64])];
                let s = Side { shapes: &sh, base: &[] };
                let t0 = cpu();
                let e = encode(&chain, x, s).unwrap();
                let t1 = cpu();
                let d = decode(&chain, &e, x.len(), s).unwrap();
                let t2 = cpu();
                assert!(d == x);
                stored += e.len();
                a += t1 - t0;
                c += t2 - t1;
            }
            te = te.min(a);
            td = td.min(c);
        }
        println!(
            "{:8.3}:1 {:6.2} in {:6.2} out ns/B {chain:?}",
            b.len() as f64 / stored as f64,
            te * 1e9 / b.len() as f64,
            td * 1e9 / b.len() as f64
        );
    }
}
