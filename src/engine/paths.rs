//! Copies between a GPU and host RAM over the links of other GPUs.
//!
//! A GPU that reaches both ends can copy for another one: over its own link to the host, and from there over the link
//! between the GPUs. Each such *path* is a context on that GPU. Copies go over the path with the fewest bytes under way
//! in their direction, a GPU's own link first. Both ends are mapped at their shadow addresses already; the helper is
//! given access there when it is asked for the first time. Where the driver refuses that, the path is not used again.

use crate::device::{Context, Device};
use crate::exchange::For;
use crate::overlap::Motion;
use crate::pool::{Pool, State};

/// Another GPU that copies for a home GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) gpu: u8,
    pub(crate) context: Context,
}

impl State {
    fn is_used(&self, gpu: u8) -> bool {
        self.contexts.get(gpu as usize).is_some_and(|contexts| !contexts.is_empty())
    }

    /// A shadow address shows nothing any more.
    pub(crate) fn forget_shadow(&mut self, shadow: u64, bytes: u64) {
        self.reach.remove(&shadow);
        self.spans.give(shadow, bytes);
    }
}

impl<D: Device> Pool<D> {
    /// From now on this context, of another GPU, copies for `home` as well. It must not end before
    /// [`Self::free_context`] says so.
    pub fn add_path(&self, home: u8, gpu: u8, context: Context) {
        let reaches = |from: u8, to: u8| {
            let distances = self.config.gpus.get(from as usize).map(|gpu| &gpu.distances);
            distances.is_some_and(|all| all.get(to as usize).copied().flatten().is_some())
        };
        if home != gpu && reaches(gpu, home) {
            let path = Path { gpu, context };
            let mut state = self.lock();
            if let Some(paths) = state.paths.get_mut(home as usize).filter(|paths| !paths.contains(&path)) {
                paths.push(path);
            }
        }
    }

    /// Whether the program works on a GPU.
    pub fn is_used(&self, gpu: u8) -> bool {
        self.lock().is_used(gpu)
    }

    /// A context is gone.
    pub(crate) fn forget_paths(&self, context: Context) {
        self.lock().paths.iter_mut().for_each(|paths| paths.retain(|path| path.context != context));
    }

    /// How many links copies of this GPU go over.
    pub(crate) fn links(&self, home: u8) -> u64 {
        1 + self.lock().paths.get(home as usize).map_or(0, Vec::len) as u64
    }

    /// The context that copies a page: the least busy one.
    pub(crate) fn copier(&self, whom: For, motions: &[Motion], motion: &Motion) -> Context {
        let (host, home) = (self.host_tier(), whom.home as usize);
        let paths = {
            let state = self.lock();
            let from = state.pages.get(motion.page.page).map_or(home, |page| page.tier);
            if from != host && motion.frame.tier != host {
                return whom.context; // between GPUs
            }
            // The program may work there by now, and need the link itself.
            let idle = |path: &&Path| !state.is_used(path.gpu);
            state.paths[home].iter().filter(idle).copied().collect::<Vec<Path>>()
        };
        let load = |context: Context| -> u64 {
            let same = motions.iter().filter(|other| other.is_copied(motion.lane) && other.copier == context);
            same.map(|other| other.frame.bytes).sum()
        };
        let own = load(whom.context);
        let other = paths.into_iter().map(|path| (load(path.context), path)).min_by_key(|(load, _)| *load);
        match other {
            Some((load, path)) if load < own && self.can_use(path, motion) => path.context,
            Some((load, path)) if load < own => {
                self.lock().paths[home].retain(|other| *other != path);
                whom.context
            }
            _ => whom.context,
        }
    }

    /// Gives a helper access to both ends of a copy, if it has none; whether it has.
    fn can_use(&self, path: Path, motion: &Motion) -> bool {
        let bit = 1u64 << (path.gpu & 63);
        [motion.from, motion.frame.shadow].into_iter().all(|shadow| {
            if self.lock().reach.get(&shadow).is_some_and(|reach| reach & bit != 0) {
                return true;
            }
            let granted = self.device.grant(shadow, motion.frame.bytes, path.gpu).is_ok();
            if granted {
                *self.lock().reach.entry(shadow).or_default() |= bit;
            }
            granted
        })
    }
}

/// Whether a motion needs this context to end well.
pub(crate) fn needs(motion: &Motion, context: Context) -> bool {
    motion.context == context || (motion.copier == context && motion.is_copied(motion.lane))
}

/// The first copies under way of a lane, one of each path: they end in the order in which they began.
pub(crate) fn firsts(lane: usize, motions: &[Motion]) -> Vec<usize> {
    let mut firsts: Vec<usize> = Vec::new();
    for (index, motion) in motions.iter().enumerate().filter(|(_, motion)| motion.is_copied(lane)) {
        if firsts.iter().all(|&first: &usize| motions[first].copier != motion.copier) {
            firsts.push(index);
        }
    }
    firsts
}
