//! The gate between submissions and page moves.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

include!("gate_core.rs");

impl Gate {
    /// An open gate with nobody inside.
    pub const fn new() -> Gate {
        Gate { closed: AtomicBool::new(false), inside: AtomicUsize::new(0) }
    }
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}

/// Every interleaving of submissions and movers, under the memory model.
#[cfg(test)]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
    use loom::thread;

    include!("gate_core.rs");

    /// The page's content while a mover works on it: submissions write 1, movers copy and swap.
    struct Shared {
        gate: Gate,
        working: AtomicUsize,
    }

    fn shared() -> Arc<Shared> {
        let gate = Gate { closed: AtomicBool::new(false), inside: AtomicUsize::new(0) };
        Arc::new(Shared { gate, working: AtomicUsize::new(0) })
    }

    fn submit(shared: &Shared) {
        if shared.gate.enter() {
            assert_eq!(shared.working.load(Ordering::Relaxed), 0, "submitted while pages moved");
            shared.gate.leave();
        }
    }

    fn try_move(shared: &Shared) {
        if shared.gate.close() {
            if shared.gate.is_empty_but(0) {
                assert_eq!(shared.working.fetch_add(1, Ordering::Relaxed), 0, "two movers");
                thread::yield_now();
                shared.working.fetch_sub(1, Ordering::Relaxed);
            }
            shared.gate.open();
        }
    }

    #[test]
    fn nobody_submits_while_pages_move() {
        loom::model(|| {
            let shared = shared();
            let other = shared.clone();
            let submitter = thread::spawn(move || submit(&other));
            try_move(&shared);
            submit(&shared);
            submitter.join().unwrap();
            assert!(shared.gate.is_empty_but(0) && !shared.gate.is_closed());
        });
    }

    /// A submission that moves pages itself, before it submits.
    fn submit_with_move(shared: &Shared) {
        if shared.gate.enter() {
            if shared.gate.close() {
                if shared.gate.is_empty_but(1) {
                    assert_eq!(shared.working.fetch_add(1, Ordering::Relaxed), 0, "two movers");
                    shared.working.fetch_sub(1, Ordering::Relaxed);
                }
                shared.gate.open();
            }
            shared.gate.leave();
        }
    }

    #[test]
    fn a_submission_that_moves_excludes_the_others() {
        loom::model(|| {
            let shared = shared();
            let other = shared.clone();
            let mover = thread::spawn(move || submit_with_move(&other));
            submit_with_move(&shared);
            submit(&shared);
            mover.join().unwrap();
        });
    }

    #[test]
    fn movers_exclude_one_another() {
        loom::model(|| {
            let shared = shared();
            let other = shared.clone();
            let mover = thread::spawn(move || try_move(&other));
            try_move(&shared);
            mover.join().unwrap();
            submit(&shared);
        });
    }
}
