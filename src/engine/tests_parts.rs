//! Allocations of which launches bring parts, on the strict driver of `testing`.

use proptest::prelude::*;

use crate::device::Place;
use crate::free::Freed;
use crate::pool::Pool;
use crate::testing::{G, Mock};
use crate::tests::{ask, check, pages};
use crate::tests_pager::small;

/// Tensors of one page each that the buffer holds.
const TENSORS: u64 = 10;
/// Rounds that a pointer takes to be known, and more.
const WARM: u64 = 8;

/// A buffer of [`TENSORS`] pages, each marked with its address, on a GPU that holds 4 of them.
fn buffer() -> (Pool<Mock>, u64) {
    let pool = small(16);
    let base = pool.allocate(ask(0, TENSORS * 4 * G)).unwrap();
    mark(&pool, base, TENSORS * 4);
    (pool, base)
}

fn mark(pool: &Pool<Mock>, base: u64, granules: u64) {
    pages(pool, base, granules).iter().for_each(|&at| pool.device().write(at, at));
}

fn intact(pool: &Pool<Mock>, base: u64, granules: u64) -> bool {
    let pages = pages(pool, base, granules);
    !pages.is_empty() && pages.iter().all(|&at| pool.device().read(at) == Some(at))
}

fn is_home(pool: &Pool<Mock>, at: u64) -> bool {
    pool.find(at).unwrap().place == Place::Gpu(0)
}

/// A launch as the shim makes it; how many pages came home for it.
fn launch(pool: &Pool<Mock>, addresses: &[u64]) -> u64 {
    pool.note_pointers(0, addresses);
    if !pool.note_launch(0, 1, addresses) {
        return 0;
    }
    pool.bring(0, 100, addresses).unwrap().fetched
}

/// Pointers into the middle of a page: an offset of its own for each tensor.
fn tensor(base: u64, number: u64) -> u64 {
    base + number * 4 * G + 256
}

fn warm(pool: &Pool<Mock>, base: u64) {
    for number in (0..WARM).flat_map(|_| 0..TENSORS) {
        launch(pool, &[tensor(base, number)]);
    }
}

#[test]
fn a_launch_brings_the_tensor_that_it_names_and_no_more() {
    let (pool, base) = buffer();
    assert!(!pool.goes_by_parts());
    warm(&pool, base);
    assert!(pool.goes_by_parts());
    for number in [9, 0, 5, 3, 7, 1] {
        launch(&pool, &[tensor(base, number)]);
        assert!(is_home(&pool, tensor(base, number)), "tensor {number}");
        assert!(intact(&pool, base, TENSORS * 4));
        check(&pool, &[20, 68]);
    }
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    assert!(!pool.goes_by_parts());
    pool.release_spare();
    check(&pool, &[20, 68]);
}

/// On a cyclic scan a fixed part stays at home: what comes in a round is what does not fit, and a little.
#[test]
fn a_scan_of_one_buffer_keeps_a_fixed_part() {
    let (pool, base) = buffer();
    warm(&pool, base);
    warm(&pool, base);
    let round: u64 = (0..TENSORS).map(|number| launch(&pool, &[tensor(base, number)])).sum();
    // A part ends in the middle of the next tensor's first page: a launch names two pages, the last one.
    assert!((TENSORS - 4..=TENSORS - 4 + 2).contains(&round), "{round}");
    assert!(intact(&pool, base, TENSORS * 4));
}

#[test]
fn what_is_named_whole_is_not_divided() {
    let pool = small(16);
    let (a, b) = (pool.allocate(ask(0, 12 * G)).unwrap(), pool.allocate(ask(0, 12 * G)).unwrap());
    for _ in 0..400 {
        launch(&pool, &[a, b]);
    }
    assert!(!pool.goes_by_parts());
    // A buffer that fits is brought whole, whatever its pointers stand for.
    for number in (0..400).map(|n| n % 3) {
        launch(&pool, &[tensor(a, number)]);
    }
    assert!(!pool.goes_by_parts());
    assert!((0..3).all(|number| is_home(&pool, tensor(a, number))));
}

/// Pointers to the front and to the end of the same memory name all of it, however small the parts in between are.
#[test]
fn headers_and_ends_do_not_divide_a_buffer() {
    let (pool, base) = buffer();
    let bytes = TENSORS * 4 * G;
    let second = pool.allocate(ask(0, 12 * G - 4096)).unwrap();
    for _ in 0..400 {
        launch(&pool, &[base, base + 256, base + bytes]);
        launch(&pool, &[base, base + 256, second, second + 12 * G - 4096, second + 12 * G - 1]);
    }
    assert!(!pool.goes_by_parts());
}

#[test]
fn a_launch_that_is_too_large_now_and_then_divides_nothing() {
    let pool = small(16);
    let all: Vec<u64> = (0..3).map(|_| pool.allocate(ask(0, 6 * G)).unwrap()).collect();
    for number in 0..4000 {
        launch(&pool, &[all[number % 3], all[number % 3] + G]);
        if number % 50 == 0 {
            launch(&pool, &[all[0], all[1] + G, all[2]]);
        }
    }
    assert!(!pool.goes_by_parts());
}

#[test]
fn what_never_moves_is_not_divided() {
    let (pool, base) = buffer();
    pool.pin(base);
    warm(&pool, base);
    assert!(!pool.goes_by_parts());
    let (pool, base) = buffer();
    warm(&pool, base);
    assert!(pool.goes_by_parts());
    pool.pin(base);
    launch(&pool, &[tensor(base, 1)]);
    assert!(!pool.goes_by_parts() && intact(&pool, base, TENSORS * 4));
}

/// A buffer that was too large beside another one is whole again when that is gone, and all of it comes home.
#[test]
fn a_buffer_that_fits_again_is_whole_again() {
    let pool = small(16);
    let (base, other) = (pool.allocate(ask(0, 12 * G)).unwrap(), pool.allocate(ask(0, 12 * G)).unwrap());
    mark(&pool, base, 12);
    mark(&pool, other, 12);
    for number in (0..300).map(|n| n % 3) {
        launch(&pool, &[tensor(base, number), tensor(other, number)]);
    }
    assert!(pool.goes_by_parts());
    assert_eq!(pool.free(other), Freed::Done(Ok(())));
    for number in (0..600).map(|n| n % 3) {
        launch(&pool, &[tensor(base, number)]);
    }
    assert!(!pool.goes_by_parts());
    assert!((0..3).all(|number| is_home(&pool, tensor(base, number))) && intact(&pool, base, 12));
}

/// Where a pointer is new its own page comes, and nothing around it.
#[test]
fn a_new_pointer_brings_its_page() {
    let (pool, base) = buffer();
    warm(&pool, base);
    launch(&pool, &[tensor(base, 0)]);
    let new = base + (TENSORS - 1) * 4 * G + 9 * 4096;
    launch(&pool, &[tensor(base, 1), new]);
    assert!(is_home(&pool, new) && is_home(&pool, tensor(base, 1)));
    let new = base + 5 * 4 * G + 9 * 4096;
    launch(&pool, &[new]);
    assert!(is_home(&pool, new));
}

/// What cannot be brought is not asked for by every launch.
#[test]
fn launches_do_not_wait_for_what_does_not_fit() {
    let pool = small(16);
    let all: Vec<u64> = (0..3).map(|_| pool.allocate(ask(0, 8 * G)).unwrap()).collect();
    let asks = |addresses: &[u64]| {
        let asks = pool.note_launch(0, 0, addresses);
        if asks {
            pool.bring(0, 100, addresses).unwrap();
        }
        asks
    };
    asks(&all[..2]);
    let asked = (0..63).filter(|_| asks(&all)).count();
    assert_eq!(asked, 1);
    assert!(asks(&all[2..]), "this one can be brought");
    assert!(asks(&all), "and now others are missing");
    assert!(!asks(&all));
    let both = || all[1..].iter().all(|&base| is_home(&pool, base) && is_home(&pool, base + 4 * G));
    let was = both();
    assert_eq!(pool.free(all[0]), Freed::Done(Ok(())));
    assert_eq!(asks(&all[1..]), !was, "there is room now");
    assert!(both());
}

#[test]
fn other_allocations_come_and_go_beside_a_divided_one() {
    let (pool, base) = buffer();
    let other = pool.allocate(ask(0, 8 * G)).unwrap();
    mark(&pool, other, 8);
    warm(&pool, base);
    assert!(pool.goes_by_parts());
    launch(&pool, &[tensor(base, 2), other]);
    assert!(is_home(&pool, tensor(base, 2)) && is_home(&pool, other) && is_home(&pool, other + 4 * G));
    for number in 0..4 {
        launch(&pool, &[tensor(base, number)]);
    }
    assert!(intact(&pool, base, TENSORS * 4) && intact(&pool, other, 8));
    check(&pool, &[20, 68]);
}

#[test]
fn a_new_allocation_in_the_place_of_a_divided_one_is_whole() {
    let (pool, base) = buffer();
    warm(&pool, base);
    assert_eq!(pool.free(base), Freed::Done(Ok(())));
    let next = pool.allocate(ask(0, TENSORS * 4 * G)).unwrap();
    mark(&pool, next, TENSORS * 4);
    assert!(!pool.goes_by_parts());
    launch(&pool, &[tensor(next, 9)]);
    assert!(!pool.goes_by_parts() && intact(&pool, next, TENSORS * 4));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Launches with random pointers into a divided buffer and others, allocations and frees, faults now and then:
    /// contents and books hold after every step, and every divided buffer is counted.
    #[test]
    fn random_pointers_into_a_divided_buffer_lose_nothing(
        steps in prop::collection::vec((0u8..8, 0u64..40, 0u64..40, 0usize..8), 1..60), gpu in 8u64..24,
    ) {
        let pool = small(gpu);
        let base = pool.allocate(ask(0, TENSORS * 4 * G)).unwrap();
        mark(&pool, base, TENSORS * 4);
        warm(&pool, base);
        let mut live = vec![(base, TENSORS * 4)];
        for (what, a, b, which) in steps {
            match what {
                0 => if let Ok(base) = pool.allocate(ask(0, (1 + a % 12) * G)) {
                    mark(&pool, base, 1 + a % 12);
                    live.push((base, 1 + a % 12));
                },
                1 if live.len() > 1 => {
                    let (base, _) = live.swap_remove(1 + which % (live.len() - 1));
                    prop_assert_eq!(pool.free(base), Freed::Done(Ok(())));
                }
                2 => {
                    let calls = pool.device().0.lock().unwrap().calls;
                    pool.device().0.lock().unwrap().fail_at = Some(calls + a as usize);
                    pool.note_launch(0, 1, &[base + b * G]);
                    let _ = pool.bring(0, 100, &[base + b * G]);
                    pool.device().0.lock().unwrap().fail_at = None;
                }
                _ => {
                    let (other, granules) = live[which % live.len()];
                    launch(&pool, &[base + a * G, tensor(base, b % TENSORS), other + b % granules * G]);
                }
            }
            for &(base, granules) in &live {
                prop_assert!(intact(&pool, base, granules));
            }
        }
        prop_assert!(gpu >= TENSORS * 4 || pool.goes_by_parts());
        for (base, _) in live {
            prop_assert_eq!(pool.free(base), Freed::Done(Ok(())));
        }
        prop_assert!(!pool.goes_by_parts());
    }
}
