//! Launches for which nothing can be brought, as what they name does not fit: they need not wait for the GPU to find
//! that out again.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::pool::State;

/// After so many launches it is tried again, whatever happened.
const PATIENCE: u8 = 64;
/// Sets of objects that are remembered.
const MOST: usize = 1 << 12;

/// Sets of objects that were wanted in vain.
#[derive(Debug, Default)]
pub(crate) struct Vain(HashMap<u64, Try>);

#[derive(Debug)]
struct Try {
    /// What had happened then.
    turnover: u64,
    /// Launches that take the answer for given.
    left: u8,
}

fn key(home: u8, objects: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (home, objects).hash(&mut hasher);
    hasher.finish()
}

impl State {
    /// Grows whenever pages move, come or go.
    fn turnover(&self) -> u64 {
        self.fetched + self.evicted + self.made + self.gone
    }

    /// Whether these objects were wanted in vain, and nothing has changed since. Counts one launch.
    pub(crate) fn is_vain(&mut self, home: u8, objects: &[u32]) -> bool {
        let turnover = self.turnover();
        let Some(last) = self.vain.0.get_mut(&key(home, objects)) else { return false };
        last.left = last.left.saturating_sub(1);
        last.turnover == turnover && last.left > 0
    }

    /// Nothing could be brought for a launch that wants these objects.
    pub(crate) fn note_vain(&mut self, home: u8, objects: &[u32]) {
        if self.vain.0.len() >= MOST {
            self.vain.0.clear();
        }
        let turnover = self.turnover();
        self.vain.0.insert(key(home, objects), Try { turnover, left: PATIENCE });
    }
}
