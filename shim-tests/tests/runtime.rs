//! Programs that use the CUDA runtime: which runtime a call goes to, and that each finds our hooks.
//!
//! The runtimes are look-alikes made here (`programs/rt.c`) with the names and symbol versions of
//! the real ones, and one real one from PyPI as far as it goes on a simulated driver.

use shim_tests::{Outcome, Run, Source, skip, target, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;

const MACHINE: &str = "gpus=2,mem=64M,host=512M";
const MORE_THAN_ONE_GPU: &str = "96";

fn runtime(major: u32) -> PathBuf {
    let map = workspace().join(format!("shim-tests/programs/rt{major}.map"));
    let file = format!("libcudart.so.{major}");
    let script = format!("-Wl,--version-script={}", map.display());
    Source::library("rt", &file).flags(&[&format!("-DMARK={major}"), &script]).build()
}

fn plugin(major: u32) -> PathBuf {
    let file = format!("libplugin{major}.so");
    Source::library("rtuser", &file).flags(&[&format!("-DMARK={major}")]).links(&runtime(major)).build()
}

fn program(major: u32) -> PathBuf {
    Source::program("rtuser").flags(&[&format!("-DMARK={major}"), "-DPROGRAM"]).links(&runtime(major)).build()
}

/// The runtime got all the calls of its user, and memory from the pool.
fn served(major: u32, outcome: &Outcome) {
    let value = |what: &str| outcome.value(&format!("rt{major}_{what}")).to_string();
    assert_eq!(value("malloc"), "0", "{outcome:#?}");
    assert_eq!(value("copies"), "0 wrong 0", "{outcome:#?}");
    assert_eq!(value("info"), "0 1", "{outcome:#?}");
    assert_eq!(value("calls"), "5", "its own runtime: {outcome:#?}");
    assert_eq!(value("free"), "0", "{outcome:#?}");
}

#[test]
fn a_program_linked_with_the_runtime() {
    for major in [12, 13] {
        let program = program(major);
        let native = Run::new(&program).native().sim(MACHINE).arg(MORE_THAN_ONE_GPU).ok();
        assert_eq!(native.value(&format!("rt{major}_malloc")), "2", "one GPU is too small");
        let ours = Run::new(&program).sim(MACHINE).arg(MORE_THAN_ONE_GPU).ok();
        served(major, &ours);
        assert_eq!(ours.stderr, "");
    }
}

/// The runtime is a dependency of a plug-in that was loaded locally: `RTLD_NEXT` finds nothing.
#[test]
fn a_runtime_in_a_local_dependency() {
    let host = Source::program("rthost").build();
    for major in [12, 13] {
        let ours = Run::new(&host).sim(MACHINE).arg(MORE_THAN_ONE_GPU).arg(plugin(major)).ok();
        served(major, &ours);
    }
}

/// Each plug-in's calls go to its own runtime, and what both allocate is pooled.
#[test]
fn two_runtimes_in_one_process() {
    let host = Source::program("rthost").build();
    for order in [[12, 13], [13, 12]] {
        let run =
            |r: Run| r.sim(MACHINE).arg(MORE_THAN_ONE_GPU).arg(plugin(order[0])).arg(plugin(order[1])).ok();
        let native = run(Run::new(&host).native());
        for major in order {
            assert_eq!(native.value(&format!("rt{major}_malloc")), "2");
            assert_eq!(native.value(&format!("rt{major}_calls")), "2");
        }
        let ours = run(Run::new(&host));
        served(12, &ours);
        served(13, &ours);
        // More places that call than are remembered, in both plug-ins: none is sent to the other's.
        for major in order {
            let calls = format!("rt{major}_many 0 512");
            assert_eq!(ours.lines().iter().filter(|l| **l == calls).count(), 2, "{ours:#?}");
        }
    }
}

/// A program without any runtime that finds `cudaMalloc` by our export gets an error, no crash.
#[test]
fn no_runtime_at_all() {
    let full = Source::library("stub", "libstub.so").flags(&["-DFULL"]).build();
    let empty = Source::library("stub", "libstub.so").build();
    let flags = ["-DMARK=13", "-DPROGRAM", "-Drt13_calls=rand"];
    let program = Source::program("rtuser").flags(&flags).links(&full).build();
    let folder = empty.parent().expect("it lies in a folder");
    let ours = Run::new(&program).driver_in(folder).arg("1").ok();
    assert_ne!(ours.value("rt13_malloc"), "0", "{ours:#?}");
    assert_ne!(ours.value("rt13_info").split(' ').next(), Some("0"), "{ours:#?}");
}

/// The runtime of a PyPI package, kept in the build folder.
fn from_pypi(package: &str, file: &str) -> Option<PathBuf> {
    fn find(folder: &Path, file: &str) -> Option<PathBuf> {
        for entry in std::fs::read_dir(folder).ok()?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                if let Some(found) = find(&path, file) {
                    return Some(found);
                }
            } else if path.file_name().is_some_and(|n| n == file) {
                return Some(path);
            }
        }
        None
    }
    let folder = target().join("pypi").join(package);
    if let Some(found) = find(&folder, file) {
        return Some(found);
    }
    let pip = Command::new("python3")
        .args(["-m", "pip", "install", "-q", "--no-deps", "--retries", "1", "--timeout", "30", "--target"])
        .arg(&folder)
        .arg(package)
        .output();
    pip.is_ok_and(|o| o.status.success()).then(|| find(&folder, file)).flatten()
}

/// Real runtimes look up more than 300 functions before they find that the driver is none of
/// NVIDIA's (error 103, or a refused table). Every hook that they asked for was ours.
#[test]
fn real_runtimes_receive_our_hooks() {
    let program = Source::program("realrt").build();
    for (package, file) in
        [("nvidia-cuda-runtime", "libcudart.so.13"), ("nvidia-cuda-runtime-cu12", "libcudart.so.12")]
    {
        let Some(library) = from_pypi(package, file) else {
            skip("real_runtimes_receive_our_hooks", &format!("{package} cannot be fetched from PyPI"));
            continue;
        };
        let native = Run::new(&program).native().sim(MACHINE).arg(&library).run();
        let ours = Run::new(&program).sim(MACHINE).arg(&library).run();
        assert_eq!((native.code, native.signal), (ours.code, ours.signal), "{native:#?} {ours:#?}");
        if ours.signal.is_some() {
            skip("real_runtimes_receive_our_hooks", &format!("{file} crashes on a driver without tables"));
            continue;
        }
        assert_eq!(native.value("malloc"), ours.value("malloc"), "it refuses as without us");
        assert_ne!(ours.value("malloc"), "0");
        let asked = native.number("lookups");
        assert!(asked > 300 && ours.number("lookups") >= asked, "{native:#?} {ours:#?}");
        let hooks = ours.number("given");
        assert!(hooks > 30, "it was handed {hooks} hooks: {ours:#?}");
    }
}
