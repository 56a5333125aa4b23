//! The conformance programs on the simulated driver: what hardware answered, with and without the library.
//!
//! `conformance/expected/*.txt` was recorded on hardware by `scripts/conformance.sh --record`. Two lists name
//! exceptions, one line each:
//! - `simulator-gaps.txt`, `program/case: reason`: what the simulator does not do as hardware does. A gap that
//!   has closed fails the test: take it off the list. A reason that begins with `unstable: ` says that the
//!   simulator's answer changes from run to run.
//! - `preload-differences.txt`, `program/case | reason | facts`: what the library answers otherwise, and why.

use shim_tests::{Run, skip, target, workspace};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Two GPUs: cases that need them are compared with and without the library only, where hardware had one.
const GPUS: usize = 2;

fn folder() -> PathBuf {
    workspace().join("shim-tests/conformance")
}

fn build(program: &str) -> PathBuf {
    let output = target().join("shim-tests").join("conformance");
    fs::create_dir_all(&output).expect("target is writable");
    let (finished, fresh) =
        (output.join(program), output.join(format!("{program}.{}.new", std::process::id())));
    let made = Command::new("gcc")
        .args(["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(["-Wno-missing-field-initializers", "-Wno-unused-parameter", "-o"])
        .arg(&fresh)
        .args([folder().join(format!("{program}.c")), folder().join("conf.c")])
        .arg("-ldl")
        .output()
        .expect("gcc starts: install it with `apt-get install gcc`");
    assert!(made.status.success(), "{program}:\n{}", String::from_utf8_lossy(&made.stderr));
    // A process of another test may run the old file: put a new one in its place.
    fs::rename(fresh, &finished).expect("target is writable");
    finished
}

type Facts = BTreeMap<String, String>;

/// Facts by `program/case`.
fn facts(program: &str, text: &str) -> Facts {
    let cases = text.lines().filter_map(|line| line.strip_prefix("case ")?.split_once(':'));
    cases.map(|(name, facts)| (format!("{program}/{name}"), facts.trim().to_string())).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn lines(file: &str) -> Vec<String> {
    let text = read(&folder().join("expected").join(file));
    text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_string).collect()
}

/// Names and reasons of the simulator's gaps.
fn gaps() -> Facts {
    let split = |line: &str| line.split_once(": ").map(|(n, r)| (n.to_string(), r.to_string()));
    lines("simulator-gaps.txt")
        .iter()
        .map(|l| split(l).unwrap_or_else(|| panic!("a gap has a name and a reason: {l}")))
        .collect()
}

/// What the library answers where it differs.
fn differences() -> Facts {
    let split = |line: &String| {
        let parts: Vec<&str> = line.split(" | ").collect();
        assert!(
            parts.len() == 3 && !parts[1].is_empty(),
            "a difference has a name, a reason and facts: {line}"
        );
        (parts[0].to_string(), parts[2].trim().to_string())
    };
    lines("preload-differences.txt").iter().map(split).collect()
}

fn run(program: &str, gpus: usize, ours: bool) -> Facts {
    let machine = format!("gpus={gpus},mem=24G,host=8G,context=512M");
    let run = Run::new(build(program)).sim(&machine).arg("-").limit(120);
    let outcome = if ours { run.run() } else { run.native().run() };
    // 3: some case ended its process, which is an answer like any other.
    assert!(matches!(outcome.code, Some(0 | 3)), "{outcome:#?}");
    facts(program, &outcome.stdout)
}

/// One line for each fact that is not as it should be.
fn unlike(name: &str, want: &str, got: &str) -> String {
    let (want, got): (Vec<_>, Vec<_>) = (want.split(' ').collect(), got.split(' ').collect());
    let most = want.len().max(got.len());
    let pair = |i: usize| (want.get(i).copied().unwrap_or("-"), got.get(i).copied().unwrap_or("-"));
    let each = (0..most).map(pair).filter(|(w, g)| w != g).map(|(w, g)| format!("{w} (got {g})"));
    format!("{name}: {}", each.collect::<Vec<_>>().join("; "))
}

/// Whether every fact is that of the simulator or that of hardware: in a gap the library may be right where the
/// simulator is not.
fn mixed(ours: &str, native: &str, want: &str) -> bool {
    let (native, want): (Vec<_>, Vec<_>) = (native.split(' ').collect(), want.split(' ').collect());
    let known = |(i, fact): (usize, &str)| native.get(i) == Some(&fact) || want.get(i) == Some(&fact);
    let count = ours.split(' ').count();
    (count == native.len() || count == want.len()) && ours.split(' ').enumerate().all(known)
}

fn conforms(program: &str) {
    let expected = facts(program, &read(&folder().join("expected").join(format!("{program}.txt"))));
    let (gaps, differences) = (gaps(), differences());
    let (native, ours) = (run(program, GPUS, false), run(program, GPUS, true));
    let names = |facts: &Facts| facts.keys().cloned().collect::<Vec<_>>();
    assert_eq!((names(&native), names(&ours)), (names(&expected), names(&expected)), "{program}: the cases");
    let mut wrong = Vec::new();
    for (name, want) in &expected {
        let (native, ours) = (&native[name], &ours[name]);
        let recorded = want != "SKIP";
        if !recorded {
            skip(name, "hardware with one GPU recorded nothing; compared with and without the library only");
        }
        let gap = gaps.get(name);
        if gap.is_some_and(|reason| reason.starts_with("unstable: ")) {
            continue;
        }
        match gap.is_some() {
            true if native == want => wrong.push(format!("{name}: the gap has closed; take it off the list")),
            false if recorded && native != want => wrong.push(unlike(name, want, native)),
            _ => {}
        }
        // The library changes nothing, or what it changes is on the list. Where memory of pages answers otherwise
        // on hardware only, the listed answer is not seen here: `scripts/conformance.sh` wants it exactly.
        let as_one_of_both = if recorded { mixed(ours, native, want) } else { ours == native };
        if !as_one_of_both && differences.get(name) != Some(ours) {
            wrong.push(format!("preloaded, {}", unlike(name, native, ours)));
        }
    }
    assert!(wrong.is_empty(), "{program}:\n{}", wrong.join("\n"));
}

macro_rules! programs {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            conforms(stringify!($name));
        })*
        /// The lists name cases that exist.
        #[test]
        fn the_lists_name_cases() {
            let mut known = Facts::new();
            for program in [$(stringify!($name)),*] {
                let path = folder().join("expected").join(format!("{program}.txt"));
                known.append(&mut facts(program, &read(&path)));
            }
            let listed = [gaps(), differences()];
            let unknown: Vec<_> = listed.iter().flat_map(|l| l.keys()).filter(|n| !known.contains_key(*n)).collect();
            assert!(unknown.is_empty(), "no such cases: {unknown:?}");
            assert!(known.len() > 80, "{} cases", known.len());
        }
    };
}

/// More GPUs change no answer.
#[test]
fn eight_gpus_answer_as_two_do() {
    for program in ["queries", "peers"] {
        for ours in [false, true] {
            assert_eq!(run(program, 8, ours), run(program, GPUS, ours), "{program}, {ours}");
        }
    }
}

programs! { vmm copies queries errors streams graphs launches ipc peers }
