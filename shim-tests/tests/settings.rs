//! Settings and the exit report.

use shim_tests::{MIB, Report, Run, Source};
use std::path::PathBuf;

fn program() -> PathBuf {
    Source::program("pool").flags(&["-O2"]).build()
}

fn pool(sim: &str, mode: &str, mib: &str) -> Run {
    Run::new(program()).sim(sim).arg(mode).arg(mib).limit(60)
}

/// Values that no setting takes: one line that names the variable and what it accepts, and the
/// first call fails.
#[test]
fn settings_that_cannot_be_honoured() {
    let bad = [
        ("VGMEM_DEVICES", &["x", "7", "-1", "0,,1", "GPU-00000000-0000-0000-0000-000000000000"][..]),
        ("VGMEM_DEVICE_LIMIT", &["20Q", "0:", "-1G", "9:1M", "much", "1G", "0:1G"]),
        ("VGMEM_DEVICE_RESERVE", &["x", "1:", "-5"]),
        ("VGMEM_HOST", &["101%", "x", "-5", "%"]),
        ("VGMEM_PAGE_SIZE", &["3M", "1M", "2G", "big", "0"]),
        ("VGMEM_MIN_ALLOC", &["x", "-1"]),
        ("VGMEM_PLACEMENT", &["best", "Home "]),
        ("VGMEM_ADVERTISE", &["all", "1"]),
        ("VGMEM_REPORT", &["stdout", "report.txt"]),
        ("VGMEM_TRACE", &["trace.txt", ".vgt", "/nowhere/trace.vgt"]),
        ("VGMEM_LOG", &["loud", "9"]),
        ("VGMEM_DISABLE", &["maybe"]),
        ("VGMEM_PAGING", &["on", "1"]),
        ("VGMEM_SAFETY", &["loose", "1"]),
        ("VGMEM_VERIFY", &["yes", "2"]),
        ("VGMEM_CHAOS", &["yes", "-1"]),
        ("VGMEM_PAGESIZE", &["4M"]),
        ("VGMEM_", &["1"]),
    ];
    for (name, values) in bad {
        for value in values {
            let outcome = pool("gpus=2,mem=64M", "keep", "8").env(name, value).run();
            let what = format!("{name}={value}: {outcome:#?}");
            assert_eq!(outcome.code, Some(3), "{what}");
            assert!(outcome.stdout.contains("d->cuInit(0)"), "{what}");
            let lines: Vec<_> = outcome.stderr.lines().collect();
            assert_eq!(lines.len(), 1, "{what}");
            assert!(lines[0].starts_with("vgmem: ") && lines[0].contains(name), "{what}");
            assert!(lines[0].contains("accepted: "), "{what}");
        }
    }
}

/// Values that are taken: silence and a program that works.
#[test]
fn settings_that_can_be_honoured() {
    let good = [
        ("VGMEM_DEVICES", &["all", "0", "1,0"][..]),
        ("VGMEM_DEVICE_LIMIT", &["32M", "0:16M", "0:16M,1:48M", "64M"]),
        ("VGMEM_DEVICE_RESERVE", &["0", "8M", "0:8M,1:4M"]),
        ("VGMEM_HOST", &["auto", "64M", "1%", "0"]),
        ("VGMEM_PAGE_SIZE", &["auto", "2M", "16M", "1G"]),
        ("VGMEM_MIN_ALLOC", &["2M", "4M", "0", "64K"]),
        ("VGMEM_PLACEMENT", &["home", "interleave", "balance"]),
        ("VGMEM_PAGING", &["off", "auto"]),
        ("VGMEM_SAFETY", &["strict", "auto"]),
        ("VGMEM_VERIFY", &["0", "1"]),
        ("VGMEM_ADVERTISE", &["device", "share", "pool"]),
        ("VGMEM_LOG", &["off", "error", "warn"]),
        ("VGMEM_DISABLE", &["0"]),
        ("VGMEM_TEST_ANYTHING", &["x"]),
    ];
    for (name, values) in good {
        for value in values {
            let outcome = pool("gpus=2,mem=64M,host=64M", "keep", "8").env(name, value).ok();
            assert_eq!((outcome.value("alloc"), outcome.value("wrong")), ("0", "0"), "{name}={value}");
            assert_eq!(outcome.stderr, "", "{name}={value}");
        }
    }
}

/// A log at each level goes to standard error only, and every line says whose it is.
#[test]
fn log_levels() {
    let lines = |level: &str| {
        let outcome = pool("gpus=2,mem=64M,host=64M", "keep", "8").env("VGMEM_LOG", level).ok();
        assert!(outcome.stderr.lines().all(|l| l.starts_with("vgmem")), "{level}: {outcome:#?}");
        outcome.stderr.lines().count()
    };
    let counts: Vec<_> =
        ["off", "error", "warn", "info", "debug", "trace"].iter().map(|l| lines(l)).collect();
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!(counts[2], 0, "nothing to warn of");
    assert!(counts[3] > 0 && counts[5] > counts[3], "{counts:?}");
}

/// The settings of the simulated machine are as strict.
#[test]
fn settings_of_the_simulated_machine() {
    for bad in ["gpus=x", "mem=", "link=rope", "colour=red", "fault=cuNothing#1:2"] {
        let outcome = pool(bad, "keep", "8").native().run();
        assert_eq!(outcome.code, Some(3), "{outcome:#?}");
        assert!(outcome.stdout.contains("d->cuInit(0)"), "{outcome:#?}");
        let lines: Vec<_> = outcome.stderr.lines().collect();
        assert!(lines.len() == 1 && lines[0].contains(bad) && lines[0].contains("accepted"), "{outcome:#?}");
    }
}

/// 8 pieces of 16 MiB on two GPUs of 64: where the report says they lay under a setting.
fn lay(settings: &[(&str, &str)]) -> Report {
    lay_on("gpus=2,mem=64M,host=256M", settings)
}

fn lay_on(sim: &str, settings: &[(&str, &str)]) -> Report {
    let run = settings.iter().fold(pool(sim, "pieces", "16"), |run, (k, v)| run.env(k, v));
    let (outcome, report) = Report::of(&run);
    assert_eq!((outcome.value("pieces"), outcome.value("wrong")), ("8", "0"), "{outcome:#?}");
    assert_eq!(outcome.stderr, "");
    report
}

/// An allocation larger than one GPU lay on its home, then on the peer, then in host RAM.
#[test]
fn the_report_shows_where_pages_lay() {
    let report = lay(&[]);
    let (home, peer, host) = (report.gpu(0), report.gpu(1), report.host());
    assert_eq!(report.number("peak"), 128 * MIB);
    assert_eq!(home.at_peak + peer.at_peak + host.at_peak, 128 * MIB, "{report:?}");
    assert!(home.at_peak >= 56 * MIB && home.at_peak <= 64 * MIB, "{report:?}");
    assert!(peer.at_peak >= 56 * MIB && peer.at_peak <= 64 * MIB, "{report:?}");
    assert!(host.at_peak > 0, "{report:?}");
    assert_eq!((report.number("made"), report.number("refused"), report.number("live")), (8, 0, 0));
    assert_eq!((home.at_exit, peer.at_exit, host.at_exit, report.number("lost")), (0, 0, 0, 0));
    assert!(report.texts("reached").contains(&"cuMemAlloc_v2"), "{report:?}");
    assert!(report.number("given") > 0 && report.number("hooks") > 50, "{report:?}");
    assert_eq!(report.texts("remarks"), Vec::<&str>::new());
}

#[test]
fn limits_of_the_devices_are_kept() {
    let report = lay(&[("VGMEM_DEVICE_LIMIT", "32M")]);
    for gpu in [report.gpu(0), report.gpu(1)] {
        assert!(gpu.capacity <= 32 * MIB && gpu.at_peak <= gpu.capacity && gpu.at_peak > 0, "{report:?}");
    }
    let report = lay(&[("VGMEM_DEVICE_LIMIT", "0:16M,1:48M")]);
    assert!(report.gpu(0).at_peak <= 16 * MIB && report.gpu(1).at_peak <= 48 * MIB, "{report:?}");
    assert!(report.gpu(1).at_peak > report.gpu(0).at_peak, "{report:?}");
    let report = lay(&[("VGMEM_DEVICE_RESERVE", "0:40M")]);
    assert!(report.gpu(0).at_peak <= 24 * MIB && report.gpu(1).at_peak > 48 * MIB, "{report:?}");
}

#[test]
fn the_host_budget_is_kept() {
    let report = lay(&[("VGMEM_HOST", "96M"), ("VGMEM_DEVICE_LIMIT", "32M")]);
    assert_eq!(report.host().capacity, 96 * MIB);
    assert!(report.host().at_peak <= 96 * MIB && report.host().at_peak >= 64 * MIB, "{report:?}");
    // No host memory at all: what does not fit on the GPUs is refused.
    let run = pool("gpus=2,mem=64M,host=256M", "pieces", "16").env("VGMEM_HOST", "0");
    let (outcome, report) = Report::of(&run);
    assert!(outcome.number("pieces") < 8 && outcome.number("pieces") >= 6, "{outcome:#?}");
    assert_eq!((outcome.value("rc"), report.host().at_peak), ("2", 0), "{outcome:#?}");
    assert_eq!(report.number("refused"), 1);
}

#[test]
fn page_sizes_are_used() {
    for mib in [2, 8, 32] {
        let report = lay(&[("VGMEM_PAGE_SIZE", &format!("{mib}M"))]);
        assert_eq!(report.number("page_bytes"), mib * MIB);
    }
}

#[test]
fn small_allocations_stay_with_the_driver() {
    let report = lay(&[("VGMEM_MIN_ALLOC", "16M")]);
    assert_eq!(report.number("made"), 8);
    let run = pool("gpus=2,mem=256M,host=256M", "pieces", "16").env("VGMEM_MIN_ALLOC", "17M");
    let (outcome, report) = Report::of(&run);
    assert_eq!((outcome.value("pieces"), report.number("made"), report.number("peak")), ("8", 0, 0));
}

#[test]
fn devices_are_chosen() {
    let report = lay(&[("VGMEM_DEVICES", "0")]);
    assert!(report.gpu(0).at_peak > 0 && report.gpu(1).at_peak == 0, "{report:?}");
    assert!(report.texts("remarks").iter().any(|r| r.contains("VGMEM_DEVICES")), "{report:?}");
    // The program runs on a GPU that is not in the pool: its memory is the driver's.
    let run = pool("gpus=2,mem=256M,host=256M", "pieces", "16").env("VGMEM_DEVICES", "1");
    let (outcome, report) = Report::of(&run);
    assert_eq!((outcome.value("pieces"), outcome.value("wrong")), ("8", "0"), "{outcome:#?}");
    assert_eq!(report.gpu(0).at_peak, 0, "{report:?}");
    let report = lay(&[("VGMEM_DEVICES", "1,0")]);
    assert!(report.gpu(0).at_peak > 0 && report.gpu(1).at_peak > 0, "{report:?}");
}

#[test]
fn placements_differ() {
    let two = |placement: &str| {
        let sim = "gpus=2,mem=256M,host=256M";
        let report = lay_on(sim, &[("VGMEM_PLACEMENT", placement)]);
        (report.gpu(0).at_peak / MIB, report.gpu(1).at_peak / MIB, report.host().at_peak / MIB)
    };
    assert_eq!(two("home"), (128, 0, 0));
    assert_eq!(two("interleave"), (64, 64, 0));
    assert_eq!(two("balance"), (64, 64, 0));
}

/// Without peer access the memory of other GPUs cannot be mapped: the host serves, and the report
/// says why.
#[test]
fn no_peer_access() {
    let report = lay_on("gpus=2,mem=64M,host=256M,link=none", &[]);
    assert_eq!(report.gpu(1).at_peak, 0, "{report:?}");
    assert!(report.gpu(0).at_peak > 0 && report.host().at_peak >= 64 * MIB, "{report:?}");
    assert!(report.texts("remarks").iter().any(|r| r.contains("no P2P")), "{report:?}");
    let hidden = lay(&[("CUDA_VISIBLE_DEVICES", "0,1")]);
    assert!(hidden.texts("remarks").iter().any(|r| r.contains("CUDA_VISIBLE_DEVICES")), "{hidden:?}");
}

/// The table on standard error says the same as the JSON, once, at the end.
#[test]
fn the_report_as_a_table() {
    let outcome = pool("gpus=2,mem=64M,host=256M", "pieces", "16").env("VGMEM_REPORT", "stderr").ok();
    let lines: Vec<_> = outcome.stderr.lines().collect();
    assert!(lines.iter().all(|l| l.starts_with("vgmem: ")), "{outcome:#?}");
    assert!(lines[0].contains("where pages lay when the pool held most (128 MiB)"), "{outcome:#?}");
    for tier in ["GPU 0", "GPU 1", "host"] {
        let rows: Vec<_> = lines.iter().filter(|l| l.starts_with(&format!("vgmem:   {tier}"))).collect();
        assert_eq!(rows.len(), 1, "{tier}: {outcome:#?}");
        let numbers: Vec<u64> = rows[0].split_whitespace().filter_map(|w| w.parse().ok()).collect();
        let peak = numbers[numbers.len() - 2];
        assert!(peak > 0 && peak <= 64, "{tier}: {outcome:#?}");
    }
    assert!(outcome.stderr.contains("8 allocations made, 0 refused, 0 live at exit"), "{outcome:#?}");
}

/// A report that cannot be written is one line, and the program's end is not touched.
#[test]
fn a_report_that_cannot_be_written() {
    let run = pool("gpus=2,mem=64M,host=256M", "pieces", "16").env("VGMEM_REPORT", "/nowhere/at/all.json");
    let outcome = run.run();
    let lines: Vec<_> = outcome.stderr.lines().collect();
    assert!(lines.len() == 1 && lines[0].contains("VGMEM_REPORT"), "{outcome:#?}");
}
