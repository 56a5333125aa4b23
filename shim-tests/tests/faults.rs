//! Driver calls that fail: what the program sees, and that nothing is lost.

use shim_tests::{Outcome, Report, Run, Source};
use std::path::PathBuf;

fn program() -> PathBuf {
    Source::program("pool").flags(&["-O2"]).build()
}

fn pool(sim: &str, mode: &str, mib: &str) -> Run {
    Run::new(program()).sim(sim).arg(mode).arg(mib).limit(60)
}

/// Functions of the driver that make or undo memory.
const MAKERS: [&str; 8] = [
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAddressFree",
    "cuMemAlloc_v2",
];

/// Every driver call that an allocation and its free make is made to fail once, with the code for
/// out of memory and with another. The answer is that code or success, and nothing is lost.
#[test]
fn faults_at_every_driver_call() {
    let sim = "gpus=2,mem=16M,host=16M";
    let run = |fault: &str| {
        let run = pool(&format!("{sim}{fault}"), "once", "24")
            .env("VGMEM_PAGE_SIZE", "4M")
            .env("VGMEM_HOST", "16M");
        Report::of(&run)
    };
    let (good, _) = run("");
    assert_eq!((good.value("alloc"), good.value("free")), ("0 0", "0"), "{good:#?}");
    let whole = good.number("count");
    assert!(whole > 8, "{good:#?}");
    let mut tried = 0;
    for maker in MAKERS {
        let first = good.number(&format!("before:{maker}")) + 1;
        for nth in first..=good.number(&format!("after:{maker}")) {
            for code in [2, 999] {
                let fault = format!("{maker}#{nth}:{code}");
                let (outcome, report) = run(&format!(",fault={fault}"));
                faulty(&fault, &outcome, &report, code, whole);
                tried += 1;
            }
        }
    }
    assert!(tried >= 20, "only {tried} faults: {good:#?}");
}

fn faulty(fault: &str, outcome: &Outcome, report: &Report, code: u32, whole: u64) {
    let alloc = outcome.value("alloc");
    if alloc == "0 0" {
        // Out of memory in one place lets the next one serve; any other code has to show.
        let free = outcome.number("free");
        assert!(free == u64::from(code) || (free == 0 && code == 2), "{fault}: {outcome:#?}");
    } else {
        // The driver writes 0 to the out-pointer when it has no memory, and leaves it alone otherwise.
        let untouched = u32::from(code != 2);
        assert_eq!(alloc, format!("{code} {untouched}"), "{fault}: {outcome:#?}");
    }
    // What the driver refuses to take back is lost, and said so. A failed allocation loses nothing.
    let lost = report.number("lost");
    if alloc.starts_with('0') && outcome.number("free") != 0 {
        assert!(outcome.number("count") == whole || lost > 0, "{fault}: lost unsaid: {outcome:#?}");
    } else {
        assert_eq!((outcome.number("count"), lost), (whole, 0), "{fault}: memory was lost: {outcome:#?}");
    }
    assert_eq!(outcome.value("end"), "2", "{fault}");
    assert!(outcome.stderr.lines().all(|l| l.starts_with("vgmem")), "{fault}: {outcome:#?}");
}

/// Any call at all fails once, from the first of the process on, in the start of the engine as well:
/// the program sees a code or nothing, and ends by itself.
#[test]
fn no_fault_ends_the_program() {
    let run =
        |fault: &str| pool(&format!("gpus=2,mem=16M,host=16M{fault}"), "once", "24").env("VGMEM_HOST", "16M");
    let good = run("").ok();
    assert_eq!(good.value("alloc"), "0 0");
    let (mut failed, mut refused) = (0, 0);
    for index in 1..=140 {
        let outcome = run(&format!(",fault={index}:999")).run();
        match outcome.code {
            Some(0) => refused += u32::from(outcome.value("alloc") != "0 0"),
            Some(3) => failed += 1,
            _ => panic!("call {index}: {outcome:#?}"),
        }
        assert!(outcome.stderr.lines().all(|l| l.starts_with("vgmem: ")), "call {index}: {outcome:#?}");
    }
    assert!(failed > 2 && refused > 2, "{failed} failed, {refused} refused");
}

/// Out of memory of a forwarded call: asked again when the pool has kept memory to give back, and only then.
#[test]
fn a_forwarded_call_is_made_again_when_memory_was_kept() {
    let program = Source::program("again").build();
    let run = |mode: &str| {
        Run::new(&program).sim("gpus=1,mem=1G,fault=cuStreamCreate#1:2").arg(mode).limit(30).ok()
    };
    let (keep, none) = (run("keep"), run("none"));
    assert_eq!((keep.value("rc"), keep.value("calls")), ("0", "2"), "{keep:#?}");
    assert_eq!((none.value("rc"), none.value("calls")), ("2", "1"), "{none:#?}");
}
