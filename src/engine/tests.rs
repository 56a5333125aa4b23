use proptest::prelude::*;
use vgmem_policy::Placement;

use crate::device::{DriverError, Place};
use crate::free::Freed;
use crate::pool::{Pool, Request};
use crate::testing::{BASE, FAULT, G, Mock, keeping, pool};
use crate::twins::Late;

pub(crate) fn ask(home: u8, bytes: u64) -> Request {
    Request { home, context: 100 + u64::from(home), bytes }
}

/// The driver's books agree with the pool's, and everything is accounted for.
pub(crate) fn check(pool: &Pool<Mock>, totals: &[u64]) {
    let moving: u64 = pool
        .lock_all_motions(u64::MAX)
        .iter()
        .flat_map(|list| list.iter())
        .map(|motion| motion.bytes())
        .sum();
    let books = pool.device().0.lock().unwrap();
    let state = pool.lock();
    for (tier, total) in totals.iter().enumerate() {
        assert_eq!(books.left[tier] + state.tiers[tier].used, total * G, "tier {tier}");
    }
    let pages: u64 = state.pages.iter().map(|(_, page)| page.bytes).sum();
    let used: u64 = state.tiers.iter().map(|tier| tier.used).sum();
    let spare: u64 = state.tiers.iter().map(|tier| tier.spare).sum();
    let twins: u64 = state.tiers.iter().map(|tier| tier.twins).sum();
    let tied = state.pages.iter().filter_map(|(_, page)| page.twin.as_ref()).map(|twin| twin.frame.bytes);
    assert_eq!(tied.sum::<u64>(), twins);
    let late: u64 = state.late.iter().map(Late::bytes).sum();
    assert_eq!(pages + spare + twins + moving + late + state.lost, used);
    let spans: u64 = state.spans.ranges().iter().map(|r| r.1).sum();
    let held: u64 = state.allocations.iter().map(|(_, a)| a.span).sum::<u64>()
        + state.deferred.iter().chain(&state.kept).map(|a| a.span).sum::<u64>();
    let shadows: u64 =
        state.pages.iter().filter(|(_, page)| page.shadow != 0).map(|(_, page)| page.bytes).sum();
    let late: u64 = state.late.iter().map(Late::shadow_bytes).sum();
    assert_eq!(spans + held + shadows + spare + twins + moving + late, 1024 * G);
    let kept: u64 = state.kept.iter().map(|a| a.span).sum();
    assert_eq!(kept, state.tiers.iter().map(|tier| tier.kept).sum::<u64>());
}

/// Addresses of the pages of an allocation.
pub(crate) fn pages(pool: &Pool<Mock>, base: u64, granules: u64) -> Vec<u64> {
    let books = pool.device().0.lock().unwrap();
    books.mapped.range(base..base + granules * G).map(|(&address, _)| address).collect()
}

#[test]
fn an_allocation_larger_than_a_gpu_spans_peers_and_host() {
    let pool = pool(&[8, 8], 16, 4, Placement::Home);
    let base = pool.allocate(ask(0, 20 * G)).unwrap();
    let place = |granule: u64| pool.find(base + granule * G).unwrap().place;
    assert_eq!((place(0), place(8), place(16)), (Place::Gpu(0), Place::Gpu(1), Place::HostNear(0)));
    let books = pool.device().0.lock().unwrap();
    assert!(books.mapped.values().all(|m| m.2 == 1), "only the home GPU has access");
    drop(books);
    check(&pool, &[8, 8, 16]);
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    check(&pool, &[8, 8, 16]);
    assert_eq!(pool.snapshot().gpus[1].at_peak, 8 * G);
    assert_eq!(pool.snapshot().live, 0);
}

#[test]
fn what_is_found_about_an_address() {
    let pool = pool(&[8], 16, 4, Placement::Home);
    let base = pool.allocate(ask(0, 5 * G + 3)).unwrap();
    let found = pool.find(base + 5 * G).unwrap();
    assert_eq!((found.base, found.bytes, found.home, found.context), (base, 5 * G + 3, 0, 100));
    assert_eq!((found.page_base, found.page_bytes), (base + 4 * G, 2 * G));
    assert_eq!(pool.find(base + 6 * G), None);
    assert_eq!(pool.find(7), None);
}

#[test]
fn out_of_memory_is_refused_and_leaves_nothing() {
    let pool = pool(&[4, 4], 4, 4, Placement::Home);
    let kept = pool.allocate(ask(1, 4 * G)).unwrap();
    assert_eq!(pool.allocate(ask(0, 9 * G)), Err(DriverError::OUT_OF_MEMORY));
    check(&pool, &[4, 4, 4]);
    assert_eq!(pool.allocate(ask(0, u64::MAX)), Err(DriverError::OUT_OF_MEMORY));
    assert_eq!(pool.snapshot().refused, 2);
    pool.allocate(ask(0, 8 * G)).unwrap();
    assert_eq!(pool.free(kept), Freed::Done(Ok(())));
    check(&pool, &[4, 4, 4]);
}

#[test]
fn memory_that_others_took_is_found_elsewhere() {
    let pool = pool(&[8, 8], 16, 4, Placement::Home);
    pool.device().0.lock().unwrap().left[1] = 2 * G; // another process is on GPU 1
    let base = pool.allocate(ask(0, 16 * G)).unwrap();
    assert_eq!(pool.find(base + 8 * G).unwrap().place, Place::HostNear(0));
    assert_eq!(pool.snapshot().gpus[1].now, 0);
}

#[test]
fn a_gpu_that_others_call_home_is_used_last() {
    let pool = pool(&[4, 8, 8], 4, 4, Placement::Home);
    pool.device().0.lock().unwrap().homes_of_others = vec![1];
    let base = pool.allocate(ask(0, 20 * G)).unwrap();
    let place = |granule: u64| pool.find(base + granule * G).unwrap().place;
    assert_eq!((place(0), place(4)), (Place::Gpu(0), Place::Gpu(2)));
    assert_eq!((place(12), place(16)), (Place::HostNear(0), Place::Gpu(1)));
}

#[test]
fn frees_of_unknown_and_interior_addresses() {
    let pool = pool(&[8], 0, 4, Placement::Home);
    let base = pool.allocate(ask(0, 4 * G)).unwrap();
    assert_eq!(pool.free(base + G), Freed::Done(Err(DriverError::INVALID_VALUE)));
    assert_eq!(pool.free(BASE + 900 * G), Freed::Done(Err(DriverError::INVALID_VALUE)));
    assert_eq!(pool.free(12345), Freed::NotPooled);
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    assert_eq!(pool.free(base), Freed::Done(Err(DriverError::INVALID_VALUE)));
    check(&pool, &[8, 0]);
}

#[test]
fn freeing_waits_for_every_user() {
    let pool = pool(&[8, 8], 0, 4, Placement::Home);
    let base = pool.allocate(ask(0, 4 * G)).unwrap();
    pool.note_context(1, 201);
    pool.use_allocation(1, base + 3 * G);
    assert!(pool.free(base) == Freed::Done(Ok(())));
    assert_eq!(pool.device().0.lock().unwrap().drained, [(0, 100), (1, 201)]);
}

#[test]
fn on_hold_nothing_is_waited_for_or_unmapped() {
    let pool = pool(&[8], 0, 4, Placement::Home);
    let base = pool.allocate(ask(0, 8 * G)).unwrap();
    pool.hold(true);
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    assert_eq!(pool.find(base), None);
    assert!(pool.device().0.lock().unwrap().drained.is_empty());
    assert_eq!(pool.device().0.lock().unwrap().mapped.len(), 2);
    assert_eq!(pool.snapshot().deferred, 1);
    check(&pool, &[8, 0]);
    pool.hold(false);
    pool.allocate(ask(0, 8 * G)).unwrap();
    assert_eq!(pool.device().0.lock().unwrap().drained, [(0, 100)]);
    check(&pool, &[8, 0]);
}

#[test]
fn access_comes_with_use_and_with_enabled_peers() {
    let pool = pool(&[8, 8], 8, 4, Placement::Home);
    let first = pool.allocate(ask(0, 8 * G)).unwrap();
    let access = |address: u64| pool.device().0.lock().unwrap().mapped[&address].2;
    pool.use_range(1, first + 5 * G, G);
    assert_eq!((access(first), access(first + 4 * G)), (0b01, 0b11));
    pool.enable_peer(1, 0);
    let second = pool.allocate(ask(0, 4 * G)).unwrap();
    assert_eq!((access(first), access(second)), (0b11, 0b11));
    let calls = pool.device().0.lock().unwrap().calls;
    pool.use_range(1, first, 8 * G);
    pool.use_allocation(1, second);
    assert_eq!(pool.device().0.lock().unwrap().calls, calls, "nothing left to grant");
}

#[test]
fn a_context_takes_its_allocations_with_it() {
    let pool = pool(&[8, 8], 8, 4, Placement::Home);
    let mine = pool.allocate(ask(0, 4 * G)).unwrap();
    let other = pool.allocate(ask(1, 4 * G)).unwrap();
    pool.use_allocation(0, other);
    assert_eq!(pool.free_context(100, true), 1);
    assert_eq!((pool.find(mine), pool.find(other).is_some()), (None, true));
    assert_eq!(pool.free(other), Freed::Done(Ok(())));
    assert_eq!(pool.device().0.lock().unwrap().drained, [(1, 101)], "nobody waits for a lost context");
    check(&pool, &[8, 8, 8]);
}

#[test]
fn freed_memory_is_kept_and_used_again_without_a_driver_call() {
    let pool = keeping(&[32, 32], 0, 4, Placement::Home, 8);
    let base = pool.allocate(ask(0, 6 * G)).unwrap();
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    assert_eq!(pool.find(base), None);
    assert_eq!((pool.kept(0), pool.amounts().0[0].free), (6 * G, 32 * G));
    let calls = pool.device().0.lock().unwrap().calls;
    assert_eq!(pool.allocate(ask(0, 6 * G - 9)).unwrap(), base);
    assert_eq!(pool.device().0.lock().unwrap().calls, calls);
    assert_eq!(pool.find(base + 5 * G).unwrap().bytes, 6 * G - 9);
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    check(&pool, &[32, 32, 0]);
    // Older memory makes room for newer, and larger than the limit is given back at once.
    let next = pool.allocate(ask(0, 4 * G)).unwrap();
    assert_eq!(pool.free(next), Freed::Done(Ok(())));
    assert_eq!(pool.kept(0), 4 * G);
    let large = pool.allocate(ask(0, 9 * G)).unwrap();
    assert_eq!(pool.free(large), Freed::Done(Ok(())));
    assert_eq!((pool.kept(0), pool.release_kept(), pool.kept(0)), (4 * G, 4 * G, 0));
    check(&pool, &[32, 32, 0]);
}

#[test]
fn kept_memory_is_given_back_before_anything_is_refused_or_placed_elsewhere() {
    let pool = keeping(&[16, 16], 0, 4, Placement::Home, 8);
    let base = pool.allocate(ask(0, 8 * G)).unwrap();
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    let whole = pool.allocate(ask(0, 16 * G)).unwrap();
    assert_eq!((pool.snapshot().gpus[0].now, pool.snapshot().gpus[1].now), (16 * G, 0));
    check(&pool, &[16, 16, 0]);
    assert_eq!(pool.free(whole), Freed::Done(Ok(())));
    // Another process took what the books call free: the driver refuses, and what is kept helps.
    let base = pool.allocate(ask(1, 8 * G)).unwrap();
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    pool.device().0.lock().unwrap().left = vec![0, 0, 0];
    let base = pool.allocate(ask(0, 8 * G)).unwrap();
    assert_eq!(pool.find(base).unwrap().place, Place::Gpu(1));
}

#[test]
fn memory_used_again_has_the_peers_that_were_enabled_meanwhile() {
    let pool = keeping(&[16, 16], 0, 4, Placement::Home, 8);
    let base = pool.allocate(ask(0, 8 * G)).unwrap();
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    pool.enable_peer(1, 0);
    pool.note_context(1, 201);
    let base = pool.allocate(ask(0, 8 * G)).unwrap();
    assert!(pool.device().0.lock().unwrap().mapped.values().all(|m| m.2 == 0b11));
    pool.device().0.lock().unwrap().drained.clear();
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    assert_eq!(pool.device().0.lock().unwrap().drained, [(0, 100), (1, 201)]);
}

/// Every driver call of an allocation and of a free fails once: the code comes back, nothing leaks.
#[test]
fn a_fault_at_every_call_is_rolled_back() {
    let clean = pool(&[8, 8], 16, 4, Placement::Home);
    let base = clean.allocate(ask(0, 20 * G)).unwrap();
    let to_allocate = clean.device().0.lock().unwrap().calls;
    assert_eq!(clean.free(base), Freed::Done(Ok(())));
    let to_free = clean.device().0.lock().unwrap().calls - to_allocate;
    assert!(to_allocate >= 11 && to_free >= 7, "{to_allocate} {to_free}");
    for fail_at in 0..to_allocate {
        let pool = pool(&[8, 8], 16, 4, Placement::Home);
        pool.device().0.lock().unwrap().fail_at = Some(fail_at);
        assert_eq!(pool.allocate(ask(0, 20 * G)).unwrap_err().code(), FAULT, "call {fail_at}");
        let books = pool.device().0.lock().unwrap();
        assert!(books.handles.is_empty() && books.mapped.is_empty(), "call {fail_at} left something");
        drop(books);
        check(&pool, &[8, 8, 16]);
    }
    for fail_at in to_allocate..to_allocate + to_free {
        let pool = pool(&[8, 8], 16, 4, Placement::Home);
        let base = pool.allocate(ask(0, 20 * G)).unwrap();
        pool.device().0.lock().unwrap().fail_at = Some(fail_at);
        let Freed::Done(Err(error)) = pool.free(base) else { panic!("call {fail_at} did not fail") };
        assert_eq!(error.code(), FAULT);
        assert_eq!(pool.find(base), None);
        if fail_at == to_allocate {
            // The wait was refused: nothing may be unmapped until one is granted.
            assert_eq!((pool.snapshot().deferred, pool.device().0.lock().unwrap().mapped.len()), (1, 5));
            pool.collect();
            check(&pool, &[8, 8, 16]);
        }
        let state = pool.lock();
        let used: u64 = state.tiers.iter().map(|tier| tier.used).sum();
        assert_eq!(state.lost, used, "what is still charged is what was lost");
    }
}

#[test]
fn a_lost_context_does_not_keep_memory_of_others() {
    let pool = pool(&[8, 8], 0, 4, Placement::Home);
    let (mine, other) = (pool.allocate(ask(0, 4 * G)).unwrap(), pool.allocate(ask(1, 4 * G)).unwrap());
    pool.use_allocation(1, mine);
    pool.device().0.lock().unwrap().lost = vec![101];
    assert_eq!(pool.free(mine), Freed::Done(Ok(())), "GPU 1's context is lost, not this one's");
    let Freed::Done(Err(error)) = pool.free(other) else { panic!("the loss was not said") };
    assert_eq!((error.code(), pool.snapshot().deferred), (700, 0));
    check(&pool, &[8, 8, 0]);
}

#[test]
fn one_allocation_holds_a_range_or_does_not() {
    let pool = pool(&[8], 0, 4, Placement::Home);
    let first = pool.allocate(ask(0, 2 * G - 5)).unwrap();
    assert_eq!(pool.allocate(ask(0, 2 * G)).unwrap(), first + 2 * G, "neighbours");
    assert!(pool.holds(first, 2 * G - 5) && pool.holds(first + G, G - 5));
    assert!(!pool.holds(first, 2 * G - 4) && !pool.holds(first + G, 2 * G) && !pool.holds(first, u64::MAX));
}

#[test]
fn a_small_block_freed_during_a_capture_goes_after_it() {
    let pool = pool(&[4], 0, 4, Placement::Home);
    let (first, second) =
        (pool.allocate_small(ask(0, 600)).unwrap(), pool.allocate_small(ask(0, 600)).unwrap());
    pool.hold(true);
    assert_eq!(pool.free(first), Freed::Done(Ok(())));
    assert_eq!(pool.free(first), Freed::Done(Err(DriverError::INVALID_VALUE)));
    assert_eq!(pool.find(first), None);
    assert!(pool.allocate_small(ask(0, 600)).unwrap() > second, "nobody else gets it yet");
    assert!(pool.device().0.lock().unwrap().drained.is_empty());
    pool.hold(false);
    assert_eq!(pool.free(second), Freed::Done(Ok(())));
    assert_eq!(pool.allocate_small(ask(0, 600)).unwrap(), first, "the gap is used again");
    // With the last block its memory goes, also where that was freed during a capture.
    let third = second + 1024;
    assert_eq!((pool.free(first), pool.free(third)), (Freed::Done(Ok(())), Freed::Done(Ok(()))));
    let last = pool.allocate_small(ask(0, 600)).unwrap();
    pool.hold(true);
    assert_eq!(pool.free(last), Freed::Done(Ok(())));
    pool.hold(false);
    pool.collect();
    assert_eq!(pool.snapshot().live, 0);
    check(&pool, &[4, 0]);
}

#[test]
fn small_allocations_share_a_page_and_are_allocations_of_their_own() {
    let pool = pool(&[4], 0, 4, Placement::Home);
    let first = pool.allocate_small(ask(0, 1000)).unwrap();
    let second = pool.allocate_small(ask(0, 4000)).unwrap();
    let other = pool.allocate_small(Request { home: 0, context: 555, bytes: 4000 }).unwrap();
    assert_eq!((second - first, first % 512), (1024, 0));
    assert!(other.abs_diff(first) >= G, "contexts do not share");
    let found = pool.find(second + 3999).unwrap();
    assert_eq!((found.base, found.bytes, found.context), (second, 4000, 100));
    assert_eq!(pool.find(first + 1000), None, "between two allocations");
    assert_eq!(pool.free(second + 512), Freed::Done(Err(DriverError::INVALID_VALUE)));
    assert_eq!(pool.free(first), Freed::Done(Ok(())));
    assert_eq!(pool.free(first), Freed::Done(Err(DriverError::INVALID_VALUE)));
    assert_eq!(pool.allocate_small(ask(0, 1024)).unwrap(), first, "the gap is used again");
    assert_eq!(pool.free(first), Freed::Done(Ok(())));
    assert_eq!(pool.free(second), Freed::Done(Ok(())));
    assert_eq!(pool.find(second), None);
    assert_eq!(pool.free_context(555, false), 1);
    check(&pool, &[4, 0]);
    assert_eq!(pool.snapshot().live, 0);
}

#[test]
fn a_full_pool_of_small_allocations_uses_99_percent() {
    let pool = pool(&[16, 16], 16, 4, Placement::Home);
    let mut held = 0;
    let mut addresses = Vec::new();
    let sizes = [512u64, 100_000, 4096, 65_536, 1_000_000, 30_000];
    while let Ok(address) = pool.allocate_small(ask(0, sizes[addresses.len() % sizes.len()])) {
        held += sizes[addresses.len() % sizes.len()];
        addresses.push(address);
    }
    // The rest is filled with ever smaller ones, as a program would.
    for size in [65_536, 4096, 512] {
        while let Ok(address) = pool.allocate_small(ask(0, size)) {
            held += size;
            addresses.push(address);
        }
    }
    assert!(held * 100 >= 48 * G * 99, "{held} of {}", 48 * G);
    for address in addresses {
        assert_eq!(pool.free(address), Freed::Done(Ok(())));
    }
    check(&pool, &[16, 16, 16]);
    assert_eq!(pool.snapshot().live, 0);
}

#[test]
fn a_page_moves_with_its_content_and_its_access() {
    let pool = pool(&[8, 8], 8, 4, Placement::Home);
    let base = pool.allocate(ask(0, 8 * G)).unwrap();
    pool.device().write(base + 4 * G, 77);
    let page = pool.lookup(base + 5 * G).unwrap();
    assert_eq!(pool.relocate(page, 2), Ok(true));
    assert_eq!((pool.place_of(page), pool.device().read(base + 4 * G)), (Some(Place::HostNear(0)), Some(77)));
    check(&pool, &[8, 8, 8]);
    assert_eq!(pool.relocate(page, 2), Ok(false), "it is there already");
    pool.enable_peer(1, 0);
    assert_eq!(pool.relocate(page, 1), Ok(true));
    assert_eq!(pool.device().0.lock().unwrap().mapped[&(base + 4 * G)].2, 0b11);
    assert_eq!(pool.relocate(page, 2), Ok(false), "two GPUs may update it: not to the host");
    assert_eq!((pool.device().read(base + 4 * G), pool.snapshot().moved), (Some(77), 2));
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    check(&pool, &[8, 8, 8]);
}

#[test]
fn a_full_pool_moves_pages_through_its_exchange_reserve() {
    let mut config = pool(&[8, 8], 8, 4, Placement::Home).config().clone();
    config.gpus.iter_mut().for_each(|gpu| gpu.exchange = 4 * G);
    config.host_exchange = 4 * G;
    let mock = Mock::default();
    mock.0.lock().unwrap().left = vec![12 * G; 3];
    let pool = Pool::new(mock, config);
    let base = pool.allocate(ask(0, 24 * G)).unwrap();
    assert_eq!(pool.allocate(ask(0, G)), Err(DriverError::OUT_OF_MEMORY), "the reserve is never promised");
    let (first, last) = (pool.lookup(base).unwrap(), pool.lookup(base + 23 * G).unwrap());
    assert_eq!(pool.relocate(first, 2), Ok(true));
    assert_eq!(pool.relocate(last, 0), Ok(true));
    assert_eq!((pool.place_of(first), pool.place_of(last)), (Some(Place::HostNear(0)), Some(Place::Gpu(0))));
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    check(&pool, &[12, 12, 12]);
}

#[test]
fn a_fault_at_every_call_of_a_move_leaves_the_page_readable() {
    let start = || {
        let pool = pool(&[8, 8], 8, 4, Placement::Home);
        let base = pool.allocate(ask(0, 8 * G)).unwrap();
        pool.enable_peer(1, 0);
        pool.device().write(base, 55);
        let page = pool.lookup(base).unwrap();
        let calls = pool.device().0.lock().unwrap().calls;
        (pool, base, page, calls)
    };
    let (clean, _, page, before) = start();
    assert_eq!(clean.relocate(page, 1), Ok(true));
    let count = clean.device().0.lock().unwrap().calls - before;
    assert_eq!(count, 11, "create, map, grant, copy, wait, unmap, unmap, map, 2 grants, release");
    for fail_at in 0..count {
        let (pool, base, page, before) = start();
        pool.device().0.lock().unwrap().fail_at = Some(before + fail_at);
        let answer = pool.relocate(page, 1);
        // A refused wait is asked again; at the end only the old memory was not taken back.
        let moved = [4, count - 1].contains(&fail_at);
        assert_eq!(answer.map_err(|error| error.code()), if moved { Ok(true) } else { Err(FAULT) });
        assert_eq!(pool.device().read(base), Some(55), "call {fail_at}");
        assert_eq!(pool.device().0.lock().unwrap().mapped[&base].2, 0b11);
        assert_eq!(pool.free(base), Freed::Done(Ok(())));
        let state = pool.lock();
        assert_eq!(state.lost, state.tiers.iter().map(|tier| tier.used).sum::<u64>(), "call {fail_at}");
        let lost = if [5, count - 1].contains(&fail_at) { 4 * G } else { 0 };
        assert_eq!(state.lost, lost, "call {fail_at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Random traces of allocate and free, with faults: books agree after every step, and after all is freed
    /// the whole pool is free again.
    #[test]
    fn random_traces_conserve_memory(
        steps in prop::collection::vec(
            (any::<bool>(), 0u8..3, 1u64..30, 0u64..G, prop::option::weighted(0.1, 0usize..12)), 1..80),
        which in 0usize..3, page in 0u32..4, keep in 0u64..6,
    ) {
        let placement = [Placement::Home, Placement::Interleave, Placement::Balance][which];
        let totals = [10, 16, 7, 20];
        let pool = keeping(&totals[..3], totals[3], 1 << page, placement, keep);
        let mut live: Vec<(u64, u64)> = Vec::new();
        for (allocate, home, granules, extra, fault) in steps {
            if allocate {
                let calls = pool.device().0.lock().unwrap().calls;
                pool.device().0.lock().unwrap().fail_at = fault.map(|f| calls + f);
                let answer = pool.allocate(ask(home, granules * G - extra));
                pool.device().0.lock().unwrap().fail_at = None;
                let room: u64 = pool.amounts().0.iter().map(|a| a.free).sum::<u64>() + pool.amounts().1.free;
                if pool.snapshot().lost > 0 {
                    // The fault struck while kept memory was given back: that memory and its addresses are lost.
                    let state = pool.lock();
                    let used: u64 = state.tiers.iter().map(|tier| tier.used).sum();
                    let pages: u64 = state.pages.iter().map(|(_, page)| page.bytes).sum();
                    prop_assert!(fault.is_some() && pages + state.lost == used);
                    return Ok(());
                }
                match answer {
                    Ok(base) => {
                        prop_assert!(live.iter().all(|&(b, g)| base + granules * G <= b || b + g * G <= base));
                        live.push((base, granules));
                        pages(&pool, base, granules).iter().for_each(|&at| pool.device().write(at, base));
                    }
                    Err(DriverError::OUT_OF_MEMORY) => prop_assert!(room < granules * G),
                    Err(error) => prop_assert_eq!(error.code(), FAULT),
                }
            } else if !live.is_empty() {
                let (base, _) = live.swap_remove(granules as usize % live.len());
                prop_assert_eq!(pool.free(base), Freed::Done(Ok(())));
            }
            for page in 0..2 {
                if let Some(page) = pool.nth_page(extra + page) {
                    prop_assert!(pool.relocate(page, (granules % 4) as usize).is_ok());
                }
            }
            // Each page of each allocation holds the allocation's address, wherever it went.
            for &(base, granules) in &live {
                prop_assert!(pages(&pool, base, granules).iter().all(|&at| pool.device().read(at) == Some(base)));
            }
            check(&pool, &totals);
        }
        for (base, _) in live {
            prop_assert_eq!(pool.free(base), Freed::Done(Ok(())));
        }
        pool.release_kept();
        check(&pool, &totals);
        prop_assert_eq!(pool.lock().spans.ranges(), vec![(BASE, 1024 * G)]);
    }
}
