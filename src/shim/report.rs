//! The exit report, and the line that explains an out-of-memory.

use std::fmt::Write as _;

use vgmem_engine::{Snapshot, TierUse};

use crate::log::say;
use crate::settings::Report;
use crate::start::{Engine, engine_at_exit};
use crate::{exports, fork, ledger, slot, stats};

const MIB: f64 = (1 << 20) as f64;

/// The one line of an out-of-memory: where the memory went.
pub fn out_of_memory(engine: &Engine, home: u8, bytes: u64) {
    let snapshot = engine.pool.snapshot();
    let mut places = String::new();
    for (gpu, tier) in snapshot.gpus.iter().enumerate() {
        let _ = write!(places, "GPU {gpu} {} of {} MiB, ", tier.now >> 20, tier.capacity >> 20);
    }
    log::warn!(
        "out of memory: {} MiB for GPU {home} do not fit; used: {places}host {} of {} MiB \
         (other processes hold {} MiB of that budget, the machine has {} MiB left)",
        bytes.div_ceil(1 << 20),
        snapshot.host.now >> 20,
        snapshot.host.capacity >> 20,
        ledger::host_of_others() >> 20,
        crate::start::host_available() >> 20
    );
}

/// Runs when the process ends in the ordinary way. Calls no driver: it may be gone.
extern "C" fn at_exit() {
    let Some(engine) = engine_at_exit() else { return };
    match &engine.settings.report {
        Report::None => {}
        Report::Stderr => table(engine, &engine.pool.snapshot()),
        Report::File(path) => {
            if let Err(error) = std::fs::write(path, json(engine, &engine.pool.snapshot())) {
                say(format_args!("VGMEM_REPORT={path} cannot be written: {error}"));
            }
        }
    }
}

/// The loader calls the library's finalisers after the program's own exit handlers.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

fn reached() -> (usize, usize) {
    (exports::slots().filter(|slot| slot.reached()).count(), exports::slots().count())
}

fn table(engine: &Engine, snapshot: &Snapshot) {
    say(format_args!(
        "where pages lay when the pool held most ({:.0} MiB), process {}:",
        snapshot.peak as f64 / MIB,
        fork::process()
    ));
    say(format_args!(
        "  {:<8}{:<28}{:>14}{:>14}{:>14}",
        "tier", "name", "capacity MiB", "at peak MiB", "at exit MiB"
    ));
    let row = |tier: &str, name: &str, used: &TierUse| {
        say(format_args!(
            "  {:<8}{:<28}{:>14.0}{:>14.0}{:>14.0}",
            tier,
            name,
            used.capacity as f64 / MIB,
            used.at_peak as f64 / MIB,
            used.now as f64 / MIB
        ));
    };
    for (index, used) in snapshot.gpus.iter().enumerate() {
        let name = engine.gpus.get(index).map_or("", |gpu| gpu.name.as_str());
        row(&format!("GPU {index}"), name, used);
    }
    row("host", "RAM", &snapshot.host);
    let (reached, all) = reached();
    say(format_args!(
        "  {} allocations made, {} refused, {} live at exit; pages of up to {} MiB; {reached} of {all} hooks reached",
        snapshot.made,
        snapshot.refused,
        snapshot.live,
        engine.pool.config().page_bytes >> 20
    ));
    for line in remarks(engine, snapshot) {
        say(format_args!("  {line}"));
    }
}

/// What the numbers do not say.
fn remarks(engine: &Engine, snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    let config = engine.pool.config();
    for (gpu, of) in config.gpus.iter().enumerate() {
        let hidden: Vec<String> = (0..config.gpus.len())
            .filter(|&other| of.distances[other].is_none() && config.gpus[other].capacity > 0)
            .map(|other| other.to_string())
            .collect();
        if !hidden.is_empty() {
            lines.push(format!("GPU {gpu} cannot map the memory of GPU {} (no P2P)", hidden.join(", ")));
        }
    }
    for (gpu, known) in engine.gpus.iter().enumerate().filter(|(_, known)| !known.pooled) {
        lines.push(format!("GPU {gpu} ({}) is not in the pool (VGMEM_DEVICES)", known.name));
    }
    if let Some(value) = crate::settings::early(c"CUDA_VISIBLE_DEVICES") {
        lines
            .push(format!("CUDA_VISIBLE_DEVICES={} hides other GPUs from the pool", value.to_string_lossy()));
    }
    if crate::lookup::namespaces_used() {
        lines.push("a library was loaded with dlmopen: CUDA calls made there are not seen".to_owned());
    }
    if snapshot.fetched + snapshot.evicted > 0 {
        let (came, went) = (snapshot.fetched, snapshot.evicted);
        let unwritten = snapshot.unwritten;
        lines.push(format!(
            "paging: {came} pages came home, {went} were sent away, {unwritten} of them unwritten and not copied"
        ));
        let counts: Vec<String> =
            stats::all().iter().map(|(name, count)| format!("{name} {count}")).collect();
        lines.push(format!("pager: {}", counts.join(", ")));
    }
    if snapshot.helped > 0 {
        lines.push(format!("{} pages were copied over the links of other GPUs", snapshot.helped));
    }
    if snapshot.moved > 0 {
        lines.push(format!("{} pages were moved", snapshot.moved));
    }
    if snapshot.lost > 0 {
        lines.push(format!("{} MiB were not taken back by the driver", snapshot.lost >> 20));
    }
    lines
}

fn json(engine: &Engine, snapshot: &Snapshot) -> String {
    let tier = |used: &TierUse| {
        format!("\"capacity\":{},\"at_peak\":{},\"at_exit\":{}", used.capacity, used.at_peak, used.now)
    };
    let gpus: Vec<String> = snapshot
        .gpus
        .iter()
        .enumerate()
        .map(|(index, used)| {
            let name = engine.gpus.get(index).map_or("", |gpu| gpu.name.as_str());
            format!("{{\"name\":{},{}}}", quoted(name), tier(used))
        })
        .collect();
    let names: Vec<String> = exports::slots()
        .filter(|slot| slot.reached())
        .map(|slot| quoted(&slot.name.to_string_lossy()))
        .collect();
    let remarks: Vec<String> = remarks(engine, snapshot).iter().map(|line| quoted(line)).collect();
    format!(
        "{{\"process\":{},\"page_bytes\":{},\"peak\":{},\"made\":{},\"refused\":{},\
         \"live\":{},\"moved\":{},\"fetched\":{},\"evicted\":{},\"unwritten\":{},\"helped\":{},\"lost\":{},{}\
         \"gpus\":[{}],\"host\":{{{}}},\"hooks\":{},\"given\":{},\"reached\":[{}],\"remarks\":[{}]}}\n",
        fork::process(),
        engine.pool.config().page_bytes,
        snapshot.peak,
        snapshot.made,
        snapshot.refused,
        snapshot.live,
        snapshot.moved,
        snapshot.fetched,
        snapshot.evicted,
        snapshot.unwritten,
        snapshot.helped,
        snapshot.lost,
        stats::all().map(|(name, count)| format!("\"{name}\":{count},")).concat(),
        gpus.join(","),
        tier(&snapshot.host),
        exports::slots().count(),
        slot::given(),
        names.join(","),
        remarks.join(",")
    )
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
