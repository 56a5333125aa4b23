//! What a pointer stands for: the part of its allocation up to the next pointer that is ever seen into it.

use std::collections::{BTreeSet, HashMap};

use crate::trace::{Operand, Record, Trace, Work};

/// Pointers nearer to one another than this are one: what lies between them is a part of one thing.
const NEAR: u64 = 64 << 10;

/// The pointers of a trace.
pub(crate) struct Parts(HashMap<u64, BTreeSet<u64>>);

impl Parts {
    pub(crate) fn new(trace: &Trace) -> Parts {
        let mut parts = HashMap::new();
        for record in &trace.records {
            match record {
                Record::Allocate { id, bytes, .. } => {
                    parts.insert(*id, BTreeSet::from([0, *bytes]));
                }
                Record::Launch(_, work) | Record::Copy(_, work) => {
                    for operand in &work.operands {
                        parts.entry(operand.id).or_insert_with(BTreeSet::new).insert(operand.offset);
                    }
                }
                _ => {}
            }
        }
        for offsets in parts.values_mut() {
            let end = offsets.last().copied().unwrap_or(0);
            let mut last = 0;
            offsets.retain(|&offset| {
                let keep = offset == 0 || offset == end || offset - last >= NEAR;
                last = if keep { offset } else { last };
                keep
            });
        }
        Parts(parts)
    }

    /// All parts that work uses, each once.
    pub(crate) fn of(&self, work: &Work) -> Vec<Operand> {
        let mut parts = Vec::new();
        for operand in &work.operands {
            let Some(offsets) = self.0.get(&operand.id) else { continue };
            let from = offsets.range(..=operand.offset).next_back().copied().unwrap_or(0);
            let mut begins = vec![from];
            // A copy says how far it goes.
            begins.extend(offsets.range(operand.offset + 1..operand.offset + operand.bytes.max(1)));
            for offset in begins {
                let end = offsets.range(offset + 1..).next().copied();
                parts.extend(end.map(|end| Operand { id: operand.id, offset, bytes: end - offset }));
            }
        }
        parts.sort_unstable_by_key(|part| (part.id, part.offset));
        parts.dedup();
        parts
    }
}
