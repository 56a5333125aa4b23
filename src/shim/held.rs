//! Memory that the driver looks at during a call.

use vgmem_engine::{Ended, Using};

use crate::pager::{ALL, Use, is_beside};
use crate::start::engine;

/// Memory that the driver looks at during a call: it stays mapped until this is dropped.
#[must_use]
#[derive(Default)]
pub struct Held(Using);

impl Held {
    /// The allocations of these addresses.
    pub fn of_addresses(addresses: &[u64]) -> Held {
        let Some(engine) = engine().filter(|engine| is_beside(engine)) else { return Held::default() };
        let mut using = engine.pool.begin_use(addresses);
        engine.pool.claim(&mut using);
        Held(using)
    }

    /// All that there is.
    #[inline]
    pub fn of_everything() -> Held {
        match engine().filter(|engine| is_beside(engine)) {
            None => Held::default(),
            Some(engine) => Held(Use::of_everything(engine, ALL).0.using),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.0.is_empty()
            && let Some(engine) = engine()
        {
            engine.pool.end_use(std::mem::take(&mut self.0), Ended::Nothing);
        }
    }
}
