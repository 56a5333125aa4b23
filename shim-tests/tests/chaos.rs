//! Random work on random memory while the library moves pages: every byte read is the last one written.
//!
//! One process runs many sequences on a machine that its seed chooses (`programs/chaos.c`): two or three GPUs,
//! with and without links between them, one or four threads, or single driver calls that are refused.
//! `scripts/chaos.sh --seed N` runs one seed again, `scripts/chaos.sh 100000` very many.

use shim_tests::{Outcome, Report, Run, Source};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sequences of one process.
const SEQUENCES: u64 = 50;
/// Processes: each kind of machine has a fourth of them.
const SEEDS: u64 = 40;
/// Seeds of this kind run on a machine that refuses calls.
const KINDS: u64 = 4;
const REFUSING: u64 = 3;

fn program() -> PathBuf {
    Source::program("chaos").flags(&["-O2"]).build()
}

fn chaos(seed: u64, sequences: u64) -> Run {
    Run::new(program()).args(&[seed.to_string(), sequences.to_string()]).limit(120)
}

/// What all processes of one kind of machine did.
#[derive(Default)]
struct Sum {
    moved: u64,
    read: u64,
    refused: u64,
}

fn one(seed: u64, sums: &Mutex<[Sum; KINDS as usize]>) {
    let path = Report::fresh();
    let outcome = chaos(seed, SEQUENCES).env("VGMEM_REPORT", &path).run();
    assert_eq!(outcome.code, Some(0), "scripts/chaos.sh --seed {seed}: {outcome:#?}");
    let report = Report::read(&path);
    assert_eq!(report.number("live"), 0, "scripts/chaos.sh --seed {seed}: {report:?}");
    let kind = seed % KINDS;
    if kind != REFUSING {
        assert_eq!((report.number("lost"), outcome.number("refused")), (0, 0), "{seed}: {report:?}");
        // Four threads may ask for more than the smallest machine has.
        assert!(
            outcome.stderr.lines().all(|l| l.starts_with("vgmem: out of memory: ")),
            "{seed}: {outcome:#?}"
        );
    }
    let mut sums = sums.lock().expect("no thread failed");
    let sum = &mut sums[kind as usize];
    sum.moved += report.number("moved");
    sum.read += outcome.number("read");
    sum.refused += outcome.number("refused");
}

/// 2,000 sequences on all kinds of machines.
#[test]
fn every_byte_read_is_the_last_written() {
    let (next, sums) = (AtomicU64::new(0), Mutex::default());
    // The GPUs of a simulated machine sleep now and then: a few more processes than processors.
    let workers = std::thread::available_parallelism().map_or(2, usize::from) + 2;
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|s| *s < SEEDS) {
                    one(seed, &sums);
                }
            });
        }
    });
    for (kind, sum) in sums.lock().expect("no thread failed").iter().enumerate() {
        assert!(sum.moved > 100, "machines of kind {kind}: {} pages moved", sum.moved);
        assert!(sum.read > 1 << 30, "machines of kind {kind}: {} bytes read", sum.read);
        assert_eq!(sum.refused > 0, kind as u64 == REFUSING, "machines of kind {kind}");
    }
}

/// The same work without the library: the program itself is right.
#[test]
fn the_program_is_right_by_itself() {
    for seed in 0..REFUSING {
        let outcome = chaos(seed, 5).native().ok();
        assert_eq!(outcome.number("refused"), 0, "{outcome:#?}");
    }
}

/// Memory that changes behind the program's back is seen, with the seed and the step.
#[test]
fn a_wrong_byte_is_found() {
    let found = |outcome: &Outcome| {
        let line = outcome.lines().last().copied().unwrap_or_default().to_string();
        line.starts_with("FAILED seed 4 sequence ") && line.contains("bytes are wrong")
    };
    let outcome = chaos(4, 20).env("CHAOS_SPOIL", "9").run();
    assert_eq!(outcome.code, Some(5), "{outcome:#?}");
    assert!(found(&outcome), "{outcome:#?}");
}

/// The same with the pager: before launches pages come home and others go, besides those that move at random; every
/// page is compared at both ends of every move. A fourth of the machines refuse calls.
#[test]
fn the_pager_changes_no_byte() {
    let (mut fetched, mut read) = (0, 0);
    for (seed, safety) in (100..106).flat_map(|seed| [(seed, "strict"), (seed, "auto")]) {
        let path = Report::fresh();
        let run = chaos(seed, 20).env("VGMEM_REPORT", &path).env("VGMEM_PAGING", "auto");
        let outcome = run.env("VGMEM_SAFETY", safety).env("VGMEM_VERIFY", "1").run();
        let command = format!("VGMEM_PAGING=auto VGMEM_SAFETY={safety} scripts/chaos.sh --seed {seed}");
        assert_eq!(outcome.code, Some(0), "{command}: {outcome:#?}");
        let report = Report::read(&path);
        assert_eq!(report.number("live"), 0, "{command}: {report:?}");
        fetched += report.number("fetched");
        read += outcome.number("read");
    }
    // Small GPUs have no exchange reserve: pages come home only where there is room.
    assert!(fetched > 10, "{fetched} pages came home");
    assert!(read > 1 << 28, "{read} bytes read");
}
