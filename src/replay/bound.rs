//! The least that any pager could move, knowing the future.
//!
//! Belady's rule on objects, the parts of allocations that pointers stand for: what goes is used latest of
//! all. Objects may go in part; what is made anew is fetched from nowhere; what is never used again is not
//! written back. What a launch names beyond the memory is read in place: it travels as well.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::parts::Parts;
use crate::steps::Steps;
use crate::trace::{Operand, Record, Trace};

/// Bytes that have to travel in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Least {
    /// To the GPU.
    pub fetched: u64,
    /// From it.
    pub evicted: u64,
    /// Bytes of all objects that the round uses.
    pub used: u64,
}

struct Object {
    bytes: u64,
    home: u64,
    /// It holds nothing yet.
    new: bool,
    /// Its next use, by number of the access.
    next: usize,
}

/// An allocation and the place of a part of it.
pub(crate) type Key = (u64, u64);

/// A part, its bytes, and the access that names it next.
pub(crate) struct Name {
    pub(crate) key: Key,
    pub(crate) bytes: u64,
    next: usize,
}

/// An access: its round, what it names, and which allocations were freed before it.
pub(crate) struct Access {
    pub(crate) round: usize,
    /// How long it runs, in nanoseconds.
    pub(crate) ns: u64,
    pub(crate) names: Vec<Name>,
    freed: Vec<u64>,
}

pub(crate) fn accesses(steps: Steps, parts: &Parts) -> Vec<Access> {
    let mut all: Vec<Access> = Vec::new();
    let mut freed = Vec::new();
    for step in steps {
        match step.record {
            Record::Launch(_, work) | Record::Copy(_, work) => {
                let name =
                    |part: Operand| Name { key: (part.id, part.offset), bytes: part.bytes, next: usize::MAX };
                let names = parts.of(work).into_iter().map(name).collect();
                let (round, freed) = (step.round, std::mem::take(&mut freed));
                all.push(Access { round, ns: work.ns, names, freed });
            }
            Record::Free(id) => freed.push(*id),
            _ => {}
        }
    }
    let mut next: BTreeMap<Key, usize> = BTreeMap::new();
    for (number, access) in all.iter_mut().enumerate().rev() {
        for name in &mut access.names {
            name.next = next.insert(name.key, number).unwrap_or(usize::MAX);
        }
        for &id in &access.freed {
            // What is used later is another allocation in its place.
            while let Some(key) = next.range((id, 0)..=(id, u64::MAX)).next().map(|(key, _)| *key) {
                next.remove(&key);
            }
        }
    }
    all
}

#[derive(Default)]
struct Memory {
    objects: BTreeMap<Key, Object>,
    /// Objects with a part at home, by their next use.
    order: BTreeSet<(usize, Key)>,
    used: u64,
}

impl Memory {
    fn forget(&mut self, id: u64) {
        let keys: Vec<Key> = self.objects.range((id, 0)..=(id, u64::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(object) = self.objects.remove(&key) {
                self.order.remove(&(object.next, key));
                self.used -= object.home;
            }
        }
    }

    /// Brings an object home; bytes that have to be fetched.
    fn bring(&mut self, &Name { key, bytes, next }: &Name) -> u64 {
        let object = self.objects.entry(key).or_insert(Object { bytes, home: 0, new: true, next });
        self.order.remove(&(object.next, key));
        object.next = next;
        let missing = object.bytes - object.home;
        object.home = object.bytes;
        self.used += missing;
        if std::mem::take(&mut object.new) { 0 } else { missing }
    }

    /// Sends away what is used latest; bytes that have to be written.
    fn make_room(&mut self, capacity: u64) -> u64 {
        let mut written = 0;
        while self.used > capacity {
            let Some((next, key)) = self.order.pop_last() else { break };
            let Some(object) = self.objects.get_mut(&key) else { continue };
            let gone = object.home.min(self.used - capacity);
            object.home -= gone;
            self.used -= gone;
            written += if next == usize::MAX { 0 } else { gone };
            if object.home > 0 {
                self.order.insert((next, key));
            }
        }
        written
    }
}

/// The least of each round on a GPU with room for `capacity` bytes.
pub(crate) fn least(trace: &Trace, skip: usize, rounds: usize, capacity: u64) -> Vec<Least> {
    // Two rounds more: towards the end of all there is nothing to keep anything for.
    let all = accesses(Steps::new(trace, skip, rounds + 2), &Parts::new(trace));
    let mut memory = Memory::default();
    let mut least = vec![Least::default(); rounds + 2];
    let mut seen: HashMap<Key, usize> = HashMap::new();
    for access in all {
        access.freed.into_iter().for_each(|id| memory.forget(id));
        let round = &mut least[access.round];
        for name in &access.names {
            round.fetched += memory.bring(name);
            if seen.insert(name.key, access.round) != Some(access.round) {
                round.used += name.bytes;
            }
        }
        // What the access names itself goes last.
        round.evicted += memory.make_room(capacity);
        memory.order.extend(access.names.iter().map(|name| (name.next, name.key)));
        round.evicted += memory.make_room(capacity);
    }
    least.truncate(rounds);
    least
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgmem_policy::GRANULE;

    #[test]
    fn a_cyclic_scan_moves_what_does_not_fit() {
        let mut text = "vgmem-trace 1\n".to_string();
        (0..8).for_each(|id| text += &format!("a {id} 0 2097152\n"));
        (0..8).for_each(|id| text += &format!("k {id} 0 1 1000 {id}+0\n"));
        let trace: Trace = text.parse().unwrap();
        let least = least(&trace, 0, 6, 5 * GRANULE);
        assert_eq!(least[0].fetched, 0); // they are new
        for round in &least[2..] {
            assert!((3 * GRANULE..=4 * GRANULE).contains(&round.fetched), "{round:?}");
            assert_eq!(round.used, 8 * GRANULE);
        }
    }

    #[test]
    fn what_is_freed_is_not_written() {
        let text = "vgmem-trace 1\na 1 0 2097152\nk 0 0 1 1 1+0\nf 1\na 2 0 2097152\nk 0 0 1 1 2+0\nf 2\n";
        let trace: Trace = text.parse().unwrap();
        let least = least(&trace, 0, 3, GRANULE);
        assert!(least.iter().all(|round| (round.fetched, round.evicted) == (0, 0)), "{least:?}");
    }
}
