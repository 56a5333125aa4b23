//! A bound that knows phases: what a stretch of work uses beyond the memory has to come while it runs.
//!
//! At the begin of a stretch at most the memory's bytes are at home, fetched ahead or not. So a stretch takes
//! as long as its work, or as fetching the rest, whichever is longer; and stretches that follow one another
//! add up. The best cut of a round into stretches gives the bound. It holds for one stream.

use std::collections::HashMap;

use crate::bound::accesses;
use crate::machine::{Machine, Nanos};
use crate::parts::Parts;
use crate::steps::Steps;
use crate::trace::{Record, Trace};

/// Places where a round may be cut, at most.
const CUTS: usize = 200;

/// Work, with the objects that it uses and their bytes.
struct Piece {
    ns: Nanos,
    uses: Vec<(usize, u64)>,
}

/// The second round of a trace; `None` where several streams run side by side.
fn pieces(trace: &Trace, skip: usize) -> Option<Vec<Piece>> {
    let mut streams = Vec::new();
    let mut made = Vec::new();
    for step in Steps::new(trace, skip, 2) {
        match step.record {
            Record::Launch(_, work) | Record::Copy(_, work) => streams.push(work.stream),
            // Made anew in every round: it comes from nowhere.
            Record::Allocate { id, .. } if step.round == 1 => made.push(*id),
            _ => {}
        }
    }
    streams.dedup();
    if streams.len() > 1 {
        return None;
    }
    let mut numbers = HashMap::new();
    let second = accesses(Steps::new(trace, skip, 2), &Parts::new(trace));
    let second = second.into_iter().filter(|access| access.round == 1);
    let piece = second.map(|access| {
        let old = access.names.iter().filter(|name| !made.contains(&name.key.0));
        let uses = old.map(|name| {
            let next = numbers.len();
            (*numbers.entry(name.key).or_insert(next), name.bytes)
        });
        Piece { ns: access.ns, uses: uses.collect() }
    });
    Some(piece.collect())
}

/// The least time of a round on a GPU of this machine; 0 where nothing can be said.
pub(crate) fn least_time(trace: &Trace, skip: usize, machine: &Machine) -> Nanos {
    let Some(pieces) = pieces(trace, skip) else { return 0 };
    let step = pieces.len().div_ceil(CUTS).max(1);
    let objects =
        pieces.iter().flat_map(|piece| &piece.uses).map(|(object, _)| object + 1).max().unwrap_or(0);
    // For each cut the most that the stretches before it take.
    let mut best: Vec<Nanos> = vec![0; pieces.len().div_ceil(step) + 1];
    for from in 0..best.len() {
        let mut seen = vec![false; objects];
        let (mut ns, mut used) = (0, 0);
        for (index, stretch) in pieces.chunks(step).enumerate().skip(from) {
            for piece in stretch {
                ns += piece.ns;
                for &(object, bytes) in &piece.uses {
                    used += if std::mem::replace(&mut seen[object], true) { 0 } else { bytes };
                }
            }
            let beyond = used.saturating_sub(machine.memory) as f64 / machine.rates.link;
            best[index + 1] = best[index + 1].max(best[from] + ns.max(beyond as Nanos));
        }
    }
    best.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made;

    #[test]
    fn phases_add_up() {
        let machine = Machine::h200(1, 16 << 30, 48 << 30);
        let ms = least_time(&made::adamw(), 0, &machine) / 1_000_000;
        // Forward and backward fit with their 12 GiB: 144 ms. The step fetches 8 GiB: 155 ms.
        assert!((298..=300).contains(&ms), "{ms}");
        let fits = Machine::h200(1, 32 << 30, 48 << 30);
        assert_eq!(least_time(&made::adamw(), 0, &fits), 156_000_000);
    }

    #[test]
    fn several_streams_give_no_bound() {
        let text = "vgmem-trace 1\na 1 0 2097152\nk 0 0 1 5 1+0\nk 0 1 1 5 1+0\n";
        let machine = Machine::h200(1, 1 << 30, 1 << 30);
        assert_eq!(least_time(&text.parse().unwrap(), 0, &machine), 0);
    }
}
