//! The pager's exchanges, on the strict driver of `testing`.

use proptest::prelude::*;
use vgmem_policy::Placement;

use crate::device::Place;
use crate::exchange::Exchanged;
use crate::free::Freed;
use crate::overlap::Progress;
use crate::pool::{Note, Pool};
use crate::testing::{FAULT, G, Mock, pool};
use crate::tests::{ask, check, pages};
use crate::tests_overlap::World;
use crate::uses::Ended;

/// A GPU of that many granules with an exchange reserve of 4, and a host of 64.
pub(crate) fn small(gpu: u64) -> Pool<Mock> {
    let mut config = pool(&[gpu], 64, 4, Placement::Home).config().clone();
    config.gpus[0].exchange = 4 * G;
    config.host_exchange = 4 * G;
    let mock = Mock::default();
    mock.0.lock().unwrap().left = vec![(gpu + 4) * G, 68 * G];
    Pool::new(mock, config)
}

/// Allocations of 8 granules, each page marked with its allocation's address.
fn filled(pool: &Pool<Mock>, count: usize) -> Vec<u64> {
    let all: Vec<u64> = (0..count).map(|_| pool.allocate(ask(0, 8 * G)).unwrap()).collect();
    for &base in &all {
        pages(pool, base, 8).iter().for_each(|&at| pool.device().write(at, base));
    }
    all
}

fn intact(pool: &Pool<Mock>, all: &[u64]) -> bool {
    all.iter().all(|&base| {
        let pages = pages(pool, base, 8);
        !pages.is_empty() && pages.iter().all(|&at| pool.device().read(at) == Some(base))
    })
}

fn at_home(pool: &Pool<Mock>, base: u64) -> usize {
    pages(pool, base, 8).iter().filter(|&&at| pool.find(at).unwrap().place == Place::Gpu(0)).count()
}

#[test]
fn a_launch_gets_its_pages_and_others_make_room() {
    let pool = small(16);
    assert!(!pool.is_under_pressure());
    let all = filled(&pool, 3);
    assert!(pool.is_under_pressure());
    assert!(!pool.note_launch(0, 0, &[all[0]]) && !pool.note_launch(0, 0, &[all[1]]));
    assert!(pool.note_launch(0, 0, &[all[2] + 5, all[2]]));
    let done = pool.bring(0, 100, &[all[2]]).unwrap();
    assert_eq!(done, Exchanged { fetched: 2, evicted: 2, left: 0 });
    assert_eq!((at_home(&pool, all[0]), at_home(&pool, all[1]), at_home(&pool, all[2])), (0, 2, 2));
    assert!(intact(&pool, &all) && !pool.note_launch(0, 0, &[all[2]]));
    check(&pool, &[20, 68]);
    let access = |at: &u64| pool.device().0.lock().unwrap().mapped[at].2;
    assert!(all.iter().flat_map(|&base| pages(&pool, base, 8)).all(|at| access(&at) == 1));
    for base in all {
        assert_eq!(pool.free(base), Freed::Done(Ok(())));
        check(&pool, &[20, 68]);
    }
    pool.release_spare();
    check(&pool, &[20, 68]);
    assert_eq!(pool.device().0.lock().unwrap().mapped.len(), 0);
}

#[test]
fn host_frames_are_used_again() {
    let pool = small(16);
    let all = filled(&pool, 3);
    for round in 0..6 {
        for &base in &all {
            if pool.note_launch(0, 0, &[base]) {
                pool.bring(0, 100, &[base]).unwrap();
            }
            assert_eq!(at_home(&pool, base), 2, "round {round}");
        }
    }
    assert!(intact(&pool, &all));
    // Five frames fit on the GPU with its reserve; on the host two pages and, while two are exchanged, two more.
    assert!(pool.device().0.lock().unwrap().handles.len() <= 9, "frames pile up");
    check(&pool, &[20, 68]);
}

#[test]
fn frames_are_made_ahead_where_the_gpu_is_nearly_full() {
    let pool = small(16);
    assert!(!pool.is_nearly_full(0));
    let all = filled(&pool, 2);
    assert!(pool.is_nearly_full(0));
    assert_eq!(pool.make_frames_ahead(0, 100), 1);
    assert_eq!(pool.lock().tiers[1].spare, 4 * G);
    check(&pool, &[20, 68]);
    assert!(intact(&pool, &all));
}

#[test]
fn operands_that_do_not_fit_are_left_where_they_are() {
    let pool = small(16);
    let all = filled(&pool, 3);
    pool.note_launch(0, 0, &all);
    assert_eq!(pool.bring(0, 100, &all).unwrap(), Exchanged { fetched: 0, evicted: 0, left: 0 });
    let base = pool.allocate(ask(0, 40 * G)).unwrap();
    pool.note_launch(0, 0, &[base]);
    let done = pool.bring(0, 100, &[base]).unwrap();
    assert_eq!((done.fetched, done.evicted), (4, 4));
    assert!(intact(&pool, &all));
    check(&pool, &[20, 68]);
}

#[test]
fn memory_of_the_pager_goes_to_allocations_that_need_it() {
    let pool = small(16);
    let all = filled(&pool, 3);
    pool.note_launch(0, 0, &[all[2]]);
    pool.bring(0, 100, &[all[2]]).unwrap();
    assert_eq!(pool.free(all[0]), Freed::Done(Ok(())));
    pool.allocate(ask(0, (64 - 8) * G)).unwrap();
    assert_eq!(pool.release_spare() / G % 4, 0);
    check(&pool, &[20, 68]);
}

/// A launch that waits for pages which are on their way already waits for the link like any other.
#[test]
fn a_launch_that_waits_for_what_is_on_its_way_is_noted() {
    let mut world = World::new(16);
    (0..4).for_each(|_| world.allocate(8));
    let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
    for &base in bases.iter().cycle().take(9) {
        world.launch(vec![base]);
        world.run();
    }
    let is_away = |base: &&u64| {
        let state = world.pool.lock();
        state.pages.iter().any(|(_, page)| page.tier != 0 && (**base..**base + 8 * G).contains(&page.address))
    };
    let using = world.pool.begin_use(&[*bases.iter().find(is_away).unwrap()]);
    let named = using.named();
    let is_on_its_way = || {
        let state = world.pool.lock();
        let own = || state.pages.iter().filter(|(_, page)| named.contains(&page.allocation));
        own().any(|(_, page)| page.moving) && own().all(|(_, page)| page.moving || page.tier == 0)
    };
    let mut seen = false;
    for _ in 0..40 {
        world.pool.note_use(0, &using);
        drop(world.pool.pager()); // it is told what was noted
        let before = is_on_its_way();
        if world.pool.advance(0, 100, &named, true) == Progress::Waiting(0) && before && is_on_its_way() {
            assert!(matches!(world.pool.notes.lock().unwrap()[..], [Note::Waits]));
            seen = true;
        }
    }
    assert!(seen);
    world.pool.end_use(using, Ended::Nothing);
    world.end();
}

/// Every driver call of an exchange fails once: every page still shows its content, and the books agree.
#[test]
fn a_fault_at_every_call_of_an_exchange_loses_no_page() {
    let start = || {
        let pool = small(16);
        let all = filled(&pool, 3);
        pool.note_launch(0, 0, &[all[2]]);
        (pool, all)
    };
    let (clean, all) = start();
    let before = clean.device().0.lock().unwrap().calls;
    clean.bring(0, 100, &[all[2]]).unwrap();
    let count = clean.device().0.lock().unwrap().calls - before;
    assert!(count > 20, "{count}");
    for fail_at in 0..count {
        let (pool, all) = start();
        let before = pool.device().0.lock().unwrap().calls;
        pool.device().0.lock().unwrap().fail_at = Some(before + fail_at);
        if let Err(error) = pool.bring(0, 100, &[all[2]]) {
            assert_eq!(error.code(), FAULT);
        }
        pool.device().0.lock().unwrap().fail_at = None;
        assert!(intact(&pool, &all), "call {fail_at}");
        let books = |pool: &Pool<Mock>| {
            let state = pool.lock();
            let used: u64 = state.tiers.iter().map(|tier| tier.used).sum();
            let idle: u64 = state.tiers.iter().map(|tier| tier.spare + tier.twins).sum();
            let pages: u64 = state.pages.iter().map(|(_, page)| page.bytes).sum();
            assert_eq!(pages + idle + state.lost, used, "call {fail_at}");
        };
        books(&pool);
        // The next exchange works, and everything can be freed.
        pool.bring(0, 100, &[all[2]]).unwrap();
        assert!(intact(&pool, &all) && at_home(&pool, all[2]) == 2, "call {fail_at}");
        all.iter().for_each(|&base| assert_eq!(pool.free(base), Freed::Done(Ok(())), "call {fail_at}"));
        books(&pool);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    /// Random launches, allocations and frees of random sizes: contents and books hold after every step.
    #[test]
    fn random_exchanges_conserve_memory(
        steps in prop::collection::vec((0u8..4, 1u64..14, 0usize..8, 0usize..8), 1..60), gpu in 4u64..24,
    ) {
        let pool = small(gpu);
        let mut live: Vec<(u64, u64)> = Vec::new();
        for (what, granules, a, b) in steps {
            match what {
                0 => if let Ok(base) = pool.allocate(ask(0, granules * G)) {
                    pages(&pool, base, granules).iter().for_each(|&at| pool.device().write(at, base));
                    live.push((base, granules));
                },
                1 if !live.is_empty() => {
                    let (base, _) = live.swap_remove(a % live.len());
                    prop_assert_eq!(pool.free(base), Freed::Done(Ok(())));
                }
                _ if !live.is_empty() => {
                    let named = [live[a % live.len()].0, live[b % live.len()].0];
                    if pool.note_launch(0, 0, &named) {
                        pool.bring(0, 100, &named).unwrap();
                    }
                }
                _ => {}
            }
            for &(base, granules) in &live {
                prop_assert!(pages(&pool, base, granules).iter().all(|&at| pool.device().read(at) == Some(base)));
            }
            check(&pool, &[gpu + 4, 68]);
        }
    }
}
