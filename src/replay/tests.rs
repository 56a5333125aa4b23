//! Made traces through the engine.

use crate::*;

const AUTO: Options = Options { rounds: 8, skip: 0, mover: false, strict: false, patience: 20_000_000 };

fn machine(trace: &Trace) -> Machine {
    Machine::h200(1, trace.gpus[0].1, 48 << 30)
}

/// What a trace may take at most: time against the bound, and bytes against the least, as the policy is now.
const LIMITS: [(&str, f64, f64); 7] = [
    ("scan", 1.45, 1.15),
    ("training", 1.3, 1.15),
    ("decode", 1.25, 1.15),
    ("prefill", 1.25, 1.2),
    ("adamw", 1.2, 1.25),
    ("stencil", 2.3, 2.0),
    ("buffer", 1.6, 0.1), // read in place: no page of the one buffer can go for another
];

#[test]
fn made_traces_stay_near_the_bound() {
    for ((name, make), (same, time, traffic)) in made::ALL.into_iter().zip(LIMITS) {
        assert_eq!(name, same);
        let trace = make();
        for mover in [false, true] {
            // Books that do not balance, and calls that no driver allows, are errors.
            let found = replay(&trace, &machine(&trace), Options { mover, ..AUTO }).unwrap();
            let ms = |ns: Nanos| ns as f64 / 1e6;
            println!(
                "{name:<9} mover {mover:<5} native {:>6.1} bound {:>6.1} ours {:>6.1} \
                 time {:.2} traffic {:.2} in place {} MiB waited {:.1} out {:.1} home {:.1}",
                ms(found.native),
                ms(found.bound),
                ms(found.time),
                found.ratio(),
                found.traffic(),
                found.in_place >> 20,
                ms(found.waited),
                ms(found.busy_out),
                ms(found.busy_home),
            );
            // A round may gain a little that the one before has paid.
            assert!(found.ratio() > 0.97, "{name} is faster than the bound: {}", found.ratio());
            assert!(found.ratio() < time, "{name}: time {}", found.ratio());
            assert!(found.traffic() < traffic, "{name}: traffic {}", found.traffic());
            assert!(found.time >= found.busy_home && found.time >= found.busy_out, "{name}");
        }
    }
}

#[test]
fn what_fits_takes_the_native_time() {
    let trace = made::scan();
    let machine = Machine::h200(1, 16 << 30, 16 << 30);
    let found = replay(&trace, &machine, AUTO).unwrap();
    assert_eq!((found.fetched, found.evicted, found.least.fetched), (0, 0, 0));
    assert!(found.time.abs_diff(found.native) < 10_000, "{} {}", found.time, found.native); // one poll
}

#[test]
fn the_same_comes_out_twice() {
    let trace = made::decode();
    for mover in [false, true] {
        let options = Options { rounds: 3, mover, ..AUTO };
        let [first, second] = [0; 2].map(|_| replay(&trace, &machine(&trace), options).unwrap());
        assert_eq!(first, second);
    }
}

#[test]
fn strict_is_slower_and_moves_no_more_than_it_must() {
    let trace = made::decode();
    let found = replay(&trace, &machine(&trace), Options { strict: true, ..AUTO }).unwrap();
    assert!(found.ratio() > 1.2 && found.traffic() < 1.2, "{found}");
}

#[test]
fn a_second_gpu_takes_what_overflows() {
    let trace = made::decode();
    let machine = Machine::h200(2, 8 << 30, 16 << 30);
    let found = replay(&trace, &machine, AUTO).unwrap();
    let alone = replay(&trace, &Machine::h200(1, 8 << 30, 16 << 30), AUTO).unwrap();
    assert!(found.time * 2 < alone.time, "{} {}", found.time, alone.time);
}

#[test]
fn memory_that_comes_and_goes_is_replayed() {
    let mut text = "vgmem-trace 1\n".to_string();
    for id in 0..40 {
        text += &format!("a {id} 0 268435456\nm 0 0 in 1000 {id}+0+268435456\nk 0 0 1 100000 {id}+0\n");
        if id >= 20 {
            text += &format!("w 0 0\nf {}\n", id - 20);
        }
    }
    let trace: Trace = text.parse().unwrap();
    let machine = Machine::h200(1, 4 << 30, 16 << 30);
    let found = replay(&trace, &machine, Options { rounds: 3, ..AUTO }).unwrap();
    assert!(found.ratio() > 0.97, "{found}");
}

#[test]
fn what_cannot_be_is_one_line() {
    let trace = made::scan();
    let error = |machine: Machine, options| replay(&trace, &machine, options).unwrap_err();
    let small = Machine::h200(1, 8 << 30, 2 << 30);
    assert!(error(small, AUTO).contains("do not fit (code 2)"), "{}", error(small, AUTO));
    assert_eq!(error(small, Options { rounds: 0, ..AUTO }), "nothing to replay");
    assert_eq!(error(small, Options { skip: 1_000, ..AUTO }), "nothing to replay");
    assert!(error(Machine::h200(0, 8 << 30, 0), AUTO).contains("1 to 64"));
    assert!(error(Machine::h200(1, 1 << 20, 0), AUTO).contains("16 pages"));
    assert!(error(Machine { page: 3 << 20, ..small }, AUTO).contains("power of two"));
}

#[test]
fn what_is_found_can_be_read() {
    let trace = made::scan();
    let found = replay(&trace, &machine(&trace), Options { rounds: 4, ..AUTO }).unwrap();
    let text = found.to_string();
    for word in ["native", "ours / bound", "fetched", "evicted", "launches waited", "rounds, ms:"] {
        assert!(text.contains(word), "{text}");
    }
    let json = found.json();
    assert!(json.starts_with("{\"time_ns\":") && json.ends_with("}}"), "{json}");
    assert_eq!(json.matches('{').count(), json.matches('}').count());
    assert!(found.timeline(&trace).starts_with("the way home idle, ms in a round\n"));
    let idle: Nanos = found.losses.iter().map(|loss| loss.ns).sum();
    assert_eq!(idle + found.busy_home, found.time);
}
