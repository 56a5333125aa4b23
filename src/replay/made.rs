//! Traces that no program made: shapes of known programs, with durations as measured on an H200.

use crate::trace::{Operand, Record, Trace, Work};

/// MiB and GiB.
const M: u64 = 1 << 20;
const G: u64 = 1 << 30;
/// Bytes of an activation.
const ACTIVATION: u64 = 32 * M;

/// Writes a trace down: one GPU, launches made as fast as they can be, one wait at the end.
struct Maker {
    trace: Trace,
    ids: u64,
}

impl Maker {
    fn new(memory: u64) -> Maker {
        Maker { trace: Trace { gpus: vec![(0, memory)], ..Trace::default() }, ids: 0 }
    }

    fn allocate(&mut self, bytes: u64) -> u64 {
        self.ids += 1;
        self.trace.records.push(Record::Allocate { id: self.ids, gpu: 0, bytes });
        self.ids
    }

    fn all(&mut self, count: usize, bytes: u64) -> Vec<u64> {
        (0..count).map(|_| self.allocate(bytes)).collect()
    }

    fn launch(&mut self, name: &str, us: u64, ids: &[u64]) {
        let operands: Vec<_> = ids.iter().map(|&id| Operand { id, offset: 0, bytes: 0 }).collect();
        self.launch_at(name, us, operands, 0);
    }

    fn launch_at(&mut self, name: &str, us: u64, operands: Vec<Operand>, stream: u32) {
        let known = self.trace.names.iter().find(|(_, known)| *known == name).map(|(number, _)| *number);
        let function = known.unwrap_or(self.trace.names.len() as u32 + 1);
        self.trace.names.insert(function, name.to_string());
        let work = Work { at: 0, stream, ns: us * 1_000, operands };
        self.trace.records.push(Record::Launch(function, work));
    }

    fn end(mut self) -> Trace {
        self.trace.records.push(Record::Wait(0, 0));
        self.trace
    }
}

/// Reads 24 layers of 512 MiB one after the other, 1.3 ms each: for 8 GiB.
pub fn scan() -> Trace {
    let mut made = Maker::new(8 * G);
    let layers = made.all(24, 512 * M);
    layers.iter().for_each(|layer| made.launch("scan", 1_300, &[*layer]));
    made.end()
}

/// Trains 12 pairs of layers with 1 GiB of weights: forward, backward with gradients written, a step for each
/// weight. 28 GiB, for 8 GiB.
pub fn training() -> Trace {
    let mut made = Maker::new(8 * G);
    let weights = made.all(24, 512 * M);
    let gradients = made.all(24, 512 * M);
    let narrow = made.all(13, ACTIVATION);
    let wide = made.all(12, 4 * ACTIVATION);
    for pair in 0..12 {
        made.launch("up", 1_300, &[narrow[pair], weights[2 * pair], wide[pair]]);
        made.launch("relu", 60, &[wide[pair]]);
        made.launch("down", 1_300, &[wide[pair], weights[2 * pair + 1], narrow[pair + 1]]);
    }
    for pair in (0..12).rev() {
        made.launch("down gradient", 1_300, &[wide[pair], narrow[pair + 1], gradients[2 * pair + 1]]);
        made.launch("down input", 1_300, &[wide[pair], narrow[pair + 1], weights[2 * pair + 1]]);
        made.launch("relu back", 60, &[wide[pair]]);
        made.launch("up gradient", 1_300, &[narrow[pair], wide[pair], gradients[2 * pair]]);
        made.launch("up input", 1_300, &[narrow[pair], wide[pair], weights[2 * pair]]);
    }
    for (weight, gradient) in weights.iter().zip(&gradients) {
        made.launch("step", 400, &[*weight, *gradient]);
    }
    made.end()
}

/// Layers of a model of 7B in half precision: 13 GiB of weights, seven matrices a layer, and its ends. Each
/// layer takes `us`, shared out by size.
fn layers(us: u64) -> Trace {
    let mut made = Maker::new(8 * G);
    let sizes = [32, 32, 32, 32, 86, 86, 86].map(|mib| mib * M);
    let total: u64 = sizes.iter().sum();
    let first = made.allocate(250 * M);
    let weights: Vec<Vec<u64>> =
        (0..32).map(|_| sizes.iter().map(|&bytes| made.allocate(bytes)).collect()).collect();
    let last = made.allocate(250 * M);
    let caches = made.all(32, 16 * M);
    let states = made.all(3, 16 * M);
    made.launch("embed", 20, &[first, states[0]]);
    for (layer, cache) in weights.iter().zip(&caches) {
        for (matrix, bytes) in layer.iter().zip(sizes) {
            made.launch("matrix", us * bytes / total, &[states[0], *matrix, states[1]]);
        }
        made.launch("attention", 20, &[states[1], *cache, states[2]]);
    }
    made.launch("head", us / 2, &[states[0], last, states[1]]);
    made.end()
}

/// One token of a model of 7B, 0.5 ms a layer: for 8 GiB.
pub fn decode() -> Trace {
    layers(500)
}

/// A prompt of 2,048 tokens, 2.3 ms a layer: for 8 GiB.
pub fn prefill() -> Trace {
    layers(2_300)
}

/// AdamW over 24 weights of 256 MiB with gradients and two moments, 24 GiB in all: for 16 GiB.
pub fn adamw() -> Trace {
    let mut made = Maker::new(16 * G);
    let [weights, gradients, first, second] = [0; 4].map(|_| made.all(24, 256 * M));
    let input = made.allocate(ACTIVATION);
    weights.iter().for_each(|weight| made.launch("forward", 2_000, &[input, *weight]));
    for (weight, gradient) in weights.iter().zip(&gradients).rev() {
        made.launch("backward", 4_000, &[input, *weight, *gradient]);
    }
    for index in 0..24 {
        made.launch("adamw", 500, &[weights[index], gradients[index], first[index], second[index]]);
    }
    made.end()
}

/// Two buffers of 6 GiB in parts of 512 MiB: each part of one is made of three of the other, then back. For 8
/// GiB.
pub fn stencil() -> Trace {
    let mut made = Maker::new(8 * G);
    let buffers = [0; 2].map(|_| made.all(12, 512 * M));
    for (from, to) in [(0, 1), (1, 0)] {
        for part in 0..12usize {
            let near = &buffers[from][part.saturating_sub(1)..(part + 2).min(12)];
            made.launch("stencil", 1_000, &[near, &[buffers[to][part]]].concat());
        }
    }
    made.end()
}

/// One buffer of 12 GiB that holds everything, named from 96 places inside: for 8 GiB.
pub fn buffer() -> Trace {
    let mut made = Maker::new(8 * G);
    let id = made.allocate(12 * G);
    for tensor in 0..96 {
        made.launch_at("tensor", 300, vec![Operand { id, offset: tensor * 128 * M, bytes: 0 }], 0);
    }
    made.end()
}

/// Looks a few rows up in two tables of 2 GiB, then goes through 24 layers of 256 MiB: for 8 GiB.
pub fn lookup() -> Trace {
    let mut made = Maker::new(8 * G);
    let (tables, layers) = (made.all(2, 2 * G), made.all(24, 256 * M));
    let row = made.allocate(ACTIVATION);
    tables.iter().for_each(|table| made.launch("lookup", 12, &[*table, row]));
    layers.iter().for_each(|layer| made.launch("layer", 1_000, &[*layer, row]));
    made.end()
}

/// Six tokens of a mixture of experts: 24 layers of attention, 32 MiB, and of two of eight experts, 64 MiB each, drawn
/// for each token. 13 GiB, for 8 GiB.
pub fn experts() -> Trace {
    let mut made = Maker::new(8 * G);
    let attention = made.all(24, 32 * M);
    let experts: Vec<Vec<u64>> = (0..24).map(|_| made.all(8, 64 * M)).collect();
    let states = made.all(2, 4 * M);
    let mut drawn = 1u64;
    for _ in 0..6 {
        for (own, all) in attention.iter().zip(&experts) {
            made.launch("attention", 60, &[states[0], *own, states[1]]);
            for _ in 0..2 {
                drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                made.launch("expert", 60, &[states[1], all[(drawn >> 61) as usize], states[0]]);
            }
        }
    }
    made.end()
}

/// Two programs in one, on a stream each: one goes through 12 layers of 512 MiB, 2 ms each, while the other does so
/// twice as fast and twice. 12 GiB, for 8 GiB.
pub fn streams() -> Trace {
    let mut made = Maker::new(8 * G);
    let (slow, fast) = (made.all(12, 512 * M), made.all(12, 512 * M));
    let at = |id: u64| vec![Operand { id, offset: 0, bytes: 0 }];
    for layer in 0..12 {
        made.launch_at("slow", 2_000, at(slow[layer]), 0);
        for step in 0..2 {
            made.launch_at("fast", 1_000, at(fast[(2 * layer + step) % 12]), 1);
        }
    }
    made.end()
}

/// The next of a row of numbers that look drawn, below `below`.
fn draw(state: &mut u64, below: u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 33) % below) as usize
}

/// Reads 48 buffers of 256 MiB, 90 us each, 24 times, each time in another order: for 8 GiB.
pub fn shuffled() -> Trace {
    let mut made = Maker::new(8 * G);
    let mut parts = made.all(48, 256 * M);
    let mut state = 1;
    for _ in 0..24 {
        (1..parts.len()).rev().for_each(|last| parts.swap(last, draw(&mut state, last as u64 + 1)));
        parts.iter().for_each(|part| made.launch("read", 90, &[*part]));
    }
    made.end()
}

/// Reads 48 buffers of 256 MiB, 90 us each, 1,152 times: every second time one of eight, else any: for 8 GiB.
pub fn drawn() -> Trace {
    let mut made = Maker::new(8 * G);
    let parts = made.all(48, 256 * M);
    let mut state = 1;
    for _ in 0..24 * 48 {
        let among = [8, 48][draw(&mut state, 2)];
        made.launch("read", 90, &[parts[draw(&mut state, among)]]);
    }
    made.end()
}

/// A made trace with its name.
pub type Made = (&'static str, fn() -> Trace);

/// All of them. The memory that each is meant for is in the trace.
pub const ALL: [Made; 12] = [
    ("scan", scan),
    ("training", training),
    ("decode", decode),
    ("prefill", prefill),
    ("adamw", adamw),
    ("stencil", stencil),
    ("buffer", buffer),
    ("lookup", lookup),
    ("experts", experts),
    ("streams", streams),
    ("shuffled", shuffled),
    ("drawn", drawn),
];
