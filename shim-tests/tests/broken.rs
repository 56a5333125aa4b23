//! The tests would notice a broken pager: each safety rule is broken on purpose, in a library that is built for this
//! alone, and a program has to end with wrong bytes or loudly. The same build serves the same program when no rule is
//! broken.
//!
//! A break point is `broken::is("...")` in the library or `breaks("...")` in the engine; each has a test here.

use shim_tests::{Outcome, Run, Source, artifacts, broken_library, workspace};
use std::collections::BTreeSet;
use std::fs;

/// What may hit the wrong moment on a busy machine is tried so often, each time with another seed.
const TRIES: u64 = 4;

/// How a page was lost, or would have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Every byte was right.
    Right,
    /// The program found wrong bytes, and nobody had told it.
    Wrong,
    /// An illegal address.
    Illegal,
    /// Stopped by `VGMEM_VERIFY`.
    Stopped,
    /// Something else: the outcome says what.
    Odd,
}

fn end(outcome: &Outcome) -> End {
    let last = outcome.lines().last().copied().unwrap_or_default();
    match (outcome.code, outcome.signal) {
        (Some(0), _) if last == "wrong 0" => End::Right,
        (Some(5), _) => End::Wrong,
        (Some(3), _) if last.starts_with("failed ") && last.ends_with(" 700") => End::Illegal,
        (None, Some(6)) if outcome.stderr.contains("VGMEM_VERIFY: page") => End::Stopped,
        _ => End::Odd,
    }
}

/// One program in one mode on a GPU that holds a third of what it works with.
#[derive(Clone)]
struct Case {
    safety: &'static str,
    program: &'static str,
    mode: &'static str,
    faults: &'static str,
    verify: bool,
    /// Graphs are launched node by node.
    nodes: bool,
}

fn strict(program: &'static str, mode: &'static str) -> Case {
    Case { safety: "strict", program, mode, faults: "", verify: false, nodes: false }
}

fn auto(program: &'static str, mode: &'static str) -> Case {
    Case { safety: "auto", ..strict(program, mode) }
}

impl Case {
    fn run(&self, rule: Option<&str>, seed: u64) -> Outcome {
        let program = Source::program(self.program).flags(&["-O2"]).build();
        let run = Run::new(program).library(broken_library()).args(&[self.mode, &seed.to_string()]).limit(90);
        let run = run.sim(&format!("gpus=1,mem=136M,host=4G{}", self.faults)).env("VGMEM_HOST", "2G");
        let run = run.env("VGMEM_PAGE_SIZE", "2M").env("VGMEM_PAGING", "auto");
        let run =
            run.env("VGMEM_SAFETY", self.safety).env("VGMEM_VERIFY", if self.verify { "1" } else { "0" });
        let run = run.env("VGMEM_GRAPHS", if self.nodes { "nodes" } else { "whole" });
        match rule {
            Some(rule) => run.env("VGMEM_TEST_BROKEN", rule).run(),
            None => run.run(),
        }
    }

    /// While the library keeps all rules.
    fn ends(&self, how: End) -> &Case {
        let outcome = self.run(None, 1);
        assert_eq!(end(&outcome), how, "{}, no rule broken: {outcome:#?}", self.mode);
        self
    }

    /// While the library keeps all rules, at one of several times; at the others all is right.
    fn ends_once(&self, how: End) -> &Case {
        for seed in 1..=TRIES {
            let outcome = self.run(None, seed);
            match end(&outcome) {
                found if found == how => return self,
                found => assert_eq!(found, End::Right, "{}, no rule broken: {outcome:#?}", self.mode),
            }
        }
        panic!("{}, no rule broken: not once in {TRIES} times {how:?}", self.mode);
    }

    /// While it breaks one.
    fn catches(&self, rule: &str, how: &[End]) {
        let outcomes = (1..=TRIES).map(|seed| self.run(Some(rule), seed));
        let mut missed = Vec::new();
        for outcome in outcomes {
            if how.contains(&end(&outcome)) {
                return;
            }
            missed.push(outcome);
        }
        panic!("{}: nobody noticed that the rule {rule:?} is broken: {missed:#?}", self.mode);
    }
}

/// The program is right with a library that keeps the rule, and not with one that breaks it.
fn caught(rule: &str, case: &Case) {
    case.ends(End::Right).catches(rule, &[End::Wrong, End::Illegal]);
}

/// S1, S2, S3.
#[test]
fn moves_that_do_not_wait_for_work_in_flight() {
    caught("idle", &strict("adversary_rules", "long_kernels"));
}

/// S1, S2.
#[test]
fn marks_that_count_as_passed_at_once() {
    caught("marks", &strict("adversary_rules", "long_kernels"));
    caught("marks", &auto("adversary_rules", "long_kernels"));
}

/// A graph begins when its last launch is over.
#[test]
fn graphs_by_nodes_that_do_not_wait_for_their_last_launch() {
    caught("graph-order", &Case { nodes: true, ..auto("graph_nodes", "order") });
}

/// S2, S4.
#[test]
fn launches_that_do_not_count_as_users_of_what_they_name() {
    caught("names", &auto("adversary_load", "just_over"));
}

/// S3.
#[test]
fn moves_during_the_calls_of_other_threads() {
    caught("gate", &strict("adversary_rules", "long_calls"));
}

/// S2, S4.
#[test]
fn copies_that_leave_neither_mark_nor_use() {
    caught("copies", &strict("adversary_rules", "copies"));
    caught("copies", &auto("adversary_rules", "copies"));
}

/// S4.
#[test]
fn trust_in_functions_of_which_nothing_is_known() {
    caught("trust", &auto("adversary", "host_table"));
}

/// S4.
#[test]
fn hidden_pages_under_work_that_may_use_anything() {
    caught("anything", &auto("adversary", "host_table"));
}

/// S4.
#[test]
fn graphs_that_count_as_work_that_uses_nothing() {
    caught("graphs", &auto("adversary_rules", "calm_graphs"));
}

/// S5. A kernel that nobody could foresee ends the program loudly; where the page stays mapped its writes are lost,
/// and nobody is told.
#[test]
fn pages_that_stay_mapped_while_they_are_away() {
    auto("adversary_rules", "stray").ends_once(End::Illegal).catches("hide", &[End::Wrong]);
}

/// S1, S7.
#[test]
fn commits_before_the_copy_is_over() {
    caught("exchange-copy", &strict("adversary_load", "just_over"));
    caught("landing", &auto("adversary_load", "just_over"));
}

/// S1: a page that was written goes as if its twin still held its bytes.
#[test]
fn written_pages_that_go_without_a_copy() {
    caught("unwritten", &auto("adversary_load", "huge_operands"));
    caught("unwritten", &strict("adversary_load", "huge_operands"));
}

/// S7: the memory's number is another page's when the copy lands.
#[test]
fn memory_freed_while_it_moves() {
    caught("free", &auto("adversary_rules", "freed_early"));
}

/// S2.
#[test]
fn memory_freed_without_the_drivers_wait() {
    caught("drain", &strict("adversary_rules", "freed_busy"));
}

/// S7.
#[test]
fn mappings_that_fail_and_are_not_undone() {
    let faults = ",fault=cuMemMap#160:999+cuMemMap#180:999+cuMemSetAccess#200:999";
    caught("rollback", &Case { faults, ..strict("adversary_load", "just_over") });
}

/// `VGMEM_VERIFY=1` stops before wrong bytes spread; without it they are found.
#[test]
fn bytes_that_change_on_their_way() {
    for case in [strict("adversary_load", "just_over"), auto("adversary_load", "just_over")] {
        caught("verify", &case);
        Case { verify: true, ..case }.ends(End::Right).catches("verify", &[End::Stopped]);
    }
}

/// The rules that a text breaks or tests: what stands in quotes behind one of the words.
fn named_behind<'a>(text: &'a str, words: &[&str]) -> BTreeSet<&'a str> {
    let behind = |word: &&str| text.split(&format!("{word}(\"")).skip(1).collect::<Vec<_>>();
    words.iter().flat_map(behind).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn every_break_point_is_tested() {
    let mut broken = BTreeSet::new();
    for folder in ["src/shim", "src/shim/hooks", "src/engine"] {
        for entry in fs::read_dir(workspace().join(folder)).expect("sources are there").flatten() {
            if entry.path().extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(entry.path()).expect("sources can be read");
                let found = named_behind(&text, &["broken::is", "breaks"]);
                broken.extend(found.into_iter().map(str::to_string));
            }
        }
    }
    let tested = named_behind(include_str!("broken.rs"), &["caught", "catches"]);
    assert_eq!(broken.iter().map(String::as_str).collect::<BTreeSet<_>>(), tested);
    assert!(tested.len() >= 16, "{tested:?}");
}

/// What users get cannot be told to break anything.
#[test]
fn the_shipped_library_has_no_break_points() {
    let knows = |file: &std::path::Path| {
        let bytes = fs::read(file).expect("the library is built");
        bytes.windows(17).any(|window| window == b"VGMEM_TEST_BROKEN")
    };
    assert!(knows(broken_library()));
    assert!(!knows(&artifacts().library));
}
