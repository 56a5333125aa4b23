//! Moves beside running work, on the strict driver of `testing`: what is queued runs later, and must then find every
//! page that it names at its address, with the bytes that were written last.

use std::collections::VecDeque;

use proptest::prelude::*;
use vgmem_policy::Placement;

use crate::free::Freed;
use crate::overlap::Progress;
use crate::pool::Pool;
use crate::testing::{G, Mock, pool};
use crate::tests::{ask, check, pages};
use crate::tests_pager::small;
use crate::tests_twins::rounds;
use crate::tiers::TierAccount;
use crate::twins::Late;
use crate::uses::{Ended, Mark};

/// Whether pages are hidden.
fn has_hidden(pool: &Pool<Mock>) -> bool {
    pool.hidden.load(std::sync::atomic::Ordering::Acquire) > 0
}

/// Times that a launch asks whether its pages are there.
const PATIENCE: usize = 40;

pub(crate) struct Live {
    pub(crate) base: u64,
    granules: u64,
    value: u64,
}

/// Work in a queue: what it names, and the number of its mark.
struct Work {
    named: Vec<u64>,
    number: u64,
    writes: bool,
}

pub(crate) struct World {
    pub(crate) pool: Pool<Mock>,
    pub(crate) live: Vec<Live>,
    queue: VecDeque<Work>,
    next: u64,
    value: u64,
    /// Break a rule on purpose: say that a stream has passed work that still runs (S1, S2).
    early: bool,
    /// Whether work writes what it names.
    pub(crate) writes: bool,
    /// Launches that gave up waiting for their pages.
    pub(crate) gave_up: usize,
}

impl World {
    pub(crate) fn new(gpu: u64) -> World {
        World::over(small(gpu))
    }

    pub(crate) fn over(pool: Pool<Mock>) -> World {
        let world = World {
            pool,
            live: vec![],
            queue: VecDeque::new(),
            next: 0,
            value: 1,
            early: false,
            writes: true,
            gave_up: 0,
        };
        world.pool.nothing_in_flight();
        world
    }

    pub(crate) fn allocate(&mut self, granules: u64) {
        let Ok(base) = self.pool.allocate(ask(0, granules * G)) else { return };
        pages(&self.pool, base, granules).iter().for_each(|&at| self.pool.device().write(at, self.value));
        self.live.push(Live { base, granules, value: self.value });
    }

    fn queue_work(&mut self, named: Vec<u64>) -> Ended {
        self.next += 1;
        self.queue.push_back(Work { named, number: self.next, writes: self.writes });
        let mark = Mark { stream: 0, number: self.next };
        if self.early {
            self.pool.completed(mark);
        }
        Ended::Marked(mark)
    }

    pub(crate) fn launch(&mut self, named: Vec<u64>) {
        let mut using = self.pool.begin_use(&named);
        self.pool.note_use(0, &using);
        let mut over = false;
        for asked in 0..PATIENCE {
            match self.pool.advance(0, 100, &using.named(), asked < PATIENCE / 2) {
                Progress::Ready | Progress::Stuck => over = true,
                Progress::Waiting(_) if asked % 8 == 7 => self.run(), // the GPU goes on meanwhile
                Progress::Waiting(bytes) => _ = self.pool.look_ahead(0, 100, bytes),
            }
            if over {
                break;
            }
        }
        self.gave_up += usize::from(!over);
        self.pool.claim(&mut using);
        assert!(self.pool.is_ready(&mut using), "pages of a launch are hidden");
        let ended = self.queue_work(named);
        self.pool.end_use(using, ended);
        self.pool.look_ahead(0, 100, 0);
    }

    fn launch_on_everything(&mut self) {
        let using = self.pool.begin_use_of_everything(1);
        self.pool.expose_all(u64::MAX);
        let named = self.live.iter().map(|live| live.base).collect();
        let ended = self.queue_work(named);
        self.pool.end_use(using, ended);
    }

    /// The oldest work runs: reads and writes all that it names.
    pub(crate) fn run(&mut self) {
        let Some(work) = self.queue.pop_front() else { return };
        self.value += 1;
        for base in work.named {
            let Some(live) = self.live.iter_mut().find(|live| live.base == base) else { continue };
            for at in pages(&self.pool, base, live.granules) {
                assert_eq!(self.pool.device().read(at), Some(live.value), "at {at:#x}");
                if work.writes {
                    self.pool.device().write(at, self.value);
                }
            }
            live.value = if work.writes { self.value } else { live.value };
        }
        self.pool.completed(Mark { stream: 0, number: work.number });
    }

    /// A launch of another thread: its use ends after that of a later one.
    fn launch_and_hold(&mut self, named: Vec<u64>) {
        let mut using = self.pool.begin_use(&named);
        self.pool.claim(&mut using);
        let ended = self.queue_work(named.clone());
        self.launch(named);
        self.pool.end_use(using, ended);
    }

    pub(crate) fn free(&mut self, index: usize) {
        while !self.queue.is_empty() {
            self.run(); // as the wait of a free does
        }
        let live = self.live.swap_remove(index);
        assert_eq!(self.pool.free(live.base), Freed::Done(Ok(())));
    }

    pub(crate) fn step(&mut self, what: u8, granules: u64, a: usize, b: usize) {
        let count = self.live.len().max(1);
        match what {
            0 => self.allocate(granules),
            1 if !self.live.is_empty() => self.free(a % count),
            2 | 3 => self.run(),
            4 => self.launch_on_everything(),
            6 if !self.live.is_empty() => self.launch_and_hold(vec![self.live[a % count].base]),
            5 => {
                self.pool.look_ahead(0, 100, 0);
                self.writes = granules.is_multiple_of(3);
                self.pool.device().0.lock().unwrap().late = granules.is_multiple_of(7);
            }
            7 => {
                self.pool.make_wanted_frames(0, 100, 2);
            }
            _ if !self.live.is_empty() => {
                self.launch(vec![self.live[a % count].base, self.live[b % count].base]);
            }
            _ => {}
        }
    }

    /// Every page can be mapped, and every byte of memory is somebody's, or lost.
    pub(crate) fn is_whole(&self) {
        self.pool.expose_all(u64::MAX);
        for live in &self.live {
            let pages = pages(&self.pool, live.base, live.granules);
            assert!(pages.iter().all(|&at| self.pool.device().read(at).is_some()));
        }
        let state = self.pool.lock();
        let sum = |part: fn(&TierAccount) -> u64| state.tiers.iter().map(part).sum::<u64>();
        let held: u64 = state.pages.iter().map(|(_, page)| page.bytes).sum();
        let late: u64 = state.late.iter().map(Late::bytes).sum();
        assert_eq!(held + late + sum(|tier| tier.spare + tier.twins) + state.lost, sum(|tier| tier.used));
    }

    /// Everything runs, and everything still has its bytes and can be freed.
    pub(crate) fn end(mut self) -> u64 {
        while !self.queue.is_empty() {
            self.run();
        }
        self.pool.expose_all(u64::MAX);
        assert!(!has_hidden(&self.pool));
        for live in &self.live {
            for at in pages(&self.pool, live.base, live.granules) {
                assert_eq!(self.pool.device().read(at), Some(live.value));
            }
        }
        while !self.live.is_empty() {
            self.free(0);
        }
        (0..30).for_each(|_| self.pool.settle_late());
        self.pool.release_unused();
        assert_eq!(self.pool.device().0.lock().unwrap().mapped.len(), 0);
        self.pool.lock().lost
    }
}

#[test]
fn a_launch_waits_for_its_pages_and_others_leave_beside_running_work() {
    let mut world = World::new(16);
    (0..4).for_each(|_| world.allocate(8));
    let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
    for _ in 0..6 {
        for &base in &bases {
            world.launch(vec![base]);
            assert!(world.queue.len() < 3);
            while world.queue.len() > 1 {
                world.run();
            }
        }
    }
    let seen = world.pool.snapshot();
    assert!(seen.fetched > 20 && seen.evicted > 20, "{seen:?}");
    check(&world.pool, &[20, 68]);
    assert_eq!(world.end(), 0);
}

/// Sizes that do not serve one another: every launch gets its pages, whatever frames are free.
#[test]
fn launches_get_pages_of_sizes_for_which_no_frame_is_free() {
    for writes in [true, false] {
        let mut world = World::new(16);
        world.writes = writes;
        [7, 4, 3, 6, 1, 8, 5, 2].into_iter().for_each(|granules| world.allocate(granules));
        let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
        for step in 0..120 {
            world.launch(vec![bases[step * step % 8], bases[step * 3 % 8]]);
            while world.queue.len() > 1 {
                world.run();
            }
            world.pool.make_wanted_frames(0, 100, 2);
            check(&world.pool, &[20, 68]);
        }
        assert_eq!(world.gave_up, 0, "of 120");
        assert!(world.pool.snapshot().fetched > 60, "{:?}", world.pool.snapshot());
        assert_eq!(world.end(), 0);
    }
}

#[test]
fn work_that_may_use_anything_finds_every_page() {
    let mut world = World::new(16);
    (0..4).for_each(|_| world.allocate(8));
    let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
    for &base in bases.iter().cycle().take(9) {
        world.launch(vec![base]);
        world.run();
    }
    assert!(has_hidden(&world.pool));
    world.launch_on_everything();
    assert!(!has_hidden(&world.pool));
    // While it is in flight nothing is hidden, whatever is launched.
    world.launch(vec![bases[0]]);
    assert!(!has_hidden(&world.pool));
    assert_eq!(world.end(), 0);
}

/// The model finds an engine that believes work to be over which is not (rules S1 and S2).
#[test]
#[should_panic]
fn pages_that_leave_under_running_work_are_noticed() {
    let mut world = World::new(16);
    world.early = true;
    (0..4).for_each(|_| world.allocate(8));
    let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
    for &base in bases.iter().cycle().take(12) {
        world.launch(vec![base]);
    }
    world.end();
}

/// `VGMEM_VERIFY`: a byte that changes on its way stops the program.
#[test]
#[should_panic(expected = "changed while it was moved")]
fn a_page_that_changes_on_its_way_is_noticed() {
    let mut world = World::new(16);
    (0..4).for_each(|_| world.allocate(8));
    world.pool.device().0.lock().unwrap().spoiling = true;
    let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
    for &base in bases.iter().cycle().take(9) {
        world.launch(vec![base]);
        world.run();
    }
}

/// A page that nothing maps must not change while it is put away.
#[test]
#[should_panic(expected = "changed while it was put away")]
fn a_page_that_changes_where_it_is_put_away_is_noticed() {
    let mut world = World::new(16);
    (0..4).for_each(|_| world.allocate(8));
    let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
    for &base in bases.iter().cycle().take(9) {
        world.launch(vec![base]);
        world.run();
    }
    let away: Vec<u64> = {
        let state = world.pool.lock();
        let hidden = state.pages.iter().filter(|(_, page)| !page.shown && !page.moving && page.tier == 1);
        hidden.map(|(_, page)| page.handle).collect()
    };
    assert!(!away.is_empty());
    for handle in away {
        *world.pool.device().0.lock().unwrap().contents.get_mut(&handle).unwrap() += 1;
    }
    for &base in bases.iter().cycle().take(9) {
        world.launch(vec![base]);
    }
}

/// From the first byte of a copy on its page is at no address: what nobody foresaw is loud (rule S5).
#[test]
fn a_moving_page_is_at_no_address() {
    let mut world = World::new(16);
    (0..4).for_each(|_| world.allocate(8));
    let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
    for &base in bases.iter().cycle().take(9) {
        world.launch(vec![base]);
        world.run();
    }
    // What is named and away begins to move with the first look.
    let away = |base: &u64| pages(&world.pool, *base, 8).len() < 2;
    let using = world.pool.begin_use(&[*bases.iter().find(|base| away(base)).unwrap()]);
    world.pool.advance(0, 100, &using.named(), true);
    let moving: Vec<u64> = {
        let state = world.pool.lock();
        state.pages.iter().filter(|(_, page)| page.moving).map(|(_, page)| page.address).collect()
    };
    assert!(!moving.is_empty() && moving.iter().all(|&at| world.pool.device().read(at).is_none()));
    world.pool.end_use(using, Ended::Nothing);
    world.end();
}

/// A context ends while pages move with its copies: they stay where they were, and nothing is lost.
#[test]
fn moves_end_with_their_context() {
    let mut world = World::new(16);
    (0..4).for_each(|_| world.allocate(8));
    let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
    for &base in bases.iter().cycle().take(9) {
        world.launch(vec![base]);
        world.run();
    }
    world.pool.look_ahead(0, 100, 0);
    assert!(!world.pool.lock_motions(0).is_empty());
    assert_eq!(world.pool.free_context(100, true), 4);
    assert!(world.pool.lock_motions(0).is_empty() && !has_hidden(&world.pool));
    world.live.clear();
    assert_eq!(world.end(), 0);
}

/// Every driver call of a few launches fails once: nothing is lost but what the driver did not take back.
#[test]
fn a_fault_at_every_call_of_moves_beside_work_loses_no_byte() {
    let play = |writes: bool, fail_at: Option<usize>| {
        let mut world = World::new(16);
        world.writes = writes;
        (0..3).for_each(|_| world.allocate(8));
        if !writes {
            rounds(&mut world, 3);
            assert!(world.pool.snapshot().unwritten > 0);
        }
        let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
        let before = world.pool.device().0.lock().unwrap().calls;
        world.pool.device().0.lock().unwrap().fail_at = fail_at.map(|at| before + at);
        for &base in bases.iter().cycle().take(7) {
            world.launch(vec![base]);
            world.run();
        }
        let count = world.pool.device().0.lock().unwrap().calls - before;
        world.pool.device().0.lock().unwrap().fail_at = None;
        world.is_whole();
        count
    };
    for writes in [true, false] {
        let count = play(writes, None);
        assert!(count > 30, "{count}");
        (0..count).for_each(|at| _ = play(writes, Some(at)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Random launches, allocations, frees and ends of work: contents, mappings and books hold after every step.
    #[test]
    fn random_work_finds_its_pages(
        steps in prop::collection::vec((0u8..16, 1u64..14, 0usize..8, 0usize..8), 1..120), gpu in 4u64..24,
    ) {
        let mut world = World::new(gpu);
        for (what, granules, a, b) in steps {
            world.step(what, granules, a, b);
            check(&world.pool, &[gpu + 4, 68]);
        }
        prop_assert_eq!(world.end(), 0);
    }
}

/// A launch of one GPU that names memory of another's shows none of its pages: they move under another lock.
#[test]
fn pages_of_another_gpu_are_not_shown() {
    let mut config = pool(&[8, 0], 64, 4, Placement::Home).config().clone();
    (config.gpus[0].exchange, config.host_exchange) = (4 * G, 4 * G);
    let mock = Mock::default();
    mock.0.lock().unwrap().left = vec![12 * G, 0, 68 * G];
    let pool = Pool::new(mock, config);
    let [first, second] = [0; 2].map(|_| pool.allocate(ask(0, 8 * G)).unwrap());
    pool.nothing_in_flight();
    let mut using = pool.begin_use(&[second]);
    pool.note_use(0, &using);
    let mut asked = 0;
    while pool.advance(0, 100, &using.named(), false) != Progress::Ready {
        asked += 1;
        assert!(asked < PATIENCE, "the second allocation comes for the first");
    }
    assert!(pool.is_ready(&mut using) && has_hidden(&pool) && pool.device().read(first).is_none());
    let other = pool.begin_use(&[first]);
    assert_eq!(pool.advance(1, 101, &other.named(), false), Progress::Ready);
    assert!(pool.device().read(first).is_none());
    pool.end_use(other, Ended::Nothing);
    pool.end_use(using, Ended::Nothing);
}

/// Pages that work in flight uses where they lie are waited for, and nobody leaves for them meanwhile.
#[test]
fn pages_in_use_elsewhere_make_nobody_leave() {
    let mut world = World::new(16);
    (0..3).for_each(|_| world.allocate(8));
    let away = world.live[2].base;
    let mut copy = world.pool.begin_use(&[away]);
    assert!(world.pool.is_ready(&mut copy));
    let launch = world.pool.begin_use(&[away]);
    for _ in 0..PATIENCE {
        assert_eq!(world.pool.advance(0, 100, &launch.named(), false), Progress::Waiting(8 * G));
    }
    assert!(world.pool.lock_motions(0).is_empty() && !has_hidden(&world.pool));
    world.pool.end_use(copy, Ended::Nothing);
    assert!(matches!(world.pool.advance(0, 100, &launch.named(), false), Progress::Waiting(_)));
    assert!(!world.pool.lock_motions(0).is_empty());
    world.pool.end_use(launch, Ended::Nothing);
    world.end();
}
