//! Everything at once for twenty seconds with three times the memory that the GPU has. `scripts/soak.sh` runs the same
//! program for an hour. No byte may be wrong, nothing may be left, and no file or thread may come to stay.

use shim_tests::{Outcome, Report, Run, Source};

/// The longest that the program works, in seconds.
const SECONDS: u64 = 20;
/// MiB of the simulated GPU.
const GPU: u64 = 136;

/// Numbers after a word of the `soak` lines.
fn column(outcome: &Outcome, word: &str) -> Vec<u64> {
    let number = |line: &&str| {
        let mut parts = line.strip_prefix("soak ")?.split(' ').skip_while(|part| *part != word).skip(1);
        parts.next()?.parse().ok()
    };
    outcome.lines().iter().filter_map(number).collect()
}

/// `wild`: parts of 100 of the time in which there are also graphs, captures and addresses in memory.
fn soak(safety: &str, wild: u64) -> Report {
    let program = Source::program("soak").flags(&["-O2"]).build();
    let (seconds, wild) = (SECONDS.to_string(), wild.to_string());
    let run = Run::new(program).args(&[seconds.as_str(), "7", "1", &wild]).limit(SECONDS * 6);
    let run = run.sim(&format!("gpus=1,mem={GPU}M,host=4G")).env("ADVERSARY_GPU", GPU.to_string());
    let run = run.env("VGMEM_HOST", "2G").env("VGMEM_PAGE_SIZE", "2M").env("VGMEM_PAGING", "auto");
    let (outcome, report) = Report::of(&run.env("VGMEM_SAFETY", safety));
    assert_eq!((outcome.number("wrong"), outcome.stderr.as_str()), (0, ""), "{safety}: {outcome:#?}");
    assert!(outcome.number("steps") > 200, "{safety}: {outcome:#?}");
    for word in ["fds", "threads"] {
        let seen = column(&outcome, word);
        let (early, late) = seen.split_at(seen.len() / 2);
        // A thread that waits for the GPU with a deadline comes and goes.
        let late = if word == "threads" { late.iter().min() } else { late.last() };
        let early = early.iter().max();
        assert!(seen.len() >= 4 && late <= early, "{safety}: {word} {seen:?}");
    }
    assert_eq!((report.number("live"), report.number("lost")), (0, 0), "{safety}: {report:?}");
    let (fetched, evicted) = (report.number("fetched"), report.number("evicted"));
    assert!(fetched > 0 && evicted > 0, "{safety}: {fetched} fetched, {evicted} evicted: {report:?}");
    report
}

#[test]
fn all_kinds_of_work_go_on_while_pages_move_strictly() {
    soak("strict", 100);
}

#[test]
fn all_kinds_of_work_go_on_while_pages_move_beside_them() {
    let report = soak("auto", 20);
    assert!(report.number("launches_beside") > 0, "{report:?}");
    assert!(report.number("submissions_of_anything") > 0, "{report:?}");
}
