//! Pages that were not written since they came home, on the strict driver of `testing`.

use crate::overlap::Step;
use crate::testing::G;
use crate::tests::check;
use crate::tests_overlap::World;
use crate::uses::Ended;

/// Rounds over allocations that do not all fit.
pub(crate) fn rounds(world: &mut World, rounds: usize) {
    let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
    for _ in 0..rounds {
        for &base in &bases {
            world.launch(vec![base]);
            world.run();
            world.pool.make_wanted_frames(0, 100, 2);
        }
    }
}

/// Four allocations of 8 granules on a GPU of 16, after rounds of work that writes them or not.
fn after_rounds(writes: bool) -> World {
    let mut world = World::new(16);
    (0..4).for_each(|_| world.allocate(8));
    world.writes = writes;
    rounds(&mut world, 4);
    world
}

/// What was not written goes without a copy; what was is copied, and after a while without the question.
#[test]
fn pages_that_were_not_written_go_without_a_copy() {
    let mut world = after_rounds(false);
    let before = world.pool.snapshot();
    assert!(before.unwritten > 0, "{before:?}");
    rounds(&mut world, 4);
    let after = world.pool.snapshot();
    assert_eq!(after.unwritten - before.unwritten, after.evicted - before.evicted, "{before:?}, {after:?}");
    world.writes = true;
    rounds(&mut world, 8);
    let written = world.pool.snapshot();
    let went = written.unwritten - after.unwritten;
    assert!(went <= 4 && written.evicted > after.evicted + 20, "{after:?}, {written:?}");
    let printed = |world: &World| world.pool.device().0.lock().unwrap().printed as u64;
    let before = printed(&world);
    rounds(&mut world, 24);
    let (asked, went) = (printed(&world) - before, world.pool.snapshot().evicted - written.evicted);
    assert!(asked < went / 3, "{asked} of {went} pages that are always written were asked");
    world.writes = false;
    rounds(&mut world, 200);
    assert!(world.pool.snapshot().unwritten > written.unwritten, "they are asked again");
    check(&world.pool, &[20, 68]);
    assert_eq!(world.end(), 0);
}

/// A page about which nothing is known is copied.
#[test]
fn pages_that_nobody_can_tell_about_are_copied() {
    let mut world = after_rounds(false);
    let before = world.pool.snapshot();
    world.pool.device().0.lock().unwrap().blind = true;
    rounds(&mut world, 4);
    let after = world.pool.snapshot();
    assert_eq!(after.unwritten, before.unwritten);
    assert!(after.evicted > before.evicted + 8);
    assert_eq!(world.end(), 0);
}

/// A fingerprint that comes too late: the page is copied, and nothing is unmapped while the kernel may read.
#[test]
fn memory_that_a_late_fingerprint_reads_stays_mapped() {
    let mut world = after_rounds(false);
    let before = world.pool.snapshot();
    world.pool.device().0.lock().unwrap().late = true;
    rounds(&mut world, 2);
    assert_eq!(world.pool.snapshot().unwritten, before.unwritten);
    assert!(!world.pool.lock().late.is_empty());
    // Other sizes want the frames' memory.
    for granules in [3, 1, 2, 5] {
        world.allocate(granules);
        rounds(&mut world, 1);
        check(&world.pool, &[20, 68]);
    }
    world.pool.device().0.lock().unwrap().late = false;
    rounds(&mut world, 8);
    assert!(world.pool.lock().late.is_empty() && world.pool.snapshot().unwritten > before.unwritten);
    assert_eq!(world.end(), 0);
}

/// A context ends while fingerprints of its pages are compared: they stay where they were.
#[test]
fn comparisons_end_with_their_context() {
    let mut world = after_rounds(false);
    let bases: Vec<u64> = world.live.iter().map(|live| live.base).collect();
    let compared = |world: &World| {
        world.pool.lock_motions(0).iter().any(|motion| matches!(motion.step, Step::Comparing(..)))
    };
    for &base in bases.iter().cycle().take(40) {
        let using = world.pool.begin_use(&[base]);
        world.pool.advance(0, 100, &using.named(), false);
        world.pool.end_use(using, Ended::Nothing);
        if compared(&world) {
            break;
        }
    }
    assert!(compared(&world));
    assert_eq!(world.pool.free_context(100, true), 4);
    assert!(world.pool.lock_motions(0).is_empty());
    check(&world.pool, &[20, 68]);
    world.live.clear();
    assert_eq!(world.end(), 0);
}

/// The machine has less host RAM than the books say, and twins hold it: an allocation gets it.
#[test]
fn twins_make_room_where_the_machine_has_none() {
    let mut world = after_rounds(false);
    assert!(world.pool.twins() >= 4 * G);
    world.pool.device().0.lock().unwrap().left[1] = 2 * G;
    world.allocate(4);
    assert_eq!(world.live.len(), 5);
}

/// `VGMEM_VERIFY` notices a page that was written and goes without a copy.
#[test]
#[should_panic(expected = "changed while it was moved")]
fn a_written_page_that_goes_without_a_copy_is_noticed() {
    let mut world = World::new(16);
    world.pool.device().0.lock().unwrap().blurred = true;
    (0..4).for_each(|_| world.allocate(8));
    rounds(&mut world, 4);
}

/// An allocation gets the memory of the twins, and pages move even where the host is full.
#[test]
fn twins_make_room() {
    let mut world = after_rounds(false);
    let twins = |world: &World| world.pool.lock().tiers[1].twins;
    assert!(twins(&world) > 0);
    let room = 68 - 4 - (8 * 4 - 16);
    world.allocate(room);
    assert_eq!(world.live.len(), 5, "the twins are not in the way");
    assert_eq!(twins(&world), 0);
    world.writes = true;
    rounds(&mut world, 2);
    check(&world.pool, &[20, 68]);
    world.free(4);
    world.writes = false;
    rounds(&mut world, 4);
    assert!(twins(&world) > 0 && world.pool.release_twins(99) > 0);
    assert_eq!(twins(&world), 0);
    check(&world.pool, &[20, 68]);
    assert_eq!(world.end(), 0);
}
