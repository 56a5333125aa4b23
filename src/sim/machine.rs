//! The machine: everything there is, and the way in.

use crate::context::{Context, Primary};
use crate::event::Event;
use crate::fault;
use crate::fork;
use crate::graph::{Captures, Graphs};
use crate::handle;
use crate::memory::Memory;
use crate::module::{Function, Library, Module};
use crate::scheduler::Scheduler;
use crate::settings::Settings;
use crate::stream::{self, Stream};
use crate::util::{Answer, lock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use vgmem_abi::*;

/// What handles name.
#[derive(Default)]
pub(crate) struct Objects {
    pub contexts: HashMap<u64, Arc<Context>>,
    pub streams: HashMap<u64, Arc<Stream>>,
    pub events: HashMap<u64, Arc<Event>>,
    pub modules: HashMap<u64, Module>,
    pub functions: HashMap<u64, Arc<Function>>,
    pub libraries: HashMap<u64, Library>,
}

/// A machine with simulated GPUs.
pub struct Machine {
    /// What was asked for.
    pub settings: Settings,
    pub(crate) memory: Mutex<Memory>,
    pub(crate) objects: Mutex<Objects>,
    pub(crate) graphs: Mutex<Graphs>,
    pub(crate) captures: Captures,
    pub(crate) primaries: Mutex<Vec<Primary>>,
    pub(crate) scheduler: Scheduler,
    pub(crate) start: Instant,
    /// For each GPU: held while one of its kernels does atomics on memory of the host.
    pub(crate) host_atomics: Vec<Mutex<()>>,
    /// Memory of a pool was freed since the pools were trimmed.
    pub(crate) pools_used: AtomicBool,
    calls: AtomicU64,
}

/// The machine of this process; an error of the settings stays an error.
static MACHINE: OnceLock<Option<&'static Machine>> = OnceLock::new();

/// `cuInit`.
pub fn init(flags: u32) -> Answer<&'static Machine> {
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    fork::watch();
    let made = MACHINE.get_or_init(|| match Settings::from_environment() {
        Ok(settings) => match Machine::new(settings) {
            Ok(machine) => Some(machine),
            Err(error) => {
                eprintln!("VGMEM_SIM: the machine cannot be made: {error}");
                None
            }
        },
        Err(line) => {
            eprintln!("{line}");
            None
        }
    });
    let machine = made.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if machine.settings.gpus == 0 { Err(CUDA_ERROR_NO_DEVICE) } else { Ok(machine) }
}

/// The machine, if `cuInit` was called in this process and calls are allowed here.
pub fn machine() -> Answer<&'static Machine> {
    if fork::forked() {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    if stream::in_host_function() {
        return Err(CUDA_ERROR_NOT_PERMITTED);
    }
    match MACHINE.get() {
        Some(Some(machine)) if machine.settings.gpus > 0 => Ok(machine),
        _ => Err(CUDA_ERROR_NOT_INITIALIZED),
    }
}

impl Machine {
    /// A machine, which lives until the process ends.
    pub fn new(settings: Settings) -> std::io::Result<&'static Machine> {
        let memory = Memory::new(&settings)?;
        let primaries = (0..settings.gpus).map(|_| Primary::default()).collect();
        Ok(Box::leak(Box::new(Machine {
            memory: Mutex::new(memory),
            objects: Mutex::default(),
            graphs: Mutex::default(),
            captures: Captures::default(),
            primaries: Mutex::new(primaries),
            scheduler: Scheduler::new(settings.seed, settings.latency),
            start: Instant::now(),
            host_atomics: (0..settings.gpus).map(|_| Mutex::default()).collect(),
            pools_used: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            settings,
        })))
    }

    /// Counts one call, the `nth` of `symbol`, and fails it if the settings want that.
    pub fn enter(&self, symbol: &str, nth: u64) -> Answer {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(code) = fault::injected(&self.settings.faults, call, symbol, nth) else {
            return Ok(());
        };
        if matches!(code, CUDA_ERROR_ILLEGAL_ADDRESS | CUDA_ERROR_LAUNCH_FAILED)
            && let Ok(context) = self.current_even_if_lost()
        {
            self.lose(context.device, code);
        }
        Err(code)
    }

    /// Checks the ordinal of a GPU.
    pub fn check_device(&self, device: u32) -> Answer {
        if device < self.settings.gpus { Ok(()) } else { Err(CUDA_ERROR_INVALID_DEVICE) }
    }

    /// Nanoseconds since the machine was made.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Makes an object and gives its handle.
    pub(crate) fn add<T>(&self, kind: handle::Kind, make: impl FnOnce(u64) -> T) -> (u64, T) {
        let handle = handle::fresh(kind);
        (handle, make(handle))
    }

    /// Runs `act` on the memory.
    pub(crate) fn with_memory<T>(&self, act: impl FnOnce(&mut Memory) -> T) -> T {
        act(&mut lock(&self.memory))
    }
}
