//! The `vgmem` command: runs programs under the preload, says what stands in the way, and replays what was
//! recorded.

mod doctor;
mod elf;
mod library;
mod memory;
mod probe;
mod replay;
mod run;
mod settings;
mod target;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// One pool of memory of all GPUs and host RAM for unmodified CUDA programs.
#[derive(Parser)]
#[command(name = "vgmem", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program under the preload.
    Run(run::Options),
    /// Say what would work on this machine and what would not.
    Doctor(doctor::Options),
    /// Play a recorded program in virtual time and say where the time goes.
    Replay(replay::Options),
    /// Ask the driver about its GPUs; `doctor` starts this in a process of its own.
    #[command(hide = true)]
    Probe,
}

fn main() -> ExitCode {
    // The same variable and words as the library's own log.
    env_logger::Builder::new().filter_level(log::LevelFilter::Warn).parse_env("VGMEM_LOG").init();
    let outcome = match Cli::parse().command {
        Command::Run(options) => run::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Replay(options) => replay::run(&options),
        Command::Probe => {
            probe::answer();
            Ok(ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|message| {
        eprintln!("vgmem: {message}");
        ExitCode::from(125)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    #[test]
    fn the_help_names_every_command_that_people_use() {
        let help = super::Cli::command().render_long_help().to_string();
        assert!(help.contains("run ") && help.contains("doctor ") && help.contains("replay "), "{help}");
        assert!(!help.contains("probe "), "{help}");
    }
}
