//! Exchanges while nothing runs, of pages that were not written, on the strict driver of `testing`.

use std::collections::HashMap;

use proptest::prelude::*;

use crate::free::Freed;
use crate::pool::Pool;
use crate::testing::{FAULT, G, Mock};
use crate::tests::{ask, check, pages};
use crate::tests_pager::small;

/// A pool with allocations of 8 granules, and what each page holds.
struct World {
    pool: Pool<Mock>,
    all: Vec<u64>,
    held: HashMap<u64, u64>,
}

impl World {
    fn new(count: usize) -> World {
        let pool = small(16);
        let all: Vec<u64> = (0..count).map(|_| pool.allocate(ask(0, 8 * G)).unwrap()).collect();
        let mut world = World { pool, all, held: HashMap::new() };
        (0..count).for_each(|index| world.write(index, index as u64 + 1));
        world
    }

    /// The program writes all of an allocation.
    fn write(&mut self, index: usize, value: u64) {
        for at in pages(&self.pool, self.all[index], 8) {
            self.pool.device().write(at, value << 32 | at >> 20);
            self.held.insert(at, value << 32 | at >> 20);
        }
    }

    fn launch(&self, index: usize) {
        let named = [self.all[index]];
        if self.pool.note_launch(0, 0, &named) {
            let _ = self.pool.bring(0, 100, &named);
        }
        self.pool.make_wanted_frames(0, 100, 2);
    }

    fn rounds(&mut self, rounds: usize, writes: bool) {
        for round in 0..rounds {
            for index in 0..self.all.len() {
                self.launch(index);
                if writes {
                    self.write(index, (round * 100 + index) as u64);
                }
                assert!(self.is_intact());
            }
        }
    }

    fn is_intact(&self) -> bool {
        self.held.iter().all(|(&at, &value)| self.pool.device().read(at) == Some(value))
    }

    fn copies(&self) -> u64 {
        self.pool.device().0.lock().unwrap().copied_by.len() as u64
    }

    /// All memory comes back.
    fn end(self) {
        check(&self.pool, &[20, 68]);
        self.all.iter().for_each(|&base| assert_eq!(self.pool.free(base), Freed::Done(Ok(()))));
        self.pool.release_spare();
        check(&self.pool, &[20, 68]);
        assert_eq!(self.pool.device().0.lock().unwrap().mapped.len(), 0);
    }
}

#[test]
fn pages_that_were_not_written_go_without_a_copy() {
    let mut world = World::new(4);
    world.rounds(4, false);
    let (before, copies) = (world.pool.snapshot(), world.copies());
    world.rounds(4, false);
    let after = world.pool.snapshot();
    let (came, went) = (after.fetched - before.fetched, after.evicted - before.evicted);
    assert!(came > 8 && went > 8);
    assert_eq!((after.unwritten - before.unwritten, world.copies() - copies), (went, came));
    world.end();
}

#[test]
fn pages_that_were_written_are_copied() {
    let mut world = World::new(4);
    world.rounds(4, false);
    let before = world.pool.snapshot();
    world.rounds(8, true);
    let after = world.pool.snapshot();
    assert!(
        after.unwritten - before.unwritten <= 4 && after.evicted > before.evicted + 20,
        "{before:?}, {after:?}"
    );
    world.rounds(100, false);
    assert!(world.pool.snapshot().unwritten > after.unwritten, "they are asked again");
    world.end();
}

#[test]
fn pages_that_nobody_can_tell_about_are_copied() {
    let mut world = World::new(4);
    world.rounds(4, false);
    let before = world.pool.snapshot();
    world.pool.device().0.lock().unwrap().blind = true;
    world.rounds(4, false);
    let after = world.pool.snapshot();
    assert_eq!(after.unwritten, before.unwritten);
    assert!(after.evicted > before.evicted + 8);
    world.end();
}

#[test]
fn memory_that_a_late_fingerprint_reads_stays_mapped() {
    let mut world = World::new(4);
    world.rounds(4, false);
    let before = world.pool.snapshot();
    world.pool.device().0.lock().unwrap().late = true;
    world.rounds(2, true);
    assert_eq!(world.pool.snapshot().unwritten, before.unwritten);
    assert!(!world.pool.lock().late.is_empty());
    world.pool.device().0.lock().unwrap().late = false;
    world.rounds(40, false);
    assert!(world.pool.lock().late.is_empty() && world.pool.snapshot().unwritten > before.unwritten);
    world.end();
}

/// `VGMEM_VERIFY` notices a page that was written and goes without a copy.
#[test]
#[should_panic(expected = "changed while it was moved")]
fn a_written_page_that_goes_without_a_copy_is_noticed() {
    let mut world = World::new(4);
    world.rounds(4, false);
    world.pool.device().0.lock().unwrap().blurred = true;
    world.rounds(4, true);
}

/// Every driver call of a round fails once: every page still shows its content, and the books agree.
#[test]
fn a_fault_at_every_call_loses_no_page() {
    let start = || {
        let mut world = World::new(4);
        world.rounds(3, false);
        world.write(3, 77);
        world
    };
    let calls = |world: &World| world.pool.device().0.lock().unwrap().calls;
    let mut clean = start();
    let before = calls(&clean);
    clean.rounds(1, false);
    let count = calls(&clean) - before;
    assert!(count > 60, "{count}");
    for fail_at in 0..count {
        let mut world = start();
        world.pool.device().0.lock().unwrap().fail_at = Some(before + fail_at);
        world.rounds(1, false);
        world.pool.device().0.lock().unwrap().fail_at = None;
        world.rounds(2, true);
        let state = world.pool.lock();
        let used: u64 = state.tiers.iter().map(|tier| tier.used).sum();
        let idle: u64 = state.tiers.iter().map(|tier| tier.spare + tier.twins).sum();
        let pages: u64 = state.pages.iter().map(|(_, page)| page.bytes).sum();
        assert_eq!(pages + idle + state.lost, used, "call {fail_at}");
        drop(state);
        world.all.iter().for_each(|&base| assert_eq!(world.pool.free(base), Freed::Done(Ok(())), "{FAULT}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Launches, writes, fingerprints that are late or never known, and faults, at random.
    #[test]
    fn random_rounds_lose_nothing(steps in prop::collection::vec((0u8..9, 0usize..5, 0usize..30), 1..120)) {
        let mut world = World::new(5);
        for (number, (what, index, a)) in steps.into_iter().enumerate() {
            match what {
                0..4 => world.launch(index),
                4 => {
                    world.launch(index);
                    world.write(index, number as u64 + 100);
                }
                5 => world.pool.device().0.lock().unwrap().late ^= true,
                6 => world.pool.device().0.lock().unwrap().blind ^= true,
                7 => drop(world.pool.release_twins(a)),
                _ => {
                    let mut books = world.pool.device().0.lock().unwrap();
                    books.fail_at = Some(books.calls + a);
                    drop(books);
                    world.launch(index);
                    world.pool.device().0.lock().unwrap().fail_at = None;
                }
            }
            prop_assert!(world.is_intact());
        }
    }
}
