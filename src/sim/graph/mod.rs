//! Graphs: operations and what each waits for.

mod capture;
mod edit;
mod exec;

pub use capture::CaptureInfo;
pub(crate) use capture::Captures;
pub use edit::NodeContent;
pub use exec::Update;

use crate::context::Context;
use crate::handle::{self, Kind};
use crate::machine::Machine;
use crate::task::Task;
use crate::util::{Answer, lock};
use exec::Executable;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use vgmem_abi::*;

/// What a node does.
#[derive(Clone)]
pub(crate) enum Action {
    /// One operation.
    Task(Task),
    /// Another graph, which belongs to the node.
    Child(u64),
}

/// Type of a node that is a graph.
const CHILD: i32 = 4;

/// A node of a graph.
#[derive(Clone)]
struct Node {
    action: Action,
    context: Arc<Context>,
    after: Vec<u64>,
}

/// A graph.
#[derive(Default)]
struct Graph {
    /// Nodes in the order of their making.
    order: Vec<u64>,
    nodes: HashMap<u64, Node>,
    /// In a clone: node of the original to node here.
    clones: HashMap<u64, u64>,
    /// It belongs to a node of another graph.
    owned: bool,
}

/// All graphs.
#[derive(Default)]
pub(crate) struct Graphs {
    graphs: HashMap<u64, Graph>,
    /// Graph of each node.
    owners: HashMap<u64, u64>,
    executables: HashMap<u64, Arc<Mutex<Executable>>>,
}

/// The kinds of edge questions about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// Nodes that it waits for.
    Before,
    /// Nodes that wait for it.
    After,
}

impl Action {
    fn node_type(&self) -> i32 {
        match self {
            Action::Task(task) => task.node_type(),
            Action::Child(_) => CHILD,
        }
    }
}

impl Graphs {
    fn graph(&self, graph: u64) -> Answer<&Graph> {
        self.graphs.get(&graph).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn node(&self, node: u64) -> Answer<&Node> {
        let graph = self.owners.get(&node).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.graph(*graph)?.nodes.get(&node).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn node_mut(&mut self, node: u64) -> Answer<&mut Node> {
        let graph = self.owners.get(&node).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let graph = self.graphs.get_mut(graph).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        graph.nodes.get_mut(&node).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn new_graph(&mut self, owned: bool) -> u64 {
        let graph = handle::fresh(Kind::Graph);
        self.graphs.insert(graph, Graph { owned, ..Graph::default() });
        graph
    }

    /// Checks that all are nodes of the graph, each named once.
    fn check(&self, graph: u64, nodes: &[u64]) -> Answer {
        let graph = self.graph(graph)?;
        let mut seen = HashSet::new();
        match nodes.iter().all(|node| graph.nodes.contains_key(node) && seen.insert(*node)) {
            true => Ok(()),
            false => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn insert(&mut self, graph: u64, node: Node) -> Answer<u64> {
        let found = self.graphs.get_mut(&graph).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let handle = handle::fresh(Kind::Node);
        found.order.push(handle);
        found.nodes.insert(handle, node);
        self.owners.insert(handle, graph);
        Ok(handle)
    }

    /// Copies a graph with the graphs of its nodes.
    fn clone_graph(&mut self, from: u64, owned: bool) -> Answer<u64> {
        let source = self.graph(from)?;
        let nodes: Vec<(u64, Node)> =
            source.order.iter().filter_map(|node| Some((*node, source.nodes.get(node)?.clone()))).collect();
        let to = self.new_graph(owned);
        let mut clones = HashMap::new();
        for (original, mut node) in nodes {
            if let Action::Child(child) = node.action {
                node.action = Action::Child(self.clone_graph(child, true)?);
            }
            clones.insert(original, self.insert(to, node)?);
        }
        if let Some(graph) = self.graphs.get_mut(&to) {
            for node in graph.nodes.values_mut() {
                for before in &mut node.after {
                    *before = clones.get(before).copied().unwrap_or(*before);
                }
            }
            graph.clones = clones;
        }
        Ok(to)
    }

    fn remove(&mut self, graph: u64) -> Answer {
        let gone = self.graphs.remove(&graph).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        for (handle, node) in gone.nodes {
            self.owners.remove(&handle);
            if let Action::Child(child) = node.action {
                self.remove(child)?;
            }
        }
        Ok(())
    }
}

impl Machine {
    /// `cuGraphCreate`.
    pub fn create_graph(&self, flags: u32) -> Answer<u64> {
        match flags {
            0 => Ok(lock(&self.graphs).new_graph(false)),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuGraphDestroy`; a graph of a node goes with its node.
    pub fn destroy_graph(&self, graph: u64) -> Answer {
        let mut graphs = lock(&self.graphs);
        match graphs.graph(graph)?.owned {
            true => Err(CUDA_ERROR_INVALID_VALUE),
            false => graphs.remove(graph),
        }
    }

    /// `cuGraphClone`.
    pub fn clone_graph(&self, graph: u64) -> Answer<u64> {
        lock(&self.graphs).clone_graph(graph, false)
    }

    /// `cuGraphNodeFindInClone`.
    pub fn find_in_clone(&self, node: u64, clone: u64) -> Answer<u64> {
        let graphs = lock(&self.graphs);
        graphs.graph(clone)?.clones.get(&node).copied().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Checks that all are nodes of the graph, each named once.
    pub(crate) fn check_nodes(&self, graph: u64, nodes: &[u64]) -> Answer {
        lock(&self.graphs).check(graph, nodes)
    }

    /// Adds a node.
    pub(crate) fn add_node_in(
        &self,
        context: &Arc<Context>,
        graph: u64,
        after: &[u64],
        action: Action,
    ) -> Answer<u64> {
        let mut graphs = lock(&self.graphs);
        graphs.check(graph, after)?;
        graphs.insert(graph, Node { action, context: context.clone(), after: after.to_vec() })
    }

    /// The nodes, and all that they wait for.
    pub(crate) fn nodes_before(&self, graph: u64, nodes: &[u64]) -> HashSet<u64> {
        let graphs = lock(&self.graphs);
        let (mut seen, mut open) = (HashSet::new(), nodes.to_vec());
        let Ok(graph) = graphs.graph(graph) else { return seen };
        while let Some(node) = open.pop() {
            if seen.insert(node) {
                open.extend(graph.nodes.get(&node).into_iter().flat_map(|node| &node.after));
            }
        }
        seen
    }

    /// `cuGraphGetNodes`.
    pub fn graph_nodes(&self, graph: u64) -> Answer<Vec<u64>> {
        Ok(lock(&self.graphs).graph(graph)?.order.clone())
    }

    /// `cuGraphGetRootNodes`.
    pub fn graph_roots(&self, graph: u64) -> Answer<Vec<u64>> {
        let graphs = lock(&self.graphs);
        let graph = graphs.graph(graph)?;
        let is_root = |node: &&u64| graph.nodes.get(node).is_some_and(|node| node.after.is_empty());
        Ok(graph.order.iter().filter(is_root).copied().collect())
    }

    /// `cuGraphGetEdges`: pairs of nodes, the second waits for the first.
    pub fn graph_edges(&self, graph: u64) -> Answer<Vec<(u64, u64)>> {
        let graphs = lock(&self.graphs);
        let graph = graphs.graph(graph)?;
        let edges = |to: &u64| {
            let before = graph.nodes.get(to).map(|node| node.after.clone()).unwrap_or_default();
            let to = *to;
            before.into_iter().map(move |from| (from, to))
        };
        Ok(graph.order.iter().flat_map(edges).collect())
    }

    /// `cuGraphNodeGetDependencies` and `cuGraphNodeGetDependentNodes`.
    pub fn node_neighbours(&self, node: u64, towards: Towards) -> Answer<Vec<u64>> {
        let graph = *lock(&self.graphs).owners.get(&node).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let edges = self.graph_edges(graph)?.into_iter();
        Ok(match towards {
            Towards::Before => edges.filter(|(_, to)| *to == node).map(|(from, _)| from).collect(),
            Towards::After => edges.filter(|(from, _)| *from == node).map(|(_, to)| to).collect(),
        })
    }

    /// `cuGraphNodeGetType`.
    pub fn node_type(&self, node: u64) -> Answer<i32> {
        Ok(lock(&self.graphs).node(node)?.action.node_type())
    }

    /// `cuGraphAddDependencies`; a circle is noticed when the graph is instantiated.
    pub fn add_edges(&self, graph: u64, edges: &[(u64, u64)]) -> Answer {
        let mut graphs = lock(&self.graphs);
        for (from, to) in edges {
            if from == to {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            graphs.check(graph, &[*from, *to])?;
            if graphs.node(*to)?.after.contains(from) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
        }
        for (from, to) in edges {
            graphs.node_mut(*to)?.after.push(*from);
        }
        Ok(())
    }

    /// `cuGraphRemoveDependencies`.
    pub fn remove_edges(&self, graph: u64, edges: &[(u64, u64)]) -> Answer {
        let mut graphs = lock(&self.graphs);
        for (from, to) in edges {
            graphs.check(graph, &[*from, *to])?;
            if !graphs.node(*to)?.after.contains(from) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
        }
        for (from, to) in edges {
            graphs.node_mut(*to)?.after.retain(|node| node != from);
        }
        Ok(())
    }

    /// `cuGraphDestroyNode`.
    pub fn destroy_node(&self, node: u64) -> Answer {
        let mut graphs = lock(&self.graphs);
        let owner = graphs.owners.remove(&node).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let graph = graphs.graphs.get_mut(&owner).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        graph.order.retain(|one| *one != node);
        let gone = graph.nodes.remove(&node);
        for other in graph.nodes.values_mut() {
            other.after.retain(|one| *one != node);
        }
        match gone.map(|node| node.action) {
            Some(Action::Child(child)) => graphs.remove(child),
            _ => Ok(()),
        }
    }
}
