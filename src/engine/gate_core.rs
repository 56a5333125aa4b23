// The protocol of the gate. Included by `gate.rs` with the standard library's atomics and by the model check with
// loom's: what is checked is what runs.

/// Lets submissions in while it is open, and a mover work alone while it is closed.
#[derive(Debug)]
pub struct Gate {
    closed: AtomicBool,
    inside: AtomicUsize,
}

impl Gate {
    /// One submission goes in; false where the gate is closed. Whoever got in must [`Gate::leave`].
    ///
    /// The count is raised before the flag is read, and a mover sets the flag before it reads the count; with the
    /// fences in between, at least one of the two sees the other.
    pub fn enter(&self) -> bool {
        self.inside.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::Acquire) {
            self.inside.fetch_sub(1, Ordering::AcqRel);
            return false;
        }
        true
    }

    /// A submission that got in is over.
    pub fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::AcqRel);
    }

    /// Closes the gate; false where another mover has closed it. Whoever closed it must [`Gate::open`] it.
    pub fn close(&self) -> bool {
        let closed = !self.closed.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        closed
    }

    /// Whether the gate is closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether nobody else is inside: `own` is how many passes the asker itself holds. Once true after
    /// [`Gate::close`], nobody gets in until [`Gate::open`]; one who is being refused may still be counted for a
    /// moment.
    pub fn is_empty_but(&self, own: usize) -> bool {
        self.inside.load(Ordering::Acquire) == own
    }

    /// Opens the gate again.
    pub fn open(&self) {
        self.closed.store(false, Ordering::Release);
    }
}
