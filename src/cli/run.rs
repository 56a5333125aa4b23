//! `vgmem run`: a program under the preload.

use crate::{library, target};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// What `vgmem run` takes; each option stands for the setting of the same meaning.
#[derive(Args)]
pub struct Options {
    /// Most that the pool takes of a GPU: 20G, or 0:20G,1:8G (VGMEM_DEVICE_LIMIT).
    #[arg(long)]
    limit: Option<String>,
    /// Host memory in the pool: auto, 64G, 50% or 0 (VGMEM_HOST).
    #[arg(long)]
    host: Option<String>,
    /// GPUs in the pool: all, 0,2,3 or UUIDs (VGMEM_DEVICES).
    #[arg(long)]
    devices: Option<String>,
    /// Where to write the report at exit: stderr or a .json file (VGMEM_REPORT).
    #[arg(long)]
    report: Option<String>,
    /// Another libvgmem.so than the one beside this command.
    #[arg(long)]
    library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<OsString>,
}

/// Becomes the program; returns only if that did not work.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let (name, arguments) = options.program.split_first().ok_or("no program was named")?;
    let search = std::env::var_os("PATH").unwrap_or_default();
    let program = target::find(name, &search)?;
    target::check(&program, &search)?;
    let library = library::find(options.library.as_deref())?;
    let mut command = Command::new(&program);
    command.arg0(name).args(arguments);
    let before = std::env::var_os("LD_PRELOAD");
    command.env("LD_PRELOAD", library::preload(&library, before.as_deref()));
    for (variable, value) in options.settings() {
        command.env(variable, value);
    }
    log::debug!("{} with {}", program.display(), library.display());
    let error = command.exec();
    Err(format!("{}: {error}", program.display()))
}

impl Options {
    fn settings(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let given = [
            ("VGMEM_DEVICE_LIMIT", &self.limit),
            ("VGMEM_HOST", &self.host),
            ("VGMEM_DEVICES", &self.devices),
            ("VGMEM_REPORT", &self.report),
        ];
        given.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn options_end_where_the_program_begins() {
        let line = ["run", "--limit", "20G", "--", "prog", "--host", "-x"];
        let options = Line::try_parse_from(line).unwrap().options;
        assert_eq!(options.program, ["prog", "--host", "-x"]);
        assert_eq!(options.settings().collect::<Vec<_>>(), [("VGMEM_DEVICE_LIMIT", &"20G".to_owned())]);
        let options = Line::try_parse_from(["run", "prog", "--limit", "1G"]).unwrap().options;
        assert_eq!(options.program, ["prog", "--limit", "1G"]);
        assert_eq!(options.settings().count(), 0);
    }

    #[test]
    fn every_option_is_a_setting() {
        let line = ["run", "--limit=1G", "--host=0", "--devices=0", "--report=stderr", "prog"];
        let options = Line::try_parse_from(line).unwrap().options;
        assert_eq!(options.settings().count(), 4);
        for (name, _) in options.settings() {
            assert!(
                matches!(crate::settings::status(name), Some(crate::settings::Status::Known(_))),
                "{name}"
            );
        }
    }

    #[test]
    fn a_program_is_required() {
        assert!(Line::try_parse_from(["run", "--limit", "1G"]).is_err());
    }
}
