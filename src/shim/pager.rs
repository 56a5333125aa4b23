//! `VGMEM_PAGING=auto`: before a launch, the pages that it names come home.
//!
//! Every call that gives work to a GPU asks for a [`Use`] before it and ends it after it. Without pressure a use
//! notes the stream. Under pressure it leaves a marker on the stream, and before a launch pages move:
//!
//! - *strict* (rule S3): the launching thread waits with the gate open for what was submitted so far, closes it, waits
//!   for the rest, lets the engine exchange pages, and launches.
//! - *beside running work* (rule S4, `VGMEM_SAFETY=auto`): the launch is of a function that was found to use only what
//!   it names (`trust`). The thread waits, holding no lock, until its pages are at home, while pages that no work
//!   names leave for them. What may use anything finds every page mapped, and nothing moves beside it.
//!
//! Every wait has a deadline, after which the launch goes on with its pages where they lie: work may wait for work
//! that is launched later. After a missed deadline nobody waits again until some work is seen complete.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vgmem_abi::*;
use vgmem_engine::{Context, Ended, Using, Wish};

use crate::capture::{Capture, capture_of};
pub use crate::held::Held;
use crate::scan::Ticket;
use crate::start::{Engine, engine};
use crate::times::Begun;
use crate::trust::{self, Trust};
use crate::{beside, broken, gate, loud, marks, mover, pinning, quiet, scan, stats, times};

/// How often launches look what to fetch next, at most, where no thread does.
const LOOK_AHEAD: Duration = Duration::from_micros(500);
/// Launches that are made strictly after one for which pages had to be mapped again, at first and at most.
const COOLING: u64 = 64;
const COOLING_MOST: u64 = 1 << 16;

/// All GPUs.
pub(crate) const ALL: u64 = u64::MAX;

static ON: AtomicBool = AtomicBool::new(false);
/// `VGMEM_SAFETY=auto`.
static BESIDE: AtomicBool = AtomicBool::new(false);
/// All work in flight has markers that the pool knows of. Not so before the first wait under pressure.
static SETTLED: AtomicBool = AtomicBool::new(false);
/// Launches that are still to be made strictly, and how many the next disturbance costs.
static COOL: AtomicU64 = AtomicU64::new(0);
static PENALTY: AtomicU64 = AtomicU64::new(COOLING);
/// Launches beside others since the penalty changed.
static CALM: AtomicU64 = AtomicU64::new(0);
/// When a launch looked ahead last, in microseconds since the start.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// Turns the pager on, before the program's first submission. `beside`: moves may run beside work.
pub fn start(beside: bool) {
    ON.store(true, Ordering::SeqCst);
    BESIDE.store(beside, Ordering::SeqCst);
    gate::turn_on();
}

/// Whether the pager is on.
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Whether launches have to be looked at: the pager is on, and pages lie away from their home.
#[inline]
pub fn is_needed(engine: &Engine) -> bool {
    ON.load(Ordering::Relaxed) && engine.pool.is_under_pressure()
}

/// Whether pages were hidden from work that runs.
pub fn hides(engine: &Engine) -> bool {
    BESIDE.load(Ordering::Relaxed) && engine.pool.snapshot().evicted > 0
}

/// Whether pages may move beside running work, and there is pressure.
pub fn is_beside(engine: &Engine) -> bool {
    BESIDE.load(Ordering::Relaxed) && is_needed(engine)
}

/// What one submission uses, from before the driver's call until after it.
#[must_use]
#[derive(Default)]
pub struct Use {
    on: bool,
    pub(crate) using: Using,
    scan: Option<Scan>,
    timed: Option<Begun>,
    /// Work is in flight even where the call fails: scans of ours, or a part of a batch.
    begun: bool,
}

/// A launch whose operands are scanned, before it and behind it.
struct Scan {
    function: CUfunction,
    ranges: Vec<(u64, u64)>,
    before: Ticket,
}

/// A launch as its parameters show it.
pub struct Launch<'a> {
    /// The function or kernel handle.
    pub function: CUfunction,
    /// The 8-byte words of its parameters; `None` where the driver cannot say.
    pub words: Option<&'a [u64]>,
    /// The stream, never NULL.
    pub stream: CUstream,
}

impl Use {
    /// A submission that uses no pooled memory, or whose pages need not be thought of.
    #[inline]
    pub fn noted() -> Use {
        Use { on: ON.load(Ordering::Relaxed), ..Use::default() }
    }

    /// A launch. Brings its pages home.
    pub fn of_launch(engine: &Engine, launch: &Launch) -> Use {
        let Some((context, gpu)) = engine.current().filter(|_| is_needed(engine)) else {
            return Use::noted();
        };
        if !matches!(capture_of(engine, launch.stream), Capture::None) {
            return Use::noted();
        }
        let named = pooled(engine, launch.words.unwrap_or(&[]));
        look_at_pointers(engine, gpu, &named);
        let mut wish = engine.pool.wish(gpu, launch.function as u64, &named);
        let timing = wish.timing();
        let mut made = Use::of_known_launch(engine, context, gpu, launch, (&named, &wish));
        made.timed = timing.and_then(|timing| times::begin(engine, context, launch.stream, timing));
        made
    }

    /// A launch that names these addresses and wishes that.
    fn of_known_launch(
        engine: &Engine,
        context: Context,
        gpu: u8,
        launch: &Launch,
        (named, wish): (&[u64], &Wish),
    ) -> Use {
        let function = launch.function as u64;
        if !is_beside(engine) {
            let (wanted, _) = split(engine, wish, named);
            exchange(engine, context, gpu, function, &wanted);
            return Use::noted();
        }
        let trust = match launch.words {
            None => Trust::Opaque,
            Some(_) => trust::of(engine, context, launch.function),
        };
        if matches!(trust, Trust::Unknown | Trust::Opaque) {
            return Use::of_opaque_launch(engine, context, gpu, launch, named, trust);
        }
        let (wanted, aside) = split(engine, wish, named);
        let using = if is_disturbed(engine) {
            let mut using = engine.pool.begin_use(named);
            engine.pool.claim(&mut using);
            exchange(engine, context, gpu, function, &wanted);
            using
        } else {
            stats::BESIDE.add(1);
            calm_down();
            let using = beside::bring(engine, context, gpu, function, &wanted);
            if aside.is_empty() { using } else { using.and(beside::show(engine, &aside)) }
        };
        let mut made = Use { on: true, using, ..Use::default() };
        if trust == Trust::Sample {
            made.scan_operands(engine, context, gpu, launch);
        }
        made
    }

    /// A launch of a function that may use anything, or of which nothing is known yet.
    fn of_opaque_launch(
        engine: &Engine,
        context: Context,
        gpu: u8,
        launch: &Launch,
        named: &[u64],
        trust: Trust,
    ) -> Use {
        if trust == Trust::Opaque {
            let made = Use::of_anything(false);
            exchange(engine, context, gpu, launch.function as u64, named);
            return made;
        }
        // Once for each function: no reason to change how the others are launched.
        let mut made = Use::of_everything(engine, 1 << (gpu & 63)).0;
        exchange(engine, context, gpu, launch.function as u64, named);
        made.scan_operands(engine, context, gpu, launch);
        made
    }

    /// Scans the operands of a launch now and behind it.
    fn scan_operands(&mut self, engine: &Engine, context: Context, gpu: u8, launch: &Launch) {
        let Some(ranges) = trust::operands(engine, gpu, launch.words.unwrap_or(&[])) else {
            return trust::distrust(engine, context, launch.function);
        };
        self.begun = true; // also where the ticket is not given: some of the scans may run
        let ticket = trust::scan(engine, context, launch.stream, &ranges);
        self.scan = ticket.map(|before| Scan { function: launch.function, ranges, before });
    }

    /// A copy or memset that uses the allocations of these addresses, and nothing else.
    #[inline]
    pub fn of_ranges(addresses: impl IntoIterator<Item = u64>) -> Use {
        match engine().filter(|engine| is_needed(engine)) {
            None => Use::noted(),
            Some(engine) => Use::of_addresses(engine, &addresses.into_iter().collect::<Vec<_>>()),
        }
    }

    #[cold]
    fn of_addresses(engine: &Engine, addresses: &[u64]) -> Use {
        let mut using = engine.pool.begin_use(addresses);
        if !using.is_empty() {
            match engine.pool.goes_by_parts() {
                true => engine.pool.note_names(addresses),
                false => engine.pool.note_use(0, &using),
            }
        }
        // Usually all is mapped somewhere, and nothing has to be waited for.
        if !engine.pool.is_ready(&mut using) {
            engine.pool.claim(&mut using);
        }
        Use { on: true, using, ..Use::default() }
    }

    /// The call may have submitted a part of its work even where it fails.
    pub fn in_parts(mut self) -> Use {
        self.begun = true;
        self
    }

    /// A submission that may use anything that the current GPU has access to, or any GPU.
    pub fn of_anything(everywhere: bool) -> Use {
        let Some(engine) = engine().filter(|engine| is_beside(engine)) else { return Use::noted() };
        let gpus = engine.current().filter(|_| !everywhere).map_or(ALL, |(_, gpu)| 1 << (gpu & 63));
        let (made, shown) = Use::of_everything(engine, gpus);
        if shown > 0 {
            let penalty = PENALTY.load(Ordering::Relaxed);
            COOL.store(penalty, Ordering::Relaxed);
            CALM.store(0, Ordering::Relaxed);
            PENALTY.store((penalty * 2).min(COOLING_MOST), Ordering::Relaxed);
        }
        made
    }

    /// Maps every page wherever it lies, and counts those that were hidden.
    pub(crate) fn of_everything(engine: &Engine, gpus: u64) -> (Use, u64) {
        let using = engine.pool.begin_use_of_everything(gpus);
        stats::ANYTHING.add(1);
        let shown = if broken::is("anything") { 0 } else { engine.pool.expose_all(gpus) };
        stats::SHOWN.add(shown);
        (Use { on: true, using, ..Use::default() }, shown)
    }

    /// A graph's launch, whose nodes name these addresses. They are brought home as far as they fit.
    pub fn of_graph(engine: &Engine, graph: u64, addresses: &[u64]) -> Use {
        let made = Use::of_anything(true);
        if let Some((context, gpu)) = engine.current().filter(|_| is_needed(engine)) {
            let named = pooled(engine, addresses);
            look_at_pointers(engine, gpu, &named);
            exchange(engine, context, gpu, graph, &named);
        }
        made
    }

    /// After the driver's call: `stream` was given work if it succeeded. Never NULL.
    #[inline]
    pub fn done(self, rc: CUresult, stream: CUstream) -> CUresult {
        if self.on {
            self.end(rc, stream);
        }
        rc
    }

    fn end(mut self, rc: CUresult, stream: CUstream) {
        let Some(engine) = engine() else { return };
        loud::noticed(rc);
        let timed = self.timed.take();
        if rc != CUDA_SUCCESS && !self.begun {
            times::end(engine, stream, timed, false);
            return engine.pool.end_use(self.using, Ended::Nothing);
        }
        let capture = capture_of(engine, stream);
        times::end(engine, stream, timed, rc == CUDA_SUCCESS && matches!(capture, Capture::None));
        match capture {
            Capture::None => {}
            Capture::OfThis => return engine.pool.end_use(self.using, Ended::Nothing),
            // A marker might become part of the capture, or end it.
            Capture::Unknown => {
                lose_track();
                return engine.pool.end_use(self.using, Ended::Unmarked);
            }
        }
        let Some((context, gpu)) = engine.current() else {
            lose_track();
            return engine.pool.end_use(self.using, Ended::Unmarked);
        };
        if self.using.is_empty() && !engine.pool.is_under_pressure() {
            return marks::note(context, stream);
        }
        // A launch that failed tells nothing about its function.
        if rc == CUDA_SUCCESS
            && let Some(Scan { function, ranges, before }) = self.scan.take()
        {
            let behind = trust::scan(engine, context, stream, &ranges);
            trust::was_scanned(context, function, before, behind);
        }
        let ended = match marks::mark(engine, context, stream) {
            Some(mark) => Ended::Marked(mark),
            None => {
                lose_track();
                Ended::Unmarked
            }
        };
        engine.pool.end_use(self.using, ended);
        if is_beside(engine) && is_calm(engine) && (mover::is_there(gpu) || time_to_look()) {
            mover::nudge(engine, context, gpu);
        }
    }
}

fn pooled(engine: &Engine, words: &[u64]) -> Vec<u64> {
    words.iter().copied().filter(|&word| engine.pool.lookup(word).is_some()).collect()
}

/// The addresses that a launch wants at home, and those of what it uses where it lies.
fn split<'a>(engine: &Engine, wish: &Wish, named: &'a [u64]) -> (Cow<'a, [u64]>, Vec<u64>) {
    if !wish.leaves_some() {
        return (Cow::Borrowed(named), Vec::new());
    }
    stats::IN_PLACE.add(1);
    let (wanted, aside) = engine.pool.split(wish, named);
    (Cow::Owned(wanted), aside)
}

/// A launch names these addresses.
fn look_at_pointers(engine: &Engine, gpu: u8, named: &[u64]) {
    if engine.pool.note_pointers(gpu, named) {
        log::debug!("an allocation does not fit on GPU {gpu}: launches bring the parts that they point to");
    }
    stats::BY_PARTS.add(u64::from(engine.pool.goes_by_parts()));
}

/// Whether pages may move beside work now.
pub fn is_calm(engine: &Engine) -> bool {
    COOL.load(Ordering::Relaxed) == 0
        && SETTLED.load(Ordering::SeqCst)
        && !engine.pool.on_hold()
        && !engine.pool.goes_by_parts()
}

/// Whether moves beside work have to wait for calmer times. Counts one launch.
fn is_disturbed(engine: &Engine) -> bool {
    let calm = is_calm(engine);
    let cool = COOL.load(Ordering::Relaxed);
    if cool > 0 {
        COOL.store(cool - 1, Ordering::Relaxed);
    }
    !calm
}

/// A launch was made beside others: after many of them disturbances are forgiven.
fn calm_down() {
    let penalty = PENALTY.load(Ordering::Relaxed);
    if CALM.fetch_add(1, Ordering::Relaxed) >= 2 * penalty {
        CALM.store(0, Ordering::Relaxed);
        PENALTY.store((penalty / 2).max(COOLING), Ordering::Relaxed);
    }
}

fn time_to_look() -> bool {
    let now = times::micros();
    let last = LOOKED.load(Ordering::Relaxed);
    let due = now.saturating_sub(last) >= LOOK_AHEAD.as_micros() as u64;
    due && LOOKED.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Strictly: exchanges pages for a launch that names these addresses, while nothing runs.
fn exchange(engine: &Engine, context: Context, gpu: u8, function: u64, addresses: &[u64]) {
    let away = engine.pool.note_launch(gpu, function, addresses);
    let unsettled = BESIDE.load(Ordering::Relaxed) && !SETTLED.load(Ordering::SeqCst);
    if !(away || unsettled) || engine.pool.on_hold() {
        return;
    }
    let begin = Instant::now();
    stats::STRICT.add(1);
    if BESIDE.load(Ordering::Relaxed) && engine.pool.goes_by_parts() {
        // Nothing moves beside work now: what was hidden comes and goes like the rest.
        engine.pool.expose_all(ALL);
    }
    if !quiet::passes(engine) {
        return stats::WAITED_STRICT.add_since(begin);
    }
    let exchanged = gate::closed_by_holder(|| {
        // A capture that has begun meanwhile: a marker on its stream would end it.
        if engine.pool.on_hold() || !quiet::is_idle(engine) {
            return;
        }
        engine.pool.nothing_in_flight();
        SETTLED.store(true, Ordering::SeqCst);
        match engine.pool.bring(gpu, context, addresses) {
            Ok(done) => log::trace!("before a launch: {done:?}"),
            Err(error) => log::debug!("pages stay where they are: the driver answered {}", error.code()),
        }
    });
    stats::WAITED_STRICT.add_since(begin);
    if !exchanged {
        log::debug!("pages stay where they are: another thread submits");
    }
    if let Some(engine) = crate::start::engine() {
        pinning::look(engine, context, gpu);
    }
}

/// Work was submitted that leaves no marker.
pub fn unmarked() {
    if ON.load(Ordering::Relaxed) {
        lose_track();
    }
}

pub(crate) fn lose_track() {
    if let Some(engine) = engine() {
        engine.pool.lose_track();
    }
    quiet::lose_track();
    SETTLED.store(false, Ordering::SeqCst);
}

/// A capture is about to begin: what it records may use anything, now and later, and nothing can move meanwhile.
pub fn capture_begins(engine: &Engine) {
    if is_beside(engine) {
        engine.pool.expose_all(ALL);
    }
}

/// Memory was allocated: when it gets scarce, what paging needs is made while there is room and time.
pub fn get_ready(engine: &'static Engine, context: Context, home: u8) {
    if !ON.load(Ordering::Relaxed) || engine.pool.on_hold() {
        return;
    }
    if is_beside(engine) {
        scan::prepare(engine, context);
    }
    if is_needed(engine) && !engine.settings.copies_all {
        engine.pool.device().prepare_prints(context);
    }
    pinning::make_ahead(engine, context, home);
}

/// The stream that NULL names, for the plain function or its per-thread twin.
#[inline]
pub fn default_stream(stream: CUstream, threaded: bool) -> CUstream {
    match (stream.is_null(), threaded) {
        (false, _) => stream,
        (true, false) => CU_STREAM_LEGACY,
        (true, true) => CU_STREAM_PER_THREAD,
    }
}
