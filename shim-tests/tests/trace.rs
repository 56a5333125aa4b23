//! `VGMEM_TRACE`: what a program did, as the program itself says, in a form that can be replayed.

use std::collections::BTreeSet;
use std::path::PathBuf;

use shim_tests::{Run, Source, target};
use vgmem_replay::{Machine, Options, Record, Trace, replay};

fn file(name: &str) -> PathBuf {
    target().join(format!("{name}-{}.vgt", std::process::id()))
}

/// Paged and static, the records tell of every launch, of every allocation and of its end; and they can be replayed.
#[test]
fn everything_that_was_launched_is_recorded() {
    for paging in ["auto", "off"] {
        let path = file(paging);
        let program = Source::program("adversary_load").flags(&["-O2"]).build();
        let run = Run::new(program).args(&["just_over", "1"]).limit(90).sim("gpus=1,mem=136M,host=4G");
        let run = run.env("VGMEM_HOST", "2G").env("VGMEM_PAGE_SIZE", "2M").env("VGMEM_PAGING", paging);
        let outcome = run.env("VGMEM_TRACE", &path).ok();
        assert_eq!(outcome.number("wrong"), 0, "{outcome:#?}");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let trace: Trace = text.parse().unwrap_or_else(|error| panic!("{error} in {text}"));
        let count = |is: fn(&Record) -> bool| trace.records.iter().filter(|record| is(record)).count() as u64;
        assert_eq!(count(|r| matches!(r, Record::Launch(..))), outcome.number("launches"), "{text}");
        let made = count(|r| matches!(r, Record::Allocate { .. }));
        assert!(made > 20 && count(|r| matches!(r, Record::Free(_))) == made, "{text}");
        assert!(count(|r| matches!(r, Record::Wait(..))) > 0, "{text}");
        let words: BTreeSet<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(words.contains("c"), paging == "auto", "the pager's copies: {words:?}");
        let found = replay(
            &trace,
            &Machine::h200(1, 136 << 20, 1 << 30),
            Options { rounds: 2, ..Options::default() },
        );
        assert!(found.is_ok_and(|found| found.fetched > 0), "{text}");
    }
}

/// A process that uses no GPU leaves no file.
#[test]
fn a_program_without_a_gpu_leaves_nothing() {
    let path = file("none");
    let run = Run::new("/bin/true").env("VGMEM_TRACE", &path);
    run.ok();
    assert!(!path.exists());
}
