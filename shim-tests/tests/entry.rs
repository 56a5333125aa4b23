//! Getting in: every way in which programs find the driver, with and without the library.
//!
//! The simulated machine has GPUs of 64 MiB. A program that allocates 96 MiB works only if its
//! calls reached the pool.

use shim_tests::{Outcome, Report, Run, Source, artifacts, hooked_symbols, target};
use std::collections::BTreeSet;
use std::path::PathBuf;

const MACHINE: &str = "gpus=2,mem=64M,host=256M";
const MORE_THAN_ONE_GPU: &str = "96";
const OURS: &str = "libvgmem.so";
const DRIVERS: &str = "libcuda.so.1";

fn run(program: &PathBuf) -> Run {
    Run::new(program).sim(MACHINE)
}

/// A file with one name a line for the C programs.
fn name_file(file: &str, names: &BTreeSet<String>) -> PathBuf {
    let path = target().join("shim-tests").join(file);
    let text: String = names.iter().map(|n| format!("{n}\n")).collect();
    std::fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("target is writable");
    std::fs::write(&path, text).expect("target is writable");
    path
}

fn pooled(what: &str, outcome: &Outcome) {
    assert_eq!(outcome.value("alloc"), "0", "{what}: {outcome:#?}");
    assert_eq!(outcome.value("wrong"), "0", "{what}: {outcome:#?}");
    assert_eq!(outcome.value("free"), "0", "{what}: {outcome:#?}");
}

/// The route is there natively, where the allocation does not fit, and leads to the pool with us.
fn route(program: &PathBuf, route: &str) {
    let args = [route, MORE_THAN_ONE_GPU];
    let native = run(program).native().args(&args).ok();
    assert!(native.value("alloc_from").starts_with("libcuda.so"), "{route}: {native:#?}");
    assert_eq!(native.value("alloc"), "2", "{route}: one GPU is too small");
    let ours = run(program).args(&args).ok();
    assert_eq!(ours.value("alloc_from"), OURS, "{route}: {ours:#?}");
    let version_from = ours.value("version_from");
    assert!(version_from.starts_with("libcuda.so"), "{route}: what is not hooked is the driver's: {ours:#?}");
    pooled(route, &ours);
}

fn routes(flags: &[&str]) -> PathBuf {
    Source::program("routes").flags(flags).build()
}

#[test]
fn linked_program() {
    for level in ["-O0", "-O2"] {
        let program = Source::program("routes").flags(&[level, "-DLINKED"]).links_driver().build();
        route(&program, "linked");
    }
}

#[test]
fn dlopen_and_dlsym() {
    let absolute = format!("open:{}", artifacts().driver.display());
    let (unoptimised, optimised) = (routes(&["-O0"]), routes(&["-O2"]));
    for way in ["open:libcuda.so.1", "open:libcuda.so", &absolute, "global", "again"] {
        route(&optimised, way);
    }
    route(&unoptimised, "open:libcuda.so.1");
}

#[test]
fn proc_address() {
    let program = routes(&["-O2"]);
    for way in ["proc:11040", "proc:12000", "proc:13000", "oldproc:11040", "oldproc:12000", "oldproc:13000"] {
        route(&program, way);
    }
}

/// A file for `proc`: each name with the versions to ask for, around each that its ABIs came with.
fn questions(file: &str, names: &BTreeSet<&str>) -> PathBuf {
    let lines = names.iter().map(|name| {
        let mut versions = BTreeSet::from([0, 2000, 11040, 12000, 13000, 99999]);
        for row in vgmem_abi::functions().filter(|row| row.base == *name) {
            let all = [Some(row.version), row.twin.map(|t| t.1)];
            versions.extend(all.into_iter().flatten().flat_map(|v| [v - 10, v]));
        }
        let versions: Vec<_> = versions.iter().map(u32::to_string).collect();
        format!("{name}\t{}", versions.join(" "))
    });
    name_file(file, &lines.collect())
}

/// Answers of `cuGetProcAddress` in both forms, for every name, many versions and all flags: the
/// same code, status and function as without us; and the function is ours exactly if it is hooked.
#[test]
fn proc_address_answers_as_the_driver() {
    let mut names: BTreeSet<&str> = vgmem_abi::functions().map(|f| f.base).collect();
    for odd in
        ["", "cuMemAlloc_v2", "cuMemcpyHtoD_v2_ptds", "cuGetProcAddress_v2", "cudaMalloc", "cublasCreate_v2"]
    {
        names.insert(odd);
    }
    for odd in ["cuNoSuchThing", "cu", "dlsym", "cudbgMain", "cumemalloc", "cuMemAlloc "] {
        names.insert(odd);
    }
    let names = questions("proc-names.txt", &names);
    let program = Source::program("proc").build();
    let newest = format!("{MACHINE},driver=13050");
    let native = Run::new(&program).sim(&newest).native().arg(&names).limit(60).ok();
    let ours = Run::new(&program).sim(&newest).arg(&names).limit(60).ok();
    let hooked: BTreeSet<_> = hooked_symbols().into_iter().collect();
    let (native, ours) = (native.lines(), ours.lines());
    assert_eq!(native.len(), ours.len());
    assert!(native.len() > 40_000, "{} answers", native.len());
    let mut seen = BTreeSet::new();
    for (native, ours) in native.iter().zip(&ours) {
        let (question, answer) = native.rsplit_once(' ').expect("a line has fields");
        match answer.split_once('!') {
            Some((library, symbol)) => {
                assert_eq!(library, DRIVERS, "{native}");
                let from = if hooked.contains(symbol) { OURS } else { DRIVERS };
                assert_eq!(*ours, format!("{question} {from}!{symbol}"), "{native}");
                seen.insert(symbol);
            }
            None => assert_eq!(native, ours),
        }
    }
    let never: Vec<_> = hooked.iter().filter(|h| !seen.contains(*h)).collect();
    assert!(never.is_empty(), "no lookup led to {never:?}");
}

/// Flag 2 leads to the hook of the per-thread twin, and to no other.
#[test]
fn proc_address_gives_twins_their_own_hooks() {
    let mut expected = Vec::new();
    for row in vgmem_abi::functions().filter(|f| f.action != vgmem_abi::Action::Forward) {
        let Some((twin, _)) = row.twin else { continue };
        expected.push((row.base, row.symbol, twin));
    }
    assert!(expected.len() > 10);
    let names = questions("twin-names.txt", &expected.iter().map(|e| e.0).collect());
    let program = Source::program("proc").build();
    let answers = run(&program).arg(&names).ok();
    for (base, symbol, twin) in expected {
        let line = |flags| {
            let start = format!("v2 {base} 13000 {flags} ");
            answers.lines().into_iter().find_map(|l| l.strip_prefix(&start).map(str::to_string))
        };
        // A later version of the same name may have come with another symbol.
        let plain = line(0).expect("it was asked");
        if plain.ends_with(&format!("!{symbol}")) {
            assert_eq!(plain, format!("rc=0 status=0 {OURS}!{symbol}"));
            assert_eq!(line(2), Some(format!("rc=0 status=0 {OURS}!{twin}")), "{base}");
        }
    }
}

/// By `dlsym`, every exported name of the driver: the hook of exactly that name, or the driver's.
#[test]
fn dlsym_of_every_name() {
    let names: BTreeSet<String> =
        vgmem_abi::functions().flat_map(|f| f.symbols()).map(str::to_string).collect();
    let file = name_file("all-names.txt", &names);
    let program = Source::program("lookups").build();
    let ours = run(&program).arg("names").arg(&file).ok();
    let hooked: BTreeSet<_> = hooked_symbols().into_iter().collect();
    assert_eq!(ours.lines().len(), names.len());
    for line in ours.lines() {
        let fields: Vec<_> = line.split(' ').collect();
        let from = if hooked.contains(fields[0]) { OURS } else { DRIVERS };
        assert_eq!(fields[1], from, "{line}");
        assert!(from == DRIVERS || fields[2] == "1", "not the hook of its own name: {line}");
    }
}

/// A tool behind us asks twice what comes after it: the answer stays, and is not the tool itself.
#[test]
fn another_preload_behind_us() {
    for level in ["-O0", "-O2"] {
        let wrap = Source::library("wrap", "libwrap.so").flags(&[level]).build();
        let program = Source::program("wrapped").flags(&[level]).links_driver().build();
        let ours = run(&program).arg(MORE_THAN_ONE_GPU).preload_after(&wrap).ok();
        pooled(level, &ours);
        assert_eq!(ours.value("same"), "1");
        assert_eq!(ours.value("itself"), "0");
        assert_ne!(ours.value("first"), "nowhere");
        assert_eq!(ours.value("malloc"), "libc.so.6");
        assert!(ours.number("deepest") <= 1, "{ours:#?}");
    }
}

/// A tool in front of us sees the calls, and what it passes on reaches us.
#[test]
fn another_preload_before_us() {
    for level in ["-O0", "-O2"] {
        let wrap = Source::library("wrap", "libwrap.so").flags(&[level]).build();
        let program = Source::program("wrapped").flags(&[level]).links_driver().build();
        let native = run(&program).native().arg(MORE_THAN_ONE_GPU).preload_before(&wrap).ok();
        assert_eq!(native.value("alloc"), "2");
        let ours = run(&program).arg(MORE_THAN_ONE_GPU).preload_before(&wrap).ok();
        pooled(level, &ours);
        assert_eq!(ours.value("first"), OURS);
        assert_eq!((ours.value("same"), ours.value("itself")), ("1", "0"));
        assert_eq!((ours.value("calls"), ours.value("deepest")), ("2", "1"), "{ours:#?}");
    }
}

/// RTLD_DEEPBIND would let a plug-in's calls pass us by.
#[test]
fn deepbind_plugin() {
    let plugin = Source::library("plugin", "libplugin.so").links_driver().build();
    let host = Source::program("host").build();
    for mode in ["deep", "local"] {
        let args = |r: Run| r.arg(mode).arg(&plugin).arg(MORE_THAN_ONE_GPU);
        let native = args(run(&host).native()).ok();
        assert_eq!(native.value("alloc"), "2", "{mode}");
        let ours = args(run(&host)).ok();
        assert_eq!(ours.value("plugin_alloc_from"), OURS, "{mode}");
        pooled(mode, &ours);
    }
}

#[test]
fn lookup_before_main() {
    let early = Source::library("early", "libearly.so").build();
    let host = Source::program("early_host").build();
    let behind = run(&host).preload_after(&early).ok();
    let before = run(&host).preload_before(&early).ok();
    for outcome in [behind, before] {
        assert_eq!(outcome.value("early"), OURS, "{outcome:#?}");
        assert_eq!(outcome.value("early_none"), "1");
        assert_eq!(outcome.value("early_malloc"), "libc.so.6");
        assert_eq!(outcome.value("late"), OURS);
        assert_eq!(outcome.stderr, "");
    }
}

/// The text of every error, and when there is none, as glibc alone gives them.
#[test]
fn errors_of_lookups() {
    let program = Source::program("lookups").build();
    let native = run(&program).native().arg("errors").ok();
    let ours = run(&program).arg("errors").ok();
    assert!(native.stdout.contains("undefined symbol: cuNoSuchFunction"), "{native:#?}");
    assert_eq!(native.stdout, ours.stdout);
    assert_eq!(ours.stderr, "");
}

/// Libraries that are not CUDA keep their functions, whatever the names begin with.
#[test]
fn names_that_only_look_alike() {
    let foreign = Source::library("foreign", "libforeign.so").build();
    let program = Source::program("lookups").build();
    let native = run(&program).native().arg("foreign").arg(&foreign).ok();
    let ours = run(&program).arg("foreign").arg(&foreign).ok();
    assert!(native.stdout.contains("cudnnCreate libforeign.so 101"), "{native:#?}");
    assert_eq!(native.stdout, ours.stdout);
}

#[test]
fn export_table_before_init() {
    let program = Source::program("lookups").build();
    let native = run(&program).native().arg("table").ok();
    let ours = run(&program).arg("table").ok();
    assert_eq!(native.value("from"), DRIVERS);
    assert_eq!(native.stdout, ours.stdout);
}

#[test]
fn lookups_from_many_threads() {
    let program = Source::program("lookups").build();
    let ours = run(&program).arg("threads").ok();
    assert_eq!(ours.value("differ"), "0");
    assert_eq!(ours.value("cuMemAlloc_v2"), OURS);
    assert_eq!(ours.value("cuDriverGetVersion"), DRIVERS);
    assert_eq!(ours.value("cuNoSuchName"), "nowhere");
}

/// A function that the driver lacks is not there with us either: programs choose by that.
#[test]
fn an_old_driver() {
    let driver = Source::library("olddriver", "libcuda.so.1").flags(&["-Wl,-Bsymbolic"]).build();
    let folder = driver.parent().expect("it lies in a folder");
    let names = vgmem_abi::functions().flat_map(|f| f.symbols()).map(str::to_string).collect();
    let file = name_file("old-names.txt", &names);
    let program = Source::program("old").build();
    let native = Run::new(&program).native().driver_in(folder).arg(&file).ok();
    let ours = Run::new(&program).driver_in(folder).arg(&file).ok();
    assert_eq!(native.lines().iter().filter(|l| l.starts_with("has ")).count(), 6);
    assert_eq!(native.stdout, ours.stdout, "{ours:#?}");
    assert!(ours.stderr.lines().count() <= 1, "{ours:#?}");
}

/// A library in a namespace of its own has a driver of its own, out of our reach: it works as
/// without us, and the report says that it was not seen.
#[test]
fn namespaces_are_reported() {
    let program = Source::program("namespace").build();
    let native = run(&program).native().arg(&artifacts().driver).ok();
    let (ours, report) = Report::of(&run(&program).arg(&artifacts().driver));
    assert_eq!(native.stdout, ours.stdout);
    assert_eq!(ours.value("apart"), "1 0");
    assert!(report.texts("remarks").iter().any(|r| r.contains("dlmopen")), "{report:?}");
}

/// Where the driver has one function for both stream variants, the flag says which hook is meant.
#[test]
fn one_function_for_both_streams() {
    let driver = Source::library("alias", "libcuda.so.1").flags(&["-Wl,-Bsymbolic"]).build();
    let folder = driver.parent().expect("it lies in a folder");
    let names = questions("alias-names.txt", &BTreeSet::from(["cuMemcpyHtoD"]));
    let program = Source::program("proc").build();
    let ours = Run::new(&program).driver_in(folder).arg(&names).ok();
    let twin = "cuMemcpyHtoD_v2_ptds";
    for (flags, hook) in [(0, "cuMemcpyHtoD_v2"), (1, "cuMemcpyHtoD_v2"), (2, twin), (3, twin)] {
        let line = format!("v2 cuMemcpyHtoD 12000 {flags} rc=0 status=0 {OURS}!{hook}");
        assert!(ours.lines().contains(&line.as_str()), "{line}: {ours:#?}");
    }
}

/// The same with the library built without optimisation: its lookup functions must not depend on the optimiser
/// turning calls into jumps.
#[test]
fn the_unoptimised_library_jumps_too() {
    let built = std::process::Command::new(env!("CARGO"))
        .current_dir(shim_tests::workspace())
        .args(["build", "--locked", "-q", "-p", "vgmem"])
        .status()
        .expect("cargo starts");
    assert!(built.success());
    let library = shim_tests::target().join("debug").join("libvgmem.so");
    let wrap = Source::library("wrap", "libwrap.so").flags(&["-O0"]).build();
    let program = Source::program("wrapped").flags(&["-O0"]).links_driver().build();
    let run = run(&program).native().arg(MORE_THAN_ONE_GPU);
    let outcome = run.preload_before(&library).preload_after(&wrap).ok();
    assert_eq!((outcome.value("alloc"), outcome.value("same"), outcome.value("itself")), ("0", "1", "0"));
    assert!(outcome.number("deepest") <= 1, "{outcome:#?}");
}
