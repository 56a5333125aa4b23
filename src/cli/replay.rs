//! `vgmem replay`: a recorded program in virtual time, on any machine.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use vgmem_replay::{Machine, Trace};

/// `on` or `off`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// The words of VGMEM_SAFETY.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Safety {
    Auto,
    Strict,
}

/// What launches write.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Writes {
    All,
    Likely,
    Nothing,
}

/// What `vgmem replay` takes. Rates are in GB/s.
#[derive(Args)]
pub struct Options {
    /// The trace, as VGMEM_TRACE writes it.
    trace: PathBuf,
    /// Memory of each GPU: 8G; without it, what the trace's first GPU had.
    #[arg(long, value_parser = size)]
    mem: Option<u64>,
    /// Host memory in the pool.
    #[arg(long, value_parser = size, default_value = "64G")]
    host: u64,
    /// GPUs in the pool.
    #[arg(long, default_value_t = 1)]
    gpus: u8,
    /// What the link carries one way.
    #[arg(long)]
    link: Option<f64>,
    /// What it carries both ways together.
    #[arg(long)]
    both: Option<f64>,
    /// What goes between two GPUs.
    #[arg(long)]
    peer: Option<f64>,
    /// How often kernels read what they name, where it lies elsewhere.
    #[arg(long)]
    amplification: Option<f64>,
    /// Largest page: 32M; without it, what the library would choose.
    #[arg(long, value_parser = size)]
    page: Option<u64>,
    /// How often the trace is played; the last quarter is measured.
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Records at the beginning that are played once.
    #[arg(long, default_value_t = 0)]
    skip: usize,
    /// Whether a thread of its own moves pages.
    #[arg(long, default_value = "on")]
    mover: Switch,
    /// VGMEM_SAFETY.
    #[arg(long, default_value = "auto")]
    safety: Safety,
    /// How long a launch waits for the best page to go before another one goes, in microseconds.
    #[arg(long, default_value_t = 20_000)]
    patience: u64,
    /// What a launch writes: all that it names, what kernels of its kind write, or nothing. The trace does not say.
    #[arg(long, default_value = "all")]
    writes: Writes,
    /// One JSON object instead of the table.
    #[arg(long)]
    json: bool,
    /// When the way home was idle, and why.
    #[arg(long)]
    timeline: bool,
}

/// Reads a size such as 8G, 512M or 4096.
fn size(word: &str) -> Result<u64, String> {
    let (digits, shift) = match word.char_indices().last() {
        Some((at, 'K')) => (&word[..at], 10),
        Some((at, 'M')) => (&word[..at], 20),
        Some((at, 'G')) => (&word[..at], 30),
        Some((at, 'T')) => (&word[..at], 40),
        _ => (word, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.ok_or_else(|| format!("`{word}` is no size such as 8G, 512M or 4096"))
}

/// Replays a trace and prints what was found.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let name = options.trace.display();
    let text = std::fs::read_to_string(&options.trace).map_err(|error| format!("{name}: {error}"))?;
    let trace: Trace = text.parse().map_err(|error| format!("{name}: {error}"))?;
    let recorded = trace.gpus.first().map(|(_, bytes)| *bytes);
    let memory = options.mem.or(recorded).ok_or("the trace names no GPU: give --mem")?;
    let mut machine = Machine::h200(options.gpus, memory, options.host);
    machine.page = options.page.unwrap_or(machine.page);
    machine.rates.link = options.link.unwrap_or(machine.rates.link);
    machine.rates.both = options.both.unwrap_or(machine.rates.both);
    machine.rates.peer = options.peer.unwrap_or(machine.rates.peer);
    machine.rates.amplification = options.amplification.unwrap_or(machine.rates.amplification);
    let how = vgmem_replay::Options {
        rounds: options.rounds,
        skip: options.skip,
        mover: options.mover == Switch::On,
        strict: options.safety == Safety::Strict,
        patience: options.patience * 1_000,
        writes: match options.writes {
            Writes::All => vgmem_replay::Writes::All,
            Writes::Likely => vgmem_replay::Writes::Likely,
            Writes::Nothing => vgmem_replay::Writes::Nothing,
        },
    };
    let found = vgmem_replay::replay(&trace, &machine, how).map_err(|error| format!("{name}: {error}"))?;
    if options.json {
        println!("{}", found.json());
    } else {
        print!("{found}");
    }
    if options.timeline {
        print!("\n{}", found.timeline(&trace));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_read() {
        assert_eq!(["8G", "512M", "4096", "2K"].map(size), [Ok(8 << 30), Ok(512 << 20), Ok(4096), Ok(2048)]);
        for wrong in ["", "G", "8g", "-1M", "1.5G", "99999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
