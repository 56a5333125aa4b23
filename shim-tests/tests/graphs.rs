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

/// Memsets, copies, plain and cooperative launches in two branches; launches of the graph follow one another, whatever
/// the stream.
#[test]
fn plain_graphs_are_launched_node_by_node() {
    by_nodes("branches", 20);
}

#[test]
fn launches_of_a_graph_follow_one_another_on_any_streams() {
    by_nodes("order", 12);
}

/// A graph of which a node was changed by itself goes whole until all of it is updated; one that leaves nodes out goes
/// whole for good.
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
    for call in ["cuGraphKernelNodeGetAttribute", "cuGraphGetEdges_v2", "cuGraphExecGetFlags"] {
        // The first of the two graphs.
        let report = run("branches", "nodes", "auto", &format!(",fault={call}#1:999"));
        assert_eq!(report.number("graphs_by_nodes"), 10, "{call}: {report:?}");
    }
}
