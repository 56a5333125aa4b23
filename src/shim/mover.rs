//! A thread for each GPU that moves pages beside running work (rule S4), so that copies go on while the program's
//! thread launches, computes or sits in a wait of the driver.
//!
//! Launches post what they want and wait; the thread serves the one that waits, and fetches ahead what is expected
//! next. It sleeps while nothing moves and nothing runs. Where it could not be started, and once the process has begun
//! to exit, whoever needs pages takes the same steps himself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use vgmem_engine::{Context, Progress};

use crate::start::{Engine, engine};
use crate::{fork, marks, pager, paths, pinning, quiet, times, trace};

/// GPUs that can be named by one bit each.
const GPUS: usize = 64;
/// Between two looks while pages move and launches wait for them, or did so lately; and where no launch does: what is
/// on its way lasts longer, and the program may need the processor.
const BUSY_NAP: Duration = Duration::from_micros(10);
const CALM_NAP: Duration = Duration::from_micros(50);
const LATELY: Duration = Duration::from_millis(100);
/// Between two looks while nothing moves, and work runs whose end might let pages move.
const IDLE_NAP: Duration = Duration::from_micros(200);
/// Microseconds between two plans while no launch waits, and how many times as long as the last one took where no page
/// has landed since: launches need the locks that a plan takes. That long at most, as a plan may have waited for the
/// driver.
const BETWEEN_PLANS: u64 = 50;
const TIMES_A_PLAN: u64 = 4;
const REST: u64 = 1_000;
/// How long these two naps go on after pages moved.
const STILL: Duration = Duration::from_millis(2);
/// How long the end of the process waits for a step that is under way.
const FAREWELL: Duration = Duration::from_secs(1);

/// A launch that waits for its pages.
#[derive(Clone)]
struct Demand {
    /// Tells it from those before it.
    ticket: u64,
    context: Context,
    named: Vec<u32>,
    /// Until then it waits for the best page to go rather than for any.
    patient: Instant,
}

/// What is shared with the thread of one GPU.
struct Mover {
    /// The context that copies are made in; 0 is none. Cleared before it ends, under `step`.
    context: AtomicU64,
    demand: Mutex<Option<Demand>>,
    /// How far the pages of the demand with this ticket are: four times the ticket, and one of the three below.
    progress: AtomicU64,
    /// Held during a step, which calls the driver.
    step: Mutex<()>,
    /// When the last plan was made, how long it took, in microseconds, and the pages that had landed.
    planned: AtomicU64,
    took: AtomicU64,
    landings: AtomicU64,
    awake: AtomicBool,
    started: AtomicBool,
    thread: OnceLock<Thread>,
}

static MOVERS: [Mover; GPUS] = [const {
    Mover {
        context: AtomicU64::new(0),
        demand: Mutex::new(None),
        progress: AtomicU64::new(WAITING),
        step: Mutex::new(()),
        planned: AtomicU64::new(0),
        took: AtomicU64::new(0),
        landings: AtomicU64::new(0),
        awake: AtomicBool::new(false),
        started: AtomicBool::new(false),
        thread: OnceLock::new(),
    }
}; GPUS];
/// The process has begun to exit: the threads call no driver any more.
static OVER: AtomicBool = AtomicBool::new(false);

const WAITING: u64 = 0;
const READY: u64 = 1;
const STUCK: u64 = 2;
static TICKETS: AtomicU64 = AtomicU64::new(1);

impl Mover {
    /// Whether to plan though no launch waits.
    fn is_time(&self, landings: u64) -> bool {
        let since = times::micros().saturating_sub(self.planned.load(Ordering::Relaxed));
        let rest = if landings == self.landings.load(Ordering::Relaxed) {
            (TIMES_A_PLAN * self.took.load(Ordering::Relaxed)).clamp(BETWEEN_PLANS, REST)
        } else {
            BETWEEN_PLANS
        };
        since > rest
    }

    /// A plan was begun at that time.
    fn has_planned(&self, begin: u64, landings: u64) {
        let now = times::micros();
        self.planned.store(now, Ordering::Relaxed);
        self.took.store(now.saturating_sub(begin), Ordering::Relaxed);
        self.landings.store(landings, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of(gpu: u8) -> &'static Mover {
    &MOVERS[gpu as usize % GPUS]
}

/// A launch that waits; withdrawn when dropped.
pub struct Wanted {
    gpu: u8,
    ticket: u64,
}

impl Wanted {
    /// Asks for the pages of these allocations. One launch a GPU at a time.
    pub fn post(context: Context, gpu: u8, named: Vec<u32>, patient: Instant) -> Wanted {
        let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
        let mover = of(gpu);
        *lock(&mover.demand) = Some(Demand { ticket, context, named, patient });
        mover.thread.get().map(Thread::unpark);
        Wanted { gpu, ticket }
    }

    /// How far they are. Where no thread does the work, the caller takes a step.
    pub fn look(&self, engine: &Engine, context: Context) -> Progress {
        nudge(engine, context, self.gpu);
        let progress = of(self.gpu).progress.load(Ordering::Acquire);
        match (progress >> 2 == self.ticket, progress & 3) {
            (true, READY) => Progress::Ready,
            (true, STUCK) => Progress::Stuck,
            _ => Progress::Waiting(0),
        }
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        *lock(&of(self.gpu).demand) = None;
    }
}

/// Work was submitted, or somebody waits: the thread looks what there is to do. Without one, a step is taken here.
pub fn nudge(engine: &Engine, context: Context, gpu: u8) {
    let mover = of(gpu);
    mover.context.store(context, Ordering::Release);
    if !mover.started.swap(true, Ordering::AcqRel) {
        start(engine, gpu);
    }
    match mover.thread.get() {
        Some(thread) if !OVER.load(Ordering::Acquire) => {
            if !mover.awake.swap(true, Ordering::AcqRel) {
                thread.unpark();
            }
        }
        _ => {
            step(engine, gpu, false, true);
        }
    }
}

/// Whether the process has begun to exit.
pub fn is_over() -> bool {
    OVER.load(Ordering::SeqCst)
}

/// Whether a thread moves pages of this GPU.
pub fn is_there(gpu: u8) -> bool {
    of(gpu).thread.get().is_some() && !OVER.load(Ordering::Acquire)
}

fn start(engine: &Engine, gpu: u8) {
    paths::open(engine, gpu);
    let mover = of(gpu);
    let made = std::thread::Builder::new().name(format!("vgmem-move{gpu}")).spawn(move || run(gpu));
    match made {
        Ok(handle) => {
            let _ = mover.thread.set(handle.thread().clone());
            watch_the_end();
        }
        Err(error) => log::debug!("no thread moves pages of GPU {gpu}: {error}"),
    }
}

/// From now on the end of the process waits for what our threads do with the driver. Before a thread begins to.
pub fn watch_the_end() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Before the handlers of the driver, which were registered earlier.
        // SAFETY: a function without arguments that lives as long as the process: the library is not unloaded.
        let _ = unsafe { libc::atexit(at_exit) };
    });
}

/// No step is under way when this returns, and none begins.
extern "C" fn at_exit() {
    if fork::forked() {
        return;
    }
    OVER.store(true, Ordering::SeqCst);
    let begin = Instant::now();
    pinning::wait_until_idle(begin + FAREWELL);
    for mover in MOVERS.iter().filter(|mover| mover.thread.get().is_some()) {
        while mover.step.try_lock().is_err() && begin.elapsed() < FAREWELL {
            std::thread::sleep(BUSY_NAP);
        }
    }
}

fn run(gpu: u8) {
    let Some(engine) = engine() else { return };
    // SAFETY: takes numbers, and concerns this thread alone: its naps end when they should.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000u64) };
    let mover = of(gpu);
    let mut moved = Instant::now();
    let mut looked = Instant::now();
    let mut waited_for = Instant::now(); // pages begin to move as somebody waits
    while !OVER.load(Ordering::SeqCst) {
        if looked.elapsed() > pinning::LOOK {
            // Under the lock that the end of the process and of contexts take.
            if let Ok(_step) = mover.step.try_lock()
                && !OVER.load(Ordering::SeqCst)
            {
                pinning::look_at_others(engine);
            }
            looked = Instant::now();
        }
        pinning::look(engine, mover.context.load(Ordering::Acquire), gpu);
        let found = step(engine, gpu, true, false);
        if found.moving {
            moved = Instant::now();
        }
        if found.waited_for {
            waited_for = Instant::now();
        }
        if moved.elapsed() < STILL {
            match waited_for.elapsed() < LATELY {
                true => quiet::nap(BUSY_NAP),
                false => std::thread::park_timeout(CALM_NAP), // a launch that waits ends this sooner
            }
            continue;
        }
        if found.running {
            std::thread::park_timeout(IDLE_NAP); // a launch that waits ends this sooner
            continue;
        }
        // Whoever comes from here on wakes the thread; what came before is seen by one more look.
        mover.awake.store(false, Ordering::SeqCst);
        let found = step(engine, gpu, true, true);
        match (found.moving || found.running, engine.pool.twins() > 0) {
            (true, _) => moved = Instant::now(),
            (false, true) => std::thread::park_timeout(pinning::LOOK), // others may need them
            (false, false) => {
                std::thread::park();
                moved = Instant::now();
            }
        }
        mover.awake.store(true, Ordering::SeqCst);
    }
}

/// What a step saw.
struct Found {
    /// Pages are on their way, or a launch waits.
    moving: bool,
    /// A launch waits.
    waited_for: bool,
    /// Work is in flight.
    running: bool,
}

/// `own`: on the thread of this GPU, which calls nobody once the process has begun to exit. Threads of the program that
/// go on then take their steps themselves.
/// `plans`: also when the last plan is just made.
fn step(engine: &Engine, gpu: u8, own: bool, plans: bool) -> Found {
    let mover = of(gpu);
    let nothing = Found { moving: false, waited_for: false, running: false };
    let Ok(_step) = mover.step.try_lock() else { return Found { moving: true, ..nothing } };
    let context = mover.context.load(Ordering::Acquire);
    if context == 0 || (own && OVER.load(Ordering::SeqCst)) {
        return nothing;
    }
    let running = !trace::call("poll", || marks::poll(engine));
    if !pager::is_calm(engine) {
        return Found { running, ..nothing };
    }
    let demand = lock(&mover.demand).clone();
    let mut reserved = 0;
    if let Some(demand) = &demand {
        let patient = Instant::now() < demand.patient;
        let advance = || engine.pool.advance(gpu, demand.context, &demand.named, patient);
        let progress = match trace::call("advance", advance) {
            Progress::Ready => READY,
            Progress::Stuck => STUCK,
            Progress::Waiting(bytes) => {
                reserved = bytes; // or the frames that get free for the launch would serve a later one, for ever
                WAITING
            }
        };
        mover.progress.store(demand.ticket << 2 | progress, Ordering::Release);
    }
    let moving = if plans || demand.is_some() || mover.is_time(engine.pool.landings(gpu)) {
        let begin = times::micros();
        let moving = trace::call("look-ahead", || engine.pool.look_ahead(gpu, context, reserved));
        mover.has_planned(begin, engine.pool.landings(gpu));
        moving
    } else {
        engine.pool.look_at_copies(gpu)
    };
    Found { moving: moving || demand.is_some(), waited_for: demand.is_some(), running }
}

/// A context is about to end: no step is made in it from now on, and none at all until this is dropped.
pub fn context_leaves(context: Context) -> Vec<MutexGuard<'static, ()>> {
    let started = MOVERS.iter().filter(|mover| mover.started.load(Ordering::Acquire));
    started
        .map(|mover| {
            let step = lock(&mover.step);
            let _ = mover.context.compare_exchange(context, 0, Ordering::AcqRel, Ordering::Acquire);
            step
        })
        .collect()
}
