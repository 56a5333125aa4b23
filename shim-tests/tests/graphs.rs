//! Graphs under pressure, whole and node by node (`VGMEM_GRAPHS`): the same bytes.

use shim_tests::{Report, Run, Source};

fn run(mode: &str, graphs: &str, safety: &str, faults: &str) -> Report {
    let program = Source::program("graph_nodes").flags(&["-O2"]).build();
    let run = Run::new(program).args(&[mode, "1"]).limit(90).sim(&format!("gpus=1,mem=136M,host=4G{faults}"));
    let run = run.env("VGMEM_HOST", "2G").env("VGMEM_PAGE_SIZE", "2M").env("VGMEM_PAGING", "auto");
    let (outcome, report) = Report::of(&run.env("VGMEM_SAFETY", safety).env("VGMEM_GRAPHS", graphs));
    let case = format!("{mode}, {graphs}, {safety}");
    assert_eq!((outcome.number("wrong"), outcome.stderr.as_str()), (0, ""), "{case}: {outcome:#?}");
    assert!(report.number("fetched") > 100 && report.number("evicted") > 100, "{case}: {report:?}");
    assert_eq!((report.number("live"), report.number("lost")), (0, 0), "{case}: {report:?}");
    report
}

/// Launches of graphs that went node by node, in both ways to move pages.
fn by_nodes(mode: &str, count: u64) {
    for safety in ["strict", "auto"] {
        assert_eq!(run(mode, "whole", safety, "").number("graphs_by_nodes"), 0, "{mode}, {safety}");
        assert_eq!(run(mode, "nodes", safety, "").number("graphs_by_nodes"), count, "{mode}, {safety}");
    }
}

/// Memsets, copies, plain and cooperative launches one after another; launches of the graph follow one another,
/// whatever the stream.
#[test]
fn chains_of_plain_nodes_are_launched_node_by_node() {
    by_nodes("chain", 20);
}

/// Nodes that may run side by side may wait for one another.
#[test]
fn graphs_with_branches_go_whole() {
    by_nodes("branches", 0);
    assert_eq!(run("spin", "nodes", "auto", "").number("graphs_by_nodes"), 0);
}

/// Two launches before there is pressure, then twelve, on two streams by turns; and on the default streams of two
/// threads.
#[test]
fn launches_of_a_graph_follow_one_another_on_any_streams() {
    by_nodes("order", 12);
    by_nodes("threads", 12);
}

/// A graph of which a node was changed by itself, or an update failed, goes whole until all of it is updated; one that
/// leaves nodes out goes whole for good.
#[test]
fn changed_graphs_go_whole_until_they_are_updated() {
    by_nodes("changes", 4);
}

#[test]
fn graphs_with_other_nodes_go_whole() {
    by_nodes("to_the_host", 0);
}

/// What the driver does not say about a node is not guessed.
#[test]
fn a_graph_of_which_something_is_unknown_goes_whole() {
    let asked =
        ["cuGraphKernelNodeGetAttribute#1", "cuGraphKernelNodeGetAttribute#2", "cuGraphGetEdges_v2#1"];
    for call in asked.into_iter().chain(["cuGraphExecGetFlags#1", "cuGraphMemcpyNodeGetParams#2"]) {
        // The first of the two graphs.
        let report = run("chain", "nodes", "auto", &format!(",fault={call}:999"));
        assert_eq!(report.number("graphs_by_nodes"), 10, "{call}: {report:?}");
    }
}

/// Where the event behind a launch cannot be had, what follows waits for the launch, and all go whole from then on.
#[test]
fn without_events_launches_are_waited_for() {
    let report =
        run("order", "nodes", "auto", ",fault=cuEventCreate#1:2+cuEventCreate#2:2+cuEventCreate#3:2");
    assert!(report.number("graphs_by_nodes") < 13, "{report:?}");
}
