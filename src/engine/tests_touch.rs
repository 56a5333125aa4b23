//! Allocations that launches hardly touch, on the strict driver of `testing`.

use crate::device::Place;
use crate::free::Freed;
use crate::overlap::Progress;
use crate::pool::Pool;
use crate::testing::{G, Mock};
use crate::tests::{ask, check, pages};
use crate::tests_pager::small;
use crate::uses::Ended;

/// A function that looks a table up, and one that reads it.
const LOOKUP: u64 = 1;
const READ: u64 = 2;
/// Microseconds of their launches.
const SHORT: u64 = 1;
const LONG: u64 = 100;

/// A launch in strict as the shim makes it; whether pages were to come for it.
fn launch(pool: &Pool<Mock>, function: u64, us: u64, addresses: &[u64]) -> bool {
    let mut wish = pool.wish(0, function, addresses);
    let (wanted, _) = pool.split(&wish, addresses);
    let away = pool.note_launch(0, function, &wanted);
    if away {
        pool.bring(0, 100, &wanted).unwrap();
    }
    if let Some(timing) = wish.timing() {
        pool.took(&pool.settle_timing(timing).unwrap(), us, (0, us));
    }
    away
}

/// A table and two others, each of 8 granules of which 16 fit.
fn three() -> (Pool<Mock>, [u64; 3]) {
    let pool = small(16);
    let all = [0; 3].map(|_| pool.allocate(ask(0, 8 * G)).unwrap());
    for base in all {
        pages(&pool, base, 8).iter().for_each(|&at| pool.device().write(at, base));
    }
    (pool, all)
}

fn is_home(pool: &Pool<Mock>, base: u64) -> bool {
    pages(pool, base, 8).iter().all(|&at| pool.find(at).unwrap().place == Place::Gpu(0))
}

#[test]
fn a_table_that_is_looked_up_leaves_its_place_to_others() {
    let (pool, [table, one, other]) = three();
    let round = |us| {
        [(LOOKUP, us, table), (READ, LONG, one), (READ, LONG, other)]
            .map(|(function, us, at)| launch(&pool, function, us, &[at]))
    };
    let came: usize = (0..8).map(|_| round(SHORT).iter().filter(|away| **away).count()).sum();
    assert!(came > 8, "{came}: they do not fit together");
    (0..8).for_each(|_| _ = round(SHORT));
    for _ in 0..20 {
        assert_eq!(round(SHORT), [false; 3]);
        assert!(!is_home(&pool, table) && is_home(&pool, one) && is_home(&pool, other));
    }
    assert!(pages(&pool, table, 8).iter().all(|&at| pool.device().read(at) == Some(table)));
    // One that reads it wants it at home.
    assert!(launch(&pool, READ, LONG, &[table]));
    assert!(is_home(&pool, table));
    check(&pool, &[20, 68]);
    for base in [table, one, other] {
        assert_eq!(pool.free(base), Freed::Done(Ok(())));
    }
    pool.release_spare();
    check(&pool, &[20, 68]);
}

#[test]
fn what_came_in_the_place_of_a_table_is_brought() {
    let (pool, [table, one, other]) = three();
    for _ in 0..16 {
        launch(&pool, LOOKUP, SHORT, &[table]);
    }
    assert_eq!(pool.free(table), Freed::Done(Ok(())));
    launch(&pool, READ, LONG, &[one]);
    launch(&pool, READ, LONG, &[other]);
    let new = pool.allocate(ask(0, 8 * G)).unwrap();
    let wish = pool.wish(0, LOOKUP, &[new]);
    assert_eq!(pool.split(&wish, &[new]), (vec![new], vec![]));
}

/// A launch beside others as the shim makes it, which waits for the best page to go; how many steps it waited.
fn beside(pool: &Pool<Mock>, function: u64, us: u64, addresses: &[u64]) -> usize {
    let mut wish = pool.wish(0, function, addresses);
    let timing = wish.timing();
    let (wanted, aside) = pool.split(&wish, addresses);
    let (mut using, ready) = pool.begin_use_at(0, &wanted);
    pool.note_use(function, &using);
    assert!(!ready || pool.are_at_home(0, &using));
    let waits = |_: &usize| !ready && pool.advance(0, 100, &using.named(), true) != Progress::Ready;
    let steps = (0..100).take_while(waits).count();
    assert!(pool.is_ready(&mut using), "function {function} waits for ever");
    let mut rest = pool.begin_use(&aside);
    if !pool.is_ready(&mut rest) {
        pool.claim(&mut rest);
    }
    assert!(pool.is_ready(&mut rest), "shown, wherever it lies");
    if let Some(timing) = timing.and_then(|timing| pool.settle_timing(timing)) {
        pool.took(&timing, us, (0, us));
    }
    pool.end_use(using.and(rest), Ended::Nothing);
    pool.look_ahead(0, 100, 0);
    steps
}

#[test]
fn beside_work_a_table_is_shown_where_it_lies() {
    let (pool, [table, one, other]) = three();
    pool.nothing_in_flight();
    let round = || {
        beside(&pool, LOOKUP, SHORT, &[table]);
        beside(&pool, READ, LONG, &[one]);
        beside(&pool, READ, LONG, &[other]);
    };
    (0..40).for_each(|_| round());
    let fetched = pool.snapshot().fetched;
    round();
    assert_eq!(pool.snapshot().fetched, fetched);
    assert!(is_home(&pool, one) && is_home(&pool, other) && !is_home(&pool, table));
    check(&pool, &[20, 68]);
}

/// A launch that looks up in a table does not wait for the table's pages to go: they go for what it wants.
#[test]
fn a_table_goes_for_the_launch_that_uses_it() {
    let (pool, [table, one, other]) = three();
    pool.nothing_in_flight();
    for _ in 0..40 {
        beside(&pool, LOOKUP, SHORT, &[table, one]);
        assert!(is_home(&pool, one));
        beside(&pool, LOOKUP, SHORT, &[table, other]);
        assert!(is_home(&pool, other));
    }
    for at in [one, other] {
        assert_eq!(beside(&pool, LOOKUP, SHORT, &[table, at]), 0);
    }
    assert!(is_home(&pool, one) && is_home(&pool, other) && !is_home(&pool, table));
    check(&pool, &[20, 68]);
}
