//! The management library's memory numbers beside the driver's, with a stand-in made here.

use shim_tests::{Outcome, Run, Source};
use std::path::PathBuf;

fn user(settings: &[(&str, &str)], native: bool) -> Outcome {
    let library = Source::library("nvml", "libnvidia-ml.so.1").build();
    let program: PathBuf = Source::program("nvmluser").links(&library).build();
    let run = settings.iter().fold(Run::new(program), |run, (k, v)| run.env(k, v));
    let run = run.sim("gpus=2,mem=64M,host=64M").env("VGMEM_HOST", "64M").arg("16");
    if native { run.native().ok() } else { run.ok() }
}

/// A program that reads both sees the same totals and the same free memory, whatever is shown.
#[test]
fn both_libraries_agree() {
    for advertise in ["device", "share", "pool"] {
        let ours = user(&[("VGMEM_ADVERTISE", advertise)], false);
        let cuda = ours.value("cuda");
        assert_eq!(ours.value("from"), "libvgmem.so");
        assert_eq!(ours.value("after0"), format!("{cuda} 1"), "{advertise}: {ours:#?}");
        assert_eq!(ours.value("after0_v2"), format!("{cuda} 1"), "{advertise}: {ours:#?}");
        assert_ne!(ours.value("after1"), "1000 900 1", "the other GPU is in the pool too: {ours:#?}");
    }
}

/// Before CUDA starts, and for a GPU that CUDA does not see, the numbers are the library's own;
/// so are its errors.
#[test]
fn other_numbers_are_left_alone() {
    let native = user(&[], true);
    let ours = user(&[], false);
    for key in ["before0", "before0_v2", "after7", "after7_v2", "no place", "wrong version"] {
        assert_eq!(native.value(key), ours.value(key), "{key}");
    }
    let limited = user(&[("VGMEM_DEVICE_LIMIT", "32M")], false);
    assert!(limited.value("before0").starts_with("32 "), "a limit is known from the start: {limited:#?}");
}

#[test]
fn disabled() {
    let native = user(&[], true);
    let ours = user(&[("VGMEM_DISABLE", "1")], false);
    assert_eq!(native.stdout, ours.stdout);
}
