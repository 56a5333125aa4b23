//! How an allocation is cut into pages.

/// Grain of the page map and of physical memory, in bytes (FACTS: granularity 2 MiB everywhere).
pub const GRANULE: u64 = 2 << 20;

/// `bytes` rounded up to a multiple of `unit`; `None` when that passes 2^64.
pub fn round_up(bytes: u64, unit: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(unit)
}

/// The page size that `auto` means on a GPU of `device_bytes`: large enough for cheap mappings and a full
/// link (FACTS: 16 to 64 MiB), small enough that the last page of a full GPU wastes under 1 %.
pub fn auto_page_size(device_bytes: u64) -> u64 {
    let fraction = (device_bytes / 128).max(GRANULE);
    let power = 1u64 << (63 - fraction.leading_zeros());
    power.clamp(GRANULE, 32 << 20)
}

/// Sizes of the pages of an allocation, in address order.
#[derive(Clone, Debug)]
pub struct Pieces {
    left: u64,
    page: u64,
}

/// Cuts `span` bytes (a multiple of [`GRANULE`]) into full pages of `page` bytes and binary pieces of the rest,
/// so that every piece is a power of two and handles of equal size can serve one another.
pub fn pieces(span: u64, page: u64) -> Pieces {
    Pieces { left: span, page }
}

impl Iterator for Pieces {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.left < GRANULE {
            return None;
        }
        let power = 1u64 << (63 - self.left.leading_zeros());
        let piece = power.min(self.page);
        self.left -= piece;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn auto_page_size_grows_with_the_gpu_and_is_bounded() {
        assert_eq!(auto_page_size(64 << 20), GRANULE);
        assert_eq!(auto_page_size(512 << 20), 4 << 20);
        assert_eq!(auto_page_size(24 << 30), 32 << 20);
        assert_eq!(auto_page_size(141 << 30), 32 << 20);
    }

    #[test]
    fn seventy_mib_is_two_pages_and_two_pieces() {
        let cut: Vec<u64> = pieces(70 << 20, 32 << 20).map(|p| p >> 20).collect();
        assert_eq!(cut, [32, 32, 4, 2]);
    }

    proptest! {
        #[test]
        fn pieces_cover_the_span_and_are_powers_of_two(granules in 1u64..100_000, power in 0u32..6) {
            let (span, page) = (granules * GRANULE, GRANULE << power);
            let cut: Vec<u64> = pieces(span, page).collect();
            prop_assert_eq!(cut.iter().sum::<u64>(), span);
            prop_assert!(cut.iter().all(|p| p.is_power_of_two() && *p >= GRANULE && *p <= page));
            prop_assert!(cut.windows(2).all(|w| w[0] >= w[1]));
        }
    }
}
