//! What the library exports and needs, against the driver table; and that every hook is reached.

use shim_tests::{Run, artifacts, hooked_symbols, skip, workspace};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

const MAY_NEED: [&str; 3] = ["libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];

fn tool(name: &str, args: &[&str], file: &Path) -> String {
    let output = Command::new(name).args(args).arg(file).output();
    let output = output.unwrap_or_else(|e| panic!("{name}: {e}: install it with `apt-get install binutils`"));
    assert!(output.status.success(), "{name} {}", file.display());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Exported name -> address.
fn exports(file: &Path) -> BTreeMap<String, String> {
    let text = tool("nm", &["-D", "--defined-only"], file);
    let fields = |l: &str| {
        let mut parts = l.split_whitespace();
        let address = parts.next()?.to_string();
        Some((parts.nth(1)?.to_string(), address))
    };
    text.lines().filter_map(fields).collect()
}

/// Functions that a header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let path = workspace().join(header);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let code = text.lines().filter(|l| !l.trim_start().starts_with(['*', '/']));
    let mut found = BTreeSet::new();
    for line in code {
        let end =
            |at: usize| line[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(|n| at + n);
        for (at, _) in line.match_indices("vgmem_") {
            if let Some(end) = end(at)
                && line[end..].trim_start().starts_with('(')
            {
                found.insert(line[at..end].to_string());
            }
        }
    }
    assert!(found.contains("vgmem_hook_reached"), "{header} was not understood: {found:?}");
    found
}

fn strings(names: impl IntoIterator<Item = &'static str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_string).collect()
}

#[test]
fn the_library_exports_what_the_table_says() {
    let found: BTreeSet<_> = exports(&artifacts().library).into_keys().collect();
    let mut expected = strings(hooked_symbols());
    expected.extend(strings(vgmem_abi::RUNTIME.iter().copied()));
    expected.extend(strings(vgmem_abi::NVML.iter().copied()));
    expected.extend(strings(["dlsym", "dlopen", "dlmopen"]));
    expected.extend(declared("include/vgmem.h"));
    let too_many: Vec<_> = found.difference(&expected).collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    assert!(too_many.is_empty() && missing.is_empty(), "too many: {too_many:?}\nmissing: {missing:?}");
}

#[test]
fn the_library_needs_little() {
    let library = &artifacts().library;
    let undefined = tool("nm", &["-D", "--undefined-only"], library);
    let cuda: Vec<_> =
        undefined.split_whitespace().filter(|n| n.starts_with("cu") || n.starts_with("nv")).collect();
    assert!(cuda.is_empty(), "a driver that lacks {cuda:?} would stop every program");
    let dynamic = tool("readelf", &["-d", "-W"], library);
    let named = |tag: &str| {
        let lines = dynamic.lines().filter(|l| l.contains(tag));
        lines.filter_map(|l| Some(l.split_once('[')?.1.split_once(']')?.0.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(named("(SONAME)"), ["libvgmem.so"]);
    let needed = named("(NEEDED)");
    assert!(!needed.is_empty() && needed.iter().all(|n| MAY_NEED.contains(&n.as_str())), "{needed:?}");
    assert!(!dynamic.contains("(RPATH)") && !dynamic.contains("(RUNPATH)"), "{dynamic}");
    // Versioned exports would serve only programs built against the same version.
    let versions = tool("readelf", &["-V", "-W"], library);
    assert!(!versions.contains(".gnu.version_d"), "the exports have versions");
}

/// Calls inside the library must not leave it through another preload of the same names.
#[test]
fn the_library_binds_its_own_functions() {
    let relocations = tool("readelf", &["-r", "-W"], &artifacts().library);
    let hooked: BTreeSet<_> =
        hooked_symbols().into_iter().chain(vgmem_abi::RUNTIME.iter().copied()).collect();
    let loose: Vec<_> = relocations
        .lines()
        .filter_map(|l| l.split_whitespace().nth(4))
        .filter(|n| hooked.contains(n))
        .collect();
    assert!(loose.is_empty(), "these can be preempted: {loose:?}");
}

#[test]
fn the_simulated_driver_exports_every_function() {
    let found = exports(&artifacts().driver);
    let functions = strings(vgmem_abi::functions().flat_map(|f| f.symbols()));
    let names: BTreeSet<_> = found.keys().cloned().collect();
    let missing: Vec<_> = functions.difference(&names).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    let extra: Vec<_> = names.difference(&functions).filter(|n| !n.starts_with("vgmem_sim_")).collect();
    assert!(extra.is_empty(), "not in the table: {extra:?}");
    let dynamic = tool("readelf", &["-d", "-W"], &artifacts().driver);
    assert!(dynamic.contains("[libcuda.so.1]"), "{dynamic}");
}

/// A lookup's answer is recognised by its address, so that no two functions may share one.
#[test]
fn functions_of_the_simulated_driver_have_their_own_addresses() {
    let found = exports(&artifacts().driver);
    let mut at: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
    for (name, address) in &found {
        at.entry(address).or_default().push(name);
    }
    let shared: Vec<_> = at.values().filter(|names| names.len() > 1).collect();
    assert!(shared.is_empty(), "{shared:?}");
}

/// Names, versions, twins and types of the table against the vendor's public headers.
#[test]
fn the_table_agrees_with_the_headers() {
    let name = "the_table_agrees_with_the_headers";
    let script = workspace().join("scripts/driver_table.py");
    let output = Command::new("python3")
        .arg(script)
        .arg("--check")
        .envs([("PIP_RETRIES", "1"), ("PIP_DEFAULT_TIMEOUT", "20")])
        .output();
    let Ok(output) = output else { return skip(name, "python3 is missing: apt-get install python3") };
    let text = String::from_utf8_lossy(&output.stdout);
    let wrong: Vec<_> = text.lines().filter(|l| !l.starts_with("missing: ")).collect();
    if output.status.success() {
        assert!(text.contains("agrees with the headers"), "{text}");
    } else if text.trim().is_empty() {
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(why.contains("pip"), "{why}");
        skip(name, "the headers cannot be fetched from PyPI");
    } else {
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        // A newer release brings functions that this table has not heard of: they are forwarded.
        skip(name, &format!("newer headers have more functions:\n{text}"));
    }
}

/// Every hook can be reached through its own name, before CUDA is initialised and after; the
/// library counts which were, so a hook under a misspelled name is found.
#[test]
fn every_hook_is_reached() {
    let rows: Vec<_> = vgmem_abi::functions().filter_map(|f| Some((f.symbol, f.twin?.0))).collect();
    for mode in ["bare", "ready"] {
        let outcome = Run::new(env!("CARGO_BIN_EXE_every_hook")).sim("gpus=2,mem=64M").arg(mode).ok();
        let mut reached = BTreeSet::new();
        for line in outcome.lines() {
            let fields: Vec<_> = line.split(' ').collect();
            if fields[0] == "unknown" {
                assert_eq!(fields[1], "-1", "what is not exported cannot be reached");
                continue;
            }
            // These were called on the way to `ready`.
            let used = ["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"].contains(&fields[0]);
            let before = if mode == "ready" && used { "1" } else { "0" };
            assert_eq!((fields[1], fields[2]), (before, "1"), "{mode}: {line}");
            reached.insert(fields[0].to_string());
            // A call goes to the driver's function of the same stream: never to the other variant.
            let called: Vec<_> = fields[4].split(',').collect();
            for (plain, twin) in &rows {
                let other = [(plain, twin), (twin, plain)].into_iter().find(|p| *p.0 == fields[0]);
                assert!(other.is_none_or(|(_, o)| !called.contains(o)), "the wrong stream: {line}");
            }
        }
        assert_eq!(reached, strings(hooked_symbols()), "{mode}");
        assert_eq!(outcome.stderr, "", "{mode}");
    }
}
