//! Allocations that launches hardly touch, on the strict driver of `testing`.

use crate::device::Place;
use crate::free::Freed;
use crate::overlap::Progress;
use crate::pool::Pool;
use crate::testing::{G, Mock};
use crate::tests::{ask, check, pages};
use crate::tests_pager::small;

/// A function that looks a table up, and one that reads it.
const LOOKUP: u64 = 1;
const READ: u64 = 2;
/// Microseconds of their launches.
const SHORT: u64 = 1;
const LONG: u64 = 100;

/// A launch in strict as the shim makes it; whether pages were to come for it.
fn launch(pool: &Pool<Mock>, function: u64, us: u64, addresses: &[u64]) -> bool {
    let mut wish = pool.wish(0, function, addresses);
    let wanted = pool.wanted(&wish, addresses);
    let away = pool.note_launch(0, function, &wanted);
    if away {
        pool.bring(0, 100, &wanted).unwrap();
    }
    if let Some(timing) = wish.timing() {
        pool.took(&timing, us);
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
    assert_eq!(pool.wanted(&wish, &[new]), [new]);
}

#[test]
fn beside_work_a_table_is_shown_where_it_lies() {
    let (pool, [table, one, other]) = three();
    pool.nothing_in_flight();
    let begin = |function, at: u64| {
        let mut wish = pool.wish(0, function, &[at]);
        let us = if function == LOOKUP { SHORT } else { LONG };
        wish.timing().iter().for_each(|timing| pool.took(timing, us));
        let using = pool.begin_use(&[at]).leaving(&wish);
        pool.note_use(function, &using);
        using
    };
    for _ in 0..40 {
        for (function, at) in [(LOOKUP, table), (READ, one), (READ, other)] {
            let mut using = begin(function, at);
            for _ in 0..100 {
                if pool.advance(0, 100, &using.wanted(), false) == Progress::Ready {
                    break;
                }
            }
            if !pool.is_ready(&mut using) {
                pool.claim(&mut using);
            }
            assert!(pool.is_ready(&mut using), "shown, wherever it lies");
            pool.end_use(using, crate::uses::Ended::Nothing);
            pool.look_ahead(0, 100, 0);
        }
    }
    let fetched = pool.snapshot().fetched;
    for (function, at) in [(LOOKUP, table), (READ, one), (READ, other)] {
        let mut using = begin(function, at);
        assert!(pool.are_at_home(0, &using) && pool.is_ready(&mut using), "function {function}");
        assert_eq!(using.leaves_some(), at == table);
        pool.end_use(using, crate::uses::Ended::Nothing);
    }
    assert_eq!(pool.snapshot().fetched, fetched);
    assert!(is_home(&pool, one) && is_home(&pool, other) && !is_home(&pool, table));
    check(&pool, &[20, 68]);
}
