//! What the pager moves for typical programs, against the offline optimum (Belady) and least-recently-used.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::Instant;

use proptest::prelude::*;

use crate::pager::{PageRef, Pager};

/// What a program does; every object is one page.
#[derive(Clone, Debug)]
enum Event {
    Launch(u64, Vec<u32>),
    Free(u32),
}

fn one(object: u32) -> Event {
    Event::Launch(0, vec![object])
}

/// Random numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Runs a program on a GPU of `capacity` pages; `victims` orders the pages at home, the first to go first.
/// Pages fetched after event `from`; the first use of an object fetches nothing, but needs room.
fn fetched(
    events: &[Event],
    capacity: usize,
    from: usize,
    mut victims: impl FnMut(usize, &Event, &BTreeSet<u32>, usize) -> Vec<u32>,
) -> usize {
    let (mut home, mut seen, mut count) = (BTreeSet::new(), BTreeSet::new(), 0);
    for (at, event) in events.iter().enumerate() {
        let missing: Vec<u32> = match event {
            Event::Launch(_, objects) => objects.iter().copied().filter(|o| !home.contains(o)).collect(),
            Event::Free(_) => Vec::new(),
        };
        let over = (home.len() + missing.len()).saturating_sub(capacity);
        for victim in victims(at, event, &home, over).into_iter().take(over) {
            assert!(home.remove(&victim));
        }
        for object in missing {
            count += usize::from(!seen.insert(object) && at >= from);
            home.insert(object);
        }
        assert!(home.len() <= capacity, "{at}");
        if let Event::Free(object) = event {
            home.remove(object);
            seen.remove(object);
        }
    }
    count
}

fn by_pager(events: &[Event], capacity: usize, from: usize) -> usize {
    let mut pager = Pager::default();
    let page = |&object: &u32| PageRef { page: object, object, bytes: 1, clean: false };
    fetched(events, capacity, from, |_, event, home, over| match event {
        Event::Launch(function, objects) => {
            pager.launch_of(*function, objects);
            let resident: Vec<PageRef> = home.iter().map(page).collect();
            let missing = [PageRef { page: u32::MAX, object: u32::MAX, bytes: over as u64, clean: false }];
            pager.exchange(objects, &missing, &resident, 0).evict.iter().map(|page| page.object).collect()
        }
        Event::Free(object) => {
            pager.forget(*object);
            Vec::new()
        }
    })
}

/// The next use of every object from every event on decides.
fn by_belady(events: &[Event], capacity: usize, from: usize) -> usize {
    let mut uses: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        if let Event::Launch(_, objects) = event {
            objects.iter().for_each(|object| uses.entry(*object).or_default().push(at));
        }
    }
    by_order(events, capacity, from, |at, object| {
        let uses = &uses[&object];
        uses.get(uses.partition_point(|other| *other <= at)).copied().unwrap_or(usize::MAX)
    })
}

fn by_lru(events: &[Event], capacity: usize, from: usize) -> usize {
    let mut last = BTreeMap::new();
    let mut noted = 0;
    by_order(events, capacity, from, move |at, object| {
        for (at, event) in events.iter().enumerate().take(at + 1).skip(noted) {
            if let Event::Launch(_, objects) = event {
                objects.iter().for_each(|object| _ = last.insert(*object, at));
            }
        }
        noted = at + 1;
        usize::MAX - last[&object]
    })
}

/// The highest in order goes first.
fn by_order(
    events: &[Event],
    capacity: usize,
    from: usize,
    mut order: impl FnMut(usize, u32) -> usize,
) -> usize {
    fetched(events, capacity, from, |at, event, home, over| {
        let Event::Launch(_, named) = event else { return Vec::new() };
        if over == 0 {
            return Vec::new();
        }
        let mut able: Vec<u32> = home.iter().copied().filter(|object| !named.contains(object)).collect();
        able.sort_by_cached_key(|object| std::cmp::Reverse(order(at, *object)));
        able
    })
}

/// Prints and gives traffic over the optimum's, once the first half is learned.
fn ratio(what: &str, events: &[Event], capacity: usize) -> f64 {
    let from = events.len() / 2;
    let (ours, best) = (by_pager(events, capacity, from), by_belady(events, capacity, from));
    let lru = by_lru(events, capacity, from);
    let ratio = ours as f64 / best as f64;
    println!("{what}: {ours} fetched, optimum {best}, least-recently-used {lru}; ratio {ratio:.3}");
    ratio
}

fn repeated(step: &[Event], times: usize) -> Vec<Event> {
    std::iter::repeat_n(step, times).flatten().cloned().collect()
}

/// Forward, backward, optimizer over layers 1..=`layers`.
fn training_step(layers: u32) -> Vec<Event> {
    let of = |function, layer| Event::Launch(function, vec![layer]);
    let forward = (1..=layers).map(|layer| of(1, layer));
    let backward = (1..=layers).rev().map(|layer| of(2, layer));
    forward.chain(backward).chain((1..=layers).map(|layer| of(3, layer))).collect()
}

#[test]
fn a_cyclic_scan() {
    let scan: Vec<Event> = (1..=48).map(one).collect();
    assert!(ratio("cyclic scan", &repeated(&scan, 20), 32) <= 1.02);
}

#[test]
fn forward_and_backward() {
    let step: Vec<Event> = (1..=48).chain((1..=48).rev()).map(one).collect();
    assert!(ratio("forward, backward", &repeated(&step, 20), 32) <= 1.02);
}

#[test]
fn forward_backward_and_optimizer() {
    assert!(ratio("forward, backward, optimizer", &repeated(&training_step(48), 20), 32) <= 1.02);
}

#[test]
fn insertions_and_drops() {
    let mut dice = Dice(1);
    let mut noisy = |inserted: u64, dropped: u64| -> Vec<Event> {
        let mut events = Vec::new();
        for event in repeated(&training_step(48), 30) {
            if dice.percent(inserted) {
                events.push(Event::Launch(9, vec![1000 + dice.below(4) as u32]));
            }
            if !dice.percent(dropped) {
                events.push(event);
            }
        }
        events
    };
    assert!(ratio("5 % inserted", &noisy(5, 0), 32) <= 1.10);
    assert!(ratio("5 % dropped", &noisy(0, 5), 32) <= 1.20);
    assert!(ratio("5 % inserted, 5 % dropped", &noisy(5, 5), 32) <= 1.20);
}

#[test]
fn insertions_of_known_objects() {
    let mut dice = Dice(2);
    let mut events = Vec::new();
    for event in repeated(&training_step(48), 30) {
        if dice.percent(5) {
            events.push(Event::Launch(9, vec![1 + dice.below(48) as u32]));
        }
        events.push(event);
    }
    assert!(ratio("5 % inserted, of the same objects", &events, 32) <= 1.20);
}

#[test]
fn two_phases() {
    let evaluate: Vec<Event> = (1..=48).chain(101..=124).map(|o| Event::Launch(4, vec![o])).collect();
    let epoch = [repeated(&training_step(48), 20), repeated(&evaluate, 3)].concat();
    assert!(ratio("two phases, 20 to 3", &repeated(&epoch, 4), 32) <= 1.05);
    let mut dice = Dice(3);
    let epochs = (0..6).flat_map(|_| {
        let train = repeated(&training_step(48), 5 + dice.below(10) as usize);
        [train, repeated(&evaluate, 2 + dice.below(4) as usize)].concat()
    });
    assert!(ratio("two phases of random length", &epochs.collect::<Vec<_>>(), 32) <= 1.10);
}

/// Decoding: every layer reads its weights and its cache.
fn decode(layers: u32, steps: u32, mut cache: impl FnMut(u32, u32) -> Vec<Event>) -> Vec<Event> {
    let step = |step| {
        let layer = |layer| [vec![Event::Launch(1, vec![layer])], cache(step, layer)].concat();
        (1..=layers).flat_map(layer).collect::<Vec<_>>()
    };
    (0..steps).flat_map(step).collect()
}

#[test]
fn a_growing_cache() {
    // A new block for each layer every 16 steps.
    let blocks = |step: u32, layer: u32| {
        let blocks = (0..=step / 16).map(|block| 1000 + 100 * block + layer);
        vec![Event::Launch(2, blocks.chain([layer]).collect())]
    };
    assert!(ratio("cache that grows by blocks", &decode(32, 80, blocks), 80) <= 1.10);
    // A longer cache takes the place of the old one in every step.
    let anew = |step: u32, layer: u32| {
        let (old, new) = (1000 + 100 * step + layer, 1100 + 100 * step + layer);
        vec![Event::Launch(2, vec![old, new]), Event::Free(old), Event::Launch(3, vec![new, layer])]
    };
    assert!(ratio("cache that is made anew", &decode(32, 60, anew), 40) <= 1.10);
}

#[test]
fn objects_renumbered_in_every_iteration() {
    for functions in [1, 0] {
        let mut events = Vec::new();
        for round in 0..40 {
            let layers = 24;
            let made = |layer: u32| 1000 + 100 * round + layer;
            for layer in 1..=layers {
                events.push(Event::Launch(functions, vec![layer, made(layer)]));
            }
            for layer in (1..=layers).rev() {
                events.push(Event::Launch(2 * functions, vec![layer, made(layer)]));
                events.push(Event::Free(made(layer)));
            }
            events.extend((1..=layers).map(|layer| Event::Launch(3 * functions, vec![layer])));
        }
        assert!(ratio("renumbered", &events, 32) <= 1.10);
    }
}

#[test]
fn random_access_is_no_worse_than_least_recently_used() {
    let mut dice = Dice(4);
    let flat: Vec<Event> = (0..8_000).map(|_| one(dice.below(64) as u32)).collect();
    let skewed = |dice: &mut Dice| (dice.below(64) * dice.below(64) / 64) as u32;
    let skewed: Vec<Event> = (0..8_000).map(|_| one(skewed(&mut dice))).collect();
    for (what, events) in [("random", flat), ("random, skewed", skewed)] {
        ratio(what, &events, 32);
        let (ours, lru) = (by_pager(&events, 32, 4_000), by_lru(&events, 32, 4_000));
        assert!(ours as f64 <= 1.05 * lru as f64, "{what}: {ours} against {lru}");
    }
}

/// Checks every prediction at one moment against what comes; `text` repeats with its length from launch 1 on.
fn exact(pager: &Pager, text: &[u32], launches: usize) -> Result<(), TestCaseError> {
    let mut next = BTreeMap::new();
    for later in (1..=text.len()).rev() {
        next.insert(text[(launches + later - 1) % text.len()], (launches + later) as u64);
    }
    for (object, at) in next {
        prop_assert_eq!(pager.next_use(object), at, "object {} after {} launches", object, launches);
        let period = text.len() as u64;
        let again = pager.next_use_after(object, at + 3 * period - 1);
        prop_assert_eq!(again, at + 3 * period);
    }
    Ok(())
}

/// Texts with few and many objects, repeated parts, nearly repeated parts.
fn text() -> impl Strategy<Value = Vec<u32>> {
    let letters = |most: u32| proptest::collection::vec(1..=most, 1..2000usize);
    let words = (2..5u32, 1..40usize, proptest::collection::vec(0..3usize, 1..60));
    let words = words.prop_map(|(letters, length, order)| {
        let word = |n: usize| (0..length + n).map(|i| 1 + i as u32 % letters).chain([9]).collect::<Vec<_>>();
        let mut text: Vec<u32> = order.into_iter().flat_map(word).collect();
        text.truncate(2000);
        text
    });
    prop_oneof![letters(2), letters(5), letters(100), letters(2000), words]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn strict_periods_are_foretold_exactly(text in text(), more in 0..3000usize) {
        let mut pager = Pager::default();
        let learned = (5 * text.len()).div_ceil(2).max(2 * text.len() + 32);
        for launch in 0..learned + more {
            pager.launch(&[text[launch % text.len()]]);
            if launch + 1 == learned {
                exact(&pager, &text, learned)?;
            }
        }
        exact(&pager, &text, learned + more)?;
    }

    #[test]
    fn any_launches_do_no_harm(launches in proptest::collection::vec(
        (0..3u64, proptest::collection::vec(0..20u32, 0..5), 0..20u32), 1..2000))
    {
        let mut pager = Pager::default();
        for (function, objects, other) in launches {
            pager.launch_of(function, &objects);
            prop_assert!(pager.next_use(other) > pager.now());
            prop_assert!(pager.next_use_after(other, pager.now() + 7) > pager.now() + 7);
            if function == 0 {
                pager.forget(other);
                prop_assert_eq!(pager.next_use(other), u64::MAX);
            }
        }
    }
}

/// Not a check: what a launch and a query cost, printed (`cargo test --release -- --nocapture times`).
#[test]
fn times() {
    let count = if cfg!(debug_assertions) { 5_000 } else { 200_000 };
    let mut dice = Dice(5);
    let step = |layers: u32| -> Vec<Vec<u32>> {
        (1..=3 * layers).map(|n| vec![n, 1 + n % layers, 5000, 5001]).collect()
    };
    let mut noisy: Vec<Vec<u32>> = step(700).into_iter().cycle().take(count).collect();
    (0..noisy.len()).for_each(|at| {
        if dice.percent(5) {
            noisy[at] = vec![dice.below(3000) as u32];
        }
    });
    let random: Vec<Vec<u32>> =
        (0..count).map(|_| (0..4).map(|_| dice.below(3000) as u32).collect()).collect();
    let few: Vec<Vec<u32>> = (0..count).map(|_| vec![dice.below(6) as u32]).collect();
    let periodic = step(700).into_iter().cycle().take(count).collect();
    for (what, launches) in [("periodic", periodic), ("noisy", noisy), ("random", random), ("few", few)] {
        let mut pager = Pager::default();
        let begin = Instant::now();
        launches.iter().enumerate().for_each(|(n, objects)| pager.launch_of(n as u64 % 7, objects));
        let launch = begin.elapsed() / launches.len() as u32;
        let begin = Instant::now();
        (0..count as u32).for_each(|n| _ = black_box(pager.next_use(n % 3000)));
        println!("{what}: {launch:?} a launch, {:?} a query", begin.elapsed() / count as u32);
    }
}
