//! Memory under launches, streams, contexts and other GPUs: as the driver alone behaves, and the same
//! where an allocation lies in several places.

use shim_tests::{Outcome, Run, Source};

fn behave(sim: &str, mode: &str, mib: &str) -> Run {
    let program = Source::program("behave").flags(&["-O2"]).build();
    Run::new(program).sim(sim).arg(mode).arg(mib)
}

/// The same output as without us, for several orders of completion; the last one.
fn as_native(mode: &str) -> Outcome {
    as_native_with(1, mode);
    as_native_with(2, mode);
    as_native_with(3, mode)
}

fn as_native_with(seed: u32, mode: &str) -> Outcome {
    let run = behave(&format!("gpus=2,mem=128M,host=256M,seed={seed}"), mode, "8");
    let (native, ours) = (run.clone().native().ok(), run.ok());
    assert_eq!(native.stdout, ours.stdout, "{mode}, seed {seed}: {ours:#?}");
    ours
}

/// The same lines where the memory lies on both GPUs and the host as where it lies on one.
fn spread(mode: &str) {
    let whole = behave("gpus=2,mem=256M,host=512M", mode, "48").native().ok();
    for placement in ["home", "interleave"] {
        let run = behave("gpus=2,mem=64M,host=512M", mode, "48").env("VGMEM_PLACEMENT", placement);
        let parts = run.ok();
        assert_eq!(whole.stdout, parts.stdout, "{mode}, {placement}: {parts:#?}");
    }
}

#[test]
fn launches_in_every_form() {
    let ours = as_native("launches");
    for form in 0..8 {
        assert_eq!(ours.value(&format!("form{form}")), "0 0", "{ours:#?}");
    }
    spread("launches");
}

/// Kernels that find addresses in memory need no help: every page is always mapped.
#[test]
fn addresses_in_memory() {
    let ours = as_native("tables");
    assert_eq!((ours.value("sum"), ours.value("chase")), ("1", "1"));
    spread("tables");
}

#[test]
fn peer_access() {
    let ours = as_native("peers");
    for what in ["named", "later"] {
        assert_eq!(ours.value(what), "0", "{ours:#?}");
    }
    assert_eq!((ours.value("found"), ours.value("found_later")), ("1", "1"), "{ours:#?}");
    spread("peers");
}

/// Programs rely on `cuMemFree` to wait for the work that uses the memory.
#[test]
fn a_free_waits() {
    let ours = as_native_with(1, "waits");
    assert_eq!(ours.lines().iter().filter(|l| **l == "waited 1").count(), 2, "{ours:#?}");
    assert_eq!(ours.lines().iter().filter(|l| **l == "word 5").count(), 2, "{ours:#?}");
}

#[test]
fn contexts_end() {
    let ours = as_native("contexts");
    for when in ["after reset", "after destroy", "at last"] {
        assert_eq!(ours.value(&format!("all back {when}")), "1", "{ours:#?}");
    }
}

#[test]
fn an_error_that_stays() {
    let ours = as_native("sticky");
    assert_eq!(ours.value("sync"), "700");
    assert_eq!((ours.value("alloc"), ours.value("copy")), ("700", "700"), "{ours:#?}");
}

#[test]
fn per_thread_streams() {
    let ours = as_native("twins");
    assert_eq!((ours.value("ordered"), ours.value("released")), ("9", "0"));
}

/// When the GPU is full, small allocations come from the pool as large ones do.
#[test]
fn small_allocations_on_a_full_gpu() {
    let run = behave("gpus=1,mem=64M,host=128M", "small", "8").env("VGMEM_HOST", "128M");
    let native = run.clone().native().ok();
    let ours = run.ok();
    assert_eq!(native.value("bad"), "0");
    // A few places of 2 MiB are left on both tiers: more than nothing, until all is full.
    assert!(ours.number("big") > native.number("big"), "{ours:#?}");
    let few: u64 = ours.value("small").split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    assert!(few > 200, "{ours:#?}");
    assert_eq!(
        (ours.value("bad"), ours.value("range"), ours.value("again")),
        ("0", "1 5000", "1"),
        "{ours:#?}"
    );
}

/// Calls that the driver refuses change nothing: neither the memory of a primary context that somebody tries to
/// destroy, nor the neighbour of an allocation that a copy would run over.
#[test]
fn refused_calls_leave_memory_alone() {
    let run = Run::new(Source::program("keeps").build()).sim("gpus=1,mem=64M").limit(30);
    let (native, ours) = (run.clone().native().ok(), run.ok());
    assert_eq!(native.lines(), ours.lines());
    assert_eq!(
        (ours.value("destroy"), ours.value("memset"), ours.value("copy")),
        ("201", "1", "1"),
        "{ours:#?}"
    );
    assert_eq!((ours.value("wrong0"), ours.value("wrong1")), ("0", "0"), "{ours:#?}");
}

/// Plain copies between GPUs, with a link and without: without one they become copies between contexts.
#[test]
fn copies_between_gpus_without_a_link() {
    let program = Source::program("unlinked").build();
    for link in ["none", "pcie4"] {
        let run = Run::new(&program).sim(&format!("gpus=2,mem=64M,link={link}")).limit(30);
        let (native, ours) = (run.clone().native().ok(), run.ok());
        assert_eq!(native.lines(), ours.lines(), "{link}");
        assert_eq!(ours.lines().len(), 16);
        assert!(ours.lines().iter().all(|line| line.ends_with("0, sync 0, wrong 0")), "{link}: {ours:#?}");
    }
}

/// The last row of a rectangle ends before its padding, which may lie behind the allocation.
#[test]
fn rows_at_the_end_of_an_allocation_can_be_set() {
    let run = Run::new(Source::program("rows").flags(&["-O2"]).build()).sim("gpus=1,mem=128M,host=64M");
    let (native, ours) = (run.clone().native().ok(), run.ok());
    assert_eq!(native.stdout, ours.stdout, "{ours:#?}");
    assert_eq!(
        (ours.value("columns"), ours.value("none"), ours.value("wrong")),
        ("0", "0", "0"),
        "{ours:#?}"
    );
}
