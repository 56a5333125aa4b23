//! On which tier the pages of a new allocation lie.

use crate::pieces::GRANULE;

/// What a tier is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierKind {
    /// The memory of a GPU.
    Gpu,
    /// Host RAM.
    Host,
}

/// A place where pages can lie, as the policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct Tier {
    /// GPU or host.
    pub kind: TierKind,
    /// Bytes that may still be placed here.
    pub room: u64,
    /// Bytes that the tier holds when full.
    pub capacity: u64,
    /// How far the tier is from the allocation's home: 0 is the home itself, a slower link is a larger
    /// number, `None` cannot be reached.
    pub distance: Option<u32>,
    /// To be used when nothing else has room, host RAM included: the GPU is another process's home.
    pub last: bool,
}

/// Setting `VGMEM_PLACEMENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// The home GPU first, then the fastest peer with room, then the host.
    #[default]
    Home,
    /// Pages in turn over all GPUs with room, for bandwidth; then the host.
    Interleave,
    /// The GPU with the largest free part first; then the host.
    Balance,
}

/// No tier has room for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that found no place.
    pub missing: u64,
}

/// Tiers in the order in which [`Placement::Home`] fills them: by kind, distance, then room; those marked `last`
/// come after all others.
pub fn spill_order(tiers: &[Tier]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tiers.len()).filter(|&t| tiers[t].distance.is_some()).collect();
    order.sort_by_key(|&t| {
        let tier = &tiers[t];
        (tier.last, tier.kind == TierKind::Host, tier.distance, std::cmp::Reverse(tier.room), t)
    });
    order
}

/// Gives each piece of `sizes` a tier: `(bytes, tier)` in address order.
///
/// A piece that fits nowhere as a whole is halved, down to one [`GRANULE`], so that an allocation fails only
/// when the pool is full.
pub fn place(
    placement: Placement,
    tiers: &[Tier],
    sizes: impl Iterator<Item = u64>,
) -> Result<Vec<(u64, usize)>, Shortage> {
    let order = spill_order(tiers);
    let mut tiers = tiers.to_vec();
    let mut plan = Vec::new();
    let mut turn = 0;
    for size in sizes {
        place_one(placement, &mut tiers, &order, size, &mut turn, &mut plan)?;
    }
    Ok(plan)
}

fn place_one(
    placement: Placement,
    tiers: &mut [Tier],
    order: &[usize],
    size: u64,
    turn: &mut usize,
    plan: &mut Vec<(u64, usize)>,
) -> Result<(), Shortage> {
    if let Some(tier) = choose(placement, tiers, order, size, turn) {
        tiers[tier].room -= size;
        plan.push((size, tier));
        return Ok(());
    }
    if size <= GRANULE {
        return Err(Shortage { missing: size });
    }
    let half = (size / 2).next_multiple_of(GRANULE);
    place_one(placement, tiers, order, half, turn, plan)?;
    place_one(placement, tiers, order, size - half, turn, plan)
}

fn choose(
    placement: Placement,
    tiers: &[Tier],
    order: &[usize],
    size: u64,
    turn: &mut usize,
) -> Option<usize> {
    let fits = |&&t: &&usize| tiers[t].room >= size;
    let first_choice = |&&t: &&usize| tiers[t].kind == TierKind::Gpu && !tiers[t].last;
    let gpus = || order.iter().filter(first_choice).filter(fits);
    let chosen = match placement {
        Placement::Home => None,
        Placement::Interleave => {
            let count = order.iter().filter(first_choice).count().max(1);
            let next = gpus().find(|&&t| place_in(order, t) >= *turn % count).or_else(|| gpus().next());
            if let Some(&t) = next {
                *turn = place_in(order, t) + 1;
            }
            next
        }
        // Largest free part; capacities differ, so compare room_a / capacity_a without division.
        Placement::Balance => gpus().max_by(|&&a, &&b| {
            let (a, b) = (&tiers[a], &tiers[b]);
            let left = u128::from(a.room) * u128::from(b.capacity);
            let right = u128::from(b.room) * u128::from(a.capacity);
            left.cmp(&right).then(b.distance.cmp(&a.distance))
        }),
    };
    chosen.or_else(|| order.iter().find(fits)).copied()
}

fn place_in(order: &[usize], tier: usize) -> usize {
    order.iter().position(|&t| t == tier).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::pieces;
    use proptest::prelude::*;

    const M: u64 = 1 << 20;

    fn gpu(room: u64, distance: Option<u32>) -> Tier {
        Tier { kind: TierKind::Gpu, room: room * M, capacity: 64 * M, distance, last: false }
    }

    fn host(room: u64) -> Tier {
        Tier { kind: TierKind::Host, room: room * M, capacity: 256 * M, distance: Some(9), last: false }
    }

    fn run(
        placement: Placement,
        tiers: &[Tier],
        span: u64,
        page: u64,
    ) -> Result<Vec<(u64, usize)>, Shortage> {
        place(placement, tiers, pieces(span * M, page * M))
            .map(|plan| plan.into_iter().map(|(bytes, tier)| (bytes / M, tier)).collect())
    }

    #[test]
    fn home_fills_home_then_the_nearest_peer_then_the_host() {
        let tiers = [gpu(8, Some(0)), gpu(64, Some(2)), gpu(8, Some(1)), host(64)];
        let plan = run(Placement::Home, &tiers, 96, 8).unwrap();
        let used: Vec<usize> = plan.iter().map(|p| p.1).collect();
        assert_eq!(used, [0, 2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3]);
    }

    #[test]
    fn a_gpu_without_a_link_is_never_used() {
        let tiers = [gpu(8, Some(0)), gpu(64, None), host(64)];
        let plan = run(Placement::Home, &tiers, 24, 8).unwrap();
        assert_eq!(plan, [(8, 0), (8, 2), (8, 2)]);
    }

    #[test]
    fn another_process_s_home_comes_after_the_host() {
        let tiers = [gpu(8, Some(0)), Tier { last: true, ..gpu(64, Some(1)) }, host(8)];
        for placement in [Placement::Home, Placement::Interleave, Placement::Balance] {
            assert_eq!(run(placement, &tiers, 24, 8).unwrap(), [(8, 0), (8, 2), (8, 1)], "{placement:?}");
        }
    }

    #[test]
    fn interleave_takes_gpus_in_turn_and_then_the_host() {
        let tiers = [gpu(16, Some(0)), gpu(8, Some(1)), host(64)];
        let plan = run(Placement::Interleave, &tiers, 40, 8).unwrap();
        assert_eq!(plan, [(8, 0), (8, 1), (8, 0), (8, 2), (8, 2)]);
    }

    #[test]
    fn balance_takes_the_emptiest_gpu() {
        let tiers = [gpu(16, Some(0)), gpu(48, Some(1)), host(64)];
        let plan = run(Placement::Balance, &tiers, 32, 8).unwrap();
        assert_eq!(plan, [(8, 1), (8, 1), (8, 1), (8, 1)]);
    }

    #[test]
    fn a_page_that_fits_nowhere_is_halved() {
        let tiers = [gpu(6, Some(0)), host(2)];
        assert_eq!(run(Placement::Home, &tiers, 8, 8).unwrap(), [(4, 0), (2, 0), (2, 1)]);
        assert_eq!(run(Placement::Home, &tiers, 10, 8), Err(Shortage { missing: 2 * M }));
    }

    proptest! {
        #[test]
        fn a_plan_covers_the_request_and_never_overfills(
            rooms in prop::collection::vec(0u64..40, 1..6), span in 1u64..120, page in 0u32..5,
            which in 0usize..3,
        ) {
            let tiers: Vec<Tier> = rooms.iter().enumerate().map(|(i, &room)| Tier {
                kind: if i + 1 == rooms.len() && i > 0 { TierKind::Host } else { TierKind::Gpu },
                room: room * GRANULE, capacity: 40 * GRANULE, distance: Some(i as u32), last: i % 3 == 2,
            }).collect();
            let placement = [Placement::Home, Placement::Interleave, Placement::Balance][which];
            let total: u64 = rooms.iter().sum();
            match place(placement, &tiers, pieces(span * GRANULE, GRANULE << page)) {
                Ok(plan) => {
                    prop_assert_eq!(plan.iter().map(|p| p.0).sum::<u64>(), span * GRANULE);
                    prop_assert!(plan.iter().all(|p| p.0 > 0 && p.0.is_multiple_of(GRANULE)));
                    for (t, tier) in tiers.iter().enumerate() {
                        prop_assert!(plan.iter().filter(|p| p.1 == t).map(|p| p.0).sum::<u64>() <= tier.room);
                    }
                }
                Err(_) => prop_assert!(span > total, "refused {} granules of {}", span, total),
            }
        }
    }
}
