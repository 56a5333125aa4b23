//! The pool, end to end: small C programs on simulated machines under the preload.

use shim_tests::{MIB, Outcome, Run, Source};
use std::path::PathBuf;

fn program() -> PathBuf {
    Source::program("pool").flags(&["-O2"]).build()
}

fn pool(sim: &str, mode: &str, mib: &str) -> Run {
    Run::new(program()).sim(sim).arg(mode).arg(mib).limit(60)
}

/// Everything the program wrote came back, whatever way it was written and read.
fn all_right(what: &str, outcome: &Outcome) {
    assert_eq!(outcome.value("alloc"), "0", "{what}: {outcome:#?}");
    for kind in ["kernel", "copy", "async", "inside", "inside_async", "unified", "peer"] {
        assert_eq!(outcome.value(&format!("{kind}_wrong")), "0", "{what}, {kind}: {outcome:#?}");
    }
    assert_eq!(outcome.value("aligned"), "1", "{what}");
    assert_eq!(outcome.value("axpy"), "3 3", "{what}");
    assert_eq!(outcome.value("sets_bad"), "0", "{what}");
    assert_eq!(outcome.value("done"), "0", "{what}");
    assert_eq!(outcome.stderr, "", "{what}");
}

/// Two allocations of 100 MiB on GPUs of 64 MiB: over both GPUs and the host, with all kinds of
/// placement and page size, and on one GPU alone.
#[test]
fn an_allocation_over_all_places() {
    let two = "gpus=2,mem=64M,host=512M";
    all_right("two GPUs", &pool(two, "span", "100").ok());
    all_right("one GPU", &pool("gpus=1,mem=64M,host=512M", "span", "100").ok());
    all_right("PCIe", &pool("gpus=3,mem=64M,host=512M,link=pcie4,seed=7", "span", "100").ok());
    for placement in ["interleave", "balance"] {
        all_right(placement, &pool(two, "span", "100").env("VGMEM_PLACEMENT", placement).ok());
    }
    for size in ["2M", "8M", "64M"] {
        all_right(size, &pool(two, "span", "100").env("VGMEM_PAGE_SIZE", size).ok());
    }
}

/// What pooled memory shall answer where the driver says `native`: the same, but for one attribute.
/// GPUDirect RDMA (15) would register pages that may lie in several places: it is not offered.
fn expected(native: &str) -> String {
    match native.strip_prefix("8388608") {
        Some(rest) if rest.contains(" attribute 15:") => format!("{}0", &native[..native.len() - 1]),
        _ => native.to_string(),
    }
}

/// The same program gives the same answers natively where its memory fits.
#[test]
fn answers_equal_the_drivers() {
    for mode in ["edges", "queries", "pitch"] {
        let run = pool("gpus=1,mem=256M,host=256M", mode, "8");
        let native = run.clone().native().ok();
        let ours = run.ok();
        for (native, ours) in native.lines().iter().zip(ours.lines()) {
            assert_eq!(expected(native), ours, "{mode}");
        }
        assert_eq!(native.lines().len(), ours.lines().len(), "{mode}");
        // Three impossible sizes are asked for in `edges`: a line each, nothing else.
        let lines: Vec<_> = ours.stderr.lines().collect();
        assert_eq!(lines.len(), if mode == "edges" { 3 } else { 0 }, "{mode}: {lines:#?}");
        assert!(lines.iter().all(|l| l.contains("out of memory")), "{lines:#?}");
    }
}

#[test]
fn all_memory_comes_back() {
    for sim in ["gpus=1,mem=256M,host=256M", "gpus=2,mem=32M,host=256M"] {
        let outcome = pool(sim, "loops", "1").ok();
        assert_eq!(outcome.value("lost"), "0", "{sim}: {outcome:#?}");
        assert!(!outcome.stdout.contains("mixed"), "{sim}: {outcome:#?}");
    }
}

/// A full pool answers 2, exactly, leaves the out-parameter alone and says where the memory went;
/// after everything is freed as much fits again.
#[test]
fn out_of_memory() {
    let outcome = pool("gpus=2,mem=64M,host=64M", "exhaust", "8").ok();
    for round in ["0", "1"] {
        assert_eq!(outcome.value(&format!("rc{round}")), "2", "{outcome:#?}");
        // The driver writes 0 to the out-pointer then.
        assert_eq!(outcome.value(&format!("again{round}")), "2 0", "{outcome:#?}");
        assert_eq!(outcome.value(&format!("bad{round}")), "0", "{outcome:#?}");
    }
    assert_eq!(outcome.value("count0"), outcome.value("count1"));
    // Three places of 64 MiB hold 24 pieces of 8, less what is kept free.
    let count = outcome.number("count0");
    assert!((17..=24).contains(&count), "{outcome:#?}");
    let lines: Vec<_> = outcome.stderr.lines().collect();
    assert!(lines.len() == 4 && lines.iter().all(|l| l.contains("out of memory")), "{outcome:#?}");
}

/// `cuMemGetInfo` and `cuDeviceTotalMem` agree, go down with what is allocated, and never below 0.
fn consistent(outcome: &Outcome, pieces: u64) -> Vec<[u64; 3]> {
    let steps: Vec<[u64; 3]> = (0..4)
        .map(|step| {
            let text = outcome.value(&format!("step{step}"));
            let numbers: Vec<u64> = text.split(' ').map(|n| n.parse().expect("a number")).collect();
            numbers.try_into().expect("three numbers")
        })
        .collect();
    for [free, total, device_total] in &steps {
        assert!(free <= total, "{outcome:#?}");
        assert_eq!(total, device_total, "{outcome:#?}");
    }
    for pair in steps.windows(2) {
        assert_eq!(pair[0][1], pair[1][1], "the total stays: {outcome:#?}");
        let gone = pair[0][0] - pair[1][0];
        let all_gone = pair[1][0] == 0;
        assert!(gone >= pieces * MIB && gone <= (pieces + 4) * MIB || all_gone, "{outcome:#?}");
    }
    steps
}

#[test]
fn memory_information() {
    let sim = "gpus=2,mem=128M,host=256M";
    let native = pool(sim, "info", "16").native().ok();
    let shown = |advertise: &str| {
        let outcome =
            pool(sim, "info", "16").env("VGMEM_ADVERTISE", advertise).env("VGMEM_HOST", "256M").ok();
        consistent(&outcome, 16)[0]
    };
    let native = consistent(&native, 16)[0];
    let (device, share, whole) = (shown("device"), shown("share"), shown("pool"));
    assert!(
        device[1] <= native[1] && device[1] + 4 * MIB > native[1],
        "its own size: {device:?}, {native:?}"
    );
    assert!(share[1] > device[1] && share[1] <= 128 * MIB + 128 * MIB, "{share:?}");
    assert!(whole[1] > share[1] && whole[1] <= 2 * 128 * MIB + 256 * MIB, "{whole:?}");
}

/// What is reported can be allocated and written, to the last granule.
#[test]
fn what_is_shown_can_be_had() {
    for advertise in ["device", "share", "pool"] {
        let run = |mode: &str, mib: &str| {
            pool("gpus=2,mem=64M,host=128M", mode, mib)
                .env("VGMEM_ADVERTISE", advertise)
                .env("VGMEM_HOST", "128M")
                .ok()
        };
        let free = consistent(&run("info", "2"), 2)[0][0];
        let all = (free / MIB).to_string();
        let outcome = run("keep", &all);
        assert_eq!((outcome.value("alloc"), outcome.value("wrong")), ("0", "0"), "{advertise}: {outcome:#?}");
    }
}

/// Each GPU's allocations read as its own, and other GPUs can use them.
#[test]
fn several_gpus() {
    for sim in ["gpus=4,mem=64M,host=256M", "gpus=2,mem=64M,host=256M,link=pcie4"] {
        let outcome = pool(sim, "devices", "24").ok();
        let count = if sim.starts_with("gpus=4") { 4 } else { 2 };
        for gpu in 0..count {
            assert_eq!(outcome.value(&format!("gpu{gpu}")), format!("0 {gpu}"), "{sim}: {outcome:#?}");
            assert_eq!(outcome.value(&format!("gpu{gpu}_wrong")), "0", "{sim}");
        }
        for gpu in 1..count {
            assert_eq!(outcome.number(&format!("copied{gpu}")), 100 + gpu, "{sim}");
        }
    }
}

fn promises(sim: &str, mode: &str, advertise: &str, host: &str) -> Outcome {
    let program = Source::program("promises").flags(&["-O2"]).build();
    let run = Run::new(program).sim(sim).arg(mode).limit(100);
    run.env("VGMEM_ADVERTISE", advertise).env("VGMEM_HOST", host).ok()
}

/// Eight GPUs and the host as one pool: at least 99 % of what is promised is allocated and written before the first
/// out-of-memory, and promised again when all of it is free.
#[test]
fn eight_gpus_are_used_to_the_last_percent() {
    let outcome = promises("gpus=8,mem=24G,host=64G", "full", "pool", "4G");
    let (promised, had) = (outcome.number("promised0"), outcome.number("had0"));
    assert!(promised > (8 * 23) << 30, "{outcome:#?}");
    assert!(had * 100 >= promised * 99, "{had} of {promised}");
    assert_eq!((outcome.number("wrong"), outcome.number("after")), (0, promised), "{outcome:#?}");
}

/// Two contexts ask, and then each gets what it was told, whatever the other took.
#[test]
fn two_contexts_each_get_what_they_were_told() {
    for advertise in ["device", "share"] {
        let outcome = promises("gpus=2,mem=512M,host=1G", "two", advertise, "512M");
        for gpu in 0..2 {
            let (promised, had) =
                (outcome.number(&format!("promised{gpu}")), outcome.number(&format!("had{gpu}")));
            assert!(promised - had < 2 * MIB, "{advertise}, GPU {gpu}: {had} of {promised}");
        }
        assert_eq!(outcome.number("wrong"), 0, "{advertise}: {outcome:#?}");
    }
}
