//! Launches that hardly touch what they name (`touch`): their tables stay where they are.

use shim_tests::{Report, Run, Source};

/// A GPU whose memory is slow (half the table is read in 12 ms, half a layer in 2), and one that is as fast as it says.
const SLOW: &str = ",membw=2000,l2=4K";
const FAST: &str = "";

fn run(mode: &str, safety: &str, speed: &str) -> Report {
    let program = Source::program("lookup").flags(&["-O2"]).build();
    let run = Run::new(program).args(&[mode, "1"]).limit(90).sim(&format!("gpus=1,mem=136M,host=4G{speed}"));
    let run = run.env("VGMEM_HOST", "2G").env("VGMEM_PAGE_SIZE", "2M").env("VGMEM_PAGING", "auto");
    let (outcome, report) = Report::of(&run.env("VGMEM_SAFETY", safety));
    let case = format!("{mode}, {safety}, {speed}");
    assert_eq!((outcome.number("wrong"), outcome.stderr.as_str()), (0, ""), "{case}: {outcome:#?}");
    assert_eq!((report.number("live"), report.number("lost")), (0, 0), "{case}: {report:?}");
    report
}

/// The first of three runs in which the table is left where it lies: a lookup that a busy machine makes long may have
/// read it, for all that the library can know.
fn stays(mode: &str, safety: &str) -> Report {
    let in_place = |report: &Report| report.number("launches_in_place");
    let mut seen = Vec::new();
    for _ in 0..3 {
        let report = run(mode, safety, SLOW);
        if in_place(&report) >= 20 {
            return report;
        }
        seen.push(in_place(&report));
    }
    panic!("{mode}, {safety}: {seen:?} launches in place");
}

#[test]
fn a_table_that_is_looked_up_stays_where_it_is() {
    for safety in ["strict", "auto"] {
        let (stays, comes) = (stays("few", safety), run("few", safety, FAST));
        assert_eq!(comes.number("launches_in_place"), 0, "{safety}");
        let (few, many) = (stays.number("fetched"), comes.number("fetched"));
        assert!(2 * few < many, "{safety}: {few} pages came, {many} where the table comes");
    }
}

/// The same function touches the whole of its part of the table later: that it may do so in place is all that is asked.
#[test]
fn a_table_that_is_read_after_all_holds_what_it_should() {
    for safety in ["strict", "auto"] {
        stays("all", safety);
    }
}
