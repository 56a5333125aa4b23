//! How long a pointer lookup takes. Prints nanoseconds per lookup: pooled, not pooled, outside the arena.
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Instant;

use vgmem_engine::PageMap;

const BASE: u64 = 0x2000_0000_0000;

fn main() {
    let arena: u64 = 16 << 40;
    let map = PageMap::new(BASE, arena);
    println!("pointer lookup, ns each (best of 7 runs of 10 million)");
    for (name, start, spread) in [
        ("one page", BASE, 2u64 << 20),
        ("over 24 GiB", BASE, 24 << 30),
        ("over 16 TiB", BASE, arena),
        ("outside the arena", 0x7f00_0000_0000, 1 << 40),
    ] {
        let mut best = f64::MAX;
        for _ in 0..7 {
            let mut random = 88172645463325252u64;
            let mut found = 0u64;
            let begin = Instant::now();
            for _ in 0..10_000_000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                found += u64::from(map.lookup(black_box(start + random % spread)).is_some());
            }
            black_box(found);
            best = best.min(begin.elapsed().as_nanos() as f64 / 1e7);
        }
        println!("{name:20} {best:.2}");
    }
}
