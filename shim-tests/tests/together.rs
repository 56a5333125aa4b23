//! Several processes of one machine: the host budget is one for all, and what a process leaves behind
//! when it is killed is free again. The simulated GPUs belong to each process alone, but where
//! `VGMEM_SIM_MACHINE` names a machine for all.

use shim_tests::{MIB, Outcome, Run, Source, workspace};

fn together(mode: &str, settings: &[(&str, &str)]) -> Outcome {
    let include = format!("-I{}", workspace().join("include").display());
    let program = Source::program("together").flags(&[&include]).build();
    settings.iter().fold(Run::new(program).arg(mode), |run, (k, v)| run.env(k, v)).ok()
}

fn first(outcome: &Outcome, key: &str) -> u64 {
    let text = outcome.value(key).split(' ').next().unwrap_or_default();
    text.parse().unwrap_or_else(|_| panic!("{key} in {outcome:#?}"))
}

/// GPUs of 16 MiB hold 7 pieces of 2 MiB besides what is kept; the host's 32 MiB hold 16 for both.
#[test]
fn the_host_budget_is_shared() {
    let outcome = together("budget", &[("VGMEM_SIM", "gpus=1,mem=16M,host=128M"), ("VGMEM_HOST", "32M")]);
    let alone = first(&outcome, "first");
    let own = first(&outcome, "second");
    assert!((6..=8).contains(&own), "nothing is left for the second but its GPU: {outcome:#?}");
    assert_eq!(alone, own + 16, "{outcome:#?}");
    assert_eq!(first(&outcome, "second_more"), 16, "what the first freed: {outcome:#?}");
    assert_eq!(first(&outcome, "first_again"), alone, "{outcome:#?}");
    assert_eq!(first(&outcome, "after_kill"), alone, "a killed process holds nothing: {outcome:#?}");
}

/// Among the peers, a GPU that is another process's home is used last.
#[test]
fn the_home_of_another_process_comes_last() {
    let settings = [("VGMEM_SIM", "gpus=3,mem=16M,host=128M"), ("VGMEM_HOST", "32M")];
    let outcome = together("homes", &settings);
    // Ten pieces of 2 MiB: seven fit at home. On GPU 0, 1, 2 and the host:
    let alone = outcome.value("first_where");
    assert!(
        alone.starts_with("7 ") && alone.ends_with(" 0") && !alone.starts_with("7 0"),
        "alone: {outcome:#?}"
    );
    assert_eq!(outcome.value("first_where_now"), "7 0 3 0", "beside another: {outcome:#?}");
    assert_eq!(outcome.value("first_where_at_last"), "7 7 7 16", "in need: {outcome:#?}");
}

/// Forty-eight processes that allocate and free are killed at random points, four at a time: each lived until then,
/// nothing of the shared host budget stays booked, and nobody waits for the dead.
#[test]
fn processes_killed_at_random_points_leave_nothing() {
    let program = Source::program("killed").build();
    for seed in [1, 2] {
        let run = Run::new(&program).sim("gpus=1,mem=16M,host=64M").arg(seed.to_string()).limit(60);
        let outcome = run.env("VGMEM_HOST", "32M").env("VGMEM_LOG", "error").ok();
        assert_eq!(outcome.number("killed"), 48, "seed {seed}: {outcome:#?}");
        assert!(outcome.number("before") > 16, "{outcome:#?}");
        assert_eq!(outcome.number("after"), outcome.number("before"), "seed {seed}: {outcome:#?}");
    }
}

/// Two processes fill one GPU at the same time: each writes and reads back all it got, until error 2, and together
/// they get what there is.
#[test]
fn two_processes_fill_one_gpu() {
    let program = Source::program("promises").flags(&["-O2"]).build();
    let name = format!("test{}", std::process::id());
    let run = Run::new(&program).sim("gpus=1,mem=256M,host=64M").arg("full").limit(60);
    let run = run.env("VGMEM_SIM_MACHINE", &name).env("VGMEM_TEST_LEDGER", &name).env("VGMEM_HOST", "32M");
    let other = run.clone();
    let other = std::thread::spawn(move || other.ok());
    let outcomes = [run.ok(), other.join().expect("the other run")];
    let had: u64 = outcomes.iter().map(|outcome| outcome.number("had0")).sum();
    let right = |outcome: &Outcome| (outcome.number("wrong"), outcome.number("refused")) == (0, 2);
    assert!(outcomes.iter().all(right), "{outcomes:#?}");
    // Each may have run before the other, or beside it: never more than twice the machine, and more than one half.
    assert!(((128 + 32) * MIB..=2 * (256 + 32) * MIB).contains(&had), "{outcomes:#?}");
}

/// Eight processes, each at home on a GPU of its own, fill one machine at the same time and read back what they wrote,
/// until error 2; together they get about all that there is.
#[test]
fn eight_processes_share_eight_gpus() {
    let program = Source::program("promises").flags(&["-O2"]).build();
    let name = format!("eight{}", std::process::id());
    let start = |gpu: usize| {
        let run =
            Run::new(&program).sim("gpus=8,mem=96M,host=256M").args(&["full", &gpu.to_string()]).limit(100);
        let run = run.env("VGMEM_SIM_MACHINE", &name).env("VGMEM_TEST_LEDGER", &name);
        let run = run.env("VGMEM_ADVERTISE", "pool").env("VGMEM_HOST", "64M");
        std::thread::spawn(move || run.ok())
    };
    let running: Vec<_> = (0..8).map(start).collect();
    let outcomes: Vec<Outcome> = running.into_iter().map(|run| run.join().expect("a run")).collect();
    let right = |outcome: &Outcome| (outcome.number("wrong"), outcome.number("refused")) == (0, 2);
    assert!(outcomes.iter().all(right), "{outcomes:#?}");
    let had: u64 = outcomes.iter().map(|outcome| outcome.number("had0")).sum();
    // Those that come late find what the early ones have freed: the sum may exceed the machine.
    assert!(had >= (8 * 96 + 64) * MIB / 2, "{had}: {outcomes:#?}");
}
