//! Copies over the links of other GPUs, on the strict driver of `testing`: whoever copies needs access at both ends.

use proptest::prelude::*;
use vgmem_policy::Placement;

use crate::pool::Pool;
use crate::testing::{G, Mock, pool};
use crate::tests::check;
use crate::tests_overlap::World;
use crate::tests_twins::rounds;

/// A GPU of 16 granules, one without room that may help, a host of 64; two allocations more than fit.
fn two_gpus() -> World {
    let mut config = pool(&[16, 0], 64, 2, Placement::Home).config().clone();
    (config.gpus[0].exchange, config.host_exchange) = (8 * G, 8 * G);
    let mock = Mock::default();
    mock.0.lock().unwrap().left = vec![24 * G, 0, 72 * G];
    let mut world = World::over(Pool::new(mock, config));
    (0..4).for_each(|_| world.allocate(8));
    world
}

/// How many copies each of the two GPUs made.
fn copied(world: &World) -> [usize; 2] {
    let books = world.pool.device().0.lock().unwrap();
    [100, 101].map(|context| books.copied_by.iter().filter(|by| **by == context).count())
}

#[test]
fn copies_go_over_both_links() {
    let mut world = two_gpus();
    rounds(&mut world, 2);
    let [own, other] = copied(&world);
    assert!(own > 10 && other == 0, "{own} {other}");
    world.pool.add_path(0, 1, 101);
    rounds(&mut world, 6);
    let [both, other] = copied(&world);
    assert!(other > 10 && both - own > 10, "{own} {both} {other}");
    check(&world.pool, &[24, 0, 72]);
    assert_eq!(world.end(), 0);
}

#[test]
fn a_gpu_that_does_not_reach_the_other_does_not_help() {
    let mut config = two_gpus().pool.config().clone();
    config.gpus[1].distances[0] = None;
    let mock = Mock::default();
    mock.0.lock().unwrap().left = vec![24 * G, 0, 72 * G];
    let mut world = World::over(Pool::new(mock, config));
    (0..4).for_each(|_| world.allocate(8));
    world.pool.add_path(0, 1, 101);
    world.pool.add_path(0, 0, 102);
    rounds(&mut world, 3);
    assert_eq!(copied(&world)[1], 0);
    assert_eq!(world.end(), 0);
}

/// The helper's context ends while it copies: its pages stay where they were, and the own link takes over.
#[test]
fn a_path_ends_with_its_context() {
    let mut world = two_gpus();
    world.pool.add_path(0, 1, 101);
    rounds(&mut world, 4);
    let base = world.live[0].base;
    let under_way = |world: &World| world.pool.lock_motions(0).iter().any(|motion| motion.copier == 101);
    let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
    let mut tries = bases.iter().cycle().take(40);
    while !under_way(&world) {
        let using = world.pool.begin_use(&[*tries.next().expect("some copy is the helper's")]);
        world.pool.advance(0, 100, &using.named(), false);
        world.pool.end_use(using, crate::uses::Ended::Nothing);
    }
    assert_eq!(world.pool.free_context(101, true), 0);
    assert!(!under_way(&world));
    let [_, before] = copied(&world);
    world.launch(vec![base]);
    rounds(&mut world, 3);
    assert_eq!(copied(&world)[1], before);
    check(&world.pool, &[24, 0, 72]);
    assert_eq!(world.end(), 0);
}

/// Every driver call fails once: nothing is lost but what the driver did not take back, and pages go on moving.
#[test]
fn a_fault_at_every_call_with_two_paths_loses_no_byte() {
    let play = |fail_at: Option<usize>| {
        let mut world = two_gpus();
        rounds(&mut world, 1);
        world.pool.add_path(0, 1, 101);
        let before = world.pool.device().0.lock().unwrap().calls;
        world.pool.device().0.lock().unwrap().fail_at = fail_at.map(|at| before + at);
        rounds(&mut world, 2);
        let count = world.pool.device().0.lock().unwrap().calls - before;
        world.pool.device().0.lock().unwrap().fail_at = None;
        assert!(fail_at.is_some() || copied(&world)[1] > 4, "{:?}", copied(&world));
        world.is_whole();
        count
    };
    let count = play(None);
    assert!(count > 100, "{count}");
    (0..count).for_each(|at| _ = play(Some(at)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    /// Random work while paths come and go: contents, mappings and books hold after every step.
    #[test]
    fn random_work_finds_its_pages_over_both_links(
        steps in prop::collection::vec((0u8..20, 1u64..14, 0usize..8, 0usize..8), 1..120),
    ) {
        let mut world = two_gpus();
        for (what, granules, a, b) in steps {
            match what {
                16 | 17 => world.pool.add_path(0, 1, 101),
                18 => prop_assert_eq!(world.pool.free_context(101, true), 0),
                _ => world.step(what, granules, a, b),
            }
            check(&world.pool, &[24, 0, 72]);
        }
        prop_assert_eq!(world.end(), 0);
    }
}
