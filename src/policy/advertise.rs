//! What the program is told about memory.

/// Setting `VGMEM_ADVERTISE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Advertise {
    /// Each GPU shows its own size; more than that can be allocated.
    #[default]
    Device,
    /// Each GPU shows its own size and an equal share of the host budget.
    Share,
    /// Every GPU shows the whole pool.
    Pool,
}

/// Free and total bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes that can still be allocated.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What GPU `gpu` shows, from what each GPU and the host have. Free is never more than total.
pub fn advertised(how: Advertise, gpu: usize, gpus: &[Amount], host: Amount) -> Amount {
    let own = gpus.get(gpu).copied().unwrap_or_default();
    let shown = match how {
        Advertise::Device => own,
        Advertise::Share => {
            let count = gpus.len().max(1) as u64;
            Amount { free: own.free + host.free / count, total: own.total + host.total / count }
        }
        Advertise::Pool => gpus
            .iter()
            .fold(host, |sum, gpu| Amount { free: sum.free + gpu.free, total: sum.total + gpu.total }),
    };
    Amount { free: shown.free.min(shown.total), total: shown.total }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms() {
        let gpus = [Amount { free: 3, total: 8 }, Amount { free: 8, total: 8 }];
        let host = Amount { free: 10, total: 20 };
        assert_eq!(advertised(Advertise::Device, 0, &gpus, host), gpus[0]);
        assert_eq!(advertised(Advertise::Share, 0, &gpus, host), Amount { free: 8, total: 18 });
        assert_eq!(advertised(Advertise::Pool, 1, &gpus, host), Amount { free: 21, total: 36 });
    }

    #[test]
    fn free_is_never_more_than_total() {
        let gpus = [Amount { free: 9, total: 8 }];
        assert_eq!(advertised(Advertise::Device, 0, &gpus, Amount::default()), Amount { free: 8, total: 8 });
    }
}
