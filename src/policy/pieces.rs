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

/// Cuts `span` bytes (a multiple of [`GRANULE`]) into full pages of `page` bytes and the rest: one piece if that
/// is more than half a page, as every page costs calls of the driver, else binary pieces, so that there are few
/// sizes and memory of equal size can serve one another.
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
        let piece = if self.left > self.page / 2 { self.left.min(self.page) } else { power };
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
    fn the_rest_is_one_piece_or_binary_ones() {
        let cut = |mib: u64| pieces(mib << 20, 32 << 20).map(|p| p >> 20).collect::<Vec<u64>>();
        assert_eq!(cut(70), [32, 32, 4, 2]);
        assert_eq!((cut(86), cut(80), cut(48)), (vec![32, 32, 22], vec![32, 32, 16], vec![32, 16]));
        assert_eq!((cut(64), cut(30), cut(14)), (vec![32, 32], vec![30], vec![8, 4, 2]));
    }

    proptest! {
        #[test]
        fn pieces_cover_the_span_and_are_of_few_sizes(granules in 1u64..100_000, power in 0u32..6) {
            let (span, page) = (granules * GRANULE, GRANULE << power);
            let cut: Vec<u64> = pieces(span, page).collect();
            prop_assert_eq!(cut.iter().sum::<u64>(), span);
            prop_assert!(cut.iter().all(|p| p.is_multiple_of(GRANULE) && *p <= page));
            prop_assert!(cut.iter().all(|p| p.is_power_of_two() || *p > page / 2));
            prop_assert!(cut.windows(2).all(|w| w[0] >= w[1]));
        }
    }
}
