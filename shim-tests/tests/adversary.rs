//! The adversaries of the pager: programs that do everything a mover of memory must not be fooled by, with
//! three times the memory that the GPU has. Each keeps a copy of every byte on the host and compares it all.
//!
//! By hand: `target/shim-tests/adversary-*/adversary MODE SEED` under the environment that [`on`] sets.

use shim_tests::{MIB, Outcome, Report, Run, Source};

/// How the pager may move pages.
const MODES: &[&str] = &["strict", "auto"];

/// MiB of the simulated GPU: enough for an exchange reserve with pages of 2 MiB, and no more.
const GPU: u64 = 136;

/// The programs and their modes, but those that wait for seconds.
const ALL: [(&str, &[&str]); 3] = [
    (
        "adversary",
        &[
            "host_table",
            "pinned_table",
            "betrayal",
            "kernel_table",
            "own_table",
            "list",
            "self_reference",
            "variables",
            "grouped",
        ],
    ),
    ("adversary_time", &["late_writer", "cooperative", "atomics", "two_threads", "free_and_again", "graphs"]),
    ("adversary_load", &["one_buffer", "layers", "huge_operands", "allocations", "many_sizes", "just_over"]),
];

fn program(name: &'static str, mode: &str, seed: u64) -> Run {
    let program = Source::program(name).flags(&["-O2"]).build();
    Run::new(program).args(&[mode, &seed.to_string()]).limit(90)
}

fn on(run: Run, gpu: u64, page: &str, safety: &str) -> Run {
    let run = run.sim(&format!("gpus=1,mem={gpu}M,host=4G")).env("VGMEM_HOST", "2G");
    let run = run.env("VGMEM_PAGE_SIZE", page).env("VGMEM_PAGING", "auto");
    run.env("VGMEM_SAFETY", safety)
}

/// Whether it ended as `auto` may end a program that it cannot serve: loudly, and before anything was wrong.
fn is_loud(outcome: &Outcome, safety: &str) -> bool {
    let last = outcome.lines().last().copied().unwrap_or_default();
    let illegal = last.starts_with("failed ") && last.ends_with(" 700");
    safety == "auto" && outcome.code == Some(3) && illegal && outcome.stderr.contains("VGMEM_SAFETY=strict")
}

/// Every byte is right, and pages went both ways. The outcomes of the runs that were served to their end.
fn survives(name: &'static str, mode: &str) -> Vec<Outcome> {
    MODES
        .iter()
        .filter_map(|safety| one(on(program(name, mode, 1), GPU, "2M", safety), mode, safety))
        .collect()
}

fn one(run: Run, mode: &str, safety: &str) -> Option<Outcome> {
    let path = Report::fresh();
    let outcome = run.env("VGMEM_REPORT", &path).run();
    if is_loud(&outcome, safety) {
        return None;
    }
    assert_eq!(outcome.code, Some(0), "{mode}, {safety}: {outcome:#?}");
    assert_eq!((outcome.number("wrong"), outcome.stderr.as_str()), (0, ""), "{mode}, {safety}: {outcome:#?}");
    assert!(outcome.number("read") > GPU * MIB, "{mode}, {safety}: {outcome:#?}");
    let report = Report::read(&path);
    let (fetched, evicted) = (report.number("fetched"), report.number("evicted"));
    assert!(fetched > 0 && evicted > 0, "{mode}, {safety}: {fetched} fetched, {evicted} evicted: {report:?}");
    assert_eq!((report.number("live"), report.number("lost")), (0, 0), "{mode}, {safety}: {report:?}");
    Some(outcome)
}

#[test]
fn a_table_of_addresses_that_the_host_copied_leads_to_the_right_bytes() {
    survives("adversary", "host_table");
}

#[test]
fn a_table_in_pinned_memory_of_the_host_leads_to_the_right_bytes() {
    survives("adversary", "pinned_table");
}

#[test]
fn a_kernel_that_follows_nothing_for_long_and_then_does_finds_the_right_bytes() {
    survives("adversary", "betrayal");
}

#[test]
fn a_table_that_one_kernel_wrote_for_the_next_leads_to_the_right_bytes() {
    survives("adversary", "kernel_table");
}

#[test]
fn a_table_that_a_kernel_builds_for_itself_leads_to_the_right_bytes() {
    survives("adversary", "own_table");
}

#[test]
fn a_list_through_many_allocations_ends_where_it_must() {
    survives("adversary", "list");
}

#[test]
fn a_buffer_that_holds_its_own_address_is_updated_through_it() {
    survives("adversary", "self_reference");
}

#[test]
fn addresses_in_variables_of_a_module_lead_to_the_right_bytes() {
    survives("adversary", "variables");
}

#[test]
fn grouped_products_find_their_operands() {
    survives("adversary", "grouped");
}

#[test]
fn a_kernel_that_writes_late_is_waited_for_and_so_are_copies_behind_it() {
    survives("adversary_time", "late_writer");
}

/// A launch waits for it, with a deadline, and goes on with its pages where they lie.
#[test]
fn a_persistent_kernel_runs_on_beside_other_work_until_a_copy_ends_it() {
    for outcome in survives("adversary_time", "persistent") {
        let still_runs = outcome.lines().iter().filter(|line| **line == "spins 600").count();
        assert_eq!(still_runs, 2, "other work ended while it ran: {outcome:#?}");
    }
}

#[test]
fn a_persistent_kernel_that_began_before_any_pressure_is_not_waited_for_in_vain() {
    survives("adversary_time", "persistent_early");
}

#[test]
fn a_persistent_kernel_beside_a_graph_is_not_waited_for_in_vain() {
    survives("adversary_time", "persistent_beside_a_graph");
}

#[test]
fn cooperative_launches_and_all_other_forms_find_their_pages() {
    survives("adversary_time", "cooperative");
}

#[test]
fn atomics_of_many_launches_all_arrive() {
    survives("adversary_time", "atomics");
}

#[test]
fn two_threads_with_streams_of_their_own_evict_each_other_and_lose_nothing() {
    survives("adversary_time", "two_threads");
}

#[test]
fn memory_freed_while_others_move_and_made_again_holds_its_new_contents() {
    survives("adversary_time", "free_and_again");
}

#[test]
fn graphs_that_need_more_than_fits_compute_the_same_among_plain_launches() {
    survives("adversary_time", "graphs");
}

#[test]
fn one_buffer_of_three_times_what_fits_holds_many_tensors() {
    survives("adversary_load", "one_buffer");
}

/// A buffer of three times what fits is brought tensor by tensor: what does not fit comes in every round.
#[test]
fn the_tensors_of_one_buffer_come_as_they_are_used() {
    for safety in MODES {
        let run = on(program("adversary_load", "layers", 1), GPU, "2M", safety);
        let (outcome, report) = Report::of(&run);
        assert_eq!((outcome.number("wrong"), outcome.stderr.as_str()), (0, ""), "{safety}: {outcome:#?}");
        assert_eq!((report.number("live"), report.number("lost")), (0, 0), "{safety}: {report:?}");
        // 81 tensors, of which 20 fit; the first round tells where they lie.
        assert!(report.number("launches_by_parts") > 5 * 81, "{safety}: {report:?}");
        let (least, most) = (5 * 61 * 5 / 2, 8 * 61 * 3);
        // The function is trusted when what was under way with its first launch is over, however fast others follow.
        assert!(report.number("submissions_of_anything") < 3 * 81, "{safety}: {report:?}");
        assert!((least..most).contains(&report.number("fetched")), "{safety}: {report:?}");
    }
}

#[test]
fn operands_larger_than_the_gpu_are_used_all_the_same() {
    survives("adversary_load", "huge_operands");
}

#[test]
fn allocations_come_and_go_while_pages_move() {
    survives("adversary_load", "allocations");
}

#[test]
fn many_small_and_a_few_huge_allocations_share_the_gpu() {
    survives("adversary_load", "many_sizes");
}

#[test]
fn hardly_more_than_fits_moves_pages_too() {
    survives("adversary_load", "just_over");
}

/// A second GPU takes what the first has no room for, before the host does; its pages come home as well.
#[test]
fn pages_go_to_a_peer_before_they_go_to_the_host() {
    for safety in MODES {
        let run = program("adversary", "kernel_table", 5).sim("gpus=2,mem=136M,host=4G,link=nvlink4");
        let run = run.env("VGMEM_HOST", "2G").env("VGMEM_PAGE_SIZE", "2M").env("VGMEM_PAGING", "auto");
        let (outcome, report) = Report::of(&run.env("VGMEM_SAFETY", safety));
        assert_eq!((outcome.number("wrong"), outcome.stderr.as_str()), (0, ""), "{safety}: {outcome:#?}");
        assert!(report.number("fetched") > 100 && report.number("evicted") > 100, "{safety}: {report:?}");
        assert!(report.gpu(1).at_peak > 100 * MIB, "{safety}: {report:?}");
    }
}

/// Seven others with little room and the host hold what the first has none for.
#[test]
fn pages_go_to_seven_peers_and_the_host() {
    for safety in MODES {
        let run = program("adversary_load", "many_sizes", 5).sim("gpus=8,mem=136M,host=4G,link=nvlink4");
        let run = run.env("VGMEM_HOST", "2G").env("VGMEM_PAGE_SIZE", "2M").env("VGMEM_PAGING", "auto");
        let limits = "0:136M,1:24M,2:24M,3:24M,4:24M,5:24M,6:24M,7:24M";
        let run = run.env("VGMEM_DEVICE_LIMIT", limits).env("VGMEM_SAFETY", safety);
        let (outcome, report) = Report::of(&run);
        assert_eq!((outcome.number("wrong"), outcome.stderr.as_str()), (0, ""), "{safety}: {outcome:#?}");
        assert!(report.number("fetched") > 100 && report.number("evicted") > 100, "{safety}: {report:?}");
        let held: Vec<u64> = (1..8).map(|gpu| report.gpu(gpu).at_peak / MIB).collect();
        assert!(
            held.iter().all(|&mib| mib >= 8) && report.number("lost") == 0,
            "{safety}: {held:?}, {report:?}"
        );
    }
}

/// GPUs that the program does not use copy for the one that it uses, to host RAM and back (`VGMEM_PATHS=auto`), and the
/// program sees nothing of it.
#[test]
fn pages_go_over_the_links_of_idle_gpus() {
    // Those that bring a buffer by parts move nothing beside work.
    let modes =
        ["huge_operands", "allocations", "many_sizes", "just_over"].map(|mode| ("adversary_load", mode));
    for (name, mode) in
        modes.into_iter().chain([("adversary_time", "late_writer"), ("adversary", "kernel_table")])
    {
        let run = program(name, mode, 4).sim("gpus=3,mem=136M,host=4G,link=nvlink4").env("VGMEM_HOST", "2G");
        let run = run.env("VGMEM_PAGE_SIZE", "2M").env("VGMEM_PAGING", "auto").env("VGMEM_PATHS", "auto");
        let (outcome, report) = Report::of(&run.env("VGMEM_DEVICE_LIMIT", "0:136M,1:2M,2:2M"));
        assert_eq!((outcome.number("wrong"), outcome.stderr.as_str()), (0, ""), "{mode}: {outcome:#?}");
        assert!(report.number("helped") > 8, "{mode}: {report:?}");
        assert_eq!((report.number("live"), report.number("lost")), (0, 0), "{mode}: {report:?}");
    }
}

/// What trust was wrong about is loud, with what to do about it, and never a wrong byte; strict does it right.
#[test]
fn a_trusted_kernel_that_follows_an_address_after_all_is_loud() {
    let run = |safety| on(Run::new(Source::program("loud").build()), 136, "2M", safety).limit(60);
    assert_eq!(run("strict").ok().value("sum"), "8");
    let (outcome, report) = Report::after(&run("auto"));
    assert!(is_loud(&outcome, "auto"), "{outcome:#?}");
    assert!(report.number("launches_beside") > 20, "{report:?}");
}

/// Two threads that need more than fits together wait for their turn, not for a deadline.
#[test]
fn threads_do_not_wait_for_one_anothers_pages() {
    for safety in MODES {
        let path = Report::fresh();
        let run = on(program("adversary_time", "two_threads", 3), GPU, "2M", safety);
        run.env("VGMEM_REPORT", &path).ok();
        let report = Report::read(&path);
        assert_eq!(report.number("missed_deadlines"), 0, "{safety}: {report:?}");
    }
}

#[test]
fn pages_of_another_size_move_as_well() {
    for (name, mode) in [("adversary", "kernel_table"), ("adversary_time", "late_writer")] {
        for safety in MODES {
            one(on(program(name, mode, 2), 2 * GPU, "4M", safety), mode, safety);
        }
    }
}

/// Without the library and with room for all: the programs themselves are right, for another seed as well,
/// and one bit that changes behind the back of any of them is found, in whichever block.
#[test]
fn the_programs_are_right_by_themselves_and_find_a_wrong_bit() {
    for (name, modes) in ALL {
        for (block, mode) in modes.iter().enumerate() {
            let outcome = alone(name, mode).env("ADVERSARY_SPOIL", block.to_string()).run();
            // Where two threads work, each has a block of that number.
            let found = outcome.code == Some(5) && (1..=2).contains(&outcome.number("wrong"));
            assert!(found, "{mode}, block {block}: {outcome:#?}");
        }
    }
    for mode in ["persistent", "persistent_early", "persistent_beside_a_graph"] {
        assert_eq!(alone("adversary_time", mode).ok().number("wrong"), 0, "{mode}");
    }
}

fn alone(name: &'static str, mode: &str) -> Run {
    program(name, mode, 3).native().sim("gpus=1,mem=1G").env("ADVERSARY_GPU", "40")
}
