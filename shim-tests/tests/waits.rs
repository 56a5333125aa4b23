//! A program that waits in every way it can while the pager moves pages: nothing hangs, nothing waits without a
//! deadline, and what the program is told about its own work stays true.
//!
//! Each test runs one mode of `programs/waits.c`, `ends.c` or `never.c`: without us on a GPU that holds everything,
//! then with the pager on one that holds half of it. Both say the same, every word is right, and pages did move.

use shim_tests::{Outcome, Report, Run, Source, workspace};

/// What a launch waits for work that may depend on work launched later (`DEADLINE` in `src/shim/quiet.rs`).
const DEADLINE: u64 = 2;
/// Seconds for everything but waits that reach the deadline: the slowest mode takes 5 s of an idle machine.
const REST: u64 = 25;

/// One mode. A wait that is in the nature of the mode ends at the pager's deadline, so it cannot take longer than
/// `deadlines` of them and the rest; a wait without a deadline would never end. What the program says natively, and the
/// report in `auto`.
fn mode(program: &'static str, mode: &str, deadlines: u64) -> (Outcome, Report) {
    let include = format!("-I{}", workspace().join("include").display());
    let program = Source::program(program).flags(&["-O2", &include]).build();
    let gpus = if mode.starts_with("peer") { 2 } else { 1 };
    let run = Run::new(program).arg(mode).limit(REST + deadlines * DEADLINE);
    let native = run.clone().native().sim(&format!("gpus={gpus},mem=1G,host=2G")).ok();
    // 128 pages: enough that some are reserved for exchanges.
    let run = run.sim(&format!("gpus={gpus},mem=256M,host=2G,seed=3"));
    let run = run.env("VGMEM_PAGING", "auto").env("VGMEM_PAGE_SIZE", "2M").env("VGMEM_HOST", "1G");
    let reports = ["strict", "auto"].map(|safety| {
        let (ours, report) = Report::of(&run.clone().env("VGMEM_SAFETY", safety));
        assert_eq!(native.stdout, ours.stdout, "{mode}, {safety}: {ours:#?}");
        assert!(report.number("fetched") > 0 && report.number("evicted") > 0, "{mode}, {safety}: {report:?}");
        assert_eq!(report.number("lost"), 0, "{mode}, {safety}: {report:?}");
        report
    });
    let [_, auto] = reports;
    (native, auto)
}

/// A mode whose lines all say that something holds, and whose memory is right.
fn holds(program: &'static str, name: &str, deadlines: u64) -> Report {
    let (outcome, report) = mode(program, name, deadlines);
    for line in outcome.lines() {
        assert!(line.ends_with(" 1") || line == "wrong 0" || line.starts_with("child 1 "), "{outcome:#?}");
    }
    report
}

macro_rules! modes {
    ($program:ident $($(#[$doc:meta])* $test:ident $mode:literal $deadlines:literal;)*) => { $(
        $(#[$doc])*
        #[test]
        fn $test() {
            holds(stringify!($program), $mode, $deadlines);
        }
    )* };
}

modes! { waits
    /// A stream waits for a value that the host writes after a launch that needs pages.
    value_that_the_host_writes "value_host" 1;
    /// Another stream writes it, into memory of the pool.
    value_that_a_stream_writes "value_stream" 1;
    /// A kernel behind a wait for a value; then a memset, graphs, rectangles, boxes, batches, copies between contexts.
    kernel_behind_a_value "kernel" 1;
    memset_behind_a_value "memset" 1;
    graph_behind_a_value "graph" 1;
    graph_behind_a_value_of_a_stream "graph_stream" 1;
    rectangle_behind_a_value "copy2d" 1;
    box_behind_a_value "copy3d" 1;
    batch_behind_a_value "batch" 1;
    peer_copy_behind_a_value "peer" 1;
    peer_box_behind_a_value "peer3d" 1;
    /// The first launch of a function, while another stream waits: loading holds the driver's lock.
    a_function_is_loaded_beside_a_wait "lazy" 1;
    /// The same in the stream that waits: nobody gets in until it has drained.
    a_function_is_loaded_behind_a_wait "lazy_same" 2;
    /// 3,000 launches behind a sleeping kernel, once within the deadline and once past it.
    a_full_queue "queue" 2;
    another_thread_synchronizes_the_context "context_waits" 0;
    host_functions "callbacks" 2;
    /// The program only asks its event for half a second; another thread's launch needs the memory.
    an_event_is_polled "polls" 0;
    /// A kernel waits for the kernel that is launched next, three times, and once two others are between them.
    two_kernels_need_each_other "pair" 5;
    /// From two threads, each of whose kernels waits for the other's: two launches a round may wait.
    a_collective_of_two_threads "collective" 6;
    a_kernel_that_never_ends "persistent" 4;
    a_thread_is_inside_a_copy "blocked_copy" 2;
    events_keep_their_meaning "events" 0;
    a_capture_stays_valid "captures" 0;
    per_thread_streams "per_thread" 0;
    /// The kernel that waits was launched when nothing lay elsewhere: no marker is behind it.
    work_from_before_the_pressure "before_pressure" 1;
    a_graph_is_waited_for "graph_runs" 0;
}

modes! { ends
    /// Frees that wait for a kernel, while another thread launches.
    frees_wait "free_waits" 0;
    streams_end_with_work_in_flight "streams" 0;
    a_stream_ends_that_waits "waiting_stream" 1;
    contexts_end_with_work_in_flight "contexts" 0;
    /// A child is inert: it gets the driver's own answers.
    children_of_a_moving_process "forks" 0;
    exit_with_work_in_flight "exit_busy" 0;
    exit_while_others_launch "exit_threads" 0;
    exit_while_a_launch_waits "exit_waiting" 0;
}

modes! { never
    /// A record on the legacy default stream would put a wall between them.
    kernels_on_blocking_streams_meet "blocking" 2;
    /// Vain waits are bounded together, not one by one.
    a_kernel_from_before_the_pressure_never_ends "persistent" 3;
}

/// Events of a context do not serve streams of another: their records would fail, and every launch be made strictly.
#[test]
fn streams_come_after_those_of_other_contexts() {
    let report = holds("ends", "streams_of_contexts", 0);
    assert!(report.number("launches_beside") > report.number("strict_exchanges"), "{report:?}");
}
