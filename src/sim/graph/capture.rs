//! Streams whose work is captured into a graph instead of run.
//!
//! Which call fails how, and which captures it makes invalid, was measured on a real driver.

use crate::codes::*;
use crate::graph::Action;
use crate::machine::Machine;
use crate::scheduler::Order;
use crate::stream::{Destination, StreamRef, thread};
use crate::task::Task;
use crate::util::{Answer, lock};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use vgmem_abi::*;

/// Capture mode: what may be called meanwhile.
const GLOBAL: i32 = 0;
const RELAXED: i32 = 2;

/// A stream of a capture.
#[derive(Default)]
struct Track {
    /// Nodes that the stream's next one waits for.
    after: Vec<u64>,
    /// It takes part in the order of the legacy default stream.
    blocking: bool,
}

/// A capture that goes on, or is invalid and has not been ended yet.
struct Capture {
    context: u64,
    /// The stream and the thread that began it.
    origin: u64,
    thread: u64,
    mode: i32,
    graph: u64,
    /// The program brought the graph along.
    borrowed: bool,
    invalid: bool,
    tracks: HashMap<u64, Track>,
}

#[derive(Default)]
struct State {
    last: u64,
    captures: HashMap<u64, Capture>,
    /// Which capture a stream takes part in.
    lanes: HashMap<u64, u64>,
}

/// All captures.
#[derive(Default)]
pub(crate) struct Captures {
    /// Their number: streams that are not captured must not take a lock.
    active: AtomicUsize,
    state: Mutex<State>,
}

/// What `cuStreamGetCaptureInfo` tells of a captured stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureInfo {
    /// Number of the capture.
    pub id: u64,
    /// The graph.
    pub graph: u64,
    /// Nodes that the stream's next one will wait for.
    pub after: Vec<u64>,
}

thread_local! {
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

impl State {
    /// Makes all captures invalid that `which` names; gives whether there were any.
    fn invalidate(&mut self, which: impl Fn(&Capture) -> bool) -> bool {
        let mut any = false;
        for capture in self.captures.values_mut().filter(|capture| which(capture)) {
            capture.invalid = true;
            any = true;
        }
        any
    }

    fn remove(&mut self, id: u64) -> Option<Capture> {
        self.lanes.retain(|_, of| *of != id);
        self.captures.remove(&id)
    }

    fn of_lane(&mut self, lane: u64) -> Option<&mut Capture> {
        self.captures.get_mut(self.lanes.get(&lane)?)
    }
}

/// Whether work in the legacy default stream of `context` would wait for a stream of the capture.
fn holds_legacy(capture: &Capture, context: u64) -> bool {
    capture.context == context && capture.tracks.values().any(|track| track.blocking)
}

impl Machine {
    fn any_capture(&self) -> bool {
        self.captures.active.load(Ordering::Acquire) > 0
    }

    fn drop_capture(&self, state: &mut State, id: u64) -> Option<Capture> {
        let capture = state.remove(id);
        if capture.is_some() {
            self.captures.active.fetch_sub(1, Ordering::AcqRel);
        }
        capture
    }

    /// Whether work in this lane is captured.
    pub(crate) fn is_captured(&self, lane: u64) -> bool {
        self.any_capture() && lock(&self.captures.state).lanes.contains_key(&lane)
    }

    /// Work in the legacy default stream that would wait for a captured stream ends the capture.
    pub(crate) fn not_legacy_beside_capture(&self, destination: &Destination) -> Answer {
        let context = &destination.context;
        if !self.any_capture() || destination.lane != context.legacy {
            return Ok(());
        }
        match lock(&self.captures.state).invalidate(|one| holds_legacy(one, context.handle)) {
            true => Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
            false => Ok(()),
        }
    }

    /// Captures an operation of a stream; false if the stream is not captured.
    pub(crate) fn capture(&self, destination: &Destination, task: &Task) -> Answer<bool> {
        if !self.any_capture() {
            return Ok(false);
        }
        self.not_legacy_beside_capture(destination)?;
        let mut state = lock(&self.captures.state);
        let Some(capture) = state.of_lane(destination.lane) else { return Ok(false) };
        if capture.invalid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let Some(track) = capture.tracks.get_mut(&destination.lane) else { return Ok(false) };
        let action = Action::Task(task.clone());
        let node = self.add_node_in(&destination.context, capture.graph, &track.after, action)?;
        track.after = vec![node];
        Ok(true)
    }

    /// Makes the capture of a lane invalid, for a call that no captured stream may see.
    pub(crate) fn refuse_in(&self, lane: u64) -> CUresult {
        if let Some(capture) = lock(&self.captures.state).of_lane(lane) {
            capture.invalid = true;
        }
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    }

    /// A call that waits for a stream: none that is captured, nor one that waits for such.
    pub(crate) fn may_wait(&self, destination: &Destination) -> Answer {
        self.not_legacy_beside_capture(destination)?;
        if self.is_captured(destination.lane) {
            return Err(self.refuse_in(destination.lane));
        }
        self.may_disturb()
    }

    /// A call that waits for a whole context.
    pub(crate) fn may_wait_for_context(&self, context: u64) -> Answer {
        match self.any_capture() && lock(&self.captures.state).invalidate(|one| one.context == context) {
            true => Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            false => Ok(()),
        }
    }

    /// A call that could disturb captures: which ones forbid it depends on their mode and on that
    /// of the calling thread.
    pub(crate) fn may_disturb(&self) -> Answer {
        if !self.any_capture() || MODE.get() == RELAXED {
            return Ok(());
        }
        let (here, global) = (thread(), MODE.get() == GLOBAL);
        let forbids = |capture: &Capture| match capture.mode {
            RELAXED => false,
            GLOBAL => capture.thread == here || global,
            _ => capture.thread == here,
        };
        match lock(&self.captures.state).invalidate(forbids) {
            true => Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            false => Ok(()),
        }
    }

    /// `cuThreadExchangeStreamCaptureMode`: gives the former mode.
    pub fn exchange_capture_mode(&self, mode: i32) -> Answer<i32> {
        // Whatever it is: the driver does not look.
        Ok(MODE.replace(mode))
    }

    /// `cuStreamBeginCapture`; `into` is a graph of the program and the nodes to begin after.
    pub fn begin_capture(&self, stream: StreamRef, mode: i32, into: Option<(u64, &[u64])>) -> Answer {
        let destination = self.destination(stream)?;
        if !(GLOBAL..=RELAXED).contains(&mode) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if destination.lane == destination.context.legacy {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut state = lock(&self.captures.state);
        if state.lanes.contains_key(&destination.lane) {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        let (graph, after) = match into {
            Some((graph, after)) => {
                self.check_nodes(graph, after)?;
                (graph, after.to_vec())
            }
            None => (self.create_graph(0)?, Vec::new()),
        };
        let track = Track { after, blocking: self.is_blocking(destination.lane) };
        state.last += 1;
        let id = state.last;
        let capture = Capture {
            context: destination.context.handle,
            origin: destination.lane,
            thread: thread(),
            mode,
            graph,
            borrowed: into.is_some(),
            invalid: false,
            tracks: HashMap::from([(destination.lane, track)]),
        };
        state.captures.insert(id, capture);
        state.lanes.insert(destination.lane, id);
        self.captures.active.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn is_blocking(&self, lane: u64) -> bool {
        self.scheduler.order(lane) == Some(Order::Blocking)
    }

    /// `cuStreamEndCapture`: the graph.
    pub fn end_capture(&self, stream: StreamRef) -> Answer<u64> {
        let destination = self.destination(stream)?;
        let mut state = lock(&self.captures.state);
        let id = *state.lanes.get(&destination.lane).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = state.captures.get_mut(&id).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.origin != destination.lane {
            capture.invalid = true;
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let capture = self.drop_capture(&mut state, id).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        drop(state);
        let ended = if capture.mode != RELAXED && capture.thread != thread() {
            Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        } else if capture.invalid {
            Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        } else if !self.is_joined(&capture) {
            Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        } else {
            Ok(capture.graph)
        };
        if ended.is_err() && !capture.borrowed {
            let _ = self.destroy_graph(capture.graph);
        }
        ended
    }

    /// Whether the first stream waits for everything that the others did.
    fn is_joined(&self, capture: &Capture) -> bool {
        let Some(origin) = capture.tracks.get(&capture.origin) else { return false };
        let seen = self.nodes_before(capture.graph, &origin.after);
        capture.tracks.values().flat_map(|track| &track.after).all(|node| seen.contains(node))
    }

    /// `cuStreamIsCapturing`: none, active, invalid.
    pub fn capture_status(&self, stream: StreamRef) -> Answer<i32> {
        let destination = self.destination(stream)?;
        let mut state = lock(&self.captures.state);
        let context = &destination.context;
        if destination.lane == context.legacy
            && state.captures.values().any(|capture| holds_legacy(capture, context.handle))
        {
            return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        Ok(match state.of_lane(destination.lane) {
            None => 0,
            Some(capture) => 1 + capture.invalid as i32,
        })
    }

    /// `cuStreamGetCaptureInfo`: status, and more while the capture is valid.
    pub fn capture_info(&self, stream: StreamRef) -> Answer<(i32, Option<CaptureInfo>)> {
        let status = self.capture_status(stream)?;
        let lane = self.destination(stream)?.lane;
        let state = lock(&self.captures.state);
        let id = state.lanes.get(&lane).copied().unwrap_or(0);
        let info = state.captures.get(&id).filter(|_| status == 1).map(|capture| CaptureInfo {
            id,
            graph: capture.graph,
            after: capture.tracks.get(&lane).map(|track| track.after.clone()).unwrap_or_default(),
        });
        Ok((status, info))
    }

    /// `cuStreamUpdateCaptureDependencies`: adds nodes to wait for, or replaces them.
    pub fn update_capture(&self, stream: StreamRef, nodes: &[u64], replace: bool) -> Answer {
        let lane = self.destination(stream)?.lane;
        let mut state = lock(&self.captures.state);
        let capture = state.of_lane(lane).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.invalid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        self.check_nodes(capture.graph, nodes)?;
        let track = capture.tracks.get_mut(&lane).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        if replace {
            track.after.clear();
        }
        track.after.extend(nodes);
        Ok(())
    }

    /// What an event recorded in a captured stream stands for: capture and nodes.
    pub(crate) fn captured_record(&self, destination: &Destination) -> Answer<Option<(u64, Vec<u64>)>> {
        if !self.any_capture() {
            return Ok(None);
        }
        self.not_legacy_beside_capture(destination)?;
        let state = lock(&self.captures.state);
        let Some(id) = state.lanes.get(&destination.lane) else { return Ok(None) };
        let capture = state.captures.get(id).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.invalid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let after = capture.tracks.get(&destination.lane).map(|track| track.after.clone());
        Ok(Some((*id, after.unwrap_or_default())))
    }

    /// A stream waits for an event of a capture, and takes part in it from now on.
    pub(crate) fn join_capture(&self, destination: &Destination, of: u64, nodes: &[u64]) -> Answer {
        let blocking = self.is_blocking(destination.lane);
        let mut state = lock(&self.captures.state);
        let own = state.lanes.get(&destination.lane).copied();
        let capture = state.captures.get_mut(&of).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if capture.invalid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if let Some(own) = own.filter(|own| *own != of) {
            capture.invalid = true;
            if let Some(other) = state.captures.get_mut(&own) {
                other.invalid = true;
            }
            return Err(CUDA_ERROR_STREAM_CAPTURE_MERGE);
        }
        if destination.lane == destination.context.legacy {
            capture.invalid = true;
            return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let track = capture.tracks.entry(destination.lane).or_default();
        track.blocking = blocking;
        track.after.extend(nodes);
        track.after.sort_unstable();
        track.after.dedup();
        state.lanes.insert(destination.lane, of);
        Ok(())
    }

    /// A captured stream waits for something outside of its capture.
    pub(crate) fn isolation_broken(&self, lane: u64) -> CUresult {
        match lock(&self.captures.state).of_lane(lane) {
            Some(capture) if capture.invalid => CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            Some(capture) => {
                capture.invalid = true;
                CUDA_ERROR_STREAM_CAPTURE_ISOLATION
            }
            None => CUDA_ERROR_INVALID_VALUE,
        }
    }

    /// The program asks about an event of a capture, which has no answer.
    pub(crate) fn ask_captured_event(&self, capture: u64) -> CUresult {
        match lock(&self.captures.state).captures.get_mut(&capture) {
            Some(capture) => {
                capture.invalid = true;
                CUDA_ERROR_CAPTURED_EVENT
            }
            None => CUDA_ERROR_INVALID_VALUE,
        }
    }

    /// A stream is destroyed: the capture that it began ends, any other becomes invalid.
    pub(crate) fn forget_captured_lane(&self, lane: u64) {
        if !self.is_captured(lane) {
            return;
        }
        let mut state = lock(&self.captures.state);
        let Some(id) = state.lanes.remove(&lane) else { return };
        match state.captures.get_mut(&id) {
            Some(capture) if capture.origin != lane => {
                capture.tracks.remove(&lane);
                capture.invalid = true;
            }
            _ => {
                let capture = self.drop_capture(&mut state, id);
                drop(state);
                if let Some(capture) = capture.filter(|capture| !capture.borrowed) {
                    let _ = self.destroy_graph(capture.graph);
                }
            }
        }
    }

    /// A context ends, and its captures with it.
    pub(crate) fn forget_captures(&self, context: u64) {
        let mut state = lock(&self.captures.state);
        let of: Vec<u64> =
            state.captures.iter().filter(|(_, one)| one.context == context).map(|(id, _)| *id).collect();
        let gone: Vec<Capture> = of.into_iter().filter_map(|id| self.drop_capture(&mut state, id)).collect();
        drop(state);
        for capture in gone.iter().filter(|capture| !capture.borrowed) {
            let _ = self.destroy_graph(capture.graph);
        }
    }
}
