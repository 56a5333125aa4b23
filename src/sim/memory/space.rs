//! Address space: the only place that calls `mmap`.

use std::ptr;

const PROT_RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const QUIET: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

fn map(address: u64, size: u64, protection: i32, flags: i32, fd: i32, offset: u64) -> Option<u64> {
    let wanted = ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: every fixed mapping that callers ask for lies in address space that this module
    // reserved and nobody else uses; without MAP_FIXED nothing existing is replaced.
    let got = unsafe { libc::mmap(wanted, size as usize, protection, flags, fd, offset as libc::off_t) };
    (got != libc::MAP_FAILED).then(|| got.expose_provenance() as u64)
}

/// Takes `size` bytes of address space, aligned, at `hint` if that is free.
pub(super) fn reserve(size: u64, align: u64, hint: u64) -> Option<u64> {
    if hint != 0 && hint.is_multiple_of(align) {
        let flags = QUIET | libc::MAP_FIXED_NOREPLACE;
        match map(hint, size, libc::PROT_NONE, flags, -1, 0) {
            Some(at) if at == hint => return Some(at),
            Some(at) => release(at, size), // a kernel that takes the flag for a mere hint
            None => {}
        }
    }
    let room = size.checked_add(align)?;
    let at = map(0, room, libc::PROT_NONE, QUIET, -1, 0)?;
    let start = crate::util::round_up(at, align)?;
    if start > at {
        release(at, start - at);
    }
    if at + room > start + size {
        release(start + size, at + room - start - size);
    }
    Some(start)
}

/// Gives address space back.
pub(super) fn release(address: u64, size: u64) {
    // SAFETY: callers pass ranges that `reserve` gave and that no live range lies in.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(address as usize), size as usize) };
}

/// Shows `size` bytes of a memfd from `offset` at reserved addresses.
pub(super) fn show(address: u64, size: u64, fd: i32, offset: u64) -> bool {
    map(address, size, PROT_RW, libc::MAP_SHARED | libc::MAP_FIXED, fd, offset).is_some()
}

/// Makes addresses unusable again. With work in flight on them they become private scratch
/// memory, so that the simulated kernel, which is lost anyway, does not take the process along.
pub(super) fn hide(address: u64, size: u64, in_use: bool) -> bool {
    let protection = if in_use { PROT_RW } else { libc::PROT_NONE };
    map(address, size, protection, QUIET | libc::MAP_FIXED, -1, 0).is_some()
}

/// Shows the first `size` bytes of a file anywhere.
pub(super) fn share(fd: i32, size: u64) -> Option<u64> {
    map(0, size, PROT_RW, libc::MAP_SHARED, fd, 0)
}

/// Fresh memory of the host, zeroed.
pub(super) fn host_pages(size: u64) -> Option<u64> {
    map(0, size, PROT_RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
}
