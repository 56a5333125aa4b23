//! What the engine needs of a driver.

use std::num::NonZeroU32;

/// A driver's error code, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError(pub NonZeroU32);

impl DriverError {
    /// An argument is out of range (the driver's code 1).
    pub const INVALID_VALUE: DriverError = DriverError(NonZeroU32::MIN);
    /// No memory (the driver's code 2).
    pub const OUT_OF_MEMORY: DriverError = DriverError(NonZeroU32::MIN.saturating_add(1));

    /// `Ok` for 0, the error otherwise.
    pub fn check(code: u32) -> Result<(), DriverError> {
        NonZeroU32::new(code).map_or(Ok(()), |code| Err(DriverError(code)))
    }

    /// The driver's number.
    pub fn code(self) -> u32 {
        self.0.get()
    }
}

/// Physical memory, named by the driver.
pub type Handle = u64;

/// A context of the program, as a number. The engine compares contexts and hands them back.
pub type Context = u64;

/// A marker behind copies of a lane, as the driver names it.
pub type Copies = u64;

/// A fingerprint that is being taken, as the driver names it.
pub type Taking = u64;

/// How far a fingerprint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is under way.
    Pending,
    /// What it is.
    Print(u128),
    /// It will not be known in time, and its memory is still read: see [`Device::print_is_over`].
    Late,
    /// It will not be known, and nothing reads its memory.
    Never,
}

/// Where physical memory is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the memory of a GPU.
    Gpu(u8),
    /// In host RAM, next to a GPU where the host has several nodes.
    HostNear(u8),
}

/// A driver with virtual memory management. Sizes are in bytes and multiples of the granule.
///
/// Every call may fail with any code; the engine then undoes what it began and hands the code on.
pub trait Device: Send + Sync {
    /// Makes physical memory.
    fn create(&self, place: Place, bytes: u64) -> Result<Handle, DriverError>;
    /// Gives physical memory back, made at `place` with this size; it goes when nothing maps it any more.
    fn release(&self, place: Place, bytes: u64, handle: Handle) -> Result<(), DriverError>;
    /// Shows physical memory at an address of the arena. No GPU has access yet.
    fn map(&self, address: u64, bytes: u64, handle: Handle) -> Result<(), DriverError>;
    /// Ends one or more whole mappings. Does not wait for work that uses them.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError>;
    /// Lets a GPU read and write whole mappings.
    fn grant(&self, address: u64, bytes: u64, gpu: u8) -> Result<(), DriverError>;
    /// Begins a copy between two ranges that the GPU has access to, in a context of its. It is over after a
    /// [`Device::drain`]; after an error nothing was begun.
    fn copy(&self, to: u64, from: u64, bytes: u64, gpu: u8, context: Context) -> Result<(), DriverError>;
    /// Begins a copy on one of two lanes beside the program's own streams. Copies of one lane follow one another.
    fn begin_copy(
        &self,
        lane: usize,
        to: u64,
        from: u64,
        bytes: u64,
        context: Context,
    ) -> Result<(), DriverError>;
    /// Puts a marker behind the copies of a lane. Where that cannot be done, waits for them.
    fn mark_copies(&self, lane: usize, context: Context) -> Result<Copies, DriverError>;
    /// Whether the copies before a marker are over; the marker must not be asked again once they are, or once this
    /// fails.
    fn are_over(&self, copies: Copies, context: Context) -> Result<bool, DriverError>;
    /// Begins to take the fingerprint of a range that the GPU has access to, beside all copies. Two ranges have the
    /// same one only if they hold the same bytes. After an error nothing was begun.
    fn begin_print(&self, address: u64, bytes: u64, context: Context) -> Result<Taking, DriverError>;
    /// How far it is; not to be asked again unless it is pending. Not pending for ever.
    fn print(&self, taking: Taking, context: Context) -> Taken;
    /// Whether one that was late reads its memory no more. Until then that must stay mapped.
    fn print_is_over(&self, taking: Taking, context: Context) -> bool;
    /// Whether this many bytes of host RAM can be pinned merely for speed: nobody else needs them.
    fn host_is_plenty(&self, bytes: u64) -> bool;
    /// A checksum of the bytes of a range that the GPU has access to, for comparisons. Slow.
    fn checksum(&self, address: u64, bytes: u64, context: Context) -> Result<u128, DriverError>;
    /// Bytes changed on their way: the program must not go on.
    fn stop(&self, what: &str);
    /// Something that the program may get to feel.
    fn complain(&self, what: &str);
    /// Whether a test breaks this rule on purpose, to see that it would be noticed. Never outside such a test.
    #[inline]
    fn breaks(&self, _rule: &str) -> bool {
        false
    }
    /// Waits for the copies of both lanes.
    fn wait_copies(&self, context: Context) -> Result<(), DriverError>;
    /// The context is gone: so is what the driver held for it.
    fn forget(&self, context: Context);
    /// Waits until nothing that was given to the GPU in this context is in flight.
    fn drain(&self, gpu: u8, context: Context) -> Result<(), DriverError>;
    /// Whether an error of [`Device::drain`] says that the context is lost: then nothing is in flight there.
    fn is_lost(&self, error: DriverError) -> bool;
    /// Bytes that the driver could still give on this GPU; `None` when it cannot be asked now.
    fn free_bytes(&self, gpu: u8) -> Option<u64>;
    /// Bytes of host RAM that can be pinned now without harm to the machine.
    fn host_available(&self) -> u64;
    /// Whether another process uses this GPU as its home: its memory is taken last.
    fn is_home_of_others(&self, gpu: u8) -> bool;
}
