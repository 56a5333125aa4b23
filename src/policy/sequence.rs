//! The sequence of launches: what was launched, with which objects, kept for a while so that the past can be
//! found that the present repeats (`follow.rs`).
//!
//! Objects have *names* in the sequence. An object that is freed and allocated anew under another number
//! keeps its name where it comes at the same place, so that temporary tensors look alike in every iteration.
//! Positions are launch numbers. Everything is bounded: the oldest items are dropped.

use std::collections::{HashMap, VecDeque};

use crate::follow::Cursor;
use crate::gaps::{Expected, Gaps, Shape};
use crate::rolling::{self, Chains};

/// Items that are kept.
const ITEMS: usize = 1 << 15;
/// Names that are kept, of all items together.
const NAMED: usize = 4 * ITEMS;
/// Names that are kept of one item.
const MOST_NAMED: usize = 1 << 12;

/// One launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) function: u64,
    /// Function and names.
    key: u64,
    /// Hash of all keys up to this one.
    prefix: u64,
    /// Where its names begin, counted from the first name ever.
    start: u64,
    count: u32,
}

/// What a launch is known to name before it becomes an item: the names of objects that have one, in order,
/// and how many have none.
pub(crate) struct Fresh<'a> {
    pub(crate) function: u64,
    pub(crate) names: &'a [u32],
    pub(crate) strangers: usize,
}

/// An object's part in the sequence.
#[derive(Clone, Debug, Default)]
struct Name {
    /// Who has it now.
    object: Option<u32>,
    born: u64,
    last: u64,
    /// Positions of the kept items that name it.
    uses: VecDeque<u64>,
}

/// The recent launches, and the place in the past that the present repeats.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    /// Position of the newest item; 0 is none.
    pub(crate) now: u64,
    items: VecDeque<Item>,
    named: VecDeque<u32>,
    /// Names dropped so far.
    dropped: u64,
    names: Vec<Name>,
    unused: Vec<u32>,
    of: HashMap<u32, u32>,
    pub(crate) chains: Chains,
    pub(crate) cursor: Option<Cursor>,
    /// Of gaps without order.
    shape: Shape,
    /// Launches until a vain search is tried again, and how many they were last time.
    pub(crate) rest: (u32, u32),
    /// Kept to spare allocations.
    scratch: (Vec<u32>, Vec<u32>),
}

impl Sequence {
    /// Appends a launch, and follows the past with it. One that names nothing is no item.
    pub(crate) fn record(&mut self, function: u64, objects: &[u32]) {
        if objects.is_empty() {
            return;
        }
        let (mut names, mut strangers) = std::mem::take(&mut self.scratch);
        names.clear();
        strangers.clear();
        for object in objects.iter().take(MOST_NAMED) {
            match self.of.get(object) {
                Some(name) => names.push(*name),
                None => strangers.push(*object),
            }
        }
        names.sort_unstable();
        let fresh = Fresh { function, names: &names, strangers: strangers.len() };
        let found = self.expected(&fresh);
        self.now += 1;
        self.baptise(found.map(|(at, _)| at), &strangers);
        names.extend(strangers.iter().filter_map(|object| self.of.get(object)));
        names.sort_unstable();
        names.dedup();
        self.append(function, &names);
        self.scratch = (names, strangers);
        self.step(found);
        while self.items.len() > ITEMS || self.named.len() > NAMED {
            self.drop_oldest();
        }
    }

    /// Gives names to objects that have none: those that the item of the past names and nobody has now, then
    /// new ones.
    fn baptise(&mut self, past: Option<u64>, strangers: &[u32]) {
        if strangers.is_empty() {
            return;
        }
        let range = past.and_then(|at| self.item(at)).map_or(0..0, |item| self.range(item));
        let mut old = range;
        for object in strangers {
            if self.of.contains_key(object) {
                continue; // named twice by this launch
            }
            let free = |index: &usize| self.names[self.name(*index) as usize].object.is_none();
            let name = match old.find(free) {
                Some(index) => self.name(index),
                None => self.new_name(),
            };
            self.names[name as usize].object = Some(*object);
            self.of.insert(*object, name);
        }
    }

    fn new_name(&mut self) -> u32 {
        let born = Name { born: self.now, ..Name::default() };
        match self.unused.pop() {
            Some(name) => {
                let uses = std::mem::take(&mut self.names[name as usize].uses);
                self.names[name as usize] = Name { uses, ..born };
                name
            }
            None => {
                self.names.push(born);
                self.names.len() as u32 - 1
            }
        }
    }

    fn append(&mut self, function: u64, names: &[u32]) {
        let key = names.iter().fold(rolling::mix(function), |key, &name| rolling::mix(key ^ u64::from(name)));
        let key = rolling::reduce(key);
        let is_new_ground = self.trusted().is_none();
        for name in names.iter() {
            let known = &mut self.names[*name as usize];
            if is_new_ground && let Some(mean) = Gaps::of(&known.uses, known.last).mean_of_any() {
                self.shape.add(self.now - known.last, mean);
            }
            known.uses.push_back(self.now);
            known.last = self.now;
        }
        let prefix = rolling::append(self.items.back().map_or(0, |item| item.prefix), key);
        let start = self.dropped + self.named.len() as u64;
        self.items.push_back(Item { function, key, prefix, start, count: names.len() as u32 });
        self.named.extend(names.iter());
        let grams = rolling::GRAMS.map(|power| self.gram(self.now, power));
        self.chains.add(self.now, grams);
    }

    fn drop_oldest(&mut self) {
        let Some(item) = self.items.pop_front() else { return };
        for name in self.named.drain(..item.count as usize) {
            let known = &mut self.names[name as usize];
            known.uses.pop_front();
            if known.uses.is_empty() && known.object.is_none() {
                self.unused.push(name);
            }
        }
        self.dropped += u64::from(item.count);
        let first = self.first();
        if self.cursor.is_some_and(|cursor| cursor.at < first) {
            self.cursor = None;
        }
    }

    /// The object is gone. Its name stays with the past.
    pub(crate) fn forget(&mut self, object: u32) {
        let Some(name) = self.of.remove(&object) else { return };
        let known = &mut self.names[name as usize];
        known.object = None;
        if known.uses.is_empty() {
            self.unused.push(name);
        }
    }

    fn known(&self, object: u32) -> Option<&Name> {
        self.of.get(&object).map(|name| &self.names[*name as usize])
    }

    /// The launch that used the object last; 0 is none.
    pub(crate) fn last_use(&self, object: u32) -> u64 {
        self.known(object).map_or(0, |name| name.last)
    }

    /// The first expected use after launch `after`, which is the newest or later.
    pub(crate) fn next_use_after(&self, object: u32, after: u64) -> Option<Expected> {
        let name = self.known(object)?;
        let gaps = Gaps::of(&name.uses, name.last);
        let Some(Cursor { at, .. }) = self.trusted() else {
            return gaps.next_use_after(self.now, after, &self.shape);
        };
        // What followed `at` comes again; what comes after the present is the same once more.
        let lag = self.now - at;
        let (rounds, into) = ((after - self.now) / lag, (after - self.now) % lag);
        let known = |at| Some(Expected { at, is_known: true });
        if let Some(position) = first_after(&name.uses, at + into) {
            return known(self.now + rounds * lag + (position - at));
        }
        if let Some(position) = first_after(&name.uses, at) {
            return known(self.now + (rounds + 1) * lag + (position - at));
        }
        gaps.next_use_after(self.now, after.max(self.now + lag), &self.shape)
    }

    /// Launches of one iteration, where the present repeats the past.
    pub(crate) fn period(&self) -> Option<u64> {
        self.trusted().map(|cursor| self.now - cursor.at)
    }

    /// Position of the oldest item.
    pub(crate) fn first(&self) -> u64 {
        self.now + 1 - self.items.len() as u64
    }

    pub(crate) fn item(&self, position: u64) -> Option<&Item> {
        self.items.get(usize::try_from(position.checked_sub(self.first())?).ok()?)
    }

    fn range(&self, item: &Item) -> std::ops::Range<usize> {
        let start = (item.start - self.dropped) as usize;
        start..start + item.count as usize
    }

    fn name(&self, index: usize) -> u32 {
        self.named[index]
    }

    /// Of the newest item's names the one with the fewest uses, but more than one: its uses, oldest first.
    pub(crate) fn rarest(&self) -> Option<&VecDeque<u64>> {
        let range = self.range(self.items.back()?);
        let uses = range.map(|index| &self.names[self.name(index) as usize].uses);
        uses.filter(|uses| uses.len() > 1).min_by_key(|uses| uses.len())
    }

    /// Whether a launch is like the item at `past`: `Some(true)` where that says something.
    pub(crate) fn is_like(&self, fresh: &Fresh, past: u64) -> Option<bool> {
        self.compare(self.item(past)?, past, fresh.function, fresh.names.iter().copied(), fresh.strangers)
    }

    /// Whether the item at `position` is like the older one at `past`.
    pub(crate) fn are_alike(&self, position: u64, past: u64) -> Option<bool> {
        let (item, old) = (self.item(position)?, self.item(past)?);
        if item.key == old.key {
            return Some(true);
        }
        self.compare(old, past, item.function, self.range(item).map(|index| self.name(index)), 0)
    }

    /// Both name the same, but for objects that are younger than the past, and those of the past that are
    /// gone.
    fn compare(
        &self,
        old: &Item,
        past: u64,
        function: u64,
        mut names: impl Iterator<Item = u32>,
        strangers: usize,
    ) -> Option<bool> {
        if old.function != function {
            return None;
        }
        let mut olds = self.range(old).map(|index| self.name(index));
        let (mut common, mut younger, mut gone) = (0, strangers, 0);
        let (mut a, mut b) = (names.next(), olds.next());
        loop {
            match (a, b) {
                (None, None) => break,
                (Some(x), Some(y)) if x == y => {
                    common += 1;
                    (a, b) = (names.next(), olds.next());
                }
                (Some(x), y) if y.is_none_or(|y| x < y) => {
                    if self.names[x as usize].born <= past {
                        return None;
                    }
                    younger += 1;
                    a = names.next();
                }
                (_, Some(y)) => {
                    if self.names[y as usize].object.is_some() {
                        return None;
                    }
                    gone += 1;
                    b = olds.next();
                }
                (Some(_), None) => return None, // taken above
            }
        }
        (common > 0 || younger == gone).then_some(common > 0 || function != 0)
    }

    /// Hash of the 2^power keys up to a position, where they are kept.
    pub(crate) fn gram(&self, end: u64, power: u32) -> Option<u64> {
        let before = self.item(end.checked_sub(1 << power)?)?;
        Some(rolling::window(self.item(end)?.prefix, before.prefix, power))
    }

    /// How many items up to two positions are the same, `past` being the older.
    pub(crate) fn common(&self, position: u64, past: u64) -> u64 {
        let mut length = 0;
        for power in (0..rolling::POWERS).rev() {
            let (Some(a), Some(b)) = (position.checked_sub(length), past.checked_sub(length)) else { break };
            let older = self.gram(b, power);
            if older.is_some() && older == self.gram(a, power) {
                length += 1 << power;
            }
        }
        length
    }
}

fn first_after(uses: &VecDeque<u64>, position: u64) -> Option<u64> {
    uses.get(uses.partition_point(|at| *at <= position)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_items_are_dropped_and_their_names_come_back() {
        let mut sequence = Sequence::default();
        let mut number = 1000;
        for launch in 0..ITEMS as u32 + 9000 {
            if launch % 100 == 99 {
                // 400 objects that live for one launch, in no place of the past.
                let many: Vec<u32> = (number..number + 400).collect();
                sequence.record(u64::from(launch), &many);
                many.iter().for_each(|object| sequence.forget(*object));
                number += 400;
            } else {
                sequence.record(1, &[launch % 100, launch % 7]);
            }
        }
        assert!(sequence.items.len() <= ITEMS && sequence.named.len() <= NAMED);
        assert!(sequence.names.len() <= NAMED + 600 && sequence.of.len() == 99, "{}", sequence.names.len());
        assert_eq!(
            sequence.items.iter().map(|item| item.count as usize).sum::<usize>(),
            sequence.named.len()
        );
        let uses = sequence.names.iter().map(|name| name.uses.len()).sum::<usize>();
        assert_eq!(uses, sequence.named.len());
        assert!(sequence.names.iter().flat_map(|name| &name.uses).all(|at| *at >= sequence.first()));
        assert_eq!(sequence.last_use(20), sequence.known(20).unwrap().uses.back().copied().unwrap());
    }

    #[test]
    fn a_name_passes_to_the_object_in_its_place() {
        let mut sequence = Sequence::default();
        for round in 0..6 {
            for object in 1..=20 {
                sequence.record(1, &[object]);
            }
            sequence.record(2, &[100 + round]);
            sequence.forget(100 + round);
        }
        (1..=20).for_each(|object| sequence.record(1, &[object]));
        sequence.record(2, &[200]);
        let known = Expected { at: sequence.now + 21, is_known: true };
        assert_eq!(sequence.next_use_after(200, sequence.now), Some(known));
    }
}
