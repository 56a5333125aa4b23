//! Starting the engine, once, after the first successful `cuInit`.

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use vgmem_abi::*;
use vgmem_engine::{Config, Context, GpuConfig, Pool};
use vgmem_policy::{GRANULE, Speed, auto_page_size};

use crate::real::{Driver, Functions};
use crate::settings::{BadSetting, Devices, HostBudget, PerGpu, Safety, Settings, accepts};
use crate::{chaos, fork, ledger, log as sink, marks, pager, scan, slot, trace};

/// First address that is asked for. No host library and no heap lies there, and words of data hardly ever look like its
/// addresses: their upper half would be 0 before a 16-bit float of 16,384 or more, or a float below the normal ones.
const ARENA_HINT: u64 = 0x7400_0000_0000;
/// Sizes of the arena, largest first: address space is scarce under some limits.
const ARENA_SIZES: [u64; 4] = [8 << 40, 4 << 40, 1 << 40, 256 << 30];
/// Most that a GPU keeps free for the driver's own needs (modules, local memory, workspaces), in bytes.
const RESERVE_AT_MOST: u64 = 512 << 20;
/// Most freed memory that stays mapped on a GPU for the next allocation, in bytes: enough for programs that
/// allocate and free in a loop, too little to matter to other processes.
const KEEP_AT_MOST: u64 = 256 << 20;
/// Pages of exchange reserve on each tier, at most, when the pager is on.
const EXCHANGE_PAGES: u64 = 8;
/// Host RAM that stays free whatever the budget is, in bytes.
const HOST_KEPT: u64 = 1 << 30;

/// A GPU that the program sees.
#[derive(Debug)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Its unique number, as 32 hexadecimal digits.
    pub uuid: String,
    /// Its name in the ledger.
    pub key: u64,
    /// Its memory in bytes, as the driver says.
    pub total: u64,
    /// What it shows to the program as its own size, in bytes: the limit, if there is one.
    pub shown: u64,
    /// What it may hold of the pool, in bytes: whole granules, without what the driver keeps.
    pub capacity: u64,
    /// Whether it is in the pool.
    pub pooled: bool,
}

/// The running library.
pub struct Engine {
    /// The pool over the real driver.
    pub pool: Pool<Driver>,
    /// The settings as read.
    pub settings: Settings,
    /// The GPUs by ordinal.
    pub gpus: Vec<Gpu>,
}

/// Attributes of a GPU: clock of its memory in kHz, bits of the bus to it, bytes of the cache.
const MEMORY_CLOCK: c_int = 36;
const MEMORY_BUS: c_int = 37;
const CACHE_BYTES: c_int = 38;

const NEW: u8 = 0;
const STARTING: u8 = 1;
const STARTED: u8 = 2;
const REFUSED: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(NEW);
static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());
/// Set once contexts of a second GPU are in use; until then nothing about access needs to be asked.
static SEVERAL: AtomicBool = AtomicBool::new(false);
/// First GPU whose context was seen, plus 1.
static FIRST: AtomicU32 = AtomicU32::new(0);
/// Grows when a context ends: a handle may then name another GPU.
static ERA: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Last context of this thread, its GPU, and the era in which that was asked.
    static LAST: Cell<(Context, u8, u64)> = const { Cell::new((0, 0, 0)) };
}

/// The engine, where it runs and may be used: not in a forked child.
#[inline]
pub fn engine() -> Option<&'static Engine> {
    let engine = ENGINE.load(Ordering::Acquire);
    if engine.is_null() || fork::forked() {
        return None;
    }
    // SAFETY: set once, from a box that is never freed.
    Some(unsafe { &*engine })
}

/// The engine for the exit report, also while others still use it.
pub fn engine_at_exit() -> Option<&'static Engine> {
    if fork::owner() { engine() } else { None }
}

/// Contexts that were destroyed and whose handles have not come back. The driver lets a destroyed context become
/// current, and then fails in calls that it would rather not get.
static DEAD: Mutex<Vec<Context>> = Mutex::new(Vec::new());

/// A context ended; `destroyed` where its handle is no context any more (a primary context's may come back).
pub fn context_ended(context: Context, destroyed: bool) {
    if destroyed {
        DEAD.lock().unwrap_or_else(PoisonError::into_inner).push(context);
    }
    marks::context_ended(engine(), context);
    scan::context_ended(context);
    crate::hooks::graph::context_ended(context);
    ERA.fetch_add(1, Ordering::AcqRel);
}

/// A context was created.
pub fn context_created(context: Context) {
    DEAD.lock().unwrap_or_else(PoisonError::into_inner).retain(|&dead| dead != context);
}

impl Engine {
    /// Context and GPU that are current on this thread.
    #[inline]
    pub fn current(&self) -> Option<(Context, u8)> {
        let context = self.pool.device().current_context();
        let era = ERA.load(Ordering::Acquire);
        let last = LAST.get();
        if context != 0 && last.0 == context && last.2 == era {
            return Some((context, last.1));
        }
        if DEAD.lock().unwrap_or_else(PoisonError::into_inner).contains(&context) {
            return None;
        }
        let (context, gpu) = self.pool.device().current()?;
        LAST.set((context, gpu, era));
        self.pool.note_context(gpu, context);
        let first = FIRST.compare_exchange(0, u32::from(gpu) + 1, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err_and(|first| first != u32::from(gpu) + 1) {
            SEVERAL.store(true, Ordering::Release);
        }
        Some((context, gpu))
    }

    /// The current GPU if access must be thought of: a program on one GPU has all it needs.
    #[inline]
    pub fn current_of_several(&self) -> Option<u8> {
        if self.gpus.len() < 2 {
            return None;
        }
        let (_, gpu) = self.current()?;
        SEVERAL.load(Ordering::Acquire).then_some(gpu)
    }
}

/// Makes a driver call; when the driver has no memory, gives it what the pool keeps and calls once more.
#[inline]
pub fn with_room(call: impl Fn() -> CUresult) -> CUresult {
    let rc = call();
    let made_room = |engine: &Engine| engine.pool.release_unused() > 0;
    if rc == CUDA_ERROR_OUT_OF_MEMORY && engine().is_some_and(made_room) {
        return call();
    }
    rc
}

/// Called after each successful `cuInit`: starts the engine at the first. The code for the program.
pub fn start() -> CUresult {
    match STATE.compare_exchange(NEW, STARTING, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            let (state, rc) = match Settings::log_level().and_then(|level| {
                sink::start(level);
                begin()
            }) {
                Ok(()) => (STARTED, CUDA_SUCCESS),
                Err(bad) => {
                    sink::say(format_args!("{bad}"));
                    (REFUSED, CUDA_ERROR_INVALID_VALUE)
                }
            };
            STATE.store(state, Ordering::Release);
            rc
        }
        Err(_) => {
            while STATE.load(Ordering::Acquire) == STARTING && !fork::forked() {
                std::thread::yield_now();
            }
            if STATE.load(Ordering::Acquire) == REFUSED { CUDA_ERROR_INVALID_VALUE } else { CUDA_SUCCESS }
        }
    }
}

/// Reads the settings and builds the engine. Where the driver cannot do what a pool needs, the library stays
/// out of the program's way and says so.
fn begin() -> Result<(), BadSetting> {
    let settings = Settings::read()?;
    let call = match Functions::find() {
        Ok(call) => call,
        Err(name) => {
            log::warn!("no pool: the driver has no {name} (virtual memory management came with CUDA 10.2)");
            return Ok(());
        }
    };
    let gpus = find_gpus(&call, &settings)?;
    if let Some(bad) = gpus.iter().position(|gpu| !gpu.1) {
        log::warn!("no pool: GPU {bad} has no virtual memory management");
        return Ok(());
    }
    let gpus: Vec<Gpu> = gpus.into_iter().map(|(gpu, _)| gpu).collect();
    let Some((base, bytes)) = reserve(&call) else {
        log::warn!("no pool: no address range of {} GiB is free", ARENA_SIZES[ARENA_SIZES.len() - 1] >> 30);
        return Ok(());
    };
    ledger::join();
    let config = configure(&call, &settings, &gpus, base, bytes);
    log::info!(
        "pool of {} GPUs and {} MiB of host RAM, pages of {} MiB, arena {:#x}+{} GiB",
        gpus.iter().filter(|gpu| gpu.pooled).count(),
        config.host_budget >> 20,
        config.page_bytes >> 20,
        base,
        bytes >> 30
    );
    fork::watch();
    let keys = gpus.iter().map(|gpu| gpu.key).collect();
    if settings.paging && call.cuFuncGetParamInfo.is_none() {
        log::warn!(
            "pages stay where they were placed: only drivers for CUDA 12.4 and newer say what launches name"
        );
    } else if settings.paging {
        // Under MPS other processes' work runs in the same place: nothing is known of it.
        let shared =
            (0..gpus.len()).any(|gpu| attribute(&call, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, gpu) == Some(1));
        if shared {
            log::info!("MPS is on: pages move only while nothing runs");
        }
        pager::start(settings.safety == Safety::Auto && !shared);
    }
    if let Some(seed) = settings.chaos {
        chaos::start(seed);
    }
    if let Some(path) = &settings.trace {
        let sizes: Vec<u64> = config.gpus.iter().map(|gpu| gpu.capacity).collect();
        trace::start(path, &sizes, config.page_bytes).map_err(|error| BadSetting {
            name: "VGMEM_TRACE",
            value: path.clone(),
            accepts: format!("{} ({error})", accepts("VGMEM_TRACE")),
        })?;
    }
    let pool = Pool::new(Driver::new(call, keys, config.host_budget + config.host_exchange), config);
    ENGINE.store(Box::into_raw(Box::new(Engine { pool, settings, gpus })), Ordering::Release);
    Ok(())
}

/// Every visible GPU, and whether it can be pooled at all.
fn find_gpus(call: &Functions, settings: &Settings) -> Result<Vec<(Gpu, bool)>, BadSetting> {
    let mut count: c_int = 0;
    // SAFETY: the out-parameter is live.
    let rc = unsafe { (call.cuDeviceGetCount)(&mut count) };
    let count = if rc == CUDA_SUCCESS { count.clamp(0, 64) } else { 0 };
    let mut found = Vec::new();
    for gpu in 0..count {
        let (mut total, mut vmm, mut name) = (0usize, 0, [0 as c_char; 128]);
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: all out-parameters are live, the name's length is given.
        unsafe {
            (call.cuDeviceTotalMem_v2)(&mut total, gpu);
            (call.cuDeviceGetAttribute)(
                &mut vmm,
                CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                gpu,
            );
            (call.cuDeviceGetName)(name.as_mut_ptr(), name.len() as c_int - 1, gpu);
            (call.cuDeviceGetUuid)(&mut uuid, gpu);
        }
        // SAFETY: the array is zeroed and the driver wrote less than its length.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let total = total as u64;
        let reserve = reserve_of(settings, gpu as usize, total);
        let limit = settings.device_limit.as_ref().and_then(|limit| limit.of(gpu as usize));
        let shown = limit.unwrap_or(total).min(total);
        let capacity = shown.min(total.saturating_sub(reserve)) / GRANULE * GRANULE;
        let uuid: String = uuid.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let pooled = match &settings.devices {
            Devices::All => true,
            Devices::Named(names) => names.iter().any(|n| *n == gpu.to_string() || names_uuid(n, &uuid)),
        };
        found.push((Gpu { name, key: ledger_key(&uuid), uuid, total, shown, capacity, pooled }, vmm == 1));
    }
    check(settings, &found)?;
    Ok(found)
}

/// An attribute of a GPU, where the driver knows it.
fn attribute(call: &Functions, attribute: c_int, gpu: usize) -> Option<c_int> {
    let mut value: c_int = 0;
    // SAFETY: the out-parameter is live.
    let rc = unsafe { (call.cuDeviceGetAttribute)(&mut value, attribute, gpu as CUdevice) };
    (rc == CUDA_SUCCESS).then_some(value)
}

/// What a GPU carries, as its clocks say; the default where the driver does not.
fn speed(call: &Functions, gpu: usize, bytes: u64) -> Speed {
    let ask =
        |what| attribute(call, what, gpu).and_then(|value| u64::try_from(value).ok()).filter(|&v| v > 0);
    let known = (ask(MEMORY_CLOCK), ask(MEMORY_BUS), ask(CACHE_BYTES));
    let (Some(kilohertz), Some(bits), Some(cache)) = known else { return Speed::default() };
    // Two transfers of so many bits in a tick.
    Speed { memory: kilohertz * bits / 4_000, cache, bytes, ..Speed::default() }
}

/// Settings that name GPUs or sizes which this machine does not have.
fn check(settings: &Settings, gpus: &[(Gpu, bool)]) -> Result<(), BadSetting> {
    let bad = |name: &'static str, value: String, accepts: String| Err(BadSetting { name, value, accepts });
    if let Devices::Named(names) = &settings.devices {
        let pooled = gpus.iter().filter(|(gpu, _)| gpu.pooled).count();
        let unknown = names.iter().find(|n| n.parse::<usize>().is_ok_and(|n| n >= gpus.len()));
        if unknown.is_some() || pooled < names.len() {
            let range =
                format!("all, or ordinals from 0 to {} or UUIDs of visible GPUs", gpus.len().max(1) - 1);
            return bad("VGMEM_DEVICES", names.join(","), range);
        }
    }
    for (name, setting) in
        [("VGMEM_DEVICE_LIMIT", &settings.device_limit), ("VGMEM_DEVICE_RESERVE", &settings.device_reserve)]
    {
        let Some(setting) = setting else { continue };
        if let PerGpu::Each(list) = setting
            && let Some((ordinal, _)) = list.iter().find(|(ordinal, _)| *ordinal >= gpus.len())
        {
            let range = format!("sizes for GPUs 0 to {}", gpus.len().max(1) - 1);
            return bad(name, format!("{ordinal}:..."), range);
        }
        for (ordinal, (gpu, _)) in gpus.iter().enumerate() {
            if setting.of(ordinal).is_some_and(|bytes| bytes > gpu.total) {
                let most = format!("at most the {} MiB that GPU {ordinal} has", gpu.total >> 20);
                let value = setting.of(ordinal).unwrap_or(0);
                return bad(name, format!("{} MiB", value >> 20), most);
            }
        }
    }
    Ok(())
}

/// Whether `name` is the UUID or the beginning of one, as `CUDA_VISIBLE_DEVICES` takes them.
fn names_uuid(name: &str, uuid: &str) -> bool {
    let given: String =
        name.trim_start_matches("GPU-").chars().filter(|c| *c != '-').collect::<String>().to_lowercase();
    name.starts_with("GPU-") && uuid.starts_with(&given)
}

/// Name of a GPU in the ledger, never 0: the same in every process, whatever `CUDA_VISIBLE_DEVICES` says.
fn ledger_key(uuid: &str) -> u64 {
    u64::from_str_radix(uuid.get(..16).unwrap_or("0"), 16).unwrap_or(0).max(1)
}

/// Bytes that the driver keeps on a GPU when pages are placed there.
fn reserve_of(settings: &Settings, gpu: usize, total: u64) -> u64 {
    let set = settings.device_reserve.as_ref().and_then(|reserve| reserve.of(gpu));
    set.unwrap_or_else(|| (total / 64).min(RESERVE_AT_MOST))
}

fn reserve(call: &Functions) -> Option<(u64, u64)> {
    for bytes in ARENA_SIZES {
        let mut base: CUdeviceptr = 0;
        // SAFETY: the out-parameter is live; the driver may choose another address than the hint.
        let rc = unsafe { (call.cuMemAddressReserve)(&mut base, bytes as usize, 2 << 20, ARENA_HINT, 0) };
        if rc == CUDA_SUCCESS && base.is_multiple_of(2 << 20) {
            return Some((base, bytes));
        }
        log::debug!("reserving {} GiB of addresses answered {rc}", bytes >> 30);
    }
    None
}

fn configure(call: &Functions, settings: &Settings, gpus: &[Gpu], base: u64, bytes: u64) -> Config {
    let host = host_budget(settings.host);
    let smallest = gpus.iter().filter(|gpu| gpu.pooled).map(|gpu| gpu.capacity).min().unwrap_or(0);
    let page_bytes = settings.page_size.unwrap_or_else(|| auto_page_size(smallest));
    // Where pages cannot go anywhere, what the pager needs for moving them stays with the program.
    let pages_move = settings.paging && (host > 0 || gpus.iter().filter(|gpu| gpu.pooled).count() > 1);
    // One page, unless that were more than 1 % or so of what there is. The pager copies in waves and needs more; it can
    // move nothing without one.
    let exchange = |bytes: u64| {
        let pages = bytes / page_bytes;
        page_bytes
            * match pages_move {
                true => (pages / 32).clamp(u64::from(pages >= 8), EXCHANGE_PAGES),
                false => u64::from(pages >= 64),
            }
    };
    let gpu = |(index, gpu): (usize, &Gpu)| GpuConfig {
        capacity: if gpu.pooled { gpu.capacity - exchange(gpu.capacity) } else { 0 },
        exchange: if gpu.pooled { exchange(gpu.capacity) } else { 0 },
        reserve: reserve_of(settings, index, gpu.total),
        distances: (0..gpus.len()).map(|other| distance(call, index, other)).collect(),
        speed: speed(call, index, gpu.capacity),
    };
    Config {
        base,
        bytes,
        page_bytes,
        placement: settings.placement,
        gpus: gpus.iter().enumerate().map(gpu).collect(),
        host_budget: host - exchange(host),
        host_exchange: exchange(host),
        keep_bytes: (smallest / 64).min(KEEP_AT_MOST),
        verify: settings.verify,
        copies_all: settings.copies_all,
    }
}

/// How far the memory of `other` is from `gpu`: 0 its own, 1 and more a peer by the rank of its link.
fn distance(call: &Functions, gpu: usize, other: usize) -> Option<u32> {
    if gpu == other {
        return Some(0);
    }
    let mut can: c_int = 0;
    // SAFETY: the out-parameter is live.
    let rc = unsafe { (call.cuDeviceCanAccessPeer)(&mut can, gpu as i32, other as i32) };
    if rc != CUDA_SUCCESS || can == 0 {
        return None;
    }
    let mut rank: c_int = 0;
    if let Some(ask) = call.cuDeviceGetP2PAttribute {
        // SAFETY: the out-parameter is live; a refusal leaves the rank at 0.
        unsafe { ask(&mut rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, gpu as i32, other as i32) };
    }
    Some(1 + rank.max(0) as u32)
}

/// The budget counts for the pools of all processes of this user together.
fn host_budget(host: HostBudget) -> u64 {
    let bytes = match host {
        HostBudget::Auto => (host_available() + ledger::host_of_others()) / 4 * 3,
        HostBudget::Bytes(bytes) => bytes,
        HostBudget::Percent(percent) => memory_line("MemTotal:").unwrap_or(0) / 100 * percent,
    };
    bytes / GRANULE * GRANULE
}

/// Bytes of host RAM that can be pinned now: what the kernel and the control group have left, less a rest.
pub fn host_available() -> u64 {
    let machine = memory_line("MemAvailable:").unwrap_or(0);
    machine.min(group_available().unwrap_or(u64::MAX)).saturating_sub(HOST_KEPT)
}

fn memory_line(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// What the control group still allows; `None` where there is no limit. Caches that can be dropped count as free.
fn group_available() -> Option<u64> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let of = |path: &str, name: &str| {
        let text = std::fs::read_to_string(path).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    let (limit, used, cache) = match number("/sys/fs/cgroup/memory.max") {
        Some(limit) => {
            let cache = of("/sys/fs/cgroup/memory.stat", "inactive_file ");
            (limit, number("/sys/fs/cgroup/memory.current")?, cache)
        }
        None => {
            let folder = "/sys/fs/cgroup/memory/memory";
            let cache = of("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file ");
            let limit = number(&format!("{folder}.limit_in_bytes")).filter(|limit| *limit < 1 << 60)?;
            (limit, number(&format!("{folder}.usage_in_bytes"))?, cache)
        }
    };
    Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
}

/// Whether pooling is on in this process.
pub fn active() -> bool {
    slot::enabled() && engine().is_some()
}
