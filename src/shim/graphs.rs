//! What instantiated graphs name: the addresses in their kernels' parameters, copies and memsets.
//!
//! Known for speed alone: a graph's launch may use anything, and what its nodes name is brought home before. So a node
//! that cannot be read names nothing, and an update only adds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vgmem_abi::*;

use crate::graph_nodes::{Order, Plan};
use crate::graph_read;
use crate::hooks::launch::pooled_words;
use crate::start::{Engine, engine};

/// Nodes of graphs in graphs are followed so deep.
const DEEPEST: u32 = 8;
/// What is known of an instantiated graph.
#[derive(Default)]
struct Known {
    /// The addresses that it names.
    words: Vec<u64>,
    /// How it is launched node by node, where it can be.
    plan: Option<Arc<Plan>>,
    /// Nodes of it may be left out: no graph tells what it does.
    is_incomplete: bool,
    order: Arc<Order>,
}

static KNOWN: Mutex<Option<HashMap<usize, Known>>> = Mutex::new(None);

fn known() -> MutexGuard<'static, Option<HashMap<usize, Known>>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `exec` is new, made from `graph`. What was known of one that had its handle before is not true of it.
pub fn made_from(exec: CUgraphExec, graph: CUgraph) {
    drop(remove(exec));
    updated_to(exec, graph);
}

/// `exec` does what `graph` does.
pub fn updated_to(exec: CUgraphExec, graph: CUgraph) {
    let Some(engine) = engine().filter(|engine| engine.settings.paging) else { return };
    let mut words = Vec::new();
    walk(engine, graph, DEEPEST, &mut words);
    adds(exec, words);
    if engine.settings.graph_nodes {
        let plan = Plan::of(engine, exec, graph)
            .inspect_err(|why| log::debug!("a graph will be launched whole: {why}"))
            .ok();
        let mut known = known();
        let one = known.get_or_insert_default().entry(exec as usize).or_default();
        one.plan = plan.filter(|_| !one.is_incomplete).map(Arc::new);
    }
}

/// A node of `exec` does something else now, or may: until it is updated as a whole, no graph tells what it does.
/// `left_out`: the node may be left out, also after updates.
pub fn changed(exec: CUgraphExec, left_out: bool) {
    if engine().is_some()
        && let Some(one) = known().as_mut().and_then(|known| known.get_mut(&(exec as usize)))
    {
        one.plan = None;
        one.is_incomplete |= left_out;
    }
}

/// How a graph is launched node by node, where it can be, and the order of its launches.
pub fn plan_of(exec: CUgraphExec) -> Option<(Option<Arc<Plan>>, Arc<Order>)> {
    known().as_ref()?.get(&(exec as usize)).map(|one| (one.plan.clone(), one.order.clone()))
}

/// A node of `exec` names these addresses now.
pub fn adds(exec: CUgraphExec, words: Vec<u64>) {
    if engine().is_some_and(|engine| engine.settings.paging) {
        let mut known = known();
        let list = &mut known.get_or_insert_default().entry(exec as usize).or_default().words;
        list.extend(words);
        list.sort_unstable();
        list.dedup();
    }
}

/// Forgets a graph that is about to end, so that another with its handle is not taken for it. `call` is the driver's.
pub fn destroy(exec: CUgraphExec, call: impl FnOnce() -> CUresult) -> CUresult {
    let was = remove(exec);
    let rc = call();
    match (engine(), was) {
        (Some(engine), Some(was)) if rc == CUDA_SUCCESS => was.order.end(engine),
        (Some(_), Some(was)) => drop(known().get_or_insert_default().insert(exec as usize, was)),
        _ => {}
    }
    rc
}

fn remove(exec: CUgraphExec) -> Option<Known> {
    engine()?;
    known().as_mut()?.remove(&(exec as usize))
}

/// Functions are about to be unloaded: plans name them by their handles.
pub fn forget_functions() {
    known().iter_mut().flat_map(HashMap::values_mut).for_each(|one| one.plan = None);
}

/// A context has ended, and its graphs and events.
pub fn context_ended(context: u64) {
    if engine().is_none() {
        return;
    }
    for one in known().iter_mut().flat_map(HashMap::values_mut) {
        one.plan = one.plan.take().filter(|plan| !plan.is_of(context));
        one.order.context_ended(context);
    }
}

/// What a graph names.
pub fn of(exec: CUgraphExec) -> Vec<u64> {
    known().as_ref().and_then(|known| Some(known.get(&(exec as usize))?.words.clone())).unwrap_or_default()
}

fn walk(engine: &Engine, graph: CUgraph, depth: u32, words: &mut Vec<u64>) {
    let call = &engine.pool.device().call;
    for node in graph_read::nodes(call, graph).unwrap_or_default() {
        match graph_read::kind(call, node) {
            Some(graph_read::KERNEL) => {
                let params = graph_read::kernel(call, node);
                // SAFETY: the driver has just written them.
                words.extend(params.iter().flat_map(|params| unsafe { pooled_words(engine, params) }));
            }
            Some(graph_read::COPY) => {
                let params = graph_read::copy(call, node);
                words.extend(params.iter().flat_map(|params| [params.srcDevice, params.dstDevice]));
            }
            Some(graph_read::MEMSET) => {
                words.extend(graph_read::memset(call, node).map(|params| params.address));
            }
            Some(graph_read::CHILD) if depth > 0 => {
                let mut child: CUgraph = std::ptr::null_mut();
                // SAFETY: a node with a graph in it; the out-parameter is live.
                let found = call
                    .cuGraphChildGraphNodeGetGraph
                    .is_some_and(|ask| unsafe { ask(node, &mut child) == CUDA_SUCCESS });
                if found {
                    walk(engine, child, depth - 1, words);
                }
            }
            _ => {}
        }
    }
}
